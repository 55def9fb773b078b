//! HTTP/1.1 messages (RFC 9112) as far as a balancer or an object server needs them: the head, and
//! the end of the body. No I/O, no copy of the text.
//!
//! Stages of processing a message:
//! - [`head_end`] finds the blank line;
//! - [`RequestHead::parse`] and [`ResponseHead::parse`] parse a head;
//! - [`ChunkedScanner`] finds the end of a chunked body.
//!
//! The parser is strict wherever leniency lets two parties disagree about the end of a message
//! (request smuggling): line ends are CRLF only, a length is stated once, the only transfer coding
//! is `chunked`, a host is stated once. A refused message has a reason ([`HeadError::reason`]) and
//! a status for the answer ([`HeadError::status`]).
#![forbid(unsafe_code)]

mod authority;
mod chunked;
mod error;
mod fields;
pub mod percent;
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

/// Most bytes of a head for any [`HeadLimits`]: offsets into a head are 16 bits wide.
pub const HEAD_BYTES_CEILING: usize = u16::MAX as usize;

/// Limits on the size of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes of a head, the blank line included; capped at [`HEAD_BYTES_CEILING`].
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

/// The end of a message's body (RFC 9112 §6.3).
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

/// Finds the end of a head: the offset after the blank line, if it is in `buf`.
///
/// `from` is the number of bytes of `buf` that an earlier call has scanned, so that a head that
/// arrives in several reads is searched once.
pub fn head_end(buf: &[u8], from: usize) -> Option<usize> {
    let from = from.saturating_sub(3).min(buf.len());
    memchr::memmem::find(buf.get(from..)?, b"\r\n\r\n").map(|at| from + at + 4)
}

/// Returns true for a byte that is allowed in a method or a header name (RFC 9110 §5.6.2).
fn is_token_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')
        || matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+')
        || matches!(byte, b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

/// Returns true for a byte that is allowed in a header value (RFC 9110 §5.5).
fn is_value_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=0x7e | 0x80..)
}
