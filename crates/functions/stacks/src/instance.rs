//! The target of a stack, and its state: a template with parameters, resources that exist, outputs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::status::{OnFailure, Status};
use crate::template::{Policy, Template};

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
    /// The acknowledgements of the request.
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
