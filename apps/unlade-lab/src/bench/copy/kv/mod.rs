//! A key-value server with and without its copies, and Redis beside both.

mod client;
mod peer;

pub use peer::{KvArgs, serve};

use crate::bench::cpu;
use crate::bench::figures::{median, median_by};
use crate::bench::record::Sink;
use anyhow::{Result, anyhow};
use client::{Ask, Client};
use peer::Peer;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use unlade_command::output::line;

const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// One that waits for each answer with a core to itself, and as many as keep all cores busy.
const CLIENTS: [usize; 2] = [1, 8];
/// Before a window counts.
const WARMUP: Duration = Duration::from_millis(3);
/// Bytes that `redis-benchmark` moves in a case.
const REDIS_BENCHMARK_BYTES: usize = 256 << 20;
const REDIS_BENCHMARK_REQUESTS_MAX: usize = 10_000;

/// The parameters that stay fixed.
#[derive(Debug, Clone, Copy)]
struct Case {
    bytes: usize,
    ask: Ask,
    clients: usize,
}

/// How long it is measured.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rounds: usize,
    window: Duration,
}

impl Case {
    fn all() -> impl Iterator<Item = Case> {
        CLIENTS.into_iter().flat_map(|clients| {
            [Ask::Set, Ask::Get].into_iter().flat_map(move |ask| {
                SIZES.into_iter().map(move |bytes| Case { bytes, ask, clients })
            })
        })
    }

    fn fields(self, load: &str) -> Map<String, Value> {
        let Case { bytes, ask, clients } = self;
        object(json!({
            "bytes": bytes, "command": ask.name(), "clients": clients, "load": load,
        }))
    }
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// One window of one server.
#[derive(Debug, Clone, Default)]
struct Window {
    took_us: Vec<f64>,
    seconds: f64,
    cpu_seconds: f64,
}

impl Window {
    fn mean_us(&self) -> f64 {
        self.took_us.iter().sum::<f64>() / self.took_us.len().max(1) as f64
    }

    fn requests_per_s(&self) -> f64 {
        self.took_us.len() as f64 / self.seconds.max(1e-9)
    }

    fn cpu_seconds_per_request(&self) -> f64 {
        self.cpu_seconds / self.took_us.len().max(1) as f64
    }
}

/// Medians over the rounds of a server; the quantile is over all requests.
#[derive(Debug, Clone, Copy)]
struct Figures {
    mean_us: f64,
    p99_us: f64,
    requests_per_s: f64,
    cpu_seconds_per_request: f64,
}

impl Figures {
    fn of(windows: &[Window]) -> Figures {
        let over = |figure: fn(&Window) -> f64| median_by(windows, figure);
        let mut all: Vec<f64> =
            windows.iter().flat_map(|window| window.took_us.iter().copied()).collect();
        all.sort_unstable_by(f64::total_cmp);
        let p99_us = all.get(all.len() * 99 / 100).copied().unwrap_or(0.0);
        Figures {
            mean_us: over(Window::mean_us),
            p99_us,
            requests_per_s: over(Window::requests_per_s),
            cpu_seconds_per_request: over(Window::cpu_seconds_per_request),
        }
    }

    fn metrics(self) -> Map<String, Value> {
        object(json!({
            "latency_mean_us": self.mean_us,
            "latency_p99_us": self.p99_us,
            "throughput_requests_per_s": self.requests_per_s,
            "cpu_seconds_per_request": self.cpu_seconds_per_request,
        }))
    }
}

/// Ratios of a build to the synchronous one: medians over rounds of what was measured one after the
/// other; that of the quantile is over all requests.
#[derive(Debug, Clone, Copy)]
struct Ratios {
    mean: f64,
    p99: f64,
    throughput: f64,
    cpu: f64,
}

impl Ratios {
    fn of(windows: &[Window], baseline: &[Window]) -> Ratios {
        let over = |figure: fn(&Window) -> f64| {
            let pairs = windows.iter().zip(baseline);
            median(pairs.map(|(of, to)| figure(of) / figure(to).max(1e-12)))
        };
        Ratios {
            mean: over(Window::mean_us),
            p99: Figures::of(windows).p99_us / Figures::of(baseline).p99_us.max(1e-12),
            throughput: over(Window::requests_per_s),
            cpu: over(Window::cpu_seconds_per_request),
        }
    }

    fn metrics(self, of: &str) -> Map<String, Value> {
        object(json!({
            "of": of,
            "latency_mean_ratio_vs_sync": self.mean,
            "latency_p99_ratio_vs_sync": self.p99,
            "throughput_ratio_vs_sync": self.throughput,
            "cpu_ratio_vs_sync": self.cpu,
        }))
    }
}

/// One window: all clients ask at the same time.
fn window(peer: &Peer, clients: &mut [Client], ask: Ask, length: Duration) -> Result<Window> {
    let is_alone = clients.len() == 1;
    let mut together = |length: Duration| -> Result<Vec<f64>> {
        std::thread::scope(|scope| {
            let asking: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    scope.spawn(move || {
                        if is_alone {
                            cpu::stay_on(cpu::first_processor())?;
                        }
                        let mut took_us = Vec::new();
                        client.ask_for(ask, length, &mut took_us).map(|()| took_us)
                    })
                })
                .collect();
            let mut all = Vec::new();
            for client in asking {
                all.extend(client.join().map_err(|_| anyhow!("a client panicked"))??);
            }
            Ok(all)
        })
    };
    together(WARMUP)?;
    let (cpu_ns, begin) = (peer.cpu_ns(), Instant::now());
    let took_us = together(length)?;
    let seconds = begin.elapsed().as_secs_f64();
    let cpu_seconds = peer.cpu_ns().saturating_sub(cpu_ns) as f64 / 1e9;
    Ok(Window { took_us, seconds, cpu_seconds })
}

/// All rounds of a case, by server. Who begins changes with the round.
fn measure(peers: &[Peer], case: Case, plan: Plan, seed: u64) -> Result<Vec<Vec<Window>>> {
    let mut clients: Vec<Vec<Client>> = Vec::new();
    for peer in peers {
        let connect = |_| peer.client(case.bytes, seed);
        clients.push((0..case.clients).map(connect).collect::<Result<_>>()?);
    }
    // One client has a processor of its own. Where both are is otherwise chosen anew every now and
    // then, which is most of what would be seen.
    peers
        .iter()
        .try_for_each(|peer| peer.stay_off((case.clients == 1).then(cpu::first_processor)))?;
    let mut windows = vec![Vec::new(); peers.len()];
    for round in 0..plan.rounds {
        for turn in 0..peers.len() {
            let number = (turn + round) % peers.len();
            let clients = &mut clients[number];
            windows[number].push(window(&peers[number], clients, case.ask, plan.window)?);
        }
    }
    Ok(windows)
}

/// Runs all cases.
///
/// # Errors
/// A server does not start, or answers with other bytes than it was given.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let seed = sink.seed();
    let plan = match quick {
        true => Plan { rounds: 15, window: Duration::from_millis(30) },
        false => Plan { rounds: 31, window: Duration::from_millis(22) },
    };
    let mut peers = vec![Peer::own("sync", "sync")?, Peer::own("offload", "offload")?];
    match Peer::redis()? {
        Some(redis) => peers.push(redis),
        None => line(format_args!("redis-server is not installed: measured without it"))?,
    }
    line(format_args!(
        "{:<22}{:<14}{:>10}{:>10}{:>12}{:>10}",
        "key-value server", "", "mean us", "p99 us", "requests/s", "CPU us"
    ))?;
    for case in Case::all() {
        let windows = measure(&peers, case, plan, seed)?;
        for (peer, windows) in peers.iter().zip(&windows) {
            let figures = Figures::of(windows);
            print(case, peer.name, figures)?;
            sink.write(case.fields("own"), peer.name, figures.metrics())?;
        }
        for (peer, of) in peers.iter().zip(&windows).skip(1) {
            let ratios = Ratios::of(of, &windows[0]);
            print_ratios(case, peer.name, ratios)?;
            sink.write(case.fields("own"), "ratio", ratios.metrics(peer.name))?;
        }
    }
    if peers.len() > 2 && !quick {
        by_redis_benchmark(&peers, sink)?;
    }
    Ok(())
}

/// The same by the client that Redis is measured with. It gets what it has set before.
fn by_redis_benchmark(peers: &[Peer], sink: &mut Sink) -> Result<()> {
    let clients = CLIENTS[1];
    for bytes in SIZES {
        let requests = (REDIS_BENCHMARK_BYTES / bytes).min(REDIS_BENCHMARK_REQUESTS_MAX);
        for peer in peers {
            let rates = peer::redis_benchmark(peer, bytes, clients, requests)?;
            for (ask, rate) in [Ask::Set, Ask::Get].into_iter().zip(rates) {
                let case = Case { bytes, ask, clients };
                line(format_args!("{:<22}{:<14}{rate:>32.0}", label(case), peer.name))?;
                let metrics = object(json!({ "throughput_requests_per_s": rate }));
                sink.write(case.fields("redis-benchmark"), peer.name, metrics)?;
            }
        }
    }
    Ok(())
}

fn label(case: Case) -> String {
    let bytes = unlade_config::ByteSize(case.bytes as u64);
    format!("{} {bytes} x{}", case.ask.name(), case.clients)
}

fn print(case: Case, name: &str, figures: Figures) -> Result<()> {
    line(format_args!(
        "{:<22}{name:<14}{:>10.1}{:>10.1}{:>12.0}{:>10.2}",
        label(case),
        figures.mean_us,
        figures.p99_us,
        figures.requests_per_s,
        figures.cpu_seconds_per_request * 1e6
    ))
}

fn print_ratios(case: Case, name: &str, ratios: Ratios) -> Result<()> {
    line(format_args!(
        "{:<22}{:<14}{:>10.3}{:>10.3}{:>12.3}{:>10.3}",
        label(case),
        format!("{name}/sync"),
        ratios.mean,
        ratios.p99,
        ratios.throughput,
        ratios.cpu
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window_of(took_us: f64, requests: usize) -> Window {
        let took_us = vec![took_us; requests];
        Window { took_us, seconds: 2.0, cpu_seconds: 1.0 }
    }

    #[test]
    fn figures_are_medians_of_rounds() {
        let windows = [window_of(10.0, 100), window_of(30.0, 300), window_of(20.0, 200)];
        let figures = Figures::of(&windows);
        assert_eq!((figures.mean_us, figures.p99_us), (20.0, 30.0));
        assert_eq!((figures.requests_per_s, figures.cpu_seconds_per_request), (100.0, 0.005));
        let ratios = Ratios::of(&windows, &windows);
        assert_eq!((ratios.mean, ratios.p99, ratios.throughput, ratios.cpu), (1.0, 1.0, 1.0, 1.0));
        let slower = [window_of(20.0, 50), window_of(60.0, 150), window_of(40.0, 100)];
        let ratios = Ratios::of(&slower, &windows);
        assert_eq!((ratios.mean, ratios.p99, ratios.throughput, ratios.cpu), (2.0, 2.0, 0.5, 2.0));
    }
}
