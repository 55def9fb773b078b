//! Counters of a service; all threads add to them.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(debug_assertions, feature = "daemon"))]
use unlade_metrics::OpenMetrics;
#[cfg(feature = "daemon")]
use unlade_metrics::Reading;

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
    /// Number of these bytes that system calls copied from or to sockets.
    socket_bytes,
    /// Number of these bytes that went from socket to socket in a pipe, without a copy in user
    /// space.
    zero_copy_bytes,
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

#[cfg(feature = "daemon")]
impl Counts {
    /// The metrics that the daemon serves.
    pub(crate) fn readings(&self) -> impl Iterator<Item = Reading> + use<> {
        let threads = self.threads_started.saturating_sub(self.threads_stopped);
        let threads = Reading::gauge("unlade_copyd_threads", "Threads that copy now.", threads);
        let counters = [
            ("unlade_copyd_tasks", "Accepted tasks.", self.tasks),
            (
                "unlade_copyd_completed",
                "Completed tasks, copied by the daemon or by clients.",
                self.completed,
            ),
            ("unlade_copyd_copied_bytes", "Bytes that the daemon copied.", self.copied_bytes),
            (
                "unlade_copyd_absorbed_bytes",
                "Bytes that the daemon copied with absorption.",
                self.absorbed_bytes,
            ),
            (
                "unlade_copyd_socket_bytes",
                "Bytes that the daemon received and sent at sockets of clients.",
                self.socket_bytes,
            ),
            (
                "unlade_copyd_aborted_segments",
                "Segments ended without a copy.",
                self.aborted_segments,
            ),
            (
                "unlade_copyd_faults",
                "Tasks that ended at a bad address, or with the error or end of a socket.",
                self.faults,
            ),
            ("unlade_copyd_refused_tasks", "Invalid tasks and sync requests.", self.refused),
            ("unlade_copyd_promotions", "Requests to copy something first.", self.promotions),
            ("unlade_copyd_sleeps", "Times that a thread slept.", self.sleeps),
            ("unlade_copyd_unit_bytes", "Bytes that devices copied.", self.unit_bytes),
            ("unlade_copyd_unit_batches", "Batches that devices were given.", self.unit_batches),
            (
                "unlade_copyd_unit_refusals",
                "Batches that devices did not take.",
                self.unit_refusals,
            ),
            (
                "unlade_copyd_unit_failures",
                "Batches that failed and were copied again.",
                self.unit_failures,
            ),
            ("unlade_copyd_unit_stalls", "Devices that were told to stop.", self.unit_stalls),
            (
                "unlade_copyd_populated_bytes",
                "Bytes of destinations mapped ahead.",
                self.populated_bytes,
            ),
            ("unlade_copyd_populate_hits", "Destinations known to be mapped.", self.populate_hits),
            ("unlade_copyd_moves", "Clients given to another thread.", self.moves),
        ];
        let counters = counters.map(|(family, help, value)| Reading::counter(family, help, value));
        [threads].into_iter().chain(counters)
    }
}

/// In debug builds, the text of the metrics is recorded for a check of the tests.
#[cfg(all(debug_assertions, feature = "daemon"))]
impl Drop for Counters {
    fn drop(&mut self) {
        let mut text = OpenMetrics::new();
        text.readings(self.read().readings());
        let _recorded = text.finish();
    }
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
