//! The parts that all files of the transform use: refusals, static values, generated names.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::Failure;
use crate::functions::{call, text_of};

/// The name of the transform.
pub const TRANSFORM: &str = "AWS::Serverless-2016-10-31";
/// The names of resources that were generated for a function's `Version` and `Alias`, by `FUNCTION.Version`
/// and `FUNCTION.Alias`.
pub(super) type Generated = BTreeMap<String, String>;

/// The refusal of a resource.
pub(super) fn invalid(id: &str, why: &str) -> Failure {
    Failure::invalid(format!(
        "Transform {TRANSFORM} failed with: Invalid Serverless Application Specification document. Number \
         of errors found: 1. Resource with id [{id}] is invalid. {why}"
    ))
}

/// The text that a value has before the stack exists: text, or a parameter's value.
pub(super) fn static_text(value: &Value, parameters: &Map<String, Value>) -> Option<String> {
    match call(value) {
        Some(("Ref", name)) => parameters.get(name.as_str()?).and_then(text_of),
        Some(_) => None,
        None => text_of(value),
    }
}
