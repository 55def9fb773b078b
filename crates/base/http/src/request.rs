//! Request heads (RFC 9112 §3).

use super::fields::{self, Fields, Shape, Span};
use super::{BodyFraming, HeadError, HeadLimits, authority, is_token, is_token_byte};

/// Longest method that is parsed; a longer one is answered with 501.
pub const METHOD_BYTES_MAX: usize = 32;
/// Bytes of a request line besides method and target: two spaces and the version.
const REQUEST_LINE_REST_BYTES: usize = 2 + "HTTP/1.1".len();

/// A request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// PUT
    Put,
    /// POST
    Post,
    /// DELETE
    Delete,
    /// OPTIONS
    Options,
    /// PATCH
    Patch,
    /// CONNECT: for forward proxies; its path is empty and matches no route.
    Connect,
    /// TRACE
    Trace,
    /// Any other token: see [`RequestHead::method_text`].
    Other,
}

impl Method {
    /// The method with the name `text`; names are case-sensitive (RFC 9110 §9.1).
    pub fn of(text: &[u8]) -> Method {
        match text {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"PUT" => Method::Put,
            b"POST" => Method::Post,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            b"PATCH" => Method::Patch,
            b"CONNECT" => Method::Connect,
            b"TRACE" => Method::Trace,
            _ => Method::Other,
        }
    }

    /// Returns true if repeating the request has the same effect as making it once (RFC 9110
    /// §9.2.2).
    pub fn is_idempotent(self) -> bool {
        matches!(
            self,
            Method::Get
                | Method::Head
                | Method::Put
                | Method::Delete
                | Method::Options
                | Method::Trace
        )
    }
}

/// The requested resource, after parsing of the target's form.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// Path and query, a range of the head.
    Path(Span),
    /// The path of an absolute-form target without a path.
    Root,
    /// `*`, or the absolute form of OPTIONS without a path.
    Star,
    /// The authority that CONNECT names.
    Authority(Span),
}

/// A parsed request head: ranges into the buffer it was parsed from. Every accessor takes that
/// buffer again, unchanged from its first byte to [`head_bytes`].
///
/// [`head_bytes`]: RequestHead::head_bytes
#[derive(Clone, Debug)]
pub struct RequestHead {
    head_bytes: usize,
    method: Method,
    method_text: Span,
    target: Target,
    host: Option<Span>,
    fields: Fields,
    framing: BodyFraming,
    http10: bool,
    keep_alive: bool,
    expects_continue: bool,
    upgrade: bool,
    nominates: bool,
}

impl RequestHead {
    /// Parses the head at the front of `buf`; returns `None` if it is not complete yet.
    ///
    /// One empty line before the request is tolerated (RFC 9112 §2.2) and counts as part of the
    /// head.
    ///
    /// # Errors
    /// The rule that the head breaks. The error is final: more bytes do not repair it, and the
    /// connection must be closed after the answer, because the start of the next request is
    /// unknown.
    pub fn parse(buf: &[u8], limits: &HeadLimits) -> Result<Option<RequestHead>, HeadError> {
        let Some(start) = skip_empty_line(buf)? else { return Ok(None) };
        let (line_end, head_end, count) = match fields::shape(buf, start, limits) {
            Ok(Shape::Complete { line_end, head_end, fields }) => (line_end, head_end, fields),
            // Also for a complete line: a prefix of it may have been refused.
            Ok(Shape::Incomplete) => {
                check_line_bytes(line_bytes(buf, start), limits)?;
                return Ok(None);
            }
            Err(HeadError::HeadTooLarge) => {
                check_line_bytes(line_bytes(buf, start), limits)?;
                return Err(HeadError::HeadTooLarge);
            }
            Err(error) => return Err(error),
        };
        let line = RequestLine::parse(buf, start, line_end, limits)?;
        let (fields, summary) = fields::parse(buf, line_end + 2, head_end, count)?;
        summary.check_version(line.http10)?;
        let host = choose_host(buf, &line, &summary)?;
        if summary.expects_other && !line.http10 {
            return Err(HeadError::UnknownExpectation);
        }
        let framing = match (summary.chunked, summary.content_length) {
            (true, _) => BodyFraming::Chunked,
            (false, Some(bytes)) => BodyFraming::Length(bytes),
            (false, None) => BodyFraming::None,
        };
        Ok(Some(RequestHead {
            head_bytes: head_end,
            method: line.method,
            method_text: line.method_text,
            target: line.target,
            host,
            fields,
            framing,
            http10: line.http10,
            keep_alive: summary.persists(line.http10),
            // HTTP/1.0 does not have the interim response (RFC 9110 §10.1.1).
            expects_continue: summary.expects_continue && !line.http10,
            upgrade: summary.upgrade_field && summary.upgrade_token && !line.http10,
            nominates: summary.nominates,
        }))
    }

    /// Bytes of the head, the blank line included.
    pub fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method as sent.
    pub fn method_text<'b>(&self, buf: &'b [u8]) -> &'b str {
        self.method_text.text(buf)
    }

    /// Path and query as sent, for any form of the target; `*` for `OPTIONS *`; the authority for
    /// CONNECT.
    pub fn target<'b>(&self, buf: &'b [u8]) -> &'b str {
        match self.target {
            Target::Path(span) | Target::Authority(span) => span.text(buf),
            Target::Root => "/",
            Target::Star => "*",
        }
    }

    /// The target without its query: begins with `/`, or is `*`, or is empty for CONNECT.
    pub fn path<'b>(&self, buf: &'b [u8]) -> &'b str {
        match self.target {
            Target::Authority(_) => "",
            _ => {
                let target = self.target(buf);
                target.split_once('?').map_or(target, |(path, _)| path)
            }
        }
    }

    /// The part of the target after the first `?`.
    pub fn query<'b>(&self, buf: &'b [u8]) -> Option<&'b str> {
        self.target(buf).split_once('?').map(|(_, query)| query)
    }

    /// The authority of an absolute-form target, else Host; with its port, if any. It has the
    /// form `host [":" port]`. `None` only for HTTP/1.0.
    pub fn host<'b>(&self, buf: &'b [u8]) -> Option<&'b str> {
        self.host.map(|host| host.text(buf))
    }

    /// The value of the first header line of this name, in any case.
    pub fn header<'b>(&self, buf: &'b [u8], name: &str) -> Option<&'b [u8]> {
        self.fields.get(buf, name)
    }

    /// Every header line, in order, as sent.
    pub fn headers<'b>(&self, buf: &'b [u8]) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.fields.iter(buf)
    }

    /// The header lines that a proxy forwards: without those of [`is_hop_by_hop`] and those that
    /// Connection nominates. Content-Length is included, Transfer-Encoding is not: a proxy that
    /// forwards a chunked body writes its own.
    ///
    /// [`is_hop_by_hop`]: super::is_hop_by_hop
    pub fn end_to_end_headers<'b>(
        &self,
        buf: &'b [u8],
    ) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.fields.end_to_end(buf, self.nominates)
    }

    /// The end of the body.
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Returns true if the client wants the connection to persist.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Returns true if the client waits for `100 Continue` before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Returns true if the client asks to change the protocol (RFC 9110 §7.8). A server may ignore
    /// it.
    pub fn is_upgrade(&self) -> bool {
        self.upgrade
    }

    /// Returns true for an HTTP/1.0 request.
    pub fn is_http10(&self) -> bool {
        self.http10
    }
}

/// The start of the request line; `None` if more bytes are needed to find it.
fn skip_empty_line(buf: &[u8]) -> Result<Option<usize>, HeadError> {
    let start = match buf {
        [] | [b'\r'] => return Ok(None),
        [b'\r', b'\n', ..] => 2,
        [b'\r', ..] => return Err(HeadError::BareCr),
        _ => 0,
    };
    match buf.get(start) {
        None => Ok(None),
        Some(b'\n') => Err(HeadError::BareLf),
        Some(b'\r') => Err(HeadError::BadRequestLine),
        // A TLS ClientHello, or any other protocol, is refused at its first byte.
        Some(&first) if !is_token_byte(first) => Err(HeadError::BadMethod),
        Some(_) => Ok(Some(start)),
    }
}

/// Number of bytes of the request line that have arrived.
fn line_bytes(buf: &[u8], start: usize) -> usize {
    let line = memchr::memchr(b'\n', buf.get(start..).unwrap_or_default());
    line.unwrap_or(buf.len() - start)
}

fn check_line_bytes(line_bytes: usize, limits: &HeadLimits) -> Result<(), HeadError> {
    let line_bytes_max =
        limits.target_bytes_max.saturating_add(METHOD_BYTES_MAX + REQUEST_LINE_REST_BYTES + 1);
    match line_bytes > line_bytes_max {
        true => Err(HeadError::TargetTooLong),
        false => Ok(()),
    }
}

struct RequestLine {
    method: Method,
    method_text: Span,
    target: Target,
    authority: Option<Span>,
    http10: bool,
}

impl RequestLine {
    fn parse(
        buf: &[u8],
        start: usize,
        end: usize,
        limits: &HeadLimits,
    ) -> Result<RequestLine, HeadError> {
        let line = buf.get(start..end).unwrap_or_default();
        if memchr::memchr(b'\r', line).is_some() {
            return Err(HeadError::BareCr);
        }
        let method_bytes = memchr::memchr(b' ', line).ok_or(HeadError::BadRequestLine)?;
        let target_end = memchr::memrchr(b' ', line).ok_or(HeadError::BadRequestLine)?;
        let method_text = line.get(..method_bytes).unwrap_or_default();
        if !is_token(method_text) {
            return Err(HeadError::BadMethod);
        }
        if method_bytes > METHOD_BYTES_MAX {
            return Err(HeadError::MethodTooLong);
        }
        let target = line.get(method_bytes + 1..target_end).ok_or(HeadError::BadRequestLine)?;
        if target.len() > limits.target_bytes_max {
            return Err(HeadError::TargetTooLong);
        }
        let http10 = version(line.get(target_end + 1..).unwrap_or_default())?;
        let method = Method::of(method_text);
        let (target, authority) = understand_target(method, target, start + method_bytes + 1)?;
        let method_text = Span::new(start, method_bytes);
        Ok(RequestLine { method, method_text, target, authority, http10 })
    }
}

/// Returns true for HTTP/1.0, false for HTTP/1.1.
pub(super) fn version(text: &[u8]) -> Result<bool, HeadError> {
    match text {
        b"HTTP/1.1" => Ok(false),
        b"HTTP/1.0" => Ok(true),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(HeadError::UnsupportedVersion)
        }
        _ => Err(HeadError::BadRequestLine),
    }
}

/// Distinguishes the four forms of a target (RFC 9112 §3.2); also returns the authority in an
/// absolute-form or authority-form target. `at` is the position of the target in the buffer.
fn understand_target(
    method: Method,
    target: &[u8],
    at: usize,
) -> Result<(Target, Option<Span>), HeadError> {
    // A fragment is never sent (RFC 9112 §3.2); servers interpret the bytes after `#` differently.
    if !target.iter().all(|&byte| matches!(byte, 0x21..=0x7e) && byte != b'#') {
        return Err(HeadError::BadTarget);
    }
    match target {
        _ if method == Method::Connect => {
            let named = authority::split(target).ok_or(HeadError::BadTarget)?;
            named.1.ok_or(HeadError::BadTarget)?;
            let span = Span::new(at, target.len());
            Ok((Target::Authority(span), Some(span)))
        }
        [b'/', ..] => Ok((Target::Path(Span::new(at, target.len())), None)),
        b"*" if method == Method::Options => Ok((Target::Star, None)),
        _ => absolute_form(method, target, at),
    }
}

fn absolute_form(
    method: Method,
    target: &[u8],
    at: usize,
) -> Result<(Target, Option<Span>), HeadError> {
    let scheme_bytes = [&b"http://"[..], b"https://"]
        .iter()
        .find(|scheme| {
            target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
        .map(|scheme| scheme.len())
        .ok_or(HeadError::BadTarget)?;
    let rest = target.get(scheme_bytes..).unwrap_or_default();
    let authority_bytes = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (stated, path) = rest.split_at_checked(authority_bytes).ok_or(HeadError::BadTarget)?;
    authority::split(stated).ok_or(HeadError::BadHost)?;
    let path_at = at + scheme_bytes + authority_bytes;
    let target = match path {
        [] if method == Method::Options => Target::Star,
        [] => Target::Root,
        [b'/', ..] => Target::Path(Span::new(path_at, path.len())),
        // A query without a path would need a path that is not in the buffer.
        _ => return Err(HeadError::BadTarget),
    };
    Ok((target, Some(Span::new(at + scheme_bytes, authority_bytes))))
}

/// The host of the request. Host and the target's authority must agree: if both are present, a
/// server must ignore Host (RFC 9112 §3.2.2), but the next server may use it.
fn choose_host(
    buf: &[u8],
    line: &RequestLine,
    summary: &fields::Summary,
) -> Result<Option<Span>, HeadError> {
    if summary.hosts > 1 {
        return Err(HeadError::DuplicateHost);
    }
    let Some(host) = summary.host else {
        return match line.http10 {
            true => Ok(line.authority),
            false => Err(HeadError::MissingHost),
        };
    };
    authority::split(host.of(buf)).ok_or(HeadError::BadHost)?;
    match line.authority {
        Some(stated) if !stated.of(buf).eq_ignore_ascii_case(host.of(buf)) => {
            Err(HeadError::HostMismatch)
        }
        _ => Ok(Some(host)),
    }
}
