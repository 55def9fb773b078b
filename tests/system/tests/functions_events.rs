//! Events of Lambda's life cycle, with boto3 as the client and moto as the services: destinations of
//! asynchronous invocations, dead-letter queues, queues that feed functions.

use std::net::{SocketAddr, TcpListener};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use system_tests::functions::{Gateway, ask_plainly, signal, until};
use system_tests::moto::Moto;
use system_tests::{admin, needs_functions};

const ALL: &str = "\"s3:*\", \"sqs:*\", \"sns:Publish\", \"events:PutEvents\", \"lambda:*\"";

/// A gateway whose functions reach moto, and the address of its metrics.
fn start(moto: &Moto, actions: &str) -> (Gateway, SocketAddr) {
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = format!("admin = \"{metrics}\"\n{}", moto.config(actions));
    let gateway = Gateway::start(&config);
    gateway.bucket("box");
    (gateway, metrics)
}

/// The value of a sample, with its label.
fn counter(metrics: SocketAddr, sample: &str) -> u64 {
    let text = ask_plainly(metrics, "GET", "/metrics", &[], b"").unwrap().body;
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}

/// Waits until samples have at least these values.
fn counted(metrics: SocketAddr, due: &[(&str, u64)]) {
    for (sample, least) in due {
        until(sample, || (counter(metrics, sample) >= *least).then_some(()));
    }
}

fn events(end: &str) -> String {
    format!("unlade_fn_events_ended_total{{end=\"{end}\"}}")
}

fn deliveries(result: &str) -> String {
    format!("unlade_fn_deliveries_total{{result=\"{result}\"}}")
}

fn polls(result: &str) -> String {
    format!("unlade_fn_source_polls_total{{result=\"{result}\"}}")
}

fn messages(end: &str) -> String {
    format!("unlade_fn_source_messages_total{{end=\"{end}\"}}")
}

#[test]
fn configurations_of_events_are_kept() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (mut gateway, _) = start(&moto, ALL);
    moto.run(&gateway, &["configurations"]);
    gateway.restart();
    let path = "/2019-09-25/functions/f/event-invoke-config?Qualifier=1";
    let kept = system_tests::functions::ask(gateway.address, "GET", path, &[], b"").unwrap();
    assert_eq!(kept.json()["MaximumRetryAttempts"], 0, "{kept:?}");
}

#[test]
fn the_end_of_an_event_goes_to_its_destination() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (gateway, metrics) = start(&moto, ALL);
    moto.run(&gateway, &["destinations"]);
    let told = until("the other function is told", || gateway.object("box", "told"));
    let told: Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(told["requestPayload"], json!({"a": 3}), "{told}");
    let is_due = [
        (&*events("success"), 3),
        (&*events("retries_exhausted"), 3),
        (&*deliveries("delivered"), 6),
        // To the event bus and to the dead-letter queue.
        (&*deliveries("too_long"), 2),
    ];
    counted(metrics, &is_due);
    let left = gateway.dir.path().join("events");
    until("no event is left", || (std::fs::read_dir(&left).unwrap().count() == 0).then_some(()));
}

/// A destination that fails is tried again until its function is not there any more; an event of a
/// function that is not there any more ends, too.
#[test]
fn what_cannot_be_delivered_is_tried_again_and_counted() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (gateway, metrics) = start(&moto, ALL);
    moto.run(&gateway, &["undeliverable"]);
    counted(metrics, &[(&deliveries("failed"), 2)]);
    assert_eq!(counter(metrics, &deliveries("lost")), 0);
    moto.run(&gateway, &["delete", "gone"]);
    counted(metrics, &[(&deliveries("lost"), 1)]);
    moto.run(&gateway, &["waiting"]);
    moto.run(&gateway, &["delete", "waiting"]);
    counted(metrics, &[(&events("absent"), 1)]);
}

/// Two events that a gateway before had accepted: one long ago, one that had failed twice.
#[test]
fn time_and_attempts_of_an_event_outlive_the_gateway() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (mut gateway, metrics) = start(&moto, ALL);
    moto.run(&gateway, &["restarted"]);
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let event = |number: &str, accepted_ms: u64, failures: u32, event: Value| {
        let state = json!({
            "tenant": "default", "function": "f", "accepted_ms": accepted_ms, "failures": failures,
        });
        let path = gateway.dir.path().join("events").join(number);
        std::fs::write(path, format!("{state}\n{event}")).unwrap();
    };
    event("old", now_ms - 7 * 3600 * 1000, 0, json!({"old": 1}));
    event("failed", now_ms, 2, json!({"fail": "again"}));
    gateway.restart();
    moto.run(&gateway, &["replayed"]);
    counted(metrics, &[(&events("age_exceeded"), 1), (&events("retries_exhausted"), 1)]);
}

#[test]
fn mappings_are_created_changed_and_deleted_by_boto3() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (gateway, _) = start(&moto, ALL);
    moto.run(&gateway, &["mappings"]);
}

#[test]
fn messages_of_a_queue_are_handled_and_a_poisoned_one_is_left_to_the_queue() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (gateway, metrics) = start(&moto, ALL);
    moto.run(&gateway, &["queues"]);
    for n in (0..12).chain([100]) {
        let record = gateway.object("box", &format!("n-{n}")).expect("it was handled");
        let record: Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(record["body"], format!("{{\"n\": {n}}}"));
        assert_eq!(record["eventSource"], "aws:sqs");
        assert_eq!(record["eventSourceARN"], "arn:aws:sqs:us-east-1:123456789012:q");
        assert_eq!(record["awsRegion"], "us-east-1");
        assert_eq!(record["md5OfBody"].as_str().unwrap().len(), 32);
        let attributes = &record["attributes"];
        assert!(attributes["SentTimestamp"].is_string() && attributes["SenderId"].is_string());
        assert_eq!(attributes["ApproximateReceiveCount"], "1");
        let word = json!({"stringValue": "w", "dataType": "String",
                          "stringListValues": [], "binaryListValues": []});
        let due = if n == 100 { json!({}) } else { json!({ "word": word }) };
        assert_eq!(record["messageAttributes"], due);
    }
    counted(
        metrics,
        &[
            (&polls("messages"), 2),
            (&polls("empty"), 1),
            (&messages("deleted"), 13),
            (&messages("left"), 2),
        ],
    );
}

#[test]
fn messages_that_cannot_be_handled_come_again() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (gateway, metrics) = start(&moto, ALL);
    moto.run(&gateway, &["troubles"]);
    counted(metrics, &[(&polls("failed"), 1), (&messages("released"), 1), (&messages("left"), 1)]);
}

#[test]
fn the_functions_role_decides_about_queues() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (gateway, metrics) = start(&moto, "\"s3:*\"");
    moto.run(&gateway, &["forbidden"]);
    counted(metrics, &[(&polls("denied"), 1), (&deliveries("denied"), 1)]);
    drop(gateway);
    let Some(moto) = Moto::start() else { return };
    let (gateway, metrics) = start(&moto, "\"s3:*\", \"sqs:ReceiveMessage\"");
    moto.run(&gateway, &["undeletable"]);
    counted(metrics, &[(&messages("undeleted"), 1)]);
}

#[test]
fn a_gateway_that_is_told_to_end_finishes_the_messages_on_their_way() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let (mut gateway, metrics) = start(&moto, ALL);
    moto.run(&gateway, &["slow"]);
    until("the function runs", || gateway.object("box", "begun"));
    signal(gateway.pid(), "TERM");
    until("it drains", || admin::is_draining(metrics.port()).then_some(()));
    gateway.put("box", "go", b"gone");
    assert_eq!(gateway.ended(), Some(0));
    moto.run(&gateway, &["empty", "q"]);
}
