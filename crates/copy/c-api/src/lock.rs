//! A lock that can be held across a fork, and released in parent and child.
//!
//! Locks of the standard library cannot: if another thread of the parent held one, the child waits
//! for ever.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
/// Number of spins before sleeping.
const SPINS: u32 = 100;

/// A value that one thread at a time can use.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only `with` accesses the value, by one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Runs `f` with the value. Calling this within `f` deadlocks.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        /// Releases also when `f` panics.
        struct Held<'l>(&'l AtomicU32);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                release(self.0);
            }
        }
        acquire(&self.state);
        let held = Held(&self.state);
        // SAFETY: the lock is held until `held` is dropped, after `f`.
        let result = f(unsafe { &mut *self.value.get() });
        drop(held);
        result
    }

    /// Takes the lock until [`Lock::release_after_fork`].
    pub fn hold_for_fork(&self) {
        acquire(&self.state);
    }

    /// Releases what [`Lock::hold_for_fork`] took, in the parent and in the child.
    pub fn release_after_fork(&self) {
        release(&self.state);
    }
}

fn acquire(state: &AtomicU32) {
    let free = |new| state.compare_exchange(FREE, new, Ordering::Acquire, Ordering::Relaxed);
    for _ in 0..SPINS {
        if free(HELD).is_ok() {
            return;
        }
        std::hint::spin_loop();
    }
    while state.swap(CONTENDED, Ordering::Acquire) != FREE {
        futex_wait(state, CONTENDED, None, Scope::Private);
    }
}

fn release(state: &AtomicU32) {
    if state.swap(FREE, Ordering::Release) == CONTENDED {
        futex_wake(state, 1, Scope::Private);
    }
}

/// Selects whether other processes also sleep on the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Private,
    Shared,
}

impl Scope {
    fn flag(self) -> i32 {
        if self == Scope::Private { libc::FUTEX_PRIVATE_FLAG } else { 0 }
    }
}

/// Sleeps while the word has this value, up to `timeout_ms`; spurious wake-ups are possible.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>, scope: Scope) {
    let timeout = timeout_ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000).into(),
        tv_nsec: (ms % 1000 * 1_000_000).into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | scope.flag();
    // SAFETY: the word and the time live until the call returns, and the kernel changes neither.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout) };
}

/// Wakes up to `count` sleepers.
pub(crate) fn futex_wake(word: &AtomicU32, count: i32, scope: Scope) {
    let operation = libc::FUTEX_WAKE | scope.flag();
    // SAFETY: the kernel uses the word only as an address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        lock.with(|value| *value += 1);
                    }
                });
            }
        });
        assert_eq!(lock.with(|value| *value), 80_000);
    }

    #[test]
    fn a_held_lock_can_be_released_by_another_call() {
        let lock = Lock::new(());
        lock.hold_for_fork();
        lock.release_after_fork();
        lock.with(|()| ());
    }
}
