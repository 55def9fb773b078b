//! One connection: the state machine of RFC 9293. What comes goes through `arrive`, what leaves
//! through `transmit`, and time through `timers`.

mod acknowledge;
mod arrive;
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
use timers::Timers;

/// Where a connection is in its life (RFC 9293 §3.3.2). LISTEN is not here: a
/// [`Stack`](crate::Stack) listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// There is no connection, any more.
    Closed,
    /// This end has asked for a connection.
    SynSent,
    /// Both ends have asked, and this one waits for the acknowledgement.
    SynReceived,
    /// Bytes go both ways.
    Established,
    /// This end has closed, and waits for the acknowledgement.
    FinWait1,
    /// This end has closed, and the peer has not.
    FinWait2,
    /// The peer has closed, and this end has not.
    CloseWait,
    /// Both have closed, and this end's is not acknowledged.
    Closing,
    /// Both have closed, the peer first, and this end's is not acknowledged.
    LastAck,
    /// Both have closed; old segments may still come.
    TimeWait,
}

/// Why a connection ended before both ends had closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectionError {
    /// The peer does not accept connections there.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer has reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer has acknowledged nothing for too long.
    #[error("the peer has not answered for too long")]
    TimedOut,
    /// This end has given the connection up.
    #[error("the connection was aborted here")]
    Aborted,
}

/// What the sender does about loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is known to be lost.
    Open,
    /// Something was; until what was sent then is acknowledged the window stays as it is.
    Recovery,
    /// The retransmission timer has expired; the window starts anew.
    Loss,
}

/// A probe for a lost tail that is not settled (RFC 8985 §7.4).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    end: SeqNumber,
    again: bool,
}

/// What is to leave as soon as it can.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    /// SYN, or SYN with ACK.
    syn: bool,
    ack: bool,
    tail_probe: bool,
    /// An byte that the peer has already, so that it answers.
    probe: bool,
    /// What the window allows, however little it is.
    little: bool,
    /// A segment that is none of the connection's course: a reset.
    reset: Option<Header>,
}

/// What both ends have agreed on.
#[derive(Clone, Copy, Debug, Default)]
struct Agreed {
    timestamps: bool,
    sack: bool,
    /// Shift of the peer's windows, and of ours.
    peer_scale: u8,
    own_scale: u8,
}

/// Challenge acknowledgements in a second at most (RFC 5961 §7).
pub const CHALLENGES_PER_S_MAX: u32 = 100;
/// Segments at the start of a connection that are acknowledged at once, so that the peer's window
/// grows.
const QUICK_ACKS: u32 = 16;

/// A connection. `R` holds received bytes, `S` those to send.
pub struct Connection<R, S = Bytes> {
    config: Config,
    state: State,
    error: Option<ConnectionError>,
    agreed: Agreed,
    due: Due,
    timers: Timers,
    stats: Stats,

    // What is sent.
    send: SendQueue<S>,
    iss: SeqNumber,
    una: SeqNumber,
    nxt: SeqNumber,
    fin_wanted: bool,
    window: u32,
    window_max: u32,
    /// Sequence and acknowledgement number of the segment that the window is from (SND.WL1, WL2).
    window_from: (SeqNumber, SeqNumber),
    /// Most bytes of payload in a packet.
    mss: u32,
    board: Scoreboard,
    congestion: Box<dyn Congestion>,
    rtt: Rtt,
    phase: Phase,
    recover_until: SeqNumber,
    window_limited: bool,
    repeated_acks: u32,
    tail_probe: Option<TailProbe>,
    sent_at: Time,
    /// When the peer last showed that it is there and takes bytes.
    progress_at: Time,

    // What is received.
    receive: Receive<R>,
    irs: SeqNumber,
    /// Edge of the window that was announced, and the acknowledgement that was sent last.
    edge: SeqNumber,
    acked: SeqNumber,
    unacked_bytes: u32,
    quick_acks: u32,
    largest_in: u32,
    /// The peer's clock (TS.Recent), and when it was seen.
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
            agreed: Agreed::default(),
            due: Due { syn: true, ..Due::default() },
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
            phase: Phase::Open,
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

    /// Where the connection is in its life.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it ended, where it was not by both ends closing.
    pub fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        Stats { ignored_sacks: self.board.ignored, ..self.stats }
    }

    /// Whether bytes can go both ways, or could.
    pub fn is_established(&self) -> bool {
        self.state >= State::Established
    }

    /// Adds bytes to the stream. They leave by [`poll_transmit`](Connection::poll_transmit), and stay
    /// here until they are acknowledged. Returns the sequence number of the first of them.
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

    /// Bytes that [`send`](Connection::send) takes.
    pub fn send_room_bytes(&self) -> u32 {
        self.send.room_bytes()
    }

    /// Pieces that [`send`](Connection::send) takes.
    pub fn send_room_pieces(&self) -> usize {
        self.send.room_pieces()
    }

    /// Where the next byte that is added will be in the stream.
    pub fn send_end(&self) -> SeqNumber {
        self.send.end()
    }

    /// All bytes before this one have arrived.
    pub fn acknowledged(&self) -> SeqNumber {
        self.send.acknowledged()
    }

    /// Appends the bytes from `start` up to `end` to `out`, as they were added: those of a piece that
    /// is not acknowledged whole. Returns how many there are from `start` on.
    pub fn unacknowledged(&mut self, start: SeqNumber, end: SeqNumber, out: &mut Vec<S>) -> u32 {
        self.send.gather(start, end, usize::MAX, out)
    }

    /// The oldest received bytes that were not read, and where they are in the stream.
    #[inline]
    pub fn read(&mut self) -> Option<(SeqNumber, R)> {
        let read = self.receive.read();
        if read.is_some() {
            self.offer_window();
        }
        read
    }

    /// Where the next byte that is read is in the stream, if it comes.
    pub fn read_at(&self) -> SeqNumber {
        self.receive.read_at()
    }

    /// Bytes that can be read.
    pub fn readable_bytes(&self) -> u32 {
        self.receive.ready_bytes()
    }

    /// The peer has closed, and all that it sent was read.
    pub fn is_read_to_end(&self) -> bool {
        self.receive.finished() && self.receive.ready_bytes() == 0
    }

    /// A larger window is announced once it is worth a segment (RFC 9293 §3.8.6.2.2).
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

    /// Up to where there is room.
    #[inline]
    fn offer(&self) -> SeqNumber {
        self.receive.next() + self.receive.room_bytes().min(self.window_most())
    }

    /// This end has no more to send; what was added before still leaves. Received bytes can be read
    /// until the peer closes too.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent if self.send.end() == self.iss + 1 => self.end(None),
            State::Closed => {}
            _ => self.fin_wanted = true,
        }
    }

    /// Gives the connection up: the peer is told, and nothing is kept.
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

    /// There is no connection any more. What was received can still be read.
    fn end(&mut self, error: Option<ConnectionError>) {
        self.state = State::Closed;
        self.error = self.error.or(error);
        self.timers = Timers::default();
        self.due = Due { reset: self.due.reset, ..Due::default() };
        self.send.clear();
    }

    /// The connection is not wanted any more, and its peer knows.
    pub(crate) fn finish(&mut self) {
        if self.state != State::Closed {
            self.end(None);
        }
    }

    /// Whether FIN was sent.
    fn fin_sent(&self) -> bool {
        self.nxt.since(self.send.end()) > 0
    }

    /// This host's clock of timestamps, in milliseconds.
    #[inline]
    fn clock(&self, at: Time) -> u32 {
        (at.ms() as u32).wrapping_add(self.config.timestamp_offset)
    }

    fn path(&self, now: Time) -> Path {
        Path {
            now,
            min_rtt_ns: self.rtt.min_ns(),
            smoothed_ns: self.rtt.smoothed_ns(),
            recovering: self.phase != Phase::Open,
        }
    }

    /// Bytes that were sent and not acknowledged.
    fn outstanding(&self) -> u32 {
        self.nxt.since(self.una) as u32
    }
}

#[cfg(test)]
#[path = "connection/tests.rs"]
mod tests;
