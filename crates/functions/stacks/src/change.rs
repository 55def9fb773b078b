//! Changes and change sets, as they are kept and shown.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::instance::Deployment;
use crate::operation::OperationKind;

macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($variant:ident $text:literal $words:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $(#[doc = $words] $variant,)* }

        impl $name {
            /// The word for it in answers.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

words! {
    /// The status of a change set.
    ChangeSetStatus {
        CreateComplete "CREATE_COMPLETE" "It has changes.";
        Failed "FAILED" "It has none, or the target is invalid.";
    }
}

words! {
    /// The status of the execution of a change set.
    ExecutionStatus {
        Unavailable "UNAVAILABLE" "It cannot be executed.";
        Available "AVAILABLE" "It can be executed.";
        ExecuteInProgress "EXECUTE_IN_PROGRESS" "It is being executed.";
        ExecuteComplete "EXECUTE_COMPLETE" "It has been executed.";
        ExecuteFailed "EXECUTE_FAILED" "Its execution failed.";
        Obsolete "OBSOLETE" "The stack has changed since.";
    }
}

words! {
    /// The kind of a change.
    ChangeAction {
        Add "Add" "A resource is made.";
        Modify "Modify" "A resource is changed or replaced.";
        Remove "Remove" "A resource is deleted, or left without a stack.";
    }
}

words! {
    /// Tells if a changed resource is replaced.
    Replacement {
        True "True" "It is.";
        False "False" "It is not.";
        Conditional "Conditional" "It depends on values that are not known yet.";
    }
}

/// A change of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its kind.
    pub action: ChangeAction,
    /// The name of the resource in the template.
    pub logical_id: String,
    /// The identifier of the resource, if it exists.
    pub physical_id: Option<String>,
    /// The type.
    pub kind: String,
    /// Tells if it is replaced; only for [`ChangeAction::Modify`].
    pub replacement: Option<Replacement>,
    /// The properties that change, and true for one whose change needs a replacement.
    pub properties: BTreeMap<String, bool>,
    /// `Tags`, `Metadata` or `DeletionPolicy`, if they change.
    pub scope: BTreeSet<String>,
}

/// A change set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// Its ARN.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: Option<String>,
    /// A creation or an update.
    pub kind: OperationKind,
    /// The target.
    pub target: Deployment,
    /// The changes.
    pub changes: Vec<Change>,
    /// Its status.
    pub status: ChangeSetStatus,
    /// The reason of its status.
    pub reason: Option<String>,
    /// The status of its execution.
    pub execution: ExecutionStatus,
    /// The time of its creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// The token of the request that made it.
    pub token: Option<String>,
}
