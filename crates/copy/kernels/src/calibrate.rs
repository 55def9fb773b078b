//! Calibration: measures in some milliseconds the fastest loop for each size on this machine, and
//! the cost to read a cache line that another core wrote.
//!
//! For each class of length, all loops copy one size from warm caches to warm caches, in turn and
//! in several rounds, so disturbances affect all of them alike. A round has several distances
//! between source and destination within a page: the order of the loops depends on it. One byte of
//! each line is read after a copy, as the program will. Medians decide. A loop replaces the
//! preferred one only if it is clearly faster. Larger samples than the caches would take longer,
//! so the last class has one of 1 MiB.
//!
//! [`Calibrator`] runs it step by step, for callers that have other work in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::kernel::{self, CLASSES, Kernel, class_bytes_max};

/// Number of rounds for the median; fewer where a copy is long.
const ROUNDS: usize = 7;
const LONG_ROUNDS: usize = 3;
const LONG_BYTES: usize = 256 << 10;
/// Bytes of a page, and offsets of source and destination in one: allocators align to 16 bytes.
const PAGE_BYTES: usize = 4 << 10;
const OFFSETS: [(usize, usize); 4] = [(0, 0), (16, 32), (1040, 16), (2080, 0)];
/// Number of bytes that one loop copies in one round of a class; at least a copy for each offset.
const ROUND_BYTES: usize = 256 << 10;
/// Maximum sample size, in bytes.
const SAMPLE_BYTES_MAX: usize = 1 << 20;
/// Size of a buffer, with room for its offset, and bytes that one step touches first.
const BUFFER_BYTES: usize = SAMPLE_BYTES_MAX + 2 * PAGE_BYTES;
const TOUCHED_BYTES: usize = 64 << 10;
/// Minimum advantage over the preferred loop, in percent of the time.
const BETTER_PERCENT: u64 = 5;
/// Maximum total time of all steps; classes that are not measured keep the preferred loop.
const BUDGET: Duration = Duration::from_millis(40);
/// Length whose loop determines the processor's copy rate for large copies.
const LARGE_BYTES: usize = 64 << 10;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Number of lines that move from core to core in one round.
const REMOTE_LINES: usize = 1024;
/// Number of rounds for the median.
const REMOTE_ROUNDS: usize = 15;
/// Minimum number of valid rounds with two cores.
const REMOTE_ROUNDS_MIN: usize = 5;
/// Maximum time of these rounds.
const REMOTE_BUDGET: Duration = Duration::from_millis(1);
/// A larger value is not the cost of a line, but a preemption.
const REMOTE_NS_MAX: f32 = 200.0;

/// Measurements of one class of length.
#[derive(Clone, Debug)]
pub struct ClassTimings {
    /// Copied size, in bytes.
    pub sample_bytes: usize,
    /// Median time of one copy, in picoseconds, for each loop of [`kernel::available`].
    pub copy_ps: Vec<u64>,
    best: usize,
    best_guarded: usize,
}

impl ClassTimings {
    /// Returns the loop for copies of this class.
    pub fn best(&self) -> &'static Kernel {
        &kernel::available()[self.best]
    }

    /// Returns the loop for guarded copies of this class.
    pub fn best_guarded(&self) -> &'static Kernel {
        &kernel::available()[self.best_guarded]
    }
}

/// Measurements by class.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// One entry for each class of [`kernel::class`].
    pub classes: [ClassTimings; CLASSES],
}

impl Calibration {
    /// Returns the processor's rate for large copies within its caches, in bytes per microsecond;
    /// `None` if not measured.
    pub fn bytes_per_us(&self) -> Option<u64> {
        let large = &self.classes[kernel::class(LARGE_BYTES)];
        let ps = large.copy_ps.get(large.best_guarded).copied().filter(|ps| *ps > 0)?;
        Some((large.sample_bytes as u64).saturating_mul(1_000_000) / ps)
    }

    /// Makes [`crate::copy`] and guarded copies use these results, in the whole process.
    pub fn apply(&self) {
        for (class, measured) in self.classes.iter().enumerate() {
            kernel::choose(class, *measured.best(), *measured.best_guarded());
        }
    }
}

/// Runs a calibration. Other busy threads make its results less exact, never wrong.
pub fn calibrate() -> Calibration {
    let mut calibrator = Calibrator::default();
    while calibrator.step() {}
    calibrator.into_result()
}

/// Measures one round of one class at a time.
#[derive(Debug, Default)]
pub struct Calibrator {
    classes: Vec<ClassTimings>,
    /// Times of each loop in the class that is measured now, in picoseconds.
    rounds: Vec<Vec<u64>>,
    buffers: Option<(Vec<u8>, Vec<u8>)>,
    took: Duration,
}

impl Calibrator {
    /// Measures once more, which takes less than a millisecond of a core. Returns false if nothing
    /// is left to measure.
    pub fn step(&mut self) -> bool {
        let class = self.classes.len();
        if class >= CLASSES {
            return false;
        }
        let begin = Instant::now();
        match &mut self.buffers {
            None => {
                let buffer = || Vec::with_capacity(BUFFER_BYTES);
                self.buffers = Some((buffer(), buffer()));
            }
            // The first touch of all pages at once would take milliseconds.
            Some((source, target)) if source.len() < BUFFER_BYTES => {
                let bytes = (source.len() + TOUCHED_BYTES).min(BUFFER_BYTES);
                source.resize(bytes, 1);
                target.resize(bytes, 2);
            }
            Some((source, target)) if self.took < BUDGET => {
                let bytes = sample_bytes(class);
                self.rounds.push(round(bytes, source, target));
                let rounds = if bytes < LONG_BYTES { ROUNDS } else { LONG_ROUNDS };
                // The first round warms the caches.
                if self.rounds.len() > rounds {
                    self.classes.push(judge(bytes, &self.rounds[1..]));
                    self.rounds.clear();
                }
            }
            Some(_) => self.classes.push(unmeasured(sample_bytes(class))),
        }
        self.took += begin.elapsed();
        true
    }

    /// Returns the results; classes that were not measured keep the preferred loop.
    pub fn into_result(self) -> Calibration {
        let mut classes = self.classes.into_iter();
        let class = |class| classes.next().unwrap_or_else(|| unmeasured(sample_bytes(class)));
        Calibration { classes: std::array::from_fn(class) }
    }
}

fn unmeasured(sample_bytes: usize) -> ClassTimings {
    let kernels = kernel::available();
    let copy_ps = vec![0; kernels.len()];
    let best_guarded = best(&copy_ps, |at| kernels[at].is_guarded());
    ClassTimings { sample_bytes, copy_ps, best: 0, best_guarded }
}

/// Returns a size from the middle of a class.
fn sample_bytes(class: usize) -> usize {
    (class_bytes_max(class) / 4 * 3).min(SAMPLE_BYTES_MAX)
}

/// Returns the offset of the first page that begins in the buffer.
fn first_page(buffer: &[u8]) -> usize {
    buffer.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES)
}

/// Returns the time of one copy by each loop, in picoseconds.
fn round(sample_bytes: usize, source: &[u8], target: &mut [u8]) -> Vec<u64> {
    let source = &source[first_page(source)..];
    let start = first_page(target);
    let target = &mut target[start..];
    kernel::available().iter().map(|kernel| time(kernel, source, target, sample_bytes)).collect()
}

/// The medians of an odd number of rounds, and the loops that they make the best.
fn judge(sample_bytes: usize, rounds: &[Vec<u64>]) -> ClassTimings {
    let kernels = kernel::available();
    let median = |kernel: usize| {
        let mut times: Vec<u64> = rounds.iter().map(|times| times[kernel]).collect();
        let middle = times.len() / 2;
        *times.select_nth_unstable(middle).1
    };
    let copy_ps: Vec<u64> = (0..kernels.len()).map(median).collect();
    ClassTimings {
        sample_bytes,
        best: best(&copy_ps, |_| true),
        best_guarded: best(&copy_ps, |at| kernels[at].is_guarded()),
        copy_ps,
    }
}

/// Returns the time of one copy, in picoseconds: the mean over all offsets.
fn time(kernel: &Kernel, source: &[u8], target: &mut [u8], bytes: usize) -> u64 {
    let repeats = (ROUND_BYTES / bytes / OFFSETS.len()).max(1);
    let begin = Instant::now();
    for (from, to) in OFFSETS {
        let (source, target) = (&source[from..from + bytes], &mut target[to..to + bytes]);
        for _ in 0..repeats {
            kernel.copy_slice(target, source);
            let lines = target.iter().step_by(LINE_BYTES);
            std::hint::black_box(lines.map(|byte| u64::from(*byte)).sum::<u64>());
        }
    }
    let copies = (repeats * OFFSETS.len()) as u64;
    (begin.elapsed().as_nanos() as u64).saturating_mul(1000) / copies
}

/// Returns the index of the fastest permitted loop, or of the first one if that is about as fast.
fn best(copy_ps: &[u64], may: impl Fn(usize) -> bool) -> usize {
    let mut allowed = (0..copy_ps.len()).filter(|&at| may(at));
    let first = allowed.next().unwrap_or(0);
    let fastest = allowed.min_by_key(|&at| copy_ps[at]).unwrap_or(first);
    let clearly =
        copy_ps[fastest].saturating_mul(100) < copy_ps[first].saturating_mul(100 - BETTER_PERCENT);
    if clearly { fastest } else { first }
}

/// A cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// Two threads that take turns: one writes the lines, the other reads them.
#[derive(Debug)]
struct Exchange {
    lines: Box<[Line]>,
    /// Even: the lines can be written for round `turn / 2`. Odd: they are written.
    turn: AtomicUsize,
    /// Number of the writer's core.
    core: AtomicUsize,
    until: Instant,
}

/// Returns the additional time to read a cache line that another core wrote, in nanoseconds, for a
/// sequence of lines. `None` with only one core, or if the other core is busy.
///
/// Runs a second thread, for a millisecond at most.
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
    // The writer ends by itself, so a busy core delays no caller.
    drop(crate::thread::spawn("copyd-measure".to_owned(), move || writer.write()).ok()?);
    plausible_line_ns(exchange.read())
}

/// Returns the middle sample, at least 0. `None` of too few samples, or if the time is implausible:
/// then a thread lost its core in most rounds.
fn plausible_line_ns(mut samples: Vec<f32>) -> Option<f32> {
    if samples.len() < REMOTE_ROUNDS_MIN {
        return None;
    }
    samples.sort_unstable_by(f32::total_cmp);
    let middle = samples[samples.len() / 2];
    (middle <= REMOTE_NS_MAX).then_some(middle.max(0.0))
}

impl Exchange {
    /// Waits for a turn; returns false when the time is up.
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

    /// Returns the nanoseconds per line of each round in which both threads had a core of their
    /// own.
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

/// Returns the current core of this thread.
fn core() -> usize {
    // SAFETY: the call has no preconditions.
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
        let buffers = 1 + BUFFER_BYTES.div_ceil(TOUCHED_BYTES);
        for _ in 0..buffers + 1 + ROUNDS {
            // However long the steps take on a busy machine.
            calibrator.took = Duration::ZERO;
            assert!(calibrator.step());
        }
        assert_eq!(calibrator.classes.len(), 1);
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
        // Two cores may not be available in time.
        match remote_line_ns() {
            Some(ns) => assert!((0.0..=REMOTE_NS_MAX).contains(&ns), "{ns}"),
            None => println!("skipped: no two cores for a millisecond"),
        }
        assert_eq!(plausible_line_ns(vec![1.0; REMOTE_ROUNDS_MIN - 1]), None);
        assert_eq!(plausible_line_ns(vec![-1.0; REMOTE_ROUNDS_MIN]), Some(0.0));
        assert_eq!(plausible_line_ns(vec![3.0, 1.0, 2.0, 900.0, 800.0]), Some(3.0));
        assert_eq!(plausible_line_ns(vec![900.0; 5]), None);
    }

    #[test]
    fn every_class_gets_a_loop_and_copies_stay_right() {
        let found = calibrate();
        for measured in &found.classes {
            assert_eq!(measured.copy_ps.len(), kernel::available().len());
            assert!(measured.best_guarded().is_guarded());
        }
        found.apply();
        for bytes in (0..CLASSES - 1).map(class_bytes_max).flat_map(|b| [b - 1, b, b + 1]) {
            let from: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let mut to = vec![0; bytes];
            // SAFETY: two vectors of `bytes` bytes.
            unsafe { crate::copy(to.as_mut_ptr(), from.as_ptr(), bytes, crate::Hint::Reuse) };
            assert!(from == to, "{bytes} bytes");
        }
    }
}
