//! How far a second thread of the service takes clients that copy much and wait for something else in
//! between, beside clients that copy by themselves.

use crate::bench::figures::median_by;
use crate::bench::record::Sink;
use anyhow::{Result, anyhow};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Service};

const CLIENTS: [usize; 4] = [1, 2, 4, 8];
/// Bytes of a copy.
const COPY_BYTES: usize = 64 << 10;
/// Copies that a client has made before it waits for something else, ...
const BATCH: usize = 8;
/// ... for so long, or until the service has made them: it does not help.
const WAIT: Duration = Duration::from_micros(100);
const PATIENCE: Duration = Duration::from_secs(1);
const GIB: f64 = (1_u64 << 30) as f64;

/// The party that copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The clients, by `memcpy`.
    Alone,
    /// A service with threads, at least and at most so many.
    Served { min: usize, max: usize },
}

const WAYS: [Way; 4] = [
    Way::Alone,
    Way::Served { min: 1, max: 1 },
    Way::Served { min: 2, max: 2 },
    Way::Served { min: 1, max: 2 },
];

impl Way {
    fn name(self) -> String {
        match self {
            Way::Alone => "memcpy".to_owned(),
            Way::Served { min, max } if min == max => format!("offload-{min}"),
            Way::Served { min, max } => format!("offload-{min}-to-{max}"),
        }
    }
}

/// Result of one round of one variant.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    bytes_per_s: f64,
    cpu_s_per_gib: f64,
    /// Of the bytes, those that threads of the service copied.
    service_share: f64,
    threads: f64,
}

/// Processor time of the whole process, seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The buffers of a client: a few, which stay in its core's cache, from one source.
struct Buffers {
    source: Vec<u8>,
    destinations: Vec<Vec<u8>>,
}

impl Buffers {
    fn new() -> Buffers {
        let destinations = (0..BATCH).map(|_| vec![0; COPY_BYTES]).collect();
        Buffers { source: vec![1; COPY_BYTES], destinations }
    }

    fn copy_alone(&mut self) {
        for destination in &mut self.destinations {
            destination.copy_from_slice(black_box(&self.source));
        }
        black_box(&mut self.destinations);
        std::thread::sleep(WAIT);
    }

    fn copy_served(&mut self, copier: &Copier) {
        let Buffers { source, destinations } = self;
        copier.scope(|scope| {
            let copies = destinations.iter_mut();
            let pending: Vec<_> = copies.map(|to| scope.queue(source, to)).collect();
            let begin = Instant::now();
            loop {
                std::thread::sleep(WAIT);
                // Copies that take for ever the end of the scope makes.
                let are_ready = pending.iter().all(|pending| pending.is_ready(0..COPY_BYTES));
                if are_ready || begin.elapsed() > PATIENCE {
                    break;
                }
            }
        });
        black_box(destinations);
    }
}

/// Lets `clients` copy for `window`.
fn measure(way: Way, clients: usize, window: Duration) -> Result<Outcome> {
    let service = match way {
        Way::Alone => None,
        Way::Served { min, max } => {
            let scale_after = Duration::from_millis(20);
            let config =
                Config { threads_min: min, threads_max: max, scale_after, ..Config::default() };
            Some(Service::start(config)?)
        }
    };
    let (is_measured, is_over, bytes) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let client = || -> Result<()> {
        let copier =
            service.as_ref().map(|service| service.attach().map(Copier::new)).transpose()?;
        let mut buffers = Buffers::new();
        while !is_over.load(Ordering::Relaxed) {
            match &copier {
                None => buffers.copy_alone(),
                Some(copier) => buffers.copy_served(copier),
            }
            if is_measured.load(Ordering::Relaxed) {
                bytes.fetch_add((BATCH * COPY_BYTES) as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        // Threads start, and clients move, in this time.
        std::thread::sleep(window / 2);
        let served = || service.as_ref().map_or(0, |service| service.counts().copied_bytes);
        let (begin, cpu, by_service) = (Instant::now(), cpu_s(), served());
        is_measured.store(true, Ordering::Relaxed);
        std::thread::sleep(window);
        is_measured.store(false, Ordering::Relaxed);
        let (took_s, cpu_s) = (begin.elapsed().as_secs_f64(), cpu_s() - cpu);
        let by_service = (served() - by_service) as f64;
        let threads = service.as_ref().map_or(0, Service::threads) as f64;
        is_over.store(true, Ordering::Relaxed);
        for client in running {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        let bytes = (bytes.load(Ordering::Relaxed) as f64).max(1.0);
        Ok(Outcome {
            bytes_per_s: bytes / took_s,
            cpu_s_per_gib: cpu_s / (bytes / GIB),
            service_share: (by_service / bytes).min(1.0),
            threads,
        })
    })
}

/// Runs all ways in turn, round after round.
///
/// # Errors
/// A service does not start, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let (rounds, window) = match quick {
        true => (3, Duration::from_millis(60)),
        false => (9, Duration::from_millis(200)),
    };
    line(format_args!(
        "{:<28}{:>12}{:>16}{:>10}{:>10}",
        "clients, who copies", "GB/s", "CPU s per GiB", "service", "threads"
    ))?;
    for clients in CLIENTS {
        let mut outcomes = vec![Vec::new(); WAYS.len()];
        for _ in 0..rounds {
            for (way, outcomes) in WAYS.into_iter().zip(&mut outcomes) {
                outcomes.push(measure(way, clients, window)?);
            }
        }
        let medians: Vec<Outcome> = outcomes.iter().map(|rounds| middle(rounds)).collect();
        for (way, outcome) in WAYS.into_iter().zip(&medians) {
            report(sink, clients, way, outcome, medians[0].bytes_per_s)?;
        }
    }
    Ok(())
}

fn middle(rounds: &[Outcome]) -> Outcome {
    let of = |figure: fn(&Outcome) -> f64| median_by(rounds, figure);
    Outcome {
        bytes_per_s: of(|outcome| outcome.bytes_per_s),
        cpu_s_per_gib: of(|outcome| outcome.cpu_s_per_gib),
        service_share: of(|outcome| outcome.service_share),
        threads: of(|outcome| outcome.threads),
    }
}

fn report(
    sink: &mut Sink,
    clients: usize,
    way: Way,
    outcome: &Outcome,
    alone_bytes_per_s: f64,
) -> Result<()> {
    let Outcome { bytes_per_s, cpu_s_per_gib, service_share, threads } = *outcome;
    let label = format!("{clients} clients, {}", way.name());
    line(format_args!(
        "{label:<28}{:>12.2}{cpu_s_per_gib:>16.4}{:>9.0}%{threads:>10}",
        bytes_per_s / 1e9,
        service_share * 100.0
    ))?;
    let case = || fields(json!({ "part": "threads", "clients": clients, "bytes": COPY_BYTES }));
    let metrics = json!({
        "throughput_bytes_per_s": bytes_per_s,
        "cpu_s_per_gib": cpu_s_per_gib,
        "service_share": service_share,
        "threads": threads,
    });
    sink.write(case(), &way.name(), fields(metrics))?;
    if way == Way::Alone {
        return Ok(());
    }
    let mut case = case();
    case.insert("way".to_owned(), way.name().into());
    let ratio = json!({ "throughput_ratio_vs_memcpy": bytes_per_s / alone_bytes_per_s.max(1.0) });
    sink.write(case, "ratio", fields(ratio))
}

fn fields(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_copies() {
        for way in WAYS {
            let outcome = measure(way, 2, Duration::from_millis(10)).unwrap();
            assert!(outcome.bytes_per_s > 0.0 && outcome.cpu_s_per_gib >= 0.0, "{outcome:?}");
            let is_served = way != Way::Alone;
            assert_eq!(outcome.threads >= 1.0, is_served, "{way:?}");
        }
    }
}
