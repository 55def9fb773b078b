//! Requests that the tables have made are read back; documents that the tables write are read.

use serde_json::{Map, Value, json};
use unlade_http::Method;
use unlade_testkit::{Random, cases};

use super::request::{SHADOWED, Served, ServedError, find};
use super::response::{Shown, done, failed, unmade};
use crate::operation::{self, Field, Kind, Member, Operation, Output, Place, Shape, Target};
use crate::request::Request;
use crate::response::{Answer, Head, done_meta, understand};

fn served(method: Method, target: &str, headers: &[(&str, &str)]) -> Result<Served, ServedError> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    find(method, path, query, &headers)
}

fn text(random: &mut Random) -> String {
    let letters: Vec<char> = "aZ09-_.~/ &<>\"+%=ü'".chars().collect();
    let count = random.below(8_u64) + 1;
    let text: String = (0..count).map(|_| random.pick(&letters)).collect();
    // The ends of a header field have no blanks, and segments of keys are no dots.
    format!("k{}k", text.replace('/', "/x"))
}

fn leaf(kind: Kind, random: &mut Random) -> Value {
    match kind {
        Kind::Text | Kind::Bytes => text(random).into(),
        Kind::Integer => random.below(10_000_u64).into(),
        Kind::Boolean => (random.below(2_u64) == 0).into(),
        // As text: the host sends it as it is.
        Kind::HttpDate => "Fri, 02 Jan 2026 03:04:05 GMT".into(),
        Kind::Timestamp => "2026-01-02T03:04:05Z".into(),
        Kind::Names => json!(["a", "b"]),
    }
}

/// A value of a shape; instants are as a document's reader returns them.
fn shaped(shape: &Shape, random: &mut Random) -> Value {
    let instant = || json!({"$instant": "2026-01-02T03:04:05.000Z"});
    match shape {
        Shape::Leaf(Kind::HttpDate | Kind::Timestamp) => instant(),
        Shape::Leaf(kind) => leaf(*kind, random),
        Shape::Structure(members) => structure(members, random),
        Shape::List(_, shape) | Shape::Flat(shape) => {
            let count = random.below(3_u64) + 1;
            (0..count).map(|_| shaped(shape, random)).collect()
        }
        Shape::XsiType => "CanonicalUser".into(),
    }
}

fn structure(members: &[Member], random: &mut Random) -> Value {
    let named = members.iter().map(|m| (m.name.to_owned(), shaped(&m.shape, random)));
    named.collect::<Map<_, _>>().into()
}

fn parameter(operation: &Operation, field: &Field, random: &mut Random) -> Option<Value> {
    Some(match field.place {
        // Blanks within a header field are its own; the signature's rules do not matter here.
        Place::Header(_) | Place::Query(_) => leaf(field.kind, random),
        Place::Headers(_) => json!({"one": text(random), "two": "x"}),
        Place::Xml(_, members) => structure(members, random),
        Place::Text => text(random).into(),
        Place::Element => {
            let (_, members) = operation.document?;
            shaped(&members.iter().find(|m| m.name == field.name)?.shape, random)
        }
        Place::Nowhere => return None,
    })
}

/// Random parameters: all that are required, and some of the others.
fn parameters(operation: &Operation, random: &mut Random) -> Map<String, Value> {
    let mut out = Map::new();
    if operation.target != Target::Service {
        out.insert("Bucket".into(), "bucket".into());
    }
    if operation.target == Target::Object {
        out.insert("Key".into(), text(random).into());
    }
    for field in operation.input.iter().copied().flatten() {
        let is_wanted = field.required || random.below(3_u64) == 0;
        // An element of a document is required if any is.
        let is_wanted = is_wanted || matches!(field.place, Place::Element);
        if let (true, Some(value)) = (is_wanted, parameter(operation, field, random)) {
            out.insert(field.name.to_owned(), value);
        }
    }
    out
}

#[test]
fn every_operation_is_read_back_from_its_request() {
    cases(20, |random| {
        for operation in operation::all().filter(|found| !SHADOWED.contains(&found.name)) {
            let parameters = parameters(operation, random);
            let made = match Request::new(operation, &parameters) {
                Ok(made) => made,
                Err(error) => panic!("{}: {error}: {parameters:?}", operation.name),
            };
            let found = find(operation.method, &made.path(true), &made.query_text(), &made.headers);
            let mut found = found.unwrap_or_else(|e| panic!("{}: {e}", operation.name));
            assert_eq!(found.operation.name, operation.name, "{}", made.query_text());
            if let Some(xml) = &made.xml {
                found.take_body(xml).unwrap();
            }
            let mut due = parameters.clone();
            // The digest of a text that the host writes anew.
            if made.xml.is_some() {
                due.remove("ContentMD5");
            }
            // What the host adds of its own accord.
            for (name, value) in [("EncodingType", "url"), ("ChecksumMode", "ENABLED")] {
                if operation.field(name).is_some()
                    && found.parameters.get(name) == Some(&value.into())
                {
                    due.insert(name.to_owned(), value.into());
                }
            }
            assert_eq!(Value::Object(found.parameters), Value::Object(due), "{}", operation.name);
        }
    });
}

#[test]
fn every_result_is_read_back_from_its_document() {
    cases(20, |random| {
        for operation in operation::all().filter(|found| !SHADOWED.contains(&found.name)) {
            let Output::Xml(members) = operation.output else { continue };
            let result = structure(members, random);
            let mut asked = parameters(operation, random);
            if operation.field("EncodingType").is_some() {
                // Keys are then passed on as they are.
                asked.insert("EncodingType".into(), "url".into());
            }
            let request = Request::new(operation, &asked).unwrap();
            let meta = json!({"result": result, "headers": {"x-amz-request-id": "r"}});
            let (_, Shown::Whole(body)) = done(operation, &asked, &meta, false) else { panic!() };
            let head = Head { status: 200, headers: Vec::new() };
            match understand(&request, &head, &body) {
                Answer::Done(again) => {
                    assert_eq!(Value::Object(again), result, "{}", operation.name);
                }
                other => panic!("{}: {other:?}", operation.name),
            }
        }
    });
}

#[test]
fn instants_have_the_digits_of_the_service() {
    let operation = operation::find("ListObjectsV2").unwrap();
    let instant = json!({"$instant": "2026-01-02T03:04:05.000Z"});
    let meta = json!({"result": {"Contents": [{"Key": "k", "LastModified": instant}]}});
    let (_, Shown::Whole(body)) = done(operation, &Map::new(), &meta, false) else { panic!() };
    let body = String::from_utf8(body).unwrap();
    assert!(body.contains("<LastModified>2026-01-02T03:04:05.000Z</LastModified>"), "{body}");
}

#[test]
fn requests_of_sdks_are_told_apart() {
    let name = |method, target: &str, headers: &[(&str, &str)]| {
        served(method, target, headers).map(|found| found.operation.name)
    };
    assert_eq!(name(Method::Get, "/", &[]), Ok("ListBuckets"));
    assert_eq!(name(Method::Get, "/b", &[]), Ok("ListObjects"));
    assert_eq!(name(Method::Get, "/b/?list-type=2&prefix=a%2F", &[]), Ok("ListObjectsV2"));
    assert_eq!(name(Method::Get, "/b?location", &[]), Ok("GetBucketLocation"));
    assert_eq!(name(Method::Get, "/b/a/b?x-id=GetObject", &[]), Ok("GetObject"));
    assert_eq!(name(Method::Put, "/b/k?x-id=PutObject", &[]), Ok("PutObject"));
    let source = [("x-amz-copy-source", "b/o")];
    assert_eq!(name(Method::Put, "/b/k", &source), Ok("CopyObject"));
    let part = "/b/k?partNumber=1&uploadId=u";
    assert_eq!(name(Method::Put, part, &[]), Ok("UploadPart"));
    assert_eq!(name(Method::Put, part, &source), Ok("UploadPartCopy"));
    assert_eq!(name(Method::Post, "/b/k?uploads=", &[]), Ok("CreateMultipartUpload"));
    assert_eq!(name(Method::Post, "/b/k?uploadId=u", &[]), Ok("CompleteMultipartUpload"));
    assert_eq!(name(Method::Post, "/b?delete", &[]), Ok("DeleteObjects"));
    assert_eq!(name(Method::Post, "/b", &[]), Err(ServedError::Operation));
}

#[test]
fn signatures_and_chunks_are_dropped_and_nothing_else_is_lost() {
    let signed = "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2Fb&X-Amz-Signature=0";
    let found = served(Method::Get, signed, &[("range", "bytes=0-1")]).unwrap();
    assert_eq!(found.parameters["Range"], "bytes=0-1");
    assert_eq!(found.parameters.len(), 3, "{:?}", found.parameters);
    let chunked = [
        ("content-encoding", "aws-chunked,gzip"),
        ("x-amz-decoded-content-length", "7"),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
        ("x-amz-meta-who", "me"),
    ];
    let found = served(Method::Put, "/b/k", &chunked).unwrap();
    let due = json!({"Bucket": "b", "Key": "k", "ContentEncoding": "gzip",
        "ChecksumAlgorithm": "CRC32", "Metadata": {"who": "me"}});
    assert_eq!(Value::Object(found.parameters), due);
    let lone = served(Method::Put, "/b/k", &[("content-encoding", "aws-chunked")]).unwrap();
    assert!(!lone.parameters.contains_key("ContentEncoding"));
    let unknown = served(Method::Put, "/b/k", &[("x-amz-future", "1")]);
    assert!(matches!(unknown, Err(ServedError::Field { field, .. }) if field == "x-amz-future"));
    let unknown = served(Method::Get, "/b/k?colour=red", &[]);
    assert!(matches!(unknown, Err(ServedError::Field { field, .. }) if field == "colour"));
    let twice = served(Method::Get, "/b/k?versionId=1&versionId=2", &[]);
    assert!(matches!(twice, Err(ServedError::Value { .. })));
}

#[test]
fn lines_of_a_field_that_is_a_list_are_joined() {
    let names = [
        ("x-amz-object-attributes", "ETag"),
        ("x-amz-max-parts", "5"),
        ("x-amz-object-attributes", "ObjectSize,Checksum"),
    ];
    let found = served(Method::Get, "/b/k?attributes", &names).unwrap();
    assert_eq!(found.parameters["ObjectAttributes"], json!(["ETag", "ObjectSize", "Checksum"]));
    let lines = [
        ("content-encoding", "gzip"),
        ("x-amz-meta-a", "1"),
        ("content-encoding", "aws-chunked"),
        ("x-amz-meta-a", "2"),
        ("cache-control", "private"),
        ("cache-control", "max-age=5"),
    ];
    let found = served(Method::Put, "/b/k", &lines).unwrap();
    let due = json!({"Bucket": "b", "Key": "k", "ContentEncoding": "gzip",
        "CacheControl": "private, max-age=5", "Metadata": {"a": "1,2"}});
    assert_eq!(Value::Object(found.parameters), due);
    let twice = served(Method::Get, "/b/k", &[("range", "bytes=0-1"), ("range", "bytes=5-")]);
    assert!(matches!(twice, Err(ServedError::Value { field }) if field == "range"));
}

#[test]
fn a_document_of_which_something_would_be_lost_is_refused() {
    let take = |target: &str, body: &str| {
        let method = if target.contains("delete") { Method::Post } else { Method::Put };
        let mut found = served(method, target, &[]).unwrap();
        found.take_body(body.as_bytes()).map(|()| found.parameters)
    };
    let rule = |filter: &str| {
        let text = format!(
            "<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter>{filter}</Filter>\
             <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>"
        );
        take("/b?lifecycle", &text)
    };
    assert!(rule("<Prefix>a/</Prefix>").is_ok() && rule("<Prefix/>").is_ok());
    let lost = [
        "<ObjectSizeLessThan>1e6</ObjectSizeLessThan>",
        "<Future>1</Future>",
        "<Prefix>a/</Prefix><Prefix>b/</Prefix>",
    ];
    for filter in lost {
        assert!(matches!(rule(filter), Err(ServedError::Document { .. })), "{filter}");
    }
    let object =
        |more: &str| take("/b?delete", &format!("<D><Object><Key>k</Key>{more}</Object></D>"));
    let mut digested = served(Method::Post, "/b?delete", &[("content-md5", "x")]).unwrap();
    digested.take_body(b"<Delete><Object><Key>k</Key></Object></Delete>").unwrap();
    assert!(!digested.parameters.contains_key("ContentMD5"));
    assert!(object("").is_ok() && object("<VersionId>v</VersionId>").is_ok());
    assert!(object("<LastModifiedTime>2026-01-02T03:04:05Z</LastModifiedTime>").is_err());
}

#[test]
fn a_name_of_another_object_is_refused() {
    for target in ["/b/%E9", "/b/a%ff", "/%E9/k"] {
        let read = served(Method::Get, target, &[]);
        assert!(matches!(read, Err(ServedError::Value { .. })), "{target}");
    }
    assert_eq!(served(Method::Get, "/b/%EF%bf%BD", &[]).unwrap().parameters["Key"], "\u{fffd}");
    assert!(matches!(served(Method::Get, "//b/k", &[]), Err(ServedError::Operation)));
    let condition = [("if-unmodified-since", "Fri, 02 Jan 2026 03:04:05 GMT")];
    assert!(served(Method::Get, "/b/k", &condition).is_ok());
    assert!(matches!(served(Method::Put, "/b/k", &condition), Err(ServedError::Field { .. })));
}

#[test]
fn errors_are_written_as_the_service_writes_them() {
    let meta = json!({"error": {"Code": "NoSuchKey", "Message": "a < b", "Key": "k", "bad name": "x"},
        "http_status": 404, "headers": {"content-type": "x/y", "content-length": "9", "date": "d"},
        "request_id": "r"});
    let (status, fields, body) = failed(&meta);
    assert_eq!(status, 404);
    assert_eq!(fields, [("date".to_owned(), "d".to_owned())]);
    let read = crate::failure::ServiceError::read(404, &body);
    assert_eq!((read.code(), read.message()), ("NoSuchKey", "a < b"));
    assert_eq!(read.error["Key"], "k");
    let (status, body) = unmade(&json!({"error": {"Code": "Timeout", "Message": "late"}}));
    assert_eq!(status, 503);
    assert_eq!(crate::failure::ServiceError::read(503, &body).message(), "late");
}

#[test]
fn keys_that_the_host_has_decoded_are_not_called_encoded() {
    let operation = operation::find("ListObjectsV2").unwrap();
    let parameters = json!({"Bucket": "b"}).as_object().unwrap().clone();
    let request = Request::new(operation, &parameters).unwrap();
    let store = b"<R><EncodingType>url</EncodingType><Contents><Key>a%2525</Key></Contents></R>";
    let head = Head { status: 200, headers: Vec::new() };
    let Answer::Done(result) = understand(&request, &head, store) else { panic!() };
    let meta = serde_json::from_slice(&done_meta(&result, &head, 0, None)).unwrap();
    let (_, Shown::Whole(body)) = done(operation, &parameters, &meta, false) else { panic!() };
    let body = String::from_utf8(body).unwrap();
    assert!(body.contains("<Key>a%25</Key>") && !body.contains("EncodingType"), "{body}");
}
