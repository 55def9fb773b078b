//! Which loop is fastest for which size, and what a line costs that another core wrote, measured on
//! this machine in a few milliseconds.
//!
//! Of every class of length one size is copied, from warm caches to warm caches, by every loop in
//! turn, round after round, so that what disturbs the machine disturbs all of them; medians
//! decide. A loop takes a class from the preferred one only where it is clearly faster. What is
//! larger than the caches would take longer than a few milliseconds to touch for the first time:
//! the last classes are measured with the largest sample.
//!
//! [`Calibrator`] does it a step at a time, for who has something better to do in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::kernel::{self, CLASS_BYTES_MAX, CLASSES, Kernel};

/// Rounds of which the median counts.
const ROUNDS: usize = 7;
/// Bytes that one loop copies in one round, of each class, or one copy if that is more.
const ROUND_BYTES: usize = 256 << 10;
/// The largest sample, in bytes.
const SAMPLE_BYTES_MAX: usize = 256 << 10;
/// How much less time, in hundredths, makes a loop better than the preferred one.
const BETTER_PERCENT: u64 = 5;
/// Time that all steps together may take; what is not measured by then stays as it is preferred.
const BUDGET: Duration = Duration::from_millis(4);
/// The class whose loop says how fast the processor copies what is large: up to 64 KiB.
const LARGE_CLASS: usize = 4;
/// Lines that go from core to core in one round.
const REMOTE_LINES: usize = 1024;
/// Rounds of which the median counts.
const REMOTE_ROUNDS: usize = 15;
/// Fewer rounds with two cores are not enough.
const REMOTE_ROUNDS_MIN: usize = 5;
/// Time that they may take.
const REMOTE_BUDGET: Duration = Duration::from_millis(1);
/// More than this is no line's cost but somebody else's time.
const REMOTE_NS_MAX: f32 = 200.0;

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
    /// How many bytes a microsecond the processor copies of what is large and in its caches; none
    /// where that was not measured.
    pub fn bytes_per_us(&self) -> Option<u64> {
        let large = &self.classes[LARGE_CLASS];
        let ps = large.copy_ps.get(large.best_guarded).copied().filter(|ps| *ps > 0)?;
        Some((large.sample_bytes as u64).saturating_mul(1_000_000) / ps)
    }

    /// Makes [`crate::copy`] and guarded copies use what was found, in the whole process.
    pub fn apply(&self) {
        for (class, measured) in self.classes.iter().enumerate() {
            kernel::choose(class, *measured.best(), *measured.best_guarded());
        }
    }
}

/// Measures. Other threads of the machine that are busy make it less certain, never wrong.
pub fn calibrate() -> Calibration {
    let mut calibrator = Calibrator::default();
    while calibrator.step() {}
    calibrator.into_result()
}

/// Measures a class at a time.
#[derive(Debug, Default)]
pub struct Calibrator {
    classes: Vec<Measured>,
    buffers: Option<(Vec<u8>, Vec<u8>)>,
    took: Duration,
}

impl Calibrator {
    /// Measures the next class, which takes less than a millisecond of a core; false where
    /// nothing is left to measure.
    pub fn step(&mut self) -> bool {
        let class = self.classes.len();
        if class >= CLASSES {
            return false;
        }
        let begin = Instant::now();
        match &mut self.buffers {
            // To touch them for the first time takes as long as a class.
            None => {
                self.buffers = Some((vec![1_u8; SAMPLE_BYTES_MAX], vec![2_u8; SAMPLE_BYTES_MAX]));
            }
            Some((source, target)) if self.took < BUDGET => {
                self.classes.push(measure(sample_bytes(class), source, target));
            }
            Some(_) => self.classes.push(unmeasured(sample_bytes(class))),
        }
        self.took += begin.elapsed();
        true
    }

    /// What was found; classes that were not measured keep the preferred loop.
    pub fn into_result(self) -> Calibration {
        let mut classes = self.classes.into_iter();
        let class = |class| classes.next().unwrap_or_else(|| unmeasured(sample_bytes(class)));
        Calibration { classes: std::array::from_fn(class) }
    }
}

fn unmeasured(sample_bytes: usize) -> Measured {
    let kernels = kernel::available();
    let copy_ps = vec![0; kernels.len()];
    let best_guarded = best(&copy_ps, |at| kernels[at].is_guarded());
    Measured { sample_bytes, copy_ps, best: 0, best_guarded }
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

/// One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// Two threads that take turns: one writes the lines, the other reads them.
#[derive(Debug)]
struct Exchange {
    lines: Box<[Line]>,
    /// Even: to be written for the round that is half of it. Odd: written.
    turn: AtomicUsize,
    /// Where the writer ran, a core's number.
    core: AtomicUsize,
    until: Instant,
}

/// What a line costs more to read because another core wrote it, nanoseconds, where many are read
/// one after the other; nothing where there is one core only, or the other one has no time.
///
/// Another thread runs meanwhile, for a millisecond at most.
pub fn remote_line_ns() -> Option<f32> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    let exchange = Arc::new(Exchange {
        lines: (0..REMOTE_LINES).map(|_| Line::default()).collect(),
        turn: AtomicUsize::new(0),
        core: AtomicUsize::new(usize::MAX),
        until: Instant::now() + REMOTE_BUDGET,
    });
    let writer = Arc::clone(&exchange);
    let name = std::thread::Builder::new().name("copyd-measure".to_owned());
    // It ends by itself: a core that is busy keeps nobody waiting.
    drop(name.spawn(move || writer.write()).ok()?);
    median_ns(exchange.read())
}

fn median_ns(mut samples: Vec<f32>) -> Option<f32> {
    if samples.len() < REMOTE_ROUNDS_MIN {
        return None;
    }
    samples.sort_unstable_by(f32::total_cmp);
    let median = samples[samples.len() / 2];
    (median <= REMOTE_NS_MAX).then_some(median.max(0.0))
}

impl Exchange {
    /// Waits for a turn; false where the time is up.
    fn wait_for(&self, turn: usize) -> bool {
        while self.turn.load(Ordering::Acquire) != turn {
            if Instant::now() > self.until {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    fn write(&self) {
        for round in 0..REMOTE_ROUNDS {
            if !self.wait_for(2 * round) {
                return;
            }
            for line in &self.lines {
                line.0.store(round as u64, Ordering::Relaxed);
            }
            self.core.store(core(), Ordering::Relaxed);
            self.turn.store(2 * round + 1, Ordering::Release);
        }
    }

    /// Nanoseconds a line, of each round in which both had a core of their own.
    fn read(&self) -> Vec<f32> {
        let mut samples = Vec::with_capacity(REMOTE_ROUNDS);
        for round in 0..REMOTE_ROUNDS {
            if !self.wait_for(2 * round + 1) {
                break;
            }
            let (remote, local) = (self.time_ns(), self.time_ns());
            if core() != self.core.load(Ordering::Relaxed) {
                samples.push((remote - local) / REMOTE_LINES as f32);
            }
            self.turn.store(2 * round + 2, Ordering::Release);
        }
        samples
    }

    fn time_ns(&self) -> f32 {
        let begin = Instant::now();
        let sum = self.lines.iter().map(|line| line.0.load(Ordering::Relaxed)).sum::<u64>();
        std::hint::black_box(sum);
        begin.elapsed().as_nanos() as f32
    }
}

/// The core that this thread is on at the moment.
fn core() -> usize {
    // SAFETY: it has no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
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
    fn a_step_is_a_class_and_what_is_not_measured_keeps_its_loop() {
        let mut calibrator = Calibrator::default();
        // The buffers, and the first class.
        assert!(calibrator.step() && calibrator.step());
        calibrator.took = BUDGET;
        let steps = (0..CLASSES).take_while(|_| calibrator.step()).count();
        assert_eq!(steps, CLASSES - 1);
        let found = calibrator.into_result();
        assert!(found.classes[0].copy_ps.iter().all(|ps| *ps > 0));
        let preferred = kernel::best().name();
        assert!(found.classes[1..].iter().all(|class| class.best().name() == preferred));
        assert_eq!(found.bytes_per_us(), None);
        assert!(calibrate().bytes_per_us().is_none_or(|rate| rate > 0));
    }

    #[test]
    fn a_line_of_another_core_costs_what_a_line_can_cost() {
        // Two cores may not be had in time.
        match remote_line_ns() {
            Some(ns) => assert!((0.0..=REMOTE_NS_MAX).contains(&ns), "{ns}"),
            None => println!("skipped: no two cores for a millisecond"),
        }
        assert_eq!(median_ns(vec![1.0; REMOTE_ROUNDS_MIN - 1]), None);
        assert_eq!(median_ns(vec![-1.0; REMOTE_ROUNDS_MIN]), Some(0.0));
        assert_eq!(median_ns(vec![3.0, 1.0, 2.0, 900.0, 800.0]), Some(3.0));
        assert_eq!(median_ns(vec![900.0; 5]), None);
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
