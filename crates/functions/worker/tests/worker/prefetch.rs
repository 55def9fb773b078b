//! Objects that are prefetched.

use std::sync::mpsc;

use serde_json::json;
use unlade_guest_protocol::control::{ControlHead, ObjectName, WriteMode};
use unlade_guest_protocol::descriptor::{PENDING, PREFETCHED};

use crate::bed::script::{response, script};
use crate::bed::sink::{Plan, sink};
use crate::bed::{Bed, body_of};

fn named(bucket: &str, key: &str) -> ObjectName {
    ObjectName { bucket: bucket.into(), key: key.into(), version: None, range: None }
}

fn event(key: &str) -> Vec<u8> {
    json!({"Records": [{"eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "input"}, "object": {"key": key}}}]})
    .to_string()
    .into_bytes()
}

#[test]
fn an_event_brings_its_object_along_once() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "input"}), b"").done();
    let body = body_of(3_000_000);
    let name = json!({"Bucket": "input", "Key": "a b"});
    guest.call("PutObject", name.clone(), &body).done();
    let cold = guest.call("GetObject", name.clone(), b"");
    assert_eq!(cold.flags & PREFETCHED, 0);
    bed.gateway.hint("i", 1, Vec::new(), &event("a+b"));
    bed.gateway.invoke(&guest, "i", WriteMode::Sync, &event("a+b"));
    guest.invoked();
    let warm = guest.call("GetObject", name.clone(), b"");
    assert_eq!(warm.flags, PREFETCHED);
    assert!(warm.body == body);
    assert_eq!(warm.done(), cold.done());
    assert_eq!(guest.call("GetObject", name, b"").flags & PREFETCHED, 0);
    guest.reply("i", b"");
    let ControlHead::Replied { prefetch_us, prefetch_waited_us, .. } =
        bed.gateway.replied("i").said
    else {
        panic!()
    };
    assert!(prefetch_us > 0 && prefetch_waited_us <= prefetch_us);
}

#[test]
fn what_was_there_before_it_was_asked_for_was_not_waited_for() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "input"}), b"").done();
    let name = json!({"Bucket": "input", "Key": "k"});
    guest.call("PutObject", name.clone(), b"small").done();
    bed.gateway.hint("i", 1, vec![named("input", "k")], b"");
    bed.gateway.invoke(&guest, "i", WriteMode::Sync, b"{}");
    guest.invoked();
    // The prefetch was sent before these, to a store that may serve requests sequentially or more
    // slowly.
    for _ in 0..50 {
        guest.call("ListObjectsV2", json!({"Bucket": "input"}), b"").done();
    }
    assert_eq!(guest.call("GetObject", name, b"").flags, PREFETCHED);
    guest.reply("i", b"");
    let ControlHead::Replied { prefetch_us, prefetch_waited_us, .. } =
        bed.gateway.replied("i").said
    else {
        panic!()
    };
    assert!(prefetch_us > 0);
    assert_eq!(prefetch_waited_us, 0);
}

#[test]
fn what_was_fetched_is_not_for_others_nor_for_later_nor_older_than_a_write() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "input"}), b"").done();
    let name = json!({"Bucket": "input", "Key": "k"});
    guest.call("PutObject", name.clone(), b"old").done();
    let mut flags_of = |bed: &mut Bed, hinted: &str, run: &str, write: bool| {
        bed.gateway.hint(hinted, 1, vec![named("input", "k")], b"");
        bed.gateway.invoke(&guest, run, WriteMode::Sync, b"{}");
        guest.invoked();
        if write {
            guest.call("PutObject", name.clone(), b"new").done();
        }
        let got = guest.call("GetObject", name.clone(), b"");
        assert_eq!(got.body, if write { b"new" } else { b"old" });
        guest.reply(run, b"");
        bed.gateway.replied(run);
        got.flags & PREFETCHED
    };
    assert_eq!(flags_of(&mut bed, "a", "a", false), PREFETCHED);
    assert_eq!(flags_of(&mut bed, "b", "c", false), 0);
    assert_eq!(flags_of(&mut bed, "d", "d", true), 0);
}

#[test]
fn a_hint_has_no_more_rights_than_the_role_and_a_wrong_one_is_no_error() {
    let (address, asked) = script(vec![
        response(404, "", "<Error><Code>NoSuchKey</Code></Error>"),
        response(200, "", "there"),
    ]);
    let mut bed = Bed::with(|config| {
        config.store.endpoint = Some(format!("http://{address}"));
    });
    bed.gateway.role(
        2,
        json!({"statements": [
        {"effect": "allow", "actions": ["s3:GetObject"], "resources": ["input/mine/*"]}]}),
    );
    let mut guest = bed.gateway.attach(2);
    bed.gateway.hint("i", 2, vec![named("input", "secret"), named("input", "mine/k")], b"{");
    bed.gateway.invoke(&guest, "i", WriteMode::Sync, b"{}");
    guest.invoked();
    let first = asked.recv().unwrap();
    assert!(first.head.starts_with("GET /input/mine/k "), "{}", first.head);
    let got = guest.call("GetObject", json!({"Bucket": "input", "Key": "mine/k"}), b"");
    assert_eq!((got.flags, got.body.as_slice()), (0, &b"there"[..]));
    let second = asked.recv().unwrap();
    assert!(second.head.starts_with("GET /input/mine/k "), "{}", second.head);
    let denied = guest.call("GetObject", json!({"Bucket": "input", "Key": "secret"}), b"");
    assert_eq!(denied.code(), "AccessDenied");
    assert!(asked.try_recv().is_err());
}

/// A plan that waits: it signals the arrival of its request, and continues on a signal.
fn waiting(plan: Plan) -> (Plan, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (came, has_come) = mpsc::channel();
    let (go, waits) = mpsc::channel();
    (Plan { waits: Some((came, waits)), ..plan }, has_come, go)
}

#[test]
fn what_was_fetched_while_it_was_written_is_old() {
    let (put, has_come, go) = waiting(Plan::take());
    let (address, seen) = sink(vec![put, Plan::object("old"), Plan::object("new")]);
    let mut bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    let (mut writer, mut reader) = (bed.guest(), bed.guest());
    let name = json!({"Bucket": "input", "Key": "k"});
    let put = writer.begin("PutObject", name.clone(), b"new");
    has_come.recv().unwrap();
    bed.gateway.hint("i", 1, vec![named("input", "k")], b"");
    bed.gateway.invoke(&reader, "i", WriteMode::Sync, b"{}");
    reader.invoked();
    assert!(seen.recv().unwrap().head.starts_with("GET /input/k "));
    go.send(()).unwrap();
    writer.end(put).done();
    let got = reader.call("GetObject", name, b"");
    assert_eq!((got.flags & PREFETCHED, got.body.as_slice()), (0, &b"new"[..]));
}

#[test]
fn what_is_pending_is_fetched_when_the_store_has_it() {
    // The response of the store to a write of this test's body.
    let took = "HTTP/1.1 200 X\r\netag: \"900150983cd24fb0d6963f7d28e17f72\"\r\n\
        content-length: 0\r\n\r\n";
    let took = || Plan { says: Some(took.to_owned()), ..Plan::take() };
    let (put, has_come, go) = waiting(took());
    let other = || Plan::object("other");
    let plans = vec![took(), put, other(), other(), other(), Plan::object("bc")];
    let (address, seen) = sink(plans);
    let mut bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    let (mut writer, mut reader) = (bed.guest(), bed.guest());
    let name = |key: &str| json!({"Bucket": "input", "Key": key});
    writer.call("PutObject", name("first"), b"abc").done();
    bed.gateway.invoke(&writer, "w", WriteMode::DurableReply, b"{}");
    writer.invoked();
    assert_eq!(writer.call("PutObject", name("k"), b"abc").flags, PENDING);
    has_come.recv().unwrap();
    let range = Some("bytes=1-2".to_owned());
    bed.gateway.hint("i", 1, vec![ObjectName { range, ..named("input", "k") }], b"");
    bed.gateway.invoke(&reader, "i", WriteMode::Sync, b"{}");
    reader.invoked();
    for _ in 0..3 {
        assert_eq!(reader.call("GetObject", name("other"), b"").body, b"other");
    }
    go.send(()).unwrap();
    let part = json!({"Bucket": "input", "Key": "k", "Range": "bytes=1-2"});
    let got = reader.call("GetObject", part, b"");
    assert_eq!((got.flags, got.body.as_slice()), (PREFETCHED, &b"bc"[..]));
    let asked: Vec<_> = seen.try_iter().map(|seen| seen.head).collect();
    let at = |start: &str| asked.iter().position(|head| head.starts_with(start)).unwrap();
    assert!(at("GET /input/k ") > at("PUT /input/k "), "{asked:?}");
}
