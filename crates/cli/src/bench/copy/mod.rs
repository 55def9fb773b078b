//! `unlade bench copy`: what the copy service saves a program that copies, and what it costs.

mod figure;
mod micro;

use super::record::Sink;
use anyhow::Result;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

const LONG_ABOUT: &str = "\
Copies with the copy service beside the fastest copy that a program could make itself.

micro: what a copy costs the program that asks for it, until it has read one byte of each cache \
line: with other work in between (the window, not counted) and without; with source and destination \
in the caches and in none. Beside it the C library's memcpy, `rep movsb`, and the loops of this \
program, of which the fastest counts; all interleaved. And what a submission and a look at progress \
cost.

Figures are medians over rounds, after the cost of reading the clock is taken off.";

const AFTER_HELP: &str = "\
Examples:
  unlade bench copy --quick
  unlade bench copy --only micro --json copy.jsonl";

/// Copies by the service, beside the fastest copies without it
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct CopyArgs {
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
    /// Seed of everything that is chosen
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A part of the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Single copies
    Micro,
}

/// Runs the experiment.
///
/// # Errors
/// The service does not start, or results cannot be written.
pub fn run(args: &CopyArgs) -> Result<()> {
    let mut sink = Sink::new("copy", args.json.as_deref(), args.seed)?;
    let wanted = |part| args.only.is_none_or(|only| only == part);
    if wanted(Part::Micro) {
        micro::run(args.quick, &mut sink)?;
    }
    Ok(())
}
