//! Chains: bytes that are copied into a buffer in between, and from there to where they are used.
//! A program of layers does this; it needs the buffer in between only if something looks at it.

use crate::bench::cpu;
use crate::bench::figures::median;
use crate::bench::record::Sink;
use crate::bench::samples::{clock_ns, ns, trimmed_mean};
use anyhow::{Result, anyhow};
use serde_json::{Map, json};
use std::hint::black_box;
use std::time::Instant;
use unlade_command::output::line;
use unlade_config::ByteSize;
use unlade_copier::CallSite;
use unlade_copy_kernels::Kernel;

const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const LINE_BYTES: usize = 64;
/// Nanoseconds for the chains of one way in a round.
const ROUND_NS: usize = 1_500_000;

struct Buffers {
    source: Vec<u8>,
    middle: Vec<u8>,
    last: Vec<u8>,
}

impl Buffers {
    fn new(bytes: usize) -> Buffers {
        let source = (0..bytes).map(|at| (at % 251) as u8).collect();
        // Written, so that their pages are there.
        Buffers { source, middle: vec![1; bytes], last: vec![1; bytes] }
    }

    fn prepare(&self, is_cold: bool) {
        for bytes in [&self.source, &self.middle, &self.last] {
            if is_cold {
                unlade_copy_kernels::evict(bytes);
            } else {
                black_box(read_lines(bytes));
            }
        }
    }

    /// Two copies, and the use of the last bytes.
    fn twice(&mut self, kernel: &Kernel, is_cold: bool) -> f64 {
        self.prepare(is_cold);
        let begin = Instant::now();
        kernel.copy_slice(&mut self.middle, &self.source);
        kernel.copy_slice(&mut self.last, &self.middle);
        black_box(read_lines(&self.last));
        ns(begin, Instant::now())
    }

    /// The same by the C interface. Nothing looks at the bytes in between.
    fn chained(&mut self, site: &'static CallSite, is_cold: bool) -> f64 {
        self.prepare(is_cold);
        let Buffers { source, middle, last } = self;
        let begin = Instant::now();
        let read = unlade_copier::timed::chain(site, last, middle, source, read_lines);
        black_box(read);
        ns(begin, Instant::now())
    }
}

/// Reads one byte of each line.
fn read_lines(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum()
}

/// Nanoseconds of each loop, then of the chain.
fn measure(bytes: usize, is_cold: bool, rounds: usize, clock_ns: f64) -> Vec<f64> {
    let kernels = unlade_copy_kernels::kernel::available();
    let site: &CallSite = Box::leak(Box::default());
    let mut buffers = Buffers::new(bytes);
    let first: Vec<f64> = (0..5).map(|_| buffers.twice(&kernels[0], is_cold)).collect();
    let repeats = (ROUND_NS / median(first).max(1.0) as usize).clamp(3, 256);
    let rounds: Vec<Vec<f64>> = (0..rounds)
        .map(|_| {
            let ways = (0..=kernels.len()).map(|way| {
                let once = |_| match kernels.get(way) {
                    Some(kernel) => buffers.twice(kernel, is_cold),
                    None => buffers.chained(site, is_cold),
                };
                let mut samples: Vec<f64> = (0..repeats).map(once).collect();
                (trimmed_mean(&mut samples) - clock_ns).max(1.0)
            });
            ways.collect()
        })
        .collect();
    assert_eq!(buffers.last, buffers.source, "a chain has lost bytes");
    (0..=kernels.len()).map(|way| median(rounds.iter().map(|times| times[way]))).collect()
}

/// Runs all sizes, in the caches and in none.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 7 } else { 21 };
    let clock_ns = clock_ns();
    let kernels = unlade_copy_kernels::kernel::available();
    let names: String = kernels.iter().map(|kernel| format!("{:>10}", kernel.name())).collect();
    line(format_args!("{:<16}{:>10}{names}{:>8}", "nanoseconds", "chain", "ratio"))?;
    for bytes in SIZES {
        for is_cold in [false, true] {
            let times = std::thread::scope(|scope| {
                let measuring = scope.spawn(|| {
                    cpu::stay_on(cpu::first_processor())?;
                    Ok::<_, anyhow::Error>(measure(bytes, is_cold, rounds, clock_ns))
                });
                measuring.join().map_err(|_| anyhow!("the measuring thread panicked"))?
            })?;
            report(bytes, is_cold, &times, sink)?;
        }
    }
    super::passing::run(quick, sink)
}

fn report(bytes: usize, is_cold: bool, times: &[f64], sink: &mut Sink) -> Result<()> {
    let Some((chain_ns, alone_ns)) = times.split_last() else { return Ok(()) };
    let cache = if is_cold { "cold" } else { "warm" };
    let case = json!({ "bytes": bytes, "cache": cache });
    let case = || case.as_object().cloned().unwrap_or_default();
    let time = |ns: f64| Map::from_iter([("latency_ns".to_owned(), ns.into())]);
    for (kernel, ns) in unlade_copy_kernels::kernel::available().iter().zip(alone_ns) {
        sink.write(case(), kernel.name(), time(*ns))?;
    }
    sink.write(case(), "offload", time(*chain_ns))?;
    let ratio = chain_ns / alone_ns.iter().copied().fold(f64::INFINITY, f64::min);
    let metrics = Map::from_iter([("latency_ratio_vs_sync".to_owned(), ratio.into())]);
    sink.write(case(), "ratio", metrics)?;
    let columns: String = alone_ns.iter().map(|ns| format!("{ns:>10.0}")).collect();
    let label = format!("{cache} {}", ByteSize(bytes as u64));
    line(format_args!("{label:<16}{chain_ns:>10.0}{columns}{ratio:>8.2}"))
}
