//! Intel's Data Streaming Accelerator, a copy engine in server processors from Sapphire Rapids on.
//!
//! - [`probe`]: finds usable queues, and reasons why others are unusable;
//! - [`descriptor`]: formats that the accelerator reads and writes;
//! - `portal`: submission of descriptors.
//!
//! The accelerator takes virtual addresses, so nothing is pinned or translated here. A missing
//! page ends a copy early; at the poll, the processor, which can fault, copies the rest of that
//! chunk. After a fork only the process that opened the queue can use it.
//!
//! Written from the Intel Data Streaming Accelerator Architecture Specification and Linux'
//! `<linux/idxd.h>`. **It has not run on the hardware**, which was not available. The tests cover
//! the formats, the probe with prepared directories, and the whole unit with a simulated
//! accelerator.

pub mod descriptor;
mod portal;
pub mod probe;

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use crate::device::{Batch, Characteristics, Chunk, Device, Failure, Progress, Refused};
use crate::guard::Guard;
use crate::kernel::Hint;
use descriptor::{CompletionStatus, Descriptor, RECORD_BYTES, outcome};
use portal::Portal;
use probe::Queue;

/// Maximum number of chunks in a batch.
pub const CHUNKS_MAX: usize = 32;
/// Maximum number of batches in progress.
pub const BATCHES_MAX: usize = 64;
/// Minimum length of a chunk: the processor copies shorter ones in less time than the submission
/// takes (Copier, SOSP 2025, §4.3).
pub const BYTES_MIN: usize = 4 << 10;
/// Time from submission to the first byte, in nanoseconds: a published order of magnitude, not
/// measured.
const START_NS: u64 = 1_000;
/// Bytes per microsecond: likewise.
const BYTES_PER_US: u64 = 30_000;
/// Maximum number of polls for an idle unit at a drop, before its memory is leaked.
const DRAIN_POLLS_MAX: usize = 1_000_000;

/// Memory of one batch that the accelerator reads and writes; it does not move.
#[repr(C, align(64))]
struct Lines {
    list: [Descriptor; CHUNKS_MAX],
    records: [[u8; RECORD_BYTES]; CHUNKS_MAX],
    batch_record: [u8; RECORD_BYTES],
}

/// One batch.
struct BatchSlot {
    lines: NonNull<Lines>,
    number: u64,
    chunks: Vec<Chunk>,
    way: Submission,
}

/// Method of submission of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Submission {
    /// Not submitted: the slot is free.
    Free,
    /// One descriptor that refers to a list.
    Batch,
    /// This number of single descriptors; the chunks behind them found no room, and the processor
    /// copies them.
    Single(usize),
}

impl Submission {
    /// Returns the number of queue entries in use.
    fn entries(self) -> usize {
        match self {
            Submission::Free => 0,
            Submission::Batch => 1,
            Submission::Single(taken) => taken,
        }
    }
}

/// A queue of the accelerator.
pub struct Dsa {
    characteristics: Characteristics,
    batch_max: usize,
    entries_max: usize,
    slots: Vec<BatchSlot>,
    submitted: u64,
    /// Bytes that the processor copied, because a page was missing or the queue was full.
    left_bytes: u64,
    guard: Guard,
    /// Closed before the lines are freed.
    portal: Option<Portal>,
}

impl Dsa {
    /// Opens a queue that [`probe::probe`] found.
    ///
    /// # Errors
    /// The kernel's error: no permission for the device file, or another process has the dedicated
    /// queue.
    pub fn open(queue: &Queue, guard: Guard) -> io::Result<Dsa> {
        Ok(Dsa::with(Portal::open(queue)?, queue, guard))
    }

    fn with(portal: Portal, queue: &Queue, guard: Guard) -> Dsa {
        let batch_max = if portal.takes_batches() { queue.batch_max } else { 1 };
        let entries_max = queue.entries.max(1);
        let chunks_max = batch_max.max(entries_max).clamp(1, CHUNKS_MAX);
        let bytes_max = usize::try_from(queue.bytes_max).unwrap_or(usize::MAX);
        let depth = entries_max.min(BATCHES_MAX);
        let characteristics = Characteristics {
            name: "dsa",
            start_ns: START_NS,
            bytes_per_us: BYTES_PER_US,
            bytes_min: BYTES_MIN,
            // The size field of a descriptor has 32 bits.
            bytes_max: bytes_max.min(u32::MAX as usize),
            chunks_max,
            depth,
        };
        let slots = (0..depth).map(|_| BatchSlot::new()).collect();
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

    /// Returns the number of bytes that the processor had to copy so far.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    fn entries(&self) -> usize {
        self.slots.iter().map(|slot| slot.way.entries()).sum()
    }

    /// Examines each chunk after the accelerator has stopped, and copies the rest.
    fn finish(&mut self, at: usize) -> Progress {
        let slot = &self.slots[at];
        for (chunk, order) in slot.chunks.iter().enumerate() {
            let done = match outcome(&slot.record(chunk)) {
                CompletionStatus::Success => continue,
                // A chunk of a list that was not read to the end, or behind the last accepted one.
                CompletionStatus::Pending => 0,
                CompletionStatus::PageFault { done_bytes, .. } => {
                    (done_bytes as usize).min(order.len)
                }
                CompletionStatus::BatchIncomplete => return failed(chunk, u8::MAX),
                CompletionStatus::Other(status) => return failed(chunk, status),
            };
            let left = order.len - done;
            self.left_bytes += left as u64;
            // SAFETY: the submitter guarantees that the chunk belongs to the unit until it is
            // reported, and the accelerator has stopped. `done` is within the chunk.
            let copied = unsafe {
                let (dst, src) = (order.dst.wrapping_add(done), order.src.wrapping_add(done));
                self.guard.copy_guarded(dst, src, left, Hint::Reuse)
            };
            if let Err(mut fault) = copied {
                fault.done_bytes_min += done;
                return Progress::Failed { chunk, why: fault.into() };
            }
        }
        Progress::Done
    }
}

fn failed(chunk: usize, status: u8) -> Progress {
    Progress::Failed { chunk, why: Failure::Unit { status } }
}

impl Device for Dsa {
    fn characteristics(&self) -> Characteristics {
        self.characteristics
    }

    unsafe fn submit(&mut self, chunks: &[Chunk]) -> Result<Batch, Refused> {
        self.characteristics.check(chunks)?;
        let in_use = self.entries();
        let free = self.slots.iter().position(|slot| slot.way == Submission::Free);
        let Some(portal) = self.portal.as_mut() else {
            return Err(Refused::Broken(io::Error::from(io::ErrorKind::NotConnected)));
        };
        let Some(at) = free else { return Err(Refused::Full) };
        let as_batch = chunks.len() > 1 && chunks.len() <= self.batch_max;
        // The overflow of a dedicated queue is not reported, so the entries are counted.
        if in_use + if as_batch { 1 } else { chunks.len() } > self.entries_max {
            return Err(Refused::Full);
        }
        let slot = &mut self.slots[at];
        slot.prepare(chunks);
        // SAFETY: the slot's lines do not move while it is in use, and the caller guarantees that
        // the chunks belong to the unit.
        let taken = unsafe {
            match as_batch {
                true => portal.submit(&[slot.batch()])?,
                false => portal.submit(&slot.lines.as_ref().list[..chunks.len()])?,
            }
        };
        if taken == 0 {
            return Err(Refused::Full);
        }
        slot.way = if as_batch { Submission::Batch } else { Submission::Single(taken) };
        slot.number = self.submitted;
        self.submitted += 1;
        Ok(Batch(slot.number))
    }

    fn poll(&mut self, batch: &Batch) -> Progress {
        let mine = |slot: &BatchSlot| slot.way != Submission::Free && slot.number == batch.0;
        let Some(at) = self.slots.iter().position(mine) else {
            return Progress::Failed { chunk: 0, why: Failure::Unknown };
        };
        if !self.slots[at].has_stopped() {
            return Progress::Pending;
        }
        // Reads of the copied data must come after the reads of the completion records.
        fence(Ordering::Acquire);
        let progress = match self.slots[at].way {
            Submission::Batch => match outcome(&self.slots[at].batch_record()) {
                CompletionStatus::Other(status) => failed(0, status),
                _ => self.finish(at),
            },
            _ => self.finish(at),
        };
        self.slots[at].way = Submission::Free;
        progress
    }

    /// The driver drains the queue when its file is closed, unless a forked child still has it
    /// open; so only the records count.
    fn stop(&mut self) -> bool {
        self.portal = None;
        self.slots.iter().all(BatchSlot::has_stopped)
    }
}

impl Drop for Dsa {
    fn drop(&mut self) {
        let is_idle = |slots: &[BatchSlot]| slots.iter().all(BatchSlot::has_stopped);
        let idle = (0..DRAIN_POLLS_MAX).any(|_| {
            std::hint::spin_loop();
            is_idle(&self.slots)
        });
        // The driver ends batches in progress when the file is closed.
        self.portal = None;
        if !idle && !is_idle(&self.slots) {
            // The accelerator may still write there, so the memory is leaked instead of freed.
            self.slots.drain(..).for_each(std::mem::forget);
        }
    }
}

// SAFETY: the slot owns the lines, and nothing in it belongs to a thread.
unsafe impl Send for BatchSlot {}

impl BatchSlot {
    fn new() -> BatchSlot {
        let lines = Lines {
            list: [Descriptor::EMPTY; CHUNKS_MAX],
            records: [[0; RECORD_BYTES]; CHUNKS_MAX],
            batch_record: [0; RECORD_BYTES],
        };
        BatchSlot {
            lines: NonNull::from(Box::leak(Box::new(lines))),
            number: 0,
            chunks: Vec::with_capacity(CHUNKS_MAX),
            way: Submission::Free,
        }
    }

    /// Writes the list and clears the records. The slot must be free, so the accelerator does not
    /// use it.
    fn prepare(&mut self, chunks: &[Chunk]) {
        self.chunks.clear();
        self.chunks.extend_from_slice(chunks);
        // SAFETY: a free slot has exclusive access to its lines.
        let lines = unsafe { self.lines.as_mut() };
        lines.records = [[0; RECORD_BYTES]; CHUNKS_MAX];
        lines.batch_record = [0; RECORD_BYTES];
        for ((order, chunk), record) in lines.list.iter_mut().zip(chunks).zip(&lines.records) {
            let record = record.as_ptr().expose_provenance() as u64;
            let (dst, src) = (chunk.dst.expose_provenance(), chunk.src.expose_provenance());
            *order = Descriptor::memmove(dst as u64, src as u64, chunk.len as u32, true, record);
        }
    }

    fn batch(&self) -> Descriptor {
        let lines = self.lines.as_ptr();
        // SAFETY: the lines exist; only field addresses are taken, no reference is made.
        let (list, record) = unsafe { (&raw mut (*lines).list, &raw mut (*lines).batch_record) };
        let (list, record) = (list.expose_provenance(), record.expose_provenance());
        Descriptor::batch(list as u64, self.chunks.len() as u32, record as u64)
    }

    /// Returns true if the accelerator has reported everything that it accepted.
    fn has_stopped(&self) -> bool {
        match self.way {
            Submission::Free => true,
            Submission::Batch => outcome(&self.batch_record()) != CompletionStatus::Pending,
            Submission::Single(taken) => {
                (0..taken).all(|chunk| outcome(&self.record(chunk)) != CompletionStatus::Pending)
            }
        }
    }

    fn record(&self, chunk: usize) -> [u8; RECORD_BYTES] {
        assert!(chunk < CHUNKS_MAX, "a slot has {CHUNKS_MAX} records");
        // SAFETY: within the array of a structure that lives as long as the slot.
        unsafe { read((&raw const (*self.lines.as_ptr()).records).cast::<[u8; 32]>().add(chunk)) }
    }

    fn batch_record(&self) -> [u8; RECORD_BYTES] {
        // SAFETY: a field of a structure that lives as long as the slot.
        unsafe { read(&raw const (*self.lines.as_ptr()).batch_record) }
    }
}

impl Drop for BatchSlot {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Box::leak` in `new`. A slot that the accelerator may still
        // use is forgotten, not dropped.
        drop(unsafe { Box::from_raw(self.lines.as_ptr()) });
    }
}

/// Reads a record that the accelerator may be writing: first its status, which is written last.
///
/// # Safety
/// `record` is readable.
unsafe fn read(record: *const [u8; RECORD_BYTES]) -> [u8; RECORD_BYTES] {
    // SAFETY: the caller guarantees a readable record. Bytes have no alignment, and volatile reads
    // are not merged.
    let status = unsafe { record.cast::<u8>().read_volatile() };
    fence(Ordering::Acquire);
    // SAFETY: as above.
    let mut bytes = unsafe { record.read_volatile() };
    bytes[0] = status;
    bytes
}

#[cfg(test)]
mod tests;
