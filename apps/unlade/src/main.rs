//! `unlade`: the command line. Arguments are read here; each sub-command is a module of its own.
#![forbid(unsafe_code)]

mod agent;
mod copyd;
mod daemon;
mod doctor;
mod function;
mod lab;
mod nic;
mod nvme;
mod serve;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use unlade_command::{failure, program};

const LONG_ABOUT: &str = "\
I/O offload for Linux: takes the moving of bytes off the programs that only needed to decide \
about them.

`unlade lb` is an L7 load balancer that reads a request, chooses the server, and hands the \
established TCP or TLS connection to it; the server answers the client directly. Whatever \
cannot be handed over is proxied in the ordinary way. `unlade backend` is the server's side.";

const AFTER_HELP: &str = "\
Examples:
  unlade doctor                                    what works on this machine
  unlade lab up --servers 4 --tls                  a cluster in network namespaces
  unlade lab exec client -- curl -s https://objects.lab/1MiB -o /dev/null
  unlade bench handoff --quick                     offload beside nginx, haproxy and our proxy
  unlade lb --config lb.toml                       the real thing
  unlade backend --config backend.toml

Exit status:
  0  success
  1  failure; the cause is on standard error
  2  wrong usage
`unlade lab exec` passes the status of its command on.";

/// I/O offload for Linux.
#[derive(Debug, Parser)]
#[command(name = "unlade", version, long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // Some have no comment for documentation here: it would replace the long text there.
    Lb(serve::LbArgs),
    Backend(serve::BackendArgs),
    Agent(agent::AgentArgs),
    Copyd(copyd::CopydArgs),
    Nvme(nvme::NvmeArgs),
    /// A software NIC: TLS over the host's TCP, its crypto on another core
    Nic(nic::NicArgs),
    Fn(function::FnArgs),
    /// Build, use and remove a one-machine cluster in network namespaces (runs unlade-lab)
    #[command(disable_help_flag = true)]
    Lab(lab::ForwardArgs),
    /// Measure, always beside the baselines of the same run (runs unlade-lab bench)
    #[command(disable_help_flag = true)]
    Bench(lab::ForwardArgs),
    /// Say what works on this machine, what falls back, and why
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Lb(args) => serve::lb(&args),
        Command::Backend(args) => serve::backend(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Copyd(args) => copyd::run(&args),
        Command::Nvme(args) => nvme::run(&args),
        Command::Nic(args) => nic::run(args),
        Command::Fn(args) => function::run(args),
        Command::Lab(args) => lab::forward(&[], &args),
        Command::Bench(args) => lab::forward(&["bench"], &args),
        Command::Doctor(args) => doctor::run(&args),
    };
    failure::status(program::UNLADE, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
