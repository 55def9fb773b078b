//! `unlade fn`: what functions need on their host.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use hostio::WorkerConfig;
use service::logs::{self, LogConfig};

use crate::output::line;

const WORKER: &str = "\
Runs the I/O worker of one tenant until SIGTERM or SIGINT; then writes that are acknowledged are \
made durable first. Function instances speak to it in memory that they share with it \
(docs/guest-protocol.md); a gateway attaches them on the control socket. Credentials are in this \
process only.";

const WORKER_HELP: &str = "\
A worker.toml; only `control` and `[store]` must be there, the rest are the defaults:
  control = \"/run/unlade/tenant.sock\"   # only the worker's own user and root are served
  admin = \"127.0.0.1:9902\"              # /metrics, /healthz, /version; none where not said
  drain_timeout = \"1m\"
  relay = { path = \"/run/unlade/relay\" } # where instances with an SDK of their own reach the
                                        # store; nowhere where not said
  [store]
  endpoint = \"https://s3.example\"       # AWS in `region` where not said
  region = \"us-east-1\"
  addressing = \"auto\"                   # or \"path\", \"virtual\"
  credentials = { from = \"environment\" } # or { from = \"profile\", file = \"…\", profile = \"…\" },
                                        # { from = \"keys\", access_key_id = \"…\", … },
                                        # { from = \"anonymous\" }
  [instance]                            # of each function instance
  guest_slots = 64                      # of 64 KiB: what it can be sending
  host_slots = 128                      # what it can be receiving
  window_slots = 16                     # of one body at once
  [tenant]                              # of all instances together
  held_bytes_max = \"512MiB\"
  dirty_bytes_max = \"128MiB\"            # acknowledged and not durable
  journal = \"/var/lib/unlade/tenant.journal\"  # for early replies; none where not said";

/// What functions need on their host
#[derive(Debug, Args)]
pub struct FnArgs {
    #[command(subcommand)]
    command: FnCommand,
}

#[derive(Debug, Subcommand)]
enum FnCommand {
    /// Run the I/O worker of a tenant
    #[command(long_about = WORKER, after_long_help = WORKER_HELP)]
    Worker(WorkerArgs),
    /// Serve a directory as an S3 store
    Store(StoreArgs),
}

#[derive(Debug, Args)]
struct WorkerArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// The directory; made where it is not there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where to listen; port 0 is one that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// The access key that requests must be signed with; none: they need not be
    #[arg(long, value_name = "ID", requires = "secret_key_file")]
    access_key: Option<String>,
    /// A file with the secret
    #[arg(long, value_name = "FILE", requires = "access_key")]
    secret_key_file: Option<PathBuf>,
}

/// Runs `unlade fn`.
///
/// # Errors
/// The configuration, or what stopped it.
pub fn run(args: FnArgs) -> Result<ExitCode> {
    match args.command {
        FnCommand::Worker(args) => worker(&args)?,
        FnCommand::Store(args) => store(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn worker(args: &WorkerArgs) -> Result<()> {
    let config = WorkerConfig::load(&args.config)?;
    if args.check {
        return line(format_args!("{}: valid", args.config.display()));
    }
    logs::init(&config.log)?;
    Ok(hostio::run(&config)?)
}

fn store(args: StoreArgs) -> Result<()> {
    logs::init(&LogConfig::default())?;
    let keys = match (args.access_key, args.secret_key_file) {
        (Some(access_key_id), Some(file)) => {
            let secret = std::fs::read_to_string(&file);
            let secret = secret.with_context(|| file.display().to_string())?;
            let secret_access_key = secret.trim_end().to_owned();
            Some(s3store::Keys { access_key_id, secret_access_key })
        }
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = s3store::Store::listen(args.listen, &args.dir, keys).await?;
        line(format_args!("http://{}", store.address()?))?;
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            served = store.serve() => served?,
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        Ok(())
    })
}
