//! Where a stream of messages stands: which byte is next, and how far its message goes.

use unlade_net::SeqNumber;

use crate::l5p::{HEADER_BYTES_MAX, L5p, Message};
use crate::resync::Extent;
use crate::rule::{Rule, holds};

/// A place in a stream of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// The next byte.
    position: SeqNumber,
    /// Bytes of the current message before the next one.
    offset: u32,
    /// Length of the current message, bytes; 0 while its header is incomplete.
    message_bytes: u32,
    /// How many messages were before the current one.
    number: u64,
    header: [u8; HEADER_BYTES_MAX],
}

/// What bytes that come next are.
#[derive(Debug)]
pub(crate) enum Step {
    /// So many bytes of a header, taken; with them it may be complete.
    Header { bytes: usize, complete: bool },
    /// So many bytes of the body, `offset` behind the start of the message; not taken yet.
    Body { bytes: usize, offset: u32, last: bool },
    /// No header, where there must be one.
    Alien,
}

/// Where a segment is, seen from the next byte.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// All of it was before.
    Past,
    /// So many of its bytes were before.
    Overlap(usize),
    /// It is the next.
    Next,
    /// Ahead, and it ends before the next header.
    Within,
    /// Ahead; the next header starts after so many bytes of it.
    Header(usize),
    /// Ahead, beyond the start of the next header: where messages start is not known any more.
    Lost,
}

/// Bytes from `earlier` to `later`; negative where they are the other way round.
pub(crate) fn distance(later: SeqNumber, earlier: SeqNumber) -> i64 {
    if holds(Rule::Wrap) {
        return i64::from(later.since(earlier));
    }
    i64::from(later.0) - i64::from(earlier.0)
}

impl Framing {
    /// A message starts at `position`, after `number` others.
    pub fn at(position: SeqNumber, number: u64) -> Framing {
        let header = [0; HEADER_BYTES_MAX];
        Framing { position, offset: 0, message_bytes: 0, number, header }
    }

    /// The next byte.
    pub fn position(&self) -> SeqNumber {
        self.position
    }

    /// The message whose header is complete.
    pub fn message(&self) -> Message {
        let Framing { number, message_bytes, header, .. } = *self;
        Message { number, message_bytes, header }
    }

    /// True where a message starts with the next byte.
    pub fn is_at_start(&self) -> bool {
        self.offset == 0
    }

    /// True while the next byte belongs to a body.
    pub fn in_body(&self) -> bool {
        self.message_bytes != 0
    }

    /// The message that the next byte is of.
    pub fn extent(&self) -> Extent {
        let start = self.position - self.offset;
        Extent { start, bytes: self.message_bytes, number: self.number }
    }

    /// Where the next header starts that can still be read whole.
    fn next_header(&self) -> SeqNumber {
        self.position - self.offset + self.message_bytes
    }

    /// Where `bytes` bytes from `seq` on are.
    pub fn place(&self, seq: SeqNumber, bytes: usize) -> Place {
        let bytes = bytes as i64;
        let ahead = distance(seq, self.position);
        match ahead {
            0 => return Place::Next,
            ..0 if ahead + bytes <= 0 => return Place::Past,
            ..0 if holds(Rule::Tail) => return Place::Overlap(-ahead as usize),
            ..0 => return Place::Overlap(0),
            _ => (),
        }
        // In the middle of a header that one is the next, and it lies behind: lost.
        match distance(self.next_header(), seq) {
            gap if gap >= bytes => Place::Within,
            gap @ 0.. => Place::Header(gap as usize),
            _ => Place::Lost,
        }
    }

    /// Looks at what is next in `bytes`, which is not empty. A header is taken at once, of a body
    /// what [`Framing::pass`] says.
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
                _ => return Step::Alien,
            }
        }
        Step::Header { bytes: bytes.len(), complete }
    }

    /// Takes `bytes` of a body, of as many as [`Framing::step`] said.
    pub fn pass(&mut self, bytes: usize) {
        self.position = self.position + bytes as u32;
        self.offset += bytes as u32;
        if self.offset == self.message_bytes {
            *self = Framing::at(self.position, self.number.wrapping_add(1));
        }
    }

    /// Goes on where the next header starts.
    pub fn skip_to_header(&mut self) {
        let number = self.number.wrapping_add(u64::from(self.in_body()));
        *self = Framing::at(self.next_header(), number);
    }

    /// What is next is `bytes` further than was thought.
    pub fn shift(&mut self, bytes: u32) {
        self.position = self.position + bytes;
    }

    /// Counts `messages` more that were before.
    pub fn count(&mut self, messages: u64) {
        self.number = self.number.wrapping_add(messages);
    }

    /// Takes `bytes` and looks at headers only.
    ///
    /// # Errors
    /// How many bytes are before what ought to be a header and is none.
    pub fn follow<L: L5p>(&mut self, l5p: &L, bytes: &[u8]) -> Result<(), usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.step(l5p, &bytes[done..]) {
                Step::Header { bytes, .. } => done += bytes,
                Step::Body { bytes, .. } => {
                    self.pass(bytes);
                    done += bytes;
                }
                Step::Alien => return Err(done),
            }
        }
        Ok(())
    }
}
