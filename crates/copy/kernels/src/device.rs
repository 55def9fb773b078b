//! Interface of asynchronous copy units: a unit accepts a batch of chunks, copies them while the
//! processor does other work, and is polled for completion.
//!
//! The dispatcher gives a unit the tail of its work, copies the rest itself and then polls
//! (Copier, SOSP 2025, §4.3). It does not depend on the kind of unit: [`Characteristics`] contain
//! the minimum size that pays, and the processor copies what a unit refuses.

use std::io;

use crate::guard::Fault;

/// A contiguous copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Destination.
    pub dst: *mut u8,
    /// Source.
    pub src: *const u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: a chunk is two addresses and a number. Each use of them requires `unsafe`, whose caller
// guarantees their validity, in any thread.
unsafe impl Send for Chunk {}

/// Expected performance of a unit: a prediction for the dispatcher, not a guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characteristics {
    /// Name of the unit.
    pub name: &'static str,
    /// Time from submission to the first byte, in nanoseconds.
    pub start_ns: u64,
    /// Bytes per microsecond after that.
    pub bytes_per_us: u64,
    /// Minimum length of a chunk; shorter ones do not pay and are refused.
    pub bytes_min: usize,
    /// Maximum length of a chunk.
    pub bytes_max: usize,
    /// Maximum number of chunks in one batch.
    pub chunks_max: usize,
    /// Maximum number of batches in progress.
    pub depth: usize,
}

impl Characteristics {
    /// Returns the total time of a batch with this number of bytes, in nanoseconds.
    pub fn time_ns(&self, bytes: usize) -> u64 {
        let moving = (bytes as u64).saturating_mul(1000).div_ceil(self.bytes_per_us.max(1));
        self.start_ns.saturating_add(moving)
    }

    /// Checks that the unit accepts a batch of these chunks.
    ///
    /// # Errors
    /// [`Refused`] with the first reason.
    pub fn check(&self, chunks: &[Chunk]) -> Result<(), Refused> {
        if chunks.is_empty() || chunks.len() > self.chunks_max {
            return Err(Refused::Count { chunks: chunks.len(), chunks_max: self.chunks_max });
        }
        let allowed = self.bytes_min..=self.bytes_max;
        match chunks.iter().position(|chunk| !allowed.contains(&chunk.len)) {
            Some(chunk) => Err(Refused::Size {
                chunk,
                bytes: chunks[chunk].len,
                bytes_min: self.bytes_min,
                bytes_max: self.bytes_max,
            }),
            None => Ok(()),
        }
    }
}

/// A batch in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch(pub(crate) u64);

/// Reason to refuse a batch. Nothing of it was or will be copied.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The maximum number of batches is in progress.
    #[error("the unit is full; copy without it, or poll first")]
    Full,
    /// The number of chunks is invalid: the dispatcher's fault.
    #[error("{chunks} chunks are not a batch of this unit (1 to {chunks_max})")]
    Count {
        /// Number of chunks.
        chunks: usize,
        /// Maximum number of chunks.
        chunks_max: usize,
    },
    /// A chunk is too short or too long: the dispatcher's fault.
    #[error("chunk {chunk} has {bytes} bytes; this unit takes {bytes_min} to {bytes_max}")]
    Size {
        /// Index of the chunk.
        chunk: usize,
        /// Its length.
        bytes: usize,
        /// Minimum length.
        bytes_min: usize,
        /// Maximum length.
        bytes_max: usize,
    },
    /// A range is not completely within the client's memory.
    #[error("chunk {chunk} is not all within the client's memory")]
    Place {
        /// Index of the chunk.
        chunk: usize,
    },
    /// The unit itself failed; do not use it any more.
    #[error("the unit cannot be used any more: {0}; copy without it")]
    Broken(#[from] io::Error),
}

/// State of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The unit is still copying.
    Pending,
    /// All chunks are copied, and visible to this thread.
    Done,
    /// The unit has stopped, and a chunk is not copied. The state of the other chunks is unknown:
    /// copy the batch again without the unit.
    Failed {
        /// Index of the first failed chunk.
        chunk: usize,
        /// Reason of the failure.
        why: Failure,
    },
}

/// Reason why a chunk is not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An address is bad: the fault of the party that gave it.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The unit reported an internal error.
    #[error("the unit stopped with status {status:#04x}; copy without it")]
    Unit {
        /// Reported status.
        status: u8,
    },
    /// There is no such batch: it was reported before, or belongs to another unit.
    #[error("no such batch is under way; poll each until it is reported, and no longer")]
    Unknown,
}

/// An asynchronous copy unit.
pub trait Device {
    /// Returns the unit's expected performance.
    fn characteristics(&self) -> Characteristics;

    /// Starts copying the chunks, in any order.
    ///
    /// # Errors
    /// [`Refused`]; nothing is copied then.
    ///
    /// # Safety
    /// Until [`Device::poll`] has reported the batch as anything but pending, or the unit is
    /// dropped: no other party writes what the chunks read, or reads or writes what they write,
    /// and no reference points to what they write. No two ranges of a batch overlap if one of them
    /// is written. Addresses may be bad, but the memory that they do reach is accessed.
    unsafe fn submit(&mut self, chunks: &[Chunk]) -> Result<Batch, Refused>;

    /// Returns the state of a batch. A state other than pending is returned once, and the batch is
    /// then forgotten.
    fn poll(&mut self, batch: &Batch) -> Progress;

    /// Stops accepting batches, and ends those in progress as far as possible. Returns true if it
    /// is certain that no memory is accessed any more; each batch is then reported at its next
    /// poll. Returns false if that is not certain yet: call again, or continue to poll.
    fn stop(&mut self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    const UNIT: Characteristics = Characteristics {
        name: "test",
        start_ns: 500,
        bytes_per_us: 3000,
        bytes_min: 4,
        bytes_max: 64,
        chunks_max: 2,
        depth: 1,
    };

    fn chunk(len: usize) -> Chunk {
        Chunk { dst: ptr::null_mut(), src: ptr::null(), len }
    }

    #[test]
    fn times_are_rounded_up_and_never_overflow() {
        assert_eq!(UNIT.time_ns(0), 500);
        assert_eq!(UNIT.time_ns(3000), 1500);
        assert_eq!(UNIT.time_ns(1), 501);
        assert_eq!(Characteristics { bytes_per_us: 0, ..UNIT }.time_ns(usize::MAX), u64::MAX);
    }

    #[test]
    fn an_invalid_batch_is_refused_with_the_reason() {
        assert!(UNIT.check(&[chunk(4), chunk(64)]).is_ok());
        assert!(matches!(UNIT.check(&[]), Err(Refused::Count { chunks: 0, chunks_max: 2 })));
        assert!(matches!(UNIT.check(&[chunk(4); 3]), Err(Refused::Count { chunks: 3, .. })));
        let long = UNIT.check(&[chunk(4), chunk(65)]);
        assert!(matches!(long, Err(Refused::Size { chunk: 1, bytes: 65, .. })));
        assert!(matches!(UNIT.check(&[chunk(3)]), Err(Refused::Size { chunk: 0, bytes: 3, .. })));
    }
}
