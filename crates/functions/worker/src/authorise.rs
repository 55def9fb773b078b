//! The check of a call: its request, if it is valid and the role allows it.

use std::rc::Rc;

use serde_json::{Map, Value};
use unlade_s3::operation::Operation;
use unlade_s3::policy::facts::Environment;
use unlade_s3::{Call, Policy, Request};

use crate::form;
use crate::parsed::{denied, invalid, parsed, unsupported};
use crate::perform::Failed;

/// A call that the role allows.
pub enum Authorised {
    /// An operation of the store.
    Operation(Rc<Request>),
    /// A presigned URL of this request.
    Url(Request),
    /// A presigned form.
    Form,
}

/// Checks a call.
///
/// # Errors
/// The call is invalid or not supported, or the role denies it.
pub fn authorise(
    policy: &Policy,
    call: &Call,
    environment: Environment,
) -> Result<Authorised, Failed> {
    if call.service != "s3" {
        return Err(unsupported(&format!("the service {}", call.service)));
    }
    let (parameters, region) = (&call.parameters, call.region.as_deref());
    let later = Environment { is_deferred: true, ..environment.clone() };
    match call.operation.as_str() {
        "GeneratePresignedUrl" => {
            let empty = Map::new();
            let inner = parameters.get("Parameters").and_then(Value::as_object).unwrap_or(&empty);
            let name = parameters.get("Operation").and_then(Value::as_str).unwrap_or_default();
            let (_, mut request) = of_operation(policy, name, inner, &later)?;
            request.in_region(region).map_err(|e| invalid(&e.to_string()))?;
            Ok(Authorised::Url(request))
        }
        "GeneratePresignedPost" => {
            form::authorise(policy, parameters, region, &later)?;
            Ok(Authorised::Form)
        }
        _ => Ok(Authorised::Operation(request(policy, call, &environment)?)),
    }
}

/// The request of a call that is an operation of the store.
///
/// # Errors
/// The call is invalid or not supported, or the role denies it.
pub fn request(
    policy: &Policy,
    call: &Call,
    environment: &Environment,
) -> Result<Rc<Request>, Failed> {
    let (operation, mut request) =
        of_operation(policy, &call.operation, &call.parameters, environment)?;
    request.in_region(call.region.as_deref()).map_err(|e| invalid(&e.to_string()))?;
    request.unsigned = call.unsigned;
    if !operation.has_body && call.body_bytes > 0 {
        return Err(invalid(&format!("{} has no body", operation.name)));
    }
    Ok(Rc::new(request))
}

fn of_operation(
    policy: &Policy,
    operation: &str,
    parameters: &Map<String, Value>,
    environment: &Environment,
) -> Result<(&'static Operation, Request), Failed> {
    let (operation, request) = parsed(operation, parameters)?;
    policy.decide(operation, parameters, environment).map_err(denied)?;
    Ok((operation, request))
}
