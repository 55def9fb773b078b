//! `unlade-lab`: a one-machine cluster in network namespaces.
//!
//! In the order a lab comes to be: [`plan`] (names and addresses, pure), [`state`] (recorded
//! before anything is made), [`network`], [`pki`], [`objects`], [`config`], [`process`];
//! [`up`], [`down`], [`status`] are the commands.

pub mod config;
pub mod down;
pub mod interrupt;
pub mod namespace;
pub mod network;
pub mod objects;
pub mod pki;
pub mod plan;
pub mod process;
pub mod state;
pub mod status;
pub mod up;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use plan::{Front, LabName, Node, Spec};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use unlade_command::output::line;

/// Commands on a lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Build a lab, start everything in it, and wait until the balancers have their servers
    Up(UpArgs),
    /// Stop everything in a lab and remove it; removing one that does not exist is no error
    Down(DownArgs),
    /// Show what runs
    Status(StatusArgs),
    /// Run a command on a node and pass its exit status on
    Exec(ExecArgs),
    /// Stop a process of the lab and start it again
    Restart(RestartArgs),
}

#[derive(Debug, Args)]
pub struct Which {
    /// Name of the lab
    #[arg(long, default_value = "lab")]
    name: LabName,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    which: Which,
    /// Remove a lab of this name first, even when it is in use
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    spec: Spec,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    #[command(flatten)]
    which: Which,
    /// Every lab on this machine
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    which: Which,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    which: Which,
    /// client, lb, sw, s1, s2, …
    node: Node,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub struct RestartArgs {
    #[command(flatten)]
    which: Which,
    /// lb, lb-proxy, nginx, haproxy, s1, s2, …
    process: String,
    /// Kill it instead of asking it to end
    #[arg(long)]
    kill: bool,
}

/// Runs a command on a lab.
///
/// # Errors
/// The sub-command's.
pub fn run(command: LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::Up(args) => {
            let state = up::up(args.which.name, args.spec, args.replace)?;
            announce(&state)?;
        }
        LabCommand::Down(args) => {
            let _lock = state::lock()?;
            match args.all {
                true => drop(down::remove_all()?),
                false => down::remove(&args.which.name)?,
            }
        }
        LabCommand::Status(args) => status::print(&state::require(&args.which.name)?, args.json)?,
        LabCommand::Exec(args) => return exec(&args),
        LabCommand::Restart(args) => restart(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the next steps with a new lab.
fn announce(state: &state::State) -> Result<()> {
    let plan = state.plan();
    line(format_args!("lab `{}` is up: {} servers", state.name, plan.spec.servers))?;
    for front in Front::ALL.into_iter().filter(|_| !plan.spec.bare) {
        let plain = format!("http://{}:{}", plan.virtual_v4(), front.port(false));
        let tls = format!("https://{}:{}", plan::HOST, front.port(true));
        let urls = match (state.process(front.process()), plan.spec.tls) {
            (None, _) => "not installed or not wanted".to_owned(),
            (Some(_), true) => format!("{plain}  {tls}"),
            (Some(_), false) => plain,
        };
        line(format_args!("  {:<8} {urls}", front.mode()))?;
    }
    line(format_args!("files in {}", plan.dir().display()))
}

/// The command that runs something on a node, as `lab exec` does: the lab's names and
/// authority hold for it.
pub fn node_command(plan: &plan::Plan, node: Node) -> Command {
    let ca = plan.pki("ca.crt");
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &plan.namespace(node)])
        .env("CURL_CA_BUNDLE", &ca)
        .env("SSL_CERT_FILE", &ca)
        .env("REQUESTS_CA_BUNDLE", &ca)
        .env("UNLADE_LAB_DIR", plan.dir());
    command
}

/// Becomes the command: its status, signals and terminal are this process's own.
fn exec(args: &ExecArgs) -> Result<ExitCode> {
    let plan = state::require(&args.which.name)?.plan();
    let error = node_command(&plan, args.node).args(&args.command).exec();
    Err(error).context("running `ip netns exec`; `scripts/setup` installs it")
}

fn restart(args: &RestartArgs) -> Result<()> {
    let mut state = state::require(&args.which.name)?;
    if let Some(process) = state.process(&args.process)
        && process.identity.is_alive()
    {
        let members = process::session_members(process.identity.pid);
        let members: Vec<_> = members.into_iter().filter_map(process::identify).collect();
        let signal = if args.kill { Signal::KILL } else { Signal::TERM };
        process::stop(&members, signal)?;
    }
    up::restart(&mut state, &args.process)
}
