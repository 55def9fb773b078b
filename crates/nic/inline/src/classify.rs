//! Classification of frames: a TCP segment that a machine may process, or any other frame.
//!
//! Checksums come first. A segment with a wrong checksum may have any sequence number: no machine
//! processes it, and it is delivered as it came, for the host to drop.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use siphasher::sip::SipHasher13;
use unlade_net::packet::{
    ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, EthernetView, Ipv4View, Ipv6View, PROTOCOL_TCP, TcpFlags,
    TcpView, transport_checksum,
};
use unlade_net::{FlowKey, SeqNumber};

/// A TCP segment with correct checksums, in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The flow; the sender of this frame is the client.
    pub flow: FlowKey,
    /// Control bits.
    pub flags: TcpFlags,
    /// Sequence number; that of the SYN if SYN is set.
    pub seq: SeqNumber,
    /// Acknowledgement number; valid if ACK is set.
    pub ack: SeqNumber,
    /// Window, unscaled.
    pub window: u16,
    /// Offset of the TCP header in the frame.
    pub tcp_at: usize,
    /// Range of the payload in the frame, without Ethernet's padding.
    pub payload: Range<usize>,
}

impl Segment {
    /// Sequence number of the first byte of payload.
    pub fn payload_seq(&self) -> SeqNumber {
        self.seq + u32::from(self.flags.contains(TcpFlags::SYN))
    }

    /// The flow as its receiver names it in its own frames: the sender of this frame is the
    /// service.
    pub fn reversed(&self) -> FlowKey {
        FlowKey { client: self.flow.service, service: self.flow.client }
    }
}

/// The kind of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP segment with correct checksums.
    Segment(Segment),
    /// A TCP segment, or the header of one, that was damaged in transit.
    Damaged,
    /// Anything else: other protocols, fragments, inconsistent frames.
    Other,
}

/// Controls the verification of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Verify them: the frame comes from a wire.
    Verify,
    /// Skip them: the frame comes from the host's kernel, which leaves them to the device.
    Trust,
}

/// Classifies `frame`, an Ethernet frame without its check sequence.
pub fn classify(frame: &[u8], checksums: Checksums) -> Kind {
    let Ok(ethernet) = EthernetView::new(frame) else { return Kind::Other };
    let ip_at = ethernet.header_bytes();
    let packet = ethernet.payload();
    let found = match ethernet.ether_type() {
        ETHER_TYPE_IPV4 => ipv4(packet, checksums),
        ETHER_TYPE_IPV6 => ipv6(packet),
        _ => Err(Kind::Other),
    };
    match found {
        Ok(packet) => segment(frame, ip_at, &packet, checksums),
        Err(kind) => kind,
    }
}

/// An IP packet that contains a TCP segment.
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    /// Range of the segment in the packet.
    segment: Range<usize>,
}

fn ipv4(packet: &[u8], checksums: Checksums) -> Result<Packet, Kind> {
    let ip = Ipv4View::new(packet).map_err(|_| Kind::Other)?;
    if checksums == Checksums::Verify && !ip.checksum_ok() {
        return Err(Kind::Damaged);
    }
    if ip.protocol() != PROTOCOL_TCP || ip.is_fragment() {
        return Err(Kind::Other);
    }
    let segment = ip.header_bytes()..ip.total_bytes();
    Ok(Packet { source: ip.source().into(), destination: ip.destination().into(), segment })
}

fn ipv6(packet: &[u8]) -> Result<Packet, Kind> {
    let ip = Ipv6View::new(packet).map_err(|_| Kind::Other)?;
    if ip.protocol() != PROTOCOL_TCP {
        return Err(Kind::Other);
    }
    let segment = ip.header_bytes()..ip.total_bytes();
    Ok(Packet { source: ip.source().into(), destination: ip.destination().into(), segment })
}

fn segment(frame: &[u8], ip_at: usize, packet: &Packet, checksums: Checksums) -> Kind {
    let &Packet { source, destination, ref segment } = packet;
    let tcp_at = ip_at + segment.start;
    let end = ip_at + segment.end;
    let Some(bytes) = frame.get(tcp_at..end) else { return Kind::Other };
    if checksums == Checksums::Verify && transport_checksum(source, destination, bytes) != 0 {
        return Kind::Damaged;
    }
    let Ok(tcp) = TcpView::new(bytes) else { return Kind::Other };
    let client = SocketAddr::new(source, tcp.source_port());
    let service = SocketAddr::new(destination, tcp.destination_port());
    Kind::Segment(Segment {
        flow: FlowKey::new(client, service),
        flags: tcp.flags(),
        seq: tcp.seq(),
        ack: tcp.ack(),
        window: tcp.window(),
        tcp_at,
        payload: tcp_at + tcp.header_bytes()..end,
    })
}

/// Largest number of shards of a device.
pub const SHARDS_MAX: usize = 64;

/// Chooses the shard of a flow, the same one for both directions.
///
/// The hash has a key, so that a peer cannot choose ports that all map to one shard.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    hasher: SipHasher13,
    shards: usize,
}

impl Spread {
    /// Creates the hash for `shards` shards, 1 to [`SHARDS_MAX`].
    pub fn new(key: [u64; 2], shards: usize) -> Spread {
        let hasher = SipHasher13::new_with_keys(key[0], key[1]);
        Spread { hasher, shards: shards.clamp(1, SHARDS_MAX) }
    }

    /// The shard of a flow.
    pub fn shard(&self, flow: &FlowKey) -> usize {
        if self.shards == 1 {
            return 0;
        }
        let ends = if flow.client <= flow.service {
            [flow.client, flow.service]
        } else {
            [flow.service, flow.client]
        };
        let mut hasher = self.hasher;
        for end in ends {
            match end.ip() {
                IpAddr::V4(ip) => hasher.write(&ip.octets()),
                IpAddr::V6(ip) => hasher.write(&ip.octets()),
            }
            hasher.write(&end.port().to_be_bytes());
        }
        (hasher.finish() % self.shards as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use unlade_net::packet::{Direction, Segment as Made, TcpOptions};

    use super::*;

    fn frame(flow: FlowKey, payload: &[u8]) -> Vec<u8> {
        let options = TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::default() };
        let (seq, ack) = (SeqNumber(u32::MAX - 2), SeqNumber(7));
        let (flags, window) = (TcpFlags::ACK | TcpFlags::PSH, 500);
        let direction = Direction::ToService;
        Made { flow, direction, seq, ack, flags, window, options, payload }
            .ethernet_frame([2; 6], [4; 6])
            .unwrap()
    }

    fn flow(client: &str, service: &str) -> FlowKey {
        FlowKey::new(client.parse().unwrap(), service.parse().unwrap())
    }

    #[test]
    fn a_segment_is_found_under_either_family_and_padding_is_not_payload() {
        for flow in [flow("10.0.0.1:4000", "10.0.0.2:443"), flow("[fd00::1]:4000", "[fd00::2]:443")]
        {
            let mut frame = frame(flow, b"five5");
            frame.extend([0xee; 9]);
            let Kind::Segment(found) = classify(&frame, Checksums::Verify) else { panic!() };
            assert_eq!(found.flow, flow);
            assert_eq!(&frame[found.payload.clone()], b"five5");
            assert_eq!((found.seq, found.ack), (SeqNumber(u32::MAX - 2), SeqNumber(7)));
            assert_eq!(found.payload.start - found.tcp_at, 32);
            assert_eq!(found.reversed().client, flow.service);
        }
    }

    #[test]
    fn every_changed_byte_behind_the_ethernet_header_keeps_it_from_the_machines() {
        let flow = flow("10.0.0.1:4000", "10.0.0.2:443");
        let good = frame(flow, b"some payload of a record");
        for at in 14..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let kind = classify(&bad, Checksums::Verify);
            assert!(!matches!(kind, Kind::Segment(_)), "byte {at}: {kind:?}");
        }
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        assert_eq!(classify(&bad, Checksums::Verify), Kind::Damaged);
        assert!(matches!(classify(&bad, Checksums::Trust), Kind::Segment(_)));
    }

    #[test]
    fn cut_frames_are_other_frames() {
        for flow in [flow("10.0.0.1:4000", "10.0.0.2:443"), flow("[fd00::1]:4000", "[fd00::2]:443")]
        {
            let good = frame(flow, b"payload");
            for end in 0..good.len() {
                let kind = classify(&good[..end], Checksums::Verify);
                assert!(!matches!(kind, Kind::Segment(_)), "{end}");
            }
        }
    }

    #[test]
    fn both_directions_of_a_flow_meet_in_one_shard_and_flows_are_spread() {
        let spread = Spread::new([1, 2], 4);
        let mut counts = [0; 4];
        for port in 1024..5120 {
            let there = flow(&format!("10.0.0.1:{port}"), "10.0.0.2:443");
            let back = FlowKey { client: there.service, service: there.client };
            assert_eq!(spread.shard(&there), spread.shard(&back));
            counts[spread.shard(&there)] += 1;
        }
        assert!(counts.iter().all(|count| (800..1250).contains(count)), "{counts:?}");
        assert_eq!(Spread::new([1, 2], 0).shard(&flow("10.0.0.1:1", "10.0.0.2:2")), 0);
    }
}
