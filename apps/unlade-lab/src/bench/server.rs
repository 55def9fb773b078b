//! `unlade-lab bench server`: the object server alone beside nginx with the same files, each with one
//! worker on the same host of a lab, asked directly, interleaved.

use super::figures::{Figures, ratio};
use super::guard::LabGuard;
use super::record::Sink;
use super::table;
use super::window::{self, Asked, STATIC_HTTP_PORT, STATIC_PROCESS, Sample, Window};
use crate::lab::config;
use crate::lab::plan::{HOST, Node, Spec};
use crate::lab::process::{self, log_tail};
use crate::lab::state::State;
use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value};
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use unlade_command::output::line;

/// Longest wait for nginx to listen.
const START_WAIT: Duration = Duration::from_secs(10);
const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench server --json server.jsonl";

/// The object server alone, beside nginx with the same files
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct ServerArgs {
    /// Ask for these objects
    #[arg(long, value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,16MiB")]
    objects: Vec<String>,
    /// Connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Length of a window
    #[arg(long, value_parser = crate::load::parse_duration, default_value = "800ms")]
    window: Duration,
    /// Rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of everything that is chosen
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the experiment.
///
/// # Errors
/// nginx is not installed, the lab does not come up, or bytes are wrong.
pub fn run(args: &ServerArgs) -> Result<()> {
    let mut sink = Sink::new("server", args.json.as_deref(), args.seed)?;
    let spec = Spec { servers: 1, fronts: Vec::new(), ..Spec::default() };
    let mut lab = LabGuard::up("server", spec)?;
    start_nginx(&mut lab.state)?;
    let modes = [Asked::Servers, Asked::Static];
    let labels = ["backend", "nginx"].map(str::to_owned);
    line(format_args!("\nHTTP, one worker each, {} connections", args.connections))?;
    line(table::header(&labels))?;
    for object in &args.objects {
        let mut samples: [Vec<Sample>; 2] = Default::default();
        for round in 0..args.rounds {
            for step in 0..modes.len() {
                let index = (step + round as usize) % modes.len();
                let window = Window {
                    asked: modes[index],
                    host: HOST,
                    tls: false,
                    path: &format!("/{object}"),
                    connections: args.connections,
                    warmup: Duration::from_millis(200),
                    length: args.window,
                    verify_every: 64,
                    seed: args.seed.wrapping_add(u64::from(round)),
                };
                let sample = window::run(&lab.state, &window)?;
                if sample.mismatches > 0.0 {
                    bail!("{} delivered wrong bytes of {object}", labels[index]);
                }
                samples[index].push(sample);
            }
        }
        let figures: Vec<Figures> = samples.iter().map(|samples| Figures::of(samples)).collect();
        for (label, figures) in labels.iter().zip(&figures) {
            sink.write(case(object), label, figures.metrics())?;
        }
        let [backend, other] = &samples;
        if let Some(ratio) = ratio(backend, &[("nginx", other)], None) {
            sink.write(case(object), "ratio", ratio.metrics())?;
            for row in table::rows(object, &figures) {
                line(row)?;
            }
            let times = ratio.throughput_vs_best_proxy;
            line(format_args!("{object}: {times:.2} times nginx"))?;
        }
    }
    lab.down()
}

fn case(object: &str) -> Map<String, Value> {
    Map::from_iter([("object".to_owned(), object.into()), ("tls".to_owned(), false.into())])
}

/// Starts nginx beside the object server.
fn start_nginx(state: &mut State) -> Result<()> {
    let plan = state.plan();
    let node = plan.servers().next().unwrap_or(Node::Client);
    let (address, log) = (plan.address_v4(node), plan.log_file(STATIC_PROCESS));
    let listen = SocketAddrV4::new(address, STATIC_HTTP_PORT);
    config::create_static(&plan, STATIC_PROCESS, listen)?;
    let command = config::static_command(&plan, STATIC_PROCESS)?;
    let namespace = plan.namespace(node);
    state.processes.push(process::start(&namespace, STATIC_PROCESS, &command, &log)?);
    // The command that removes the lab must know of it.
    state.save()?;
    let begin = Instant::now();
    let listens = || {
        unlade_command::namespace::inside(&namespace, move || {
            Ok(std::net::TcpStream::connect((address, STATIC_HTTP_PORT)).is_ok())
        })
    };
    while !listens()? {
        if begin.elapsed() > START_WAIT {
            bail!("nginx does not listen; its log says:\n{}", log_tail(&log));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
