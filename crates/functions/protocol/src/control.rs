//! Messages between the gateway and the worker of a tenant, over an `AF_UNIX` stream: a JSON head
//! behind a length of 32 bits, a zero byte, and bytes.
//!
//! The two trust each other with the tenant's work, and nothing else: lengths are checked, unknown
//! messages end the connection.

use serde::{Deserialize, Serialize};

use super::{Outcome, split_head};
use unlade_bytes::DecodeError;

/// Most bytes of a message behind its length: a Lambda event has 6 MiB at most.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a message's length.
pub const LENGTH_BYTES: usize = 4;

/// When a write is acknowledged, and when its invocation is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// To the function at once, to the caller when all is durable in the store.
    #[default]
    DurableReply,
    /// To the function when it is durable in the store.
    Sync,
    /// To the function, and to the caller, when it is durable in the worker's journal.
    EarlyReply,
}

/// An object that an invocation will read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// One version of it; else the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A part of it, as in a `Range` field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
}

/// A write that failed after it had been acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedWrite {
    /// `PutObject`.
    pub operation: String,
    /// Where to.
    pub bucket: String,
    /// Where to.
    pub key: String,
    /// The service's or the host's code.
    pub code: String,
    /// For people.
    pub message: String,
}

/// What is said. Bytes behind it: see [`Message`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Said {
    /// Gateway: a role, by the number that the following messages name.
    Role {
        /// The number.
        role: u64,
        /// Its policy, as JSON.
        policy: serde_json::Value,
    },
    /// Gateway: an instance, whose channel comes beside the message.
    Attach {
        /// The gateway's number of it.
        instance: u64,
        /// A role that was said.
        role: u64,
        /// Whose instance it is.
        function: String,
        /// The bytes of the memory that comes as a second descriptor, where what the instance
        /// runs in provides it: a memfd of at least this size, sealed against shrinking, growing
        /// and more seals, so that no page of it can go away under the worker. 0: the worker makes
        /// it.
        #[serde(default)]
        region_bytes: u64,
    },
    /// Gateway: an invocation will come that reads these objects, and those its event names (the
    /// bytes).
    Hint {
        /// The invocation.
        invocation: String,
        /// Whose rights are used.
        role: u64,
        /// Beside those of the event.
        #[serde(default)]
        objects: Vec<ObjectName>,
    },
    /// Gateway: an invocation; the bytes are its event.
    Invoke {
        /// Where.
        instance: u64,
        /// The invocation.
        invocation: String,
        /// `module.function`.
        handler: String,
        /// The function's name.
        function: String,
        /// In milliseconds since the UNIX epoch.
        deadline_ms: u64,
        /// What the instance may use.
        memory_mib: u32,
        /// How its writes are acknowledged.
        #[serde(default)]
        writes: WriteMode,
    },
    /// Gateway: an invocation that had no reply is over. [`Said::Settled`] follows once its writes
    /// have ended.
    Settle {
        /// The invocation.
        invocation: String,
    },
    /// Gateway: the instance is no more.
    Detach {
        /// Which.
        instance: u64,
    },
    /// Worker: the instance has greeted, and can be invoked.
    Ready {
        /// Which.
        instance: u64,
        /// What it was given.
        epoch: u64,
    },
    /// Worker: the handler has returned; the bytes are its result.
    Replied {
        /// Where.
        instance: u64,
        /// The invocation.
        invocation: String,
        /// How it ended.
        status: Outcome,
        /// The last of what it printed.
        log_tail: String,
        /// Acknowledged writes that are not durable yet, or have failed; with any,
        /// [`Said::Settled`] follows.
        pending_writes: u32,
        /// How long fetches ahead took that the function used, in microseconds, together.
        #[serde(default)]
        prefetch_us: u64,
        /// Of that, what passed after the function had asked: not hidden.
        #[serde(default)]
        prefetch_waited_us: u64,
    },
    /// Worker: every write of the invocation has ended. Said once the handler has returned with
    /// writes pending, and when it was asked for.
    Settled {
        /// The invocation.
        invocation: String,
        /// Those that did not become durable; with any, the invocation has failed.
        failed: Vec<FailedWrite>,
    },
    /// Worker: the instance's channel has ended.
    Gone {
        /// Which.
        instance: u64,
        /// Why.
        reason: String,
    },
    /// Worker: what was asked was not done.
    Refused {
        /// Which instance it was about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instance: Option<u64>,
        /// Which invocation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invocation: Option<String>,
        /// Why.
        reason: String,
    },
}

/// A message: what is said, and the bytes of an event or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The head.
    pub said: Said,
    /// An event's or a result's bytes; most have none.
    pub bytes: Vec<u8>,
}

impl From<Said> for Message {
    fn from(said: Said) -> Message {
        Message { said, bytes: Vec::new() }
    }
}

impl Message {
    /// Appends the message.
    ///
    /// # Errors
    /// It is too long, and nothing was appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let head = serde_json::to_vec(&self.said).unwrap_or_default();
        let length = head.len() + 1 + self.bytes.len();
        if length > MESSAGE_BYTES_MAX {
            return Err(DecodeError::TooLong { what: "message", length, limit: MESSAGE_BYTES_MAX });
        }
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&head);
        out.push(0);
        out.extend_from_slice(&self.bytes);
        Ok(())
    }

    /// Decodes the message at the front of `input`, and how many bytes it took; nothing where
    /// more input is needed.
    ///
    /// # Errors
    /// The connection must end.
    pub fn decode(input: &[u8]) -> Result<Option<(Message, usize)>, DecodeError> {
        let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(DecodeError::TooLong { what: "message", length, limit: MESSAGE_BYTES_MAX });
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let (head, bytes) = split_head(content);
        let said = serde_json::from_slice(head).map_err(|error| DecodeError::Undefined {
            what: "control message",
            value: error.column() as u64,
        })?;
        Ok(Some((Message { said, bytes: bytes.to_vec() }, LENGTH_BYTES + length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        let object = ObjectName {
            bucket: "in".into(),
            key: "a b".into(),
            version: None,
            range: Some("bytes=0-9".into()),
        };
        let invocation = || "i-1".to_owned();
        vec![
            Said::Role { role: 1, policy: serde_json::json!({"allow": []}) }.into(),
            Said::Attach { instance: 3, role: 1, function: "f".into(), region_bytes: 0 }.into(),
            Message {
                said: Said::Hint { invocation: invocation(), role: 1, objects: vec![object] },
                bytes: b"{}\0x".to_vec(),
            },
            Said::Settle { invocation: invocation() }.into(),
            Message {
                said: Said::Replied {
                    instance: 3,
                    invocation: invocation(),
                    status: Outcome::Error,
                    log_tail: "\0".into(),
                    pending_writes: 2,
                    prefetch_us: 40,
                    prefetch_waited_us: 3,
                },
                bytes: vec![0; 9],
            },
            Said::Refused { instance: None, invocation: None, reason: "full".into() }.into(),
        ]
    }

    #[test]
    fn messages_mean_what_was_written_whatever_has_arrived() {
        let mut bytes = Vec::new();
        for message in messages() {
            message.encode(&mut bytes).unwrap();
        }
        let mut at = 0;
        for message in messages() {
            let (found, taken) = Message::decode(&bytes[at..]).unwrap().unwrap();
            assert_eq!(found, message);
            for part in 0..taken {
                assert_eq!(Message::decode(&bytes[at..at + part]), Ok(None));
            }
            at += taken;
        }
        assert_eq!(at, bytes.len());
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
            bytes.extend_from_slice(&body);
            let _ = Message::decode(&bytes);
            let _ = Message::decode(&body);
        }
    }
}
