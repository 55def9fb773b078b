//! HTTP/1.1 messages (RFC 9112) as far as a balancer or an object server needs them: the head, and
//! the end of the body.
//!
//! Use it in a proxy or a server that owns its buffers and must agree with every other party about
//! the end of each message. The text stays in the caller's buffer: a parsed head has offsets only.
//! Use `hyper` instead for a client or server with connections, bodies and HTTP/2.
//!
//! 1. [`head_end`] finds the blank line in bytes that arrive piece by piece;
//! 2. [`RequestHead::parse`] and [`ResponseHead::parse`] parse a head, within [`HeadLimits`];
//! 3. [`BodyFraming`] says where the body ends, and [`ChunkedScanner`] finds the end of a chunked
//!    one;
//! 4. [`HeadError`] is a refusal: [`HeadError::reason`] for a counter, [`HeadError::status`] for
//!    the answer;
//! 5. [`forward`] writes the heads of messages that pass through, and follows their bodies.
//!
//! ```
//! use unlade_http::{BodyFraming, HeadLimits, Method, RequestHead};
//!
//! let limits = HeadLimits::default();
//! let mut buf = b"PUT /a?v=1 HTTP/1.1\r\nHost: objects.lab\r\n".to_vec();
//! assert!(RequestHead::parse(&buf, &limits)?.is_none()); // more bytes are needed
//!
//! buf.extend_from_slice(b"Content-Length: 3\r\n\r\nabc");
//! let head = RequestHead::parse(&buf, &limits)?.expect("the head is complete");
//! assert_eq!((head.method(), head.path(&buf)), (Method::Put, "/a"));
//! assert_eq!(head.framing(), BodyFraming::Length(3));
//! assert_eq!(&buf[head.head_bytes()..], b"abc");
//!
//! // Two parties could disagree about the end of this message: it is refused.
//! let twice = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
//! let error = RequestHead::parse(twice, &limits).unwrap_err();
//! assert_eq!((error.status(), error.reason()), (400, "duplicate_content_length"));
//! # Ok::<(), unlade_http::HeadError>(())
//! ```
//!
//! # Limits
//! The parser is strict wherever leniency lets two parties disagree (request smuggling): line ends
//! are CRLF only, a length is stated once, the only transfer coding is `chunked`, a host is stated
//! once. Heads have at most [`HEAD_BYTES_CEILING`] bytes. No HTTP/2; messages are written only if they
//! pass through. No I/O, no thread, no `unsafe`; parsing does not copy the text.
#![forbid(unsafe_code)]

mod authority;
mod chunked;
mod error;
mod fields;
pub mod forward;
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
