//! What a record costs at the sender, host and engine apart, taking turns on one processor: least
//! and median of many short rounds, so that it says something on a machine that others use too.
//!
//! `cargo run --release -p nic --example sender -- [ROUNDS] [RECORD_BYTES]`

use std::time::Instant;

use bytes::Bytes;
use nic::driver::Driver;
use nic::engine::Engine;
use nic::queue::{QueueConfig, pair};
use nic::stack::{Config, Stack};
use nic::tls::Mode;
use nic::tls::keys::{Secrets, Suite};
use offload::tls::Version;
use responder::Responder;
use tcp::{Id, StackConfig, Time};
use zeroize::Zeroizing;

#[allow(dead_code, unreachable_pub, reason = "the bench uses more of it")]
#[path = "../../cli/src/bench/nic/responder.rs"]
mod responder;

/// What the application writes from.
const CONTENT_BYTES: usize = 256 << 10;
const WRITES_AT_ONCE: usize = 4;
/// Octets of a round.
const ROUND_BYTES: usize = 4 << 20;
const MODES: [(&str, Option<Mode>); 3] =
    [("tcp", None), ("aws-lc", Some(Mode::Software)), ("offload", Some(Mode::Offload))];

fn secrets() -> (Secrets, u64) {
    let key = Zeroizing::new(vec![7; 16]);
    let (version, suite) = (Version::Tls13, Suite::Aes128Gcm);
    (Secrets { version, suite, key, iv: [9; 12], traffic_secret: None }, 0)
}

struct Connection {
    stack: Stack,
    id: Id,
    engine: Engine<Responder>,
    begun: Instant,
    content: Bytes,
    written: usize,
}

impl Connection {
    fn new(mode: Option<Mode>) -> Connection {
        let (queue, device) = pair(QueueConfig::default());
        let mut engine = Engine::new(Responder::sink(1448), device);
        let buffers = 1 << 20;
        let connection = tcp::Config {
            receive_buffer_bytes: buffers,
            send_buffer_bytes: buffers,
            ..tcp::Config::default()
        };
        let config = Config {
            tcp: StackConfig::new(connection, [1; 16]),
            hardware: ([2; 6], [4; 6]),
            rx_batches: QueueConfig::default().rx_batches,
        };
        let mut stack = Stack::new(config, Driver::new(queue));
        let begun = Instant::now();
        let addresses = (([10, 0, 0, 1], 40_000).into(), ([10, 0, 0, 2], 443).into());
        let id = stack.connect(Time::from_ns(0), addresses.0, addresses.1).expect("a connection");
        for _ in 0..1000 {
            stack.poll(Time::from_ns(begun.elapsed().as_nanos() as u64));
            engine.poll(0);
        }
        if let Some(mode) = mode {
            stack.secure(id, mode, secrets(), secrets()).expect("keys that fit");
        }
        for _ in 0..4 {
            engine.poll(0);
        }
        engine.port().start();
        let content = Bytes::from(vec![0x55; CONTENT_BYTES]);
        Connection { stack, id, engine, begun, content, written: 0 }
    }

    fn write(&mut self, record_bytes: usize) {
        for _ in 0..WRITES_AT_ONCE {
            if self.stack.write_room_bytes(self.id) < record_bytes {
                return;
            }
            let at = self.written % CONTENT_BYTES;
            let content = self.content.slice(at..at + record_bytes);
            if self.stack.write(self.id, content).is_err() {
                return;
            }
            self.written += record_bytes;
        }
    }

    /// Nanoseconds of host and engine a record.
    fn round(&mut self, record_bytes: usize) -> [f64; 2] {
        let until = self.written + ROUND_BYTES;
        let mut ns = [0.0; 2];
        let mut at = Instant::now();
        while self.written < until {
            self.write(record_bytes);
            let now_ns = self.begun.elapsed().as_nanos() as u64;
            self.stack.poll(Time::from_ns(now_ns));
            let turned = Instant::now();
            while self.engine.poll(now_ns) > 1 {}
            let polled = Instant::now();
            ns[0] += (turned - at).as_nanos() as f64;
            ns[1] += (polled - turned).as_nanos() as f64;
            at = polled;
        }
        ns.map(|ns| ns * record_bytes as f64 / ROUND_BYTES as f64)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let rounds = arguments.next().unwrap_or(200);
    let record_bytes = arguments.next().unwrap_or(16 << 10);
    let mut connections = MODES.map(|(_, mode)| Connection::new(mode));
    let mut all: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..rounds {
        for (connection, all) in connections.iter_mut().zip(&mut all) {
            let ns = connection.round(record_bytes);
            all[0].push(ns[0]);
            all[1].push(ns[1]);
        }
    }
    let mut least = [[0.0; 2]; 3];
    println!("ns a record of {record_bytes} octets: least (median)");
    for (((name, _), all), least) in MODES.iter().zip(&mut all).zip(&mut least) {
        all.iter_mut().for_each(|ns| ns.sort_by(f64::total_cmp));
        *least = [all[0][0], all[1][0]];
        let median = [all[0][rounds / 2], all[1][rounds / 2]];
        println!(
            "{name:<8} host {:>6.0} ({:>6.0})  engine {:>6.0} ({:>6.0})",
            least[0], median[0], least[1], median[1]
        );
    }
    let [tcp, software, offload] = least;
    println!("host, offload over tcp {:.3}", offload[0] / tcp[0]);
    println!("host, software over offload {:.2}", software[0] / offload[0]);
    let slower = offload[0].max(offload[1]);
    println!("two cores over software on one, at most {:.3}", (software[0] + software[1]) / slower);
}
