//! Division of a task's bytes into segments, the units of claims and progress (Copier, SOSP 2025,
//! §4.1).
//!
//! A segment is `1 << granule_shift` bytes; the last one of a task may be shorter. Bit `i` of a
//! mask is the segment from byte `i << granule_shift` on.

use std::ops::Range;

/// Maximum number of segments of a task: the bits of a word besides its generation.
pub const SEGMENTS_MAX: u32 = 32;
/// Minimum granule shift that [`granule_shift_for`] returns: 1 KiB.
pub const GRANULE_SHIFT_USUAL: u8 = 10;
/// Minimum granule shift of a task: a cache line.
pub const GRANULE_SHIFT_MIN: u8 = 6;
/// Maximum granule shift of a task: 32 such segments cover any length.
pub const GRANULE_SHIFT_MAX: u8 = 31;

/// Contiguous segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first segment.
    pub first: u32,
    /// Number of segments.
    pub count: u32,
}

impl Run {
    /// Returns the segments as a mask. Segments beyond [`SEGMENTS_MAX`] have no bit.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u32 {
        ones(self.first.saturating_add(self.count)) & !ones(self.first)
    }
}

/// Returns the smallest granule shift, from 1 KiB up, that divides `len_bytes` into at most
/// [`SEGMENTS_MAX`] segments.
#[inline]
#[must_use]
pub fn granule_shift_for(len_bytes: u32) -> u8 {
    // A segment's number consists of the top five bits of the last byte's offset.
    let top = u32::BITS - len_bytes.saturating_sub(1).leading_zeros();
    (top.saturating_sub(SEGMENTS_MAX.ilog2()) as u8).max(GRANULE_SHIFT_USUAL)
}

/// Returns the number of segments of `len_bytes`. A result above [`SEGMENTS_MAX`] means that the
/// granule is too small.
#[inline]
#[must_use]
pub fn count_for(len_bytes: u32, granule_shift: u8) -> u32 {
    match len_bytes.checked_sub(1) {
        None => 0,
        Some(last) => last.checked_shr(granule_shift.into()).unwrap_or(0).saturating_add(1),
    }
}

/// Returns all segments of a task of `len_bytes`.
#[inline]
#[must_use]
pub fn bits_for(len_bytes: u32, granule_shift: u8) -> u32 {
    ones(count_for(len_bytes, granule_shift))
}

/// Returns the segments of a task of `len_bytes` that touch `range`, in bytes from the task's
/// start. Bytes beyond the task are ignored.
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

/// Returns the bytes of a run of segments, from the task's start, limited to `len_bytes`.
#[inline]
#[must_use]
pub fn bytes_of(run: Run, len_bytes: u32, granule_shift: u8) -> Range<u32> {
    let at = |segment: u32| {
        // With granules larger than the task, segments after the first are beyond it.
        let bytes = u64::from(segment) << granule_shift.min(32);
        // Lossless: at most `len_bytes`.
        bytes.min(len_bytes.into()) as u32
    };
    at(run.first)..at(run.first.saturating_add(run.count))
}

/// Returns the runs of contiguous segments in `bits`, lowest first.
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

/// Returns a mask of the lowest `count` bits, or all bits if `count` is [`SEGMENTS_MAX`] or more.
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
