//! Byte ranges of copies that are not synced: the sanitizer's table.
//!
//! A copy is one entry at first; syncs of parts split entries.

use std::ops::Range;

/// Maximum number of entries; further copies are not checked.
pub(crate) const ENTRIES_MAX: usize = 1 << 16;

/// The sides of a task that are memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sides {
    Both,
    /// A receive.
    Destination,
    /// A send.
    Source,
}

/// A submitted copy, receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub sides: Sides,
    /// 0 for a send.
    pub dst: usize,
    /// 0 for a receive.
    pub src: usize,
    pub len: usize,
    /// Start of the heap allocation of the destination; 0 if it is not on the heap.
    pub dst_heap: usize,
    /// Start of the heap allocation of the source; 0 if it is not on the heap.
    pub src_heap: usize,
    /// Address of the call site's description, or 0.
    pub site: usize,
    /// An address in the submitting function, or 0.
    pub caller: usize,
}

/// An unsynced part of a copy.
#[derive(Clone, Copy, Debug)]
struct Entry {
    record: u64,
    queue: u64,
    /// Offset of its first byte from the copy's start.
    start: usize,
    len: usize,
    /// Set if reading the source is an error.
    is_source_watched: bool,
    submitted: Submitted,
}

impl Entry {
    fn dst(&self) -> Range<usize> {
        match self.submitted.sides {
            Sides::Source => 0..0,
            _ => span(self.submitted.dst.wrapping_add(self.start), self.len),
        }
    }

    fn src(&self) -> Range<usize> {
        match self.submitted.sides {
            Sides::Destination => 0..0,
            _ => span(self.submitted.src.wrapping_add(self.start), self.len),
        }
    }

    /// Ranges that must not be accessed.
    fn poisoned(&self) -> impl Iterator<Item = Range<usize>> {
        let sides = [Some(self.dst()), self.is_source_watched.then(|| self.src())];
        sides.into_iter().flatten().filter(|side| !side.is_empty())
    }

    /// Splits the entry into the part of which `side` is in `range`, and the parts before and
    /// behind it.
    fn split(
        &self,
        side: Range<usize>,
        range: &Range<usize>,
    ) -> (Option<Entry>, [Option<Entry>; 2]) {
        let met = side.start.max(range.start)..side.end.min(range.end);
        if met.start >= met.end {
            return (None, [Some(*self), None]);
        }
        let part = |from: usize, to: usize| {
            let start = self.start + (from - side.start);
            (from < to).then_some(Entry { start, len: to - from, ..*self })
        };
        (part(met.start, met.end), [part(side.start, met.start), part(met.end, side.end)])
    }
}

fn span(start: usize, len: usize) -> Range<usize> {
    start..start.saturating_add(len)
}

/// Access that a sync permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The bytes are read next.
    Read,
    /// They are changed or freed next.
    Write,
}

/// Table of unsynced copies.
#[derive(Debug)]
pub(crate) struct Ranges {
    entries: Vec<Entry>,
    next_record: u64,
    watch_sources: bool,
}

impl Ranges {
    /// An empty table.
    pub const fn new() -> Ranges {
        Ranges { entries: Vec::new(), next_record: 1, watch_sources: true }
    }

    /// Selects whether sources of later copies are checked.
    pub fn set_watch_sources(&mut self, watch: bool) {
        self.watch_sources = watch;
    }

    /// Adds a copy of `queue`. Returns its record number, and the ranges to poison. `None` if the
    /// table is full.
    pub fn add(&mut self, queue: u64, copy: Submitted) -> Option<(u64, Vec<Range<usize>>)> {
        if copy.len == 0 || self.entries.len() >= ENTRIES_MAX {
            return None;
        }
        let record = self.next_record;
        self.next_record += 1;
        let (len, is_source_watched) = (copy.len, self.watch_sources);
        let entry = Entry { record, queue, start: 0, len, is_source_watched, submitted: copy };
        self.entries.push(entry);
        Some((record, entry.poisoned().collect()))
    }

    /// Records a sync of bytes in their queue. Returns ranges that may be unpoisoned: see
    /// [`Ranges::still_poisoned`].
    pub fn release(
        &mut self,
        queue: u64,
        range: &Range<usize>,
        access: Access,
    ) -> Vec<Range<usize>> {
        let (mut kept, mut freed) = (Vec::new(), Vec::new());
        for entry in std::mem::take(&mut self.entries) {
            if entry.queue != queue {
                kept.push(entry);
                continue;
            }
            let (synced, rest) = entry.split(entry.dst(), range);
            freed.extend(synced.iter().flat_map(Entry::poisoned));
            for entry in rest.into_iter().flatten() {
                let (read, rest) = entry.split(entry.src(), range);
                kept.extend(rest.into_iter().flatten());
                let Some(read) = read else { continue };
                freed.extend(read.poisoned());
                if access == Access::Read {
                    // After a sync for reading the source may be read, but not changed.
                    kept.push(Entry { is_source_watched: false, ..read });
                }
            }
        }
        self.entries = kept;
        freed
    }

    /// Records a sync of all entries for which `is_over_for(record, queue)` returns true.
    pub fn release_all(&mut self, is_over_for: impl Fn(u64, u64) -> bool) -> Vec<Range<usize>> {
        let mut freed = Vec::new();
        self.entries.retain(|entry| {
            let is_over = is_over_for(entry.record, entry.queue);
            if is_over {
                freed.extend(entry.poisoned());
            }
            !is_over
        });
        freed
    }

    /// Ranges that overlap `freed` and must stay poisoned.
    pub fn still_poisoned(&self, freed: &[Range<usize>]) -> Vec<Range<usize>> {
        let touches = |poisoned: &Range<usize>| {
            freed.iter().any(|freed| freed.start < poisoned.end && poisoned.start < freed.end)
        };
        self.entries.iter().flat_map(Entry::poisoned).filter(touches).collect()
    }

    /// End of the poisoned range that contains the byte; `None` if it is not poisoned.
    pub fn poisoned_until(&self, address: usize) -> Option<usize> {
        let poisoned = self.entries.iter().flat_map(Entry::poisoned);
        poisoned.filter(|range| range.contains(&address)).map(|range| range.end).max()
    }

    /// The newest copy is_over_for range contains the byte, and true if that is the destination.
    pub fn at(&self, address: usize) -> Option<(Submitted, bool)> {
        self.entries.iter().rev().find_map(|entry| {
            let is_destination = entry.dst().contains(&address);
            let is_met = is_destination || entry.src().contains(&address);
            is_met.then_some((entry.submitted, is_destination))
        })
    }

    /// A copy from or to an allocation, and one of its bytes there.
    pub fn in_allocation(&self, heap: usize) -> Option<(Submitted, bool, usize)> {
        self.entries.iter().rev().find_map(|entry| {
            let Submitted { dst_heap, src_heap, .. } = entry.submitted;
            match heap {
                heap if heap == dst_heap => Some((entry.submitted, true, entry.dst().start)),
                heap if heap == src_heap => Some((entry.submitted, false, entry.src().start)),
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(dst: usize, src: usize, len: usize) -> Submitted {
        let sides = Sides::Both;
        Submitted { sides, dst, src, len, dst_heap: dst, src_heap: src, site: 0, caller: 0 }
    }

    #[test]
    fn receives_and_sends_have_one_side() {
        let mut ranges = Ranges::new();
        let received =
            Submitted { sides: Sides::Destination, src: 0, src_heap: 0, ..copy(1000, 0, 50) };
        let sent = Submitted { sides: Sides::Source, dst: 0, dst_heap: 0, ..copy(0, 5000, 50) };
        assert!(ranges.add(1, received).unwrap().1.iter().eq([&(1000..1050)]));
        assert!(ranges.add(1, sent).unwrap().1.iter().eq([&(5000..5050)]));
        assert_eq!((ranges.at(10), ranges.at(1010)), (None, Some((received, true))));
        assert_eq!(ranges.at(5010), Some((sent, false)));
        assert!(ranges.release(1, &(0..1010), Access::Write).iter().eq([&(1000..1010)]));
        assert!(ranges.release(1, &(5000..5010), Access::Read).iter().eq([&(5000..5010)]));
        assert!(ranges.in_allocation(5000).is_some_and(|(_, is_dst, _)| !is_dst));
        assert_eq!(ranges.release(1, &(0..9000), Access::Write), [1010..1050, 5010..5050]);
        assert_eq!(ranges.in_allocation(1000), None);
    }

    #[test]
    fn a_sync_of_a_part_leaves_the_rest() {
        let mut ranges = Ranges::new();
        let (_, poisoned) = ranges.add(1, copy(1000, 5000, 100)).unwrap();
        assert_eq!(poisoned, [1000..1100, 5000..5100]);
        let freed = ranges.release(1, &(1010..1020), Access::Read);
        assert_eq!(freed, [1010..1020, 5010..5020]);
        for (address, is_closed) in [(1009, true), (1010, false), (1019, false), (1020, true)] {
            assert_eq!(ranges.at(address).is_some(), is_closed, "{address}");
            assert_eq!(ranges.at(address + 4000).is_some(), is_closed, "{address}");
        }
        assert_eq!(ranges.poisoned_until(1020), Some(1100));
        assert!(ranges.release(2, &(0..9000), Access::Read).is_empty());
        ranges.release(1, &(0..2000), Access::Read);
        assert_eq!(ranges.at(1050), None);
        assert_eq!(ranges.in_allocation(1000), None);
    }

    #[test]
    fn a_source_that_is_synced_may_be_read_but_not_freed() {
        let mut ranges = Ranges::new();
        ranges.add(1, copy(1000, 5000, 100));
        assert_eq!(ranges.release(1, &(5000..5050), Access::Read), [1000..1050, 5000..5050]);
        assert!(ranges.still_poisoned(&[1000..1050, 5000..5050]).iter().eq([&(1000..1050)]));
        assert!(ranges.in_allocation(5000).is_some_and(|(_, is_dst, _)| !is_dst));
        ranges.release(1, &(5000..5100), Access::Write);
        assert_eq!(ranges.in_allocation(5000), None);
        assert_eq!(ranges.at(1000), None);
    }

    #[test]
    fn bytes_of_another_copy_stay_poisoned() {
        let mut ranges = Ranges::new();
        ranges.add(1, copy(2000, 1000, 64));
        let (second, _) = ranges.add(1, copy(3000, 2000, 64)).unwrap();
        let freed = ranges.release_all(|record, _| record == second);
        assert_eq!(freed, [3000..3064, 2000..2064]);
        assert!(ranges.still_poisoned(&freed).iter().eq([&(2000..2064)]));
    }

    #[test]
    fn checks_of_sources_can_be_disabled() {
        let mut ranges = Ranges::new();
        ranges.set_watch_sources(false);
        assert!(ranges.add(1, copy(1000, 5000, 10)).unwrap().1.iter().eq([&(1000..1010)]));
        assert!(ranges.in_allocation(5000).is_some());
        assert!(ranges.add(1, copy(1000, 5000, 0)).is_none());
    }
}
