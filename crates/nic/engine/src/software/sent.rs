//! Sent messages: a map from bytes of the stream to messages. Each is kept until all of it is
//! acknowledged, because any byte of it may have to be sealed again.

use std::collections::VecDeque;

use thiserror::Error;
use unlade_net::SeqNumber;

use crate::framing::distance;
use crate::rule::{Rule, holds};
use crate::tx::{Found, MessageState, Messages};

/// Maximum unacknowledged bytes of a stream: the largest window of TCP (RFC 7323 §2.2).
pub(super) const WINDOW_BYTES_MAX: usize = 1 << 30;

/// Too many messages, or bytes in them, are not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too much is unacknowledged; send when some of it is")]
pub struct Full;

/// Storage of the bytes of a message, contiguous or not.
pub trait Extent {
    /// Number of bytes.
    fn bytes(&self) -> usize;
}

impl<B: AsRef<[u8]>> Extent for B {
    fn bytes(&self) -> usize {
        self.as_ref().len()
    }
}

/// A kept message.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'s, B> {
    /// Start of the message.
    pub start: SeqNumber,
    /// Number of messages before it under the same key.
    pub number: u64,
    /// Index of the flow's key that seals it.
    pub key: u16,
    /// Storage of its bytes.
    pub held: &'s B,
}

/// The message of a byte of the stream.
#[derive(Clone, Copy, Debug)]
pub enum Located<'s, B> {
    /// The byte is in this message.
    Message(Kept<'s, B>),
    /// The byte precedes the offload, which starts at `until`.
    Before {
        /// The first byte that the device seals.
        until: SeqNumber,
    },
    /// The byte is in no known message.
    Unknown,
}

struct Message<B> {
    start: SeqNumber,
    number: u64,
    key: u16,
    bytes: B,
}

/// The sent messages of one flow. `B` stores a message's bytes, or refers to them. They must not
/// change while the message is kept: two plaintexts sealed under one nonce reveal each other and
/// the authentication key.
pub struct Sent<B> {
    messages: VecDeque<Message<B>>,
    /// Start of the offload.
    begin: SeqNumber,
    /// No byte before the offload can be requested any more.
    begun: bool,
    /// Start of the next message, and its number.
    next: SeqNumber,
    number: u64,
    key: u16,
    unacknowledged_bytes: usize,
    messages_max: usize,
}

impl<B: Extent> Sent<B> {
    /// Creates an empty store; the first message starts at `start` and is number `number` under
    /// its key. At most `messages_max` messages are kept.
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

    /// Appends `message` to the stream, as software wrote it.
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

    /// Changes the key for the next messages (a KeyUpdate), which are counted from 0. Returns the
    /// index of the key, and the start of its first message: a [`Tx`](crate::tx::Tx) and a
    /// [`Shadow`](crate::tx::Shadow) begin there. The machines of the previous key are needed
    /// while messages of it are kept.
    pub fn change_key(&mut self) -> (u16, SeqNumber) {
        self.key = self.key.wrapping_add(1);
        self.number = 0;
        (self.key, self.next)
    }

    /// Returns the key that seals the byte `seq`, and the number of bytes from there on, at most
    /// `bytes`, that are sealed with it or precede the offload. `None` if it is unknown: a packet
    /// with that byte is dropped. A flow with one key does not need this function.
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

    /// Frees messages that end before `acknowledged`. Returns their number. An old sequence
    /// number, or one beyond the sent bytes, has no effect.
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

    /// Number of messages before the next one under its key.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Key of the oldest kept message, if there is one.
    pub fn oldest_key(&self) -> Option<u16> {
        self.messages.front().map(|message| message.key)
    }

    /// The oldest kept message, if there is one.
    pub fn oldest(&self) -> Option<Kept<'_, B>> {
        let &Message { start, number, key, bytes: ref held } = self.messages.front()?;
        Some(Kept { start, number, key, held })
    }

    /// Start of the next message.
    pub fn next(&self) -> SeqNumber {
        self.next
    }

    /// The message of the byte `seq`.
    pub fn locate(&self, seq: SeqNumber) -> Located<'_, B> {
        if !self.begun && seq.before(self.begin) {
            return Located::Before { until: self.begin };
        }
        // Messages are ordered relative to the first, because a window is less than half the
        // numbers.
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

    /// Number of kept messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns true if everything is acknowledged.
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
