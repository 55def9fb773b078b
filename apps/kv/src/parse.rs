//! Requests of the protocol RESP2 (Redis serialization protocol specification), and inline
//! commands: bytes in, arguments out, as places in those bytes.
//!
//! The caller keeps the bytes of a request from its first on, and shows them all whenever more have
//! arrived. A long argument need not be shown: see [`Parser::take_open`].

use std::ops::Range;

/// A line that states a number or an inline command has at most so many bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// An argument starts with room for so many; more grow with what arrives.
const ARGUMENTS_FIRST: usize = 8;

/// What a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Arguments of a request.
    pub arguments_max: usize,
    /// Bytes of an argument.
    pub bulk_bytes_max: usize,
}

/// Why bytes are no request. Where the next one would begin is not known: the connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line without an end.
    #[error("Protocol error: a line of more than {LINE_BYTES_MAX} bytes")]
    Line,
    /// A number of arguments that is none, or above the limit.
    #[error("Protocol error: invalid multibulk length")]
    Arguments,
    /// A length that is none, or above the limit.
    #[error("Protocol error: invalid bulk length")]
    Bulk,
    /// An argument that does not begin as one.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    Dollar(u8),
    /// An argument that is longer than it says.
    #[error("Protocol error: expected CRLF after an argument")]
    Tail,
    /// An inline command with a quote that does not end.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Among the bytes that were shown.
    Here(Range<usize>),
    /// Of an inline command, with its quotes and escapes resolved.
    Quoted(Vec<u8>),
    /// Taken by [`Parser::take_open`].
    Apart,
}

/// What the bytes come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A request goes on after them.
    Partial,
    /// The same; and an argument has begun that goes on after them.
    Open(Open),
    /// A request is complete: [`Parser::arguments`], [`Parser::finish`].
    Complete,
}

/// An argument of which not all has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Which one; the command's name is 0.
    pub index: usize,
    /// Where it begins.
    pub start: usize,
    /// Its bytes, without the CRLF after them.
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a request.
    Start,
    /// Before the length of an argument.
    Length,
    /// In an argument of so many bytes.
    Bulk(usize),
    Complete,
}

/// Between two requests, or within one.
#[derive(Clone, Debug)]
pub struct Parser {
    limits: Limits,
    state: State,
    arguments: Vec<Argument>,
    /// Arguments still to come, the one begun among them.
    left: usize,
    /// What was parsed so far.
    at: usize,
}

impl Parser {
    /// Before the first request.
    pub fn new(limits: Limits) -> Parser {
        Parser { limits, state: State::Start, arguments: Vec::new(), left: 0, at: 0 }
    }

    /// Goes on with a request, of which `input` is all that has arrived.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn advance(&mut self, input: &[u8]) -> Result<Progress, ProtocolError> {
        loop {
            match self.state {
                State::Start => {
                    let Some(line) = line(input, self.at)? else { return Ok(Progress::Partial) };
                    self.start(input, line)?;
                }
                State::Length => {
                    if let Some(&other) = input.get(self.at).filter(|byte| **byte != b'$') {
                        return Err(ProtocolError::Dollar(other));
                    }
                    let Some(line) = line(input, self.at)? else { return Ok(Progress::Partial) };
                    let len = number(&input[self.at + 1..line.end])
                        .and_then(|len| usize::try_from(len).ok())
                        .filter(|len| *len <= self.limits.bulk_bytes_max)
                        .ok_or(ProtocolError::Bulk)?;
                    (self.state, self.at) = (State::Bulk(len), line.next);
                }
                State::Bulk(len) => {
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
                State::Complete => return Ok(Progress::Complete),
            }
        }
    }

    /// The first line of a request.
    fn start(&mut self, input: &[u8], line: Line) -> Result<(), ProtocolError> {
        let (base, text) = (self.at, &input[self.at..line.end]);
        self.at = line.next;
        let [b'*', count @ ..] = text else {
            split(text, base, &mut self.arguments)?;
            if !self.arguments.is_empty() {
                self.state = State::Complete;
            }
            return Ok(());
        };
        let count = number(count).ok_or(ProtocolError::Arguments)?;
        // None at all, and the "null" of answers, are passed over.
        let Ok(count) = usize::try_from(count) else { return Ok(()) };
        if count > self.limits.arguments_max {
            return Err(ProtocolError::Arguments);
        }
        if count > 0 {
            self.arguments.reserve(count.min(ARGUMENTS_FIRST));
            (self.left, self.state) = (count, State::Length);
        }
        Ok(())
    }

    fn push(&mut self, argument: Argument, next: usize) {
        self.arguments.push(argument);
        self.at = next;
        self.left -= 1;
        self.state = if self.left == 0 { State::Complete } else { State::Length };
    }

    /// Takes the argument that is [`Progress::Open`] out of what is shown: the caller takes what
    /// there is of it away, from its start on, and receives the rest and the CRLF elsewhere. What is
    /// shown from then on goes on behind it. True where the request is complete but for it.
    ///
    /// # Panics
    /// No argument is open.
    pub fn take_open(&mut self) -> bool {
        assert!(matches!(self.state, State::Bulk(_)), "no argument is open");
        self.push(Argument::Apart, self.at);
        self.state == State::Complete
    }

    /// Arguments of a request so far; the first is the command.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Ends a request that is complete, or gives it up: its bytes so far, and, empty, the arguments.
    pub fn finish(&mut self) -> usize {
        self.arguments.clear();
        self.state = State::Start;
        std::mem::take(&mut self.at)
    }

    /// What was parsed between requests, and need not be shown again.
    pub fn skip(&mut self) -> usize {
        if self.state == State::Start { std::mem::take(&mut self.at) } else { 0 }
    }
}

/// A line: where its text ends, and where the next one begins.
#[derive(Clone, Copy)]
struct Line {
    end: usize,
    next: usize,
}

/// The line that begins at `at`; nothing where its end has not arrived.
fn line(input: &[u8], at: usize) -> Result<Option<Line>, ProtocolError> {
    let rest = &input[at.min(input.len())..];
    let searched = &rest[..rest.len().min(LINE_BYTES_MAX)];
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        return if rest.len() >= LINE_BYTES_MAX { Err(ProtocolError::Line) } else { Ok(None) };
    };
    let text = end - usize::from(end > 0 && rest[end - 1] == b'\r');
    Ok(Some(Line { end: at + text, next: at + end + 1 }))
}

/// A decimal number, and nothing else.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    // What `parse` would take besides: a plus.
    if text.len() > 20 || text.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The words of an inline command. `base` is where `text` begins in what was shown.
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

/// A word with quotes, as the protocol's reference implementation reads it: what it means, and how
/// long it is.
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
