//! `unlade agent`: direct return at a server's host, and the sidecar of a local server.

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use unlade_agent::AgentConfig;
use unlade_backend::upstream::address::UpstreamAddress;

use crate::daemon;

const ABOUT: &str = "\
Runs the agent at a server's host until SIGTERM or SIGINT. The server is any HTTP server, as it \
is. The agent does one of two things, or both:

Direct return (`interface` and `key_file`): segments of responses that belong to a rule go to the \
client directly, instead of to the balancer. Balancers send rules in authenticated datagrams, \
which a program in the kernel reads. The agent is not in the way of any packet. A datagram to the \
port of rules that is forged, old, or of one connection too many is dropped and counted. Without \
a rule, all segments go to the balancer, also after the agent has ended or was killed. `unlade \
lb` sends rules for pools with `direct_return = { key_file = … }`.

The sidecar (`[sidecar]`): the agent adopts the client connections that balancers hand over, TLS \
included, and forwards their requests to the local server, over TCP or a Unix socket. Responses \
go to the client directly, encrypted by the agent. X-Forwarded-For, or the PROXY protocol, tells \
the server the client's address. A request that the local server does not answer is answered with \
502 or 504. Requests that balancers proxy do not pass the sidecar: the local server, or another \
one, answers at their `http_port`.

SIGHUP reads the key file and the certificates again; other changes want a restart. At SIGTERM \
the sidecar gives its connections back to their balancers.

The key file has 32 hexadecimal digits, and only its owner may have access to it. All balancers \
and hosts of a pool have the same key. Clocks of balancers may be behind the host's by less than \
`idle`.

It needs root, or CAP_NET_ADMIN and CAP_BPF, and CAP_NET_RAW with a sidecar.";

const HELP: &str = "\
Examples:
  (umask 077; openssl rand -hex 16 > rules.key)
  unlade agent --config agent.toml --check
  unlade agent --config agent.toml
  unlade agent --config agent.toml --upstream http://127.0.0.1:8080
  unlade agent --config agent.toml --upstream unix:/run/app.sock

A small agent.toml for direct return:
  interface = \"eth0\"
  key_file = \"rules.key\"

A small agent.toml with a sidecar:
  [sidecar]
  upstream = \"http://127.0.0.1:8080\"
  address = \"10.0.0.21:7900\"
  ca = \"pool-ca.crt\"
  certificate = \"s1.crt\"
  key = \"s1.key\"

An agent.toml with every key: defaults, or examples where the comment says so:
  interface = \"eth0\"              # required without a sidecar: by which the host reaches
                                  # balancers and clients, for direct return
  key_file = \"rules.key\"          # required without a sidecar: 32 hexadecimal digits, mode 600
  rules_port = 7901               # 1 to 65535: UDP port to which balancers send rules
  flows_max = 65536               # 1 to 1048576 connections of balancers; more are not direct
  idle = \"10min\"                  # 1s to 1 day: an unused connection's entry is then removed
  admin = \"127.0.0.1:9902\"        # example: /metrics, /healthz, /version; not served by default
  [sidecar]                       # without it, no connection is adopted
  upstream = \"http://127.0.0.1:8080\"  # required here or as --upstream: or \"unix:/run/app.sock\"
  proxy_protocol = false          # true: version 2 of it begins each connection to the server
  address = \"10.0.0.21:7900\"      # required: where balancers connect (their agent_port)
  ca = \"pool-ca.crt\"              # required, as the two below: the pool's authority
  certificate = \"s1.crt\"          # names the IP address of `address`
  key = \"s1.key\"
  balancers = []                  # names in certificates; default: URI unlade://role/balancer
  interface = \"eth0\"              # example; default: the one that has the address
  name = \"s1\"                     # example: name in logs; default: the address
  workers = 2                     # 1 to 256 threads; default: one for each processor
  adoptions_max = 16384           # 1 to 1048576 adopted connections; more are proxied
  upstream_idle_max = 64          # 0 to 65536 idle connections to the server, of each worker
  upstream_idle_timeout = \"30s\"   # 1ms to 1 day, as the times below; less than the server's own
  connect_timeout = \"3s\"          # to connect to the server; then 504
  response_timeout = \"60s\"        # from a request's end to the head of its response; then 504
  head_timeout = \"10s\"            # from the first byte of a request's head to its last; then 408
  body_timeout = \"30s\"            # without a byte of a body, of either side
  write_timeout = \"30s\"           # without an acknowledged byte of a response
  drain_timeout = \"30s\"
  lease = \"5s\"                    # lifetime of an adopted connection without its balancer
  [log]
  format = \"text\"                 # or \"json\"
  level = \"info\"                  # or a filter such as \"info,unlade_agent=debug\"

Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

/// Run the agent at a server's host: direct return, and the sidecar of any local server
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = HELP)]
pub struct AgentArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The local server of the sidecar, in place of `upstream` in the configuration:
    /// `http://127.0.0.1:8080` or `unix:/run/app.sock`
    #[arg(long, value_name = "ADDRESS")]
    upstream: Option<UpstreamAddress>,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
}

/// Runs `unlade agent`.
///
/// # Errors
/// The configuration, or what stopped the agent.
pub fn run(args: &AgentArgs) -> Result<ExitCode> {
    let config = AgentConfig::load(&args.config, args.upstream.as_ref())?;
    daemon::Start { check: args.check, log: &config.log }.run(
        daemon::valid(Some(&args.config), ""),
        || Ok(unlade_agent::check(&config)?),
        || Ok(unlade_agent::run(&config)?),
    )
}
