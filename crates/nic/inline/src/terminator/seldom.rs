//! Lines of the log that a peer can cause: not more than one a second of a kind.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// One kind of line.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<(Option<Instant>, u64)>);

impl Seldom {
    /// Whether there may be a line now: it should say how many others there were since the last one.
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
    use super::{PAUSE, Seldom};
    use std::time::{Duration, Instant};

    #[test]
    fn lines_are_seldom_and_say_how_many_were_left_out() {
        let (seldom, begin) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.permit(begin), Some(0));
        for _ in 0..3 {
            assert_eq!(seldom.permit(begin + PAUSE - Duration::from_nanos(1)), None);
        }
        assert_eq!(seldom.permit(begin + PAUSE), Some(3));
        assert_eq!(seldom.permit(begin + PAUSE + PAUSE), Some(0));
    }
}
