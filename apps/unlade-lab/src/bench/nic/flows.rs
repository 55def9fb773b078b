//! Many flows over one engine: what a packet costs where its context is in the device's memory, and
//! where it is not.
//!
//! Each burst is one record, in [`BURST_PACKETS`] packets; flows take turns. Before what is measured
//! each flow gets a small record, so that all contexts were in the device once, as far as there is
//! room: misses that are counted are those of a device that has run for long.

use super::super::figures::median_by;
use super::super::record::Sink;
use super::far::Far;
use super::figures::{object, ratio};
use super::host::{Records, secrets, stack};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::time::Instant;
use unlade_command::output::line;
use unlade_net::FlowKey;
use unlade_nic_engine::cache::CacheStats;
use unlade_research_nic::engine::Engine;
use unlade_research_nic::queue::{QueueConfig, pair};
use unlade_research_nic::stack::Stack;
use unlade_research_nic::tls::Mode;
use unlade_research_nic::tls::keys::SoftKey;
use unlade_research_tcp::{Id, Time};

const FLOWS: [usize; 6] = [64, 1024, 8192, 20_480, 65_536, 131_072];
/// Packets of a flow that come in a row.
const BURST_PACKETS: usize = 8;
/// Bursts that are measured at least.
const BURSTS_MIN: usize = 16_384;
const MSS_BYTES: usize = 1448;
/// Bytes that a record has beside its content: header, type and tag.
const OVERHEAD_BYTES: usize = 5 + 1 + 16;
/// Content of a record that fills a burst.
const CONTENT_BYTES: usize = BURST_PACKETS * MSS_BYTES - OVERHEAD_BYTES;
/// Content of the record that warms a flow.
const WARM_BYTES: usize = 32;
/// Connections that are made at a time: as many as the queues hold.
const AT_ONCE: usize = 16;
/// Local ports that are used of each remote one.
const PORTS: usize = 60_000;
/// Turns without anything that was read, until something is wrong.
const IDLE_TURNS_MAX: usize = 100_000;

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct Case {
    records: Records,
    flows: usize,
    /// Bursts of each flow.
    visits: usize,
}

impl Case {
    fn packets(&self) -> f64 {
        (self.flows * self.visits * BURST_PACKETS) as f64
    }
}

/// Times of a packet.
#[derive(Debug, Clone, Copy, Default)]
struct PacketCost {
    host_ns: f64,
    engine_ns: f64,
    cache: CacheStats,
}

/// Addresses of the `index`th flow: this host's, and the far end's.
fn addresses(index: usize) -> (SocketAddr, SocketAddr) {
    let local = 1024 + index % PORTS;
    let remote = 443 + index / PORTS;
    (([10, 0, 0, 1], local as u16).into(), ([10, 0, 0, 2], remote as u16).into())
}

/// Host and device, with all connections.
struct Bed {
    stack: Stack,
    engine: Engine<Far>,
    ids: Vec<Id>,
    begun: Instant,
}

impl Bed {
    fn new(case: &Case) -> Result<Bed> {
        let (queue, device) = pair(QueueConfig::default());
        let engine = Engine::new(Far::new(MSS_BYTES), device);
        let mut bed = Bed { stack: stack(queue), engine, ids: Vec::new(), begun: Instant::now() };
        while bed.ids.len() < case.flows {
            let from = bed.ids.len();
            for index in from..(from + AT_ONCE).min(case.flows) {
                let (local, remote) = addresses(index);
                let now = bed.now();
                bed.ids.push(bed.stack.connect(now, local, remote).context("connecting")?);
            }
            bed.establish(from, case.records)?;
        }
        Ok(bed)
    }

    fn now(&self) -> Time {
        Time::from_ns(self.begun.elapsed().as_nanos() as u64)
    }

    fn turn(&mut self) {
        let now = self.now();
        self.stack.poll(now);
        self.engine.poll(0);
    }

    /// Waits for the connections from the `from`th on, and secures them.
    fn establish(&mut self, from: usize, records: Records) -> Result<()> {
        for turn in 0.. {
            self.turn();
            let tcp = self.stack.tcp();
            let mut fresh = self.ids[from..].iter();
            if fresh
                .all(|id| tcp.get(*id).is_some_and(unlade_research_tcp::Connection::is_established))
            {
                break;
            }
            ensure!(turn < IDLE_TURNS_MAX, "the far end does not answer");
        }
        let mode = match records {
            Records::None => return Ok(()),
            Records::Software => Mode::Software,
            Records::Offload => Mode::Offload,
        };
        for id in &self.ids[from..] {
            let keys = || (secrets(), 0);
            self.stack.secure(*id, mode, keys(), keys()).context("securing a connection")?;
            self.engine.poll(0);
        }
        self.turn();
        Ok(())
    }

    /// Gives each flow a record in turn; `at` bytes of each stream were before.
    fn load(&mut self, record: &[u8], at: usize) -> Result<()> {
        for index in 0..self.ids.len() {
            let (local, remote) = addresses(index);
            let flow = FlowKey::new(local, remote);
            ensure!(self.engine.port().load(&flow, at, record), "flow {index} is not connected");
        }
        Ok(())
    }

    /// Works until `bursts` records with `content_bytes` each were read, flow by flow. Returns the
    /// nanoseconds of host and engine.
    fn drain(&mut self, bursts: usize, content_bytes: usize) -> Result<(f64, f64)> {
        self.engine.port().settle();
        let (mut host_ns, mut engine_ns) = (0, 0);
        let (mut burst, mut bytes, mut idle) = (0, 0, 0);
        while burst < bursts {
            let begun = Instant::now();
            self.engine.poll(0);
            let polled = Instant::now();
            let now = self.now();
            self.stack.poll(now);
            let before = (burst, bytes);
            while burst < bursts {
                let id = self.ids[burst % self.ids.len()];
                while let Some(chunk) = self.stack.read(id).context("reading")? {
                    bytes += chunk.as_ref().len();
                }
                if bytes < content_bytes {
                    break;
                }
                ensure!(bytes == content_bytes, "a flow has {bytes} bytes of {content_bytes}");
                (burst, bytes) = (burst + 1, 0);
            }
            host_ns += polled.elapsed().as_nanos();
            engine_ns += (polled - begun).as_nanos();
            idle = if before == (burst, bytes) { idle + 1 } else { 0 };
            ensure!(idle < IDLE_TURNS_MAX, "nothing comes any more, in burst {burst}");
        }
        Ok((host_ns as f64, engine_ns as f64))
    }
}

/// The records of a stream: a small one, and as many as there are visits.
fn sealed(case: &Case) -> Result<(Vec<Vec<u8>>, [usize; 2])> {
    let key = SoftKey::new(&secrets()).context("the key")?;
    let mut records = Vec::new();
    for number in 0..=case.visits {
        let content = vec![0x55; if number == 0 { WARM_BYTES } else { CONTENT_BYTES }];
        if case.records == Records::None {
            records.push(content);
            continue;
        }
        let mut record = vec![0; key.prefix_bytes() + content.len() + key.suffix_bytes()];
        let sealed = key.seal(number as u64, 23, &content, &mut record);
        sealed.ok().context("sealing a record")?;
        records.push(record);
    }
    Ok((records, [WARM_BYTES, CONTENT_BYTES]))
}

fn measure(case: &Case) -> Result<PacketCost> {
    let mut bed = Bed::new(case)?;
    let (records, [warm_bytes, content_bytes]) = sealed(case)?;
    bed.load(&records[0], 0)?;
    bed.drain(case.flows, warm_bytes)?;
    let mut at = records[0].len();
    for record in &records[1..] {
        bed.load(record, at)?;
        at += record.len();
    }
    let before = bed.engine.report();
    let (host_ns, engine_ns) = bed.drain(case.flows * case.visits, content_bytes)?;
    let after = bed.engine.report();
    let decrypted_bytes =
        after.machines.rx_tls_decrypted_bytes - before.machines.rx_tls_decrypted_bytes;
    let much = decrypted_bytes as f64 > 0.9 * case.packets() * MSS_BYTES as f64;
    ensure!(
        much == (case.records == Records::Offload),
        "{case:?}: the device did {decrypted_bytes} bytes"
    );
    let cache = CacheStats {
        hits: after.cache.hits - before.cache.hits,
        misses: after.cache.misses - before.cache.misses,
        evictions: after.cache.evictions - before.cache.evictions,
        moved_bytes: after.cache.moved_bytes - before.cache.moved_bytes,
    };
    let packets = case.packets();
    Ok(PacketCost { host_ns: host_ns / packets, engine_ns: engine_ns / packets, cache })
}

/// Runs the part.
///
/// # Errors
/// A connection breaks, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    line(format_args!(
        "{:>7}  {:<8}{:>10}{:>11}{:>8}{:>8}{:>10}{:>10}",
        "flows", "", "host ns", "engine ns", "hits", "misses", "evictions", "bytes"
    ))?;
    for flows in FLOWS {
        let visits = BURSTS_MIN.div_ceil(flows);
        compare(flows, visits, if quick { 1 } else { 3 }, sink)?;
    }
    line("  each a packet; bytes: moved between device and host for contexts")
}

fn compare(flows: usize, visits: usize, rounds: usize, sink: &mut Sink) -> Result<()> {
    let mut costs: [Vec<PacketCost>; 3] = Default::default();
    for _ in 0..rounds {
        for (records, costs) in Records::ALL.into_iter().zip(&mut costs) {
            costs.push(measure(&Case { records, flows, visits })?);
        }
    }
    let case = json!({ "part": "flows", "attachment": "A", "what": "receive", "flows": flows,
        "burst_packets": BURST_PACKETS, "record_bytes": CONTENT_BYTES });
    let mut middle = [(0.0, 0.0); 3];
    for ((records, costs), middle) in Records::ALL.iter().zip(&costs).zip(&mut middle) {
        let of = |field: fn(&PacketCost) -> f64| median_by(costs, field);
        *middle = (of(|cost| cost.host_ns), of(|cost| cost.engine_ns));
        // Counts are the same in all rounds.
        let packets = Case { records: *records, flows, visits }.packets();
        let figures = figures(*middle, &costs[0].cache, packets);
        row(flows, records.mode(), &figures)?;
        sink.write(object(&case), records.mode(), figures)?;
    }
    let [tcp, software, offload] = middle;
    let ratios = [
        ("host_cost_ratio_rx".to_owned(), software.0 / offload.0),
        ("host_time_ratio_vs_tcp".to_owned(), offload.0 / tcp.0),
    ];
    ratio(sink, &case, &ratios)
}

fn figures(
    (host_ns, engine_ns): (f64, f64),
    cache: &CacheStats,
    packets: f64,
) -> Map<String, Value> {
    let each = |count: u64| count as f64 / packets;
    let figures = [
        ("host_ns_per_packet", host_ns),
        ("engine_ns_per_packet", engine_ns),
        ("hits_per_packet", each(cache.hits)),
        ("misses_per_packet", each(cache.misses)),
        ("evictions_per_packet", each(cache.evictions)),
        ("moved_bytes_per_packet", each(cache.moved_bytes)),
    ];
    figures.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect()
}

fn row(flows: usize, mode: &str, figures: &Map<String, Value>) -> Result<()> {
    let of = |name: &str| figures.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
    line(format_args!(
        "{flows:>7}  {mode:<8}{:>10.0}{:>11.0}{:>8.3}{:>8.3}{:>10.3}{:>10.1}",
        of("host_ns_per_packet"),
        of("engine_ns_per_packet"),
        of("hits_per_packet"),
        of("misses_per_packet"),
        of("evictions_per_packet"),
        of("moved_bytes_per_packet"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_nic_engine::context::CONTEXT_BYTES_MAX;

    #[test]
    fn all_records_are_read_and_contexts_that_fit_are_not_missed() {
        for records in Records::ALL {
            let case = Case { records, flows: 48, visits: 2 };
            let cost = measure(&case).unwrap();
            assert!(cost.host_ns > 0.0 && cost.engine_ns > 0.0);
            let accesses = if records == Records::Offload { case.packets() as u64 } else { 0 };
            assert_eq!((cost.cache.hits, cost.cache.misses), (accesses, 0), "{records:?}");
        }
    }

    #[test]
    fn contexts_that_do_not_fit_are_missed_once_a_burst() {
        let flows = unlade_research_nic::flow::CACHE_BYTES / CONTEXT_BYTES_MAX + 1;
        let mut cache =
            unlade_nic_engine::cache::Cache::new(unlade_research_nic::flow::CACHE_BYTES);
        for _ in 0..2 {
            (0..flows as u32).for_each(|flow| {
                cache.access(flow);
            });
        }
        assert_eq!((cache.stats().hits, cache.stats().misses), (0, 2 * flows as u64));
        assert!(FLOWS[2] < flows && flows < FLOWS[3]);
    }
}
