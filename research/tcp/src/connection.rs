//! One connection: the state machine of RFC 9293. `arrive` processes received segments, `transmit`
//! builds segments to send, and `timers` handles timeouts.

mod acknowledge;
mod arrive;
mod deadlines;
mod handshake;
mod timers;
mod transmit;

use bytes::Bytes;
use thiserror::Error;
use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use crate::config::Config;
use crate::congestion::Congestion;
use crate::payload::Payload;
use crate::receive::Receive;
use crate::recover::{Path, Scoreboard};
use crate::rtt::Rtt;
use crate::segment::Header;
use crate::send::{SendError, SendQueue};
use crate::stats::Stats;
use crate::time::{Time, ns};
use deadlines::Timers;

/// Connection state (RFC 9293 §3.3.2). LISTEN is a state of a listener in the
/// [`Stack`](crate::Stack).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No connection, or not any more.
    Closed,
    /// This end has sent SYN.
    SynSent,
    /// Both ends have sent SYN, and this one waits for the acknowledgement.
    SynReceived,
    /// Bytes flow in both directions.
    Established,
    /// This end has closed, and its FIN is not acknowledged.
    FinWait1,
    /// This end has closed, and the peer has not.
    FinWait2,
    /// The peer has closed, and this end has not.
    CloseWait,
    /// Both have closed, and this end's FIN is not acknowledged.
    Closing,
    /// Both have closed, the peer first, and this end's FIN is not acknowledged.
    LastAck,
    /// Both have closed; old segments may still arrive.
    TimeWait,
}

/// Reason why a connection ended before both ends had closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectionError {
    /// The peer does not accept connections on that port.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer has reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer has acknowledged nothing for the user timeout.
    #[error("the peer has not answered for too long")]
    TimedOut,
    /// This end has aborted the connection.
    #[error("the connection was aborted here")]
    Aborted,
}

/// Loss recovery phase of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryPhase {
    /// No loss is known.
    Open,
    /// A loss was detected; the window does not grow until the bytes sent up to then are
    /// acknowledged.
    Recovery,
    /// The retransmission timer has expired; the window restarts at one segment.
    Loss,
}

/// A tail loss probe without an outcome (RFC 8985 §7.4).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    end: SeqNumber,
    again: bool,
}

/// Segments that are due to be sent.
#[derive(Clone, Copy, Debug, Default)]
struct DueSegments {
    /// SYN, or SYN with ACK.
    syn: bool,
    ack: bool,
    tail_probe: bool,
    /// A byte that the peer already has, which makes it answer.
    probe: bool,
    /// A segment as small as the window allows.
    little: bool,
    /// A reset, which is independent of the connection's sequence.
    reset: Option<Header>,
}

/// Negotiated options.
#[derive(Clone, Copy, Debug, Default)]
struct NegotiatedOptions {
    timestamps: bool,
    sack: bool,
    /// Window scales of the peer and of this end.
    peer_scale: u8,
    own_scale: u8,
}

/// Maximum challenge acknowledgements per second (RFC 5961 §7).
pub const CHALLENGES_PER_S_MAX: u32 = 100;
/// Number of segments at the start of a connection that are acknowledged immediately, so that the
/// peer's window grows.
const QUICK_ACKS: u32 = 16;

/// A connection. `R` stores received bytes, `S` bytes to send.
pub struct Connection<R, S = Bytes> {
    config: Config,
    state: State,
    error: Option<ConnectionError>,
    agreed: NegotiatedOptions,
    due: DueSegments,
    timers: Timers,
    stats: Stats,

    // Send state.
    send: SendQueue<S>,
    iss: SeqNumber,
    una: SeqNumber,
    nxt: SeqNumber,
    fin_wanted: bool,
    window: u32,
    window_max: u32,
    /// Sequence and acknowledgement number of the last window update (SND.WL1, WL2).
    window_from: (SeqNumber, SeqNumber),
    /// Maximum payload of a packet.
    mss: u32,
    board: Scoreboard,
    congestion: Box<dyn Congestion>,
    rtt: Rtt,
    phase: RecoveryPhase,
    recover_until: SeqNumber,
    window_limited: bool,
    repeated_acks: u32,
    tail_probe: Option<TailProbe>,
    sent_at: Time,
    /// The last time that the peer acknowledged data or proved that it is alive.
    progress_at: Time,

    // Receive state.
    receive: Receive<R>,
    irs: SeqNumber,
    /// Right edge of the announced window, and the last acknowledgement sent.
    edge: SeqNumber,
    acked: SeqNumber,
    unacked_bytes: u32,
    quick_acks: u32,
    largest_in: u32,
    /// The peer's timestamp (TS.Recent), and the time at which it was received.
    peer_clock: u32,
    peer_clock_at: Time,
    heard_at: Time,
    challenges: (Time, u32),
}

impl<R: Payload, S: Payload + Clone> Connection<R, S> {
    fn new(config: Config, now: Time, isn: SeqNumber, state: State) -> Connection<R, S> {
        let config = config.bounded();
        let mss = u32::from(config.mss_bytes);
        Connection {
            config,
            state,
            error: None,
            agreed: NegotiatedOptions::default(),
            due: DueSegments { syn: true, ..DueSegments::default() },
            timers: Timers::default(),
            stats: Stats::default(),
            send: SendQueue::new(isn + 1, config.send_buffer_bytes, config.send_pieces_max),
            iss: isn,
            una: isn,
            nxt: isn,
            fin_wanted: false,
            window: 0,
            window_max: 0,
            window_from: (SeqNumber(0), SeqNumber(0)),
            mss,
            board: Scoreboard::new(isn + 1, mss),
            congestion: config.algorithm.start(mss),
            rtt: Rtt::new(ns(config.retransmission_timeout_min)),
            phase: RecoveryPhase::Open,
            recover_until: isn,
            window_limited: false,
            repeated_acks: 0,
            tail_probe: None,
            sent_at: now,
            progress_at: now,
            receive: Receive::new(SeqNumber(0), config.receive_buffer_bytes),
            irs: SeqNumber(0),
            edge: SeqNumber(0),
            acked: SeqNumber(0),
            unacked_bytes: 0,
            quick_acks: QUICK_ACKS,
            largest_in: 0,
            peer_clock: 0,
            peer_clock_at: now,
            heard_at: now,
            challenges: (now, 0),
        }
    }

    /// The connection's state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The reason why it ended, unless both ends closed it.
    pub fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        Stats { ignored_sacks: self.board.ignored, ..self.stats }
    }

    /// Returns true if the handshake has completed.
    pub fn is_established(&self) -> bool {
        self.state >= State::Established
    }

    /// Appends bytes to the stream. [`poll_transmit`](Connection::poll_transmit) sends them, and
    /// they are kept until they are acknowledged. Returns the sequence number of the first of
    /// them.
    ///
    /// # Errors
    /// There is no room, or this end has closed.
    #[inline]
    pub fn send(&mut self, bytes: S) -> Result<SeqNumber, SendError> {
        let open = matches!(
            self.state,
            State::SynSent | State::SynReceived | State::Established | State::CloseWait
        );
        if !open || self.fin_wanted {
            return Err(SendError::Closed);
        }
        self.send.push(bytes)
    }

    /// Number of bytes that [`send`](Connection::send) accepts.
    pub fn send_room_bytes(&self) -> u32 {
        self.send.room_bytes()
    }

    /// Number of chunks that [`send`](Connection::send) accepts.
    pub fn send_room_pieces(&self) -> usize {
        self.send.room_pieces()
    }

    /// Sequence number of the next byte to be appended.
    pub fn send_end(&self) -> SeqNumber {
        self.send.end()
    }

    /// The first byte that is not acknowledged.
    pub fn acknowledged(&self) -> SeqNumber {
        self.send.acknowledged()
    }

    /// Appends the bytes from `start` up to `end` to `out`, as they were queued; only bytes of
    /// chunks that are not completely acknowledged are available. Returns their number, from
    /// `start` on.
    pub fn unacknowledged(&mut self, start: SeqNumber, end: SeqNumber, out: &mut Vec<S>) -> u32 {
        self.send.gather(start, end, usize::MAX, out)
    }

    /// The oldest unread received bytes, and their sequence number.
    #[inline]
    pub fn read(&mut self) -> Option<(SeqNumber, R)> {
        let read = self.receive.read();
        if read.is_some() {
            self.offer_window();
        }
        read
    }

    /// Sequence number of the next byte to be read.
    pub fn read_at(&self) -> SeqNumber {
        self.receive.read_at()
    }

    /// Number of bytes that can be read.
    pub fn readable_bytes(&self) -> u32 {
        self.receive.ready_bytes()
    }

    /// Returns true if the peer has closed, and all of its bytes were read.
    pub fn is_read_to_end(&self) -> bool {
        self.receive.finished() && self.receive.ready_bytes() == 0
    }

    /// Announces a larger window if the increase is worth a segment (RFC 9293 §3.8.6.2.2).
    fn offer_window(&mut self) {
        let more = self.offer().since(self.edge);
        let left = self.edge.since(self.receive.next());
        let half = (self.config.receive_buffer_bytes.min(self.window_most()) / 2) as i32;
        let little = left < 2 * self.largest_in as i32;
        let worth = half.min(self.mss as i32).max(1);
        if (more >= half.max(1) || (little && more >= worth)) && !self.receive.finished() {
            self.due.ack |= self.state >= State::Established;
        }
    }

    /// The largest window that can be announced.
    #[inline]
    fn window_most(&self) -> u32 {
        u32::from(u16::MAX) << self.agreed.own_scale
    }

    /// The right edge of the receive buffer.
    #[inline]
    fn offer(&self) -> SeqNumber {
        self.receive.next() + self.receive.room_bytes().min(self.window_most())
    }

    /// Closes the sending direction; queued bytes are still sent. Received bytes can be read until
    /// the peer closes too.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent if self.send.end() == self.iss + 1 => self.end(None),
            State::Closed => {}
            _ => self.fin_wanted = true,
        }
    }

    /// Aborts the connection: sends a reset, and frees the queued bytes.
    pub fn abort(&mut self) {
        let known = !matches!(self.state, State::Closed | State::SynSent | State::TimeWait);
        if known {
            self.due.reset = Some(Header {
                seq: self.nxt,
                ack: self.receive.next(),
                flags: TcpFlags::RST | TcpFlags::ACK,
                ..Header::default()
            });
        }
        if self.state != State::Closed {
            self.end(Some(ConnectionError::Aborted));
        }
    }

    /// Ends the connection. Received bytes can still be read.
    fn end(&mut self, error: Option<ConnectionError>) {
        self.state = State::Closed;
        self.error = self.error.or(error);
        self.timers = Timers::default();
        self.due = DueSegments { reset: self.due.reset, ..DueSegments::default() };
        self.send.clear();
    }

    /// Ends the connection without an error and without a reset.
    pub(crate) fn finish(&mut self) {
        if self.state != State::Closed {
            self.end(None);
        }
    }

    /// Returns true if FIN was sent.
    fn fin_sent(&self) -> bool {
        self.nxt.since(self.send.end()) > 0
    }

    /// This host's timestamp clock, in milliseconds.
    #[inline]
    fn clock(&self, at: Time) -> u32 {
        (at.ms() as u32).wrapping_add(self.config.timestamp_offset)
    }

    fn path(&self, now: Time) -> Path {
        Path {
            now,
            min_rtt_ns: self.rtt.min_ns(),
            smoothed_ns: self.rtt.smoothed_ns(),
            recovering: self.phase != RecoveryPhase::Open,
        }
    }

    /// Number of sent, unacknowledged bytes.
    fn outstanding(&self) -> u32 {
        self.nxt.since(self.una) as u32
    }
}

#[cfg(test)]
#[path = "connection/tests.rs"]
mod tests;
