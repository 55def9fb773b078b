//! Messages from a function instance, its gateway and the store to the I/O worker, and the header fields
//! of a caller for an instance. The first byte selects the sender.

use unlade_fn_gateway::call_context;
use unlade_fn_model::destination::Target;
use unlade_fn_model::source::{Outcome, message};
use unlade_guest_protocol::control::{ControlHead, Message, PerformEnd};
use unlade_guest_protocol::frame::Deframer;
use unlade_guest_protocol::{Completion, Extent, Frame, Header, Layout, Operation, Submission};
use unlade_guest_protocol::{RequestHead, RequestMethod};
use unlade_s3::call::Call;
use unlade_s3::operation::find;
use unlade_s3::policy::facts::Environment;
use unlade_s3::response::{Answer, Head, understand};
use unlade_s3::{Policy, Request};

/// See the [module](self).
pub fn guest(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 9 {
        0 => frames(data),
        1 => descriptors(data),
        2 => header(data),
        3 => control(data),
        4 => call(data),
        5 => answer(data),
        6 => request(data),
        7 => queue(data),
        _ => context(data),
    }
}

/// Messages of a queue become an event of their records; failures that a function reports are of the
/// batch.
fn queue(data: &[u8]) {
    let Ok(queue) = Target::parse("arn:aws:sqs:us-east-1:123456789012:q") else { return };
    let batch = message::received(data, &queue).unwrap_or_default();
    let event = message::event(&batch);
    assert!(event.starts_with(b"{\"Records\":[") && event.ends_with(b"]}"));
    let records: usize = batch.iter().map(|message| message.record.len()).sum();
    assert_eq!(event.len(), 14 + records + batch.len().saturating_sub(1));
    if let Outcome::Handled { failed } = message::reported(data, &batch) {
        assert!(failed.iter().all(|id| batch.iter().any(|message| message.id == *id)));
    }
}

/// A client context that is passed on is a header field, and an object of JSON; so is each trace a field.
fn context(data: &[u8]) {
    let is_field = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if let Ok(told) = call_context::client_context(data) {
        assert!(is_field(&told), "{told:?}");
        assert!(told.trim().starts_with('{') && told.trim().ends_with('}'), "{told:?}");
    }
    if let Ok(given) = std::str::from_utf8(data) {
        let trace = call_context::trace(Some(given), "0123456789abcdef0123456789abcdef");
        assert!(is_field(&trace) && trace.contains("Root=1-"), "{trace:?}");
    }
}

/// Frames do not depend on how the bytes arrive, and encode to the same meaning.
fn frames(data: &[u8]) {
    let read = |piece: usize| {
        let (mut deframer, mut seen) = (Deframer::default(), Vec::new());
        for part in data.chunks(piece.max(1)) {
            deframer.push(part);
            loop {
                match deframer.next_frame() {
                    Ok(Some(frame)) => seen.push(frame),
                    Ok(None) => break,
                    Err(_) => return seen,
                }
            }
        }
        seen
    };
    let whole = read(data.len());
    assert_eq!(whole, read(1));
    for frame in whole {
        let mut again = Vec::new();
        // A repaired text may be longer than a frame.
        if frame.encode(&mut again).is_ok() {
            assert_eq!(Frame::decode(&again).unwrap().unwrap().0, frame);
        }
    }
}

fn descriptors(data: &[u8]) {
    let Some((bytes, _)) = data.split_first_chunk::<64>() else { return };
    if let Ok(submission) = Submission::decode(bytes) {
        assert_eq!(&submission.encode(), bytes);
    }
    if let Ok(completion) = Completion::decode(bytes) {
        assert_eq!(&completion.encode(), bytes);
    }
}

fn header(data: &[u8]) {
    if let Ok(header) = Header::decode(data) {
        assert!(data.starts_with(&header.encode()));
        let slots = u64::from(header.guest_slots) * u64::from(header.slot_bytes);
        assert!(u64::from(header.guest_slots_offset) + slots <= header.region_bytes);
    }
}

fn control(data: &[u8]) {
    if let Ok(Some((message, taken))) = Message::decode(data) {
        assert!(taken <= data.len());
        if let ControlHead::Role { policy, .. } = &message.said {
            let _ = Policy::from_value(policy);
        }
        if let ControlHead::Perform { request, .. } = &message.said
            && request.check().is_ok()
        {
            let line_end = |(name, value): &(String, String)| {
                name.contains(['\r', '\n']) || value.contains(['\r', '\n'])
            };
            assert!(!request.headers.iter().any(line_end) && request.path.starts_with('/'));
        }
        for object in unlade_s3::hint::of_event(&message.bytes) {
            assert!(object.key.len() <= message.bytes.len());
        }
        let mut again = Vec::new();
        message.encode(&mut again).unwrap();
        assert_eq!(Message::decode(&again), Ok(Some((message, again.len()))));
    }
}

/// A generated request smuggles nothing: neither a line into the head, nor another bucket.
fn call(data: &[u8]) {
    let Ok((call, inline)) = Call::decode(data) else { return };
    assert!(inline.len() <= unlade_s3::call::INLINE_BYTES_MAX);
    let Some(operation) = find(&call.operation) else { return };
    let environment = Environment {
        now: std::time::UNIX_EPOCH,
        region: String::new(),
        has_tls: false,
        is_deferred: false,
    };
    let _ = Policy::everything().decide(operation, &call.parameters, &environment);
    let Ok(request) = Request::new(operation, &call.parameters) else { return };
    let is_line_end = |byte: u8| byte == b'\r' || byte == b'\n';
    for (name, value) in &request.headers {
        assert!(!name.bytes().chain(value.bytes()).any(is_line_end));
    }
    let target = format!("{}?{}", request.path(true), request.query_text());
    assert!(target.bytes().all(|byte| byte.is_ascii_graphic()), "{target}");
    if let Some(bucket) = &request.bucket {
        let path = request.path(true);
        assert!(path == format!("/{bucket}") || path.starts_with(&format!("/{bucket}/")));
        assert!(!path.split('/').any(|part| part == ".."));
    }
}

/// An answer with any body is parsed or refused.
fn answer(data: &[u8]) {
    for name in ["ListObjectsV2", "CopyObject", "GetBucketLocation", "GetObjectAcl"] {
        let Some(operation) = find(name) else { continue };
        let named = |name: &&&str| match **name {
            "Key" => operation.target == unlade_s3::operation::Target::Object,
            "CopySource" => operation.field("CopySource").is_some(),
            _ => true,
        };
        let parameters = ["Bucket", "Key", "CopySource"].iter().filter(named);
        let parameters = parameters.map(|name| ((*name).to_owned(), "b".into())).collect();
        let request = Request::new(operation, &parameters).expect("what it needs is there");
        for status in [200, 404] {
            let head = Head { status, headers: vec![("etag".into(), "e".into())] };
            if let Answer::Failed(error) = understand(&request, &head, data) {
                assert!(error.status >= 400);
            }
        }
    }
}

/// A decoded request has one line for its target and one for each field, none of them the host's,
/// and encodes to the same value.
fn request(data: &[u8]) {
    let Ok((head, inline)) = RequestHead::decode(data) else { return };
    assert!(inline.len() <= unlade_guest_protocol::request::INLINE_BYTES_MAX);
    assert!(head.path.starts_with('/') && !head.path.starts_with("//"));
    let target = format!("{}?{}", head.path, head.query);
    assert!(target.bytes().all(|byte| byte.is_ascii_graphic()), "{target}");
    for (name, value) in &head.headers {
        assert!(!name.contains([':', ' ']) && !name.bytes().any(|byte| byte.is_ascii_uppercase()));
        assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert!(!["host", "authorization", "transfer-encoding"].contains(&name.as_str()));
    }
    let again = [&head.to_json()[..], b"\0", inline].concat();
    assert_eq!(RequestHead::decode(&again), Ok((head, inline)));
}

/// The seeds.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |name, kind: u8, content: &[u8]| {
        seeds.push(("guest", name, [&[kind], content].concat()));
    };
    let mut stream = Vec::new();
    let frames = [Frame::Hello { nonce: 7 }, Frame::Bell, Frame::Bye("enough".into())];
    frames.iter().for_each(|frame| frame.encode(&mut stream).expect("short frames"));
    let reply = br#"{"id":"i","status":"done","log_tail":"","result_bytes":2}"#;
    stream.extend_from_slice(&(reply.len() as u32 + 4).to_le_bytes());
    stream.extend_from_slice(&[&[5], &reply[..], b"\0{}"].concat());
    add("frames", 0, &stream);
    let read = Submission {
        call: 9,
        operation: Operation::Read,
        more: false,
        epoch: 3,
        meta_offset: 0,
        meta_bytes: 0,
        body: Extent { first_slot: 0, bytes: 65536 },
        token: 4,
    };
    add("submission", 1, &read.encode());
    let layout = Layout { ring_entries: 8, meta_bytes: 4096, guest_slots: 1, host_slots: 2 };
    add("header", 2, &layout.header(3).expect("a small layout").encode());
    let mut message = Vec::new();
    let hint = ControlHead::Hint { invocation: "i".into(), role: 1, objects: Vec::new() };
    let event = br#"{"Records":[{"s3":{"bucket":{"name":"b"},"object":{"key":"a+b"}}}]}"#;
    let hint = Message { said: hint, bytes: event.to_vec() };
    hint.encode(&mut message).expect("a short message");
    add("control", 3, &message);
    let request = RequestHead {
        headers: vec![("x-amz-target".into(), "AmazonSQS.SendMessage".into())],
        body_bytes: 2,
        ..RequestHead::post("sqs", "us-east-1", "SendMessage")
    };
    let perform = ControlHead::Perform { call: 1, role: 2, request };
    let mut message = Vec::new();
    let perform = Message { said: perform, bytes: b"{}".to_vec() };
    perform.encode(&mut message).expect("a short message");
    add("perform", 3, &message);
    let mut message = Vec::new();
    let performed =
        ControlHead::Performed { call: 1, end: PerformEnd::Answered { http_status: 200 } };
    let performed = Message { said: performed, bytes: b"{\"Messages\":[]}".to_vec() };
    performed.encode(&mut message).expect("a short message");
    add("performed", 3, &message);
    let received = br#"{"Messages":[{"MessageId":"m","ReceiptHandle":"r","Body":"b",
        "Attributes":{"SenderId":"s"},"MessageAttributes":{"a":{"StringValue":"v"}}}],
        "batchItemFailures":[{"itemIdentifier":"m"}]}"#;
    add("queue", 7, received);
    // {"client": {"app_title": "a"}}
    add("client_context", 8, b"eyJjbGllbnQiOiB7ImFwcF90aXRsZSI6ICJhIn19");
    add("trace", 8, b"Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=?");
    let put = br#"{"service":"s3","operation":"PutObject","parameters":{"Bucket":"b","Key":"a/ b",
        "Metadata":{"a":"b"},"Expires":{"$instant":"2026-01-02T03:04:05Z"}},"body_bytes":3,
        "inline":true}"#;
    add("call", 4, &[&put[..], b"\0abc"].concat());
    let list = b"<L><Contents><Key>a%20b</Key><Size>3</Size></Contents><Prefix/></L>";
    add("list", 5, list);
    let head = RequestHead {
        service: "dynamodb".into(),
        signing_name: false,
        operation: "GetItem".into(),
        region: "us-east-1".into(),
        method: RequestMethod::Post,
        path: "/".into(),
        query: String::new(),
        headers: vec![("x-amz-target".into(), "DynamoDB_20120810.GetItem".into())],
        body_bytes: 17,
        inline: true,
        unsigned: false,
        read_timeout_ms: Some(60_000),
    };
    add("request", 6, &[&head.to_json()[..], b"\0{\"TableName\":\"t\"}"].concat());
    let path = "/2015-03-31/functions/a%3A1/invocations".into();
    let rest = RequestHead { service: "lambda".into(), path, body_bytes: 0, inline: false, ..head };
    add("request_rest", 6, &rest.to_json());
    seeds
}
