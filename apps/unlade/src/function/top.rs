//! `unlade fn top`: a table of the functions of a gateway.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Deserialize;
use unlade_command::http::Method;

use super::client::{GatewayArgs, done};

pub(super) const HELP: &str = "\
Rates and durations are of the last 10 to 20 seconds, the rest since the gateway has known the \
function. RUN: running invocations. INST: instances. MEM: the most memory that an instance has had. \
COLD: started instances. THROT: invocations that found no instance. Where standard output is no \
terminal, each table follows the one before.";

/// Interval of the tables.
const PAUSE: Duration = Duration::from_secs(1);
/// Erases a terminal, and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Arguments of `unlade fn top`.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Print one table, and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// The state of a gateway.
#[derive(Debug, Deserialize)]
struct State {
    functions: Vec<Figures>,
}

/// The figures of a function.
#[derive(Debug, Deserialize)]
struct Figures {
    function: String,
    rate_per_s: f64,
    errors_per_s: f64,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    invocations: u64,
    errors: u64,
    throttles: u64,
    running: u64,
    instances: u64,
    memory_peak_bytes: u64,
    cold_starts: u64,
}

/// Prints tables until interrupted.
///
/// # Errors
/// The gateway's.
pub(super) fn run(args: &TopArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let is_terminal = out.is_terminal();
    loop {
        let answer = done(args.gateway.ask(Method::GET, "/unlade/v1/state", &[], "")?)?;
        let state: State = serde_json::from_slice(&answer.body).context("the gateway's answer")?;
        let clear = if is_terminal && !args.once { CLEAR } else { "" };
        match write!(out, "{clear}{}", table(&state.functions)).and_then(|()| out.flush()) {
            // The reader of a pipe has what it wants.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        if args.once {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// The table, those with the most invocations first.
fn table(functions: &[Figures]) -> String {
    let mut order: Vec<&Figures> = functions.iter().collect();
    let by = |a: &&Figures, b: &&Figures| {
        b.rate_per_s.total_cmp(&a.rate_per_s).then(b.invocations.cmp(&a.invocations))
    };
    order.sort_by(|a, b| by(a, b).then_with(|| a.function.cmp(&b.function)));
    let mut text = format!(
        "{:<32} {:>9} {:>7} {:>9} {:>9} {:>5} {:>5} {:>8} {:>6} {:>6} {:>10} {:>8}\n",
        "FUNCTION",
        "RATE/s",
        "ERR/s",
        "P50 ms",
        "P99 ms",
        "RUN",
        "INST",
        "MEM MiB",
        "COLD",
        "THROT",
        "TOTAL",
        "ERRORS"
    );
    let ms = |us: Option<u64>| us.map_or("-".to_owned(), |us| format!("{:.1}", us as f64 / 1e3));
    for one in order {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<32} {:>9.1} {:>7.1} {:>9} {:>9} {:>5} {:>5} {:>8} {:>6} {:>6} {:>10} {:>8}",
            one.function,
            one.rate_per_s,
            one.errors_per_s,
            ms(one.p50_us),
            ms(one.p99_us),
            one.running,
            one.instances,
            one.memory_peak_bytes.div_ceil(1 << 20),
            one.cold_starts,
            one.throttles,
            one.invocations,
            one.errors,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_function_is_first() {
        let figures = |function: &str, rate_per_s| Figures {
            function: function.to_owned(),
            rate_per_s,
            errors_per_s: 0.5,
            p50_us: Some(1234),
            p99_us: None,
            invocations: 10,
            errors: 2,
            throttles: 3,
            running: 1,
            instances: 4,
            memory_peak_bytes: 1,
            cold_starts: 5,
        };
        let text = table(&[figures("b", 1.0), figures("a", 1.0), figures("c", 2.0)]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines.iter().map(|line| line[0]).collect::<Vec<_>>(),
            ["FUNCTION", "c", "a", "b"]
        );
        assert_eq!(lines[1][1..], ["2.0", "0.5", "1.2", "-", "1", "4", "1", "5", "3", "10", "2"]);
    }
}
