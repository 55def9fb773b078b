//! `unlade nic run`: TLS in front of programs that speak none, its crypto on the engine's core.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use unlade_nic_inline::tls_proxy::Config;
use unlade_nic_inline::tls_proxy::config::{Originate, Terminate};

use crate::daemon;

const ABOUT: &str = "\
Runs a software NIC between the host's TCP and a wire: a TAP device is made, and an engine's thread \
passes frames between it and another TAP device, or a real interface. TLS connections of this \
process are sealed and opened by the engine, on their way, while TCP stays in the host's kernel.

A terminator listens for TLS and passes on in the clear to a server that speaks none; an \
originator listens in the clear and passes on by TLS. What the engine cannot do (ChaCha20-Poly1305, \
records that came out of order) is done in software, record by record. Everything that is no \
TLS connection of this process passes through the device untouched.";

const HELP: &str = "\
Examples:
  ip netns add peer
  unlade nic run --address 10.9.0.1/24 --wire tap:unlw@peer \\
      --listen 10.9.0.1:443 --backend 127.0.0.1:8080 --certificate a.crt --key a.key
  sysctl -w net.ipv4.conf.eth1.arp_ignore=1
  unlade nic run --address 10.9.0.1/24 --wire packet:eth1 \\
      --originate 127.0.0.1:8443 --connect 10.9.0.2:443 --name peer.example --ca ca.crt
  unlade nic run --config nic.toml --check

A nic.toml with every key: defaults, or examples where the comment says so:
  tap = \"unl0\"                    # device that is made for the host's TCP: 1 to 15 characters
  addresses = [\"10.9.0.1/24\"]     # example; default: none
  routes = [\"10.0.0.0/8@10.9.0.254\"]  # example; default: none
  wire = \"packet:eth1\"            # example; or \"tap:NAME@NETNS\"; default: none, only software
  mtu_bytes = 1500                # 1280 to 9000
  software = false                # true: records in software, over the same devices
  impair = \"\"                     # impairments such as \"loss=2%,reorder=2%,delay=3ms,seed=7\"
  pcap = \"wire.pcap\"              # example: file for the frames on the wire; default: none
  engine_core = 1                 # example: processor of the engine; default: any
  host_core = 0                   # example: processor of all other threads; default: any
  admin = \"127.0.0.1:9902\"        # example: /metrics, /healthz; not served by default
  connections_max = 4096          # 1 to 65536
  handshake_timeout = \"10s\"
  drain_timeout = \"30s\"           # longest wait for connections after SIGTERM
  [[terminate]]                   # 1 to 64 tables of [[terminate]] and [[originate]] together
  listen = \"10.9.0.1:443\"         # required, as are the next three
  backend = \"127.0.0.1:8080\"
  certificate = \"a.crt\"
  key = \"a.key\"
  alpn = []                       # protocols that the server speaks, best first
  [[originate]]
  listen = \"127.0.0.1:8443\"       # required, as are the next three
  connect = \"10.9.0.2:443\"
  name = \"peer.example\"           # that the server's certificate must have
  ca = \"ca.crt\"
  alpn = []                       # protocols that the client speaks, best first
  [log]
  format = \"text\"                 # or \"json\"
  level = \"info\"

Signals: SIGHUP reads the configuration and its files again; new connections go by new certificates, \
keys, backends, servers, protocols and limits of connections, and the log says which keys need a \
restart. SIGTERM finishes the connections.

A wire packet:INTERFACE: the interface must be up, and must not answer ARP for the device's IPv4 \
addresses: `sysctl -w net.ipv4.conf.INTERFACE.arp_ignore=1`. Nothing else of it need be set.

Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

/// Run a software NIC
#[derive(Debug, Args)]
pub struct NicArgs {
    #[command(subcommand)]
    command: NicCommand,
}

#[derive(Debug, Subcommand)]
enum NicCommand {
    // Without a comment for documentation here: it would go before the long text there.
    Run(Box<RunArgs>),
}

/// Terminate and originate TLS over the host's TCP, the crypto on another core
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = HELP)]
struct RunArgs {
    /// The configuration; flags go before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
    /// The TAP device to make for the host's TCP
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// An address of it
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    address: Vec<String>,
    /// A network behind it
    #[arg(long, value_name = "NETWORK[@GATEWAY]")]
    route: Vec<String>,
    /// Where frames go: tap:NAME@NETNS, tap:NAME, packet:INTERFACE
    #[arg(long, value_name = "WIRE")]
    wire: Option<String>,
    /// Where TLS comes in
    #[arg(long, value_name = "ADDRESS", requires_all = ["backend", "certificate", "key"])]
    listen: Option<SocketAddr>,
    /// The server behind it
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    backend: Option<SocketAddr>,
    /// Its certificate chain
    #[arg(long, value_name = "FILE", requires = "listen")]
    certificate: Option<PathBuf>,
    /// The key of that
    #[arg(long, value_name = "FILE", requires = "listen")]
    key: Option<PathBuf>,
    /// Where clients connect to in the clear
    #[arg(long, value_name = "ADDRESS", requires_all = ["connect", "name", "ca"])]
    originate: Option<SocketAddr>,
    /// The server that they get to by TLS
    #[arg(long, value_name = "ADDRESS", requires = "originate")]
    connect: Option<SocketAddr>,
    /// Its name
    #[arg(long, requires = "originate")]
    name: Option<String>,
    /// Authority of its certificate
    #[arg(long, value_name = "FILE", requires = "originate")]
    ca: Option<PathBuf>,
    /// An application protocol to offer, such as http/1.1
    #[arg(long, value_name = "PROTOCOL")]
    alpn: Vec<String>,
    /// Where /metrics and /healthz are served
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Seal and open in software, over the same devices
    #[arg(long)]
    software: bool,
    /// Impairments of the wire, such as loss=2%,reorder=2%,delay=10ms,seed=7
    #[arg(long, value_name = "WHAT")]
    impair: Option<String>,
    /// Write the wire's frames to this file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// The processor that the engine stays on
    #[arg(long, value_name = "CORE")]
    engine_core: Option<usize>,
    /// The processor that everything else stays on
    #[arg(long, value_name = "CORE")]
    host_core: Option<usize>,
}

/// Runs `unlade nic`.
///
/// # Errors
/// The configuration, or what stopped the process.
pub fn run(args: NicArgs) -> Result<ExitCode> {
    let NicCommand::Run(args) = args.command;
    let first = config(&args)?;
    first.check()?;
    let log = first.log.clone();
    daemon::Start { check: args.check, log: &log }.run(
        "valid",
        daemon::nothing_more,
        // Where a flag has said something it goes on before the file.
        || Ok(unlade_nic_inline::tls_proxy::run(first, || config(&args))?),
    )
}

/// The file's configuration, with what the flags say.
fn config(args: &RunArgs) -> Result<Config> {
    let mut config = match &args.config {
        Some(file) => unlade_config::load(file)?,
        None => Config::default(),
    };
    if let (Some(listen), Some(backend), Some(certificate), Some(key)) =
        (args.listen, args.backend, args.certificate.clone(), args.key.clone())
    {
        let alpn = args.alpn.clone();
        config.terminate.push(Terminate { listen, backend, certificate, key, alpn });
    }
    if let (Some(listen), Some(connect), Some(name), Some(ca)) =
        (args.originate, args.connect, args.name.clone(), args.ca.clone())
    {
        let alpn = args.alpn.clone();
        config.originate.push(Originate { listen, connect, name, ca, alpn });
    }
    if !args.alpn.is_empty() && config.terminate.is_empty() && config.originate.is_empty() {
        bail!("--alpn goes with --listen or --originate");
    }
    config.addresses.extend(args.address.iter().cloned());
    config.routes.extend(args.route.iter().cloned());
    config.software |= args.software;
    let Config { tap, wire, impair, .. } = &mut config;
    for (place, flag) in [(tap, &args.tap), (wire, &args.wire), (impair, &args.impair)] {
        if let Some(text) = flag {
            place.clone_from(text);
        }
    }
    config.admin = args.admin.or(config.admin);
    config.pcap = args.pcap.clone().or(config.pcap);
    config.engine_core = args.engine_core.or(config.engine_core);
    config.host_core = args.host_core.or(config.host_core);
    Ok(config)
}
