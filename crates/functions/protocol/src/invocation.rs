//! Heads of INVOKE and REPLY: JSON before the zero byte.

use serde::{Deserialize, Serialize};

use super::Extent;
use unlade_bytes::DecodeError;

/// What the host says of an invocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvokeHead {
    /// Of the invocation; the request id that the function sees.
    pub id: String,
    /// `module.function`.
    pub handler: String,
    /// The function's name.
    pub function: String,
    /// When it has to be done, in milliseconds since the UNIX epoch.
    pub deadline_ms: u64,
    /// What the instance may use.
    pub memory_mib: u32,
    /// Bytes of the event.
    pub event_bytes: u32,
    /// Where they are, unless they follow: a host slot, which the REPLY releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_slot: Option<u32>,
}

/// How an invocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The handler returned.
    Done,
    /// It raised.
    Error,
}

/// What the guest says of an invocation's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyHead {
    /// The invocation's.
    pub id: String,
    /// How it ended.
    pub status: Outcome,
    /// The last of what the handler printed.
    #[serde(default)]
    pub log_tail: String,
    /// Bytes of the result.
    pub result_bytes: u32,
    /// Where they are, unless they follow: a guest slot.
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

    /// The slots that have the event, if it does not follow.
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

    /// The slots that have the result, if it does not follow.
    pub fn slots(&self) -> Option<Extent> {
        self.result_slot.map(|first_slot| Extent { first_slot, bytes: self.result_bytes })
    }
}

fn json<'a, T: Deserialize<'a>>(head: &'a [u8], what: &'static str) -> Result<T, DecodeError> {
    serde_json::from_slice(head)
        .map_err(|error| DecodeError::Undefined { what, value: error.column() as u64 })
}

/// Bytes follow, as many as announced, or none where they are in slots.
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
