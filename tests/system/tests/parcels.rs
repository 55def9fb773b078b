//! Messages between two processes, copied by `unlade copyd`, which is killed meanwhile.
//!
//! `UNLADE_KILL_ROUNDS` is the number of kills; `UNLADE_SEED` repeats a failed seed.

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use system_tests::unlade;
use system_tests::variables::env_number;
use unlade_copy::Remote;
use unlade_copy::channel::{MessageReceiver, MessageSender};
use unlade_copy_adapters::{ParcelReader, ParcelWriter};
use unlade_testkit::{Random, seed};

/// Variable with a socket's path, which turns this test binary into a receiver.
const RECEIVER: &str = "UNLADE_PARCEL_RECEIVER";
const SLOT_BYTES: u32 = 512 << 10;
/// Maximum number of strings of a message, and maximum length of one.
const STRINGS_MAX: usize = 60;
const STRING_BYTES_MAX: usize = 8_000;

/// A process, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

fn daemon(directory: &Path) -> (Running, PathBuf) {
    let (socket, config) = (directory.join("copyd.sock"), directory.join("copyd.toml"));
    let text = "socket = \"copyd.sock\"\npolling = \"always\"\n[log]\nlevel = \"warn\"\n";
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(unlade());
    command.arg("copyd").arg("--config").arg(config).stdin(Stdio::null());
    let daemon = Running(command.spawn().expect("the daemon starts"));
    eventually("the daemon listens", || Remote::connect(&socket).is_ok());
    (daemon, socket)
}

fn seqpacket() -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// Starts a receiver; returns its process and socket.
fn receiver(directory: &Path) -> (Running, OwnedFd) {
    let path = directory.join("parcels.sock");
    let listener = seqpacket();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "receiver_process", "--nocapture"]).stdout(Stdio::null());
    let receiver = Running(command.env(RECEIVER, &path).spawn().unwrap());
    (receiver, accept(&listener).unwrap())
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

/// The receiver process, not a test of its own: reads messages and answers with their contents.
#[test]
fn receiver_process() {
    let Some(path) = std::env::var_os(RECEIVER) else { return };
    let socket = seqpacket();
    connect(&socket, &SocketAddrUnix::new(Path::new(&path)).unwrap()).unwrap();
    let receiver = MessageReceiver::accept(socket).unwrap();
    while let Some(message) = receiver.receive().unwrap() {
        let mut reader = ParcelReader::new(&message);
        let count = reader.i32().unwrap();
        let number = reader.i64().unwrap();
        let mut total = 0u64;
        for _ in 0..count {
            total = total.wrapping_add(sum(reader.string().unwrap().as_bytes()));
            total = total.wrapping_add(sum(&reader.bytes().unwrap()));
        }
        assert!(reader.is_at_end());
        let reply = [number.to_le_bytes(), total.to_le_bytes()].concat();
        message.reply(&reply).unwrap();
    }
}

/// Sends a message and compares every value of the answer.
fn exchange(sender: &mut MessageSender, random: &mut Random, number: i64) {
    let count = random.below(STRINGS_MAX + 1);
    let mut total = 0u64;
    let mut draft = sender.draft().unwrap();
    let mut parcel = ParcelWriter::new(&mut draft);
    parcel.i32(count as i32).unwrap().i64(number).unwrap();
    for _ in 0..count {
        let (letter, len) = (b'a' + random.below(26) as u8, random.below(STRING_BYTES_MAX));
        let text = String::from_utf8(vec![letter; len]).unwrap();
        let bytes = random.next().to_le_bytes();
        parcel.string(&text).unwrap().bytes(&bytes).unwrap();
        total = total.wrapping_add(sum(text.as_bytes())).wrapping_add(sum(&bytes));
    }
    let sent = draft.send().unwrap();
    let reply = sender.wait(sent).unwrap();
    let expected = [number.to_le_bytes(), total.to_le_bytes()].concat();
    assert_eq!(reply.as_slice(), expected, "parcel {number}");
}

#[test]
fn parcels_arrive_whole_also_when_the_daemon_is_killed() {
    let seed = seed();
    let mut random = Random::new(seed);
    for round in 0..env_number("UNLADE_KILL_ROUNDS", 20) {
        let directory = tempfile::tempdir().unwrap();
        let (mut daemon, socket) = daemon(directory.path());
        let (mut receiver, near) = receiver(directory.path());
        let remote = Remote::connect(&socket).unwrap();
        let mut sender = MessageSender::connect(remote, near, 2, SLOT_BYTES).unwrap();
        let delay = Duration::from_micros(random.below(20_000) as u64);
        let mut number = 0;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A random moment of the exchange.
                std::thread::sleep(delay);
                daemon.0.kill().unwrap();
                daemon.0.wait().unwrap();
            });
            while sender.remote().unwrap().is_served() {
                exchange(&mut sender, &mut random, number);
                number += 1;
            }
        });
        println!("round {round}: {number} parcels before the daemon was gone");
        // Also without the daemon.
        for _ in 0..5 {
            exchange(&mut sender, &mut random, number);
            number += 1;
        }
        drop(sender);
        assert!(receiver.0.wait().unwrap().success(), "the receiver saw the end");
    }
}
