//! Byte ranges, and the segments in which a task's progress is reported.
//!
//! A task's bytes are divided into at most [`SEGMENTS_MAX`] segments of `1 << granule_shift`
//! bytes; the last may be shorter. A set of segments is a `u32`, bit *i* for segment *i*. Offsets
//! count from the task's first byte. No function here returns a byte outside the task.

/// Maximum number of segments of a task.
pub const SEGMENTS_MAX: u32 = 32;
/// Maximum granule shift, so that no sum overflows.
pub const GRANULE_SHIFT_MAX: u8 = 48;

/// The bytes `start..start + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Span {
    /// Returns the address behind the last byte. A span that would wrap ends at the last address.
    pub fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Returns true if the span does not wrap.
    pub fn fits(self) -> bool {
        self.start.checked_add(self.len).is_some()
    }

    /// Returns the bytes that are in both spans, or `None`.
    pub fn intersection(self, other: Span) -> Option<Span> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Span { start, len: end - start })
    }

    /// Returns true if some byte is in both spans.
    pub fn touches(self, other: Span) -> bool {
        self.intersection(other).is_some()
    }
}

/// Adjacent segments, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first segment.
    pub first: u32,
    /// Number of segments.
    pub count: u32,
}

impl Run {
    /// Returns the lowest run of a set, or `None` for an empty set.
    pub fn lowest(bits: u32) -> Option<Run> {
        if bits == 0 {
            return None;
        }
        let first = bits.trailing_zeros();
        Some(Run { first, count: (bits >> first).trailing_ones() })
    }

    /// Returns the run as a set.
    pub fn bits(self) -> u32 {
        ones(self.count) << self.first
    }
}

/// Returns a set of the lowest `count` bits, at most 32.
fn ones(count: u32) -> u32 {
    if count >= SEGMENTS_MAX { u32::MAX } else { (1 << count) - 1 }
}

/// Division of a task's bytes into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    len_bytes: u64,
    granule_shift: u8,
    count: u8,
}

impl Segments {
    /// Divides a task of `len_bytes` into segments of `1 << granule_shift` bytes. `None` if the
    /// result has no segment or more than [`SEGMENTS_MAX`], or if the shift is above
    /// [`GRANULE_SHIFT_MAX`].
    pub fn new(len_bytes: u64, granule_shift: u8) -> Option<Segments> {
        if len_bytes == 0 || granule_shift > GRANULE_SHIFT_MAX {
            return None;
        }
        let count = ((len_bytes - 1) >> granule_shift) + 1;
        if count > u64::from(SEGMENTS_MAX) {
            return None;
        }
        Some(Segments { len_bytes, granule_shift, count: count as u8 })
    }

    /// Returns the length of the task, in bytes.
    pub fn len_bytes(self) -> u64 {
        self.len_bytes
    }

    /// Returns the number of segments.
    pub fn count(self) -> u32 {
        u32::from(self.count)
    }

    /// Returns all segments.
    pub fn all(self) -> u32 {
        ones(self.count())
    }

    /// Returns the segments that contain a byte of the range; bytes outside the task are ignored.
    pub fn touching(self, offset: u64, len: u64) -> u32 {
        let end = offset.saturating_add(len).min(self.len_bytes);
        if offset >= end {
            return 0;
        }
        let first = (offset >> self.granule_shift) as u32;
        let last = ((end - 1) >> self.granule_shift) as u32;
        ones(last - first + 1) << first
    }

    /// Returns the segments that lie completely within the first `bytes`.
    pub fn within(self, bytes: u64) -> u32 {
        if bytes >= self.len_bytes {
            self.all()
        } else {
            ones((bytes >> self.granule_shift) as u32)
        }
    }

    /// Returns the number of the segment with the byte at `offset`.
    pub fn at(self, offset: u64) -> u32 {
        (offset >> self.granule_shift).min(u64::from(SEGMENTS_MAX)) as u32
    }

    /// Returns the bytes of a run, as offsets, without the parts that the task does not have.
    pub fn bytes(self, run: Run) -> Span {
        let start = (u64::from(run.first) << self.granule_shift).min(self.len_bytes);
        let behind = u64::from(run.first) + u64::from(run.count);
        let end = (behind << self.granule_shift).min(self.len_bytes);
        Span { start, len: end - start }
    }

    /// Shortens a run to at most `budget_bytes`, but to one segment at least.
    pub fn within_budget(self, run: Run, budget_bytes: u64) -> Run {
        let count = (budget_bytes >> self.granule_shift).clamp(1, u64::from(run.count)) as u32;
        Run { first: run.first, count }
    }
}

#[cfg(test)]
mod tests {
    use unlade_testkit::Random;

    use super::*;

    fn span(start: u64, len: u64) -> Span {
        Span { start, len }
    }

    #[test]
    fn neighbours_do_not_touch() {
        assert!(!span(0, 8).touches(span(8, 8)));
        assert!(span(0, 9).touches(span(8, 8)));
        assert!(!span(4, 0).touches(span(0, 8)));
        assert_eq!(span(0, 9).intersection(span(8, 8)), Some(span(8, 1)));
    }

    #[test]
    fn ends_of_the_address_space_hold() {
        let last = span(u64::MAX, 0);
        assert!(last.fits());
        assert!(!span(u64::MAX, 1).fits());
        assert_eq!(span(u64::MAX - 1, 100).end(), u64::MAX);
        assert_eq!(Segments::new(u64::MAX, GRANULE_SHIFT_MAX), None);
        assert!(Segments::new(32 << GRANULE_SHIFT_MAX, GRANULE_SHIFT_MAX).is_some());
        assert_eq!(Segments::new(1, GRANULE_SHIFT_MAX + 1), None);
        assert_eq!(Segments::new(0, 3), None);
    }

    #[test]
    fn a_full_task_has_32_segments() {
        let segments = Segments::new(32 * 16, 4).unwrap();
        assert_eq!((segments.count(), segments.all()), (32, u32::MAX));
        assert_eq!(Segments::new(32 * 16 + 1, 4), None);
        assert_eq!(segments.bytes(Run { first: 0, count: 32 }), span(0, 512));
    }

    #[test]
    fn a_budget_is_kept_but_for_one_segment() {
        let segments = Segments::new(100, 4).unwrap();
        let run = Run { first: 1, count: 6 };
        assert_eq!(segments.within_budget(run, 0).count, 1);
        assert_eq!(segments.within_budget(run, 47).count, 2);
        assert_eq!(segments.within_budget(run, u64::MAX).count, 6);
    }

    /// Compares bits and bytes with the definition, byte by byte.
    #[test]
    fn bits_and_bytes_agree() {
        unlade_testkit::cases(300, |random: &mut Random| {
            let shift = random.below(5) as u8;
            let len = 1 + random.below(32 << shift);
            let segments = Segments::new(len, shift).unwrap();
            let of = |byte: u64| 1u32 << (byte >> shift);
            assert_eq!((0..len).fold(0, |all, byte| all | of(byte)), segments.all());

            let (offset, some) = (random.below(len + 4), random.below(len + 4));
            let touched = (offset..offset + some).filter(|byte| *byte < len);
            assert_eq!(
                touched.fold(0, |all, byte| all | of(byte)),
                segments.touching(offset, some)
            );

            let ends = |number: u32| segments.bytes(Run { first: number, count: 1 }).end();
            let within = (0..segments.count()).filter(|number| ends(*number) <= offset);
            assert_eq!(within.fold(0, |all, number| all | 1 << number), segments.within(offset));

            if let Some(run) = Run::lowest(segments.all() & random.next() as u32) {
                let bytes = segments.bytes(run);
                for byte in 0..len {
                    let inside = byte >= bytes.start && byte < bytes.end();
                    assert_eq!(inside, of(byte) & run.bits() != 0, "{run:?} {byte}");
                    assert_eq!(1 << segments.at(byte), of(byte));
                }
            }
        });
    }
}
