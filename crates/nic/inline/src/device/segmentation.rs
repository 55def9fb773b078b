//! Segmentation and checksums of the kernel's frames before they reach the wire: a large segment
//! is split into frames (TSO), and checksums are filled in.

use unlade_net::packet::{EthernetView, TcpFlags, checksum, transport_checksum};

use crate::classify::Segment;

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM_AT: usize = 16;
/// Largest number of header bytes of a frame.
pub const HEADERS_BYTES_MAX: usize = 18 + 60 + 60;

/// Writes the TCP checksum of a frame whose payload has changed.
pub fn complete(frame: &mut [u8], segment: &Segment) {
    let end = segment.payload.end;
    let ends = (segment.flow.client.ip(), segment.flow.service.ip());
    let tcp = &mut frame[segment.tcp_at..end];
    tcp[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].fill(0);
    let sum = transport_checksum(ends.0, ends.1, tcp);
    tcp[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Writes the checksum that a frame of any protocol lacks. It covers the bytes from `start` on,
/// and is stored `offset` bytes behind that. Returns false if the frame has no such place.
pub fn complete_any(frame: &mut [u8], (start, offset): (u16, u16)) -> bool {
    let Some(covered) = frame.get_mut(usize::from(start)..) else { return false };
    let at = usize::from(offset);
    if covered.len() < at + 2 {
        return false;
    }
    // The field holds the sum of the pseudo-header.
    let sum = checksum(covered);
    // With UDP, zero means that there is no checksum; 0xffff is the same sum.
    let sum = if sum == 0 { 0xffff } else { sum };
    covered[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Writes the sum of the pseudo-header into the checksum field. A frame has it there if the next
/// device computes the checksum, or if no receiver needs it.
pub fn leave_checksum(frame: &mut [u8], segment: &Segment) {
    let at = segment.tcp_at + TCP_CHECKSUM_AT;
    let tcp_bytes = segment.payload.end - segment.tcp_at;
    let ends = (segment.flow.client.ip(), segment.flow.service.ip());
    // The sum over a segment of zeros is that of the pseudo-header alone.
    let pseudo = !transport_checksum(ends.0, ends.1, &[]);
    let mut sum = u32::from(pseudo) + tcp_bytes as u32;
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
}

/// Splits a frame into frames with at most `payload_bytes` bytes of payload, each complete;
/// `room` is the buffer in which they are built. Returns false, without emitting anything, if the
/// headers are invalid.
pub fn segment(
    frame: &[u8],
    segment: &Segment,
    payload_bytes: usize,
    room: &mut Vec<u8>,
    mut emit: impl FnMut(&[u8]),
) -> bool {
    let headers = &frame[..segment.payload.start];
    let Ok(ethernet) = EthernetView::new(frame) else { return false };
    let ip_at = ethernet.header_bytes();
    if payload_bytes == 0 || headers.len() > HEADERS_BYTES_MAX || ip_at + 20 > segment.tcp_at {
        return false;
    }
    let payload = &frame[segment.payload.clone()];
    let last = payload.len().saturating_sub(1) / payload_bytes;
    for (index, piece) in payload.chunks(payload_bytes).enumerate() {
        room.clear();
        room.extend_from_slice(headers);
        room.extend_from_slice(piece);
        ip_header(room, ip_at, segment.tcp_at, index as u16);
        let tcp = &mut room[segment.tcp_at..];
        let seq = segment.seq + (index * payload_bytes) as u32;
        tcp[4..8].copy_from_slice(&seq.0.to_be_bytes());
        if index != last {
            tcp[13] &= !(TcpFlags::FIN.0 | TcpFlags::PSH.0);
        }
        if index != 0 {
            tcp[13] &= !TcpFlags::CWR.0;
        }
        let part = Segment {
            payload: segment.payload.start..segment.payload.start + piece.len(),
            ..segment.clone()
        };
        complete(room, &part);
        emit(room);
    }
    true
}

/// Sets length, identification and checksum of the IP header of the frame number `index`.
fn ip_header(frame: &mut [u8], ip_at: usize, tcp_at: usize, index: u16) {
    let packet_bytes = (frame.len() - ip_at) as u16;
    let ip = &mut frame[ip_at..tcp_at];
    if ip[0] >> 4 == 6 {
        ip[4..6].copy_from_slice(&(packet_bytes - 40).to_be_bytes());
        return;
    }
    ip[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
    let ident = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index);
    ip[4..6].copy_from_slice(&ident.to_be_bytes());
    ip[10..12].fill(0);
    let header_bytes = usize::from(ip[0] & 15) * 4;
    let sum = checksum(&ip[..header_bytes.min(ip.len())]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use unlade_net::packet::{Direction, Segment as Made, TcpOptions};
    use unlade_net::{FlowKey, SeqNumber};

    use super::*;
    use crate::classify::{Checksums, Kind, classify};

    fn large(flow: FlowKey, payload: &[u8]) -> Vec<u8> {
        let flags = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN | TcpFlags::CWR;
        let options = TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::default() };
        let (seq, ack) = (SeqNumber(u32::MAX - 1000), SeqNumber(7));
        let direction = Direction::ToService;
        Made { flow, direction, seq, ack, flags, window: 9, options, payload }
            .ethernet_frame([2; 6], [4; 6])
            .unwrap()
    }

    fn flows() -> [FlowKey; 2] {
        [("10.0.0.1:40", "10.0.0.2:443"), ("[fd00::1]:40", "[fd00::2]:443")]
            .map(|(from, to)| FlowKey::new(from.parse().unwrap(), to.parse().unwrap()))
    }

    #[test]
    fn a_large_segment_becomes_frames_with_right_headers() {
        let payload: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
        for flow in flows() {
            let frame = large(flow, &payload);
            let Kind::Segment(segment) = classify(&frame, Checksums::Trust) else { panic!() };
            let mut all = Vec::new();
            let mut frames = 0;
            let emitted = super::segment(&frame, &segment, 1448, &mut Vec::new(), |frame| {
                let Kind::Segment(found) = classify(frame, Checksums::Verify) else { panic!() };
                assert_eq!(found.seq, segment.seq + all.len() as u32);
                let end = all.len() + found.payload.len() == payload.len();
                assert_eq!(found.flags.contains(TcpFlags::FIN), end);
                assert_eq!(found.flags.contains(TcpFlags::CWR), all.is_empty());
                assert_eq!(found.payload.end, frame.len());
                all.extend_from_slice(&frame[found.payload]);
                frames += 1;
            });
            assert!(emitted);
            assert_eq!((frames, all == payload), (7, true));
        }
    }

    #[test]
    fn a_checksum_left_open_is_completed_to_the_right_one() {
        for flow in flows() {
            let good = large(flow, b"payload");
            let Kind::Segment(segment) = classify(&good, Checksums::Verify) else { panic!() };
            let mut open = good.clone();
            leave_checksum(&mut open, &segment);
            assert_ne!(open, good);
            let mut again = open.clone();
            complete(&mut again, &segment);
            assert_eq!(again, good);
            assert!(complete_any(&mut open, (segment.tcp_at as u16, 16)));
            assert_eq!(open, good);
            assert!(!complete_any(&mut open, (segment.tcp_at as u16, 60_000)));
            assert!(!complete_any(&mut open, (u16::MAX, 16)));
        }
    }
}
