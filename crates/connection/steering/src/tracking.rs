//! Validation of a client's segments: the rule of bpf/tracking.h, in Rust.
//!
//! The programs see packets before any TCP does, including forged ones. A segment therefore updates
//! the tracked state of a connection only if a TCP with the same bounds would accept it (RFC 9293
//! §3.10.7.4, RFC 5961 §5.2): its sequence numbers lie within a window around the newest one, and
//! its acknowledgement lies within the largest window that the client has offered. An attacker that
//! has only the addresses and ports must guess both.
//!
//! User space sets the bounds from a snapshot ([`TrackedState::of`], [`crate::FlowEntry::track`]);
//! the programs update them. [`TrackedState::evaluate`] and [`TrackedState::apply`] define the
//! rule; a test applies the same segments to the programs.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;
use unlade_net::state::TcpSnapshot;

/// Smallest assumed receive window, which any TCP may use initially.
const RECEIVE_WINDOW_BYTES_MIN: u32 = 65_535;
/// Largest value of the window field of a header.
const WINDOW_FIELD_MAX: u32 = 65_535;
/// Largest window scale (RFC 7323 §2.3).
const WINDOW_SHIFT_MAX: u8 = 14;

/// Tracked state of a connection, from the service's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedState {
    /// The client's newest acknowledgement number.
    pub last_ack: SeqNumber,
    /// Sequence number behind the client's newest segment.
    pub last_seq: SeqNumber,
    /// The window field of the segment with `last_ack`, without scaling.
    pub last_window: u16,
    /// Largest window that the client has offered, in bytes.
    pub window_max_bytes: u32,
    /// Largest window that the service can have offered so far, in bytes.
    pub receive_window_bytes: u32,
    /// Largest window that the service's window scale allows, in bytes.
    pub receive_max_bytes: u32,
    /// Window scale of the client, as a shift count.
    pub shift: u8,
}

/// The fields of a segment that the rule uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFields {
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number.
    pub ack: SeqNumber,
    /// Length of the payload, in bytes.
    pub payload_bytes: u32,
    /// Window field, without scaling.
    pub window: u16,
    /// Control bits.
    pub flags: TcpFlags,
}

/// Parts of the tracked state that a segment updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateUpdate {
    /// The segment acknowledges more data or offers another window.
    pub ack: bool,
    /// The segment ends behind all earlier ones.
    pub seq: bool,
    /// The segment is acceptable, but its acknowledgement is not the newest.
    pub old: bool,
}

impl StateUpdate {
    /// Returns true if the segment changes the tracked state.
    pub fn moves(self) -> bool {
        self.ack || self.seq
    }
}

impl TrackedState {
    /// Creates the tracked state of a snapshot.
    pub fn of(tcp: &TcpSnapshot) -> TrackedState {
        let shifts = tcp.options.window_scale.unwrap_or((0, 0));
        let (send, receive) = (shifts.0.min(WINDOW_SHIFT_MAX), shifts.1.min(WINDOW_SHIFT_MAX));
        let receive_max_bytes = WINDOW_FIELD_MAX << receive;
        let receive_window = tcp.windows.rcv_wnd.max(RECEIVE_WINDOW_BYTES_MIN);
        TrackedState {
            last_ack: tcp.send_seq,
            last_seq: tcp.receive_seq + tcp.receive_queue.len() as u32,
            last_window: (tcp.windows.snd_wnd >> send).min(WINDOW_FIELD_MAX) as u16,
            window_max_bytes: tcp.windows.max_window.min(WINDOW_FIELD_MAX << WINDOW_SHIFT_MAX),
            receive_window_bytes: receive_window.min(receive_max_bytes),
            receive_max_bytes,
            shift: send,
        }
    }

    /// Returns the updates of a segment; none if it is not acceptable.
    pub fn evaluate(&self, fields: &SegmentFields) -> StateUpdate {
        let decisive = [TcpFlags::SYN, TcpFlags::RST];
        if !fields.flags.contains(TcpFlags::ACK)
            || decisive.iter().any(|flag| fields.flags.contains(*flag))
        {
            return StateUpdate::default();
        }
        let window = self.receive_window_bytes;
        let (first, end) = (self.last_seq - window, fields.seq + fields.payload_bytes);
        let outside = |seq: SeqNumber| (seq - first.0).0 > 2 * window;
        if outside(fields.seq) || outside(end) {
            return StateUpdate::default();
        }
        let (ahead, acked) = (end.since(self.last_seq), fields.ack.since(self.last_ack));
        if acked.unsigned_abs() > self.window_max_bytes {
            return StateUpdate::default();
        }
        let other_window = acked == 0 && ahead >= 0 && fields.window != self.last_window;
        let ack = acked > 0 || other_window;
        let old = acked < 0;
        let seq = ahead > 0 && ((ack && !old) || ahead.unsigned_abs() >= window / 4);
        StateUpdate { ack, seq, old }
    }

    /// Returns the state after applying the updates of a segment with a correct checksum.
    #[must_use]
    pub fn apply(mut self, fields: &SegmentFields, update: StateUpdate) -> TrackedState {
        if update.ack {
            self.last_ack = fields.ack;
            self.last_window = fields.window;
            let offered = u32::from(fields.window) << self.shift;
            self.window_max_bytes = self.window_max_bytes.max(offered);
        }
        if update.seq {
            let end = fields.seq + fields.payload_bytes;
            let opened = 2u32.wrapping_mul((end - self.last_seq.0).0);
            let window = self.receive_window_bytes.wrapping_add(opened);
            self.receive_window_bytes = window.min(self.receive_max_bytes);
            self.last_seq = end;
        }
        self
    }
}
