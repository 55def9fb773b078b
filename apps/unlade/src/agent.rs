//! `unlade agent`: direct return at a server's host.

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use unlade_agent::AgentConfig;

use crate::daemon;

const ABOUT: &str = "\
Runs the agent at a server's host until SIGTERM or SIGINT: segments of responses that belong to a \
rule go to the client directly, instead of to the balancer. SIGHUP reads the key file again; \
other changes want a restart.

Balancers send rules in authenticated datagrams, which a program in the kernel reads. The agent \
is not in the way of any packet, and the server's process needs no change. A datagram to the port \
of rules that is forged, old, or of one connection too many is dropped and counted. Without a \
rule, all segments go to the balancer, also after the agent has ended or was killed.

The key file has 32 hexadecimal digits, and only its owner may have access to it. All balancers \
and hosts of a pool have the same key. Clocks of balancers may be behind the host's by less than \
`idle`. `unlade lb` does not send rules yet.

It needs root, or CAP_NET_ADMIN and CAP_BPF.";

const HELP: &str = "\
Examples:
  (umask 077; openssl rand -hex 16 > rules.key)
  unlade agent --config agent.toml --check
  unlade agent --config agent.toml

A small agent.toml:
  interface = \"eth0\"
  key_file = \"rules.key\"

An agent.toml with every key: defaults, or examples where the comment says so:
  interface = \"eth0\"              # required: by which the host reaches balancers and clients
  key_file = \"rules.key\"          # required: 32 hexadecimal digits, mode 600
  rules_port = 7901               # 1 to 65535: UDP port to which balancers send rules
  flows_max = 65536               # 1 to 1048576 connections of balancers; more are not direct
  idle = \"10min\"                  # 1s to 1 day: an unused connection's entry is then removed
  admin = \"127.0.0.1:9902\"        # example: /metrics, /healthz, /version; not served by default
  [log]
  format = \"text\"                 # or \"json\"
  level = \"info\"                  # or a filter such as \"info,unlade_agent=debug\"

Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

/// Run the agent at a server's host: responses go to clients directly
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = HELP)]
pub struct AgentArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
}

/// Runs `unlade agent`.
///
/// # Errors
/// The configuration, or what stopped the agent.
pub fn run(args: &AgentArgs) -> Result<ExitCode> {
    let config = AgentConfig::load(&args.config)?;
    daemon::Start { check: args.check, log: &config.log }.run(
        daemon::valid(Some(&args.config), ""),
        || Ok(unlade_agent::check(&config)?),
        || Ok(unlade_agent::run(&config)?),
    )
}
