//! Whether a service sleeps, and how it is woken: a flag and a futex word.
//!
//! The service says that it will sleep, looks through its queues once more, and sleeps; a client
//! publishes, and looks at the flag. A full fence on both sides between the two steps makes it
//! impossible that both miss the other.
//!
//! A queue has a doorbell in its memory. One that serves many queues of a process, one a service
//! thread, is a [`DoorbellLine`] of its own.

use std::time::Duration;

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::futex;
pub use crate::futex::Scope;

const ASLEEP: u32 = 0;
const AWAKE: u32 = 1;
/// Somebody rang, and the service has not said yet that it is awake: that may take as long as many
/// copies.
const RUNG: u32 = 2;

/// The words of a doorbell, on a cache line of their own. New ones say that the service sleeps.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DoorbellLine {
    awake: AtomicU32,
    /// How often somebody rang; what the service sleeps on.
    bell: AtomicU32,
}

impl DoorbellLine {
    /// The doorbell that these words are, for sleepers and ringers within `scope`.
    #[inline]
    pub fn doorbell(&self, scope: Scope) -> Doorbell<'_> {
        Doorbell { line: self, scope }
    }

    pub(crate) fn reset(&self) {
        self.awake.store(ASLEEP, Ordering::Relaxed);
        self.bell.store(0, Ordering::Relaxed);
    }
}

/// A doorbell: the service on one side, clients on the other.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a> {
    line: &'a DoorbellLine,
    scope: Scope,
}

/// The service said that it will sleep. Whoever rings from now on is heard by [`Doorbell::sleep`].
#[derive(Debug)]
#[must_use = "look through the queues, then sleep with it, or announce that you are awake"]
pub struct Drowsy {
    bell: u32,
}

impl Doorbell<'_> {
    /// Whether the service looks at its queues by itself. One relaxed load: a hint, which may be
    /// old; [`ring`](Doorbell::ring) knows.
    #[inline]
    pub fn is_awake(self) -> bool {
        self.line.awake.load(Ordering::Relaxed) == AWAKE
    }

    /// Client: after publishing, wakes the service if it sleeps. `true` if that took a system call
    /// (microseconds); of several who ring at once, one makes it.
    #[inline]
    pub fn ring(self) -> bool {
        // What was published comes before the look at the flag, in everybody's eyes.
        fence(Ordering::SeqCst);
        !self.is_awake() && self.wake()
    }

    #[cold]
    fn wake(self) -> bool {
        let (awake, bell) = (&self.line.awake, &self.line.bell);
        // Who turns the flag rings; the others rely on it. Should a client die between the two
        // steps, the service sleeps until its timeout.
        let turned = awake.compare_exchange(ASLEEP, RUNG, Ordering::SeqCst, Ordering::Relaxed);
        if turned.is_err() {
            return false;
        }
        bell.fetch_add(1, Ordering::Release);
        futex::wake_all(bell, self.scope);
        true
    }

    /// Service: says that it will sleep. It must look through its queues after this, since who
    /// published before it saw a service that was awake.
    pub fn announce_sleep(self) -> Drowsy {
        let bell = self.line.bell.load(Ordering::Acquire);
        self.line.awake.store(ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Drowsy { bell }
    }

    /// Service: sleeps until somebody rings, or `timeout` has passed, or for no reason. Returns at
    /// once where somebody rang since `drowsy` was made. Whether somebody did.
    pub fn sleep(self, drowsy: Drowsy, timeout: Duration) -> bool {
        futex::wait(&self.line.bell, drowsy.bell, self.scope, timeout);
        self.line.bell.load(Ordering::Relaxed) != drowsy.bell
    }

    /// Service: looks at its queues by itself from now on.
    pub fn announce_awake(self) {
        self.line.awake.store(AWAKE, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::{DoorbellLine, Scope};
    use std::time::Duration;

    /// Far beyond what the test takes: a wake-up that is lost makes it hang, and be noticed.
    const FOREVER: Duration = Duration::from_secs(3600);

    #[test]
    fn one_ringer_makes_the_call() {
        let line = DoorbellLine::default();
        let bell = line.doorbell(Scope::Private);
        assert!(!bell.is_awake());
        assert!(bell.ring(), "nobody told that the service is awake");
        assert!(!bell.is_awake() && !bell.ring(), "it was rung, and is not awake yet");
        bell.announce_awake();
        assert!(bell.is_awake() && !bell.ring());
        let drowsy = bell.announce_sleep();
        assert!(!bell.is_awake() && bell.ring());
        assert!(bell.sleep(drowsy, FOREVER));
        let drowsy = bell.announce_sleep();
        assert!(!bell.sleep(drowsy, Duration::from_millis(1)), "nobody rang");
    }

    #[test]
    fn a_bell_before_the_sleep_is_heard_also_when_another_came_awake_between() {
        let line = DoorbellLine::default();
        let bell = line.doorbell(Scope::Shared);
        let drowsy = bell.announce_sleep();
        assert!(bell.ring());
        bell.announce_awake();
        bell.sleep(drowsy, FOREVER);
        let drowsy = bell.announce_sleep();
        bell.sleep(drowsy, Duration::from_micros(1));
    }
}
