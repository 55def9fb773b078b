//! Counters of a client.

use std::sync::atomic::{AtomicU64, Ordering};

use unlade_shm::segment;

use crate::pending::Queued;

/// Counters of one client. Counters of synchronous copies may lose updates if several threads
/// copy: exact ones would cost as much as a small copy.
#[derive(Debug, Default)]
pub struct Stats {
    at_once: AtomicU64,
    at_once_bytes: AtomicU64,
    queued: AtomicU64,
    queued_bytes: AtomicU64,
    helped_bytes: AtomicU64,
    waits: AtomicU64,
    forwarded_bytes: AtomicU64,
    saved_bytes: AtomicU64,
    remapped: AtomicU64,
    remapped_bytes: AtomicU64,
    remaps_refused: AtomicU64,
    last_use_copied_bytes: AtomicU64,
    snapshots: AtomicU64,
    snapshot_bytes: AtomicU64,
    snapshots_at_once: AtomicU64,
}

/// A reading of [`Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsRead {
    /// Synchronous copies, receives and sends.
    pub at_once: u64,
    /// Their bytes.
    pub at_once_bytes: u64,
    /// Copies, receives and sends that were queued.
    pub queued: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Bytes of queued copies that a waiting thread copied itself.
    pub helped_bytes: u64,
    /// Number of waits for the service.
    pub waits: u64,
    /// Bytes that were sent, or queued to be sent, from the source of a deferred copy.
    pub forwarded_bytes: u64,
    /// Bytes of these sends that were copied after all: they changed before the socket took them.
    pub saved_bytes: u64,
    /// Copies of a source that was given up, made by moving pages.
    pub remapped: u64,
    /// Bytes of these pages.
    pub remapped_bytes: u64,
    /// Number of such copies for which the kernel moved fewer pages than planned.
    pub remaps_refused: u64,
    /// Bytes of copies of a source that was given up that were copied nevertheless.
    pub last_use_copied_bytes: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Their bytes.
    pub snapshot_bytes: u64,
    /// Snapshots that were copied at once: their memory could not be protected against writes.
    pub snapshots_at_once: u64,
}

impl Stats {
    /// Reads the counters.
    pub fn read(&self) -> StatsRead {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatsRead {
            at_once: get(&self.at_once),
            at_once_bytes: get(&self.at_once_bytes),
            queued: get(&self.queued),
            queued_bytes: get(&self.queued_bytes),
            helped_bytes: get(&self.helped_bytes),
            waits: get(&self.waits),
            forwarded_bytes: get(&self.forwarded_bytes),
            saved_bytes: get(&self.saved_bytes),
            remapped: get(&self.remapped),
            remapped_bytes: get(&self.remapped_bytes),
            remaps_refused: get(&self.remaps_refused),
            last_use_copied_bytes: get(&self.last_use_copied_bytes),
            snapshots: get(&self.snapshots),
            snapshot_bytes: get(&self.snapshot_bytes),
            snapshots_at_once: get(&self.snapshots_at_once),
        }
    }

    #[inline]
    pub(crate) fn count_at_once(&self, len: usize) {
        add(&self.at_once, 1);
        add(&self.at_once_bytes, len as u64);
    }

    #[inline]
    pub(crate) fn count_queued(&self, len: usize) {
        add(&self.queued, 1);
        add(&self.queued_bytes, len as u64);
    }

    pub(crate) fn count_helped(&self, bits: u32, queued: &Queued) {
        let bytes: u64 = segment::runs(bits)
            .map(|run| segment::bytes_of(run, queued.len_bytes, queued.granule_shift))
            .map(|bytes| u64::from(bytes.end - bytes.start))
            .sum();
        self.helped_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_forwarded(&self, bytes: usize) {
        self.forwarded_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_saved(&self, bytes: usize) {
        self.saved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_remapped(&self, bytes: usize) {
        self.remapped.fetch_add(1, Ordering::Relaxed);
        self.remapped_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_remap_refused(&self) {
        self.remaps_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_last_use_copied(&self, bytes: usize) {
        self.last_use_copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_snapshot(&self, bytes: usize) {
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        self.snapshot_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_snapshot_at_once(&self) {
        self.snapshots_at_once.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds without an atomic read-modify-write: see [`Stats`].
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
