use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use unlade_nic_engine::tls::Version;
use unlade_testkit::{Random, cases};
use zeroize::Zeroizing;

use super::*;
use crate::engine::{Engine, Report};
use crate::port::impair::{Impair, Impairment};
use crate::port::{Frame, Port, memory};
use crate::queue::{QueueConfig, pair};
use unlade_tls::Cipher;

const MARK: &[u8] = b"this is plaintext";
const SERVER: &str = "10.0.0.2:443";
const CLIENT: &str = "10.0.0.1:40000";

/// A port that searches sent frames for plaintext.
struct Spy<P> {
    port: P,
    seen: Arc<AtomicU64>,
}

impl<P: Port> Port for Spy<P> {
    fn room(&mut self) -> usize {
        self.port.room()
    }
    fn empty(&mut self) -> Frame {
        self.port.empty()
    }
    fn send(&mut self, frame: Frame) -> bool {
        let clear = frame.as_slice().windows(MARK.len()).any(|raw| raw == MARK);
        self.seen.fetch_add(clear.into(), Ordering::Relaxed);
        self.port.send(frame)
    }
    fn receive(&mut self) -> Option<Frame> {
        self.port.receive()
    }
    fn recycle(&mut self, frame: Frame) {
        self.port.recycle(frame);
    }
    fn advance(&mut self, now_ns: u64) {
        self.port.advance(now_ns);
    }
}

type Line = Spy<Impair<memory::MemoryPort>>;

/// The protection of an end's records; `None` if there are none.
type Protection = Option<Mode>;

#[derive(Clone, Copy, Debug)]
struct Case {
    protections: [Protection; 2],
    version: Version,
    cipher: Cipher,
    impairment: Impairment,
    /// Bytes that the client and the server send.
    bytes: [usize; 2],
    /// Average number of records between key changes.
    update_every: u64,
    seed: u64,
}

/// One host: its stack, its device, and the connection.
struct End {
    stack: Stack,
    engine: Engine<Line>,
    clear: Arc<AtomicU64>,
    id: Option<Id>,
    secured: bool,
    /// Bytes written and read.
    wrote: usize,
    read: usize,
    closed: bool,
}

fn secrets(case: &Case, direction: u8) -> Secrets {
    let key = Zeroizing::new(vec![direction + 1; case.cipher.key_bytes()]);
    let hash = if case.cipher == Cipher::Aes256Gcm { 48 } else { 32 };
    let traffic_secret = Some(Zeroizing::new(vec![direction + 7; hash]));
    let (version, cipher) = (case.version, case.cipher);
    Secrets { version, cipher, key, iv: [direction + 3; 12], traffic_secret }
}

/// The byte at `at` of an end's data: the mark, and a value that depends on the position.
fn byte(direction: usize, at: usize) -> u8 {
    match MARK.get(at % 64) {
        Some(value) => *value,
        None => ((at / 64) as u8).wrapping_mul(at as u8 | 1).wrapping_add(direction as u8),
    }
}

impl End {
    fn new(port: memory::MemoryPort, case: &Case, side: u8) -> End {
        let (host, device) = pair(QueueConfig { tx_entries: 16, rx_batches: 8 });
        let clear = Arc::new(AtomicU64::new(0));
        let line =
            Impair::new(port, case.impairment, Impairment::default(), case.seed ^ u64::from(side));
        let engine = Engine::new(Spy { port: line, seen: Arc::clone(&clear) }, device);
        let connection = unlade_research_tcp::Config {
            mss_bytes: 1448,
            receive_buffer_bytes: 1 << 19,
            send_buffer_bytes: 1 << 19,
            ..unlade_research_tcp::Config::default()
        };
        let tcp = StackConfig::new(connection, [side; 16]);
        let config = Config { tcp, hardware: ([2; 6], [4; 6]), rx_batches: 8 };
        let stack = Stack::new(config, Driver::new(host));
        End { stack, engine, clear, id: None, secured: false, wrote: 0, read: 0, closed: false }
    }

    /// Secures the connection, writes, and reads; `side` is 0 for the client.
    fn application(&mut self, case: &Case, side: usize, random: &mut Random) {
        let Some(id) = self.id else { return };
        let established =
            self.stack.tcp().get(id).is_some_and(unlade_research_tcp::Connection::is_established);
        if !established && !self.closed {
            return;
        }
        if !self.secured {
            self.secured = true;
            if let Some(mode) = case.protections[side] {
                let own = (secrets(case, side as u8), 0);
                let peer = (secrets(case, 1 - side as u8), 0);
                self.stack.secure(id, mode, own, peer).unwrap();
            }
        }
        self.write(case, side, id, random);
        while let Some(chunk) = self.stack.read(id).unwrap() {
            for &found in chunk.as_ref() {
                assert_eq!(found, byte(1 - side, self.read), "byte {}", self.read);
                self.read += 1;
            }
        }
    }

    fn write(&mut self, case: &Case, side: usize, id: Id, random: &mut Random) {
        for _ in 0..8 {
            let left = case.bytes[side] - self.wrote;
            if left == 0 {
                if !self.closed {
                    self.closed = true;
                    self.stack.close(id);
                }
                return;
            }
            let most = [1, 100, 2000, CONTENT_BYTES_MAX as u64][random.below(4) as usize];
            let bytes = left.min(1 + random.below(most) as usize);
            let room = self.stack.write_room_bytes(id);
            if room < CONTENT_BYTES_MAX {
                return;
            }
            let content: Vec<u8> =
                (self.wrote..self.wrote + bytes).map(|at| byte(side, at)).collect();
            if self.stack.write(id, content.into()).is_err() {
                return;
            }
            self.wrote += bytes;
            if case.update_every > 0 && random.once_in(case.update_every) {
                // If too many keys are in use, the update fails and is tried later.
                let _ = self.stack.update_keys(id, random.once_in(2));
            }
        }
    }

    fn done(&self, case: &Case, side: usize) -> bool {
        self.closed
            && self.read == case.bytes[1 - side]
            && self.id.is_some_and(|id| self.stack.is_read_to_end(id))
    }
}

/// Runs a case to its end and returns the counters of both devices and both hosts.
fn run(case: &Case) -> [(Report, Stats); 2] {
    let mut random = Random::new(case.seed);
    let (left, right) = memory::pair(512, 2048);
    let mut ends = [End::new(left, case, 0), End::new(right, case, 1)];
    let server: SocketAddr = SERVER.parse().unwrap();
    ends[1].stack.tcp().listen(server, 8).unwrap();
    ends[0].id =
        Some(ends[0].stack.connect(Time::from_ns(0), CLIENT.parse().unwrap(), server).unwrap());
    let mut now_ns = 0;
    for _ in 0..4_000_000 {
        let now = Time::from_ns(now_ns);
        let mut busy = 0;
        for (side, end) in ends.iter_mut().enumerate() {
            if end.id.is_none() {
                end.id = end.stack.tcp().accept(server);
            }
            end.application(case, side, &mut random);
            busy += end.stack.poll(now);
            busy += end.engine.poll(now_ns);
        }
        if ends[0].done(case, 0) && ends[1].done(case, 1) {
            return finish(case, ends);
        }
        now_ns += if busy == 0 { 50_000 } else { 2_000 };
    }
    let [client, server] = &ends;
    panic!(
        "{case:?}: {} of {} and {} of {} bytes have come",
        server.read, case.bytes[0], client.read, case.bytes[1]
    );
}

fn finish(case: &Case, ends: [End; 2]) -> [(Report, Stats); 2] {
    ends.map(|end| {
        let protected = case.protections[0].is_some();
        assert!(!protected || end.clear.load(Ordering::Relaxed) == 0, "plaintext has left");
        let report = end.engine.report();
        let Report { counters, machines, .. } = &report;
        assert_eq!(counters.tx_malformed, 0);
        assert_eq!(counters.commands_refused, 0);
        let frames = counters.rx_segments + counters.rx_coalesced + counters.rx_no_buffer;
        assert_eq!(counters.rx_frames, frames + counters.rx_damaged + counters.rx_other);
        let sealed = machines.tx_tls_encrypted_bytes;
        assert!(sealed <= counters.tx_bytes);
        (report, *end.stack.stats())
    })
}

fn case(protections: [Protection; 2]) -> Case {
    Case {
        protections,
        version: Version::Tls13,
        cipher: Cipher::Aes128Gcm,
        impairment: Impairment::default(),
        bytes: [300_000, 300_000],
        update_every: 0,
        seed: 1,
    }
}

const SOFTWARE: Protection = Some(Mode::Software);
const OFFLOAD: Protection = Some(Mode::Offload);
const MODES: [[Protection; 2]; 5] = [
    [None, None],
    [SOFTWARE, SOFTWARE],
    [OFFLOAD, SOFTWARE],
    [SOFTWARE, OFFLOAD],
    [OFFLOAD, OFFLOAD],
];

#[test]
fn on_a_good_line_the_device_does_all_of_it() {
    let [client, server] = run(&case([OFFLOAD, OFFLOAD]));
    for (report, host) in [client, server] {
        assert!(report.machines.tx_tls_encrypted_bytes >= 300_000);
        assert_eq!(report.machines.tx_tls_ooo + report.machines.tx_tls_err, 0);
        assert_eq!(report.machines.tx_tls_drop_no_sync_data, 0);
        assert_eq!(report.machines.rx_tls_err, 0);
        // The first records may have come before the device had the context.
        assert!(report.machines.rx_tls_decrypted_bytes > 100_000, "{report:?}");
        assert!(host.records_offloaded > host.records_software, "{host:?}");
        assert!(report.counters.rx_coalesced > 0);
    }
}

#[test]
fn the_plaintext_would_be_seen_if_it_left() {
    let case = case([None, None]);
    let (left, right) = memory::pair(512, 2048);
    let mut ends = [End::new(left, &case, 0), End::new(right, &case, 1)];
    let server: SocketAddr = SERVER.parse().unwrap();
    ends[1].stack.tcp().listen(server, 8).unwrap();
    let id = ends[0].stack.connect(Time::from_ns(0), CLIENT.parse().unwrap(), server).unwrap();
    ends[0].id = Some(id);
    let mut random = Random::new(1);
    for step in 0..400 {
        for (side, end) in ends.iter_mut().enumerate() {
            end.id = end.id.or_else(|| end.stack.tcp().accept(server));
            end.application(&case, side, &mut random);
            end.stack.poll(Time::from_ns(step * 2000));
            end.engine.poll(step * 2000);
        }
    }
    assert!(ends.iter().all(|end| end.clear.load(Ordering::Relaxed) > 0));
}

#[test]
fn every_mode_meets_every_other_on_every_line() {
    cases(40, |random| {
        let ciphers = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];
        let percent = |random: &mut Random| 10_000 * random.below(6) as u32;
        let bad = random.once_in(5);
        let case = Case {
            protections: MODES[random.below(5) as usize],
            version: [Version::Tls12, Version::Tls13][random.below(2) as usize],
            cipher: ciphers[random.below(3) as usize],
            impairment: Impairment {
                loss_ppm: percent(random),
                duplicate_ppm: percent(random),
                corrupt_ppm: if bad { 10_000 } else { 0 },
                reorder_ppm: percent(random),
                delay_ns: random.below(3) * 100_000,
            },
            bytes: [random.below(400_000) as usize, random.below(400_000) as usize],
            update_every: if random.once_in(3) { 1 + random.below(40) } else { 0 },
            seed: random.next(),
        };
        run(&case);
    });
}

#[test]
fn retransmissions_are_sealed_again_and_the_device_finds_back() {
    let impairment = Impairment { loss_ppm: 20_000, reorder_ppm: 5_000, ..Impairment::default() };
    let mut sum = Stats::default();
    for seed in 0..4 {
        let case = Case { impairment, seed, bytes: [1_500_000, 0], ..case([OFFLOAD, OFFLOAD]) };
        for (report, host) in run(&case) {
            sum.add(&report.machines);
            sum.add(&host);
        }
    }
    assert!(sum.tx_tls_ooo > 0 && sum.tx_replayed_bytes > 0, "{sum:?}");
    assert!(sum.rx_searches > 0 && sum.rx_tls_resync_res_ok > 0, "{sum:?}");
    assert!(sum.records_partial > 0 && sum.records_offloaded > 0, "{sum:?}");
    assert_eq!(sum.tx_tls_err, 0);
    assert_eq!(sum.rx_tls_err, 0);
}

#[test]
fn keys_change_in_both_directions_under_loss() {
    let impairment = Impairment { loss_ppm: 10_000, ..Impairment::default() };
    for seed in 0..3 {
        let bytes = [600_000, 600_000];
        let case = Case { impairment, seed, bytes, update_every: 8, ..case([OFFLOAD, OFFLOAD]) };
        let [client, server] = run(&case);
        assert!(client.0.counters.commands > 8, "keys have changed: {:?}", client.0.counters);
        assert!(server.0.counters.commands > 8, "keys have changed: {:?}", server.0.counters);
    }
}
