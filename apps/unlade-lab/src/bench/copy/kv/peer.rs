//! The servers that are compared: the two builds of our own, and Redis.

use super::client::Client;
use crate::bench::helper::Helper;
use crate::lab::process::cpu_ns;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use unlade_kv::run::Mode;

/// A server has so long to come up.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Serve keys and values until standard input ends
#[derive(Debug, Args)]
pub struct KvArgs {
    /// Which build
    #[arg(long, value_enum)]
    mode: Mode,
    /// Where
    #[arg(long)]
    listen: SocketAddr,
}

/// Runs `unlade kv`, a helper of the benchmark.
///
/// # Errors
/// The server's.
pub fn serve(args: &KvArgs) -> Result<ExitCode> {
    let limits = unlade_kv::Limits::default();
    let config = unlade_kv::Config { listen: args.listen, limits, allows_debug: false };
    unlade_kv::run::run(args.mode, &config, std::io::stdin().as_fd(), |address| {
        println!("{address}")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// One server that runs.
pub struct Peer {
    pub name: &'static str,
    pub address: SocketAddr,
    helper: Helper,
}

impl Peer {
    /// Starts one of our own.
    ///
    /// # Errors
    /// It does not start.
    pub fn own(name: &'static str, mode: &str) -> Result<Peer> {
        let address = free_address()?;
        let program = std::env::current_exe().context("this program")?;
        let mut command = Command::new(program);
        command.args(["kv", "--mode", mode, "--listen", &address.to_string()]);
        let helper = Helper::start(&mut command, "a key-value server")?.wait_ready()?;
        Ok(Peer { name, address, helper })
    }

    /// Starts Redis, that keeps nothing on disk; nothing where it is not installed.
    ///
    /// # Errors
    /// It does not start.
    pub fn redis() -> Result<Option<Peer>> {
        if Command::new("redis-server").arg("--version").output().is_err() {
            return Ok(None);
        }
        let address = free_address()?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.args(["--loglevel", "warning", "--dir", "/"]);
        let mut helper = Helper::start(&mut command, "redis-server")?;
        let until = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            ensure!(Instant::now() < until && !helper.has_ended(), "redis-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(Peer { name: "redis-server", address, helper }))
    }

    /// A client whose keys have values of so many bytes.
    ///
    /// # Errors
    /// The server's.
    pub fn client(&self, bytes: usize, seed: u64) -> Result<Client> {
        let mut client = Client::connect(self.address, bytes, seed).context(self.name)?;
        client.fill().context(self.name)?;
        Ok(client)
    }

    /// Keeps it off a processor, if there is another one; on all of them where none is named.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stay_off(&self, processor: Option<usize>) -> Result<()> {
        let pid = self.helper.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let mut set = sched_getaffinity(None)?;
        if let Some(processor) = processor.filter(|_| set.count() > 1) {
            set.unset(processor);
        }
        Ok(sched_setaffinity(pid, &set)?)
    }

    /// Processor time of all its threads.
    pub fn cpu_ns(&self) -> u64 {
        self.helper.id().map_or(0, cpu_ns)
    }
}

/// An address without a listener.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a free port")?;
    Ok(listener.local_addr()?)
}

/// Requests a second by `redis-benchmark`: of `SET`, and of `GET` of what was set.
///
/// # Errors
/// It fails, or says nothing that can be read.
pub fn redis_benchmark(
    peer: &Peer,
    bytes: usize,
    clients: usize,
    requests: usize,
) -> Result<[f64; 2]> {
    let output = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &peer.address.port().to_string(), "--csv"])
        .args(["-t", "set,get", "-d", &bytes.to_string(), "-c", &clients.to_string()])
        .args(["-n", &requests.to_string()])
        .output()
        .context("redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = |command: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(command))?;
        line.split(',').next()?.trim_matches('"').parse().ok()
    };
    match (rate("\"SET\","), rate("\"GET\",")) {
        (Some(set), Some(get)) if output.status.success() => Ok([set, get]),
        _ => bail!("redis-benchmark: {text}{}", String::from_utf8_lossy(&output.stderr)),
    }
}
