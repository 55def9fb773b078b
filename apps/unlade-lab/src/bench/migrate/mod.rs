//! `unlade-lab bench migrate`: what moving one connection costs, stage by stage, beside the least
//! that it can cost; and how long the slowest of many takes with requests in flight.

mod cost;
mod figures;
mod pipelined;

use self::cost::Cost;
use self::figures::{
    NAME_CHARS, OBJECT_BYTES, Reading, TIMEOUT, WARMUP_REQUESTS, fields, header, row,
};
use self::pipelined::Pipelined;
use crate::bench::drive::{Drive, example, number};
use crate::bench::floor;
use crate::bench::guard::LabGuard;
use crate::bench::helper::Helper;
use crate::bench::record::Sink;
use crate::bench::stages::{Stages, TOTAL, Times, paired_ratio};
use crate::lab::node_command;
use crate::lab::objects::single_name;
use crate::lab::plan::{
    Front, HOST, Node, ObjectTree, OffloadMode, Plan, RequestsPerMigration, Spec,
};
use crate::lab::state::State;
use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use std::net::SocketAddr;
use std::path::PathBuf;
use unlade_command::namespace;
use unlade_command::output::line;

/// Where the floor's programs listen, on the virtual IP and on a server.
const FLOOR_PORT: u16 = 7980;
const FLOOR_AGENT_PORT: u16 = 7981;

const LONG_ABOUT: &str = "\
Moves connections one at a time on an idle machine: from the balancer to a server, each on a \
fresh connection, and from server to server (relay), on one that is kept alive; and times every \
stage. Beside it, in the same rounds, the floor: bare blocking programs that make the same system \
calls on the socket and exchange one message, and nothing else.

The processor time is that of the balancer's and of the servers' processes, for a whole request \
with its response; --before compares it with that of an earlier version, round by round.

A handover's total runs from telling the steering to hold to the redirect; a relay's from the \
arrival of the returned connection at the balancer to the redirect. `total_over_floor_ratio` is \
the median over rounds of a round's ratio of medians. The floor's two programs are placed by the \
scheduler, as ours are; where it puts them on one processor they wake each other faster than two \
hosts could, so `floor 2` and `total_over_floor_apart_ratio` are with a processor for each.

Then, in a lab of its own, with four connections and eight requests in flight on each, a migration \
for every request: the 99.9th percentile, and what TCP retransmitted. That part runs on one \
processor and without tail loss probes, since virtual links between several processors swap \
packets by themselves and TCP takes that for loss, whether connections move or not (--spread shows \
it).";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench migrate --quick
  unlade-lab bench migrate --tls --json migrate.jsonl
  unlade-lab bench migrate --quick --plain --before ../old/target/release/unlade";

/// Time the stages of a migration, beside the least that it can cost
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct MigrateArgs {
    /// Fewer rounds, fewer migrations
    #[arg(long)]
    quick: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Servers behind the balancer
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    servers: u16,
    /// Only HTTPS
    #[arg(long, conflicts_with = "plain")]
    tls: bool,
    /// Only plain HTTP
    #[arg(long)]
    plain: bool,
    /// Migrations of each kind in a round
    #[arg(long, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    migrations: Option<u32>,
    /// Rounds
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Migrations with requests in flight; 0 leaves that part out
    #[arg(long, value_name = "MIGRATIONS")]
    pipelined: Option<u64>,
    /// An `unlade` of an earlier version: its migrations take turns with ours, in a lab of its own,
    /// and the processor times are compared
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Run the part with requests in flight on every processor
    #[arg(long)]
    spread: bool,
    /// Seed of everything that is chosen
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// How much is done.
#[derive(Debug, Clone, Copy)]
struct Effort {
    migrations: u32,
    rounds: u32,
    pipelined: u64,
}

impl Effort {
    fn new(args: &MigrateArgs) -> Effort {
        let usual = match args.quick {
            true => Effort { migrations: 200, rounds: 3, pipelined: 4_000 },
            false => Effort { migrations: 500, rounds: 7, pipelined: 40_000 },
        };
        Effort {
            migrations: args.migrations.unwrap_or(usual.migrations),
            rounds: args.rounds.unwrap_or(usual.rounds),
            pipelined: args.pipelined.unwrap_or(usual.pipelined),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// From the balancer to a server.
    Handover,
    /// From server to server.
    Relay,
}

impl Kind {
    /// Name in results.
    fn name(self) -> &'static str {
        match self {
            Kind::Handover => "handover",
            Kind::Relay => "relay",
        }
    }
}

/// One kind over plain or TLS connections, and what its rounds gave.
#[derive(Debug)]
struct Case {
    kind: Kind,
    tls: bool,
    stages: Stages,
    /// Totals of each round.
    totals: Vec<Times>,
    cost: Cost,
    /// Those of the earlier version in the same rounds.
    cost_before: Option<Cost>,
    requests: u64,
    errors: u64,
    example: String,
}

impl Case {
    fn new(kind: Kind, tls: bool) -> Case {
        Case {
            kind,
            tls,
            stages: Stages::default(),
            totals: Vec::new(),
            cost: Cost::default(),
            cost_before: None,
            requests: 0,
            errors: 0,
            example: String::new(),
        }
    }

    fn drive<'d>(&self, paths: &'d [String], seed: u64) -> Drive<'d> {
        Drive {
            host: HOST,
            tls: self.tls,
            paths,
            connections: 1,
            pipeline: 1,
            new_connection_every: (self.kind == Kind::Handover).then_some(1),
            timeout: TIMEOUT,
            seed,
        }
    }

    fn fields(&self, servers: u16) -> Map<String, Value> {
        fields(serde_json::json!({
            "kind": self.kind.name(), "tls": self.tls, "servers": servers,
            "object_bytes": OBJECT_BYTES, "requests_per_migration": 1, "connections": 1,
        }))
    }

    fn heading(&self) -> String {
        let scheme = if self.tls { "HTTPS" } else { "HTTP" };
        match self.kind {
            Kind::Handover => format!("{scheme}, balancer to server"),
            Kind::Relay => format!("{scheme}, server to server"),
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// The lab does not come up, a program of the experiment fails, or bytes are wrong.
pub fn run(args: &MigrateArgs) -> Result<()> {
    let effort = Effort::new(args);
    let mut sink = Sink::new("migrate", args.json.as_deref(), args.seed)?;
    let lab = LabGuard::up("migrate", spec(args))?;
    let before = args.before.as_ref().map(|unlade| {
        let spec = Spec { unlade: Some(unlade.clone()), ..spec(args) };
        LabGuard::up("before", spec)
    });
    let before = before.transpose().context("the lab of the earlier version")?;
    let plan = lab.state.plan();
    let protocols: Vec<bool> = [false, true]
        .into_iter()
        .filter(|&tls| if tls { !args.plain } else { !args.tls })
        .collect();
    let mut cases: Vec<Case> = protocols
        .iter()
        .flat_map(|&tls| [Kind::Handover, Kind::Relay].map(|kind| Case::new(kind, tls)))
        .collect();
    let path = single_name(OBJECT_BYTES).map(|name| format!("/{name}"));
    let paths = [path.context("the lab has no object of the right size")?];
    let states = (&lab.state, before.as_ref().map(|lab| &lab.state));
    let floors = measure(states, &mut cases, &paths, effort, args.seed)?;
    report(&plan, &mut sink, &cases, &floors)?;
    lab.down()?;
    before.map_or(Ok(()), LabGuard::down)?;
    if effort.pipelined == 0 {
        return Ok(());
    }
    let load = Pipelined { paths: &paths, requests: effort.pipelined, seed: args.seed };
    load.run(&mut sink, spec(args), &protocols, !args.spread)
}

fn spec(args: &MigrateArgs) -> Spec {
    Spec {
        servers: args.servers,
        tls: !args.plain,
        objects: ObjectTree::Small,
        offload: OffloadMode::Always,
        requests_per_migration: Some(RequestsPerMigration::Limited(1)),
        fronts: vec![Front::Offload],
        ..Spec::default()
    }
}

/// All rounds; every round does every case and the floor once, in both labs where there are two. The
/// floors of the rounds.
fn measure(
    (state, before): (&State, Option<&State>),
    cases: &mut [Case],
    paths: &[String],
    effort: Effort,
    seed: u64,
) -> Result<Vec<Floor>> {
    let plan = &state.plan();
    for case in cases.iter() {
        for state in [Some(state), before].into_iter().flatten() {
            case.drive(paths, seed).run(&state.plan(), WARMUP_REQUESTS)?;
        }
    }
    Floor::measure(plan, WARMUP_REQUESTS as u32)?;
    let progress = ProgressBar::new(u64::from(effort.rounds) * (cases.len() as u64 + 1));
    if let Ok(style) = ProgressStyle::with_template("migrate [{bar:30}] {pos}/{len} {msg}") {
        progress.set_style(style);
    }
    let mut floors = Vec::new();
    for round in 0..effort.rounds {
        progress.set_message("floor");
        floors.push(Floor::measure(plan, effort.migrations)?);
        progress.inc(1);
        for case in cases.iter_mut() {
            progress.set_message(case.heading());
            let earlier = Reading::take(plan)?;
            let seed = seed ^ u64::from(round) << 32;
            let requests = effort.migrations.into();
            let (figures, usage) = cost::of(state, || case.drive(paths, seed).run(plan, requests))?;
            let stages = Reading::take(plan)?.since(&earlier);
            case.cost.add(usage, number(&figures, "requests"));
            if let Some(state) = before {
                let plan = &state.plan();
                let (figures, usage) =
                    cost::of(state, || case.drive(paths, seed).run(plan, requests))?;
                let cost = case.cost_before.get_or_insert_default();
                cost.add(usage, number(&figures, "requests"));
            }
            case.requests += number(&figures, "requests");
            case.errors += number(&figures, "errors");
            if number(&figures, "errors") > 0 {
                case.example = example(&figures).to_owned();
            }
            case.stages.add(&stages);
            case.totals.push(stages.get(TOTAL));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(floors)
}

/// The least that a migration costs, in one round.
#[derive(Debug)]
struct Floor {
    /// The scheduler puts the programs where it likes, as it does with those that are measured.
    free: Times,
    /// Each program has a processor of its own, as on two hosts; `None` where there is only one.
    apart: Option<Times>,
}

impl Floor {
    fn measure(plan: &Plan, migrations: u32) -> Result<Floor> {
        let free = floor_round(plan, migrations, [None, None])?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let apart = match processors {
            2.. => Some(floor_round(plan, migrations, [Some(0), Some(1)])?),
            _ => None,
        };
        Ok(Floor { free, apart })
    }
}

/// Moves `migrations` connections by the least that it takes; the programs stay on
/// `processors`, where given.
fn floor_round(plan: &Plan, migrations: u32, processors: [Option<usize>; 2]) -> Result<Times> {
    let exe = std::env::current_exe().context("where is this program?")?;
    let server = Node::Server(1);
    let agent = SocketAddr::new(plan.address_v4(server).into(), FLOOR_AGENT_PORT);
    let front = SocketAddr::new(plan.virtual_v4().into(), FLOOR_PORT);
    let start = |node, processor: Option<usize>, words: &[&str], what| {
        let mut command = node_command(plan, node);
        command.arg(&exe).arg("floor").args(words);
        if let Some(processor) = processor {
            command.args(["--processor", &processor.to_string()]);
        }
        Helper::start(&mut command, what)?.wait_ready()
    };
    let (agent, listen) = (agent.to_string(), front.to_string());
    let words = ["serve", "--listen", &agent];
    let serve = start(server, processors[1], &words, "the floor's server")?;
    let count = migrations.to_string();
    let words = ["run", "--listen", &listen, "--peer", &agent, "--migrations", &count];
    let mut measure = start(Node::Lb, processors[0], &words, "the floor's balancer")?;
    let asked = namespace::inside(&plan.namespace(Node::Client), || floor::ask(front, migrations));
    if let Err(error) = asked {
        // Whichever of the two knows why says so.
        if measure.has_ended() {
            measure.finish()?;
        } else {
            drop(measure);
        }
        serve.finish()?;
        return Err(error);
    }
    let printed = measure.finish()?;
    serve.finish()?;
    let times_ns: Vec<u64> = serde_json::from_str(&printed).context("the floor's times")?;
    Ok(Times::of(times_ns))
}

/// Floors of all rounds together, the first free, the second apart.
fn all_floors(floors: &[Floor]) -> [Times; 2] {
    let mut all = [Times::default(), Times::default()];
    for floor in floors {
        all[0].add(&floor.free);
        floor.apart.iter().for_each(|apart| all[1].add(apart));
    }
    all
}

/// A case's totals over the floors of the same rounds, by name of the figure.
fn ratios(case: &Case, floors: &[Floor]) -> Vec<(&'static str, &'static str, f64)> {
    let paired = |floor: fn(&Floor) -> Option<&Times>| {
        let pairs: Option<Vec<_>> = case
            .totals
            .iter()
            .zip(floors)
            .map(|(total, round)| Some((total.clone(), floor(round)?.clone())))
            .collect();
        paired_ratio(&pairs?)
    };
    let free = paired(|floor| Some(&floor.free));
    let apart = paired(|floor| floor.apart.as_ref());
    let named = [
        ("total_over_floor_ratio", "total / floor", free),
        ("total_over_floor_apart_ratio", "total / floor 2", apart),
    ];
    named.into_iter().filter_map(|(name, label, ratio)| Some((name, label, ratio?))).collect()
}

fn report(plan: &Plan, sink: &mut Sink, cases: &[Case], floors: &[Floor]) -> Result<()> {
    let servers = plan.spec.servers;
    let [free, apart] = all_floors(floors);
    for case in cases {
        line(format_args!("\n{}: {} requests", case.heading(), case.requests))?;
        line(header())?;
        let mut metrics = Map::new();
        for (name, times) in case.stages.in_order() {
            times.metrics(name, &mut metrics);
            line(row(name, times))?;
        }
        line(row("floor", &free))?;
        if apart.count() > 0 {
            line(row("floor 2", &apart))?;
        }
        let migrations = case.stages.get(TOTAL).count();
        metrics.insert("migrations".to_owned(), migrations.into());
        metrics.insert("requests".to_owned(), case.requests.into());
        metrics.insert("errors".to_owned(), case.errors.into());
        case.cost.metrics(&mut metrics);
        line(case.cost.row("CPU"))?;
        sink.write(case.fields(servers), "offload", metrics)?;
        let ratios = ratios(case, floors);
        for (_, label, ratio) in &ratios {
            line(format_args!("{label:<NAME_CHARS$}{ratio:>10.2}"))?;
        }
        let ratios = ratios.into_iter().map(|(name, _, ratio)| (name.to_owned(), ratio.into()));
        let mut ratios: Map<String, Value> = ratios.collect();
        if let Some(before) = &case.cost_before {
            let mut metrics = Map::new();
            before.metrics(&mut metrics);
            line(before.row("CPU before"))?;
            sink.write(case.fields(servers), "before", metrics)?;
            if let Some(ratio) = case.cost.ratio(before) {
                line(format_args!("{:<NAME_CHARS$}{ratio:>10.2}", "CPU / before"))?;
                ratios.insert("cpu_ratio_vs_before".to_owned(), ratio.into());
            }
        }
        sink.write(case.fields(servers), "ratio", ratios)?;
        if case.errors > 0 {
            line(format_args!("{} errors, for example: {}", case.errors, case.example))?;
        }
    }
    for (times, is_apart) in [(&free, false), (&apart, true)] {
        if times.count() == 0 {
            continue;
        }
        let mut metrics = Map::new();
        times.metrics(TOTAL, &mut metrics);
        metrics.insert("migrations".to_owned(), times.count().into());
        let case = serde_json::json!({
            "kind": "floor", "tls": false, "servers": servers, "processors_apart": is_apart,
        });
        sink.write(fields(case), "floor", metrics)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MigrateArgs,
    }

    fn args(words: &[&str]) -> MigrateArgs {
        Line::parse_from(["migrate"].iter().chain(words)).args
    }

    #[test]
    fn what_is_said_replaces_what_is_usual() {
        let effort = Effort::new(&args(&["--quick", "--rounds", "2", "--pipelined", "0"]));
        assert_eq!((effort.migrations, effort.rounds, effort.pipelined), (200, 2, 0));
        let usual = Effort::new(&args(&[]));
        assert!(usual.migrations > effort.migrations && usual.pipelined > 10_000);
        assert!(Line::try_parse_from(["migrate", "--servers", "1"]).is_err());
        assert!(Line::try_parse_from(["migrate", "--tls", "--plain"]).is_err());
    }

    #[test]
    fn the_lab_hands_every_request_over() {
        let spec = spec(&args(&["--plain", "--servers", "3"]));
        assert!(!spec.tls);
        assert_eq!((spec.servers, spec.offload), (3, OffloadMode::Always));
        assert_eq!(spec.requests_per_migration, Some(RequestsPerMigration::Limited(1)));
        assert!(spec.rate.is_none() && spec.fronts == [Front::Offload]);
    }

    #[test]
    fn rows_stand_below_their_headings() {
        let times = Times::of([1_000_000, 2_000_000, 3_000_000]);
        let (header, row) = (header(), row("serialize_tcp", &times));
        assert_eq!(header.len(), row.len());
        assert!(row.starts_with("serialize_tcp") && row.ends_with("3"));
        assert!(row.contains("2000.0"), "{row}");
        assert_eq!(Case::new(Kind::Relay, true).fields(2)["kind"], "relay");
    }

    #[test]
    fn totals_stand_over_the_floors_of_their_rounds() {
        let of = |us: u64| Times::of([us * 1000]);
        let mut case = Case::new(Kind::Handover, false);
        case.totals = vec![of(30), of(300)];
        let floor = |us: u64, apart: Option<u64>| Floor { free: of(us), apart: apart.map(of) };
        let floors = [floor(10, Some(20)), floor(100, Some(200))];
        let found = ratios(&case, &floors);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].0, found[0].2), ("total_over_floor_ratio", 3.0));
        assert_eq!((found[1].0, found[1].2), ("total_over_floor_apart_ratio", 1.5));
        // On one processor there is no second floor.
        let floors = [floor(10, None), floor(100, None)];
        assert_eq!(ratios(&case, &floors).len(), 1);
        assert_eq!(all_floors(&floors)[0].count(), 2);
        assert_eq!(all_floors(&floors)[1].count(), 0);
    }
}
