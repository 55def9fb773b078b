//! Two ways of one piece of work, with the copy service and without, round about.

use crate::bench::figures::median;
use crate::bench::record::Sink;
use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Polling, Service};

/// Sizes of what is worked on.
pub const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Processor time of one way in one round, about.
const ROUND: Duration = Duration::from_millis(8);
const REPEATS_MIN: usize = 4;
const REPEATS_MAX: usize = 400;
/// Between two ways: so long that the service of the one before sleeps.
const PAUSE: Duration = Duration::from_millis(3);

/// The paper's figure for a use: reduction of latency, in percent.
#[derive(Debug, Clone, Copy)]
pub struct Paper {
    pub least_percent: f64,
    pub most_percent: f64,
}

/// One way: its name, and what does the work once and says how long that took.
pub struct Way<'a> {
    pub name: &'static str,
    pub work: Box<dyn FnMut() -> Result<Duration> + 'a>,
    /// Polls while this way is measured, and sleeps while others are.
    pub service: Option<&'a Service>,
}

impl<'a> Way<'a> {
    pub fn new(name: &'static str, work: impl FnMut() -> Result<Duration> + 'a) -> Way<'a> {
        Way { name, work: Box::new(work), service: None }
    }

    pub fn served(self, service: &'a Service) -> Way<'a> {
        Way { service: Some(service), ..self }
    }
}

/// Result of one variant.
#[derive(Debug, Clone, Default)]
struct Column {
    samples_ns: Vec<f64>,
    medians_ns: Vec<f64>,
    cpu_ns: f64,
}

impl Column {
    fn round(&mut self, way: &mut Way<'_>, repeats: usize) -> Result<()> {
        std::thread::sleep(PAUSE);
        let _polling = way.service.map(Service::scenario);
        // What wakes the service, or lets it sleep, is not what is measured.
        for _ in 0..repeats {
            (way.work)()?;
        }
        let cpu = cpu_time();
        let mut samples = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            samples.push((way.work)()?.as_nanos() as f64);
        }
        self.cpu_ns += cpu_time().saturating_sub(cpu).as_nanos() as f64;
        self.samples_ns.extend_from_slice(&samples);
        self.medians_ns.push(median(&samples));
        Ok(())
    }

    fn p99(&self) -> f64 {
        let mut sorted = self.samples_ns.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
            .get((sorted.len() * 99 / 100).min(sorted.len().saturating_sub(1)))
            .map_or(0.0, |x| *x)
    }

    fn metrics(&self) -> Map<String, Value> {
        let operations = self.samples_ns.len().max(1) as f64;
        let metrics = json!({
            "latency_ns": median(&self.medians_ns),
            "latency_p99_ns": self.p99(),
            "operations": self.samples_ns.len(),
            "cpu_seconds": self.cpu_ns / 1e9,
            "cpu_per_operation_ns": self.cpu_ns / operations,
        });
        metrics.as_object().cloned().unwrap_or_default()
    }
}

/// The processor time of all threads of this process.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A service that polls while its way is measured: the scenario of the paper (§4.5.1).
///
/// # Errors
/// It does not start.
pub fn service() -> Result<Service> {
    Ok(Service::start(Config { polling: Polling::Scenario, ..Config::default() })?)
}

/// Heading of the columns of [`compare`].
pub fn heading(what: &str, paper: Paper) -> Result<()> {
    line(format_args!(
        "{what}: microseconds; the paper's latency falls by {} to {} % (Copier, SOSP 2025, §6)",
        paper.least_percent, paper.most_percent
    ))?;
    line(format_args!(
        "{:<22}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8}{:>8}",
        "", "without", "p99", "with", "p99", "ratio", "p99", "CPU"
    ))
}

/// Measures the last of `ways` beside the others, of which in each round the fastest counts; the
/// first is what programs do today.
///
/// # Errors
/// Those of the work, and of the sink.
pub fn compare(
    case: &Map<String, Value>,
    label: &str,
    rounds: usize,
    paper: Paper,
    mut ways: Vec<Way<'_>>,
    sink: &mut Sink,
) -> Result<()> {
    let mut took = Duration::ZERO;
    for way in &mut ways {
        (way.work)()?;
        took = took.max((way.work)()?);
    }
    let repeats = (ROUND.as_nanos() / took.as_nanos().max(1)) as usize;
    let repeats = repeats.clamp(REPEATS_MIN, REPEATS_MAX);
    let mut columns = vec![Column::default(); ways.len()];
    for round in 0..rounds {
        // Each way is first as often as the others.
        for turn in 0..ways.len() {
            let at = (turn + round) % ways.len();
            columns[at].round(&mut ways[at], repeats)?;
        }
    }
    for (way, column) in ways.iter().zip(&columns) {
        sink.write(case.clone(), way.name, column.metrics())?;
    }
    let Some((offload, others)) = columns.split_last() else { return Ok(()) };
    let fastest = |round: usize| {
        others.iter().map(|column| column.medians_ns[round]).fold(f64::INFINITY, f64::min)
    };
    let ratios: Vec<f64> =
        (0..rounds).map(|round| offload.medians_ns[round] / fastest(round)).collect();
    let whole = |column: &Column| median(&column.medians_ns);
    let best = others.iter().min_by(|a, b| whole(a).total_cmp(&whole(b))).unwrap_or(offload);
    let (p99, cpu) = (offload.p99() / best.p99(), offload.cpu_ns / best.cpu_ns.max(1.0));
    let ratio = median(&ratios);
    let us = |ns: f64| ns / 1000.0;
    // Where programs have had another way than the fastest: what they gain.
    let usual = (others.len() > 1).then(|| {
        let medians = offload.medians_ns.iter().zip(&others[0].medians_ns);
        median(medians.map(|(offload, usual)| offload / usual))
    });
    let beside = usual.map_or(String::new(), |usual| format!("  {usual:.3} of the usual way"));
    line(format_args!(
        "{label:<22}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{ratio:>8.3}{p99:>8.2}{cpu:>8.2}{beside}",
        us(whole(best)),
        us(best.p99()),
        us(whole(offload)),
        us(offload.p99()),
    ))?;
    let mut metrics = json!({
        "latency_ratio_vs_sync": ratio,
        "latency_p99_ratio_vs_sync": p99,
        "cpu_ratio_vs_sync": cpu,
        "paper_latency_ratio_vs_sync_most": 1.0 - paper.least_percent / 100.0,
        "paper_latency_ratio_vs_sync_least": 1.0 - paper.most_percent / 100.0,
    });
    if let Some(usual) = usual {
        metrics["latency_ratio_vs_usual"] = json!(usual);
    }
    sink.write(case.clone(), "ratio", metrics.as_object().cloned().unwrap_or_default())
}

/// The parameters that stay fixed.
pub fn case(use_of: &str, kind: &str, bytes: usize) -> Map<String, Value> {
    let case = json!({ "use": use_of, "kind": kind, "bytes": bytes });
    case.as_object().cloned().unwrap_or_default()
}

/// How long `work` took, and what it gave.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let begin = Instant::now();
    let value = work()?;
    Ok((begin.elapsed(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_of_the_others_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sink = Sink::new("copy", Some(file.path()), 1).unwrap();
        let way = |name, us: u64| Way::new(name, move || Ok(Duration::from_micros(us)));
        let ways = vec![way("slow", 4000), way("fast", 1000), way("offload", 500)];
        let paper = Paper { least_percent: 4.0, most_percent: 33.0 };
        compare(&case("x", "y", 7), "x", 3, paper, ways, &mut sink).unwrap();
        let lines = crate::bench::record::read(&[file.path().to_owned()]).unwrap();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[3]["metrics"]["latency_ratio_vs_sync"], 0.5);
        assert_eq!(lines[3]["metrics"]["paper_latency_ratio_vs_sync_most"], 0.96);
        assert_eq!(lines[2]["metrics"]["latency_ns"], 500_000.0);
    }
}
