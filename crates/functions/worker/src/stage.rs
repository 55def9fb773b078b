//! The body of a call, copied from the guest's slots into the worker's own memory.

use std::rc::Rc;

use unlade_guest_protocol::RequestHead;
use unlade_s3::Call;

use crate::copies::Copies;
use crate::quota::{CallRoom, HeldBytes};
use crate::region::GuestRange;

/// The reason why a body is invalid. The guest is at fault; the call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The body is longer or shorter than announced.
    #[error("{came} bytes of a body came, {announced} were announced")]
    Length {
        /// The received length.
        came: u64,
        /// The announced length.
        announced: u64,
    },
    /// The epoch ended meanwhile.
    #[error("the memory of the body is gone")]
    Gone,
    /// More chunks wait to be taken than the guest has slots.
    #[error("more than {pieces_max} pieces of a body wait to be taken")]
    Pieces {
        /// The limit.
        pieces_max: usize,
    },
}

/// The text of a call.
#[derive(Debug)]
pub enum Text {
    /// An operation of S3.
    Call(Call),
    /// A request to another service.
    Request(RequestHead),
}

impl Text {
    /// The announced length of the body.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Text::Call(call) => call.body_bytes,
            Text::Request(head) => head.body_bytes,
        }
    }
}

/// A call whose body is incomplete.
#[derive(Debug)]
pub struct Upload {
    /// The text of the call.
    pub text: Text,
    /// Its permit among the calls.
    pub room: CallRoom,
    /// The reserved bytes of its body.
    pub held: HeldBytes,
    bytes: Vec<u8>,
}

/// A call with its complete body.
#[derive(Debug)]
pub struct Staged {
    /// The text of the call.
    pub text: Text,
    /// Its permit among the calls.
    pub room: CallRoom,
    /// The reserved bytes of its body.
    pub held: HeldBytes,
    /// The body.
    pub bytes: Vec<u8>,
}

impl Upload {
    /// Creates an upload with the part of the body that follows the call's text.
    pub fn new(text: Text, inline: &[u8], room: CallRoom, held: HeldBytes) -> Upload {
        // The quota granted the announced length; no more bytes are taken.
        let mut bytes = Vec::with_capacity(usize::try_from(text.body_bytes()).unwrap_or_default());
        bytes.extend_from_slice(inline);
        Upload { text, room, held, bytes }
    }

    /// Copies the slots of a CALL or BODY. Afterwards the guest may reuse them.
    ///
    /// # Errors
    /// The call fails.
    pub async fn take(&mut self, copies: &Rc<Copies>, place: GuestRange) -> Result<(), StageError> {
        let came = self.bytes.len() as u64 + place.bytes as u64;
        let announced = self.text.body_bytes();
        if came > announced {
            return Err(StageError::Length { came, announced });
        }
        let bytes = std::mem::take(&mut self.bytes);
        let copied = copies.append(&place.arena, place.offset, place.bytes, bytes).await;
        self.bytes = copied.ok().and_then(Result::ok).ok_or(StageError::Gone)?;
        Ok(())
    }

    /// Ends the body.
    ///
    /// # Errors
    /// It is shorter than announced.
    pub fn finish(self) -> Result<Staged, StageError> {
        let (came, announced) = (self.bytes.len() as u64, self.text.body_bytes());
        if came != announced {
            return Err(StageError::Length { came, announced });
        }
        let Upload { text, room, held, bytes } = self;
        Ok(Staged { text, room, held, bytes })
    }
}
