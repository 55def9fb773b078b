//! What asynchronous copy units have in common: one takes a batch of pieces, copies them while the
//! processor does something else, and is asked whether it is done.
//!
//! The dispatcher gives a unit the tail of its work, copies the rest itself and then asks (Copier,
//! SOSP 2025, §4.3). It never has to know which unit that is: [`Characteristics`] say how much
//! there has to be for the unit to pay, and what it refuses is copied by the processor.

use std::io;

use crate::guard::Fault;

/// A contiguous copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where to.
    pub dst: *mut u8,
    /// Where from.
    pub src: *const u8,
    /// How many bytes.
    pub len: usize,
}

// SAFETY: it is two addresses and a number. Using them takes `unsafe` anyway, where their validity
// is promised, in whichever thread.
unsafe impl Send for Piece {}

/// What a unit is good at. A prediction for the dispatcher, no promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characteristics {
    /// What it is called.
    pub name: &'static str,
    /// From submission until the first byte moves, in nanoseconds.
    pub start_ns: u64,
    /// Bytes in a microsecond, once it moves.
    pub bytes_per_us: u64,
    /// The smallest piece that is worth its while, and that it takes.
    pub bytes_min: usize,
    /// The largest piece that it takes.
    pub bytes_max: usize,
    /// Pieces in one batch.
    pub pieces_max: usize,
    /// Batches under way at once.
    pub depth: usize,
}

impl Characteristics {
    /// How long a batch of so many bytes takes in all, in nanoseconds.
    pub fn time_ns(&self, bytes: usize) -> u64 {
        let moving = (bytes as u64).saturating_mul(1000).div_ceil(self.bytes_per_us.max(1));
        self.start_ns.saturating_add(moving)
    }

    /// Whether a batch of these pieces is one that the unit takes.
    ///
    /// # Errors
    /// [`Refused`] with the first reason.
    pub fn check(&self, pieces: &[Piece]) -> Result<(), Refused> {
        if pieces.is_empty() || pieces.len() > self.pieces_max {
            return Err(Refused::Count { pieces: pieces.len(), pieces_max: self.pieces_max });
        }
        let allowed = self.bytes_min..=self.bytes_max;
        match pieces.iter().position(|piece| !allowed.contains(&piece.len)) {
            Some(piece) => Err(Refused::Size {
                piece,
                bytes: pieces[piece].len,
                bytes_min: self.bytes_min,
                bytes_max: self.bytes_max,
            }),
            None => Ok(()),
        }
    }
}

/// A batch that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch(pub(crate) u64);

/// The unit did not take a batch. Nothing of it was or will be copied.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// As many batches are under way as it can have.
    #[error("the unit is full; copy without it, or poll first")]
    Full,
    /// No pieces, or too many: the dispatcher's fault.
    #[error("{pieces} pieces are not a batch of this unit (1 to {pieces_max})")]
    Count {
        /// How many there were.
        pieces: usize,
        /// How many may be.
        pieces_max: usize,
    },
    /// A piece that is too short or too long: the dispatcher's fault.
    #[error("piece {piece} has {bytes} bytes; this unit takes {bytes_min} to {bytes_max}")]
    Size {
        /// Which.
        piece: usize,
        /// Its length.
        bytes: usize,
        /// The shortest.
        bytes_min: usize,
        /// The longest.
        bytes_max: usize,
    },
    /// A place that is not all of the client's.
    #[error("piece {piece} is not all within the client's memory")]
    Place {
        /// Which.
        piece: usize,
    },
    /// The unit itself: do without it from now on.
    #[error("the unit cannot be used any more: {0}; copy without it")]
    Broken(#[from] io::Error),
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The unit is reading and writing.
    Pending,
    /// All pieces are copied, and visible to this thread.
    Done,
    /// The unit has stopped, and a piece is not copied. Nothing is certain of the other pieces:
    /// copy the batch again without the unit.
    Failed {
        /// Which piece, the first if there are several.
        piece: usize,
        /// Why.
        why: Failure,
    },
}

/// Why a piece is not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An address is bad: the fault of whoever named it.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The unit reports an error of its own.
    #[error("the unit stopped with status {status:#04x}; copy without it")]
    Unit {
        /// What it said.
        status: u8,
    },
    /// No such batch is under way here: it was reported before, or belongs to another unit.
    #[error("no such batch is under way; poll each until it is reported, and no longer")]
    Unknown,
}

/// An asynchronous copy unit.
pub trait Device {
    /// What it is good at.
    fn characteristics(&self) -> Characteristics;

    /// Starts copying the pieces, in any order.
    ///
    /// # Errors
    /// [`Refused`]; then nothing is copied.
    ///
    /// # Safety
    /// Until [`Device::poll`] has reported the batch as anything but pending, or the unit is
    /// dropped, nobody else writes what the pieces read, or reads or writes what they write, and no
    /// reference points to what they write. No two ranges of a batch overlap where one is
    /// written. Addresses may be bad, but what of them is there is used.
    unsafe fn submit(&mut self, pieces: &[Piece]) -> Result<Batch, Refused>;

    /// How far a batch is. What is not pending is reported once, and then forgotten.
    fn poll(&mut self, batch: &Batch) -> Progress;

    /// Takes no more batches, and ends those that are under way as far as it can. True where it is
    /// certain that nothing is read or written any more: then each batch is reported when it is
    /// polled next. False where that is not certain yet: ask again, or go on polling.
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
        pieces_max: 2,
        depth: 1,
    };

    fn piece(len: usize) -> Piece {
        Piece { dst: ptr::null_mut(), src: ptr::null(), len }
    }

    #[test]
    fn times_are_rounded_up_and_never_overflow() {
        assert_eq!(UNIT.time_ns(0), 500);
        assert_eq!(UNIT.time_ns(3000), 1500);
        assert_eq!(UNIT.time_ns(1), 501);
        assert_eq!(Characteristics { bytes_per_us: 0, ..UNIT }.time_ns(usize::MAX), u64::MAX);
    }

    #[test]
    fn what_is_no_batch_is_refused_with_the_reason() {
        assert!(UNIT.check(&[piece(4), piece(64)]).is_ok());
        assert!(matches!(UNIT.check(&[]), Err(Refused::Count { pieces: 0, pieces_max: 2 })));
        assert!(matches!(UNIT.check(&[piece(4); 3]), Err(Refused::Count { pieces: 3, .. })));
        let long = UNIT.check(&[piece(4), piece(65)]);
        assert!(matches!(long, Err(Refused::Size { piece: 1, bytes: 65, .. })));
        assert!(matches!(UNIT.check(&[piece(3)]), Err(Refused::Size { piece: 0, bytes: 3, .. })));
    }
}
