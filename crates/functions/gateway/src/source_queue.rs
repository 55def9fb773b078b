//! Requests to a queue that feeds a function: for messages, and for their end.

use serde_json::{Value, json};
use std::time::Duration;
use unlade_fn_model::destination::Target;
use unlade_fn_model::source::{Message, message};

use crate::behalf::{CallError, call, perform};
use crate::function::Function;
use crate::service_request::of_queue;

/// Most messages of one request.
const ENTRIES_MAX: usize = 10;
/// Attempts of a request that deletes or releases messages.
const ATTEMPTS_MAX: u32 = 3;
/// Wait before the second attempt; doubled before the third.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks for at most `max` messages, and waits `wait_s` seconds for the first.
///
/// # Errors
/// The queue could not be asked, or its answer is none.
pub async fn receive(
    function: &Function,
    queue: &Target,
    (max, wait_s): (usize, u64),
) -> Result<Vec<Message>, CallError> {
    let parameters = json!({
        "MaxNumberOfMessages": max,
        "WaitTimeSeconds": wait_s,
        // The older name of the parameter, which all servers know.
        "AttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    });
    let answer = perform(function, of_queue(queue, "ReceiveMessage", parameters)).await?;
    message::received(&answer, queue).map_err(CallError::Failed)
}

/// The result of requests about messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Messages for which the queue has done it.
    pub done: usize,
    /// The error of the others, if there are any.
    pub error: Option<String>,
}

/// Deletes messages.
pub async fn delete(function: &Function, queue: &Target, messages: &[Message]) -> Ended {
    all(function, queue, "DeleteMessageBatch", messages, &json!({})).await
}

/// Makes messages visible again, after a number of seconds.
pub async fn release(
    function: &Function,
    queue: &Target,
    (messages, after_s): (&[Message], u64),
) -> Ended {
    let more = json!({ "VisibilityTimeout": after_s });
    all(function, queue, "ChangeMessageVisibilityBatch", messages, &more).await
}

async fn all(
    function: &Function,
    queue: &Target,
    operation: &str,
    messages: &[Message],
    more: &Value,
) -> Ended {
    let mut ended = Ended::default();
    for part in messages.chunks(ENTRIES_MAX) {
        let mut left: Vec<&Message> = part.iter().collect();
        ended.error = some(function, queue, operation, &mut left, more).await.err();
        ended.done += part.len() - left.len();
        if let Some(why) = &mut ended.error {
            // The others would not fare better.
            *why = format!("{operation}: {why}");
            break;
        }
    }
    ended
}

/// Makes a request about at most [`ENTRIES_MAX`] messages, and again about those that have failed,
/// which are left in the list.
///
/// # Errors
/// Some have failed in the last attempt.
async fn some(
    function: &Function,
    queue: &Target,
    operation: &str,
    left: &mut Vec<&Message>,
    more: &Value,
) -> Result<(), String> {
    let mut result = Ok(());
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(PAUSE * attempt).await;
        }
        let request = of_queue(queue, operation, entries(left, more));
        let answer = call(function, request).await.map_err(|error| error.to_string());
        match answer.and_then(|answer| failed(&answer)) {
            Ok(failed) => {
                let mut at = 0..;
                let is_left = |_: &&Message| {
                    let own = at.next();
                    failed.iter().any(|(failed, _)| Some(*failed) == own)
                };
                left.retain(is_left);
                let Some((_, why)) = failed.into_iter().next() else { return Ok(()) };
                result = Err(why);
            }
            Err(why) => result = Err(why),
        }
    }
    result
}

fn entries(messages: &[&Message], more: &Value) -> Value {
    let entry = |(at, message): (usize, &&Message)| {
        let mut entry = more.clone();
        entry["Id"] = at.to_string().into();
        entry["ReceiptHandle"] = message.receipt.as_str().into();
        entry
    };
    json!({"Entries": messages.iter().enumerate().map(entry).collect::<Vec<_>>()})
}

/// The entries of a request that have failed, with the reasons.
fn failed(answer: &[u8]) -> Result<Vec<(usize, String)>, String> {
    let answer: Value = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let entries = answer["Failed"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |entry: &Value| {
        let at = entry["Id"].as_str().and_then(|id| id.parse().ok());
        let why = format!("{}: {}", entry["Code"], entry["Message"]);
        at.map(|at| (at, why)).ok_or_else(|| "an entry of the answer has no Id".to_owned())
    };
    entries.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_their_place_as_identifier() {
        let message = |id: &str| Message {
            id: id.to_owned(),
            receipt: format!("r-{id}"),
            record: String::new(),
        };
        let (a, b) = (message("a"), message("b"));
        let made = entries(&[&a, &b], &json!({"VisibilityTimeout": 3}));
        let due = json!({"Entries": [
            {"Id": "0", "ReceiptHandle": "r-a", "VisibilityTimeout": 3},
            {"Id": "1", "ReceiptHandle": "r-b", "VisibilityTimeout": 3},
        ]});
        assert_eq!(made, due);
        let answer = br#"{"Successful": [{"Id": "0"}], "Failed": [{"Id": "1", "Code": "C", "Message": "m"}]}"#;
        assert_eq!(failed(answer), Ok(vec![(1, "\"C\": \"m\"".to_owned())]));
        assert_eq!(failed(b"{}"), Ok(Vec::new()));
        assert!(failed(br#"{"Failed": [{}]}"#).is_err() && failed(b"").is_err());
    }
}
