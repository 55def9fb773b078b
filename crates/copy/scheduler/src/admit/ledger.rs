//! Bounds the time that a site and class may lose by queueing.
//!
//! Each copy earns a small part of the time that it takes inline. Each copy that took longer than
//! inline, and each wake-up, is charged what it lost. Copies that took less time give back what
//! they gained, up to a limit ([`ALLOWANCES_MAX`]). Nothing is queued while the allowance is negative. It follows that
//! all copies of a site together take at most `1 + EARNED` of the inline time, plus the initial
//! allowance, plus one late copy. The initial allowance is [`ALLOWANCE_NS`], of long copies the time
//! of one: they are few, so that 2 % of them would not pay a trial for a long time.

/// Part of the inline time that may be lost.
pub const EARNED: f32 = 0.02;
/// Initial allowance at least: some trials, and a wake-up.
const ALLOWANCE_NS: f32 = 30_000.0;
/// Maximum allowance, in initial ones: 3 ms, or the time of 100 long copies. A thread of the service
/// that loses its processor is away for some milliseconds. With less than that, one such wait ended
/// the queueing of a site whose copies had saved many times as much.
const ALLOWANCES_MAX: f32 = 100.0;

/// Allowance of a site and class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    allowance_ns: f32,
    /// The initial allowance.
    initial_ns: f32,
    /// All losses so far, without the gains.
    lost_ns: f64,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger { allowance_ns: ALLOWANCE_NS, initial_ns: ALLOWANCE_NS, lost_ns: 0.0 }
    }
}

impl Ledger {
    /// Adjusts the initial allowance to copies that take `inline_ns` each. Only a longer time than
    /// before changes it.
    pub fn fit(&mut self, inline_ns: f32) {
        if inline_ns.is_finite() && inline_ns > self.initial_ns {
            self.allowance_ns += inline_ns - self.initial_ns;
            self.initial_ns = inline_ns;
        }
    }

    /// Records copies that take `inline_ns` together.
    pub fn earn(&mut self, inline_ns: f32) {
        self.add(EARNED * inline_ns);
    }

    /// Records time that was lost; gained if it is negative.
    pub fn charge(&mut self, ns: f32) {
        if ns.is_finite() {
            self.lost_ns += f64::from(ns.max(0.0));
        }
        self.add(-ns);
    }

    /// Time that may still be lost; negative after a loss that exceeded it.
    pub fn allowance_ns(&self) -> f32 {
        self.allowance_ns
    }

    /// Time that was lost so far, without what was gained.
    pub fn lost_ns(&self) -> f64 {
        self.lost_ns
    }

    fn add(&mut self, ns: f32) {
        if ns.is_finite() {
            self.allowance_ns = (self.allowance_ns + ns).min(ALLOWANCES_MAX * self.initial_ns);
        }
    }

    /// Returns true if `ns` may be lost.
    pub fn affords(&self, ns: f32) -> bool {
        self.allowance_ns >= ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_bounded_by_the_time_of_all_copies() {
        let mut ledger = Ledger::default();
        let (mut lost_ns, mut inline_ns) = (0.0, 0.0);
        for _ in 0..100_000 {
            ledger.earn(1000.0);
            inline_ns += 1000.0;
            if ledger.affords(0.0) {
                ledger.charge(700.0);
                lost_ns += 700.0;
            }
        }
        assert!(lost_ns <= EARNED * inline_ns + ALLOWANCE_NS + 700.0, "{lost_ns}");
        assert!(lost_ns > 0.9 * EARNED * inline_ns, "{lost_ns}");
        assert!((ledger.lost_ns() - f64::from(lost_ns)).abs() < 1.0, "{}", ledger.lost_ns());
    }

    #[test]
    fn gains_allow_further_losses_up_to_a_limit() {
        let mut ledger = Ledger::default();
        let max_ns = ALLOWANCES_MAX * ALLOWANCE_NS;
        ledger.charge(ALLOWANCE_NS + 1.0);
        assert!(!ledger.affords(0.0));
        ledger.charge(-1e9);
        assert!(ledger.affords(max_ns) && !ledger.affords(max_ns + 1.0));
        assert!((ledger.lost_ns() - f64::from(ALLOWANCE_NS + 1.0)).abs() < 1.0);
        ledger.charge(f32::NAN);
        assert!(ledger.affords(max_ns));
    }

    #[test]
    fn a_long_copy_may_lose_its_own_time_once() {
        let mut ledger = Ledger::default();
        ledger.fit(1_000.0);
        assert!(ledger.affords(ALLOWANCE_NS) && !ledger.affords(ALLOWANCE_NS + 1.0));
        ledger.fit(400_000.0);
        ledger.fit(300_000.0);
        assert!(ledger.affords(400_000.0) && !ledger.affords(401_000.0));
        ledger.charge(400_000.0);
        ledger.fit(400_000.0);
        assert!(!ledger.affords(1.0), "not twice");
        ledger.charge(-1e9);
        assert!(ledger.affords(40_000_000.0) && !ledger.affords(40_010_000.0));
        ledger.fit(f32::NAN);
        assert!(ledger.affords(40_000_000.0));
    }
}
