//! A rate limit for log lines that a peer can cause: at most one per second and kind.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// The rate limit of one kind of line.
#[derive(Debug, Default)]
pub struct RateLimit(Mutex<(Option<Instant>, u64)>);

impl RateLimit {
    /// Returns the number of suppressed lines since the last one, if a line is permitted now.
    pub fn permit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, others) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            *others += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(others))
    }
}

#[cfg(test)]
mod tests {
    use super::{PAUSE, RateLimit};
    use std::time::{Duration, Instant};

    #[test]
    fn lines_are_seldom_and_say_how_many_were_left_out() {
        let (limit, begin) = (RateLimit::default(), Instant::now());
        assert_eq!(limit.permit(begin), Some(0));
        for _ in 0..3 {
            assert_eq!(limit.permit(begin + PAUSE - Duration::from_nanos(1)), None);
        }
        assert_eq!(limit.permit(begin + PAUSE), Some(3));
        assert_eq!(limit.permit(begin + PAUSE + PAUSE), Some(0));
    }
}
