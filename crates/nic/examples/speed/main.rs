//! What a record costs the host and the engine, with and without the offload:
//! `cargo run --release -p nic --example speed [ROUNDS]`.
//!
//! The far end is a port that answers by itself: it acknowledges what it gets, or sends records that
//! were sealed before. One connection, records of 16 KiB, frames of 1448 octets of payload.
//! *Alternating*: host and engine take turns on one processor, and each one's time is counted.
//! *Pipelined*: each has a processor. Modes are interleaved; figures are medians over rounds.

mod responder;

use std::hint;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use nic::driver::Driver;
use nic::engine::{Engine, Report};
use nic::queue::{QueueConfig, pair};
use nic::stack::{Config, Stack};
use nic::threads::{Threads, ThreadsConfig};
use nic::tls::Mode;
use nic::tls::keys::{Secrets, Suite};
use offload::tls::Version;
use responder::Responder;
use rustix::thread::{CpuSet, sched_setaffinity};
use tcp::{Id, StackConfig, Time};
use zeroize::Zeroizing;

const RECORD_BYTES: usize = 16 << 10;
/// Records that are sent in a round.
const TX_RECORDS: usize = 8192;
/// Records that are received in a round: they are sealed before, and all in memory.
const RX_RECORDS: usize = 1024;
const LOCAL: &str = "10.0.0.1:40000";
const REMOTE: &str = "10.0.0.2:443";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Tx,
    Rx,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    host_ns: f64,
    engine_ns: f64,
    bytes_per_s: f64,
}

fn secrets() -> Secrets {
    Secrets {
        version: Version::Tls13,
        suite: Suite::Aes128Gcm,
        key: Zeroizing::new(vec![7; 16]),
        iv: [9; 12],
        traffic_secret: None,
    }
}

struct Host {
    stack: Stack,
    id: Id,
    begun: Instant,
    content: Bytes,
    wrote: usize,
    read_bytes: usize,
}

impl Host {
    fn new(engine: &mut Engine<Responder>, stack: Stack, mode: Option<Mode>) -> Host {
        let begun = Instant::now();
        let (local, remote): (SocketAddr, SocketAddr) =
            (LOCAL.parse().expect("an address"), REMOTE.parse().expect("an address"));
        let mut stack = stack;
        let id = stack.connect(Time::from_ns(0), local, remote).expect("the first connection");
        let content = Bytes::from(vec![0x55; 1 << 20]);
        let mut host = Host { stack, id, begun, content, wrote: 0, read_bytes: 0 };
        while !host.stack.tcp().get(id).is_some_and(tcp::Connection::is_established) {
            host.stack.poll(host.now());
            engine.poll(0);
        }
        if let Some(mode) = mode {
            host.stack.secure(id, mode, (secrets(), 0), (secrets(), 0)).expect("keys that fit");
        }
        // The device knows of it before anything comes.
        for _ in 0..4 {
            engine.poll(0);
        }
        engine.port().start();
        host
    }

    fn now(&self) -> Time {
        Time::from_ns(self.begun.elapsed().as_nanos() as u64)
    }

    /// Writes what there is room for.
    fn write(&mut self) -> usize {
        for done in 0..4 {
            if self.wrote == TX_RECORDS || self.stack.write_room_bytes(self.id) < RECORD_BYTES {
                return done;
            }
            let at = self.wrote * RECORD_BYTES % self.content.len();
            let content = self.content.slice(at..at + RECORD_BYTES);
            if self.stack.write(self.id, content).is_err() {
                return done;
            }
            self.wrote += 1;
        }
        4
    }

    /// Reads all that can be read.
    fn read(&mut self) -> usize {
        let before = self.read_bytes;
        while let Some(chunk) = self.stack.read(self.id).expect("records that are right") {
            self.read_bytes += chunk.as_ref().len();
        }
        self.read_bytes - before
    }

    fn turn(&mut self, what: What) -> usize {
        let now = self.now();
        let done = match what {
            What::Tx => self.write(),
            What::Rx => self.read(),
        };
        done + self.stack.poll(now)
    }

    fn is_done(&mut self, what: What) -> bool {
        match what {
            What::Tx => {
                let tcp = self.stack.tcp().get(self.id);
                self.wrote == TX_RECORDS
                    && tcp.is_some_and(|tcp| tcp.acknowledged() == tcp.send_end())
            }
            What::Rx => self.read_bytes == RX_RECORDS * RECORD_BYTES,
        }
    }
}

fn set_up(what: What, mode: Option<Mode>) -> (Host, Engine<Responder>) {
    let (host, device) = pair(QueueConfig::default());
    let responder = match what {
        What::Tx => Responder::sink(),
        What::Rx => Responder::source(mode.map(|_| secrets()), RX_RECORDS, RECORD_BYTES),
    };
    let mut engine = Engine::new(responder, device);
    let connection = tcp::Config {
        receive_buffer_bytes: 1 << 20,
        send_buffer_bytes: 1 << 20,
        ..tcp::Config::default()
    };
    let config = Config {
        tcp: StackConfig::new(connection, [1; 16]),
        hardware: ([2; 6], [4; 6]),
        rx_batches: QueueConfig::default().rx_batches,
    };
    let stack = Stack::new(config, Driver::new(host));
    (Host::new(&mut engine, stack, mode), engine)
}

fn records(what: What) -> f64 {
    match what {
        What::Tx => TX_RECORDS as f64,
        What::Rx => RX_RECORDS as f64,
    }
}

fn check(what: What, mode: Option<Mode>, report: &Report) {
    let sealed = report.machines.tx_tls_encrypted_bytes;
    let opened = report.machines.rx_tls_decrypted_bytes;
    let least = (records(what) * RECORD_BYTES as f64 * 0.9) as u64;
    let worked = if what == What::Tx { sealed } else { opened };
    let due = mode == Some(Mode::Offload);
    assert_eq!(worked > least, due, "{what:?} {mode:?}: {report:?}");
}

/// Host and engine take turns on this thread.
fn alternating(what: What, mode: Option<Mode>) -> Figures {
    let (mut host, mut engine) = set_up(what, mode);
    let (mut host_ns, mut engine_ns) = (0, 0);
    let begun = Instant::now();
    let mut at = begun;
    while !host.is_done(what) {
        host.turn(what);
        let turned = Instant::now();
        let now_ns = host.now().ns();
        while engine.poll(now_ns) > 1 {}
        let polled = Instant::now();
        host_ns += (turned - at).as_nanos();
        engine_ns += (polled - turned).as_nanos();
        at = polled;
    }
    let bytes = records(what) * RECORD_BYTES as f64;
    check(what, mode, &engine.report());
    Figures {
        host_ns: host_ns as f64 / records(what),
        engine_ns: engine_ns as f64 / records(what),
        bytes_per_s: bytes / begun.elapsed().as_secs_f64(),
    }
}

/// The engine has a processor of its own; of the host only turns count in which there was work.
fn pipelined(what: What, mode: Option<Mode>, processor: usize) -> Figures {
    let (mut host, engine) = set_up(what, mode);
    let begun = Instant::now();
    let threads =
        Threads::start(vec![engine], &ThreadsConfig { processors: vec![processor] }).expect("two");
    let bell = threads.bell(0).expect("an engine");
    let mut host_ns = 0;
    while !host.is_done(what) {
        let at = Instant::now();
        if host.turn(what) > 0 {
            host_ns += at.elapsed().as_nanos();
            bell.ring();
        } else {
            hint::spin_loop();
        }
    }
    let elapsed = begun.elapsed();
    let engines = threads.stop();
    check(what, mode, &engines[0].report());
    Figures {
        host_ns: host_ns as f64 / records(what),
        engine_ns: f64::NAN,
        bytes_per_s: records(what) * RECORD_BYTES as f64 / elapsed.as_secs_f64(),
    }
}

fn median(figures: &[Figures], field: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = figures.iter().map(field).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pin(processor: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).is_ok()
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(9);
    let two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) && pin(0);
    let modes = [None, Some(Mode::Software), Some(Mode::Offload)];
    println!("one connection, records of 16 KiB, TLS 1.3 AES-128-GCM, {rounds} rounds");
    println!("ns for a record; GB/s                 alternating            pipelined");
    println!("                          host   engine     GB/s      host     GB/s");
    for what in [What::Tx, What::Rx] {
        let mut turns: [Vec<Figures>; 3] = Default::default();
        let mut pipes: [Vec<Figures>; 3] = Default::default();
        for _ in 0..rounds {
            for (index, mode) in modes.into_iter().enumerate() {
                turns[index].push(alternating(what, mode));
                if two {
                    pipes[index].push(pipelined(what, mode, 1));
                }
            }
        }
        for (index, name) in ["plain", "software", "offload"].into_iter().enumerate() {
            print!(
                "{what:?} {name:<10}        {:>9.0} {:>8.0} {:>8.2}",
                median(&turns[index], |figures| figures.host_ns),
                median(&turns[index], |figures| figures.engine_ns),
                median(&turns[index], |figures| figures.bytes_per_s) / 1e9,
            );
            match two {
                true => println!(
                    " {:>9.0} {:>8.2}",
                    median(&pipes[index], |figures| figures.host_ns),
                    median(&pipes[index], |figures| figures.bytes_per_s) / 1e9,
                ),
                false => println!("  skipped: one processor"),
            }
        }
        let host = |index: usize| median(&turns[index], |figures| figures.host_ns);
        println!("{what:?} software/offload, host: {:.2}", host(1) / host(2));
        if two {
            let one = median(&turns[1], |figures| figures.bytes_per_s);
            let pipe = |index: usize| median(&pipes[index], |figures| figures.bytes_per_s);
            println!(
                "{what:?} throughput, offload on two processors / software on one: {:.2}, on two: {:.2}",
                pipe(2) / one,
                pipe(2) / pipe(1),
            );
        }
    }
}
