//! Futex wait and wake.

#[cfg(not(feature = "loom"))]
use std::time::Duration;

#[cfg(not(feature = "loom"))]
use crate::atomic::AtomicU32;

/// Threads that can sleep on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Threads of this process; the kernel finds the word by address, which is faster.
    Private,
    /// Threads of all processes that map the memory.
    Shared,
}

/// Sleeps while `word` equals `seen`, until a wake-up, a timeout or a spurious return. The caller
/// does not distinguish them and checks again. Errors of the kernel are ignored; they only make
/// the caller check more often.
#[cfg(not(feature = "loom"))]
pub(crate) fn wait(word: &AtomicU32, seen: u32, scope: Scope, timeout: Duration) {
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let _woken = rustix::thread::futex::wait(word, flags(scope), seen, Some(&timeout));
}

/// Wakes all threads that sleep on `word`.
#[cfg(not(feature = "loom"))]
pub(crate) fn wake_all(word: &AtomicU32, scope: Scope) {
    // The kernel takes an int.
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

/// A futex for the model. No time passes there, so a lost wake-up is a deadlock, which loom
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
