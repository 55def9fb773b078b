//! The counters as OpenMetrics text. The machines' counters have the kernel's names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use unlade_nic_engine::Stats;

use crate::device::DeviceCounters;

macro_rules! named {
    ($stats:expr, $($name:ident)*) => { vec![$((stringify!($name), $stats.$name)),*] };
}

/// Each counter of the device's machines, with its name.
fn device(stats: &Stats) -> Vec<(&'static str, u64)> {
    named!(stats, tx_tls_encrypted_packets tx_tls_encrypted_bytes tx_tls_ooo
        tx_tls_skip_no_sync_data tx_tls_drop_no_sync_data tx_tls_err tx_replayed_bytes
        rx_tls_decrypted_packets rx_tls_decrypted_bytes rx_tls_resync_req_pkt
        rx_tls_resync_req_start rx_tls_resync_req_end rx_tls_resync_req_skip
        rx_tls_resync_res_ok rx_tls_resync_res_skip rx_tls_err rx_resync_denied
        rx_resync_expired rx_searches rx_unsynchronised_bytes rx_past_packets
        rx_overlap_packets rx_ahead_packets rx_ahead_header_packets)
}

/// Each counter of records, with its name.
fn records(stats: &Stats) -> Vec<(&'static str, u64)> {
    named!(stats, records_offloaded records_partial records_software)
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

    fn named(&self) -> [(&'static str, u64); 6] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("connections_accepted", get(&self.accepted)),
            ("connections_finished", get(&self.finished)),
            ("connections_failed", get(&self.failed)),
            ("handshakes_failed", get(&self.handshakes_failed)),
            ("connects_failed", get(&self.connects_failed)),
            ("connections_offloaded", get(&self.offloaded)),
        ]
    }
}

/// Writes one family with one value.
fn family(text: &mut String, name: &str, kind: &str, value: u64) {
    let suffix = if kind == "counter" { "_total" } else { "" };
    let _ = writeln!(text, "# TYPE unlade_nic_{name} {kind}");
    let _ = writeln!(text, "unlade_nic_{name}{suffix} {value}");
}

/// Renders the counters of the device, and of the software above it; without the end marker.
pub fn render_device(counted: &DeviceCounters) -> String {
    let mut text = String::new();
    let engine = counted.engine.named();
    let [lost, reordered, duplicated] = counted.impaired;
    let impaired = [
        ("impaired_lost_frames", lost),
        ("impaired_reordered_frames", reordered),
        ("impaired_duplicated_frames", duplicated),
        ("records_doubtful", counted.records_ambiguous),
    ];
    let counters = device(&counted.device).into_iter().chain(records(&counted.software));
    for (name, value) in counters.chain(engine).chain(impaired) {
        family(&mut text, name, "counter", value);
    }
    family(&mut text, "flows_known", "gauge", counted.connections);
    family(&mut text, "flows_offloaded", "gauge", counted.offloaded_connections);
    family(&mut text, "flows_ended", "gauge", counted.ended_connections);
    text
}

/// Renders all counters as text.
pub fn render(connections: &Connections, counted: &DeviceCounters) -> String {
    let mut text = String::new();
    for (name, value) in connections.named() {
        family(&mut text, name, "counter", value);
    }
    let active = connections.active.load(Ordering::Relaxed);
    family(&mut text, "connections_active", "gauge", active);
    text.push_str(&render_device(counted));
    text.push_str("# EOF\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_line() {
        let mut counted = DeviceCounters::default();
        counted.device.rx_tls_decrypted_packets = 7;
        counted.software.records_partial = 3;
        counted.engine.damaged_frames = 2;
        let connections = Connections::default();
        Connections::add(&connections.accepted);
        let text = render(&connections, &counted);
        for line in [
            "unlade_nic_rx_tls_decrypted_packets_total 7",
            "unlade_nic_records_partial_total 3",
            "unlade_nic_damaged_frames_total 2",
            "unlade_nic_connections_accepted_total 1",
            "unlade_nic_connections_active 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
