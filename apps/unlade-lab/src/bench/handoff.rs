//! `unlade-lab bench handoff`: handing connections over beside proxying them, in one lab, the modes
//! interleaved: every round runs every mode of a case once, in an order that rotates.

use super::cpu_limit::CpuLimit;
use super::figures::{Figures, Ratio, break_even_bytes, ratio};
use super::guard::LabGuard;
use super::record::Sink;
use super::table;
use super::window::{self, Asked, Sample, Window};
use crate::lab::objects::single_name;
use crate::lab::plan::{
    CHOSEN_HOST, EARLY_HOST, FORWARD_HOST, Front, HOST, LATE_HOST, OffloadMode, Rate,
    RequestsPerMigration, SEALED_HOST, ServerKind, Spec, policy_parser,
};
use crate::lab::process::{Process, session_members};
use crate::lab::state::State;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;
use unlade_balancer::PolicyConfig;
use unlade_command::output::line;

/// Load before the windows of a mode that learns.
const LEARNING: Duration = Duration::from_secs(8);
/// Pause after a window: connections that were cut off are cleared away in it.
const PAUSE: Duration = Duration::from_millis(60);

const LONG_ABOUT: &str = "\
The same work by `unlade lb` handing connections over (1, 8 and unlimited requests a migration); \
with direct return of responses (splice-early, splice-late; splice-forward without rules at the \
servers' hosts; splice-auto, where the balancer chooses; over HTTPS the last three, of sealed \
responses); with responses sealed at the servers' hosts (sealed; HTTPS); proxying; and by nginx and HAProxy: in one lab, interleaved in the \
same run. Shaped: every link \
of balancer and servers has the same rate and the processors have time left. Unshaped: the \
processors are the limit, for all parties together. Limited: each balancer has a control group with \
a part of a processor (--lb-cpu), and the servers have what is left, as where a balancer has many \
servers behind it. Work of the kernel in interrupts counts for nobody there.

With splice-auto, a case begins with eight seconds of load that are not measured, in which the balancer \
learns. Balancer CPU is the time of its processes and of its BPF programs. Ratios are lines of their \
own in the result file, with mode `ratio`.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench handoff --quick --json handoff.jsonl
  unlade-lab bench handoff --only unshaped --plain --sizes 64KiB,1MiB
  unlade-lab bench report handoff.jsonl --out figures";

/// Hand over, or proxy: throughput, balancer CPU, latency
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct HandoffArgs {
    /// Fewer sizes, shorter windows, fewer rounds
    #[arg(long)]
    quick: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Servers behind the balancer
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// The servers
    #[arg(long, value_enum, default_value_t = ServerKind::Backend)]
    behind: ServerKind,
    /// Only one of the settings
    #[arg(long, value_enum)]
    only: Option<Shaping>,
    /// The part of a processor that each balancer has in the setting `limited`
    #[arg(long, value_name = "PROCESSORS", default_value_t = 0.25, value_parser = parse_share)]
    lb_cpu: f64,
    /// Only HTTPS
    #[arg(long, conflicts_with = "plain")]
    tls: bool,
    /// Only plain HTTP
    #[arg(long)]
    plain: bool,
    /// Rate of the shaped links
    #[arg(long, default_value = "400mbit")]
    rate: Rate,
    /// Object sizes instead of the usual ones: 1KiB to 16MiB, as the lab has them
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    sizes: Vec<String>,
    /// Length of a window
    #[arg(long, value_parser = crate::load::parse_duration)]
    window: Option<Duration>,
    /// Rounds of each case
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Connections, instead of as many as suit the size
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: Option<u32>,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Front::ALL)]
    fronts: Vec<Front>,
    /// Only these ways, beside the proxies. Without direct return, its programs and agents do not run
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Way::ALL)]
    ways: Vec<Way>,
    /// Also the mode that decides by itself
    #[arg(long)]
    auto: bool,
    /// Also the servers without anything in front, over plain HTTP: the ceiling. Always so without
    /// shaping
    #[arg(long)]
    direct: bool,
    /// How the balancers pick a server
    #[arg(long, value_parser = policy_parser(), default_value_t = PolicyConfig::RoundRobin)]
    policy: PolicyConfig,
    /// Seed of everything that is chosen
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The scarce resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shaping {
    /// The rates of links
    Shaped,
    /// The processors, for all parties
    Unshaped,
    /// The processors, for each balancer
    Limited,
}

/// The ways of a response past the balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// The connection moves to the server
    Migration,
    /// Direct return of a response from its first byte on (plain HTTP)
    SpliceEarly,
    /// Direct return of the rest of a response; over HTTPS it is sealed at the server's host
    SpliceLate,
    /// The same without rules there: the rest passes the balancer as packets
    SpliceForward,
    /// Direct return by the way that the balancer chooses
    SpliceAuto,
    /// The connection stays, and the server's host seals the response (HTTPS)
    Sealed,
}

impl Way {
    const ALL: [Way; 6] = [
        Way::Migration,
        Way::SpliceEarly,
        Way::SpliceLate,
        Way::SpliceForward,
        Way::SpliceAuto,
        Way::Sealed,
    ];

    fn is_splice(self) -> bool {
        !matches!(self, Way::Migration | Way::Sealed)
    }

    /// Returns true if responses over TLS, or plain ones, can take it.
    fn is_for(self, tls: bool) -> bool {
        match self {
            Way::Migration | Way::SpliceLate | Way::SpliceForward | Way::SpliceAuto => true,
            Way::SpliceEarly => !tls,
            Way::Sealed => tls,
        }
    }

    /// Host in the lab, and name in results.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Way::Migration => (HOST, "migration"),
            Way::SpliceEarly => (EARLY_HOST, "splice-early"),
            Way::SpliceLate => (LATE_HOST, "splice-late"),
            Way::SpliceForward => (FORWARD_HOST, "splice-forward"),
            Way::SpliceAuto => (CHOSEN_HOST, "splice-auto"),
            Way::Sealed => (SEALED_HOST, "sealed"),
        }
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.05..=64.0).contains(&share) => Ok(share),
        _ => Err("a number from 0.05 to 64 is expected".to_owned()),
    }
}

/// The compared modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Offload(RequestsPerMigration),
    Auto,
    /// The connection stays, and the response does not take the usual way.
    Response(Way),
    Baseline(Front),
    /// No front at all: the ceiling.
    Direct,
}

impl Mode {
    fn asked(self) -> Asked {
        match self {
            Mode::Baseline(front) => Asked::Front(front),
            Mode::Offload(_) | Mode::Auto | Mode::Response(_) => Asked::Front(Front::Offload),
            Mode::Direct => Asked::Servers,
        }
    }

    fn host(self) -> &'static str {
        match self {
            Mode::Offload(requests) => window::host_for(requests),
            Mode::Auto => "auto.objects.lab",
            Mode::Response(way) => way.names().0,
            Mode::Baseline(_) | Mode::Direct => HOST,
        }
    }

    /// Name in results.
    fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Response(way) => way.names().1,
            other => other.asked().mode(),
        }
    }

    /// Returns true for the ways that are compared with proxies.
    fn is_ours(self) -> bool {
        matches!(self, Mode::Offload(_) | Mode::Response(_))
    }

    /// Name in the table.
    fn label(self) -> String {
        match self {
            Mode::Offload(RequestsPerMigration::Limited(requests)) => format!("offload/{requests}"),
            Mode::Offload(RequestsPerMigration::Unlimited) => "offload/inf".to_owned(),
            other => other.name().to_owned(),
        }
    }
}

/// The parameters that stay fixed while modes are compared.
#[derive(Debug, Clone, Copy)]
struct Case {
    object_bytes: u64,
    tls: bool,
    shaping: Shaping,
    /// The part of a processor that a balancer has, in that setting.
    lb_cpu: f64,
    servers: u16,
    behind: ServerKind,
}

impl Case {
    fn fields(&self, mode: Option<Mode>) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("object_bytes".to_owned(), self.object_bytes.into());
        map.insert("tls".to_owned(), self.tls.into());
        map.insert("shaped".to_owned(), (self.shaping == Shaping::Shaped).into());
        map.insert("servers".to_owned(), self.servers.into());
        if self.behind == ServerKind::Nginx {
            map.insert("behind".to_owned(), "nginx".into());
        }
        if self.shaping == Shaping::Limited {
            map.insert("lb_cpu_limit".to_owned(), self.lb_cpu.into());
        }
        if let Some(Mode::Offload(requests)) = mode {
            map.insert("requests_per_migration".to_owned(), requests.to_json());
        }
        let way = match mode {
            Some(Mode::Offload(_)) => Some(Way::Migration.names().1),
            Some(mode @ Mode::Response(_)) => Some(mode.name()),
            _ => None,
        };
        map.extend(way.map(|way| ("way".to_owned(), way.into())));
        map
    }
}

/// Sizes, window and rounds of a run.
struct Effort {
    sizes: Vec<u64>,
    window: Duration,
    warmup: Duration,
    rounds: u32,
}

impl Effort {
    fn new(args: &HandoffArgs) -> Result<Effort> {
        let usual: &[u64] = match args.quick {
            true => &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20],
            false => &[1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20],
        };
        let sizes = match args.sizes.is_empty() {
            true => usual.to_vec(),
            false => args.sizes.iter().map(|text| parse_size(text)).collect::<Result<_>>()?,
        };
        let usual = Duration::from_millis(if args.quick { 500 } else { 1500 });
        Ok(Effort {
            sizes,
            window: args.window.unwrap_or(usual),
            warmup: Duration::from_millis(if args.quick { 150 } else { 400 }),
            rounds: args.rounds.unwrap_or(if args.quick { 3 } else { 5 }),
        })
    }
}

fn parse_size(text: &str) -> Result<u64> {
    let (digits, unit) = match (text.strip_suffix("KiB"), text.strip_suffix("MiB")) {
        (Some(digits), _) => (digits, 1 << 10),
        (_, Some(digits)) => (digits, 1 << 20),
        _ => bail!("`{text}` is no size; write 64KiB or 1MiB"),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|&bytes| single_name(bytes).is_some())
        .with_context(|| format!("the lab has no object of {text}"))
}

/// From this size on an object takes a good part of a window.
const LARGE_BYTES: u64 = 8 << 20;

/// Connections that keep every server busy without a queue that only adds latency. Fewer for
/// large objects, so that some of them end in a window.
fn connections_for(object_bytes: u64) -> u32 {
    match object_bytes {
        LARGE_BYTES.. => 16,
        _ => 32,
    }
}

/// Runs the experiment.
///
/// # Errors
/// The lab does not come up, a mode answers nothing, or results cannot be written.
pub fn run(args: &HandoffArgs) -> Result<()> {
    let effort = Effort::new(args)?;
    let mut sink = Sink::new("handoff", args.json.as_deref(), args.seed)?;
    // As long as this is open the kernel accounts the time of BPF programs.
    let _accounting = unlade_steering::stats::enable().context("switching BPF accounting on")?;
    let shapings: &[Shaping] = match args.only {
        Some(Shaping::Shaped) => &[Shaping::Shaped],
        Some(Shaping::Unshaped) => &[Shaping::Unshaped],
        Some(Shaping::Limited) => &[Shaping::Limited],
        None => &[Shaping::Shaped, Shaping::Unshaped, Shaping::Limited],
    };
    let tls: &[bool] = match (args.tls, args.plain) {
        (true, _) => &[true],
        (_, true) => &[false],
        _ => &[false, true],
    };
    for &shaping in shapings {
        let spec = Spec {
            servers: args.servers,
            behind: args.behind,
            tls: true,
            rate: (shaping == Shaping::Shaped).then_some(args.rate),
            offload: OffloadMode::Always,
            direct_return: args.ways.iter().any(|way| way.is_splice()),
            fronts: args.fronts.clone(),
            policy: args.policy,
            ..Spec::default()
        };
        let lab = LabGuard::up("handoff", spec)?;
        let limits = match shaping {
            Shaping::Limited => limit_balancers(&lab.state, args.lb_cpu)?,
            _ => Vec::new(),
        };
        for &tls in tls {
            run_block(args, &effort, &lab.state, shaping, tls, &mut sink)?;
        }
        lab.down()?;
        // Groups can be removed when their processes have ended.
        drop(limits);
    }
    Ok(())
}

/// Gives each balancer of the lab a control group of its own.
fn limit_balancers(state: &State, share: f64) -> Result<Vec<CpuLimit>> {
    let processes = Front::ALL.into_iter().filter_map(|front| state.process(front.process()));
    let limit = |process: &Process| {
        let members = session_members(process.identity.pid);
        CpuLimit::new(&format!("{}-{}", state.name, process.name), share, &members)
    };
    processes.map(limit).collect()
}

/// All sizes of one setting; prints their table.
fn run_block(
    args: &HandoffArgs,
    effort: &Effort,
    state: &State,
    shaping: Shaping,
    tls: bool,
    sink: &mut Sink,
) -> Result<()> {
    let modes = modes(args, state, shaping, tls);
    let links = match shaping {
        Shaping::Shaped => format!("links at {}", args.rate),
        Shaping::Unshaped => "links unshaped".to_owned(),
        Shaping::Limited => format!("each balancer with {} of a processor", args.lb_cpu),
    };
    let scheme = if tls { "HTTPS" } else { "HTTP" };
    let kind = if args.behind == ServerKind::Nginx { " (nginx)" } else { "" };
    line(format_args!("\n{scheme}, {links}, {} servers{kind}", args.servers))?;
    let labels: Vec<String> = modes.iter().map(|mode| mode.label()).collect();
    line(table::header(&labels))?;
    let mut ratios: Vec<(Mode, u64, Ratio)> = Vec::new();
    let (lb_cpu, servers, behind) = (args.lb_cpu, args.servers, args.behind);
    let case = Case { object_bytes: 0, tls, shaping, lb_cpu, servers, behind };
    for &object_bytes in &effort.sizes {
        let case = Case { object_bytes, ..case };
        let samples = run_case(args, effort, state, &modes, case)?;
        let figures: Vec<Figures> = samples.iter().map(|samples| Figures::of(samples)).collect();
        for (mode, figures) in modes.iter().zip(&figures) {
            sink.write(case.fields(Some(*mode)), mode.name(), figures.metrics())?;
        }
        for (mode, ratio) in write_ratios(&modes, &samples, case, sink)? {
            ratios.push((mode, object_bytes, ratio));
        }
        for row in table::rows(single_name(object_bytes).unwrap_or("?"), &figures) {
            line(row)?;
        }
    }
    write_break_even(&modes, &ratios, case, sink)
}

fn modes(args: &HandoffArgs, state: &State, shaping: Shaping, tls: bool) -> Vec<Mode> {
    use RequestsPerMigration::{Limited, Unlimited};
    let mut modes = Vec::new();
    if args.ways.contains(&Way::Migration) {
        modes.extend([Limited(1), Limited(8), Unlimited].map(Mode::Offload));
    }
    for way in Way::ALL.into_iter().filter(|way| *way != Way::Migration && way.is_for(tls)) {
        modes.extend(args.ways.contains(&way).then_some(Mode::Response(way)));
    }
    modes.extend(args.auto.then_some(Mode::Auto));
    modes.extend([Front::Proxy, Front::Nginx, Front::Haproxy].map(Mode::Baseline));
    // nginx and haproxy may not be installed.
    modes.retain(|mode| match mode.asked() {
        Asked::Front(front) => state.process(front.process()).is_some(),
        Asked::Servers | Asked::Static => true,
    });
    // The servers' own port speaks no TLS.
    let direct = args.direct || shaping != Shaping::Shaped;
    modes.extend((direct && !tls).then_some(Mode::Direct));
    modes
}

/// The samples of each mode, in rounds.
fn run_case(
    args: &HandoffArgs,
    effort: &Effort,
    state: &State,
    modes: &[Mode],
    case: Case,
) -> Result<Vec<Vec<Sample>>> {
    let name = single_name(case.object_bytes).context("no such object")?;
    let path = format!("/{name}");
    let progress = ProgressBar::new(u64::from(effort.rounds) * modes.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}") {
        progress.set_style(style);
    }
    // So that several large objects end in a window.
    let stretch = if case.object_bytes >= LARGE_BYTES { 3 } else { 1 };
    let mut samples = vec![Vec::new(); modes.len()];
    for round in 0..effort.rounds {
        for step in 0..modes.len() {
            let index = (step + round as usize) % modes.len();
            let (Some(mode), Some(taken)) = (modes.get(index), samples.get_mut(index)) else {
                continue;
            };
            progress.set_message(format!("{name} {}", mode.label()));
            let window = Window {
                asked: mode.asked(),
                host: mode.host(),
                tls: case.tls,
                path: &path,
                connections: args.connections.unwrap_or(connections_for(case.object_bytes)),
                warmup: effort.warmup * stretch,
                length: effort.window * stretch,
                verify_every: 64,
                seed: args.seed.wrapping_add(u64::from(round)),
            };
            if round == 0 && *mode == Mode::Response(Way::SpliceAuto) {
                window::run(state, &Window { length: LEARNING * stretch, ..window.clone() })?;
                std::thread::sleep(PAUSE);
            }
            let sample = window::run(state, &window)?;
            if sample.mismatches > 0.0 {
                bail!("{} delivered wrong bytes of {path}; the run ends here", mode.label());
            }
            taken.push(sample);
            progress.inc(1);
            std::thread::sleep(PAUSE);
        }
    }
    progress.finish_and_clear();
    Ok(samples)
}

/// Writes a ratio line for each way of handing over, and gives them.
fn write_ratios(
    modes: &[Mode],
    samples: &[Vec<Sample>],
    case: Case,
    sink: &mut Sink,
) -> Result<Vec<(Mode, Ratio)>> {
    let all = || modes.iter().zip(samples);
    let proxies: Vec<(&str, &[Sample])> = all()
        .filter(|(mode, _)| matches!(mode, Mode::Baseline(_)))
        .map(|(mode, samples)| (mode.name(), samples.as_slice()))
        .collect();
    let direct = all().find(|(mode, _)| **mode == Mode::Direct).map(|(_, s)| s.as_slice());
    let mut ratios = Vec::new();
    for (mode, samples) in all() {
        if !mode.is_ours() {
            continue;
        }
        if let Some(ratio) = ratio(samples, &proxies, direct) {
            sink.write(case.fields(Some(*mode)), "ratio", ratio.metrics())?;
            ratios.push((*mode, ratio));
        }
    }
    Ok(ratios)
}

/// Writes, for each way of handing over, from which size on it is faster: than the best proxy of
/// each size, and than each proxy.
fn write_break_even(
    modes: &[Mode],
    ratios: &[(Mode, u64, Ratio)],
    case: Case,
    sink: &mut Sink,
) -> Result<()> {
    for mode in modes {
        if !mode.is_ours() {
            continue;
        }
        let own = || ratios.iter().filter(|(other, ..)| other == mode);
        let from = |figure: &dyn Fn(&Ratio) -> Option<f64>| {
            let pairs = own().filter_map(|(_, bytes, ratio)| Some((*bytes, figure(ratio)?)));
            break_even_bytes(&pairs.collect::<Vec<_>>())
        };
        let best = from(&|ratio| Some(ratio.throughput_vs_best_proxy));
        let mut metrics = Map::from_iter([("break_even_bytes".to_owned(), best.into())]);
        let mut told = vec![format!("the best proxy {}", size_from(best))];
        let proxies = own().next().map(|(.., ratio)| ratio.throughput_vs_each.as_slice());
        for (proxy, _) in proxies.unwrap_or_default() {
            let bytes = from(&|ratio| {
                let each = ratio.throughput_vs_each.iter();
                each.clone().find(|(name, _)| name == proxy).map(|(_, ratio)| *ratio)
            });
            metrics.insert(format!("break_even_vs_{proxy}_bytes"), bytes.into());
            told.push(format!("{proxy} {}", size_from(bytes)));
        }
        let mut fields = case.fields(Some(*mode));
        fields.remove("object_bytes");
        sink.write(fields, "ratio", metrics)?;
        let most = |figure: fn(&Ratio) -> f64| own().map(|(.., r)| figure(r)).fold(0.0, f64::max);
        let ceiling = most(|ratio| match ratio.throughput_vs_direct {
            Some(of_direct) => ratio.throughput_vs_best_proxy / of_direct.max(1e-9),
            None => 0.0,
        });
        let times = most(|ratio| ratio.throughput_vs_best_proxy);
        let ceiling = match ceiling > 0.0 {
            true => format!(" (the servers alone: {ceiling:.1})"),
            false => String::new(),
        };
        line(format_args!(
            "{}: ahead of {}; at most {times:.1} times as fast as the best proxy{ceiling}",
            mode.label(),
            told.join(", of "),
        ))?;
    }
    Ok(())
}

fn size_from(bytes: Option<u64>) -> String {
    match bytes.and_then(single_name) {
        Some(name) => format!("from {name} on"),
        None => "not within these sizes".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_lab() {
        assert_eq!(parse_size("64KiB").unwrap(), 65_536);
        for bad in ["64", "3MiB", "99999999999999999999MiB", "KiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cases_carry_the_promised_fields() {
        let shaping = Shaping::Shaped;
        let behind = ServerKind::Backend;
        let case =
            Case { object_bytes: 4096, tls: true, shaping, lb_cpu: 0.25, servers: 4, behind };
        let fields = case.fields(Some(Mode::Offload(RequestsPerMigration::Unlimited)));
        let expected = serde_json::json!({
            "object_bytes": 4096, "tls": true, "shaped": true, "servers": 4,
            "requests_per_migration": "unlimited", "way": "migration",
        });
        assert_eq!(Value::Object(fields), expected);
        assert!(case.fields(Some(Mode::Auto)).get("requests_per_migration").is_none());
        assert!(case.fields(None).get("behind").is_none());
        let case = Case { behind: ServerKind::Nginx, ..case };
        assert_eq!(case.fields(None).get("behind"), Some(&"nginx".into()));
        let limited = Case { shaping: Shaping::Limited, ..case }.fields(None);
        assert_eq!(limited.get("lb_cpu_limit"), Some(&0.25.into()));
    }
}
