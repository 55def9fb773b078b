//! The response as the client gets it, and answers without the local server.

use unlade_http::forward::{self, Body, ResponseTerms};
use unlade_http::{BodyFraming, HeadError, HeadLimits, ResponseHead};

use super::failure::Refusal;
use crate::clock::DATE_BYTES;
use crate::reply::{self, Persistence};

/// Limits of the local server's heads: it is trusted more than clients, but its heads are bounded.
pub(crate) const LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: 64 * 1024 - 1, headers_max: 256, target_bytes_max: 0 };
/// Most interim responses to one request.
pub(crate) const INTERIM_MAX: u32 = 32;

/// A response that is being relayed.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The client's connection persists.
    pub(crate) keep_alive: bool,
    body: Body,
    /// The client gets the content of the chunks only.
    decodes: bool,
}

impl Response {
    /// Creates the response of `head` for a client of HTTP/1.0 or not; `keep_alive`: the client's
    /// connection may persist.
    pub(crate) fn new(head: &ResponseHead, http10: bool, keep_alive: bool) -> Response {
        let decodes = http10 && head.framing() == BodyFraming::Chunked;
        // The end of such a body is that of the connection.
        let until_close = decodes || head.framing() == BodyFraming::UntilClose;
        Response {
            status: head.status(),
            keep_alive: keep_alive && !until_close,
            body: Body::new(head.framing()),
            decodes,
        }
    }

    /// Returns the length of the rest of the body, if it is known before it.
    pub(crate) fn left_bytes(&self) -> Option<u64> {
        match self.body {
            Body::Length(bytes) => Some(bytes),
            Body::Done => Some(0),
            _ => None,
        }
    }

    /// Appends the head for the client; `received` begins with the head.
    pub(crate) fn head(
        &self,
        head: &ResponseHead,
        received: &[u8],
        http10: bool,
        out: &mut Vec<u8>,
    ) {
        let terms = ResponseTerms { http10, keep_alive: self.keep_alive };
        forward::response(head, received, terms, out);
    }

    /// Returns true if the whole body has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.body.is_done()
    }

    /// Notes that the local server has ended its direction. Returns false if bytes are missing.
    pub(crate) fn end(&mut self) -> bool {
        let is_whole = matches!(self.body, Body::UntilClose | Body::Done);
        self.body = Body::Done;
        is_whole
    }

    /// Returns true if the client gets the bytes of the body as they came.
    pub(crate) fn is_verbatim(&self) -> bool {
        !self.decodes
    }

    /// Takes the part of `received` that belongs to the body, and returns its length. Appends the
    /// content to `out` unless the client gets it as it came.
    ///
    /// # Errors
    /// Malformed chunks.
    pub(crate) fn advance(
        &mut self,
        received: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, HeadError> {
        match self.decodes {
            true => self.body.advance_with(received, |content| out.extend_from_slice(content)),
            false => self.body.advance(received),
        }
    }

    /// As [`Response::advance`]; appends the bytes for the client to `out` in any case.
    ///
    /// # Errors
    /// Malformed chunks.
    pub(crate) fn take(&mut self, received: &[u8], out: &mut Vec<u8>) -> Result<usize, HeadError> {
        let taken = self.advance(received, out)?;
        if self.is_verbatim() {
            out.extend_from_slice(received.get(..taken).unwrap_or_default());
        }
        Ok(taken)
    }
}

/// Appends an interim response.
pub(crate) fn interim(head: &ResponseHead, received: &[u8], out: &mut Vec<u8>) {
    forward::response(head, received, ResponseTerms { http10: false, keep_alive: true }, out);
}

/// Appends a whole answer without the local server; returns the number of bytes of its body.
/// `head_only`: the request was HEAD.
pub(crate) fn refuse(
    refusal: Refusal,
    date: &[u8; DATE_BYTES],
    persistence: Persistence,
    head_only: bool,
    out: &mut Vec<u8>,
) -> u64 {
    let body_bytes = refusal.why.len() as u64 + 1;
    reply::begin(out, refusal.status);
    reply::field(out, "Content-Type", b"text/plain; charset=utf-8");
    reply::length(out, body_bytes);
    if refusal.status == 405 {
        reply::field(out, "Allow", b"GET, HEAD, PUT, POST, DELETE, OPTIONS, PATCH");
    }
    reply::finish(out, date, persistence);
    if head_only {
        return 0;
    }
    out.extend_from_slice(refusal.why.as_bytes());
    out.push(b'\n');
    body_bytes
}
