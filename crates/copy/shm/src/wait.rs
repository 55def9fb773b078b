//! Waiting for segments: spin, then sleep, and look again.

use std::time::Duration;

use crate::atomic::{Ordering, fence};
use crate::futex;
use crate::progress::Progress;

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Until {
    /// All segments are done.
    Done,
    /// Or one of them is free, so that the waiter can claim and copy it.
    DoneOrFree,
}

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// What for.
    pub until: Until,
    /// How often to look before sleeping; one look and a PAUSE are about 10 to 50 ns.
    pub spins_max: u32,
    /// How long one sleep lasts at most. A wake-up is not lost, but a peer can die before it.
    pub slice_us: u32,
    /// How many sleeps; at least one. One that ends early, for other segments' sake, counts.
    pub slices_max: u32,
}

impl Default for WaitPolicy {
    /// Spins as long as a wake-up would take, then sleeps for up to ten seconds, a hundredth at a
    /// time.
    fn default() -> WaitPolicy {
        WaitPolicy { until: Until::Done, spins_max: 1000, slice_us: 10_000, slices_max: 1000 }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only one of these means that the bytes are there"]
pub enum Waited {
    /// All segments are done, or the task has retired.
    Done,
    /// With [`Until::DoneOrFree`]: not all are done, and these are free.
    Free(u32),
    /// The service is gone: who has claims of it takes them back.
    Stop,
    /// Nothing happened for all slices.
    TimedOut,
}

impl Progress<'_> {
    /// Waits until all of `bits` are done. `alive` is asked after each sleep; when it says `false`
    /// the wait ends.
    ///
    /// Who waits must not hold a claim: see "Life of a copy" in the architecture.
    pub fn wait(self, bits: u32, policy: &WaitPolicy, mut alive: impl FnMut() -> bool) -> Waited {
        if let Some(ended) = self.spin(bits, policy) {
            return ended;
        }
        for _ in 0..policy.slices_max.max(1) {
            if let Some(ended) = self.sleep(bits, policy) {
                return ended;
            }
            if !alive() {
                // It may have been its last act.
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
        // All, where the task has retired meanwhile: then the next look says that it is done.
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

    /// One sleep, unless there is something to see.
    fn sleep(self, bits: u32, policy: &WaitPolicy) -> Option<Waited> {
        let line = self.line;
        // Before the look: a wake-up from now on keeps this thread from sleeping.
        let wakes = line.wakes.load(Ordering::Acquire);
        line.waiters.fetch_add(1, Ordering::SeqCst);
        // The waiter is counted before it looks, in everybody's eyes; see `wake_waiters`.
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
