//! Splits a move with overlapping ranges into copies.
//!
//! A copy whose own ranges overlap cannot be made in an arbitrary order of its bytes. So the move
//! is split into copies that do not overlap themselves, and the copy whose source will be
//! overwritten is submitted first (Copier, SOSP 2025, §4.1, footnote 3, describes two copies,
//! which is enough if the bytes move by half their length or more). The plan keeps the copies in
//! order, because each one writes what the previous one reads.

use smallvec::{SmallVec, smallvec};

use crate::plan::Chunk;
use crate::span::Span;

/// Maximum number of copies of a move.
pub const MOVE_SPLITS_MAX: u64 = 8;

/// Copies in the order of their submission.
pub type Splits = SmallVec<[Chunk; 4]>;

/// Result of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// The move is empty.
    Nothing,
    /// Copies that do not overlap themselves.
    Copies(Splits),
    /// The shift is too small, or a range is no valid memory range. The caller syncs the pending
    /// copies that touch it and then calls `memmove`.
    Inline,
}

/// Splits a move of `len` bytes from `src` to `dst`.
pub fn split(dst: u64, src: u64, len: u64) -> Move {
    let (to, from) = (Span { start: dst, len }, Span { start: src, len });
    if len == 0 || dst == src {
        return Move::Nothing;
    }
    if !to.fits() || !from.fits() {
        return Move::Inline;
    }
    if !to.touches(from) {
        return Move::Copies(smallvec![Chunk { dst, src, len }]);
    }
    let count = len.div_ceil(dst.abs_diff(src));
    if count > MOVE_SPLITS_MAX {
        return Move::Inline;
    }
    // All of one size, which is at most the shift; the last one may be shorter.
    let size = len.div_ceil(count);
    let part = |number: u64| {
        let at = number * size;
        Chunk { dst: dst + at, src: src + at, len: size.min(len - at) }
    };
    let mut copies: Splits = (0..len.div_ceil(size)).map(part).collect();
    if dst > src {
        // Earlier bytes overwrite the end of the source, so the last copy goes first.
        copies.reverse();
    }
    Move::Copies(copies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_moves_are_not_split() {
        assert_eq!(split(5, 5, 100), Move::Nothing);
        assert_eq!(split(5, 500, 0), Move::Nothing);
        assert_eq!(split(0, 1, 100), Move::Inline);
        assert_eq!(split(u64::MAX - 5, 0, 100), Move::Inline);
        assert_eq!(split(u64::MAX - 99, u64::MAX - 199, 100), Move::Inline);
        let apart = Move::Copies(smallvec![Chunk { dst: 0, src: 100, len: 100 }]);
        assert_eq!(split(0, 100, 100), apart);
    }

    #[test]
    fn copies_one_after_the_other_are_a_move() {
        unlade_testkit::cases(2000, |random| {
            let (dst, src, len) = (random.below(100), random.below(100), random.below(150));
            let Move::Copies(copies) = split(dst, src, len) else {
                let shift = dst.abs_diff(src);
                assert!(len == 0 || shift == 0 || len > MOVE_SPLITS_MAX * shift);
                return;
            };
            let before: Vec<u8> = (0..250).collect();
            let (mut memory, mut moved) = (before.clone(), before);
            moved.copy_within(src as usize..(src + len) as usize, dst as usize);
            assert!(copies.len() as u64 <= MOVE_SPLITS_MAX);
            for Chunk { dst, src, len } in copies {
                assert!(len > 0);
                assert!(!Span { start: dst, len }.touches(Span { start: src, len }));
                memory.copy_within(src as usize..(src + len) as usize, dst as usize);
            }
            assert_eq!(memory, moved);
        });
    }
}
