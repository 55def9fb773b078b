//! The answer to a submission, before it is completed.

use std::time::Duration;

use serde_json::{Map, Value};
use unlade_guest_protocol::AnswerHead;
use unlade_metrics::CallEnd;
use unlade_s3::Head;

use crate::flow::Filled;
use crate::perform::Failed;
use crate::region::ProtocolViolation;

/// The answer to a submission that was executed.
pub enum Answer {
    /// A result without a body.
    Result {
        /// The result that an SDK would return.
        result: Map<String, Value>,
        /// Status and header fields.
        head: Head,
        /// Flags of the completion.
        flags: u16,
    },
    /// An object whose first chunk is in slots.
    Object {
        /// The result that an SDK would return.
        result: Map<String, Value>,
        /// Status and header fields.
        head: Head,
        /// The first chunk.
        filled: Filled,
        /// Flags of the completion.
        flags: u16,
    },
    /// The answer of a service, as it is, with the first chunk of its body in slots.
    Http {
        /// Status and header fields.
        head: AnswerHead,
        /// The first chunk.
        filled: Filled,
        /// The end of the call.
        end: CallEnd,
    },
    /// The next chunk of an object.
    Chunk {
        /// The token of the object.
        token: u64,
        /// The chunk.
        filled: Filled,
    },
    /// The guest has no room.
    Refused,
    /// A failure.
    Failed(Failed),
    /// A failure after which the guest may repeat the call.
    Again {
        /// The failure.
        failed: Failed,
        /// The wait before the next attempt.
        wait: Duration,
    },
}

impl Answer {
    /// The end of a call that has this answer; `None` if the end was counted with its reason.
    pub fn call_end(&self) -> Option<CallEnd> {
        Some(match self {
            Answer::Result { .. } | Answer::Object { .. } | Answer::Chunk { .. } => CallEnd::Done,
            Answer::Http { end, .. } => *end,
            Answer::Refused => CallEnd::Refused,
            Answer::Failed(Failed::Service { error, .. }) if error.by_role => CallEnd::Denied,
            Answer::Failed(Failed::Service { .. }) => CallEnd::Service,
            Answer::Failed(Failed::Host { .. }) => CallEnd::Host,
            Answer::Again { .. } => return None,
        })
    }
}

/// The reason why a submission is not executed.
#[derive(Debug)]
pub enum Rejection {
    /// The guest violated the protocol: its channel ends.
    Violation(ProtocolViolation),
    /// A limit is reached.
    Refused,
    /// The submission is invalid, or was cancelled.
    Failed(Failed),
}

impl From<ProtocolViolation> for Rejection {
    fn from(violation: ProtocolViolation) -> Rejection {
        Rejection::Violation(violation)
    }
}

impl From<Failed> for Rejection {
    fn from(failed: Failed) -> Rejection {
        Rejection::Failed(failed)
    }
}
