//! Signature Version 2 of addresses and forms: HMAC-SHA1 over a few lines (S3 developer guide,
//! "Signing and authenticating REST requests", "Query string request authentication alternative").
//!
//! Requests are never signed with this version. It is used only for URLs in old regions, for which
//! SDKs use it too.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::credentials::Keys;
use super::transport::{Form, Version};

/// Regions that support it. Newer regions do not.
const REGIONS: &[&str] = &[
    "ap-northeast-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "eu-west-1",
    "sa-east-1",
    "us-east-1",
    "us-west-1",
    "us-west-2",
    "aws-global",
    "s3-external-1",
    "us-gov-west-1",
    "fips-us-gov-west-1",
];
/// Query fields that are part of the resource and are signed.
const SIGNED: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "delete",
    "inventory",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "select",
    "select-type",
    "storageClass",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// The signature version that SDKs use for URLs in a region.
pub fn usual(region: &str) -> Version {
    if REGIONS.contains(&region) { Version::Two } else { Version::Four }
}

/// The resource to sign.
#[derive(Debug)]
pub struct SignableRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, encoded, starting with the bucket.
    pub path: String,
    /// The query, not encoded.
    pub query: &'a [(&'static str, String)],
}

/// The additional query fields of a presigned URL.
pub fn query(
    keys: &Keys,
    asked: &SignableRequest<'_>,
    headers: &[(String, String)],
    end: SystemTime,
) -> Vec<(String, String)> {
    let seconds = end.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut own: Vec<(String, String)> = headers
        .iter()
        .filter(|(name, _)| {
            name.starts_with("x-amz-") || name == "content-md5" || name == "content-type"
        })
        .cloned()
        .collect();
    if let Some(token) = &keys.session_token {
        own.push(("x-amz-security-token".to_owned(), token.0.clone()));
    }
    let text = text(asked, &own, seconds);
    let signature = sign(keys, &text);
    let mut fields = vec![
        ("AWSAccessKeyId".to_owned(), keys.access_key_id.clone()),
        ("Signature".to_owned(), signature),
    ];
    fields.extend(own);
    fields.push(("Expires".to_owned(), seconds.to_string()));
    fields
}

/// The string to sign of a request.
fn text(asked: &SignableRequest<'_>, headers: &[(String, String)], end_seconds: u64) -> String {
    let value = |name: &str| {
        let found = headers.iter().find(|(found, _)| found == name);
        found.map_or("", |(_, value)| value.trim())
    };
    let (md5, kind) = (value("content-md5"), value("content-type"));
    let mut text = format!("{}\n{md5}\n{kind}\n{end_seconds}\n", asked.method);
    let mut amz: Vec<_> = headers.iter().filter(|(name, _)| name.starts_with("x-amz-")).collect();
    amz.sort();
    for (name, value) in amz {
        text.push_str(&format!("{name}:{}\n", value.trim()));
    }
    text.push_str(&asked.path);
    let mut signed: Vec<_> = asked.query.iter().filter(|(name, _)| SIGNED.contains(name)).collect();
    signed.sort();
    for (at, (name, value)) in signed.into_iter().enumerate() {
        text.push(if at == 0 { '?' } else { '&' });
        text.push_str(name);
        if !value.is_empty() {
            text.push_str(&format!("={value}"));
        }
    }
    text
}

fn sign(keys: &Keys, text: &str) -> String {
    let secret = keys.secret_access_key.0.as_bytes();
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret);
    STANDARD.encode(hmac::sign(&key, text.as_bytes()))
}

/// The fields of a form ("Browser-based uploads using POST", with Signature Version 2).
pub fn form(keys: &Keys, form: Form<'_>, now: SystemTime) -> Vec<(String, String)> {
    let mut fields = form.own_fields();
    let mut conditions = Vec::new();
    if let Some(token) = &keys.session_token {
        conditions.push(json!({"x-amz-security-token": token.0}));
        fields.push(("x-amz-security-token".to_owned(), token.0.clone()));
    }
    let policy = form.policy(conditions, now);
    fields.push(("AWSAccessKeyId".to_owned(), keys.access_key_id.clone()));
    fields.push(("signature".to_owned(), sign(keys, &policy)));
    fields.push(("policy".to_owned(), policy));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::credentials::Secret;
    use std::time::Duration;

    /// "Query string request authentication alternative" has these keys and this address:
    /// `/johnsmith/photos/puppy.jpg?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Expires=1175139620&
    /// Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D`.
    #[test]
    fn an_address_is_signed_as_published() {
        let keys = Keys {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            session_token: None,
        };
        let end = UNIX_EPOCH + Duration::from_secs(1_175_139_620);
        let path = "/johnsmith/photos/puppy.jpg".to_owned();
        let asked = SignableRequest { method: "GET", path, query: &[] };
        let fields = query(&keys, &asked, &[], end);
        let field = |name: &str| fields.iter().find(|(found, _)| found == name).unwrap().1.as_str();
        assert_eq!(field("Expires"), "1175139620");
        assert_eq!(
            text(&asked, &[], 1_175_139_620),
            "GET\n\n\n1175139620\n/johnsmith/photos/puppy.jpg"
        );
        assert_eq!(field("Signature"), "NpgCjnDzrM+WFzoENXmpNDUsSn8=");
    }

    #[test]
    fn what_is_part_of_the_request_is_signed() {
        let query =
            [("versionId", "3".to_owned()), ("prefix", "a".to_owned()), ("acl", String::new())];
        let asked = SignableRequest { method: "PUT", path: "/b/k".to_owned(), query: &query };
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let headers =
            [header("x-amz-b", "2 "), header("content-type", "t/x"), header("x-amz-a", "1")];
        let due = "PUT\n\nt/x\n9\nx-amz-a:1\nx-amz-b:2\n/b/k?acl&versionId=3";
        assert_eq!(text(&asked, &headers, 9), due);
        assert_eq!(usual("us-east-1"), Version::Two);
        assert_eq!(usual("eu-central-1"), Version::Four);
    }
}
