//! A large segment is cut into frames: sealed, with headers and checksums of their own.

use std::net::IpAddr;

use bytes::Bytes;
use offload::composed::tx::InnerState;
use offload::tx::{MessageState, Verdict};
use wire::packet::{
    ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, EthernetRepr, Ipv4Repr, Ipv6Repr, PROTOCOL_TCP, TcpFlags,
    checksum, transport_checksum_parts,
};
use wire::{FlowKey, SeqNumber};

use crate::flow::Flow;
use crate::port::Port;
use crate::queue::{
    InnerRecovery, Recovery, SUPER_SEGMENT_BYTES_MAX, SUPER_SEGMENT_FRAMES_MAX, Sent,
    TCP_HEADER_BYTES_MAX, TxPacket,
};

/// Octets before the TCP header: Ethernet and IPv6.
const TEMPLATE_BYTES_MAX: usize = 54;
/// Where the IP header starts.
const IP_AT: usize = 14;
/// Time to live, or hop limit.
const TTL: u8 = 64;
/// Octets of a TCP header without options.
const TCP_BYTES_MIN: usize = 20;

/// What precedes the TCP headers of a flow: Ethernet and IP, without lengths.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    octets: [u8; TEMPLATE_BYTES_MAX],
    bytes: usize,
    source: IpAddr,
    destination: IpAddr,
}

impl Template {
    /// For the flow that frames which come in name so: the peer is the client. Nothing where its
    /// addresses are of two families.
    pub fn new(own: [u8; 6], peer: [u8; 6], name: &FlowKey) -> Option<Template> {
        let (source, destination) = (name.service.ip(), name.client.ip());
        let ether_type = if name.is_ipv6() { ETHER_TYPE_IPV6 } else { ETHER_TYPE_IPV4 };
        let mut headers = Vec::with_capacity(TEMPLATE_BYTES_MAX);
        EthernetRepr { destination: peer, source: own, vlan: None, ether_type }.emit(&mut headers);
        let made = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4Repr {
                source,
                destination,
                protocol: PROTOCOL_TCP,
                ttl: TTL,
                tos: 0,
                ident: 0,
                dont_fragment: true,
                payload_bytes: 0,
            }
            .emit(&mut headers),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Repr {
                source,
                destination,
                protocol: PROTOCOL_TCP,
                hop_limit: TTL,
                traffic_class: 0,
                flow_label: 0,
                payload_bytes: 0,
            }
            .emit(&mut headers),
            _ => return None,
        };
        made.ok()?;
        let mut octets = [0; TEMPLATE_BYTES_MAX];
        octets[..headers.len()].copy_from_slice(&headers);
        Some(Template { octets, bytes: headers.len(), source, destination })
    }

    /// Octets before the TCP header.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes what is before the TCP header of `headers`, and lengths and checksums.
    fn finish(&self, headers: &mut [u8], payload: &[u8]) {
        let (headers, tcp) = headers.split_at_mut(self.bytes);
        let segment_bytes = tcp.len() + payload.len();
        headers.copy_from_slice(&self.octets[..self.bytes]);
        let ip = &mut headers[IP_AT..];
        if self.source.is_ipv4() {
            let total = (ip.len() + segment_bytes) as u16;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].fill(0);
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&(segment_bytes as u16).to_be_bytes());
        }
        let sum = transport_checksum_parts(self.source, self.destination, tcp, payload);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    }
}

/// How many frames a descriptor makes; nothing where it is not what a descriptor may be.
pub fn frames(packet: &TxPacket) -> Option<usize> {
    let gathered: usize = packet.pieces.iter().map(Bytes::len).sum();
    let header = packet.header.as_slice();
    let sane = gathered == packet.payload_bytes
        && gathered <= SUPER_SEGMENT_BYTES_MAX
        && header.len() >= TCP_BYTES_MIN
        && usize::from(header[12] >> 4) * 4 == header.len()
        && packet.clear_bytes <= gathered
        && packet.mss_bytes > 0;
    let frames = gathered.div_ceil(packet.mss_bytes.max(1)).max(1);
    (sane && frames <= SUPER_SEGMENT_FRAMES_MAX).then_some(frames)
}

/// What was sent of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emitted {
    /// Frames.
    pub frames: u64,
    /// Octets in them.
    pub bytes: u64,
}

/// Octets that [`emit`] needs to put a payload together.
pub const PAYLOAD_ROOM_BYTES: usize = SUPER_SEGMENT_BYTES_MAX;

/// Cuts `packet` into frames and sends them, if they may leave; `packet.sent` says whether all did.
/// [`frames`] has said that it can be done, and the port has room for so many. The payload is
/// sealed at once, for one long run is faster than one for each frame; it lies in `room`, of
/// [`PAYLOAD_ROOM_BYTES`], while the port takes it.
pub fn emit(
    flow: &mut Flow,
    template: &Template,
    packet: &mut TxPacket,
    room: &mut [u8],
    port: &mut impl Port,
) -> Emitted {
    let mut emitted = Emitted::default();
    let payload = &mut room[..packet.payload_bytes];
    if !fill(flow, packet, payload) {
        packet.sent = Sent::Dropped;
        // What may not leave does not stay either.
        payload.fill(0);
        return emitted;
    }
    let header = packet.header.as_slice();
    let mut headers = [0; TEMPLATE_BYTES_MAX + TCP_HEADER_BYTES_MAX];
    let headers = &mut headers[..template.bytes + header.len()];
    let mut at = 0;
    loop {
        let taken = packet.mss_bytes.min(packet.payload_bytes - at);
        let last = at + taken == packet.payload_bytes;
        let payload = &payload[at..at + taken];
        let tcp = &mut headers[template.bytes..];
        tcp.copy_from_slice(header);
        part(tcp, packet, at, last);
        template.finish(headers, payload);
        if !port.send_parts(headers, payload) {
            packet.sent = Sent::Dropped;
            return emitted;
        }
        emitted.frames += 1;
        emitted.bytes += (headers.len() + taken) as u64;
        at += taken;
        if last {
            return emitted;
        }
    }
}

/// Puts the payload together, sealed where the flow seals. False where it must not leave.
fn fill(flow: &mut Flow, packet: &TxPacket, payload: &mut [u8]) -> bool {
    let clear = if flow.seals() { packet.clear_bytes } else { payload.len() };
    let (open, sealed) = payload.split_at_mut(clear);
    let mut gather = Gather { pieces: &packet.pieces, front: 0 };
    gather.copy(open);
    if sealed.is_empty() {
        return true;
    }
    let seq = packet.seq + clear as u32;
    if packet.recovery.wanted {
        let &Recovery { start, number, ref octets, .. } = &packet.recovery;
        let message = MessageState { start, number, key: packet.key, bytes: octets };
        // What is not recovered is not sound: nothing is sealed then.
        flow.recover(&message, inner(&packet.recovery.inner).as_ref(), seq);
    }
    let pieces = gather.next(sealed.len());
    if flow.transmit_pieces(packet.key, seq, pieces, sealed) != Verdict::Send {
        return false;
    }
    let frames = packet.payload_bytes.div_ceil(packet.mss_bytes) - clear / packet.mss_bytes;
    flow.sealed_as(packet.key, frames as u64);
    true
}

/// The PDU that precedes the record, where one is to be replayed.
fn inner(recovery: &InnerRecovery) -> Option<InnerState<'_>> {
    let &InnerRecovery { wanted, content_start, start, number, ref octets } = recovery;
    let pdu = MessageState { start, number, key: 0, bytes: octets };
    wanted.then_some(InnerState { start: content_start, pdu })
}

/// Makes the large segment's header that of one part.
fn part(tcp: &mut [u8], packet: &TxPacket, at: usize, last: bool) {
    let seq: SeqNumber = packet.seq + at as u32;
    if packet.payload_bytes > 0 {
        tcp[4..8].copy_from_slice(&seq.0.to_be_bytes());
    }
    if !last {
        tcp[13] &= !(TcpFlags::FIN.0 | TcpFlags::PSH.0);
    }
    if at > 0 {
        tcp[13] &= !TcpFlags::CWR.0;
    }
    tcp[16..18].fill(0);
}

/// Where in its pieces a payload is.
struct Gather<'p> {
    pieces: &'p [Bytes],
    /// Octets of the first piece that are taken.
    front: usize,
}

impl<'p> Gather<'p> {
    /// Copies the next octets, as many as `out` has room for.
    fn copy(&mut self, out: &mut [u8]) {
        let mut done = 0;
        for piece in self.next(out.len()) {
            out[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
    }

    /// The next `octets`, as they lie; fewer where there are no more.
    fn next(&mut self, octets: usize) -> impl Iterator<Item = &'p [u8]> {
        let mut left = octets;
        std::iter::from_fn(move || {
            let (piece, rest) = self.pieces.split_first().filter(|_| left > 0)?;
            let front = self.front;
            let taken = left.min(piece.len() - front);
            left -= taken;
            if front + taken == piece.len() {
                (self.pieces, self.front) = (rest, 0);
            } else {
                self.front += taken;
            }
            Some(&piece[front..front + taken])
        })
    }
}
