//! Where a stream of messages stands: which octet is next, and how far its message goes.

use unlade_net::SeqNumber;

use crate::l5p::{HEADER_BYTES_MAX, L5p, Message};
use crate::resync::Extent;
use crate::rule::{Rule, holds};

/// A place in a stream of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// The next octet.
    position: SeqNumber,
    /// Octets of the current message before the next one.
    offset: u32,
    /// Length of the current message, octets; 0 while its header is incomplete.
    message_bytes: u32,
    /// How many messages were before the current one.
    number: u64,
    header: [u8; HEADER_BYTES_MAX],
}

/// What octets that come next are.
#[derive(Debug)]
pub(crate) enum Step {
    /// So many octets of a header, taken; with them it may be complete.
    Header { octets: usize, complete: bool },
    /// So many octets of the body, `offset` behind the start of the message; not taken yet.
    Body { octets: usize, offset: u32, last: bool },
    /// No header, where there must be one.
    Alien,
}

/// Where a segment is, seen from the next octet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// All of it was before.
    Past,
    /// So many of its octets were before.
    Overlap(usize),
    /// It is the next.
    Next,
    /// Ahead, and it ends before the next header.
    Within,
    /// Ahead; the next header starts after so many octets of it.
    Header(usize),
    /// Ahead, beyond the start of the next header: where messages start is not known any more.
    Lost,
}

/// Octets from `earlier` to `later`; negative where they are the other way round.
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

    /// The next octet.
    pub fn position(&self) -> SeqNumber {
        self.position
    }

    /// The message whose header is complete.
    pub fn message(&self) -> Message {
        let Framing { number, message_bytes, header, .. } = *self;
        Message { number, message_bytes, header }
    }

    /// True where a message starts with the next octet.
    pub fn is_at_start(&self) -> bool {
        self.offset == 0
    }

    /// True while the next octet belongs to a body.
    pub fn in_body(&self) -> bool {
        self.message_bytes != 0
    }

    /// The message that the next octet is of.
    pub fn extent(&self) -> Extent {
        let start = self.position - self.offset;
        Extent { start, bytes: self.message_bytes, number: self.number }
    }

    /// Where the next header starts that can still be read whole.
    fn next_header(&self) -> SeqNumber {
        self.position - self.offset + self.message_bytes
    }

    /// Where `octets` octets from `seq` on are.
    pub fn place(&self, seq: SeqNumber, octets: usize) -> Place {
        let octets = octets as i64;
        let ahead = distance(seq, self.position);
        match ahead {
            0 => return Place::Next,
            ..0 if ahead + octets <= 0 => return Place::Past,
            ..0 if holds(Rule::Tail) => return Place::Overlap(-ahead as usize),
            ..0 => return Place::Overlap(0),
            _ => (),
        }
        // In the middle of a header that one is the next, and it lies behind: lost.
        match distance(self.next_header(), seq) {
            gap if gap >= octets => Place::Within,
            gap @ 0.. => Place::Header(gap as usize),
            _ => Place::Lost,
        }
    }

    /// Looks at what is next in `octets`, which is not empty. A header is taken at once, of a body
    /// what [`Framing::pass`] says.
    pub fn step<L: L5p>(&mut self, l5p: &L, octets: &[u8]) -> Step {
        if self.in_body() {
            let left = self.message_bytes - self.offset;
            let octets = octets.len().min(left as usize);
            let last = octets == left as usize;
            return Step::Body { octets, offset: self.offset, last };
        }
        let have = self.offset as usize;
        let octets = &octets[..octets.len().min(L::HEADER_BYTES - have)];
        self.header[have..have + octets.len()].copy_from_slice(octets);
        self.position = self.position + octets.len() as u32;
        self.offset += octets.len() as u32;
        let complete = self.offset as usize == L::HEADER_BYTES;
        if complete {
            match l5p.message_bytes(&self.header[..L::HEADER_BYTES]) {
                Some(message_bytes) if message_bytes > self.offset => {
                    self.message_bytes = message_bytes;
                }
                _ => return Step::Alien,
            }
        }
        Step::Header { octets: octets.len(), complete }
    }

    /// Takes `octets` of a body, of as many as [`Framing::step`] said.
    pub fn pass(&mut self, octets: usize) {
        self.position = self.position + octets as u32;
        self.offset += octets as u32;
        if self.offset == self.message_bytes {
            *self = Framing::at(self.position, self.number.wrapping_add(1));
        }
    }

    /// Goes on where the next header starts.
    pub fn skip_to_header(&mut self) {
        let number = self.number.wrapping_add(u64::from(self.in_body()));
        *self = Framing::at(self.next_header(), number);
    }

    /// What is next is `octets` further than was thought.
    pub fn shift(&mut self, octets: u32) {
        self.position = self.position + octets;
    }

    /// Counts `messages` more that were before.
    pub fn count(&mut self, messages: u64) {
        self.number = self.number.wrapping_add(messages);
    }

    /// Takes `octets` and looks at headers only.
    ///
    /// # Errors
    /// How many octets are before what ought to be a header and is none.
    pub fn follow<L: L5p>(&mut self, l5p: &L, octets: &[u8]) -> Result<(), usize> {
        let mut done = 0;
        while done < octets.len() {
            match self.step(l5p, &octets[done..]) {
                Step::Header { octets, .. } => done += octets,
                Step::Body { octets, .. } => {
                    self.pass(octets);
                    done += octets;
                }
                Step::Alien => return Err(done),
            }
        }
        Ok(())
    }
}
