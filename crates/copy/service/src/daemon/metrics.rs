//! Metrics of the daemon: the service's counters, and its clients.

use unlade_metrics::{Kind, OpenMetrics};

use crate::counters::Counts;

unlade_metrics::metric_set! {
    /// Metrics of the sessions. Only the control thread writes them, and closers `closing`.
    pub(crate) struct Sessions;
    /// A reading of the metrics of the sessions.
    pub(crate) struct SessionCounts;

    open: gauge, "unlade_copyd_sessions", "Connections now.";
    served: gauge, "unlade_copyd_clients", "Clients whose queue is served now.";
    groups: gauge, "unlade_copyd_groups", "Users, groups, cgroups and single clients with a share now.";
    region_bytes: gauge, "unlade_copyd_region_bytes", "Bytes that clients share now.";
    sockets: gauge, "unlade_copyd_sockets", "Sockets that clients have passed now.";
    closing: gauge, "unlade_copyd_closing", "Descriptors of clients that are given up and not closed now.";
    accepted: counter, "unlade_copyd_accepted", "Connections accepted.";
    refused: counter, "unlade_copyd_refused", "Connections, regions and sockets refused.";
    rings: counter, "unlade_copyd_rings", "Doorbell signals received.";
    weight_changes: counter, "unlade_copyd_weight_changes", "Changes of the weights and groups of served clients.";
}

/// Renders the metrics as OpenMetrics text: gauges before counters.
pub(crate) fn render(sessions: &Sessions, counts: &Counts) -> String {
    let readings = || sessions.readings().chain(counts.readings());
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
