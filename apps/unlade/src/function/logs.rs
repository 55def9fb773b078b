//! `unlade fn logs`: the log of a function, from its gateway.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use unlade_command::http::Method;
use unlade_fn_model::log::{Entry, Page};

use super::client::{GatewayArgs, done};

pub(super) const HELP: &str = "\
A line has the time, the version, the instance, the invocation (- between invocations) and the text. \
The gateway keeps the last lines of each function ([function_log] in fn.toml); it says how many a \
reader has missed. Lines beyond the limit of the rate are counted, and a line says how many.";

/// Interval of the requests of `--follow`.
const PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `unlade fn logs`.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// The function
    name: String,
    /// Go on with lines as they come, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Only lines of this last time, as 5m
    #[arg(long, value_name = "TIME")]
    since: Option<humantime::Duration>,
    /// Only lines of this invocation
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// Prints the log.
///
/// # Errors
/// The gateway's.
pub(super) fn run(args: &LogsArgs) -> Result<()> {
    let now = SystemTime::now();
    let since = args.since.map(|since| now.checked_sub(since.into()).unwrap_or(UNIX_EPOCH));
    let since_ms = since.map_or(0, unix_ms);
    let mut after = 0;
    loop {
        let path = path(args, after, since_ms);
        let answer = done(args.gateway.ask(Method::GET, &path, &[], "")?)?;
        let page: Page = serde_json::from_slice(&answer.body).context("the gateway's answer")?;
        if page.missed > 0 && after > 0 {
            eprintln!("unlade: {} lines are gone; raise function_log.bytes_max", page.missed);
        }
        let mut out = std::io::stdout().lock();
        for entry in &page.lines {
            match writeln!(out, "{}", text(entry)) {
                // The reader of a pipe has what it wants.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
        out.flush()?;
        drop(out);
        after = page.next;
        if !page.more {
            if !args.follow {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The path of the lines with higher numbers than `after`.
fn path(args: &LogsArgs, after: u64, since_ms: u64) -> String {
    let mut path = format!("/unlade/v1/functions/{}/logs?after={after}", args.name);
    if let Some(request) = &args.request {
        // Numbers of invocations are UUIDs: other characters name none.
        let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
        path.push_str(&format!("&request={}", request.chars().filter(plain).collect::<String>()));
    }
    path.push_str(&format!("&since_ms={since_ms}"));
    path
}

/// A line of the output. Control characters of a function do not reach a terminal.
fn text(entry: &Entry) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(entry.at_ms);
    let instance = entry.instance.map_or_else(|| "template".to_owned(), |id| id.to_string());
    let request = entry.request.as_deref().unwrap_or("-");
    let is_shown = std::io::stdout().is_terminal();
    let printed = match is_shown {
        false => entry.text.clone(),
        true => entry.text.chars().filter(|c| !c.is_control() || *c == '\t').collect(),
    };
    let time = humantime::format_rfc3339_millis(at);
    format!("{time} {} {instance} {request} {printed}", entry.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_place() {
        let entry = Entry {
            number: 1,
            at_ms: 1_000_000_000_123,
            version: "$LATEST".to_owned(),
            instance: Some(7),
            request: None,
            text: "said".to_owned(),
        };
        assert_eq!(text(&entry), "2001-09-09T01:46:40.123Z $LATEST 7 - said");
        let entry = Entry { instance: None, request: Some("r".to_owned()), ..entry };
        assert_eq!(text(&entry), "2001-09-09T01:46:40.123Z $LATEST template r said");
    }
}
