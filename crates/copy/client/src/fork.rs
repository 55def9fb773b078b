//! What becomes of clients in a child after fork(2).
//!
//! The child has the parent's memory, with queues and copies in it, and none of its service's
//! threads. So a client counts how often the process it is in was forked: one that was made before
//! the last fork is an *orphan*. Nobody serves it; what the parent's threads had claimed and not
//! done at the fork is given back once, and done by whoever waits, from the child's memory.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How often this process and those it was forked from were forked, plus one.
static GENERATION: AtomicU32 = AtomicU32::new(1);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Has forks counted from now on.
///
/// # Errors
/// The C library's: no memory.
pub(crate) fn watch() -> io::Result<()> {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    if IS_WATCHED.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the function lives as long as the process, and adds to an atomic only. Two threads
    // that come here together register it twice, which counts a fork twice and does no harm.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => {
            IS_WATCHED.store(true, Ordering::Release);
            Ok(())
        }
        refused => Err(io::Error::from_raw_os_error(refused)),
    }
}

/// A value of the process that made it, with its threads and locks: in a child it is not dropped,
/// since that would wait for threads that are not there.
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    born: u32,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> OfProcess<T> {
        let born = GENERATION.load(Ordering::Relaxed);
        OfProcess { value: ManuallyDrop::new(value), born }
    }

    /// Whether this process is a child of the one that made the value.
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
            // SAFETY: once, and nobody uses the value afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// What is to be done once in each child.
#[derive(Debug, Default)]
pub(crate) struct OnceInChild {
    /// The generation for which it is done, or, with the high bit, being done.
    state: AtomicU32,
}

impl OnceInChild {
    const BUSY: u32 = 1 << 31;

    /// Does it, or waits until another thread of this process has. Only in an orphan.
    pub fn run(&self, work: impl FnOnce()) {
        let generation = GENERATION.load(Ordering::Relaxed) & !OnceInChild::BUSY;
        let busy = generation | OnceInChild::BUSY;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state == generation {
                return;
            }
            // A thread of this process is at it; one of the parent's would have its generation.
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
    fn it_is_done_once_whoever_comes() {
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
