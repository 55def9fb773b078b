//! `unlade-lab load`: a closed-loop HTTP/1.1 client that costs less per byte than what it measures.
//!
//! [`target`] says what is asked for, [`worker`] turns an epoll loop over [`client`]s, which
//! read [`response`]s through [`tls`] or not; [`outcome`] is what came of it. Bodies that are
//! not verified are dropped in the kernel on plain connections (`MSG_TRUNC`) unless told
//! otherwise; TLS bodies are decrypted and authenticated always.

pub mod client;
pub mod linger;
pub mod outcome;
mod plan;
pub mod response;
pub mod target;
pub mod tls;
pub mod worker;

use anyhow::{Context, Result, anyhow, bail};
use client::Verify;
use outcome::Outcome;
use plan::Plan;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use target::Origin;
use unlade_command::input;
use unlade_command::output::line;

/// Connections of a run.
const CONNECTIONS_MAX: u64 = 100_000;
/// Threads of a run.
const THREADS_MAX: u64 = 64;
/// Requests in flight on a connection.
const PIPELINE_MAX: u64 = 1024;

const LONG_ABOUT: &str = "\
Closed-loop load: every connection has --pipeline requests in flight and sends the next when a \
response is complete. Every response's status, length and framing are checked; with \
--sha256sums also the bodies' sums, all or a sample.

Ends with status 1 when anything was wrong or nothing was answered.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab exec client -- unlade-lab load --url http://10.22.0.1 --path /1MiB --connections 32
  unlade-lab exec client -- unlade-lab load --url https://objects.lab --path /64KiB \\
      --requests 10000 --verify all --sha256sums /run/unlade/lab/lab/SHA256SUMS --json";

/// Put closed-loop HTTP/1.1 load on a server and check what it answers
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct LoadArgs {
    /// Where to: `http://host[:port]` or `https://host[:port]`
    #[arg(long)]
    url: String,
    /// Connect there instead of where the URL's host is; given several times, in turn
    #[arg(long, value_name = "ADDRESS")]
    connect: Vec<SocketAddr>,
    /// Path of the requests; given several times, each request picks one
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<String>,
    /// Paths to pick from, one a line
    #[arg(long, value_name = "FILE")]
    paths_file: Option<PathBuf>,
    /// Connections at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    connections: u64,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: u64,
    /// How long to measure; 5s unless --requests is given
    #[arg(long, value_parser = parse_duration, conflicts_with = "requests")]
    duration: Option<Duration>,
    /// How many requests to send
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Time before measuring begins
    #[arg(long, value_parser = parse_duration, default_value = "0s", conflicts_with = "requests")]
    warmup: Duration,
    /// Open the connections evenly over this time
    #[arg(long, value_parser = parse_duration, default_value = "0s")]
    ramp: Duration,
    /// Wait for the responses in flight when the duration is over
    #[arg(long)]
    finish: bool,
    /// Go on until standard input ends, then as with --finish
    #[arg(long, conflicts_with_all = ["duration", "requests"])]
    until_stdin_ends: bool,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=PIPELINE_MAX))]
    pipeline: u64,
    /// Open a new connection after so many requests
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    new_connection_every: Option<u64>,
    /// never, sample:N (one body in N) or all; all when --sha256sums is given
    #[arg(long)]
    verify: Option<Verify>,
    /// Expected hashes of the bodies, as sha256sum prints them
    #[arg(long, value_name = "FILE")]
    sha256sums: Option<PathBuf>,
    /// Copy bodies to this process even when they are not verified
    #[arg(long)]
    copy_bodies: bool,
    /// Certificates to trust; SSL_CERT_FILE names them otherwise
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// How long a connection may make no progress
    #[arg(long, value_parser = parse_duration, default_value = "10s")]
    timeout: Duration,
    /// Seed of the choice of paths
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print an empty JSON object when measuring begins, after the warm-up
    #[arg(long)]
    announce: bool,
    /// One JSON object on one line
    #[arg(long)]
    json: bool,
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(text: &str) -> Result<Verify, String> {
        match text {
            "never" => Ok(Verify::Never),
            "all" => Ok(Verify::All),
            _ => text
                .strip_prefix("sample:")
                .and_then(|every| every.parse().ok())
                .filter(|&every| every > 0)
                .map(Verify::Sample)
                .ok_or_else(|| "write never, sample:N or all".to_owned()),
        }
    }
}

/// Reads `250ms`, `5s`, `1m 30s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

impl Plan {
    fn new(args: &LoadArgs) -> Result<Plan> {
        let origin = Origin::parse(&args.url)?;
        let addresses = match args.connect.is_empty() {
            false => args.connect.clone(),
            true => vec![origin.resolve()?],
        };
        let mut paths = args.paths.clone();
        if let Some(file) = &args.paths_file {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("reading {}", file.display()))?;
            paths.extend(text.lines().filter(|line| !line.is_empty()).map(str::to_owned));
        }
        let sums = args.sha256sums.as_deref().map(target::read_sums).transpose()?;
        let verify = match (args.verify, &sums) {
            (Some(Verify::Never), _) | (None, None) => Verify::Never,
            (Some(_), None) => bail!("--verify needs --sha256sums"),
            (Some(verify), Some(_)) => verify,
            (None, Some(_)) => Verify::All,
        };
        Ok(Plan {
            addresses,
            tls: tls_of(args, &origin)?,
            targets: target::targets(&origin, &paths, sums.as_ref())?,
            connections: usize::try_from(args.connections)?,
            duration: match args.requests {
                Some(_) => None,
                None if args.until_stdin_ends => None,
                None => Some(args.duration.unwrap_or(Duration::from_secs(5))),
            },
            warmup: args.warmup,
            ramp: args.ramp,
            timeout: args.timeout,
            finish: args.finish,
            pipeline: usize::try_from(args.pipeline)?,
            requests_per_connection: args.new_connection_every,
            verify,
            copy_bodies: args.copy_bodies,
            seed: args.seed,
            announce: args.announce,
            stop: Arc::default(),
        })
    }
}

fn tls_of(
    args: &LoadArgs,
    origin: &Origin,
) -> Result<Option<(Arc<ClientConfig>, ServerName<'static>)>> {
    if !origin.tls {
        return Ok(None);
    }
    let ca = args.ca.clone().or_else(|| std::env::var_os("SSL_CERT_FILE").map(PathBuf::from));
    let ca = ca.context("https needs --ca FILE, or SSL_CERT_FILE in the environment")?;
    let name = ServerName::try_from(origin.host.clone())
        .with_context(|| format!("`{}` cannot be a certificate's name", origin.host))?;
    Ok(Some((tls::config(&ca)?, name)))
}

/// Runs `unlade-lab load`.
///
/// # Errors
/// The arguments do not go together, a file cannot be read, or the kernel refuses a socket.
pub fn run(args: LoadArgs) -> Result<ExitCode> {
    let plan = Plan::new(&args)?;
    if args.until_stdin_ends {
        let stop = Arc::clone(&plan.stop);
        std::thread::spawn(move || {
            input::wait_for_end();
            stop.store(true, Ordering::Relaxed);
        });
    }
    let (outcome, elapsed) = run_threads(&plan, args.threads as usize, args.requests)?;
    match args.json {
        true => line(outcome.json(elapsed, own_cpu_ns()))?,
        false => line(outcome.text(elapsed))?,
    }
    match outcome.errors() == 0 && outcome.requests > 0 {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

/// Processor time of this process, threads that have ended included.
fn own_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn run_threads(plan: &Plan, threads: usize, requests: Option<u64>) -> Result<(Outcome, Duration)> {
    let threads = threads.clamp(1, plan.connections);
    let share =
        |total: usize, thread: usize| total * (thread + 1) / threads - total * thread / threads;
    let reports = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let first = plan.connections * thread / threads;
                let count = share(plan.connections, thread);
                let budget = requests.map(|total| share(total as usize, thread) as u64);
                scope.spawn(move || worker::run(plan, first, count, budget))
            })
            .collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a worker of the load panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    let mut outcome = Outcome::new();
    let mut elapsed = Duration::ZERO;
    for report in &reports {
        outcome.merge(&report.outcome);
        elapsed = elapsed.max(report.elapsed);
    }
    Ok((outcome, elapsed))
}

#[cfg(test)]
mod tests;
