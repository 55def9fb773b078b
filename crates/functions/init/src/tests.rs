//! Calls, bodies and results, with a host that has no room, loses bodies, or asks for them again.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use serde_json::{Value, json};
use unlade_guest_protocol::descriptor::AGAIN;
use unlade_guest_protocol::{Operation, Status};

use crate::call::{Answer, Request, begin};
use crate::link::Link;
use crate::outgoing::{Source, Whole};
use crate::testing::{Host, hosted};

const KIB: usize = 1024;
const MIB: u64 = 1 << 20;

fn object(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 / 64) as u8).collect()
}

/// A body that arrives in pieces.
struct Arriving(VecDeque<Bytes>);

impl Source for Arriving {
    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        Ok(self.0.pop_front())
    }
}

async fn put(link: &Rc<Link>, key: &str, body: Vec<u8>) -> Answer {
    let text = json!({"service": "s3", "operation": "PutObject", "parameters": {"Key": key}});
    let body_bytes = body.len() as u64;
    let body = Arriving(body.chunks(64 * KIB).map(Bytes::copy_from_slice).collect());
    begin(link, Request { operation: Operation::Call, text, body_bytes, body })
        .await
        .unwrap()
        .unwrap()
}

fn get(link: &Rc<Link>, key: &str) -> impl Future<Output = Answer> + use<> {
    let parameters = json!({"Key": key, "IfNoneMatch": "\"x\""});
    let text = json!({"service": "s3", "operation": "GetObject", "parameters": parameters});
    let request = Request { operation: Operation::Call, text, body_bytes: 0, body: Whole(None) };
    let begun = begin(link, request);
    async move { begun.await.unwrap().unwrap() }
}

async fn whole(mut answer: Answer) -> Result<Vec<u8>, std::io::Error> {
    let mut body = Vec::new();
    while let Some(bytes) = answer.body.recv().await {
        body.extend_from_slice(&bytes?);
    }
    Ok(body)
}

/// The meta of an object, or of a range of it.
fn described(length: usize, range: Option<&str>) -> Value {
    let mut result = json!({"ETag": "\"e\"", "ContentLength": length});
    if let Some(range) = range {
        result["ContentRange"] = range.into();
    }
    json!({"result": result, "http_status": 200})
}

fn failure(status: u16, wait_ms: u64) -> Value {
    json!({"error": {"Code": "NotImplemented", "Message": "no chunks"}, "http_status": status,
        "again_after_ms": wait_ms})
}

#[test]
fn a_body_that_is_kept_is_sent_again_when_the_host_asks() {
    let sent = object(700 * KIB);
    let due = sent.clone();
    let script = move |mut host: Host| {
        let first = host.submission();
        assert_eq!(host.text(&first)["body_bytes"], 700 * KIB);
        host.part(first.call);
        let second = host.submission();
        assert!(second.more && second.operation == Operation::Body);
        host.say(first.call, Status::ServiceError, AGAIN, &failure(501, 0));
        let again = host.submission();
        assert_eq!(host.text(&again)["again"], first.call);
        assert!(host.body(&again) == due);
        // It breaks off at the end, too.
        host.say(again.call, Status::HostError, AGAIN, &failure(0, 1));
        let last = host.submission();
        assert_eq!(host.text(&last)["again"], again.call);
        assert!(host.body(&last) == due);
        host.say(last.call, Status::Done, 0, &json!({"result": {"ETag": "e"}}));
    };
    hosted((16, 4), 8 * MIB, script, async move |link| {
        let answer = put(&link, "k", sent).await;
        assert_eq!((answer.status, answer.is_lost), (Status::Done, false));
        assert_eq!(answer.meta["result"]["ETag"], "e");
    });
}

#[test]
fn a_body_that_is_not_kept_is_asked_of_the_client_and_is_the_same_call() {
    let script = |mut host: Host| {
        let lost = host.submission();
        assert!(host.text(&lost).get("again").is_none());
        host.body(&lost);
        host.say(lost.call, Status::ServiceError, AGAIN, &failure(501, 0));
        // Another call, then the same one.
        for again in [None, Some(lost.call), None] {
            let next = host.submission();
            assert_eq!(host.text(&next)["again"].as_u64(), again);
            host.body(&next);
            host.say(next.call, Status::Done, 0, &json!({"result": {}}));
        }
    };
    hosted((16, 4), MIB, script, async |link| {
        let body = object(300 * KIB);
        assert!(put(&link, "k", body.clone()).await.is_lost);
        for key in ["other", "k", "k"] {
            let answer = put(&link, key, body.clone()).await;
            assert_eq!((answer.status, answer.is_lost), (Status::Done, false));
        }
    });
}

#[test]
fn what_is_refused_for_want_of_room_is_tried_again() {
    let sent = object(400 * KIB);
    let due = sent.clone();
    let script = move |mut host: Host| {
        for _ in 0..3 {
            let call = host.submission();
            host.refuse(call.call);
        }
        let call = host.submission();
        assert!(host.text(&call).get("again").is_none());
        assert!(host.body(&call) == due);
        host.say(call.call, Status::Done, 0, &json!({"result": {}}));
        let read = host.submission();
        let whole = object(200 * KIB);
        let (one, two) = whole.split_at(64 * KIB);
        host.lend((read.call, 5), &described(200 * KIB, None), (0, one), true);
        for _ in 0..3 {
            let more = host.submission();
            assert_eq!((more.operation, more.token), (Operation::Read, 5));
            host.refuse(more.call);
        }
        let more = host.submission();
        host.lend((more.call, 5), &Value::Null, (1, two), false);
        host.released(5);
    };
    hosted((16, 4), 8 * MIB, script, async move |link| {
        assert_eq!(put(&link, "k", sent).await.status, Status::Done);
        let body = whole(get(&link, "k").await).await.unwrap();
        assert!(body == object(200 * KIB));
        // The host has seen the last RELEASE.
        tokio::task::yield_now().await;
    });
}

#[test]
fn an_object_that_is_not_read_gives_its_slots_to_others() {
    let script = |mut host: Host| {
        let whole = object(2000 * KIB);
        let open = host.submission();
        let piece = &whole[..512 * KIB];
        host.lend((open.call, 1), &described(2000 * KIB, None), (0, piece), true);
        let other = host.submission();
        // Nothing else comes before the slots are back: the other call waits for them.
        host.released(1);
        let small = object(90 * KIB);
        host.lend((other.call, 2), &described(90 * KIB, None), (0, &small), false);
        // The rest in ranges of 1 MiB, from the first byte on that was not passed on.
        let mut at = 128 * KIB;
        for token in 3.. {
            let range = host.submission();
            let last = (at + 1024 * KIB).min(whole.len()) - 1;
            let parameters = host.text(&range)["parameters"].clone();
            let due =
                json!({"Key": "open", "IfMatch": "\"e\"", "Range": format!("bytes={at}-{last}")});
            assert_eq!(parameters, due);
            let named = format!("bytes {at}-{last}/{}", whole.len());
            let meta = described(last + 1 - at, Some(&named));
            host.lend((range.call, token), &meta, (0, &whole[at..=last]), false);
            at = last + 1;
            if at == whole.len() {
                return host.released(token);
            }
        }
    };
    hosted((4, 16), MIB, script, async |link| {
        let open = get(&link, "open").await;
        let other = get(&link, "other").await;
        assert!(whole(other).await.unwrap() == object(90 * KIB));
        assert!(whole(open).await.unwrap() == object(2000 * KIB));
    });
}

#[test]
fn an_object_that_has_changed_meanwhile_breaks_off() {
    let script = |mut host: Host| {
        let open = host.submission();
        host.lend((open.call, 1), &described(900 * KIB, None), (0, &object(512 * KIB)), true);
        let other = host.submission();
        host.released(1);
        host.say(other.call, Status::Done, 0, &json!({"result": {}}));
        let range = host.submission();
        let error = json!({"error": {"Code": "PreconditionFailed"}, "http_status": 412});
        host.say(range.call, Status::ServiceError, 0, &error);
    };
    hosted((4, 16), MIB, script, async |link| {
        let open = get(&link, "open").await;
        drop(get(&link, "other").await);
        let why = whole(open).await.unwrap_err().to_string();
        assert!(why.contains("PreconditionFailed"), "{why}");
    });
}

#[test]
fn a_text_that_can_never_fit_is_the_clients_error() {
    let script = |mut host: Host| while host.frame().is_some() {};
    hosted((4, 4), MIB, script, async |link| {
        let parameters = json!({"Key": "k".repeat(100 * KIB)});
        let text = json!({"service": "s3", "operation": "HeadObject", "parameters": parameters});
        let body = Whole(None);
        let request = Request { operation: Operation::Call, text, body_bytes: 0, body };
        let why = begin(&link, request).await.unwrap().err().unwrap();
        assert_eq!(why.kind(), std::io::ErrorKind::InvalidInput);
        assert!(why.to_string().contains("of 65536"), "{why}");
    });
}

#[test]
fn a_result_waits_for_slots_that_bodies_hold() {
    let script = |mut host: Host| while host.frame().is_some() {};
    hosted((4, 4), MIB, script, async |link| {
        let body = object(200 * KIB);
        let (held, bytes) = link.body(&body).await.unwrap();
        assert_eq!(bytes as usize, body.len());
        let (result, after) = (Bytes::from(object(128 * KIB)), object(64 * KIB));
        let mut waits = std::pin::pin!(link.result(&result));
        let mut later = std::pin::pin!(link.body(&after));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending(), "all slots are in use");
        // One slot is free, and another body wants it: the result is before it.
        drop(held);
        let (one, _) = {
            let mut take = std::pin::pin!(link.body(&after));
            assert!(take.as_mut().poll(&mut context).is_pending());
            assert!(later.as_mut().poll(&mut context).is_pending());
            let held = waits.await.unwrap();
            assert_eq!(held.count, 2);
            (held, take.await.unwrap())
        };
        drop((one, later.await.unwrap()));
        assert!(link.result(&object(300 * KIB)).await.is_none(), "it can never fit");
    });
}
