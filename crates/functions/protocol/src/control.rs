//! Messages between the gateway and the worker of a tenant, over an `AF_UNIX` stream: a length of
//! 32 bits, a JSON head, a zero byte, and a payload.
//!
//! The two ends trust each other with the tenant's work only: lengths are checked, and an unknown
//! message ends the connection.

use serde::{Deserialize, Serialize};

use super::{CallContext, HandlerStatus, RequestHead, split_head};
use unlade_bytes::DecodeError;

/// Most requests on behalf of functions that a worker has in flight for one gateway.
pub const PERFORMS_MAX: usize = 256;
/// Most bytes of the body of a request on behalf of a function: a message of 256 KiB, in JSON.
pub const PERFORM_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of the answer: ten messages of a queue, in JSON.
pub const PERFORMED_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Most bytes of a message after its length: a Lambda event has at most 6 MiB.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of the length field.
pub const LENGTH_BYTES: usize = 4;

/// The time at which a write is acknowledged and its invocation is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// To the function at once; to the caller when all writes are durable in the store.
    #[default]
    DurableReply,
    /// To the function when it is durable in the store.
    Sync,
    /// To the function and to the caller when it is durable in the worker's journal.
    EarlyReply,
}

/// An object that an invocation will read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The version; the current one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The part to read, as in a `Range` field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
}

/// A write that failed after its acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedWrite {
    /// `PutObject`.
    pub operation: String,
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The code of the service or of the host.
    pub code: String,
    /// A text for humans.
    pub message: String,
}

/// The end of a request on behalf of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum PerformEnd {
    /// The service has answered, perhaps with an error; the payload is the body of the answer.
    Answered {
        /// The HTTP status.
        http_status: u16,
    },
    /// The role does not allow the request: it was sent nowhere.
    Denied {
        /// The reason, with the lines to add.
        why: String,
    },
    /// As many requests as may be are in flight, or the worker has no room: try again later.
    Busy,
    /// The answer is longer than [`PERFORMED_BYTES_MAX`].
    TooLong,
    /// The request was refused before the role was asked, or the service cannot be reached.
    Failed {
        /// The reason.
        why: String,
    },
}

/// The head of a message. The payload is in [`Message`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ControlHead {
    /// Gateway: defines a role, by the number that later messages use, or changes its policy. The
    /// next call of each instance with the role is decided by it.
    Role {
        /// The number.
        role: u64,
        /// Its policy, as JSON.
        policy: serde_json::Value,
    },
    /// Gateway: no later message names this role. Instances that run keep it.
    Forget {
        /// The number.
        role: u64,
    },
    /// Gateway: attaches an instance, whose channel is sent with the message.
    Attach {
        /// The gateway's number of the instance.
        instance: u64,
        /// The number of a defined role.
        role: u64,
        /// The name of the function.
        function: String,
        /// The bytes of the memory in a second descriptor, if the isolation backend provides it: a
        /// memfd of at least this size, sealed against shrinking, growing and further seals, so
        /// that its pages stay valid in the worker. 0: the worker creates the memory.
        #[serde(default)]
        region_bytes: u64,
    },
    /// Gateway: announces an invocation that will read these objects, and those that its event
    /// names (the payload).
    Hint {
        /// The invocation.
        invocation: String,
        /// The role whose rights apply.
        role: u64,
        /// Objects in addition to those of the event.
        #[serde(default)]
        objects: Vec<ObjectName>,
    },
    /// Gateway: starts an invocation; the payload is its event.
    Invoke {
        /// The instance.
        instance: u64,
        /// The invocation.
        invocation: String,
        /// `module.function`.
        handler: String,
        /// The function's name.
        function: String,
        /// The deadline in milliseconds since the UNIX epoch.
        deadline_ms: u64,
        /// Memory limit of the instance.
        memory_mib: u32,
        /// The write mode.
        #[serde(default)]
        writes: WriteMode,
        /// Data of the caller.
        #[serde(flatten)]
        context: CallContext,
    },
    /// Gateway: an invocation without a reply is over. [`ControlHead::Settled`] follows once its
    /// writes have ended.
    Settle {
        /// The invocation.
        invocation: String,
    },
    /// Gateway: the instance has ended.
    Detach {
        /// The instance.
        instance: u64,
    },
    /// Gateway: performs one request to a service, with the rights of a role and with the worker's
    /// keys; the payload is its body. For the service `s3` it is the parameters of the operation, in
    /// JSON, and the answer is an object or the result in JSON. [`ControlHead::Performed`] follows.
    Perform {
        /// The gateway's number of the request.
        call: u64,
        /// The role whose rights apply.
        role: u64,
        /// The request, without a signature.
        request: RequestHead,
    },
    /// Worker: the instance has greeted, and can be invoked.
    Ready {
        /// The instance.
        instance: u64,
        /// The epoch of the greeting.
        epoch: u64,
    },
    /// Worker: the handler has returned; the payload is its result.
    Replied {
        /// The instance.
        instance: u64,
        /// The invocation.
        invocation: String,
        /// The status of the handler.
        status: HandlerStatus,
        /// The end of its output.
        log_tail: String,
        /// Acknowledged writes that are not durable yet, or have failed; if there are any,
        /// [`ControlHead::Settled`] follows.
        pending_writes: u32,
        /// Sum of the durations of the prefetches that the function used, in microseconds.
        #[serde(default)]
        prefetch_us: u64,
        /// The part of `prefetch_us` after the function's request: not hidden.
        #[serde(default)]
        prefetch_waited_us: u64,
        /// Bytes of texts and bodies that calls of the instance have brought since the reply before.
        #[serde(default)]
        received_bytes: u64,
        /// Bytes of texts and bodies in calls of the instance since the reply before.
        #[serde(default)]
        sent_bytes: u64,
    },
    /// Worker: every write of the invocation has ended. Sent after a reply with pending writes,
    /// and on request.
    Settled {
        /// The invocation.
        invocation: String,
        /// Writes that did not become durable; if there are any, the invocation has failed.
        failed: Vec<FailedWrite>,
    },
    /// Worker: a request on behalf of a function has ended; the payload is the body of its answer.
    Performed {
        /// The number of the request.
        call: u64,
        /// Its end.
        #[serde(flatten)]
        end: PerformEnd,
    },
    /// Worker: the instance's channel has ended.
    Gone {
        /// The instance.
        instance: u64,
        /// The reason.
        reason: String,
    },
    /// Worker: a request was refused.
    Refused {
        /// The instance of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instance: Option<u64>,
        /// The invocation of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invocation: Option<String>,
        /// The reason.
        reason: String,
    },
}

/// A message: its head, and the bytes of an event or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The head.
    pub said: ControlHead,
    /// The bytes of an event or result; empty for most messages.
    pub bytes: Vec<u8>,
}

impl From<ControlHead> for Message {
    fn from(said: ControlHead) -> Message {
        Message { said, bytes: Vec::new() }
    }
}

impl Message {
    /// Appends the message.
    ///
    /// # Errors
    /// The message is too long; nothing was appended.
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

    /// Decodes the message at the front of `input`; returns it with its length, `None` if more
    /// input is needed.
    ///
    /// # Errors
    /// The message is invalid; the connection must end.
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
            ControlHead::Role { role: 1, policy: serde_json::json!({"allow": []}) }.into(),
            ControlHead::Forget { role: 1 }.into(),
            ControlHead::Attach { instance: 3, role: 1, function: "f".into(), region_bytes: 0 }
                .into(),
            Message {
                said: ControlHead::Hint {
                    invocation: invocation(),
                    role: 1,
                    objects: vec![object],
                },
                bytes: b"{}\0x".to_vec(),
            },
            Message {
                said: ControlHead::Invoke {
                    instance: 3,
                    invocation: invocation(),
                    handler: "app.handler".into(),
                    function: "f".into(),
                    deadline_ms: u64::MAX,
                    memory_mib: 128,
                    writes: WriteMode::Sync,
                    context: CallContext {
                        trace: "Root=1-00000000-000000000000000000000000".into(),
                        client_context: Some("{\"custom\": null}".into()),
                    },
                },
                bytes: b"5".to_vec(),
            },
            ControlHead::Settle { invocation: invocation() }.into(),
            Message {
                said: ControlHead::Replied {
                    instance: 3,
                    invocation: invocation(),
                    status: HandlerStatus::Error,
                    log_tail: "\0".into(),
                    pending_writes: 2,
                    prefetch_us: 40,
                    prefetch_waited_us: 3,
                    received_bytes: 9,
                    sent_bytes: 8,
                },
                bytes: vec![0; 9],
            },
            ControlHead::Refused { instance: None, invocation: None, reason: "full".into() }.into(),
            Message {
                said: ControlHead::Perform {
                    call: 7,
                    role: 1,
                    request: RequestHead {
                        headers: vec![("x-amz-target".into(), "AmazonSQS.SendMessage".into())],
                        body_bytes: 2,
                        read_timeout_ms: Some(30_000),
                        ..RequestHead::post("sqs", "us-east-1", "SendMessage")
                    },
                },
                bytes: b"{}".to_vec(),
            },
            Message {
                said: ControlHead::Performed {
                    call: 7,
                    end: PerformEnd::Answered { http_status: 200 },
                },
                bytes: b"{}\0".to_vec(),
            },
            ControlHead::Performed { call: 8, end: PerformEnd::Denied { why: "no".into() } }.into(),
            ControlHead::Performed { call: 9, end: PerformEnd::Busy }.into(),
            ControlHead::Performed { call: 9, end: PerformEnd::TooLong }.into(),
            ControlHead::Performed { call: 9, end: PerformEnd::Failed { why: "x".into() } }.into(),
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
