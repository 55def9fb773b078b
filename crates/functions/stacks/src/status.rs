//! The statuses of stacks and resources.

use serde::{Deserialize, Serialize};

macro_rules! statuses {
    ($($name:ident $text:literal $words:literal;)*) => {
        /// The status of a stack or a resource.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Status {
            $(#[doc = $words] #[serde(rename = $text)] $name,)*
        }

        impl Status {
            /// All of them.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// The word for it in answers.
            pub fn as_str(self) -> &'static str {
                match self { $(Status::$name => $text,)* }
            }
        }
    };
}

statuses! {
    ReviewInProgress "REVIEW_IN_PROGRESS" "A change set exists, but no resource.";
    CreateInProgress "CREATE_IN_PROGRESS" "Being created.";
    CreateFailed "CREATE_FAILED" "Not created.";
    CreateComplete "CREATE_COMPLETE" "Created.";
    RollbackInProgress "ROLLBACK_IN_PROGRESS" "Its creation is being undone.";
    RollbackFailed "ROLLBACK_FAILED" "Its creation could not be undone.";
    RollbackComplete "ROLLBACK_COMPLETE" "Its creation is undone.";
    UpdateInProgress "UPDATE_IN_PROGRESS" "Being updated.";
    UpdateFailed "UPDATE_FAILED" "Not updated.";
    UpdateCleanup "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS" "Updated; old resources are being deleted.";
    UpdateComplete "UPDATE_COMPLETE" "Updated.";
    UpdateRollbackInProgress "UPDATE_ROLLBACK_IN_PROGRESS" "Its update is being undone.";
    UpdateRollbackFailed "UPDATE_ROLLBACK_FAILED" "Its update could not be undone.";
    UpdateRollbackCleanup "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS"
        "Its update is undone; new resources are being deleted.";
    UpdateRollbackComplete "UPDATE_ROLLBACK_COMPLETE" "Its update is undone.";
    DeleteInProgress "DELETE_IN_PROGRESS" "Being deleted.";
    DeleteFailed "DELETE_FAILED" "Not deleted.";
    DeleteComplete "DELETE_COMPLETE" "Deleted.";
    DeleteSkipped "DELETE_SKIPPED" "Left as it is.";
}

impl Status {
    /// Returns true while an operation is in progress.
    pub fn is_in_progress(self) -> bool {
        self.as_str().ends_with("_IN_PROGRESS") && self != Status::ReviewInProgress
    }

    /// Returns true if a stack with this status can be updated.
    pub fn can_update(self) -> bool {
        matches!(
            self,
            Status::CreateComplete
                | Status::UpdateComplete
                | Status::UpdateRollbackComplete
                | Status::UpdateFailed
        )
    }
}

/// The end of a creation or an update that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// The state before comes back.
    #[default]
    Rollback,
    /// Everything stays as it is.
    DoNothing,
    /// The new stack is deleted.
    Delete,
}

impl OnFailure {
    /// The word for it in requests and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Rollback => "ROLLBACK",
            OnFailure::DoNothing => "DO_NOTHING",
            OnFailure::Delete => "DELETE",
        }
    }
}
