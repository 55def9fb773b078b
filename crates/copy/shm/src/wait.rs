//! Waiting for segments: spins, then sleeps, and checks again.

use std::time::Duration;

use crate::atomic::{Ordering, fence};
use crate::futex;
use crate::progress::Progress;

/// Condition that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Until {
    /// All segments are done.
    Done,
    /// All segments are done, or one of them is free, so that the waiter can claim and copy it.
    DoneOrFree,
}

/// Policy of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// The condition.
    pub until: Until,
    /// Number of checks before the first sleep; a check with a PAUSE takes about 10 to 50 ns.
    pub spins_max: u32,
    /// Maximum duration of one sleep. A wake-up is not lost, but a peer can die before it.
    pub slice_us: u32,
    /// Maximum number of sleeps, at least one. Sleeps that end early, because of other segments,
    /// count.
    pub slices_max: u32,
}

impl Default for WaitPolicy {
    /// Spins for about the duration of a wake-up, then sleeps for up to ten seconds, in a hundred
    /// slices.
    fn default() -> WaitPolicy {
        WaitPolicy { until: Until::Done, spins_max: 1000, slice_us: 10_000, slices_max: 1000 }
    }
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only one of these means that the bytes are there"]
pub enum Waited {
    /// All segments are done, or the task has retired.
    Done,
    /// With [`Until::DoneOrFree`]: some segments are not done, and these are free.
    Free(u32),
    /// The service is gone; its claims can be taken back.
    Stop,
    /// Nothing happened in all sleeps.
    TimedOut,
}

impl Progress<'_> {
    /// Waits until all of `bits` are done. `alive` is called after each sleep; the wait ends when
    /// it returns `false`.
    ///
    /// The waiter must not hold a claim: see docs/copy/design.md.
    pub fn wait(self, bits: u32, policy: &WaitPolicy, mut alive: impl FnMut() -> bool) -> Waited {
        if let Some(ended) = self.spin(bits, policy) {
            return ended;
        }
        for _ in 0..policy.slices_max.max(1) {
            if let Some(ended) = self.sleep(bits, policy) {
                return ended;
            }
            if !alive() {
                // The service may have finished the segments before it ended.
                return self.look(bits, policy.until).unwrap_or(Waited::Stop);
            }
        }
        Waited::TimedOut
    }

    #[inline]
    fn look(self, bits: u32, until: Until) -> Option<Waited> {
        if self.is_done(bits) {
            return Some(Waited::Done);
        }
        if until == Until::Done {
            return None;
        }
        // All bits are set if the task has retired; the next check then finds it done.
        let free = bits & !self.claimed();
        (free != 0).then_some(Waited::Free(free))
    }

    fn spin(self, bits: u32, policy: &WaitPolicy) -> Option<Waited> {
        for _ in 0..policy.spins_max {
            if let Some(ended) = self.look(bits, policy.until) {
                return Some(ended);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Sleeps once, unless the condition holds already.
    fn sleep(self, bits: u32, policy: &WaitPolicy) -> Option<Waited> {
        let line = self.line;
        // Load before the check: a later wake-up prevents the sleep.
        let wakes = line.wakes.load(Ordering::Acquire);
        line.waiters.fetch_add(1, Ordering::SeqCst);
        // The waiter must be counted before its check, for all threads; see `wake_waiters`.
        fence(Ordering::SeqCst);
        let mut ended = self.look(bits, policy.until);
        if ended.is_none() {
            let slice = Duration::from_micros(policy.slice_us.into());
            futex::wait(&line.wakes, wakes, self.scope, slice);
            ended = self.look(bits, policy.until);
        }
        line.waiters.fetch_sub(1, Ordering::Relaxed);
        ended
    }
}
