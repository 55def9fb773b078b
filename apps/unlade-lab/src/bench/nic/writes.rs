//! Writes over NVMe/TCP: what digests and records cost the host's core, and what is left where the
//! device does both. Data goes down by reference in every mode; software makes records of it.

use super::super::record::Sink;
use super::controller::{Controller, Writes};
use super::figures::{Cost, ratio, write};
use super::host::{addresses, secrets, stack};
use super::nvme::{BLOCK_BYTES, DEPTHS, How, MSS_BYTES, now};
use super::responder::Responder;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::json;
use std::time::Instant;
use unlade_command::output::line;
use unlade_nic_engine::Nvme;
use unlade_nvme_wire::{Digests, Nqn};
use unlade_research_nic::engine::{Engine, Report};
use unlade_research_nic::queue::{QueueConfig, pair};
use unlade_research_nic::stack::Stack;
use unlade_research_nic::storage::initiator::{Config, Initiator};
use unlade_research_nic::storage::open::Opening;
use unlade_research_nic::tls::Mode;
use unlade_research_tcp::{Id, Time};

const WRITES_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Bytes that are written in a round.
const ROUND_BYTES: usize = 32 << 20;
/// Bytes of all buffers.
const REGION_BYTES: usize = 128 << 20;
/// Data up to here goes with its command (IOCCSZ).
const IN_CAPSULE_BYTES: usize = 8 << 10;
/// Commands of the round that is checked.
const CHECKED: usize = 70;
/// Source buffer of writes, used again and again.
const CONTENT: [u8; 8] = *b"written.";

#[derive(Debug, Clone, Copy)]
struct Case {
    how: How,
    tls: bool,
    write_bytes: usize,
    depth: u16,
    count: usize,
}

impl Case {
    fn digests(&self) -> Digests {
        if self.how == How::Plain { Digests::NONE } else { Digests::BOTH }
    }

    fn writes(&self) -> Writes {
        let &Case { tls, write_bytes, depth, .. } = self;
        let in_capsule = write_bytes <= IN_CAPSULE_BYTES;
        Writes { tls, digests: self.digests(), write_bytes, in_capsule, depth }
    }
}

/// A host that writes, and its device.
struct Pair {
    case: Case,
    stack: Stack,
    initiator: Initiator,
    engine: Engine<Responder>,
    begun_at: Instant,
    begun: usize,
    finished: usize,
}

impl Pair {
    fn new(case: Case, checks: bool) -> Result<Pair> {
        let (queue, device) = pair(QueueConfig::default());
        let controller = Controller::new(case.writes(), checks)?;
        let mut engine = Engine::new(Responder::controller(MSS_BYTES, controller), device);
        let mut stack = stack(queue);
        let begun_at = Instant::now();
        let (local, remote) = addresses();
        let id = stack.connect(Time::from_ns(0), local, remote).context("connecting")?;
        for _ in 0..100 {
            stack.poll(now(begun_at));
            engine.poll(0);
        }
        let mut initiator = initiator(&mut stack, id, &case)?;
        for _ in 0..1000 {
            stack.poll(now(begun_at));
            engine.poll(0);
            initiator.poll(&mut stack)?;
        }
        initiator.controller().context("the far end has not answered")?;
        Ok(Pair { case, stack, initiator, engine, begun_at, begun: 0, finished: 0 })
    }

    /// Runs the host's pending work.
    fn turn(&mut self, region: &[Bytes]) -> Result<()> {
        let Case { depth, count, write_bytes, .. } = self.case;
        while self.begun < count && self.begun - self.finished < usize::from(depth) {
            let data = region[self.begun % region.len()].clone();
            let slba = (self.begun * write_bytes) as u64 / u64::from(BLOCK_BYTES);
            if let Err(error) = self.initiator.write(&mut self.stack, slba, data) {
                ensure!(self.begun > self.finished, "writing: {error}");
                break;
            }
            self.begun += 1;
        }
        self.stack.poll(now(self.begun_at));
        self.initiator.poll(&mut self.stack)?;
        while let Some(done) = self.initiator.finished() {
            done.result.context("a write")?;
            self.finished += 1;
        }
        Ok(())
    }

    /// Host and engine take turns on this processor.
    fn run(&mut self, region: &[Bytes]) -> Result<Cost> {
        let answers_ns = |engine: &mut Engine<Responder>| {
            engine.port().far().map_or(0, |controller| controller.answer_ns())
        };
        let (mut host_ns, mut engine_ns) = (0, 0);
        let far_ns = answers_ns(&mut self.engine);
        let begun = Instant::now();
        let mut at = begun;
        while self.finished < self.case.count {
            self.turn(region)?;
            let turned = Instant::now();
            let now_ns = now(self.begun_at).ns();
            while self.engine.poll(now_ns) > 1 {}
            let polled = Instant::now();
            host_ns += (turned - at).as_nanos();
            engine_ns += (polled - turned).as_nanos();
            at = polled;
        }
        let elapsed = begun.elapsed().as_secs_f64();
        self.check()?;
        engine_ns -= engine_ns.min(answers_ns(&mut self.engine) - far_ns);
        let bytes = (self.case.count * self.case.write_bytes) as f64;
        Ok(Cost {
            host_ns_per_byte: host_ns as f64 / bytes,
            engine_ns_per_byte: engine_ns as f64 / bytes,
            throughput_bytes_per_s: bytes / elapsed,
        })
    }

    /// The device did what it should, and only that.
    fn check(&mut self) -> Result<()> {
        let Report { machines, pdus, counters, .. } = self.engine.report();
        let case = &self.case;
        let bytes = (case.count * case.write_bytes) as u64;
        let worked = if case.tls { machines } else { pdus }.tx_tls_encrypted_bytes;
        let right = if case.how == How::Offload { worked > bytes } else { worked == 0 };
        ensure!(right, "{case:?}: the device worked on {worked} bytes");
        ensure!(counters.tx_dropped == 0, "{case:?}: {} dropped", counters.tx_dropped);
        let completed = self.engine.port().far().map(|controller| controller.completed());
        ensure!(completed == Some(case.count), "{case:?}: {completed:?} are complete");
        Ok(())
    }
}

fn initiator(stack: &mut Stack, id: Id, case: &Case) -> Result<Initiator> {
    let Digests { header, data } = case.digests();
    let nvme = Nvme { header_digest: header, data_digest: data, data_bytes_max: 1 << 20 };
    let offload = case.how == How::Offload;
    if case.tls {
        let mode = if offload { Mode::Offload } else { Mode::Software };
        let keys = || (secrets(), 0);
        let inner = offload.then_some(nvme);
        stack.secure_pdus(id, mode, keys(), keys(), inner).context("securing the connection")?;
    }
    let (secured, depth) = (case.tls, case.depth);
    let config = Config { nvme, offload, secured, depth, nsid: 1, block_bytes: BLOCK_BYTES };
    let opening = Opening {
        queue: 1,
        controller: 1,
        host_id: [1; 16],
        host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:bench")?,
        subsystem: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:far")?,
        keep_alive_ms: 0,
        in_capsule_bytes: IN_CAPSULE_BYTES as u32,
    };
    Initiator::connect(stack, id, config, opening).context("starting the initiator")
}

/// Buffers of so many bytes.
fn region(write_bytes: usize, bytes: usize) -> Vec<Bytes> {
    let buffer: Vec<u8> = CONTENT.iter().copied().cycle().take(write_bytes).collect();
    (0..bytes.div_ceil(write_bytes)).map(|_| Bytes::from(buffer.clone())).collect()
}

/// Runs the writes of the part.
///
/// # Errors
/// A write fails, or is not what it must be, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 3 } else { 9 };
    for write_bytes in WRITES_BYTES {
        let region = region(write_bytes, REGION_BYTES);
        for tls in [false, true] {
            for depth in DEPTHS {
                let case =
                    |how| Case { how, tls, write_bytes, depth, count: ROUND_BYTES / write_bytes };
                compare(case, rounds, &region, sink)?;
            }
        }
    }
    Ok(())
}

/// Every byte that the far end gets is right.
fn checked(case: Case, region: &[Bytes]) -> Result<()> {
    let count = CHECKED.min(case.count);
    let mut pair = Pair::new(Case { count, ..case }, true)?;
    pair.run(region)?;
    let far = pair.engine.port().far().context("a controller")?;
    far.check(&CONTENT).with_context(|| format!("{case:?}"))
}

fn compare(
    case: impl Fn(How) -> Case,
    rounds: usize,
    region: &[Bytes],
    sink: &mut Sink,
) -> Result<()> {
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for how in How::ALL {
        checked(case(how), region)?;
    }
    for _ in 0..rounds {
        for (index, how) in How::ALL.into_iter().enumerate() {
            costs[index].push(Pair::new(case(how), false)?.run(region)?);
        }
    }
    let Case { tls, write_bytes, depth, .. } = case(How::Plain);
    let protocol = if tls { "nvme-tls" } else { "nvme" };
    let case = json!({
        "part": protocol, "attachment": "A", "write_bytes": write_bytes, "depth": depth, "cores": 1,
    });
    line(format_args!("{protocol}, writes of {} KiB, depth {depth}", write_bytes >> 10))?;
    let costs = costs.map(|costs| Cost::medians(&costs));
    for (how, cost) in How::ALL.iter().zip(&costs) {
        write(sink, &case, how.mode(), cost)?;
        let per_write = |ns_per_byte: f64| ns_per_byte * write_bytes as f64;
        let (host, engine) = (per_write(cost.host_ns_per_byte), per_write(cost.engine_ns_per_byte));
        line(format_args!("  {:<10}{host:>10.0} ns host{engine:>10.0} ns engine", how.mode()))?;
    }
    let [plain, software, offload] = costs.map(|cost| cost.host_ns_per_byte);
    ratio(
        sink,
        &case,
        &[
            ("host_time_ratio_vs_software".to_owned(), offload / software),
            ("share_of_digests".to_owned(), (software - plain) / software),
            ("share_of_digests_and_records".to_owned(), (software - offload) / software),
        ],
    )
}
