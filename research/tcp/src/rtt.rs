//! Round-trip time estimation and the retransmission timeout (RFC 6298).

use crate::time::Time;

/// Timeout before the first measurement (RFC 6298 §2.1).
const INITIAL_NS: u64 = 1_000_000_000;
/// Maximum timeout (RFC 6298 §2.5 requires at least 60 s).
const TIMEOUT_NS_MAX: u64 = 120_000_000_000;
/// Granularity of the clock (G of RFC 6298 §2).
const GRANULARITY_NS: u64 = 1_000_000;
/// Window of the minimum round-trip time (RFC 8985 §6.2 requires a moving window).
const MIN_WINDOW_NS: u64 = 300_000_000_000;
/// Maximum number of doublings of the timeout.
const BACKOFFS_MAX: u32 = 16;

/// Estimate of the round-trip time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    min_ns: u64,
    min_at: Time,
    timeout_ns: u64,
    timeout_ns_min: u64,
    backoffs: u32,
}

impl Rtt {
    pub(crate) fn new(timeout_ns_min: u64) -> Rtt {
        Rtt {
            smoothed_ns: 0,
            variation_ns: 0,
            min_ns: u64::MAX,
            min_at: Time::default(),
            timeout_ns: INITIAL_NS,
            timeout_ns_min,
            backoffs: 0,
        }
    }

    /// Adds a sample of bytes that were sent once (RFC 6298 §3, Karn's rule).
    #[inline]
    pub(crate) fn sample(&mut self, now: Time, rtt_ns: u64) {
        if self.smoothed_ns == 0 {
            self.smoothed_ns = rtt_ns.max(1);
            self.variation_ns = rtt_ns / 2;
        } else {
            let deviation_ns = self.smoothed_ns.abs_diff(rtt_ns);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + deviation_ns / 4;
            self.smoothed_ns = (self.smoothed_ns - self.smoothed_ns / 8 + rtt_ns / 8).max(1);
        }
        let beyond_ns = GRANULARITY_NS.max(4 * self.variation_ns);
        self.timeout_ns = (self.smoothed_ns + beyond_ns).clamp(self.timeout_ns_min, TIMEOUT_NS_MAX);
        self.backoffs = 0;
        if rtt_ns <= self.min_ns || now.ns_since(self.min_at) > MIN_WINDOW_NS {
            self.min_ns = rtt_ns;
            self.min_at = now;
        }
    }

    /// Doubles the timeout after an expiry (RFC 6298 §5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoffs = (self.backoffs + 1).min(BACKOFFS_MAX);
    }

    /// Resets the doublings after an acknowledgement of new bytes.
    pub(crate) fn progress(&mut self) {
        self.backoffs = 0;
    }

    /// Number of doublings of the timeout.
    pub(crate) fn backoffs(&self) -> u32 {
        self.backoffs
    }

    /// The retransmission timeout.
    #[inline]
    pub(crate) fn timeout_ns(&self) -> u64 {
        (self.timeout_ns << self.backoffs).min(TIMEOUT_NS_MAX)
    }

    /// The smoothed round-trip time; 0 before the first sample.
    #[inline]
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The recent minimum; `u64::MAX` before the first sample.
    pub(crate) fn min_ns(&self) -> u64 {
        self.min_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_timeout_is_that_of_rfc_6298() {
        let mut rtt = Rtt::new(MS);
        assert_eq!(rtt.timeout_ns(), 1000 * MS);
        rtt.sample(Time::from_ms(100), 100 * MS);
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR.
        assert_eq!((rtt.smoothed_ns(), rtt.timeout_ns()), (100 * MS, 300 * MS));
        rtt.sample(Time::from_ms(200), 180 * MS);
        // RTTVAR = 3/4 * 50 + 1/4 * 80 = 57.5, SRTT = 7/8 * 100 + 1/8 * 180 = 110.
        assert_eq!((rtt.smoothed_ns(), rtt.timeout_ns()), (110 * MS, 340 * MS));
        assert_eq!(rtt.min_ns(), 100 * MS);
    }

    #[test]
    fn it_doubles_up_to_a_limit_and_progress_undoes_that() {
        let mut rtt = Rtt::new(200 * MS);
        rtt.sample(Time::from_ms(1), MS);
        assert_eq!(rtt.timeout_ns(), 200 * MS);
        rtt.back_off();
        rtt.back_off();
        assert_eq!((rtt.timeout_ns(), rtt.backoffs()), (800 * MS, 2));
        for _ in 0..40 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout_ns(), TIMEOUT_NS_MAX);
        rtt.progress();
        assert_eq!(rtt.timeout_ns(), 200 * MS);
    }

    #[test]
    fn an_old_minimum_is_forgotten() {
        let mut rtt = Rtt::new(MS);
        rtt.sample(Time::from_ms(0), MS);
        rtt.sample(Time::from_ms(1000), 9 * MS);
        assert_eq!(rtt.min_ns(), MS);
        rtt.sample(Time::from_ms(301_000), 9 * MS);
        assert_eq!(rtt.min_ns(), 9 * MS);
    }
}
