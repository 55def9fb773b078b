//! Signature Version 4 for services other than S3, computed by AWS's own library: paths are encoded
//! twice, and no field has the hash of the body.

use std::time::SystemTime;

use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SessionTokenMode, SignableBody, SignableRequest,
    SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;

use crate::store::TransportError;
use crate::store::credentials::Keys;

/// The scope of a signature.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The region.
    pub region: &'a str,
    /// The service's name in signatures.
    pub service: &'a str,
}

/// The additional header fields of a signed request. `body_sha256` is in hexadecimal digits.
///
/// # Errors
/// [`TransportError::Sign`].
pub fn fields(
    keys: &Keys,
    scope: Scope<'_>,
    (method, url, headers): (&str, &str, &[(String, String)]),
    body_sha256: &str,
    now: SystemTime,
) -> Result<Vec<(String, String)>, TransportError> {
    let failed = |error: &dyn std::fmt::Display| TransportError::Sign(error.to_string());
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Double;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Enabled;
    settings.payload_checksum_kind = PayloadChecksumKind::NoHeader;
    settings.session_token_mode = SessionTokenMode::Include;
    let identity = keys.credentials().into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(scope.region)
        .name(scope.service)
        .time(now)
        .settings(settings)
        .build()
        .map_err(|error| failed(&error))?
        .into();
    let plain = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let body = SignableBody::Precomputed(body_sha256.to_owned());
    let request = SignableRequest::new(method, url, plain, body).map_err(|e| failed(&e))?;
    let (made, _) = sign(request, &params).map_err(|error| failed(&error))?.into_parts();
    let (headers, _) = made.into_parts();
    Ok(headers.iter().map(|h| (h.name().to_owned(), h.value().to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Body;
    use crate::store::credentials::Secret;
    use std::time::{Duration, UNIX_EPOCH};

    /// The example of "Create a signed AWS API request" in the IAM user guide: `ListUsers`.
    #[test]
    fn a_request_is_signed_as_published() {
        let keys = Keys {
            access_key_id: "AKIDEXAMPLE".into(),
            secret_access_key: Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into()),
            session_token: None,
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_440_938_160);
        let url = "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08";
        let headers = [(
            "content-type".to_owned(),
            "application/x-www-form-urlencoded; charset=utf-8".to_owned(),
        )];
        let scope = Scope { region: "us-east-1", service: "iam" };
        let empty = Body::default();
        let made = fields(&keys, scope, ("GET", url, &headers), empty.sha256(), now).unwrap();
        let field = |name: &str| &made.iter().find(|(found, _)| found == name).unwrap().1;
        let due = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7";
        assert!(field("authorization").ends_with(due), "{}", field("authorization"));
        assert_eq!(field("x-amz-date"), "20150830T123600Z");
        let token = Keys { session_token: Some(Secret("token".into())), ..keys };
        let made = fields(&token, scope, ("GET", url, &headers), empty.sha256(), now).unwrap();
        assert!(made.contains(&("x-amz-security-token".to_owned(), "token".to_owned())));
    }
}
