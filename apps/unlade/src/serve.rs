//! `unlade lb` and `unlade backend`: read the configuration, check it, run.

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use unlade_backend::BackendConfig;
use unlade_backend::config::NicConfig;
use unlade_balancer::{BalancerConfig, PolicyConfig};
use unlade_nic_inline::tls_proxy::{Config, devices};

use crate::daemon;

const LB_ABOUT: &str = "\
Runs the load balancer until SIGTERM or SIGINT, on which it drains: no new connections, those \
in work are finished. SIGHUP reads the configuration again.

A connection whose request belongs to a route with `offload = \"always\"` or `\"auto\"` is handed \
to the server when that is possible; the server answers the client directly. Everything else is \
proxied. Handing over needs root, or CAP_NET_ADMIN and CAP_BPF; `unlade doctor` says what this \
machine can do.";

const LB_HELP: &str = "\
Examples:
  unlade lb --config lb.toml --check
  unlade lb --config lb.toml

A small lb.toml:
  admin = \"127.0.0.1:9900\"
  [[listener]]
  address = \"10.0.0.1:443\"
  tls = { certificate = \"objects.crt\", key = \"objects.key\" }
  [[route]]
  host = \"objects.example\"
  pool = \"objects\"
  offload = \"auto\"
  [pool.objects]
  servers = [\"10.0.0.21\", \"10.0.0.22\"]
  http_port = 8080
  agent_port = 7900
  trust = { ca = \"pool-ca.crt\", certificate = \"lb.crt\", key = \"lb.key\" }

An lb.toml with every key: defaults, or examples where the comment says so:
  admin = \"127.0.0.1:9900\"        # example: /metrics, /healthz, /version; not served by default
  workers = 2                     # 1 to 256 threads; default: one for each processor
  pin_workers = false             # true: each thread stays on one processor
  body = \"auto\"                   # proxied bodies: or \"splice\", or \"copy\" (recv and send)
  drain_timeout = \"30s\"           # longest wait for requests in work after SIGTERM
  [[listener]]                    # 1 to 64
  address = \"10.0.0.1:443\"        # required
  connections_max = 16384         # of this listener, at least 1; default: limits.connections_max
  freebind = false                # true: listen although no interface has the address yet
  [listener.tls]                  # plain HTTP without it
  certificate = \"objects.crt\"     # required: PEM, the certificate and its issuers
  key = \"objects.key\"             # required: PEM
  min_version = \"1.2\"             # or \"1.3\"
  [listener.timeouts]             # the keys of [timeouts], for this listener
  idle = \"60s\"
  [[route]]                       # 1 to 4096
  host = \"objects.example\"        # example; or \"*.example\"; default: any host
  prefix = \"/\"                    # start of the path
  pool = \"objects\"                # required: NAME of a [pool.NAME]
  offload = \"off\"                 # or \"always\"; \"auto\": where it is expected to cost less
  requests_per_migration = 64     # at least 1, or \"unlimited\"
  upgrade = [\"websocket\"]         # protocols that a connection may change to; HTTP/2 is refused
  [pool.objects]                  # 1 to 256 pools
  policy = \"round-robin\"          # or another one of those below
  servers = [\"10.0.0.21\", \"10.0.0.22:8081\"]  # required: 1 to 256, with or without a port
  http_port = 8080                # example; of the servers without a port of their own
  agent_port = 7900               # example; nothing is handed over without it
  sealing = false                 # or true: agents seal responses for clients with TLS
  [pool.objects.trust]            # mutual TLS with the agents; offload requires it
  ca = \"pool-ca.crt\"              # required, as are the other two
  certificate = \"lb.crt\"
  key = \"lb.key\"
  [pool.objects.health]
  path = \"/healthz\"               # example; default: a TCP connection is enough
  interval = \"2s\"                 # more than 0
  timeout = \"1s\"                  # more than 0
  rise = 2                        # 1 to 1000 successes in sequence
  fall = 3                        # 1 to 1000 failures in sequence
  [pool.objects.upstream]
  requests_max = 4096             # 1 to 1048576, in work at one server
  idle_max = 256                  # 0 to 65536 idle connections of a thread to one server
  idle_timeout = \"30s\"
  [pool.objects.direct_return]    # responses bypass this process; off without it
  key_file = \"rules.key\"          # example: 32 hexadecimal digits, of agents; default: no agents
  rules_port = 7901               # UDP, of the agents
  from_bytes = \"128KiB\"           # example: shorter responses are relayed; default: it is learnt
  early_from_bytes = \"64KiB\"      # example: expected to be as long: direct from the first byte on
  [offload]
  interface = \"eth0\"              # example; default: the one with the first listener's address
  journal = \"/run/unlade/lb\"      # example; default: a name in /run/unlade of the interface
  lease = \"10s\"                   # more than 0: time without an owner after a party has died
  deadline = \"1s\"                 # more than 0, at most lease: from freeze to adoption
  flows_max = 65536               # at least 1: connections that servers own at a time
  steering = \"auto\"               # XDP where the driver has it, else tc; or \"tc\", \"xdp\"
  hold_bytes_max = \"64MiB\"        # packets held between two owners, over all connections
  linger = \"1s\"                   # lifetime of the flow entry of a connection that came home
  idle_return = \"1s\"              # example, more than 0; default: learnt
  [timeouts]                      # more than 0
  handshake = \"10s\"               # of TLS
  head = \"10s\"                    # from the first byte of a request to the end of its head
  head_stall = \"5s\"               # without progress of a head
  idle = \"60s\"                    # between two requests
  body_stall = \"30s\"              # without progress of a body, either way
  upstream_connect = \"3s\"
  upstream_response = \"60s\"       # from the end of a request to the head of its response
  close = \"2s\"                    # bytes of a client are read and dropped after an early close
  tunnel_idle = \"10m\"             # without bytes, either way, after a change of the protocol
  [limits]
  connections_max = 16384         # 1 to 4194304; connections that servers own do not count
  connections_per_client_max = 4096  # 1 to 4194304, of an IPv4 address or an IPv6 /64
  head_bytes_max = \"16KiB\"        # 256 to 65535 bytes
  headers_max = 100               # 1 to 1000
  target_bytes_max = \"8KiB\"       # 16 bytes to head_bytes_max
  body_bytes_max = \"16GiB\"
  [log]
  format = \"text\"                 # or \"json\"
  level = \"info\"                  # or a filter such as \"info,unlade_balancer=debug\"

Policies:
{policies}
Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

const BACKEND_ABOUT: &str = "\
Runs a server until SIGTERM or SIGINT, on which it drains. SIGHUP reads the configuration \
again. It serves the files of a directory as objects (GET, HEAD, PUT, DELETE, ranges, \
conditional requests) over ordinary HTTP, over TLS, and on connections that balancers hand to it.

With tls = \"nic\" the records of TLS connections are sealed and opened by a software NIC on a core \
of its own: a TAP device is made, TCP stays in the host's kernel. A connection that the device \
refuses is served in software, and counted.

A balancer whose certificate is not from the agent's authority is refused.";

const BACKEND_HELP: &str = "\
Examples:
  unlade backend --config backend.toml --check
  unlade backend --config backend.toml

A small backend.toml:
  admin = \"127.0.0.1:9900\"
  http = \"10.0.0.21:8080\"
  root = \"/srv/objects\"
  [agent]
  address = \"10.0.0.21:7900\"
  ca = \"pool-ca.crt\"
  certificate = \"s1.crt\"
  key = \"s1.key\"
Balancers are those whose certificates have the URI unlade://role/balancer; with
`balancers = [\"lb.example\"]` under [agent], those with one of these names instead.

Records by a software NIC:
  tls = \"nic\"
  [https]
  address = \"10.9.0.1:443\"
  certificate = \"objects.crt\"
  key = \"objects.key\"
  [nic]
  addresses = [\"10.9.0.1/24\"]
  wire = \"packet:eth1\"

A backend.toml with every key: defaults, or examples where the comment says so:
  http = \"10.0.0.21:8080\"         # required: address of plain HTTP
  root = \"/srv/objects\"           # required: directory of the objects
  admin = \"127.0.0.1:9900\"        # example: /metrics, /healthz, /version; not served by default
  tls = \"software\"                # or \"nic\": records by the device of [nic]
  writable = true                 # allows PUT and DELETE
  workers = 2                     # 1 to 256 threads; default: one for each processor
  pin = false                     # true: each thread stays on one processor
  connections_max = 16384         # 1 to 1048576 connections that are accepted directly
  adoptions_max = 16384           # 1 to 1048576 adopted connections
  open_files_max = 1024           # 0 to 65536 objects that a thread keeps open
  object_bytes_max = \"5GiB\"       # of an uploaded object
  head_timeout = \"10s\"            # this and the times below: 1ms to 1 day
  idle_timeout = \"60s\"            # between two requests
  body_timeout = \"30s\"            # without a received byte of an upload
  write_timeout = \"30s\"           # without an acknowledged byte of a response
  drain_timeout = \"30s\"
  lease = \"5s\"                    # lifetime of an adopted connection without its balancer
  [https]                         # HTTP over TLS; not served without the table
  address = \"10.0.0.21:8443\"      # required, as are the other two
  certificate = \"objects.crt\"
  key = \"objects.key\"
  [agent]                         # control channel; nothing is adopted without the table
  address = \"10.0.0.21:7900\"      # required: balancers connect here
  ca = \"pool-ca.crt\"              # required, as are the next two
  certificate = \"s1.crt\"
  key = \"s1.key\"
  balancers = []                  # names in certificates; default: URI unlade://role/balancer
  interface = \"eth0\"              # example; default: the one that has the address
  name = \"s1\"                     # example: name in logs; default: the address
  [nic]                           # for tls = \"nic\"
  tap = \"unl0\"                    # device that is made for the host's TCP: 1 to 15 characters
  addresses = [\"10.9.0.1/24\"]     # example; default: none
  routes = [\"10.0.0.0/8@10.9.0.254\"]  # example; default: none
  wire = \"packet:eth1\"            # required for tls = \"nic\"; or \"tap:NAME\", \"tap:NAME@NETNS\"
  mtu_bytes = 1500                # 1280 to 9000
  impair = \"\"                     # impairments such as \"loss=2%,reorder=2%,delay=3ms,seed=7\"
  pcap = \"wire.pcap\"              # example: file for the frames on the wire; default: none
  engine_core = 1                 # example: processor of the engine; default: any
  [log]
  format = \"text\"                 # or \"json\"
  level = \"info\"                  # or a filter such as \"info,unlade_backend=debug\"

Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

/// Returns the help text with a line for each policy.
fn lb_help() -> String {
    let line = |policy: PolicyConfig| format!("  {policy:<18} {}\n", policy.summary());
    LB_HELP.replace("{policies}", &PolicyConfig::ALL.map(line).concat())
}

/// Run the load balancer
#[derive(Debug, Args)]
#[command(long_about = LB_ABOUT, after_long_help = lb_help())]
pub struct LbArgs {
    #[command(flatten)]
    common: ServeArgs,
}

/// Run the server: it adopts connections and serves objects
#[derive(Debug, Args)]
#[command(long_about = BACKEND_ABOUT, after_long_help = BACKEND_HELP)]
pub struct BackendArgs {
    #[command(flatten)]
    common: ServeArgs,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
}

/// Runs `unlade lb`.
///
/// # Errors
/// The configuration, or what stopped the balancer.
pub fn lb(args: &LbArgs) -> Result<ExitCode> {
    let ServeArgs { config: file, check } = &args.common;
    let config = BalancerConfig::load(file)?;
    let log = config.log.clone();
    let examined = config.clone();
    daemon::Start { check: *check, log: &log }.run(
        daemon::valid(Some(file), ""),
        || Ok(unlade_balancer::check(examined)?),
        || Ok(unlade_balancer::run(config)?),
    )
}

/// Runs `unlade backend`.
///
/// # Errors
/// The configuration, or what stopped the server.
pub fn backend(args: &BackendArgs) -> Result<ExitCode> {
    let ServeArgs { config: file, check } = &args.common;
    let config = BackendConfig::load(file)?;
    let log = config.log.clone();
    let examined = config.clone();
    let examine = || match examined.device()? {
        Some(nic) => Ok(device_config(nic).check_device()?),
        None => Ok(()),
    };
    let serve = || {
        // The engine ends after the last connection.
        let mut engine = None;
        unlade_backend::run_with(config, file, |nic| {
            let (device, running) = devices::attach(&device_config(nic))?;
            engine = Some(running);
            Ok(Arc::new(device))
        })?;
        drop(engine);
        Ok(())
    };
    daemon::Start { check: *check, log: &log }.run(daemon::valid(Some(file), ""), examine, serve)
}

/// The table `[nic]` as the device's own configuration.
fn device_config(nic: &NicConfig) -> Config {
    let NicConfig { tap, addresses, routes, wire, mtu_bytes, impair, pcap, engine_core } =
        nic.clone();
    Config {
        tap,
        addresses,
        routes,
        wire,
        mtu_bytes,
        impair,
        pcap,
        engine_core,
        ..Config::default()
    }
}
