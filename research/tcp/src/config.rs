//! How a connection behaves.

use core::time::Duration;

use crate::congestion::Algorithm;

/// Settings of a connection. Each has a usual value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest segment without its headers, bytes: the link's MTU less 40 for IPv4, 60 for IPv6.
    pub mss_bytes: u16,
    /// Bytes that wait for the reader: the largest window. At most 1 GiB.
    pub receive_buffer_bytes: u32,
    /// Bytes that are sent or to be sent and not acknowledged. At most 1 GiB.
    pub send_buffer_bytes: u32,
    /// Pieces that these bytes come in.
    pub send_pieces_max: usize,
    /// Bytes that one [`Transmit`](crate::Transmit) carries at most. A device that does not cut
    /// segments gets `mss_bytes` here. With headers it must fit into an IP packet where the device
    /// describes a super-segment as one.
    pub super_segment_bytes: u32,
    /// Pieces in the gather list of one [`Transmit`](crate::Transmit) at most.
    pub gather_pieces_max: usize,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Short segments wait until everything before them is acknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Longest that an acknowledgement waits for company (RFC 9293 §3.8.6.3).
    pub delayed_ack: Duration,
    /// Shortest retransmission timeout.
    pub retransmission_timeout_min: Duration,
    /// The connection is given up when nothing is acknowledged for so long (RFC 9293 §3.8.3).
    pub user_timeout: Duration,
    /// Idle for so long, the peer is asked whether it is there (RFC 9293 §3.8.4); never by default.
    pub keepalive: Option<Duration>,
    /// Stay of a closed connection (twice MSL).
    pub time_wait: Duration,
    /// Added to the clock of timestamps, so that it says nothing of this host (RFC 7323 §5.4).
    pub timestamp_offset: u32,
}

/// Largest buffer: the largest window (RFC 7323 §2.2).
pub const BUFFER_BYTES_MAX: u32 = 1 << 30;

impl Default for Config {
    fn default() -> Config {
        Config {
            mss_bytes: 1460,
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            send_pieces_max: 16_384,
            super_segment_bytes: 65_535 - 120,
            gather_pieces_max: 64,
            algorithm: Algorithm::default(),
            timestamps: true,
            sack: true,
            nagle: false,
            delayed_ack: Duration::from_millis(40),
            retransmission_timeout_min: Duration::from_millis(200),
            user_timeout: Duration::from_secs(300),
            keepalive: None,
            time_wait: Duration::from_secs(60),
            timestamp_offset: 0,
        }
    }
}

impl Config {
    /// The settings with each value inside its limits.
    pub(crate) fn bounded(self) -> Config {
        Config {
            mss_bytes: self.mss_bytes.max(MSS_BYTES_MIN),
            receive_buffer_bytes: self.receive_buffer_bytes.clamp(1, BUFFER_BYTES_MAX),
            send_buffer_bytes: self.send_buffer_bytes.clamp(1, BUFFER_BYTES_MAX),
            send_pieces_max: self.send_pieces_max.max(1),
            super_segment_bytes: self.super_segment_bytes.max(u32::from(MSS_BYTES_MIN)),
            gather_pieces_max: self.gather_pieces_max.max(1),
            ..self
        }
    }

    /// Shift of the windows that are announced.
    pub(crate) fn window_scale(&self) -> u8 {
        let beyond = u32::BITS - (self.receive_buffer_bytes >> 16).leading_zeros();
        beyond.min(u32::from(crate::options::WINDOW_SCALE_MAX)) as u8
    }
}

/// Smallest segment that is believed: with options, payload is left (RFC 9293 §3.7.1 leaves it open;
/// a peer that asks for less costs its host more than it is worth).
pub const MSS_BYTES_MIN: u16 = 88;
