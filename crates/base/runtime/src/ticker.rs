//! A process-wide tick: periodic work runs at common instants, so that an idle process wakes a few
//! times a second instead of once for every timer.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(250);

/// The first tick that is at least `after` away.
pub fn after(after: Duration) -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let now = Instant::now();
    let since = now.duration_since(*ORIGIN.get_or_init(|| now)) + after;
    let into = since.as_nanos() % TICK.as_nanos();
    let wait = if into == 0 { 0 } else { TICK.as_nanos() - into };
    now + after + Duration::from_nanos(wait as u64)
}

/// Fires on ticks, about every `period`, from the next tick on. Missed ticks are skipped.
pub fn every(period: Duration) -> Interval {
    let ticks = period.as_nanos().div_ceil(TICK.as_nanos()).max(1) as u32;
    let mut interval = interval_at(after(Duration::ZERO), TICK * ticks);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn everything_falls_on_a_beat() {
        let first = after(Duration::ZERO);
        for ms in [0, 1, 100, 249, 250, 251, 1000, 1234] {
            tokio::time::advance(Duration::from_millis(7)).await;
            let (now, wait) = (Instant::now(), Duration::from_millis(ms));
            let tick = after(wait);
            assert!(tick >= now + wait && tick < now + wait + TICK, "{ms}");
            assert_eq!(tick.duration_since(first).as_nanos() % TICK.as_nanos(), 0, "{ms}");
        }
        let mut ticks = every(Duration::from_millis(300));
        let one = ticks.tick().await;
        assert_eq!(ticks.tick().await - one, 2 * TICK);
    }
}
