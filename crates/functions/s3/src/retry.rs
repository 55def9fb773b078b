//! The retry policy: the SDKs' standard mode.
//!
//! At most three attempts. Failures consume a retry quota and successes refill it, so that a store
//! that is down does not receive three times the load. Waits double, have a random length, and are
//! at most 20 s. The caller provides the clock and the random numbers.

use std::time::Duration;

/// Most attempts of a call, including the first.
pub const ATTEMPTS_MAX: u32 = 3;
/// Most tokens of the quota, which is also the initial number.
pub const QUOTA_MAX: u32 = 500;
/// Tokens that a retry costs.
pub const RETRY_COST: u32 = 5;
/// Tokens that a retry after a timeout costs.
pub const TIMEOUT_COST: u32 = 10;
/// Tokens that a success at the first attempt adds.
pub const REFILL: u32 = 1;
/// The longest wait.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

const TRANSIENT_CODES: &[&str] =
    &["RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete"];
const THROTTLING_CODES: &[&str] = &[
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottledException",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "TransactionInProgressException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "RequestThrottled",
    "SlowDown",
    "EC2ThrottledException",
];

/// The failure of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<'a> {
    /// There was no response in time.
    Timeout,
    /// The connection could not be established, or broke before the response was complete.
    Connection,
    /// The service responded with this status and code.
    Service {
        /// The status.
        status: u16,
        /// The code.
        code: &'a str,
    },
}

impl Failure<'_> {
    /// Returns true if another attempt may succeed.
    pub fn is_retryable(self) -> bool {
        match self {
            Failure::Timeout | Failure::Connection => true,
            Failure::Service { status, code } => {
                matches!(status, 429 | 500 | 502 | 503 | 504)
                    || TRANSIENT_CODES.contains(&code)
                    || THROTTLING_CODES.contains(&code)
            }
        }
    }

    fn cost(self) -> u32 {
        match self {
            Failure::Timeout | Failure::Connection => TIMEOUT_COST,
            Failure::Service { .. } => RETRY_COST,
        }
    }
}

/// The retry quota that all calls to one store share.
#[derive(Clone, Debug)]
pub struct Quota {
    tokens: u32,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota { tokens: QUOTA_MAX }
    }
}

impl Quota {
    /// The remaining tokens.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

/// The attempts of one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attempts {
    failed: u32,
    taken: u32,
}

impl Attempts {
    /// Number of retries.
    pub fn retries(&self) -> u32 {
        self.failed
    }

    /// Records a failed attempt: returns the wait before the next one, or `None` if there is none.
    /// `dice` is uniform over all values.
    pub fn failed(
        &mut self,
        failure: Failure<'_>,
        quota: &mut Quota,
        dice: u32,
    ) -> Option<Duration> {
        if !failure.is_retryable() || self.failed + 1 >= ATTEMPTS_MAX {
            return None;
        }
        let cost = failure.cost();
        quota.tokens = quota.tokens.checked_sub(cost)?;
        self.taken = cost;
        let ceiling = Duration::from_secs(1 << self.failed.min(16)).min(WAIT_MAX);
        self.failed += 1;
        Some(ceiling.mul_f64(f64::from(dice) / f64::from(u32::MAX)))
    }

    /// Records a successful attempt.
    pub fn succeeded(&self, quota: &mut Quota) {
        let back = if self.failed > 0 { self.taken } else { REFILL };
        quota.tokens = (quota.tokens + back).min(QUOTA_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    const BUSY: Failure<'_> = Failure::Service { status: 503, code: "SlowDown" };

    #[test]
    fn what_may_pass_is_tried_three_times_with_longer_waits() {
        let (mut attempts, mut quota) = (Attempts::default(), Quota::default());
        assert_eq!(attempts.failed(BUSY, &mut quota, u32::MAX), Some(Duration::from_secs(1)));
        assert_eq!(attempts.failed(BUSY, &mut quota, u32::MAX), Some(Duration::from_secs(2)));
        assert_eq!(attempts.failed(BUSY, &mut quota, u32::MAX), None);
        assert_eq!((attempts.retries(), quota.tokens()), (2, QUOTA_MAX - 10));
        let half = Attempts::default().failed(Failure::Timeout, &mut quota, u32::MAX / 2);
        assert!(half.unwrap() <= Duration::from_millis(500));
    }

    #[test]
    fn what_the_service_means_is_not_tried_again() {
        for (status, code, again) in [
            (404, "NoSuchKey", false),
            (412, "PreconditionFailed", false),
            (400, "RequestTimeout", true),
            (400, "ThrottlingException", true),
            (501, "NotImplemented", false),
            (500, "InternalError", true),
        ] {
            assert_eq!(Failure::Service { status, code }.is_retryable(), again, "{code}");
        }
    }

    /// Compares with a count of the consumed and refilled tokens, and with the bound for a store
    /// that is down: no more retries than the quota pays for.
    #[test]
    fn the_quota_bounds_the_retries_of_a_dead_store() {
        cases(300, |random| {
            let mut quota = Quota::default();
            let mut tokens = i64::from(QUOTA_MAX);
            let mut retries = 0;
            let dead = random.once_in(2);
            for _ in 0..400 {
                let mut call = Attempts::default();
                let mut last = 0;
                loop {
                    if !dead && random.once_in(2) {
                        call.succeeded(&mut quota);
                        let back = if call.retries() > 0 { last } else { 1 };
                        tokens = (tokens + back).min(i64::from(QUOTA_MAX));
                        break;
                    }
                    let failure = if random.once_in(2) { Failure::Timeout } else { BUSY };
                    let cost = if failure == BUSY { 5 } else { 10 };
                    let Some(wait) = call.failed(failure, &mut quota, random.next() as u32) else {
                        assert!(call.retries() == 2 || tokens < cost);
                        break;
                    };
                    assert!(wait <= WAIT_MAX);
                    tokens -= cost;
                    last = cost;
                    retries += 1;
                }
                assert_eq!(i64::from(quota.tokens()), tokens);
            }
            assert!(!dead || retries <= QUOTA_MAX / RETRY_COST);
        });
    }
}
