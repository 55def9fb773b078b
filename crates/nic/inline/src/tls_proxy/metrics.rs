//! The counters as OpenMetrics text. The machines' counters have the kernel's names.

use unlade_metrics::{OpenMetrics, Reading};
use unlade_nic_engine::Stats;

use crate::device::DeviceCounters;

/// The readings of counters that have the names of their fields.
macro_rules! named {
    ($stats:expr, $($name:ident: $help:literal,)*) => {
        [$(Reading::counter(concat!("unlade_nic_", stringify!($name)), $help, $stats.$name)),*]
    };
}

/// The counters of the device's machines.
fn device(stats: &Stats) -> [Reading; 27] {
    named!(stats,
        tx_tls_encrypted_packets: "Packets that the device encrypted.",
        tx_tls_encrypted_bytes: "Bytes of payload in the packets that the device encrypted.",
        tx_tls_ooo: "Sent packets that were not the next of their flow.",
        tx_tls_skip_no_sync_data: "Packets from before the offload, sent again unchanged.",
        tx_tls_drop_no_sync_data: "Sent packets that were dropped because their record is unknown.",
        tx_tls_err: "Sent packets dropped as malformed, or for a key that is not current.",
        tx_replayed_bytes: "Bytes that were replayed to restore the state before a sent packet.",
        rx_tls_decrypted_packets: "Packets that the device decrypted.",
        rx_tls_decrypted_bytes: "Bytes of payload in the packets that the device decrypted.",
        rx_tls_resync_req_pkt: "Packets with a resynchronisation request.",
        rx_tls_resync_req_start: "Header candidates that the device tracked.",
        rx_tls_resync_req_end: "Header candidates answered while the device tracked them.",
        rx_tls_resync_req_skip: "Header candidates lost to a malformed header, a gap or a timeout.",
        rx_tls_resync_res_ok: "Answers of software to a candidate that the device used.",
        rx_tls_resync_res_skip: "Answers of software that came too late, to an earlier request.",
        rx_tls_err: "Packets in order whose records failed their authentication.",
        rx_resync_denied: "Header candidates that software rejected.",
        rx_resync_expired: "Header candidates that were abandoned because no answer came.",
        rx_searches: "Losses of synchronisation: the device searched for the next header.",
        rx_presumed: "Header candidates with a presumed record number, decrypted at once.",
        rx_presumed_right: "Presumed record numbers that a tag or software confirmed.",
        rx_presumed_wrong: "Presumed record numbers that a tag or software refuted.",
        rx_unsynchronised_bytes: "Bytes that arrived while the device was not synchronised.",
        rx_past_packets: "Old packets, which the device passed on unchanged.",
        rx_overlap_packets: "Packets that were partly old.",
        rx_ahead_packets: "Packets that arrived early and end before the next header.",
        rx_ahead_header_packets: "Packets that arrived early and contain the next header.",
    )
}

/// The counters of records.
fn records(stats: &Stats) -> [Reading; 4] {
    named!(stats,
        records_offloaded: "Records that the device decrypted and authenticated completely.",
        records_partial: "Records that the device decrypted in part.",
        records_software: "Records that software decrypted.",
        records_restored: "Records with bytes that the device decrypted as another record.",
    )
}

unlade_metrics::metric_set! {
    /// Counters of the process, without those of the device.
    pub struct Connections;
    /// A reading of [`Connections`].
    pub struct ConnectionCounts;

    accepted: counter, "unlade_nic_connections_accepted", "Connections accepted.";
    finished: counter, "unlade_nic_connections_finished", "Connections that ended in order.";
    failed: counter, "unlade_nic_connections_failed",
        "Connections that ended with an error of either side.";
    handshakes_failed: counter, "unlade_nic_handshakes_failed",
        "Connections that ended with a failed handshake.";
    connects_failed: counter, "unlade_nic_connects_failed",
        "Connections that ended because their other side could not be reached.";
    offloaded: counter, "unlade_nic_connections_offloaded",
        "Connections offloaded to the device.";
    active: gauge, "unlade_nic_connections_active", "Connections that are open.";
}

/// Adds the counters of the device, and of the software above it.
pub fn add_device(text: &mut OpenMetrics, counted: &DeviceCounters) {
    let [lost, reordered, duplicated] = counted.impaired;
    text.readings(device(&counted.device));
    text.readings(records(&counted.software));
    text.readings(counted.engine.readings());
    text.readings([
        Reading::counter(
            "unlade_nic_impaired_lost_frames",
            "Frames that the wire lost on purpose.",
            lost,
        ),
        Reading::counter(
            "unlade_nic_impaired_reordered_frames",
            "Frames that the wire reordered on purpose.",
            reordered,
        ),
        Reading::counter(
            "unlade_nic_impaired_duplicated_frames",
            "Frames that the wire duplicated on purpose.",
            duplicated,
        ),
        Reading::counter(
            "unlade_nic_records_doubtful",
            "Records with bytes that were delivered in different ways.",
            counted.records_ambiguous,
        ),
        Reading::gauge(
            "unlade_nic_flows_known",
            "Connections with a place in the device's table.",
            counted.connections,
        ),
        Reading::gauge(
            "unlade_nic_flows_offloaded",
            "Connections that are offloaded.",
            counted.offloaded_connections,
        ),
        Reading::gauge(
            "unlade_nic_flows_ended",
            "Offloaded connections that have ended and are still in the device's table.",
            counted.ended_connections,
        ),
    ]);
}

/// Renders all counters as text.
pub fn render(connections: &Connections, counted: &DeviceCounters) -> String {
    let mut text = OpenMetrics::new();
    text.readings(connections.readings());
    add_device(&mut text, counted);
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of PDUs: the device of this proxy has TLS flows only.
    const WITHOUT_TLS: [&str; 5] = [
        "rx_placed_bytes",
        "pdus_offloaded",
        "pdus_partial",
        "pdus_software",
        "copy_skipped_bytes",
    ];

    /// The names of the counters come from the derived `Debug` text, so that a new one is included.
    #[test]
    fn every_counter_of_tls_flows_is_rendered() {
        let text = render(&Connections::default(), &DeviceCounters::default());
        let fields = format!("{:?}", Stats::default());
        let fields = fields.split(['{', ',']).filter_map(|part| part.split_once(':'));
        let names: Vec<&str> = fields.map(|(name, _)| name.trim()).collect();
        assert!(names.contains(&"records_restored"), "{names:?}");
        for name in names.into_iter().filter(|name| !WITHOUT_TLS.contains(name)) {
            let line = format!("unlade_nic_{name}_total 0");
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn every_counter_has_its_line() {
        let mut counted = DeviceCounters::default();
        counted.device.rx_tls_decrypted_packets = 7;
        counted.device.rx_presumed = 6;
        counted.device.rx_presumed_right = 4;
        counted.device.rx_presumed_wrong = 1;
        counted.software.records_partial = 3;
        counted.software.records_restored = 5;
        counted.engine.damaged_frames = 2;
        let connections = Connections::default();
        connections.accepted.add(1);
        let text = render(&connections, &counted);
        for line in [
            "unlade_nic_rx_tls_decrypted_packets_total 7",
            "unlade_nic_rx_presumed_total 6",
            "unlade_nic_rx_presumed_right_total 4",
            "unlade_nic_rx_presumed_wrong_total 1",
            "unlade_nic_records_partial_total 3",
            "unlade_nic_records_restored_total 5",
            "unlade_nic_damaged_frames_total 2",
            "unlade_nic_connections_accepted_total 1",
            "unlade_nic_connections_active 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
