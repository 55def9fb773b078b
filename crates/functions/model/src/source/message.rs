//! Messages of a queue: out of the answer to ReceiveMessage, as records of an event, and the ones that
//! a function reports as failed.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::destination::Target;

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its identifier.
    pub id: String,
    /// The handle of this receipt, with which it is deleted or released.
    pub receipt: String,
    /// Its record in an event, as JSON.
    pub record: String,
}

/// The outcome of an invocation with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The function has handled the messages, except these.
    Handled {
        /// Identifiers of messages that it has not handled.
        failed: BTreeSet<String>,
    },
    /// The function has failed.
    Failed,
    /// The function was not invoked.
    Refused,
}

/// Reads the answer to ReceiveMessage (JSON protocol).
///
/// # Errors
/// The answer is not one, for humans.
pub fn received(answer: &[u8], queue: &Target) -> Result<Vec<Message>, String> {
    let answer: Value = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    match answer.get("Messages") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(messages)) => {
            messages.iter().map(|message| of_queue(message, queue)).collect()
        }
        Some(_) => Err("Messages is no list".to_owned()),
    }
}

fn of_queue(message: &Value, queue: &Target) -> Result<Message, String> {
    let text = |name: &str| {
        let text = message[name].as_str().filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| format!("a message has no {name}"))
    };
    let (id, receipt) = (text("MessageId")?, text("ReceiptHandle")?);
    let own = |name: &str| message.get(name).filter(|value| value.is_object()).cloned();
    let mut record = json!({
        "messageId": id,
        "receiptHandle": receipt,
        "body": message["Body"].as_str().unwrap_or_default(),
        "attributes": own("Attributes").unwrap_or_else(|| json!({})),
        "messageAttributes": attributes(message.get("MessageAttributes")),
        "md5OfBody": message["MD5OfBody"].as_str().unwrap_or_default(),
        "eventSource": "aws:sqs",
        "eventSourceARN": queue.arn,
        "awsRegion": queue.region,
    });
    if let Some(sum) = message["MD5OfMessageAttributes"].as_str() {
        record["md5OfMessageAttributes"] = sum.into();
    }
    Ok(Message { id, receipt, record: record.to_string() })
}

/// Message attributes with Lambda's names.
fn attributes(found: Option<&Value>) -> Value {
    let Some(Value::Object(found)) = found else { return json!({}) };
    let of = |value: &Value| {
        let mut out = Map::new();
        for (name, own) in [
            ("StringValue", "stringValue"),
            ("BinaryValue", "binaryValue"),
            ("DataType", "dataType"),
        ] {
            if let Some(text) = value[name].as_str() {
                out.insert(own.to_owned(), text.into());
            }
        }
        out.insert("stringListValues".to_owned(), json!([]));
        out.insert("binaryListValues".to_owned(), json!([]));
        Value::Object(out)
    };
    Value::Object(found.iter().map(|(name, value)| (name.clone(), of(value))).collect())
}

/// The event of a batch.
pub fn event(batch: &[Message]) -> Vec<u8> {
    let mut out = b"{\"Records\":[".to_vec();
    for (at, message) in batch.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(message.record.as_bytes());
    }
    out.extend_from_slice(b"]}");
    out
}

/// The outcome of a batch whose function has returned, and reports failures: `batchItemFailures` of its
/// result. As in Lambda, a result that cannot be understood is a failure of all.
pub fn reported(result: &[u8], batch: &[Message]) -> Outcome {
    if result.is_empty() {
        return Outcome::Handled { failed: BTreeSet::new() };
    }
    let Ok(result) = serde_json::from_slice::<Value>(result) else { return Outcome::Failed };
    let entries = match &result["batchItemFailures"] {
        Value::Null => return Outcome::Handled { failed: BTreeSet::new() },
        Value::Array(entries) => entries,
        _ => return Outcome::Failed,
    };
    let own: BTreeSet<&str> = batch.iter().map(|message| message.id.as_str()).collect();
    let named = |entry: &Value| {
        let id = entry["itemIdentifier"].as_str().filter(|id| own.contains(id));
        id.map(str::to_owned)
    };
    match entries.iter().map(named).collect::<Option<BTreeSet<String>>>() {
        Some(failed) => Outcome::Handled { failed },
        None => Outcome::Failed,
    }
}
