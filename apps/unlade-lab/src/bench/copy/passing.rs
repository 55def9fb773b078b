//! Messages that a program receives, copies, and sends on, as a proxy of layers does: with `memcpy`,
//! past a deferred copy, and by splice(2), with a look at the head only.

use super::sockets::{Wire, send_all};
use crate::bench::figures::median;
use crate::bench::record::Sink;
use crate::bench::samples::{clock_ns, ns, trimmed_mean};
use anyhow::{Context, Result, ensure};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use serde_json::{Map, json};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use unlade_command::output::line;
use unlade_config::ByteSize;
use unlade_copy::{Config, Copier, Service};
use unlade_sys::usage::ThreadUsage;

const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Bytes of each message that are received and sent apart before the splice.
const HEAD_BYTES: usize = 64;
const PIPE_BYTES: usize = 1 << 20;
/// Bytes for each way in a round.
const ROUND_BYTES: usize = 4 << 20;

/// A way through the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Memcpy,
    PastCopy,
    Splice,
}

const WAYS: [Way; 3] = [Way::Memcpy, Way::PastCopy, Way::Splice];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Memcpy => "memcpy",
            Way::PastCopy => "offload",
            Way::Splice => "splice",
        }
    }
}

/// The program in the middle, and its peers.
struct Middle {
    inbound: Wire,
    outbound: Wire,
    input: Vec<u8>,
    output: Vec<u8>,
    pipe: (OwnedFd, OwnedFd),
    /// Keeps the copier's queue served.
    _service: Service,
    copier: Copier,
}

/// Cost of a message: time, and processor time of the program's thread and of the service.
#[derive(Debug, Default, Clone, Copy)]
struct Cost {
    ns: f64,
    thread_ns: f64,
}

impl Middle {
    fn new(bytes: usize) -> Result<Middle> {
        let pipe = pipe_with(PipeFlags::CLOEXEC)?;
        // Without the privilege the default capacity serves too.
        let _ = fcntl_setpipe_size(&pipe.1, PIPE_BYTES);
        let service = Service::start(Config::default()).context("starting the service")?;
        let copier = Copier::new(service.attach()?);
        Ok(Middle {
            inbound: Wire::new(bytes)?,
            outbound: Wire::new(bytes)?,
            // Written, so that their pages are there.
            input: vec![1; bytes],
            output: vec![1; bytes],
            pipe,
            _service: service,
            copier,
        })
    }

    fn pass(&mut self, way: Way) -> Result<Cost> {
        self.inbound.feed()?;
        let used = ThreadUsage::now()?.cpu;
        let begin = Instant::now();
        match way {
            Way::Memcpy => self.by_memcpy()?,
            Way::PastCopy => self.past_copy()?,
            Way::Splice => self.by_splice()?,
        }
        let took = ns(begin, Instant::now());
        let thread_ns = ThreadUsage::now()?.cpu.saturating_sub(used).as_nanos() as f64;
        self.outbound.drain()?;
        Ok(Cost { ns: took, thread_ns })
    }

    fn receive(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.input.len() {
            let (got, _) = recv(&self.inbound.near, &mut self.input[at..], RecvFlags::empty())?;
            ensure!(got > 0, "the connection ended");
            at += got;
        }
        Ok(())
    }

    fn by_memcpy(&mut self) -> Result<()> {
        self.receive()?;
        self.output.copy_from_slice(&self.input);
        send_all(&self.outbound.near, &self.output)
    }

    fn past_copy(&mut self) -> Result<()> {
        self.receive()?;
        let Middle { input, output, outbound, copier, .. } = self;
        let len = output.len();
        copier.scope(|scope| -> Result<()> {
            let copied = scope.copy_lazily(input, output, u32::MAX);
            let sent = scope.send_copied(outbound.near.as_fd(), &copied, 0..len)?;
            copied.discard();
            sent.wait()?;
            Ok(())
        })
    }

    fn by_splice(&mut self) -> Result<()> {
        let (near, out) = (&self.inbound.near, &self.outbound.near);
        let mut at = 0;
        while at < HEAD_BYTES {
            at += recv(near, &mut self.input[at..HEAD_BYTES], RecvFlags::empty())?.0;
        }
        send(out, &self.input[..HEAD_BYTES], SendFlags::NOSIGNAL | SendFlags::MORE)?;
        while at < self.input.len() {
            let left = (self.input.len() - at).min(PIPE_BYTES);
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let taken = splice(near, None, &self.pipe.1, None, left, flags)?;
            ensure!(taken > 0, "the connection ended");
            let mut given = 0;
            while given < taken {
                given += splice(&self.pipe.0, None, out, None, taken - given, SpliceFlags::MOVE)?;
            }
            at += taken;
        }
        Ok(())
    }
}

/// Medians of each way over rounds in which they take turns.
fn measure(bytes: usize, rounds: usize) -> Result<[Cost; 3]> {
    let mut middle = Middle::new(bytes)?;
    let clock_ns = clock_ns();
    let repeats = (ROUND_BYTES / bytes).clamp(4, 128);
    let mut means = [const { (Vec::new(), Vec::new()) }; 3];
    for round in 0..=rounds {
        for (way, (times, threads)) in WAYS.into_iter().zip(&mut means) {
            let costs = (0..repeats).map(|_| middle.pass(way)).collect::<Result<Vec<_>>>()?;
            // The first round only warms up.
            if round > 0 {
                let mut samples: Vec<f64> = costs.iter().map(|cost| cost.ns).collect();
                times.push((trimmed_mean(&mut samples) - clock_ns).max(1.0));
                let mut samples: Vec<f64> = costs.iter().map(|cost| cost.thread_ns).collect();
                threads.push(trimmed_mean(&mut samples));
            }
        }
    }
    Ok(means.map(|(times, threads)| Cost { ns: median(times), thread_ns: median(threads) }))
}

/// Runs all sizes.
///
/// # Errors
/// A connection breaks, or results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 7 } else { 21 };
    line(format_args!(
        "{:<16}{:>10}{:>10}{:>10}{:>8}{:>8}",
        "forward, ns", "offload", "memcpy", "splice", "ratio", "splice"
    ))?;
    for bytes in SIZES {
        report(bytes, &measure(bytes, rounds)?, sink)?;
    }
    Ok(())
}

fn report(bytes: usize, costs: &[Cost; 3], sink: &mut Sink) -> Result<()> {
    let case = json!({ "bytes": bytes, "chain": "forward" });
    let case = || case.as_object().cloned().unwrap_or_default();
    for (way, cost) in WAYS.into_iter().zip(costs) {
        let metrics = [("latency_ns", cost.ns), ("thread_cpu_ns", cost.thread_ns)];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value.into()));
        sink.write(case(), way.name(), Map::from_iter(metrics))?;
    }
    let [memcpy, past, spliced] = costs.map(|cost| cost.ns);
    let metrics = Map::from_iter([
        ("latency_ratio_vs_sync".to_owned(), (past / memcpy).into()),
        ("latency_ratio_vs_splice".to_owned(), (past / spliced).into()),
    ]);
    sink.write(case(), "ratio", metrics)?;
    line(format_args!(
        "{:<16}{past:>10.0}{memcpy:>10.0}{spliced:>10.0}{:>8.2}{:>8.2}",
        ByteSize(bytes as u64),
        past / memcpy,
        past / spliced
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_pass_the_message_on() {
        for bytes in [4 << 10, 100_000] {
            let mut middle = Middle::new(bytes).unwrap();
            for way in WAYS {
                // The far end compares what it gets.
                middle.pass(way).unwrap();
                middle.input.fill(0);
                middle.output.fill(0);
            }
            let stats = middle.copier.stats().read();
            assert_eq!(stats.forwarded_bytes, bytes as u64);
        }
    }
}
