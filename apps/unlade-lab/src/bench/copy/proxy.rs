//! Cost of bodies to a balancer that proxies them: by splice(2) where it chooses so, beside the
//! same balancer with a buffer only. And the two ways by themselves, in the least of a proxy.

use super::forward::{Forwarder, Way};
use super::peers::{self, Client, Got, Server};
use crate::bench::cpu::stay_on;
use crate::bench::figures::{median, median_by};
use crate::bench::record::Sink;
use crate::lab::process::cpu_ns;
use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::{Map, Value, json};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_command::program;

const GIB: f64 = 1_073_741_824.0;
const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Of the least of a proxy: below, the wake-ups of one connection are all that is measured.
const FORWARD_SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// Connections to the balancer: it always has something to do.
const CONNECTIONS: usize = 12;
/// How long a balancer may take to start.
const START: Duration = Duration::from_secs(10);

/// A balancer with one worker; killed when dropped.
struct Balancer {
    child: Child,
    address: SocketAddr,
}

impl Balancer {
    /// Starts one whose bodies go this way.
    fn start(server: SocketAddr, body: &str) -> Result<Balancer> {
        // Free now, and taken again at once.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let text = format!(
            "workers = 1\nbody = \"{body}\"\n[[listener]]\naddress = \"{address}\"\n[[route]]\n\
             pool = \"p\"\n[pool.p]\nservers = [\"{server}\"]\n[log]\nlevel = \"error\"\n"
        );
        let file = format!("unlade-bench-copy-{}-{body}.toml", std::process::id());
        let file = std::env::temp_dir().join(file);
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        let exe = program::find(program::UNLADE)?;
        let child = Command::new(exe)
            .args(["lb".as_ref(), "--config".as_ref(), file.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("starting a balancer")?;
        let mut balancer = Balancer { child, address };
        let listens = balancer.wait();
        std::fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        listens.map(|()| balancer)
    }

    fn wait(&mut self) -> Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("a balancer ended before it was ready: {status}");
            }
            if begin.elapsed() > START {
                bail!("a balancer does not listen on {} within {START:?}", self.address);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // One that has ended already cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processors that this thread may use.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect()
}

/// Placement of the processes: the proxy has a processor to itself, so it is the bottleneck.
#[derive(Debug, Clone)]
struct Places(Vec<usize>);

impl Places {
    fn peers(&self) -> Result<()> {
        self.stay(0)
    }

    fn proxy(&self) -> Result<()> {
        self.stay(1)
    }

    /// With fewer than two processors, no process is pinned.
    fn stay(&self, at: usize) -> Result<()> {
        if self.0.len() < 2 { Ok(()) } else { stay_on(self.0[at]) }
    }
}

/// Of one way in one window.
#[derive(Debug, Clone, Copy)]
struct Figures {
    bytes_per_s: f64,
    cpu_s_per_gib: f64,
}

impl Figures {
    fn new(got: Got, bytes: usize, cpu_s: f64) -> Figures {
        let bytes = got.responses as f64 * bytes as f64;
        Figures { bytes_per_s: bytes / got.elapsed_s, cpu_s_per_gib: cpu_s / (bytes / GIB) }
    }
}

/// Rounds of both ways, the buffer's first.
type Rounds = [Vec<Figures>; 2];

/// The balancer's two ways.
fn balancer(places: &Places, bytes: usize, rounds: usize, window: Duration) -> Result<Rounds> {
    places.peers()?;
    let server = Server::start(bytes)?;
    places.proxy()?;
    let balancers =
        [Balancer::start(server.address, "copy")?, Balancer::start(server.address, "auto")?];
    places.peers()?;
    let mut clients = Vec::new();
    for balancer in &balancers {
        let mut client = Client::connect(balancer.address, CONNECTIONS, bytes)?;
        client.run(window / 4)?;
        clients.push(client);
    }
    let mut found = Rounds::default();
    for round in 0..rounds {
        for step in 0..2 {
            let at = (step + round) % 2;
            let pid = balancers[at].child.id();
            let before = cpu_ns(pid);
            let got = clients[at].run(window)?;
            let cpu_s = cpu_ns(pid).saturating_sub(before) as f64 / 1e9;
            found[at].push(Figures::new(got, bytes, cpu_s));
        }
    }
    Ok(found)
}

/// The least of a proxy, both ways.
fn forwarder(places: &Places, bytes: usize, rounds: usize, window: Duration) -> Result<Rounds> {
    places.peers()?;
    let server = Server::start(bytes)?;
    let mut found = Rounds::default();
    for round in 0..rounds {
        for step in 0..2 {
            let at = (step + round) % 2;
            let way = [Way::Copy, Way::Splice][at];
            places.proxy()?;
            let answer_bytes = peers::head(bytes).len() + bytes;
            let forwarder = Forwarder::start(server.address, way, answer_bytes)?;
            places.peers()?;
            let mut client = Client::connect(forwarder.address, 1, bytes)?;
            let mut got = client.run(window)?;
            drop(client);
            let cpu_s = forwarder.finish()?.as_secs_f64();
            // And the one that was checked, which was not timed.
            let figures = Figures::new(got, bytes, 0.0);
            got.responses += 1;
            let cpu_s_per_gib = Figures::new(got, bytes, cpu_s).cpu_s_per_gib;
            found[at].push(Figures { cpu_s_per_gib, ..figures });
        }
    }
    Ok(found)
}

/// Runs both.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 5 } else { 9 };
    let window = Duration::from_millis(if quick { 200 } else { 500 });
    // In a thread of its own, which is kept on a processor.
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| all(rounds, window, sink));
        measuring.join().map_err(|_| anyhow!("the measuring thread panicked"))?
    })
}

fn all(rounds: usize, window: Duration, sink: &mut Sink) -> Result<()> {
    let places = Places(processors());
    let heads = ["recv, send", "splice", "ratio", "CPU s/GiB", "splice", "ratio"];
    let heads = heads.map(|head| format!("{head:>12}"));
    line(format_args!("{:<24}{}", "MB/s", heads.concat()))?;
    for bytes in SIZES {
        let found = balancer(&places, bytes, rounds, window)?;
        report("balancer", ["copy", "offload"], bytes, &found, sink)?;
    }
    for bytes in FORWARD_SIZES {
        let found = forwarder(&places, bytes, rounds, window)?;
        report("forwarder", ["copy", "offload"], bytes, &found, sink)?;
    }
    Ok(())
}

fn report(
    proxy: &str,
    modes: [&str; 2],
    bytes: usize,
    found: &Rounds,
    sink: &mut Sink,
) -> Result<()> {
    let map = |value: Value| value.as_object().cloned().unwrap_or_default();
    let case: Map<String, Value> = map(json!({ "proxy": proxy, "response_bytes": bytes }));
    let speed: fn(&Figures) -> f64 = |it| it.bytes_per_s;
    let cpu: fn(&Figures) -> f64 = |it| it.cpu_s_per_gib;
    let mut cells = Vec::new();
    for (mode, rounds) in modes.iter().zip(found) {
        let (bytes_per_s, cpu_s) = (median_by(rounds, speed), median_by(rounds, cpu));
        let metrics =
            json!({ "throughput_bytes_per_s": bytes_per_s, "proxy_cpu_s_per_gib": cpu_s });
        sink.write(case.clone(), mode, map(metrics))?;
        cells.push((bytes_per_s / 1e6, cpu_s));
    }
    let paired = |of: fn(&Figures) -> f64| {
        let pairs = found[1].iter().zip(&found[0]);
        median(pairs.map(|(spliced, copied)| of(spliced) / of(copied)))
    };
    let (throughput, cpu) = (paired(speed), paired(cpu));
    let metrics = json!({ "throughput_ratio_vs_copy": throughput, "cpu_ratio_vs_copy": cpu });
    sink.write(case, "ratio", map(metrics))?;
    let label = format!("{proxy} {}", unlade_config::ByteSize(bytes as u64));
    let [(copied, copied_cpu), (spliced, spliced_cpu)] = [cells[0], cells[1]];
    line(format_args!(
        "{label:<24}{copied:>12.0}{spliced:>12.0}{throughput:>12.2}{copied_cpu:>12.3}\
         {spliced_cpu:>12.3}{cpu:>12.2}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_a_proxy_is_measured_both_ways() {
        let places = Places(Vec::new());
        let found = forwarder(&places, 64 << 10, 1, Duration::from_millis(5)).unwrap();
        for rounds in &found {
            assert!(rounds[0].bytes_per_s > 0.0 && rounds[0].cpu_s_per_gib > 0.0);
        }
    }
}
