//! Single copies: what the client sees of them.

use crate::bench::cpu;
use crate::bench::figures::median;
use crate::bench::record::Sink;
use crate::bench::samples::{clock_ns, middle_mean, ns};
use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Pending, Polling, Service};
use unlade_copy_kernels::Kernel;

const SIZES: [usize; 9] =
    [512, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
const LINE_BYTES: usize = 64;

/// How a copy is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    bytes: usize,
    is_cold: bool,
    has_window: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Case> {
        let uses = [(false, true), (true, true), (false, false), (true, false)];
        uses.into_iter().flat_map(|(is_cold, has_window)| {
            SIZES.into_iter().map(move |bytes| Case { bytes, is_cold, has_window })
        })
    }

    fn fields(self) -> Map<String, Value> {
        let cache = if self.is_cold { "cold" } else { "warm" };
        let fields = json!({ "bytes": self.bytes, "cache": cache, "window": self.has_window });
        fields.as_object().cloned().unwrap_or_default()
    }

    /// Longer than any copy takes.
    fn window(self, sync_ns: f64) -> Duration {
        match self.has_window {
            true => Duration::from_nanos((4.0 * sync_ns) as u64 + 3_000),
            false => Duration::ZERO,
        }
    }

    /// Copies of one mode in a round.
    fn repeats(self) -> usize {
        ((4 << 20) / self.bytes.max(1)).clamp(8, 256)
    }

    /// Copies before the case is measured: the policy learns in them.
    fn warmup(self) -> usize {
        ((64 << 20) / self.bytes.max(1)).clamp(400, 4000)
    }
}

/// Source and destination of a case.
struct Buffers {
    source: Vec<u8>,
    destination: Vec<u8>,
}

impl Buffers {
    fn new(bytes: usize) -> Buffers {
        let source = (0..bytes).map(|at| (at % 251) as u8).collect();
        Buffers { source, destination: vec![0; bytes] }
    }

    /// Into the caches of this core, or out of all.
    fn prepare(&self, is_cold: bool) {
        if is_cold {
            unlade_copy_kernels::evict(&self.source);
            unlade_copy_kernels::evict(&self.destination);
        } else {
            black_box(read_lines(&self.source));
            black_box(read_lines(&self.destination));
        }
    }
}

/// One byte of each line.
fn read_lines(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum()
}

fn wait(window: Duration) {
    let from = Instant::now();
    while from.elapsed() < window {
        std::hint::spin_loop();
    }
}

/// One copy by `kernel`, and the use of its bytes: nanoseconds.
fn alone(kernel: &Kernel, buffers: &mut Buffers, case: Case, window: Duration) -> f64 {
    buffers.prepare(case.is_cold);
    let begin = Instant::now();
    kernel.copy_slice(&mut buffers.destination, &buffers.source);
    if case.has_window {
        let copied = Instant::now();
        wait(window);
        let resumed = Instant::now();
        black_box(read_lines(&buffers.destination));
        return ns(begin, copied) + ns(resumed, Instant::now());
    }
    black_box(read_lines(&buffers.destination));
    ns(begin, Instant::now())
}

fn use_bytes(pending: &Pending<'_>, bytes: usize) {
    if let Ok(bytes) = pending.sync(0..bytes) {
        black_box(read_lines(bytes));
    }
}

/// The same with the service. Two functions, since they are two places in a program.
fn served_with_window(copier: &Copier, buffers: &mut Buffers, case: Case, window: Duration) -> f64 {
    buffers.prepare(case.is_cold);
    let Buffers { source, destination } = buffers;
    let begin = Instant::now();
    let (copied, resumed) = copier.scope(|scope| {
        let pending = scope.copy(source, destination);
        let copied = Instant::now();
        wait(window);
        let resumed = Instant::now();
        use_bytes(&pending, case.bytes);
        (copied, resumed)
    });
    ns(begin, copied) + ns(resumed, Instant::now())
}

fn served_at_once(copier: &Copier, buffers: &mut Buffers, case: Case) -> f64 {
    buffers.prepare(case.is_cold);
    let Buffers { source, destination } = buffers;
    let begin = Instant::now();
    copier.scope(|scope| {
        let pending = scope.copy(source, destination);
        use_bytes(&pending, case.bytes);
    });
    ns(begin, Instant::now())
}

fn served(copier: &Copier, buffers: &mut Buffers, case: Case, window: Duration) -> f64 {
    match case.has_window {
        true => served_with_window(copier, buffers, case, window),
        false => served_at_once(copier, buffers, case),
    }
}

/// Result of one round: a figure for each kernel, then the service's.
fn round(
    copier: &Copier,
    kernels: &[Kernel],
    buffers: &mut Buffers,
    case: Case,
    window: Duration,
) -> Vec<f64> {
    let repeats = case.repeats();
    // One way after the other: a program does not change its way with every copy, and the service
    // sleeps meanwhile.
    let mut means: Vec<f64> = kernels
        .iter()
        .map(|kernel| {
            let mut samples: Vec<f64> =
                (0..repeats).map(|_| alone(kernel, buffers, case, window)).collect();
            middle_mean(&mut samples)
        })
        .collect();
    let mut samples: Vec<f64> =
        (0..2 * repeats).map(|_| served(copier, buffers, case, window)).collect();
    // The first half wakes the service.
    means.push(middle_mean(&mut samples[repeats..]));
    means
}

/// Result of a case: nanoseconds of each kernel and of the service, and the median over rounds of
/// the service's share of the fastest.
struct Outcome {
    kernels_ns: Vec<f64>,
    served_ns: f64,
    ratio: f64,
}

fn measure(copier: &Copier, case: Case, rounds: usize, clock_ns: f64) -> Outcome {
    let kernels = unlade_copy_kernels::kernel::available();
    let mut buffers = Buffers::new(case.bytes);
    let first: Vec<f64> =
        (0..9).map(|_| alone(&kernels[0], &mut buffers, case, Duration::ZERO)).collect();
    let window = case.window(median(&first));
    for _ in 0..case.warmup() {
        served(copier, &mut buffers, case, window);
    }
    let overhead = if case.has_window { 2.0 * clock_ns } else { clock_ns };
    let rounds: Vec<Vec<f64>> = (0..rounds)
        .map(|_| {
            let mut times = round(copier, kernels, &mut buffers, case, window);
            times.iter_mut().for_each(|ns| *ns = (*ns - overhead).max(1.0));
            times
        })
        .collect();
    let column = |at: usize| median(rounds.iter().map(|times| times[at]));
    let kernels_ns: Vec<f64> = (0..kernels.len()).map(column).collect();
    // The fastest over all rounds: the fastest of each round is chance.
    let fastest = (0..kernels.len()).min_by(|a, b| kernels_ns[*a].total_cmp(&kernels_ns[*b]));
    let fastest = fastest.unwrap_or_default();
    let ratios: Vec<f64> =
        rounds.iter().map(|times| times[kernels.len()] / times[fastest]).collect();
    Outcome { kernels_ns, served_ns: column(kernels.len()), ratio: median(&ratios) }
}

/// Runs all cases, and what submitting and asking cost.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 15 } else { 31 };
    let service = Service::start(Config::default())?;
    let clock_ns = clock_ns();
    let kernels = unlade_copy_kernels::kernel::available();
    let names: String = kernels.iter().map(|kernel| format!("{:>10}", kernel.name())).collect();
    line(format_args!("{:<24}{:>10}{names}{:>8}", "nanoseconds", "service", "ratio"))?;
    for case in Case::all() {
        // A thread each, since threads learn for themselves.
        let outcome = std::thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                // The service has the other processors: a program that has just begun to run on
                // several may have all its threads on one for a while.
                cpu::stay_on(cpu::first_processor())?;
                let copier = Copier::new(service.attach()?);
                Ok::<_, anyhow::Error>(measure(&copier, case, rounds, clock_ns))
            });
            measuring.join().map_err(|_| anyhow!("the measuring thread panicked"))?
        })?;
        print(case, &outcome)?;
        write(sink, case, &outcome)?;
    }
    drop(service);
    // The cost while there is a client to serve.
    let service = Service::start(Config { polling: Polling::Always, ..Config::default() })?;
    let submit_ns = submit_ns(&service, clock_ns)?;
    let ready_ns = ready_ns(&service, clock_ns)?;
    line(format_args!("submit {submit_ns:.1} ns, ready check {ready_ns:.2} ns"))?;
    let metrics = json!({ "submit_ns": submit_ns, "ready_check_ns": ready_ns });
    sink.write(Map::new(), "offload", metrics.as_object().cloned().unwrap_or_default())
}

fn print(case: Case, outcome: &Outcome) -> Result<()> {
    let cache = if case.is_cold { "cold" } else { "warm" };
    let window = if case.has_window { "window" } else { "at once" };
    let label = format!("{cache} {window} {}", unlade_config::ByteSize(case.bytes as u64));
    let kernels: String = outcome.kernels_ns.iter().map(|ns| format!("{ns:>10.0}")).collect();
    line(format_args!("{label:<24}{:>10.0}{kernels}{:>8.2}", outcome.served_ns, outcome.ratio))
}

fn write(sink: &mut Sink, case: Case, outcome: &Outcome) -> Result<()> {
    let time = |ns: f64| Map::from_iter([("latency_ns".to_owned(), ns.into())]);
    for (kernel, ns) in unlade_copy_kernels::kernel::available().iter().zip(&outcome.kernels_ns) {
        sink.write(case.fields(), kernel.name(), time(*ns))?;
    }
    sink.write(case.fields(), "offload", time(outcome.served_ns))?;
    let ratio = Map::from_iter([("latency_ratio_vs_sync".to_owned(), outcome.ratio.into())]);
    sink.write(case.fields(), "ratio", ratio)
}

/// Cost of a submission, sixteen at a time.
fn submit_ns(service: &Service, clock_ns: f64) -> Result<f64> {
    const BATCH: usize = 16;
    const BYTES: usize = 8 << 10;
    let copier = Copier::new(service.attach().context("a client for submissions")?);
    let source = vec![1u8; BYTES];
    let mut destinations = vec![vec![0u8; BYTES]; BATCH];
    let mut samples = Vec::new();
    for _ in 0..500 {
        let took = copier.scope(|scope| {
            let mut pending: [Option<Pending<'_>>; BATCH] = [const { None }; BATCH];
            let begin = Instant::now();
            for (pending, destination) in pending.iter_mut().zip(&mut destinations) {
                *pending = Some(scope.queue(&source, destination));
            }
            let end = Instant::now();
            black_box(&pending);
            ns(begin, end)
        });
        samples.push((took - clock_ns).max(0.0) / BATCH as f64);
    }
    Ok(middle_mean(&mut samples))
}

/// Cost of checking that bytes have arrived.
fn ready_ns(service: &Service, clock_ns: f64) -> Result<f64> {
    const LOOKS: usize = 1000;
    let copier = Copier::new(service.attach().context("a client for looks")?);
    let source = vec![1u8; 64 << 10];
    let mut destination = vec![0u8; 64 << 10];
    Ok(copier.scope(|scope| {
        let pending = scope.queue(&source, &mut destination);
        let _there = pending.sync(0..64 << 10);
        let samples: Vec<f64> = (0..200)
            .map(|_| {
                let begin = Instant::now();
                let mut ready = true;
                for look in 0..LOOKS {
                    ready &= pending.is_ready(black_box(look)..black_box(look + 4096));
                }
                black_box(ready);
                (ns(begin, Instant::now()) - clock_ns) / LOOKS as f64
            })
            .collect();
        median(&samples)
    }))
}
