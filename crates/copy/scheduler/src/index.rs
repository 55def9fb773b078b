//! Index of pending tasks by the bytes that they touch.
//!
//! Spans are kept by power-of-two class of their length. Within a class a span that touches a
//! range begins less than twice the class's size before it, so one walk of a sorted map finds it.
//! A lookup in all used classes takes O(classes · log n + found).

use std::collections::BTreeMap;

use crate::Ticket;
use crate::span::Span;

const CLASSES: usize = u64::BITS as usize;

/// Spans by address, each with the ticket of its task. The index has no limit of its own; its
/// owner limits the number of entries.
#[derive(Debug)]
pub struct Index {
    /// Lengths of spans, by start and ticket.
    classes: [BTreeMap<(u64, Ticket), u64>; CLASSES],
    /// Bit *c* is set if class *c* has spans.
    used: u64,
}

impl Default for Index {
    fn default() -> Index {
        Index { classes: std::array::from_fn(|_| BTreeMap::new()), used: 0 }
    }
}

/// Returns the class of a length. Class *c* contains the lengths from `1 << c` to `(2 << c) - 1`.
fn class_of(len: u64) -> usize {
    (len | 1).ilog2() as usize
}

impl Index {
    /// Adds a span of at least one byte.
    pub fn insert(&mut self, ticket: Ticket, span: Span) {
        let class = class_of(span.len);
        self.classes[class].insert((span.start, ticket), span.len);
        self.used |= 1 << class;
    }

    /// Removes a span that [`Index::insert`] added.
    pub fn remove(&mut self, ticket: Ticket, span: Span) {
        let class = class_of(span.len);
        self.classes[class].remove(&(span.start, ticket));
        if self.classes[class].is_empty() {
            self.used &= !(1 << class);
        }
    }

    /// Returns all spans that touch `range`, in no particular order.
    pub fn touching(&self, range: Span) -> impl Iterator<Item = (Ticket, Span)> + '_ {
        let mut used = self.used;
        std::iter::from_fn(move || {
            let class = (used != 0).then(|| used.trailing_zeros() as usize)?;
            used &= used - 1;
            Some(class)
        })
        .flat_map(move |class| self.touching_of(class, range))
    }

    fn touching_of(&self, class: usize, range: Span) -> impl Iterator<Item = (Ticket, Span)> + '_ {
        let longest = u64::MAX >> (CLASSES - 1 - class);
        let earliest = range.start.saturating_sub(longest - 1);
        // An empty or wrapping range must not invert the bounds: `range` would panic.
        let behind = range.end().max(earliest);
        self.classes[class]
            .range((earliest, Ticket(0))..(behind, Ticket(0)))
            .map(|((start, ticket), len)| (*ticket, Span { start: *start, len: *len }))
            .filter(move |(_, span)| span.touches(range))
    }

    /// Returns true if the index has no spans.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

#[cfg(test)]
mod tests {
    use unlade_testkit::Random;

    use super::*;

    #[test]
    fn ends_of_the_address_space_are_found() {
        let mut index = Index::default();
        let all = Span { start: 0, len: u64::MAX };
        let last = Span { start: u64::MAX - 1, len: 1 };
        index.insert(Ticket(1), all);
        index.insert(Ticket(2), last);
        let found: Vec<_> = index.touching(last).map(|(ticket, _)| ticket).collect();
        assert_eq!(found, [Ticket(2), Ticket(1)]);
        assert_eq!(index.touching(Span { start: 7, len: 0 }).count(), 0);
        assert_eq!(index.touching(Span { start: u64::MAX, len: 9 }).count(), 0);
    }

    #[test]
    fn finds_what_a_scan_finds() {
        unlade_testkit::cases(200, |random: &mut Random| {
            let (mut index, mut kept) = (Index::default(), Vec::new());
            for ticket in (0..60).map(Ticket) {
                let longest = 1 << random.below(10);
                let span = Span { start: random.below(600), len: 1 + random.below(longest) };
                index.insert(ticket, span);
                kept.push((ticket, span));
                if random.once_in(3) {
                    let (ticket, span) = kept.swap_remove(random.below(kept.len() as u64) as usize);
                    index.remove(ticket, span);
                }
                let range = Span { start: random.below(700), len: random.below(80) };
                let mut found: Vec<_> = index.touching(range).collect();
                let mut scanned: Vec<_> =
                    kept.iter().copied().filter(|(_, span)| span.touches(range)).collect();
                found.sort_by_key(|(ticket, _)| *ticket);
                scanned.sort_by_key(|(ticket, _)| *ticket);
                assert_eq!(found, scanned);
            }
            for (ticket, span) in kept {
                index.remove(ticket, span);
            }
            assert!(index.is_empty());
        });
    }
}
