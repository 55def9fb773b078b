//! `unlade fn sandbox`: what a gateway starts for each template of sandboxed processes.

use anyhow::Result;
use clap::Args;
use isolation::process::launch;

/// Arguments of `unlade fn sandbox`.
#[derive(Debug, Args)]
pub(super) struct SandboxArgs {
    /// The second start
    #[arg(long)]
    confined: bool,
}

/// Makes a sandbox; returns when it has ended.
///
/// # Errors
/// Why there is none.
pub(super) fn run(args: &SandboxArgs) -> Result<()> {
    Ok(launch::run(args.confined)?)
}
