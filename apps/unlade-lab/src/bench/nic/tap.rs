//! One connection of the kernel's TCP through the engine of `unlade nic run`: what a record costs the
//! thread that owns the socket, and the engine's.

use super::super::cpu::stay_on;
use super::super::figures::median_by;
use super::super::record::Sink;
use super::figures::{Cost, GIB, Row, metrics, object, ratio};
use super::host::{Records, secrets};
use super::peer::{Ask, Peer, wait};
use super::room::Room;
use super::stream::processors;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::thread::gettid;
use serde_json::json;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use unlade_command::namespace::inside;
use unlade_command::output::line;
use unlade_net::state::{DirectionSecrets, TlsSnapshot};
use unlade_nic_inline::device::thread::Running;
use unlade_nic_inline::device::{Device, DeviceCounters};
use unlade_nic_inline::tls_proxy::handshake::Established;
use unlade_nic_inline::tls_proxy::stream::{Opened, open};
use unlade_research_nic::tls::keys::SoftKey;
use unlade_sys::sockopt::wake_at_bytes;
use unlade_sys::usage::cpu_of_thread;
use unlade_tls::RecordLayer;

const RECORD_BYTES: usize = 16 << 10;
/// Source buffer of the application's writes, used again and again.
const CONTENT_BYTES: usize = 256 << 10;
/// Bytes that are written or read at once.
const AT_ONCE_BYTES: usize = unlade_nic_inline::tls_proxy::stream::WRITE_BYTES;
/// Bytes that are there before the host is woken to read.
const WAKE_BYTES: usize = 128 << 10;
/// Bytes that the host's TCP takes before a writer has to wait.
const SEND_BYTES: usize = 4 << 20;
/// Bytes of a round.
const ROUND_BYTES: usize = 64 << 20;
/// Bytes of the round before the first, in which all are compared.
const CHECKED_BYTES: usize = 4 << 20;
/// TLS 1.3 and its TLS_AES_128_GCM_SHA256.
const VERSION: u16 = 0x0304;
const SUITE: u16 = 0x1301;
/// Application data.
const CONTENT_TYPE: u8 = 23;
/// How long a round may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The host's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// From memory.
    Send,
    /// From a file.
    SendFile,
    Receive,
}

impl What {
    const ALL: [What; 3] = [What::Send, What::SendFile, What::Receive];

    fn name(self) -> &'static str {
        match self {
            What::Send => "tx",
            What::SendFile => "file",
            What::Receive => "rx",
        }
    }
}

/// One stream.
#[derive(Debug, Clone, Copy)]
struct Case {
    what: What,
    records: Records,
    bytes: usize,
    /// All bytes are compared, and nothing is measured.
    checked: bool,
}

/// Streams as the wire has them, and what they say.
struct Streams {
    content: Bytes,
    /// All of what they say, in the page cache.
    file: Arc<File>,
    plain: Arc<Vec<u8>>,
    sealed: Arc<Vec<u8>>,
}

impl Streams {
    /// Of so many bytes of content.
    fn new(bytes: usize) -> Result<Streams> {
        let content: Vec<u8> = (0..CONTENT_BYTES).map(|at| (at * 7 + (at >> 9)) as u8).collect();
        let plain: Vec<u8> = content.iter().copied().cycle().take(bytes).collect();
        let key = SoftKey::new(&secrets()).context("the key")?;
        let record_bytes = key.prefix_bytes() + RECORD_BYTES + key.suffix_bytes();
        let mut sealed = vec![0; bytes / RECORD_BYTES * record_bytes];
        let places = sealed.chunks_mut(record_bytes).zip(plain.chunks(RECORD_BYTES));
        for (number, (place, content)) in (0..).zip(places) {
            key.seal(number, CONTENT_TYPE, content, place).ok().context("sealing a record")?;
        }
        let file = File::from(memfd_create("unlade-bench", MemfdFlags::CLOEXEC)?);
        file.write_all_at(&plain, 0).context("a file in memory")?;
        Ok(Streams {
            content: content.into(),
            file: file.into(),
            plain: plain.into(),
            sealed: sealed.into(),
        })
    }

    /// Properties of the wire in `case`.
    fn of(&self, case: &Case) -> (&Arc<Vec<u8>>, usize) {
        match case.records {
            Records::None => (&self.plain, case.bytes),
            _ => (&self.sealed, self.sealed.len() / (self.plain.len() / case.bytes)),
        }
    }
}

/// Both directions' records, from the first on.
fn layer() -> Result<RecordLayer> {
    let direction = || {
        let secrets = secrets();
        let (key, iv) = (secrets.key.to_vec(), secrets.iv);
        DirectionSecrets { key, iv, sequence: 0, traffic_secret: vec![1; 32] }
    };
    let (read, write) = (direction(), direction());
    let snapshot =
        TlsSnapshot { version: VERSION, suite: SUITE, read, write, ciphertext: Vec::new() };
    RecordLayer::from_snapshot(&snapshot).context("the record layer")
}

/// The measured host.
struct Host<'a> {
    device: Device,
    engine: &'a Running,
    peer: &'a Peer,
    /// How many the three have.
    processors: usize,
    streams: &'a Streams,
}

/// Processor time of the host's thread and of the engine's, the time of day, and the time in which the
/// engine's thread did the work of the host's kernel.
struct Reading(Duration, Duration, Instant, Duration);

/// Times of a stream, and the share of the engine's time that the host's kernel used.
#[derive(Debug, Clone, Copy)]
struct TapCost {
    cost: Cost,
    delivery_ns_per_byte: f64,
}

impl Host<'_> {
    fn read_clocks(&self) -> Result<Reading> {
        let host = cpu_of_thread(gettid().as_raw_nonzero().get()).context("this thread's time")?;
        let engine = cpu_of_thread(self.engine.tid()).context("the engine's time")?;
        let counted = self.device.counters();
        let delivery = Duration::from_nanos(counted.delivery_ns);
        let engine = engine.saturating_sub(Duration::from_nanos(counted.idle_ns));
        Ok(Reading(host, engine, Instant::now(), delivery))
    }

    fn cost(&self, case: &Case, from: &Reading) -> Result<TapCost> {
        let to = self.read_clocks()?;
        let bytes = case.bytes as f64;
        let cost = Cost {
            host_ns_per_byte: (to.0 - from.0).as_nanos() as f64 / bytes,
            engine_ns_per_byte: (to.1 - from.1).as_nanos() as f64 / bytes,
            throughput_bytes_per_s: bytes / (to.2 - from.2).as_secs_f64(),
        };
        Ok(TapCost { cost, delivery_ns_per_byte: (to.3 - from.3).as_nanos() as f64 / bytes })
    }

    /// One connection, from its start to its end.
    async fn stream(&self, case: &Case) -> Result<TapCost> {
        let before = self.device.counters();
        let tcp = TcpStream::connect(self.peer.address).await.context("connecting")?;
        tcp.set_nodelay(true)?;
        // Few, large wake-ups, as an application has them that moves much.
        match case.what {
            What::Receive => wake_at_bytes(&tcp, WAKE_BYTES)?,
            What::Send | What::SendFile => set_socket_send_buffer_size_force(&tcp, SEND_BYTES)?,
        }
        let cost = match case.records {
            Records::None => self.plain(case, tcp).await?,
            _ => self.secured(case, tcp).await?,
        };
        if case.records == Records::Offload {
            self.check(case, &before).await?;
        }
        Ok(cost)
    }

    /// The device did most of the records. It may say so a little later.
    async fn check(&self, case: &Case, before: &DeviceCounters) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.device.counters().device;
            let worked = match case.what {
                What::Send | What::SendFile => {
                    now.tx_tls_encrypted_bytes - before.device.tx_tls_encrypted_bytes
                }
                What::Receive => now.rx_tls_decrypted_bytes - before.device.rx_tls_decrypted_bytes,
            };
            if worked as f64 > 0.5 * case.bytes as f64 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{case:?}: the device did {worked} bytes");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn ask(&self, case: &Case) -> Result<tokio::sync::oneshot::Receiver<Result<()>>> {
        let (stream, bytes) = self.streams.of(case);
        let stream = stream.clone();
        self.peer.ask(match (case.what, case.checked) {
            (What::Receive, _) => Ask::Give { stream, bytes },
            (_, true) => Ask::Compare { stream, bytes },
            (_, false) => Ask::Swallow { bytes },
        })
    }

    async fn plain(&self, case: &Case, mut tcp: TcpStream) -> Result<TapCost> {
        let from = self.read_clocks()?;
        let done = self.ask(case)?;
        if case.what == What::SendFile {
            let (mut at, end) = (0, case.bytes as u64);
            while at < end {
                let mut send = || {
                    let left = ((end - at) as usize).min(AT_ONCE_BYTES);
                    Ok(sendfile(&tcp, &self.streams.file, Some(&mut at), left)?)
                };
                let sent = tcp.async_io(Interest::WRITABLE, &mut send).await?;
                ensure!(sent > 0, "the file has ended");
            }
            wait(done).await?;
            return self.cost(case, &from);
        }
        if case.what == What::Send {
            for at in (0..case.bytes).step_by(AT_ONCE_BYTES) {
                let at = at % CONTENT_BYTES;
                tcp.write_all(&self.streams.content[at..at + AT_ONCE_BYTES]).await?;
            }
            wait(done).await?;
            return self.cost(case, &from);
        }
        let (mut buffer, mut got) = (vec![0; 2 * AT_ONCE_BYTES], 0);
        while got < case.bytes {
            let read = tcp.read(&mut buffer).await.context("reading")?;
            ensure!(read > 0, "the peer has ended");
            self.compare(case, got, &buffer[..read])?;
            got += read;
        }
        let cost = self.cost(case, &from)?;
        drop(tcp);
        wait(done).await?;
        Ok(cost)
    }

    async fn secured(&self, case: &Case, tcp: TcpStream) -> Result<TapCost> {
        let (record, plaintext) = (layer()?, Vec::new());
        let established = Established { tcp, record, plaintext, read: 0, written: 0 };
        let offloads = case.records == Records::Offload;
        let device = offloads.then_some(&self.device);
        let opened = open(established, device).await.context("beginning with records")?;
        ensure!(opened.offloaded == offloads, "the device has not taken the connection");
        let Opened { mut reader, mut writer, mut plaintext, .. } = opened;
        let from = self.read_clocks()?;
        let done = self.ask(case)?;
        if case.what == What::SendFile {
            let sent = writer.send_file(&self.streams.file, 0, case.bytes as u64).await?;
            ensure!(sent == case.bytes as u64, "the file has ended");
            wait(done).await?;
            return self.cost(case, &from);
        }
        if case.what == What::Send {
            for at in (0..case.bytes).step_by(AT_ONCE_BYTES) {
                let at = at % CONTENT_BYTES;
                let content = self.streams.content.slice(at..at + AT_ONCE_BYTES);
                writer.write_bytes(content).await.context("writing")?;
            }
            wait(done).await?;
            return self.cost(case, &from);
        }
        let mut got = 0;
        while got < case.bytes {
            plaintext.clear();
            let read = reader.read(&mut plaintext).await.context("reading")?;
            ensure!(read > 0, "the peer has ended");
            self.compare(case, got, &plaintext)?;
            got += read;
        }
        let cost = self.cost(case, &from)?;
        drop((reader, writer));
        wait(done).await?;
        Ok(cost)
    }

    fn compare(&self, case: &Case, at: usize, bytes: &[u8]) -> Result<()> {
        let right = !case.checked || self.streams.plain.get(at..at + bytes.len()) == Some(bytes);
        ensure!(right, "{case:?}: what came at {at} is not what was sent");
        Ok(())
    }
}

/// Runs `work` on a thread in the host's namespace, beside an engine and a peer on another processor.
fn with_host<T: Send>(
    room: &Room,
    large: bool,
    streams: &Streams,
    work: impl FnOnce(&tokio::runtime::Runtime, &Host<'_>) -> Result<T> + Send,
) -> Result<T> {
    let processors = processors();
    let core = processors.map(|[_, second]| second);
    let device = Device::new().context("an eventfd")?;
    let engine = room.start(&device, large, core)?;
    let peer = Peer::start(room.peer(), core)?;
    inside(room.host(), || {
        if let Some([first, _]) = processors {
            stay_on(first)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (engine, peer) = (&engine, &peer);
        let processors = if processors.is_some() { 2 } else { 1 };
        work(&runtime, &Host { device, engine, peer, processors, streams })
    })
}

fn round(runtime: &tokio::runtime::Runtime, host: &Host<'_>, case: &Case) -> Result<TapCost> {
    runtime
        .block_on(async { tokio::time::timeout(PATIENCE, host.stream(case)).await })
        .unwrap_or_else(|_| Err(anyhow::anyhow!("it took too long")))
        .with_context(|| format!("{case:?}"))
}

/// Runs the part.
///
/// # Errors
/// A stream breaks, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let room = match Room::new() {
        Ok(room) => room,
        Err(error) => return line(format_args!("skipped: {error:#}")),
    };
    let (rounds, bytes) = if quick { (5, ROUND_BYTES / 2) } else { (15, ROUND_BYTES) };
    let streams = Streams::new(bytes)?;
    for (wire, large) in [("large", true), ("mtu", false)] {
        with_host(&room, large, &streams, |runtime, host| {
            for what in What::ALL {
                let case = Case { what, records: Records::None, bytes, checked: false };
                compare(runtime, host, (wire, case), rounds, sink)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn compare(
    runtime: &tokio::runtime::Runtime,
    host: &Host<'_>,
    (wire, base): (&str, Case),
    rounds: usize,
    sink: &mut Sink,
) -> Result<()> {
    let name = base.what.name();
    let mut costs: [Vec<TapCost>; 3] = Default::default();
    for number in 0..=rounds {
        for (records, costs) in Records::ALL.into_iter().zip(&mut costs) {
            match number {
                0 => {
                    let bytes = CHECKED_BYTES.min(base.bytes);
                    round(runtime, host, &Case { records, bytes, checked: true, ..base })?;
                }
                _ => costs.push(round(runtime, host, &Case { records, ..base })?),
            }
        }
    }
    let delivery_ns =
        costs.each_ref().map(|costs| median_by(costs, |cost| cost.delivery_ns_per_byte));
    let costs = costs
        .map(|costs| Cost::medians(&costs.iter().map(|cost| cost.cost).collect::<Vec<Cost>>()));
    let case = json!({ "part": name, "attachment": "B", "record_bytes": RECORD_BYTES,
        "wire": wire, "cores": host.processors });
    line(format_args!("{name} of {} KiB records, wire {wire}", RECORD_BYTES >> 10))?;
    let cores = host.processors;
    for ((records, cost), delivery_ns) in Records::ALL.iter().zip(&costs).zip(delivery_ns) {
        let mut all = metrics(cost);
        all.insert("delivery_ns_per_gib".to_owned(), (delivery_ns * GIB).into());
        sink.write(object(&case), records.mode(), all)?;
        let row = Row { mode: records.mode(), cores, cost, record_bytes: RECORD_BYTES };
        let delivery_ns = delivery_ns * RECORD_BYTES as f64;
        line(format_args!("{row}, of the engine's {delivery_ns:.0} ns the host's TCP"))?;
    }
    let [_, software, offload] = &costs;
    let cost = software.host_ns_per_byte / offload.host_ns_per_byte;
    let kernel =
        (software.host_ns_per_byte + delivery_ns[1]) / (offload.host_ns_per_byte + delivery_ns[2]);
    let throughput = offload.throughput_bytes_per_s / software.throughput_bytes_per_s;
    let ratios = [
        (format!("host_cost_ratio_{name}"), cost),
        (format!("host_cost_ratio_{name}_with_delivery"), kernel),
        (format!("throughput_ratio_{name}_vs_software"), throughput),
    ];
    ratio(sink, &case, &ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whoever_seals_and_the_wire_has_the_same_records() {
        let room = match Room::new() {
            Ok(room) => room,
            Err(error) => {
                println!("skipped: {error:#}");
                return;
            }
        };
        let bytes = 1 << 20;
        let streams = Streams::new(bytes).unwrap();
        for large in [true, false] {
            with_host(&room, large, &streams, |runtime, host| {
                for what in What::ALL {
                    for records in Records::ALL {
                        for checked in [true, false] {
                            let cost =
                                round(runtime, host, &Case { what, records, bytes, checked })?;
                            let TapCost { cost, delivery_ns_per_byte } = cost;
                            assert!(cost.host_ns_per_byte > 0.0 && cost.engine_ns_per_byte > 0.0);
                            assert!(delivery_ns_per_byte > 0.0);
                        }
                    }
                }
                Ok(())
            })
            .unwrap();
        }
    }
}
