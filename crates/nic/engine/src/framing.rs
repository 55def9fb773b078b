//! Position of a stream within its messages: the next byte, and the bounds of its message.

use unlade_net::SeqNumber;

use crate::l5p::{HEADER_BYTES_MAX, L5p, Message};
use crate::resync::Extent;
use crate::rule::{Rule, holds};

/// A position in a stream of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// The next byte.
    position: SeqNumber,
    /// Bytes of the current message before the next byte.
    offset: u32,
    /// Length of the current message, bytes; 0 while its header is incomplete.
    message_bytes: u32,
    /// Number of messages before the current one.
    number: u64,
    header: [u8; HEADER_BYTES_MAX],
}

/// Classification of the next bytes.
#[derive(Debug)]
pub(crate) enum Step {
    /// Bytes of a header, which are consumed; `complete` if the header ends with them.
    Header { bytes: usize, complete: bool },
    /// Bytes of the body, `offset` bytes after the message's start. They are not consumed yet.
    Body { bytes: usize, offset: u32, last: bool },
    /// A header is malformed.
    Malformed,
}

/// Position of a segment relative to the next expected byte.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SegmentPosition {
    /// All of it is old.
    Past,
    /// This number of its bytes is old.
    Overlap(usize),
    /// It starts with the next expected byte.
    Next,
    /// Ahead, and it ends before the next header.
    Within,
    /// Ahead; the next header starts after this number of its bytes.
    Header(usize),
    /// Ahead, beyond the start of the next header: message boundaries are unknown from here on.
    Lost,
}

/// Number of bytes from `earlier` to `later`; negative in the reverse order.
pub(crate) fn distance(later: SeqNumber, earlier: SeqNumber) -> i64 {
    if holds(Rule::Wrap) {
        return i64::from(later.since(earlier));
    }
    i64::from(later.0) - i64::from(earlier.0)
}

impl Framing {
    /// A position at which message `number` starts.
    pub fn at(position: SeqNumber, number: u64) -> Framing {
        let header = [0; HEADER_BYTES_MAX];
        Framing { position, offset: 0, message_bytes: 0, number, header }
    }

    /// The next byte.
    pub fn position(&self) -> SeqNumber {
        self.position
    }

    /// The current message; its header is complete.
    pub fn message(&self) -> Message {
        let Framing { number, message_bytes, header, .. } = *self;
        Message { number, message_bytes, header }
    }

    /// Returns true if a message starts with the next byte.
    pub fn is_at_start(&self) -> bool {
        self.offset == 0
    }

    /// Returns true if the next byte belongs to a body.
    pub fn in_body(&self) -> bool {
        self.message_bytes != 0
    }

    /// The extent of the message that contains the next byte.
    pub fn extent(&self) -> Extent {
        let start = self.position - self.offset;
        Extent { start, bytes: self.message_bytes, number: self.number }
    }

    /// Start of the next header that can still be read completely.
    fn next_header(&self) -> SeqNumber {
        self.position - self.offset + self.message_bytes
    }

    /// Locates a segment of `bytes` bytes at `seq`.
    pub fn locate(&self, seq: SeqNumber, bytes: usize) -> SegmentPosition {
        let bytes = bytes as i64;
        let ahead = distance(seq, self.position);
        match ahead {
            0 => return SegmentPosition::Next,
            ..0 if ahead + bytes <= 0 => return SegmentPosition::Past,
            ..0 if holds(Rule::Tail) => return SegmentPosition::Overlap(-ahead as usize),
            ..0 => return SegmentPosition::Overlap(0),
            _ => (),
        }
        // Within a partial header, `next_header` is the start of that header: the segment is
        // `Lost`.
        match distance(self.next_header(), seq) {
            gap if gap >= bytes => SegmentPosition::Within,
            gap @ 0.. => SegmentPosition::Header(gap as usize),
            _ => SegmentPosition::Lost,
        }
    }

    /// Parses the next part of `bytes`, which is not empty. Consumes header bytes; body bytes are
    /// consumed by [`Framing::pass`].
    pub fn step<L: L5p>(&mut self, l5p: &L, bytes: &[u8]) -> Step {
        if self.in_body() {
            let left = self.message_bytes - self.offset;
            let bytes = bytes.len().min(left as usize);
            let last = bytes == left as usize;
            return Step::Body { bytes, offset: self.offset, last };
        }
        let have = self.offset as usize;
        let bytes = &bytes[..bytes.len().min(L::HEADER_BYTES - have)];
        self.header[have..have + bytes.len()].copy_from_slice(bytes);
        self.position = self.position + bytes.len() as u32;
        self.offset += bytes.len() as u32;
        let complete = self.offset as usize == L::HEADER_BYTES;
        if complete {
            match l5p.message_bytes(&self.header[..L::HEADER_BYTES]) {
                Some(message_bytes) if message_bytes > self.offset => {
                    self.message_bytes = message_bytes;
                }
                _ => return Step::Malformed,
            }
        }
        Step::Header { bytes: bytes.len(), complete }
    }

    /// Consumes `bytes` bytes of a body, at most as many as [`Framing::step`] returned.
    pub fn pass(&mut self, bytes: usize) {
        self.position = self.position + bytes as u32;
        self.offset += bytes as u32;
        if self.offset == self.message_bytes {
            *self = Framing::at(self.position, self.number.wrapping_add(1));
        }
    }

    /// Moves to the start of the next header.
    pub fn skip_to_header(&mut self) {
        let number = self.number.wrapping_add(u64::from(self.in_body()));
        *self = Framing::at(self.next_header(), number);
    }

    /// Moves the position forward by `bytes`.
    pub fn shift(&mut self, bytes: u32) {
        self.position = self.position + bytes;
    }

    /// Adds `messages` to the number of the current message.
    pub fn count(&mut self, messages: u64) {
        self.number = self.number.wrapping_add(messages);
    }

    /// Consumes `bytes`, and parses headers only.
    ///
    /// # Errors
    /// The number of bytes before a malformed header.
    pub fn follow<L: L5p>(&mut self, l5p: &L, bytes: &[u8]) -> Result<(), usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.step(l5p, &bytes[done..]) {
                Step::Header { bytes, .. } => done += bytes,
                Step::Body { bytes, .. } => {
                    self.pass(bytes);
                    done += bytes;
                }
                Step::Malformed => return Err(done),
            }
        }
        Ok(())
    }
}
