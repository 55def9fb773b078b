//! Measures the window of a synchronous copy: the time until the program syncs its bytes. A copy
//! that is not queued so tells what queueing it would hide, at the price of two looks at the
//! clock.
//!
//! A client has one probe at a time, for one of the copies that are timed anyway. A sync of any of
//! its bytes ends it, by token or by address, in any thread.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::admission::{Place, nanos};

/// A probe that no sync has ended for this time gives way to the next one. Its window is at least
/// this long.
const AGE_MAX: Duration = Duration::from_millis(100);

/// The probe of a client.
#[derive(Debug, Default)]
pub(crate) struct WindowProbe {
    /// Number of the probe; 0 if there is none.
    number: AtomicU8,
    state: Mutex<ProbeState>,
}

#[derive(Debug, Default)]
struct ProbeState {
    /// Number of the last probe.
    last: u8,
    copy: Option<ProbedCopy>,
}

/// A synchronous copy whose bytes were not synced yet.
#[derive(Debug)]
struct ProbedCopy {
    number: u8,
    place: Place,
    dst: Range<usize>,
    src: Range<usize>,
    since: Instant,
}

/// A place, and a window in nanoseconds.
pub(crate) type Window = (Place, u32);

impl WindowProbe {
    /// Begins a probe of a copy of `len` bytes that has just been made; none while another is in
    /// progress. Returns its number, which is not 0, and the window of the one that it replaces.
    pub fn begin(
        &self,
        place: Place,
        dst: usize,
        src: usize,
        len: usize,
    ) -> (Option<u8>, Option<Window>) {
        let Some(mut state) = self.lock() else { return (None, None) };
        if state.copy.as_ref().is_some_and(|copy| copy.since.elapsed() < AGE_MAX) {
            return (None, None);
        }
        let number = state.last.wrapping_add(1).max(1);
        let replaced = state.copy.take().map(ProbedCopy::window);
        let range = |start: usize| start..start.saturating_add(len);
        let (dst, src) = (range(dst), range(src));
        state.copy = Some(ProbedCopy { number, place, dst, src, since: Instant::now() });
        state.last = number;
        self.number.store(number, Ordering::Relaxed);
        (Some(number), replaced)
    }

    /// Returns true if a sync may end a probe. One load.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.number.load(Ordering::Relaxed) != 0
    }

    /// A sync of a token with this number.
    #[cold]
    pub fn end_numbered(&self, number: u8) -> Option<Window> {
        self.end_if(|copy| copy.number == number)
    }

    /// A sync of the `len` bytes from `address` on; `for_write` if they are about to be changed or
    /// freed.
    #[cold]
    pub fn end_at(&self, address: usize, len: usize, for_write: bool) -> Option<Window> {
        let end = address.saturating_add(len);
        let meets = |range: &Range<usize>| range.start < end && address < range.end;
        self.end_if(|copy| meets(&copy.dst) || for_write && meets(&copy.src))
    }

    /// A sync of everything.
    #[cold]
    pub fn end(&self) -> Option<Window> {
        self.end_if(|_| true)
    }

    fn end_if(&self, is_synced: impl Fn(&ProbedCopy) -> bool) -> Option<Window> {
        let copy = self.lock()?.copy.take_if(|copy| is_synced(copy))?;
        self.number.store(0, Ordering::Relaxed);
        Some(copy.window())
    }

    /// Locks the probe if it is free: a sample is not worth a wait, and in a child after fork(2) a
    /// thread of the parent may hold the lock for ever.
    fn lock(&self) -> Option<MutexGuard<'_, ProbeState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl ProbedCopy {
    fn window(self) -> Window {
        (self.place, nanos(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { site: 0x1000, class: 5 };

    #[test]
    fn a_sync_of_any_byte_ends_a_probe() {
        let probe = WindowProbe::default();
        let begin = || probe.begin(PLACE, 1000, 5000, 100).0;
        assert!(!probe.is_active() && probe.end().is_none());
        let first = begin();
        assert!(first.is_some() && probe.is_active());
        // One at a time.
        assert_eq!(begin(), None);
        assert!(probe.end_at(900, 100, true).is_none() && probe.end_at(1100, 9, true).is_none());
        assert!(probe.end_at(5050, 1, false).is_none());
        assert_eq!(probe.end_at(1099, usize::MAX, false).map(|(place, _)| place), Some(PLACE));
        assert!(!probe.is_active() && probe.end_at(1099, 1, false).is_none());
        let second = begin().unwrap();
        assert!(probe.end_at(5050, 1, true).is_some());
        let third = begin().unwrap();
        assert!(probe.end_numbered(third.wrapping_add(1)).is_none());
        assert!(probe.end_numbered(third).is_some());
        assert!(begin().is_some() && probe.end().is_some());
        assert!(second != 0);
    }

    #[test]
    fn an_old_probe_gives_way_and_has_at_least_its_age() {
        let probe = WindowProbe::default();
        let begin = || probe.begin(PLACE, 1000, 5000, 100);
        let first = begin().0;
        probe.lock().unwrap().copy.as_mut().unwrap().since -= AGE_MAX;
        let (second, replaced) = begin();
        assert!(second.is_some() && second != first);
        assert!(replaced.is_some_and(|(_, ns)| u128::from(ns) >= AGE_MAX.as_nanos() - 1000));
        assert!(probe.end_numbered(first.unwrap()).is_none());
    }
}
