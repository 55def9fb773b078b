//! `unlade copyd`: the copy service as a process that others share memory with.

mod why;

use anyhow::Result;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use unlade_copy_service::daemon::{self, DaemonConfig};

use crate::daemon as start;

const ABOUT: &str = "\
Runs the copy daemon until SIGTERM or SIGINT. SIGHUP reads the configuration again: limits, \
weights and who is allowed can change, the rest wants a restart.

Programs with the crate `unlade-copy` or the C library libunlade_copier connect to its socket, share \
memory with it, and queue copies between their shared regions; its threads make them: those of the \
group that was served least for its weight, and in it of the client that was served least. A client reaches its own regions only. A client that ends, or is \
killed, takes its tasks and regions along. When the daemon ends, or is killed, clients take back \
what it had not done, and copy by themselves from then on.

Clients of the daemon's own user and of root are served, others where [allow] names them.

`unlade copyd why PID` explains the decisions of a program that uses the copy service, with this \
daemon or without.";

const HELP: &str = "\
Examples:
  unlade copyd                                  with the defaults: /run/unlade/copyd.sock
  unlade copyd --config copyd.toml --check
  unlade copyd --config copyd.toml
  unlade copyd why 4711                         why copies of process 4711 are not queued

A copyd.toml; all keys can be left out, here are the defaults, or examples where there is none:
  socket = \"/run/unlade/copyd.sock\"
  mode = 0o666                 # of the socket, 0o1 to 0o777; who is served is checked besides
  admin = \"127.0.0.1:9901\"     # /metrics, /healthz, /version; none where not said
  threads_min = 1              # threads that copy, 1 to 64: one more starts where
  threads_max = 1              #   those that run are busy for more than high_load_percent of
  high_load_percent = 80       #   their time, one ends where it is less than low_load_percent
  low_load_percent = 30        #   and the others can do its work, both for scale_after
  scale_after = \"100ms\"        # 1ms to 1m
  units = \"auto\"               # devices beside the processor (Intel DSA); or \"none\"
  slice_bytes = \"1MiB\"         # of one client before the next has its turn, 1 byte to 1GiB
  run_bytes = \"16KiB\"          # between two looks at what is wanted first, at most slice_bytes
  polling = \"adaptive\"         # or \"always\": never sleep
  sleep_max = \"100ms\"          # 1ms to 1m
  clients_max = 256            # 1 to 4096
  regions_max = 64             # of a client, 1 to 256
  region_bytes_max = \"4GiB\"    # of a client's regions together, at most 1TiB
  sockets_max = 64             # of a client, 0 (none) to 1024
  hello_timeout = \"5s\"         # from a client's connection to its queue, 1ms to 1h
  [allow]
  uids = [1000]
  gids = [100]
  [weights]                    # 1 to 10000; the user's before the group's before the cgroup's;
                               #   shared by all clients of that user, group or cgroup
  uid.1000 = 300
  gid.100 = 50
  cgroup = true                # cpu.weight of the client's cgroup, or its cpu.shares
  default = 100                # of every other client for itself
  [log]
  format = \"text\"              # or \"json\"
  level = \"info\"

Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

/// Run the copy daemon: it makes copies for programs that share memory with it
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = HELP, args_conflicts_with_subcommands = true)]
pub struct CopydArgs {
    #[command(subcommand)]
    command: Option<CopydCommand>,
    /// The configuration; without it the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Subcommand)]
enum CopydCommand {
    /// Explain why copies of a process are queued, or made at once
    Why(why::WhyArgs),
}

/// Runs `unlade copyd`.
///
/// # Errors
/// The configuration, or what stopped the daemon.
pub fn run(args: &CopydArgs) -> Result<ExitCode> {
    if let Some(CopydCommand::Why(args)) = &args.command {
        return why::run(args).map(|()| ExitCode::SUCCESS);
    }
    let read =
        || args.config.as_deref().map_or_else(|| Ok(DaemonConfig::default()), DaemonConfig::load);
    let config = read()?;
    let log = config.log.clone();
    start::Start { check: args.check, log: &log }.run(
        start::valid(args.config.as_deref(), "the defaults are valid"),
        start::nothing_more,
        || Ok(daemon::run(config, read)?),
    )
}
