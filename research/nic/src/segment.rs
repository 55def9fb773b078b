//! Segmentation: a large segment becomes sealed frames, each with headers and checksums.

use unlade_net::SeqNumber;
use unlade_net::packet::{TcpFlags, checksum, checksum_of, pseudo_header_words, words};
use unlade_nic_engine::composed::tx::InnerState;
use unlade_nic_engine::tx::{MessageState, Verdict};

use crate::flow::Flow;
use crate::port::Port;
use crate::queue::{
    InnerRecovery, Recovery, SUPER_SEGMENT_BYTES_MAX, SUPER_SEGMENT_FRAMES_MAX, Sent,
    TCP_HEADER_BYTES_MAX, TxPacket,
};
use crate::span::Span;
use crate::template::{TEMPLATE_BYTES_MAX, Template};

/// Offset of the IP header.
const IP_AT: usize = 14;
/// Bytes of a TCP header without options.
const TCP_BYTES_MIN: usize = 20;

/// The headers of a large segment's frames, built once: they differ in few fields.
struct Headers {
    raw: [u8; TEMPLATE_BYTES_MAX + TCP_HEADER_BYTES_MAX],
    bytes: usize,
    /// Offset of the TCP header.
    tcp_at: usize,
    /// The sum of the fields that all frames share: pseudo-header and TCP header, without the
    /// length, the sequence number, the word of the flags, and the checksum.
    words: u64,
    is_ipv4: bool,
    /// The payload length for which the IP header is set.
    payload_bytes: Option<usize>,
}

impl Headers {
    fn new(template: &Template, tcp: &[u8]) -> Headers {
        let tcp_at = template.bytes;
        let bytes = tcp_at + tcp.len();
        let mut raw = [0; TEMPLATE_BYTES_MAX + TCP_HEADER_BYTES_MAX];
        raw[..tcp_at].copy_from_slice(&template.raw[..tcp_at]);
        raw[tcp_at..bytes].copy_from_slice(tcp);
        let alike = words(&tcp[..4]) + words(&tcp[8..12]) + words(&tcp[14..16]) + words(&tcp[18..]);
        Headers {
            raw,
            bytes,
            tcp_at,
            words: alike + pseudo_header_words(template.source, template.destination),
            is_ipv4: template.source.is_ipv4(),
            payload_bytes: None,
        }
    }

    /// The headers of the frame with `payload`, whose first byte is `seq`, with these flags.
    fn of(&mut self, seq: SeqNumber, flags: u8, payload: &[u8]) -> &[u8] {
        if self.payload_bytes != Some(payload.len()) {
            self.set_lengths(payload.len());
        }
        let segment_bytes = self.bytes - self.tcp_at + payload.len();
        let tcp = &mut self.raw[self.tcp_at..self.bytes];
        tcp[4..8].copy_from_slice(&seq.0.to_be_bytes());
        tcp[13] = flags;
        let own = u64::from(seq.0 >> 16)
            + u64::from(seq.0 & 0xffff)
            + u64::from(u16::from_be_bytes([tcp[12], flags]))
            + segment_bytes as u64;
        let sum = checksum_of(self.words + own + unlade_aead::checksum::words(payload));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        &self.raw[..self.bytes]
    }

    /// Sets the lengths in the IP header, and its checksum.
    fn set_lengths(&mut self, payload_bytes: usize) {
        self.payload_bytes = Some(payload_bytes);
        let segment_bytes = self.bytes - self.tcp_at + payload_bytes;
        let ip = &mut self.raw[IP_AT..self.tcp_at];
        if self.is_ipv4 {
            let total = (ip.len() + segment_bytes) as u16;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].fill(0);
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&(segment_bytes as u16).to_be_bytes());
        }
    }
}

/// The number of frames of a descriptor; `None` if the descriptor is invalid.
pub fn frames(packet: &TxPacket) -> Option<usize> {
    let gathered: usize = packet.pieces.iter().map(Span::len).sum();
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

/// Counters of a descriptor's sent frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emitted {
    /// Frames.
    pub frames: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Size of the buffer that [`emit`] needs to assemble a payload.
pub const PAYLOAD_ROOM_BYTES: usize = SUPER_SEGMENT_BYTES_MAX;

/// Splits `packet` into frames and sends them, if they may be sent; `packet.sent` is the result.
/// The caller has checked the descriptor with [`frames`], and the port has room for that number.
/// The payload is sealed in one run, which is faster than one run for each frame; it is in
/// `room`, of [`PAYLOAD_ROOM_BYTES`], while the port takes it.
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
        // Bytes that may not be sent are erased.
        payload.fill(0);
        return emitted;
    }
    let mut headers = Headers::new(template, packet.header.as_slice());
    let mut at = 0;
    loop {
        let taken = packet.mss_bytes.min(packet.payload_bytes - at);
        let last = at + taken == packet.payload_bytes;
        let payload = &payload[at..at + taken];
        let (seq, flags) = part(packet, at, last);
        let headers = headers.of(seq, flags, payload);
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

/// Assembles the payload, sealed if the flow seals. Returns false if it must not be sent.
fn fill(flow: &mut Flow, packet: &TxPacket, payload: &mut [u8]) -> bool {
    let clear = if flow.seals() { packet.clear_bytes } else { payload.len() };
    let (open, sealed) = payload.split_at_mut(clear);
    let mut parts = packet.pieces.iter().flat_map(Span::parts);
    let front = copy(&mut parts, open);
    if sealed.is_empty() {
        return true;
    }
    let seq = packet.seq + clear as u32;
    if packet.recovery.wanted {
        let Recovery { start, number, pieces, .. } = &packet.recovery;
        let message = MessageState { start: *start, number: *number, key: packet.key, bytes: &[] };
        // Without recovery the context is invalid: nothing is sealed then.
        let parts = pieces.iter().flat_map(Span::parts);
        flow.recover_pieces(&message, inner(&packet.recovery.inner).as_ref(), seq, parts);
    }
    let parts = std::iter::once(front).chain(parts);
    if flow.transmit_pieces(packet.key, seq, parts, sealed) != Verdict::Send {
        return false;
    }
    let frames = packet.payload_bytes.div_ceil(packet.mss_bytes) - clear / packet.mss_bytes;
    flow.sealed_as(packet.key, frames as u64);
    true
}

/// The PDU before the record, if one is to be replayed.
fn inner(recovery: &InnerRecovery) -> Option<InnerState<'_>> {
    let &InnerRecovery { wanted, content_start, start, number, ref raw } = recovery;
    let pdu = MessageState { start, number, key: 0, bytes: raw };
    wanted.then_some(InnerState { start: content_start, pdu })
}

/// The sequence number and the flags of the part that starts `at` bytes behind the start of the
/// payload.
fn part(packet: &TxPacket, at: usize, last: bool) -> (SeqNumber, u8) {
    let tcp = packet.header.as_slice();
    let mut flags = tcp[13];
    if !last {
        flags &= !(TcpFlags::FIN.0 | TcpFlags::PSH.0);
    }
    if at > 0 {
        flags &= !TcpFlags::CWR.0;
    }
    match packet.payload_bytes {
        0 => (SeqNumber(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])), flags),
        _ => (packet.seq + at as u32, flags),
    }
}

/// Copies the next bytes of `parts` to `out` until it is full; returns the rest of the last part
/// that was used.
fn copy<'p>(parts: &mut impl Iterator<Item = &'p [u8]>, out: &mut [u8]) -> &'p [u8] {
    let mut done = 0;
    while done < out.len() {
        let Some(part) = parts.next() else { break };
        let taken = part.len().min(out.len() - done);
        out[done..done + taken].copy_from_slice(&part[..taken]);
        done += taken;
        if taken < part.len() {
            return &part[taken..];
        }
    }
    &[]
}
