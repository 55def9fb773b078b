//! `unlade lb` and `unlade backend`: read the configuration, check it, run.

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use unlade_backend::BackendConfig;
use unlade_backend::config::NicConfig;
use unlade_balancer::BalancerConfig;
use unlade_command::output::line;
use unlade_nic_inline::tls_proxy::{Config, devices};

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

Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

/// Run the load balancer
#[derive(Debug, Args)]
#[command(long_about = LB_ABOUT, after_long_help = LB_HELP)]
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
    let file = &args.common.config;
    let config = BalancerConfig::load(file)?;
    if args.common.check {
        unlade_balancer::check(config)?;
        line(format_args!("{}: valid", file.display()))?;
    } else {
        unlade_balancer::run(config)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `unlade backend`.
///
/// # Errors
/// The configuration, or what stopped the server.
pub fn backend(args: &BackendArgs) -> Result<ExitCode> {
    let file = &args.common.config;
    if args.common.check {
        let config = BackendConfig::load(file)?;
        if let Some(nic) = config.device()? {
            device_config(nic).check_device()?;
        }
        line(format_args!("{}: valid", file.display()))?;
    } else {
        // The engine ends after the last connection.
        let mut engine = None;
        unlade_backend::run_with(file, |nic| {
            let (device, running) = devices::attach(&device_config(nic))?;
            engine = Some(running);
            Ok(Arc::new(device))
        })?;
        drop(engine);
    }
    Ok(ExitCode::SUCCESS)
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
