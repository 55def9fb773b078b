//! Properties of templates as parameters of APIs. In templates numbers and truth values may be text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Number, Value};

use super::outcome::Failed;

/// Members whose values are numbers.
const NUMBERS: [&str; 15] = [
    "BatchSize",
    "FunctionWeight",
    "MaximumBatchingWindowInSeconds",
    "MaximumConcurrency",
    "MaximumEventAgeInSeconds",
    "MaximumRetryAttempts",
    "MemorySize",
    "ProvisionedConcurrentExecutions",
    "ReadCapacityUnits",
    "ReservedConcurrentExecutions",
    "RetentionInDays",
    "Size",
    "Timeout",
    "Weight",
    "WriteCapacityUnits",
];
/// Members whose values are truth values.
const FLAGS: [&str; 9] = [
    "BlockPublicAcls",
    "BlockPublicPolicy",
    "DeletionProtectionEnabled",
    "Enabled",
    "IgnorePublicAcls",
    "InvokedViaFunctionUrl",
    "RestrictPublicBuckets",
    "SSEEnabled",
    "StreamEnabled",
];
/// Members whose names and values are the author's.
const OF_THE_AUTHOR: [&str; 2] = ["Variables", "Tags"];

/// The properties, with numbers and truth values in their types.
pub fn typed(properties: &Value) -> Map<String, Value> {
    match converted("", properties) {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn converted(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(_) if OF_THE_AUTHOR.contains(&name) => value.clone(),
        Value::Object(members) => {
            let of = |(name, value): (&String, &Value)| (name.clone(), converted(name, value));
            Value::Object(members.iter().map(of).collect())
        }
        // The members of a list have no name of their own.
        Value::Array(items) => items.iter().map(|item| converted("", item)).collect(),
        Value::String(text) if NUMBERS.contains(&name) => number(text),
        Value::String(text) if FLAGS.contains(&name) => match text.as_str() {
            "true" | "True" | "TRUE" => true.into(),
            "false" | "False" | "FALSE" => false.into(),
            _ => value.clone(),
        },
        _ => value.clone(),
    }
}

/// A text as a number, if it is one.
fn number(text: &str) -> Value {
    let whole = text.parse::<u64>().ok().map(Number::from);
    let number = whole.or_else(|| Number::from_f64(text.parse().ok()?));
    number.map_or_else(|| Value::from(text), Value::Number)
}

/// The text of a scalar.
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}

/// A property that is a text.
///
/// # Errors
/// It is absent, or something else.
pub fn required(properties: &Value, name: &str) -> Result<String, Failed> {
    let text = properties.get(name).and_then(text_of);
    text.ok_or_else(|| Failed::new(format!("the property {name} must be a text")))
}

/// Tags: `[{"Key": …, "Value": …}]`, or an object of texts.
///
/// # Errors
/// They have another form.
pub fn tags(value: Option<&Value>) -> Result<BTreeMap<String, String>, Failed> {
    let wrong = || Failed::new("Tags must be a list of objects with Key and Value");
    let pair = |own: &Value| Some((text_of(own.get("Key")?)?, text_of(own.get("Value")?)?));
    match value {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Array(all)) => all.iter().map(pair).collect::<Option<_>>().ok_or_else(wrong),
        Some(Value::Object(all)) => {
            let of = |(key, value): (&String, &Value)| Some((key.clone(), text_of(value)?));
            all.iter().map(of).collect::<Option<_>>().ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

/// Refuses properties that are not among these: they would have no effect.
///
/// # Errors
/// The first other one.
pub fn only(kind: &str, properties: &Value, known: &[&str], advice: &str) -> Result<(), Failed> {
    let members = properties.as_object().into_iter().flatten();
    let mut others = members.map(|(name, _)| name.as_str()).filter(|name| !known.contains(name));
    match others.next() {
        None => Ok(()),
        Some(other) => Err(Failed::new(format!(
            "{other} of {kind} has no effect on this server: leave it out. {advice}"
        ))),
    }
}

/// The names of properties that differ.
pub fn changed(before: &Value, after: &Value) -> BTreeSet<String> {
    let empty = Map::new();
    let (before, after) =
        (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
    let names = before.keys().chain(after.keys());
    names.filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_becomes_what_an_api_expects() {
        let own = json!({
            "Timeout": "30", "MemorySize": 128, "Handler": "7",
            "Environment": {"Variables": {"Timeout": "30", "Enabled": "true"}},
            "ScalingConfig": {"MaximumConcurrency": "5"}, "Enabled": "false",
            "Weights": [{"FunctionWeight": "0.25"}], "BatchSize": "many",
        });
        let due = json!({
            "Timeout": 30, "MemorySize": 128, "Handler": "7",
            "Environment": {"Variables": {"Timeout": "30", "Enabled": "true"}},
            "ScalingConfig": {"MaximumConcurrency": 5}, "Enabled": false,
            "Weights": [{"FunctionWeight": 0.25}], "BatchSize": "many",
        });
        assert_eq!(Value::Object(typed(&own)), due);
    }

    #[test]
    fn tags_have_two_forms() {
        let list = json!([{"Key": "a", "Value": 1}]);
        let object = json!({"a": "1"});
        let due = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        assert_eq!(tags(Some(&list)), Ok(due.clone()));
        assert_eq!(tags(Some(&object)), Ok(due));
        assert_eq!(tags(None), Ok(BTreeMap::new()));
        assert!(tags(Some(&json!([{"Key": "a"}]))).is_err() && tags(Some(&json!("a"))).is_err());
    }

    #[test]
    fn a_property_without_an_effect_is_refused() {
        let own = json!({"A": 1, "B": 2});
        assert_eq!(only("K", &own, &["A", "B"], ""), Ok(()));
        let why = only("K", &own, &["A"], "Do that.").unwrap_err().reason;
        assert!(why.contains("B of K") && why.ends_with("Do that."), "{why}");
        assert_eq!(changed(&own, &json!({"A": 1, "C": 1})), ["B", "C"].map(str::to_owned).into());
    }
}
