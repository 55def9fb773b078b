//! One connection's stream, sent or received: what a record costs the host's core and the engine's.
//!
//! The far end is a port that answers by itself, so that it costs both cores next to nothing. *Taking
//! turns*, host and engine share a processor and each one's time is counted: these are the costs.
//! With a processor each, throughput is what both achieve.

use super::super::record::Sink;
use super::figures::{Cost, Row, ratio, write};
use super::host::{Host, Records, addresses, secrets, stack};
use super::responder::Responder;
use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;
use std::hint;
use std::thread;
use std::time::Instant;
use unlade_command::output::line;
use unlade_research_nic::engine::Engine;
use unlade_research_nic::queue::{QueueConfig, pair};
use unlade_research_nic::threads::{Threads, ThreadsConfig};
use unlade_research_tcp::Time;

/// Bytes of payload in a frame.
const MSS_BYTES: usize = 1448;
/// Pauses between two looks of a host that has nothing to do: each look takes a line of the rings
/// from the engine.
const IDLE_PAUSES: usize = 50;
const RECORDS_BYTES: [usize; 4] = [2 << 10, 4 << 10, 8 << 10, 16 << 10];
/// Bytes that are sent in a round.
const SENT_BYTES: usize = 128 << 20;
/// Bytes that are received in a round; they are sealed before, and all in memory.
const RECEIVED_BYTES: usize = 16 << 20;

/// The host's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Send,
    Receive,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Send => "tx",
            What::Receive => "rx",
        }
    }
}

/// One stream.
#[derive(Debug, Clone, Copy)]
struct Case {
    what: What,
    records: Records,
    record_bytes: usize,
}

impl Case {
    fn count(&self) -> usize {
        match self.what {
            What::Send => SENT_BYTES / self.record_bytes,
            What::Receive => RECEIVED_BYTES / self.record_bytes,
        }
    }

    fn bytes(&self) -> f64 {
        (self.count() * self.record_bytes) as f64
    }
}

/// Host and device with an established connection.
struct Pair {
    case: Case,
    host: Host,
    engine: Engine<Responder>,
    begun: Instant,
}

impl Pair {
    fn new(case: Case) -> Result<Pair> {
        let (queue, device) = pair(QueueConfig::default());
        let responder = match case.what {
            What::Send => Responder::sink(MSS_BYTES),
            What::Receive => {
                let keys = (case.records != Records::None).then(secrets);
                Responder::source(MSS_BYTES, keys, case.count(), case.record_bytes)
            }
        };
        let mut engine = Engine::new(responder, device);
        let mut stack = stack(queue);
        let begun = Instant::now();
        let (local, remote) = addresses();
        let id = stack.connect(Time::from_ns(0), local, remote).context("connecting")?;
        for _ in 0..1000 {
            stack.poll(Time::from_ns(elapsed_ns(begun)));
            engine.poll(0);
        }
        let established =
            stack.tcp().get(id).is_some_and(unlade_research_tcp::Connection::is_established);
        ensure!(established, "the far end has not answered");
        let mut host = Host::new(stack, id, case.record_bytes);
        host.secure(case.records)?;
        // The device knows of it before anything comes.
        for _ in 0..4 {
            engine.poll(0);
        }
        engine.port().start();
        Ok(Pair { case, host, engine, begun })
    }

    fn turn(host: &mut Host, case: &Case, begun: Instant) -> Result<usize> {
        let done = match case.what {
            What::Send => host.write(case.count()),
            What::Receive => host.read()?,
        };
        Ok(done + host.poll(elapsed_ns(begun)))
    }

    fn is_done(host: &mut Host, case: &Case) -> bool {
        match case.what {
            What::Send => host.written() == case.count() && host.is_acknowledged(),
            What::Receive => host.read_bytes() == case.count() * case.record_bytes,
        }
    }

    /// Host and engine take turns on this processor.
    fn in_turns(mut self) -> Result<Cost> {
        let (mut host_ns, mut engine_ns) = (0, 0);
        let begun = Instant::now();
        let mut at = begun;
        while !Pair::is_done(&mut self.host, &self.case) {
            Pair::turn(&mut self.host, &self.case, self.begun)?;
            let turned = Instant::now();
            let now_ns = elapsed_ns(self.begun);
            while self.engine.poll(now_ns) > 1 {}
            let polled = Instant::now();
            host_ns += (turned - at).as_nanos();
            engine_ns += (polled - turned).as_nanos();
            at = polled;
        }
        let throughput_bytes_per_s = self.case.bytes() / begun.elapsed().as_secs_f64();
        check(&self.case, &self.engine)?;
        let bytes = self.case.bytes();
        Ok(Cost {
            host_ns_per_byte: host_ns as f64 / bytes,
            engine_ns_per_byte: engine_ns as f64 / bytes,
            throughput_bytes_per_s,
        })
    }

    /// The engine has a processor of its own; of the host, turns count in which there was work.
    fn side_by_side(mut self, processor: usize) -> Result<Cost> {
        let config = ThreadsConfig { processors: vec![processor] };
        let begun = Instant::now();
        let threads = Threads::start(vec![self.engine], &config).context("starting the engine")?;
        let bell = threads.bell(0).context("an engine has a bell")?;
        let mut host_ns = 0;
        while !Pair::is_done(&mut self.host, &self.case) {
            let at = Instant::now();
            if Pair::turn(&mut self.host, &self.case, self.begun)? > 0 {
                host_ns += at.elapsed().as_nanos();
                bell.ring();
            } else {
                (0..IDLE_PAUSES).for_each(|_| hint::spin_loop());
            }
        }
        let throughput_bytes_per_s = self.case.bytes() / begun.elapsed().as_secs_f64();
        let engines = threads.stop();
        check(&self.case, &engines[0])?;
        let host_ns_per_byte = host_ns as f64 / self.case.bytes();
        Ok(Cost { host_ns_per_byte, engine_ns_per_byte: f64::NAN, throughput_bytes_per_s })
    }
}

fn elapsed_ns(begun: Instant) -> u64 {
    begun.elapsed().as_nanos() as u64
}

/// The device did the records if it should, and only then.
fn check(case: &Case, engine: &Engine<Responder>) -> Result<()> {
    let report = engine.report();
    let worked = match case.what {
        What::Send => report.machines.tx_tls_encrypted_bytes,
        What::Receive => report.machines.rx_tls_decrypted_bytes,
    };
    let much = worked as f64 > 0.9 * case.bytes();
    ensure!(much == (case.records == Records::Offload), "{case:?}: the device did {worked} bytes");
    Ok(())
}

/// The first two processors that this thread may use.
pub fn processors() -> Option<[usize; 2]> {
    let set = sched_getaffinity(None).ok()?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    Some([usable.next()?, usable.next()?])
}

/// Keeps this thread on a processor; false where it cannot be.
pub fn pin(processor: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).is_ok()
}

/// Runs the part.
///
/// # Errors
/// A stream breaks, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    // A thread of its own, so that what it is pinned to ends with it.
    thread::scope(|scope| {
        let part = scope.spawn(|| {
            let processors = processors().filter(|[first, _]| pin(*first));
            if processors.is_none() {
                line("skipped: host and engine side by side: there is one processor")?;
            }
            let rounds = if quick { 5 } else { 15 };
            for what in [What::Send, What::Receive] {
                for record_bytes in RECORDS_BYTES {
                    compare(what, record_bytes, rounds, processors, sink)?;
                }
            }
            Ok(())
        });
        part.join().map_err(|_| anyhow::anyhow!("the measuring thread has panicked"))?
    })
}

fn compare(
    what: What,
    record_bytes: usize,
    rounds: usize,
    processors: Option<[usize; 2]>,
    sink: &mut Sink,
) -> Result<()> {
    let mut turns: [Vec<Cost>; 3] = Default::default();
    let mut apart: [Vec<Cost>; 3] = Default::default();
    for _ in 0..rounds {
        for (index, records) in Records::ALL.into_iter().enumerate() {
            let case = Case { what, records, record_bytes };
            turns[index].push(Pair::new(case)?.in_turns()?);
            if let Some([_, second]) = processors {
                apart[index].push(Pair::new(case)?.side_by_side(second)?);
            }
        }
    }
    let case = |cores: usize| json!({ "part": what.name(), "attachment": "A", "record_bytes": record_bytes, "cores": cores });
    line(format_args!("{} of {} KiB records", what.name(), record_bytes >> 10))?;
    let one = turns.each_ref().map(|costs| Cost::medians(costs));
    let two = apart.each_ref().map(|costs| Cost::medians(costs));
    for (cores, costs) in [(1, &one), (2, &two)] {
        if cores == 2 && processors.is_none() {
            continue;
        }
        for (records, cost) in Records::ALL.iter().zip(costs) {
            write(sink, &case(cores), records.mode(), cost)?;
            line(Row { mode: records.mode(), cores, cost, record_bytes })?;
        }
    }
    let [_, software, offload] = &one;
    let key = format!("host_cost_ratio_{}", what.name());
    let mut ratios = vec![(key, software.host_ns_per_byte / offload.host_ns_per_byte)];
    if processors.is_some() {
        let [_, software_two, offload_two] = &two;
        let gain = |base: &Cost| offload_two.throughput_bytes_per_s / base.throughput_bytes_per_s;
        ratios.push(("throughput_ratio_two_cores_vs_software_on_one".to_owned(), gain(software)));
        ratios
            .push(("throughput_ratio_two_cores_vs_software_on_two".to_owned(), gain(software_two)));
    }
    ratio(sink, &case(1), &ratios)
}
