//! The body of a call, gathered from the guest's slots: once it is here, it is the worker's own.

use std::rc::Rc;

use unlade_s3::Call;

use crate::copies::Copies;
use crate::quota::{CallRoom, HeldBytes};
use crate::region::Place;

/// Why a body is none. The guest is at fault; the call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// More or fewer bytes came than were announced.
    #[error("{came} bytes of a body came, {announced} were announced")]
    Length {
        /// What came.
        came: u64,
        /// What was announced.
        announced: u64,
    },
    /// Its epoch ended meanwhile.
    #[error("the memory of the body is gone")]
    Gone,
    /// More pieces wait to be taken than the guest has slots.
    #[error("more than {pieces_max} pieces of a body wait to be taken")]
    Pieces {
        /// As many may.
        pieces_max: usize,
    },
}

/// A call whose body is not complete yet.
#[derive(Debug)]
pub struct Upload {
    /// The call.
    pub call: Call,
    /// Its place among the calls.
    pub room: CallRoom,
    /// Room for its body.
    pub held: HeldBytes,
    bytes: Vec<u8>,
}

/// A call with all of its body.
#[derive(Debug)]
pub struct Staged {
    /// The call.
    pub call: Call,
    /// Its place among the calls.
    pub room: CallRoom,
    /// Room for its body.
    pub held: HeldBytes,
    /// The body.
    pub bytes: Vec<u8>,
}

impl Upload {
    /// A call, with what of its body is behind its text.
    pub fn new(call: Call, inline: &[u8], room: CallRoom, held: HeldBytes) -> Upload {
        // The announced length was granted by the quota; what comes is not more.
        let mut bytes = Vec::with_capacity(usize::try_from(call.body_bytes).unwrap_or_default());
        bytes.extend_from_slice(inline);
        Upload { call, room, held, bytes }
    }

    /// Takes the slots of a CALL or BODY. Afterwards the guest may use them again.
    ///
    /// # Errors
    /// The call fails.
    pub async fn take(&mut self, copies: &Rc<Copies>, place: Place) -> Result<(), StageError> {
        let came = self.bytes.len() as u64 + place.bytes as u64;
        let announced = self.call.body_bytes;
        if came > announced {
            return Err(StageError::Length { came, announced });
        }
        let bytes = std::mem::take(&mut self.bytes);
        let copied = copies.append(&place.arena, place.offset, place.bytes, bytes).await;
        self.bytes = copied.ok().and_then(Result::ok).ok_or(StageError::Gone)?;
        Ok(())
    }

    /// The body is complete.
    ///
    /// # Errors
    /// It is shorter than announced.
    pub fn finish(self) -> Result<Staged, StageError> {
        let (came, announced) = (self.bytes.len() as u64, self.call.body_bytes);
        if came != announced {
            return Err(StageError::Length { came, announced });
        }
        let Upload { call, room, held, bytes } = self;
        Ok(Staged { call, room, held, bytes })
    }
}
