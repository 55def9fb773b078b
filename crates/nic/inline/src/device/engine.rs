//! The path of a frame between the kernel and the wire. Sans-IO: the caller passes the time and
//! the sinks of frames.

use std::time::Duration;

use unlade_net::packet::{
    ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, EthernetView, Ipv4View, Ipv6View, PROTOCOL_TCP,
};
use unlade_nic_engine::Stats;
use unlade_nic_engine::tx;
use unlade_sys::vnet::{FRAME_BYTES_MAX, VnetHeader};

use super::flow::RxOutcome;
use super::flow_table::{FlowTable, Verdict};
use super::segmentation;
use crate::classify::{Checksums, Kind, Segment, classify};

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM_AT: u16 = 16;

unlade_metrics::metric_set! {
    /// Counters of the engine beside the machines' [`Stats`]; they only grow.
    pub struct Counters;

    host_frames: counter, "unlade_nic_host_frames", "Frames that came from the kernel.";
    host_frame_bytes: counter, "unlade_nic_host_frame_bytes",
        "Bytes in frames that came from the kernel.";
    wire_frames: counter, "unlade_nic_wire_frames", "Frames that came from the wire.";
    wire_frame_bytes: counter, "unlade_nic_wire_frame_bytes",
        "Bytes in frames that came from the wire.";
    cut_frames: counter, "unlade_nic_cut_frames", "Large segments that were split.";
    damaged_frames: counter, "unlade_nic_damaged_frames",
        "Frames from the wire with a wrong checksum, delivered unchanged.";
    tx_dropped_frames: counter, "unlade_nic_tx_dropped_frames",
        "Segments of the kernel that were dropped because they could not be sealed.";
    changed_file_frames: counter, "unlade_nic_changed_file_frames",
        "Segments that could not be sealed because a file changed before its bytes had arrived.";
    ended_dropped_frames: counter, "unlade_nic_ended_dropped_frames",
        "Segments with payload of connections that are no longer offloaded, dropped.";
    hidden_dropped_frames: counter, "unlade_nic_hidden_dropped_frames",
        "Frames of the kernel that may hide a segment of an offloaded connection, dropped.";
    rx_dropped_frames: counter, "unlade_nic_rx_dropped_frames",
        "Segments from the wire that were dropped because their delivery could not be recorded.";
    unsent_frames: counter, "unlade_nic_unsent_frames",
        "Frames that the kernel or the wire did not accept.";
    unknown_connections: counter, "unlade_nic_unknown_connections",
        "Connections that were not recorded because there were too many.";
}

/// Takes a frame, with the offload work (checksum, segmentation) that is still open.
pub trait Sink: FnMut(&VnetHeader, &[u8]) {}
impl<F: FnMut(&VnetHeader, &[u8])> Sink for F {}

/// The device.
pub struct Engine {
    table: FlowTable,
    stats: Stats,
    counters: Counters,
    /// True if the wire accepts large segments, and computes checksums.
    wire_is_large: bool,
    delivery: Duration,
    idle: Duration,
    plain: Vec<u8>,
    room: Vec<u8>,
}

/// In debug builds, the text of the counters is recorded for a check of the tests.
#[cfg(debug_assertions)]
impl Drop for Engine {
    fn drop(&mut self) {
        self.counters().render();
    }
}

impl Engine {
    /// Creates a device without offloads. `wire_is_large`: the wire accepts segments that are
    /// still to be split, and frames without checksum.
    pub fn new(wire_is_large: bool) -> Engine {
        Engine {
            table: FlowTable::default(),
            stats: Stats::default(),
            counters: Counters::default(),
            wire_is_large,
            delivery: Duration::ZERO,
            idle: Duration::ZERO,
            plain: vec![0; FRAME_BYTES_MAX],
            room: Vec::with_capacity(FRAME_BYTES_MAX),
        }
    }

    /// The table of connections.
    pub fn table(&mut self) -> &mut FlowTable {
        &mut self.table
    }

    /// Counters of the machines.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Counters of the engine.
    pub fn counters(&self) -> Counters {
        Counters { unknown_connections: self.table.refused, ..self.counters }
    }

    /// Adds the time that the kernel took to accept a frame from the device.
    pub fn count_delivery(&mut self, took: Duration) {
        self.delivery += took;
    }

    /// Adds the time that the thread polled for frames in vain.
    pub fn count_idle(&mut self, took: Duration) {
        self.idle += took;
    }

    /// Processor time that the thread polled for frames in vain, if measured.
    pub fn idle(&self) -> Duration {
        self.idle
    }

    /// Time that the kernel took to accept all frames from the device, if measured.
    pub fn delivery(&self) -> Duration {
        self.delivery
    }

    /// Counts a frame that could not be passed on.
    pub fn count_unsent(&mut self) {
        self.counters.unsent_frames += 1;
    }

    /// Processes a frame that the kernel sends; the result goes to `wire`.
    pub fn host_frame(
        &mut self,
        now_ms: u64,
        header: &VnetHeader,
        frame: &mut [u8],
        wire: &mut impl Sink,
    ) {
        self.counters.host_frames += 1;
        self.counters.host_frame_bytes += frame.len() as u64;
        let Kind::Segment(segment) = classify(frame, Checksums::Trust) else {
            return self.other_from_host(header, frame, wire);
        };
        let payload = segment.payload.clone();
        let mut sealed = false;
        match self.table.host_segment(now_ms, &segment) {
            Verdict::Work(flow) if !payload.is_empty() => {
                let seq = segment.payload_seq();
                let mut side = flow.tx();
                let verdict = side.send(&mut self.stats, seq, &mut frame[payload]);
                if verdict == tx::Verdict::Drop {
                    self.counters.tx_dropped_frames += 1;
                    self.counters.changed_file_frames += u64::from(side.is_broken());
                    return;
                }
                sealed = true;
            }
            Verdict::Drop if !payload.is_empty() => {
                self.counters.ended_dropped_frames += 1;
                return;
            }
            Verdict::Work(_) | Verdict::Drop | Verdict::Through => (),
        }
        self.emit(header, frame, &segment, sealed, wire);
    }

    /// Processes a frame that is no segment: it passes, unless it may be part of one.
    fn other_from_host(&mut self, header: &VnetHeader, frame: &mut [u8], wire: &mut impl Sink) {
        if self.table.offloaded() + self.table.ended() > 0 && may_hide_a_segment(frame) {
            self.counters.hidden_dropped_frames += 1;
            return;
        }
        match header.checksum_at {
            Some(at) if !self.wire_is_large => {
                if segmentation::complete_any(frame, at) {
                    wire(&VnetHeader::default(), frame);
                }
            }
            _ => wire(header, frame),
        }
    }

    fn emit(
        &mut self,
        header: &VnetHeader,
        frame: &mut [u8],
        segment: &Segment,
        sealed: bool,
        wire: &mut impl Sink,
    ) {
        let unchecked = header.checksum_at.is_some();
        if self.wire_is_large && unchecked {
            return wire(header, frame);
        }
        match header.segment_bytes {
            Some(bytes) if segment.payload.len() > usize::from(bytes) => {
                self.counters.cut_frames += 1;
                let emit = |frame: &[u8]| wire(&VnetHeader::default(), frame);
                segmentation::segment(frame, segment, bytes.into(), &mut self.room, emit);
            }
            _ => {
                if sealed || unchecked {
                    segmentation::complete(frame, segment);
                }
                wire(&VnetHeader::default(), frame);
            }
        }
    }

    /// Processes a frame from the wire; the result goes to `host`.
    pub fn wire_frame(
        &mut self,
        now_ms: u64,
        header: &VnetHeader,
        frame: &mut [u8],
        host: &mut impl Sink,
    ) {
        self.counters.wire_frames += 1;
        self.counters.wire_frame_bytes += frame.len() as u64;
        let checksums = match header.checksum_at {
            Some(_) => Checksums::Trust,
            None => Checksums::Verify,
        };
        let segment = match classify(frame, checksums) {
            Kind::Segment(segment) => segment,
            Kind::Damaged => {
                self.counters.damaged_frames += 1;
                return host(header, frame);
            }
            Kind::Other => return host(header, frame),
        };
        let flow = self.table.wire_segment(now_ms, &segment);
        let Some(flow) = flow.filter(|_| !segment.payload.is_empty()) else {
            return host(header, frame);
        };
        let payload = &mut frame[segment.payload.clone()];
        let plain = &mut self.plain[..payload.len()];
        match flow.receive(&mut self.stats, segment.payload_seq(), payload, plain) {
            RxOutcome::Raw => host(header, frame),
            RxOutcome::Drop => self.counters.rx_dropped_frames += 1,
            RxOutcome::Decrypted => {
                payload.copy_from_slice(plain);
                segmentation::leave_checksum(frame, &segment);
                let checksum_at = Some((segment.tcp_at as u16, TCP_CHECKSUM_AT));
                host(&VnetHeader { checksum_at, ..*header }, &frame[..segment.payload.end]);
            }
        }
    }
}

/// Returns true for a frame that is no segment, and may contain part of one: a fragment, or a
/// packet whose headers cannot be parsed.
fn may_hide_a_segment(frame: &[u8]) -> bool {
    let Ok(ethernet) = EthernetView::new(frame) else { return false };
    match ethernet.ether_type() {
        ETHER_TYPE_IPV4 => {
            Ipv4View::new(ethernet.payload()).map_or(true, |ip| ip.protocol() == PROTOCOL_TCP)
        }
        ETHER_TYPE_IPV6 => {
            Ipv6View::new(ethernet.payload()).map_or(true, |ip| ip.protocol() == PROTOCOL_TCP)
        }
        _ => false,
    }
}
