//! Idle behaviour of a service thread.
//!
//! A wake-up takes many times as long as a copy; a spinning thread occupies a core. So the thread
//! spins for as long as spinning has recently paid, then yields the core for a moment, then sleeps
//! until it is woken (Copier, SOSP 2025, §4.5.1).

use crate::Micros;

/// Maximum spin time, in microseconds: a few times a wake-up.
pub const SPIN_US_MAX: u64 = 400;
/// Initial spin time, in microseconds.
pub const SPIN_US_START: u64 = 100;
/// Time for which the thread yields the core before it sleeps, in microseconds.
pub const YIELD_US: u64 = 20;
/// Default sleep time without a wake-up, in microseconds.
pub const SLEEP_US_DEFAULT: u64 = 100_000;

/// Polling policy of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Spins as long as that pays, then sleeps.
    #[default]
    Adaptive,
    /// Polls while a scenario is active ([`IdlePolicy::set_active`]), and sleeps otherwise.
    Scenario,
    /// Polls always.
    AlwaysPoll,
}

/// Action before the thread looks for work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Pause for some cycles.
    Spin,
    /// Yield the core.
    Yield,
    /// Publish that the thread sleeps, look for work once more, and sleep for this number of
    /// microseconds unless it is woken.
    Sleep(u64),
}

/// Idle state of one thread.
#[derive(Debug)]
pub struct Idle {
    mode: Mode,
    active: bool,
    sleep_us: u64,
    /// Current spin time, in microseconds.
    spin_us: u64,
    /// Start of the idle period.
    since: Option<Micros>,
    /// The thread has slept in this idle period.
    slept: bool,
}

impl Idle {
    /// Creates the state of a new thread that sleeps at most `sleep_us` microseconds at a time.
    pub fn new(mode: Mode, sleep_us: u64) -> Idle {
        let (spin_us, active) = (SPIN_US_START, false);
        Idle { mode, active, sleep_us, spin_us, since: None, slept: false }
    }

    /// Starts or ends the scenario of [`Mode::Scenario`].
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// Records that the thread found work.
    pub fn worked(&mut self, now: Micros) {
        let Some(since) = self.since.take() else { return };
        let waited_us = now.0.saturating_sub(since.0);
        let slept = std::mem::take(&mut self.slept);
        if waited_us > SPIN_US_MAX {
            return;
        }
        // The work came soon. If the thread slept already, the spin was too short; otherwise leave
        // some room for work that comes a little later.
        let worth_us = if slept { 2 * self.spin_us.max(SPIN_US_START / 2) } else { 2 * waited_us };
        self.spin_us = self.spin_us.max(worth_us).min(SPIN_US_MAX);
    }

    /// Records that a client woke the thread. Work is there or comes soon: a client that tries out
    /// the service comes back a little later.
    pub fn rung(&mut self) {
        (self.since, self.slept) = (None, false);
        self.spin_us = SPIN_US_MAX;
    }

    /// Returns the action of a thread without work. `preempted`: the core was taken from the
    /// thread since the last call, so another thread needs it.
    pub fn nothing(&mut self, now: Micros, preempted: bool) -> Rest {
        let since = *self.since.get_or_insert(now);
        match (self.mode, self.active) {
            (Mode::AlwaysPoll, _) | (Mode::Scenario, true) => {
                return if preempted { Rest::Yield } else { Rest::Spin };
            }
            (Mode::Scenario, false) => return Rest::Sleep(self.sleep_us),
            (Mode::Adaptive, _) => {}
        }
        let waited_us = now.0.saturating_sub(since.0);
        if waited_us < self.spin_us {
            if !preempted {
                return Rest::Spin;
            }
            // Stop spinning now, and spin less next time; but not zero, since the preemption may
            // be a single event.
            self.spin_us /= 2;
            self.since = Some(Micros(now.0.saturating_sub(self.spin_us)));
            return Rest::Yield;
        }
        if waited_us < self.spin_us + YIELD_US {
            return Rest::Yield;
        }
        if !self.slept {
            // The spin found no work.
            self.spin_us -= self.spin_us.div_ceil(4);
            self.slept = true;
        }
        Rest::Sleep(self.sleep_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the microseconds spun in each of `gaps` idle periods of `gap_us`.
    fn spins(idle: &mut Idle, gap_us: u64, gaps: u64) -> Vec<u64> {
        let mut spins = Vec::new();
        for gap in 0..gaps {
            let from = 1_000_000 * gap;
            let rest = |now| idle.nothing(Micros(from + now), false);
            // A sleeping thread asks again only when work comes.
            let rests: Vec<_> = (0..gap_us).map(rest).collect();
            spins.push(rests.iter().filter(|rest| **rest == Rest::Spin).count() as u64);
            idle.worked(Micros(from + gap_us));
        }
        spins
    }

    #[test]
    fn it_spins_for_work_that_comes_soon_and_not_for_other() {
        let mut idle = Idle::new(Mode::Adaptive, SLEEP_US_DEFAULT);
        assert_eq!(spins(&mut idle, 100, 20).last(), Some(&100));
        assert_eq!(spins(&mut idle, 5000, 40).last(), Some(&0));
        assert_eq!(spins(&mut idle, 100, 20).last(), Some(&100));
        assert!(idle.spin_us <= SPIN_US_MAX);
    }

    #[test]
    fn it_goes_from_spinning_to_sleep() {
        let mut idle = Idle::new(Mode::Adaptive, 7);
        assert_eq!(idle.nothing(Micros(0), false), Rest::Spin);
        assert_eq!(idle.nothing(Micros(SPIN_US_START), false), Rest::Yield);
        assert_eq!(idle.nothing(Micros(SPIN_US_START + YIELD_US), false), Rest::Sleep(7));
        // A clock that goes backwards does no harm.
        idle.worked(Micros(0));
        assert_ne!(idle.nothing(Micros(1), false), Rest::Sleep(7));
    }

    #[test]
    fn who_is_preempted_stops_spinning_at_once_and_spins_less_next_time() {
        let mut idle = Idle::new(Mode::Adaptive, 7);
        spins(&mut idle, 100, 20);
        let spin_us = idle.spin_us;
        assert_eq!(idle.nothing(Micros(1_000), false), Rest::Spin);
        assert_eq!(idle.nothing(Micros(1_001), true), Rest::Yield);
        // A yield looks like a preemption.
        assert_eq!(idle.nothing(Micros(1_002), true), Rest::Yield);
        assert_eq!(idle.nothing(Micros(1_001 + YIELD_US), true), Rest::Sleep(7));
        assert!((spin_us / 4..=spin_us / 2).contains(&idle.spin_us), "{}", idle.spin_us);
        for gap in 2..20 {
            idle.worked(Micros(1_000 * gap));
            for now in 0..YIELD_US + 3 {
                idle.nothing(Micros(1_000 * gap + now), true);
            }
        }
        assert_eq!(idle.spin_us, 0);
    }

    #[test]
    fn who_is_rung_waits_for_work_though_spinning_was_in_vain() {
        let mut idle = Idle::new(Mode::Adaptive, 7);
        spins(&mut idle, 5000, 40);
        assert_eq!(idle.nothing(Micros(1 << 30), false), Rest::Yield);
        assert_eq!(idle.nothing(Micros((1 << 30) + YIELD_US), false), Rest::Sleep(7));
        idle.rung();
        assert_eq!(idle.nothing(Micros((1 << 30) + 1000), false), Rest::Spin);
        assert_eq!(idle.nothing(Micros((1 << 30) + 999 + SPIN_US_MAX), false), Rest::Spin);
        assert_ne!(idle.nothing(Micros((1 << 30) + 1000 + SPIN_US_MAX), false), Rest::Spin);
    }

    #[test]
    fn modes_poll_as_they_say() {
        let mut always = Idle::new(Mode::AlwaysPoll, 7);
        assert_eq!(always.nothing(Micros(u64::MAX), false), Rest::Spin);
        assert_eq!(always.nothing(Micros(u64::MAX), true), Rest::Yield);
        let mut scenario = Idle::new(Mode::Scenario, 7);
        assert_eq!(scenario.nothing(Micros(0), false), Rest::Sleep(7));
        scenario.set_active(true);
        assert_eq!(scenario.nothing(Micros(1 << 40), false), Rest::Spin);
        scenario.set_active(false);
        assert_eq!(scenario.nothing(Micros(1 << 40), false), Rest::Sleep(7));
    }
}
