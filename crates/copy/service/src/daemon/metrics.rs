//! Metrics of the daemon: the service's counters, and its clients.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::Counts;

/// Metrics of the sessions. Only one thread writes them.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// Number of open sessions.
    pub open: AtomicU64,
    /// Number of open sessions that are served.
    pub served: AtomicU64,
    /// Number of accepted connections.
    pub accepted: AtomicU64,
    /// Number of refused connections and regions, for any reason.
    pub refused: AtomicU64,
    /// Number of bytes in all regions.
    pub region_bytes: AtomicU64,
    /// Number of doorbell signals received.
    pub rings: AtomicU64,
}

/// Adds to a metric.
pub(crate) fn add(figure: &AtomicU64, n: u64) {
    figure.fetch_add(n, Ordering::Relaxed);
}

/// Subtracts from a metric.
pub(crate) fn subtract(figure: &AtomicU64, n: u64) {
    figure.fetch_sub(n, Ordering::Relaxed);
}

/// Renders the metrics as OpenMetrics text.
pub(crate) fn render(sessions: &Sessions, counts: &Counts) -> String {
    let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let gauges = [
        ("sessions", "Connections now", read(&sessions.open)),
        ("clients", "Clients whose queue is served now", read(&sessions.served)),
        ("region_bytes", "Bytes that clients share now", read(&sessions.region_bytes)),
        (
            "threads",
            "Threads that copy now",
            counts.threads_started.saturating_sub(counts.threads_stopped),
        ),
    ];
    let counters = [
        ("accepted", "Connections accepted", read(&sessions.accepted)),
        ("refused", "Connections and regions refused", read(&sessions.refused)),
        ("rings", "Doorbell signals received", read(&sessions.rings)),
        ("tasks", "Accepted tasks", counts.tasks),
        ("completed", "Completed tasks, copied by the daemon or by clients", counts.completed),
        ("copied_bytes", "Bytes that the daemon copied", counts.copied_bytes),
        ("absorbed_bytes", "Bytes that the daemon copied with absorption", counts.absorbed_bytes),
        ("aborted_segments", "Segments ended without a copy", counts.aborted_segments),
        ("faults", "Tasks that ended at a bad address", counts.faults),
        ("refused_tasks", "Invalid tasks", counts.refused),
        ("promotions", "Requests to copy something first", counts.promotions),
        ("sleeps", "Times that a thread slept", counts.sleeps),
        ("unit_bytes", "Bytes that devices copied", counts.unit_bytes),
        ("unit_batches", "Batches that devices were given", counts.unit_batches),
        ("unit_refusals", "Batches that devices did not take", counts.unit_refusals),
        ("unit_failures", "Batches that failed and were copied again", counts.unit_failures),
        ("unit_stalls", "Devices that were told to stop", counts.unit_stalls),
        ("populated_bytes", "Bytes of destinations mapped ahead", counts.populated_bytes),
        ("populate_hits", "Destinations known to be mapped", counts.populate_hits),
        ("moves", "Clients given to another thread", counts.moves),
    ];
    let mut text = String::new();
    for (name, help, value) in gauges {
        sample(&mut text, name, "gauge", "", help, value);
    }
    for (name, help, value) in counters {
        sample(&mut text, name, "counter", "_total", help, value);
    }
    text.push_str("# EOF\n");
    unlade_metrics::record_text(&text);
    text
}

/// Renders the metrics of a daemon that has just started: every family, with its type and help.
pub fn families() -> String {
    render(&Sessions::default(), &Counts::default())
}

fn sample(text: &mut String, name: &str, kind: &str, suffix: &str, help: &str, value: u64) {
    // A write to a string does not fail.
    let _ = write!(
        text,
        "# TYPE unlade_copyd_{name} {kind}\n# HELP unlade_copyd_{name} {help}.\n\
         unlade_copyd_{name}{suffix} {value}\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_there() {
        let sessions = Sessions::default();
        add(&sessions.served, 2);
        subtract(&sessions.served, 1);
        let text = render(&sessions, &Counts { copied_bytes: 7, ..Counts::default() });
        assert!(text.contains("\nunlade_copyd_clients 1\n"), "{text}");
        assert!(text.contains("\nunlade_copyd_copied_bytes_total 7\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
