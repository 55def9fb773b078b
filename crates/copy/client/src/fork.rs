//! Clients in a child after fork(2).
//!
//! The child has a copy of the parent's memory, with queues and copies in it, but none of the
//! service's threads. A client therefore records the fork generation of its process: one that was
//! created before the last fork is an *orphan*. No service serves it. Segments that the parent's
//! threads had claimed and not done at the fork are released once, and the waiter copies them,
//! from the child's memory.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Number of forks from the first process to this one, plus one.
static GENERATION: AtomicU32 = AtomicU32::new(1);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Starts counting forks.
///
/// # Errors
/// The C library has no memory.
pub(crate) fn watch() -> io::Result<()> {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    if IS_WATCHED.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the function lives as long as the process, and only adds to an atomic. Two threads
    // that race here register it twice, which counts a fork twice and is harmless.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => {
            IS_WATCHED.store(true, Ordering::Release);
            Ok(())
        }
        refused => Err(io::Error::from_raw_os_error(refused)),
    }
}

/// Number that no ancestor of this process has, once forks are watched.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A value that owns threads and locks of the process that created it. In a child it is not
/// dropped, since that would wait for threads that do not exist.
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    born: u32,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> OfProcess<T> {
        let born = GENERATION.load(Ordering::Relaxed);
        OfProcess { value: ManuallyDrop::new(value), born }
    }

    /// Returns true if this process is a child of the one that created the value.
    #[inline]
    pub fn is_orphan(&self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.born
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_orphan() {
            // SAFETY: dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// An action that runs once in each child.
#[derive(Debug, Default)]
pub(crate) struct OnceInChild {
    /// The generation for which the action has run, or, with the high bit set, is running.
    state: AtomicU32,
}

impl OnceInChild {
    const BUSY: u32 = 1 << 31;

    /// Runs the action, or waits until another thread of this process has run it. Only in an
    /// orphan.
    pub fn run(&self, work: impl FnOnce()) {
        let generation = GENERATION.load(Ordering::Relaxed) & !OnceInChild::BUSY;
        let busy = generation | OnceInChild::BUSY;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state == generation {
                return;
            }
            // A thread of this process is running it; a thread of the parent would have its
            // generation.
            if state == busy {
                std::thread::yield_now();
                continue;
            }
            let ours =
                self.state.compare_exchange(state, busy, Ordering::Acquire, Ordering::Relaxed);
            if ours.is_ok() {
                work();
                self.state.store(generation, Ordering::Release);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_action_runs_once() {
        let (once, count) = (OnceInChild::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| once.run(|| _ = count.fetch_add(1, Ordering::Relaxed)));
            }
        });
        once.run(|| _ = count.fetch_add(1, Ordering::Relaxed));
        assert_eq!(count.into_inner(), 1);
    }
}
