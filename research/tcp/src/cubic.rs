//! CUBIC (RFC 9438).

use crate::congestion::{CONGESTION_WINDOW_BYTES_MAX, Congestion, initial_window_bytes};
use crate::time::Time;

/// Growth rate of the cubic function, segments per cubic second (§5.1).
const C: f64 = 0.4;
/// Multiplicative decrease factor (§4.6).
const BETA: f64 = 0.7;
/// Increase of the Reno-friendly window per round-trip time, segments (§4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// State since the last loss: an epoch of congestion avoidance (§4.2).
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Time,
    /// Seconds until the window reaches its value before the loss (K).
    until_max_s: f64,
    /// Estimate of Reno's window, segments (W_est).
    reno: f64,
}

/// The window as a cubic function of the time since the last loss.
#[derive(Debug)]
pub struct Cubic {
    mss_bytes: f64,
    /// Segments.
    window: f64,
    threshold: f64,
    /// The window before the last loss (W_max).
    max: f64,
    /// The window before the last loss, without fast convergence (cwnd_prior).
    prior: f64,
    epoch: Option<Epoch>,
}

impl Cubic {
    /// Initial state of a connection.
    pub fn new(mss_bytes: u32) -> Cubic {
        let mss = f64::from(mss_bytes);
        Cubic {
            mss_bytes: mss,
            window: f64::from(initial_window_bytes(mss_bytes)) / mss,
            threshold: f64::from(CONGESTION_WINDOW_BYTES_MAX) / mss,
            max: 0.0,
            prior: 0.0,
            epoch: None,
        }
    }

    fn shrink(&mut self, in_flight_bytes: u32) {
        // Fast convergence (§4.7): the window did not recover fully, so other flows need capacity.
        let converges = self.window < self.max;
        self.max = if converges { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.prior = self.window;
        self.threshold = (f64::from(in_flight_bytes) / self.mss_bytes * BETA).max(2.0);
        self.epoch = None;
    }

    fn begin_epoch(&mut self, now: Time) -> Epoch {
        self.max = self.max.max(self.window);
        let until_max_s = ((self.max - self.window) / C).cbrt();
        Epoch { start: now, until_max_s, reno: self.window }
    }

    fn avoid(&mut self, now: Time, acked: f64, rtt_ns: u64) {
        let mut epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin_epoch(now),
        };
        let seconds = now.ns_since(epoch.start) as f64 / 1e9;
        let cubic = |s: f64| C * (s - epoch.until_max_s).powi(3) + self.max;
        let target = cubic(seconds + rtt_ns as f64 / 1e9).clamp(self.window, 1.5 * self.window);
        let alpha = if epoch.reno < self.prior { ALPHA } else { 1.0 };
        let reno = epoch.reno + alpha * acked / self.window;
        let is_reno_ahead = cubic(seconds) < reno;
        epoch.reno = reno;
        self.epoch = Some(epoch);
        if is_reno_ahead {
            self.window = self.window.max(reno);
        } else {
            self.window += (target - self.window) / self.window * acked;
        }
    }
}

impl Congestion for Cubic {
    fn window_bytes(&self) -> u32 {
        ((self.window * self.mss_bytes) as u32).min(CONGESTION_WINDOW_BYTES_MAX)
    }

    fn threshold_bytes(&self) -> u32 {
        ((self.threshold * self.mss_bytes) as u32).min(CONGESTION_WINDOW_BYTES_MAX)
    }

    fn acknowledged(&mut self, now: Time, acked_bytes: u32, rtt_ns: u64) {
        let acked = f64::from(acked_bytes) / self.mss_bytes;
        if self.window < self.threshold {
            self.window = (self.window + acked).min(self.threshold);
        } else {
            self.avoid(now, acked, rtt_ns);
        }
        self.window = self.window.min(f64::from(CONGESTION_WINDOW_BYTES_MAX) / self.mss_bytes);
    }

    fn lost(&mut self, _now: Time, in_flight_bytes: u32) {
        self.shrink(in_flight_bytes);
        self.window = self.threshold;
    }

    fn timed_out(&mut self, _now: Time, in_flight_bytes: u32) {
        self.shrink(in_flight_bytes);
        self.window = 1.0;
    }

    fn idle(&mut self) {
        let initial = f64::from(initial_window_bytes(self.mss_bytes as u32)) / self.mss_bytes;
        self.window = self.window.min(initial);
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of `rtt_ms` with one loss at `window` segments; returns its windows each
    /// round.
    fn after_a_loss(window: u32, rtt_ms: u64, rounds: u64) -> Vec<u32> {
        let mut cubic = Cubic::new(1000);
        cubic.acknowledged(Time::from_ms(0), (window - 10) * 1000, rtt_ms * 1_000_000);
        assert_eq!(cubic.window_bytes(), window * 1000);
        cubic.lost(Time::from_ms(0), window * 1000);
        let round = |number: u64| {
            for _ in 0..cubic.window_bytes() / 1000 {
                let now = Time::from_ms((number + 1) * rtt_ms);
                cubic.acknowledged(now, 1000, rtt_ms * 1_000_000);
            }
            cubic.window_bytes()
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn the_window_comes_back_after_k_seconds() {
        // K = cbrt(1000 * 0.3 / 0.4) = 9.09 s; 995 segments cbrt(5 / 0.4) = 2.3 s before that.
        let windows = after_a_loss(1000, 100, 120);
        assert!(windows[0] < 725_000, "{}", windows[0]);
        assert!(windows.is_sorted());
        let back = windows.iter().position(|&bytes| bytes > 995_000).unwrap();
        assert!((65..=69).contains(&back), "back after {back} rounds");
        // Flat around the old maximum, steep above it.
        assert!(windows[95] - windows[85] < windows[119] - windows[109]);
    }

    #[test]
    fn it_is_no_slower_than_reno_where_windows_are_small() {
        let windows = after_a_loss(20, 10, 100);
        // The initial window is 14 segments; alpha is 0.53 a round until 20, and 1 afterwards.
        assert!(windows[99] >= 90_000, "{}", windows[99]);
    }

    #[test]
    fn a_second_loss_makes_room_for_others() {
        let mut cubic = Cubic::new(1000);
        cubic.acknowledged(Time::from_ms(0), 90_000, 1);
        cubic.lost(Time::from_ms(1), 100_000);
        assert_eq!((cubic.window_bytes(), cubic.max), (70_000, 100.0));
        cubic.lost(Time::from_ms(2), 70_000);
        assert_eq!((cubic.window_bytes(), cubic.max), (49_000, 70.0 * 0.85));
        cubic.timed_out(Time::from_ms(3), 49_000);
        assert_eq!((cubic.window_bytes(), cubic.threshold_bytes()), (1000, 34_300));
    }
}
