//! Single copies: the time that the program sees, from each interface, with and without work
//! between copy and use, and beside a thread that computes all the time.
//!
//! A case is a new call site, and the service sleeps at its start. First the site learns, then
//! rounds measure the loops of the program and the service one after the other.

mod case;
mod costs;
mod hog;
mod ways;

use crate::bench::cpu;
use crate::bench::figures::median;
use crate::bench::record::Sink;
use crate::bench::samples::{clock_ns, trimmed_mean};
use anyhow::{Result, anyhow};
use case::{Buffers, Case};
use hog::Hog;
use serde_json::{Map, json};
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Service};
use unlade_copy_kernels::Kernel;
use ways::{Client, alone};

/// A site learns for at least this time and this number of copies.
const LEARNING: Duration = Duration::from_millis(30);
const LEARNING_COPIES: usize = 64;
/// It learns no longer than this.
const LEARNING_MAX: Duration = Duration::from_secs(2);
/// A site has learnt when all but one of this number of copies are made in its final way.
const SETTLED_COPIES: usize = 16;

/// A copy at a site that learns.
#[derive(Clone, Copy)]
struct Early {
    /// Time since the first copy of the site.
    at: Duration,
    is_queued: bool,
}

/// Result of a case.
struct Outcome {
    /// Nanoseconds of each loop of the program.
    kernels_ns: Vec<f64>,
    served_ns: f64,
    /// The service's share of the fastest loop, the median over rounds.
    ratio: f64,
    /// Share of the measured copies that were queued.
    queued: f64,
    /// Time from the first copy of the site until it had learnt.
    learnt: Duration,
    /// Time that all copies of the site took beyond the fastest loop, in proportion; negative if
    /// they took less.
    regret: f64,
}

/// One case while it is measured.
struct Measurement<'a> {
    case: Case,
    client: &'a Client,
    buffers: Buffers,
    window: Duration,
    repeats: usize,
    clock_ns: f64,
    /// Time and number of all copies, and of those of which something was queued.
    total_ns: f64,
    copies: usize,
    queued: usize,
}

impl Measurement<'_> {
    fn overhead_ns(&self) -> f64 {
        if self.window.is_zero() { self.clock_ns } else { 2.0 * self.clock_ns }
    }

    fn served(&mut self) -> f64 {
        let before = self.client.queued();
        let seen_ns = self.client.copy(&mut self.buffers, self.case, self.window);
        let seen_ns = (seen_ns - self.overhead_ns()).max(1.0);
        self.total_ns += seen_ns;
        self.copies += 1;
        // A long copy is several tasks.
        self.queued += usize::from(self.client.queued() != before);
        seen_ns
    }

    /// Copies until the site has had time to learn.
    fn learn(&mut self) -> Vec<Early> {
        let begin = Instant::now();
        let mut early: Vec<Early> = Vec::new();
        while (begin.elapsed() < LEARNING || early.len() < LEARNING_COPIES)
            && begin.elapsed() < LEARNING_MAX
        {
            let (at, before) = (begin.elapsed(), self.queued);
            self.served();
            early.push(Early { at, is_queued: self.queued != before });
        }
        early
    }

    /// Nanoseconds of each loop, then of the service.
    fn round(&mut self, kernels: &[Kernel]) -> Vec<f64> {
        let overhead_ns = self.overhead_ns();
        // One way after the other: a program does not change its way with every copy, and the
        // service sleeps meanwhile.
        let mut means: Vec<f64> = kernels
            .iter()
            .map(|kernel| {
                let once = |_| alone(kernel, &mut self.buffers, self.case, self.window);
                let mut samples: Vec<f64> = (0..self.repeats).map(once).collect();
                (trimmed_mean(&mut samples) - overhead_ns).max(1.0)
            })
            .collect();
        let mut samples: Vec<f64> = (0..2 * self.repeats).map(|_| self.served()).collect();
        // The first half wakes the service.
        means.push(trimmed_mean(&mut samples[self.repeats..]));
        means
    }
}

/// Time until the site had learnt: from then on, `SETTLED_COPIES` copies in a row are made in the
/// final way, except for one.
fn learnt(early: &[Early], is_queued_finally: bool) -> Duration {
    let is_settled = |copies: &[Early]| {
        copies.iter().filter(|copy| copy.is_queued != is_queued_finally).count() <= 1
    };
    let first = early.windows(SETTLED_COPIES).find(|copies| is_settled(copies));
    let last = || early.last().map_or(Duration::ZERO, |copy| copy.at);
    first.map_or_else(last, |copies| copies[0].at)
}

fn measure(client: &Client, case: Case, rounds: usize, clock_ns: f64) -> Outcome {
    let kernels = unlade_copy_kernels::kernel::available();
    let mut buffers = Buffers::new(case.bytes);
    let mut once = |_| alone(&kernels[0], &mut buffers, Case { window: 0, ..case }, Duration::ZERO);
    let first: Vec<f64> = (0..5).map(&mut once).collect();
    let copy_ns = (median(&first) - clock_ns).max(1.0);
    let (window, repeats) = (case.window(copy_ns), case.repeats(copy_ns));
    let mut this = Measurement {
        case,
        client,
        buffers,
        window,
        repeats,
        clock_ns,
        total_ns: 0.0,
        copies: 0,
        queued: 0,
    };
    let early = this.learn();
    let (before, copies) = (this.queued, this.copies);
    let rounds: Vec<Vec<f64>> = (0..rounds).map(|_| this.round(kernels)).collect();
    let queued = (this.queued - before) as f64 / (this.copies - copies).max(1) as f64;
    let column = |at: usize| median(rounds.iter().map(|times| times[at]));
    let kernels_ns: Vec<f64> = (0..kernels.len()).map(column).collect();
    // The fastest over all rounds: the fastest of each round is chance.
    let fastest = (0..kernels.len()).min_by(|a, b| kernels_ns[*a].total_cmp(&kernels_ns[*b]));
    let fastest = fastest.unwrap_or_default();
    let ratios: Vec<f64> =
        rounds.iter().map(|times| times[kernels.len()] / times[fastest]).collect();
    Outcome {
        served_ns: column(kernels.len()),
        ratio: median(&ratios),
        queued,
        learnt: learnt(&early, queued > 0.5),
        regret: this.total_ns / (kernels_ns[fastest] * this.copies as f64) - 1.0,
        kernels_ns,
    }
}

/// Runs all cases, and the price of submissions and looks.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 7 } else { 21 };
    let clock_ns = clock_ns();
    let kernels = unlade_copy_kernels::kernel::available();
    let names: String = kernels.iter().map(|kernel| format!("{:>10}", kernel.name())).collect();
    line(format_args!(
        "{:<24}{:>10}{names}{:>8}{:>8}{:>10}{:>9}",
        "nanoseconds", "service", "ratio", "queued", "learnt ms", "regret"
    ))?;
    ways::start_c_service();
    for has_hog in [false, true] {
        let _hog = has_hog.then(Hog::start);
        for case in Case::all(has_hog) {
            // Here, since the threads of a service inherit the processors of its creator.
            let service = Service::start(Config::default())?;
            // A thread each, since threads learn for themselves.
            let outcome = std::thread::scope(|scope| {
                let measuring = scope.spawn(|| {
                    // The service has the other processors: a program that has just begun to run
                    // on several may have all its threads on one for a while.
                    cpu::stay_on(cpu::first_processor())?;
                    let client = Client::new(case.interface, &service)?;
                    Ok::<_, anyhow::Error>(measure(&client, case, rounds, clock_ns))
                });
                measuring.join().map_err(|_| anyhow!("the measuring thread panicked"))?
            })?;
            print(case, &outcome)?;
            write(sink, case, &outcome)?;
        }
    }
    costs::run(sink, clock_ns)
}

fn print(case: Case, outcome: &Outcome) -> Result<()> {
    let kernels: String = outcome.kernels_ns.iter().map(|ns| format!("{ns:>10.0}")).collect();
    line(format_args!(
        "{:<24}{:>10.0}{kernels}{:>8.2}{:>7.0}%{:>10.1}{:>8.1}%",
        case.label(),
        outcome.served_ns,
        outcome.ratio,
        100.0 * outcome.queued,
        1e3 * outcome.learnt.as_secs_f64(),
        100.0 * outcome.regret,
    ))
}

fn write(sink: &mut Sink, case: Case, outcome: &Outcome) -> Result<()> {
    let time = |ns: f64| Map::from_iter([("latency_ns".to_owned(), ns.into())]);
    for (kernel, ns) in unlade_copy_kernels::kernel::available().iter().zip(&outcome.kernels_ns) {
        sink.write(case.fields(), kernel.name(), time(*ns))?;
    }
    let served = json!({
        "latency_ns": outcome.served_ns,
        "queued_ratio": outcome.queued,
        "learnt_ms": 1e3 * outcome.learnt.as_secs_f64(),
        "regret_ratio": outcome.regret,
    });
    sink.write(case.fields(), "offload", served.as_object().cloned().unwrap_or_default())?;
    let ratio = Map::from_iter([("latency_ratio_vs_sync".to_owned(), outcome.ratio.into())]);
    sink.write(case.fields(), "ratio", ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_learnt_when_it_stays_with_its_way() {
        let copies = |ways: &[u8]| -> Vec<Early> {
            let at = |number: usize| Duration::from_millis(number as u64);
            let copies = ways.iter().enumerate();
            copies.map(|(number, way)| Early { at: at(number), is_queued: *way == 1 }).collect()
        };
        let mut ways = vec![0; 10];
        ways.extend([1; 5]);
        ways.extend([0; 3]);
        ways.extend([1; 30]);
        assert_eq!(learnt(&copies(&ways), true), Duration::from_millis(17));
        assert_eq!(learnt(&copies(&[1; 20]), true), Duration::ZERO);
        assert_eq!(learnt(&copies(&[0; 20]), true), Duration::from_millis(19));
        assert_eq!(learnt(&[], true), Duration::ZERO);
    }
}
