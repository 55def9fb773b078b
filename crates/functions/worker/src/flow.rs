//! A body on its way to the guest: its source, the chunks in slots, and what a token stands for.

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::lending::{Lender, Meta, Slots};
use crate::store::{Into, Reader, TransportError};

/// The state of a token that the guest holds.
#[derive(Debug)]
pub struct LentBody {
    /// The text of the completion.
    pub meta: Option<Meta>,
    /// The bytes.
    pub slots: Option<Slots>,
    /// The rest of the body; `None` while a READ uses it.
    pub rest: Option<Rest>,
    /// False once the body was dropped; a READ in progress does not restore it.
    pub is_body: bool,
}

/// The rest of a body: being read ahead, or paused.
pub enum Rest {
    /// Paused.
    Here(Box<Flow>),
    /// Being read ahead.
    Ahead(Abort<Ahead>),
}

/// The result of reading ahead; an inner `None` is the end of the body.
pub type Ahead = (Box<Flow>, Result<Option<Chunk>, TransportError>);

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rest")
    }
}

/// A task that is aborted when this is dropped, and its result.
pub struct Abort<T>(pub AbortHandle, pub oneshot::Receiver<T>);

impl<T> Drop for Abort<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The source of an object's bytes.
pub struct Flow {
    reader: Box<dyn Reader>,
    /// Bytes that were read but not yet requested.
    pub carry: Vec<u8>,
    window_slots: u32,
    /// True if a body of unknown length is passed on as it arrives.
    is_eager: bool,
}

/// A filled run of slots.
pub struct Chunk {
    /// The slots.
    pub slots: Slots,
    /// The bytes in them.
    pub bytes: usize,
}

impl Flow {
    /// Creates a flow from a body reader that fills at most `window_slots` slots at a time.
    pub fn new(reader: Box<dyn Reader>, window_slots: u32) -> Flow {
        Flow { reader, carry: Vec::new(), window_slots, is_eager: false }
    }

    /// The same for a body that its sender may never end: what has arrived is passed on.
    pub fn eager(reader: Box<dyn Reader>, window_slots: u32) -> Flow {
        Flow { is_eager: true, ..Flow::new(reader, window_slots) }
    }

    /// Bytes that remain; `None` if the length is unknown.
    pub fn left_bytes(&self) -> Option<u64> {
        self.reader.left_bytes().map(|left| left + self.carry.len() as u64)
    }

    /// Slots that the next chunk fills at most.
    pub fn slots_due(&self) -> u32 {
        let slot = u64::from(unlade_guest_protocol::region::SLOT_BYTES);
        let due = self.left_bytes().map_or(u64::MAX, |left| left.div_ceil(slot));
        u32::try_from(due).unwrap_or(u32::MAX).min(self.window_slots).max(1)
    }

    /// Fills slots with at most `limit` bytes; `None` at the end of the body.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn fill(
        &mut self,
        lender: &Lender,
        slots: Slots,
        limit: usize,
    ) -> Result<Option<Chunk>, TransportError> {
        let room = slots.room_bytes().min(limit);
        let start = slots.offset();
        let mut bytes = self.carry.len().min(room);
        if bytes > 0 {
            let carried = self.carry.drain(..bytes).collect::<Vec<_>>();
            // The offset lies in slots that are lent to this chunk.
            let _ = lender.arena().copy_in(start, &carried);
        }
        while bytes < room {
            let read = self.read(lender, start + bytes, room - bytes).await?;
            bytes += read;
            let waits = self.is_eager && self.reader.left_bytes().is_none();
            if read == 0 || waits {
                break;
            }
        }
        Ok((bytes > 0).then_some(Chunk { slots, bytes }))
    }

    async fn read(
        &mut self,
        lender: &Lender,
        at: usize,
        bytes_max: usize,
    ) -> Result<usize, TransportError> {
        // The task shares the arena while it reads, so the memory stays mapped.
        let arena = lender.arena();
        self.reader.read(Into::Region(&arena, at), bytes_max).await
    }
}

/// A chunk of a body, and the rest of the body.
pub struct Filled {
    /// The rest.
    pub flow: Flow,
    /// The chunk; `None` at the end of the body.
    pub chunk: Option<Chunk>,
}
