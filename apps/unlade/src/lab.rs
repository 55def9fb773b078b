//! `unlade lab` and `unlade bench`: names for what the program `unlade-lab` does.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};
use clap::Args;
use unlade_command::program;

/// Passed on as they are.
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// The arguments of unlade-lab; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Becomes `unlade-lab`, with `first` before the arguments.
///
/// # Errors
/// There is no such program.
pub fn forward(first: &[&str], args: &ForwardArgs) -> Result<ExitCode> {
    let lab = program::find(program::LAB)?;
    let error = Command::new(&lab).args(first).args(&args.arguments).exec();
    Err(anyhow!(error).context(format!("running {}", lab.display())))
}
