//! Counters of a service; all threads add to them.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a service since its start. They are never reset.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: Counter,)*
        }

        /// A snapshot of [`Counters`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Reads the current values; each one atomically, but not all at one instant.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Number of tasks accepted.
    tasks,
    /// Number of bytes that the service copied. Copies by waiting clients are not included.
    copied_bytes,
    /// Number of these bytes that were copied with absorption.
    absorbed_bytes,
    /// Number of completed tasks, by the service or by clients.
    completed,
    /// Number of segments that were aborted without a copy.
    aborted_segments,
    /// Number of failed tasks: a bad address, or the error or end of a socket.
    faults,
    /// Number of invalid tasks and sync requests.
    refused,
    /// Number of promotion requests.
    promotions,
    /// Number of thread sleeps.
    sleeps,
    /// Number of bytes that devices copied.
    unit_bytes,
    /// Number of batches submitted to devices.
    unit_batches,
    /// Number of batches that a device refused and the processor copied.
    unit_refusals,
    /// Number of batches that failed and the processor copied again.
    unit_failures,
    /// Number of devices that stalled and were stopped.
    unit_stalls,
    /// Number of destination bytes that the kernel was asked to map.
    populated_bytes,
    /// Number of large destinations that were known to be mapped.
    populate_hits,
    /// Number of started threads, including the first ones.
    threads_started,
    /// Number of threads that were stopped because of low load.
    threads_stopped,
    /// Number of moves of clients between threads.
    moves,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_counts_are_read() {
        let counters = Counters::default();
        counters.copied_bytes.add(5);
        counters.copied_bytes.add(7);
        counters.faults.add(1);
        let expected = Counts { copied_bytes: 12, faults: 1, ..Counts::default() };
        assert_eq!(counters.read(), expected);
    }
}
