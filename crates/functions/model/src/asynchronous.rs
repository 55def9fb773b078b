//! Asynchronous invocations: how often and how long an accepted event is tried, and the record of its
//! end (AWS Lambda developer guide, *Asynchronous invocation*). Sans-IO: the time is an input.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::destination::Target;
use crate::lifecycle::EventConfig;
use crate::lifecycle::event_config::AGE_MAX;

/// Wait before the second attempt; doubled before the next.
const PAUSE: Duration = Duration::from_secs(1);
/// First wait of an event for which there was no instance; doubled up to the longest.
const THROTTLED_PAUSE: Duration = Duration::from_millis(500);
const THROTTLED_PAUSE_MAX: Duration = Duration::from_secs(8);
/// Longest wait between two attempts to send the end of an event to a destination.
const DELIVERY_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Most attempts to send the end of an event to a destination: six hours.
pub const DELIVERIES_MAX: u32 = 80;
/// Longest message that a destination takes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Longest error message in an attribute, in bytes, as in Lambda.
const ERROR_BYTES_MAX: usize = 1024;

/// The way in which an event ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// The function succeeded.
    Success,
    /// The function failed in the last attempt.
    RetriesExhausted,
    /// The event became too old.
    EventAgeExceeded,
}

impl Condition {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Success => "Success",
            Condition::RetriesExhausted => "RetriesExhausted",
            Condition::EventAgeExceeded => "EventAgeExceeded",
        }
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The function succeeded.
    Done,
    /// The function failed.
    Failed,
    /// There was no instance for it.
    Throttled,
}

/// The next step of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It has ended.
    End(Condition),
    /// Another attempt after a wait.
    Again(Duration),
}

fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(longest)
}

/// Decides after an attempt. `failures` and `throttled` count the attempts so far that ended so, this
/// one included; `age` is the time since the event was accepted.
pub fn next(
    config: &EventConfig,
    tried: Tried,
    (failures, throttled): (u32, u32),
    age: Duration,
) -> Next {
    let pause = match tried {
        Tried::Done => return Next::End(Condition::Success),
        Tried::Failed if failures > config.retries() => {
            return Next::End(Condition::RetriesExhausted);
        }
        Tried::Failed => doubled(PAUSE, failures.saturating_sub(1), AGE_MAX),
        Tried::Throttled => {
            doubled(THROTTLED_PAUSE, throttled.saturating_sub(1), THROTTLED_PAUSE_MAX)
        }
    };
    match age.saturating_add(pause) > config.age_max() {
        true => Next::End(Condition::EventAgeExceeded),
        false => Next::Again(pause),
    }
}

/// The wait after an unsuccessful attempt to send the end of an event; `None` after the last one.
pub fn delivery_pause(attempts: u32) -> Option<Duration> {
    let wait = doubled(PAUSE, attempts.saturating_sub(1), DELIVERY_PAUSE_MAX);
    (attempts < DELIVERIES_MAX).then_some(wait)
}

/// The answer of a function to an event, or the refusal of the last attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The HTTP status that a synchronous caller would have got.
    pub status: u16,
    /// True if the function ran and failed.
    pub is_function_error: bool,
    /// The result or the error of the function, as JSON; or the message of a refusal.
    pub text: String,
}

impl Response {
    /// The message of the error, shortened, without characters that attributes must not have.
    pub fn error_message(&self) -> String {
        let parsed: Option<Value> = serde_json::from_str(&self.text).ok();
        let message = parsed.as_ref().and_then(|value| value["errorMessage"].as_str());
        let message = message.unwrap_or(&self.text);
        let mut out = String::new();
        let is_plain = |c: &char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
        for c in message.chars().filter(is_plain) {
            if out.len() + c.len_utf8() > ERROR_BYTES_MAX {
                break;
            }
            out.push(c);
        }
        out
    }
}

/// The end of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The condition.
    pub condition: Condition,
    /// The time, as RFC 3339.
    pub timestamp: String,
    /// Attempts that were made.
    pub attempts: u32,
    /// The version that served.
    pub version: String,
    /// The answer of the last attempt; `None` if there was none.
    pub response: Option<Response>,
}

/// The record of an event's end, as Lambda sends it to destinations.
pub fn record(number: &str, function_arn: &str, event: &[u8], ended: &Ended) -> Value {
    let payload = |text: &[u8]| -> Value {
        let lossy = || Value::String(String::from_utf8_lossy(text).into_owned());
        match text.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(text).unwrap_or_else(|_| lossy()),
        }
    };
    let mut record = json!({
        "version": "1.0",
        "timestamp": ended.timestamp,
        "requestContext": {
            "requestId": number,
            "functionArn": function_arn,
            "condition": ended.condition.name(),
            "approximateInvokeCount": ended.attempts,
        },
        "requestPayload": payload(event),
    });
    if let Some(Response { status, is_function_error, text }) = &ended.response {
        record["responseContext"] = json!({
            "statusCode": status,
            "executedVersion": ended.version,
        });
        if *is_function_error {
            record["responseContext"]["functionError"] = "Unhandled".into();
        }
        record["responsePayload"] = payload(text.as_bytes());
    }
    record
}

/// The detail type of an event that EventBridge gets.
pub fn detail_type(condition: Condition) -> &'static str {
    match condition {
        Condition::Success => "Lambda Function Invocation Result - Success",
        _ => "Lambda Function Invocation Result - Failure",
    }
}

/// The destinations of an event's end: those of the configuration, and the dead-letter queue.
pub fn destinations(
    config: &EventConfig,
    dead_letter: Option<&Target>,
    condition: Condition,
) -> Vec<Pending> {
    let pending = |target: &Target, is_dead_letter| Pending {
        target: target.clone(),
        is_dead_letter,
        attempts: 0,
    };
    if condition == Condition::Success {
        return config.on_success.iter().map(|target| pending(target, false)).collect();
    }
    let on_failure = config.on_failure.iter().map(|target| pending(target, false));
    on_failure.chain(dead_letter.map(|target| pending(target, true))).collect()
}

/// A destination that does not have the end of an event yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The destination.
    pub target: Target,
    /// True for a dead-letter queue, which gets the event itself.
    pub is_dead_letter: bool,
    /// Attempts that were made.
    pub attempts: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(retries: Option<u32>, age_s: Option<u32>) -> EventConfig {
        EventConfig { retries, age_s, ..EventConfig::default() }
    }

    #[test]
    fn an_event_is_tried_as_often_and_as_long_as_configured() {
        let own = config(None, None);
        let age = Duration::from_secs(5);
        assert_eq!(next(&own, Tried::Done, (0, 0), age), Next::End(Condition::Success));
        assert_eq!(next(&own, Tried::Failed, (1, 0), age), Next::Again(PAUSE));
        assert_eq!(next(&own, Tried::Failed, (2, 0), age), Next::Again(PAUSE * 2));
        let end = Next::End(Condition::RetriesExhausted);
        assert_eq!(next(&own, Tried::Failed, (3, 0), age), end);
        assert_eq!(next(&config(Some(0), None), Tried::Failed, (1, 0), age), end);
        let mut waits = Vec::new();
        for throttled in 1..8 {
            let Next::Again(wait) = next(&own, Tried::Throttled, (0, throttled), age) else {
                panic!()
            };
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
        let aged = Next::End(Condition::EventAgeExceeded);
        let short = config(None, Some(60));
        assert_eq!(next(&short, Tried::Failed, (1, 0), Duration::from_millis(59_500)), aged);
        assert_eq!(next(&short, Tried::Throttled, (0, 1), Duration::from_secs(60)), aged);
        assert_eq!(
            next(&short, Tried::Failed, (1, 0), Duration::from_secs(59)),
            Next::Again(PAUSE)
        );
        assert_eq!(next(&own, Tried::Throttled, (0, u32::MAX), AGE_MAX), aged);
        assert_eq!(next(&own, Tried::Done, (0, 9), AGE_MAX * 2), Next::End(Condition::Success));
    }

    #[test]
    fn a_destination_is_tried_for_six_hours() {
        let sum: Duration = (1..).map_while(delivery_pause).sum();
        assert!(sum > Duration::from_secs(5 * 3600) && sum < Duration::from_secs(7 * 3600));
        assert_eq!(delivery_pause(1), Some(PAUSE));
        assert_eq!(delivery_pause(DELIVERIES_MAX), None);
    }

    #[test]
    fn a_record_has_the_form_of_lambdas() {
        let text = r#"{"errorMessage": "no", "errorType": "E"}"#.to_owned();
        let response = Response { status: 200, is_function_error: true, text };
        assert_eq!(response.error_message(), "no");
        let mut ended = Ended {
            condition: Condition::RetriesExhausted,
            timestamp: "2026-01-02T03:04:05.678Z".to_owned(),
            attempts: 3,
            version: "$LATEST".to_owned(),
            response: Some(response),
        };
        let arn = "arn:aws:lambda:us-east-1:000000000000:function:f:$LATEST";
        let due = json!({
            "version": "1.0",
            "timestamp": "2026-01-02T03:04:05.678Z",
            "requestContext": {
                "requestId": "n-1",
                "functionArn": arn,
                "condition": "RetriesExhausted",
                "approximateInvokeCount": 3,
            },
            "requestPayload": {"a": 1},
            "responseContext": {
                "statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled",
            },
            "responsePayload": {"errorMessage": "no", "errorType": "E"},
        });
        assert_eq!(record("n-1", arn, br#"{"a": 1}"#, &ended), due);
        ended.response = None;
        ended.condition = Condition::EventAgeExceeded;
        let aged = record("n-1", arn, b"", &ended);
        assert_eq!(aged["requestPayload"], Value::Null);
        assert!(aged.get("responseContext").is_none() && aged.get("responsePayload").is_none());
        assert!(detail_type(Condition::Success).ends_with("Success"));
        assert!(detail_type(ended.condition).ends_with("Failure"));
    }

    #[test]
    fn an_error_message_is_short_and_plain() {
        let text = format!("a\u{1}\n{}", "é".repeat(1000));
        let message = Response { status: 502, is_function_error: false, text }.error_message();
        assert_eq!((message.len(), message.starts_with("aé")), (1023, true));
    }

    #[test]
    fn a_failure_goes_to_the_destination_and_to_the_dead_letter_queue() {
        let target = |name: &str| {
            Target::parse(&format!("arn:aws:sqs:us-east-1:123456789012:{name}")).unwrap()
        };
        let config = EventConfig {
            on_success: Some(target("good")),
            on_failure: Some(target("bad")),
            ..EventConfig::default()
        };
        let dead = target("dead");
        let names = |condition| -> Vec<_> {
            let found = destinations(&config, Some(&dead), condition).into_iter();
            found.map(|own| (own.target.name, own.is_dead_letter)).collect()
        };
        assert_eq!(names(Condition::Success), [("good".to_owned(), false)]);
        let failed = [("bad".to_owned(), false), ("dead".to_owned(), true)];
        assert_eq!(names(Condition::RetriesExhausted), failed);
        assert_eq!(names(Condition::EventAgeExceeded), failed);
        assert!(
            destinations(&EventConfig::default(), None, Condition::RetriesExhausted).is_empty()
        );
    }
}
