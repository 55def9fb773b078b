//! How a move whose ranges overlap becomes copies.
//!
//! A copy whose own ranges overlap cannot be made in any order of its bytes, so it is split into
//! copies that have no overlap of their own, and the one whose source will be overwritten is
//! submitted first (Copier, SOSP 2025, §4.1, footnote 3, speaks of two copies: enough where the
//! bytes move by half their length or more). Between the copies the plan keeps the order, for each
//! writes what the one before it reads.

use smallvec::{SmallVec, smallvec};

use crate::plan::Piece;
use crate::span::Span;

/// The most copies that a move is split into.
pub const MOVE_SPLITS_MAX: u64 = 8;

/// Copies, in the order in which they are to be submitted.
pub type Splits = SmallVec<[Piece; 4]>;

/// What a move becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// It moves nothing.
    Nothing,
    /// Copies; none overlaps itself.
    Copies(Splits),
    /// It is shifted by too little, or is no range of memory: `memmove`, at once, once the pending
    /// copies that touch it are synced.
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
        return Move::Copies(smallvec![Piece { dst, src, len }]);
    }
    let count = len.div_ceil(dst.abs_diff(src));
    if count > MOVE_SPLITS_MAX {
        return Move::Inline;
    }
    // Of one size, which is at most the shift: the last may be shorter.
    let size = len.div_ceil(count);
    let part = |number: u64| {
        let at = number * size;
        Piece { dst: dst + at, src: src + at, len: size.min(len - at) }
    };
    let mut copies: Splits = (0..len.div_ceil(size)).map(part).collect();
    if dst > src {
        // The end of the source is overwritten by what comes from before it.
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
        let apart = Move::Copies(smallvec![Piece { dst: 0, src: 100, len: 100 }]);
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
            for Piece { dst, src, len } in copies {
                assert!(len > 0);
                assert!(!Span { start: dst, len }.touches(Span { start: src, len }));
                memory.copy_within(src as usize..(src + len) as usize, dst as usize);
            }
            assert_eq!(memory, moved);
        });
    }
}
