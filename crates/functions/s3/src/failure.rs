//! Errors as SDKs present them.

use serde_json::{Map, Value, json};

use crate::xml;

/// An error of the service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceError {
    /// `Code`, `Message`, and the other elements of the error.
    pub error: Map<String, Value>,
    /// The status, if it differs from the response's: an error in a response with 200 counts as
    /// 500.
    pub status: u16,
    /// True if the error was derived from the status, because the body was empty: SDKs then have
    /// an id, possibly an empty one.
    pub of_status: bool,
    /// True if the role does not allow the operation: the service was not asked.
    pub by_role: bool,
}

impl ServiceError {
    /// `NoSuchKey`.
    pub fn code(&self) -> &str {
        self.error.get("Code").and_then(Value::as_str).unwrap_or_default()
    }

    /// The message for humans.
    pub fn message(&self) -> &str {
        self.error.get("Message").and_then(Value::as_str).unwrap_or_default()
    }

    /// Reads the error of a response with this status, which is above 299.
    pub fn read(status: u16, body: &[u8]) -> ServiceError {
        ServiceError::of(status, body)
    }

    /// Reads the error of a response with status 200 whose body is an error, or not a document.
    pub fn late(body: &[u8]) -> ServiceError {
        ServiceError::of(500, body)
    }

    fn of(status: u16, body: &[u8]) -> ServiceError {
        // Text from an intermediary, not from the service.
        let trimmed = body.trim_ascii();
        let is_generic = status >= 500 && (trimmed.is_empty() || trimmed.starts_with(b"<html>"));
        let said = xml::read_error(body).map(|mut said| {
            // Ids are reported beside the error.
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
        ServiceError { error, status, of_status, by_role: false }
    }

    /// The service's error for an operation that the role does not allow; `why` is for humans.
    pub fn denied(why: &str) -> ServiceError {
        let mut error = Map::new();
        error.insert("Code".to_owned(), "AccessDenied".into());
        error.insert("Message".to_owned(), format!("Access Denied: {why}").into());
        ServiceError { error, status: 403, of_status: false, by_role: true }
    }
}

/// The code of a call that the host could not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCode {
    /// The store did not respond in time.
    Timeout,
    /// The store cannot be reached.
    Unavailable,
    /// The connection broke before the response was complete.
    Broken,
    /// The body or the response exceeds the host's limit.
    TooLarge,
    /// The host does not support this operation.
    Unsupported,
    /// The parameters are invalid.
    Invalid,
    /// There are no credentials for the tenant.
    NoCredentials,
    /// The worker is ending.
    Ending,
}

impl HostCode {
    /// The name in the protocol.
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

/// The meta of a completion with the status `HostError`.
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
