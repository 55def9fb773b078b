//! Copies that the page tables make: of sources that are given up, beside the fastest copy; and
//! snapshots ([`super::snapshots`]).

use crate::bench::figures::median;
use crate::bench::record::Sink;
use crate::bench::samples::ns;
use anyhow::{Result, bail};
use serde_json::{Map, json};
use std::hint::black_box;
use std::time::Instant;
use unlade_command::output::line;
use unlade_config::ByteSize;
use unlade_copy::{Config, Copier, PageMemory, Service};
use unlade_copy_kernels::Kernel;

const SIZES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// Pairs of memory that a measurement takes at most, in bytes.
const BYTES_MAX: usize = 512 << 20;
/// Copies in which the admission and the measurement of moves learn, at most.
const LEARNING: usize = 64;

/// Pages of the destination, and of both sides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// Never touched before.
    New,
    /// Huge, on both sides.
    Huge,
    /// Ordinary ones, there before. They do not move.
    Small,
}

impl Pages {
    fn name(self) -> &'static str {
        match self {
            Pages::New => "new",
            Pages::Huge => "huge",
            Pages::Small => "small",
        }
    }
}

struct Pair {
    source: PageMemory,
    destination: PageMemory,
}

impl Pair {
    fn new(bytes: usize, pages: Pages, is_cold: bool) -> Result<Pair> {
        let memory = if pages == Pages::Huge { PageMemory::huge } else { PageMemory::new };
        let (mut source, mut destination) = (memory(bytes)?, memory(bytes)?);
        source.fill(7);
        if pages != Pages::New {
            destination.fill(1);
        }
        if is_cold {
            unlade_copy_kernels::evict(&source);
            if pages != Pages::New {
                unlade_copy_kernels::evict(&destination);
            }
        }
        Ok(Pair { source, destination })
    }

    /// Nanoseconds of a copy and of reading it; and the same with a write to each page of the source
    /// afterwards.
    fn time(&mut self, copy: impl FnOnce(&mut [u8], &mut [u8])) -> [f64; 2] {
        let begin = Instant::now();
        copy(&mut self.source, &mut self.destination);
        let read: u64 =
            self.destination.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum();
        let used = ns(begin, Instant::now());
        self.source.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 3);
        let touched = ns(begin, Instant::now());
        black_box(read);
        [used, touched]
    }
}

/// Copies at a call site of its own for each kind of pages: what the admission learns of one does not
/// hold for another.
fn give_up(copier: &Copier, pages: Pages, source: &mut [u8], destination: &mut [u8]) {
    copier.scope(|scope| match pages {
        Pages::New => drop(scope.copy_last_use(source, destination)),
        Pages::Huge => drop(scope.copy_last_use(source, destination)),
        Pages::Small => drop(scope.copy_last_use(source, destination)),
    });
}

/// Times of each loop, then of the copy that gives its source up; by [`Pair::time`].
fn measure(
    copier: &Copier,
    bytes: usize,
    pages: Pages,
    is_cold: bool,
    rounds: usize,
) -> Result<Vec<[f64; 2]>> {
    let kernels: &[Kernel] = unlade_copy_kernels::kernel::available();
    let once = |kernel: Option<&Kernel>| -> Result<[f64; 2]> {
        let mut pair = Pair::new(bytes, pages, is_cold)?;
        let times = pair.time(|source, destination| match kernel {
            Some(kernel) => kernel.copy_slice(destination, source),
            None => give_up(copier, pages, source, destination),
        });
        if !pair.destination.iter().all(|byte| *byte == 7) {
            bail!("a copy of {bytes} bytes has lost some");
        }
        Ok(times)
    };
    for _ in 0..LEARNING.min(BYTES_MAX / bytes) {
        once(None)?;
    }
    let ways = || kernels.iter().map(Some).chain([None]);
    let rounds: Vec<Vec<[f64; 2]>> =
        (0..rounds).map(|_| ways().map(once).collect()).collect::<Result<_>>()?;
    let middle = |way: usize, which: usize| median(rounds.iter().map(|times| times[way][which]));
    Ok((0..ways().count()).map(|way| [middle(way, 0), middle(way, 1)]).collect())
}

/// Runs all sizes and kinds of pages, then the snapshots.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let service = Service::start(Config::default())?;
    let copier = Copier::new(service.attach()?);
    line(format_args!(
        "{:<26}{:>10}{:>12}{:>8}{:>9}{:>13}",
        "microseconds", "given up", "copied", "ratio", "touched", "pages moved"
    ))?;
    for pages in [Pages::New, Pages::Huge, Pages::Small] {
        for bytes in SIZES {
            if pages == Pages::Huge && bytes < 4 << 20 {
                continue;
            }
            for is_cold in [false, true] {
                let rounds = (BYTES_MAX / bytes).clamp(3, if quick { 15 } else { 41 });
                let before = copier.stats().read();
                let times = measure(&copier, bytes, pages, is_cold, rounds)?;
                let after = copier.stats().read();
                let moved = after.remapped_bytes - before.remapped_bytes;
                let copied = after.last_use_copied_bytes - before.last_use_copied_bytes;
                let part = moved as f64 / (moved + copied) as f64;
                report((bytes, pages, is_cold), &times, part, sink)?;
            }
        }
    }
    super::snapshots::run(&copier, quick, sink)
}

fn report(
    (bytes, pages, is_cold): (usize, Pages, bool),
    times: &[[f64; 2]],
    moved: f64,
    sink: &mut Sink,
) -> Result<()> {
    let Some((given_up, copied)) = times.split_last() else { return Ok(()) };
    let cache = if is_cold { "cold" } else { "warm" };
    let case = json!({ "bytes": bytes, "cache": cache, "pages": pages.name() });
    let case = || case.as_object().cloned().unwrap_or_default();
    let metrics = |[used, touched]: &[f64; 2]| {
        Map::from_iter([
            ("latency_ns".to_owned(), (*used).into()),
            ("latency_with_source_touched_ns".to_owned(), (*touched).into()),
        ])
    };
    for (kernel, times) in unlade_copy_kernels::kernel::available().iter().zip(copied) {
        sink.write(case(), kernel.name(), metrics(times))?;
    }
    let mut offload = metrics(given_up);
    offload.insert("moved_part".to_owned(), moved.into());
    sink.write(case(), "offload", offload)?;
    let fastest =
        |which: usize| copied.iter().map(|times| times[which]).fold(f64::INFINITY, f64::min);
    let [ratio, touched] = [0, 1].map(|which| given_up[which] / fastest(which));
    let ratios = Map::from_iter([
        ("latency_ratio_vs_sync".to_owned(), ratio.into()),
        ("latency_ratio_with_source_touched".to_owned(), touched.into()),
    ]);
    sink.write(case(), "ratio", ratios)?;
    let label = format!("{} {cache} {}", pages.name(), ByteSize(bytes as u64));
    line(format_args!(
        "{label:<26}{:>10.1}{:>12.1}{ratio:>8.2}{touched:>9.2}{moved:>13.2}",
        given_up[0] / 1e3,
        fastest(0) / 1e3
    ))
}
