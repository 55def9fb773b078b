//! The section `Globals`: properties of all functions, and of all HTTP APIs. A resource's own scalar wins, mappings are merged,
//! lists follow each other.

use serde_json::{Map, Value};

use super::base::invalid;
use crate::error::Failure;
use crate::functions::call;

/// Deepest nesting of merged properties: that of a template.
const DEPTH_MAX: usize = 2 * crate::yaml::DEPTH_MAX;

/// The properties of all resources of a kind: `Function`, `HttpApi`.
///
/// # Errors
/// The section, or its member for the kind, is no mapping.
pub(super) fn of(section: Option<&Value>, kind: &str) -> Result<Map<String, Value>, Failure> {
    let wrong = || invalid("Globals", "'Globals' and its members must be mappings");
    let Some(section) = section else { return Ok(Map::new()) };
    match section.as_object().ok_or_else(wrong)?.get(kind) {
        None => Ok(Map::new()),
        Some(properties) => properties.as_object().cloned().ok_or_else(wrong),
    }
}

/// Merges properties of all resources of a kind with those of one.
pub(super) fn merged(global: &Map<String, Value>, own: &Map<String, Value>) -> Map<String, Value> {
    match merge(&Value::Object(global.clone()), &Value::Object(own.clone()), DEPTH_MAX) {
        Value::Object(map) => map,
        _ => own.clone(),
    }
}

fn merge(global: &Value, own: &Value, depth: usize) -> Value {
    match (global, own) {
        _ if depth == 0 || call(global).is_some() || call(own).is_some() => own.clone(),
        (Value::Object(global), Value::Object(own)) => {
            let mut all = global.clone();
            for (key, value) in own {
                let value = match global.get(key) {
                    Some(global) => merge(global, value, depth - 1),
                    None => value.clone(),
                };
                all.insert(key.clone(), value);
            }
            Value::Object(all)
        }
        (Value::Array(global), Value::Array(own)) => {
            Value::Array(global.iter().chain(own).cloned().collect())
        }
        _ => own.clone(),
    }
}
