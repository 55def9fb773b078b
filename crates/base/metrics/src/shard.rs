//! Counters split by thread, so that threads which count the same thing do not share a cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::event::COUNTERS;
use crate::histogram::BUCKETS;
use crate::stage::Stage;

/// How many parts there are; threads beyond that share.
pub(crate) const SHARDS: usize = 8;

/// The figures that some of the threads add to. Aligned so that no two shards share a line, nor
/// the pair of lines that is fetched together.
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) counters: Box<[AtomicU64]>,
    /// The buckets of each stage, one stage behind the other.
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
