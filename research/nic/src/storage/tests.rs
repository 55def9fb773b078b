mod controller;
mod opening;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use unlade_nic_engine::Nvme;
use unlade_nic_engine::software::records::KEYS_MAX;
use unlade_nic_engine::tls::Version;
use unlade_nvme_wire::{Digests, Nqn, Status};
use unlade_research_tcp::{Id, StackConfig, Time};
use unlade_tls::Cipher;
use zeroize::Zeroizing;

use self::controller::{BLOCK_BYTES, CONTROLLER, Controller, ControllerConfig};
use super::initiator::{Config, Initiator};
use super::open::Opening;
use super::reader::{CommandError, Finished};
use crate::driver::Driver;
use crate::engine::{Engine, Report};
use crate::port::impair::{Impair, Impairment};
use crate::port::memory::{self, MemoryPort};
use crate::port::{Frame, Port};
use crate::queue::{QueueConfig, pair};
use crate::stack::{self, Stack};
use crate::tls::Mode;
use crate::tls::keys::Secrets;
use unlade_testkit::{Random, cases};

const SERVER: &str = "10.0.0.2:4420";
const CLIENT: &str = "10.0.0.1:40000";
const DEPTH: u16 = 6;
/// Blocks of the disk.
const BLOCKS: u64 = 2048;
/// The first bytes of every block that is written.
const MARK: &[u8; 16] = b"this is plain 16";

/// The side that does the work of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Software,
    Device,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    wanted: Digests,
    habits: ControllerConfig,
    tls: bool,
    /// The initiator's end, and the controller's.
    ends: [End; 2],
    impairment: Impairment,
    reads: u64,
    writes: u64,
    blocks_max: u64,
    in_capsule_bytes: u32,
    /// Average number of turns between key changes.
    update_every: Option<u64>,
    seed: u64,
}

fn usual() -> Case {
    let (wrong_once_in, refused_once_in) = (None, None);
    Case {
        wanted: Digests::BOTH,
        habits: ControllerConfig {
            digests: Digests::BOTH,
            data_bytes_max: 64 << 10,
            alignment_bytes: 4,
            wrong_once_in,
            refused_once_in,
        },
        tls: false,
        ends: [End::Device, End::Software],
        impairment: Impairment::default(),
        reads: 40,
        writes: 0,
        blocks_max: 100,
        in_capsule_bytes: 8192,
        update_every: None,
        seed: 1,
    }
}

/// The byte at `at` of the disk.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A port that searches sent frames for written data.
struct Spy {
    port: Impair<MemoryPort>,
    seen: Arc<AtomicU64>,
}

impl Port for Spy {
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

/// One host with its device.
struct Host {
    stack: Stack,
    engine: Engine<Spy>,
    seen: Arc<AtomicU64>,
}

impl Host {
    fn new(port: MemoryPort, case: &Case, side: u8) -> Host {
        let (host, device) = pair(QueueConfig { tx_entries: 16, rx_batches: 8 });
        let seed = case.seed ^ u64::from(side);
        let port = Impair::new(port, case.impairment, Impairment::default(), seed);
        let seen = Arc::new(AtomicU64::new(0));
        let engine = Engine::new(Spy { port, seen: seen.clone() }, device);
        let connection = unlade_research_tcp::Config {
            mss_bytes: 1448,
            receive_buffer_bytes: 1 << 19,
            send_buffer_bytes: 1 << 19,
            ..unlade_research_tcp::Config::default()
        };
        let tcp = StackConfig::new(connection, [side; 16]);
        let config = stack::Config { tcp, hardware: ([2; 6], [4; 6]), rx_batches: 8 };
        Host { stack: Stack::new(config, Driver::new(host)), engine, seen }
    }

    fn established(&mut self, id: Id) -> bool {
        self.stack.tcp().get(id).is_some_and(unlade_research_tcp::Connection::is_established)
    }
}

fn secrets(direction: u8) -> Secrets {
    let key = Zeroizing::new(vec![direction + 1; 16]);
    let (version, cipher) = (Version::Tls13, Cipher::Aes128Gcm);
    let traffic_secret = Some(Zeroizing::new(vec![direction + 5; 32]));
    Secrets { version, cipher, key, iv: [direction + 3; 12], traffic_secret }
}

fn nvme(digests: Digests) -> Nvme {
    Nvme { header_digest: digests.header, data_digest: digests.data, data_bytes_max: 1 << 20 }
}

fn opening(in_capsule_bytes: u32) -> Opening {
    Opening {
        queue: 1,
        controller: CONTROLLER,
        host_id: [7; 16],
        host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:host").unwrap(),
        subsystem: Nqn::new("nqn.2024-01.example:disk").unwrap(),
        keep_alive_ms: 0,
        in_capsule_bytes,
    }
}

/// A command in flight.
struct Open {
    cid: u16,
    slba: u64,
    /// The written data; `None` for a read.
    data: Option<Bytes>,
    blocks: u64,
}

/// Both ends of a connection, and the results so far.
struct Run {
    hosts: [Host; 2],
    ids: [Option<Id>; 2],
    initiator: Option<Initiator>,
    controller: Controller,
    /// Bytes that the controller has yet to send.
    out: VecDeque<u8>,
    waiting: Option<controller::ControllerPdu>,
    /// True when the controller's end has started PDUs.
    ready: bool,
    told: Digests,
    /// The expected content of the disk.
    oracle: Vec<u8>,
    begun: [u64; 2],
    open: Vec<Open>,
    good: u64,
    failed: u64,
    /// Number of key changes since all was acknowledged.
    keys: usize,
    random: Random,
}

/// The result of a run.
struct Done {
    reports: [Report; 2],
    initiator: Initiator,
    controller: Controller,
    failed: u64,
    /// Number of the initiator's frames with written data in the clear.
    seen: u64,
    tcp: unlade_research_tcp::Stats,
}

fn run(case: &Case) -> Done {
    let (left, right) = memory::pair(512, 2048);
    let mut hosts = [Host::new(left, case, 0), Host::new(right, case, 1)];
    let server: SocketAddr = SERVER.parse().unwrap();
    hosts[1].stack.tcp().listen(server, 8).unwrap();
    let id = hosts[0].stack.connect(Time::from_ns(0), CLIENT.parse().unwrap(), server).unwrap();
    let disk: Vec<u8> = (0..BLOCKS * u64::from(BLOCK_BYTES)).map(byte).collect();
    let mut run = Run {
        hosts,
        ids: [Some(id), None],
        initiator: None,
        controller: Controller::new(case.habits, disk.clone()),
        out: VecDeque::new(),
        waiting: None,
        ready: false,
        told: Digests::NONE,
        oracle: disk,
        begun: [0; 2],
        open: Vec::new(),
        good: 0,
        failed: 0,
        keys: 0,
        random: Random::new(case.seed),
    };
    let mut now_ns = 0;
    for _ in 0..2_000_000 {
        run.client(case);
        run.server(case, server);
        let mut busy = 0;
        for host in &mut run.hosts {
            busy += host.stack.poll(Time::from_ns(now_ns));
            busy += host.engine.poll(now_ns);
        }
        if run.good + run.failed == case.reads + case.writes {
            return run.done(id);
        }
        now_ns += if busy == 0 { 50_000 } else { 2_000 };
    }
    panic!("{case:?}: {} of {:?} commands are done", run.good + run.failed, run.begun);
}

impl Run {
    fn done(mut self, id: Id) -> Done {
        let Controller { wrong, refused, disk, .. } = &self.controller;
        assert_eq!(self.failed > 0, !(wrong.is_empty() && refused.is_empty()));
        assert!(*disk == self.oracle, "the disk is not what it must be");
        let tcp = self.hosts[0].stack.tcp().get(id).unwrap().stats();
        Done {
            reports: [self.hosts[0].engine.report(), self.hosts[1].engine.report()],
            initiator: self.initiator.expect("there is one"),
            controller: self.controller,
            failed: self.failed,
            seen: self.hosts[0].seen.load(Ordering::Relaxed),
            tcp,
        }
    }

    fn client(&mut self, case: &Case) {
        let Some(id) = self.ids[0].filter(|id| self.hosts[0].established(*id)) else { return };
        if self.initiator.is_none() {
            self.initiator = Some(self.connect(case, id));
        }
        self.submit(case);
        let stack = &mut self.hosts[0].stack;
        let initiator = self.initiator.as_mut().unwrap();
        let tcp = stack.tcp().get(id).unwrap();
        if tcp.acknowledged() == tcp.send_end() {
            self.keys = 0;
        }
        let due = case.update_every.is_some_and(|turns| self.random.once_in(turns));
        // Software can undo the work of a device with at most this number of keys before the last
        // one.
        if case.tls && due && self.keys < KEYS_MAX / 2 {
            self.keys += 1;
            // Without room the keys are unchanged.
            let _ = stack.update_keys(id, self.random.once_in(2));
        }
        initiator.poll(stack).unwrap();
        while let Some(finished) = self.initiator.as_mut().unwrap().finished() {
            self.finished(finished);
        }
    }

    fn connect(&mut self, case: &Case, id: Id) -> Initiator {
        let stack = &mut self.hosts[0].stack;
        let device = case.ends[0] == End::Device;
        if case.tls {
            let mode = if device { Mode::Offload } else { Mode::Software };
            let pdus = device.then_some(nvme(case.wanted));
            stack.secure_pdus(id, mode, (secrets(0), 0), (secrets(1), 0), pdus).unwrap();
        }
        let config = Config {
            nvme: nvme(case.wanted),
            offload: device,
            secured: case.tls,
            depth: DEPTH,
            nsid: 1,
            block_bytes: BLOCK_BYTES,
        };
        Initiator::connect(stack, id, config, opening(case.in_capsule_bytes)).unwrap()
    }

    /// Starts a command whose blocks no concurrent command writes.
    fn submit(&mut self, case: &Case) {
        let initiator = self.initiator.as_mut().unwrap();
        let [reads, writes] = self.begun;
        let (read, write) = (reads < case.reads, writes < case.writes);
        if initiator.controller().is_none() || !(read || write) || self.random.once_in(2) {
            return;
        }
        let write = write && (!read || self.random.once_in(2));
        let blocks = 1 + self.random.below(case.blocks_max);
        let slba = self.random.below(BLOCKS - blocks);
        let meets = |open: &Open| {
            let apart = slba + blocks <= open.slba || open.slba + open.blocks <= slba;
            !apart && (write || open.data.is_some())
        };
        if self.open.iter().any(meets) {
            return;
        }
        let bytes = (blocks * u64::from(BLOCK_BYTES)) as usize;
        let stack = &mut self.hosts[0].stack;
        let data = write.then(|| written(bytes, &mut self.random));
        let begun = match &data {
            Some(data) => initiator.write(stack, slba, data.clone()).ok(),
            None => initiator.read(stack, slba, vec![0; bytes].into()).ok(),
        };
        if let Some(cid) = begun {
            self.begun[usize::from(write)] += 1;
            self.open.push(Open { cid, slba, data, blocks });
        }
    }

    fn finished(&mut self, Finished { cid, buffer, result, .. }: Finished) {
        let index = self.open.iter().position(|open| open.cid == cid).unwrap();
        let Open { slba, data, blocks, .. } = self.open.remove(index);
        let start = (slba * u64::from(BLOCK_BYTES)) as usize;
        let place = start..start + (blocks * u64::from(BLOCK_BYTES)) as usize;
        match (result, data) {
            (Ok(()), Some(data)) => self.oracle[place].copy_from_slice(&data),
            (Ok(()), None) => assert!(buffer[..] == self.oracle[place], "a read of {slba}"),
            (Err(CommandError::Status(status)), Some(_)) => {
                assert_eq!(status, Status::WRITE_PROTECTED.bits());
                assert!(self.controller.refused.contains(&cid));
            }
            (Err(error), _) => {
                assert_eq!(error, CommandError::DataDigest);
                assert!(self.controller.wrong.contains(&cid));
            }
        }
        match result {
            Ok(()) => self.good += 1,
            Err(_) => self.failed += 1,
        }
    }

    fn server(&mut self, case: &Case, address: SocketAddr) {
        if self.ids[1].is_none() {
            self.ids[1] = self.hosts[1].stack.tcp().accept(address);
        }
        let Some(id) = self.ids[1] else { return };
        let device = case.ends[1] == End::Device;
        let stack = &mut self.hosts[1].stack;
        if !self.ready {
            self.ready = true;
            let keys = ((secrets(1), 0), (secrets(0), 0));
            let none = nvme(Digests::NONE);
            match (case.tls, device) {
                (true, true) => {
                    stack.secure_pdus(id, Mode::Offload, keys.0, keys.1, Some(none)).unwrap();
                }
                (true, false) => stack.secure(id, Mode::Software, keys.0, keys.1).unwrap(),
                (false, true) => drop(stack.offload_pdus(id, none).unwrap()),
                (false, false) => (),
            }
        }
        while let Some(chunk) = stack.read(id).unwrap() {
            self.controller.hear(chunk.as_ref(), &mut self.random);
        }
        match device {
            true => self.send_by_device(id),
            false => self.send_by_software(id),
        }
    }

    fn send_by_device(&mut self, id: Id) {
        let stack = &mut self.hosts[1].stack;
        if self.waiting.is_none() {
            self.waiting = self.controller.next(&mut self.random);
        }
        let fits =
            |said: &mut controller::ControllerPdu| stack.has_room_for_pdu(id, said.data.len());
        let Some(said) = self.waiting.take_if(fits) else { return };
        stack.write_pdu(id, &said.pdu, said.data).unwrap();
        let agreed = self.controller.agreed();
        if agreed != self.told {
            // After ICResp.
            self.told = agreed;
            stack.agree_pdus(id, nvme(agreed), 4).unwrap();
        }
    }

    fn send_by_software(&mut self, id: Id) {
        if self.out.len() < 1 << 16
            && let Some(said) = self.controller.next(&mut self.random)
        {
            // ICResp has no digests in any case.
            self.out.extend(said.bytes(self.controller.agreed()));
        }
        let stack = &mut self.hosts[1].stack;
        let most = 1 + self.random.below(16_000) as usize;
        let bytes = most.min(self.out.len());
        if bytes > 0 && stack.write_room_bytes(id) >= bytes {
            let raw: Vec<u8> = self.out.drain(..bytes).collect();
            stack.write(id, Bytes::from(raw)).unwrap();
        }
    }
}

/// Blocks to write.
fn written(bytes: usize, random: &mut Random) -> Bytes {
    let mut data = Vec::with_capacity(bytes);
    while data.len() < bytes {
        let at = data.len() % BLOCK_BYTES as usize;
        match MARK.get(at) {
            Some(value) => data.push(*value),
            None => data.extend(random.next().to_le_bytes()),
        }
    }
    data.into()
}

#[test]
fn on_a_good_line_the_device_checks_and_places_everything() {
    for tls in [false, true] {
        let done = run(&Case { tls, ..usual() });
        let stats = done.initiator.reader().stats();
        // A packet with very many PDUs has more placements than the device reports.
        let copied_bytes = done.initiator.reader().copied_bytes();
        assert!(copied_bytes < stats.copy_skipped_bytes / 50, "{copied_bytes}, {stats:?}");
        let report = &done.reports[0];
        assert!(report.pdus.rx_placed_bytes > 0);
        assert_eq!(report.pdus.rx_placed_bytes, stats.copy_skipped_bytes);
        assert_eq!((stats.pdus_software, stats.pdus_partial), (0, 0), "{tls}: {stats:?}");
        assert!(stats.pdus_offloaded >= 40);
        assert_eq!(report.counters.commands_refused, 0);
        assert!(report.counters.rx_coalesced > 0);
        assert_eq!(report.machines.rx_tls_decrypted_bytes > 0, tls);
        assert_eq!(done.initiator.controller(), Some(CONTROLLER));
    }
}

#[test]
fn without_the_device_the_host_does_the_same() {
    for tls in [false, true] {
        let done = run(&Case { tls, ends: [End::Software; 2], writes: 40, ..usual() });
        let report = &done.reports[0];
        assert_eq!(report.pdus.rx_placed_bytes, 0);
        assert_eq!(report.pdus.tx_tls_encrypted_bytes, 0);
        assert_eq!(report.machines.tx_tls_encrypted_bytes, 0);
        assert_eq!(done.initiator.reader().stats().pdus_offloaded, 0);
        assert!(done.initiator.reader().copied_bytes() > 0);
    }
}

#[test]
fn the_device_fills_in_all_digests_of_writes() {
    for tls in [false, true] {
        let done = run(&Case { tls, reads: 0, writes: 60, ..usual() });
        let report = &done.reports[0];
        let Controller { in_capsule, transferred, .. } = done.controller;
        assert!(in_capsule > 0 && transferred > 0, "{in_capsule} {transferred}");
        let stats = if tls { &report.machines } else { &report.pdus };
        assert!(stats.tx_tls_encrypted_bytes > in_capsule + transferred);
        assert_eq!((stats.tx_tls_ooo, stats.tx_replayed_bytes, stats.tx_tls_err), (0, 0, 0));
        assert_eq!(report.counters.tx_dropped, 0);
        assert_eq!(done.seen == 0, tls, "{}", done.seen);
    }
}

#[test]
fn a_wrong_data_digest_fails_its_command_and_no_other() {
    for end in [End::Software, End::Device] {
        let mut case = Case { ends: [end, End::Software], ..usual() };
        case.habits.wrong_once_in = Some(12);
        let done = run(&case);
        assert!(done.failed > 0, "{end:?}");
        assert!(done.initiator.reader().stats().pdus_offloaded > 0 || end == End::Software);
    }
}

#[test]
fn a_write_that_is_refused_leaves_the_others_alone() {
    for end in [End::Software, End::Device] {
        let mut case = Case { ends: [end, End::Software], reads: 0, writes: 60, ..usual() };
        case.habits.refused_once_in = Some(5);
        assert!(run(&case).failed > 0, "{end:?}");
    }
}

#[test]
fn after_a_loss_the_device_finds_back_and_goes_on_placing() {
    for tls in [false, true] {
        let impairment = Impairment { loss_ppm: 10_000, reorder_ppm: 5_000, ..usual().impairment };
        let (mut answered, mut offloaded, mut partial, mut copied) = (0, 0, 0, 0);
        for seed in 0..4 {
            let done = run(&Case { tls, impairment, seed, reads: 150, ..usual() });
            let stats = done.initiator.reader().stats();
            answered += done.reports[0].pdus.rx_tls_resync_res_ok;
            offloaded += stats.pdus_offloaded;
            partial += stats.pdus_partial;
            copied += done.initiator.reader().copied_bytes();
        }
        assert!(answered > 0 && partial > 0 && copied > 0, "{tls}: {answered} {partial} {copied}");
        assert!(offloaded > 200, "{tls}: {offloaded}");
    }
}

#[test]
fn what_is_lost_of_a_write_is_replayed_and_sent_again() {
    for tls in [false, true] {
        let impairment = Impairment { loss_ppm: 20_000, reorder_ppm: 5_000, ..usual().impairment };
        let (mut replayed, mut inner, mut again) = (0, 0, 0);
        for seed in 0..4 {
            let (reads, writes) = (0, 100);
            let done = run(&Case { tls, impairment, seed, reads, writes, ..usual() });
            let Report { machines, pdus, counters, .. } = &done.reports[0];
            assert_eq!(done.seen == 0, tls);
            assert_eq!(machines.tx_tls_err + pdus.tx_tls_err + counters.tx_dropped, 0);
            let outer = if tls { machines } else { pdus };
            replayed += outer.tx_replayed_bytes;
            inner += if tls { pdus.tx_replayed_bytes } else { 0 };
            again += done.tcp.retransmitted_bytes;
        }
        assert!(replayed > 0 && again > 0, "{tls}: {replayed} {again}");
        // The PDU before a record.
        assert_eq!(inner > 0, tls);
    }
}

#[test]
fn keys_change_between_the_pdus_of_a_write() {
    let impairment = Impairment { loss_ppm: 10_000, ..usual().impairment };
    for ends in [[End::Device, End::Software], [End::Software; 2]] {
        let update_every = Some(40);
        let case = Case { tls: true, ends, impairment, writes: 60, update_every, ..usual() };
        assert_eq!(run(&case).seen, 0);
    }
}

fn random_case(random: &mut Random) -> Case {
    let percent = |random: &mut Random| 10_000 * random.below(6) as u32;
    let digests =
        |random: &mut Random| Digests { header: !random.once_in(3), data: !random.once_in(3) };
    let end = |random: &mut Random| if random.once_in(3) { End::Software } else { End::Device };
    let ends = [end(random), end(random)];
    let tls = random.once_in(2);
    Case {
        wanted: digests(random),
        habits: ControllerConfig {
            digests: digests(random),
            data_bytes_max: 4096 << random.below(7),
            alignment_bytes: 4 << random.below(6),
            // Only software can inject wrong digests.
            wrong_once_in: (ends[1] == End::Software && random.once_in(3)).then_some(10),
            refused_once_in: random.once_in(3).then_some(8),
        },
        tls,
        ends,
        impairment: Impairment {
            loss_ppm: percent(random),
            duplicate_ppm: percent(random),
            corrupt_ppm: if random.once_in(5) { 10_000 } else { 0 },
            reorder_ppm: percent(random),
            delay_ns: random.below(3) * 100_000,
        },
        reads: random.below(40),
        writes: 1 + random.below(40),
        blocks_max: 1 + random.below(600),
        in_capsule_bytes: [0, 4096, 8192, 16 << 10, 1 << 20][random.below(5) as usize],
        update_every: random.once_in(2).then_some(200),
        seed: random.next(),
    }
}

#[test]
fn reads_are_right_in_every_mode_on_every_line() {
    cases(20, |random| {
        let case = Case { writes: 0, reads: 1 + random.below(60), ..random_case(random) };
        run(&case);
    });
}

#[test]
fn reads_and_writes_are_right_in_every_mode_on_every_line() {
    cases(40, |random| {
        let case = random_case(random);
        let done = run(&case);
        assert!(!case.tls || done.seen == 0, "{case:?}");
    });
}
