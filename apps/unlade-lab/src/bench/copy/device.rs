//! Savings of a device beside the processor: a *model* with a stated latency and bandwidth, in
//! the model's own time, driven by the real service. No such device is used.

use crate::bench::record::Sink;
use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Devices, Polling, Service};
use unlade_copy_kernels::device::{Characteristics, Device};
use unlade_copy_kernels::model::{Clock, Model};
use unlade_copy_scheduler::dispatch;

const SIZES: [usize; 6] = [4 << 10, 12 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Most bytes of a task.
const TASK_BYTES: usize = 1 << 20;
/// How fast the modelled processor is, bytes a microsecond: warm, and beyond its caches.
const CPU_RATES: [u64; 2] = [40_000, 10_000];
/// Cost of one poll of the modelled device, nanoseconds.
const POLL_NS: u64 = 50;
/// A copy that takes longer of real time than this is one that is lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// A device that could be: published orders of magnitude of an on-chip copy engine.
const UNIT: Characteristics = Characteristics {
    name: "model",
    start_ns: 1_000,
    bytes_per_us: 30_000,
    bytes_min: 4 << 10,
    bytes_max: 1 << 20,
    chunks_max: 32,
    depth: 64,
};

/// Result for one size, in the model's time.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    alone_ns: u64,
    beside_ns: u64,
    /// Of the bytes, those that the device copied.
    unit_share: f64,
}

/// Copies `bytes` with the device, once.
fn measure(bytes: usize, cpu_rate: u64) -> Result<Outcome> {
    let guard = unlade_copy_kernels::guard::install()?;
    let clock = Clock::default();
    let cpu = dispatch::Unit {
        name: "model".to_owned(),
        start_ns: 0,
        bytes_per_us: cpu_rate,
        min_bytes: 0,
    };
    let unit_clock = clock.clone();
    let open = move |_| {
        let unit = Model::new(UNIT, 1, &unit_clock, guard).polled_in_ns(POLL_NS);
        Some(Box::new(unit) as Box<dyn Device + Send>)
    };
    let config = Config { polling: Polling::Always, ..Config::default() };
    let devices = Devices::with(open).beside(cpu);
    let service = Service::start_paced(config, devices, &clock, cpu_rate)?;
    let copier = Copier::new(service.attach()?);
    let source: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    let mut destination = vec![0u8; bytes];
    copier.scope(|scope| {
        let parts = source.chunks(TASK_BYTES).zip(destination.chunks_mut(TASK_BYTES));
        let pending: Vec<_> = parts.map(|(from, to)| (from.len(), scope.queue(from, to))).collect();
        // Without help, which would be in no time of the model's.
        let begin = Instant::now();
        while !pending.iter().all(|(len, pending)| pending.is_ready(0..*len)) {
            if begin.elapsed() > PATIENCE {
                bail!("the service does not copy");
            }
            std::thread::yield_now();
        }
        Ok(())
    })?;
    if destination != source {
        bail!("the bytes are not those of the source");
    }
    let counts = service.counts();
    Ok(Outcome {
        alone_ns: bytes as u64 * 1000 / cpu_rate,
        beside_ns: clock.now_ns(),
        unit_share: counts.unit_bytes as f64 / bytes as f64,
    })
}

/// Runs all sizes, for each processor.
///
/// # Errors
/// The service does not start or copy, or results cannot be written.
pub fn run(_quick: bool, sink: &mut Sink) -> Result<()> {
    let Characteristics { start_ns, bytes_per_us, .. } = UNIT;
    line(format_args!(
        "model: a device that begins after {start_ns} ns and copies {} GB/s; its time, not ours",
        bytes_per_us as f64 / 1e3
    ))?;
    line(format_args!(
        "{:<28}{:>12}{:>12}{:>8}{:>10}",
        "model: bytes, processor", "alone ns", "beside ns", "ratio", "device"
    ))?;
    for cpu_rate in CPU_RATES {
        for bytes in SIZES {
            report(sink, bytes, cpu_rate, measure(bytes, cpu_rate)?)?;
        }
    }
    Ok(())
}

fn report(sink: &mut Sink, bytes: usize, cpu_rate: u64, outcome: Outcome) -> Result<()> {
    let Outcome { alone_ns, beside_ns, unit_share } = outcome;
    let ratio = beside_ns as f64 / alone_ns.max(1) as f64;
    let size = unlade_config::ByteSize(bytes as u64);
    let label = format!("{size}, {} GB/s", cpu_rate as f64 / 1e3);
    let share = unit_share * 100.0;
    line(format_args!("{label:<28}{alone_ns:>12}{beside_ns:>12}{ratio:>8.2}{share:>9.0}%"))?;
    let case = || {
        fields(json!({
            "part": "device",
            "time": "model",
            "bytes": bytes,
            "cpu_bytes_per_us": cpu_rate,
            "unit_start_ns": UNIT.start_ns,
            "unit_bytes_per_us": UNIT.bytes_per_us,
        }))
    };
    sink.write(case(), "model-cpu", fields(json!({ "latency_ns": alone_ns })))?;
    let metrics = json!({ "latency_ns": beside_ns, "unit_share": unit_share });
    sink.write(case(), "model-unit", fields(metrics))?;
    sink.write(case(), "ratio", fields(json!({ "latency_ratio_vs_model_cpu": ratio })))
}

fn fields(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_used_where_it_pays() {
        let small = measure(4 << 10, 40_000).unwrap();
        assert_eq!((small.unit_share, small.alone_ns), (0.0, small.beside_ns));
        let large = measure(1 << 20, 10_000).unwrap();
        // 30 of 40 GB/s, less the starts.
        assert!((0.65..0.76).contains(&large.unit_share), "{large:?}");
        assert!(large.beside_ns < large.alone_ns * 35 / 100, "{large:?}");
    }
}
