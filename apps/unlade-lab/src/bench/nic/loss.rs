//! A bad line: packets that are lost or come out of order, where the host sends or where it receives.
//!
//! Two hosts in one process with a line between their devices. Time is virtual: where neither host has
//! anything to do it jumps to the next timer, so that waiting costs nothing; what the host's and the
//! device's turns take is real. In the paper 128 streams keep a core busy (figures 16 to 18); here
//! one does, and throughput is what a busy core would have: the inverse of its cost.

use super::super::record::Sink;
use super::figures::{Cost, metrics, object, ratio};
use super::host::{Host, Records, addresses, stack};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::time::Instant;
use unlade_command::output::line;
use unlade_nic_engine::Stats;
use unlade_research_nic::engine::Engine;
use unlade_research_nic::port::impair::{Impair, Impairment};
use unlade_research_nic::port::memory;
use unlade_research_nic::port::memory::MemoryPort;
use unlade_research_nic::queue::{QueueConfig, pair};
use unlade_research_tcp::Time;

const RECORD_BYTES: usize = 16 << 10;
const PERCENTS: [u32; 6] = [0, 1, 2, 3, 4, 5];
/// One percent, in what impairments are told in.
const PERCENT_PPM: u32 = 10_000;
/// Frames that are on the line.
const LINE_FRAMES: usize = 1024;
const FRAME_BYTES: usize = 2048;
/// A turn of everybody.
const STEP_NS: u64 = 2_000;
/// The line takes this long, each way.
const DELAY_NS: u64 = 20_000;
/// Turns in which nothing happens and no timer runs, until something is wrong.
const IDLE_TURNS_MAX: u32 = 100_000;

/// The measurement, and the impairments of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// The host sends, and loses packets.
    SendLoss,
    /// It receives, and packets were lost.
    ReceiveLoss,
    /// It receives, and packets are out of order.
    ReceiveReorder,
}

impl What {
    fn receives(self) -> bool {
        self != What::SendLoss
    }

    fn axis(self) -> &'static str {
        match self {
            What::SendLoss | What::ReceiveLoss => "loss_percent",
            What::ReceiveReorder => "reorder_percent",
        }
    }

    fn name(self) -> &'static str {
        if self.receives() { "receive" } else { "send" }
    }

    fn impairment(self, percent: u32) -> Impairment {
        let ppm = percent * PERCENT_PPM;
        let delay = Impairment { delay_ns: DELAY_NS, ..Impairment::default() };
        match self {
            What::SendLoss | What::ReceiveLoss => Impairment { loss_ppm: ppm, ..delay },
            What::ReceiveReorder => Impairment { reorder_ppm: ppm, ..delay },
        }
    }
}

type Device = Engine<Impair<MemoryPort>>;

/// Two hosts: the one that is measured sends or receives.
struct Line {
    measured: Host,
    device: Device,
    peer: Host,
    far: Device,
    now_ns: u64,
    cost: Cost,
    receives: bool,
}

/// Result of a run.
struct Outcome {
    cost: Cost,
    /// Of the measured host.
    records: Stats,
    /// Of its device.
    machines: Stats,
}

impl Line {
    fn new(what: What, percent: u32, records: Records, seed: u64) -> Result<Line> {
        let (near, away) = memory::pair(LINE_FRAMES, FRAME_BYTES);
        let bad = what.impairment(percent);
        let good = what.impairment(0);
        // What the measured host gets, or what it sends, is impaired; answers are not.
        let (here, there) = if what.receives() { (good, bad) } else { (bad, good) };
        let impaired = |port, out| Impair::new(port, out, Impairment::default(), seed);
        let (queue, device) = pair(QueueConfig::default());
        let (peer_queue, far) = pair(QueueConfig::default());
        let mut device = Engine::new(impaired(near, here), device);
        let mut far = Engine::new(impaired(away, there), far);
        let (mut measured, mut peer) = (stack(queue), stack(peer_queue));
        let (local, remote) = addresses();
        peer.tcp().listen(remote, 1).context("listening")?;
        let id = measured.connect(Time::from_ns(0), local, remote).context("connecting")?;
        let mut now_ns = 0;
        let accepted = loop {
            now_ns += STEP_NS;
            for (stack, device) in [(&mut measured, &mut device), (&mut peer, &mut far)] {
                stack.poll(Time::from_ns(now_ns));
                device.poll(now_ns);
            }
            let established =
                measured.tcp().get(id).is_some_and(unlade_research_tcp::Connection::is_established);
            match peer.tcp().accept(remote) {
                Some(accepted) => break accepted,
                None => ensure!(now_ns < 60_000_000_000, "no connection; {established}"),
            }
        };
        let mut measured = Host::new(measured, id, RECORD_BYTES);
        let mut peer = Host::new(peer, accepted, RECORD_BYTES);
        measured.secure(records)?;
        peer.secure(if records == Records::None { records } else { Records::Software })?;
        let receives = what.receives();
        Ok(Line { measured, device, peer, far, now_ns, cost: Cost::default(), receives })
    }

    /// Sends or receives `count` records.
    fn run(mut self, count: usize) -> Result<Outcome> {
        let (mut host_ns, mut engine_ns) = (0, 0);
        let bytes = count * RECORD_BYTES;
        let mut idle = 0;
        loop {
            let begun = Instant::now();
            let mut busy = self.measured_turn(count)?;
            let turned = Instant::now();
            busy += self.device.poll(self.now_ns);
            engine_ns += turned.elapsed().as_nanos();
            host_ns += (turned - begun).as_nanos();
            busy += self.peer_turn(count)? + self.far.poll(self.now_ns);
            let read = if self.receives { &self.measured } else { &self.peer };
            if read.read_bytes() == bytes {
                break;
            }
            idle = if busy > 0 { 0 } else { idle + 1 };
            ensure!(idle < IDLE_TURNS_MAX, "nothing happens any more");
            self.now_ns = if busy > 0 { self.now_ns + STEP_NS } else { self.next_ns() };
        }
        self.cost.host_ns_per_byte = host_ns as f64 / bytes as f64;
        self.cost.engine_ns_per_byte = engine_ns as f64 / bytes as f64;
        self.cost.throughput_bytes_per_s = 1e9 / self.cost.host_ns_per_byte;
        let (records, machines) = (*self.measured.stats(), self.device.report().machines);
        Ok(Outcome { cost: self.cost, records, machines })
    }

    fn measured_turn(&mut self, count: usize) -> Result<usize> {
        let done = match self.receives {
            true => self.measured.read()?,
            false => self.measured.write(count),
        };
        Ok(done + self.measured.poll(self.now_ns))
    }

    fn peer_turn(&mut self, count: usize) -> Result<usize> {
        let done = match self.receives {
            true => self.peer.write(count),
            false => self.peer.read()?,
        };
        Ok(done + self.peer.poll(self.now_ns))
    }

    /// The next instant when no party has work: a timer, or a frame on the line.
    fn next_ns(&self) -> u64 {
        let timers = [self.measured.timeout_ns(), self.peer.timeout_ns()];
        let timer_ns = timers.into_iter().flatten().min().unwrap_or(u64::MAX);
        timer_ns.clamp(self.now_ns + STEP_NS, self.now_ns + DELAY_NS)
    }
}

/// Runs the part.
///
/// # Errors
/// A stream breaks, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let (rounds, count) = if quick { (5, 400) } else { (9, 2000) };
    for what in [What::SendLoss, What::ReceiveLoss, What::ReceiveReorder] {
        for percent in PERCENTS {
            compare(what, percent, rounds, count, sink)?;
        }
    }
    Ok(())
}

fn compare(what: What, percent: u32, rounds: u64, count: usize, sink: &mut Sink) -> Result<()> {
    let mut outcomes: [Vec<Outcome>; 3] = Default::default();
    for round in 0..rounds {
        for (records, outcomes) in Records::ALL.into_iter().zip(&mut outcomes) {
            let seed = sink.seed().wrapping_mul(1000) + round;
            let line = Line::new(what, percent, records, seed)?;
            let outcome = line.run(count).with_context(|| {
                format!("{} {percent} {}, seed {seed}", what.axis(), records.mode())
            })?;
            outcomes.push(outcome);
        }
    }
    let mut case = object(&json!({ "part": "loss", "attachment": "A", "what": what.name(),
        "record_bytes": RECORD_BYTES }));
    case.insert(what.axis().to_owned(), percent.into());
    let mut costs = [Cost::default(); 3];
    for ((records, outcomes), cost) in Records::ALL.iter().zip(&outcomes).zip(&mut costs) {
        *cost = Cost::medians(&outcomes.iter().map(|outcome| outcome.cost).collect::<Vec<Cost>>());
        let mut figures = metrics(cost);
        if *records == Records::Offload {
            figures.extend(split(what, outcomes));
        }
        sink.write(case.clone(), records.mode(), figures)?;
    }
    let [tcp, software, offload] = costs;
    let ns = |cost: Cost| cost.host_ns_per_byte * RECORD_BYTES as f64;
    line(format_args!(
        "{:<8}{:<16}{percent} %  host ns a record: tcp {:>6.0}  aws-lc {:>6.0}  offload {:>6.0} (engine {:>6.0})  {}",
        what.name(),
        what.axis(),
        ns(tcp),
        ns(software),
        ns(offload),
        offload.engine_ns_per_byte * RECORD_BYTES as f64,
        told(&split(what, &outcomes[2])),
    ))?;
    ratio(
        sink,
        &Value::Object(case),
        &[
            (
                format!("host_cost_ratio_{}", if what.receives() { "rx" } else { "tx" }),
                software.host_ns_per_byte / offload.host_ns_per_byte,
            ),
            ("host_time_ratio_vs_tcp".to_owned(), offload.host_ns_per_byte / tcp.host_ns_per_byte),
        ],
    )
}

/// Work of the device and of the host over all rounds.
fn split(what: What, outcomes: &[Outcome]) -> Map<String, Value> {
    let (mut records, mut machines) = (Stats::default(), Stats::default());
    for outcome in outcomes {
        records.add(&outcome.records);
        machines.add(&outcome.machines);
    }
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let figures = match what.receives() {
        true => {
            let Stats { records_offloaded: offloaded, records_partial: partial, .. } = records;
            let all = offloaded + partial + records.records_software;
            vec![
                ("records_offloaded_percent", percent(offloaded, all)),
                ("records_partial_percent", percent(partial, all)),
                ("records_software_percent", percent(records.records_software, all)),
            ]
        }
        false => {
            let (again, sent) = (machines.tx_replayed_bytes, machines.tx_tls_encrypted_bytes);
            vec![("replayed_percent", percent(again, sent))]
        }
    };
    figures.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

fn told(figures: &Map<String, Value>) -> String {
    let word = |(name, value): (&String, &Value)| {
        format!("{} {:.0} %", name.trim_end_matches("_percent"), value.as_f64().unwrap_or(0.0))
    };
    figures.iter().map(word).collect::<Vec<String>>().join(", ")
}
