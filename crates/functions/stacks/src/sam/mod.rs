//! The SAM transform (`AWS::Serverless-2016-10-31`) of what this server has: functions, their roles,
//! versions, aliases, and queues and buckets as event sources. Written from AWS's public specification of SAM.

mod base;
mod events;
mod function;
mod globals;
mod notifications;
mod references;
mod role;

use serde_json::{Map, Value};

pub use base::TRANSFORM;
use base::{Generated, invalid};

use crate::error::Failure;

/// The type that is expanded.
const FUNCTION: &str = "AWS::Serverless::Function";
/// Beginning of the types of SAM.
const PREFIX: &str = "AWS::Serverless::";

/// Expands a tree; `parameters` are the resolved values of its parameters.
///
/// # Errors
/// A resource of SAM is invalid, or not supported. The message begins with `Transform`.
pub fn expand(
    mut root: Map<String, Value>,
    parameters: &Map<String, Value>,
) -> Result<Map<String, Value>, Failure> {
    root.remove("Transform");
    let globals = globals::of_functions(root.remove("Globals").as_ref())?;
    let Some(Value::Object(declared)) = root.remove("Resources") else {
        return Err(Failure::format("At least one Resources member must be defined."));
    };
    let (mut resources, mut generated) = (Map::new(), Generated::new());
    let mut notifications = Vec::new();
    for (id, resource) in declared {
        let kind = resource.get("Type").and_then(Value::as_str).unwrap_or_default();
        let all = match kind {
            FUNCTION => {
                let made = (&mut generated, &mut notifications);
                function::expand(&id, &resource, &globals, parameters, made)?
            }
            other if other.starts_with(PREFIX) => return Err(invalid(&id, &elsewhere(other))),
            _ => vec![(id, resource)],
        };
        for (id, resource) in all {
            if resources.insert(id.clone(), resource).is_some() {
                let why = "a generated resource has its name; rename it";
                return Err(invalid(&id, why));
            }
        }
    }
    for notification in notifications {
        notifications::add(&mut resources, notification)?;
    }
    root.insert("Resources".to_owned(), Value::Object(resources));
    for section in ["Resources", "Outputs"] {
        if let Some(value) = root.get_mut(section) {
            references::rename(value, &generated);
        }
    }
    Ok(root)
}

/// The advice for a type that is not expanded.
fn elsewhere(kind: &str) -> String {
    let advice = match kind.strip_prefix(PREFIX).unwrap_or_default() {
        "SimpleTable" => "declare an AWS::DynamoDB::Table",
        "Api" | "HttpApi" | "WebSocketApi" => {
            "this server has no API Gateway: invoke the function by Lambda's Invoke API"
        }
        "LayerVersion" => "this server has no layers: package the libraries with the function",
        "Application" => "this server has no nested stacks: deploy it as a stack of its own",
        _ => "leave it out",
    };
    format!("{kind} is not supported; {advice}")
}
