//! Interface of a congestion control algorithm.

use core::fmt::Debug;

use crate::time::Time;

/// Maximum congestion window: that of TCP itself (RFC 7323 §2.2).
pub const CONGESTION_WINDOW_BYTES_MAX: u32 = 1 << 30;

/// A congestion control algorithm. Windows are in bytes.
pub trait Congestion: Debug + Send {
    /// Congestion window: the maximum number of bytes in flight.
    fn window_bytes(&self) -> u32;

    /// Slow start threshold.
    fn threshold_bytes(&self) -> u32;

    /// `acked_bytes` were acknowledged outside of recovery, while the window limited the sender.
    /// `rtt_ns` is the smoothed round-trip time.
    fn acknowledged(&mut self, now: Time, acked_bytes: u32, rtt_ns: u64);

    /// A loss was detected with `in_flight_bytes` in flight; called once for each recovery.
    fn lost(&mut self, now: Time, in_flight_bytes: u32);

    /// The retransmission timer expired, for the first time for these bytes.
    fn timed_out(&mut self, now: Time, in_flight_bytes: u32);

    /// Nothing was sent for longer than the retransmission timeout (RFC 5681 §4.1).
    fn idle(&mut self);
}

/// Initial congestion window (RFC 6928 §2).
pub(crate) fn initial_window_bytes(mss_bytes: u32) -> u32 {
    (10 * mss_bytes).min(14_600.max(2 * mss_bytes))
}
