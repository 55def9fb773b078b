//! An operation of a stack: its state, the actions that it asks for, and their outcomes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::graph::Uses;
use crate::instance::{Deployment, Instance};
use crate::kinds;

/// An action that the caller carries out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Its number in the operation: [`crate::Stack::outcome`] takes it.
    pub step: u64,
    /// The identity of the resource: a creation that is repeated after a crash has the same one. The caller
    /// stores it with the resource (as a tag), so that it finds one that it has made before.
    pub token: String,
    /// The ARN of the stack.
    pub stack_id: String,
    /// The name of the stack.
    pub stack_name: String,
    /// The name of the resource in the template.
    pub logical_id: String,
    /// The type of the resource.
    pub kind: String,
    /// The tags of the stack, for resources that have tags.
    pub tags: BTreeMap<String, String>,
    /// The action was handed out before, and may have been carried out.
    pub is_repeated: bool,
    /// The work.
    pub work: Work,
}

/// The work of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// Make a resource.
    Create {
        /// Its name: that of the template, or a generated one.
        name: String,
        /// Its resolved properties.
        properties: Value,
        /// The object with the code of a function.
        code: Option<Object>,
    },
    /// Change a resource.
    Update {
        /// Its identifier.
        physical_id: String,
        /// Its properties before.
        before: Value,
        /// The tags of the stack that it has before.
        tags_before: BTreeMap<String, String>,
        /// Its properties afterwards.
        properties: Value,
        /// The object with the code of a function, if the code changes.
        code: Option<Object>,
    },
    /// Delete a resource. One that does not exist is deleted.
    Delete {
        /// Its identifier.
        physical_id: String,
        /// Its properties.
        properties: Value,
    },
}

/// An object of S3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Its version, if the newest is not meant.
    pub version: Option<String>,
}

impl Object {
    /// The object that `Code` of a function's properties names.
    pub fn of_code(properties: &Value) -> Option<Object> {
        let code = properties.get("Code")?;
        let text = |key: &str| code.get(key)?.as_str().map(str::to_owned);
        let version = text("S3ObjectVersion");
        Some(Object { bucket: text("S3Bucket")?, key: text("S3Key")?, version })
    }
}

/// The outcome of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done.
    Done {
        /// The identifier of the resource: the value of `Ref`. Not read for updates and deletions.
        physical_id: String,
        /// The values of `Fn::GetAtt`. Not read for deletions.
        attributes: Map<String, Value>,
    },
    /// It is not done.
    Failed {
        /// The cause, and what to do.
        reason: String,
        /// The identifier of a resource that a failed creation left.
        physical_id: Option<String>,
    },
}

/// An outcome of another action than the one that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the outcome is of step {given}, but the stack waits for that of {expected:?}")]
pub struct Stale {
    /// The step of the outcome.
    pub given: u64,
    /// The step that was handed out, if there is one.
    pub expected: Option<u64>,
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationKind {
    /// The first resources of a stack.
    Create,
    /// A change.
    Update,
    /// The end of a stack.
    Delete,
}

/// The phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// Towards the target, resource by resource.
    Forward,
    /// Back to the state before.
    Undo,
    /// Deletion of resources that are no longer wanted.
    Cleanup,
    /// The end.
    Finish,
}

/// An entry of the journal: a resource and its state before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Undo {
    pub logical_id: String,
    pub before: Option<Instance>,
}

/// A resource that goes, or stays without a stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Doomed {
    pub instance: Instance,
    pub is_kept: bool,
}

/// An operation in progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub(crate) kind: OperationKind,
    pub(crate) phase: Phase,
    /// The target of the stack.
    pub(crate) target: Deployment,
    pub(crate) conditions: BTreeMap<String, bool>,
    pub(crate) uses: Uses<String>,
    /// The resources of the target in order, and the number of those that are done.
    pub(crate) order: Vec<String>,
    pub(crate) done_count: usize,
    /// The changes of the resources, in their order.
    pub(crate) journal: Vec<Undo>,
    pub(crate) doomed: Vec<Doomed>,
    /// Resources that could not be deleted.
    pub(crate) stuck: Vec<Instance>,
    /// The numbers of those that were to be deleted although others use them.
    pub(crate) circular: BTreeSet<u64>,
    /// The action that was handed out, and the resource as it becomes.
    pub(crate) pending: Option<(Action, Instance)>,
    pub(crate) step_next: u64,
    /// The logical names of what failed: on the way to the target, and back.
    pub(crate) failed: Vec<String>,
    pub(crate) not_undone: Vec<String>,
    /// Everything stays as it is after a failure.
    pub(crate) is_left: bool,
    pub(crate) change_set: Option<String>,
    pub(crate) started_ms: u64,
}

impl Operation {
    /// The target of the stack.
    pub fn target(&self) -> &Deployment {
        &self.target
    }

    /// Its kind.
    pub fn kind(&self) -> OperationKind {
        self.kind
    }

    /// The resources that it is about to delete.
    pub fn doomed(&self) -> impl Iterator<Item = &Instance> {
        let pending =
            self.pending.iter().filter(|(action, _)| matches!(action.work, Work::Delete { .. }));
        let pending = pending.map(|(_, instance)| instance);
        self.doomed.iter().map(|doomed| &doomed.instance).chain(pending).chain(&self.stuck)
    }
}

/// The differences of two resolved property sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Difference {
    /// None.
    Same,
    /// The resource is changed in place: the properties that differ.
    InPlace(BTreeSet<String>),
    /// A new resource takes the place: the properties that differ.
    Replacement(BTreeSet<String>),
}

/// Compares properties of a resource.
pub fn difference(kind: &str, before: &Value, after: &Value) -> Difference {
    let empty = Map::new();
    let (before, after) =
        (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
    let differs = |key: &&String| match (before.get(*key), after.get(*key)) {
        (Some(before), Some(after)) => !crate::functions::is_same(before, after),
        _ => true,
    };
    let changed: BTreeSet<String> =
        before.keys().chain(after.keys()).filter(differs).cloned().collect();
    let is_create_only = |key: &String| {
        kinds::find(kind).is_some_and(|kind| kind.create_only.contains(&key.as_str()))
    };
    match (changed.is_empty(), changed.iter().any(is_create_only)) {
        (true, _) => Difference::Same,
        (false, false) => Difference::InPlace(changed),
        (false, true) => Difference::Replacement(changed),
    }
}
