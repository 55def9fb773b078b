//! `unlade-lab bench fn`: functions whose SDK, TLS and TCP are the host's, beside the same functions
//! with their own.
//!
//! - [`catalogue`]: twelve functions, six modes; [`place`]: packages, inputs, manifests;
//! - [`node`]: a gateway as a child process, and what it says of itself; [`http`]: its caller;
//! - [`objects`]: inputs are put, every output is compared;
//! - [`measure`]: rounds of starts and warm invocations; [`figures`]: medians and ratios;
//! - [`wasm`]: one function as WebAssembly, beside ours;
//! - [`services`]: functions that call services other than S3; [`service`]: the server that they ask;
//! - [`workers`]: memory of I/O workers, one a tenant and one for all;
//! - [`starts`]: start times and memory of instances, without a gateway;
//! - [`density`]: how many instances a node carries, under the load of a synthetic trace;
//! - [`lines`] tells all of it.

pub mod backend;
pub mod catalogue;
pub mod density;
pub mod figures;
pub mod http;
pub mod lines;
pub mod measure;
pub mod node;
pub mod objects;
pub mod place;
pub mod service;
pub mod services;
pub mod starts;
pub mod wasm;
pub mod workers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use self::backend::Backend;
use self::catalogue::{Mode, Subject};
use self::density::{Growth, SLO_FACTOR, Step};
use self::figures::Figures;
use self::lines::About;
use self::measure::{Field, Rounds, Windows};
use self::node::Node;
use self::objects::{Expected, Objects};
use self::place::{LONG_KEEP_ALIVE, Packages, Place, SHORT_KEEP_ALIVE};
use self::wasm::Seen;
use super::record::Sink;
use unlade_command::output::line;

const LONG_ABOUT: &str = "\
Twelve Lambda functions with unmodified boto3, invoked through one gateway in six modes, interleaved: \
stock (boto3 in the instance; its zygote has imported what the function needs beside it), \
stock-preimported (the zygote has imported boto3 and the handler as well), tcp (the instance's \
connections are the host's), sdk (boto3 is the stub), prefetch (and inputs are fetched ahead), \
offload (and outputs are written back). All start from a zygote, all use the same store, and every \
output is compared with the stock function's, which is checked by other means. One function is \
shown as WebAssembly as well, whose host does its I/O with boto3.

Node figures count instances, templates and the gateway, and the worker wherever the mode needs one; \
the store is in no side. Then a node for each of stock and offload takes more and more instances, \
each with its share of a synthetic trace, until a 99th percentile exceeds 5 times what an unloaded \
stock instance takes, or 4 GiB a processor are used.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench fn --quick --json fn.jsonl
  unlade-lab bench fn --only template,map --no-density
  unlade-lab bench fn --services --quick       # boto3's DynamoDB and SQS, stock beside offload
  unlade-lab bench fn --services --only get-item
  unlade-lab bench fn --workers --rounds 3     # per-tenant and shared workers, 1 to 16 tenants
  unlade-lab bench fn --starts --rounds 50     # time from a template to the instance, and its memory
  unlade-lab bench fn --backend qemu --quick   # a smaller mix, without tcp";

/// Functions with the host's I/O beside functions with their own
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct FnArgs {
    /// Fewer rounds, a coarser population
    #[arg(long)]
    quick: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The sandbox of instances
    #[arg(long, value_enum, default_value_t = Backend::Process)]
    backend: Backend,
    /// Only these functions; in machines three where nothing is said
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Only these modes; ratios need `stock`
    #[arg(long, value_delimiter = ',', value_name = "MODE")]
    modes: Vec<String>,
    /// Rounds of each function and mode
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Warm invocations of a round
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    warm: Option<u32>,
    /// Leave populations out
    #[arg(long)]
    no_density: bool,
    /// Invocations of each instance a second, where populations grow; 1, in machines 0.5
    #[arg(long, value_name = "PER_S")]
    rate: Option<f64>,
    /// The directory `tests/workloads` of the sources
    #[arg(long, value_name = "DIR")]
    workloads: Option<PathBuf>,
    /// Only the memory of I/O workers, one for each tenant beside one for all
    #[arg(long)]
    workers: bool,
    /// Only the start times and memory of instances, without a gateway; needs root
    #[arg(long, conflicts_with = "workers")]
    starts: bool,
    /// Only functions that call services other than S3, with and without offload
    #[arg(long, conflicts_with_all = ["workers", "starts", "modes", "backend"])]
    services: bool,
    /// Seed of inputs and arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Machines are emulated where there is no KVM: a smaller mix, of both halves.
const IN_MACHINES: [&str; 3] = ["template", "json-transform", "map"];

/// How much is measured.
struct Effort {
    rounds: Rounds,
    growth: Growth,
}

impl Effort {
    fn new(args: &FnArgs) -> Effort {
        let (rounds, warm, factor, window_s) = match (args.backend, args.quick) {
            (Backend::Process, true) => (4, 8, 1.3, 4),
            (Backend::Process, false) => (12, 20, 1.12, 12),
            (Backend::Qemu, true) => (2, 3, 1.5, 10),
            (Backend::Qemu, false) => (4, 6, 1.3, 20),
        };
        let (first, last, rate_per_s, starting) = match args.backend {
            Backend::Process => (36, 600, 1.0, 8),
            // Software emulation is slow.
            Backend::Qemu => (6, 48, 0.5, 2),
        };
        let window_max_s = match (args.backend, args.quick) {
            (Backend::Qemu, true) => 20,
            _ => 60,
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        Effort {
            rounds: Rounds {
                rounds: args.rounds.map_or(rounds, |it| it as usize),
                warm: args.warm.map_or(warm, |it| it as usize),
            },
            growth: Growth {
                seed: args.seed,
                first,
                last,
                factor,
                window: Duration::from_secs(window_s),
                window_max: Duration::from_secs(window_max_s),
                rate_per_s: args.rate.unwrap_or(rate_per_s),
                // What clouds sell beside a processor.
                budget_bytes: cpus * (4 << 30),
                starting,
            },
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// It cannot be prepared, an invocation fails, or an output is wrong.
pub fn run(args: &FnArgs) -> Result<()> {
    let effort = Effort::new(args);
    if args.workers {
        let mut sink = Sink::new("fn", args.json.as_deref(), args.seed)?;
        return workers::run(effort.rounds.rounds, &mut sink);
    }
    let workloads = args.workloads.clone().unwrap_or_else(place::find_workloads);
    if args.starts {
        let mut sink = Sink::new("fn", args.json.as_deref(), args.seed)?;
        let guest = workloads.join("../../guest/python");
        let guest = guest.canonicalize().with_context(|| guest.display().to_string())?;
        let rounds = match (args.rounds, args.backend, args.quick) {
            (Some(rounds), ..) => rounds as usize,
            (None, Backend::Process, false) => 200,
            (None, Backend::Process, true) => 20,
            (None, Backend::Qemu, _) => 5,
        };
        return starts::run(args.backend, &guest, rounds, &mut sink);
    }
    if args.services {
        let mut sink = Sink::new("fn", args.json.as_deref(), args.seed)?;
        let packages = Packages::prepare(&workloads)?;
        return services::run(&args.only, &packages, effort.rounds, &mut sink);
    }
    let place = Place::prepare(&workloads, args.seed)?;
    let subjects = chosen(args, catalogue::subjects(&place.description)?)?;
    let modes = chosen_modes(args)?;
    let mut sink = Sink::new("fn", args.json.as_deref(), args.seed)?;
    let about = About { isolation: args.backend.name() };
    let mut expected = Expected::default();
    let (windows, wasm) = interleaved(args, &effort, &place, &subjects, &modes, &mut expected)?;
    lines::instances(about, &subjects, &windows, &mut sink)?;
    lines::ratios(about, &subjects, &windows, &mut sink)?;
    lines::sizes(about, &subjects, &windows, &mut sink)?;
    if let Some((subject, seen)) = wasm {
        lines::wasm(about, subject, &seen, &mut sink)?;
    }
    if !args.no_density {
        let slo_us = objectives(&subjects, &windows);
        let grown = populations(
            args,
            &effort,
            &place,
            &subjects,
            &modes,
            &slo_us,
            &mut expected,
            &mut sink,
        )?;
        lines::populations(about, &grown, &effort.growth, &mut sink)?;
    }
    line(format_args!("{} outputs were compared", expected.compared))
}

fn chosen(args: &FnArgs, subjects: Vec<Subject>) -> Result<Vec<Subject>> {
    for name in &args.only {
        catalogue::workload(name).context("--only")?;
    }
    let is_wanted = |subject: &Subject| {
        let name = subject.workload.name;
        match (args.only.is_empty(), args.backend) {
            (true, Backend::Process) => true,
            (true, Backend::Qemu) => IN_MACHINES.contains(&name),
            (false, _) => args.only.iter().any(|only| only == name),
        }
    };
    Ok(subjects.into_iter().filter(is_wanted).collect())
}

fn chosen_modes(args: &FnArgs) -> Result<Vec<Mode>> {
    if args.modes.is_empty() {
        let in_machine = |mode: &Mode| args.backend == Backend::Process || *mode != Mode::Tcp;
        return Ok(Mode::ALL.into_iter().filter(in_machine).collect());
    }
    let names: Vec<&str> = Mode::ALL.iter().map(|mode| mode.name()).collect();
    if let Some(wrong) = args.modes.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("`{wrong}` is no mode; there are {}", names.join(", "));
    }
    let is_wanted = |mode: &Mode| args.modes.iter().any(|name| name == mode.name());
    Ok(Mode::ALL.into_iter().filter(is_wanted).collect())
}

/// One node with every function in every mode; starts and warm invocations in rounds.
fn interleaved<'s>(
    args: &FnArgs,
    effort: &Effort,
    place: &Place,
    subjects: &'s [Subject],
    modes: &[Mode],
    expected: &mut Expected,
) -> Result<(Windows, Option<(&'s Subject, Seen)>)> {
    let of = |subject| -> Vec<(&Subject, Mode)> {
        let own = Subject::modes(subject).iter().filter(|mode| modes.contains(mode));
        own.map(|mode| (subject, *mode)).collect()
    };
    let wanted: Vec<_> = subjects.iter().flat_map(of).collect();
    let (node, objects) = open(args, place, subjects, &wanted, "rounds", SHORT_KEEP_ALIVE)?;
    let mut field = Field { node: &node, objects: &objects, expected };
    let (usable, unusable) = measure::settle(&mut field, place, &wanted)?;
    for (function, why) in &unusable {
        eprintln!("unlade: {function} is left out: {why}");
    }
    if usable.is_empty() {
        bail!("no function works here; the gateway's log says:\n{}", node.said());
    }
    let progress = measure::bar(effort.rounds.rounds * usable.len());
    let windows = measure::rounds(&mut field, &usable, effort.rounds, &progress);
    progress.finish_and_clear();
    let windows = windows.with_context(|| format!("the gateway's log: {}", node.said()))?;
    let twice = |(subject, mode): &&(&Subject, Mode)| {
        subject.name == wasm::FUNCTION && *mode == Mode::Offload
    };
    let wasm = match usable.iter().find(twice) {
        Some((subject, _)) => {
            Some((*subject, wasm::measure(&mut field, place, subject, effort.rounds)?))
        }
        None => None,
    };
    node.end()?;
    Ok((windows, wasm))
}

/// A node with functions, its store filled.
fn open(
    args: &FnArgs,
    place: &Place,
    subjects: &[Subject],
    wanted: &[(&Subject, Mode)],
    name: &str,
    keep_alive: &str,
) -> Result<(Node, Objects)> {
    let functions =
        place.functions(&format!("{name}-functions"), wanted, args.backend.name(), keep_alive)?;
    let node = Node::start(&place.directory(name)?, &functions, place)?;
    let objects = Objects::of(&node.access()?)?;
    objects.fill(place, subjects)?;
    Ok((node, objects))
}

/// Longest time of an invocation, by subject: a multiple of an unloaded stock instance's.
fn objectives(subjects: &[Subject], windows: &Windows) -> BTreeMap<String, f64> {
    let of = |subject: &Subject| {
        let seen = windows.get(&(subject.name.clone(), Mode::Stock))?;
        Some((subject.name.clone(), SLO_FACTOR * Figures::of(seen).warm_p50_us?))
    };
    subjects.iter().filter_map(of).collect()
}

/// A node for each mode whose population grows.
#[allow(clippy::too_many_arguments, reason = "what one node needs")]
fn populations(
    args: &FnArgs,
    effort: &Effort,
    place: &Place,
    subjects: &[Subject],
    modes: &[Mode],
    slo_us: &BTreeMap<String, f64>,
    expected: &mut Expected,
    sink: &mut Sink,
) -> Result<BTreeMap<Mode, Vec<Step>>> {
    let about = About { isolation: args.backend.name() };
    let whole: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| !subject.is_sized && slo_us.contains_key(&subject.name))
        .collect();
    let mut grown = BTreeMap::new();
    if whole.is_empty() {
        line("no population: there is no stock function to take objectives from")?;
        return Ok(grown);
    }
    lines::step_head()?;
    for mode in [Mode::Stock, Mode::StockPreimported, Mode::Offload] {
        if !modes.contains(&mode) {
            continue;
        }
        let wanted: Vec<_> = whole.iter().map(|subject| (*subject, mode)).collect();
        let (node, objects) = open(args, place, subjects, &wanted, mode.name(), LONG_KEEP_ALIVE)?;
        let mut field = Field { node: &node, objects: &objects, expected: &mut *expected };
        // Of the second baseline only the memory is compared in a quick run.
        let once = args.quick && mode == Mode::StockPreimported;
        let mut told = Ok(());
        let steps = density::grow(&mut field, &whole, mode, slo_us, &effort.growth, once, |step| {
            let written = lines::step(about, mode, step, &effort.growth, sink);
            told = std::mem::replace(&mut told, Ok(())).and(written);
        })
        .with_context(|| format!("the gateway's log: {}", node.said()))?;
        told?;
        grown.insert(mode, steps);
        node.end()?;
    }
    Ok(grown)
}
