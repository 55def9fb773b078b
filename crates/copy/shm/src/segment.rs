//! Bytes of a task as segments: what claims and progress are told in (Copier, SOSP 2025, §4.1).
//!
//! A segment is `1 << granule_shift` bytes; the last one of a task may be shorter. Bit `i` of a
//! mask is the segment from byte `i << granule_shift` on.

use std::ops::Range;

/// Most segments of one task: the bits of a word beside its generation.
pub const SEGMENTS_MAX: u32 = 32;
/// Smallest segment that [`granule_shift_for`] chooses, as a shift: 1 KiB.
pub const GRANULE_SHIFT_USUAL: u8 = 10;
/// Smallest segment that a task may have, as a shift: a cache line.
pub const GRANULE_SHIFT_MIN: u8 = 6;
/// Largest segment that a task may have, as a shift: 32 of them cover any length.
pub const GRANULE_SHIFT_MAX: u8 = 31;

/// Contiguous segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first one.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Run {
    /// The segments as a mask. Segments beyond [`SEGMENTS_MAX`] have no bit.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u32 {
        ones(self.first.saturating_add(self.count)) & !ones(self.first)
    }
}

/// The smallest segment, from 1 KiB up, with which `len_bytes` are at most [`SEGMENTS_MAX`]
/// segments; as a shift.
#[inline]
#[must_use]
pub fn granule_shift_for(len_bytes: u32) -> u8 {
    // Bits that a segment's number may have are the top five of the last byte's offset.
    let top = u32::BITS - len_bytes.saturating_sub(1).leading_zeros();
    (top.saturating_sub(SEGMENTS_MAX.ilog2()) as u8).max(GRANULE_SHIFT_USUAL)
}

/// How many segments `len_bytes` are. More than [`SEGMENTS_MAX`] is possible and means that the
/// granule is too small.
#[inline]
#[must_use]
pub fn count_for(len_bytes: u32, granule_shift: u8) -> u32 {
    match len_bytes.checked_sub(1) {
        None => 0,
        Some(last) => last.checked_shr(granule_shift.into()).unwrap_or(0).saturating_add(1),
    }
}

/// All segments of a task of `len_bytes`.
#[inline]
#[must_use]
pub fn bits_for(len_bytes: u32, granule_shift: u8) -> u32 {
    ones(count_for(len_bytes, granule_shift))
}

/// The segments of a task of `len_bytes` that touch `range`, in bytes from the task's start. What
/// lies beyond the task touches nothing.
#[inline]
#[must_use]
pub fn bits_of_range(range: Range<u32>, len_bytes: u32, granule_shift: u8) -> u32 {
    let end = range.end.min(len_bytes);
    if range.start >= end {
        return 0;
    }
    let first = range.start.checked_shr(granule_shift.into()).unwrap_or(0);
    ones(count_for(end, granule_shift)) & !ones(first)
}

/// The bytes of a run of segments, from the task's start; never beyond `len_bytes`.
#[inline]
#[must_use]
pub fn bytes_of(run: Run, len_bytes: u32, granule_shift: u8) -> Range<u32> {
    let at = |segment: u32| {
        // With granules larger than all bytes, what is beyond the first is beyond the task.
        let bytes = u64::from(segment) << granule_shift.min(32);
        // Lossless: not above `len_bytes`.
        bytes.min(len_bytes.into()) as u32
    };
    at(run.first)..at(run.first.saturating_add(run.count))
}

/// The runs of contiguous segments in `bits`, from the lowest.
pub fn runs(bits: u32) -> impl Iterator<Item = Run> {
    let mut left = bits;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let first = left.trailing_zeros();
        let run = Run { first, count: (left >> first).trailing_ones() };
        left &= !run.bits();
        Some(run)
    })
}

/// The lowest `count` bits; all from [`SEGMENTS_MAX`] on.
#[inline]
fn ones(count: u32) -> u32 {
    1u32.checked_shl(count).map_or(u32::MAX, |next| next - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [u32; 14] = [
        1,
        2,
        1023,
        1024,
        1025,
        4096,
        32 << 10,
        (32 << 10) + 1,
        64 << 10,
        100_000,
        1 << 20,
        (1 << 31) + 1,
        u32::MAX - 1,
        u32::MAX,
    ];

    #[test]
    fn granules_are_the_smallest_that_do() {
        for len in LENGTHS {
            let shift = granule_shift_for(len);
            assert!(count_for(len, shift) <= SEGMENTS_MAX, "{len}");
            let smaller = shift - 1;
            assert!(smaller < GRANULE_SHIFT_USUAL || count_for(len, smaller) > SEGMENTS_MAX);
        }
        assert_eq!(granule_shift_for(0), 10);
        assert_eq!(granule_shift_for(64 << 10), 11);
        assert_eq!(granule_shift_for(u32::MAX), 27);
    }

    #[test]
    fn runs_give_every_byte_once() {
        for len in LENGTHS {
            let shift = granule_shift_for(len);
            let mut next = 0;
            for first in 0..count_for(len, shift) {
                let bytes = bytes_of(Run { first, count: 1 }, len, shift);
                assert_eq!(bytes.start, next);
                assert!(bytes.end > bytes.start);
                next = bytes.end;
            }
            assert_eq!(next, len);
        }
    }

    #[test]
    fn a_range_touches_the_segments_that_hold_its_bytes() {
        let (len, shift) = (5000, 10);
        for start in (0..5200).step_by(13) {
            for end in [start, start + 1, start + 500, start + 1024, 5000, 5100, u32::MAX] {
                let naive = (0..count_for(len, shift))
                    .filter(|&first| {
                        let bytes = bytes_of(Run { first, count: 1 }, len, shift);
                        bytes.start < end.min(len) && start < bytes.end && start < end
                    })
                    .fold(0, |bits, first| bits | 1 << first);
                assert_eq!(bits_of_range(start..end, len, shift), naive, "{start}..{end}");
            }
        }
        assert_eq!(bits_of_range(0..u32::MAX, u32::MAX, 27), u32::MAX);
        assert_eq!(bits_for(5000, 10), 0b11111);
        assert_eq!(bits_for(0, 10), 0);
    }

    #[test]
    fn runs_put_together_are_the_bits() {
        for bits in [0, 1, 0x8000_0000, u32::MAX, 0xF0F0_1234, 0x5555_5555] {
            let found: Vec<Run> = runs(bits).collect();
            assert_eq!(found.iter().fold(0, |sum, run| sum | run.bits()), bits);
            assert!(found.windows(2).all(|two| two[0].first + two[0].count < two[1].first));
        }
    }

    #[test]
    fn impossible_granules_are_harmless() {
        for shift in [32, 63, 64, 255] {
            assert_eq!(bits_for(u32::MAX, shift), 1);
            assert_eq!(bits_of_range(7..9, 100, shift), 1);
            assert_eq!(bytes_of(Run { first: 0, count: 40 }, 100, shift), 0..100);
            assert_eq!(bytes_of(Run { first: u32::MAX, count: u32::MAX }, 100, shift), 100..100);
        }
        assert_eq!(bits_for(u32::MAX, 0), u32::MAX);
    }
}
