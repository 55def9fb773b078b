//! What a service thread does when there is nothing to do.
//!
//! Waking a thread that sleeps takes many times as long as a copy; a thread that spins takes a
//! core. So it spins for as long as that has lately been worth while, gives the core to whoever
//! wants it for a moment, then sleeps until it is woken (Copier, SOSP 2025, §4.5.1).

use crate::Micros;

/// The longest spin, microseconds: a few times what waking takes.
pub const SPIN_US_MAX: u64 = 400;
/// The spin that a thread begins with, and begins again with, microseconds.
pub const SPIN_US_START: u64 = 100;
/// How long the core is offered to others before the thread sleeps, microseconds.
pub const YIELD_US: u64 = 20;
/// The usual sleep if nobody wakes the thread, microseconds.
pub const SLEEP_US_DEFAULT: u64 = 100_000;

/// How a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It spins as long as that is worth while, then sleeps.
    #[default]
    Adaptive,
    /// It polls while a scenario lasts ([`Idle::set_active`]), and sleeps otherwise.
    Scenario,
    /// It polls.
    AlwaysPoll,
}

/// What to do before looking for work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Pause for some cycles.
    Spin,
    /// Let others have the core.
    Yield,
    /// Say that the thread sleeps, look for work once more, and sleep so many microseconds unless
    /// it is woken.
    Sleep(u64),
}

/// How one thread waits.
#[derive(Debug)]
pub struct Idle {
    mode: Mode,
    active: bool,
    sleep_us: u64,
    /// How long spinning is worth while at present.
    spin_us: u64,
    /// Since when there is nothing to do.
    since: Option<Micros>,
    /// The thread has slept since then.
    slept: bool,
}

impl Idle {
    /// A thread that begins; it sleeps `sleep_us` microseconds at most.
    pub fn new(mode: Mode, sleep_us: u64) -> Idle {
        let (spin_us, active) = (SPIN_US_START, false);
        Idle { mode, active, sleep_us, spin_us, since: None, slept: false }
    }

    /// The scenario that [`Mode::Scenario`] waits for begins or ends.
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// There was something to do.
    pub fn worked(&mut self, now: Micros) {
        let Some(since) = self.since.take() else { return };
        let waited_us = now.0.saturating_sub(since.0);
        let slept = std::mem::take(&mut self.slept);
        if waited_us > SPIN_US_MAX {
            return;
        }
        // It came soon: where the thread slept already, too soon for that; otherwise leave some
        // room for work that comes a little later.
        let worth_us = if slept { 2 * self.spin_us.max(SPIN_US_START / 2) } else { 2 * waited_us };
        self.spin_us = self.spin_us.max(worth_us).min(SPIN_US_MAX);
    }

    /// Somebody woke the thread, and has work for it, now or soon: whoever wakes it to see whether
    /// it is worth while comes back a little later.
    pub fn rung(&mut self) {
        (self.since, self.slept) = (None, false);
        self.spin_us = SPIN_US_MAX;
    }

    /// There is nothing to do. `preempted`: the core was taken from the thread since it was last
    /// asked, so somebody else needs it.
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
            // No more of it this time, and less next time. Not none: it may have been a moment.
            self.spin_us /= 2;
            self.since = Some(Micros(now.0.saturating_sub(self.spin_us)));
            return Rest::Yield;
        }
        if waited_us < self.spin_us + YIELD_US {
            return Rest::Yield;
        }
        if !self.slept {
            // The spin was in vain.
            self.spin_us -= self.spin_us.div_ceil(4);
            self.slept = true;
        }
        Rest::Sleep(self.sleep_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work comes every `gap_us`; microseconds spun in each of so many gaps.
    fn spins(idle: &mut Idle, gap_us: u64, gaps: u64) -> Vec<u64> {
        let mut spins = Vec::new();
        for gap in 0..gaps {
            let from = 1_000_000 * gap;
            let rest = |now| idle.nothing(Micros(from + now), false);
            // A thread that sleeps is not asked again until work comes.
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
        // A clock that goes back harms nobody.
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
        // Giving up the core looks like being preempted.
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
