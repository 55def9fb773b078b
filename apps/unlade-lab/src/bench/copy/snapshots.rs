//! Snapshots of memory that a program goes on writing: the pause of the call, the writes that wait
//! longest, and the rate of writes until the snapshot is complete. Beside it a child of fork(2) that
//! writes the memory out, and a copy of all.

use crate::bench::figures::{median, median_by};
use crate::bench::record::Sink;
use crate::bench::samples::ns;
use anyhow::{Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Map, json};
use std::fs::File;
use std::time::Instant;
use unlade_command::output::line;
use unlade_config::ByteSize;
use unlade_copy::{Copier, PageMemory, SnapshotOptions};
use unlade_copy_kernels::fork::Forked;

const SIZES: [usize; 3] = [4 << 20, 64 << 20, 512 << 20];
/// Writes between two questions whether the snapshot is complete.
const WRITES: usize = 32;
/// Writes of the measurement without a snapshot.
const UNDISTURBED: usize = 200_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Snapshot,
    Fork,
    Copy,
}

const WAYS: [(Way, &str); 3] =
    [(Way::Snapshot, "offload"), (Way::Fork, "fork"), (Way::Copy, "memcpy")];

/// One snapshot.
#[derive(Default)]
struct Run {
    pause_ns: f64,
    /// The slowest write, and that of a thousand which is the slowest but one.
    slowest_ns: f64,
    slow_ns: f64,
    /// From the call until it is complete.
    complete_ns: f64,
    /// Writes in that time.
    writes: usize,
}

/// Places to write at.
struct Places {
    state: u64,
    bytes: usize,
}

impl Places {
    fn next(&mut self) -> usize {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.state >> 16) as usize % self.bytes
    }
}

fn write(memory: &mut PageMemory, places: &mut Places) -> f64 {
    let at = places.next();
    let begin = Instant::now();
    memory[at] = memory[at].wrapping_add(1);
    std::hint::black_box(&mut memory[at]);
    ns(begin, Instant::now())
}

/// Writes until `is_complete`.
fn write_until(
    memory: &mut PageMemory,
    places: &mut Places,
    run: &mut Run,
    begin: Instant,
    mut is_complete: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut times = Vec::new();
    while !is_complete()? {
        times.extend((0..WRITES).map(|_| write(memory, places)));
    }
    run.complete_ns = ns(begin, Instant::now());
    run.writes = times.len();
    times.sort_unstable_by(f64::total_cmp);
    run.slowest_ns = times.last().copied().unwrap_or(0.0);
    run.slow_ns = times.get(times.len() - times.len().div_ceil(1000)).copied().unwrap_or(0.0);
    Ok(())
}

fn once(copier: &Copier, way: Way, memory: &mut PageMemory, places: &mut Places) -> Result<Run> {
    let mut run = Run::default();
    let begin = Instant::now();
    match way {
        Way::Snapshot => {
            let options = SnapshotOptions { only_user_writes: true };
            let mut snapshot = copier.snapshot_of(memory, &options)?;
            run.pause_ns = ns(begin, Instant::now());
            if snapshot.is_at_once() {
                bail!("userfaultfd is not there or not permitted");
            }
            write_until(memory, places, &mut run, begin, || Ok(snapshot.is_complete()))?;
            snapshot.complete()?;
        }
        Way::Fork => {
            let out = File::from(memfd_create(c"snapshot", MemfdFlags::CLOEXEC)?);
            let begin = Instant::now();
            let mut child = Forked::writing(memory, &out)?;
            run.pause_ns = ns(begin, Instant::now());
            write_until(memory, places, &mut run, begin, || Ok(child.is_over()?))?;
        }
        Way::Copy => {
            let copy = memory.to_vec();
            run.pause_ns = ns(begin, Instant::now());
            run.complete_ns = run.pause_ns;
            std::hint::black_box(copy);
        }
    }
    Ok(run)
}

/// Runs all sizes.
///
/// # Errors
/// A snapshot or a fork fails, or results cannot be written.
pub fn run(copier: &Copier, quick: bool, sink: &mut Sink) -> Result<()> {
    line(format_args!(
        "\n{:<20}{:>12}{:>14}{:>14}{:>14}{:>16}",
        "snapshots", "pause us", "slow write us", "slowest us", "complete ms", "writes/s, part"
    ))?;
    let rounds = if quick { 3 } else { 9 };
    for bytes in SIZES {
        let mut memory = PageMemory::new(bytes)?;
        memory.fill(7);
        let mut places = Places { state: sink.seed(), bytes };
        let begin = Instant::now();
        for _ in 0..UNDISTURBED {
            write(&mut memory, &mut places);
        }
        let undisturbed = UNDISTURBED as f64 / ns(begin, Instant::now()) * 1e9;
        let mut runs: Vec<Vec<Run>> = WAYS.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((way, _), runs) in WAYS.iter().zip(&mut runs) {
                runs.push(once(copier, *way, &mut memory, &mut places)?);
            }
        }
        for ((_, name), runs) in WAYS.iter().zip(&runs) {
            report(bytes, name, runs, undisturbed, sink)?;
        }
        let pause = |way: usize| median_by(&runs[way], |run| run.pause_ns);
        let metrics = Map::from_iter([
            ("pause_ratio_vs_fork".to_owned(), (pause(0) / pause(1)).into()),
            ("pause_ratio_vs_sync".to_owned(), (pause(0) / pause(2)).into()),
        ]);
        sink.write(case_of(bytes), "ratio", metrics)?;
    }
    Ok(())
}

fn case_of(bytes: usize) -> Map<String, serde_json::Value> {
    json!({ "bytes": bytes, "of": "snapshot" }).as_object().cloned().unwrap_or_default()
}

fn report(bytes: usize, name: &str, runs: &[Run], undisturbed: f64, sink: &mut Sink) -> Result<()> {
    let middle = |figure: fn(&Run) -> f64| median(runs.iter().map(figure));
    let pause_ns = middle(|run| run.pause_ns);
    let (slow_ns, slowest_ns) = (middle(|run| run.slow_ns), middle(|run| run.slowest_ns));
    let complete_ns = middle(|run| run.complete_ns);
    let rate = median(runs.iter().map(|run| run.writes as f64 / run.complete_ns * 1e9));
    let metrics = Map::from_iter([
        ("pause_ns".to_owned(), pause_ns.into()),
        ("slow_write_ns".to_owned(), slow_ns.into()),
        ("slowest_write_ns".to_owned(), slowest_ns.into()),
        ("complete_ns".to_owned(), complete_ns.into()),
        ("writes_per_s".to_owned(), rate.into()),
        ("undisturbed_writes_per_s".to_owned(), undisturbed.into()),
    ]);
    sink.write(case_of(bytes), name, metrics)?;
    let label = format!("{name} {}", ByteSize(bytes as u64));
    line(format_args!(
        "{label:<20}{:>12.0}{:>14.1}{:>14.0}{:>14.2}{:>16.2}",
        pause_ns / 1e3,
        slow_ns / 1e3,
        slowest_ns / 1e3,
        complete_ns / 1e6,
        rate / undisturbed
    ))
}
