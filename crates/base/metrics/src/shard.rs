//! Counters split by thread, so that threads that count the same event do not share a cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::event::COUNTERS;
use crate::histogram::BUCKETS;
use crate::stage::Stage;

/// Number of shards; additional threads share them.
pub(crate) const SHARDS: usize = 8;

/// The counters of a subset of the threads. Aligned so that no two shards share a cache line, or
/// the pair of lines that is prefetched together.
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) counters: Box<[AtomicU64]>,
    /// The buckets of each stage, one stage after the other.
    pub(crate) buckets: Box<[AtomicU64]>,
    /// The sum of each stage, nanoseconds.
    pub(crate) sums_ns: Box<[AtomicU64]>,
}

impl Shard {
    pub(crate) fn new() -> Shard {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Shard {
            counters: zeros(COUNTERS),
            buckets: zeros(BUCKETS * Stage::ALL.len()),
            sums_ns: zeros(Stage::ALL.len()),
        }
    }
}

/// The shard of the calling thread.
pub(crate) fn of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const UNSET: usize = usize::MAX;
    thread_local! { static MINE: Cell<usize> = const { Cell::new(UNSET) }; }
    MINE.with(|mine| {
        if mine.get() == UNSET {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        mine.get()
    })
}
