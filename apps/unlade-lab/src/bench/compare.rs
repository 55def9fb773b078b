//! `unlade-lab bench compare`: the fronts of a lab that is up, side by side, under our load and
//! under wrk. A first look, not a measurement: one object, few rounds.

use super::figures::Figures;
use super::record::Sink;
use super::table;
use super::window::{self, Asked, Sample, Window};
use crate::lab::plan::{Front, LabName, RequestsPerMigration};
use crate::lab::state::{self, State};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;
use unlade_command::output::line;

/// The fronts of a running lab side by side, under our load and wrk
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Name of the lab
    #[arg(long, default_value = "lab")]
    name: LabName,
    /// Ask for these objects, one table each
    #[arg(long, value_delimiter = ',', default_value = "64KiB,1MiB")]
    objects: Vec<String>,
    /// Connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Length of a window
    #[arg(long, value_parser = crate::load::parse_duration, default_value = "1s")]
    window: Duration,
    /// Rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Let wrk ask too, when installed
    #[arg(long)]
    wrk: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the comparison.
///
/// # Errors
/// There is no such lab, a front answers nothing, or bytes are wrong.
pub fn run(args: &CompareArgs) -> Result<()> {
    let state = state::require(&args.name)?;
    let mut sink = Sink::new("compare", args.json.as_deref(), 1)?;
    let _accounting = unlade_steering::stats::enable().context("switching BPF accounting on")?;
    let tls = state.spec.tls;
    let fronts: Vec<Front> =
        Front::ALL.into_iter().filter(|front| state.process(front.process()).is_some()).collect();
    let labels: Vec<String> = fronts.iter().map(|front| front.mode().to_owned()).collect();
    for object in &args.objects {
        let scheme = if tls { "HTTPS" } else { "HTTP" };
        line(format_args!("\n{scheme}, {object}, {} connections", args.connections))?;
        line(table::header(&labels))?;
        for wrk in [false, true] {
            if wrk && !args.wrk {
                continue;
            }
            let Some(samples) = samples(args, &state, &fronts, object, wrk)? else {
                line("wrk is not installed")?;
                continue;
            };
            let figures: Vec<Figures> = samples.iter().map(|s| Figures::of(s)).collect();
            let generator = if wrk { "wrk" } else { "load" };
            for (front, figures) in fronts.iter().zip(&figures) {
                let case = case(&state, object, generator);
                sink.write(case, front.mode(), figures.metrics())?;
            }
            for row in table::rows(generator, &figures) {
                line(row)?;
            }
        }
    }
    Ok(())
}

fn case(state: &State, object: &str, generator: &str) -> Map<String, Value> {
    let value = serde_json::json!({
        "object": object, "generator": generator, "tls": state.spec.tls,
        "shaped": state.spec.rate.is_some(), "servers": state.spec.servers,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Samples of each front, interleaved; `None` when the generator is not there.
fn samples(
    args: &CompareArgs,
    state: &State,
    fronts: &[Front],
    object: &str,
    wrk: bool,
) -> Result<Option<Vec<Vec<Sample>>>> {
    let path = format!("/{object}");
    let mut samples = vec![Vec::new(); fronts.len()];
    for round in 0..args.rounds {
        for (front, taken) in fronts.iter().zip(&mut samples) {
            let host = match front {
                Front::Offload => window::host_for(RequestsPerMigration::Unlimited),
                _ => crate::lab::plan::HOST,
            };
            let window = Window {
                asked: Asked::Front(*front),
                host,
                tls: state.spec.tls,
                path: &path,
                connections: args.connections,
                warmup: Duration::from_millis(200),
                length: args.window,
                verify_every: 16,
                seed: u64::from(round),
            };
            let sample = match wrk {
                true => match window::run_wrk(state, &window)? {
                    Some(sample) => sample,
                    None => return Ok(None),
                },
                false => window::run(state, &window)?,
            };
            if sample.mismatches > 0.0 {
                bail!("{} delivered wrong bytes of {path}", front.mode());
            }
            taken.push(sample);
        }
    }
    Ok(Some(samples))
}
