//! The atomics: std's, or loom's where the crate is built to be model-checked.

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Stores without an order where others may be changing `word` by compare-and-swap.
#[cfg(not(feature = "loom"))]
#[inline]
pub(crate) fn overwrite(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// loom does not know that a store comes after the compare-and-swaps of what it overwrites. It
/// knows it of a swap.
#[cfg(feature = "loom")]
pub(crate) fn overwrite(word: &AtomicU64, value: u64) {
    word.swap(value, Ordering::Relaxed);
}

/// Loads `word` in the total order of sequentially consistent operations, after a sequentially
/// consistent read-modify-write of the same thread. No fence: that would cost more than the rest of
/// finishing a segment.
#[cfg(not(feature = "loom"))]
#[inline]
pub(crate) fn load_in_total_order(word: &AtomicU32) -> u32 {
    word.load(Ordering::SeqCst)
}

/// loom takes sequentially consistent accesses for acquire and release, but knows fences.
#[cfg(feature = "loom")]
pub(crate) fn load_in_total_order(word: &AtomicU32) -> u32 {
    fence(Ordering::SeqCst);
    word.load(Ordering::Relaxed)
}
