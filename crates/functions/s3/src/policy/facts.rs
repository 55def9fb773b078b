//! Facts of a request: the values of condition keys. A key is known, known to be absent, or unknown
//! to the host; an unknown one decides against the request.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::operation::{Operation, Place};

/// The keys that every request of a function may have.
const OF_ALL: &[&str] = &[
    "aws:CurrentTime",
    "aws:EpochTime",
    "aws:PrincipalAccount",
    "aws:PrincipalArn",
    "aws:PrincipalType",
    "aws:RequestedRegion",
    "aws:SecureTransport",
];
/// The keys of requests of functions.
const OF_FUNCTION: &[&str] = &[
    "lambda:SourceFunctionArn",
    "s3:LocationConstraint",
    "s3:VersionId",
    "s3:delimiter",
    "s3:max-keys",
    "s3:prefix",
];
/// Header fields of S3 whose values are keys, after `s3:`.
const HEADERS: &[&str] = &[
    "x-amz-acl",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write",
    "x-amz-grant-write-acp",
    "x-amz-metadata-directive",
    "x-amz-object-ownership",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
];
/// The actions that have `s3:prefix`, `s3:delimiter` and `s3:max-keys`.
const LISTS: &[&str] = &["s3:ListBucket", "s3:ListBucketVersions"];
/// The keys of invocations.
const OF_INVOCATION: &[&str] = &[
    "aws:PrincipalIsAWSService",
    "aws:PrincipalServiceName",
    "aws:SourceAccount",
    "aws:SourceArn",
    "aws:SourceIp",
    "aws:username",
    "lambda:FunctionArn",
    "lambda:FunctionUrlAuthType",
    "lambda:InvokedViaFunctionUrl",
];

/// The requests that a document is about: they decide which keys it may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Requests of a function, to a store or a service.
    Function,
    /// Invocations of a function.
    Invocation,
}

impl Vocabulary {
    /// Returns true if the host knows a key.
    pub fn knows(self, key: &str) -> bool {
        self.keys().any(|known| known.eq_ignore_ascii_case(key))
    }

    /// All keys that the host knows.
    pub fn keys(self) -> impl Iterator<Item = String> {
        let (own, headers) = match self {
            Vocabulary::Function => (OF_FUNCTION, HEADERS),
            Vocabulary::Invocation => (OF_INVOCATION, &[][..]),
        };
        let plain = OF_ALL.iter().chain(own).map(|key| (*key).to_owned());
        plain.chain(headers.iter().map(|name| format!("s3:{name}")))
    }
}

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// It has these values, one at least.
    Values(&'a [String]),
    /// The request does not have it.
    Absent,
    /// The host cannot tell.
    Unknown,
}

/// The circumstances of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The time.
    pub now: SystemTime,
    /// The region that the request is for; empty if the host cannot tell.
    pub region: String,
    /// True if the connection is encrypted.
    pub has_tls: bool,
    /// True if others will make the request at another time, by a presigned URL or form.
    pub is_deferred: bool,
}

impl Environment {
    /// Circumstances that no test depends on.
    #[doc(hidden)]
    pub fn of_tests() -> Environment {
        let region = "us-east-1".to_owned();
        Environment { now: UNIX_EPOCH, region, has_tls: true, is_deferred: false }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    values: BTreeMap<String, Option<Vec<String>>>,
}

impl Facts {
    /// The value of a key, in small letters.
    pub fn find(&self, key: &str) -> Found<'_> {
        match self.values.get(key) {
            None => Found::Absent,
            Some(Some(values)) => Found::Values(values),
            Some(None) => Found::Unknown,
        }
    }

    /// Adds a key with one value.
    #[must_use]
    pub fn with(self, key: &str, value: &str) -> Facts {
        self.with_all(key, [value])
    }

    /// Adds a key with several values.
    #[must_use]
    pub fn with_all<'a>(mut self, key: &str, all: impl IntoIterator<Item = &'a str>) -> Facts {
        let values: Vec<String> = all.into_iter().map(str::to_owned).collect();
        if !values.is_empty() {
            self.values.insert(key.to_ascii_lowercase(), Some(values));
        }
        self
    }

    /// Adds a key whose value the host cannot tell.
    #[must_use]
    pub fn with_unknown(mut self, key: &str) -> Facts {
        self.values.insert(key.to_ascii_lowercase(), None);
        self
    }

    /// Adds the circumstances of a request.
    #[must_use]
    pub fn in_environment(mut self, environment: &Environment) -> Facts {
        let Environment { now, region, has_tls, is_deferred } = environment;
        let since = now.duration_since(UNIX_EPOCH).ok();
        let since = since.filter(|_| !is_deferred).and_then(|since| {
            let seconds = i64::try_from(since.as_secs()).ok()?;
            let time = OffsetDateTime::from_unix_timestamp(seconds).ok()?;
            Some((seconds.to_string(), time.format(&Rfc3339).ok()?))
        });
        self = match since {
            Some((seconds, time)) => {
                self.with("aws:EpochTime", &seconds).with("aws:CurrentTime", &time)
            }
            None => self.with_unknown("aws:EpochTime").with_unknown("aws:CurrentTime"),
        };
        // Also that of a URL or form: its signature contains the region.
        self = match region.as_str() {
            "" => self.with_unknown("aws:RequestedRegion"),
            region => self.with("aws:RequestedRegion", region),
        };
        // The holder of a URL or form chooses the transport.
        match is_deferred {
            true => self.with_unknown("aws:SecureTransport"),
            false => self.with("aws:SecureTransport", &has_tls.to_string()),
        }
    }

    /// Adds the keys of an operation of S3, except the version, which each of its objects has for
    /// itself. Fields that the holder of a presigned URL could add are unknown.
    #[must_use]
    pub(super) fn of_operation(
        mut self,
        operation: &Operation,
        parameters: &Map<String, Value>,
        is_deferred: bool,
    ) -> Facts {
        for field in operation.input.iter().copied().flatten() {
            let key = match field.place {
                Place::Query(name @ ("prefix" | "delimiter" | "max-keys"))
                    if LISTS.contains(&operation.action) =>
                {
                    format!("s3:{name}")
                }
                Place::Header(name) if is_key(name) => format!("s3:{}", name.to_lowercase()),
                _ => continue,
            };
            self = match (parameters.get(field.name), is_deferred && key.contains("x-amz-")) {
                (None | Some(Value::Null), false) => self,
                (None | Some(Value::Null), true) => self.with_unknown(&key),
                (Some(value), _) => self.with_value(&key, value),
            };
        }
        let location = parameters.get("CreateBucketConfiguration");
        match location.and_then(|own| own.get("LocationConstraint")) {
            Some(value) => self.with_value("s3:LocationConstraint", value),
            None => self,
        }
    }

    fn with_value(self, key: &str, value: &Value) -> Facts {
        match value {
            // Servers ignore blanks around a header field, and read an empty one as they like.
            Value::String(text) => match text.trim_matches([' ', '\t']) {
                "" if key.contains("x-amz-") => self.with_unknown(key),
                trimmed if key.contains("x-amz-") => self.with(key, trimmed),
                _ => self.with(key, text),
            },
            Value::Number(number) => self.with(key, &number.to_string()),
            Value::Bool(flag) => self.with(key, &flag.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => self.with_unknown(key),
        }
    }
}

fn is_key(header: &str) -> bool {
    HEADERS.iter().any(|known| known.eq_ignore_ascii_case(header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::find;
    use serde_json::json;

    fn of(operation: &str, parameters: Value, is_deferred: bool) -> Facts {
        let operation = find(operation).unwrap();
        Facts::default().of_operation(operation, parameters.as_object().unwrap(), is_deferred)
    }

    #[test]
    fn parameters_are_facts() {
        let list = json!({"Bucket": "b", "Prefix": "a/", "MaxKeys": 7});
        let facts = of("ListObjectsV2", list, false);
        assert_eq!(facts.find("s3:prefix"), Found::Values(&["a/".to_owned()]));
        assert_eq!(facts.find("s3:max-keys"), Found::Values(&["7".to_owned()]));
        assert_eq!(facts.find("s3:delimiter"), Found::Absent);
        let put = json!({"Bucket": "b", "Key": "k", "ACL": "private", "StorageClass": [1]});
        let facts = of("PutObject", put, false);
        assert_eq!(facts.find("s3:x-amz-acl"), Found::Values(&["private".to_owned()]));
        assert_eq!(facts.find("s3:x-amz-storage-class"), Found::Unknown);
        assert_eq!(facts.find("s3:x-amz-server-side-encryption"), Found::Absent);
        let facts = of("PutObject", json!({"Bucket": "b", "Key": "k"}), true);
        assert_eq!(facts.find("s3:x-amz-server-side-encryption"), Found::Unknown);
        let here = json!({"Bucket": "b",
            "CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}});
        let facts = of("CreateBucket", here, false);
        assert_eq!(facts.find("s3:locationconstraint"), Found::Values(&["eu-west-1".into()]));
    }

    /// Each header field that is a key belongs to an operation: no key is always absent.
    #[test]
    fn every_key_of_s3_can_have_a_value() {
        let all = crate::operation::all();
        let headers: Vec<String> = all
            .flat_map(|operation| operation.input.iter().copied().flatten())
            .filter_map(|field| match field.place {
                Place::Header(name) => Some(name.to_lowercase()),
                _ => None,
            })
            .collect();
        for header in HEADERS {
            assert!(headers.iter().any(|found| found == header), "{header}");
        }
    }

    #[test]
    fn circumstances_are_facts() {
        let now = UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        let region = "eu-west-1".to_owned();
        let now = Environment { now, region, has_tls: false, is_deferred: false };
        let facts = Facts::default().in_environment(&now);
        let value = |key: &str| match facts.find(key) {
            Found::Values([value]) => value.clone(),
            other => format!("{other:?}"),
        };
        assert_eq!(value("aws:currenttime"), "2023-11-14T22:13:20Z");
        assert_eq!(value("aws:epochtime"), "1700000000");
        assert_eq!(value("aws:securetransport"), "false");
        assert_eq!(value("aws:requestedregion"), "eu-west-1");
        let nowhere = Environment { region: String::new(), ..now.clone() };
        let facts = Facts::default().in_environment(&nowhere);
        assert_eq!(facts.find("aws:requestedregion"), Found::Unknown);
        let later = Environment { is_deferred: true, ..now };
        let facts = Facts::default().in_environment(&later);
        for key in ["currenttime", "epochtime", "securetransport"] {
            assert_eq!(facts.find(&format!("aws:{key}")), Found::Unknown, "{key}");
        }
        assert_eq!(facts.find("aws:requestedregion"), Found::Values(&["eu-west-1".into()]));
    }
}
