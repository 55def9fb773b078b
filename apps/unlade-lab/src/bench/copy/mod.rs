//! `unlade-lab bench copy`: what the copy service saves a program that copies, and what it costs.
//!
//! Every part is a line of [`PARTS`].

mod chains;
mod deflate;
mod device;
mod fairness;
mod files;
mod forward;
mod ipc;
pub mod kv;
mod loops;
mod micro;
mod pages;
mod parts;
mod passing;
mod peers;
mod pool;
mod protobuf;
mod proxy;
mod snapshots;
mod sockets;
mod threads;
mod throughput;
mod tls;
mod usage;
mod uses;
mod wire_pair;

use crate::bench::parts::{self as bench_parts, Part};
use crate::bench::record::Sink;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

pub use parts::PARTS;

const LONG_ABOUT: &str = "\
Copies with the copy service beside the fastest copy that a program could make itself, and what a \
program has of it. The parts are listed at --only; each runs its baselines interleaved with itself.

micro: the time that a copy costs the program, until it has read one byte of each cache line, through \
the Rust and the C interface: without other work in between (the window, not counted), and with as \
much as the copy takes and four times that; with source and destination in the caches and in none; \
and all that again beside a thread that computes all the time. Beside it the C library's memcpy, \
`rep movsb`, and the loops of this program, of which the fastest counts; all interleaved. Each line \
is a call site that has copied nothing before, and a service that sleeps: the share of its copies \
that were queued, the time until it had learnt its way, and its regret: the time of all its copies, \
the first ones included, beyond that of the fastest loop. And the price of a submission and of a \
look at progress.

chains: bytes that are copied into a buffer in between and from there to where they are read, beside \
two copies by the loops of micro: `amemcpy_lazily`, `amemcpy`, `csync`, and `cdiscard` of the buffer \
in between, at which nothing looks. And messages that are received, copied and sent on (\"forward\"), \
the copy left out by the send: beside `memcpy`, and beside splice(2), which looks at a head only.

pages: copies whose source is given up (`Scope::copy_last_use`), until their bytes are read, beside the \
fastest loop: to memory that was never touched, between huge pages, and between ordinary pages, which \
do not move. \"Touched\" is the ratio with a write to each page of the source afterwards. Then \
snapshots of memory that a thread goes on writing, at random places: how long the call takes, the \
slowest writes, and the rate of writes until all is copied, as a part of the usual rate. Beside it a \
child of fork(2) that writes the memory to a file in memory, and a copy of all.

loops: bytes a second of every copy loop of this machine, by size, warm and one after the other; and \
the time of the calibration that chooses among them.

throughput: bytes a second where many copies are queued and the program waits for the oldest, and \
helps; from the same few buffers again and again, and from fresh ones. Beside it the loops of micro \
and stores past the caches. Processor time of the program and of the service, for each GiB.

fairness: two clients with weights 1 and 3, tasks of different sizes, and full queues, that never \
wait, so that the service copies all: the bytes of each; the same for a group of three clients beside \
one. And what a client waits for small copies \
now and then while another one has its queue full of 1 MiB tasks: where it helps itself, as a sync \
does, and where it leaves all to the service.

files: this program's own file is copied in memory, chunk by chunk, and its SHA-256 taken: of a \
chunk while the next ones are copied, beside one after the other.

recv, send: what a program waits for a message of TCP on this machine, with other work in between \
and without, beside recv(2) and send(2); the service's processor time for each.

proxy: `unlade lb` proxying over loopback, one worker with a processor to itself; its bodies spliced \
where it chooses so, and through a buffer only (`body = \"copy\"`). Server and client do not copy. \
Below, the same two ways in a forwarder that does nothing else.

threads: 1 to 8 clients that have eight copies of 64 KiB made and sleep for 100 us, again and again, \
until the service has made them, with one and two threads of it and with as many as the load asks \
for; beside it the same clients with memcpy. Bytes a second, and processor time of the process.

device: what a device beside the processor would save. A model with a stated latency and bandwidth, \
in the model's time; no such device is used.

kv: a key-value server, built with the copies that such servers make and with these absorbed, beside \
Redis where it is installed: latency of one client, throughput of eight, and the server's processor \
time.

protobuf, tls, deflate, ipc: messages that are received and decoded, records that are received and \
opened, text that is copied and compressed and back: the work begins with the first bytes, while the \
service brings the rest. ipc: strings of 1 KiB sent through shared memory, read one by one and \
answered, by two clients of a daemon that is a thread of this process. Beside it the same after a \
plain receive or copy; beside tls, records opened by rustls in its own buffers and, as with the \
service, where they were received: the faster counts. CPU is the processor time of the whole process, in proportion.

Figures are medians over rounds (in micro, of the mean of a round's samples without the extreme ones), \
after the cost of reading the clock is taken off. The end says \
what processor time each part took, of all threads, and lists every case in which the offload \
loses.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench copy --quick
  unlade-lab bench copy --only micro --json copy.jsonl";

/// Copies by the service, beside the fastest copies without it
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct CopyArgs {
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only this part; may be given several times
    #[arg(long, value_name = "PART", value_parser = bench_parts::parser(PARTS))]
    only: Vec<&'static Part>,
    /// Seed of everything that is chosen
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the experiment.
///
/// # Errors
/// A part fails, which the error names, or results cannot be written.
pub fn run(args: &CopyArgs) -> Result<()> {
    let mut sink = Sink::new("copy", args.json.as_deref(), args.seed)?;
    bench_parts::run("copy", PARTS, &args.only, args.quick, &mut sink)
}
