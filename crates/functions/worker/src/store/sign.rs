//! Signature Version 4, computed by AWS's own library.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_lc_rs::digest::{SHA256, digest};
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SessionTokenMode, SignableBody, SignableRequest,
    SignatureLocation, SigningInstructions, SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4::{self, calculate_signature, generate_signing_key};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::body::hex;
use super::credentials::Keys;
use super::transport::{Form, TransportError};

/// The payload hash of a request whose chunks are signed.
const CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const CHUNKS_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
/// SHA-256 of the empty string.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A signer for one region with one pair of keys.
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

impl Form<'_> {
    /// The policy of the form, in base64: the caller's conditions, those of bucket and key, and
    /// those of the signature version.
    fn policy(&self, of_signature: Vec<Value>, now: SystemTime) -> String {
        let mut conditions = self.conditions.to_vec();
        conditions.push(json!({"bucket": self.bucket}));
        conditions.push(match self.key.strip_suffix("${filename}") {
            Some(start) => json!(["starts-with", "$key", start]),
            None => json!({"key": self.key}),
        });
        conditions.extend(of_signature);
        let (end, _) = unlade_s3::value::of_time(now + self.expires);
        // Whole seconds, as in the documentation of the service.
        let end = end["$instant"].as_str().unwrap_or_default().replace(".000Z", "Z");
        let policy = json!({"expiration": end, "conditions": conditions}).to_string();
        STANDARD.encode(policy)
    }

    /// The fields of the caller, and the key.
    fn own_fields(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = self.fields.iter().map(|(name, value)| (name.clone(), text(value)));
        fields.chain([("key".to_owned(), self.key.to_owned())]).collect()
    }
}

/// The payload hash of a request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// SHA-256 of the body, in hexadecimal.
    Sha256(&'a str),
    /// No hash: TLS protects the body.
    Unsigned,
    /// No hash, and a checksum follows the body.
    UnsignedTrailer,
    /// Each chunk has its own signature ([`super::chunked`]).
    Chunks {
        /// True if a checksum follows the body.
        has_trailer: bool,
    },
}

/// The signed headers of a request whose body is signed in chunks.
#[derive(Debug)]
pub struct Sealed {
    /// The additional header fields.
    pub headers: Vec<(String, String)>,
    /// The signer of the chunks.
    pub chunks: ChunkSigner,
}

/// A signer of chunks: each signature covers the previous one.
pub struct ChunkSigner {
    key: Vec<u8>,
    /// Time and scope, one line each.
    scope: String,
    previous: String,
}

impl std::fmt::Debug for ChunkSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkSigner").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl ChunkSigner {
    /// The previous signature: at first that of the head.
    pub fn previous(&self) -> &str {
        &self.previous
    }

    /// Signs the data of a chunk.
    pub fn chunk(&mut self, data: &[u8]) -> &str {
        let hash = hex(digest(&SHA256, data).as_ref());
        self.sign("AWS4-HMAC-SHA256-PAYLOAD", &format!("{EMPTY_SHA256}\n{hash}"))
    }

    /// Signs the fields after the last chunk, one line each.
    pub fn trailer(&mut self, fields: &str) -> &str {
        let hash = hex(digest(&SHA256, fields.as_bytes()).as_ref());
        self.sign("AWS4-HMAC-SHA256-TRAILER", &hash)
    }

    fn sign(&mut self, kind: &str, hashes: &str) -> &str {
        let text = format!("{kind}\n{}\n{}\n{hashes}", self.scope, self.previous);
        self.previous = calculate_signature(&self.key, text.as_bytes());
        &self.previous
    }
}

fn failed(error: impl std::fmt::Display) -> TransportError {
    TransportError::Sign(error.to_string())
}

impl Signer {
    /// Creates a signer with a pair of keys.
    pub fn new(keys: Keys, region: &str) -> Signer {
        let credentials = keys.credentials();
        Signer { keys, credentials, region: region.to_owned() }
    }

    /// The region of requests that name none.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The additional header fields of a signed request.
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
        Ok(self.head(method, url, headers, payload, region, now)?.0)
    }

    /// The same, with the signature itself.
    fn head(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        payload: Payload<'_>,
        region: &str,
        now: SystemTime,
    ) -> Result<(Vec<(String, String)>, String), TransportError> {
        let mut settings = settings();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let body = match payload {
            Payload::Sha256(hex) => SignableBody::Precomputed(hex.to_owned()),
            Payload::Unsigned => SignableBody::UnsignedPayload,
            Payload::UnsignedTrailer => SignableBody::StreamingUnsignedPayloadTrailer,
            Payload::Chunks { has_trailer } => {
                SignableBody::Precomputed(if has_trailer { CHUNKS_TRAILER } else { CHUNKS }.into())
            }
        };
        let request = (method, url, headers);
        let (made, signature) = self.sign(request, body, settings, region, now)?;
        let (headers, _) = made.into_parts();
        let headers = headers.iter().map(|h| (h.name().to_owned(), h.value().to_owned()));
        Ok((headers.collect(), signature))
    }

    /// The same for a request whose chunks are signed, with their signer.
    ///
    /// # Errors
    /// [`TransportError::Sign`].
    pub fn seal(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        payload: Payload<'_>,
        region: &str,
        now: SystemTime,
    ) -> Result<Sealed, TransportError> {
        let (headers, previous) = self.head(method, url, headers, payload, region, now)?;
        let secret = &self.keys.secret_access_key.0;
        let key = generate_signing_key(secret, now, region, "s3").as_ref().to_vec();
        let stamp = timestamp(now);
        let day = stamp.get(..8).unwrap_or_default();
        let scope = format!("{stamp}\n{day}/{region}/s3/aws4_request");
        Ok(Sealed { headers, chunks: ChunkSigner { key, scope, previous } })
    }

    /// The additional query fields of a presigned URL.
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
        let (made, _) = self.sign(request, body, settings, region, now)?;
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
    ) -> Result<(SigningInstructions, String), TransportError> {
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
        Ok(sign(request, &params).map_err(failed)?.into_parts())
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

/// The settings of S3: paths are encoded once.
fn settings() -> SigningSettings {
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.session_token_mode = SessionTokenMode::Include;
    settings
}

/// `20260102T030405Z`.
fn timestamp(now: SystemTime) -> String {
    let (instant, _) = unlade_s3::value::of_time(now);
    let text = instant["$instant"].as_str().unwrap_or_default();
    let plain: String = text.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{}Z", plain.split('.').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

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
