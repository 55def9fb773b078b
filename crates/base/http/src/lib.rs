//! HTTP/1.1 messages as far as a balancer or an object server must understand them (RFC 9112):
//! the head, and where the body ends. No I/O, no copy of the text.
//!
//! Stages, in the order a message meets them:
//! - [`head_end`] finds the blank line;
//! - [`RequestHead::parse`] and [`ResponseHead::parse`] understand a head;
//! - [`ChunkedScanner`] finds the end of a chunked body.
//!
//! Everything here is strict where leniency lets two parties disagree about where a message ends
//! (request smuggling): line ends are CRLF only, a length is stated once, a transfer coding is
//! `chunked` and nothing else, a host is stated once. What is refused names its reason
//! ([`HeadError::reason`]) and the status to answer with ([`HeadError::status`]).
#![forbid(unsafe_code)]

mod authority;
mod chunked;
mod error;
mod fields;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use chunked::{
    CHUNK_LINE_BYTES_MAX, ChunkedProgress, ChunkedScanner, EXTENSION_BYTES_MAX, TRAILER_BYTES_MAX,
};
pub use error::HeadError;
pub use fields::is_hop_by_hop;
pub use request::{METHOD_BYTES_MAX, Method, RequestHead};
pub use response::ResponseHead;

/// Most bytes of a head whatever [`HeadLimits`] says: offsets into a head are 16 bits wide.
pub const HEAD_BYTES_CEILING: usize = u16::MAX as usize;

/// How much of a head is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes of a head, the blank line included; at most [`HEAD_BYTES_CEILING`] counts.
    pub head_bytes_max: usize,
    /// Most header lines.
    pub headers_max: usize,
    /// Most bytes of a request target.
    pub target_bytes_max: usize,
}

impl Default for HeadLimits {
    fn default() -> HeadLimits {
        HeadLimits { head_bytes_max: 16 * 1024, headers_max: 100, target_bytes_max: 8 * 1024 }
    }
}

/// Where the body of a message ends (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is no body.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body is chunked: see [`ChunkedScanner`].
    Chunked,
    /// The body ends when the sender closes; responses only.
    UntilClose,
}

/// Finds the end of a head: the offset just behind the blank line, if it is in `buf`.
///
/// `from` is how many bytes of `buf` an earlier call has already looked at, so that a head which
/// arrives in pieces is searched once.
pub fn head_end(buf: &[u8], from: usize) -> Option<usize> {
    let from = from.saturating_sub(3).min(buf.len());
    memchr::memmem::find(buf.get(from..)?, b"\r\n\r\n").map(|at| from + at + 4)
}

/// True for a byte that may stand in a method or a header name (RFC 9110 §5.6.2).
fn is_token_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')
        || matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+')
        || matches!(byte, b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

/// True for a byte that may stand in a header value (RFC 9110 §5.5).
fn is_value_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=0x7e | 0x80..)
}
