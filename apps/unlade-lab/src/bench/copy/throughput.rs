//! Bytes a second, and processor time for each, by size and by whether buffers are used again.
//!
//! io_uring is not among the baselines: it has no operation from memory to memory. A splice
//! through a pipe moves pages between files, and reads or writes memory by copying it as often.

use super::pool::{self, Flow, Pair};
use super::usage::CopyTime;
use crate::bench::figures::{median, median_by};
use crate::bench::record::Sink;
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Service};
use unlade_copy_kernels::Kernel;

const GIB: f64 = 1_073_741_824.0;
const SIZES: [usize; 7] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 64 << 20];
/// Copies that are queued at a time, ...
const QUEUED_MAX: usize = 64;
/// ... as long as they are no more than so many bytes, or two copies.
const QUEUED_BYTES_MAX: usize = 2 << 20;
/// Sources, and destinations, of copies that are to meet no cache.
const FRESH_BYTES: usize = 96 << 20;
/// Loops that no program chooses where it has better ones.
const LEFT_OUT: [&str; 3] = ["portable", "bytes", "sse2"];

/// The parameters that stay fixed.
#[derive(Debug, Clone, Copy)]
struct Case {
    bytes: usize,
    is_fresh: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Case> {
        let sizes = |is_fresh| SIZES.into_iter().map(move |bytes| Case { bytes, is_fresh });
        sizes(false).chain(sizes(true))
    }

    fn buffers(self) -> &'static str {
        if self.is_fresh { "fresh" } else { "again" }
    }

    fn fields(self) -> Map<String, Value> {
        let fields = json!({ "bytes": self.bytes, "buffers": self.buffers() });
        fields.as_object().cloned().unwrap_or_default()
    }

    fn queued_max(self) -> usize {
        (QUEUED_BYTES_MAX / self.bytes).clamp(2, QUEUED_MAX)
    }

    /// As many pairs as are queued at a time, or so many that each has left the caches when its
    /// turn comes.
    fn pairs(self) -> VecDeque<Pair> {
        let fresh = FRESH_BYTES / self.bytes;
        let again = self.queued_max();
        pool::pairs(if self.is_fresh { fresh.max(again) } else { again }, self.bytes)
    }
}

/// The party that copies.
#[derive(Clone, Copy)]
enum Mode {
    /// The program, with this loop.
    Alone(Kernel),
    /// The service, and the program while it waits for the oldest copy.
    Served,
}

impl Mode {
    fn all() -> Vec<Mode> {
        let kernels = unlade_copy_kernels::kernel::available().iter();
        let kernels = kernels.filter(|kernel| !LEFT_OUT.contains(&kernel.name()));
        let stream = unlade_copy_kernels::stream::available().first();
        kernels.chain(stream).map(|kernel| Mode::Alone(*kernel)).chain([Mode::Served]).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Mode::Alone(kernel) => kernel.name(),
            Mode::Served => "offload",
        }
    }
}

/// Of one mode in one window, or medians of several.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    bytes_per_s: f64,
    cpu_per_gib: CopyTime,
}

impl Figures {
    /// The median of each figure.
    fn medians(rounds: &[Figures]) -> Figures {
        let of = |figure: fn(&Figures) -> f64| median_by(rounds, figure);
        Figures {
            bytes_per_s: of(|it| it.bytes_per_s),
            cpu_per_gib: CopyTime {
                client_s: of(|it| it.cpu_per_gib.client_s),
                service_s: of(|it| it.cpu_per_gib.service_s),
            },
        }
    }

    fn metrics(self) -> Map<String, Value> {
        let metrics = json!({
            "throughput_bytes_per_s": self.bytes_per_s,
            "client_cpu_s_per_gib": self.cpu_per_gib.client_s,
            "service_cpu_s_per_gib": self.cpu_per_gib.service_s,
            "cpu_s_per_gib": self.cpu_per_gib.total_s(),
        });
        metrics.as_object().cloned().unwrap_or_default()
    }
}

/// Copies for `window`: pairs go in, and out again.
fn alone(kernel: Kernel, mut pairs: VecDeque<Pair>, window: Duration) -> (VecDeque<Pair>, u64) {
    let (begin, mut made) = (Instant::now(), 0);
    while begin.elapsed() < window {
        let Some((source, mut destination)) = pairs.pop_front() else { break };
        kernel.copy_slice(&mut destination, &source);
        black_box(&mut destination);
        pairs.push_back((source, destination));
        made += 1;
    }
    (pairs, made)
}

fn served(
    copier: &Copier,
    pairs: VecDeque<Pair>,
    case: Case,
    window: Duration,
) -> Result<(VecDeque<Pair>, u64)> {
    let mut flow = Flow::new(copier, pairs, case.queued_max());
    let begin = Instant::now();
    while begin.elapsed() < window {
        flow.fill();
        flow.wait()?;
        flow.reap()?;
    }
    flow.finish()
}

/// All modes of a case: rounds of each, in the order of `modes`.
fn measure(
    copier: &Copier,
    modes: &[Mode],
    case: Case,
    rounds: usize,
    window: Duration,
) -> Result<Vec<Vec<Figures>>> {
    let mut pairs = case.pairs();
    let mut made_in_all = 0;
    let mut found = vec![Vec::with_capacity(rounds); modes.len()];
    for round in 0..rounds {
        for step in 0..modes.len() {
            let at = (step + round) % modes.len();
            let (before, begin) = (CopyTime::now(), Instant::now());
            let (back, made) = match modes[at] {
                Mode::Alone(kernel) => alone(kernel, pairs, window),
                Mode::Served => served(copier, pairs, case, window)?,
            };
            let elapsed_s = begin.elapsed().as_secs_f64();
            pairs = back;
            made_in_all += made;
            let bytes = made as f64 * case.bytes as f64;
            let cpu_per_gib = (CopyTime::now() - before).per(bytes / GIB);
            found[at].push(Figures { bytes_per_s: bytes / elapsed_s, cpu_per_gib });
        }
    }
    // They go round, so as many are copied as went past, if that is not all of them.
    let right = pairs.iter().filter(|(source, destination)| source == destination).count() as u64;
    ensure!(right >= made_in_all.min(pairs.len() as u64), "{} bytes were copied wrong", case.bytes);
    Ok(found)
}

/// Runs all cases.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 3 } else { 9 };
    let window = Duration::from_millis(if quick { 25 } else { 60 });
    let service = Service::start(Config::default())?;
    let copier = Copier::new(service.attach().context("a client")?);
    let modes = Mode::all();
    let names: String = modes.iter().map(|mode| format!("{:>14}", mode.name())).collect();
    line(format_args!("{:<16}{names}{:>8}{:>10}", "GB/s", "ratio", "CPU ratio"))?;
    for case in Case::all() {
        let found = measure(&copier, &modes, case, rounds, window)?;
        let figures: Vec<Figures> = found.iter().map(|rounds| Figures::medians(rounds)).collect();
        for (mode, figures) in modes.iter().zip(&figures) {
            sink.write(case.fields(), mode.name(), figures.metrics())?;
        }
        let (throughput, cpu) = ratios(&found, &figures);
        let metrics =
            json!({ "throughput_ratio_vs_fastest": throughput, "cpu_ratio_vs_fastest": cpu });
        sink.write(case.fields(), "ratio", metrics.as_object().cloned().unwrap_or_default())?;
        let cells: String =
            figures.iter().map(|figures| format!("{:>14.1}", figures.bytes_per_s / 1e9)).collect();
        let label = format!("{} {}", unlade_config::ByteSize(case.bytes as u64), case.buffers());
        line(format_args!("{label:<16}{cells}{throughput:>8.2}{cpu:>10.2}"))?;
    }
    line(
        "CPU ratio: client and service together; the client's share waits, and helps, all the time",
    )
}

/// The service, which is the last mode, beside the fastest of the others: bytes a second, and
/// processor time for each byte; medians of the rounds' own ratios.
fn ratios(found: &[Vec<Figures>], figures: &[Figures]) -> (f64, f64) {
    let Some((served, alone)) = found.split_last() else { return (1.0, 1.0) };
    let fastest = (0..alone.len())
        .max_by(|&a, &b| figures[a].bytes_per_s.total_cmp(&figures[b].bytes_per_s))
        .unwrap_or(0);
    let paired = |figure: fn(&Figures) -> f64| {
        let pairs = served.iter().zip(&alone[fastest]);
        median(pairs.map(|(ours, other)| figure(ours) / figure(other)))
    };
    (paired(|it| it.bytes_per_s), paired(|it| it.cpu_per_gib.total_s()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_copies_the_right_bytes_and_is_counted() {
        let service = Service::start(Config::default()).unwrap();
        let copier = Copier::new(service.attach().unwrap());
        let modes = Mode::all();
        assert_eq!(modes.last().unwrap().name(), "offload");
        let case = Case { bytes: 16 << 10, is_fresh: false };
        let found = measure(&copier, &modes, case, 2, Duration::from_millis(2)).unwrap();
        assert!(found.iter().flatten().all(|figures| figures.bytes_per_s > 0.0));
        let figures: Vec<Figures> = found.iter().map(|rounds| Figures::medians(rounds)).collect();
        let (throughput, cpu) = ratios(&found, &figures);
        assert!(throughput > 0.0 && cpu > 0.0);
    }
}
