//! Which loop is fastest for which size, measured on this machine, in a few milliseconds.
//!
//! Of every class of length one size is copied, from warm caches to warm caches, by every loop in
//! turn, round after round, so that what disturbs the machine disturbs all of them; medians
//! decide. A loop takes a class from the preferred one only where it is clearly faster. What is
//! larger than the caches would take longer than a few milliseconds to touch for the first time:
//! the last class, without an end, is measured with the largest sample of the others.

use std::time::Instant;

use crate::kernel::{self, CLASS_BYTES_MAX, CLASSES, Kernel};

/// Rounds of which the median counts.
const ROUNDS: usize = 9;
/// Bytes that one loop copies in one round, of each class, or one copy if that is more.
const ROUND_BYTES: usize = 512 << 10;
/// The largest sample, in bytes.
const SAMPLE_BYTES_MAX: usize = 512 << 10;
/// How much less time, in hundredths, makes a loop better than the preferred one.
const BETTER_PERCENT: u64 = 3;

/// What was measured of one class of length.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The size that was copied, in bytes.
    pub sample_bytes: usize,
    /// The median time of one copy, in picoseconds, of each loop of [`kernel::available`].
    pub copy_ps: Vec<u64>,
    best: usize,
    best_guarded: usize,
}

impl Measured {
    /// The loop for copies of this class.
    pub fn best(&self) -> &'static Kernel {
        &kernel::available()[self.best]
    }

    /// The loop for guarded copies of this class.
    pub fn best_guarded(&self) -> &'static Kernel {
        &kernel::available()[self.best_guarded]
    }
}

/// What was measured, by class.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// One for each class of [`CLASS_BYTES_MAX`].
    pub classes: [Measured; CLASSES],
}

impl Calibration {
    /// Makes [`crate::copy`] and guarded copies use what was found, in the whole process.
    pub fn apply(&self) {
        for (class, measured) in self.classes.iter().enumerate() {
            kernel::choose(class, *measured.best(), *measured.best_guarded());
        }
    }
}

/// Measures. Other threads of the machine that are busy make it less certain, never wrong.
pub fn calibrate() -> Calibration {
    let source = vec![1_u8; SAMPLE_BYTES_MAX];
    let mut target = vec![2_u8; SAMPLE_BYTES_MAX];
    let measured = |class| measure(sample_bytes(class), &source, &mut target);
    Calibration { classes: std::array::from_fn(measured) }
}

/// A size from the middle of a class.
fn sample_bytes(class: usize) -> usize {
    (CLASS_BYTES_MAX[class] / 2).min(SAMPLE_BYTES_MAX)
}

fn measure(sample_bytes: usize, source: &[u8], target: &mut [u8]) -> Measured {
    let kernels = kernel::available();
    let mut rounds: Vec<[u64; ROUNDS]> = vec![[0; ROUNDS]; kernels.len()];
    // The first round warms up.
    for round in 0..=ROUNDS {
        for (kernel, times) in kernels.iter().zip(&mut rounds) {
            let ps = time(kernel, &source[..sample_bytes], &mut target[..sample_bytes]);
            times[round.saturating_sub(1)] = ps;
        }
    }
    let median = |mut times: [u64; ROUNDS]| *times.select_nth_unstable(ROUNDS / 2).1;
    let copy_ps: Vec<u64> = rounds.into_iter().map(median).collect();
    Measured {
        sample_bytes,
        best: best(&copy_ps, |_| true),
        best_guarded: best(&copy_ps, |at| kernels[at].is_guarded()),
        copy_ps,
    }
}

/// The time of one copy, in picoseconds.
fn time(kernel: &Kernel, source: &[u8], target: &mut [u8]) -> u64 {
    let copies = (ROUND_BYTES / source.len()).max(1);
    let begin = Instant::now();
    for _ in 0..copies {
        // SAFETY: two slices, so they are valid and do not overlap; `measure` made them equally
        // long.
        unsafe { kernel.copy(target.as_mut_ptr(), source.as_ptr(), source.len()) };
    }
    (begin.elapsed().as_nanos() as u64).saturating_mul(1000) / copies as u64
}

/// The place of the fastest that may be had, or of the first of them where that is about as fast.
fn best(copy_ps: &[u64], may: impl Fn(usize) -> bool) -> usize {
    let mut allowed = (0..copy_ps.len()).filter(|&at| may(at));
    let first = allowed.next().unwrap_or(0);
    let fastest = allowed.min_by_key(|&at| copy_ps[at]).unwrap_or(first);
    let clearly =
        copy_ps[fastest].saturating_mul(100) < copy_ps[first].saturating_mul(100 - BETTER_PERCENT);
    if clearly { fastest } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clearly_faster_loop_replaces_the_preferred_one() {
        assert_eq!(best(&[100, 98, 99], |_| true), 0);
        assert_eq!(best(&[100, 90, 80], |_| true), 2);
        assert_eq!(best(&[100, 90, 80], |at| at != 2), 1);
        assert_eq!(best(&[100, 90, 80], |at| at == 0), 0);
        assert_eq!(best(&[0, 0, 0], |_| true), 0);
    }

    #[test]
    fn every_class_gets_a_loop_and_copies_stay_right() {
        let found = calibrate();
        for measured in &found.classes {
            assert_eq!(measured.copy_ps.len(), kernel::available().len());
            assert!(measured.best_guarded().is_guarded());
        }
        found.apply();
        for bytes in CLASS_BYTES_MAX.into_iter().take(CLASSES - 1).flat_map(|b| [b - 1, b, b + 1]) {
            let from: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let mut to = vec![0; bytes];
            // SAFETY: two vectors of `bytes`.
            unsafe { crate::copy(to.as_mut_ptr(), from.as_ptr(), bytes, crate::Hint::Reuse) };
            assert!(from == to, "{bytes} bytes");
        }
    }
}
