//! Back-off before a component is restarted.

use std::time::{Duration, Instant};

/// The shortest and the longest pause.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A component that ran for at least this long is restarted with the shortest pause.
const STABLE_RUN_MIN: Duration = Duration::from_secs(10);

/// Pauses between runs: doubled after each short run.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    pause: Duration,
}

impl Default for Restarts {
    fn default() -> Restarts {
        Restarts { pause: PAUSE_MIN }
    }
}

impl Restarts {
    /// The pause after a run that began at `begin` and has ended.
    pub fn pause_after(&mut self, begin: Instant) -> Duration {
        self.after(begin.elapsed())
    }

    fn after(&mut self, life: Duration) -> Duration {
        if life >= STABLE_RUN_MIN {
            self.pause = PAUSE_MIN;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_a_long_run_resets_them() {
        let mut restarts = Restarts::default();
        let pauses: Vec<_> = (0..9).map(|_| restarts.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.after(STABLE_RUN_MIN), PAUSE_MIN);
        assert_eq!(restarts.after(Duration::ZERO), PAUSE_MIN * 2);
    }
}
