use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use offload::Nvme;
use offload::nvme::{FLAG_DDGST, FLAG_HDGST, FLAG_LAST, FLAG_SUCCESS, types};
use offload::tls::Version;
use random::{Random, cases};
use tcp::{Id, StackConfig, Time};
use zeroize::Zeroizing;

use super::initiator::{Config, Initiator};
use super::reader::{CommandError, Finished};
use crate::driver::Driver;
use crate::engine::{Engine, Report};
use crate::port::impair::{Impair, Impairment};
use crate::port::memory::{self, MemoryPort};
use crate::queue::{QueueConfig, pair};
use crate::stack::{self, Stack};
use crate::tls::Mode;
use crate::tls::keys::{Secrets, Suite};

const SERVER: &str = "10.0.0.2:4420";
const CLIENT: &str = "10.0.0.1:40000";
const BLOCK_BYTES: u32 = 512;
const DEPTH: u16 = 6;

#[derive(Clone, Copy, Debug)]
struct Case {
    nvme: Nvme,
    tls: bool,
    offload: bool,
    impairment: Impairment,
    reads: u64,
    blocks_max: u64,
    /// A data digest is wrong once in so many PDUs.
    wrong_once_in: Option<u64>,
    seed: u64,
}

fn usual() -> Case {
    Case {
        nvme: Nvme { header_digest: true, data_digest: true, data_bytes_max: 1 << 20 },
        tls: false,
        offload: true,
        impairment: Impairment::default(),
        reads: 40,
        blocks_max: 100,
        wrong_once_in: None,
        seed: 1,
    }
}

/// The octet at `at` of the storage.
fn octet(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// One host with its device.
struct End {
    stack: Stack,
    engine: Engine<Impair<MemoryPort>>,
}

impl End {
    fn new(port: MemoryPort, case: &Case, side: u8) -> End {
        let (host, device) = pair(QueueConfig { tx_entries: 16, rx_batches: 8 });
        let seed = case.seed ^ u64::from(side);
        let line = Impair::new(port, case.impairment, Impairment::default(), seed);
        let engine = Engine::new(line, device);
        let connection = tcp::Config {
            mss_bytes: 1448,
            receive_buffer_bytes: 1 << 19,
            send_buffer_bytes: 1 << 19,
            ..tcp::Config::default()
        };
        let tcp = StackConfig::new(connection, [side; 16]);
        let config = stack::Config { tcp, hardware: ([2; 6], [4; 6]), rx_batches: 8 };
        End { stack: Stack::new(config, Driver::new(host)), engine }
    }

    fn established(&mut self, id: Id) -> bool {
        self.stack.tcp().get(id).is_some_and(tcp::Connection::is_established)
    }
}

fn secrets(direction: u8) -> Secrets {
    let key = Zeroizing::new(vec![direction + 1; 16]);
    let (version, suite) = (Version::Tls13, Suite::Aes128Gcm);
    Secrets { version, suite, key, iv: [direction + 3; 12], traffic_secret: None }
}

/// The far end: takes commands, and sends data in PDUs of any length, of several commands by turns.
#[derive(Default)]
struct Storage {
    heard: Vec<u8>,
    /// Identifier, next octet, octets sent, octets wanted.
    open: Vec<(u16, u64, u32, u32)>,
    out: VecDeque<u8>,
    /// Identifiers of commands whose data was sent with a wrong digest.
    wrong: Vec<u16>,
}

impl Storage {
    fn hear(&mut self, case: &Case, octets: &[u8]) {
        self.heard.extend(octets);
        let bytes = if case.nvme.header_digest { 76 } else { 72 };
        while self.heard.len() >= bytes {
            let capsule: Vec<u8> = self.heard.drain(..bytes).collect();
            assert_eq!((capsule[0], capsule[8], capsule[8 + 39]), (types::CAPSULE_CMD, 2, 0x5a));
            if case.nvme.header_digest {
                assert_eq!(capsule[72..], crc32c::crc32c(&capsule[..72]).to_le_bytes());
            }
            let word = |at: usize| u32::from_le_bytes(capsule[at..at + 4].try_into().unwrap());
            let (cid, slba) = (word(8) >> 16, u64::from(word(8 + 40)));
            let wanted = (u32::from(word(8 + 48) as u16) + 1) * BLOCK_BYTES;
            assert_eq!(wanted, word(8 + 32));
            self.open.push((cid as u16, slba * u64::from(BLOCK_BYTES), 0, wanted));
        }
    }

    fn say(&mut self, case: &Case, random: &mut Random) {
        let index = random.below(self.open.len() as u64) as usize;
        let Some((cid, start, sent, wanted)) = self.open.get_mut(index) else { return };
        let left = u64::from(*wanted - *sent);
        let bytes = if random.once_in(3) { left } else { 1 + random.below(left) };
        let from = *start + u64::from(*sent);
        let data: Vec<u8> = (from..from + bytes).map(octet).collect();
        let last = bytes == left;
        let success = last && random.once_in(2);
        let mut fields = cid.to_le_bytes().to_vec();
        fields.extend([0, 0]);
        fields.extend(sent.to_le_bytes());
        fields.extend((bytes as u32).to_le_bytes());
        let mut flags = if last { FLAG_LAST } else { 0 };
        flags |= if success { FLAG_SUCCESS } else { 0 };
        let digest = case.nvme.data_digest;
        let wrong = digest && case.wrong_once_in.is_some_and(|times| random.once_in(times));
        if wrong {
            self.wrong.push(*cid);
        }
        let cid = *cid;
        *sent += bytes as u32;
        self.pdu(case, types::C2H_DATA, flags, &fields, &data, wrong);
        if last {
            self.open.remove(index);
            if !success {
                let mut fields = vec![0; 16];
                fields[12..14].copy_from_slice(&cid.to_le_bytes());
                self.pdu(case, types::CAPSULE_RESP, 0, &fields, &[], false);
            }
        }
    }

    fn pdu(&mut self, case: &Case, kind: u8, flags: u8, fields: &[u8], data: &[u8], wrong: bool) {
        let Nvme { header_digest, data_digest, .. } = case.nvme;
        let data_at = 24 + if header_digest { 4 } else { 0 };
        let with_data = !data.is_empty();
        let tail = if with_data && data_digest { 4 } else { 0 };
        let mut flags = flags | if header_digest { FLAG_HDGST } else { 0 };
        flags |= if tail > 0 { FLAG_DDGST } else { 0 };
        let mut pdu = vec![kind, flags, 24, if with_data { data_at as u8 } else { 0 }];
        pdu.extend(((data_at + data.len() + tail) as u32).to_le_bytes());
        pdu.extend(fields);
        pdu.resize(24, 0);
        if header_digest {
            pdu.extend(crc32c::crc32c(&pdu).to_le_bytes());
        }
        pdu.extend(data);
        if tail > 0 {
            pdu.extend((crc32c::crc32c(data) ^ u32::from(wrong)).to_le_bytes());
        }
        self.out.extend(pdu);
    }
}

/// Both ends of a connection, and what is read.
struct Run {
    ends: [End; 2],
    ids: [Option<Id>; 2],
    initiator: Option<Initiator>,
    storage: Storage,
    secured: bool,
    begun: u64,
    /// First block and identifier of commands on their way.
    open: Vec<(u16, u64)>,
    good: u64,
    failed: u64,
    random: Random,
}

fn run(case: &Case) -> (Report, Initiator, u64) {
    let (left, right) = memory::pair(512, 2048);
    let mut ends = [End::new(left, case, 0), End::new(right, case, 1)];
    let server: SocketAddr = SERVER.parse().unwrap();
    ends[1].stack.tcp().listen(server, 8).unwrap();
    let client = CLIENT.parse().unwrap();
    let id = ends[0].stack.connect(Time::from_ns(0), client, server).unwrap();
    let mut run = Run {
        ends,
        ids: [Some(id), None],
        initiator: None,
        storage: Storage::default(),
        secured: false,
        begun: 0,
        open: Vec::new(),
        good: 0,
        failed: 0,
        random: Random::new(case.seed),
    };
    let mut now_ns = 0;
    for _ in 0..2_000_000 {
        run.client(case);
        run.server(case, server);
        let mut busy = 0;
        for end in &mut run.ends {
            busy += end.stack.poll(Time::from_ns(now_ns));
            busy += end.engine.poll(now_ns);
        }
        if run.good + run.failed == case.reads {
            assert_eq!(run.failed > 0, !run.storage.wrong.is_empty());
            let initiator = run.initiator.expect("there is one");
            return (run.ends[0].engine.report(), initiator, run.failed);
        }
        now_ns += if busy == 0 { 50_000 } else { 2_000 };
    }
    panic!("{case:?}: {} of {} reads are done", run.good + run.failed, case.reads);
}

impl Run {
    fn client(&mut self, case: &Case) {
        let Some(id) = self.ids[0].filter(|id| self.ends[0].established(*id)) else { return };
        let stack = &mut self.ends[0].stack;
        let initiator = self.initiator.get_or_insert_with(|| {
            if case.tls {
                let mode = if case.offload { Mode::Offload } else { Mode::Software };
                let nvme = case.offload.then_some(case.nvme);
                stack.secure_pdus(id, mode, (secrets(0), 0), (secrets(1), 0), nvme).unwrap();
            }
            let (offload, secured) = (case.offload, case.tls);
            let (nvme, depth, block_bytes) = (case.nvme, DEPTH, BLOCK_BYTES);
            let config = Config { nvme, offload, secured, depth, nsid: 1, block_bytes };
            Initiator::new(stack, id, config).unwrap()
        });
        if self.begun < case.reads && self.random.once_in(2) {
            let blocks = 1 + self.random.below(case.blocks_max);
            let buffer = vec![0; blocks as usize * BLOCK_BYTES as usize].into();
            let slba = self.random.below(1 << 20);
            if let Ok(cid) = initiator.read(stack, slba, buffer) {
                self.begun += 1;
                self.open.push((cid, slba));
            }
        }
        initiator.poll(stack).unwrap();
        while let Some(Finished { cid, buffer, result }) = initiator.finished() {
            let index = self.open.iter().position(|(open, _)| *open == cid).unwrap();
            let (_, slba) = self.open.remove(index);
            match result {
                Ok(()) => {
                    self.good += 1;
                    let first = slba * u64::from(BLOCK_BYTES);
                    for (at, found) in buffer.iter().enumerate() {
                        assert_eq!(*found, octet(first + at as u64), "octet {at} of {cid}");
                    }
                }
                Err(error) => {
                    self.failed += 1;
                    assert_eq!(error, CommandError::DataDigest);
                    assert!(self.storage.wrong.contains(&cid));
                }
            }
        }
    }

    fn server(&mut self, case: &Case, address: SocketAddr) {
        if self.ids[1].is_none() {
            self.ids[1] = self.ends[1].stack.tcp().accept(address);
        }
        let Some(id) = self.ids[1] else { return };
        let stack = &mut self.ends[1].stack;
        if case.tls && !self.secured {
            let keys = ((secrets(1), 0), (secrets(0), 0));
            stack.secure(id, Mode::Software, keys.0, keys.1).unwrap();
        }
        self.secured = true;
        while let Some(chunk) = stack.read(id).unwrap() {
            self.storage.hear(case, chunk.as_ref());
        }
        if self.storage.out.len() < 1 << 16 {
            self.storage.say(case, &mut self.random);
        }
        let most = 1 + self.random.below(16_000) as usize;
        let bytes = most.min(self.storage.out.len());
        if bytes > 0 && stack.write_room_bytes(id) >= bytes {
            let octets: Vec<u8> = self.storage.out.drain(..bytes).collect();
            stack.write(id, Bytes::from(octets)).unwrap();
        }
    }
}

#[test]
fn on_a_good_line_the_device_checks_and_places_everything() {
    for tls in [false, true] {
        let (report, initiator, _) = run(&Case { tls, ..usual() });
        let stats = initiator.reader().stats();
        // A packet with very many PDUs in it has more places than are told of.
        let copied_bytes = initiator.reader().copied_bytes();
        assert!(copied_bytes < stats.copy_skipped_bytes / 50, "{copied_bytes}, {stats:?}");
        assert!(report.pdus.rx_placed_bytes > 0);
        assert_eq!(report.pdus.rx_placed_bytes, stats.copy_skipped_bytes);
        assert_eq!((stats.pdus_software, stats.pdus_partial), (0, 0), "{tls}: {stats:?}");
        assert!(stats.pdus_offloaded >= 40);
        assert_eq!(report.counters.commands_refused, 0);
        assert!(report.counters.rx_coalesced > 0);
        assert_eq!(report.machines.rx_tls_decrypted_bytes > 0, tls);
    }
}

#[test]
fn without_the_device_the_host_does_the_same() {
    for tls in [false, true] {
        let (report, initiator, _) = run(&Case { tls, offload: false, ..usual() });
        assert_eq!(report.pdus.rx_placed_bytes, 0);
        assert_eq!(initiator.reader().stats().pdus_offloaded, 0);
        assert!(initiator.reader().copied_bytes() > 0);
    }
}

#[test]
fn a_wrong_data_digest_fails_its_command_and_no_other() {
    for offload in [false, true] {
        let (_, initiator, failed) = run(&Case { offload, wrong_once_in: Some(12), ..usual() });
        assert!(failed > 0, "{offload}");
        assert!(initiator.reader().stats().pdus_offloaded > 0 || !offload);
    }
}

#[test]
fn after_a_loss_the_device_finds_back_and_goes_on_placing() {
    for tls in [false, true] {
        let impairment = Impairment { loss_ppm: 10_000, reorder_ppm: 5_000, ..usual().impairment };
        let (mut answered, mut offloaded, mut partial, mut copied) = (0, 0, 0, 0);
        for seed in 0..4 {
            let case = Case { tls, impairment, seed, reads: 150, ..usual() };
            let (report, initiator, _) = run(&case);
            let stats = initiator.reader().stats();
            answered += report.pdus.rx_tls_resync_res_ok;
            offloaded += stats.pdus_offloaded;
            partial += stats.pdus_partial;
            copied += initiator.reader().copied_bytes();
        }
        assert!(answered > 0 && partial > 0 && copied > 0, "{tls}: {answered} {partial} {copied}");
        assert!(offloaded > 200, "{tls}: {offloaded}");
    }
}

#[test]
fn reads_are_right_in_every_mode_on_every_line() {
    cases(30, |random| {
        let percent = |random: &mut Random| 10_000 * random.below(6) as u32;
        let case = Case {
            nvme: Nvme {
                header_digest: random.once_in(2),
                data_digest: random.once_in(2),
                data_bytes_max: 1 << 20,
            },
            tls: random.once_in(2),
            offload: !random.once_in(4),
            impairment: Impairment {
                loss_ppm: percent(random),
                duplicate_ppm: percent(random),
                corrupt_ppm: if random.once_in(5) { 10_000 } else { 0 },
                reorder_ppm: percent(random),
                delay_ns: random.below(3) * 100_000,
            },
            reads: 1 + random.below(60),
            blocks_max: 1 + random.below(300),
            wrong_once_in: random.once_in(3).then_some(10),
            seed: random.next(),
        };
        run(&case);
    });
}
