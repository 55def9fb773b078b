//! The queues of SQS among the events of a function. The advice for events that are not supported.

use serde_json::{Map, Value};

use super::base::invalid;
use crate::error::Failure;

/// Properties of an SQS event that a mapping has by the same name.
const SAME: [&str; 7] = [
    "BatchSize",
    "Enabled",
    "FilterCriteria",
    "FunctionResponseTypes",
    "KmsKeyArn",
    "MaximumBatchingWindowInSeconds",
    "ScalingConfig",
];

/// The mapping of an event: the name of the event and the properties of the mapping, without the function.
///
/// # Errors
/// The event is of another type, or invalid.
pub(super) fn mapping(
    function: &str,
    name: &str,
    event: &Value,
) -> Result<Map<String, Value>, Failure> {
    let wrong = |why: &str| invalid(function, &format!("Event with id [{name}] is invalid. {why}"));
    let kind = event.get("Type").and_then(Value::as_str).unwrap_or_default();
    if kind != "SQS" {
        return Err(wrong(&format!("Its type {kind} is not supported; {}", advice(kind))));
    }
    let properties = event.get("Properties").and_then(Value::as_object);
    let properties = properties.ok_or_else(|| wrong("It has no Properties."))?;
    let queue = properties.get("Queue").ok_or_else(|| wrong("No Queue was provided."))?;
    let mut mapping = Map::from_iter([("EventSourceArn".to_owned(), queue.clone())]);
    for (key, value) in properties.iter().filter(|(key, _)| *key != "Queue") {
        if !SAME.contains(&key.as_str()) {
            return Err(wrong(&format!("Its property {key} is not supported; leave it out.")));
        }
        mapping.insert(key.clone(), value.clone());
    }
    Ok(mapping)
}

fn advice(kind: &str) -> &'static str {
    match kind {
        "Api" => "this server has no REST APIs: use HttpApi, or FunctionUrlConfig",
        "WebSocketApi" | "AlexaSkill" => {
            "this server has no such callers: use HttpApi, or FunctionUrlConfig"
        }
        "Schedule" | "ScheduleV2" => {
            "this server has no scheduler: remove the event, and invoke the function from cron or a timer"
        }
        "SNS" | "EventBridgeRule" | "CloudWatchEvent" | "CloudWatchLogs" | "IoTRule" => {
            "no such service invokes functions here: remove the event, and use a queue (SQS) or a bucket (S3)"
        }
        "DynamoDB" | "Kinesis" | "MSK" | "MQ" | "SelfManagedKafka" | "DocumentDB" => {
            "functions are fed by queues and buckets only: remove the event, and use SQS or S3"
        }
        _ => "use SQS, S3 or HttpApi",
    }
}
