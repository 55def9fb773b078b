//! A real file, copied in memory chunk by chunk and summed: the copy of the chunks to come goes on
//! while this one is summed.

use super::usage::CopyTime;
use crate::bench::figures::median;
use crate::bench::record::Sink;
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::time::Instant;
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Pending, Service};
use unlade_copy_kernels::kernel;

/// Of the file, at most.
const FILE_BYTES_MAX: usize = 64 << 20;
const CHUNKS: [usize; 3] = [16 << 10, 64 << 10, 256 << 10];
/// Chunks that are queued ahead.
const AHEAD: usize = 4;

/// How long it took, and the sum of the copy.
struct Copied {
    elapsed_s: f64,
    sum: [u8; 32],
}

/// Copies a chunk, sums it, and so on.
fn alone(source: &[u8], destination: &mut [u8], chunk: usize) -> Copied {
    let (begin, mut sum) = (Instant::now(), Sha256::new());
    for (to, from) in destination.chunks_mut(chunk).zip(source.chunks(chunk)) {
        kernel::best().copy_slice(to, from);
        sum.update(&*to);
    }
    Copied { elapsed_s: begin.elapsed().as_secs_f64(), sum: sum.finalize().into() }
}

/// Sums a chunk while the service copies the next ones.
fn served(copier: &Copier, source: &[u8], destination: &mut [u8], chunk: usize) -> Result<Copied> {
    let (begin, mut sum) = (Instant::now(), Sha256::new());
    copier.scope(|scope| -> Result<()> {
        let mut queued: VecDeque<Pending<'_>> = VecDeque::with_capacity(AHEAD);
        let mut settle = |pending: Pending<'_>| -> Result<()> {
            sum.update(pending.sync(0..pending.len())?);
            Ok(())
        };
        for (to, from) in destination.chunks_mut(chunk).zip(source.chunks(chunk)) {
            queued.push_back(scope.queue(from, to));
            if queued.len() > AHEAD
                && let Some(oldest) = queued.pop_front()
            {
                settle(oldest)?;
            }
        }
        queued.into_iter().try_for_each(settle)
    })?;
    Ok(Copied { elapsed_s: begin.elapsed().as_secs_f64(), sum: sum.finalize().into() })
}

/// Runs all sizes of chunks on this program's own file.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let file = std::env::current_exe().context("where is this program?")?;
    let mut source = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
    source.truncate(FILE_BYTES_MAX);
    let expected: [u8; 32] = Sha256::digest(&source).into();
    let mut destination = vec![0; source.len()];
    let service = Service::start(Config::default())?;
    let copier = Copier::new(service.attach().context("a client")?);
    let size = unlade_config::ByteSize(source.len() as u64);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let sum: String = expected[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    line(format_args!("{size} of `{name}`, SHA-256 {sum}…: every copy has the same"))?;
    let heads = ["memcpy ms", "service ms", "ratio", "CPU ratio"].map(|head| format!("{head:>12}"));
    line(format_args!("{:<24}{}", "copied and summed by", heads.concat()))?;
    for chunk in CHUNKS {
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..if quick { 5 } else { 15 } {
            let mut round = [0.0; 4];
            for at in 0..2 {
                destination.fill(0);
                let before = CopyTime::now();
                let copied = match at {
                    0 => alone(&source, &mut destination, chunk),
                    _ => served(&copier, &source, &mut destination, chunk)?,
                };
                let cpu = CopyTime::now() - before;
                ensure!(copied.sum == expected && destination == source, "a copy differs");
                (round[at], round[2 + at]) = (copied.elapsed_s, cpu.total_s());
            }
            let found = [round[0], round[1], round[1] / round[0], round[3] / round[2]];
            times.iter_mut().zip(found).for_each(|(all, one)| all.push(one));
        }
        let [alone_s, served_s, ratio, cpu] = times.map(median);
        let map = |value: Value| value.as_object().cloned().unwrap_or_default();
        let case: Map<String, Value> = map(json!({ "chunk_bytes": chunk }));
        sink.write(case.clone(), kernel::best().name(), map(json!({ "elapsed_s": alone_s })))?;
        sink.write(case.clone(), "offload", map(json!({ "elapsed_s": served_s })))?;
        let ratios = json!({ "elapsed_ratio_vs_sync": ratio, "cpu_ratio_vs_sync": cpu });
        sink.write(case, "ratio", map(ratios))?;
        let label = format!("{} chunks", unlade_config::ByteSize(chunk as u64));
        let (alone_ms, served_ms) = (alone_s * 1e3, served_s * 1e3);
        line(format_args!("{label:<24}{alone_ms:>12.2}{served_ms:>12.2}{ratio:>12.2}{cpu:>12.2}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_copy_and_sum_the_same() {
        let service = Service::start(Config::default()).unwrap();
        let copier = Copier::new(service.attach().unwrap());
        let source: Vec<u8> = (0..300_001).map(|at| (at % 251) as u8).collect();
        let expected: [u8; 32] = Sha256::digest(&source).into();
        for chunk in [4096, 70_000] {
            let mut destination = vec![0; source.len()];
            assert_eq!(alone(&source, &mut destination, chunk).sum, expected);
            destination.fill(0);
            assert_eq!(served(&copier, &source, &mut destination, chunk).unwrap().sum, expected);
            assert!(destination == source);
        }
    }
}
