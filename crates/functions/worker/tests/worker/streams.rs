//! Large bodies, which are streamed to the store.

use std::sync::mpsc;

use serde_json::{Value, json};
use unlade_guest_protocol::control::WriteMode;
use unlade_guest_protocol::descriptor::{AGAIN, PART, PENDING};
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_guest_protocol::{Completion, Extent, Operation, Status, Submission};

use crate::bed::guest::Guest;
use crate::bed::script::{response, script_tls};
use crate::bed::sink::{Plan, Seen, answer, sink};
use crate::bed::{Bed, body_of};

const MIB: usize = 1 << 20;

fn name() -> Value {
    json!({"Bucket": "box", "Key": "k"})
}

fn with(base: Value, more: Value) -> Value {
    let mut all = base.as_object().unwrap().clone();
    all.extend(more.as_object().unwrap().clone());
    all.into()
}

fn bed(plans: Vec<Plan>) -> (Bed, mpsc::Receiver<Seen>) {
    let (address, seen) = sink(plans);
    let bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    (bed, seen)
}

/// An upload, descriptor by descriptor.
struct Sending<'a> {
    guest: &'a mut Guest,
    call: u64,
}

/// The completion of a call.
struct End {
    status: Status,
    flags: u16,
    meta: Value,
}

impl End {
    fn code(&self) -> &str {
        self.meta["error"]["Code"].as_str().unwrap_or_default()
    }
}

impl<'a> Sending<'a> {
    /// Submits a CALL with its first bytes.
    fn begin(guest: &'a mut Guest, call: u64, text: &Value, piece: &[u8], more: bool) -> Self {
        let text = text.to_string();
        guest.arena.copy_in(guest.header.guest_meta_offset as usize, text.as_bytes()).unwrap();
        let sending = Sending { guest, call };
        sending.put(0, piece);
        let plain = sending.guest.submission(call, Operation::Call);
        let body = Extent { first_slot: 0, bytes: piece.len() as u32 };
        let meta_bytes = text.len() as u32;
        sending.guest.submit(&Submission { more, meta_bytes, body, ..plain });
        sending
    }

    fn put(&self, slot: u32, piece: &[u8]) {
        let at = self.guest.header.guest_slots_offset + slot * SLOT_BYTES;
        self.guest.arena.copy_in(at as usize, piece).unwrap();
    }

    /// Submits a BODY in a slot.
    fn body(&mut self, slot: u32, piece: &[u8], more: bool) {
        self.put(slot, piece);
        let plain = self.guest.submission(self.call, Operation::Body);
        let body = Extent { first_slot: slot, bytes: piece.len() as u32 };
        self.guest.submit(&Submission { more, body, ..plain });
    }

    /// The next PART; or the completion of the call, if that arrives instead.
    fn part(&mut self) -> Result<(), End> {
        let completion = self.guest.completion();
        assert_eq!(completion.call, self.call);
        match completion.flags & PART != 0 {
            true => Ok(()),
            false => Err(self.ended(&completion)),
        }
    }

    fn ended(&mut self, completion: &Completion) -> End {
        let meta = self.guest.meta(completion);
        if completion.token != 0 {
            self.guest.release(completion.token);
        }
        End { status: completion.status, flags: completion.flags, meta }
    }

    /// Waits for the completion.
    fn end(&mut self) -> End {
        loop {
            if let Err(end) = self.part() {
                return end;
            }
        }
    }
}

fn text(parameters: Value, body_bytes: usize) -> Value {
    json!({"service": "s3", "operation": "PutObject", "parameters": parameters,
        "body_bytes": body_bytes})
}

/// Sends a body in parts of a quarter of the guest's slots, until the call is completed.
fn send(guest: &mut Guest, call: u64, text: &Value, body: &[u8]) -> End {
    let piece = guest.header.guest_slots * SLOT_BYTES / 4;
    let pieces: Vec<&[u8]> = body.chunks(piece as usize).collect();
    let step = guest.header.guest_slots / 4;
    let mut sending = Sending::begin(guest, call, text, pieces[0], pieces.len() > 1);
    for (at, piece) in pieces.iter().enumerate().skip(1) {
        if at >= 4
            && let Err(end) = sending.part()
        {
            return end;
        }
        sending.body(at as u32 % 4 * step, piece, at + 1 < pieces.len());
    }
    sending.end()
}

#[test]
fn bodies_of_every_size_come_back_as_they_went() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    // The largest buffered body, the smallest streamed one, and sizes around chunks and slots.
    let chunk = unlade_fn_worker::store::chunked::CHUNK_BYTES;
    for bytes in [MIB - 1, MIB, MIB + 1, 5 * chunk - 1, 5 * chunk, 3 * MIB + 65_537, 9 * MIB] {
        let body = body_of(bytes);
        let put = guest.call("PutObject", name(), &body).done();
        assert!(put["ChecksumCRC32"].is_string(), "{put}");
        let got = guest.call("GetObject", name(), b"");
        assert!(got.body == body, "{bytes} bytes");
        let got = got.done();
        assert_eq!((&got["ETag"], &got["ContentLength"]), (&put["ETag"], &json!(bytes)));
        assert!(got.get("ContentEncoding").is_none(), "{got}");
    }
    let body = body_of(2 * MIB);
    let zipped = json!({"ContentEncoding": "gzip", "ChecksumAlgorithm": "SHA256"});
    let put = guest.call("PutObject", with(name(), zipped), &body).done();
    let due = unlade_fn_worker::store::Body::from(body.clone()).checksum("SHA256").unwrap();
    assert_eq!(put["ChecksumSHA256"], due);
    assert_eq!(guest.call("GetObject", name(), b"").done()["ContentEncoding"], "gzip");
    // A checksum that was computed in advance: there is no trailer.
    let sum = unlade_fn_worker::store::Body::from(body.clone()).checksum("CRC32C").unwrap();
    let ahead = with(name(), json!({"ChecksumCRC32C": sum}));
    assert_eq!(guest.call("PutObject", ahead, &body).done()["ChecksumCRC32C"], sum);
    let wrong = with(name(), json!({"ChecksumCRC32C": "AAAAAA=="}));
    let refused = guest.call("PutObject", wrong, &body);
    assert_eq!(refused.status, Status::ServiceError, "{}", refused.meta);
    let begun = guest.call("CreateMultipartUpload", name(), b"").done();
    let part = json!({"UploadId": begun["UploadId"], "PartNumber": 1});
    let part = guest.call("UploadPart", with(name(), part), &body_of(6 * MIB)).done();
    let parts = json!({"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]});
    let whole = json!({"UploadId": begun["UploadId"], "MultipartUpload": parts});
    guest.call("CompleteMultipartUpload", with(name(), whole), b"").done();
    assert!(guest.call("GetObject", name(), b"").body == body_of(6 * MIB));
}

#[test]
fn what_is_sent_is_signed_and_as_long_as_announced() {
    let (mut bed, seen) = bed(vec![Plan::take(), Plan::take()]);
    let mut guest = bed.guest();
    let body = body_of(2 * MIB + 7);
    guest.call("PutObject", name(), &body).done();
    let put = seen.recv().unwrap();
    assert!(put.decoded() == body);
    assert_eq!(put.field("content-encoding"), Some("aws-chunked"));
    assert_eq!(put.field("x-amz-decoded-content-length"), Some("2097159"));
    assert_eq!(put.field("x-amz-trailer"), Some("x-amz-checksum-crc32"));
    let kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
    assert_eq!(put.field("x-amz-content-sha256"), Some(kind));
    let md5 = with(name(), json!({"ContentMD5": "x", "ChecksumCRC32": "y"}));
    guest.call("PutObject", md5, &body).done();
    let put = seen.recv().unwrap();
    assert!(put.decoded() == body);
    assert_eq!(put.field("x-amz-trailer"), None);
    assert_eq!(put.field("content-md5"), Some("x"));
    assert_eq!(put.field("x-amz-content-sha256"), Some("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"));
}

#[test]
fn tls_protects_chunks_that_are_not_signed() {
    let (address, asked, pem) = script_tls(vec![response(200, "", "")]);
    let dir = tempfile::tempdir().unwrap();
    let trusted = dir.path().join("ca.pem");
    std::fs::write(&trusted, pem).unwrap();
    let mut bed = Bed::with(|config| {
        config.store.endpoint = Some(format!("https://localhost:{}", address.port()));
        config.store.ca = Some(trusted.clone());
    });
    let mut guest = bed.guest();
    let body = body_of(2 * MIB);
    // This store sends no interim response: it receives the body after a timeout.
    guest.call("PutObject", name(), &body).done();
    let put = asked.recv().unwrap();
    assert!(put.head.contains("x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER"));
    let announced = put.body.len();
    let put = Seen { head: put.head, body: put.body, announced };
    assert!(put.decoded() == body);
}

#[test]
fn large_bodies_are_not_acknowledged_early_and_small_ones_are() {
    let mut bed = Bed::with(|config| {
        config.tenant.stream_bytes_min = unlade_config::ByteSize(3 * MIB as u64);
    });
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    let put = with(name(), json!({"ContentType": "text/plain"}));
    // The class of the bucket is learnt from buffered bodies.
    for (bytes, due) in [(2 * MIB, 0), (2 * MIB, PENDING), (3 * MIB, 0), (3 * MIB - 1, PENDING)] {
        let came = guest.call("PutObject", put.clone(), &body_of(bytes));
        assert_eq!(came.flags & PENDING, due, "{bytes} bytes");
        came.done();
        assert!(guest.call("GetObject", name(), b"").body == body_of(bytes));
    }
    guest.reply("i", b"");
    assert!(bed.gateway.settle("i").is_empty());
}

#[test]
fn what_the_store_refuses_at_once_costs_nothing_of_the_body() {
    let slow = || Plan::refuse(answer(503, "SlowDown"));
    let (mut bed, seen) = bed(vec![slow(), slow(), Plan::take(), slow(), slow(), slow()]);
    let mut guest = bed.guest();
    let body = body_of(2 * MIB);
    let put = send(&mut guest, 1, &text(name(), body.len()), &body);
    assert_eq!((put.status, put.flags, &put.meta["retries"]), (Status::Done, 0, &json!(2)));
    for due in [0, 0, body.len()] {
        let seen = seen.recv().unwrap();
        assert_eq!(seen.field("expect"), Some("100-continue"));
        assert!(seen.body.len() >= due && (due > 0 || seen.body.is_empty()));
    }
    let put = send(&mut guest, 2, &text(name(), body.len()), &body);
    assert_eq!((put.status, put.flags, put.code()), (Status::ServiceError, 0, "SlowDown"));
    assert_eq!(put.meta["max_attempts_reached"], true);
}

/// A repeated call is the next attempt of the same one.
fn again(guest: &mut Guest, call: u64, body: &[u8]) -> End {
    let mut text = text(name(), body.len());
    text["again"] = (call - 1).into();
    send(guest, call, &text, body)
}

#[test]
fn a_body_that_was_lost_in_the_middle_is_sent_again_by_the_guest() {
    let (mut bed, seen) = bed(vec![
        Plan::stop(700_000, Some(answer(503, "SlowDown"))),
        Plan::stop(300_000, None),
        Plan::take(),
    ]);
    let mut guest = bed.guest();
    let body = body_of(4 * MIB);
    let put = send(&mut guest, 1, &text(name(), body.len()), &body);
    assert_eq!((put.status, put.flags, put.code()), (Status::ServiceError, AGAIN, "SlowDown"));
    assert!(put.meta["again_after_ms"].is_u64(), "{}", put.meta);
    let put = again(&mut guest, 2, &body);
    assert_eq!((put.status, put.flags, put.code()), (Status::HostError, AGAIN, "Broken"));
    let put = again(&mut guest, 3, &body);
    assert_eq!((put.status, put.flags), (Status::Done, 0), "{}", put.meta);
    assert_eq!(
        (&put.meta["retries"], &put.meta["max_attempts_reached"]),
        (&json!(2), &json!(true))
    );
    let seen: Vec<Seen> = (0..3).map(|_| seen.recv().unwrap()).collect();
    assert!(seen[2].decoded() == body);
}

#[test]
fn after_three_attempts_a_body_is_not_asked_for_again() {
    let stop = || Plan::stop(500_000, Some(answer(500, "InternalError")));
    let (mut bed, _seen) = bed(vec![stop(), stop(), stop(), Plan::take()]);
    let mut guest = bed.guest();
    let body = body_of(2 * MIB);
    let first = send(&mut guest, 1, &text(name(), body.len()), &body);
    assert_eq!(first.flags, AGAIN);
    assert_eq!(again(&mut guest, 2, &body).flags, AGAIN);
    let last = again(&mut guest, 3, &body);
    assert_eq!((last.status, last.flags, last.code()), (Status::ServiceError, 0, "InternalError"));
    assert_eq!(
        (&last.meta["retries"], &last.meta["max_attempts_reached"]),
        (&json!(2), &json!(true))
    );
    // The call is forgotten: a repetition starts from zero attempts.
    let put = again(&mut guest, 4, &body);
    assert_eq!((put.status, &put.meta["retries"]), (Status::Done, &json!(0)));
}

#[test]
fn an_error_that_stays_ends_the_call_in_the_middle_of_its_body() {
    let (mut bed, _seen) = bed(vec![Plan::stop(100_000, Some(answer(403, "AccessDenied")))]);
    let mut guest = bed.guest();
    let body = body_of(8 * MIB);
    let put = send(&mut guest, 1, &text(name(), body.len()), &body);
    assert_eq!((put.status, put.flags, put.code()), (Status::ServiceError, 0, "AccessDenied"));
    // A call that the role does not allow is not requested; the rest of the body is ignored.
    bed.gateway.role(2, json!({"statements": []}));
    let mut guest = bed.gateway.attach(2);
    let put = send(&mut guest, 1, &text(name(), body.len()), &body);
    assert_eq!((put.status, put.code()), (Status::ServiceError, "AccessDenied"));
    let mut late = Sending { guest: &mut guest, call: 1 };
    late.body(0, &body[..1000], false);
    let put = send(&mut guest, 2, &text(name(), body.len()), &body);
    assert_eq!(put.code(), "AccessDenied");
}

#[test]
fn success_is_not_believed_before_the_body_has_gone() {
    let (mut bed, _seen) = bed(vec![Plan::stop(100_000, Some(answer(200, "")))]);
    let mut guest = bed.guest();
    let body = body_of(8 * MIB);
    let put = send(&mut guest, 1, &text(name(), body.len()), &body);
    assert_eq!((put.status, put.flags, put.code()), (Status::HostError, AGAIN, "Broken"));
}

#[test]
fn a_store_without_chunks_gets_the_body_as_a_whole() {
    let lacks = Plan::refuse(answer(501, "NotImplemented"));
    let (mut bed, seen) = bed(vec![lacks, Plan::take()]);
    let mut guest = bed.guest();
    let body = body_of(2 * MIB);
    let put = send(&mut guest, 1, &text(name(), body.len()), &body);
    assert_eq!((put.flags, &put.meta["again_after_ms"]), (AGAIN, &json!(0)));
    let put = again(&mut guest, 2, &body);
    assert_eq!((put.status, &put.meta["retries"]), (Status::Done, &json!(0)), "{}", put.meta);
    drop(seen.recv().unwrap());
    let whole = seen.recv().unwrap();
    assert!(whole.body == body);
    assert_eq!(whole.field("content-encoding"), None);
    // The operator can disable streaming in advance.
    let (address, seen) = sink(vec![Plan::take()]);
    let mut bed = Bed::with(|config| {
        config.store.endpoint = Some(format!("http://{address}"));
        config.store.stream_bodies = false;
    });
    let mut guest = bed.guest();
    assert_eq!(send(&mut guest, 1, &text(name(), body.len()), &body).status, Status::Done);
    assert!(seen.recv().unwrap().body == body);
}

#[test]
fn a_guest_that_stops_leaves_no_object() {
    let mut bed = Bed::new();
    let mut other = bed.guest();
    other.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let body = body_of(4 * MIB);
    let half = &body[..MIB / 4];
    // The guest cancels.
    let mut guest = bed.guest();
    let mut sending = Sending::begin(&mut guest, 1, &text(name(), body.len()), half, true);
    assert!(sending.part().is_ok());
    let cancel = sending.guest.submission(1, Operation::Cancel);
    sending.guest.submit(&cancel);
    assert_eq!(sending.end().code(), "Ending");
    assert_eq!(other.call("GetObject", name(), b"").code(), "NoSuchKey");
    // The guest greets again, or disconnects.
    let mut sending = Sending::begin(&mut guest, 2, &text(name(), body.len()), half, true);
    assert!(sending.part().is_ok());
    guest.greet_again();
    let mut sending = Sending::begin(&mut guest, 3, &text(name(), body.len()), half, true);
    assert!(sending.part().is_ok());
    drop(guest.socket);
    let gone = guest.instance;
    use unlade_guest_protocol::control::ControlHead;
    bed.gateway
        .expect(|said| matches!(said, ControlHead::Gone { instance, .. } if *instance == gone));
    assert_eq!(other.call("GetObject", name(), b"").code(), "NoSuchKey");
    let list = other.call("ListObjectsV2", json!({"Bucket": "box"}), b"").done();
    assert_eq!(list["KeyCount"], 0);
}

#[test]
fn a_guest_that_lies_about_the_length_leaves_no_object() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let body = body_of(MIB / 4);
    let announced = text(name(), 5 * MIB / 4);
    // Shorter; longer; and more bytes after the announced length.
    for (call, pieces) in [(100, 3), (101, 6)] {
        let mut sending = Sending::begin(&mut guest, call, &announced, &body, true);
        let mut end = None;
        for at in 1..pieces {
            end = end.or(sending.part().err());
            sending.body(0, &body, at + 1 < pieces);
        }
        let end = end.unwrap_or_else(|| sending.end());
        assert_eq!((end.status, end.flags, end.code()), (Status::HostError, 0, "Invalid"));
        assert_eq!(guest.call("GetObject", name(), b"").code(), "NoSuchKey");
    }
    // All bytes, but not the end marker: the object waits for that.
    let mut sending = Sending::begin(&mut guest, 102, &announced, &body, true);
    for _ in 1..5 {
        assert!(sending.part().is_ok());
        sending.body(0, &body, true);
    }
    assert!(sending.part().is_ok());
    sending.body(0, &body[..1], false);
    assert_eq!(sending.end().code(), "Invalid");
    assert_eq!(guest.call("GetObject", name(), b"").code(), "NoSuchKey");
    // The end marker may arrive separately.
    let mut sending = Sending::begin(&mut guest, 103, &announced, &body, true);
    for _ in 1..5 {
        assert!(sending.part().is_ok());
        sending.body(0, &body, true);
    }
    assert!(sending.part().is_ok());
    sending.body(0, b"", false);
    assert_eq!(sending.end().status, Status::Done);
    assert_eq!(guest.call("GetObject", name(), b"").body.len(), 5 * MIB / 4);
}

#[test]
fn pieces_without_end_are_refused() {
    let (go, waits) = mpsc::channel();
    let (came, _came) = mpsc::channel();
    let plan = Plan { waits: Some((came, waits)), ..Plan::take() };
    let (mut bed, _seen) = bed(vec![Plan { continues: false, ..plan }]);
    let mut guest = bed.guest();
    let piece = body_of(1);
    let mut sending = Sending::begin(&mut guest, 1, &text(name(), 64 * MIB), &piece, true);
    // The store has not asked for the body: nothing is taken.
    for _ in 0..200 {
        sending.body(0, &piece, true);
    }
    assert_eq!(sending.end().code(), "Invalid");
    drop(go);
}

#[test]
fn a_slow_store_holds_up_nobody_else() {
    let (go, waits) = mpsc::channel();
    let (came, has_come) = mpsc::channel();
    let slow = Plan { waits: Some((came, waits)), ..Plan::take() };
    let (mut bed, seen) = bed(vec![slow, Plan::take()]);
    let mut guest = bed.guest();
    let mut other = bed.guest();
    let body = body_of(32 * MIB);
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| send(&mut guest, 1, &text(name(), body.len()), &body));
        has_come.recv().unwrap();
        other.call("PutObject", name(), b"small").done();
        assert_eq!(seen.recv().unwrap().body, b"small");
        go.send(()).unwrap();
        assert_eq!(upload.join().unwrap().status, Status::Done);
    });
    assert!(seen.recv().unwrap().decoded() == body);
}

#[test]
fn a_stream_takes_little_of_what_the_worker_may_hold() {
    let mut bed = Bed::with(|config| {
        config.tenant.held_bytes_max = unlade_config::ByteSize(MIB as u64);
        config.tenant.staged_bytes_max = unlade_config::ByteSize(MIB as u64 / 2);
        config.tenant.body_bytes_max = unlade_config::ByteSize(8 * MIB as u64);
    });
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let body = body_of(8 * MIB);
    guest.call("PutObject", name(), &body).done();
    assert!(guest.call("GetObject", name(), b"").body == body);
    let larger = body_of(8 * MIB + 1);
    let put = send(&mut guest, 100, &text(name(), larger.len()), &larger);
    assert_eq!((put.status, put.code()), (Status::HostError, "TooLarge"));
    let whole = guest.call("PutObject", name(), &body_of(MIB / 2 + 1));
    assert_eq!(whole.code(), "TooLarge");
    // Two streams fit into the limit; a third one is refused for now.
    let half = body_of(MIB / 4);
    let mut guests: Vec<Guest> = (0..3).map(|_| bed.guest()).collect();
    for (at, guest) in guests.iter_mut().enumerate() {
        let mut sending = Sending::begin(guest, 1, &text(name(), body.len()), &half, true);
        match (at, sending.part()) {
            (0 | 1, Ok(())) => {}
            (2, Err(end)) => assert_eq!((end.status, end.meta), (Status::Refused, Value::Null)),
            (at, came) => panic!("guest {at}: {}", came.is_ok()),
        }
    }
}
