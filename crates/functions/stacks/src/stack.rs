//! A stack: the resources that it has, its template and parameters, events, and the operation that is in
//! progress. Everything is serialisable, so that a stopped process continues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::changeset::ChangeSet;
use crate::functions::Pseudo;
use crate::operation::Operation;
use crate::template::{Policy, Template};

/// Most events of a stack: the oldest ones go.
pub const EVENTS_MAX: usize = 2_000;
/// Most tokens of requests that a stack remembers: the oldest ones go.
const TOKENS_MAX: usize = 32;
/// Type of the stack itself in events.
pub const STACK_KIND: &str = "AWS::CloudFormation::Stack";

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

/// A template with parameters and settings: what a stack is to become, or has become.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// The text of the template.
    pub body: String,
    /// The text after transforms, if there are some.
    pub processed: Option<String>,
    /// The names of the transforms.
    pub transforms: Vec<String>,
    /// The template after transforms.
    pub template: Template,
    /// The values of its parameters.
    pub parameters: BTreeMap<String, String>,
    /// Tags for the stack and its resources.
    pub tags: BTreeMap<String, String>,
    /// What the request acknowledges.
    pub capabilities: Vec<String>,
    /// The role of the request. The engine only shows it.
    pub role_arn: Option<String>,
    /// Topics of the request.
    pub notification_arns: Vec<String>,
    /// The end of a failure.
    pub on_failure: OnFailure,
    /// Resources that are retained are deleted if their creation is undone.
    pub deletes_new: bool,
    /// Longest time of a creation, in milliseconds.
    pub timeout_ms: Option<u64>,
}

/// A resource that exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Its number in the stack. A replacement has another one.
    pub serial: u64,
    /// Its name in the template.
    pub logical_id: String,
    /// Its type.
    pub kind: String,
    /// Its identifier outside; the value of `Ref`. Empty if its creation failed without one.
    pub physical_id: String,
    /// Its resolved properties.
    pub properties: Value,
    /// The values of `Fn::GetAtt`.
    pub attributes: Map<String, Value>,
    /// The tags that it got.
    pub tags: BTreeMap<String, String>,
    /// The numbers of the resources that it uses.
    pub uses: BTreeSet<u64>,
    /// The policy when it goes.
    pub deletion_policy: Policy,
    /// Metadata of the template.
    pub metadata: Option<Value>,
    /// An update failed: its properties may be the old or the new ones.
    pub is_uncertain: bool,
    /// Its status.
    pub status: Status,
    /// The reason of its status.
    pub reason: Option<String>,
    /// The time of its status, in milliseconds since 1970.
    pub changed_ms: u64,
}

/// The value of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputValue {
    /// The value.
    pub value: String,
    /// The description.
    pub description: Option<String>,
    /// The name by which other stacks import it.
    pub export: Option<String>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number in the stack.
    pub number: u64,
    /// Its time, in milliseconds since 1970.
    pub time_ms: u64,
    /// The resource; the stack's name if it is the stack.
    pub logical_id: String,
    /// The identifier of the resource; empty if there is none yet.
    pub physical_id: String,
    /// The type.
    pub kind: String,
    /// The status since then.
    pub status: Status,
    /// Its reason.
    pub reason: Option<String>,
    /// The token of the request.
    pub token: Option<String>,
}

/// A stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// Its ARN.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its region and account.
    pub place: Place,
    /// Its status.
    pub status: Status,
    /// The reason of its status.
    pub reason: Option<String>,
    /// The time of its creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// That of its last update.
    pub updated_ms: Option<u64>,
    /// That of its deletion.
    pub deleted_ms: Option<u64>,
    /// A deletion is refused.
    pub is_protected: bool,
    /// The last template that took effect; that of the creation before.
    pub deployment: Deployment,
    /// The resources, by their names in the template.
    pub resources: BTreeMap<String, Instance>,
    /// Replaced or removed resources that could not be deleted. The next operation tries again.
    pub leftovers: Vec<Instance>,
    /// The outputs.
    pub outputs: BTreeMap<String, OutputValue>,
    /// The exports of other stacks that it uses.
    pub imports: BTreeSet<String>,
    /// The events, oldest first.
    pub events: VecDeque<Event>,
    /// The change sets, by their ARNs.
    pub change_sets: BTreeMap<String, ChangeSet>,
    /// Tokens of requests and their operations, oldest first.
    pub tokens: VecDeque<(String, String)>,
    /// The token of the last operation.
    pub token: Option<String>,
    /// The operation in progress.
    pub operation: Option<Operation>,
    /// The number of the next resource.
    pub serial_next: u64,
    /// The number of the next event.
    pub event_next: u64,
}

/// The region and account of stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The region.
    pub region: String,
    /// The account: 12 digits.
    pub account: String,
}

impl Stack {
    /// Makes a stack without resources.
    pub fn new(id: String, name: String, place: Place, status: Status, now_ms: u64) -> Stack {
        Stack {
            id,
            name,
            place,
            status,
            reason: None,
            created_ms: now_ms,
            updated_ms: None,
            deleted_ms: None,
            is_protected: false,
            deployment: Deployment::default(),
            resources: BTreeMap::new(),
            leftovers: Vec::new(),
            outputs: BTreeMap::new(),
            imports: BTreeSet::new(),
            events: VecDeque::new(),
            change_sets: BTreeMap::new(),
            tokens: VecDeque::new(),
            token: None,
            operation: None,
            serial_next: 1,
            event_next: 1,
        }
    }

    /// The pseudo parameters of the stack.
    pub fn pseudo(&self, deployment: &Deployment) -> Pseudo {
        Pseudo {
            region: self.place.region.clone(),
            account: self.place.account.clone(),
            stack_name: self.name.clone(),
            stack_id: self.id.clone(),
            notification_arns: deployment.notification_arns.clone(),
        }
    }

    /// Sets the status of the stack, with an event.
    pub fn enter(&mut self, status: Status, reason: Option<String>, now_ms: u64) {
        self.status = status;
        self.reason = reason.clone();
        let (name, id) = (self.name.clone(), self.id.clone());
        self.log((&name, &id, STACK_KIND), status, reason, now_ms);
    }

    /// Adds an event about a thing with a logical name, an identifier and a type.
    pub fn log(
        &mut self,
        (logical_id, physical_id, kind): (&str, &str, &str),
        status: Status,
        reason: Option<String>,
        now_ms: u64,
    ) {
        let number = self.event_next;
        self.event_next += 1;
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            number,
            time_ms: now_ms,
            logical_id: logical_id.to_owned(),
            physical_id: physical_id.to_owned(),
            kind: kind.to_owned(),
            status,
            reason,
            token: self.token.clone(),
        });
    }

    /// The operation that a token began.
    pub fn begun_by(&self, token: &str) -> Option<&str> {
        self.tokens.iter().find(|(one, _)| one == token).map(|(_, operation)| operation.as_str())
    }

    /// Remembers the token of a request.
    pub fn remember(&mut self, token: Option<&str>, operation: &str) {
        self.token = token.map(str::to_owned);
        if let Some(token) = token {
            if self.tokens.len() == TOKENS_MAX {
                self.tokens.pop_front();
            }
            self.tokens.push_back((token.to_owned(), operation.to_owned()));
        }
    }

    /// The resources that exist, and those that the operation in progress is deleting.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        let doomed = self.operation.iter().flat_map(Operation::doomed);
        self.resources.values().chain(doomed).chain(&self.leftovers)
    }
}
