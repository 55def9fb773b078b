//! `unlade-kv`: the key-value server as a program.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;
use unlade_kv::run::{Mode, run};
use unlade_kv::{Config, ServerError};

const ABOUT: &str = "\
Serves RESP2 and RESP3, the protocol of Redis, until SIGTERM or SIGINT: keys and strings in memory. Its purpose \
is to measure copies: --mode sync makes all copies of an ordinary server; --mode offload receives \
large values in place, after the answer, and sends them from there.";

/// A key-value server with and without its copies
#[derive(Debug, Parser)]
#[command(name = "unlade-kv", version, long_about = ABOUT)]
struct Args {
    /// Copies of an ordinary server, or absorbed copies
    #[arg(long, value_enum, default_value_t = Mode::Offload)]
    mode: Mode,
    /// Listening address; port 0 selects a free port, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// Maximum number of bytes in all keys and values
    #[arg(long, value_name = "BYTES")]
    memory_bytes_max: Option<usize>,
    /// Maximum number of connections
    #[arg(long, value_name = "NUMBER")]
    clients_max: Option<usize>,
    /// Allow DEBUG, with which a client can stop the server for a time: for tests only
    #[arg(long)]
    debug_commands: bool,
}

fn main() -> ExitCode {
    match serve(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("unlade-kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args) -> Result<(), ServerError> {
    // Before any thread starts: they inherit what is blocked.
    let stop = unlade_sys::signals::terminations()?;
    let limits = unlade_kv::Limits::default();
    let mut config = Config { listen: args.listen, limits, allows_debug: args.debug_commands };
    config.limits.memory_bytes_max =
        args.memory_bytes_max.unwrap_or(config.limits.memory_bytes_max);
    config.limits.clients_max = args.clients_max.unwrap_or(config.limits.clients_max);
    run(args.mode, &config, stop.as_fd(), |address| println!("{address}"))
}
