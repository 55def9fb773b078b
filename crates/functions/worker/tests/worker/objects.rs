//! Operations, from parameters to results.

use serde_json::{Value, json};
use unlade_guest_protocol::Status;

use crate::bed::{Bed, body_of};

fn object(key: &str) -> Value {
    json!({"Bucket": "box", "Key": key})
}

fn with(base: Value, more: Value) -> Value {
    let mut all = base.as_object().unwrap().clone();
    all.extend(more.as_object().unwrap().clone());
    all.into()
}

#[test]
fn objects_of_every_size_come_back_as_they_went() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    let created = guest.call("CreateBucket", json!({"Bucket": "box"}), b"");
    assert_eq!(created.status, Status::Done, "{}", created.meta);
    // Empty; after the text; in slots; in several descriptors, and read in several parts.
    for bytes in [0, 3, 4096, 4097, 65_536, 200_001, 5 << 20] {
        let body = body_of(bytes);
        let key = format!("of {bytes}/ü+%");
        let described = json!({"Metadata": {"who": "me"}, "ContentType": "text/plain"});
        let put = guest.call("PutObject", with(object(&key), described), &body).done();
        let head = guest.call("HeadObject", object(&key), b"").done();
        assert_eq!(head["ContentLength"], bytes);
        assert_eq!(head["ETag"], put["ETag"]);
        let got = guest.call("GetObject", object(&key), b"");
        assert_eq!(got.meta["http_status"], 200);
        assert!(got.body == body, "{bytes} bytes");
        assert_eq!(got.pieces > 1, bytes > 1 << 20, "{} pieces of {bytes}", got.pieces);
        let result = got.done();
        assert_eq!(result["Metadata"], json!({"who": "me"}));
        assert_eq!(result["ContentType"], "text/plain");
        assert!(result["LastModified"]["$instant"].as_str().unwrap().ends_with('Z'));
    }
    let range = with(object("of 200001/ü+%"), json!({"Range": "bytes=70000-139999"}));
    let part = guest.call("GetObject", range, b"");
    assert_eq!(part.meta["http_status"], 206);
    assert_eq!(part.body, body_of(200_001)[70_000..140_000]);
}

#[test]
fn a_body_is_read_in_pieces_of_the_wanted_size_and_dropped_in_the_middle() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let body = body_of(3 << 20);
    guest.call("PutObject", object("k"), &body).done();
    let call = guest.begin("GetObject", object("k"), b"");
    let first = guest.completion();
    assert_eq!((first.call, first.status), (call, Status::Done));
    let mut seen = guest.piece(&first);
    assert_eq!(first.body_left_bytes as usize, body.len() - seen.len());
    for wanted in [1, 100_000, 70_000, 65_536] {
        let piece = guest.read(first.token, wanted);
        assert!((1..=wanted).contains(&piece.body.bytes), "{piece:?}");
        seen.extend(guest.piece(&piece));
        assert_eq!(piece.body_left_bytes as usize, body.len() - seen.len());
    }
    assert!(body.starts_with(&seen));
    guest.release(first.token);
    let late = guest.read(first.token, 0);
    assert_eq!(late.status, Status::HostError);
    // All slots were returned to the host: a body of this size can be read many times.
    for _ in 0..5 {
        assert!(guest.call("GetObject", object("k"), b"").body == body);
    }
}

#[test]
fn errors_are_those_that_an_sdk_raises() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let missing = guest.call("GetObject", object("none"), b"");
    assert_eq!((missing.status, missing.code()), (Status::ServiceError, "NoSuchKey"));
    assert_eq!(
        (&missing.meta["http_status"], &missing.meta["operation"]),
        (&json!(404), &json!("GetObject"))
    );
    let head = guest.call("HeadObject", object("none"), b"");
    assert_eq!((head.code(), &head.meta["error"]["Message"]), ("404", &json!("Not Found")));
    let bucket = guest.call("ListObjectsV2", json!({"Bucket": "other"}), b"");
    assert_eq!(bucket.code(), "NoSuchBucket");
    guest.call("PutObject", object("k"), b"abc").done();
    let beyond = guest.call("GetObject", with(object("k"), json!({"Range": "bytes=9-"})), b"");
    assert_eq!(beyond.code(), "InvalidRange");
    let unknown = guest.call("GetObject", with(object("k"), json!({"Colour": 1})), b"");
    assert_eq!((unknown.status, unknown.code()), (Status::HostError, "Invalid"));
    let other = guest.call("NoOperation", object("k"), b"");
    assert_eq!(other.code(), "Unsupported");
    guest.call("DeleteObject", object("k"), b"").done();
    assert_eq!(guest.call("GetObject", object("k"), b"").code(), "NoSuchKey");
}

#[test]
fn lists_come_in_pages_with_keys_as_they_are() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let mut keys = vec!["a b", "a%c", "d/e", "d/f", "ü", "z&<"];
    for key in &keys {
        guest.call("PutObject", object(key), b"x").done();
    }
    keys.sort();
    let mut seen = Vec::new();
    let mut token = Value::Null;
    loop {
        let page = json!({"Bucket": "box", "MaxKeys": 2, "ContinuationToken": token});
        let page = guest.call("ListObjectsV2", page, b"").done();
        for entry in page["Contents"].as_array().unwrap() {
            seen.push(entry["Key"].as_str().unwrap().to_owned());
            assert_eq!(entry["Size"], 1);
        }
        token = page["NextContinuationToken"].clone();
        if page["IsTruncated"] != true {
            break;
        }
    }
    assert_eq!(seen, keys);
    let top = json!({"Bucket": "box", "Delimiter": "/"});
    let top = guest.call("ListObjectsV2", top, b"").done();
    assert_eq!(top["CommonPrefixes"], json!([{"Prefix": "d/"}]));
    let named = json!({"Bucket": "box", "Delete": {"Objects": [{"Key": "a b"}, {"Key": "ü"}]}});
    let deleted = guest.call("DeleteObjects", named, b"").done();
    assert_eq!(deleted["Deleted"].as_array().unwrap().len(), 2);
    let left = guest.call("ListObjects", json!({"Bucket": "box"}), b"").done();
    assert_eq!(left["Contents"].as_array().unwrap().len(), 4);
    let buckets = guest.call("ListBuckets", json!({}), b"").done();
    assert_eq!(buckets["Buckets"][0]["Name"], "box");
}

#[test]
fn an_upload_in_parts_becomes_one_object() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let begun = guest.call("CreateMultipartUpload", object("big"), b"").done();
    let upload = json!({"UploadId": begun["UploadId"]});
    let body = body_of((5 << 20) + 70_000);
    let mut parts = Vec::new();
    for (at, piece) in body.chunks(5 << 20).enumerate() {
        let number = json!({"PartNumber": at + 1});
        let part = with(with(object("big"), upload.clone()), number.clone());
        let done = guest.call("UploadPart", part, piece).done();
        parts.push(with(number, json!({"ETag": done["ETag"]})));
    }
    let listed = guest.call("ListParts", with(object("big"), upload.clone()), b"").done();
    assert_eq!(listed["Parts"].as_array().unwrap().len(), 2);
    let whole = with(with(object("big"), upload), json!({"MultipartUpload": {"Parts": parts}}));
    let done = guest.call("CompleteMultipartUpload", whole, b"").done();
    assert_eq!(done["Key"], "big");
    assert!(guest.call("GetObject", object("big"), b"").body == body);
    let other = guest.call("CreateMultipartUpload", object("other"), b"").done();
    let other = with(object("other"), json!({"UploadId": other["UploadId"]}));
    guest.call("AbortMultipartUpload", other, b"").done();
    let copy = with(object("copy"), json!({"CopySource": "box/big"}));
    let copied = guest.call("CopyObject", copy, b"").done();
    assert!(copied["CopyObjectResult"]["ETag"].is_string());
    assert_eq!(guest.call("HeadObject", object("copy"), b"").done()["ContentLength"], body.len());
}

/// Reads that are shorter than a chunk while few slots are free: data that was read ahead keeps
/// its order.
#[test]
fn a_body_that_is_read_in_small_pieces_keeps_its_order() {
    let mut bed = Bed::with(|config| {
        (config.instance.host_slots, config.instance.window_slots) = (4, 2);
    });
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let body = body_of(1 << 20);
    guest.call("PutObject", object("k"), &body).done();
    guest.call("PutObject", object("small"), b"one slot").done();
    guest.begin("GetObject", object("small"), b"");
    let small = guest.completion();
    assert_eq!(small.status, Status::Done);
    guest.begin("GetObject", object("k"), b"");
    let first = guest.completion();
    let mut seen = guest.piece(&first);
    while seen.len() < body.len() {
        let piece = guest.read(first.token, if seen.len() < 300_000 { 1000 } else { 0 });
        assert_eq!(piece.status, Status::Done);
        seen.extend(guest.piece(&piece));
    }
    assert!(seen == body);
    guest.release(small.token);
}

#[test]
fn an_address_lets_its_holder_read() {
    use std::io::{Read, Write};
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    guest.call("PutObject", object("a b"), b"shared").done();
    let asked = json!({"Operation": "GetObject", "Parameters": object("a b"), "ExpiresIn": 60});
    let url = guest.call("GeneratePresignedUrl", asked, b"").done();
    let url = url["Url"].as_str().unwrap();
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("shared"), "{answer}");
}

/// A client that chooses no version gets the same as one that chooses Version 4.
#[test]
fn an_address_has_version_4_or_there_is_none() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    let url = json!({"Operation": "GetObject", "Parameters": object("k"), "ExpiresIn": 60});
    for (operation, parameters) in
        [("GeneratePresignedUrl", url.clone()), ("GeneratePresignedPost", object("k"))]
    {
        for version in [json!("s3"), json!("s3-query"), json!("unsigned"), json!(""), json!(null)] {
            let mut parameters = parameters.clone();
            parameters["SignatureVersion"] = version;
            let refused = guest.call(operation, parameters, b"");
            assert_eq!((refused.status, refused.code()), (Status::HostError, "Unsupported"));
            let why = refused.meta["error"]["Message"].as_str().unwrap().to_owned();
            assert!(why.contains("Config(signature_version=\"s3v4\")"), "{why}");
        }
    }
    for version in ["", "v4", "s3v4"] {
        let mut asked = url.clone();
        if !version.is_empty() {
            asked["SignatureVersion"] = json!(version);
        }
        let made = guest.call("GeneratePresignedUrl", asked, b"").done();
        let made = made["Url"].as_str().unwrap();
        assert!(made.contains("X-Amz-Algorithm=AWS4-HMAC-SHA256&"), "{made}");
        assert!(!made.contains("AWSAccessKeyId"), "{made}");
    }
}
