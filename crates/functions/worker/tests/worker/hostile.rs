//! Guests that violate the protocol: their channel ends, and the others continue.

use std::sync::atomic::Ordering;

use serde_json::json;
use unlade_guest_protocol::control::{MESSAGE_BYTES_MAX, WriteMode};
use unlade_guest_protocol::descriptor::PART;
use unlade_guest_protocol::region::word;
use unlade_guest_protocol::{Extent, Frame, Operation, Status, Submission};

use crate::bed::Bed;
use crate::bed::guest::Guest;

/// Lets a guest violate the protocol; returns the reason in the BYE.
fn sent_away(misbehave: impl FnOnce(&mut Guest)) -> String {
    let mut bed = Bed::new();
    let mut good = bed.guest();
    good.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let mut bad = bed.guest();
    misbehave(&mut bad);
    let reason = bed.gateway.gone(&bad);
    assert_eq!(bad.frame(), Frame::Bye(reason.clone()));
    good.call("PutObject", json!({"Bucket": "box", "Key": "k"}), b"fine").done();
    reason
}

#[test]
fn a_ring_that_claims_more_than_it_has() {
    let reason = sent_away(|guest| {
        guest.arena.store(word::SUBMISSION_TAIL, 100_000, Ordering::SeqCst).unwrap();
        guest.send(&Frame::Bell);
    });
    assert!(reason.contains("submission ring"), "{reason}");
}

#[test]
fn completions_that_were_taken_before_they_were_made() {
    let reason = sent_away(|guest| {
        guest.arena.store(word::COMPLETION_HEAD, 5, Ordering::SeqCst).unwrap();
        guest.begin("ListBuckets", json!({}), b"");
    });
    assert!(reason.contains("completion ring"), "{reason}");
}

#[test]
fn meta_and_slots_outside_their_arenas() {
    let reason = sent_away(|guest| {
        let plain = guest.submission(1, Operation::Call);
        guest.submit(&Submission { meta_offset: u32::MAX - 3, meta_bytes: 64, ..plain });
    });
    assert!(reason.contains("meta arena"), "{reason}");
    let reason = sent_away(|guest| {
        let call = guest.begin("PutObject", json!({"Bucket": "box", "Key": "k"}), b"");
        guest.end(call);
        let text = json!({"service": "s3", "operation": "PutObject",
            "parameters": {"Bucket": "box", "Key": "k"}, "body_bytes": 200_000});
        let text = text.to_string();
        guest.arena.copy_in(guest.header.guest_meta_offset as usize, text.as_bytes()).unwrap();
        let plain = guest.submission(99, Operation::Call);
        let body = Extent { first_slot: guest.header.guest_slots - 1, bytes: 200_000 };
        guest.submit(&Submission { meta_bytes: text.len() as u32, body, ..plain });
    });
    assert!(reason.contains("slot arena"), "{reason}");
}

#[test]
fn operations_and_epochs_that_are_none() {
    let reason = sent_away(|guest| {
        let mut bytes = guest.submission(1, Operation::Call).encode();
        bytes[8] = 77;
        guest.submit_bytes(&bytes);
    });
    assert!(reason.contains("operation: undefined value 77"), "{reason}");
    let reason = sent_away(|guest| {
        let plain = guest.submission(1, Operation::Call);
        guest.submit(&Submission { epoch: plain.epoch ^ 1, ..plain });
    });
    assert!(reason.contains("of epoch"), "{reason}");
}

#[test]
fn frames_that_are_none_or_out_of_turn() {
    let reason = sent_away(|guest| guest.reply("never asked", b""));
    assert!(reason.contains("not running"), "{reason}");
    let reason = sent_away(|guest| {
        guest.send(&Frame::Welcome { nonce: 0, epoch: 0, region_bytes: 0 });
    });
    assert!(reason.contains("does not say this"), "{reason}");
    let reason = sent_away(|guest| {
        use std::io::Write;
        guest.socket.write_all(&[0xff; 8]).unwrap();
    });
    assert!(reason.contains("frame"), "{reason}");
}

#[test]
fn text_that_is_none_ends_the_call_only() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    let plain = guest.submission(5, Operation::Call);
    guest.arena.copy_in(guest.header.guest_meta_offset as usize, b"{\"service\": 5}").unwrap();
    guest.submit(&Submission { meta_bytes: 14, ..plain });
    let completion = guest.completion();
    assert_eq!((completion.call, completion.status), (5, Status::HostError));
    assert_eq!(guest.meta(&completion)["error"]["Code"], "Invalid");
    // A body that differs from the announcement fails too.
    let text = json!({"service": "s3", "operation": "PutObject",
        "parameters": {"Bucket": "box", "Key": "k"}, "body_bytes": 10});
    let text = text.to_string();
    guest.arena.copy_in(guest.header.guest_meta_offset as usize, text.as_bytes()).unwrap();
    for bytes in [9, 11] {
        let body = Extent { first_slot: 0, bytes };
        guest.submit(&Submission { meta_bytes: text.len() as u32, body, ..plain });
        let completion = guest.completion();
        assert_eq!(guest.meta(&completion)["error"]["Code"], "Invalid");
    }
    guest.call("ListBuckets", json!({}), b"").done();
}

#[test]
fn more_than_the_worker_holds_is_refused_and_can_be_tried_again() {
    let mut bed = Bed::with(|config| {
        config.tenant.held_bytes_max = unlade_config::ByteSize(150_000);
        config.tenant.body_bytes_max = unlade_config::ByteSize(400_000);
    });
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let put = json!({"Bucket": "box", "Key": "k"});
    let refused = guest.call("PutObject", put.clone(), &[1; 200_000]);
    assert_eq!((refused.status, refused.meta), (Status::Refused, serde_json::Value::Null));
    let large = guest.call("PutObject", put.clone(), &[1; 400_001]);
    assert_eq!(large.code(), "TooLarge");
    guest.call("PutObject", put, &[1; 150_000]).done();
}

#[test]
fn a_cancelled_call_is_completed_once() {
    let (address, asked) = crate::bed::script::script(vec![
        crate::bed::script::Answer::Say(String::new(), false),
        crate::bed::script::Answer::Hang,
    ]);
    let mut bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    let mut guest = bed.guest();
    let call = guest.begin("GetObject", json!({"Bucket": "box", "Key": "k"}), b"");
    asked.recv().unwrap();
    let cancel = guest.submission(call, Operation::Cancel);
    guest.submit(&cancel);
    guest.submit(&cancel);
    let came = guest.end(call);
    assert_eq!((came.status, came.code()), (Status::HostError, "Ending"));
    let text = guest.call("NoOperation", json!({}), b"");
    assert_eq!(text.code(), "Unsupported");
}

#[test]
fn text_that_is_none_is_answered_without_text_where_there_is_no_room() {
    let mut bed = Bed::with(|config| {
        config.instance.calls_max = 0;
        config.instance.meta_bytes = unlade_config::ByteSize(16 * 1024);
    });
    let mut guest = bed.guest();
    let wrong = b"{\"service\": 5}";
    guest.arena.copy_in(guest.header.guest_meta_offset as usize, wrong).unwrap();
    let plain = guest.submission(5, Operation::Call);
    let call = Submission { meta_bytes: wrong.len() as u32, ..plain };
    let mut tokens = Vec::new();
    // The guest releases nothing.
    loop {
        guest.submit(&call);
        let completion = guest.completion();
        assert_eq!(completion.status, Status::HostError);
        if completion.token == 0 {
            break;
        }
        tokens.push(completion.token);
    }
    // Room that is freed later is not awaited.
    for _ in 0..10 {
        guest.submit(&call);
    }
    tokens.iter().for_each(|token| guest.release(*token));
    for _ in 0..10 {
        assert_eq!(guest.completion().token, 0);
    }
    guest.submit(&call);
    assert_ne!(guest.completion().token, 0);
}

#[test]
fn calls_whose_body_has_not_come_are_calls() {
    let mut bed = Bed::with(|config| config.instance.calls_max = 2);
    let mut guest = bed.guest();
    let text = json!({"service": "s3", "operation": "PutObject",
        "parameters": {"Bucket": "box", "Key": "k"}, "body_bytes": 10});
    let text = text.to_string();
    guest.arena.copy_in(guest.header.guest_meta_offset as usize, text.as_bytes()).unwrap();
    let mut came = Vec::new();
    for number in 1..=3 {
        let plain = guest.submission(number, Operation::Call);
        let body = Extent { first_slot: 0, bytes: 1 };
        let meta_bytes = text.len() as u32;
        guest.submit(&Submission { more: true, meta_bytes, body, ..plain });
        let completion = guest.completion();
        came.push((completion.status, completion.flags));
    }
    assert_eq!(came, [(Status::Done, PART), (Status::Done, PART), (Status::Refused, 0)]);
    // A cancelled call frees its room.
    let cancel = guest.submission(1, Operation::Cancel);
    guest.submit(&cancel);
    let ended = guest.completion();
    assert_eq!(guest.meta(&ended)["error"]["Code"], "Ending");
    guest.call("ListBuckets", json!({}), b"").done();
}

#[test]
fn a_result_that_no_message_has_ends_its_instance_only() {
    let mut bed = Bed::with(|config| config.instance.guest_slots = 129);
    let (mut good, mut bad) = (bed.guest(), bed.guest());
    bed.gateway.invoke(&bad, "long", WriteMode::Sync, b"{}");
    bad.invoked();
    bad.reply("long", &vec![b'x'; MESSAGE_BYTES_MAX]);
    let reason = bed.gateway.gone(&bad);
    assert!(reason.contains("longer than a message"), "{reason}");
    bed.gateway.invoke(&good, "short", WriteMode::Sync, b"{}");
    good.invoked();
    good.reply("short", b"fine");
    assert_eq!(bed.gateway.replied("short").bytes, b"fine");
}

/// Descriptors with random changes: the worker continues to serve others.
#[test]
fn mutated_descriptors_harm_nobody_else() {
    let mut bed = Bed::new();
    let mut good = bed.guest();
    good.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let mut state = 7_u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for round in 0..60 {
        let mut bad = bed.guest();
        for _ in 0..4 {
            let mut bytes = bad.submission(next() as u64 % 3, Operation::Call).encode();
            bytes[8] = (1 + next() % 5) as u8;
            let at = [10, 16, 17, 20, 21, 24, 28, 29, 32, 40][next() % 10];
            bytes[at] = next() as u8;
            bad.submit_bytes(&bytes);
        }
        drop(bad);
        if round % 10 == 0 {
            let put = json!({"Bucket": "box", "Key": "k"});
            good.call("PutObject", put, b"fine").done();
        }
    }
}
