//! `unlade-lab`: labs, benchmarks, and the tools around them. Arguments are read here; each
//! sub-command is a module of its own.
#![forbid(unsafe_code)]

mod bench;
mod lab;
mod load;
mod scrape;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use unlade_command::{failure, program};

const LONG_ABOUT: &str = "\
Builds, uses and removes a one-machine cluster: a client, a balancer and N servers, each in a \
network namespace of its own, joined by a bridge in a further namespace.

In front of the servers, in the balancer's namespace, stand side by side: `unlade lb` handing \
connections over (ports 80 and 443), `unlade lb` proxying (8080, 8443), nginx (81, 444) and \
HAProxy (82, 445), the last two when installed. All listen on the virtual IP, by IPv4 and \
IPv6; plain ports always, TLS ports with --tls.

Several labs with different names can exist at the same time. Needs root.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench handoff --quick
  unlade-lab up --servers 4 --tls
  unlade-lab up --name slow --rate 200mbit --requests-per-migration 1
  unlade-lab exec client -- curl -s https://objects.lab/1MiB -o /dev/null
  unlade-lab exec s1 -- ss -tn
  unlade-lab restart lb --kill
  unlade-lab status
  unlade-lab down --all

Files:
  /run/unlade/lab/NAME/       state, configuration, logs, certificates, objects, SHA256SUMS
  /etc/netns/unlade-NAME-*/   the hosts file that each node sees
  /run/unlade/lab-failed-*    the log of a process because of which a lab did not come up";

/// Labs and benchmarks for Unlade.
#[derive(Debug, Parser)]
#[command(name = "unlade-lab", version, long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Lab(lab::LabCommand),
    /// Measure, always beside the baselines of the same run
    Bench(bench::BenchArgs),
    /// Put closed-loop HTTP/1.1 load on a server and check what it answers
    Load(load::LoadArgs),
    /// The least that moving a connection can cost
    Floor(bench::floor::FloorArgs),
    /// Make a link lose, double and delay packets
    Impair(bench::impair::ImpairArgs),
    /// A key-value server to measure copies with
    Kv(bench::copy::kv::KvArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Lab(command) => lab::run(command),
        Command::Bench(args) => bench::run(args),
        Command::Load(args) => load::run(args),
        Command::Floor(args) => bench::floor::run(&args),
        Command::Impair(args) => bench::impair::run(&args),
        Command::Kv(args) => bench::copy::kv::serve(&args),
    };
    failure::status(program::LAB, outcome)
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
