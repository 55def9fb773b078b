//! Memory layout of a queue, and the checks of an attach.
//!
//! ```text
//! 0      header │ head │ tail │ doorbell │ cursors of sync and handler ring   (64 bytes each line)
//!        sync ring: 64 cells of 32 bytes
//!        handler ring: a cell of 32 bytes a slot
//!        task lines: 64 bytes a slot
//!        progress lines: 64 bytes a slot
//! ```
//! Words are native, which means little-endian; a peer of the other byte order does not find the
//! magic.

use crate::atomic::{AtomicU64, Ordering};
use crate::bounded::{Cell, Cursor, Cursors};
use crate::doorbell::DoorbellLine;
use crate::progress::ProgressLine;
use crate::task::TaskLine;
use crate::ticket::Slots;

/// Minimum number of slots of a queue.
pub const SLOTS_MIN: u32 = if cfg!(feature = "loom") { 2 } else { 16 };
/// Maximum number of slots of a queue.
pub const SLOTS_MAX: u32 = 4096;
/// Number of entries of a sync ring.
pub const SYNC_ENTRIES: usize = if cfg!(feature = "loom") { 2 } else { 64 };
/// Version of the layout and of everything else that two processes must agree on.
pub const VERSION: u64 = 1;
/// "UnladeRQ" as a number.
const MAGIC: u64 = u64::from_le_bytes(*b"UnladeRQ");
/// Size and alignment of a line.
const LINE_BYTES: usize = 64;

// The offsets below and the other process rely on these sizes. loom's atomics have other sizes.
#[cfg(not(feature = "loom"))]
const _: () = {
    assert!(size_of::<Header>() == LINE_BYTES && size_of::<Cursor>() == LINE_BYTES);
    assert!(size_of::<TaskLine>() == LINE_BYTES && size_of::<ProgressLine>() == LINE_BYTES);
    assert!(size_of::<DoorbellLine>() == LINE_BYTES && size_of::<Cell>() * 2 == LINE_BYTES);
    assert!(size_of::<Control>() == 8 * LINE_BYTES + SYNC_ENTRIES * size_of::<Cell>());
};

/// Reason why memory cannot hold a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The number of slots is invalid, in the caller's request or in the peer's header.
    #[error("{slots} slots: must be a power of two from {SLOTS_MIN} to {SLOTS_MAX}")]
    Slots {
        /// Requested number.
        slots: u64,
    },
    /// The memory or the peer's file is too small.
    #[error("{len_bytes} bytes are too few for the queue; it needs {needed_bytes}")]
    TooSmall {
        /// Available bytes.
        len_bytes: usize,
        /// Needed bytes.
        needed_bytes: usize,
    },
    /// The peer's memory is not a queue, or is not complete.
    #[error("the peer's memory is no queue: it starts with {magic:#018x}")]
    Magic {
        /// The first word.
        magic: u64,
    },
    /// The two programs were built from different versions.
    #[error("the peer's queue is of version {version}, this is {VERSION}; use the same build")]
    Version {
        /// The peer's version.
        version: u64,
    },
    /// The peer's header is inconsistent.
    #[error("the peer's queue has {found} in word {word} of its header instead of {expected}")]
    Header {
        /// Index of the word, from 0.
        word: usize,
        /// The value in the header.
        found: u64,
        /// The value that follows from the number of slots.
        expected: u64,
    },
    /// The peer's positions are impossible.
    #[error("the peer's queue has acquired {head} tickets and retired {tail}, with {slots} slots")]
    Positions {
        /// The next ticket.
        head: u64,
        /// The first that is not retired.
        tail: u64,
        /// Number of slots, which is the largest valid distance.
        slots: u64,
    },
}

/// Offsets of the parts of a queue, in bytes from its base, for a given number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) slots: Slots,
    pub(crate) handlers_at: usize,
    pub(crate) tasks_at: usize,
    pub(crate) progress_at: usize,
    pub(crate) bytes: usize,
}

impl Shape {
    pub(crate) fn of(slots: u64) -> Result<Shape, LayoutError> {
        let wrong = LayoutError::Slots { slots };
        if !(u64::from(SLOTS_MIN)..=u64::from(SLOTS_MAX)).contains(&slots) {
            return Err(wrong);
        }
        let count = slots as usize;
        let slots = Slots::new(slots).ok_or(wrong)?;
        let handlers_at = size_of::<Control>();
        let tasks_at = handlers_at + count * size_of::<Cell>();
        let progress_at = tasks_at + count * size_of::<TaskLine>();
        let bytes = progress_at + count * size_of::<ProgressLine>();
        Ok(Shape { slots, handlers_at, tasks_at, progress_at, bytes })
    }

    /// Checks that the queue fits into this number of bytes.
    pub(crate) fn fits(&self, len_bytes: usize) -> Result<(), LayoutError> {
        match len_bytes >= self.bytes {
            true => Ok(()),
            false => Err(LayoutError::TooSmall { len_bytes, needed_bytes: self.bytes }),
        }
    }

    /// Returns the header of this queue.
    fn header(&self) -> [u64; HEADER_WORDS] {
        let sizes = [self.bytes, SYNC_ENTRIES, size_of::<Cell>(), LINE_BYTES, self.tasks_at];
        let [bytes, sync, cell, line, tasks_at] = sizes.map(|size| size as u64);
        [MAGIC, VERSION, self.slots.count(), bytes, sync, cell, line, tasks_at]
    }
}

const HEADER_WORDS: usize = 8;
const MAGIC_WORD: usize = 0;
const VERSION_WORD: usize = 1;
const SLOTS_WORD: usize = 2;

/// The first line: a description of the layout.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Header([AtomicU64; HEADER_WORDS]);

impl Header {
    /// Writes the header after all other parts; the magic last.
    pub(crate) fn write(&self, shape: &Shape) {
        for (word, value) in self.0.iter().zip(shape.header()).rev() {
            word.store(value, Ordering::Release);
        }
    }

    /// Reads a peer's header. It is not read again later.
    pub(crate) fn read(&self) -> Result<Shape, LayoutError> {
        let mut found = [0; HEADER_WORDS];
        for (value, word) in found.iter_mut().zip(&self.0) {
            *value = word.load(Ordering::Acquire);
        }
        if found[MAGIC_WORD] != MAGIC {
            return Err(LayoutError::Magic { magic: found[MAGIC_WORD] });
        }
        if found[VERSION_WORD] != VERSION {
            return Err(LayoutError::Version { version: found[VERSION_WORD] });
        }
        let shape = Shape::of(found[SLOTS_WORD])?;
        for (word, (found, expected)) in found.into_iter().zip(shape.header()).enumerate() {
            if found != expected {
                return Err(LayoutError::Header { word, found, expected });
            }
        }
        Ok(shape)
    }
}

/// The lines that every queue has once.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    pub(crate) header: Header,
    /// The next ticket; written by producers.
    pub(crate) head: Cursor,
    /// The first ticket that is not retired; written by the service.
    pub(crate) tail: Cursor,
    pub(crate) doorbell: DoorbellLine,
    pub(crate) sync: Cursors,
    pub(crate) handlers: Cursors,
    pub(crate) sync_cells: [Cell; SYNC_ENTRIES],
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_and_on_lines_of_their_own() {
        for slots in [16, 64, 4096] {
            let shape = Shape::of(slots).unwrap();
            let count = slots as usize;
            let starts = [0, shape.handlers_at, shape.tasks_at, shape.progress_at, shape.bytes];
            let sizes = [size_of::<Control>(), count * 32, count * 64, count * 64];
            for (part, size) in starts.windows(2).zip(sizes) {
                assert!(part[0] % LINE_BYTES == 0 && part[0] + size == part[1]);
            }
            assert_eq!(shape.fits(shape.bytes), Ok(()));
            assert!(shape.fits(shape.bytes - 1).is_err());
        }
    }

    #[test]
    fn slots_have_limits() {
        for slots in [0, 1, 8, 15, 17, 4095, 8192, u64::MAX, 1 << 63] {
            assert_eq!(Shape::of(slots), Err(LayoutError::Slots { slots }));
        }
    }
}
