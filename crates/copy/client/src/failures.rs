//! Errors of tasks, kept longer than the tasks' slots.
//!
//! A task's progress line holds its result until the slot is reused. The thread that reuses the
//! slot first moves the error here, and so does a thread that finds a task over during another
//! operation. Few tasks fail: for a task without error this costs one read of a word in a line
//! that is written next.
//!
//! By ticket an error is found for ever. By address, or by a sync of everything, it is reported
//! once: afterwards the program may reuse the bytes for another copy.

use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use unlade_shm::Ticket;

use crate::attention::Attention;

/// Maximum number of distinct failures. Beyond it, the two nearest failures are merged with the
/// tickets between them: a late sync may then fail although its copy succeeded, but never the
/// reverse.
pub(crate) const FAILURES_MAX: usize = 512;

/// Base of the tickets of failed synchronous copies, which have no tickets of a queue. No queue
/// reaches it.
pub(crate) const AT_ONCE: u64 = 1 << 63;
/// Base of the tickets of deferred copies that the client keeps.
pub(crate) const DEFERRED: u64 = 1 << 62;

/// A failed task, or several and the tickets between them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failed {
    first: Ticket,
    last: Ticket,
    /// Error code of one of them.
    code: NonZeroU16,
    /// Bytes that were not written, except those already reported or overwritten since.
    bytes: Range<usize>,
    /// The error was not reported yet.
    is_unreported: bool,
}

impl Failed {
    /// Removes bytes from the range; a hole in the middle is ignored.
    fn trim(&mut self, off: &Range<usize>) {
        let Range { start, end } = &mut self.bytes;
        if off.start <= *start {
            *start = off.end.clamp(*start, *end);
        } else if off.end >= *end {
            *end = off.start.clamp(*start, *end);
        }
        if start == end {
            self.is_unreported = false;
        }
    }

    fn touches(&self, bytes: &Range<usize>) -> bool {
        self.bytes.start.max(bytes.start) < self.bytes.end.min(bytes.end)
    }

    /// Merges a younger entry.
    fn join(&mut self, younger: Failed) {
        self.last = self.last.max(younger.last);
        self.is_unreported |= younger.is_unreported;
        self.add(&younger.bytes);
    }

    fn add(&mut self, bytes: &Range<usize>) {
        if self.bytes.is_empty() {
            self.bytes = bytes.clone();
        } else if !bytes.is_empty() {
            self.bytes = self.bytes.start.min(bytes.start)..self.bytes.end.max(bytes.end);
        }
    }
}

/// The errors of one queue's tasks.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Number of entries, and number of unreported ones, so that a query takes no lock if nothing
    /// failed.
    count: AtomicUsize,
    unreported: AtomicUsize,
    /// Number of failed synchronous copies.
    at_once: AtomicU64,
    /// Sorted by ticket.
    failed: Mutex<Vec<Failed>>,
    attention: Attention,
}

impl Failures {
    /// Raised whenever an error is kept, and by the client that these errors belong to.
    #[inline]
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Returns true if there is an unreported error.
    #[inline]
    pub fn has_unreported(&self) -> bool {
        self.unreported.load(Ordering::Relaxed) != 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Failed>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, failed: &[Failed]) {
        self.count.store(failed.len(), Ordering::Relaxed);
        let unreported = failed.iter().filter(|failed| failed.is_unreported).count();
        self.unreported.store(unreported, Ordering::Relaxed);
        // A thread that finds the slot reused must see this store.
        fence(Ordering::Release);
    }

    /// Keeps the error of a task that did not write `bytes`, unless it is known.
    #[cold]
    pub fn keep(&self, ticket: Ticket, code: NonZeroU16, bytes: Range<usize>) {
        self.note(Failed { first: ticket, last: ticket, code, bytes, is_unreported: true });
    }

    /// Keeps the error of a synchronous copy. Returns the ticket that finds it.
    #[cold]
    pub fn keep_at_once(&self, code: NonZeroU16, bytes: Range<usize>) -> Ticket {
        let ticket = Ticket(AT_ONCE | self.at_once.fetch_add(1, Ordering::Relaxed));
        self.keep(ticket, code, bytes);
        ticket
    }

    /// Ticket of the next synchronous copy that fails.
    pub fn next_at_once(&self) -> Ticket {
        Ticket(AT_ONCE | self.at_once.load(Ordering::Relaxed))
    }

    /// Marks the error of a task as reported.
    #[cold]
    pub fn mark_reported(&self, ticket: Ticket, code: NonZeroU16) {
        self.note(Failed { first: ticket, last: ticket, code, bytes: 0..0, is_unreported: false });
    }

    fn note(&self, new: Failed) {
        let mut failed = self.lock();
        let place = failed.partition_point(|older| older.last < new.first);
        match failed.get_mut(place).filter(|old| old.first <= new.first) {
            // A reported error stays reported.
            Some(known) if known.first == known.last => {
                if !new.is_unreported {
                    *known = new;
                }
            }
            Some(several) => {
                several.is_unreported |= new.is_unreported;
                several.add(&new.bytes);
            }
            None => failed.insert(place, new),
        }
        if failed.len() > FAILURES_MAX {
            merge_nearest(&mut failed);
        }
        self.count(&failed);
        self.attention.raise();
    }

    /// The error of a task whose slot was reused.
    pub fn find(&self, ticket: Ticket) -> Option<NonZeroU16> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let failed = self.lock();
        let place = failed.partition_point(|older| older.last < ticket);
        failed.get(place).filter(|found| found.first <= ticket).map(|found| found.code)
    }

    /// The unreported error of a task from `since` on, or of a synchronous copy from `at_once` on.
    /// It stays unreported.
    pub fn unreported_since(&self, since: Ticket, at_once: Ticket) -> Option<NonZeroU16> {
        if !self.has_unreported() {
            return None;
        }
        let failed = self.lock();
        let is_later = |failed: &Failed| match failed.last.0 & (AT_ONCE | DEFERRED) {
            0 => failed.last >= since,
            AT_ONCE => failed.last >= at_once,
            // It may be of any time: a sync of its bytes reports it.
            _ => false,
        };
        failed
            .iter()
            .find(|failed| failed.is_unreported && is_later(failed))
            .map(|found| found.code)
    }

    /// Takes the oldest error of a task that should have written some of these bytes.
    #[inline]
    pub fn take_written(&self, bytes: Range<usize>) -> Option<NonZeroU16> {
        if self.has_unreported() { self.take_bytes(&bytes) } else { None }
    }

    #[cold]
    fn take_bytes(&self, bytes: &Range<usize>) -> Option<NonZeroU16> {
        let mut failed = self.lock();
        let mut code = None;
        for found in failed.iter_mut().filter(|failed| failed.touches(bytes)) {
            code = code.or(Some(found.code));
            found.trim(bytes);
        }
        self.count(&failed);
        code
    }

    /// Takes the oldest error, and marks all as reported.
    pub fn take_all(&self) -> Option<NonZeroU16> {
        if !self.has_unreported() {
            return None;
        }
        let mut failed = self.lock();
        let mut code = None;
        for found in failed.iter_mut().filter(|failed| failed.is_unreported) {
            code = code.or(Some(found.code));
            (found.is_unreported, found.bytes) = (false, 0..0);
        }
        self.count(&failed);
        code
    }

    /// Drops the errors for bytes that a new copy overwrites.
    #[inline]
    pub fn overwrite(&self, dst: usize, len: usize) {
        if self.has_unreported() {
            self.take_bytes(&(dst..dst.saturating_add(len)));
        }
    }
}

/// Merges the two nearest entries.
fn merge_nearest(failed: &mut Vec<Failed>) {
    let gap = |place: &usize| failed[*place].first.0 - failed[place - 1].last.0;
    if let Some(place) = (1..failed.len()).min_by_key(gap) {
        let younger = failed.remove(place);
        failed[place - 1].join(younger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    #[test]
    fn an_error_is_found_for_ever_by_ticket() {
        let failures = Failures::default();
        assert_eq!(failures.find(Ticket(5)), None);
        failures.keep(Ticket(9), code(14), 100..200);
        failures.keep(Ticket(5), code(22), 0..0);
        for _ in 0..2 {
            let found = [4, 5, 6, 9].map(|ticket| failures.find(Ticket(ticket)));
            assert_eq!(found, [None, Some(code(22)), None, Some(code(14))]);
            let unreported = failures.unreported_since(Ticket(6), failures.next_at_once());
            assert_eq!(unreported, (failures.has_unreported()).then(|| code(14)));
            failures.take_all();
        }
        assert!(!failures.has_unreported());
    }

    #[test]
    fn an_error_is_reported_once_by_address() {
        let failures = Failures::default();
        failures.keep(Ticket(1), code(14), 100..200);
        assert_eq!(failures.take_written(200..300), None);
        assert_eq!(failures.take_written(0..120), Some(code(14)));
        // An error that was reported is not reported again when it is noticed later.
        failures.keep(Ticket(1), code(14), 100..200);
        assert_eq!(failures.take_written(0..120), None);
        assert_eq!(failures.take_written(130..140), Some(code(14)));
        assert_eq!(failures.take_written(180..1000), Some(code(14)));
        failures.overwrite(100, 80);
        assert_eq!((failures.take_written(0..1000), failures.take_all()), (None, None));
        failures.keep(Ticket(2), code(104), 100..200);
        failures.mark_reported(Ticket(2), code(104));
        assert_eq!((failures.take_written(0..1000), failures.take_all()), (None, None));
        assert_eq!(failures.find(Ticket(2)), Some(code(104)));
        // A send writes no memory: only a sync of everything reports its error.
        failures.keep(Ticket(3), code(32), 0..0);
        assert_eq!(failures.take_written(0..usize::MAX), None);
        assert_eq!((failures.take_all(), failures.take_all()), (Some(code(32)), None));
    }

    #[test]
    fn failed_synchronous_copies_have_their_own_tickets() {
        let failures = Failures::default();
        failures.keep(Ticket(7), code(22), 0..10);
        let before = failures.next_at_once();
        let first = failures.keep_at_once(code(14), 100..200);
        let second = failures.keep_at_once(code(5), 300..400);
        assert_eq!((first, failures.find(first)), (before, Some(code(14))));
        assert_eq!(failures.unreported_since(Ticket(8), second), Some(code(5)));
        assert_eq!(failures.unreported_since(Ticket(8), failures.next_at_once()), None);
        assert_eq!(failures.unreported_since(Ticket(7), failures.next_at_once()), Some(code(22)));
        failures.mark_reported(second, code(5));
        assert_eq!((failures.take_written(300..400), failures.find(second)), (None, Some(code(5))));
        assert_eq!(failures.take_written(150..160), Some(code(14)));
    }

    proptest::proptest! {
        /// Any number of failures, noticed in any order.
        #[test]
        fn beyond_the_bound_none_that_failed_is_found_well(
            noticed in proptest::collection::vec((0u64..20_000, 0u16..3), 1..1500),
        ) {
            let failures = Failures::default();
            let bytes = |ticket: u64| ticket as usize * 10..ticket as usize * 10 + 10;
            let mut told = std::collections::BTreeMap::new();
            for &(ticket, how) in &noticed {
                match how {
                    0 => failures.mark_reported(Ticket(ticket), code(5)),
                    _ => failures.keep(Ticket(ticket), code(5), bytes(ticket)),
                }
                *told.entry(ticket).or_insert(false) |= how == 0;
                assert!(failures.lock().len() <= FAILURES_MAX);
            }
            let is_exact = told.len() <= FAILURES_MAX;
            for ticket in 0..20_000 {
                let found = failures.find(Ticket(ticket)).is_some();
                assert!(found || !told.contains_key(&ticket), "ticket {ticket} failed");
                assert!(!is_exact || found == told.contains_key(&ticket), "ticket {ticket} did not");
            }
            for (&ticket, &was_told) in &told {
                let found = failures.take_written(bytes(ticket)).is_some();
                assert!(found || was_told, "ticket {ticket} was not told");
                assert!(!is_exact || found != was_told, "ticket {ticket} was told twice");
            }
        }
    }
}
