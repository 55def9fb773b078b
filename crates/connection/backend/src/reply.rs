//! Response heads, written into a reused buffer.

use unlade_tls::piece::PieceEnd;

use crate::clock::{self, DATE_BYTES};
use crate::name::ObjectName;
use crate::store::Object;

/// Value of Allow for a writable store.
pub const ALLOW: &[u8] = b"GET, HEAD, PUT, DELETE, OPTIONS";
/// Value of Allow for a read-only store.
pub const ALLOW_READ_ONLY: &[u8] = b"GET, HEAD, OPTIONS";
/// The interim response to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The whole response to a connection above the limit.
pub const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\
    Retry-After: 1\r\nConnection: close\r\n\r\n";

/// Connection persistence after a response (RFC 9112 §9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// The connection stays open, as HTTP/1.1 implies without a Connection field.
    Keep,
    /// The connection stays open, with `Connection: keep-alive` for an HTTP/1.0 client.
    KeepSaid,
    /// The connection is closed.
    Close,
}

impl Persistence {
    /// Returns the end of a response, for a balancer whose client it is sealed for.
    pub fn end_of(self, status: u16) -> PieceEnd {
        PieceEnd { status, keep_alive: self != Persistence::Close }
    }
}

/// Writes the status line (RFC 9110 §15).
pub fn begin(out: &mut Vec<u8>, status: u16) {
    out.extend_from_slice(b"HTTP/1.1 ");
    number(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes a field.
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes Content-Length.
pub fn length(out: &mut Vec<u8>, bytes: u64) {
    out.extend_from_slice(b"Content-Length: ");
    number(out, bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes Content-Range for `part` of an object (offset and length), or, for None, that of a 416.
pub fn content_range(out: &mut Vec<u8>, part: Option<(u64, u64)>, object_bytes: u64) {
    out.extend_from_slice(b"Content-Range: bytes ");
    match part {
        Some((offset, bytes)) => {
            number(out, offset);
            out.push(b'-');
            number(out, offset.saturating_add(bytes).saturating_sub(1));
        }
        None => out.push(b'*'),
    }
    out.push(b'/');
    number(out, object_bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes Date, Connection if required, and the blank line.
pub fn finish(out: &mut Vec<u8>, date: &[u8; DATE_BYTES], persistence: Persistence) {
    out.extend_from_slice(b"Date: ");
    out.extend_from_slice(date);
    out.extend_from_slice(match persistence {
        Persistence::Keep => b"\r\n\r\n",
        Persistence::KeepSaid => b"\r\nConnection: keep-alive\r\n\r\n",
        Persistence::Close => b"\r\nConnection: close\r\n\r\n",
    });
}

/// Returns the fields that describe an object in every response.
pub fn object_fields(name: &ObjectName, object: &Object) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    field(&mut out, "Content-Type", content_type(name.extension()).as_bytes());
    field(&mut out, "Last-Modified", &clock::format(object.modified_s));
    field(&mut out, "ETag", object.etag.as_bytes());
    out.extend_from_slice(b"Accept-Ranges: bytes\r\n");
    out
}

/// Returns the head of a 200 with the whole object, up to the Date field.
pub fn whole_head(bytes: u64, fields: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(fields.len() + 64);
    begin(&mut out, 200);
    length(&mut out, bytes);
    out.extend_from_slice(fields);
    out
}

/// Appends a decimal number.
pub fn number(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Returns the reason phrase of a status that this server sends.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Status",
    }
}

/// Returns the media type for a file name extension.
pub fn content_type(extension: Option<&str>) -> &'static str {
    const TYPES: &[(&str, &str)] = &[
        ("avif", "image/avif"),
        ("bin", "application/octet-stream"),
        ("css", "text/css; charset=utf-8"),
        ("csv", "text/csv; charset=utf-8"),
        ("gif", "image/gif"),
        ("gz", "application/gzip"),
        ("htm", "text/html; charset=utf-8"),
        ("html", "text/html; charset=utf-8"),
        ("ico", "image/x-icon"),
        ("jpeg", "image/jpeg"),
        ("jpg", "image/jpeg"),
        ("js", "text/javascript; charset=utf-8"),
        ("json", "application/json"),
        ("md", "text/markdown; charset=utf-8"),
        ("mjs", "text/javascript; charset=utf-8"),
        ("mp3", "audio/mpeg"),
        ("mp4", "video/mp4"),
        ("pdf", "application/pdf"),
        ("png", "image/png"),
        ("svg", "image/svg+xml"),
        ("tar", "application/x-tar"),
        ("txt", "text/plain; charset=utf-8"),
        ("wasm", "application/wasm"),
        ("webm", "video/webm"),
        ("webp", "image/webp"),
        ("woff2", "font/woff2"),
        ("xml", "application/xml"),
        ("zip", "application/zip"),
        ("zst", "application/zstd"),
    ];
    extension
        .and_then(|given| TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(given)))
        .map_or("application/octet-stream", |(_, media_type)| media_type)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_head_reads_as_it_should() {
        let mut out = Vec::new();
        begin(&mut out, 206);
        content_range(&mut out, Some((5, 10)), 100);
        length(&mut out, 10);
        finish(&mut out, &clock::format(784_111_777), Persistence::Close);
        let expected = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-14/100\r\n\
            Content-Length: 10\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            Connection: close\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        content_range(&mut out, None, 7);
        assert_eq!(out, b"Content-Range: bytes */7\r\n");
    }

    #[test]
    fn types_go_by_extension() {
        assert_eq!(content_type(Some("HTML")), "text/html; charset=utf-8");
        assert_eq!(content_type(Some("nothing")), "application/octet-stream");
        assert_eq!(content_type(None), "application/octet-stream");
    }

    proptest! {
        #[test]
        fn numbers_are_decimal(value: u64) {
            let mut out = Vec::new();
            number(&mut out, value);
            prop_assert_eq!(String::from_utf8(out).unwrap(), value.to_string());
        }
    }
}
