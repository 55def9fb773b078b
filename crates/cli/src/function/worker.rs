//! `unlade fn worker`: the I/O worker of a tenant.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use hostio::WorkerConfig;
use service::logs;

use super::mind_parent;
use crate::output::line;

pub(super) const LONG: &str = "\
Runs the I/O worker of one tenant until SIGTERM or SIGINT; then writes that are acknowledged are \
made durable first. Function instances speak to it in memory that they share with it \
(docs/guest-protocol.md); a gateway attaches them on the control socket. Credentials are in this \
process only.";

pub(super) const HELP: &str = "\
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
  guest_slots = 104                     # of 64 KiB: what it can be sending
  host_slots = 128                      # what it can be receiving
  window_slots = 16                     # of one body at once
  [tenant]                              # of all instances together
  held_bytes_max = \"512MiB\"
  dirty_bytes_max = \"128MiB\"            # acknowledged and not durable
  journal = \"/var/lib/unlade/tenant.journal\"  # for early replies; none where not said";

/// Arguments of `unlade fn worker`.
#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
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
pub(super) fn run(args: &WorkerArgs) -> Result<()> {
    let config = WorkerConfig::load(&args.config)?;
    if args.check {
        return line(format_args!("{}: valid", args.config.display()));
    }
    mind_parent(args.die_with_parent)?;
    logs::init(&config.log)?;
    Ok(hostio::run(&config)?)
}
