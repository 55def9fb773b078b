//! Response heads (RFC 9112 §4).

use super::fields::{self, Fields, Shape};
use super::{BodyFraming, HeadError, HeadLimits, Method, is_value_byte, request};

/// A parsed response head: ranges into the buffer it was parsed from. Every accessor takes that
/// buffer again, unchanged from its first byte to [`head_bytes`].
///
/// [`head_bytes`]: ResponseHead::head_bytes
#[derive(Clone, Debug)]
pub struct ResponseHead {
    head_bytes: usize,
    status: u16,
    fields: Fields,
    framing: BodyFraming,
    http10: bool,
    keep_alive: bool,
    nominates: bool,
}

impl ResponseHead {
    /// Parses the head at the front of `buf`, the answer to a request of `request_method`; returns
    /// `None` if it is not complete yet.
    ///
    /// # Errors
    /// The rule that the head breaks. The error is final, and the connection must be closed.
    pub fn parse(
        buf: &[u8],
        limits: &HeadLimits,
        request_method: Method,
    ) -> Result<Option<ResponseHead>, HeadError> {
        // Anything except a status line is refused at its first different byte.
        if !buf.iter().zip(b"HTTP/").all(|(is, due)| is == due) {
            return Err(HeadError::BadStatusLine);
        }
        let Shape::Complete { line_end, head_end, fields: count } = fields::shape(buf, 0, limits)?
        else {
            return Ok(None);
        };
        let (http10, status) = status_line(buf.get(..line_end).unwrap_or_default())?;
        let (fields, summary) = fields::parse(buf, line_end + 2, head_end, count)?;
        summary.check_version(http10)?;
        let framing = frame(&summary, status, request_method);
        Ok(Some(ResponseHead {
            head_bytes: head_end,
            status,
            fields,
            framing,
            http10,
            keep_alive: summary.persists(http10) && framing != BodyFraming::UntilClose,
            nominates: summary.nominates,
        }))
    }

    /// Bytes of the head, the blank line included.
    pub fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// The status code, 100 to 599.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns true for a 1xx response, after which another response to the same request follows.
    /// Not for 101, which is the last HTTP/1.1 message of the connection.
    pub fn is_interim(&self) -> bool {
        matches!(self.status, 100..=199) && self.status != 101
    }

    /// The end of the body, given the request's method and the status.
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Returns true if the connection persists after the body.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Returns true for an HTTP/1.0 response.
    pub fn is_http10(&self) -> bool {
        self.http10
    }

    /// The value of the first header line of this name, in any case.
    pub fn header<'b>(&self, buf: &'b [u8], name: &str) -> Option<&'b [u8]> {
        self.fields.get(buf, name)
    }

    /// Every header line, in order, as sent.
    pub fn headers<'b>(&self, buf: &'b [u8]) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.fields.iter(buf)
    }

    /// The header lines that a proxy forwards: see [`RequestHead::end_to_end_headers`].
    ///
    /// [`RequestHead::end_to_end_headers`]: super::RequestHead::end_to_end_headers
    pub fn end_to_end_headers<'b>(
        &self,
        buf: &'b [u8],
    ) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.fields.end_to_end(buf, self.nominates)
    }
}

/// `HTTP/1.x SP status [SP reason]`: many servers omit the space before an absent reason, and
/// nothing depends on it.
fn status_line(line: &[u8]) -> Result<(bool, u16), HeadError> {
    let (version, rest) = line.split_at_checked(8).ok_or(HeadError::BadStatusLine)?;
    let http10 = request::version(version).map_err(|error| match error {
        HeadError::BadRequestLine => HeadError::BadStatusLine,
        other => other,
    })?;
    let (code, reason) = rest.split_at_checked(4).ok_or(HeadError::BadStatusLine)?;
    let status = match code {
        [b' ', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
            digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'))
        }
        _ => return Err(HeadError::BadStatusLine),
    };
    if memchr::memchr(b'\r', reason).is_some() {
        return Err(HeadError::BareCr);
    }
    let reason_ok = matches!(reason, [] | [b' ', ..]) && reason.iter().all(|&b| is_value_byte(b));
    match reason_ok && matches!(status, 100..=599) {
        true => Ok((http10, status)),
        false => Err(HeadError::BadStatusLine),
    }
}

/// RFC 9112 §6.3, items 1 to 8, in that order.
fn frame(summary: &fields::Summary, status: u16, request_method: Method) -> BodyFraming {
    let bodiless = matches!(status, 100..=199 | 204 | 304) || request_method == Method::Head;
    if bodiless {
        return BodyFraming::None;
    }
    if request_method == Method::Connect && matches!(status, 200..=299) {
        return BodyFraming::UntilClose;
    }
    match (summary.chunked, summary.content_length) {
        (true, _) => BodyFraming::Chunked,
        (false, Some(bytes)) => BodyFraming::Length(bytes),
        (false, None) => BodyFraming::UntilClose,
    }
}
