//! One request at a time: from the request to the last byte of the object that answers it.
//!
//! The wire has no delay and the far end has its answers beforehand, so what is measured is the work
//! of host and engine, and, where they have a processor each, how it overlaps.

use super::super::record::Sink;
use super::figures::{object, ratio};
use super::host::{Host, Records, addresses, secrets, stack};
use super::nvme::{self, How, Region};
use super::responder::{Answers, Responder};
use super::stream::{pin, processors};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::hint;
use std::thread;
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_research_nic::engine::Engine;
use unlade_research_nic::queue::{QueueConfig, pair};
use unlade_research_nic::threads::{Threads, ThreadsConfig};
use unlade_research_nic::tls::keys::SoftKey;
use unlade_research_tcp::Time;

/// Bytes of payload in a frame.
const MSS_BYTES: usize = 1448;
/// Sizes of objects.
const OBJECTS_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1024 << 10];
/// Bytes of a request's content.
const REQUEST_BYTES: usize = 128;
/// Content of a record of an object.
const RECORD_BYTES: usize = 16 << 10;
/// Bytes of all objects of a round, as far as that makes neither too few requests nor too many.
const ROUND_BYTES: usize = 4 << 20;
const REQUESTS_MIN: usize = 12;
const REQUESTS_MAX: usize = 96;
/// Requests of a round that are not counted: caches, and TCP's timers, are cold.
const WARMING: usize = 4;
/// Bytes of all buffers that NVMe reads into: more than a core's caches.
const REGION_BYTES: usize = 32 << 20;
/// Turns of a request, before something is wrong.
const TURNS_MAX: u64 = 1 << 30;

/// The request and its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Objects in a stream.
    Stream(Records),
    /// Reads over NVMe/TCP; in TLS where the second is true.
    Reads(How, bool),
}

/// Ways that are compared with each other: what is above them, all, the baseline's place, and the
/// offload's.
struct Table {
    protocol: &'static str,
    ways: &'static [Way],
    software: usize,
    offload: usize,
}

const TABLES: [Table; 3] = [
    Table {
        protocol: "tls",
        ways: &[
            Way::Stream(Records::None),
            Way::Stream(Records::Software),
            Way::Stream(Records::Offload),
        ],
        software: 1,
        offload: 2,
    },
    Table {
        protocol: "nvme",
        ways: &[
            Way::Reads(How::Plain, false),
            Way::Reads(How::Software, false),
            Way::Reads(How::Offload, false),
        ],
        software: 1,
        offload: 2,
    },
    Table {
        protocol: "nvme-tls",
        ways: &[
            Way::Reads(How::Software, true),
            Way::Reads(How::Records, true),
            Way::Reads(How::Offload, true),
        ],
        software: 0,
        offload: 2,
    },
];

impl Way {
    fn mode(self) -> &'static str {
        match self {
            Way::Stream(records) => records.mode(),
            Way::Reads(how, _) => how.mode(),
        }
    }
}

/// An application that asks, one request at a time.
trait Client {
    /// Sends the next request.
    fn ask(&mut self);
    /// Runs the host's pending work. Returns the amount.
    fn turn(&mut self) -> Result<usize>;
    /// All of what was asked for is there.
    fn is_answered(&self) -> bool;
}

/// Asks for objects in a stream.
struct StreamClient {
    host: Host,
    begun: Instant,
    object_bytes: usize,
    asked: usize,
}

impl StreamClient {
    fn new(records: Records, object_bytes: usize, requests: usize) -> Result<Pair<StreamClient>> {
        let (queue, device) = pair(QueueConfig::default());
        let mut engine = Engine::new(responder(records, object_bytes, requests)?, device);
        let mut stack = stack(queue);
        let begun = Instant::now();
        let (local, remote) = addresses();
        let id = stack.connect(Time::from_ns(0), local, remote).context("connecting")?;
        for _ in 0..1000 {
            stack.poll(now(begun));
            engine.poll(0);
        }
        let established =
            stack.tcp().get(id).is_some_and(unlade_research_tcp::Connection::is_established);
        ensure!(established, "the far end has not answered");
        let mut host = Host::new(stack, id, REQUEST_BYTES);
        host.secure(records)?;
        // The device knows of it before anything comes.
        for _ in 0..4 {
            engine.poll(0);
        }
        engine.port().start();
        Ok(Pair { client: StreamClient { host, begun, object_bytes, asked: 0 }, engine })
    }
}

impl Client for StreamClient {
    fn ask(&mut self) {
        self.asked += 1;
    }

    fn turn(&mut self) -> Result<usize> {
        let done = self.host.write(self.asked) + self.host.read()?;
        Ok(done + self.host.poll(now(self.begun).ns()))
    }

    fn is_answered(&self) -> bool {
        self.host.read_bytes() == self.asked * self.object_bytes
    }
}

/// A far end that has `requests` objects.
fn responder(records: Records, object_bytes: usize, requests: usize) -> Result<Responder> {
    let content = vec![0x55; object_bytes];
    if records == Records::None {
        let answers = Answers::new(REQUEST_BYTES as u32, object_bytes);
        return Ok(Responder::answers(MSS_BYTES, content.repeat(requests), answers));
    }
    let key = SoftKey::new(&secrets()).context("the key")?;
    let overhead_bytes = key.prefix_bytes() + key.suffix_bytes();
    let (mut stream, mut number) = (Vec::new(), 0);
    for _ in 0..requests {
        for content in content.chunks(RECORD_BYTES) {
            let start = stream.len();
            stream.resize(start + content.len() + overhead_bytes, 0);
            key.seal(number, 23, content, &mut stream[start..])?;
            number += 1;
        }
    }
    let answers =
        Answers::new((REQUEST_BYTES + overhead_bytes) as u32, stream.len() / requests.max(1));
    Ok(Responder::answers(MSS_BYTES, stream, answers))
}

/// Reads over NVMe/TCP.
struct ReadClient<'r> {
    reader: nvme::Reader,
    region: &'r mut Region,
}

impl Client for ReadClient<'_> {
    fn ask(&mut self) {
        self.reader.allowed += 1;
    }

    fn turn(&mut self) -> Result<usize> {
        self.reader.turn(self.region)
    }

    fn is_answered(&self) -> bool {
        self.reader.finished == self.reader.allowed
    }
}

/// A host and its device.
struct Pair<C> {
    client: C,
    engine: Engine<Responder>,
}

fn now(begun: Instant) -> Time {
    Time::from_ns(begun.elapsed().as_nanos() as u64)
}

/// Times of a request.
#[derive(Debug, Clone, Copy)]
struct Took {
    all_ns: f64,
    /// The host's share, where it is known.
    host_ns: Option<f64>,
}

impl<C: Client> Pair<C> {
    /// Times of each of `requests`; the engine runs on `processor`, or takes turns with the host.
    /// The device comes back.
    fn run(
        self,
        requests: usize,
        processor: Option<usize>,
    ) -> Result<(Vec<Took>, Engine<Responder>)> {
        let Pair { mut client, mut engine } = self;
        let Some(processor) = processor else {
            let begun = Instant::now();
            let took = ask_all(&mut client, requests, |_| {
                let from = Instant::now();
                while engine.poll(now(begun).ns()) > 1 {}
                Some(from.elapsed())
            })?;
            return Ok((took, engine));
        };
        let config = ThreadsConfig { processors: vec![processor] };
        let threads = Threads::start(vec![engine], &config).context("starting the engine")?;
        let bell = threads.bell(0).context("an engine has a bell")?;
        let took = ask_all(&mut client, requests, |done| {
            match done {
                0 => hint::spin_loop(),
                _ => bell.ring(),
            }
            None
        });
        let engine = threads.stop().pop().context("the engine has panicked")?;
        Ok((took?, engine))
    }
}

/// Asks again and again. `between` two turns of the host is told how much the last one was, and says
/// how long the engine's turn took, if it had one.
fn ask_all(
    client: &mut impl Client,
    requests: usize,
    mut between: impl FnMut(usize) -> Option<Duration>,
) -> Result<Vec<Took>> {
    let mut took = Vec::with_capacity(requests);
    for _ in 0..requests {
        let asked = Instant::now();
        client.ask();
        let (mut turns, mut engine_ns) = (0, None);
        while !client.is_answered() {
            if let Some(turn) = between(client.turn()?) {
                engine_ns = Some(engine_ns.unwrap_or(0.0) + turn.as_nanos() as f64);
            }
            turns += 1;
            ensure!(turns < TURNS_MAX, "an answer does not come");
        }
        let all_ns = asked.elapsed().as_nanos() as f64;
        took.push(Took { all_ns, host_ns: engine_ns.map(|engine_ns| all_ns - engine_ns) });
    }
    Ok(took)
}

/// One round of a way: what each request took, but for the first ones.
fn round(
    way: Way,
    object_bytes: usize,
    processor: Option<usize>,
    region: &mut Region,
) -> Result<Vec<Took>> {
    let requests = WARMING + requests(object_bytes);
    let mut took = match way {
        Way::Stream(records) => {
            let pair = StreamClient::new(records, object_bytes, requests)?;
            let (took, engine) = pair.run(requests, processor)?;
            let opened = engine.report().machines.rx_tls_decrypted_bytes as f64;
            let much = opened > 0.9 * (requests * object_bytes) as f64;
            let right = much == (records == Records::Offload);
            ensure!(right, "{way:?}: the device opened {opened} bytes");
            took
        }
        Way::Reads(how, tls) => {
            let case = nvme::Case { how, tls, read_bytes: object_bytes, depth: 1, reads: requests };
            let nvme::Pair { reader, engine } = nvme::Pair::new(case)?;
            let client = ReadClient { reader, region: &mut *region };
            let (took, engine) = Pair { client, engine }.run(requests, processor)?;
            nvme::check(&case, &engine, region)?;
            took
        }
    };
    Ok(took.split_off(WARMING))
}

fn requests(object_bytes: usize) -> usize {
    (ROUND_BYTES / object_bytes).clamp(REQUESTS_MIN, REQUESTS_MAX)
}

/// The `share` of `times` that is not above it; of the slowest, where there are few.
fn percentile(times: &mut [f64], share: f64) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    let rank = (times.len() as f64 * share).ceil() as usize;
    times.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Runs the part.
///
/// # Errors
/// A request fails, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    // A thread of its own, so that what it is pinned to ends with it.
    thread::scope(|scope| {
        let part = scope.spawn(|| {
            let processors = processors().filter(|[first, _]| pin(*first));
            if processors.is_none() {
                line("skipped: host and engine side by side: there is one processor")?;
            }
            let second = processors.map(|[_, second]| second);
            let rounds = if quick { 5 } else { 41 };
            for object_bytes in OBJECTS_BYTES {
                for table in &TABLES {
                    compare(table, object_bytes, second, rounds, sink)?;
                }
            }
            Ok(())
        });
        part.join().map_err(|_| anyhow::anyhow!("the measuring thread has panicked"))?
    })
}

/// Times of the requests of one variant: engine beside the host, and in turns with it.
#[derive(Default, Clone)]
struct Times {
    apart: Vec<Took>,
    turns: Vec<Took>,
}

fn compare(
    table: &Table,
    object_bytes: usize,
    second: Option<usize>,
    rounds: usize,
    sink: &mut Sink,
) -> Result<()> {
    let buffers = (REGION_BYTES / object_bytes).max(REQUESTS_MAX + WARMING);
    let mut region: Region = (0..buffers).map(|_| vec![1; object_bytes].into()).collect();
    let mut all = vec![Times::default(); table.ways.len()];
    for _ in 0..rounds {
        for (way, times) in table.ways.iter().zip(&mut all) {
            times.turns.extend(round(*way, object_bytes, None, &mut region)?);
            if second.is_some() {
                times.apart.extend(round(*way, object_bytes, second, &mut region)?);
            }
        }
    }
    if second.is_some() {
        report(table, (object_bytes, 2), all.iter().map(|times| &times.apart[..]), sink)?;
    }
    report(table, (object_bytes, 1), all.iter().map(|times| &times.turns[..]), sink)
}

/// Of all requests of a way, in microseconds.
struct Figures {
    requests: usize,
    p50_us: f64,
    p99_us: f64,
    host_p50_us: Option<f64>,
}

impl Figures {
    fn of(took: &[Took]) -> Figures {
        let mut all_ns: Vec<f64> = took.iter().map(|took| took.all_ns).collect();
        let mut host_ns: Vec<f64> = took.iter().filter_map(|took| took.host_ns).collect();
        let host_us = percentile(&mut host_ns, 0.5) / 1e3;
        Figures {
            requests: took.len(),
            p50_us: percentile(&mut all_ns, 0.5) / 1e3,
            p99_us: percentile(&mut all_ns, 0.99) / 1e3,
            host_p50_us: (!host_ns.is_empty()).then_some(host_us),
        }
    }

    fn metrics(&self) -> Map<String, Value> {
        let mut metrics = Map::from_iter([
            ("latency_p50_us".to_owned(), self.p50_us.into()),
            ("latency_p99_us".to_owned(), self.p99_us.into()),
            ("requests".to_owned(), self.requests.into()),
        ]);
        if let Some(host_us) = self.host_p50_us {
            metrics.insert("host_p50_us".to_owned(), host_us.into());
        }
        metrics
    }
}

fn report<'t>(
    table: &Table,
    (object_bytes, cores): (usize, usize),
    took: impl Iterator<Item = &'t [Took]>,
    sink: &mut Sink,
) -> Result<()> {
    let (protocol, kib) = (table.protocol, object_bytes >> 10);
    let case = json!({ "part": "latency", "attachment": "A", "protocol": protocol,
        "bytes": object_bytes, "cores": cores });
    line(format_args!("{protocol}, {kib} KiB, {cores} core{}", if cores == 1 { "" } else { "s" }))?;
    let figures: Vec<Figures> = took.map(Figures::of).collect();
    for (way, figures) in table.ways.iter().zip(&figures) {
        let mode = way.mode();
        sink.write(object(&case), mode, figures.metrics())?;
        let Figures { p50_us, p99_us, host_p50_us, .. } = figures;
        let host = host_p50_us.map_or_else(String::new, |us| format!("{us:>10.1} us of it host"));
        line(format_args!("  {mode:<12}{p50_us:>10.1} us{p99_us:>10.1} us p99{host}"))?;
    }
    let (software, offload) = (&figures[table.software], &figures[table.offload]);
    let mut ratios = vec![
        ("latency_p50_ratio_vs_software".to_owned(), offload.p50_us / software.p50_us),
        ("latency_p99_ratio_vs_software".to_owned(), offload.p99_us / software.p99_us),
    ];
    if let (Some(offload), Some(software)) = (offload.host_p50_us, software.host_p50_us) {
        ratios.push(("host_p50_ratio_vs_software".to_owned(), offload / software));
    }
    ratio(sink, &case, &ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_ranks() {
        let mut times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!((percentile(&mut times, 0.5), percentile(&mut times, 0.99)), (100.0, 198.0));
        assert_eq!(percentile(&mut [7.0], 0.99), 7.0);
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn every_way_answers_every_request_whoever_does_the_work() {
        let object_bytes = 20 << 10;
        let buffers = REQUESTS_MAX + WARMING;
        let mut region: Region = (0..buffers).map(|_| vec![1; object_bytes].into()).collect();
        for table in &TABLES {
            for way in table.ways {
                for processor in [None, processors().map(|[_, second]| second)] {
                    let took = round(*way, object_bytes, processor, &mut region).unwrap();
                    assert_eq!(took.len(), requests(object_bytes));
                    let has_host = processor.is_none();
                    assert!(took.iter().all(|took| took.host_ns.is_some() == has_host));
                }
            }
        }
    }
}
