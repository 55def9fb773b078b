//! The JSON heads of INVOKE and REPLY.

use serde::{Deserialize, Serialize};

use super::Extent;
use unlade_bytes::DecodeError;

/// Data of a caller that the function gets beside its event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallContext {
    /// The trace of the invocation, in the form of `X-Amzn-Trace-Id`; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace: String,
    /// The client context: an object of JSON in ASCII, on one line; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_context: Option<String>,
}

/// The head of an INVOKE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvokeHead {
    /// The number of the invocation: the request id that the function receives.
    pub id: String,
    /// `module.function`.
    pub handler: String,
    /// The function's name.
    pub function: String,
    /// The deadline in milliseconds since the UNIX epoch.
    pub deadline_ms: u64,
    /// Memory limit of the instance.
    pub memory_mib: u32,
    /// Length of the event.
    pub event_bytes: u32,
    /// The host slot of the event, which the REPLY releases; `None` if the event follows the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_slot: Option<u32>,
    /// Data of the caller.
    #[serde(flatten)]
    pub context: CallContext,
}

/// The status of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandlerStatus {
    /// The handler returned.
    Done,
    /// The handler raised an exception.
    Error,
}

/// The head of a REPLY.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyHead {
    /// The number of the invocation.
    pub id: String,
    /// The status of the handler.
    pub status: HandlerStatus,
    /// The end of the handler's output.
    #[serde(default)]
    pub log_tail: String,
    /// Length of the result.
    pub result_bytes: u32,
    /// The guest slot of the result; `None` if the result follows the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_slot: Option<u32>,
}

impl InvokeHead {
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn from_json(head: &[u8], follow: usize) -> Result<InvokeHead, DecodeError> {
        let head: InvokeHead = json(head, "INVOKE")?;
        payload("event", head.event_bytes, head.event_slot, follow)?;
        Ok(head)
    }

    /// The slots of the event, unless it follows the head.
    pub fn slots(&self) -> Option<Extent> {
        self.event_slot.map(|first_slot| Extent { first_slot, bytes: self.event_bytes })
    }
}

impl ReplyHead {
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn from_json(head: &[u8], follow: usize) -> Result<ReplyHead, DecodeError> {
        let head: ReplyHead = json(head, "REPLY")?;
        payload("result", head.result_bytes, head.result_slot, follow)?;
        Ok(head)
    }

    /// The slots of the result, unless it follows the head.
    pub fn slots(&self) -> Option<Extent> {
        self.result_slot.map(|first_slot| Extent { first_slot, bytes: self.result_bytes })
    }
}

fn json<'a, T: Deserialize<'a>>(head: &'a [u8], what: &'static str) -> Result<T, DecodeError> {
    serde_json::from_slice(head)
        .map_err(|error| DecodeError::Undefined { what, value: error.column() as u64 })
}

/// Checks that the payload has the announced length, or is empty if it is in slots.
fn payload(
    what: &'static str,
    announced: u32,
    slot: Option<u32>,
    follow: usize,
) -> Result<(), DecodeError> {
    let due = if slot.is_some() { 0 } else { announced as usize };
    match follow == due {
        true => Ok(()),
        false => Err(DecodeError::TooLong { what, length: follow, limit: due }),
    }
}
