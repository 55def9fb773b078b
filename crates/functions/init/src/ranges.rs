//! An allocator of adjacent units: slots, or parts of the meta arena.

use std::collections::BTreeMap;

/// The free ranges of `0..count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Lengths by first unit; no two ranges touch.
    free: BTreeMap<u32, u32>,
}

impl Ranges {
    /// All of `0..count` is free.
    pub fn new(count: u32) -> Ranges {
        Ranges { free: (count > 0).then_some((0, count)).into_iter().collect() }
    }

    /// Takes `count` adjacent units, the first that fit; `None` if none do.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        let (&first, &length) = self.free.iter().find(|(_, length)| **length >= count)?;
        self.free.remove(&first);
        if length > count {
            self.free.insert(first + count, length - count);
        }
        Some(first)
    }

    /// Takes the longest range, of `most` units at most; `None` if nothing is free.
    pub fn take_up_to(&mut self, most: u32) -> Option<(u32, u32)> {
        let longest = self.free.values().copied().max()?.min(most);
        Some((self.take(longest)?, longest))
    }

    /// Gives units back that were taken.
    pub fn give(&mut self, first: u32, count: u32) {
        let (mut first, mut count) = (first, count);
        if count == 0 {
            return;
        }
        if let Some((&before, &length)) = self.free.range(..first).next_back()
            && before + length == first
        {
            self.free.remove(&before);
            (first, count) = (before, length + count);
        }
        if let Some(length) = self.free.remove(&(first + count)) {
            count += length;
        }
        self.free.insert(first, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    #[test]
    fn what_is_taken_is_nobody_elses_and_everything_comes_back() {
        cases(200, |random| {
            let count = random.below(40) as u32 + 1;
            let mut ranges = Ranges::new(count);
            let mut used = vec![false; count as usize];
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for _ in 0..200 {
                if random.below(2) == 0 && !taken.is_empty() {
                    let at = random.below(taken.len() as u64) as usize;
                    let (first, length) = taken.swap_remove(at);
                    ranges.give(first, length);
                    used[first as usize..(first + length) as usize].fill(false);
                    continue;
                }
                let want = random.below(8) as u32 + 1;
                let longest = used.split(|used| *used).map(<[bool]>::len).max().unwrap_or(0) as u32;
                match ranges.take(want) {
                    Some(first) => {
                        let own = &mut used[first as usize..(first + want) as usize];
                        assert!(own.iter().all(|used| !used));
                        own.fill(true);
                        taken.push((first, want));
                    }
                    None => assert!(longest < want),
                }
                let longest = used.split(|used| *used).map(<[bool]>::len).max().unwrap_or(0) as u32;
                let mut copy = ranges.clone();
                let found = copy.take_up_to(4).map(|(_, length)| length);
                assert_eq!(found, (longest > 0).then_some(longest.min(4)));
            }
            for (first, length) in taken {
                ranges.give(first, length);
            }
            assert_eq!(ranges, Ranges::new(count));
        });
    }
}
