//! Doorbell: a flag for a sleeping service, and a futex word to wake it.
//!
//! The service announces that it will sleep, checks its queues once more, and sleeps. A client
//! publishes a task, and checks the flag. A full fence on each side between the two steps
//! guarantees that at least one side sees the other's store.
//!
//! A queue has a doorbell in its memory. A service thread that serves many queues of its process
//! has a [`DoorbellLine`] of its own.

use std::time::Duration;

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::futex;
pub use crate::futex::Scope;

const ASLEEP: u32 = 0;
const AWAKE: u32 = 1;
/// The service was signalled and has not announced yet that it is awake. That may take as long as
/// many copies.
const SIGNALLED: u32 = 2;

/// The words of a doorbell, on their own cache line. Initially the service counts as asleep.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DoorbellLine {
    awake: AtomicU32,
    /// Number of rings; the futex word of the service.
    bell: AtomicU32,
}

impl DoorbellLine {
    /// Returns the doorbell with these words, for threads within `scope`.
    #[inline]
    pub fn doorbell(&self, scope: Scope) -> Doorbell<'_> {
        Doorbell { line: self, scope }
    }

    pub(crate) fn reset(&self) {
        self.awake.store(ASLEEP, Ordering::Relaxed);
        self.bell.store(0, Ordering::Relaxed);
    }
}

/// A doorbell between a service and its clients.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a> {
    line: &'a DoorbellLine,
    scope: Scope,
}

/// Announcement of a sleep. [`Doorbell::sleep`] returns at once after any later ring.
#[derive(Debug)]
#[must_use = "look through the queues, then sleep with it, or announce that you are awake"]
pub struct PendingSleep {
    bell: u32,
}

impl Doorbell<'_> {
    /// Returns true if the service polls its queues. One relaxed load: a hint that may be
    /// outdated; [`ring`](Doorbell::ring) makes an exact check.
    #[inline]
    pub fn is_awake(self) -> bool {
        self.line.awake.load(Ordering::Relaxed) == AWAKE
    }

    /// Client: wakes the service if it sleeps; called after publishing. Returns `true` if that
    /// took a system call (microseconds). Of several concurrent callers, one makes the call.
    #[inline]
    pub fn ring(self) -> bool {
        // The published task must be visible to all threads before the check of the flag.
        fence(Ordering::SeqCst);
        !self.is_awake() && self.wake()
    }

    #[cold]
    fn wake(self) -> bool {
        let (awake, bell) = (&self.line.awake, &self.line.bell);
        // The thread that changes the flag also wakes; the others rely on it. If that client dies
        // between the two steps, the service sleeps until its timeout.
        let turned = awake.compare_exchange(ASLEEP, SIGNALLED, Ordering::SeqCst, Ordering::Relaxed);
        if turned.is_err() {
            return false;
        }
        bell.fetch_add(1, Ordering::Release);
        futex::wake_all(bell, self.scope);
        true
    }

    /// Service: announces a sleep. It must check its queues after this, because an earlier client
    /// saw an awake service and did not ring.
    pub fn announce_sleep(self) -> PendingSleep {
        let bell = self.line.bell.load(Ordering::Acquire);
        self.line.awake.store(ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        PendingSleep { bell }
    }

    /// Service: sleeps until a ring, until `timeout` has passed, or until a spurious wake-up.
    /// Returns at once if there was a ring since `pending_sleep` was made. Returns true if there was a
    /// ring.
    pub fn sleep(self, pending_sleep: PendingSleep, timeout: Duration) -> bool {
        futex::wait(&self.line.bell, pending_sleep.bell, self.scope, timeout);
        self.line.bell.load(Ordering::Relaxed) != pending_sleep.bell
    }

    /// Service: announces that it polls its queues from now on.
    pub fn announce_awake(self) {
        self.line.awake.store(AWAKE, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::{DoorbellLine, Scope};
    use std::time::Duration;

    /// Far longer than the test takes: a lost wake-up makes it hang visibly.
    const FOREVER: Duration = Duration::from_secs(3600);

    #[test]
    fn one_ringer_makes_the_call() {
        let line = DoorbellLine::default();
        let bell = line.doorbell(Scope::Private);
        assert!(!bell.is_awake());
        assert!(bell.ring(), "the flag still says that the service sleeps");
        assert!(!bell.is_awake() && !bell.ring(), "it was rung, and is not awake yet");
        bell.announce_awake();
        assert!(bell.is_awake() && !bell.ring());
        let pending_sleep = bell.announce_sleep();
        assert!(!bell.is_awake() && bell.ring());
        assert!(bell.sleep(pending_sleep, FOREVER));
        let pending_sleep = bell.announce_sleep();
        assert!(!bell.sleep(pending_sleep, Duration::from_millis(1)), "there was no ring");
    }

    #[test]
    fn a_bell_before_the_sleep_is_heard_also_when_another_came_awake_between() {
        let line = DoorbellLine::default();
        let bell = line.doorbell(Scope::Shared);
        let pending_sleep = bell.announce_sleep();
        assert!(bell.ring());
        bell.announce_awake();
        bell.sleep(pending_sleep, FOREVER);
        let pending_sleep = bell.announce_sleep();
        bell.sleep(pending_sleep, Duration::from_micros(1));
    }
}
