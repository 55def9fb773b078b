//! Counters of the target; all threads add to them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $kind:literal, $help:literal;)*) => {
        /// The counters; they are never reset.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: Counter,)*
        }

        /// A reading of the counters, since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Counters {
            /// The current values; each is read separately, not all at one instant.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }
        }

        impl Counts {
            /// OpenMetrics text: every family, with its type and help.
            pub fn render(&self) -> String {
                let mut text = String::new();
                $(sample(&mut text, stringify!($name), $kind, $help, self.$name);)*
                text.push_str("# EOF\n");
                unlade_metrics::record_text(&text);
                text
            }
        }

        /// See [`unlade_metrics::record`].
        impl Drop for Counters {
            fn drop(&mut self) {
                unlade_metrics::record(|| self.read().render());
            }
        }
    };
}

counters! {
    connections: "gauge", "Connections now.";
    controllers: "gauge", "Controllers (associations) now.";
    accepted: "counter", "Connections accepted.";
    refused: "counter", "Connections closed at once, because there were too many.";
    connects: "counter", "Queues connected.";
    connects_refused: "counter", "Connect commands refused.";
    admin_commands: "counter", "Commands of admin queues.";
    io_commands: "counter", "Commands of I/O queues.";
    commands_failed: "counter", "Commands that ended with an error.";
    reads: "counter", "Read commands done.";
    writes: "counter", "Write commands done.";
    read_bytes: "counter", "Bytes of data read.";
    written_bytes: "counter", "Bytes of data written.";
    in_capsule_bytes: "counter", "Bytes of data received in capsules.";
    data_requests: "counter", "Requests for data (R2T) sent.";
    waits: "counter", "Commands that waited for memory.";
    file_jobs: "counter", "Commands done by a thread that may block.";
    header_digest_errors: "counter", "Headers with a wrong digest.";
    data_digest_errors: "counter", "Data with a wrong digest.";
    protocol_errors: "counter", "Connections ended because the host broke the protocol.";
    host_terminations: "counter", "Connections ended by a host that found an error.";
    keep_alive_expiries: "counter", "Controllers ended because the host was silent.";
    timeouts: "counter", "Connections ended because no Connect came in time.";
}

fn sample(text: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    let suffix = if kind == "counter" { "_total" } else { "" };
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "# TYPE unlade_nvme_{name} {kind}\n# HELP unlade_nvme_{name} {help}\n\
         unlade_nvme_{name}{suffix} {value}\n"
    );
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn subtract(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rendered() {
        let counters = Counters::default();
        counters.connections.add(2);
        counters.connections.subtract(1);
        counters.read_bytes.add(7);
        let text = counters.read().render();
        assert!(text.contains("\nunlade_nvme_read_bytes_total 7\n"), "{text}");
        assert!(text.starts_with("# TYPE unlade_nvme_connections gauge\n"), "{text}");
        assert!(text.contains("\nunlade_nvme_connections 1\n") && text.ends_with("# EOF\n"));
    }
}
