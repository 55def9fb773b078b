//! The check of a form that others will send: its fields, as far as its conditions fix them.

use serde_json::{Map, Value, json};
use unlade_s3::Policy;
use unlade_s3::operation::{Operation, Place};
use unlade_s3::policy::facts::Environment;

use crate::parsed::{denied, invalid, parsed};
use crate::perform::Failed;

/// Fields of a form with other names than those of a request.
const NAMES: &[(&str, &str)] = &[("acl", "x-amz-acl"), ("tagging", "x-amz-tagging")];

/// Checks a form with these parameters, of a client of a region.
///
/// # Errors
/// The form is invalid, or the role denies one of the uploads that its holder could make.
pub fn authorise(
    policy: &Policy,
    parameters: &Map<String, Value>,
    region: Option<&str>,
    later: &Environment,
) -> Result<(), Failed> {
    let text = |name: &str| parameters.get(name).and_then(Value::as_str).unwrap_or_default();
    let (bucket, key) = (text("Bucket"), text("Key"));
    let asked = json!({"Bucket": bucket, "Key": key});
    let mut asked = asked.as_object().cloned().unwrap_or_default();
    let (operation, mut request) = parsed("PutObject", &asked)?;
    asked.extend(fields(operation, parameters));
    match key.strip_suffix("${filename}") {
        None => policy.decide(operation, &asked, later),
        // The holder of the form chooses the end of the key: the role must allow every end.
        Some(start) => policy.decide_uploads(operation, &asked, (bucket, start), later),
    }
    .map_err(denied)?;
    request.in_region(region).map_err(|error| invalid(&error.to_string()))
}

/// The parameters of an upload that a form's holder can set: text where the conditions fix the
/// value, and no text where its holder chooses.
fn fields(operation: &Operation, parameters: &Map<String, Value>) -> Map<String, Value> {
    let mut found: Map<String, Value> = Map::new();
    let mut add = |name: &str, value: Option<&str>| {
        let Some(name) = parameter(operation, name) else { return };
        let value = value.map_or(Value::Array(Vec::new()), Value::from);
        match found.get(name) {
            // Of two values none is the one.
            Some(known) if *known != value => found.insert(name.to_owned(), json!([])),
            _ => found.insert(name.to_owned(), value),
        };
    };
    let conditions = parameters.get("Conditions").and_then(Value::as_array);
    for condition in conditions.into_iter().flatten() {
        match condition {
            Value::Object(exact) => {
                exact.iter().for_each(|(name, value)| add(name, value.as_str()));
            }
            Value::Array(parts) => {
                let part = |at: usize| parts.get(at).and_then(Value::as_str);
                let is_exact = part(0).is_some_and(|operator| operator.eq_ignore_ascii_case("eq"));
                if let Some(name) = part(1) {
                    add(name.strip_prefix('$').unwrap_or(name), part(2).filter(|_| is_exact));
                }
            }
            _ => {}
        }
    }
    // A store may accept a field that has no condition, with any value.
    let of_caller = parameters.get("Fields").and_then(Value::as_object);
    for name in of_caller.into_iter().flat_map(Map::keys) {
        if let Some(name) = parameter(operation, name) {
            found.entry(name).or_insert_with(|| json!([]));
        }
    }
    found
}

/// The parameter of an upload that a field sets, if it is one of `x-amz-…`.
fn parameter(operation: &Operation, field: &str) -> Option<&'static str> {
    let renamed = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(field));
    let field = renamed.map_or(field, |(_, header)| header);
    let fields = operation.input.iter().copied().flatten();
    let mut of_store = fields.filter_map(|own| match own.place {
        Place::Header(header) if header.starts_with("x-amz-") => Some((header, own.name)),
        _ => None,
    });
    of_store.find(|(header, _)| header.eq_ignore_ascii_case(field)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn message(document: &Value, parameters: Value) -> String {
        let policy = Policy::from_value(document).unwrap();
        let region = "us-east-1".to_owned();
        let later =
            Environment { now: SystemTime::now(), region, has_tls: true, is_deferred: true };
        let found = authorise(&policy, parameters.as_object().unwrap(), None, &later);
        found.err().map(|failed| failed.said().1.to_owned()).unwrap_or_default()
    }

    fn form(fields: Value, conditions: Value) -> Value {
        json!({"Bucket": "b", "Key": "k", "Fields": fields, "Conditions": conditions})
    }

    #[test]
    fn a_form_needs_the_rights_of_the_fields_that_its_holder_can_set() {
        let only = json!({"statements": [
            {"effect": "allow", "actions": ["s3:PutObject"], "resources": ["b/*"]}]});
        assert_eq!(message(&only, form(json!({}), json!([["content-length-range", 0, 9]]))), "");
        for (fields, conditions, action) in [
            (json!({"acl": "public-read"}), json!([{"acl": "public-read"}]), "s3:PutObjectAcl"),
            (json!({}), json!([["starts-with", "$ACL", ""]]), "s3:PutObjectAcl"),
            (json!({}), json!([["eq", "$x-amz-grant-read", "id=1"]]), "s3:PutObjectAcl"),
            (json!({"tagging": "<x/>"}), json!([]), "s3:PutObjectTagging"),
            (json!({}), json!([{"x-amz-object-lock-mode": "GOVERNANCE"}]), "s3:PutObjectRetention"),
            (
                json!({}),
                json!([["starts-with", "$X-Amz-Object-Lock-Legal-Hold", ""]]),
                "s3:PutObjectLegalHold",
            ),
        ] {
            for key in ["k", "up/${filename}"] {
                let mut asked = form(fields.clone(), conditions.clone());
                asked["Key"] = json!(key);
                let found = message(&only, asked);
                assert!(found.contains(&format!("does not allow {action} on b/")), "{found}");
            }
        }
    }

    #[test]
    fn a_value_that_conditions_fix_is_known() {
        let document = json!({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "s3:Put*", "Resource": "*"},
            {"Effect": "Deny", "Action": "*", "Resource": "*",
             "Condition": {"StringEquals": {"s3:x-amz-acl": "public-read"}}}]});
        for (conditions, is_allowed) in [
            (json!([{"acl": "private"}]), true),
            (json!([["eq", "$acl", "private"]]), true),
            (json!([{"acl": "public-read"}]), false),
            (json!([{"acl": "private"}, ["starts-with", "$acl", "p"]]), false),
            (json!([["starts-with", "$acl", "private"]]), false),
            (json!([]), false),
        ] {
            let found = message(&document, form(json!({}), conditions.clone()));
            assert_eq!(found.is_empty(), is_allowed, "{conditions}: {found}");
        }
    }
}
