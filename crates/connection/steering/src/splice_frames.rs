//! Frames on which the program of [`crate::splice`] runs: it writes numbers and hardware addresses into
//! them, and sends them.

use std::net::IpAddr;

use unlade_net::packet::{Direction, Segment as Written, TcpFlags, TcpOptions, checksum};
use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::datagram::DATAGRAM_BYTES;

/// Timestamps between two NOPs, as in a segment of Linux.
const TIMESTAMPS_BYTES: usize = 12;
const IPV4_BYTES: u16 = 20;
const UDP_BYTES: usize = 8;
/// Protocol number of UDP.
const UDP: u8 = 17;

/// A frame without meaning, of the least length that the kernel runs a program on.
pub(crate) const BLANK: [u8; 64] = [0; 64];

/// Returns an acknowledgement of the balancer to the server, without numbers and hardware
/// addresses.
pub(crate) fn ack_frame(flow: &FlowKey, has_timestamps: bool) -> Vec<u8> {
    let options =
        TcpOptions { timestamps: has_timestamps.then_some((0, 0)), ..TcpOptions::default() };
    let segment = Written {
        flow: *flow,
        direction: Direction::ToService,
        seq: SeqNumber(0),
        ack: SeqNumber(0),
        flags: TcpFlags::ACK,
        window: 0,
        options,
        payload: &[],
    };
    // Both addresses are of one family: they are of one connection.
    let mut frame = segment.ethernet_frame([0; 6], [0; 6]).unwrap_or_default();
    if has_timestamps && frame.len() >= TIMESTAMPS_BYTES {
        // NOPs first, as Linux has them; their order does not change the sum.
        let at = frame.len() - TIMESTAMPS_BYTES;
        frame[at..].rotate_right(2);
    }
    frame
}

/// A datagram to a server's host without its content.
#[derive(Debug, Default)]
pub(crate) struct RuleFrame {
    /// The frame.
    pub frame: Vec<u8>,
    /// Sum of the UDP header and of the pseudo header, without the content (RFC 768, RFC 8200 §8.1).
    pub sum: u32,
}

/// Returns the frame of a rule for the host of a connection's server, without hardware addresses.
pub(crate) fn rule_frame(flow: &FlowKey, port: u16) -> RuleFrame {
    let udp_bytes = (UDP_BYTES + DATAGRAM_BYTES) as u16;
    let port = port.to_be_bytes();
    let udp = [port, port, udp_bytes.to_be_bytes(), [0; 2]].concat();
    let mut frame = vec![0; 12];
    let addresses = match (flow.client.ip(), flow.service.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let [high, low] = (IPV4_BYTES + udp_bytes).to_be_bytes();
            // Do not fragment; hop limit 64; no checksum yet.
            let mut ip = vec![0x45, 0, high, low, 0, 0, 0x40, 0, 64, UDP, 0, 0];
            ip.extend_from_slice(&addresses);
            let sum = checksum(&ip).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            frame.extend_from_slice(&[0x08, 0x00]);
            frame.extend_from_slice(&ip);
            addresses
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let [high, low] = udp_bytes.to_be_bytes();
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, high, low, UDP, 64]);
            frame.extend_from_slice(&addresses);
            addresses
        }
        // A connection has addresses of one family.
        _ => return RuleFrame::default(),
    };
    frame.extend_from_slice(&udp);
    frame.resize(frame.len() + DATAGRAM_BYTES, 0);
    let pseudo = [&addresses[..], &udp_bytes.to_be_bytes(), &[0, UDP], &udp].concat();
    // Words in the order of the processor, as the program adds them.
    let sum = pseudo.chunks_exact(2).map(|two| u32::from(u16::from_ne_bytes([two[0], two[1]])));
    RuleFrame { frame, sum: sum.sum() }
}
