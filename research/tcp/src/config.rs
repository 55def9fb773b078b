//! Configuration of a connection.

use core::time::Duration;

use crate::algorithm::Algorithm;

/// Settings of a connection. Each has a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum segment size without headers, bytes: the link's MTU less 40 for IPv4, 60 for IPv6.
    pub mss_bytes: u16,
    /// Capacity for bytes that were not read: the maximum window. At most 1 GiB.
    pub receive_buffer_bytes: u32,
    /// Capacity for bytes to send, and for sent, unacknowledged bytes. At most 1 GiB.
    pub send_buffer_bytes: u32,
    /// Maximum number of chunks of these bytes.
    pub send_pieces_max: usize,
    /// Maximum payload of one [`Transmit`](crate::Transmit), bytes; `mss_bytes` for a device
    /// without segmentation offload. With headers it must fit into an IP packet if the device
    /// describes a super-segment as one.
    pub super_segment_bytes: u32,
    /// Maximum number of chunks in the gather list of one [`Transmit`](crate::Transmit).
    pub gather_pieces_max: usize,
    /// Congestion control algorithm.
    pub algorithm: Algorithm,
    /// Offers timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offers selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Delays short segments until all earlier bytes are acknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Maximum delay of an acknowledgement (RFC 9293 §3.8.6.3).
    pub delayed_ack: Duration,
    /// Minimum retransmission timeout.
    pub retransmission_timeout_min: Duration,
    /// Time without an acknowledgement after which the connection is aborted (RFC 9293 §3.8.3).
    pub user_timeout: Duration,
    /// Idle time before keepalive probes (RFC 9293 §3.8.4); disabled by default.
    pub keepalive: Option<Duration>,
    /// Duration of TIME-WAIT (twice MSL).
    pub time_wait: Duration,
    /// Offset of the timestamp clock, which hides this host's clock (RFC 7323 §5.4).
    pub timestamp_offset: u32,
}

/// Maximum buffer size: the largest window (RFC 7323 §2.2).
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
    /// Returns the settings with each value clamped to its limits.
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

    /// Window scale of the announced windows.
    pub(crate) fn window_scale(&self) -> u8 {
        let beyond = u32::BITS - (self.receive_buffer_bytes >> 16).leading_zeros();
        beyond.min(u32::from(crate::options::WINDOW_SCALE_MAX)) as u8
    }
}

/// Minimum accepted MSS: with options it leaves room for payload (RFC 9293 §3.7.1 sets no minimum;
/// a smaller MSS would cost its host more than it is worth).
pub const MSS_BYTES_MIN: u16 = 88;
