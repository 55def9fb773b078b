//! Errors as SDKs present them.

use serde_json::{Map, Value, json};

use crate::response::Head;
use crate::xml;

/// An error of the service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceError {
    /// `Code`, `Message`, and what else the service says.
    pub error: Map<String, Value>,
    /// The status, where it differs from the answer's: an error that came with 200 counts as 500.
    pub status: u16,
    /// It was made of the status, as the body said nothing: SDKs then have an id, if an empty one.
    pub of_status: bool,
}

impl ServiceError {
    /// `NoSuchKey`.
    pub fn code(&self) -> &str {
        self.error.get("Code").and_then(Value::as_str).unwrap_or_default()
    }

    /// For people.
    pub fn message(&self) -> &str {
        self.error.get("Message").and_then(Value::as_str).unwrap_or_default()
    }

    /// What an answer of a status above 299 says.
    pub fn read(head: &Head, body: &[u8]) -> ServiceError {
        ServiceError::of(head.status, body)
    }

    /// What a body of a good status says that is none: an error, or no document at all.
    pub fn late(body: &[u8]) -> ServiceError {
        ServiceError::of(500, body)
    }

    fn of(status: u16, body: &[u8]) -> ServiceError {
        // What something on the way has said, and not the service.
        let trimmed = body.trim_ascii();
        let is_generic = status >= 500 && (trimmed.is_empty() || trimmed.starts_with(b"<html>"));
        let said = xml::read_error(body).map(|mut said| {
            // They are told beside the error.
            said.remove("RequestId");
            said.remove("HostId");
            said
        });
        let of_status = said.is_none() && !is_generic;
        let error = said.unwrap_or_else(|| {
            let mut error = Map::new();
            error.insert("Code".to_owned(), status.to_string().into());
            error.insert("Message".to_owned(), reason(status).into());
            error
        });
        ServiceError { error, status, of_status }
    }

    /// What the service would say of an operation that the role does not allow.
    pub fn denied() -> ServiceError {
        let error = json!({"Code": "AccessDenied", "Message": "Access Denied"});
        let Value::Object(error) = error else { unreachable!("it was written as an object") };
        ServiceError { error, status: 403, of_status: false }
    }
}

/// What the host says of a call that it could not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCode {
    /// The store did not answer in time.
    Timeout,
    /// The store cannot be reached.
    Unavailable,
    /// The connection broke before the answer was complete.
    Broken,
    /// The body, or what came, is more than the host holds.
    TooLarge,
    /// The host does not carry this operation.
    Unsupported,
    /// The parameters are no request.
    Invalid,
    /// There are no credentials for the tenant.
    NoCredentials,
    /// The worker ends.
    Ending,
}

impl HostCode {
    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            HostCode::Timeout => "Timeout",
            HostCode::Unavailable => "Unavailable",
            HostCode::Broken => "Broken",
            HostCode::TooLarge => "TooLarge",
            HostCode::Unsupported => "Unsupported",
            HostCode::Invalid => "Invalid",
            HostCode::NoCredentials => "NoCredentials",
            HostCode::Ending => "Ending",
        }
    }
}

/// The meta of a completion whose status is an error of the host.
pub fn host_meta(code: &str, message: &str) -> Vec<u8> {
    json!({"error": {"Code": code, "Message": message}}).to_string().into_bytes()
}

/// The reason phrase of a status (RFC 9110 §15).
pub fn reason(status: u16) -> &'static str {
    match status {
        301 => "Moved Permanently",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        412 => "Precondition Failed",
        416 => "Requested Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    }
}
