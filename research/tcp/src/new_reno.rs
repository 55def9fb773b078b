//! RFC 5681's congestion avoidance; the recovery of RFC 6582 is the connection's.

use crate::congestion::{CONGESTION_WINDOW_BYTES_MAX, Congestion, initial_window_bytes};
use crate::time::Time;

/// Additive increase of one segment per round-trip time, halving after a loss.
#[derive(Debug)]
pub struct NewReno {
    mss_bytes: u32,
    window_bytes: u32,
    threshold_bytes: u32,
    /// Bytes acknowledged since the window last grew (RFC 3465 §2.1).
    acked_bytes: u32,
}

impl NewReno {
    /// Initial state of a connection.
    pub fn new(mss_bytes: u32) -> NewReno {
        NewReno {
            mss_bytes,
            window_bytes: initial_window_bytes(mss_bytes),
            threshold_bytes: CONGESTION_WINDOW_BYTES_MAX,
            acked_bytes: 0,
        }
    }

    fn halve(&mut self, in_flight_bytes: u32) {
        self.threshold_bytes = (in_flight_bytes / 2).max(2 * self.mss_bytes);
        self.acked_bytes = 0;
    }
}

impl Congestion for NewReno {
    fn window_bytes(&self) -> u32 {
        self.window_bytes
    }

    fn threshold_bytes(&self) -> u32 {
        self.threshold_bytes
    }

    fn acknowledged(&mut self, _now: Time, acked_bytes: u32, _rtt_ns: u64) {
        if self.window_bytes < self.threshold_bytes {
            self.window_bytes += acked_bytes.min(self.threshold_bytes - self.window_bytes);
        } else {
            self.acked_bytes = self.acked_bytes.saturating_add(acked_bytes);
            if self.acked_bytes >= self.window_bytes {
                self.acked_bytes -= self.window_bytes;
                self.window_bytes += self.mss_bytes;
            }
        }
        self.window_bytes = self.window_bytes.min(CONGESTION_WINDOW_BYTES_MAX);
    }

    fn lost(&mut self, _now: Time, in_flight_bytes: u32) {
        self.halve(in_flight_bytes);
        self.window_bytes = self.threshold_bytes;
    }

    fn timed_out(&mut self, _now: Time, in_flight_bytes: u32) {
        self.halve(in_flight_bytes);
        self.window_bytes = self.mss_bytes;
    }

    fn idle(&mut self) {
        self.window_bytes = self.window_bytes.min(initial_window_bytes(self.mss_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one() {
        let mut reno = NewReno::new(1000);
        assert_eq!(reno.window_bytes(), 10_000);
        reno.acknowledged(Time::from_ms(1), 10_000, 0);
        assert_eq!(reno.window_bytes(), 20_000);
        reno.lost(Time::from_ms(2), 20_000);
        assert_eq!((reno.window_bytes(), reno.threshold_bytes()), (10_000, 10_000));
        for _ in 0..9 {
            reno.acknowledged(Time::from_ms(3), 1000, 0);
        }
        assert_eq!(reno.window_bytes(), 10_000);
        reno.acknowledged(Time::from_ms(3), 1000, 0);
        assert_eq!(reno.window_bytes(), 11_000);
    }

    #[test]
    fn a_timeout_starts_again_and_idleness_keeps_the_threshold() {
        let mut reno = NewReno::new(1000);
        reno.acknowledged(Time::from_ms(1), 30_000, 0);
        reno.timed_out(Time::from_ms(2), 30_000);
        assert_eq!((reno.window_bytes(), reno.threshold_bytes()), (1000, 15_000));
        reno.acknowledged(Time::from_ms(3), 100_000, 0);
        assert_eq!(reno.window_bytes(), 15_000, "slow start ends at the threshold");
        reno.idle();
        assert_eq!((reno.window_bytes(), reno.threshold_bytes()), (10_000, 15_000));
        reno.lost(Time::from_ms(4), 100);
        assert_eq!(reno.window_bytes(), 2000, "never below two segments");
    }
}
