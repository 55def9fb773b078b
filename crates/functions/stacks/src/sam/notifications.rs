//! Events of S3: a function that objects of a bucket invoke. The bucket, of the same template, gets the
//! notification, and the function the permission, which must be there first.

use serde_json::{Map, Value, json};

use super::base::invalid;
use crate::error::Failure;

/// The type of the bucket.
const BUCKET: &str = "AWS::S3::Bucket";
/// Beginning of the tag by which a bucket depends on a permission that a condition decides about.
const TAG: &str = "sam:ConditionalDependsOn:";

/// The notification that an event of a function adds to a bucket.
pub(super) struct Notification {
    /// The resource of the function.
    function: String,
    /// The resource of the bucket.
    bucket: String,
    /// The resource of the permission.
    permission: String,
    /// The condition of the function.
    condition: Option<Value>,
    /// The configurations without the function.
    configurations: Vec<Map<String, Value>>,
    /// The ARN of the function or its alias.
    target: Value,
}

/// The function of an event: its resource, its condition, and the ARN of it or its alias.
pub(super) struct Target<'a> {
    pub id: &'a str,
    pub condition: Option<&'a Value>,
    pub arn: Value,
}

/// Reads an event of the type S3.
///
/// # Errors
/// It is invalid.
pub(super) fn of_event(
    target: Target<'_>,
    name: &str,
    event: &Value,
    permission: String,
) -> Result<Notification, Failure> {
    let wrong =
        |why: &str| invalid(target.id, &format!("Event with id [{name}] is invalid. {why}"));
    let properties = event.get("Properties").and_then(Value::as_object);
    let properties = properties.ok_or_else(|| wrong("It has no Properties."))?;
    let known = ["Bucket", "Events", "Filter"];
    if let Some(key) = properties.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(wrong(&format!("Its property {key} is not supported; leave it out.")));
    }
    let bucket = properties.get("Bucket").and_then(|bucket| bucket.get("Ref"));
    let bucket = bucket.and_then(Value::as_str).ok_or_else(|| wrong(ELSEWHERE))?;
    let events = match properties.get("Events") {
        Some(Value::Array(all)) if !all.is_empty() => all.clone(),
        Some(one @ (Value::String(_) | Value::Object(_))) => vec![one.clone()],
        _ => return Err(wrong("Events must be an event of S3, or a list of them.")),
    };
    let configuration = |event: Value| {
        let mut own = Map::from_iter([("Event".to_owned(), event)]);
        if let Some(filter) = properties.get("Filter") {
            own.insert("Filter".to_owned(), filter.clone());
        }
        own
    };
    Ok(Notification {
        function: target.id.to_owned(),
        bucket: bucket.to_owned(),
        permission,
        condition: target.condition.cloned(),
        configurations: events.into_iter().map(configuration).collect(),
        target: target.arn,
    })
}

const ELSEWHERE: &str = "S3 events must reference an S3 bucket in the same template.";

/// The members of a member that is a mapping, which is made if it is not there.
fn mapping<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
) -> Option<&'a mut Map<String, Value>> {
    parent.entry(key).or_insert_with(|| json!({})).as_object_mut()
}

/// Adds a notification to its bucket.
///
/// # Errors
/// The template has no such bucket, or the bucket is invalid.
pub(super) fn add(
    resources: &mut Map<String, Value>,
    notification: Notification,
) -> Result<(), Failure> {
    let Notification { function, bucket, permission, condition, configurations, target } =
        notification;
    let found = resources.get_mut(&bucket).filter(|found| found["Type"] == BUCKET);
    let found =
        found.and_then(Value::as_object_mut).ok_or_else(|| invalid(&function, ELSEWHERE))?;
    let wrong = || {
        invalid(&bucket, "its properties must be mappings, its DependsOn names, its Tags a list")
    };
    match &condition {
        None => {
            let depends = found.entry("DependsOn").or_insert_with(|| json!([]));
            if let Value::String(one) = depends {
                *depends = json!([one]);
            }
            let depends = depends.as_array_mut().ok_or_else(wrong)?;
            if !depends.iter().any(|one| *one == permission) {
                depends.push(permission.clone().into());
            }
        }
        Some(condition) => {
            let properties = mapping(found, "Properties").ok_or_else(wrong)?;
            let tags = properties.entry("Tags").or_insert_with(|| json!([]));
            let value = json!({"Fn::If": [condition, {"Ref": permission}, "no dependency"]});
            let tag = json!({"Key": format!("{TAG}{permission}"), "Value": value});
            tags.as_array_mut().ok_or_else(wrong)?.push(tag);
        }
    }
    let properties = mapping(found, "Properties").ok_or_else(wrong)?;
    let own = mapping(properties, "NotificationConfiguration").ok_or_else(wrong)?;
    let own = own.entry("LambdaConfigurations").or_insert_with(|| json!([]));
    let own = own.as_array_mut().ok_or_else(wrong)?;
    for mut configuration in configurations {
        configuration.insert("Function".to_owned(), target.clone());
        let configuration = match &condition {
            None => Value::Object(configuration),
            Some(condition) => {
                json!({"Fn::If": [condition, configuration, {"Ref": "AWS::NoValue"}]})
            }
        };
        if !own.contains(&configuration) {
            own.push(configuration);
        }
    }
    Ok(())
}
