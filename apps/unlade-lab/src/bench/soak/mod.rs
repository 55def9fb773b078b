//! `unlade-lab bench soak`: very many migrations or direct responses, every byte checked. On a good
//! link nothing may be retransmitted, reset or damaged; on a bad one no byte may differ and nothing may
//! hang. Afterwards nothing may be left: see [`leftovers`]. What counts as a failure is in [`verdict`].

mod leftovers;
mod verdict;

use super::drive::Drive;
use super::guard::LabGuard;
use super::helper::Helper;
use super::impair::parse_probability;
use super::orderly;
use super::record::Sink;
use super::tcp::Census;
use crate::lab::node_command;
use crate::lab::objects;
use crate::lab::plan::{
    EARLY_HOST, FORWARD_HOST, Front, HOST, LATE_HOST, Node, ObjectTree, OffloadMode, Plan,
    RequestsPerMigration, Spec, Toggle,
};
use crate::load::parse_duration;
use crate::scrape;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use leftovers::Sockets;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use unlade_command::output::line;
use verdict::{Goal, Outcome};

/// Largest object that is asked for: larger ones only make the run longer.
const OBJECT_BYTES_MAX: u64 = 256 << 10;
/// Smallest object that is asked for with direct return. Shorter responses are relayed.
const DIRECT_OBJECT_BYTES_MIN: u64 = 1 << 10;
/// The same where no response begins early.
const LATE_OBJECT_BYTES_MIN: u64 = 128 << 10;
/// Largest object with direct return.
const DIRECT_OBJECT_BYTES_MAX: u64 = 1 << 20;
/// Requests before anything is counted.
const WARMUP_REQUESTS: u64 = 200;
/// How often the balancer is asked how many connections it has moved.
const POLL: Duration = Duration::from_millis(200);
/// Without one more of what is counted for so long the run has failed.
const STALL: Duration = Duration::from_secs(60);
/// A connection without progress for so long hangs. On a bad link several retransmissions of one
/// segment may be lost in a row, and each waits twice as long as the one before.
const HANG: Duration = Duration::from_secs(30);
const LONG_ABOUT: &str = "\
Makes the balancer and its servers pass connections around, a migration for every request, with \
pipelined requests for objects of mixed sizes, until so many migrations are done; the SHA-256 of \
every body is checked. With --direct-return no connection moves: the servers' hosts send responses \
to the client directly, until so many are done. Runs in two labs, with transmit offloads on and off, unless --offloads \
says which.

Without --loss, --reorder and --duplicate the links are good, and the run fails when any \
namespace retransmitted a segment, sent a reset or saw a wrong checksum; tail loss probes, which \
are sent on a timer without a loss, are switched off. Everything runs on one processor then, since \
virtual links between several swap packets by themselves, above all with transmit offloads off, \
whether connections move or not, and TCP takes that for loss (--spread shows it). With them, the client's \
link is bad in both directions (eBPF; the kernel's netem is not needed), and the run fails when \
a byte differs, a request fails or a connection hangs. Either way it fails when connections, \
flows or sockets are left afterwards.

The fate of the n-th packet of each direction follows from --seed; which packet is the n-th \
depends on timing.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench soak --migrations 100000
  unlade-lab bench soak --migrations 20000 --tls --loss 1% --reorder 1%
  unlade-lab bench soak --direct-return early --responses 1000000

Exit status: 0 when nothing was wrong, 1 otherwise.";

/// When responses become direct.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Begin {
    /// From their first byte on
    Early,
    /// Behind their first bytes
    Late,
    /// Behind their first bytes, and by way of the balancer, as packets: the pool has no agents
    Forward,
}

impl Begin {
    fn host(self) -> &'static str {
        match self {
            Begin::Early => EARLY_HOST,
            Begin::Late => LATE_HOST,
            Begin::Forward => FORWARD_HOST,
        }
    }

    fn object_bytes_min(self) -> u64 {
        match self {
            Begin::Early => DIRECT_OBJECT_BYTES_MIN,
            Begin::Late | Begin::Forward => LATE_OBJECT_BYTES_MIN,
        }
    }
}

/// Move connections, or return responses directly, very many times and check every byte
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct SoakArgs {
    /// Migrations in each lab
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    migrations: u64,
    /// Direct return instead of migrations: responses become direct early, or late
    #[arg(long, value_enum, value_name = "WHEN", conflicts_with_all = ["migrations", "tls"])]
    direct_return: Option<Begin>,
    /// Direct responses in each lab
    #[arg(long, default_value_t = 100_000, requires = "direct_return", value_parser = clap::value_parser!(u64).range(1..))]
    responses: u64,
    /// HTTPS instead of plain HTTP
    #[arg(long)]
    tls: bool,
    /// Only a lab with the links' transmit offloads on, or off
    #[arg(long, value_enum)]
    offloads: Option<Toggle>,
    /// Share of the packets on the client's link that are lost: 0.01 or 1%
    #[arg(long, value_parser = parse_probability, default_value = "0", value_name = "SHARE")]
    loss: f64,
    /// Share of them that are late, so that others overtake them
    #[arg(long, value_parser = parse_probability, default_value = "0", value_name = "SHARE")]
    reorder: f64,
    /// Share of them that come twice
    #[arg(long, value_parser = parse_probability, default_value = "0", value_name = "SHARE")]
    duplicate: f64,
    /// How late a late packet is at most
    #[arg(long, value_parser = parse_duration, default_value = "3ms", value_name = "TIME")]
    late_max: Duration,
    /// Connections at the same time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Requests in flight on each
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pipeline: u32,
    /// Requests of a connection before a new one takes its place
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    requests_per_connection: u64,
    /// Servers behind the balancer
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=64))]
    servers: u16,
    /// Run on every processor, also where the links are good
    #[arg(long)]
    spread: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of everything that is chosen
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl SoakArgs {
    /// True if the network keeps the order of packets.
    fn is_orderly(&self) -> bool {
        self.is_lossless() && !self.spread
    }

    fn is_lossless(&self) -> bool {
        self.loss == 0.0 && self.reorder == 0.0 && self.duplicate == 0.0
    }

    fn goal(&self) -> Goal {
        match self.direct_return {
            Some(_) => Goal::Responses(self.responses),
            None => Goal::Migrations(self.migrations),
        }
    }

    fn host(&self) -> &'static str {
        self.direct_return.map_or(HOST, Begin::host)
    }

    /// Returns true for an object that is asked for.
    fn wants(&self, object_bytes: u64) -> bool {
        match self.direct_return {
            Some(begin) => {
                (begin.object_bytes_min()..=DIRECT_OBJECT_BYTES_MAX).contains(&object_bytes)
            }
            None => object_bytes <= OBJECT_BYTES_MAX,
        }
    }

    fn spec(&self, offloads: Toggle) -> Spec {
        Spec {
            direct_return: self.direct_return.is_some(),
            servers: self.servers,
            tls: self.tls,
            objects: ObjectTree::Small,
            offloads,
            offload: OffloadMode::Always,
            requests_per_migration: Some(RequestsPerMigration::Limited(1)),
            fronts: vec![Front::Offload],
            ..Spec::default()
        }
    }

    fn fields(&self, offloads: Toggle) -> Map<String, Value> {
        let value = serde_json::json!({
            "tls": self.tls, "offloads": offloads, "servers": self.servers,
            "connections": self.connections, "pipeline": self.pipeline,
            "direct_return": self.direct_return.map(|begin| format!("{begin:?}").to_lowercase()),
            "requests_per_migration": self.direct_return.is_none().then_some(1), "loss_ratio": self.loss,
            "reorder_ratio": self.reorder, "duplicate_ratio": self.duplicate,
            "one_processor": self.is_orderly(),
        });
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// Runs the experiment; fails by status when anything was wrong.
///
/// # Errors
/// A lab does not come up, or a program of the experiment fails.
pub fn run(args: &SoakArgs) -> Result<ExitCode> {
    let mut sink = Sink::new("soak", args.json.as_deref(), args.seed)?;
    if args.is_orderly() {
        orderly::one_processor()?;
    }
    let labs = match args.offloads {
        Some(offloads) => vec![offloads],
        None => vec![Toggle::On, Toggle::Off],
    };
    let mut good = true;
    for offloads in labs {
        let lab = LabGuard::up("soak", args.spec(offloads))?;
        let outcome = soak(args, &lab)?;
        lab.down()?;
        let scheme = if args.tls { "HTTPS" } else { "HTTP" };
        let transmit = if offloads == Toggle::On { "on" } else { "off" };
        line(format_args!("\n{scheme}, transmit offloads {transmit}"))?;
        outcome.rows().iter().try_for_each(line)?;
        let problems = outcome.problems(args.is_lossless());
        for problem in &problems {
            line(format_args!("  WRONG: {problem}"))?;
        }
        good &= problems.is_empty();
        sink.write(args.fields(offloads), "offload", outcome.metrics(&problems))?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn soak(args: &SoakArgs, lab: &LabGuard) -> Result<Outcome> {
    let plan = lab.state.plan();
    let paths: Vec<String> = objects::list(plan.spec.objects)
        .into_iter()
        .filter(|(_, bytes)| args.wants(*bytes))
        .map(|(name, _)| format!("/{name}"))
        .collect();
    let drive = Drive {
        host: args.host(),
        tls: args.tls,
        paths: &paths,
        connections: args.connections,
        pipeline: args.pipeline,
        new_connection_every: Some(args.requests_per_connection),
        timeout: HANG,
        seed: args.seed,
    };
    if args.is_lossless() {
        orderly::without_probes(&plan)?;
    }
    drive.run(&plan, WARMUP_REQUESTS)?;
    leftovers::settle(&lab.state, None)?;
    let sockets = Sockets::count(&lab.state)?;
    let bad_link = impair(args, &plan)?;
    let counted = Census::take(&plan)?;
    let begin = Instant::now();
    let mut load = drive.start(&plan)?;
    let end = wait(&plan, args.goal(), || load.has_ended())?;
    let elapsed = begin.elapsed();
    // Before the load ends: what the end of a connection does is not what is tested.
    let counted = Census::take(&plan)?.since(&counted);
    let load = load.stop()?;
    let link = match bad_link {
        Some(helper) => serde_json::from_str(&helper.finish()?).context("the link's counters")?,
        None => Value::Null,
    };
    let leftovers = leftovers::settle(&lab.state, Some(&sockets))?;
    Ok(Outcome {
        goal: args.goal(),
        done: end.done,
        stalled: end.stalled,
        elapsed,
        load,
        counted,
        link,
        leftovers,
    })
}

/// Makes the client's link bad, where that is wanted.
fn impair(args: &SoakArgs, plan: &Plan) -> Result<Option<Helper>> {
    if args.is_lossless() {
        return Ok(None);
    }
    let exe = std::env::current_exe().context("where is this program?")?;
    let mut command = node_command(plan, Node::Switch);
    command.arg(exe).args(["impair", "--interface", &Node::Client.to_string()]);
    for (option, share) in
        [("--loss", args.loss), ("--delay", args.reorder), ("--duplicate", args.duplicate)]
    {
        command.args([option, &share.to_string()]);
    }
    command.args(["--delay-max", &format!("{}us", args.late_max.as_micros())]);
    command.args(["--seed", &args.seed.to_string()]);
    Helper::start(&mut command, "the bad link")?.wait_ready().map(Some)
}

/// How waiting ended.
struct End {
    done: u64,
    stalled: bool,
}

/// Waits until the balancer has done as much more than now as the goal says, or does nothing any more,
/// or `has_ended` returns true.
fn wait(plan: &Plan, goal: Goal, mut has_ended: impl FnMut() -> bool) -> Result<End> {
    let count = || -> Result<u64> {
        Ok(scrape::sum(&scrape::get(plan, Node::Lb, "/metrics")?, goal.counter()))
    };
    let wanted = goal.count();
    let progress = ProgressBar::new(wanted);
    let style = format!("soak [{{bar:30}}] {{pos}}/{{len}} {goal}, {{per_sec}}, {{eta}} left");
    if let Ok(style) = ProgressStyle::with_template(&style) {
        progress.set_style(style);
    }
    let first = count()?;
    let (mut last, mut moved) = (first, Instant::now());
    loop {
        std::thread::sleep(POLL);
        let now = count()?;
        progress.set_position(now.saturating_sub(first).min(wanted));
        if now > last {
            (last, moved) = (now, Instant::now());
        }
        let done = now.saturating_sub(first);
        let stalled = moved.elapsed() >= STALL;
        if done >= wanted || stalled || has_ended() {
            progress.finish_and_clear();
            return Ok(End { done, stalled });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SoakArgs,
    }

    #[test]
    fn a_bad_link_is_one_that_does_anything() {
        assert!(Line::parse_from(["soak"]).args.is_lossless());
        for words in [["--loss", "1%"], ["--reorder", "0.01"], ["--duplicate", "1%"]] {
            let args = Line::parse_from(["soak"].iter().chain(&words)).args;
            assert!(!args.is_lossless(), "{words:?}");
        }
        assert!(Line::try_parse_from(["soak", "--loss", "2"]).is_err());
    }

    #[test]
    fn the_case_says_what_was_done() {
        let args = Line::parse_from(["soak", "--tls", "--loss", "1%"]).args;
        let fields = args.fields(Toggle::Off);
        assert_eq!(fields["offloads"], "off");
        assert_eq!((&fields["tls"], &fields["loss_ratio"]), (&true.into(), &0.01.into()));
        assert_eq!(args.spec(Toggle::Off).offloads, Toggle::Off);
    }

    #[test]
    fn direct_return_has_its_host_and_objects_that_are_returned_directly() {
        let args = Line::parse_from(["soak", "--direct-return", "late", "--responses", "7"]).args;
        assert_eq!((args.host(), args.goal()), (LATE_HOST, Goal::Responses(7)));
        assert!(args.spec(Toggle::On).direct_return);
        assert_eq!(args.fields(Toggle::On)["direct_return"], "late");
        let wanted = [1 << 10, 128 << 10, 1 << 20, 16 << 20].map(|bytes| args.wants(bytes));
        assert_eq!(wanted, [false, true, true, false]);
        for words in [&["--responses", "7"][..], &["--direct-return", "late", "--tls"]] {
            assert!(Line::try_parse_from(["soak"].iter().chain(words)).is_err(), "{words:?}");
        }
    }
}
