//! The balancer's side of a client's connection.

use unlade_net::SeqNumber;

use crate::clock::{CLOCK_MARGIN_MS, Clock};
use crate::segment::{Segment, earlier, later};

/// A client's connection at the balancer. It lives as long as the connection, over any number of
/// responses that other hosts have sent.
///
/// Numbers of the response direction exist twice: the *client's*, and the *socket's*, which lack
/// the bytes that other hosts have sent. All fields have the client's.
#[derive(Clone, Copy, Debug)]
pub struct ClientFlow {
    /// The client's number of a byte less the socket's.
    pub(crate) bypassed: u32,
    /// Behind the last byte that the socket has sent.
    pub(crate) sent_end: SeqNumber,
    /// The client's newest acknowledgement.
    pub(crate) acked: SeqNumber,
    /// The newest acknowledgement that the socket was given: the client can have bytes from another
    /// host before the socket sends them.
    pub(crate) socket_acked: SeqNumber,
    /// The window in `acked`, bytes.
    pub(crate) window_bytes: u32,
    /// The client's window scale.
    scale: u8,
    /// The socket's newest acknowledgement of the client's bytes.
    pub(crate) received: SeqNumber,
    /// The newest window field of the socket.
    pub(crate) window: u16,
    pub(crate) clock: Clock,
}

impl ClientFlow {
    /// Creates the flow of a connection whose socket has sent nothing but its SYN. `sent_end` and
    /// `received` are behind the two SYNs; `scale` is the client's; `window` is the field of the
    /// socket's first window, scaled.
    pub fn new(sent_end: SeqNumber, received: SeqNumber, scale: u8, window: u16) -> ClientFlow {
        ClientFlow {
            bypassed: 0,
            sent_end,
            acked: sent_end,
            socket_acked: sent_end,
            window_bytes: 0,
            scale,
            received,
            window,
            clock: Clock::default(),
        }
    }

    /// Returns the client's number behind the last byte that the socket has sent.
    pub fn sent_end(&self) -> SeqNumber {
        self.sent_end
    }

    /// Returns the client's newest acknowledgement.
    pub fn acked(&self) -> SeqNumber {
        self.acked
    }

    /// Returns the number behind the last byte that the client has room for.
    pub fn edge(&self) -> SeqNumber {
        self.acked + self.window_bytes
    }

    /// Notes a segment of the client. Returns false if its acknowledgement is not the newest.
    pub(crate) fn note(&mut self, segment: &Segment) -> bool {
        if segment.ack.before(self.acked) {
            return false;
        }
        self.acked = segment.ack;
        self.window_bytes = u32::from(segment.window) << self.scale.min(14);
        true
    }

    /// Returns a segment of the client for the socket.
    pub(crate) fn for_socket(&mut self, segment: &Segment) -> Segment {
        let end = self.sent_end;
        // Bytes that other hosts have sent do not exist for the socket.
        let ack = earlier(segment.ack, end);
        self.socket_acked = later(self.socket_acked, ack);
        Segment {
            ack: ack - self.bypassed,
            sack: segment.sack.before(end).less(self.bypassed),
            timestamps: self.clock.received(segment.timestamps),
            ..*segment
        }
    }

    /// Returns a segment of the socket for the client. `is_spliced`: another host may send for the
    /// socket, ahead of it.
    pub(crate) fn for_client(
        &mut self,
        segment: &Segment,
        is_spliced: bool,
        now_ms: u64,
    ) -> Segment {
        let mut shown = Segment {
            seq: segment.seq + self.bypassed,
            timestamps: self.clock.sent(segment.timestamps, now_ms),
            ..*segment
        };
        if !segment.flags.contains(unlade_net::packet::TcpFlags::SYN) {
            self.received = later(self.received, segment.ack);
            self.window = segment.window;
        }
        self.sent_end = later(self.sent_end, shown.end());
        if segment.payload_bytes > 0 {
            // The socket has refused the acknowledgement of a byte that it sends again.
            self.socket_acked = earlier(self.socket_acked, shown.seq);
        }
        if is_spliced && segment.is_pure_ack() {
            // The client has more than the socket has sent, and ignores old numbers. It accepts one
            // within its window (RFC 9293 §3.10.7.4).
            let last = if self.window_bytes > 0 { self.edge() - 1 } else { self.acked };
            shown.seq = later(shown.seq, last);
            // Its clock is ahead of the other host's. A segment behind the next byte does not set
            // the client's clock, so bytes of the socket may still follow with an earlier time (RFC
            // 7323 §4.3).
            if let Some(timestamps) = &mut shown.timestamps {
                timestamps.value = timestamps.value.wrapping_add(2 * CLOCK_MARGIN_MS);
            }
        }
        shown
    }
}
