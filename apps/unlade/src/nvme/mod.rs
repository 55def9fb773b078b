//! `unlade nvme`: NVMe over TCP from user space. Each sub-command is a module of its own.

mod bench;
mod connect;
mod host;
mod key;
mod notice;
mod target;
mod transfer;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use std::future::Future;
use std::process::ExitCode;

const ABOUT: &str = "\
NVMe over TCP in user space: no kernel module, no root, no block device.

A namespace is named by an address:
  nvme+tcp://HOST[:PORT]/NSID[?nqn=SUBSYSTEM]    over TCP
  nvme+tls://HOST[:PORT]/NSID?nqn=SUBSYSTEM      over TLS 1.3 with a pre-shared key (--psk-file)
The port is 4420 where none is given. Without a subsystem's NQN the discovery controller at the \
same address is asked, which answers if there is just one.";

const HELP: &str = "\
Examples:
  unlade nvme target --namespace ram:1GiB
  unlade nvme discover nvme+tcp://127.0.0.1
  unlade nvme connect nvme+tcp://127.0.0.1/1 --digests
  unlade nvme read nvme+tcp://127.0.0.1/1 --length 1GiB --out part.img
  unlade nvme write nvme+tcp://127.0.0.1/1 --offset 64MiB --in part.img
  unlade nvme bench nvme+tcp://127.0.0.1/1 --pattern randread --block-bytes 4KiB --depth 32
  unlade nvme key --out disk.key
  unlade nvme read nvme+tls://127.0.0.1/1?nqn=nqn.2014-08.org.example:disk \\
         --psk-file disk.key --length 1MiB --out part.img

Exit status: 0 success, 1 failure, 2 wrong usage.";

/// NVMe over TCP: serve, discover, connect, read, write, measure
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = HELP)]
pub struct NvmeArgs {
    #[command(subcommand)]
    command: NvmeCommand,
}

#[derive(Debug, Subcommand)]
enum NvmeCommand {
    /// List the subsystems that a discovery controller knows
    Discover(connect::DiscoverArgs),
    /// Connect, show the controller and its namespaces, check that it stays
    Connect(connect::ConnectArgs),
    /// Read a part of a namespace into a file
    Read(transfer::ReadArgs),
    /// Write a file to a namespace
    Write(transfer::WriteArgs),
    /// Measure reads and writes, and check what is read
    Bench(bench::BenchArgs),
    /// Make a new pre-shared key
    Key(key::KeyArgs),
    /// Serve files and memory as namespaces
    Target(target::TargetArgs),
}

/// Runs `unlade nvme`.
///
/// # Errors
/// The failure of a sub-command.
pub fn run(args: &NvmeArgs) -> Result<ExitCode> {
    match &args.command {
        NvmeCommand::Discover(args) => block_on(connect::discover(args))?,
        NvmeCommand::Connect(args) => block_on(connect::connect(args))?,
        NvmeCommand::Read(args) => block_on(transfer::read(args))?,
        NvmeCommand::Write(args) => block_on(transfer::write(args))?,
        NvmeCommand::Bench(args) => block_on(bench::run(args))?,
        NvmeCommand::Key(args) => key::run(args)?,
        NvmeCommand::Target(args) => return target::run(args),
    }
    Ok(ExitCode::SUCCESS)
}

/// One thread is enough: the work of a queue is a copy and a digest.
fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the event loop")?;
    runtime.block_on(work)
}
