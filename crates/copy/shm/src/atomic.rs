//! Atomics: std's, or loom's when the crate is built for model checking.

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Stores `value` relaxed, while other threads may change `word` by compare-and-swap.
#[cfg(not(feature = "loom"))]
#[inline]
pub(crate) fn overwrite(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// As above. loom does not order a store after the compare-and-swaps that it overwrites; it does
/// so for a swap.
#[cfg(feature = "loom")]
pub(crate) fn overwrite(word: &AtomicU64, value: u64) {
    word.swap(value, Ordering::Relaxed);
}

/// Loads `word` in the total order of sequentially consistent operations, after a sequentially
/// consistent read-modify-write of the same thread. A fence would cost more than the rest of
/// finishing a segment.
#[cfg(not(feature = "loom"))]
#[inline]
pub(crate) fn load_in_total_order(word: &AtomicU32) -> u32 {
    word.load(Ordering::SeqCst)
}

/// As above. loom treats sequentially consistent accesses as acquire and release, but models
/// fences.
#[cfg(feature = "loom")]
pub(crate) fn load_in_total_order(word: &AtomicU32) -> u32 {
    fence(Ordering::SeqCst);
    word.load(Ordering::Relaxed)
}
