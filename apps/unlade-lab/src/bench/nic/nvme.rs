//! Reads over NVMe/TCP: what checking digests and copying data cost the host's core, and what is left
//! where the device does both, in the clear and over TLS.
//!
//! The far end is a port whose answers are made beforehand, so that it costs next to nothing. Data goes
//! to buffers that are used in turn, of a region that is larger than the caches.

use super::super::record::Sink;
use super::figures::{Cost, ratio, write};
use super::host::{addresses, secrets, stack};
use super::responder::{Answers, Responder};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::collections::VecDeque;
use std::time::Instant;
use unlade_aead::crc32c;
use unlade_command::output::line;
use unlade_nic_engine::Nvme;
use unlade_nic_engine::nvme::{FLAG_DDGST, FLAG_HDGST, FLAG_LAST, FLAG_SUCCESS, types};
use unlade_research_nic::engine::Engine;
use unlade_research_nic::queue::{QueueConfig, pair};
use unlade_research_nic::stack::Stack;
use unlade_research_nic::storage::capsule::CAPSULE_BYTES;
use unlade_research_nic::storage::initiator::{Config, Initiator};
use unlade_research_nic::tls::Mode;
use unlade_research_nic::tls::keys::SoftKey;
use unlade_research_tcp::{Id, Time};

/// Bytes of payload in a frame.
pub const MSS_BYTES: usize = 1448;
const READS_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
pub const DEPTHS: [u16; 3] = [1, 8, 64];
/// Bytes that are read in a round; all of them are in memory, in frames.
const ROUND_BYTES: usize = 32 << 20;
/// Bytes of all buffers.
const REGION_BYTES: usize = 128 << 20;
pub const BLOCK_BYTES: u32 = 4096;
/// Content of a record.
const RECORD_BYTES: usize = 16 << 10;
/// Source of the data of reads.
const CONTENT: u8 = 0x55;

/// Division of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// No digests; the host copies.
    Plain,
    /// Digests and copies by the host.
    Software,
    /// Records by the device, digests and copies by the host.
    Records,
    /// The device.
    Offload,
}

impl How {
    pub const ALL: [How; 3] = [How::Plain, How::Software, How::Offload];

    /// Its name in results.
    pub fn mode(self) -> &'static str {
        match self {
            How::Plain => "nvme",
            How::Software => "software",
            How::Records => "offload-tls",
            How::Offload => "offload",
        }
    }
}

/// Reads one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub how: How,
    pub tls: bool,
    pub read_bytes: usize,
    /// How many are in flight at most.
    pub depth: u16,
    /// How many there are.
    pub reads: usize,
}

impl Case {
    fn nvme(&self) -> Nvme {
        let digests = self.how != How::Plain;
        Nvme { header_digest: digests, data_digest: digests, data_bytes_max: 1 << 20 }
    }

    /// The answer to a command: its data, and that it has succeeded.
    fn answer(&self, cid: u16, data: &[u8], data_digest: u32) -> Vec<u8> {
        let digest_bytes = if self.how == How::Plain { 0 } else { 4 };
        let digests = if digest_bytes == 0 { 0 } else { FLAG_HDGST | FLAG_DDGST };
        let data_at = 24 + digest_bytes;
        let pdu_bytes = (data_at + data.len() + digest_bytes) as u32;
        let mut pdu = Vec::with_capacity(pdu_bytes as usize);
        pdu.extend([types::C2H_DATA, FLAG_LAST | FLAG_SUCCESS | digests, 24, data_at as u8]);
        pdu.extend(pdu_bytes.to_le_bytes());
        pdu.extend(cid.to_le_bytes());
        pdu.extend([0; 6]);
        pdu.extend((data.len() as u32).to_le_bytes());
        pdu.extend([0; 4]);
        if digest_bytes > 0 {
            pdu.extend(crc32c::update(0, &pdu).to_le_bytes());
        }
        pdu.extend(data);
        if digest_bytes > 0 {
            pdu.extend(data_digest.to_le_bytes());
        }
        pdu
    }

    /// The far end, with all its answers. Commands have their identifiers in turn.
    fn responder(&self) -> Result<Responder> {
        let data = vec![CONTENT; self.read_bytes];
        let digest = crc32c::update(0, &data);
        let key = if self.tls { Some(SoftKey::new(&secrets())?) } else { None };
        let (mut stream, mut number) = (Vec::new(), 0);
        for command in 0..self.reads {
            let cid = (command % usize::from(self.depth)) as u16;
            let answer = self.answer(cid, &data, digest);
            let Some(key) = &key else {
                stream.extend(answer);
                continue;
            };
            for content in answer.chunks(RECORD_BYTES) {
                let sealed_bytes = key.prefix_bytes() + content.len() + key.suffix_bytes();
                let start = stream.len();
                stream.resize(start + sealed_bytes, 0);
                key.seal(number, 23, content, &mut stream[start..])?;
                number += 1;
            }
        }
        let answer_bytes = stream.len() / self.reads;
        let digest_bytes = if self.how == How::Plain { 0 } else { 4 };
        let sealed_bytes = key.map_or(0, |key| key.prefix_bytes() + key.suffix_bytes());
        let question_bytes = (CAPSULE_BYTES + digest_bytes + sealed_bytes) as u32;
        Ok(Responder::answers(MSS_BYTES, stream, Answers::new(question_bytes, answer_bytes)))
    }
}

/// Buffers to read into; the one that was used longest ago is first.
pub type Region = VecDeque<Box<[u8]>>;

/// A host that reads.
pub struct Reader {
    case: Case,
    stack: Stack,
    initiator: Initiator,
    begun_at: Instant,
    /// Reads that may be begun so far, that were, and that are finished.
    pub allowed: usize,
    begun: usize,
    pub finished: usize,
}

impl Reader {
    /// Runs the host's pending work.
    ///
    /// # Errors
    /// A read fails.
    pub fn turn(&mut self, region: &mut Region) -> Result<usize> {
        let depth = usize::from(self.case.depth);
        let (begun, finished) = (self.begun, self.finished);
        while self.begun < self.allowed && self.begun - self.finished < depth {
            let buffer = region.pop_front().context("a buffer that is not in use")?;
            let slba = (self.begun * self.case.read_bytes) as u64 / u64::from(BLOCK_BYTES);
            if let Err((error, buffer)) = self.initiator.read(&mut self.stack, slba, buffer) {
                region.push_front(buffer);
                ensure!(self.begun > self.finished, "reading: {error}");
                break;
            }
            self.begun += 1;
        }
        let polled = self.stack.poll(now(self.begun_at));
        self.initiator.poll(&mut self.stack)?;
        while let Some(done) = self.initiator.finished() {
            done.result.context("a read")?;
            region.push_back(done.buffer);
            self.finished += 1;
        }
        Ok(polled + (self.begun - begun) + (self.finished - finished))
    }
}

/// A host that reads, and its device.
pub struct Pair {
    pub reader: Reader,
    pub engine: Engine<Responder>,
}

impl Pair {
    /// Has a connection, over which nothing is read yet.
    ///
    /// # Errors
    /// There is none.
    pub fn new(case: Case) -> Result<Pair> {
        let (queue, device) = pair(QueueConfig::default());
        let mut engine = Engine::new(case.responder()?, device);
        let mut stack = stack(queue);
        let begun_at = Instant::now();
        let (local, remote) = addresses();
        let id = stack.connect(Time::from_ns(0), local, remote).context("connecting")?;
        for _ in 0..1000 {
            stack.poll(now(begun_at));
            engine.poll(0);
        }
        let established =
            stack.tcp().get(id).is_some_and(unlade_research_tcp::Connection::is_established);
        ensure!(established, "the far end has not answered");
        let initiator = initiator(&mut stack, id, &case)?;
        for _ in 0..4 {
            engine.poll(0);
        }
        engine.port().start();
        let reader = Reader { case, stack, initiator, begun_at, allowed: 0, begun: 0, finished: 0 };
        Ok(Pair { reader, engine })
    }

    /// Host and engine take turns on this processor.
    fn run(mut self, region: &mut Region) -> Result<Cost> {
        let (mut host_ns, mut engine_ns) = (0, 0);
        let reads = self.reader.case.reads;
        self.reader.allowed = reads;
        let begun = Instant::now();
        let mut at = begun;
        while self.reader.finished < reads {
            self.reader.turn(region)?;
            let turned = Instant::now();
            let now_ns = now(self.reader.begun_at).ns();
            while self.engine.poll(now_ns) > 1 {}
            let polled = Instant::now();
            host_ns += (turned - at).as_nanos();
            engine_ns += (polled - turned).as_nanos();
            at = polled;
        }
        let throughput_bytes_per_s = ROUND_BYTES as f64 / begun.elapsed().as_secs_f64();
        check(&self.reader.case, &self.engine, region)?;
        let bytes = ROUND_BYTES as f64;
        Ok(Cost {
            host_ns_per_byte: host_ns as f64 / bytes,
            engine_ns_per_byte: engine_ns as f64 / bytes,
            throughput_bytes_per_s,
        })
    }
}

/// Every read had its data, and the device placed it if it should, and only then.
///
/// # Errors
/// That is not so.
pub fn check(case: &Case, engine: &Engine<Responder>, region: &mut Region) -> Result<()> {
    let read = region.iter_mut().rev().take(case.reads);
    for buffer in read {
        ensure!(buffer.iter().all(|byte| *byte == CONTENT), "data is not what was sent");
        buffer.fill(0);
    }
    let placed = engine.report().pdus.rx_placed_bytes as f64;
    let much = placed > 0.9 * (case.reads * case.read_bytes) as f64;
    ensure!(much == (case.how == How::Offload), "{case:?}: the device placed {placed} bytes");
    Ok(())
}

fn initiator(stack: &mut Stack, id: Id, case: &Case) -> Result<Initiator> {
    let (nvme, offload, secured, depth) =
        (case.nvme(), case.how == How::Offload, case.tls, case.depth);
    if case.tls {
        let by_device = offload || case.how == How::Records;
        let mode = if by_device { Mode::Offload } else { Mode::Software };
        let keys = || (secrets(), 0);
        let inner = offload.then_some(nvme);
        stack.secure_pdus(id, mode, keys(), keys(), inner).context("securing the connection")?;
    }
    let config = Config { nvme, offload, secured, depth, nsid: 1, block_bytes: BLOCK_BYTES };
    Initiator::new(stack, id, config).context("starting the initiator")
}

pub fn now(begun: Instant) -> Time {
    Time::from_ns(begun.elapsed().as_nanos() as u64)
}

/// Runs the reads.
///
/// # Errors
/// A read fails, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 3 } else { 9 };
    for read_bytes in READS_BYTES {
        let buffers = REGION_BYTES / read_bytes;
        let mut region: Region = (0..buffers).map(|_| vec![1; read_bytes].into()).collect();
        for tls in [false, true] {
            for depth in DEPTHS {
                compare(Read { tls, read_bytes, depth }, rounds, &mut region, sink)?;
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Read {
    tls: bool,
    read_bytes: usize,
    depth: u16,
}

fn compare(
    Read { tls, read_bytes, depth }: Read,
    rounds: usize,
    region: &mut Region,
    sink: &mut Sink,
) -> Result<()> {
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for _ in 0..rounds {
        for (index, how) in How::ALL.into_iter().enumerate() {
            let case = Case { how, tls, read_bytes, depth, reads: ROUND_BYTES / read_bytes };
            costs[index].push(Pair::new(case)?.run(region)?);
        }
    }
    let protocol = if tls { "nvme-tls" } else { "nvme" };
    let case = json!({
        "part": protocol, "attachment": "A", "read_bytes": read_bytes, "depth": depth, "cores": 1,
    });
    line(format_args!("{protocol}, reads of {} KiB, depth {depth}", read_bytes >> 10))?;
    let costs = costs.map(|costs| Cost::medians(&costs));
    for (how, cost) in How::ALL.iter().zip(&costs) {
        write(sink, &case, how.mode(), cost)?;
        let per_read = |ns_per_byte: f64| ns_per_byte * read_bytes as f64;
        let (host, engine) = (per_read(cost.host_ns_per_byte), per_read(cost.engine_ns_per_byte));
        line(format_args!("  {:<10}{host:>10.0} ns host{engine:>10.0} ns engine", how.mode()))?;
    }
    let [plain, software, offload] = costs.map(|cost| cost.host_ns_per_byte);
    ratio(
        sink,
        &case,
        &[
            ("host_time_ratio_vs_software".to_owned(), offload / software),
            ("share_of_digests".to_owned(), (software - plain) / software),
            ("share_of_digests_copy_and_records".to_owned(), (software - offload) / software),
        ],
    )
}
