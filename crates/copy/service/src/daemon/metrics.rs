//! Metrics of the daemon: the service's counters, and its clients.

use unlade_metrics::{Kind, OpenMetrics, Reading};

use crate::counters::Counts;

unlade_metrics::metric_set! {
    /// Metrics of the sessions. Only one thread writes them.
    pub(crate) struct Sessions;
    /// A reading of the metrics of the sessions.
    pub(crate) struct SessionCounts;

    open: gauge, "unlade_copyd_sessions", "Connections now.";
    served: gauge, "unlade_copyd_clients", "Clients whose queue is served now.";
    region_bytes: gauge, "unlade_copyd_region_bytes", "Bytes that clients share now.";
    accepted: counter, "unlade_copyd_accepted", "Connections accepted.";
    refused: counter, "unlade_copyd_refused", "Connections and regions refused.";
    rings: counter, "unlade_copyd_rings", "Doorbell signals received.";
}

/// Renders the metrics as OpenMetrics text: gauges before counters.
pub(crate) fn render(sessions: &Sessions, counts: &Counts) -> String {
    let readings = || sessions.readings().chain(service(counts));
    let mut text = OpenMetrics::new();
    for kind in [Kind::Gauge, Kind::Counter] {
        text.readings(readings().filter(|reading| reading.kind == kind));
    }
    text.finish()
}

/// Renders the metrics of a daemon that has just started: every family, with its type and help.
pub fn families() -> String {
    render(&Sessions::default(), &Counts::default())
}

/// The metrics of the service.
fn service(counts: &Counts) -> impl Iterator<Item = Reading> + use<> {
    let threads = counts.threads_started.saturating_sub(counts.threads_stopped);
    let threads = Reading::gauge("unlade_copyd_threads", "Threads that copy now.", threads);
    let counters = [
        ("unlade_copyd_tasks", "Accepted tasks.", counts.tasks),
        (
            "unlade_copyd_completed",
            "Completed tasks, copied by the daemon or by clients.",
            counts.completed,
        ),
        ("unlade_copyd_copied_bytes", "Bytes that the daemon copied.", counts.copied_bytes),
        (
            "unlade_copyd_absorbed_bytes",
            "Bytes that the daemon copied with absorption.",
            counts.absorbed_bytes,
        ),
        (
            "unlade_copyd_aborted_segments",
            "Segments ended without a copy.",
            counts.aborted_segments,
        ),
        ("unlade_copyd_faults", "Tasks that ended at a bad address.", counts.faults),
        ("unlade_copyd_refused_tasks", "Invalid tasks.", counts.refused),
        ("unlade_copyd_promotions", "Requests to copy something first.", counts.promotions),
        ("unlade_copyd_sleeps", "Times that a thread slept.", counts.sleeps),
        ("unlade_copyd_unit_bytes", "Bytes that devices copied.", counts.unit_bytes),
        ("unlade_copyd_unit_batches", "Batches that devices were given.", counts.unit_batches),
        ("unlade_copyd_unit_refusals", "Batches that devices did not take.", counts.unit_refusals),
        (
            "unlade_copyd_unit_failures",
            "Batches that failed and were copied again.",
            counts.unit_failures,
        ),
        ("unlade_copyd_unit_stalls", "Devices that were told to stop.", counts.unit_stalls),
        (
            "unlade_copyd_populated_bytes",
            "Bytes of destinations mapped ahead.",
            counts.populated_bytes,
        ),
        ("unlade_copyd_populate_hits", "Destinations known to be mapped.", counts.populate_hits),
        ("unlade_copyd_moves", "Clients given to another thread.", counts.moves),
    ];
    let counters = counters.map(|(family, help, value)| Reading::counter(family, help, value));
    [threads].into_iter().chain(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_there() {
        let sessions = Sessions::default();
        sessions.served.add(2);
        sessions.served.subtract(1);
        let text = render(&sessions, &Counts { copied_bytes: 7, ..Counts::default() });
        assert!(text.contains("\nunlade_copyd_clients 1\n"), "{text}");
        assert!(text.contains("\nunlade_copyd_copied_bytes_total 7\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
