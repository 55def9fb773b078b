//! The memory shared with an instance: its rings, meta arenas and slots.
//!
//! The host keeps its own copy of every index that it writes. It reads each word of the guest once
//! and checks the copy.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use unlade_bytes::DecodeError;
use unlade_guest_protocol::descriptor::DESCRIPTOR_BYTES;
use unlade_guest_protocol::region::{ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, word};
use unlade_guest_protocol::{Completion, Extent, Header, Layout, Submission};
use unlade_shm::Arena;
use unlade_shm::memory::MemoryError;
use unlade_shm::shared::OutOfRegion;

use crate::runs::Runs;

/// Bytes of an allocation unit of the host's meta arena.
const META_BYTES: u32 = 256;
/// Most completions that wait for room in the ring.
pub const WAITING_MAX: usize = 4096;

/// A violation of the protocol by the guest. The channel ends with BYE.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// A ring claims more entries than it has.
    #[error("the {ring} ring claims {entries} entries of {entries_max}")]
    Ring {
        /// The ring.
        ring: &'static str,
        /// The claimed number of entries.
        entries: u32,
        /// The capacity.
        entries_max: u32,
    },
    /// A range is outside its arena.
    #[error("{bytes} bytes at {offset} are not in the {arena} arena")]
    Outside {
        /// The arena.
        arena: &'static str,
        /// The offset.
        offset: u64,
        /// The length.
        bytes: u64,
    },
    /// A descriptor is invalid.
    #[error("a descriptor: {0}")]
    Descriptor(#[from] DecodeError),
    /// A descriptor names another epoch.
    #[error("a descriptor of epoch {found}, this is {due}")]
    Epoch {
        /// The epoch of the descriptor.
        found: u32,
        /// The current epoch.
        due: u32,
    },
    /// The number of a new call is already in flight.
    #[error("the call {0} is in flight")]
    Number(u64),
    /// A message is not valid in this state.
    #[error("{0}")]
    Turn(&'static str),
    /// The guest does not take its completions.
    #[error("{WAITING_MAX} completions wait to be taken")]
    Deaf,
}

/// An allocated range of one of the host's arenas, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first unit.
    pub first: u32,
    /// Number of units.
    pub count: u32,
}

/// A range of the region that the guest named, checked to be within its own slots.
#[derive(Clone, Debug)]
pub struct GuestRange {
    /// The memory.
    pub arena: Rc<Arena>,
    /// Offset in the memory.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Region {
    arena: Rc<Arena>,
    header: Header,
    submission_head: u32,
    completion_tail: u32,
    waiting: VecDeque<[u8; DESCRIPTOR_BYTES]>,
    slots: Runs,
    meta: Runs,
}

impl Region {
    /// Creates a region in a sealed memfd.
    ///
    /// # Errors
    /// The layout is invalid, or memory is exhausted.
    pub fn create(layout: Layout, epoch: u64) -> Result<Region, MemoryError> {
        let header = layout.header(epoch).map_err(|_| MemoryError::Size { bytes: 0 })?;
        let bytes = usize::try_from(header.region_bytes)
            .map_err(|_| MemoryError::Size { bytes: header.region_bytes })?;
        Ok(Region::begin(Rc::new(Arena::create("unlade-region", bytes)?), header))
    }

    /// Creates a region in memory that the instance already has, and may have used in a previous
    /// epoch. The layout must fit into it. Nothing of that epoch may write into the memory any
    /// more.
    ///
    /// # Errors
    /// The layout is invalid or does not fit.
    pub fn over(arena: Rc<Arena>, layout: Layout, epoch: u64) -> Result<Region, MemoryError> {
        let header = layout.header(epoch).map_err(|_| MemoryError::Size { bytes: 0 })?;
        if header.region_bytes > arena.len_bytes() as u64 {
            return Err(MemoryError::Size { bytes: header.region_bytes });
        }
        let region = Region::begin(arena, header);
        region.discard_idle();
        Ok(region)
    }

    fn begin(arena: Rc<Arena>, header: Header) -> Region {
        let region = Region {
            arena,
            header,
            submission_head: 0,
            completion_tail: 0,
            waiting: VecDeque::new(),
            slots: Runs::new(header.host_slots),
            meta: Runs::new(header.host_meta_bytes / META_BYTES),
        };
        // Words of a previous epoch are cleared.
        region.within(region.arena.copy_in(0, &[0; HEADER_BYTES as usize]));
        region.within(region.arena.copy_in(0, &header.encode()));
        region
    }

    /// The host's own ranges are always within the region, because it was created for them.
    fn within<T>(&self, done: Result<T, OutOfRegion>) -> Option<T> {
        debug_assert!(done.is_ok());
        done.ok()
    }

    /// The file, to be sent to the guest.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.arena.fd()
    }

    /// The offsets of all parts.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The memory; slots begin at [`Region::slot_offset`].
    pub fn arena(&self) -> &Rc<Arena> {
        &self.arena
    }

    fn load(&self, at: usize) -> u32 {
        self.within(self.arena.load(at, Ordering::Acquire)).unwrap_or_default()
    }

    fn store(&self, at: usize, value: u32) {
        self.within(self.arena.store(at, value, Ordering::Release));
    }

    /// Publishes that the host waits in `read` for a BELL. After setting it the caller must check
    /// the ring once more.
    pub fn sleeps(&self, sleeps: bool) {
        self.store(word::HOST_SLEEPS, sleeps.into());
        fence(Ordering::SeqCst);
    }

    /// The next submission, copied and decoded.
    ///
    /// # Errors
    /// The guest violated the protocol.
    pub fn poll_submission(&mut self) -> Result<Option<Submission>, ProtocolViolation> {
        let tail = self.load(word::SUBMISSION_TAIL);
        let (entries, entries_max) =
            (tail.wrapping_sub(self.submission_head), self.header.submission_entries);
        if entries > entries_max {
            return Err(ProtocolViolation::Ring { ring: "submission", entries, entries_max });
        }
        if entries == 0 {
            return Ok(None);
        }
        let index = self.submission_head & (entries_max - 1);
        let at = self.header.submission_offset + index * ENTRY_BYTES;
        let mut copy = [0; DESCRIPTOR_BYTES];
        self.within(self.arena.copy_out(at as usize, &mut copy));
        self.submission_head = self.submission_head.wrapping_add(1);
        self.store(word::SUBMISSION_HEAD, self.submission_head);
        let submission = Submission::decode(&copy)?;
        let due = self.header.epoch as u32;
        match submission.epoch == due {
            true => Ok(Some(submission)),
            false => Err(ProtocolViolation::Epoch { found: submission.epoch, due }),
        }
    }

    /// Puts a completion into the ring, or into the queue of those that wait for room. Returns
    /// true if the guest must be woken.
    ///
    /// # Errors
    /// The guest violated the protocol, or takes no completions.
    pub fn push_completion(&mut self, completion: &Completion) -> Result<bool, ProtocolViolation> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(ProtocolViolation::Deaf);
        }
        self.waiting.push_back(completion.encode());
        self.flush()
    }

    /// Returns true if completions wait for room.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Moves waiting completions into the ring. Returns true if the guest must be woken.
    ///
    /// # Errors
    /// The guest violated the protocol.
    pub fn flush(&mut self) -> Result<bool, ProtocolViolation> {
        let entries_max = self.header.completion_entries;
        let head = self.load(word::COMPLETION_HEAD);
        let entries = self.completion_tail.wrapping_sub(head);
        if entries > entries_max {
            return Err(ProtocolViolation::Ring { ring: "completion", entries, entries_max });
        }
        let room = (entries_max - entries) as usize;
        let moved = room.min(self.waiting.len());
        for encoded in self.waiting.drain(..moved).collect::<Vec<_>>() {
            let index = self.completion_tail & (entries_max - 1);
            let at = self.header.completion_offset + index * ENTRY_BYTES;
            self.within(self.arena.copy_in(at as usize, &encoded));
            self.completion_tail = self.completion_tail.wrapping_add(1);
        }
        if moved == 0 {
            return Ok(false);
        }
        self.store(word::COMPLETION_TAIL, self.completion_tail);
        // The fence precedes the load of the guest's word: the guest sets the word and loads the
        // tail after that.
        fence(Ordering::SeqCst);
        Ok(self.load(word::GUEST_SLEEPS) != 0)
    }

    /// Copies bytes of the guest's meta arena.
    ///
    /// # Errors
    /// The range is outside the arena.
    pub fn guest_meta(&self, offset: u32, bytes: u32) -> Result<Vec<u8>, ProtocolViolation> {
        let outside = ProtocolViolation::Outside {
            arena: "meta",
            offset: offset.into(),
            bytes: bytes.into(),
        };
        let end = u64::from(offset) + u64::from(bytes);
        if end > u64::from(self.header.guest_meta_bytes) {
            return Err(outside);
        }
        let mut out = Vec::new();
        let at = self.header.guest_meta_offset as usize + offset as usize;
        self.arena.append_to(at, bytes as usize, &mut out).map_err(|_| outside)?;
        Ok(out)
    }

    /// Copies bytes of the guest's slots to the end of a vector.
    ///
    /// # Errors
    /// The range is outside the slots.
    pub fn guest_body(&self, body: Extent, out: &mut Vec<u8>) -> Result<(), ProtocolViolation> {
        let GuestRange { offset, bytes, .. } = self.guest_range(body)?;
        self.within(self.arena.append_to(offset, bytes, out));
        Ok(())
    }

    /// The location of bytes of the guest's slots.
    ///
    /// # Errors
    /// The range is outside the slots.
    pub fn guest_range(&self, body: Extent) -> Result<GuestRange, ProtocolViolation> {
        let offset = u64::from(body.first_slot) * u64::from(SLOT_BYTES);
        let bytes = u64::from(body.bytes);
        if offset + bytes > u64::from(self.header.guest_slots) * u64::from(SLOT_BYTES) {
            return Err(ProtocolViolation::Outside { arena: "slot", offset, bytes });
        }
        let offset = (u64::from(self.header.guest_slots_offset) + offset) as usize;
        Ok(GuestRange { arena: self.arena.clone(), offset, bytes: body.bytes as usize })
    }

    /// Takes at most `most` of the host's slots, at least one; `None` if none is free.
    pub fn take_slots(&mut self, most: u32) -> Option<Run> {
        let mut count = most.max(1);
        loop {
            if let Some(first) = self.slots.take(count) {
                return Some(Run { first, count });
            }
            if count == 1 {
                return None;
            }
            count = count.div_ceil(2);
        }
    }

    /// Takes exactly `count` slots.
    pub fn take_slots_exactly(&mut self, count: u32) -> Option<Run> {
        self.slots.take(count).map(|first| Run { first, count })
    }

    /// Releases slots.
    pub fn give_slots(&mut self, run: Run) {
        self.slots.give(run.first, run.count);
    }

    /// Offset of one of the host's slots.
    pub fn slot_offset(&self, slot: u32) -> usize {
        self.header.host_slots_offset as usize + slot as usize * SLOT_BYTES as usize
    }

    /// Puts text into the host's meta arena; returns the run to release, and its offset.
    pub fn put_meta(&mut self, text: &[u8]) -> Option<(Run, u32)> {
        let count = u32::try_from(text.len()).ok()?.div_ceil(META_BYTES).max(1);
        let first = self.meta.take(count)?;
        let offset = first * META_BYTES;
        let at = self.header.host_meta_offset as usize + offset as usize;
        self.within(self.arena.copy_in(at, text));
        Some((Run { first, count }, offset))
    }

    /// Releases a run of the meta arena.
    pub fn give_meta(&mut self, run: Run) {
        self.meta.give(run.first, run.count);
    }

    /// Returns the memory of the host's slots to the kernel, if none is taken. The guest's slots
    /// are not touched: one of its threads may be filling one.
    pub fn discard_idle(&self) {
        if self.slots.free() == self.header.host_slots as usize {
            let bytes = self.slots.free() * SLOT_BYTES as usize;
            // A failed discard only keeps memory.
            let _ = self.arena.discard(self.slot_offset(0), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_guest_protocol::{Operation, Status};

    const LAYOUT: Layout =
        Layout { ring_entries: 4, meta_bytes: 4096, guest_slots: 2, host_slots: 4 };

    fn submission(call: u64) -> Submission {
        Submission {
            call,
            operation: Operation::Call,
            more: false,
            epoch: 9,
            meta_offset: 0,
            meta_bytes: 0,
            body: Extent { first_slot: 0, bytes: 0 },
            token: 0,
        }
    }

    fn submit(region: &Region, index: u32, submission: &Submission) {
        let at = region.header.submission_offset + (index % 4) * 64;
        region.arena.copy_in(at as usize, &submission.encode()).unwrap();
        region.arena.store(word::SUBMISSION_TAIL, index + 1, Ordering::Release).unwrap();
    }

    #[test]
    fn submissions_come_in_order_and_lies_are_seen() {
        let mut region = Region::create(LAYOUT, 9).unwrap();
        assert_eq!(region.poll_submission(), Ok(None));
        for index in 0..6 {
            submit(&region, index, &submission(index.into()));
            assert_eq!(region.poll_submission(), Ok(Some(submission(index.into()))));
        }
        submit(&region, 6, &Submission { epoch: 8, ..submission(6) });
        assert!(matches!(
            region.poll_submission(),
            Err(ProtocolViolation::Epoch { found: 8, due: 9 })
        ));
        region.arena.store(word::SUBMISSION_TAIL, 12, Ordering::Release).unwrap();
        assert!(matches!(
            region.poll_submission(),
            Err(ProtocolViolation::Ring { entries: 5, .. })
        ));
        // The host does not read back its own words: a guest that overwrites them corrupts only
        // its own view.
        region.arena.store(word::SUBMISSION_HEAD, 99, Ordering::Release).unwrap();
        region.arena.store(word::SUBMISSION_TAIL, 7, Ordering::Release).unwrap();
        assert_eq!(region.poll_submission(), Ok(None));
    }

    #[test]
    fn completions_wait_for_room_and_wake_a_sleeper() {
        let mut region = Region::create(LAYOUT, 9).unwrap();
        let done = |call| Completion::bare(call, Status::Done, 9);
        assert_eq!(region.push_completion(&done(0)), Ok(false));
        region.arena.store(word::GUEST_SLEEPS, 1, Ordering::Release).unwrap();
        for call in 1..4 {
            assert_eq!(region.push_completion(&done(call)), Ok(true));
        }
        assert_eq!(region.push_completion(&done(4)), Ok(false));
        assert!(region.is_full());
        region.arena.store(word::COMPLETION_HEAD, 3, Ordering::Release).unwrap();
        assert_eq!(region.flush(), Ok(true));
        assert!(!region.is_full());
        let mut entry = [0; 64];
        region.arena.copy_out(region.header.completion_offset as usize, &mut entry).unwrap();
        assert_eq!(Completion::decode(&entry).unwrap().call, 4);
        region.arena.store(word::COMPLETION_HEAD, 6, Ordering::Release).unwrap();
        assert!(matches!(region.flush(), Err(ProtocolViolation::Ring { ring: "completion", .. })));
    }

    #[test]
    fn nothing_outside_its_arena_is_copied() {
        let region = Region::create(LAYOUT, 9).unwrap();
        assert_eq!(region.guest_meta(4090, 6).unwrap().len(), 6);
        assert!(region.guest_meta(4090, 7).is_err());
        assert!(region.guest_meta(u32::MAX, u32::MAX).is_err());
        let mut out = Vec::new();
        let slots = |first_slot, bytes| Extent { first_slot, bytes };
        region.guest_body(slots(1, SLOT_BYTES), &mut out).unwrap();
        assert_eq!(out.len(), SLOT_BYTES as usize);
        assert!(region.guest_body(slots(1, SLOT_BYTES + 1), &mut out).is_err());
        assert!(region.guest_body(slots(u32::MAX, u32::MAX), &mut out).is_err());
    }

    #[test]
    fn less_is_given_where_there_is_less() {
        let mut region = Region::create(LAYOUT, 9).unwrap();
        let three = region.take_slots(3).unwrap();
        assert_eq!(three.count, 3);
        assert_eq!(region.take_slots(4).unwrap().count, 1);
        assert_eq!(region.take_slots(1), None);
        region.give_slots(three);
        assert_eq!(region.take_slots_exactly(3), Some(three));
        let (run, offset) = region.put_meta(&[7; 300]).unwrap();
        assert_eq!((run.count, offset), (2, 0));
        assert!(region.put_meta(&[0; 4096]).is_none());
        region.give_meta(run);
        assert!(region.put_meta(&[0; 4096]).is_some());
    }
}
