//! Segments for the new owner with the bytes that a frozen socket received after its snapshot.
//!
//! Between the freeze of a socket and the hold of its packets, some packets may still reach it.
//! The kernel acknowledges them, so the client will not send them again. They are rebuilt with
//! their sequence numbers, and sent on the path of the client's packets.

use unlade_net::packet::{Direction, PacketError, Segment, TcpFlags, TcpOptions};
use unlade_net::state::TcpSnapshot;

/// Returns Ethernet frames that bring an owner of `older` to the state `newer`. Timestamps are
/// left out: the client's clock is unknown here, and a segment without them is accepted (RFC 7323
/// §3.2 leaves that to the receiver; Linux accepts it).
///
/// # Errors
/// The flow's addresses are of different families.
pub fn late_frames(
    older: &TcpSnapshot,
    newer: &TcpSnapshot,
    source: [u8; 6],
    destination: [u8; 6],
) -> Result<Vec<Vec<u8>>, PacketError> {
    if !newer.supersedes(older) {
        return Ok(Vec::new());
    }
    let known = older.receive_queue.len();
    let late = newer.receive_queue.get(known..).unwrap_or_default();
    let shift = newer.options.window_scale.map_or(0, |(send, _)| send);
    let window = (newer.windows.snd_wnd >> shift).min(u16::MAX.into()) as u16;
    let segment_bytes = usize::from(newer.options.mss_bytes).max(1);
    // Without payload there is still one segment: the acknowledgement.
    let payloads = late.chunks(segment_bytes).chain(late.is_empty().then_some(&[][..]));
    let mut seq = older.receive_seq + known as u32;
    let mut frames = Vec::new();
    let count = late.len().div_ceil(segment_bytes).max(1);
    for (at, payload) in payloads.enumerate() {
        let mut flags = TcpFlags::ACK;
        if at + 1 == count {
            flags = flags | TcpFlags::PSH;
            if newer.peer_closed && !older.peer_closed {
                flags = flags | TcpFlags::FIN;
            }
        }
        let segment = Segment {
            flow: newer.flow,
            direction: Direction::ToService,
            seq,
            ack: newer.send_seq,
            flags,
            window,
            options: TcpOptions::default(),
            payload,
        };
        frames.push(segment.ethernet_frame(source, destination)?);
        seq = seq + payload.len() as u32;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_net::packet::classify;
    use unlade_net::state::{Congestion, NegotiatedOptions, SocketOptions, Windows};
    use unlade_net::{FlowKey, SeqNumber};

    fn snapshot(received: &[u8], acknowledged: u32, peer_closed: bool) -> TcpSnapshot {
        let address = |text: &str| text.parse().unwrap();
        TcpSnapshot {
            flow: FlowKey::new(address("10.0.0.2:4000"), address("10.0.0.1:80")),
            options: NegotiatedOptions {
                mss_bytes: 10,
                window_scale: Some((7, 7)),
                ..NegotiatedOptions::default()
            },
            send_seq: SeqNumber(acknowledged),
            receive_seq: SeqNumber(u32::MAX - 3),
            send_queue: Vec::new(),
            receive_queue: received.to_vec(),
            windows: Windows { snd_wnd: 64_000, ..Windows::default() },
            congestion: Congestion::default(),
            socket: SocketOptions::default(),
            segments_in: 0,
            peer_closed,
        }
    }

    #[test]
    fn nothing_new_is_no_frame() {
        let state = snapshot(b"abc", 5, false);
        assert!(late_frames(&state, &state, [1; 6], [2; 6]).unwrap().is_empty());
    }

    #[test]
    fn late_bytes_keep_their_numbers_and_the_last_segment_brings_the_end() {
        let older = snapshot(b"abc", 5, false);
        let newer = snapshot(b"abcdefghijklmnopqr", 9, true);
        let frames = late_frames(&older, &newer, [1; 6], [2; 6]).unwrap();
        let parts: Vec<_> = frames.iter().map(|frame| classify(frame).unwrap()).collect();
        assert_eq!(parts.len(), 2);
        assert_eq!((parts[0].seq, parts[0].payload_bytes), (SeqNumber(u32::MAX), 10));
        assert_eq!((parts[1].seq, parts[1].payload_bytes), (SeqNumber(9), 5));
        assert!(parts.iter().all(|part| part.ack == SeqNumber(9)));
        assert!(!parts[0].flags.contains(TcpFlags::FIN));
        assert!(parts[1].flags.contains(TcpFlags::FIN));
    }

    #[test]
    fn an_acknowledgement_alone_is_forwarded() {
        let frames =
            late_frames(&snapshot(b"", 5, false), &snapshot(b"", 6, false), [1; 6], [2; 6]);
        let frames = frames.unwrap();
        assert_eq!(frames.len(), 1);
        let part = classify(&frames[0]).unwrap();
        assert_eq!((part.ack, part.payload_bytes), (SeqNumber(6), 0));
    }
}
