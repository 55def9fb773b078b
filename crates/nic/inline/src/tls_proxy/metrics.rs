//! The counters as OpenMetrics text. The machines' counters have the kernel's names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use unlade_nic_engine::Stats;

use crate::device::DeviceCounters;

/// A counter: its name, its help, and its value.
type Named = (&'static str, &'static str, u64);

macro_rules! named {
    ($stats:expr, $($name:ident: $help:literal,)*) => {
        vec![$((stringify!($name), $help, $stats.$name)),*]
    };
}

/// The counters of the device's machines.
fn device(stats: &Stats) -> Vec<Named> {
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
fn records(stats: &Stats) -> Vec<Named> {
    named!(stats,
        records_offloaded: "Records that the device decrypted and authenticated completely.",
        records_partial: "Records that the device decrypted in part.",
        records_software: "Records that software decrypted.",
        records_restored: "Records with bytes that the device decrypted as another record.",
    )
}

/// Counters of the process, without those of the device.
#[derive(Debug, Default)]
pub struct Connections {
    /// Accepted.
    pub accepted: AtomicU64,
    /// Ended in order.
    pub finished: AtomicU64,
    /// Ended with an error of either side.
    pub failed: AtomicU64,
    /// Ended with a failed handshake.
    pub handshakes_failed: AtomicU64,
    /// Ended because their other side could not be reached.
    pub connects_failed: AtomicU64,
    /// Offloaded to the device.
    pub offloaded: AtomicU64,
    /// Currently open.
    pub active: AtomicU64,
}

impl Connections {
    /// Adds one.
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn named(&self) -> [Named; 6] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("connections_accepted", "Connections accepted.", get(&self.accepted)),
            ("connections_finished", "Connections that ended in order.", get(&self.finished)),
            (
                "connections_failed",
                "Connections that ended with an error of either side.",
                get(&self.failed),
            ),
            (
                "handshakes_failed",
                "Connections that ended with a failed handshake.",
                get(&self.handshakes_failed),
            ),
            (
                "connects_failed",
                "Connections that ended because their other side could not be reached.",
                get(&self.connects_failed),
            ),
            ("connections_offloaded", "Connections offloaded to the device.", get(&self.offloaded)),
        ]
    }
}

/// Writes one family with one value.
fn family(text: &mut String, (name, help, value): Named, kind: &str) {
    let suffix = if kind == "counter" { "_total" } else { "" };
    let _ = writeln!(text, "# TYPE unlade_nic_{name} {kind}");
    let _ = writeln!(text, "# HELP unlade_nic_{name} {help}");
    let _ = writeln!(text, "unlade_nic_{name}{suffix} {value}");
}

/// Renders the counters of the device, and of the software above it; without the end marker.
pub fn render_device(counted: &DeviceCounters) -> String {
    let mut text = String::new();
    let engine = counted.engine.named();
    let [lost, reordered, duplicated] = counted.impaired;
    let impaired = [
        ("impaired_lost_frames", "Frames that the wire lost on purpose.", lost),
        ("impaired_reordered_frames", "Frames that the wire reordered on purpose.", reordered),
        ("impaired_duplicated_frames", "Frames that the wire duplicated on purpose.", duplicated),
        (
            "records_doubtful",
            "Records with bytes that were delivered in different ways.",
            counted.records_ambiguous,
        ),
    ];
    let counters = device(&counted.device).into_iter().chain(records(&counted.software));
    for counter in counters.chain(engine).chain(impaired) {
        family(&mut text, counter, "counter");
    }
    let gauges = [
        ("flows_known", "Connections with a place in the device's table.", counted.connections),
        ("flows_offloaded", "Connections that are offloaded.", counted.offloaded_connections),
        (
            "flows_ended",
            "Offloaded connections that have ended and are still in the device's table.",
            counted.ended_connections,
        ),
    ];
    for gauge in gauges {
        family(&mut text, gauge, "gauge");
    }
    unlade_metrics::record_text(&text);
    text
}

/// Renders all counters as text.
pub fn render(connections: &Connections, counted: &DeviceCounters) -> String {
    let mut text = String::new();
    for counter in connections.named() {
        family(&mut text, counter, "counter");
    }
    let active = connections.active.load(Ordering::Relaxed);
    family(&mut text, ("connections_active", "Connections that are open.", active), "gauge");
    text.push_str(&render_device(counted));
    text.push_str("# EOF\n");
    unlade_metrics::record_text(&text);
    text
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
        Connections::add(&connections.accepted);
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
