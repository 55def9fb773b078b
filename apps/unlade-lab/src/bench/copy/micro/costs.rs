//! The price of a submission, and of a look at progress.

use crate::bench::figures::median;
use crate::bench::record::Sink;
use crate::bench::samples::{ns, trimmed_mean};
use anyhow::{Context, Result};
use serde_json::{Map, json};
use std::hint::black_box;
use std::time::Instant;
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Pending, Polling, Service};

/// Measures both, with a service that is awake.
pub fn run(sink: &mut Sink, clock_ns: f64) -> Result<()> {
    let service = Service::start(Config { polling: Polling::Always, ..Config::default() })?;
    let submit_ns = submit_ns(&service, clock_ns)?;
    let ready_ns = ready_ns(&service, clock_ns)?;
    line(format_args!("submit {submit_ns:.1} ns, ready check {ready_ns:.2} ns"))?;
    let metrics = json!({ "submit_ns": submit_ns, "ready_check_ns": ready_ns });
    sink.write(Map::new(), "offload", metrics.as_object().cloned().unwrap_or_default())
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
    Ok(trimmed_mean(&mut samples))
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
