//! `unlade copyd why`: why copies of a process are queued, or made at once.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use unlade_command::output;
use unlade_copy::explain::{self, Change, ExplainError, Off, Report, Serving, Site, State};

const ABOUT: &str = "\
Explains for each call site of a process why its copies are queued with the copy service, or made \
at once. The process uses the crate `unlade-copy` or the C library, with threads of its own or with \
the daemon; it need not be restarted, and does not notice.

A site has one entry for each class of lengths (powers of two): its state, the reason, what was \
measured, and what queueing has cost so far. Below are the last changes of states, oldest first.

States:
  not learnt  the first copies are measured; they are made at once
  trial       queueing is expected to pay; some copies are queued and measured
  queued      queueing pays, as measured
  at once     queueing does not pay, or the copies are too short
  suspended   losses of queueing have used up their allowance; copies are made at once

Times are medians of the last nine samples; the window is the time from a copy to the first sync \
of its bytes that four of five exceed. A column shows `-` if there is no sample. COPIES and BYTES \
lag by up to one run (127 copies) of each thread. Copies of fewer than 4096 bytes are noted at first \
and while something else is pending only: their number is a lower bound, marked with `>`.

Only root and the user of the process may ask: the kernel checks it.";

const HELP: &str = "\
Examples:
  unlade copyd why 4711
  unlade copyd why 4711 --site 'server.c:*'
  unlade copyd why $(pgrep -o server) --follow
  unlade copyd why 4711 --json | jq '.sites[] | select(.state != \"queued\") | .reason'

Exit status: 0 success, 1 failure, for instance no such process, one without a queue of the copy \
service, or one of another user, 2 wrong usage.";

/// Interval of looks with `--follow`.
const FOLLOW_EVERY: Duration = Duration::from_millis(250);

/// Explain why copies of a process are queued, or made at once
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = HELP)]
pub struct WhyArgs {
    /// The process
    #[arg(value_name = "PID")]
    pid: u32,
    /// Only sites whose place contains this; `*` stands for any characters
    #[arg(long, value_name = "PATTERN")]
    site: Option<String>,
    /// Print JSON: one object; with --follow, one more for each change
    #[arg(long)]
    json: bool,
    /// Print further changes as they happen, until the process ends
    #[arg(long)]
    follow: bool,
}

/// Runs `unlade copyd why`.
///
/// # Errors
/// The process cannot be explained, or standard output is closed.
pub fn run(args: &WhyArgs) -> Result<()> {
    let report = explain::of_process(args.pid)?;
    let is_wanted = |place: &str| args.site.as_ref().is_none_or(|site| matches(site, place));
    let text = match args.json {
        true => report_json(&report, is_wanted).to_string(),
        false => report_text(&report, args.pid, is_wanted),
    };
    output::line(text)?;
    if !args.follow {
        return Ok(());
    }
    let mut seen = report.changes_total;
    loop {
        std::thread::sleep(FOLLOW_EVERY);
        let report = match explain::of_process(args.pid) {
            Ok(report) => report,
            // It has ended, or is ending: then it has no descriptors any more.
            Err(error @ ExplainError::Decode { .. }) => return Err(error.into()),
            Err(_) => return Ok(()),
        };
        for change in report.changes.iter().filter(|change| change.number >= seen) {
            let place = place_of(&report, change);
            if is_wanted(&place) {
                output::line(match args.json {
                    true => change_json(&place, change).to_string(),
                    false => change_text(&place, change, now_ns()),
                })?;
            }
        }
        seen = report.changes_total.max(seen);
    }
}

/// Returns true if `place` contains the pattern, in which `*` stands for any characters.
fn matches(pattern: &str, place: &str) -> bool {
    let mut rest = place;
    pattern.split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

fn place_of(report: &Report, change: &Change) -> String {
    let unnamed = || format!("{:#x}", change.address);
    report.site_of(change).map_or_else(unnamed, Site::place)
}

fn state(state: State) -> &'static str {
    match state {
        State::NotLearnt => "not learnt",
        State::AtOnce => "at once",
        State::Trial => "trial",
        State::Queued => "queued",
        State::Suspended => "suspended",
    }
}

fn off(off: Off) -> &'static str {
    match off {
        Off::Disabled => {
            "the copy service is switched off (`enabled` in COPIER_OPTIONS or set_copier_opt): \
             every copy is made at once"
        }
        Off::Failed => "the copy service did not start: every copy is made at once",
    }
}

fn serving(serving: Serving) -> &'static str {
    match serving {
        Serving::Threads => "threads",
        Serving::Daemon => "daemon",
    }
}

/// A number of bytes with a unit.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(6);
    let number = bytes as f64
        / f64::from(1_u32 << (10 * unit.min(3)))
        / 1024_f64.powi((unit.max(3) - 3) as i32);
    let digits = usize::from(unit > 0 && number < 10.0 && number.fract() > 0.04);
    format!("{number:.digits$} {}", UNITS[unit as usize])
}

fn lengths(site: &Site) -> String {
    match site.lengths() {
        (0, Some(end)) => format!("below {}", bytes(end)),
        (start, Some(_)) => format!("from {}", bytes(start)),
        (start, None) => format!("{} and more", bytes(start)),
    }
}

fn time(ns: Option<f32>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| explain::time_text(ns.into()))
}

/// The report as text.
fn report_text(report: &Report, pid: u32, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut text = format!("process {pid}: ");
    let sites: Vec<(String, &Site)> = report.sites.iter().map(|it| (it.place(), it)).collect();
    let wanted: Vec<&(String, &Site)> =
        sites.iter().filter(|(place, _)| is_wanted(place)).collect();
    let count = match sites.len() {
        1 => "1 site".to_owned(),
        count => format!("{count} sites"),
    };
    let _ = match report.off {
        Some(why) => write!(text, "{}", off(why)),
        None if sites.is_empty() => {
            write!(text, "no site has made a copy, of {} queues", report.clients)
        }
        None => write!(
            text,
            "{count} (by lengths), of {} queues; shown {}",
            report.clients,
            wanted.len()
        ),
    };
    if !wanted.is_empty() {
        text.push_str("\n\n");
        text.push_str(&table(&wanted));
    }
    for (place, site) in wanted {
        let view = &site.view;
        let _ = write!(
            text,
            "\n\n{place}, {}: {}\n  {}.",
            lengths(site),
            state(view.state),
            site.reason()
        );
        let allowance = match view.allowance_ns < 0.0 {
            true => "nothing more may be lost now".to_owned(),
            false => format!("{} more may be lost", time(Some(view.allowance_ns))),
        };
        if view.inline.count() > 0 {
            let lost = explain::time_text(view.lost_ns);
            let _ = write!(text, "\n  Queueing has lost {lost} here so far; {allowance}.");
        }
    }
    let now_ns = now_ns();
    let changes: Vec<String> = report
        .changes
        .iter()
        .map(|change| (place_of(report, change), change))
        .filter(|(place, _)| is_wanted(place))
        .map(|(place, change)| change_text(&place, change, now_ns))
        .collect();
    if !changes.is_empty() {
        let _ = write!(text, "\n\nchanges:\n{}", changes.join("\n"));
    }
    if report.unshown > 0 {
        let _ = write!(text, "\n\n{} more sites are not shown: the table is full", report.unshown);
    }
    if report.unsettled > 0 {
        let _ = write!(text, "\n\n{} entries were being written; ask again", report.unsettled);
    }
    text
}

/// The measurements of sites in columns.
fn table(sites: &[&(String, &Site)]) -> String {
    let header = [
        "SITE", "LENGTHS", "STATE", "COPIES", "BYTES", "QUEUED", "AT ONCE", "SUBMIT", "WAIT",
        "WINDOW",
    ];
    let row = |(place, site): &(String, &Site)| {
        let (view, counts) = (&site.view, &site.counts);
        let copies = counts.at_once.saturating_add(counts.queued);
        let sum = counts.at_once_bytes.saturating_add(counts.queued_bytes);
        let least = if view.cause == explain::Cause::Short { ">" } else { "" };
        [
            place.clone(),
            lengths(site),
            state(view.state).to_owned(),
            format!("{least}{copies}"),
            format!("{least}{}", bytes(sum)),
            format!("{:.1} %", 100.0 * site.queued_part()),
            time(view.copy.median()),
            time(view.submit.median()),
            time(view.base.median().map(|_| view.wait_ns)),
            time(view.window_ns()),
        ]
    };
    let rows: Vec<[String; 10]> = std::iter::once(header.map(str::to_owned))
        .chain(sites.iter().map(|site| row(site)))
        .collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; 10]| {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0..=2 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        cells.collect::<Vec<String>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<String>>().join("\n")
}

fn change_text(place: &str, change: &Change, now_ns: u64) -> String {
    let age = now_ns.saturating_sub(change.at_ns) as f64 / 1e9;
    let (start, _) = explain::lengths_of(change.class);
    format!(
        "  {age:9.3} s ago  {place}, from {}: {} -> {}: {}",
        bytes(start),
        state(change.from),
        state(change.to),
        change.reason()
    )
}

/// The report as JSON.
fn report_json(report: &Report, is_wanted: impl Fn(&str) -> bool) -> Value {
    let sites = report.sites.iter().map(|site| (site.place(), site));
    let sites =
        sites.filter(|(place, _)| is_wanted(place)).map(|(place, site)| site_json(&place, site));
    let changes = report.changes.iter().map(|change| (place_of(report, change), change));
    let changes = changes
        .filter(|(place, _)| is_wanted(place))
        .map(|(place, change)| change_json(&place, change));
    json!({
        "pid": report.pid,
        "off": report.off.map(off),
        "queues": report.clients,
        "sites": sites.collect::<Vec<Value>>(),
        "changes": changes.collect::<Vec<Value>>(),
        "changes_total": report.changes_total,
        "sites_not_shown": report.unshown,
        "entries_not_settled": report.unsettled,
    })
}

fn site_json(place: &str, site: &Site) -> Value {
    let (view, counts, (start, end)) = (&site.view, &site.counts, site.lengths());
    json!({
        "site": place,
        "file": site.file,
        "line": Some(site.line).filter(|line| *line > 0),
        "address": format!("{:#x}", site.address),
        "queue": site.client,
        "service": serving(site.serving),
        "from_bytes": start,
        "below_bytes": end,
        "state": state(view.state),
        "since_ns": site.since_ns,
        "cause": format!("{:?}", view.cause),
        "reason": site.reason(),
        "copies_at_once": counts.at_once,
        "copies_queued": counts.queued,
        "bytes_at_once": counts.at_once_bytes,
        "bytes_queued": counts.queued_bytes,
        "queue_full": counts.full,
        "memory_not_shared": counts.unreachable,
        "queued_part": site.queued_part(),
        "at_once_ns": view.copy.median(),
        "at_once_and_read_ns": view.inline.median(),
        "submit_ns": view.submit.median(),
        "wait_ns": view.base.median().map(|_| view.wait_ns),
        "queued_ns": view.queued_ns(),
        "window_ns": view.window_ns(),
        "expected_ns": Some(view.forecast_ns).filter(|ns| *ns > 0.0),
        "lost_ns": view.lost_ns,
        "allowance_ns": view.allowance_ns,
    })
}

fn change_json(place: &str, change: &Change) -> Value {
    let (start, end) = explain::lengths_of(change.class);
    json!({
        "change": change.number,
        "at_ns": change.at_ns,
        "site": place,
        "queue": change.client,
        "from_bytes": start,
        "below_bytes": end,
        "from": state(change.from),
        "to": state(change.to),
        "cause": format!("{:?}", change.cause),
        "reason": change.reason(),
        "at_once_ns": change.inline_ns,
        "queued_ns": change.queued_ns,
        "window_ns": change.window_ns,
        "allowance_ns": change.allowance_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_part_of_a_place() {
        for pattern in ["", "server.c", ":120", "src/*.c:*", "*", "server*20"] {
            assert!(matches(pattern, "src/server.c:120"), "{pattern}");
        }
        for pattern in ["client", "c:*src", "server.c:121"] {
            assert!(!matches(pattern, "src/server.c:120"), "{pattern}");
        }
    }

    #[test]
    fn bytes_have_a_unit() {
        let text = [0, 999, 1024, 1536, 65_536, 3 << 20, 5 << 30, u64::MAX].map(bytes);
        assert_eq!(
            text,
            ["0 B", "999 B", "1 KiB", "1.5 KiB", "64 KiB", "3 MiB", "5 GiB", "16 EiB"]
        );
    }
}
