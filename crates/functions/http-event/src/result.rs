//! The response that a function's result stands for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Most bytes of all header fields of a response.
pub const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// The content type of a result that names none.
const JSON: &str = "application/json";
/// Fields that belong to the connection (RFC 9110 §7.6.1), or follow from the body: those of a result are
/// left out.
const OF_CONNECTION: [&str; 10] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Statuses of responses without a body (RFC 9110 §15).
const WITHOUT_BODY: [u16; 3] = [204, 205, 304];

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status, from 200 to 599.
    pub status: u16,
    /// Header fields; names are in small letters. A name may occur several times.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The reason why a result is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is no JSON.
    #[error("the result is no JSON")]
    Json,
    /// It is no object with `statusCode`, in format 1.0.
    #[error("the result is no object with statusCode")]
    NoStatus,
    /// `statusCode` is something else.
    #[error("statusCode is no number from 200 to 599")]
    Status,
    /// `headers` or `multiValueHeaders` is something else.
    #[error("headers is no object of texts, or multiValueHeaders no object of lists of texts")]
    Headers,
    /// A header field has characters that it may not have, or all are too long.
    #[error("a header field has a character that it may not have, or all are longer than 64 KiB")]
    Field,
    /// `cookies` is something else.
    #[error("cookies is no list of texts")]
    Cookies,
    /// `body` is something else.
    #[error("body is no text")]
    Body,
    /// `body` is not in base64.
    #[error("isBase64Encoded is true, and body is not in base64")]
    Base64,
}

/// The response of a result in payload format 2.0. A result without `statusCode` is a body with the status
/// 200 and the content type of JSON.
///
/// # Errors
/// The result is malformed.
pub fn of_v2(result: &[u8]) -> Result<Response, Malformed> {
    let value: Value = serde_json::from_slice(result).map_err(|_| Malformed::Json)?;
    let object = match value {
        Value::Object(object) if object.contains_key("statusCode") => object,
        Value::String(text) => return Ok(whole(text.into_bytes())),
        _ => return Ok(whole(result.to_vec())),
    };
    let mut headers = single(object.get("headers"))?;
    for cookie in cookies(object.get("cookies"))? {
        headers.push(("set-cookie".to_owned(), cookie));
    }
    response(&object, headers)
}

/// The response of a result in payload format 1.0.
///
/// # Errors
/// The result is malformed.
pub fn of_v1(result: &[u8]) -> Result<Response, Malformed> {
    let value: Value = serde_json::from_slice(result).map_err(|_| Malformed::Json)?;
    let Value::Object(object) = value else { return Err(Malformed::NoStatus) };
    if !object.contains_key("statusCode") {
        return Err(Malformed::NoStatus);
    }
    let several = several(object.get("multiValueHeaders"))?;
    let mut headers = single(object.get("headers"))?;
    // A name in both has the values of the list.
    headers.retain(|(name, _)| !several.iter().any(|(own, _)| own == name));
    headers.extend(several);
    response(&object, headers)
}

/// The response with a result as its body.
fn whole(body: Vec<u8>) -> Response {
    Response { status: 200, headers: vec![("content-type".to_owned(), JSON.to_owned())], body }
}

fn response(
    object: &Map<String, Value>,
    headers: Vec<(String, String)>,
) -> Result<Response, Malformed> {
    let status = status(object.get("statusCode"))?;
    let mut headers = checked(headers)?;
    let text = match object.get("body") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err(Malformed::Body),
    };
    let body = match object.get("isBase64Encoded") {
        Some(Value::Bool(true)) => STANDARD.decode(text).map_err(|_| Malformed::Base64)?,
        None | Some(Value::Null | Value::Bool(false)) => text.as_bytes().to_vec(),
        Some(_) => return Err(Malformed::Base64),
    };
    let body = if WITHOUT_BODY.contains(&status) { Vec::new() } else { body };
    if !body.is_empty() && !headers.iter().any(|(name, _)| name == "content-type") {
        headers.push(("content-type".to_owned(), JSON.to_owned()));
    }
    Ok(Response { status, headers, body })
}

/// A status is a number, or its digits.
fn status(value: Option<&Value>) -> Result<u16, Malformed> {
    let number = match value {
        Some(Value::Number(number)) => number.as_u64(),
        Some(Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    let number = number.and_then(|number| u16::try_from(number).ok());
    number.filter(|number| (200..=599).contains(number)).ok_or(Malformed::Status)
}

/// The text of a scalar.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}

fn single(value: Option<&Value>) -> Result<Vec<(String, String)>, Malformed> {
    let object = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(Malformed::Headers),
    };
    let of = |(name, value): (&String, &Value)| Some((name.to_ascii_lowercase(), scalar(value)?));
    let present = object.iter().filter(|(_, value)| !value.is_null());
    present.map(of).collect::<Option<_>>().ok_or(Malformed::Headers)
}

fn several(value: Option<&Value>) -> Result<Vec<(String, String)>, Malformed> {
    let object = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(Malformed::Headers),
    };
    let mut all = Vec::new();
    for (name, values) in object.iter().filter(|(_, values)| !values.is_null()) {
        for value in values.as_array().ok_or(Malformed::Headers)? {
            all.push((name.to_ascii_lowercase(), scalar(value).ok_or(Malformed::Headers)?));
        }
    }
    Ok(all)
}

fn cookies(value: Option<&Value>) -> Result<Vec<String>, Malformed> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => {
            let text = |cookie: &Value| cookie.as_str().map(str::to_owned);
            all.iter().map(text).collect::<Option<_>>().ok_or(Malformed::Cookies)
        }
        Some(_) => Err(Malformed::Cookies),
    }
}

/// The fields without those of the connection.
fn checked(mut headers: Vec<(String, String)>) -> Result<Vec<(String, String)>, Malformed> {
    headers.retain(|(name, _)| !OF_CONNECTION.contains(&name.as_str()));
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let is_right = |(name, value): &(String, String)| is_name(name) && is_value(value);
    match bytes <= HEADERS_BYTES_MAX && headers.iter().all(is_right) {
        true => Ok(headers),
        false => Err(Malformed::Field),
    }
}

/// Returns true for a token (RFC 9110 §5.6.2).
fn is_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Returns true for a field value (RFC 9110 §5.5): no line ends, no control characters.
fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f))
}
