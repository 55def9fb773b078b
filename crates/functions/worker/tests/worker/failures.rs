//! A store that fails, sends invalid responses, or disconnects.

use serde_json::json;
use unlade_guest_protocol::Status;

use crate::bed::Bed;
use crate::bed::script::{Answer, Asked, response, script, script_closing, script_tls};

fn bed(answers: Vec<Answer>) -> (Bed, std::sync::mpsc::Receiver<Asked>) {
    let (address, asked) = script(answers);
    let bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    (bed, asked)
}

fn name() -> serde_json::Value {
    json!({"Bucket": "box", "Key": "k"})
}

const SLOW: &str = "<Error><Code>SlowDown</Code><Message>slow</Message></Error>";

#[test]
fn what_may_pass_is_tried_again_and_said() {
    let (mut bed, asked) = bed(vec![
        response(503, "", SLOW),
        Answer::Hang,
        response(200, "etag: \"e\"\r\nx-amz-request-id: r3\r\n", ""),
    ]);
    let mut guest = bed.guest();
    let put = guest.call("PutObject", name(), b"body");
    // The second one failed on a reused connection: the retry is immediate, and counted.
    assert_eq!((&put.meta["retries"], &put.meta["request_id"]), (&json!(2), &json!("r3")));
    assert_eq!(put.meta["max_attempts_reached"], true);
    assert_eq!(put.done()["ETag"], "\"e\"");
    for _ in 0..3 {
        let asked = asked.recv().unwrap();
        assert_eq!(asked.body, b"body");
        assert!(asked.head.contains("\r\nauthorization: AWS4-HMAC-SHA256 "), "{}", asked.head);
        assert!(asked.head.contains("\r\nx-amz-checksum-crc32: "), "{}", asked.head);
    }
}

#[test]
fn after_three_attempts_the_last_error_is_the_answer() {
    let (mut bed, _asked) = bed((0..3).map(|_| response(503, "", SLOW)).collect());
    let mut guest = bed.guest();
    let got = guest.call("GetObject", name(), b"");
    assert_eq!((got.status, got.code()), (Status::ServiceError, "SlowDown"));
    assert_eq!((&got.meta["retries"], &got.meta["http_status"]), (&json!(2), &json!(503)));
    assert_eq!(got.meta["max_attempts_reached"], true);
}

#[test]
fn a_body_that_breaks_off_is_asked_for_again_or_told() {
    let torn = || Answer::Say("HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nhalf".into(), true);
    let (mut broken, _asked) = bed(vec![torn(), response(200, "", "all of it")]);
    let mut guest = broken.guest();
    let got = guest.call("GetObject", name(), b"");
    assert_eq!((got.body.as_slice(), &got.meta["retries"]), (&b"all of it"[..], &json!(1)));
    let (mut broken, _asked) = bed(vec![torn(), torn(), torn()]);
    let mut guest = broken.guest();
    let got = guest.call("GetObject", name(), b"");
    assert_eq!((got.status, got.code()), (Status::HostError, "Broken"));
}

#[test]
fn a_body_in_chunks_ends_where_it_ends() {
    let chunks = "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n\
        5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    let (mut bed, _asked) = bed(vec![Answer::Say(chunks.into(), false), response(200, "", "next")]);
    let mut guest = bed.guest();
    assert_eq!(guest.call("GetObject", name(), b"").body, b"hello world");
    // The connection is reused.
    assert_eq!(guest.call("GetObject", name(), b"").body, b"next");
}

#[test]
fn a_kept_connection_that_has_ended_is_replaced_without_a_word() {
    let once = |text: &str| {
        let length = text.len();
        Answer::Say(format!("HTTP/1.1 200 X\r\ncontent-length: {length}\r\n\r\n{text}"), true)
    };
    let (address, closed) = script_closing(vec![once("one"), once("two"), once("three")]);
    let mut bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    let mut guest = bed.guest();
    for due in ["one", "two", "three"] {
        let got = guest.call("GetObject", name(), b"");
        assert_eq!(got.meta["retries"], 0);
        assert_eq!(got.body, due.as_bytes());
        closed.recv().unwrap();
    }
}

#[test]
fn nonsense_of_the_store_is_an_error_and_no_more() {
    let (mut bed, _asked) = bed(vec![
        Answer::Say(
            "HTTP/1.1 200 X\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc".into(),
            true,
        ),
        Answer::Say("SSH-2.0-x\r\n".into(), true),
        Answer::Say("HTTP/1.1 200 X\r\n".into(), true),
        response(200, "", "<half"),
        response(200, "", "fine"),
    ]);
    let mut guest = bed.guest();
    assert_eq!(guest.call("GetObject", name(), b"").code(), "Broken");
    // A response that is not XML is retried like an incomplete one.
    let list = guest.call("ListObjectsV2", json!({"Bucket": "box"}), b"");
    assert_eq!(list.status, Status::HostError);
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let mut bed = Bed::new();
    bed.store = None;
    let mut guest = bed.guest();
    let got = guest.call("GetObject", name(), b"");
    assert_eq!((got.status, got.code()), (Status::HostError, "Unavailable"));
    let message = got.meta["error"]["Message"].as_str().unwrap();
    assert!(message.contains("cannot be reached"), "{message}");
}

#[test]
fn tls_is_spoken_with_a_store_that_is_trusted_and_no_other() {
    let large = "x".repeat(300_000);
    // The last response is for a client that does not verify certificates, and is never sent.
    let answers =
        vec![response(200, "", ""), response(200, "", &large), response(200, "", "never")];
    let (address, asked, pem) = script_tls(answers);
    let dir = tempfile::tempdir().unwrap();
    let trusted = dir.path().join("ca.pem");
    std::fs::write(&trusted, pem).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let untrusted = dir.path().join("other.pem");
    std::fs::write(&untrusted, other.cert.pem()).unwrap();
    let with = |ca: &std::path::Path| {
        Bed::with(|config| {
            config.store.endpoint = Some(format!("https://localhost:{}", address.port()));
            config.store.ca = Some(ca.to_owned());
        })
    };
    let mut bed = with(&trusted);
    let mut guest = bed.guest();
    guest.call("PutObject", name(), b"secret").done();
    let put = asked.recv().unwrap();
    assert_eq!(put.body, b"secret");
    // The TLS record layer protects the body, so it is not hashed.
    assert!(put.head.contains("x-amz-content-sha256: UNSIGNED-PAYLOAD"), "{}", put.head);
    let got = guest.call("GetObject", name(), b"");
    assert!(got.body == large.as_bytes());
    // Its connection ends with it, and the store accepts the next one.
    drop(bed);
    let mut bed = with(&untrusted);
    let mut guest = bed.guest();
    let refused = guest.call("GetObject", name(), b"");
    assert_eq!((refused.status, refused.code()), (Status::HostError, "Unavailable"));
}

#[test]
fn a_body_is_compared_with_its_checksum() {
    // The CRC-32 of 123456789 is cbf43926.
    let sum = "x-amz-checksum-crc32: y/Q5Jg==\r\n";
    let (mut bed, _asked) =
        bed(vec![response(200, sum, "123456780"), response(200, sum, "123456789")]);
    let mut guest = bed.guest();
    let got = guest.call("GetObject", name(), b"");
    assert_eq!(got.body, b"123456789");
    assert_eq!(got.meta["checksum_algorithm"], "crc32");
    assert_eq!(got.meta["retries"], 1);
}
