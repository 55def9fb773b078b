//! Requests of the gateway on behalf of a function: decided by its role, signed with the worker's keys,
//! bounded, counted.

use std::net::SocketAddr;

use serde_json::json;
use unlade_fn_worker::cut::ServicesConfig;
use unlade_guest_protocol::RequestHead;
use unlade_guest_protocol::control::{
    ControlHead, Message, PERFORM_BYTES_MAX, PERFORMED_BYTES_MAX, PERFORMS_MAX, PerformEnd,
};
use unlade_metrics::{CutRefusal, CutService, Event, PerformResult};

use crate::bed::script::{Answer, response, script};
use crate::bed::{Bed, ID, SECRET};

fn bed_at(address: SocketAddr) -> Bed {
    let text = format!(
        "[endpoint.sqs]\nurl = \"http://{address}\"\ncredentials = {{ from = \"keys\", \
         access_key_id = \"{ID}\", secret_access_key = \"{SECRET}\" }}\n"
    );
    let services: ServicesConfig = unlade_config::parse(&text, "test").unwrap();
    Bed::with(|config| config.services = services)
}

fn send_message() -> RequestHead {
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    RequestHead {
        headers: vec![
            field("content-type", "application/x-amz-json-1.0"),
            field("x-amz-target", "AmazonSQS.SendMessage"),
        ],
        ..RequestHead::post("sqs", "eu-west-1", "SendMessage")
    }
}

const BODY: &str =
    r#"{"QueueUrl":"https://sqs.eu-west-1.amazonaws.com/123456789012/q","MessageBody":"m"}"#;

fn say(bed: &mut Bed, call: u64, role: u64, request: RequestHead, body: &[u8]) {
    let said = ControlHead::Perform { call, role, request };
    bed.gateway.say(Message { said, bytes: body.to_vec() });
}

fn end(bed: &mut Bed, number: u64) -> (PerformEnd, Vec<u8>) {
    let is_it =
        |said: &ControlHead| matches!(said, ControlHead::Performed { call, .. } if *call == number);
    let message = bed.gateway.expect(is_it);
    let ControlHead::Performed { end, .. } = message.said else { unreachable!() };
    (end, message.bytes)
}

fn count(bed: &Bed, result: PerformResult) -> u64 {
    bed.meter.value(Event::HostioPerformed(result))
}

#[test]
fn a_request_is_signed_with_the_workers_keys_and_its_answer_comes_back() {
    let (address, asked) = script(vec![
        response(200, "", "{\"MessageId\":\"1\"}"),
        response(400, "", "{\"__type\":\"QueueDoesNotExist\"}"),
        response(200, "", ""),
    ]);
    let mut bed = bed_at(address);
    for (call, due) in [
        (7, (PerformEnd::Answered { http_status: 200 }, &b"{\"MessageId\":\"1\"}"[..])),
        (8, (PerformEnd::Answered { http_status: 400 }, b"{\"__type\":\"QueueDoesNotExist\"}")),
        (9, (PerformEnd::Answered { http_status: 200 }, b"")),
    ] {
        say(&mut bed, call, 1, send_message(), BODY.as_bytes());
        let (end, bytes) = end(&mut bed, call);
        assert_eq!((end, bytes.as_slice()), due);
        let seen = asked.recv().unwrap();
        assert_eq!(seen.body, BODY.as_bytes());
        assert!(seen.head.contains(&format!("Credential={ID}/")), "{}", seen.head);
        assert!(seen.head.contains("/eu-west-1/sqs/aws4_request"), "{}", seen.head);
    }
    assert_eq!((count(&bed, PerformResult::Done), count(&bed, PerformResult::Service)), (2, 1));
    assert_eq!(bed.meter.value(Event::HostioServiceRequest(CutService::Sqs)), 3);
}

#[test]
fn the_functions_role_decides() {
    let (address, asked) = script(vec![response(200, "", "{}")]);
    let mut bed = bed_at(address);
    let statements = json!([{"effect": "allow", "actions": ["s3:*"], "resources": ["*"]}]);
    bed.gateway.role(2, json!({ "statements": statements }));
    say(&mut bed, 1, 2, send_message(), BODY.as_bytes());
    let (PerformEnd::Denied { why }, _) = end(&mut bed, 1) else { panic!("it is not allowed") };
    assert!(why.contains("sqs:SendMessage on q"), "{why}");
    say(&mut bed, 2, 99, send_message(), BODY.as_bytes());
    assert!(matches!(end(&mut bed, 2).0, PerformEnd::Failed { .. }), "a role that was not said");
    assert_eq!(count(&bed, PerformResult::Denied), 1);
    assert!(asked.try_recv().is_err(), "nothing was sent");
    say(&mut bed, 3, 1, send_message(), BODY.as_bytes());
    assert_eq!(end(&mut bed, 3).0, PerformEnd::Answered { http_status: 200 });
}

#[test]
fn what_is_malformed_or_too_long_or_unreachable_is_a_failure() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bed = bed_at(closed);
    let mut host = send_message();
    host.headers.push(("host".into(), "evil.example".into()));
    let mut other = send_message();
    other.operation = "DeleteQueue".into();
    let unknown = RequestHead { service: "sns".into(), ..send_message() };
    let long = vec![b' '; PERFORM_BYTES_MAX + 1];
    for (call, request, body, kind) in [
        (1, host, BODY.as_bytes(), Some(CutRefusal::Head)),
        (2, other, BODY.as_bytes(), Some(CutRefusal::Operation)),
        (3, unknown, BODY.as_bytes(), Some(CutRefusal::Operation)),
        (4, send_message(), &long, Some(CutRefusal::Head)),
        (5, send_message(), BODY.as_bytes(), None),
    ] {
        let before = kind.map(|kind| bed.meter.value(Event::HostioServiceRefused(kind)));
        say(&mut bed, call, 1, request, body);
        let (end, _) = end(&mut bed, call);
        assert!(matches!(end, PerformEnd::Failed { .. }), "{call}: {end:?}");
        let after = kind.map(|kind| bed.meter.value(Event::HostioServiceRefused(kind)));
        assert_eq!(after, before.map(|before| before + 1), "{call}");
    }
    assert_eq!(count(&bed, PerformResult::Failed), 5);
}

#[test]
fn an_answer_is_bounded() {
    let long = "x".repeat(PERFORMED_BYTES_MAX + 1);
    let (address, _asked) = script(vec![response(200, "", &long), Answer::Hang]);
    let mut bed = bed_at(address);
    say(&mut bed, 1, 1, send_message(), BODY.as_bytes());
    assert_eq!(end(&mut bed, 1), (PerformEnd::TooLong, Vec::new()));
    // The connection was given up; the next one breaks without an answer.
    say(&mut bed, 2, 1, send_message(), BODY.as_bytes());
    assert!(matches!(end(&mut bed, 2).0, PerformEnd::Failed { .. }));
}

/// A server that answers nobody holds as many requests as may be in flight: one more is told so.
#[test]
fn requests_in_flight_are_bounded() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bed = bed_at(listener.local_addr().unwrap());
    for call in 0..PERFORMS_MAX as u64 {
        say(&mut bed, call, 1, send_message(), BODY.as_bytes());
    }
    say(&mut bed, 9999, 1, send_message(), BODY.as_bytes());
    assert_eq!(end(&mut bed, 9999).0, PerformEnd::Busy);
    assert_eq!(count(&bed, PerformResult::Busy), 1);
    // All of them end with the server, and there is room again.
    drop(listener);
    for call in 0..PERFORMS_MAX as u64 {
        assert!(matches!(end(&mut bed, call).0, PerformEnd::Failed { .. }));
    }
    say(&mut bed, 10_000, 1, send_message(), BODY.as_bytes());
    assert!(matches!(end(&mut bed, 10_000).0, PerformEnd::Failed { .. }));
}
