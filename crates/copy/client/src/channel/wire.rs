//! Wire format of the messages on a channel's socket; all numbers are little-endian.

use unlade_shm::segment::{self, SEGMENTS_MAX};

use crate::TASK_BYTES_MAX;

/// Version of this format.
pub const VERSION: u32 = 1;
/// Maximum length of a reply.
pub const REPLY_BYTES_MAX: usize = 24;
/// Maximum number of messages in flight in a channel.
pub const SLOTS_MAX: u32 = 32;
const MESSAGE_BYTES_MAX: usize = 40;

/// A message on the channel's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelMessage {
    /// From the sender: opens the channel; carries the descriptors of the queue's memory and the
    /// inbox.
    Hello {
        /// Maximum number of messages in flight.
        slots: u32,
        /// Bytes of each message.
        slot_bytes: u32,
    },
    /// From the sender: a message is in the inbox, or is being copied there.
    Sent {
        /// Slot in the inbox.
        slot: u32,
        /// Length of the message.
        len: u32,
        /// The task that copies the message; none if the copy is complete.
        task: Option<TaskPlace>,
    },
    /// From the receiver: the slot is free again.
    Released {
        /// The slot.
        slot: u32,
        /// The receiver's reply.
        reply: ReplyBytes,
    },
    /// From the receiver: it waits for a message that makes no progress.
    Stalled {
        /// The slot of the message.
        slot: u32,
    },
}

/// Location of the progress of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPlace {
    /// The task's ticket.
    pub ticket: u64,
    /// Segment size of the task, as a shift.
    pub granule_shift: u8,
}

/// A short reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyBytes {
    bytes: [u8; REPLY_BYTES_MAX],
    len: u8,
}

impl ReplyBytes {
    /// Creates a reply of at most [`REPLY_BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Option<ReplyBytes> {
        let mut reply = ReplyBytes { len: u8::try_from(bytes.len()).ok()?, ..Self::default() };
        reply.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(reply)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// Protocol error of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Length, kind or a reserved field violates the format.
    #[error("a message of {bytes} bytes of kind {kind} is malformed")]
    Format {
        /// Length of the message.
        bytes: usize,
        /// First word of the message; 0 if there is none.
        kind: u32,
    },
    /// Unsupported version.
    #[error("version {0}, not {VERSION}")]
    Version(u32),
    /// A number exceeds its limit, or the limit that was agreed on.
    #[error("{what} of {found} is out of range")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// Message at the wrong time.
    #[error("{0} comes at the wrong time")]
    Order(&'static str),
}

/// An encoded message.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; MESSAGE_BYTES_MAX],
    len: usize,
}

impl Encoded {
    fn new() -> Encoded {
        Encoded { bytes: [0; MESSAGE_BYTES_MAX], len: 0 }
    }

    fn with(mut self, part: &[u8]) -> Encoded {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }

    fn word(self, word: u32) -> Encoded {
        self.with(&word.to_le_bytes())
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

const HELLO: u32 = 1;
const SENT: u32 = 2;
const RELEASED: u32 = 3;
const STALLED: u32 = 4;
/// Value of the granule field if no task copies the message.
const NO_TASK: u32 = 0;

impl ChannelMessage {
    /// Encodes the message.
    pub fn encode(&self) -> Encoded {
        let encoded = Encoded::new();
        match *self {
            ChannelMessage::Hello { slots, slot_bytes } => {
                encoded.word(HELLO).word(VERSION).word(slots).word(slot_bytes)
            }
            ChannelMessage::Sent { slot, len, task } => {
                let shift = task.map_or(NO_TASK, |task| task.granule_shift.into());
                let ticket = task.map_or(0, |task| task.ticket);
                let encoded = encoded.word(SENT).word(slot).word(len).word(shift);
                encoded.with(&ticket.to_le_bytes())
            }
            ChannelMessage::Released { slot, reply } => {
                let encoded = encoded.word(RELEASED).word(slot).word(reply.len.into());
                encoded.with(&reply.bytes)
            }
            ChannelMessage::Stalled { slot } => encoded.word(STALLED).word(slot),
        }
    }

    /// Decodes a message, and checks the limits of every number.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<ChannelMessage, WireError> {
        let word = |at: usize| {
            let word = bytes.get(4 * at..4 * at + 4)?;
            Some(u32::from_le_bytes(word.try_into().ok()?))
        };
        let kind = word(0).unwrap_or(0);
        let format = WireError::Format { bytes: bytes.len(), kind };
        let number = |at| word(at).ok_or(format);
        match (kind, bytes.len()) {
            (HELLO, 16) => hello(number(1)?, number(2)?, number(3)?),
            (SENT, 24) => {
                let ticket = u64::from(number(5)?) << 32 | u64::from(number(4)?);
                sent(number(1)?, number(2)?, number(3)?, ticket)
            }
            (RELEASED, 36) => {
                let (slot, len) = (slot(number(1)?)?, number(2)?);
                let (text, rest) = bytes[12..].split_at_checked(len as usize).ok_or(format)?;
                if rest.iter().any(|byte| *byte != 0) {
                    return Err(format);
                }
                Ok(ChannelMessage::Released { slot, reply: ReplyBytes::new(text).ok_or(format)? })
            }
            (STALLED, 8) => Ok(ChannelMessage::Stalled { slot: slot(number(1)?)? }),
            _ => Err(format),
        }
    }
}

fn slot(slot: u32) -> Result<u32, WireError> {
    range("a slot", slot, 0..=SLOTS_MAX - 1)
}

fn range(
    what: &'static str,
    found: u32,
    allowed: std::ops::RangeInclusive<u32>,
) -> Result<u32, WireError> {
    let error = WireError::Range { what, found: found.into() };
    if allowed.contains(&found) { Ok(found) } else { Err(error) }
}

fn hello(version: u32, slots: u32, slot_bytes: u32) -> Result<ChannelMessage, WireError> {
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    let slots = range("a number of slots", slots, 1..=SLOTS_MAX)?;
    let slot_bytes = range("a slot's size", slot_bytes, 1..=TASK_BYTES_MAX as u32)?;
    Ok(ChannelMessage::Hello { slots, slot_bytes })
}

fn sent(slot_number: u32, len: u32, shift: u32, ticket: u64) -> Result<ChannelMessage, WireError> {
    let slot = slot(slot_number)?;
    let len = range("a length", len, 0..=TASK_BYTES_MAX as u32)?;
    if shift == NO_TASK {
        let out_of_range = WireError::Range { what: "a ticket", found: ticket };
        return if ticket == 0 {
            Ok(ChannelMessage::Sent { slot, len, task: None })
        } else {
            Err(out_of_range)
        };
    }
    let limits = segment::GRANULE_SHIFT_MIN.into()..=segment::GRANULE_SHIFT_MAX.into();
    let granule_shift = range("a granule", shift, limits)? as u8;
    if segment::count_for(len, granule_shift) > SEGMENTS_MAX {
        return Err(WireError::Range { what: "a granule", found: shift.into() });
    }
    Ok(ChannelMessage::Sent { slot, len, task: Some(TaskPlace { ticket, granule_shift }) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoded_messages_are_decoded() {
        let task = Some(TaskPlace { ticket: u64::MAX - 1, granule_shift: 15 });
        let reply = ReplyBytes::new(b"done").unwrap();
        for message in [
            ChannelMessage::Hello { slots: 32, slot_bytes: 1 << 20 },
            ChannelMessage::Sent { slot: 31, len: 1 << 20, task },
            ChannelMessage::Sent { slot: 0, len: 0, task: None },
            ChannelMessage::Released { slot: 3, reply },
            ChannelMessage::Stalled { slot: 3 },
        ] {
            assert_eq!(ChannelMessage::decode(message.encode().as_slice()), Ok(message));
        }
        assert_eq!(ReplyBytes::new(&[0; REPLY_BYTES_MAX + 1]), None);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let refused = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            ChannelMessage::decode(&bytes).unwrap_err()
        };
        assert_eq!(refused(&[HELLO, 2, 1, 1]), WireError::Version(2));
        for words in [[HELLO, 1, 0, 1], [HELLO, 1, 33, 1], [HELLO, 1, 1, 0], [HELLO, 1, 1, 1 << 21]]
        {
            assert!(matches!(refused(&words), WireError::Range { .. }), "{words:?}");
        }
        for words in [
            [SENT, 32, 1, 0, 0, 0],
            [SENT, 0, (1 << 20) + 1, 0, 0, 0],
            [SENT, 0, 1, 5, 0, 0],
            [SENT, 0, 1, 32, 0, 0],
            [SENT, 0, 1 << 20, 10, 0, 0],
            [SENT, 0, 1, 0, 7, 0],
        ] {
            assert!(matches!(refused(&words), WireError::Range { .. }), "{words:?}");
        }
        assert!(matches!(refused(&[]), WireError::Format { bytes: 0, kind: 0 }));
        assert!(matches!(refused(&[STALLED, 0, 0]), WireError::Format { .. }));
        assert!(matches!(refused(&[RELEASED, 0, 25, 0, 0, 0, 0, 0, 0]), WireError::Format { .. }));
        assert!(matches!(refused(&[RELEASED, 0, 0, 1, 0, 0, 0, 0, 0]), WireError::Format { .. }));
    }

    proptest! {
        #[test]
        fn decoding_is_the_inverse_of_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
            if let Ok(message) = ChannelMessage::decode(&bytes) {
                let encoded = message.encode();
                prop_assert_eq!(encoded.as_slice(), &bytes[..]);
            }
        }
    }
}
