//! One window of load on one front: what the client saw, what everybody used meanwhile.

use super::cpu::{Meter, Usage};
use crate::lab::plan::{Front, HOST, Node, Plan, SERVER_HTTP_PORT};
use crate::lab::process::log_tail;
use crate::lab::state::State;
use crate::lab::{node_command, plan};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

/// Whom the client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Front(Front),
    /// The servers' own HTTP port, connections spread over them: what could be had if nothing
    /// stood in front. Plain HTTP only.
    Servers,
    /// nginx with the same files, beside the first server.
    Static,
}

/// Where [`Asked::Static`] listens.
pub const STATIC_HTTP_PORT: u16 = 8081;
/// Name of its process.
pub const STATIC_PROCESS: &str = "static";

impl Asked {
    /// Name in results.
    pub fn mode(self) -> &'static str {
        match self {
            Asked::Front(front) => front.mode(),
            Asked::Servers => "direct",
            Asked::Static => "static",
        }
    }
}

/// The request of a window.
#[derive(Debug, Clone)]
pub struct Window<'w> {
    pub asked: Asked,
    /// Host of the URL; decides how the offloading balancer treats it.
    pub host: &'w str,
    pub tls: bool,
    pub path: &'w str,
    pub connections: u32,
    pub warmup: Duration,
    pub length: Duration,
    /// One body in this many is checked.
    pub verify_every: u64,
    pub seed: u64,
}

/// Its result.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    pub throughput_bytes_per_s: f64,
    pub requests_per_s: f64,
    pub latency_p50_us: f64,
    pub latency_p99_us: f64,
    /// Time to the first byte of a response; 0 if the load does not tell it.
    pub first_byte_p99_us: f64,
    pub body_bytes: f64,
    pub requests: f64,
    pub verified: f64,
    pub errors: f64,
    pub mismatches: f64,
    pub client_ns: f64,
    pub usage: Usage,
}

/// The URL of whom is asked, under `host`.
pub fn url(asked: Asked, host: &str, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    let port = match asked {
        Asked::Front(front) => front.port(tls),
        Asked::Servers => SERVER_HTTP_PORT,
        Asked::Static => STATIC_HTTP_PORT,
    };
    format!("{scheme}://{host}:{port}")
}

/// Whom to watch while `asked` works.
///
/// # Errors
/// The lab does not run it.
pub fn meter(state: &State, asked: Asked) -> Result<Meter> {
    let front = match asked {
        Asked::Servers | Asked::Static => None,
        Asked::Front(front) => {
            let process = state.process(front.process());
            let missing = || format!("lab `{}` runs no {}", state.name, front.mode());
            Some(process.with_context(missing)?.identity.pid)
        }
    };
    let names: Vec<String> = match asked {
        Asked::Static => vec![STATIC_PROCESS.to_owned()],
        // An agent works for its server.
        _ => state.plan().servers().flat_map(|n| [n.to_string(), format!("{n}-agent")]).collect(),
    };
    let servers: Vec<u32> =
        names.iter().filter_map(|name| Some(state.process(name)?.identity.pid)).collect();
    Ok(Meter::new(front, &servers))
}

/// Runs one window.
///
/// # Errors
/// The load cannot be run or answers nothing; errors of single requests are counted instead.
pub fn run(state: &State, window: &Window<'_>) -> Result<Sample> {
    let plan = state.plan();
    let mut command = load_command(&plan, window)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the load")?;
    let mut lines = BufReader::new(child.stdout.take().context("the load has no output")?).lines();
    let meter = meter(state, window.asked)?;
    let begin = lines.next().transpose()?;
    let before = meter.read();
    let result = lines.next().transpose()?;
    let usage = before.until(&meter.read());
    let output = child.wait_with_output()?;
    let (Some(_), Some(line)) = (begin, result) else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("the load on {} ended without a result: {}", window.asked.mode(), said.trim());
    };
    let value: Value = serde_json::from_str(&line).context("the load's result")?;
    let sample = sample(&value, usage);
    if sample.body_bytes == 0.0 {
        let log = match window.asked {
            Asked::Front(front) => plan.log_file(front.process()),
            Asked::Servers => plan.log_file("s1"),
            Asked::Static => plan.log_file(STATIC_PROCESS),
        };
        bail!(
            "{} answered nothing ({}); the log says:\n{}",
            window.asked.mode(),
            value["example_error"].as_str().unwrap_or("no error seen"),
            log_tail(&log)
        );
    }
    Ok(sample)
}

fn load_command(plan: &Plan, window: &Window<'_>) -> Result<std::process::Command> {
    let exe = std::env::current_exe().context("where is this program?")?;
    let url = url(window.asked, window.host, window.tls);
    let time = |duration: Duration| format!("{}us", duration.as_micros());
    let mut command = node_command(plan, Node::Client);
    command.arg(exe).args(["load", "--json", "--announce", "--url", &url, "--path", window.path]);
    command.args(["--connections", &window.connections.to_string()]);
    command.args(["--warmup", &time(window.warmup), "--duration", &time(window.length)]);
    command.args(["--verify", &format!("sample:{}", window.verify_every)]);
    command.args(["--seed", &window.seed.to_string()]);
    let (port, nodes) = match window.asked {
        Asked::Front(_) => (0, 0),
        Asked::Servers => (SERVER_HTTP_PORT, usize::MAX),
        Asked::Static => (STATIC_HTTP_PORT, 1),
    };
    for node in plan.servers().take(nodes) {
        command.args(["--connect", &format!("{}:{port}", plan.address_v4(node))]);
    }
    command.arg("--sha256sums").arg(plan.sums_file());
    Ok(command)
}

fn sample(value: &Value, usage: Usage) -> Sample {
    let number = |key: &str| value[key].as_f64().unwrap_or(0.0);
    Sample {
        throughput_bytes_per_s: number("throughput_bytes_per_s"),
        requests_per_s: number("requests_per_s"),
        latency_p50_us: number("latency_p50_us"),
        latency_p99_us: number("latency_p99_us"),
        first_byte_p99_us: number("first_byte_p99_us"),
        body_bytes: number("body_bytes"),
        requests: number("requests"),
        verified: number("verified"),
        errors: number("errors"),
        mismatches: number("mismatches"),
        client_ns: number("client_cpu_ns"),
        usage,
    }
}

/// Runs wrk for `length` and reads what it prints; `None` where it is not installed.
///
/// # Errors
/// wrk cannot be run or prints something else.
pub fn run_wrk(state: &State, window: &Window<'_>) -> Result<Option<Sample>> {
    let Some(wrk) = unlade_command::tools::find_program("wrk") else { return Ok(None) };
    let plan = state.plan();
    let url = url(window.asked, window.host, window.tls) + window.path;
    let seconds = window.length.as_secs().max(1).to_string();
    let connections = window.connections.to_string();
    let meter = meter(state, window.asked)?;
    let before = meter.read();
    let output = node_command(&plan, Node::Client)
        .arg(wrk)
        .args(["--latency", "-t1", "-c", &connections, "-d", &seconds, &url])
        .output()
        .context("running wrk")?;
    let usage = before.until(&meter.read());
    let text = String::from_utf8_lossy(&output.stdout);
    let sample = parse_wrk(&text, usage)
        .with_context(|| format!("wrk on {} printed: {text}", window.asked.mode()))?;
    Ok(Some(sample))
}

fn parse_wrk(text: &str, usage: Usage) -> Option<Sample> {
    let value_of = |label: &str| {
        let line = text.lines().map(str::trim).find(|line| line.starts_with(label))?;
        line[label.len()..].split_ascii_whitespace().next().map(str::to_owned)
    };
    let summary = text.lines().map(str::trim).find(|line| line.contains(" requests in "))?;
    let words: Vec<&str> = summary.split_ascii_whitespace().collect();
    let requests: f64 = words.first()?.parse().ok()?;
    let body_bytes = scaled(words.get(4)?)?;
    let failures = text
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("Socket errors") || line.starts_with("Non-2xx"))
        .flat_map(|line| line.split(|c: char| !c.is_ascii_digit()))
        .filter_map(|number| number.parse::<f64>().ok());
    Some(Sample {
        throughput_bytes_per_s: scaled(&value_of("Transfer/sec:")?)?,
        requests_per_s: value_of("Requests/sec:")?.parse().ok()?,
        latency_p50_us: scaled(&value_of("50%")?)? * 1e6,
        latency_p99_us: scaled(&value_of("99%")?)? * 1e6,
        body_bytes,
        requests,
        errors: failures.sum(),
        usage,
        ..Sample::default()
    })
}

/// A number with wrk's unit: bytes for sizes, seconds for times.
fn scaled(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "B" | "s" => 1.0,
        "KB" => 1024.0,
        "MB" => 1_048_576.0,
        "GB" => 1_073_741_824.0,
        "us" => 1e-6,
        "ms" => 1e-3,
        "m" => 60.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|number| number * unit)
}

/// Host under which the offloading balancer hands over so many requests at a time.
pub fn host_for(requests: plan::RequestsPerMigration) -> &'static str {
    let fixed = plan::FIXED_HOSTS
        .iter()
        .find(|(_, mode, count)| *mode == plan::OffloadMode::Always && *count == requests);
    fixed.map_or(HOST, |(host, ..)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRK: &str = "\
Running 2s test @ https://10.0.0.1/1MiB
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    21.10ms    4.50ms  60.00ms   80.00%
    Req/Sec   760.00     60.00   850.00     75.00%
  Latency Distribution
     50%   20.50ms
     75%   22.00ms
     90%   26.00ms
     99%    1.20s
  1512 requests in 2.01s, 1.48GB read
  Socket errors: connect 0, read 3, write 0, timeout 1
Requests/sec:    754.32
Transfer/sec:    756.61MB
";

    #[test]
    fn wrk_is_understood() {
        let sample = parse_wrk(WRK, Usage::default()).unwrap();
        assert_eq!((sample.requests, sample.errors), (1512.0, 4.0));
        assert!((sample.latency_p50_us - 20_500.0).abs() < 1.0);
        assert!((sample.latency_p99_us - 1_200_000.0).abs() < 1.0);
        assert!((sample.throughput_bytes_per_s - 756.61 * 1_048_576.0).abs() < 1.0);
        assert!(parse_wrk("unable to connect", Usage::default()).is_none());
    }

    #[test]
    fn hosts_of_the_fixed_settings() {
        use plan::RequestsPerMigration::{Limited, Unlimited};
        assert_eq!(host_for(Limited(8)), "eight.objects.lab");
        assert_eq!(host_for(Unlimited), "unlimited.objects.lab");
        assert_eq!(host_for(Limited(3)), HOST);
        assert_eq!(url(Asked::Front(Front::Haproxy), HOST, true), "https://objects.lab:445");
    }
}
