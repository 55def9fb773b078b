//! Counters of the target; all threads add to them.

unlade_metrics::metric_set! {
    /// The counters; they are never reset.
    pub(crate) struct Counters;
    /// A reading of the counters, since the start.
    pub struct Counts;

    connections: gauge, "unlade_nvme_connections", "Connections now.";
    controllers: gauge, "unlade_nvme_controllers", "Controllers (associations) now.";
    accepted: counter, "unlade_nvme_accepted", "Connections accepted.";
    refused: counter, "unlade_nvme_refused",
        "Connections closed at once, because there were too many.";
    connects: counter, "unlade_nvme_connects", "Queues connected.";
    connects_refused: counter, "unlade_nvme_connects_refused", "Connect commands refused.";
    admin_commands: counter, "unlade_nvme_admin_commands", "Commands of admin queues.";
    io_commands: counter, "unlade_nvme_io_commands", "Commands of I/O queues.";
    commands_failed: counter, "unlade_nvme_commands_failed", "Commands that ended with an error.";
    reads: counter, "unlade_nvme_reads", "Read commands done.";
    writes: counter, "unlade_nvme_writes", "Write commands done.";
    read_bytes: counter, "unlade_nvme_read_bytes", "Bytes of data read.";
    written_bytes: counter, "unlade_nvme_written_bytes", "Bytes of data written.";
    in_capsule_bytes: counter, "unlade_nvme_in_capsule_bytes",
        "Bytes of data received in capsules.";
    data_requests: counter, "unlade_nvme_data_requests", "Requests for data (R2T) sent.";
    waits: counter, "unlade_nvme_waits", "Commands that waited for memory.";
    file_jobs: counter, "unlade_nvme_file_jobs", "Commands done by a thread that may block.";
    header_digest_errors: counter, "unlade_nvme_header_digest_errors",
        "Headers with a wrong digest.";
    data_digest_errors: counter, "unlade_nvme_data_digest_errors", "Data with a wrong digest.";
    protocol_errors: counter, "unlade_nvme_protocol_errors",
        "Connections ended because the host broke the protocol.";
    host_terminations: counter, "unlade_nvme_host_terminations",
        "Connections ended by a host that found an error.";
    keep_alive_expiries: counter, "unlade_nvme_keep_alive_expiries",
        "Controllers ended because the host was silent.";
    timeouts: counter, "unlade_nvme_timeouts", "Connections ended because no Connect came in time.";
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
        assert!(text.contains("\n# TYPE unlade_nvme_connections gauge\n"), "{text}");
        assert!(text.contains("\nunlade_nvme_connections 1\n") && text.ends_with("# EOF\n"));
    }
}
