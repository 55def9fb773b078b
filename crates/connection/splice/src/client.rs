//! The balancer's side of a client's connection.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use crate::clock::{CLOCK_MARGIN_MS, Clock};
use crate::segment::{Sack, Segment, Timestamps, earlier, later};

/// Largest window scale (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;

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
    /// The largest window that the client has offered, bytes.
    pub(crate) window_max_bytes: u32,
    /// The client's window scale.
    pub(crate) scale: u8,
    /// The largest window that the socket's scale allows, bytes.
    pub(crate) receive_max_bytes: u32,
    /// The socket's newest acknowledgement of the client's bytes.
    pub(crate) received: SeqNumber,
    /// The newest window field of the socket.
    pub(crate) window: u16,
    /// The socket has reset the connection.
    pub(crate) is_reset: bool,
    pub(crate) hold: Hold,
    pub(crate) clock: Clock,
}

/// An acknowledgement without bytes that need not go to the client, because a response that goes past the
/// socket will have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It goes.
    #[default]
    Off,
    /// The next one is kept.
    Armed,
    /// One is kept: the client lacks it until a later segment goes.
    Kept,
}

/// The agreement of a client's handshake.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Behind the socket's SYN.
    pub sent_end: SeqNumber,
    /// Behind the client's SYN.
    pub received: SeqNumber,
    /// The client's window in its SYN, bytes.
    pub window_bytes: u32,
    /// The client's window scale.
    pub scale: u8,
    /// The socket's window in its SYN, bytes.
    pub receive_bytes: u32,
    /// The socket's window scale.
    pub receive_scale: u8,
}

impl ClientFlow {
    /// Creates the flow of a connection whose socket has sent nothing but its SYN.
    pub fn new(opened: Opened) -> ClientFlow {
        let Opened { sent_end, received, window_bytes, scale, receive_bytes, receive_scale } =
            opened;
        let receive_scale = receive_scale.min(SCALE_MAX);
        ClientFlow {
            bypassed: 0,
            sent_end,
            acked: sent_end,
            socket_acked: sent_end,
            window_bytes,
            window_max_bytes: window_bytes,
            scale: scale.min(SCALE_MAX),
            receive_max_bytes: u32::from(u16::MAX) << receive_scale,
            received,
            window: u16::try_from(receive_bytes >> receive_scale).unwrap_or(u16::MAX),
            is_reset: false,
            hold: Hold::Off,
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

    /// Returns true if a TCP would accept the segment (RFC 9293 §3.10.7.4, RFC 5961 §5.2): it is
    /// near the next byte that the socket expects, and acknowledges no byte that nobody may have
    /// sent. Who does not see the connection's packets cannot forge one.
    pub(crate) fn is_acceptable(&self, segment: &Segment) -> bool {
        let is_near = |number: SeqNumber| {
            number.since(self.received).unsigned_abs() <= self.receive_max_bytes
        };
        let acked = segment.ack.since(self.acked);
        segment.flags.contains(TcpFlags::ACK)
            && is_near(segment.seq)
            && is_near(segment.end())
            && acked.unsigned_abs() <= self.window_max_bytes
    }

    /// Returns a reset for a segment that comes after the socket's own, which was not exact for a client
    /// with newer bytes. The socket may be on its way out, and say nothing. A SYN begins another
    /// connection.
    pub(crate) fn reset_again(&mut self, segment: &Segment) -> Option<Segment> {
        self.is_reset &= !segment.flags.contains(TcpFlags::SYN);
        (self.is_reset && segment.is_pure_ack()).then(|| Segment {
            seq: segment.ack,
            ack: SeqNumber(0),
            flags: TcpFlags::RST,
            window: 0,
            sack: Sack::default(),
            ..*segment
        })
    }

    /// Notes an acceptable segment of the client. Returns false if its acknowledgement is not the
    /// newest.
    pub(crate) fn note(&mut self, segment: &Segment) -> bool {
        if segment.ack.before(self.acked) {
            return false;
        }
        self.acked = segment.ack;
        self.window_bytes = u32::from(segment.window) << self.scale;
        self.window_max_bytes = self.window_max_bytes.max(self.window_bytes);
        true
    }

    /// Returns the number behind the last byte that the socket has sent, if those before `socket_end` come
    /// from nobody else: it has sent what the client has acknowledged. A flow that was opened while the
    /// socket sent does not know the last ones.
    pub(crate) fn sent_by_socket(&self, socket_end: SeqNumber) -> SeqNumber {
        later(self.sent_end, earlier(self.acked, socket_end))
    }

    /// Returns an acceptable segment of the client for the socket.
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

    /// Returns any other segment of the client for the socket, which judges it: nothing that it
    /// acknowledges is hidden.
    pub(crate) fn unchecked_for_socket(&self, segment: &Segment) -> Segment {
        let mut seen = Segment {
            ack: segment.ack - self.bypassed,
            sack: segment.sack.less(self.bypassed),
            ..*segment
        };
        if let Some(timestamps) = &mut seen.timestamps {
            timestamps.echo = self.clock.of_socket(timestamps.echo);
        }
        seen
    }

    /// Lets the next acknowledgement of the socket be kept: a response that goes past the socket is
    /// expected for the request that it acknowledges. If none follows soon,
    /// [`ClientFlow::kept_ack`] has to be sent.
    pub fn hold(&mut self) {
        self.hold = Hold::Armed;
    }

    /// Returns true if an acknowledgement is kept.
    pub fn is_ack_kept(&self) -> bool {
        self.hold == Hold::Kept
    }

    /// Returns the acknowledgement that is kept, if one is.
    pub fn kept_ack(&mut self, now_ms: u64) -> Option<Segment> {
        let is_kept = std::mem::take(&mut self.hold) == Hold::Kept;
        is_kept.then(|| Segment {
            seq: later(self.sent_end, self.acked),
            ack: self.received,
            flags: TcpFlags::ACK,
            window: self.window,
            timestamps: self
                .clock
                .is_used()
                .then(|| Timestamps { value: self.clock.now(now_ms), echo: self.clock.peer() }),
            ..Segment::default()
        })
    }

    /// Returns a segment of the socket for the client; `None`: it is kept ([`ClientFlow::hold`]).
    /// `is_spliced`: another host may send for the socket. `is_ahead`: it does so ahead of the socket,
    /// which has sent all that comes before.
    pub(crate) fn for_client(
        &mut self,
        segment: &Segment,
        is_spliced: bool,
        is_ahead: bool,
        now_ms: u64,
    ) -> Option<Segment> {
        let is_ack = segment.is_pure_ack();
        let is_news =
            is_ack && segment.sack.blocks().is_empty() && self.received.before(segment.ack);
        let is_kept = self.hold == Hold::Armed && is_news && !is_spliced;
        self.hold = match self.hold {
            Hold::Armed if is_kept => Hold::Kept,
            Hold::Kept => Hold::Off,
            hold => hold,
        };
        let mut shown = Segment {
            seq: segment.seq + self.bypassed,
            timestamps: self.clock.sent(segment.timestamps, now_ms),
            ..*segment
        };
        if segment.flags.contains(TcpFlags::ACK) && !segment.flags.contains(TcpFlags::SYN) {
            self.received = later(self.received, segment.ack);
            self.window = segment.window;
        }
        self.sent_end = later(self.sent_end, shown.end());
        if segment.payload_bytes > 0 {
            // The socket has refused the acknowledgement of a byte that it sends again.
            self.socket_acked = earlier(self.socket_acked, shown.seq);
        }
        if segment.has_any(TcpFlags::RST) {
            // A reset is exact, or the client ignores it (RFC 5961 §3.2). The client may have bytes of
            // another host behind those of the socket.
            shown.seq = later(shown.seq, self.acked);
            self.is_reset = true;
        }
        // A socket that has bytes left keeps its numbers: the client has to answer the probe of a window
        // that was closed (RFC 9293 §3.8.6.1).
        if is_ahead && is_ack {
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
        (!is_kept).then_some(shown)
    }
}
