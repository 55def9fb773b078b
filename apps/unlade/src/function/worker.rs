//! `unlade fn worker`: the I/O worker of a tenant.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use unlade_fn_worker::{TenantList, WorkerConfig};

use super::parent::mind_parent;
use crate::daemon;

pub(super) const LONG: &str = "\
Runs the I/O worker of one tenant until SIGTERM or SIGINT; then writes that are acknowledged are \
made durable first. Function instances speak to it in memory that they share with it \
(docs/guest-protocol.md); a gateway attaches them on the control socket. Credentials are in this \
process only. With --shared it is the worker of several tenants: each has its own control socket, \
store, keys, limits and journal, and a fair share of the processor; what ends the process ends the \
work of all. SIGHUP then reads the files anew; without --shared it has no effect.";

pub(super) const HELP: &str = "\
A worker.toml; only `control` and `[store]` must be there, the rest are the defaults:
  control = \"/run/unlade/tenant.sock\"   # only the worker's own user and root are served
  admin = \"127.0.0.1:9902\"              # /metrics, /healthz, /version; none where not said
  drain_timeout = \"1m\"
  [relay]                               # where instances with an SDK of their own reach the store;
  path = \"/run/unlade/relay\"            # nowhere without the table
  connections_max = 1024
  [store]
  endpoint = \"https://s3.example\"       # AWS in `region` where not said
  region = \"us-east-1\"
  addressing = \"auto\"                   # or \"path\", \"virtual\"
  credentials = { from = \"environment\" }
                                        # or { from = \"profile\", file = \"…\", profile = \"…\" },
                                        # { from = \"keys\", access_key_id = \"…\",
                                        # secret_access_key = \"…\", session_token = \"…\" },
                                        # { from = \"anonymous\" }
  ca = \"/etc/ssl/store.pem\"             # trusted authorities; the system's where not said
  sign_bodies = false                   # where not said: true without TLS, false with TLS
  stream_bodies = true                  # the store knows aws-chunked; else bodies are held whole
  connect_timeout = \"1m\"
  read_timeout = \"1m\"                   # of a read or write without progress
  idle_connections_max = 64
  idle_timeout = \"15s\"                  # of an idle connection
  [services]                            # other than S3; none where nothing is said
  aws = false                           # true: AWS's own, in the region of the function's client
  credentials = { from = \"environment\" }  # as in [store]
  ca = \"/etc/ssl/services.pem\"          # trusted authorities; the system's where not said
  connect_timeout = \"1m\"
  read_timeout = \"1m\"                   # for clients that say none
  idle_connections_max = 64
  idle_timeout = \"15s\"
  [services.endpoint.NAME]              # of the service that boto3 calls so: dynamodb, sqs, …
  url = \"http://127.0.0.1:8000\"
  credentials = { from = \"anonymous\" }  # those of [services] where not said
  [instance]                            # of each function instance
  ring_entries = 256                    # a power of two
  meta_bytes = \"512KiB\"                 # requests and answers without their bodies
  guest_slots = 104                     # of 64 KiB: what it can be sending
  host_slots = 128                      # what it can be receiving
  window_slots = 16                     # of one body at once, 1 to host_slots
  calls_max = 128                       # in flight
  [tenant]                              # of all instances together
  calls_max = 4096                      # in flight
  call_timeout = \"5m\"                   # with all attempts
  held_bytes_max = \"512MiB\"
  dirty_bytes_max = \"128MiB\"            # acknowledged and not durable
  pending_writes_max = 4096             # acknowledged and not durable
  writes_in_flight_max = 32             # of those
  body_bytes_max = \"5GiB\"               # of one call
  staged_bytes_max = \"256MiB\"           # of one call whose body is not streamed
  stream_bytes_min = \"8MiB\"             # smaller ones may be acknowledged early
  prefetch_bytes_max = \"64MiB\"          # of an object
  journal = \"/var/lib/unlade/tenant.journal\"  # for early replies; none where not said
  [copies]                              # of bodies between functions' memory and the worker's
  service = \"auto\"                      # or \"off\", \"always\": a thread that copies long ones;
                                        # auto: from 3 cores on, where it was seen to pay
  [log]
  format = \"text\"                       # or \"json\"
  level = \"info\"

A shared.toml:
  admin = \"127.0.0.1:9903\"              # figures of all, with a label `tenant`
  [tenants]                             # 256 at most
  NAME = \"/etc/unlade/NAME.toml\"        # a worker.toml each
  [log]
  format = \"text\"                       # or \"json\"
  level = \"info\"";

/// Arguments of `unlade fn worker`.
#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    /// The configuration of the tenant
    #[arg(long, value_name = "FILE", required_unless_present = "shared")]
    config: Option<PathBuf>,
    /// The file that names the configurations of several tenants
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    shared: Option<PathBuf>,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
    /// Drain when the process that started this one has ended
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Runs it.
///
/// # Errors
/// The configuration, or what stopped it.
pub(super) fn run(args: &WorkerArgs) -> Result<ExitCode> {
    if let Some(path) = &args.shared {
        return run_shared(args, path);
    }
    let path = args.config.as_deref().context("--config or --shared")?;
    let config = WorkerConfig::load(path)?;
    let start = daemon::Start { check: args.check, log: &config.log };
    start.run(daemon::valid(Some(path), ""), daemon::nothing_more, || {
        mind_parent(args.die_with_parent)?;
        Ok(unlade_fn_worker::run(&config)?)
    })
}

fn run_shared(args: &WorkerArgs, path: &Path) -> Result<ExitCode> {
    let tenant_list = TenantList::load(path)?;
    let log = tenant_list.log.clone();
    let start = daemon::Start { check: args.check, log: &log };
    let examine = || Ok(tenant_list.check()?);
    start.run(daemon::valid(Some(path), ""), examine, || {
        mind_parent(args.die_with_parent)?;
        Ok(unlade_fn_worker::run_shared(path)?)
    })
}
