//! A stack: the resources that it has, its template and parameters, events, and the operation that is in
//! progress. Everything is serialisable, so that a stopped process continues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::change::ChangeSet;
use crate::functions::Pseudo;
use crate::instance::{Deployment, Instance, OutputValue};
use crate::operation::Operation;
use crate::status::Status;

/// Most events of a stack: the oldest ones go.
pub const EVENTS_MAX: usize = 2_000;
/// Most tokens of requests that a stack remembers: the oldest ones go.
const TOKENS_MAX: usize = 32;
/// Type of the stack itself in events.
pub const STACK_KIND: &str = "AWS::CloudFormation::Stack";

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
