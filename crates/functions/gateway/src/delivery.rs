//! The ends of events on their way to destinations: queues, topics, functions, event buses, and
//! dead-letter queues. Each is tried until it has the message, for hours; no message is dropped without
//! a line in the log and a count.

use std::rc::Rc;

use serde_json::Value;
use unlade_fn_model::asynchronous::{self, Ended, MESSAGE_BYTES_MAX, Pending};
use unlade_fn_model::destination::Kind;
use unlade_fn_model::lambda::LATEST;
use unlade_fn_model::lifecycle::arn;
use unlade_metrics::{DeliveryResult, Event};

use crate::behalf::{CallError, call};
use crate::config::REGION;
use crate::event_file::{AcceptedEvent, EventState};
use crate::function::Function;
use crate::host::Host;
use crate::service_request::{About, Attribute, ServiceRequest, message};

/// The function of an event. Another tenant may own the name meanwhile.
pub fn function(host: &Host, state: &EventState) -> Option<Rc<Function>> {
    let own = |found: &Rc<Function>| {
        state.tenant.as_ref().is_none_or(|tenant| found.tenant.name == *tenant)
    };
    host.function(&state.function).filter(own)
}

/// Sends the end of an event to the destinations that do not have it.
pub async fn deliver(host: &Rc<Host>, accepted: &mut AcceptedEvent) {
    let Some(ended) = accepted.state.ended.clone() else { return };
    // The destinations are served one after the other. One that has failed is tried again after the
    // others, and only then with a wait.
    while let Some(mut pending) = accepted.state.pending.first().cloned() {
        accepted.state.pending.remove(0);
        pending.attempts += 1;
        let result = attempt(host, accepted, &ended, &pending).await;
        let Some(error) = result.err() else {
            host.meter.add(Event::FnDelivery(DeliveryResult::Delivered));
            if !accepted.state.pending.is_empty() {
                accepted.keep().await;
            }
            continue;
        };
        let wait = match error {
            Undelivered::Again(_) => asynchronous::delivery_pause(pending.attempts),
            Undelivered::Never(_) => None,
        };
        note(host, accepted, &pending, &error, wait.is_none());
        if let Some(wait) = wait {
            let attempts = pending.attempts;
            accepted.state.pending.push(pending);
            accepted.keep().await;
            if accepted.state.pending.iter().all(|other| other.attempts >= attempts) {
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// The reason why a destination does not have a message.
enum Undelivered {
    /// It may have it later.
    Again(CallError),
    /// It cannot have it.
    Never(DeliveryResult),
}

fn note(
    host: &Host,
    accepted: &AcceptedEvent,
    pending: &Pending,
    error: &Undelivered,
    is_last: bool,
) {
    let (function, destination) = (&accepted.state.function, &pending.target.arn);
    let (event, attempts) = (accepted.number(), pending.attempts);
    match error {
        Undelivered::Again(error) => {
            let result = match error {
                CallError::Denied(_) => DeliveryResult::Denied,
                _ => DeliveryResult::Failed,
            };
            host.meter.add(Event::FnDelivery(result));
            tracing::warn!(function, destination, event, attempts, %error, "not delivered");
        }
        Undelivered::Never(result) => host.meter.add(Event::FnDelivery(*result)),
    }
    if is_last {
        if matches!(error, Undelivered::Again(_)) {
            host.meter.add(Event::FnDelivery(DeliveryResult::Lost));
        }
        let why = match error {
            Undelivered::Never(DeliveryResult::TooLong) => "the message is too long",
            Undelivered::Never(_) => "the function is not there any more",
            Undelivered::Again(_) => "the last attempt has failed",
        };
        let condition = accepted.state.ended.as_ref().map_or("", |ended| ended.condition.name());
        tracing::error!(
            function,
            destination,
            event,
            condition,
            why,
            "the end of an event is lost"
        );
    }
}

async fn attempt(
    host: &Rc<Host>,
    accepted: &AcceptedEvent,
    ended: &Ended,
    pending: &Pending,
) -> Result<(), Undelivered> {
    let found = function(host, &accepted.state);
    let found = found.ok_or(Undelivered::Never(DeliveryResult::Lost))?;
    let request = request(&accepted.state, accepted, ended, pending);
    let request = request.ok_or(Undelivered::Never(DeliveryResult::TooLong))?;
    let answer = call(&found, request).await;
    let answer = answer.map_err(|error| match error {
        CallError::TooLong => Undelivered::Never(DeliveryResult::TooLong),
        error => Undelivered::Again(error),
    })?;
    match pending.target.kind {
        Kind::Bus => entries(&answer).map_err(|why| Undelivered::Again(CallError::Failed(why))),
        Kind::Queue | Kind::Topic | Kind::Function => Ok(()),
    }
}

/// Judges the answer of an event bus, which reports errors with a good status.
fn entries(answer: &[u8]) -> Result<(), String> {
    let answer: Value = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    match answer["FailedEntryCount"].as_u64() {
        Some(0) => Ok(()),
        _ => Err(format!("the event bus refused it: {}", answer["Entries"][0]["ErrorMessage"])),
    }
}

/// The request that tells a destination; `None` if the message is too long.
fn request(
    state: &EventState,
    accepted: &AcceptedEvent,
    ended: &Ended,
    pending: &Pending,
) -> Option<ServiceRequest> {
    let name = state.function.split(':').next().unwrap_or_default();
    let function_arn = arn(REGION, name, Some(state.qualifier.as_deref().unwrap_or(LATEST)));
    let detail_type = asynchronous::detail_type(ended.condition);
    let about = About { function_arn: &function_arn, detail_type };
    let (text, attributes) = match pending.is_dead_letter {
        true => (raw(&accepted.event), attributes(accepted.number(), ended)),
        false => {
            let record =
                asynchronous::record(accepted.number(), &function_arn, &accepted.event, ended);
            (record.to_string(), Vec::new())
        }
    };
    (text.len() <= MESSAGE_BYTES_MAX).then(|| message(&pending.target, &text, &attributes, &about))
}

/// The event itself. A queue takes no empty message.
fn raw(event: &[u8]) -> String {
    match event.is_empty() {
        true => "null".to_owned(),
        false => String::from_utf8_lossy(event).into_owned(),
    }
}

/// The attributes of a message to a dead-letter queue, as Lambda's.
fn attributes(number: &str, ended: &Ended) -> Vec<Attribute> {
    let text = |name, data_type, value| Attribute { name, data_type, value };
    let mut attributes = vec![text("RequestID", "String", number.to_owned())];
    if let Some(response) = &ended.response {
        attributes.push(text("ErrorCode", "Number", response.status.to_string()));
        let message = response.error_message();
        if !message.is_empty() {
            attributes.push(text("ErrorMessage", "String", message));
        }
    }
    attributes
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use unlade_fn_model::asynchronous::{Condition, Response};
    use unlade_fn_model::destination::Target;

    use super::*;

    fn accepted(event: &[u8]) -> AcceptedEvent {
        let state = EventState {
            tenant: Some("t".to_owned()),
            function: "f:3".to_owned(),
            qualifier: Some("live".to_owned()),
            accepted_ms: 0,
            failures: 3,
            ended: None,
            pending: Vec::new(),
            trace: None,
        };
        AcceptedEvent { path: PathBuf::from("/events/n-1"), state, event: event.to_vec() }
    }

    fn ended() -> Ended {
        let text = "{\"errorMessage\": \"no\\n\"}".to_owned();
        Ended {
            condition: Condition::RetriesExhausted,
            timestamp: String::new(),
            attempts: 3,
            version: "3".to_owned(),
            response: Some(Response { status: 200, is_function_error: true, text }),
        }
    }

    fn pending(is_dead_letter: bool) -> Pending {
        let target = Target::parse("arn:aws:sqs:us-east-1:123456789012:q").unwrap();
        Pending { target, is_dead_letter, attempts: 0 }
    }

    #[test]
    fn a_destination_gets_a_record_and_a_dead_letter_queue_the_event() {
        let body = |event: &[u8], is_dead_letter| -> Value {
            let own = accepted(event);
            let request = request(&own.state, &own, &ended(), &pending(is_dead_letter)).unwrap();
            serde_json::from_slice(&request.body).unwrap()
        };
        let told = body(b"{\"a\": 1}", false);
        let record: Value = serde_json::from_str(told["MessageBody"].as_str().unwrap()).unwrap();
        let context = &record["requestContext"];
        assert_eq!(context["functionArn"], arn(REGION, "f", Some("live")));
        assert_eq!(
            (&context["requestId"], &context["approximateInvokeCount"]),
            (&"n-1".into(), &3.into())
        );
        assert!(told.get("MessageAttributes").is_none());
        let dead = body(b"{\"a\": 1}", true);
        assert_eq!(dead["MessageBody"], "{\"a\": 1}");
        let attributes = &dead["MessageAttributes"];
        assert_eq!(attributes["RequestID"]["StringValue"], "n-1");
        assert_eq!(attributes["ErrorCode"]["StringValue"], "200");
        assert_eq!(attributes["ErrorMessage"]["StringValue"], "no");
        assert_eq!(body(b"", true)["MessageBody"], "null");
        let long = accepted(&vec![b'7'; MESSAGE_BYTES_MAX + 1]);
        for is_dead_letter in [false, true] {
            assert_eq!(request(&long.state, &long, &ended(), &pending(is_dead_letter)), None);
        }
    }

    #[test]
    fn an_event_bus_reports_errors_with_a_good_status() {
        assert_eq!(entries(br#"{"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}"#), Ok(()));
        let refused = br#"{"FailedEntryCount": 1, "Entries": [{"ErrorMessage": "no bus"}]}"#;
        assert!(entries(refused).unwrap_err().contains("no bus"));
        assert!(entries(b"{}").is_err() && entries(b"").is_err());
    }
}
