//! `unlade-lab bench nic`: what a NIC's engine takes off the host's core, and what it costs elsewhere.
//!
//! Every part is a line of [`PARTS`].

mod controller;
mod crypto;
mod far;
mod figures;
mod flows;
mod host;
mod latency;
mod loss;
mod machines;
mod nvme;
mod peer;
mod responder;
mod room;
mod segments;
mod stream;
mod tap;
mod writes;

use crate::bench::parts::{self, Part};
use crate::bench::record::Sink;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

const LONG_ABOUT: &str = "\
Work on the messages of TLS and NVMe/TCP by an engine on another core, beside the same work by the \
fastest library in the host. The parts are listed at --only; each runs its baselines interleaved \
with itself.

crypto: AES-GCM of records of 16 KiB that come in pieces, as packets have them, beside aws-lc's \
incremental interface and RustCrypto; by every backend of this processor. Then CRC32C in the same \
pieces.

machines: the machines of the engine for packets in order, alone: records, PDUs of NVMe/TCP, and \
both, sent and received, with digests checked and data placed; beside a copy, CRC32C and AES-GCM of \
the same bytes.

segments: processor time of the TCP in user space for 64 KiB sent and received, without the device: \
to queue, to make segments, to take an acknowledgement, and to receive 45 segments or one.

stream: one connection of TLS 1.3 with AES-128-GCM over a TCP in user space, by record size, sent from a buffer in the caches and received without a look at it: plain TCP, records by aws-lc (each at once, in the host), and records by the device. The far end is a model that answers for next to nothing. One core: host and engine take turns, and each one's time is counted. Two: each has a core.

flows: packets of many flows in bursts of 8, round robin, into one engine whose memory for contexts \
is 4 MiB (20,164 contexts): what a packet costs host and engine, how often its context is missing, \
and how many bytes a device would move for that. The host has a TCP and, where there are records, \
a record layer for each flow. All frames are made beforehand and none is seen twice, so they come \
from memory however many flows there are. Misses are counted, not paid for: contexts of this engine \
are in the same memory in any case.

tap: one connection of the kernel's TCP between two network namespaces that the part makes, sent and \
received, through the engine of `unlade nic run`: plain TCP, records by aws-lc in the host, records \
by the engine. Wire `large` takes 64 KiB at once as it comes, wire `mtu` frames of 1500 bytes. Host \
cost is the thread's that owns the socket, with its system calls. The kernel's work on packets is \
charged to the process that runs it: sending mostly to the host, but what the TAP device delivers (segments \
and acknowledgements, of both ends) to the engine. The peer throws away what it gets unread, or \
sends what was sealed beforehand. Needs root and /dev/net/tun.

nvme: reads of 4 KiB to 1 MiB over NVMe/TCP, 1, 8 and 64 at a time, into buffers that are in no cache (128 MiB in turn). Without digests and with a copy (nvme); with both digests by the host and a copy (software); and with digests checked and data placed by the device (offload). The same in records of TLS 1.3 with AES-128-GCM, opened by aws-lc or by the device. The far end is a model whose answers are there beforehand. Host and engine take turns. Then writes, from as much memory: their data lies where the application has it and is sent from there, without digests (nvme), with both digests computed by the host (software), or filled in by the device (offload). Up to 8 KiB goes with the command, more after the controller has asked for it. Over TLS software makes records with aws-lc, the device seals on the way out. The far end follows what comes by lengths, asks and completes; for each case a round is checked before, byte for byte.

latency: one request at a time, and an object of 4 KiB to 1 MiB for it: what passes from the request \
to the object's last byte in the application. Plain TCP; records by aws-lc or by the device; reads \
over NVMe/TCP and over NVMe/TCP in TLS, with digests and copies by the host or by the device; and \
with the device doing the records only (offload-tls). The far end answers at once and the wire has \
no delay, so this is processing alone. Two cores: host and engine have one each and overlap, and \
what one core waits for the other is in it. One: they take turns and nothing overlaps; the host's \
share is what would be left if the device took no time, as one of silicon nearly does. Medians and 99th \
percentiles over all requests.

Host cost is the processor time of the thread that has the application, TLS and TCP; engine cost, \
printed beside it, that of the thread that has the device. Figures are medians over rounds.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench nic --quick
  unlade-lab bench nic --only crypto --json nic.jsonl";

/// All parts, in the order in which they run.
pub static PARTS: &[Part] = &[
    Part { name: "crypto", about: "AES-GCM in pieces, beside libraries", run: crypto::run },
    Part {
        name: "machines",
        about: "the engine's machines, without TCP and threads",
        run: machines::run,
    },
    Part { name: "segments", about: "the TCP in user space, alone", run: segments::run },
    Part { name: "stream", about: "one connection, sent and received", run: stream::run },
    Part {
        name: "nvme",
        about: "reads and writes over NVMe/TCP, plain and over TLS",
        run: reads_and_writes,
    },
    Part { name: "latency", about: "one request at a time", run: latency::run },
    Part { name: "loss", about: "lost packets and packets out of order", run: loss::run },
    Part { name: "flows", about: "more flows than the device has memory for", run: flows::run },
    Part { name: "tap", about: "the kernel's TCP through a TAP device", run: tap::run },
];

fn reads_and_writes(quick: bool, sink: &mut Sink) -> Result<()> {
    nvme::run(quick, sink)?;
    writes::run(quick, sink)
}

/// TLS and NVMe/TCP by an engine, beside the fastest libraries
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct NicArgs {
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only this part; may be given several times
    #[arg(long, value_name = "PART", value_parser = parts::parser(PARTS))]
    only: Vec<&'static Part>,
    /// Seed of everything that is chosen
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the experiment.
///
/// # Errors
/// A part fails, which the error names, or results cannot be written.
pub fn run(args: &NicArgs) -> Result<()> {
    let mut sink = Sink::new("nic", args.json.as_deref(), args.seed)?;
    parts::run("nic", PARTS, &args.only, args.quick, &mut sink)
}
