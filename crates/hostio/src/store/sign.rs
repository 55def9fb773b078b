//! Signature Version 4, by AWS's own library.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SessionTokenMode, SignableBody, SignableRequest,
    SignatureLocation, SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4::{self, calculate_signature, generate_signing_key};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::credentials::Keys;
use super::{TransportError, Version};

/// Signs for one region with one pair of keys.
pub struct Signer {
    keys: Keys,
    credentials: Credentials,
    region: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("region", &self.region).finish_non_exhaustive()
    }
}

/// What a form lets its holder upload.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// The key; `${filename}` at its end is the holder's.
    pub key: &'a str,
    /// Fields that are the caller's.
    pub fields: &'a Map<String, Value>,
    /// Conditions that are the caller's.
    pub conditions: &'a [Value],
    /// For how long.
    pub expires: Duration,
    /// That of the function's client; none: the worker's own.
    pub region: Option<&'a str>,
    /// The rules; none: those that SDKs take in that region.
    pub version: Option<Version>,
}

impl Form<'_> {
    /// What the holder may do, in base64: conditions of the caller, those of bucket and key, and
    /// those of a kind of signature.
    pub(super) fn policy(&self, of_signature: Vec<Value>, now: SystemTime) -> String {
        let mut conditions = self.conditions.to_vec();
        conditions.push(json!({"bucket": self.bucket}));
        conditions.push(match self.key.strip_suffix("${filename}") {
            Some(start) => json!(["starts-with", "$key", start]),
            None => json!({"key": self.key}),
        });
        conditions.extend(of_signature);
        let (end, _) = object::value::of_time(now + self.expires);
        // To the second, as the service documents it.
        let end = end["$instant"].as_str().unwrap_or_default().replace(".000Z", "Z");
        let policy = json!({"expiration": end, "conditions": conditions}).to_string();
        STANDARD.encode(policy)
    }

    /// The caller's fields, and the key.
    pub(super) fn own_fields(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = self.fields.iter().map(|(name, value)| (name.clone(), text(value)));
        fields.chain([("key".to_owned(), self.key.to_owned())]).collect()
    }
}

/// What is hashed of a body.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// SHA-256, in hexadecimal.
    Sha256(&'a str),
    /// Nothing: TLS protects it.
    Unsigned,
}

fn failed(error: impl std::fmt::Display) -> TransportError {
    TransportError::Sign(error.to_string())
}

impl Signer {
    /// Signs with these keys.
    pub fn new(keys: Keys, region: &str) -> Signer {
        let token = keys.session_token.as_ref().map(|token| token.0.clone());
        let (id, secret) = (keys.access_key_id.clone(), keys.secret_access_key.0.clone());
        let credentials = Credentials::new(id, secret, token, None, "unlade");
        Signer { keys, credentials, region: region.to_owned() }
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The region that is named where a request names none.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The header fields that a request needs beside its own.
    ///
    /// # Errors
    /// [`TransportError::Sign`].
    pub fn headers(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        payload: Payload<'_>,
        region: &str,
        now: SystemTime,
    ) -> Result<Vec<(String, String)>, TransportError> {
        let mut settings = settings();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let body = match payload {
            Payload::Sha256(hex) => SignableBody::Precomputed(hex.to_owned()),
            Payload::Unsigned => SignableBody::UnsignedPayload,
        };
        let request = (method, url, headers);
        let made = self.sign(request, body, settings, region, now)?;
        let (headers, _) = made.into_parts();
        Ok(headers.iter().map(|h| (h.name().to_owned(), h.value().to_owned())).collect())
    }

    /// The fields that a query needs beside its own.
    ///
    /// # Errors
    /// [`TransportError::Sign`].
    pub fn query(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        expires: Duration,
        region: &str,
        now: SystemTime,
    ) -> Result<Vec<(String, String)>, TransportError> {
        let mut settings = settings();
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = Some(expires);
        let body = SignableBody::UnsignedPayload;
        let request = (method, url, headers);
        let made = self.sign(request, body, settings, region, now)?;
        let (_, fields) = made.into_parts();
        Ok(fields.into_iter().map(|(key, value)| (key.to_owned(), value.into_owned())).collect())
    }

    fn sign(
        &self,
        (method, url, headers): (&str, &str, &[(String, String)]),
        body: SignableBody<'_>,
        settings: SigningSettings,
        region: &str,
        now: SystemTime,
    ) -> Result<aws_sigv4::http_request::SigningInstructions, TransportError> {
        let identity = self.credentials.clone().into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(region)
            .name("s3")
            .time(now)
            .settings(settings)
            .build()
            .map_err(failed)?
            .into();
        let fields = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let request = SignableRequest::new(method, url, fields, body).map_err(failed)?;
        Ok(sign(request, &params).map_err(failed)?.into_parts().0)
    }

    /// The fields of a form (S3 API reference, "Browser-based uploads using POST").
    pub fn form(&self, form: Form<'_>, now: SystemTime) -> Vec<(String, String)> {
        let stamp = timestamp(now);
        let day = stamp.get(..8).unwrap_or_default();
        let id = &self.keys.access_key_id;
        let region = form.region.unwrap_or(&self.region);
        let credential = format!("{id}/{day}/{region}/s3/aws4_request");
        let mut fields = form.own_fields();
        let mut own = vec![
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-credential", &credential),
            ("x-amz-date", &stamp),
        ];
        if let Some(token) = &self.keys.session_token {
            own.push(("x-amz-security-token", &token.0));
        }
        fields.extend(own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let conditions = own.iter().map(|(name, value)| json!({ *name: value })).collect();
        let policy = form.policy(conditions, now);
        let secret = &self.keys.secret_access_key.0;
        let key = generate_signing_key(secret, now, region, "s3");
        fields.push(("x-amz-signature".to_owned(), calculate_signature(key, policy.as_bytes())));
        fields.push(("policy".to_owned(), policy));
        fields
    }
}

/// What S3 wants: paths as they are sent, encoded once.
fn settings() -> SigningSettings {
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.session_token_mode = SessionTokenMode::Include;
    settings
}

/// `20260102T030405Z`.
fn timestamp(now: SystemTime) -> String {
    let (instant, _) = object::value::of_time(now);
    let text = instant["$instant"].as_str().unwrap_or_default();
    let plain: String = text.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{}Z", plain.split('.').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::credentials::Secret;
    use std::time::UNIX_EPOCH;

    /// The keys of AWS's published example.
    fn signer() -> Signer {
        let keys = Keys {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            session_token: None,
        };
        Signer::new(keys, "us-east-1")
    }

    /// Friday, 24 May 2013.
    fn then() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_369_353_600)
    }

    /// "Example: GET Object" of the S3 API reference's "Authorization header" page.
    #[test]
    fn a_get_is_signed_as_published() {
        let range = vec![("range".to_owned(), "bytes=0-9".to_owned())];
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let url = "https://examplebucket.s3.amazonaws.com/test.txt";
        let payload = Payload::Sha256(empty);
        let fields = signer().headers("GET", url, &range, payload, "us-east-1", then()).unwrap();
        let authorization = fields.iter().find(|(name, _)| name == "authorization").unwrap();
        let due = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(authorization.1.ends_with(due), "{}", authorization.1);
    }

    /// The example of the page on query parameters.
    #[test]
    fn an_address_is_signed_as_published() {
        let url = "https://examplebucket.s3.amazonaws.com/test.txt";
        let day = Duration::from_secs(86_400);
        let fields = signer().query("GET", url, &[], day, "us-east-1", then()).unwrap();
        let signature = fields.iter().find(|(name, _)| name == "X-Amz-Signature").unwrap();
        let due = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
        assert_eq!(signature.1, due);
    }

    #[test]
    fn a_form_names_what_it_allows() {
        let fields = Map::from_iter([("acl".to_owned(), json!("private"))]);
        let form = Form {
            bucket: "b",
            key: "up/${filename}",
            fields: &fields,
            conditions: &[json!({"acl": "private"})],
            expires: Duration::from_secs(3600),
            region: None,
            version: None,
        };
        let made = signer().form(form, then());
        let field = |name: &str| &made.iter().find(|(found, _)| found == name).unwrap().1;
        assert_eq!(field("x-amz-date"), "20130524T000000Z");
        let policy: Value =
            serde_json::from_slice(&STANDARD.decode(field("policy")).unwrap()).unwrap();
        assert_eq!(policy["expiration"], "2013-05-24T01:00:00Z");
        let conditions = policy["conditions"].as_array().unwrap();
        assert!(conditions.contains(&json!(["starts-with", "$key", "up/"])));
        assert_eq!(field("x-amz-signature").len(), 64);
    }
}
