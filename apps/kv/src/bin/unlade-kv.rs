//! `unlade-kv`: the key-value server as a program.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;
use unlade_kv::run::{Mode, run};
use unlade_kv::{Config, ServerError};

const ABOUT: &str = "\
Serves RESP2, the protocol of Redis, until SIGTERM or SIGINT: keys and strings in memory. It is there \
to measure copies with: --mode sync makes every copy that such a server makes, --mode offload receives \
large values where they are kept, after the answer, and sends them from there.";

/// A key-value server with and without its copies
#[derive(Debug, Parser)]
#[command(name = "unlade-kv", version, long_about = ABOUT)]
struct Args {
    /// Which of the two builds
    #[arg(long, value_enum, default_value_t = Mode::Offload)]
    mode: Mode,
    /// Where to listen; port 0 for one that is free, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// Bytes of all keys and values
    #[arg(long, value_name = "BYTES")]
    memory_bytes_max: Option<usize>,
    /// Connections
    #[arg(long, value_name = "NUMBER")]
    clients_max: Option<usize>,
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
    let mut config = Config { listen: args.listen, limits: unlade_kv::Limits::default() };
    config.limits.memory_bytes_max =
        args.memory_bytes_max.unwrap_or(config.limits.memory_bytes_max);
    config.limits.clients_max = args.clients_max.unwrap_or(config.limits.clients_max);
    run(args.mode, &config, stop.as_fd(), |address| println!("{address}"))
}
