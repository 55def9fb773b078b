//! The text of a REQUEST: the head of an HTTP request to a service, which the guest's SDK has
//! prepared and not signed; and the text of its answer.
//!
//! The guest is untrusted. A decoded head has no line end, no field that belongs to the host
//! (`Host`, length and framing of the body, signatures), no authority in its target and no segment
//! that a server could resolve. No I/O.

use serde::{Deserialize, Serialize};

use super::split_head;
use crate::request_error::RequestError;
use crate::request_keys::RequestKeys;

/// Most bytes of the text of a REQUEST.
pub const TEXT_BYTES_MAX: usize = 96 * 1024;
/// Most bytes of a body that follows the text.
pub const INLINE_BYTES_MAX: usize = 4096;
/// Most bytes of the path.
pub const PATH_BYTES_MAX: usize = 8 * 1024;
/// Most bytes of the query.
pub const QUERY_BYTES_MAX: usize = 16 * 1024;
/// Most header fields.
pub const FIELDS_MAX: usize = 64;
/// Most bytes of a header field's name.
pub const NAME_BYTES_MAX: usize = 128;
/// Most bytes of all header fields.
pub const FIELDS_BYTES_MAX: usize = 32 * 1024;
/// Most bytes of the name of a service, an operation or a region.
pub const WORD_BYTES_MAX: usize = 128;

/// Header fields that the host makes, or that belong to one connection.
const FIELDS_OF_THE_HOST: &[&str] = &[
    "authorization",
    "connection",
    "content-length",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-region-set",
    "x-amz-security-token",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];
/// Beginnings of names of header fields that the host makes, or that address a metadata service.
const FIELDS_OF_THE_HOST_BEGIN: &[&str] = &["x-unlade-", "x-forwarded-", "x-aws-ec2-metadata-"];

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RequestMethod {
    /// GET
    Get,
    /// HEAD
    Head,
    /// PUT
    Put,
    /// POST
    Post,
    /// PATCH
    Patch,
    /// DELETE
    Delete,
}

impl RequestMethod {
    /// The method as a request line has it.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestMethod::Get => "GET",
            RequestMethod::Head => "HEAD",
            RequestMethod::Put => "PUT",
            RequestMethod::Post => "POST",
            RequestMethod::Patch => "PATCH",
            RequestMethod::Delete => "DELETE",
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Returns true for a header field that the host makes, or that belongs to one connection. The name
/// is in small letters.
pub fn is_of_the_host(name: &str) -> bool {
    FIELDS_OF_THE_HOST.contains(&name)
        || FIELDS_OF_THE_HOST_BEGIN.iter().any(|start| name.starts_with(start))
}

/// The head of a request to a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestHead {
    /// The name of the service, as boto3 has it: `dynamodb`.
    pub service: String,
    /// True if `service` is the name in signatures: services that share it are told apart by the
    /// request.
    #[serde(default, skip_serializing_if = "is_false")]
    pub signing_name: bool,
    /// The operation that the guest claims: `GetItem`.
    pub operation: String,
    /// The region of the function's client.
    pub region: String,
    /// The method.
    pub method: RequestMethod,
    /// The path, percent-encoded; begins with a slash.
    pub path: String,
    /// The query without its question mark, percent-encoded.
    #[serde(default)]
    pub query: String,
    /// The header fields in order; names in small letters.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Length of the whole body.
    #[serde(default)]
    pub body_bytes: u64,
    /// True if the body follows the text.
    #[serde(default)]
    pub inline: bool,
    /// True if the function's client does not sign.
    #[serde(default)]
    pub unsigned: bool,
    /// The keys that sign, if the function's client has some of its own; the host's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<RequestKeys>,
    /// Longest silence of the service in milliseconds, as the function's client has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_timeout_ms: Option<u64>,
}

impl RequestHead {
    /// The head of an operation by POST to `/`, without header fields; its body is not counted yet.
    pub fn post(service: &str, region: &str, operation: &str) -> RequestHead {
        RequestHead {
            service: service.to_owned(),
            signing_name: false,
            operation: operation.to_owned(),
            region: region.to_owned(),
            method: RequestMethod::Post,
            path: "/".to_owned(),
            query: String::new(),
            headers: Vec::new(),
            body_bytes: 0,
            inline: false,
            unsigned: false,
            credentials: None,
            read_timeout_ms: None,
        }
    }

    /// Decodes the meta of a REQUEST: the head, and the body after its text.
    ///
    /// # Errors
    /// The text is malformed or too long, or tries what belongs to the host.
    pub fn decode(meta: &[u8]) -> Result<(RequestHead, &[u8]), RequestError> {
        let (text, inline) = split_head(meta);
        within("text", text.len(), TEXT_BYTES_MAX)?;
        let head: RequestHead =
            serde_json::from_slice(text).map_err(|error| RequestError::Form(error.to_string()))?;
        head.check()?;
        let due = if head.inline { head.body_bytes } else { 0 };
        if inline.len() as u64 != due || inline.len() > INLINE_BYTES_MAX {
            return Err(RequestError::Inline { found: inline.len(), due });
        }
        Ok((head, inline))
    }

    /// Encodes the text.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The value of a header field; `None` if it is absent or occurs more than once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(field, _)| field == name);
        let value = found.next().map(|(_, value)| value.as_str());
        if found.next().is_some() { None } else { value }
    }

    /// True if a header field occurs.
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(field, _)| field == name)
    }

    /// Refuses a head that is malformed or too long, or that has what belongs to the host.
    ///
    /// # Errors
    /// The first such part.
    pub fn check(&self) -> Result<(), RequestError> {
        for (what, word) in
            [("service", &self.service), ("operation", &self.operation), ("region", &self.region)]
        {
            within(what, word.len(), WORD_BYTES_MAX)?;
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if !word.bytes().all(is_plain) || (word.is_empty() && what != "operation") {
                return Err(RequestError::Malformed(what));
            }
        }
        within("path", self.path.len(), PATH_BYTES_MAX)?;
        if !is_path(&self.path) {
            return Err(RequestError::Malformed("path"));
        }
        within("query", self.query.len(), QUERY_BYTES_MAX)?;
        if !self.query.bytes().all(is_of_target) || self.query.contains('#') {
            return Err(RequestError::Malformed("query"));
        }
        if let Some(keys) = &self.credentials {
            keys.check()?;
        }
        self.check_fields()
    }

    fn check_fields(&self) -> Result<(), RequestError> {
        within("header fields", self.headers.len(), FIELDS_MAX)?;
        let bytes = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        within("bytes of header fields", bytes, FIELDS_BYTES_MAX)?;
        for (name, value) in &self.headers {
            within("name of a header field", name.len(), NAME_BYTES_MAX)?;
            if name.is_empty() || !name.bytes().all(is_of_name) {
                return Err(RequestError::Malformed("name of a header field"));
            }
            if !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                return Err(RequestError::Malformed("value of a header field"));
            }
            if is_of_the_host(name) {
                return Err(RequestError::Field(name.clone()));
            }
        }
        Ok(())
    }
}

fn within(what: &'static str, length: usize, limit: usize) -> Result<(), RequestError> {
    if length > limit { Err(RequestError::TooLong { what, limit }) } else { Ok(()) }
}

/// A byte of a path or a query (RFC 3986 §2): visible, and not one that begins or ends something
/// else.
fn is_of_target(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)
}

/// A byte of a header field's name (RFC 9110 §5.6.2), in small letters.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// True for a path from the root whose percent escapes are complete, without segments that a server
/// resolves or drops: `.`, `..`, an empty one before the last.
fn is_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    if !path.bytes().all(is_of_target) || path.contains(['?', '#']) {
        return false;
    }
    let count = rest.split('/').count();
    rest.split('/').enumerate().all(|(at, segment)| {
        let Some(plain) = unescaped(segment) else { return false };
        let is_last = at + 1 == count;
        (is_last || !plain.is_empty()) && !matches!(&plain[..], b"." | b"..")
    })
}

/// The bytes of a segment without its percent escapes; `None` for an incomplete escape, a zero byte
/// or a line end.
pub fn unescaped(segment: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|digit| (digit as char).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        out.push((high * 16 + low) as u8);
    }
    let is_control = |byte: &u8| matches!(byte, 0 | b'\r' | b'\n');
    (!out.iter().any(is_control)).then_some(out)
}

/// The head of a service's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerHead {
    /// The status.
    pub http_status: u16,
    /// The header fields in order; names in small letters.
    pub headers: Vec<(String, String)>,
}

impl AnswerHead {
    /// Encodes the text.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> RequestHead {
        RequestHead {
            service: "dynamodb".into(),
            signing_name: false,
            operation: "GetItem".into(),
            region: "eu-west-1".into(),
            method: RequestMethod::Post,
            path: "/".into(),
            query: String::new(),
            headers: vec![("x-amz-target".into(), "DynamoDB_20120810.GetItem".into())],
            body_bytes: 2,
            inline: true,
            unsigned: false,
            credentials: None,
            read_timeout_ms: None,
        }
    }

    fn decoded(head: &RequestHead) -> Result<RequestHead, RequestError> {
        let body = if head.inline { vec![b'x'; head.body_bytes as usize] } else { Vec::new() };
        let text = [head.to_json(), vec![0], body].concat();
        RequestHead::decode(&text).map(|(head, _)| head)
    }

    #[test]
    fn a_head_is_decoded_as_it_was_encoded() {
        let text = [&head().to_json()[..], b"\0{}"].concat();
        assert_eq!(RequestHead::decode(&text), Ok((head(), &b"{}"[..])));
        let plain = RequestHead { inline: false, body_bytes: 1 << 30, ..head() };
        assert_eq!(RequestHead::decode(&plain.to_json()), Ok((plain, &b""[..])));
        let short = [&head().to_json()[..], b"\0{"].concat();
        assert_eq!(RequestHead::decode(&short), Err(RequestError::Inline { found: 1, due: 2 }));
        assert!(matches!(RequestHead::decode(b"{}"), Err(RequestError::Form(_))));
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in [
            "",
            "x",
            "http://169.254.169.254/latest",
            "//169.254.169.254/latest",
            "/a//b",
            "/a/../b",
            "/a/%2e%2E/b",
            "/a/./b",
            "/..",
            "/a?b",
            "/a#b",
            "/a b",
            "/a\r\nhost: evil",
            "/a%0d%0ahost:evil",
            "/a%00",
            "/a%",
            "/a%zz",
            "/a\\b",
            "/é",
            "*",
        ] {
            let found = decoded(&RequestHead { path: path.into(), ..head() });
            assert_eq!(found, Err(RequestError::Malformed("path")), "{path:?}");
        }
        for path in ["/", "/a/", "/a/b%2Fc", "/2015-03-31/functions/f%3Av/code", "/@c/a=", "/a..b"]
        {
            assert!(decoded(&RequestHead { path: path.into(), ..head() }).is_ok(), "{path}");
        }
        for query in ["a b", "a#b", "a\r\nb", "é"] {
            let found = decoded(&RequestHead { query: query.into(), ..head() });
            assert_eq!(found, Err(RequestError::Malformed("query")), "{query:?}");
        }
    }

    #[test]
    fn fields_of_the_host_are_refused() {
        for name in FIELDS_OF_THE_HOST.iter().copied().chain([
            "x-unlade-depth",
            "x-forwarded-host",
            "x-aws-ec2-metadata-token",
        ]) {
            let headers = vec![(name.to_owned(), "x".to_owned())];
            let found = decoded(&RequestHead { headers, ..head() });
            assert_eq!(found, Err(RequestError::Field(name.to_owned())));
        }
        for (name, value) in [
            ("Host", "x"),
            ("a b", "x"),
            ("host ", "x"),
            ("a:b", "x"),
            ("", "x"),
            ("a", "b\r\nhost: c"),
            ("a", "b\nc"),
            ("a", "\0"),
            ("a", "é"),
            ("a", "b\tc"),
        ] {
            let headers = vec![(name.to_owned(), value.to_owned())];
            let found = decoded(&RequestHead { headers, ..head() });
            assert!(matches!(found, Err(RequestError::Malformed(_))), "{name:?} {value:?}");
        }
    }

    #[test]
    fn parts_are_bounded() {
        let is_long =
            |head: RequestHead| matches!(decoded(&head), Err(RequestError::TooLong { .. }));
        assert!(is_long(RequestHead {
            path: format!("/{}", "a".repeat(PATH_BYTES_MAX)),
            ..head()
        }));
        assert!(is_long(RequestHead { query: "a".repeat(QUERY_BYTES_MAX + 1), ..head() }));
        assert!(is_long(RequestHead { service: "a".repeat(WORD_BYTES_MAX + 1), ..head() }));
        let field = ("a".to_owned(), "b".to_owned());
        assert!(is_long(RequestHead { headers: vec![field; FIELDS_MAX + 1], ..head() }));
        let field = ("a".to_owned(), "b".repeat(FIELDS_BYTES_MAX));
        assert!(is_long(RequestHead { headers: vec![field], ..head() }));
        let field = ("a".repeat(NAME_BYTES_MAX + 1), String::new());
        assert!(is_long(RequestHead { headers: vec![field], ..head() }));
        let text = vec![b' '; TEXT_BYTES_MAX + 1];
        assert!(matches!(RequestHead::decode(&text), Err(RequestError::TooLong { .. })));
        for (service, region) in
            [("dynamodb.evil.example", "r"), ("", "r"), ("s", "a/b"), ("s", "")]
        {
            let (service, region) = (service.to_owned(), region.to_owned());
            let found = decoded(&RequestHead { service, region, ..head() });
            assert!(matches!(found, Err(RequestError::Malformed(_))));
        }
    }

    #[test]
    fn keys_of_the_functions_own_come_whole_or_not_at_all() {
        let keys = RequestKeys {
            access_key_id: "AKID".into(),
            secret_access_key: "hidden".into(),
            session_token: Some("token".into()),
        };
        let own = RequestHead { credentials: Some(keys.clone()), ..head() };
        assert_eq!(decoded(&own), Ok(own.clone()));
        let shown = format!("{own:?}");
        assert!(!shown.contains("AKID") && !shown.contains("hidden") && !shown.contains("token"));
        let long = RequestKeys { session_token: Some("t".repeat(8193)), ..keys };
        let found = decoded(&RequestHead { credentials: Some(long), ..head() });
        assert!(matches!(found, Err(RequestError::TooLong { what: "session token", .. })));
        for half in ["{}", r#"{"access_key_id":"a"}"#, r#"{"secret_access_key":"a"}"#, "7"] {
            let text = String::from_utf8(RequestHead { inline: false, ..head() }.to_json());
            let text = text.unwrap().replacen('{', &format!("{{\"credentials\":{half},"), 1);
            let found = RequestHead::decode(text.as_bytes());
            assert!(matches!(found, Err(RequestError::Form(_))), "{half}");
        }
    }

    #[test]
    fn a_field_that_occurs_twice_has_no_value() {
        let twice = vec![("a".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())];
        let head = RequestHead { headers: twice, ..head() };
        assert_eq!(head.header("a"), None);
        assert!(head.has_header("a") && !head.has_header("b"));
    }

    proptest! {
        /// Whatever the parts are: a decoded head has one line for each of them.
        #[test]
        fn a_decoded_head_smuggles_nothing(
            path in "[/a.%0-9dDA\r\n:]{0,12}",
            name in "[a-zH\r\n: -]{0,8}",
            value in "[ -~\r\n\0é]{0,8}",
        ) {
            let head = RequestHead { path, headers: vec![(name, value)], ..head() };
            if let Ok(head) = decoded(&head) {
                let line = format!("POST {} HTTP/1.1", head.path);
                prop_assert!(line.split(' ').count() == 3 && head.path.starts_with('/'));
                for (name, value) in &head.headers {
                    let line = format!("{name}: {value}");
                    prop_assert!(!line.contains(['\r', '\n']));
                    prop_assert!(!name.contains([':', ' ']));
                }
            }
        }
    }
}
