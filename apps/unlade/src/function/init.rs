//! `unlade fn init`: what the sandbox of a function with a runtime of its own starts.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use unlade_fn_init::Part;

/// Arguments of `unlade fn init`.
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// It is the instance, not the first process of the sandbox
    #[arg(long)]
    instance: bool,
}

/// Runs it; standard input is its socket.
///
/// # Errors
/// Why the instance ends.
pub(super) fn run(args: &InitArgs) -> Result<ExitCode> {
    let part = if args.instance { Part::Instance } else { Part::First };
    Ok(ExitCode::from(unlade_fn_init::run(part)?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_argument_is_the_crates() {
        assert_eq!(unlade_fn_init::INSTANCE, "--instance");
    }
}
