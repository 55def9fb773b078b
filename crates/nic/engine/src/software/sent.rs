//! Messages that were sent: a map from bytes of the stream to them. Each is kept until all of it is
//! acknowledged, since any byte of it may have to be sealed again.

use std::collections::VecDeque;

use thiserror::Error;
use unlade_net::SeqNumber;

use crate::framing::distance;
use crate::rule::{Rule, holds};
use crate::tx::{Found, MessageState, Messages};

/// Most bytes that a stream can have unacknowledged: the largest window of TCP (RFC 7323 §2.2).
pub(super) const WINDOW_BYTES_MAX: usize = 1 << 30;

/// There are too many messages, or bytes in them, that are not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too much is unacknowledged; send when some of it is")]
pub struct Full;

/// What holds the bytes of a message, all in one place or not.
pub trait Extent {
    /// How many there are.
    fn bytes(&self) -> usize;
}

impl<B: AsRef<[u8]>> Extent for B {
    fn bytes(&self) -> usize {
        self.as_ref().len()
    }
}

/// A message that is kept.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'s, B> {
    /// Where it starts.
    pub start: SeqNumber,
    /// How many were before it under the same key.
    pub number: u64,
    /// Which of the flow's keys it is sealed with.
    pub key: u16,
    /// What holds its bytes.
    pub held: &'s B,
}

/// What an byte of the stream belongs to.
#[derive(Clone, Copy, Debug)]
pub enum Located<'s, B> {
    /// A message.
    Message(Kept<'s, B>),
    /// It is from before the offload, which starts at `until`.
    Before {
        /// The first byte that the device seals.
        until: SeqNumber,
    },
    /// Nothing that is known.
    Unknown,
}

struct Message<B> {
    start: SeqNumber,
    number: u64,
    key: u16,
    bytes: B,
}

/// The messages of one flow, `B` being what holds a message's bytes: a reference on them. They
/// must not change while they are here: sealed twice under one nonce, two texts betray each other
/// and the key.
pub struct Sent<B> {
    messages: VecDeque<Message<B>>,
    /// Where the offload began.
    begin: SeqNumber,
    /// Nothing of what was sent before that can be asked for any more.
    begun: bool,
    /// Where the next message starts, and its number.
    next: SeqNumber,
    number: u64,
    key: u16,
    unacknowledged_bytes: usize,
    messages_max: usize,
}

impl<B: Extent> Sent<B> {
    /// No message yet; the first will start at `start` and have `number` before it under its key.
    /// At most `messages_max` are kept.
    pub fn new(start: SeqNumber, number: u64, messages_max: usize) -> Sent<B> {
        Sent {
            messages: VecDeque::new(),
            begin: start,
            begun: false,
            next: start,
            number,
            key: 0,
            unacknowledged_bytes: 0,
            messages_max,
        }
    }

    /// The stream goes on with `message`, as software wrote it.
    ///
    /// # Errors
    /// [`Full`]; nothing is kept then.
    pub fn push(&mut self, message: B) -> Result<(), Full> {
        let message_bytes = message.bytes();
        let room = WINDOW_BYTES_MAX - self.unacknowledged_bytes;
        if self.messages.len() >= self.messages_max || message_bytes > room {
            return Err(Full);
        }
        let (start, number, key) = (self.next, self.number, self.key);
        self.messages.push_back(Message { start, number, key, bytes: message });
        self.next = start + message_bytes as u32;
        self.number += 1;
        self.unacknowledged_bytes += message_bytes;
        Ok(())
    }

    /// From the next message on another key is used (a KeyUpdate), and counted from 0. Returns which
    /// of the flow's keys it is, and where its first message starts: a [`Tx`](crate::tx::Tx) and a
    /// [`Shadow`](crate::tx::Shadow) begin there. Those of the key before are needed as long as
    /// messages of it are here.
    pub fn change_key(&mut self) -> (u16, SeqNumber) {
        self.key = self.key.wrapping_add(1);
        self.number = 0;
        (self.key, self.next)
    }

    /// Which key seals the byte `seq`, and how many of `bytes` from there on are sealed with it,
    /// or come before the offload. Nothing where that is not known: a packet with it is dropped. A
    /// flow of one key need not ask.
    pub fn under_one_key(&self, seq: SeqNumber, bytes: usize) -> Option<(u16, usize)> {
        let first = match self.locate(seq) {
            Located::Message(message) => message.key,
            Located::Before { .. } => self.oldest_key()?,
            Located::Unknown => return None,
        };
        let other =
            self.messages.iter().find(|message| message.key != first && seq.before(message.start));
        let until = other.map_or(bytes, |message| message.start.since(seq) as usize);
        Some((first, bytes.min(until)))
    }

    /// Bytes before `acknowledged` have arrived: messages that end before it are let go.
    /// Returns how many. A number that is old, or beyond what was sent, changes nothing.
    pub fn acknowledge(&mut self, acknowledged: SeqNumber) -> usize {
        if self.next.before(acknowledged) {
            return 0;
        }
        self.begun |= !acknowledged.before(self.begin);
        let gone = |message: &Message<B>| {
            let end = message.start + message.bytes.bytes() as u32;
            let kept = if holds(Rule::Acknowledged) { end } else { message.start + 1 };
            !acknowledged.before(kept)
        };
        let mut released = 0;
        while self.messages.front().is_some_and(gone) {
            let message = self.messages.pop_front();
            self.unacknowledged_bytes -= message.map_or(0, |message| message.bytes.bytes());
            released += 1;
        }
        released
    }

    /// How many messages were before the next one under its key.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Which key seals the oldest message that is kept; nothing where none is.
    pub fn oldest_key(&self) -> Option<u16> {
        self.messages.front().map(|message| message.key)
    }

    /// The oldest message that is kept; nothing where none is.
    pub fn oldest(&self) -> Option<Kept<'_, B>> {
        let &Message { start, number, key, bytes: ref held } = self.messages.front()?;
        Some(Kept { start, number, key, held })
    }

    /// Where the next message will start.
    pub fn next(&self) -> SeqNumber {
        self.next
    }

    /// What the byte `seq` belongs to.
    pub fn locate(&self, seq: SeqNumber) -> Located<'_, B> {
        if !self.begun && seq.before(self.begin) {
            return Located::Before { until: self.begin };
        }
        // From the first one on they are in order, and a window is less than half of the numbers.
        let behind = self.messages.partition_point(|message| distance(seq, message.start) >= 0);
        let Some(message) = behind.checked_sub(1).and_then(|index| self.messages.get(index)) else {
            return Located::Unknown;
        };
        if seq.since(message.start) as usize >= message.bytes.bytes() {
            return Located::Unknown;
        }
        let &Message { start, number, key, bytes: ref held } = message;
        Located::Message(Kept { start, number, key, held })
    }

    /// How many messages are kept.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// True where everything is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

impl<B: AsRef<[u8]>> Messages for Sent<B> {
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        match self.locate(seq) {
            Located::Message(Kept { start, number, key, held }) => {
                Found::Message(MessageState { start, number, key, bytes: held.as_ref() })
            }
            Located::Before { until } => Found::Before { until },
            Located::Unknown => Found::Unknown,
        }
    }
}
