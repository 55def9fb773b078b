//! `unlade nvme`: NVMe over TCP.

mod target;

use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Serve files and memory over NVMe/TCP
#[derive(Debug, Args)]
pub struct NvmeArgs {
    #[command(subcommand)]
    command: NvmeCommand,
}

#[derive(Debug, Subcommand)]
enum NvmeCommand {
    // Without a comment for documentation here: it would go before the long text there.
    Target(target::TargetArgs),
}

/// Runs `unlade nvme`.
///
/// # Errors
/// What its sub-command says.
pub fn run(args: NvmeArgs) -> Result<ExitCode> {
    match args.command {
        NvmeCommand::Target(args) => target::run(&args),
    }
}
