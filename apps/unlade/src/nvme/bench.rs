//! `unlade nvme bench`: closed-loop reads and writes, as fio does them.

use super::host::HostArgs;
use super::notice::Notice;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use unlade_command::output::line;
use unlade_config::ByteSize;
use unlade_nvme::initiator::{Address, DeviceError, Namespace};
use unlade_sys::usage::ProcessUsage;
use unlade_testkit::Random;

/// Longest latency that is told apart, microseconds.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Bytes written at a time where a span is filled before it is read.
const FILL_BYTES: u64 = 1 << 20;
/// How much of the namespace is used where nothing is said, and all of it is to be filled first.
const VERIFY_SPAN_BYTES: u64 = 64 << 20;

/// The operations and their offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pattern {
    /// Reads, one behind the other
    Read,
    /// Writes, one behind the other
    Write,
    /// Reads anywhere
    Randread,
    /// Writes anywhere
    Randwrite,
    /// Reads and writes anywhere, half and half
    Mix,
}

impl Pattern {
    fn writes(self) -> bool {
        matches!(self, Pattern::Write | Pattern::Randwrite | Pattern::Mix)
    }

    fn name(self) -> &'static str {
        match self {
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::Randread => "randread",
            Pattern::Randwrite => "randwrite",
            Pattern::Mix => "mix",
        }
    }
}

/// Measure reads and writes, as fio does: a number of them is always in flight
///
/// Processor time is that of this process: kernel and program, with everything that TCP costs at
/// this end. With --verify the span is filled with bytes that follow from seed and place, and
/// each block that is read is compared.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// nvme+tcp://HOST:PORT/NSID?nqn=NQN, or nvme+tls://…; port and NQN may be left out
    address: Address,
    /// Access pattern
    #[arg(long, value_enum, default_value = "randread")]
    pattern: Pattern,
    /// Bytes of one read or write
    #[arg(long, default_value = "4KiB", value_name = "BYTES")]
    block_bytes: ByteSize,
    /// How long
    #[arg(long, value_parser = humantime::parse_duration, default_value = "5s")]
    duration: Duration,
    /// How much of the namespace is used, from its begin
    #[arg(long, value_name = "BYTES")]
    span: Option<ByteSize>,
    /// Writes what is to be read, and compares
    #[arg(long)]
    verify: bool,
    /// Data in the namespace may be lost; required by every pattern that writes
    #[arg(long)]
    overwrite: bool,
    /// Seed of places and data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object on one line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// The constants of a run.
#[derive(Clone)]
struct Plan {
    namespace: Namespace,
    pattern: Pattern,
    block_bytes: u64,
    blocks: u64,
    verify: bool,
    seed: u64,
    until: Instant,
}

/// Result of one operation in flight.
struct Done {
    reads: u64,
    writes: u64,
    latency_us: Histogram<u64>,
}

/// The bytes that belong at `offset`: they follow from seed and place, a word from each eight.
fn content(seed: u64, offset: u64, bytes: &mut [u8]) {
    // A generator for each 512 bytes, so that a block of any size has the same content.
    for (at, sector) in bytes.chunks_mut(512).enumerate() {
        let sector_offset = offset + 512 * at as u64;
        Random::new(seed ^ sector_offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)).fill(sector);
    }
}

fn written(plan: &Plan, offset: u64, bytes: u64) -> Bytes {
    let mut buffer = vec![0; bytes as usize];
    content(plan.seed, offset, &mut buffer);
    buffer.into()
}

/// Runs `unlade nvme bench`.
///
/// # Errors
/// A command failed, or what was read is not what was written.
pub async fn run(args: &BenchArgs) -> Result<()> {
    if (args.pattern.writes() || args.verify) && !args.overwrite {
        bail!("this writes to the namespace; say --overwrite where its content may be lost");
    }
    let namespace = args.host.namespace(&args.address).await?;
    let _notice =
        Notice::start(namespace.controller(), args.address.peer(), &ProgressBar::hidden());
    let default_span = if args.verify { VERIFY_SPAN_BYTES } else { u64::MAX };
    let span = args.span.map_or(default_span, |span| span.0).min(namespace.size_bytes());
    let block_bytes = args.block_bytes.0;
    let device_block = u64::from(namespace.block_bytes());
    if block_bytes == 0 || !block_bytes.is_multiple_of(device_block) {
        bail!("--block-bytes {block_bytes} is not a multiple of the namespace's {device_block}");
    }
    let blocks = span / block_bytes;
    if blocks == 0 {
        bail!("a span of {span} bytes has no block of {block_bytes}");
    }
    let mut plan = Plan {
        namespace,
        pattern: args.pattern,
        block_bytes,
        blocks,
        verify: args.verify,
        seed: args.seed,
        until: Instant::now(),
    };
    if args.verify && args.pattern != Pattern::Write {
        fill(&plan).await.context("filling the span")?;
    }
    let cpu_before = ProcessUsage::now()?;
    let started = Instant::now();
    plan.until = started + args.duration;
    let workers = u64::from(args.host.depth) * u64::from(args.host.queues());
    let mut tasks = JoinSet::new();
    for number in 0..workers {
        tasks.spawn(work(plan.clone(), number, workers));
    }
    let mut total = Done { reads: 0, writes: 0, latency_us: histogram()? };
    while let Some(done) = tasks.join_next().await {
        let done = done.context("a worker ended")??;
        total.reads += done.reads;
        total.writes += done.writes;
        total.latency_us.add(&done.latency_us).context("adding latencies")?;
    }
    let elapsed = started.elapsed();
    let cpu = ProcessUsage::now()?;
    let cpu = (cpu.user + cpu.system).saturating_sub(cpu_before.user + cpu_before.system);
    report(args, &plan, &total, elapsed, cpu)?;
    plan.namespace.controller().close().await;
    Ok(())
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).context("making a histogram")
}

async fn fill(plan: &Plan) -> Result<(), DeviceError> {
    let end = plan.blocks * plan.block_bytes;
    let step = FILL_BYTES.next_multiple_of(u64::from(plan.namespace.block_bytes()));
    for offset in (0..end).step_by(step as usize) {
        let bytes = step.min(end - offset);
        plan.namespace.write(offset, written(plan, offset, bytes)).await?;
    }
    Ok(())
}

/// One of those in flight.
async fn work(plan: Plan, number: u64, workers: u64) -> Result<Done> {
    let mut random = Random::new(plan.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    let mut done = Done { reads: 0, writes: 0, latency_us: histogram()? };
    let mut buffer = vec![0; plan.block_bytes as usize];
    let mut expected = vec![0; if plan.verify { buffer.len() } else { 0 }];
    // The same bytes are written again and again where they are not read.
    let filler = written(&plan, number * plan.block_bytes, plan.block_bytes);
    let mut turn = number;
    while Instant::now() < plan.until {
        let block = match plan.pattern {
            Pattern::Read | Pattern::Write => turn % plan.blocks,
            _ => random.below(plan.blocks),
        };
        turn += workers;
        let offset = block * plan.block_bytes;
        let is_write = match plan.pattern {
            Pattern::Write | Pattern::Randwrite => true,
            Pattern::Read | Pattern::Randread => false,
            Pattern::Mix => random.below(2) == 0,
        };
        let bytes = match (is_write, plan.verify) {
            (true, true) => written(&plan, offset, plan.block_bytes),
            _ => filler.clone(),
        };
        let began = Instant::now();
        if is_write {
            plan.namespace.write(offset, bytes).await?;
            done.writes += 1;
        } else {
            buffer = plan.namespace.read_owned(offset, buffer).await?;
            done.reads += 1;
        }
        let latency_us = began.elapsed().as_micros().clamp(1, LATENCY_US_MAX.into()) as u64;
        done.latency_us.record(latency_us).context("recording a latency")?;
        if !is_write && plan.verify {
            content(plan.seed, offset, &mut expected);
            if buffer != expected {
                bail!("what was read at {offset} is not what was written there");
            }
        }
    }
    Ok(done)
}

fn report(
    args: &BenchArgs,
    plan: &Plan,
    total: &Done,
    elapsed: Duration,
    cpu: Duration,
) -> Result<()> {
    let operations = total.reads + total.writes;
    let bytes = operations * plan.block_bytes;
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let stats = plan.namespace.controller().stats();
    let quantile = |at: f64| total.latency_us.value_at_quantile(at);
    let per = |count: u64| cpu.as_nanos() as f64 / (count.max(1)) as f64;
    if args.json {
        return line(serde_json::json!({
            "bench": "nvme",
            "case": {
                "pattern": plan.pattern.name(),
                "block_bytes": plan.block_bytes,
                "depth": args.host.depth,
                "queues": args.host.queues(),
                "address": args.address.to_string(),
                "verify": plan.verify,
            },
            "mode": "software",
            "metrics": {
                "operations_per_s": operations as f64 / seconds,
                "throughput_bytes_per_s": bytes as f64 / seconds,
                "reads": total.reads,
                "writes": total.writes,
                "latency_p50_us": quantile(0.5),
                "latency_p99_us": quantile(0.99),
                "latency_p999_us": quantile(0.999),
                "latency_max_us": total.latency_us.max(),
                "cpu_ns_per_operation": per(operations),
                "cpu_ns_per_byte": per(bytes),
                "data_digest_errors": stats.data_digest_errors,
                "reconnects": stats.reconnects,
                "retries": stats.retries,
            },
            "seed": plan.seed,
        }));
    }
    line(format_args!(
        "{} of {} bytes: {:.0} operations/s, {:.1} MB/s, {} reads, {} writes{}",
        plan.pattern.name(),
        plan.block_bytes,
        operations as f64 / seconds,
        bytes as f64 / seconds / 1e6,
        total.reads,
        total.writes,
        if plan.verify { ", all as they should be" } else { "" },
    ))?;
    line(format_args!(
        "latency: median {} us, 99 % {} us, 99.9 % {} us, most {} us",
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        total.latency_us.max(),
    ))?;
    line(format_args!(
        "processor time of this end: {:.0} ns an operation, {:.3} ns an byte; {} reconnections, {} \
         repeated, {} wrong digests",
        per(operations),
        per(bytes),
        stats.reconnects,
        stats.retries,
        stats.data_digest_errors,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_depend_on_how_it_is_cut() {
        let mut whole = vec![0; 4096];
        content(7, 8192, &mut whole);
        let mut half = vec![0; 2048];
        content(7, 8192 + 2048, &mut half);
        assert_eq!(whole[2048..], half);
        content(8, 8192 + 2048, &mut half);
        assert_ne!(whole[2048..], half);
    }
}
