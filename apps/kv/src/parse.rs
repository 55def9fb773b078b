//! Parser for requests of the protocol RESP2 (Redis serialization protocol specification), and for
//! inline commands. It returns the arguments as ranges of the input.
//!
//! The caller keeps all bytes of a request, and passes them again whenever more have arrived. It
//! need not pass a long argument: see [`Parser::take_open`].

use std::ops::Range;

/// Maximum length of a line with a number or an inline command.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Initial capacity for arguments; it grows with those that arrive.
const ARGUMENTS_FIRST: usize = 8;

/// Limits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of arguments.
    pub arguments_max: usize,
    /// Maximum length of an argument.
    pub bulk_bytes_max: usize,
}

/// Error in the input. The start of the next request is not known, so the connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line is too long, in an inline command.
    #[error("Protocol error: too big inline request")]
    Inline,
    /// The line with the number of arguments is too long.
    #[error("Protocol error: too big mbulk count string")]
    Count,
    /// The line with the length of an argument is too long.
    #[error("Protocol error: too big bulk count string")]
    Length,
    /// The number of arguments is invalid or above the limit.
    #[error("Protocol error: invalid multibulk length")]
    Arguments,
    /// A length is invalid or above the limit.
    #[error("Protocol error: invalid bulk length")]
    Bulk,
    /// An argument does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    Dollar(u8),
    /// An argument is longer than its length.
    #[error("Protocol error: expected CRLF after an argument")]
    Tail,
    /// An inline command has an unclosed quote.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A range of the input.
    Here(Range<usize>),
    /// An argument of an inline command, with its quotes and escapes resolved.
    Quoted(Vec<u8>),
    /// An argument that was taken by [`Parser::take_open`].
    Apart,
}

/// State after the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request is incomplete.
    Partial,
    /// The request is incomplete, and so is the argument at its end.
    Open(Open),
    /// The request is complete: [`Parser::arguments`], [`Parser::finish`].
    Complete,
}

/// An argument that has not arrived completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Index of the argument; the command's name is 0.
    pub index: usize,
    /// Start in the input.
    pub start: usize,
    /// Length, without the CRLF that follows.
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    /// At the start of a request.
    Start,
    /// At the length of an argument.
    Length,
    /// In an argument of this length.
    Bulk(usize),
    Complete,
}

/// Parser state, between two requests or within one.
#[derive(Clone, Debug)]
pub struct Parser {
    limits: Limits,
    state: ParserState,
    arguments: Vec<Argument>,
    /// Number of arguments that are not complete.
    left: usize,
    /// Number of bytes parsed so far.
    at: usize,
}

impl Parser {
    /// Creates a parser at the start of a request.
    pub fn new(limits: Limits) -> Parser {
        Parser { limits, state: ParserState::Start, arguments: Vec::new(), left: 0, at: 0 }
    }

    /// Changes the limits, for what was not parsed yet.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Continues with a request; `input` is all of it that has arrived.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn advance(&mut self, input: &[u8]) -> Result<Progress, ProtocolError> {
        loop {
            match self.state {
                ParserState::Start => {
                    let too_long = match input.get(self.at) {
                        Some(b'*') => ProtocolError::Count,
                        _ => ProtocolError::Inline,
                    };
                    let Some(line) = line(input, self.at, too_long)? else {
                        return Ok(Progress::Partial);
                    };
                    self.start(input, line)?;
                }
                ParserState::Length => {
                    if let Some(&other) = input.get(self.at).filter(|byte| **byte != b'$') {
                        return Err(ProtocolError::Dollar(other));
                    }
                    let Some(line) = line(input, self.at, ProtocolError::Length)? else {
                        return Ok(Progress::Partial);
                    };
                    let len = number(&input[self.at + 1..line.end])
                        .and_then(|len| usize::try_from(len).ok())
                        .filter(|len| *len <= self.limits.bulk_bytes_max)
                        .ok_or(ProtocolError::Bulk)?;
                    (self.state, self.at) = (ParserState::Bulk(len), line.next);
                }
                ParserState::Bulk(len) => {
                    let (start, end) = (self.at, self.at + len);
                    let Some(tail) = input.get(end..end + 2) else {
                        let index = self.arguments.len();
                        return Ok(Progress::Open(Open { index, start, len }));
                    };
                    if tail != b"\r\n" {
                        return Err(ProtocolError::Tail);
                    }
                    self.push(Argument::Here(start..end), end + 2);
                }
                ParserState::Complete => return Ok(Progress::Complete),
            }
        }
    }

    /// Parses the first line of a request.
    fn start(&mut self, input: &[u8], line: Line) -> Result<(), ProtocolError> {
        let (base, text) = (self.at, &input[self.at..line.end]);
        self.at = line.next;
        let [b'*', count @ ..] = text else {
            split(text, base, &mut self.arguments)?;
            if !self.arguments.is_empty() {
                self.state = ParserState::Complete;
            }
            return Ok(());
        };
        let count = number(count).ok_or(ProtocolError::Arguments)?;
        // Requests without arguments, and nulls, are skipped.
        let Ok(count) = usize::try_from(count) else { return Ok(()) };
        if count > self.limits.arguments_max {
            return Err(ProtocolError::Arguments);
        }
        if count > 0 {
            self.arguments.reserve(count.min(ARGUMENTS_FIRST));
            (self.left, self.state) = (count, ParserState::Length);
        }
        Ok(())
    }

    fn push(&mut self, argument: Argument, next: usize) {
        self.arguments.push(argument);
        self.at = next;
        self.left -= 1;
        self.state = if self.left == 0 { ParserState::Complete } else { ParserState::Length };
    }

    /// Takes the argument of [`Progress::Open`] out of the input. The caller removes its bytes,
    /// from its start on, and receives the rest and the CRLF elsewhere. Later input continues
    /// behind it. Returns true if the request is complete except for this argument.
    ///
    /// # Panics
    /// Panics if no argument is open.
    pub fn take_open(&mut self) -> bool {
        assert!(matches!(self.state, ParserState::Bulk(_)), "no argument is open");
        self.push(Argument::Apart, self.at);
        self.state == ParserState::Complete
    }

    /// Returns the arguments of the request so far; the first is the command.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Ends a complete request, or abandons an incomplete one. Returns the number of its bytes so
    /// far, and clears the arguments.
    pub fn finish(&mut self) -> usize {
        self.arguments.clear();
        self.state = ParserState::Start;
        std::mem::take(&mut self.at)
    }

    /// Returns the number of bytes that were parsed between requests and need not be passed again.
    pub fn skip(&mut self) -> usize {
        if self.state == ParserState::Start { std::mem::take(&mut self.at) } else { 0 }
    }
}

/// A line: the end of its text, and the start of the next line.
#[derive(Clone, Copy)]
struct Line {
    end: usize,
    next: usize,
}

/// Returns the line that begins at `at`; `None` if its end has not arrived.
fn line(input: &[u8], at: usize, too_long: ProtocolError) -> Result<Option<Line>, ProtocolError> {
    let rest = &input[at.min(input.len())..];
    let searched = &rest[..rest.len().min(LINE_BYTES_MAX)];
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        return if rest.len() >= LINE_BYTES_MAX { Err(too_long) } else { Ok(None) };
    };
    let text = end - usize::from(end > 0 && rest[end - 1] == b'\r');
    Ok(Some(Line { end: at + text, next: at + end + 1 }))
}

/// Parses a complete decimal number in its shortest form: without plus sign and leading zeros.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    match text {
        [b'0'] => return Some(0),
        [b'-', b'1'..=b'9', ..] | [b'1'..=b'9', ..] if text.len() <= 20 => {}
        _ => return None,
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Splits an inline command into words. `base` is the offset of `text` in the input.
fn split(text: &[u8], base: usize, out: &mut Vec<Argument>) -> Result<(), ProtocolError> {
    let mut at = 0;
    loop {
        at += text[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if at == text.len() {
            return Ok(());
        }
        let plain = |byte: &&u8| !byte.is_ascii_whitespace() && **byte != b'"' && **byte != b'\'';
        let len = text[at..].iter().take_while(plain).count();
        let end = at + len;
        if text.get(end).is_none_or(u8::is_ascii_whitespace) {
            out.push(Argument::Here(base + at..base + end));
            at = end;
        } else {
            let (word, len) = quoted(&text[at..])?;
            out.push(Argument::Quoted(word));
            at += len;
        }
    }
}

/// Parses a word with quotes like the protocol's reference implementation. Returns its value and
/// its length in the input.
fn quoted(text: &[u8]) -> Result<(Vec<u8>, usize), ProtocolError> {
    let mut word = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at).filter(|byte| !byte.is_ascii_whitespace()) {
        at += 1;
        if byte != b'"' && byte != b'\'' {
            word.push(byte);
            continue;
        }
        loop {
            match (byte, text.get(at..).unwrap_or_default()) {
                (_, []) => return Err(ProtocolError::Quotes),
                (quote, [end, rest @ ..]) if quote == *end => {
                    at += 1;
                    if !rest.first().is_none_or(u8::is_ascii_whitespace) {
                        return Err(ProtocolError::Quotes);
                    }
                    break;
                }
                (b'"', [b'\\', b'x', high, low, ..]) if hex(*high).and(hex(*low)).is_some() => {
                    word.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                    at += 4;
                }
                (b'"', [b'\\', escaped, ..]) => {
                    word.push(unescape(*escaped));
                    at += 2;
                }
                (b'\'', [b'\\', b'\'', ..]) => {
                    word.push(b'\'');
                    at += 2;
                }
                (_, [other, ..]) => {
                    word.push(*other);
                    at += 1;
                }
            }
        }
    }
    Ok((word, at))
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}
