//! Events of S3: the record of a change (S3 user guide, *Event message structure*, version 2.1).

use std::net::IpAddr;

use s3s::dto::{Timestamp, TimestampFormat};
use serde_json::{Value, json};

use crate::disk::system_time;

/// The owner of all buckets.
const OWNER: &str = "unlade";

/// The request that changes an object.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Its id, which its response has, too.
    pub request_id: String,
    /// The address of its sender.
    pub source: Option<IpAddr>,
    /// The access key of its signature.
    pub access_key: Option<String>,
}

/// The operation that creates an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Creation {
    /// `PutObject`.
    #[default]
    Put,
    /// A form.
    Post,
    /// `CopyObject`.
    Copy,
    /// `CompleteMultipartUpload`.
    Multipart,
}

/// A change of an object.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The object, or a version of it, was created.
    Created {
        /// The operation.
        by: Creation,
        /// Its length.
        bytes: u64,
        /// Its ETag without quotes.
        e_tag: &'a str,
    },
    /// The object, or a version of it, was removed.
    Removed,
    /// A delete marker was added.
    Marked,
}

impl Change<'_> {
    /// The name of the event, without `s3:`.
    pub fn name(&self) -> &'static str {
        match self {
            Change::Created { by: Creation::Put, .. } => "ObjectCreated:Put",
            Change::Created { by: Creation::Post, .. } => "ObjectCreated:Post",
            Change::Created { by: Creation::Copy, .. } => "ObjectCreated:Copy",
            Change::Created { by: Creation::Multipart, .. } => {
                "ObjectCreated:CompleteMultipartUpload"
            }
            Change::Removed => "ObjectRemoved:Delete",
            Change::Marked => "ObjectRemoved:DeleteMarkerCreated",
        }
    }
}

/// The place of a changed object.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// The region of the bucket.
    pub region: &'a str,
    /// The key.
    pub key: &'a str,
    /// The id of the version, in a bucket with versions.
    pub version: Option<&'a str>,
}

/// The event of a change, with one record. `number` orders the events of a key, and `now_ns` is the time
/// in nanoseconds since 1970.
pub fn event(
    change: &Change<'_>,
    place: &Place<'_>,
    origin: &Origin,
    (configuration, number, now_ns): (&str, u64, i64),
) -> Value {
    let mut object = json!({"key": form(place.key), "sequencer": format!("{number:016X}")});
    if let Change::Created { bytes, e_tag, .. } = change {
        object["size"] = json!(bytes);
        object["eTag"] = json!(e_tag);
    }
    if let Some(version) = place.version {
        object["versionId"] = json!(version);
    }
    let principal = match &origin.access_key {
        Some(access_key) => format!("AWS:{access_key}"),
        None => "Anonymous".to_owned(),
    };
    let source = origin.source.map(|source| source.to_canonical().to_string());
    json!({"Records": [{
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": place.region,
        "eventTime": time(now_ns),
        "eventName": change.name(),
        "userIdentity": {"principalId": principal},
        "requestParameters": {"sourceIPAddress": source.unwrap_or_default()},
        "responseElements": {
            "x-amz-request-id": origin.request_id,
            "x-amz-id-2": origin.request_id,
        },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": configuration,
            "bucket": {
                "name": place.bucket,
                "ownerIdentity": {"principalId": OWNER},
                "arn": format!("arn:aws:s3:::{}", place.bucket),
            },
            "object": object,
        },
    }]})
}

fn time(now_ns: i64) -> String {
    let mut text = Vec::new();
    let time = Timestamp::from(system_time(now_ns));
    let written = time.format(TimestampFormat::DateTime, &mut text);
    written.ok().and_then(|()| String::from_utf8(text).ok()).unwrap_or_default()
}

/// Encodes a key as a value of a form: a space is a plus sign.
fn form(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => {
                text.push(byte.into());
            }
            b' ' => text.push('+'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_structure_of_s3() {
        let place =
            Place { bucket: "box", region: "us-east-1", key: "a b/ü+", version: Some("v") };
        let origin = Origin {
            request_id: "R1".to_owned(),
            source: Some("::ffff:127.0.0.1".parse().unwrap()),
            access_key: Some("unlade".to_owned()),
        };
        let created = Change::Created { by: Creation::Put, bytes: 5, e_tag: "e" };
        let found = event(&created, &place, &origin, ("c1", 0xab, 1_500));
        let due = json!({"Records": [{
            "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "us-east-1",
            "eventTime": "1970-01-01T00:00:00.000Z", "eventName": "ObjectCreated:Put",
            "userIdentity": {"principalId": "AWS:unlade"},
            "requestParameters": {"sourceIPAddress": "127.0.0.1"},
            "responseElements": {"x-amz-request-id": "R1", "x-amz-id-2": "R1"},
            "s3": {
                "s3SchemaVersion": "1.0", "configurationId": "c1",
                "bucket": {"name": "box", "ownerIdentity": {"principalId": "unlade"},
                           "arn": "arn:aws:s3:::box"},
                "object": {"key": "a+b/%C3%BC%2B", "size": 5, "eTag": "e", "versionId": "v",
                           "sequencer": "00000000000000AB"}}}]});
        assert_eq!(found, due);
        let place = Place { version: None, ..place };
        let found = event(&Change::Removed, &place, &Origin::default(), ("c1", 1, 0));
        let object = &found["Records"][0]["s3"]["object"];
        assert_eq!(*object, json!({"key": "a+b/%C3%BC%2B", "sequencer": "0000000000000001"}));
        assert_eq!(found["Records"][0]["userIdentity"]["principalId"], "Anonymous");
    }
}
