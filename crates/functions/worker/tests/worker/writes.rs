//! Writes that are acknowledged before they are durable.

use std::sync::mpsc;

use serde_json::json;
use unlade_guest_protocol::control::{ControlHead, WriteMode};
use unlade_guest_protocol::descriptor::PENDING;
use unlade_guest_protocol::{Operation, Status, Submission};

use crate::bed::guest::Guest;
use crate::bed::sink::{Plan, answer, sink};
use crate::bed::{Bed, body_of, store_at, worker};

fn object(key: &str) -> serde_json::Value {
    json!({"Bucket": "box", "Key": key, "ContentType": "text/plain"})
}

fn name(key: &str) -> serde_json::Value {
    json!({"Bucket": "box", "Key": key})
}

/// A guest for whose bucket the worker has learnt the class.
fn learnt(bed: &mut Bed) -> Guest {
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let first = guest.call("PutObject", object("first"), b"1");
    assert_eq!(first.flags & PENDING, 0);
    first.done();
    guest
}

#[test]
fn a_write_is_acknowledged_early_seen_at_once_and_durable_when_settled() {
    let mut bed = Bed::new();
    let mut guest = learnt(&mut bed);
    let sync = guest.call("PutObject", object("sync"), b"same").done();
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    let body = body_of(100_000);
    for key in ["a", "a", "b"] {
        let put = guest.call("PutObject", object(key), &body);
        assert_eq!(put.flags, PENDING);
        // Functions log these ids.
        assert_eq!(put.meta["request_id"].as_str().map(str::len), Some(16));
        assert!(put.meta["headers"]["date"].is_string());
        put.done();
    }
    // The predicted response is equal to the store's.
    let early = guest.call("PutObject", object("early"), b"same");
    assert_eq!(early.flags, PENDING);
    assert_eq!(early.done(), sync);
    assert!(guest.call("GetObject", name("a"), b"").body == body);
    let head = guest.call("HeadObject", name("b"), b"").done();
    assert_eq!(
        (&head["ContentLength"], &head["ContentType"]),
        (&json!(100_000), &json!("text/plain"))
    );
    // A list waits until everything that it may contain is durable.
    let list = guest.call("ListObjectsV2", json!({"Bucket": "box"}), b"");
    assert_eq!(list.done()["KeyCount"], 5);
    guest.reply("i", b"");
    bed.gateway.replied("i");
    assert!(bed.gateway.settle("i").is_empty());
    let mut other = bed.guest();
    assert!(other.call("GetObject", name("a"), b"").body == body);
}

#[test]
fn the_last_write_of_a_key_is_the_one_that_stays() {
    let mut bed = Bed::new();
    let mut guest = learnt(&mut bed);
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    for round in 0..40 {
        let text = format!("round {round}");
        guest.call("PutObject", object("k"), text.as_bytes()).done();
        if round % 7 == 0 {
            assert_eq!(guest.call("GetObject", name("k"), b"").body, text.as_bytes());
        }
    }
    guest.call("DeleteObject", name("k"), b"").done();
    assert_eq!(guest.call("GetObject", name("k"), b"").code(), "NoSuchKey");
    guest.call("PutObject", object("k"), b"last").done();
    guest.reply("i", b"");
    assert!(bed.gateway.settle("i").is_empty());
    assert_eq!(bed.guest().call("GetObject", name("k"), b"").body, b"last");
}

#[test]
fn writes_whose_answer_matters_are_made_at_once() {
    let mut bed = Bed::new();
    let mut guest = learnt(&mut bed);
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    let conditional = json!({"Bucket": "box", "Key": "first", "IfNoneMatch": "*"});
    let refused = guest.call("PutObject", conditional, b"2");
    assert_eq!((refused.flags & PENDING, refused.code()), (0, "PreconditionFailed"));
    guest.reply("i", b"");
    bed.gateway.replied("i");
    bed.gateway.invoke(&guest, "sync", WriteMode::Sync, b"{}");
    guest.invoked();
    assert_eq!(guest.call("PutObject", object("k"), b"x").flags & PENDING, 0);
    guest.reply("sync", b"");
    // A write that exceeds the limit of pending writes is synchronous, too.
    let mut bed = Bed::with(|config| config.tenant.dirty_bytes_max = unlade_config::ByteSize(1000));
    let mut guest = learnt(&mut bed);
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    assert_eq!(guest.call("PutObject", object("k"), &body_of(1001)).flags & PENDING, 0);
    assert_eq!(guest.call("PutObject", object("k"), &body_of(999)).flags & PENDING, PENDING);
}

#[test]
fn a_write_that_is_lost_is_told_and_fails_its_invocation_only() {
    let mut bed = Bed::new();
    let mut guest = learnt(&mut bed);
    let mut other = bed.guest();
    bed.gateway.invoke(&guest, "lost", WriteMode::DurableReply, b"{}");
    guest.invoked();
    bed.gateway.invoke(&other, "kept", WriteMode::DurableReply, b"{}");
    other.invoked();
    other.call("PutObject", object("kept"), b"k").done();
    other.reply("kept", b"");
    assert!(bed.gateway.settle("kept").is_empty());
    bed.store = None;
    let put = guest.call("PutObject", object("lost"), b"x");
    assert_eq!(put.flags, PENDING);
    guest.reply("lost", b"");
    let ControlHead::Replied { pending_writes, .. } = bed.gateway.replied("lost").said else {
        panic!()
    };
    assert_eq!(pending_writes, 1);
    let failed = bed.gateway.settle("lost");
    assert_eq!(failed.len(), 1);
    let failed = &failed[0];
    assert_eq!((failed.key.as_str(), failed.code.as_str()), ("lost", "Unavailable"));
    // A failure is reported once.
    assert!(bed.gateway.give_up("lost").is_empty());
}

#[test]
fn pending_writes_outlive_their_instance() {
    let mut bed = Bed::new();
    let mut guest = learnt(&mut bed);
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    let body = body_of(500_000);
    guest.call("PutObject", object("k"), &body).done();
    bed.gateway.say(ControlHead::Detach { instance: guest.instance });
    bed.gateway.gone(&guest);
    assert!(bed.gateway.give_up("i").is_empty());
    assert!(bed.guest().call("GetObject", name("k"), b"").body == body);
}

#[test]
fn an_early_reply_is_kept_by_the_journal_when_store_and_worker_die() {
    let mut bed = Bed::with(|config| {
        let dir = config.control.parent().unwrap().to_owned();
        config.tenant.journal = Some(dir.join("journal"));
    });
    let mut guest = learnt(&mut bed);
    bed.gateway.invoke(&guest, "i", WriteMode::EarlyReply, b"{}");
    guest.invoked();
    bed.store = None;
    let body = body_of(70_000);
    let put = guest.call("PutObject", object("k"), &body);
    assert_eq!(put.flags, PENDING);
    guest.reply("i", b"");
    // No call waits for the store.
    assert!(bed.gateway.settle("i").is_empty());
    bed.worker = None;
    let objects = bed.dir.path().join("objects");
    let (store, _) = store_at(&objects, bed.store_address);
    let (again, control) = worker(bed.config.clone());
    bed.store = Some(store);
    bed.worker = Some(again);
    let mut gateway = crate::bed::gateway::Gateway::connect(&control);
    gateway.role(1, crate::bed::everything());
    let mut guest = gateway.attach(1);
    // A read waits for pending writes.
    assert!(guest.call("GetObject", name("k"), b"").body == body);
}

/// A store that gets three requests: it accepts a write, accepts another one on a signal, and
/// handles the last one by the plan.
fn store_of_three(last: Plan) -> (Bed, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let took = answer(200, "").replace("\"e\"", "\"900150983cd24fb0d6963f7d28e17f72\"");
    let took = || Plan { says: Some(took.clone()), ..Plan::take() };
    let (came, has_come) = mpsc::channel();
    let (go, waits) = mpsc::channel();
    let second = Plan { waits: Some((came, waits)), ..took() };
    let (address, _) = sink(vec![took(), second, last]);
    let bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    (bed, has_come, go)
}

/// An invocation with a write to which the store has not responded.
fn with_a_pending_write(bed: &mut Bed, has_come: &mpsc::Receiver<()>) -> Guest {
    let mut guest = bed.guest();
    guest.call("PutObject", object("first"), b"abc").done();
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    assert_eq!(guest.call("PutObject", object("k"), b"abc").flags, PENDING);
    has_come.recv().unwrap();
    guest
}

#[test]
fn a_write_that_begins_after_its_invocation_is_made_at_once() {
    let refused = Plan { says: Some(answer(403, "AccessDenied")), ..Plan::take() };
    let (mut bed, has_come, go) = store_of_three(refused);
    let mut guest = with_a_pending_write(&mut bed, &has_come);
    // The write waits for the previous one.
    let second = guest.begin("PutObject", object("k"), b"abc");
    // The worker has taken the call before the REPLY.
    assert_eq!(guest.read(999, 0).status, Status::HostError);
    guest.reply("i", b"");
    bed.gateway.replied("i");
    go.send(()).unwrap();
    let second = guest.end(second);
    assert_eq!((second.flags & PENDING, second.code()), (0, "AccessDenied"));
    assert!(bed.gateway.settle("i").is_empty());
    assert!(bed.gateway.give_up("i").is_empty());
}

#[test]
fn what_is_read_without_a_signature_is_the_stores_to_show() {
    let (mut bed, has_come, go) = store_of_three(Plan::object("shown"));
    let mut guest = with_a_pending_write(&mut bed, &has_come);
    let text = json!({"service": "s3", "operation": "GetObject", "parameters": name("k"),
        "body_bytes": 0, "unsigned": true});
    let text = text.to_string();
    guest.arena.copy_in(guest.header.guest_meta_offset as usize, text.as_bytes()).unwrap();
    let plain = guest.submission(1000, Operation::Call);
    guest.submit(&Submission { meta_bytes: text.len() as u32, ..plain });
    go.send(()).unwrap();
    let got = guest.end(1000);
    assert_eq!((got.flags, got.body.as_slice()), (0, &b"shown"[..]));
}
