//! `AWS::SQS::Queue`, at the tenant's service.

use serde_json::{Map, Value, json};

use super::outcome::{Done, Failed};
use super::properties::{only, text_of};
use super::task::Task;
use crate::behalf::CallError;
use crate::config::REGION;
use crate::service_request::of_json;

/// The advice about other properties.
pub const ADVICE: &str = "Make the queue outside of the stack";
/// Properties that are attributes of a queue, and their values without a property.
const ATTRIBUTES: [(&str, Option<&str>); 14] = [
    ("ContentBasedDeduplication", Some("false")),
    ("DeduplicationScope", Some("queue")),
    ("DelaySeconds", Some("0")),
    ("FifoQueue", None),
    ("FifoThroughputLimit", Some("perQueue")),
    ("KmsDataKeyReusePeriodSeconds", Some("300")),
    ("KmsMasterKeyId", Some("")),
    ("MaximumMessageSize", Some("262144")),
    ("MessageRetentionPeriod", Some("345600")),
    ("ReceiveMessageWaitTimeSeconds", Some("0")),
    ("RedriveAllowPolicy", Some("")),
    ("RedrivePolicy", Some("")),
    ("SqsManagedSseEnabled", Some("true")),
    ("VisibilityTimeout", Some("30")),
];

async fn ask(task: &Task<'_>, operation: &str, parameters: &Value) -> Result<Value, CallError> {
    let request = of_json(("sqs", "AmazonSQS", "1.0"), REGION, operation, parameters);
    let answer = task.call(request).await?;
    Ok(serde_json::from_slice(&answer).unwrap_or_default())
}

fn failed(operation: &str, error: &CallError) -> Failed {
    Failed::new(format!("{operation}: {error}"))
}

fn is_absent(error: &CallError) -> bool {
    matches!(error, CallError::Service { text, .. }
        if text.contains("NonExistentQueue") || text.contains("QueueDoesNotExist"))
}

/// The properties that are served.
pub fn known() -> Vec<&'static str> {
    ATTRIBUTES.iter().map(|(name, _)| *name).chain(["QueueName", "Tags"]).collect()
}

/// The attributes of properties: texts, and objects as JSON.
fn attributes(properties: &Value) -> Result<Map<String, Value>, Failed> {
    only("AWS::SQS::Queue", properties, &known(), ADVICE)?;
    let mut all = Map::new();
    for (name, _) in ATTRIBUTES {
        let text = match properties.get(name) {
            None | Some(Value::Null) => continue,
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(other) => text_of(other)
                .ok_or_else(|| Failed::new(format!("{name} must be a text or an object")))?,
        };
        all.insert(name.to_owned(), text.into());
    }
    Ok(all)
}

/// Makes a queue.
///
/// # Errors
/// The name is taken, or the service refuses it.
pub async fn create(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    let attributes = attributes(properties)?;
    let labels = task.labels(properties)?;
    let found = match ask(task, "GetQueueUrl", &json!({ "QueueName": name })).await {
        Ok(found) => Some(found),
        Err(error) if is_absent(&error) => None,
        Err(error) => return Err(failed("GetQueueUrl", &error)),
    };
    task.claim(&format!("the queue {name}"), found.is_some()).await?;
    let found = match found {
        Some(found) => found,
        None => {
            let parameters = json!({"QueueName": name, "Attributes": attributes, "tags": labels});
            let made = ask(task, "CreateQueue", &parameters).await;
            made.map_err(|error| Failed::creation("CreateQueue", name, &error))?
        }
    };
    let absent = || Failed::new("CreateQueue: the answer has no QueueUrl");
    let url = found["QueueUrl"].as_str().ok_or_else(absent)?.to_owned();
    done(task, name, &url).await.map_err(|failed| failed.left(&url))
}

async fn done(task: &Task<'_>, name: &str, url: &str) -> Result<Done, Failed> {
    let parameters = json!({"QueueUrl": url, "AttributeNames": ["QueueArn"]});
    let about = ask(task, "GetQueueAttributes", &parameters).await;
    let about = about.map_err(|error| failed("GetQueueAttributes", &error))?;
    let arn = about["Attributes"]["QueueArn"].clone();
    Ok(Done::new(url).with("Arn", arn).with("QueueName", name).with("QueueUrl", url))
}

/// Changes the attributes of a queue. Those without a property get their values of the service.
///
/// # Errors
/// The service refuses it.
pub async fn update(
    task: &Task<'_>,
    url: &str,
    (before, after): (&Value, &Value),
) -> Result<Done, Failed> {
    let mut new = attributes(after)?;
    for (name, default) in ATTRIBUTES {
        if let Some(default) = default
            && before.get(name).is_some()
            && !new.contains_key(name)
        {
            new.insert(name.to_owned(), default.into());
        }
    }
    // It cannot change, and is not accepted again.
    new.remove("FifoQueue");
    if !new.is_empty() {
        let parameters = json!({"QueueUrl": url, "Attributes": new});
        let set = ask(task, "SetQueueAttributes", &parameters).await;
        set.map_err(|error| failed("SetQueueAttributes", &error))?;
    }
    let (gone, labels) = (task.labels_gone(before, after)?, task.labels(after)?);
    if !gone.is_empty() {
        let untagged = ask(task, "UntagQueue", &json!({"QueueUrl": url, "TagKeys": gone})).await;
        untagged.map_err(|error| failed("UntagQueue", &error))?;
    }
    if !labels.is_empty() {
        let tagged = ask(task, "TagQueue", &json!({"QueueUrl": url, "Tags": labels})).await;
        tagged.map_err(|error| failed("TagQueue", &error))?;
    }
    let name = url.rsplit('/').next().unwrap_or_default();
    done(task, name, url).await
}

/// Deletes a queue: its URL, or the name of one that a failed creation may have left.
///
/// # Errors
/// The service refuses it.
pub async fn delete(task: &Task<'_>, url: &str) -> Result<(), Failed> {
    let found = match url.contains("://") {
        true => Value::from(url),
        false => match ask(task, "GetQueueUrl", &json!({ "QueueName": url })).await {
            Ok(found) => found["QueueUrl"].clone(),
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(failed("GetQueueUrl", &error)),
        },
    };
    match ask(task, "DeleteQueue", &json!({ "QueueUrl": found })).await {
        Ok(_) => Ok(()),
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(failed("DeleteQueue", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_attributes() {
        let own = json!({
            "QueueName": "q", "DelaySeconds": 5, "FifoQueue": true, "VisibilityTimeout": "60",
            "RedrivePolicy": {"deadLetterTargetArn": "arn:d", "maxReceiveCount": 3},
        });
        let due = json!({
            "DelaySeconds": "5", "FifoQueue": "true", "VisibilityTimeout": "60",
            "RedrivePolicy": "{\"deadLetterTargetArn\":\"arn:d\",\"maxReceiveCount\":3}",
        });
        assert_eq!(Value::Object(attributes(&own).unwrap()), due);
        assert!(attributes(&json!({"Unheard": 1})).unwrap_err().reason.contains("Unheard"));
        assert!(attributes(&json!({"DelaySeconds": [1]})).is_err());
    }
}
