//! Measures cost and benefit of the copy service: both copiers alternate in one process, against a
//! store that does nothing. Run with
//! `cargo test --release -p unlade-fn-worker --test worker -- --ignored --nocapture
//! copies_measured`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;
use unlade_fn_worker::copies::CopyService;
use unlade_guest_protocol::control::{ObjectName, WriteMode};
use unlade_guest_protocol::descriptor::PREFETCHED;

use crate::bed::Bed;
use crate::bed::guest::Guest;

/// FairScheduler of each copier.
const ROUNDS: usize = 10;
/// Approximate bytes of a turn.
const TURN_BYTES: usize = 16 << 20;

/// A store that accepts everything, and returns objects of the size in their key.
fn empty_store() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = (BufReader::with_capacity(1 << 18, &stream), &stream);
    let body = vec![7; 8 << 20];
    loop {
        let (mut line, mut head, mut body_bytes) = (String::new(), String::new(), 0u64);
        while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                body_bytes = value.trim().parse().unwrap();
            }
            if lower.starts_with("expect:") {
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            }
            head.push_str(&line);
            line.clear();
        }
        if head.is_empty() {
            return;
        }
        std::io::copy(&mut (&mut reader).take(body_bytes), &mut std::io::sink()).unwrap();
        let size = match head.strip_prefix("GET /box/") {
            Some(rest) => rest.split([' ', '?', '-']).next().unwrap().parse().unwrap(),
            None => 0,
        };
        let head = format!("HTTP/1.1 200 OK\r\netag: \"x\"\r\ncontent-length: {size}\r\n\r\n");
        let sent = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&body[..size]));
        if sent.is_err() {
            return;
        }
    }
}

/// CPU time of threads by the prefix of their names, in nanoseconds.
fn cpu_ns(name: &str) -> u64 {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map_while(Result::ok);
    tasks
        .filter(|task| read(task.path().join("comm")).starts_with(name))
        .map(|task| read(task.path().join("schedstat")))
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

struct Way {
    bed: Bed,
    guests: Vec<Guest>,
    worker: String,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    latencies_us: Vec<f64>,
    bytes: usize,
    wall: Duration,
    worker_ns: u64,
    service_ns: u64,
}

impl Way {
    fn new(service: CopyService, store: SocketAddr, sessions: usize) -> Way {
        let mut bed = Bed::with(|config| {
            config.copies.service = service;
            config.store.endpoint = Some(format!("http://{store}"));
            config.store.sign_bodies = Some(false);
            config.instance.guest_slots = 128;
            config.instance.host_slots = 160;
            config.instance.window_slots = 32;
        });
        let guests = (0..sessions).map(|_| bed.guest()).collect();
        let worker = bed.worker.as_ref().unwrap().name.clone();
        Way { bed, guests, worker, seen: Seen::default() }
    }

    /// Runs one operation in each session; records it if `counts`.
    fn turn(&mut self, size: usize, times: usize, is_get: bool, counts: bool) {
        let body = vec![5; size];
        let keys = |guest: &Guest| {
            (0..times).map(move |n| format!("{size}-{}-{n}", guest.instance)).collect::<Vec<_>>()
        };
        if is_get {
            for guest in &mut self.guests {
                let id = format!("i{}", guest.instance);
                let name =
                    |key| ObjectName { bucket: "box".into(), key, version: None, range: None };
                let objects = keys(guest).into_iter().map(name).collect();
                self.bed.gateway.hint(&id, 1, objects, b"");
                self.bed.gateway.invoke(guest, &id, WriteMode::Sync, b"{}");
                guest.invoked();
            }
            // Everything has been prefetched before it is requested.
            let due = self.guests.len() * times * size;
            std::thread::sleep(Duration::from_millis(40) + Duration::from_nanos(3 * due as u64));
        }
        let run = |guest: &mut Guest| {
            let mut latencies = Vec::new();
            for key in keys(guest) {
                let name = json!({"Bucket": "box", "Key": key});
                let one = Instant::now();
                if is_get {
                    let got = guest.call("GetObject", name, b"");
                    assert_eq!((got.flags, got.body.len()), (PREFETCHED, size));
                } else {
                    guest.call("PutObject", name, &body).done();
                }
                latencies.push(one.elapsed().as_secs_f64() * 1e6);
            }
            latencies
        };
        let before = (cpu_ns(&self.worker), cpu_ns("copyd"));
        let began = Instant::now();
        let latencies: Vec<f64> = std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> =
                self.guests.iter_mut().map(|guest| scope.spawn(move || run(guest))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let (wall, after) = (began.elapsed(), (cpu_ns(&self.worker), cpu_ns("copyd")));
        if counts {
            self.seen.bytes += latencies.len() * size;
            self.seen.latencies_us.extend(latencies);
            self.seen.wall += wall;
            self.seen.worker_ns += after.0 - before.0;
            self.seen.service_ns += after.1 - before.1;
        }
        if is_get {
            for guest in &mut self.guests {
                let id = format!("i{}", guest.instance);
                guest.reply(&id, b"");
                self.bed.gateway.replied(&id);
            }
        }
    }
}

impl Seen {
    fn quantile(&mut self, q: f64) -> f64 {
        self.latencies_us.sort_by(f64::total_cmp);
        self.latencies_us[((self.latencies_us.len() - 1) as f64 * q) as usize]
    }

    fn say(&mut self, what: &str, way: &str) {
        let per_mib = |ns: u64| ns as f64 / 1e3 / (self.bytes as f64 / f64::from(1 << 20));
        let rate = self.bytes as f64 / f64::from(1 << 20) / self.wall.as_secs_f64();
        let (worker, service) = (per_mib(self.worker_ns), per_mib(self.service_ns));
        let (p50, p99) = (self.quantile(0.5), self.quantile(0.99));
        println!(
            "{what} {way:<7} p50 {p50:>8.0} us  p99 {p99:>8.0} us  {rate:>6.0} MiB/s  \
             worker {worker:>6.0} us/MiB  service {service:>5.0} us/MiB"
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn measured() {
    let store = empty_store();
    for is_get in [false, true] {
        for sessions in [1, 4] {
            for size in [64 << 10, 256 << 10, 1 << 20, 8 << 20] {
                let ways = [(CopyService::Off, "off"), (CopyService::Always, "always")];
                let mut ways = ways.map(|(way, name)| (Way::new(way, store, sessions), name));
                // The number of prefetched objects of an invocation is limited.
                let most = if is_get { unlade_fn_worker::prefetch::FETCHES_MAX } else { 64 };
                let times = (TURN_BYTES / size / sessions).clamp(1, most);
                for round in 0..=ROUNDS {
                    ways.rotate_left(1);
                    for (way, _) in &mut ways {
                        way.turn(size, times, is_get, round > 0);
                    }
                }
                ways.sort_by_key(|(_, name)| std::cmp::Reverse(*name));
                let what = if is_get { "GET ahead" } else { "PUT      " };
                let what = format!("{what} {:>5} KiB x {sessions}", size >> 10);
                for (way, name) in &mut ways {
                    way.seen.say(&what, name);
                }
            }
        }
    }
}
