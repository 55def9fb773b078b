//! Hosts that did not answer, and when they are asked again. Sans-IO.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Time to the next attempt after a failure. It doubles with each failure in sequence.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Its upper bound.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Times of the next attempts, by address.
#[derive(Debug, Default)]
pub(crate) struct Retries(RefCell<HashMap<SocketAddr, Retry>>);

#[derive(Debug)]
struct Retry {
    at: Instant,
    pause: Duration,
}

impl Retries {
    /// Returns true if a host is not asked for now.
    pub(crate) fn is_waiting(&self, host: SocketAddr, now: Instant) -> bool {
        self.0.borrow().get(&host).is_some_and(|retry| now < retry.at)
    }

    /// Notes that a host has not answered. Attempts that began before the last one's failure count as one.
    pub(crate) fn fail(&self, host: SocketAddr, now: Instant) {
        let mut all = self.0.borrow_mut();
        let pause = match all.get(&host) {
            Some(retry) if now < retry.at => return,
            Some(retry) => (retry.pause * 2).min(PAUSE_MAX),
            None => PAUSE_MIN,
        };
        all.insert(host, Retry { at: now + pause, pause });
    }

    /// Notes that a host has answered.
    pub(crate) fn succeed(&self, host: SocketAddr) {
        self.0.borrow_mut().remove(&host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_with_each_failure_and_ends_with_a_success() {
        let (retries, host) = (Retries::default(), "10.0.0.3:7900".parse().unwrap());
        let mut now = Instant::now();
        let mut pause = PAUSE_MIN;
        assert!(!retries.is_waiting(host, now));
        for _ in 0..12 {
            // Of several attempts under way at the same time, the first failure counts.
            (0..3).for_each(|_| retries.fail(host, now));
            assert!(retries.is_waiting(host, now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(!retries.is_waiting(host, now));
            pause = (pause * 2).min(PAUSE_MAX);
        }
        assert_eq!(pause, PAUSE_MAX);
        retries.succeed(host);
        retries.fail(host, now);
        assert!(!retries.is_waiting(host, now + PAUSE_MIN));
    }

    #[test]
    fn a_host_does_not_wait_for_another_one() {
        let retries = Retries::default();
        let now = Instant::now();
        retries.fail("10.0.0.3:7900".parse().unwrap(), now);
        assert!(!retries.is_waiting("10.0.0.4:7900".parse().unwrap(), now));
    }
}
