//! Header lines: their shape, their positions, and the values of those that frame a message.

use httparse::{EMPTY_HEADER, Header};
use smallvec::SmallVec;

use super::{HEAD_BYTES_CEILING, HeadError, HeadLimits, is_token, is_token_byte, is_value_byte};

/// Header lines held without an allocation.
const INLINE_FIELDS: usize = 16;
/// Header lines parsed on the stack.
const STACK_FIELDS: usize = 32;
/// Most digits of a Content-Length: a longer number exceeds 64 bits or is padded with zeros.
const LENGTH_DIGITS_MAX: usize = 19;

/// A range of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    start: u16,
    bytes: u16,
}

impl Span {
    /// The range of `part` inside `buf`; empty if the offsets do not fit, which the limit on a
    /// head's size excludes.
    pub(super) fn new(start: usize, bytes: usize) -> Span {
        match (u16::try_from(start), u16::try_from(bytes)) {
            (Ok(start), Ok(bytes)) => Span { start, bytes },
            _ => Span::default(),
        }
    }

    /// The bytes; empty if `buf` is not the buffer that was parsed.
    pub(super) fn of(self, buf: &[u8]) -> &[u8] {
        let start = usize::from(self.start);
        buf.get(start..start + usize::from(self.bytes)).unwrap_or_default()
    }

    /// The bytes as text; every caller has checked that they are ASCII.
    pub(super) fn text(self, buf: &[u8]) -> &str {
        core::str::from_utf8(self.of(buf)).unwrap_or_default()
    }
}

/// The lines of a head, found before their content is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The blank line has not arrived.
    Incomplete,
    /// The head is complete.
    Complete {
        /// End of the first line, without its CRLF.
        line_end: usize,
        /// End of the head, with the blank line.
        head_end: usize,
        /// Header lines.
        fields: usize,
    },
}

/// Finds the lines of the head that starts at `start`.
///
/// A line that ends in a bare LF or continues the line before is refused as soon as it arrives,
/// without waiting for more bytes from its sender.
pub(super) fn shape(buf: &[u8], start: usize, limits: &HeadLimits) -> Result<Shape, HeadError> {
    let limit = limits.head_bytes_max.min(HEAD_BYTES_CEILING);
    let window = buf.get(..limit).unwrap_or(buf);
    let mut line_start = start;
    let mut line_end = None;
    let mut lines = 0;
    for at in memchr::memchr_iter(b'\n', window.get(start..).unwrap_or_default()) {
        let line = window.get(line_start..start + at).unwrap_or_default();
        let Some((b'\r', line)) = line.split_last() else { return Err(HeadError::BareLf) };
        match (line, line_end) {
            ([], Some(line_end)) => {
                return Ok(Shape::Complete { line_end, head_end: start + at + 1, fields: lines });
            }
            (_, None) => line_end = Some(line_start + line.len()),
            ([b' ' | b'\t', ..], Some(_)) => return Err(HeadError::ObsFold),
            (_, Some(_)) => lines += 1,
        }
        if lines > limits.headers_max {
            return Err(HeadError::TooManyHeaders);
        }
        line_start = start + at + 1;
    }
    if buf.len() >= limit {
        return Err(HeadError::HeadTooLarge);
    }
    Ok(Shape::Incomplete)
}

/// The position of one header line.
#[derive(Clone, Copy, Debug, Default)]
struct Field {
    name: Span,
    value: Span,
}

/// The positions of all header lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    list: SmallVec<[Field; INLINE_FIELDS]>,
}

impl Fields {
    pub(super) fn iter<'b>(&self, buf: &'b [u8]) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.list.iter().map(move |field| (field.name.text(buf), field.value.of(buf)))
    }

    pub(super) fn get<'b>(&self, buf: &'b [u8], name: &str) -> Option<&'b [u8]> {
        let named = |field: &&Field| field.name.of(buf).eq_ignore_ascii_case(name.as_bytes());
        self.list.iter().find(named).map(|field| field.value.of(buf))
    }

    /// Header lines that are end-to-end: without those of [`is_hop_by_hop`] and those that
    /// Connection nominates.
    pub(super) fn end_to_end<'b>(
        &self,
        buf: &'b [u8],
        nominates: bool,
    ) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.iter(buf).filter(move |(name, _)| {
            let dropped = is_hop_by_hop(name) || (nominates && self.is_nominated(buf, name));
            !dropped
        })
    }

    fn is_nominated(&self, buf: &[u8], name: &str) -> bool {
        let protected = PROTECTED.iter().any(|kept| kept.eq_ignore_ascii_case(name));
        !protected
            && self
                .iter(buf)
                .filter(|(field, _)| field.eq_ignore_ascii_case("connection"))
                .flat_map(|(_, value)| elements(value))
                .any(|token| token.eq_ignore_ascii_case(name.as_bytes()))
    }
}

/// Fields that Connection may not nominate: removing one at the sender's request would change the
/// end of the message, its destination or its owner.
const PROTECTED: [&str; 8] = [
    "host",
    "content-length",
    "content-type",
    "content-range",
    "range",
    "authorization",
    "cookie",
    "cache-control",
];

/// Returns true for a hop-by-hop field, which a proxy must not forward (RFC 9110 §7.6.1; the first
/// proxy consumes the proxy authentication fields of §11.7).
///
/// `Trailer` is not among them: it describes the body, and is forwarded with a chunked body.
pub fn is_hop_by_hop(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
        "proxy-authorization",
        "proxy-authenticate",
    ];
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// The elements of a comma-separated list, trimmed, empty ones left out (RFC 9110 §5.6.1).
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|part| !part.is_empty())
}

/// The values of the header lines that concern the message as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) host: Option<Span>,
    pub(super) hosts: usize,
    pub(super) content_length: Option<u64>,
    pub(super) chunked: bool,
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade_token: bool,
    pub(super) upgrade_field: bool,
    pub(super) nominates: bool,
    pub(super) expects_continue: bool,
    pub(super) expects_other: bool,
}

/// Parses the header lines `buf[from..end]`, of which there are `count`.
pub(super) fn parse(
    buf: &[u8],
    from: usize,
    end: usize,
    count: usize,
) -> Result<(Fields, Summary), HeadError> {
    let text = buf.get(from..end).unwrap_or_default();
    let mut stack = [EMPTY_HEADER; STACK_FIELDS];
    let mut heap = Vec::new();
    let store = match stack.get_mut(..count) {
        Some(store) => store,
        None => {
            heap.resize(count, EMPTY_HEADER);
            &mut heap[..]
        }
    };
    let parsed = match httparse::parse_headers(text, store) {
        Ok(httparse::Status::Complete((used, parsed))) if used == text.len() => parsed,
        _ => return Err(diagnose(text)),
    };
    let mut fields = Fields { list: SmallVec::with_capacity(parsed.len()) };
    let mut summary = Summary::default();
    for header in parsed {
        let field = locate(buf, header);
        summary.note(header, field.value)?;
        fields.list.push(field);
    }
    Ok((fields, summary))
}

fn locate(buf: &[u8], header: &Header<'_>) -> Field {
    let span = |part: &[u8]| Span::new(offset(buf, part), part.len());
    Field { name: span(header.name.as_bytes()), value: span(header.value) }
}

/// Offset of `part`, a slice of `buf`, from its start.
fn offset(buf: &[u8], part: &[u8]) -> usize {
    (part.as_ptr() as usize).wrapping_sub(buf.as_ptr() as usize)
}

/// Returns the rule that refused header lines break: the slow path, for the metric label.
fn diagnose(text: &[u8]) -> HeadError {
    for line in text.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if memchr::memchr(b'\r', line).is_some() {
            return HeadError::BareCr;
        }
        if line.is_empty() {
            continue;
        }
        let name_end = line.iter().position(|&byte| !is_token_byte(byte));
        match name_end.and_then(|at| Some((at, *line.get(at)?))) {
            Some((1.., b':')) => {}
            Some((1.., b' ' | b'\t')) => return HeadError::SpaceBeforeColon,
            _ => return HeadError::BadHeaderName,
        }
        if !line.iter().all(|&byte| is_value_byte(byte)) {
            return HeadError::BadHeaderValue;
        }
    }
    HeadError::BadHeaderValue
}

impl Summary {
    fn note(&mut self, header: &Header<'_>, value: Span) -> Result<(), HeadError> {
        // Compares the length first: most header lines have none of these names.
        match header.name.len() {
            4 if header.name.eq_ignore_ascii_case("host") => {
                self.host = Some(value);
                self.hosts += 1;
            }
            6 if header.name.eq_ignore_ascii_case("expect") => {
                let known = header.value.eq_ignore_ascii_case(b"100-continue");
                self.expects_continue |= known;
                self.expects_other |= !known;
            }
            7 if header.name.eq_ignore_ascii_case("upgrade") => self.upgrade_field = true,
            10 if header.name.eq_ignore_ascii_case("connection") => {
                self.note_connection(header.value)?
            }
            14 if header.name.eq_ignore_ascii_case("content-length") => {
                self.note_content_length(header.value)?
            }
            17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                self.note_transfer_encoding(header.value)?
            }
            _ => {}
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) -> Result<(), HeadError> {
        for token in elements(value) {
            if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if token.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade_token = true;
            } else if is_token(token) {
                self.nominates = true;
            } else {
                return Err(HeadError::BadConnection);
            }
        }
        Ok(())
    }

    fn note_content_length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        if self.chunked {
            return Err(HeadError::LengthAndTransferEncoding);
        }
        // Equal duplicates are refused as well: other parsers on the path may take the first or
        // the last of two, and one of them may have been edited.
        if self.content_length.is_some() {
            return Err(HeadError::DuplicateContentLength);
        }
        self.content_length = Some(decimal(value).ok_or(HeadError::BadContentLength)?);
        Ok(())
    }

    fn note_transfer_encoding(&mut self, value: &[u8]) -> Result<(), HeadError> {
        if self.content_length.is_some() {
            return Err(HeadError::LengthAndTransferEncoding);
        }
        if self.chunked {
            return Err(HeadError::BadTransferEncoding);
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(refuse_coding(value));
        }
        self.chunked = true;
        Ok(())
    }

    /// The rule that holds for requests and responses alike: HTTP/1.0 has no transfer coding, so a
    /// proxy on the path may have framed the message differently (RFC 9112 §6.1).
    pub(super) fn check_version(&self, http10: bool) -> Result<(), HeadError> {
        match http10 && self.chunked {
            true => Err(HeadError::TransferEncodingOnHttp10),
            false => Ok(()),
        }
    }

    /// Returns true if the sender keeps the connection open (RFC 9112 §9.3).
    pub(super) fn persists(&self, http10: bool) -> bool {
        !self.close && (!http10 || self.keep_alive)
    }
}

/// Distinguishes a valid but unsupported coding from one that leaves the end of the body undefined
/// (RFC 9112 §6.1, §6.3).
fn refuse_coding(value: &[u8]) -> HeadError {
    let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let codings: SmallVec<[&[u8]; 4]> = elements(value).collect();
    let ends_chunked = codings.last().is_some_and(is_chunked);
    let once = codings.iter().filter(|coding| is_chunked(coding)).count() == 1;
    match ends_chunked && once && codings.len() > 1 && codings.iter().all(|coding| is_token(coding))
    {
        true => HeadError::UnsupportedTransferEncoding,
        false => HeadError::BadTransferEncoding,
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > LENGTH_DIGITS_MAX {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}
