//! What the service has done, for whoever asks; all threads add to it.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a service, since it started. Threads add; nobody resets.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: Counter,)*
        }

        /// A reading of [`Counters`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// What they are now; each by itself, not all at one instant.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Tasks taken in.
    tasks,
    /// Bytes that the service copied; what clients copy themselves while they wait is not here.
    copied_bytes,
    /// Of these, bytes that were read past a copy in between.
    absorbed_bytes,
    /// Tasks that are over, whoever copied.
    completed,
    /// Segments that ended without a copy, because they were aborted.
    aborted_segments,
    /// Tasks that failed: a bad address, an error or the end of a socket.
    faults,
    /// Tasks and sync tasks that made no sense.
    refused,
    /// Segments that clients asked for.
    promotions,
    /// Times a thread slept.
    sleeps,
    /// Bytes that devices copied.
    unit_bytes,
    /// Batches that devices were given.
    unit_batches,
    /// Batches that they did not take: the processor copied instead.
    unit_refusals,
    /// Batches that failed: the processor copied again.
    unit_failures,
    /// Devices that did not come to an end, and were told to stop.
    unit_stalls,
    /// Bytes of destinations that the kernel was asked to map.
    populated_bytes,
    /// Large destinations that were known to be mapped.
    populate_hits,
    /// Threads that were started, the first ones included.
    threads_started,
    /// Threads that were stopped because there was too little to do.
    threads_stopped,
    /// Clients that were given to another thread.
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
    fn what_is_added_is_read() {
        let counters = Counters::default();
        counters.copied_bytes.add(5);
        counters.copied_bytes.add(7);
        counters.faults.add(1);
        let expected = Counts { copied_bytes: 12, faults: 1, ..Counts::default() };
        assert_eq!(counters.read(), expected);
    }
}
