//! The input of a streamed body: the slots that have arrived, and the calls that the guest may
//! repeat.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use unlade_guest_protocol::Submission;
use unlade_s3::retry::Attempts;

use crate::region::{GuestRange, ProtocolViolation, Region};
use crate::stage::StageError;
use crate::store::TransportError;

/// Most calls of one epoch that wait for a repetition; beyond that the oldest is forgotten and its
/// attempts are counted from zero.
const AGAIN_MAX: usize = 256;

/// Bytes in slots that were not sent to the store.
#[derive(Debug)]
struct Chunk {
    place: GuestRange,
    /// True if the guest waits for these slots.
    is_part: bool,
}

/// The input queue of a streamed body: the chunks that have arrived and were not taken.
#[derive(Debug)]
pub struct StreamInput {
    announced_bytes: u64,
    came_bytes: Cell<u64>,
    chunks: RefCell<VecDeque<Chunk>>,
    /// A guest has no more chunks than slots, and one empty chunk at the end.
    pieces_max: usize,
    has_ended: Cell<bool>,
    wrong: Cell<Option<StageError>>,
    was_touched: Cell<bool>,
    changed: Notify,
}

impl StreamInput {
    /// Creates the queue of a body of `announced_bytes`, in slots of a region.
    pub fn new(announced_bytes: u64, region: &Region) -> Rc<StreamInput> {
        Rc::new(StreamInput {
            announced_bytes,
            came_bytes: Cell::new(0),
            chunks: RefCell::default(),
            pieces_max: region.header().guest_slots as usize + 1,
            has_ended: Cell::new(false),
            wrong: Cell::new(None),
            was_touched: Cell::new(false),
            changed: Notify::new(),
        })
    }

    /// Adds the slots of a CALL or BODY; slots after the end are ignored. An invalid chunk fails
    /// the call.
    ///
    /// # Errors
    /// The guest violated the protocol.
    pub fn push(
        &self,
        region: &Region,
        submission: &Submission,
        is_part: bool,
    ) -> Result<(), ProtocolViolation> {
        let place = region.guest_range(submission.body)?;
        if self.has_ended.get() {
            return Ok(());
        }
        let bytes = submission.body.bytes as usize;
        let came = self.came_bytes.get().saturating_add(bytes as u64);
        let announced = self.announced_bytes;
        self.came_bytes.set(came);
        let mut chunks = self.chunks.borrow_mut();
        if came > announced || (!submission.more && came < announced) {
            self.wrong.set(Some(StageError::Length { came, announced }));
        } else if chunks.len() >= self.pieces_max {
            self.wrong.set(Some(StageError::Pieces { pieces_max: self.pieces_max }));
        } else {
            chunks.push_back(Chunk { place, is_part });
            self.has_ended.set(!submission.more);
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Fails if the body is not as announced.
    ///
    /// # Errors
    /// [`TransportError::Withheld`].
    pub fn check(&self) -> Result<(), TransportError> {
        match self.wrong.get() {
            None => Ok(()),
            Some(error) => Err(TransportError::Withheld(error.to_string())),
        }
    }

    /// Length of the whole body.
    pub fn announced_bytes(&self) -> u64 {
        self.announced_bytes
    }

    /// Returns true if the last chunk has arrived.
    pub fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Records that bytes were taken: they cannot be sent again.
    pub fn touch(&self) {
        self.was_touched.set(true);
    }

    /// Returns true if bytes were taken.
    pub fn was_touched(&self) -> bool {
        self.was_touched.get()
    }

    /// The first chunk that was not taken.
    pub fn first(&self) -> Option<GuestRange> {
        self.chunks.borrow().front().map(|chunk| chunk.place.clone())
    }

    /// Consumes bytes of the first chunk; returns true if that was its last byte and the guest
    /// waits for its slots.
    pub fn taken(&self, bytes: usize) -> bool {
        let mut chunks = self.chunks.borrow_mut();
        let Some(chunk) = chunks.front_mut() else { return false };
        chunk.place.offset += bytes;
        chunk.place.bytes -= bytes;
        if chunk.place.bytes > 0 {
            return false;
        }
        let is_part = chunk.is_part;
        chunks.pop_front();
        is_part
    }

    /// Waits until something has arrived.
    ///
    /// # Errors
    /// [`TransportError::Withheld`] after `silence_max`.
    pub async fn change(&self, silence_max: Duration) -> Result<(), TransportError> {
        let changed = self.changed.notified();
        tokio::time::timeout(silence_max, changed).await.map_err(|_| {
            TransportError::Withheld(format!("nothing of the body has come for {silence_max:?}"))
        })
    }
}

/// The state of a call that the guest may repeat.
#[derive(Clone, Copy, Debug, Default)]
pub struct RetryState {
    /// Attempts so far.
    pub attempts: Attempts,
    /// True if the store does not support chunks: the body has to be buffered.
    pub is_whole: bool,
}

/// Calls that may be repeated, by number.
#[derive(Debug, Default)]
pub struct RetryTable(RefCell<BTreeMap<u64, RetryState>>);

impl RetryTable {
    /// Adds a call, which the guest may repeat.
    pub fn put(&self, call: u64, before: RetryState) {
        let mut all = self.0.borrow_mut();
        if all.len() >= AGAIN_MAX {
            all.pop_first();
        }
        all.insert(call, before);
    }

    /// The state of a call.
    pub fn look(&self, call: Option<u64>) -> RetryState {
        call.and_then(|call| self.0.borrow().get(&call).copied()).unwrap_or_default()
    }

    /// Removes a call that is being repeated.
    pub fn forget(&self, call: Option<u64>) {
        if let Some(call) = call {
            self.0.borrow_mut().remove(&call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_guest_protocol::region::SLOT_BYTES;
    use unlade_guest_protocol::{Extent, Layout, Operation};

    const SLOTS: u32 = 8;
    const LAYOUT: Layout =
        Layout { ring_entries: 64, meta_bytes: 4096, guest_slots: SLOTS, host_slots: 4 };

    fn body(first_slot: u32, bytes: u32, more: bool) -> Submission {
        let body = Extent { first_slot, bytes };
        Submission {
            call: 1,
            operation: Operation::Body,
            more,
            epoch: 9,
            meta_offset: 0,
            meta_bytes: 0,
            body,
            token: 0,
        }
    }

    #[test]
    fn slots_outside_the_arena_are_no_pieces() {
        let region = Region::create(LAYOUT, 9).unwrap();
        let stream_input = StreamInput::new(1 << 30, &region);
        assert!(stream_input.push(&region, &body(SLOTS - 1, SLOT_BYTES + 1, true), true).is_err());
        assert!(stream_input.push(&region, &body(u32::MAX, u32::MAX, true), true).is_err());
        for _ in 0..=SLOTS {
            stream_input.push(&region, &body(0, 1, true), true).unwrap();
            assert!(stream_input.check().is_ok());
        }
        stream_input.push(&region, &body(0, 1, true), true).unwrap();
        assert!(stream_input.check().is_err());
    }

    #[test]
    fn what_is_known_of_calls_is_bounded() {
        let retry_table = RetryTable::default();
        let before = RetryState { is_whole: true, ..RetryState::default() };
        for call in 0..=AGAIN_MAX as u64 {
            retry_table.put(call, before);
        }
        assert!(!retry_table.look(Some(0)).is_whole && !retry_table.look(None).is_whole);
        assert!(retry_table.look(Some(1)).is_whole);
        retry_table.forget(Some(1));
        assert!(!retry_table.look(Some(1)).is_whole);
    }
}
