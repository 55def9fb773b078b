//! The SAM transform (`AWS::Serverless-2016-10-31`) of what this server has: functions, their roles,
//! versions, aliases, URLs, HTTP APIs, and queues and buckets as event sources. Written from AWS's public
//! specification of SAM.

mod base;
mod events;
mod function;
mod globals;
mod http_api;
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
    let section = root.remove("Globals");
    let globals = globals::of(section.as_ref(), "Function")?;
    let globals_of_apis = globals::of(section.as_ref(), "HttpApi")?;
    http_api::check_globals(&globals_of_apis)?;
    let Some(Value::Object(declared)) = root.remove("Resources") else {
        return Err(Failure::format("At least one Resources member must be defined."));
    };
    let (mut resources, mut generated) = (Map::new(), Generated::new());
    let (mut routes, mut apis, mut notifications) = (Vec::new(), Vec::new(), Vec::new());
    for (id, resource) in declared {
        let kind = resource.get("Type").and_then(Value::as_str).unwrap_or_default();
        match kind {
            FUNCTION => {
                let made = (&mut generated, &mut notifications);
                let expanded = function::expand(&id, &resource, &globals, parameters, made)?;
                routes.extend(expanded.routes);
                add(&mut resources, expanded.resources)?;
            }
            http_api::TYPE => apis.push((id, resource)),
            other if other.starts_with(PREFIX) => return Err(invalid(&id, &elsewhere(other))),
            _ => add(&mut resources, vec![(id, resource)])?,
        }
    }
    if routes.iter().any(|route| route.api == http_api::IMPLICIT) {
        apis.push((http_api::IMPLICIT.to_owned(), Value::Object(Map::new())));
    }
    for (id, resource) in apis {
        let (own, others) = routes.into_iter().partition(|route| route.api == id);
        routes = others;
        add(&mut resources, api(&id, &resource, &globals_of_apis, &own, parameters)?)?;
    }
    if let Some(route) = routes.first() {
        let why = format!("an event of the type HttpApi names it, and it is no {}", http_api::TYPE);
        return Err(invalid(&route.api, &why));
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

/// Adds resources under names that no other resource has.
fn add(resources: &mut Map<String, Value>, all: Vec<(String, Value)>) -> Result<(), Failure> {
    for (id, resource) in all {
        if resources.insert(id.clone(), resource).is_some() {
            let why = "a generated resource has its name; rename it";
            return Err(invalid(&id, why));
        }
    }
    Ok(())
}

/// Expands an HTTP API with the routes to it.
fn api(
    id: &str,
    resource: &Value,
    globals: &Map<String, Value>,
    routes: &[http_api::Event],
    parameters: &Map<String, Value>,
) -> Result<Vec<(String, Value)>, Failure> {
    let resource = resource.as_object().ok_or_else(|| invalid(id, "it must be a mapping"))?;
    let own = match resource.get("Properties") {
        None | Some(Value::Null) => Map::new(),
        Some(own) => {
            let own = own.as_object().cloned();
            own.ok_or_else(|| invalid(id, "Properties must be a mapping"))?
        }
    };
    http_api::expand(id, resource, &globals::merged(globals, &own), routes, parameters)
}

/// The advice for a type that is not expanded.
fn elsewhere(kind: &str) -> String {
    let advice = match kind.strip_prefix(PREFIX).unwrap_or_default() {
        "SimpleTable" => "declare an AWS::DynamoDB::Table",
        "Api" | "WebSocketApi" => {
            "this server has no REST and WebSocket APIs: use AWS::Serverless::HttpApi, or FunctionUrlConfig"
        }
        "LayerVersion" => "this server has no layers: package the libraries with the function",
        "Application" => "this server has no nested stacks: deploy it as a stack of its own",
        _ => "leave it out",
    };
    format!("{kind} is not supported; {advice}")
}
