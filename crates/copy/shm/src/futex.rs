//! Sleeping on a word, and waking who sleeps there.

#[cfg(not(feature = "loom"))]
use std::time::Duration;

#[cfg(not(feature = "loom"))]
use crate::atomic::AtomicU32;

/// Who can sleep on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Threads of this process: the kernel finds them by address, which is faster.
    Private,
    /// Threads of every process that maps the memory.
    Shared,
}

/// Sleeps while `word` is `seen`, until woken, `timeout` has passed, or for no reason. All are the
/// same to the caller, who looks again; so are the kernel's refusals, which end in a caller that
/// looks more often.
#[cfg(not(feature = "loom"))]
pub(crate) fn wait(word: &AtomicU32, seen: u32, scope: Scope, timeout: Duration) {
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let _woken = rustix::thread::futex::wait(word, flags(scope), seen, Some(&timeout));
}

/// Wakes everyone who sleeps on `word`.
#[cfg(not(feature = "loom"))]
pub(crate) fn wake_all(word: &AtomicU32, scope: Scope) {
    // The kernel counts in int.
    const EVERYONE: u32 = i32::MAX as u32;
    let _woken = rustix::thread::futex::wake(word, flags(scope), EVERYONE);
}

#[cfg(not(feature = "loom"))]
fn flags(scope: Scope) -> rustix::thread::futex::Flags {
    match scope {
        Scope::Private => rustix::thread::futex::Flags::PRIVATE,
        Scope::Shared => rustix::thread::futex::Flags::empty(),
    }
}

#[cfg(feature = "loom")]
pub(crate) use model::{wait, wake_all};

/// A futex for the model: no time passes, so that a wake-up that is lost is a deadlock, which loom
/// reports. One bucket serves all words.
#[cfg(feature = "loom")]
mod model {
    use std::time::Duration;

    use loom::sync::{Condvar, Mutex};

    use super::Scope;
    use crate::atomic::{AtomicU32, Ordering};

    loom::lazy_static! {
        static ref BUCKET: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(crate) fn wait(word: &AtomicU32, seen: u32, _scope: Scope, _timeout: Duration) {
        if let Ok(guard) = BUCKET.0.lock() {
            if word.load(Ordering::Relaxed) == seen {
                drop(BUCKET.1.wait(guard));
            }
        }
    }

    pub(crate) fn wake_all(_word: &AtomicU32, _scope: Scope) {
        if let Ok(_guard) = BUCKET.0.lock() {
            BUCKET.1.notify_all();
        }
    }
}
