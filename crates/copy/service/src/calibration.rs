//! Calibration of the copy costs: one service thread measures them once per process, step by step,
//! while it is idle.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use unlade_copy_kernels::calibrate::{self, Calibrator};
use unlade_copy_scheduler::admit::Costs;

/// A thread measures, or has measured.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
/// Bits of an `f32`; a NaN while the value is unknown.
static REMOTE_LINE_NS: AtomicU32 = AtomicU32::new(u32::MAX);
/// 0 while the value is unknown.
static CPU_BYTES_PER_US: AtomicU64 = AtomicU64::new(0);

/// Returns the measured copy rate of the processor.
pub(crate) fn cpu_bytes_per_us() -> Option<u64> {
    Some(CPU_BYTES_PER_US.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
}

/// Returns the machine-dependent costs, with defaults for the unmeasured ones.
pub(crate) fn costs() -> Costs {
    let usual = Costs::default();
    let measured = f32::from_bits(REMOTE_LINE_NS.load(Ordering::Relaxed));
    let remote_line_ns = if measured.is_nan() { usual.remote_line_ns } else { measured };
    Costs { remote_line_ns, ..usual }
}

/// A calibration in progress. Another thread may start again if it is dropped early.
#[derive(Debug)]
pub(crate) struct Calibration {
    calibrator: Calibrator,
    is_done: bool,
}

impl Calibration {
    /// Starts the calibration; `None` if another thread has started it.
    pub fn begin() -> Option<Calibration> {
        let is_ours = !IS_TAKEN.swap(true, Ordering::Relaxed);
        is_ours.then(|| Calibration { calibrator: Calibrator::default(), is_done: false })
    }

    /// Measures for at most a millisecond. Returns `None` when all results are known and in use.
    pub fn step(mut self: Box<Self>) -> Option<Box<Calibration>> {
        if self.calibrator.step() {
            return Some(self);
        }
        self.is_done = true;
        let found = std::mem::take(&mut self.calibrator).into_result();
        found.apply();
        CPU_BYTES_PER_US.store(found.bytes_per_us().unwrap_or(0), Ordering::Relaxed);
        let remote_line_ns = calibrate::remote_line_ns();
        if let Some(ns) = remote_line_ns {
            REMOTE_LINE_NS.store(ns.to_bits(), Ordering::Relaxed);
        }
        let loops: Vec<&str> =
            found.classes.iter().map(|class| class.best_guarded().name()).collect();
        tracing::debug!(?loops, ?remote_line_ns, "the copy loops were measured");
        None
    }
}

impl Drop for Calibration {
    fn drop(&mut self) {
        if !self.is_done {
            IS_TAKEN.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_measures_for_all() {
        assert!(costs().remote_line_ns > 0.0);
        let first = Calibration::begin().unwrap();
        assert!(Calibration::begin().is_none());
        drop(first);
        let mut next = Calibration::begin().map(Box::new);
        while let Some(calibration) = next {
            next = calibration.step();
        }
        assert!(Calibration::begin().is_none());
        assert!(costs().remote_line_ns >= 0.0);
        match cpu_bytes_per_us() {
            Some(rate) => assert!(rate > 0),
            // Disturbed samples are dropped; the service uses its defaults then.
            None => println!("skipped: other processes disturbed every measurement"),
        }
    }
}
