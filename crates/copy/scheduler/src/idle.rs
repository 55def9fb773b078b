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
pub enum IdleAction {
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
pub struct IdlePolicy {
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

impl IdlePolicy {
    /// Creates the state of a new thread that sleeps at most `sleep_us` microseconds at a time.
    pub fn new(mode: Mode, sleep_us: u64) -> IdlePolicy {
        let (spin_us, active) = (SPIN_US_START, false);
        IdlePolicy { mode, active, sleep_us, spin_us, since: None, slept: false }
    }

    /// Starts or ends the scenario of [`Mode::Scenario`].
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// Records that the thread found work.
    pub fn record_work(&mut self, now: Micros) {
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
    pub fn record_ring(&mut self) {
        (self.since, self.slept) = (None, false);
        self.spin_us = SPIN_US_MAX;
    }

    /// Returns the action of a thread without work. `preempted`: the core was taken from the
    /// thread since the last call, so another thread needs it.
    pub fn next_action(&mut self, now: Micros, preempted: bool) -> IdleAction {
        let since = *self.since.get_or_insert(now);
        match (self.mode, self.active) {
            (Mode::AlwaysPoll, _) | (Mode::Scenario, true) => {
                return if preempted { IdleAction::Yield } else { IdleAction::Spin };
            }
            (Mode::Scenario, false) => return IdleAction::Sleep(self.sleep_us),
            (Mode::Adaptive, _) => {}
        }
        let waited_us = now.0.saturating_sub(since.0);
        if waited_us < self.spin_us {
            if !preempted {
                return IdleAction::Spin;
            }
            // Stop spinning now, and spin less next time; but not zero, since the preemption may
            // be a single event.
            self.spin_us /= 2;
            self.since = Some(Micros(now.0.saturating_sub(self.spin_us)));
            return IdleAction::Yield;
        }
        if waited_us < self.spin_us + YIELD_US {
            return IdleAction::Yield;
        }
        if !self.slept {
            // The spin found no work.
            self.spin_us -= self.spin_us.div_ceil(4);
            self.slept = true;
        }
        IdleAction::Sleep(self.sleep_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the microseconds spun in each of `gaps` idle periods of `gap_us`.
    fn spins(idle: &mut IdlePolicy, gap_us: u64, gaps: u64) -> Vec<u64> {
        let mut spins = Vec::new();
        for gap in 0..gaps {
            let from = 1_000_000 * gap;
            let rest = |now| idle.next_action(Micros(from + now), false);
            // A sleeping thread asks again only when work comes.
            let rests: Vec<_> = (0..gap_us).map(rest).collect();
            spins.push(rests.iter().filter(|rest| **rest == IdleAction::Spin).count() as u64);
            idle.record_work(Micros(from + gap_us));
        }
        spins
    }

    #[test]
    fn it_spins_only_for_work_that_comes_soon() {
        let mut idle = IdlePolicy::new(Mode::Adaptive, SLEEP_US_DEFAULT);
        assert_eq!(spins(&mut idle, 100, 20).last(), Some(&100));
        assert_eq!(spins(&mut idle, 5000, 40).last(), Some(&0));
        assert_eq!(spins(&mut idle, 100, 20).last(), Some(&100));
        assert!(idle.spin_us <= SPIN_US_MAX);
    }

    #[test]
    fn it_goes_from_spinning_to_sleep() {
        let mut idle = IdlePolicy::new(Mode::Adaptive, 7);
        assert_eq!(idle.next_action(Micros(0), false), IdleAction::Spin);
        assert_eq!(idle.next_action(Micros(SPIN_US_START), false), IdleAction::Yield);
        assert_eq!(idle.next_action(Micros(SPIN_US_START + YIELD_US), false), IdleAction::Sleep(7));
        // A clock that goes backwards does no harm.
        idle.record_work(Micros(0));
        assert_ne!(idle.next_action(Micros(1), false), IdleAction::Sleep(7));
    }

    #[test]
    fn a_preempted_thread_stops_spinning_and_spins_less_next_time() {
        let mut idle = IdlePolicy::new(Mode::Adaptive, 7);
        spins(&mut idle, 100, 20);
        let spin_us = idle.spin_us;
        assert_eq!(idle.next_action(Micros(1_000), false), IdleAction::Spin);
        assert_eq!(idle.next_action(Micros(1_001), true), IdleAction::Yield);
        // A yield looks like a preemption.
        assert_eq!(idle.next_action(Micros(1_002), true), IdleAction::Yield);
        assert_eq!(idle.next_action(Micros(1_001 + YIELD_US), true), IdleAction::Sleep(7));
        assert!((spin_us / 4..=spin_us / 2).contains(&idle.spin_us), "{}", idle.spin_us);
        for gap in 2..20 {
            idle.record_work(Micros(1_000 * gap));
            for now in 0..YIELD_US + 3 {
                idle.next_action(Micros(1_000 * gap + now), true);
            }
        }
        assert_eq!(idle.spin_us, 0);
    }

    #[test]
    fn a_woken_thread_spins_although_earlier_spins_found_no_work() {
        let mut idle = IdlePolicy::new(Mode::Adaptive, 7);
        spins(&mut idle, 5000, 40);
        assert_eq!(idle.next_action(Micros(1 << 30), false), IdleAction::Yield);
        assert_eq!(idle.next_action(Micros((1 << 30) + YIELD_US), false), IdleAction::Sleep(7));
        idle.record_ring();
        assert_eq!(idle.next_action(Micros((1 << 30) + 1000), false), IdleAction::Spin);
        assert_eq!(
            idle.next_action(Micros((1 << 30) + 999 + SPIN_US_MAX), false),
            IdleAction::Spin
        );
        assert_ne!(
            idle.next_action(Micros((1 << 30) + 1000 + SPIN_US_MAX), false),
            IdleAction::Spin
        );
    }

    #[test]
    fn each_mode_polls_as_documented() {
        let mut always = IdlePolicy::new(Mode::AlwaysPoll, 7);
        assert_eq!(always.next_action(Micros(u64::MAX), false), IdleAction::Spin);
        assert_eq!(always.next_action(Micros(u64::MAX), true), IdleAction::Yield);
        let mut scenario = IdlePolicy::new(Mode::Scenario, 7);
        assert_eq!(scenario.next_action(Micros(0), false), IdleAction::Sleep(7));
        scenario.set_active(true);
        assert_eq!(scenario.next_action(Micros(1 << 40), false), IdleAction::Spin);
        scenario.set_active(false);
        assert_eq!(scenario.next_action(Micros(1 << 40), false), IdleAction::Sleep(7));
    }
}
