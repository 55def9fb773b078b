//! Parcels through shared memory: strings of 1 KiB that the receiver reads one by one, and answers.

use super::uses::{Paper, SIZES, Way, case, compare, heading};
use crate::bench::record::Sink;
use anyhow::{Context, Result, anyhow, ensure};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::Scope;
use std::time::Instant;
use unlade_copy::Remote;
use unlade_copy::channel::{MessageReceiver, MessageSender};
use unlade_copy_adapters::{ParcelReader, ParcelWriter};
use unlade_copy_service::daemon::{Daemon, DaemonConfig};

const PAPER: Paper = Paper { least_percent: 9.6, most_percent: 35.5 };
/// Of one string, and of its head in a parcel.
const STRING_BYTES: usize = 1 << 10;
const HEAD_BYTES: usize = 5;
/// The largest message.
const SLOT_BYTES: u32 = 1 << 20;

/// Measures sending, reading and answering.
///
/// # Errors
/// The daemon's, the channels', or the sink's.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let directory = std::env::temp_dir().join(format!("unlade-bench-ipc-{}", std::process::id()));
    std::fs::create_dir_all(&directory).context("a directory for the daemon's socket")?;
    let socket = directory.join("copyd.sock");
    let config = DaemonConfig { socket: socket.clone(), ..DaemonConfig::default() };
    let daemon = Daemon::bind(config.clone())?;
    let control = daemon.control();
    let measured = std::thread::scope(|scope| {
        let serving = scope.spawn(move || daemon.run(false, move || Ok(config.clone())));
        let measured = measure(quick, &socket, scope, sink);
        control.drain();
        serving.join().map_err(|_| anyhow!("the daemon's thread panicked"))??;
        measured
    });
    std::fs::remove_dir_all(&directory).context("removing the daemon's socket")?;
    measured
}

fn measure<'scope>(
    quick: bool,
    socket: &Path,
    scope: &'scope Scope<'scope, '_>,
    sink: &mut Sink,
) -> Result<()> {
    heading("ipc, strings of 1 KiB sent, read and answered", PAPER)?;
    for bytes in SIZES {
        let count = (bytes / (STRING_BYTES + HEAD_BYTES)).max(1);
        let ways = vec![
            way("sync", false, count, socket, scope)?,
            way("offload", true, count, socket, scope)?,
        ];
        let label = format!("{count} strings");
        let rounds = if quick { 5 } else { 21 };
        let case = case("ipc", "strings", count * STRING_BYTES);
        compare(&case, &label, rounds, PAPER, ways, sink)?;
    }
    Ok(())
}

/// A channel, and a thread that receives from it until the sender is dropped.
fn way<'a, 'scope>(
    name: &'static str,
    is_offloading: bool,
    count: usize,
    socket: &Path,
    scope: &'scope Scope<'scope, '_>,
) -> Result<Way<'a>> {
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut sender = MessageSender::connect(Remote::connect(socket)?, near, 2, SLOT_BYTES)?;
    sender.set_offloading(is_offloading);
    let receiving = scope.spawn(move || receive(far));
    // It ends with the sender, which the way owns.
    drop(receiving);
    let text = "x".repeat(STRING_BYTES);
    Ok(Way::new(name, move || {
        let mut draft = sender.draft()?;
        let mut parcel = ParcelWriter::new(&mut draft);
        for _ in 0..count {
            parcel.string(&text)?;
        }
        let begin = Instant::now();
        let sent = draft.send()?;
        let reply = sender.wait(sent)?;
        let took = begin.elapsed();
        let expected = (count * STRING_BYTES).to_le_bytes();
        ensure!(reply.as_slice() == expected, "the receiver read something else");
        Ok(took)
    }))
}

fn receive(socket: OwnedFd) -> Result<()> {
    let receiver = MessageReceiver::accept(socket)?;
    while let Some(message) = receiver.receive()? {
        let mut reader = ParcelReader::new(&message);
        let mut total = 0usize;
        while !reader.is_at_end() {
            total += black_box(reader.string()?).len();
        }
        message.reply(&total.to_le_bytes())?;
    }
    Ok(())
}
