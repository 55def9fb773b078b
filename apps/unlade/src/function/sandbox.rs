//! `unlade fn sandbox`: what `unlade fn serve` starts for each template, and that starts itself again
//! inside.

use anyhow::Result;
use clap::Args;
use unlade_fn_sandbox::process::launch;

/// Arguments of `unlade fn sandbox`.
#[derive(Debug, Args)]
pub(super) struct SandboxArgs {
    /// It is inside
    #[arg(long)]
    confined: bool,
}

/// Runs it; standard input is the gateway's socket.
///
/// # Errors
/// Why there is no sandbox.
pub(super) fn run(args: &SandboxArgs) -> Result<()> {
    Ok(launch::run(args.confined)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_argument_is_the_launchers() {
        assert_eq!(unlade_fn_sandbox::process::launch::CONFINED, "--confined");
    }
}
