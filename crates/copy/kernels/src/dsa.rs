//! Intel's Data Streaming Accelerator, a copy engine in server processors from Sapphire Rapids on.
//!
//! - [`probe`]: which queues are there, and why others are of no use;
//! - [`descriptor`]: what the accelerator reads and writes;
//! - `portal`: how descriptors come to it.
//!
//! It takes virtual addresses, so nothing is pinned or translated here. A page that is not there
//! ends a copy early; the processor, which can fault, does the rest of that piece when the batch is
//! polled. After a fork only the process that opened the queue can use it.
//!
//! Written from the Intel Data Streaming Accelerator Architecture Specification and Linux'
//! `<linux/idxd.h>`. **It has not run on the hardware**: there was none where it was written. What
//! is tested is the bytes, the probe against directories made for it, and the whole unit against
//! an accelerator that a test plays.

pub mod descriptor;
mod portal;
pub mod probe;

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use crate::device::{Batch, Characteristics, Device, Failure, Piece, Progress, Refused};
use crate::guard::Guard;
use crate::kernel::Hint;
use descriptor::{Descriptor, Outcome, RECORD_BYTES, outcome};
use portal::Portal;
use probe::Queue;

/// The most pieces of a batch.
pub const PIECES_MAX: usize = 32;
/// The most batches under way.
pub const BATCHES_MAX: usize = 64;
/// Smaller pieces take the processor less time than the submission (Copier, SOSP 2025, §4.3).
pub const BYTES_MIN: usize = 4 << 10;
/// From submission until bytes move, in nanoseconds: a published order of magnitude, not measured.
const START_NS: u64 = 1_000;
/// Bytes in a microsecond: likewise.
const BYTES_PER_US: u64 = 30_000;
/// How often a unit that is dropped looks whether it is idle, before it leaves its memory behind.
const DRAIN_POLLS_MAX: usize = 1_000_000;

/// What the accelerator reads and writes of one batch, in memory that does not move.
#[repr(C, align(64))]
struct Lines {
    list: [Descriptor; PIECES_MAX],
    records: [[u8; RECORD_BYTES]; PIECES_MAX],
    batch_record: [u8; RECORD_BYTES],
}

/// One batch.
struct Slot {
    lines: NonNull<Lines>,
    number: u64,
    pieces: Vec<Piece>,
    way: Way,
}

/// How the batch was submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Not at all: the slot is free.
    Free,
    /// As one descriptor that names a list.
    Batch,
    /// As so many single ones; the pieces behind them found no room, and are the processor's.
    Single(usize),
}

impl Way {
    /// Places of the queue that are taken.
    fn entries(self) -> usize {
        match self {
            Way::Free => 0,
            Way::Batch => 1,
            Way::Single(taken) => taken,
        }
    }
}

/// A queue of the accelerator.
pub struct Dsa {
    characteristics: Characteristics,
    batch_max: usize,
    entries_max: usize,
    slots: Vec<Slot>,
    submitted: u64,
    /// Bytes that the processor copied, because a page was not there or the queue was full.
    left_bytes: u64,
    guard: Guard,
    /// Closed before the lines are given up.
    portal: Option<Portal>,
}

impl Dsa {
    /// Opens a queue that [`probe::probe`] found.
    ///
    /// # Errors
    /// The kernel's: no permission for the device file, or another process has a dedicated queue.
    pub fn open(queue: &Queue, guard: Guard) -> io::Result<Dsa> {
        Ok(Dsa::with(Portal::open(queue)?, queue, guard))
    }

    fn with(portal: Portal, queue: &Queue, guard: Guard) -> Dsa {
        let batch_max = if portal.takes_batches() { queue.batch_max } else { 1 };
        let entries_max = queue.entries.max(1);
        let pieces_max = batch_max.max(entries_max).clamp(1, PIECES_MAX);
        let bytes_max = usize::try_from(queue.bytes_max).unwrap_or(usize::MAX);
        let depth = entries_max.min(BATCHES_MAX);
        let characteristics = Characteristics {
            name: "dsa",
            start_ns: START_NS,
            bytes_per_us: BYTES_PER_US,
            bytes_min: BYTES_MIN,
            // The size in a descriptor has 32 bits.
            bytes_max: bytes_max.min(u32::MAX as usize),
            pieces_max,
            depth,
        };
        let slots = (0..depth).map(|_| Slot::new()).collect();
        let portal = Some(portal);
        Dsa {
            characteristics,
            batch_max,
            entries_max,
            slots,
            submitted: 0,
            left_bytes: 0,
            guard,
            portal,
        }
    }

    /// Bytes of its pieces that the processor had to copy so far.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    fn entries(&self) -> usize {
        self.slots.iter().map(|slot| slot.way.entries()).sum()
    }

    /// Looks at the pieces one by one after the accelerator has stopped, and does what is left.
    fn finish(&mut self, at: usize) -> Progress {
        let slot = &self.slots[at];
        for (piece, order) in slot.pieces.iter().enumerate() {
            let done = match outcome(&slot.record(piece)) {
                Outcome::Success => continue,
                // Of a list that it could not read to the end, or behind the last that was taken.
                Outcome::Pending => 0,
                Outcome::PageFault { done_bytes, .. } => (done_bytes as usize).min(order.len),
                Outcome::BatchIncomplete => return failed(piece, u8::MAX),
                Outcome::Other(status) => return failed(piece, status),
            };
            let left = order.len - done;
            self.left_bytes += left as u64;
            // SAFETY: who submitted promised that the piece is the unit's until it is reported, and
            // the accelerator has stopped. `done` is within the piece.
            let copied = unsafe {
                let (dst, src) = (order.dst.wrapping_add(done), order.src.wrapping_add(done));
                self.guard.copy_guarded(dst, src, left, Hint::Reuse)
            };
            if let Err(mut fault) = copied {
                fault.done_bytes_min += done;
                return Progress::Failed { piece, why: fault.into() };
            }
        }
        Progress::Done
    }
}

fn failed(piece: usize, status: u8) -> Progress {
    Progress::Failed { piece, why: Failure::Unit { status } }
}

impl Device for Dsa {
    fn characteristics(&self) -> Characteristics {
        self.characteristics
    }

    unsafe fn submit(&mut self, pieces: &[Piece]) -> Result<Batch, Refused> {
        self.characteristics.check(pieces)?;
        let in_use = self.entries();
        let free = self.slots.iter().position(|slot| slot.way == Way::Free);
        let Some(portal) = self.portal.as_mut() else {
            return Err(Refused::Broken(io::Error::from(io::ErrorKind::NotConnected)));
        };
        let Some(at) = free else { return Err(Refused::Full) };
        let as_batch = pieces.len() > 1 && pieces.len() <= self.batch_max;
        // Nobody tells when a dedicated queue overflows, so all are counted.
        if in_use + if as_batch { 1 } else { pieces.len() } > self.entries_max {
            return Err(Refused::Full);
        }
        let slot = &mut self.slots[at];
        slot.prepare(pieces);
        // SAFETY: the slot's lines stay where they are while it is in use, and the pieces are the
        // unit's by the caller's promise.
        let taken = unsafe {
            match as_batch {
                true => portal.submit(&[slot.batch()])?,
                false => portal.submit(&slot.lines.as_ref().list[..pieces.len()])?,
            }
        };
        if taken == 0 {
            return Err(Refused::Full);
        }
        slot.way = if as_batch { Way::Batch } else { Way::Single(taken) };
        slot.number = self.submitted;
        self.submitted += 1;
        Ok(Batch(slot.number))
    }

    fn poll(&mut self, batch: &Batch) -> Progress {
        let mine = |slot: &Slot| slot.way != Way::Free && slot.number == batch.0;
        let Some(at) = self.slots.iter().position(mine) else {
            return Progress::Failed { piece: 0, why: Failure::Unknown };
        };
        if !self.slots[at].has_stopped() {
            return Progress::Pending;
        }
        // What the accelerator wrote before its records is read after them.
        fence(Ordering::Acquire);
        let progress = match self.slots[at].way {
            Way::Batch => match outcome(&self.slots[at].batch_record()) {
                Outcome::Other(status) => failed(0, status),
                _ => self.finish(at),
            },
            _ => self.finish(at),
        };
        self.slots[at].way = Way::Free;
        progress
    }

    /// The driver drains the queue when its file is closed, unless a child of a fork has it still;
    /// so only the records are believed.
    fn stop(&mut self) -> bool {
        self.portal = None;
        self.slots.iter().all(Slot::has_stopped)
    }
}

impl Drop for Dsa {
    fn drop(&mut self) {
        let is_idle = |slots: &[Slot]| slots.iter().all(Slot::has_stopped);
        let idle = (0..DRAIN_POLLS_MAX).any(|_| {
            std::hint::spin_loop();
            is_idle(&self.slots)
        });
        // The driver ends what is under way when the file is closed.
        self.portal = None;
        if !idle && !is_idle(&self.slots) {
            // The accelerator may still write there: better lost than given to somebody else.
            self.slots.drain(..).for_each(std::mem::forget);
        }
    }
}

// SAFETY: the lines are the slot's own, and nothing in it belongs to a thread.
unsafe impl Send for Slot {}

impl Slot {
    fn new() -> Slot {
        let lines = Lines {
            list: [Descriptor::EMPTY; PIECES_MAX],
            records: [[0; RECORD_BYTES]; PIECES_MAX],
            batch_record: [0; RECORD_BYTES],
        };
        Slot {
            lines: NonNull::from(Box::leak(Box::new(lines))),
            number: 0,
            pieces: Vec::with_capacity(PIECES_MAX),
            way: Way::Free,
        }
    }

    /// Writes the list and clears the records. The slot is free: the accelerator is not here.
    fn prepare(&mut self, pieces: &[Piece]) {
        self.pieces.clear();
        self.pieces.extend_from_slice(pieces);
        // SAFETY: the lines are this slot's alone while it is free.
        let lines = unsafe { self.lines.as_mut() };
        lines.records = [[0; RECORD_BYTES]; PIECES_MAX];
        lines.batch_record = [0; RECORD_BYTES];
        for ((order, piece), record) in lines.list.iter_mut().zip(pieces).zip(&lines.records) {
            let record = record.as_ptr().expose_provenance() as u64;
            let (dst, src) = (piece.dst.expose_provenance(), piece.src.expose_provenance());
            *order = Descriptor::memmove(dst as u64, src as u64, piece.len as u32, true, record);
        }
    }

    fn batch(&self) -> Descriptor {
        let lines = self.lines.as_ptr();
        // SAFETY: the fields of lines that exist; no reference is made.
        let (list, record) = unsafe { (&raw mut (*lines).list, &raw mut (*lines).batch_record) };
        let (list, record) = (list.expose_provenance(), record.expose_provenance());
        Descriptor::batch(list as u64, self.pieces.len() as u32, record as u64)
    }

    /// Whether the accelerator has reported all that it took.
    fn has_stopped(&self) -> bool {
        match self.way {
            Way::Free => true,
            Way::Batch => outcome(&self.batch_record()) != Outcome::Pending,
            Way::Single(taken) => {
                (0..taken).all(|piece| outcome(&self.record(piece)) != Outcome::Pending)
            }
        }
    }

    fn record(&self, piece: usize) -> [u8; RECORD_BYTES] {
        assert!(piece < PIECES_MAX, "a slot has {PIECES_MAX} records");
        // SAFETY: within the array of a structure that lives as long as the slot.
        unsafe { read((&raw const (*self.lines.as_ptr()).records).cast::<[u8; 32]>().add(piece)) }
    }

    fn batch_record(&self) -> [u8; RECORD_BYTES] {
        // SAFETY: a field of a structure that lives as long as the slot.
        unsafe { read(&raw const (*self.lines.as_ptr()).batch_record) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: from `Box::leak` in `new`; a slot that the accelerator may still use is
        // forgotten, not dropped.
        drop(unsafe { Box::from_raw(self.lines.as_ptr()) });
    }
}

/// Reads a record that the accelerator may be writing: its status first, which it writes last.
///
/// # Safety
/// `record` can be read.
unsafe fn read(record: *const [u8; RECORD_BYTES]) -> [u8; RECORD_BYTES] {
    // SAFETY: the caller's promise; bytes have no alignment, and volatile reads are not merged.
    let status = unsafe { record.cast::<u8>().read_volatile() };
    fence(Ordering::Acquire);
    // SAFETY: as above.
    let mut bytes = unsafe { record.read_volatile() };
    bytes[0] = status;
    bytes
}

#[cfg(test)]
mod tests;
