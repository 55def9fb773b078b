//! `unlade-lab bench`: experiments. Each prints a table, and writes one JSON object a line when
//! asked to; each runs its baselines interleaved with itself.
//!
//! [`handoff`], [`server`] and [`compare`] run [`window`]s of load in a lab ([`guard`]); [`cpu`] is who used
//! what meanwhile; [`figures`] turns samples to medians and ratios; [`record`] and [`table`]
//! write them; [`report`] draws figures from result files with [`svg`].
//!
//! [`migrate`] times the [`stages`] of single migrations beside their [`floor`]; [`soak`] makes
//! very many and looks at what [`tcp`] counted. Both [`drive`] a load through a lab, sometimes
//! over a link that [`impair`] makes bad, and read by [`scrape`](crate::scrape) what the processes
//! say of themselves.
//!
//! [`copy`] and [`nic`] need no lab: copies by the copy service, and protocols by a NIC's engine,
//! beside the fastest without them. Both are tables of [`parts`]; [`samples`] and [`process`] make
//! their figures, [`losses`] looks at the ratios of all. [`sealing`] measures TLS records alone.
//!
//! [`fn_io`] needs no lab either: functions whose I/O is the host's, beside functions with their own.

pub mod compare;
pub mod copy;
pub mod cpu;
mod cpu_limit;
pub mod drive;
pub mod figures;
pub mod floor;
pub mod fn_io;
pub mod guard;
pub mod handoff;
pub mod helper;
pub mod impair;
pub mod losses;
pub mod migrate;
pub mod nic;
pub mod orderly;
pub mod parts;
pub mod process;
pub mod record;
pub mod report;
pub mod samples;
pub mod sealing;
pub mod server;
pub mod soak;
pub mod stages;
pub mod svg;
pub mod table;
pub mod tcp;
pub mod window;

use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Experiments. Each runs its baselines interleaved with what is measured, prints a table and, with --json FILE, writes one JSON object a line:

  {\"bench\": …, \"case\": {…}, \"mode\": \"offload\", \"metrics\": {…}, \"seed\": …, \"host\": {…}}

Ratios are lines of their own with mode `ratio`. Units are the last part of every name. \
All but `copy`, `nic`, `record` and `fn` bring their own lab up, which needs root.";

/// Measure, always beside the baselines of the same run
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    Handoff(handoff::HandoffArgs),
    Migrate(migrate::MigrateArgs),
    Soak(soak::SoakArgs),
    Server(server::ServerArgs),
    Compare(compare::CompareArgs),
    Copy(copy::CopyArgs),
    Nic(nic::NicArgs),
    Record(sealing::RecordArgs),
    Fn(fn_io::FnArgs),
    Report(report::ReportArgs),
}

/// Runs `unlade-lab bench …`.
///
/// # Errors
/// The experiment's.
pub fn run(args: BenchArgs) -> Result<ExitCode> {
    match args.command {
        BenchCommand::Handoff(args) => handoff::run(&args)?,
        BenchCommand::Migrate(args) => migrate::run(&args)?,
        BenchCommand::Soak(args) => return soak::run(&args),
        BenchCommand::Server(args) => server::run(&args)?,
        BenchCommand::Compare(args) => compare::run(&args)?,
        BenchCommand::Copy(args) => copy::run(&args)?,
        BenchCommand::Nic(args) => nic::run(&args)?,
        BenchCommand::Record(args) => sealing::run(&args)?,
        BenchCommand::Fn(args) => fn_io::run(&args)?,
        BenchCommand::Report(args) => report::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
