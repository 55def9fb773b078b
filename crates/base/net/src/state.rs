//! The state of one connection, as plain data: the socket's ([`TcpSnapshot`]) and the TLS record
//! layer's ([`TlsSnapshot`]). Secrets are zeroised when they are dropped.

use std::time::Duration;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{FlowKey, SeqNumber};

/// Most bytes of one queue (send, receive, plaintext, ciphertext) in a snapshot.
pub const QUEUE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The options that the two ends negotiated in SYN and SYN-ACK. Only options that are set here are
/// restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedOptions {
    /// Largest segment this end may send, in bytes (the clamp that TCP_MAXSEG reports).
    pub mss_bytes: u16,
    /// (our shift for the peer's windows, the shift of windows we announce); RFC 7323 §2.
    pub window_scale: Option<(u8, u8)>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Our timestamp clock as TCP_TIMESTAMP reports it, if timestamps were negotiated (RFC 7323
    /// §3). Opaque: from Linux 6.7 on, the lowest bit is set if its unit is the microsecond.
    pub timestamp: Option<u32>,
    /// ECN was negotiated (RFC 3168). It cannot be restored; kept for accounting.
    pub ecn: bool,
}

/// Send and receive windows (struct tcp_repair_window of Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Sequence number of the segment that last updated the send window.
    pub snd_wl1: u32,
    /// The window that the peer advertised, bytes.
    pub snd_wnd: u32,
    /// The largest window that the peer ever advertised, bytes.
    pub max_window: u32,
    /// The window that we advertised, bytes.
    pub rcv_wnd: u32,
    /// rcv_nxt at our last window advertisement.
    pub rcv_wup: u32,
}

/// The state of congestion control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Congestion {
    /// Congestion window, segments.
    pub cwnd_segments: u32,
    /// Slow-start threshold, segments (u32::MAX half: none yet).
    pub ssthresh_segments: u32,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Time since the window was last used, milliseconds: an old window is not restored.
    pub idle_ms: u32,
    /// Name of the algorithm, e.g. `cubic`.
    pub algorithm: String,
}

/// Socket options that the peer can notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// (idle, interval, probes) of keep-alive, seconds, if it is on.
    pub keepalive_s: Option<(u32, u32, u32)>,
    /// TCP_USER_TIMEOUT, milliseconds; 0 is the system's default.
    pub user_timeout_ms: u32,
    /// Nagle's algorithm is off.
    pub nodelay: bool,
}

/// One TCP connection in state ESTABLISHED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSnapshot {
    /// The connection.
    pub flow: FlowKey,
    /// The negotiated options.
    pub options: NegotiatedOptions,
    /// Sequence number of the first byte of `send_queue` (snd_una).
    pub send_seq: SeqNumber,
    /// Sequence number of the first byte of `receive_queue`.
    pub receive_seq: SeqNumber,
    /// Bytes sent, not acknowledged.
    pub send_queue: Vec<u8>,
    /// Bytes received, acknowledged, not read.
    pub receive_queue: Vec<u8>,
    /// Windows both ways.
    pub windows: Windows,
    /// Congestion state.
    pub congestion: Congestion,
    /// Socket options.
    pub socket: SocketOptions,
    /// Segments received so far (tcpi_segs_in); shows the owner late arrivals.
    pub segments_in: u32,
    /// The peer has sent FIN, or its TLS close_notify: no input follows the receive queue. The
    /// FIN's sequence number is not part of `receive_seq`.
    pub peer_closed: bool,
}

impl TcpSnapshot {
    /// Advances the timestamp clock by the time since the snapshot was taken. The clock of the
    /// original socket continues; if its process was stopped before it closed the socket, the
    /// kernel has sent with later values, and a lower value would be taken for an old segment (RFC
    /// 7323 §5). The lowest bit, which encodes the unit (milliseconds or microseconds), is
    /// preserved.
    pub fn set_clock_forward(&mut self, passed: Duration) {
        let Some(clock) = &mut self.options.timestamp else { return };
        let ticks = match *clock & 1 {
            0 => passed.as_millis(),
            _ => passed.as_micros(),
        };
        *clock = clock.wrapping_add((ticks as u32).wrapping_add(1) & !1);
    }

    /// Sequence number after the last byte that was sent.
    pub fn send_end(&self) -> SeqNumber {
        self.send_seq + self.send_queue.len() as u32
    }

    /// Returns true if this newer state of the same socket cannot be replaced by `older`: bytes
    /// were received, bytes were acknowledged, or the peer opened a closed window.
    pub fn supersedes(&self, older: &TcpSnapshot) -> bool {
        self.receive_queue.len() != older.receive_queue.len()
            || self.receive_seq != older.receive_seq
            || self.send_seq != older.send_seq
            || self.peer_closed != older.peer_closed
            || (older.windows.snd_wnd == 0 && self.windows.snd_wnd > 0)
    }
}

/// Key material of one direction of a TLS connection.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct DirectionSecrets {
    /// AEAD key.
    pub key: Vec<u8>,
    /// TLS 1.3: the static IV. TLS 1.2 GCM: implicit salt and the base of the explicit nonce.
    pub iv: [u8; 12],
    /// Sequence number of the next record.
    pub sequence: u64,
    /// TLS 1.3 application traffic secret of the current generation; empty for TLS 1.2.
    pub traffic_secret: Vec<u8>,
}

impl core::fmt::Debug for DirectionSecrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "DirectionSecrets {{ sequence: {}, .. }}", self.sequence)
    }
}

/// The TLS record state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSnapshot {
    /// Protocol version on the wire: 0x0303 or 0x0304.
    pub version: u16,
    /// IANA number of the cipher suite.
    pub suite: u16,
    /// Client to server.
    pub read: DirectionSecrets,
    /// Server to client.
    pub write: DirectionSecrets,
    /// Received ciphertext of a record that is not complete yet.
    pub ciphertext: Vec<u8>,
}
