//! The parts of a command's data that were received or requested, each at most once.

/// Largest number of separate parts; controllers proceed from front to end, which makes one.
pub const RANGES_MAX: usize = 64;

/// Parts of a buffer, in order, that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    parts: Vec<(u32, u32)>,
    total_bytes: u32,
}

/// The reason that a part cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeError {
    /// It lies outside the buffer, or overlaps another part.
    Overlap,
    /// There are too many parts.
    TooMany,
}

impl Ranges {
    /// Adds the part of `bytes` bytes from `start`, in a buffer of `limit_bytes`.
    pub(super) fn add(
        &mut self,
        start: u32,
        bytes: u32,
        limit_bytes: u32,
    ) -> Result<(), RangeError> {
        let end = start.checked_add(bytes).filter(|end| *end <= limit_bytes);
        let end = end.ok_or(RangeError::Overlap)?;
        if bytes == 0 {
            return Ok(());
        }
        let next = self.parts.partition_point(|part| part.0 < start);
        let before = next.checked_sub(1).map(|at| self.parts[at]);
        let after = self.parts.get(next).copied();
        if before.is_some_and(|part| part.1 > start) || after.is_some_and(|part| part.0 < end) {
            return Err(RangeError::Overlap);
        }
        let joins_before = before.is_some_and(|part| part.1 == start);
        let joins_after = after.is_some_and(|part| part.0 == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.parts[next - 1].1 = self.parts[next].1;
                self.parts.remove(next);
            }
            (true, false) => self.parts[next - 1].1 = end,
            (false, true) => self.parts[next].0 = start,
            (false, false) if self.parts.len() == RANGES_MAX => return Err(RangeError::TooMany),
            (false, false) => self.parts.insert(next, (start, end)),
        }
        self.total_bytes += bytes;
        Ok(())
    }

    /// Number of bytes of all parts.
    pub(super) fn total_bytes(&self) -> u32 {
        self.total_bytes
    }
}

#[cfg(test)]
mod tests {
    use unlade_testkit::cases;

    use super::*;

    #[test]
    fn parts_are_what_a_bitmap_says() {
        cases(300, |random| {
            let limit = 1 + random.below(200) as u32;
            let mut bitmap = vec![false; limit as usize];
            let mut ranges = Ranges::default();
            for _ in 0..60 {
                let start = random.below(u64::from(limit) + 2) as u32;
                let bytes = random.below(20) as u32;
                let fits = start + bytes <= limit;
                let free =
                    fits && !bitmap[start as usize..(start + bytes) as usize].contains(&true);
                match ranges.add(start, bytes, limit) {
                    Ok(()) => {
                        assert!(free);
                        bitmap[start as usize..(start + bytes) as usize].fill(true);
                    }
                    Err(RangeError::Overlap) => assert!(!free),
                    Err(RangeError::TooMany) => unreachable!("200 bytes have no 64 gaps"),
                }
                let total = bitmap.iter().filter(|is_there| **is_there).count();
                assert_eq!(ranges.total_bytes() as usize, total);
            }
        });
    }

    #[test]
    fn there_are_not_too_many_parts_and_sums_do_not_wrap() {
        let mut ranges = Ranges::default();
        for part in 0..RANGES_MAX as u32 {
            assert_eq!(ranges.add(part * 2, 1, 1000), Ok(()));
        }
        assert_eq!(ranges.add(500, 1, 1000), Err(RangeError::TooMany));
        assert_eq!(ranges.add(1, 1, 1000), Ok(()));
        assert_eq!(ranges.add(u32::MAX, 2, u32::MAX), Err(RangeError::Overlap));
    }
}
