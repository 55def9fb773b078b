//! Processor time of the user-space TCP for 64 KiB sent and received, without the device's part.

use super::super::figures::{median, median_by};
use super::super::record::Sink;
use super::super::samples::clock_ns;
use super::figures::object;
use anyhow::Result;
use bytes::Bytes;
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;
use unlade_command::output::line;
use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;
use unlade_research_tcp::{Config, Connection, Header, Marked, SackBlocks, Time, Timestamps};

/// A received buffer with the device's metadata.
type Buffer = Marked<Bytes, u32>;

const MSS: usize = 1448;
const SEGMENTS: usize = 45;
const SUPER_BYTES: usize = MSS * SEGMENTS;
const RECORD_BYTES: usize = 16 * 1024;
/// Runs, of which the median counts.
const RUNS: usize = 11;

/// Two established ends, and the last headers that they sent.
struct Pair {
    near: Connection<Buffer>,
    far: Connection<Buffer>,
    now: Time,
    gather: Vec<Bytes>,
    /// The near end's last header; the next segment follows it.
    next_in: Header,
    next_seq: SeqNumber,
}

fn config() -> Config {
    Config {
        receive_buffer_bytes: 64 << 20,
        send_buffer_bytes: 64 << 20,
        super_segment_bytes: SUPER_BYTES as u32,
        ..Config::default()
    }
}

impl Pair {
    fn new() -> Pair {
        let now = Time::from_ms(1);
        let mut gather = Vec::new();
        let mut near = Connection::connect(config(), now, SeqNumber(1));
        let syn = near.poll_transmit(now, &mut gather).expect("SYN");
        let far = Connection::accept(config(), now, SeqNumber(2), &syn.header).expect("SYN");
        let (next_in, next_seq) = (syn.header, syn.header.seq);
        let mut pair = Pair { near, far, now, gather, next_in, next_seq };
        pair.exchange();
        assert!(pair.near.is_established() && pair.far.is_established());
        // Slow start, until the window no longer limits the sender.
        for _ in 0..200 {
            let piece = Bytes::from(vec![0; 4 << 20]);
            pair.near.send(piece).expect("room");
            pair.exchange();
        }
        pair
    }

    fn exchange(&mut self) {
        loop {
            self.now = Time::from_ns(self.now.ns() + 100_000);
            let mut quiet = true;
            while let Some(segment) = self.near.poll_transmit(self.now, &mut self.gather) {
                quiet = false;
                self.next_in = segment.header;
                self.next_seq = segment.header.seq + segment.payload_bytes;
                give(&mut self.far, self.now, &segment.header, &self.gather);
            }
            while self.far.read().is_some() {}
            while let Some(segment) = self.far.poll_transmit(self.now, &mut self.gather) {
                quiet = false;
                give(&mut self.near, self.now, &segment.header, &self.gather);
            }
            if quiet {
                return;
            }
        }
    }
}

fn give(to: &mut Connection<Buffer>, now: Time, header: &Header, gather: &[Bytes]) {
    let mut pieces: Vec<Buffer> =
        gather.iter().map(|part| Marked { buffer: part.clone(), mark: 0 }).collect();
    to.receive(now, header, &mut pieces);
}

/// The chunks of four TLS records: header, payload, room for type and tag.
fn records() -> Vec<Bytes> {
    let memory = Bytes::from(vec![1; 4 * RECORD_BYTES]);
    let around = Bytes::from(vec![2; 64]);
    let mut pieces = Vec::new();
    for number in 0..4 {
        pieces.push(around.slice(0..5));
        let start = number * RECORD_BYTES;
        pieces.push(memory.slice(start..start + RECORD_BYTES - 22));
        pieces.push(around.slice(5..22));
    }
    pieces
}

struct Sent {
    queue_ns: f64,
    transmit_ns: f64,
    ack_ns: f64,
    segments: f64,
}

/// Cost per 64 KiB: queued chunks, super-segments, acknowledgements one at a time.
fn send(pair: &mut Pair, rounds: usize, pieces: &[Bytes]) -> Sent {
    let mut ns = [0; 3];
    let mut segments = 0;
    let mut acks = Vec::with_capacity(64);
    let mut total = 0;
    for _ in 0..rounds {
        let start = Instant::now();
        for piece in pieces {
            pair.near.send(piece.clone()).expect("room");
        }
        ns[0] += start.elapsed().as_nanos();
        total += pieces.iter().map(Bytes::len).sum::<usize>();
        let start = Instant::now();
        while let Some(segment) = pair.near.poll_transmit(pair.now, &mut pair.gather) {
            segments += 1;
            acks.push((segment, black_box(pair.gather.len())));
        }
        ns[1] += start.elapsed().as_nanos();
        pair.now = Time::from_ns(pair.now.ns() + 50_000);
        for (segment, _) in acks.drain(..) {
            let header = Header {
                seq: segment.header.ack,
                ack: segment.header.seq + segment.payload_bytes,
                flags: TcpFlags::ACK,
                window: u16::MAX,
                timestamps: segment.header.timestamps.map(|t| Timestamps { echo: t.value, ..t }),
                sack: SackBlocks::default(),
                ..Header::default()
            };
            let start = Instant::now();
            pair.near.receive(pair.now, &header, &mut Vec::new());
            pair.near.handle_timeout(pair.now);
            ns[2] += start.elapsed().as_nanos();
        }
    }
    let each = total as f64 / 65_536.0;
    Sent {
        queue_ns: ns[0] as f64 / each,
        transmit_ns: ns[1] as f64 / each,
        ack_ns: ns[2] as f64 / segments as f64,
        segments: segments as f64 / each,
    }
}

/// Cost per 64 KiB: `parts` segments, coalesced or separate, read and acknowledged.
fn receive(pair: &mut Pair, rounds: usize, coalesced: bool) -> f64 {
    let memory = Bytes::from(vec![3; SUPER_BYTES]);
    let mut pieces: Vec<Buffer> = Vec::with_capacity(SEGMENTS);
    let mut ns = 0;
    for _ in 0..rounds {
        pair.now = Time::from_ns(pair.now.ns() + 50_000);
        let mut buffers: Vec<Buffer> = match coalesced {
            true => vec![Marked { buffer: memory.clone(), mark: 1 }],
            false => (0..SEGMENTS)
                .map(|part| Marked { buffer: memory.slice(part * MSS..(part + 1) * MSS), mark: 1 })
                .collect(),
        };
        let mut header = pair.next_in;
        let start = Instant::now();
        for buffer in buffers.drain(..) {
            header.seq = pair.next_seq;
            pair.next_seq = pair.next_seq + buffer.buffer.len() as u32;
            pieces.push(buffer);
            pair.far.receive(pair.now, &header, &mut pieces);
            while let Some(segment) = pair.far.poll_transmit(pair.now, &mut pair.gather) {
                black_box(segment);
            }
        }
        while let Some(part) = pair.far.read() {
            black_box(part);
        }
        ns += start.elapsed().as_nanos();
    }
    assert_eq!(pair.far.readable_bytes(), 0);
    ns as f64 / (rounds as f64 * SUPER_BYTES as f64 / 65_536.0)
}

/// Runs the part.
///
/// # Errors
/// Results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 1_000 } else { 20_000 };
    let whole = [Bytes::from(vec![1; 65_536])];
    for (name, pieces) in [("one piece", whole.to_vec()), ("four records of three", records())] {
        let mut pair = Pair::new();
        let runs: Vec<Sent> = (0..RUNS).map(|_| send(&mut pair, rounds, &pieces)).collect();
        let of = |figure: fn(&Sent) -> f64| median_by(&runs, figure);
        let (queue_ns, transmit_ns) = (of(|sent| sent.queue_ns), of(|sent| sent.transmit_ns));
        let (ack_ns, segments) = (of(|sent| sent.ack_ns), of(|sent| sent.segments));
        let case = json!({ "part": "segments", "what": "send", "chunks": name });
        let metrics = json!({ "queue_ns_per_64kib": queue_ns, "segments_per_64kib": segments,
            "transmit_ns_per_64kib": transmit_ns, "acknowledgement_ns": ack_ns });
        sink.write(object(&case), "tcp", object(&metrics))?;
        line(format_args!(
            "64 KiB sent, {name}: queue {queue_ns:.0} ns, transmit {transmit_ns:.0} ns in \
             {segments:.2} segments, acknowledgement {ack_ns:.0} ns each"
        ))?;
    }
    for (name, coalesced) in [("45 segments", false), ("one coalesced segment", true)] {
        let mut pair = Pair::new();
        let ns = median((0..RUNS).map(|_| receive(&mut pair, rounds, coalesced)));
        let case = json!({ "part": "segments", "what": "receive", "segments": name });
        sink.write(object(&case), "tcp", object(&json!({ "receive_ns_per_64kib": ns })))?;
        line(format_args!("64 KiB received, {name}: {ns:.0} ns, acknowledged and read"))?;
    }
    let clock = clock_ns();
    line(format_args!("(one reading of the clock: {clock:.0} ns; it is in each figure once)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_sent_and_received() {
        let mut pair = Pair::new();
        let sent = send(&mut pair, 2, &records());
        assert!(sent.segments > 0.0 && sent.queue_ns > 0.0 && sent.transmit_ns > 0.0);
        for coalesced in [false, true] {
            // It asserts that everything is read.
            assert!(receive(&mut Pair::new(), 2, coalesced) > 0.0);
        }
    }
}
