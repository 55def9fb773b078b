//! Tells synchronous copies and syncs of a client, by one look, that there is nothing to regard:
//! no task is pending, no error is unreported, and no window is measured.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of events that copies and syncs must regard, and the number of those that are over. Both
/// only grow, so that a thread that settles cannot take a later event for an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    raised: AtomicU64,
    settled: AtomicU64,
}

impl Attention {
    /// Something begins that copies and syncs must regard. Call this before the operation returns
    /// to the program, and after the event is visible to the check of [`Attention::settle`].
    #[inline]
    pub fn raise(&self) {
        self.raised.fetch_add(1, Ordering::Release);
    }

    /// Copies and syncs must look for ever.
    pub fn raise_for_ever(&self) {
        self.settled.store(u64::MAX, Ordering::Relaxed);
    }

    pub fn is_raised_for_ever(&self) -> bool {
        self.settled.load(Ordering::Relaxed) == u64::MAX
    }

    /// Returns true if nothing is to be regarded that this thread may know of.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        // Acquire: the bytes of copies that another thread has found done.
        self.settled.load(Ordering::Acquire) == self.raised.load(Ordering::Relaxed)
    }

    /// Settles all events until now, if `is_over` says that they are over.
    #[inline]
    pub fn settle(&self, is_over: impl FnOnce() -> bool) {
        // An event that is raised after this load stays raised, whatever `is_over` has seen of it.
        let raised = self.raised.load(Ordering::Acquire);
        if is_over() {
            self.settled.fetch_max(raised, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_raised_before_is_settled() {
        let attention = Attention::default();
        assert!(attention.is_quiet());
        attention.raise();
        attention.settle(|| false);
        assert!(!attention.is_quiet());
        // As another thread may do meanwhile.
        attention.settle(|| {
            attention.raise();
            true
        });
        assert!(!attention.is_quiet());
        attention.settle(|| {
            attention.settle(|| true);
            attention.raise();
            true
        });
        assert!(!attention.is_quiet());
        attention.settle(|| true);
        assert!(attention.is_quiet());
        assert!(!attention.is_raised_for_ever());
        attention.raise_for_ever();
        assert!(attention.is_raised_for_ever());
        attention.settle(|| true);
        attention.raise();
        assert!(!attention.is_quiet());
    }
}
