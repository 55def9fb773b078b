//! Sending NVMe/TCP, plain or over TLS: the device's output against that of another library.

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use crate::composed::{self, Stats};
use crate::model::storage::{Shape, Stream};
use crate::nvme::Progress;
use crate::software::composed::ComposedSent;
use crate::software::sent::Sent;
use crate::tls::{Tls, Version};
use crate::tx::{Shadow, Tx, Verdict, send};

/// Maximum number of messages that are kept.
const MESSAGES_MAX: usize = 100_000;

enum Machine {
    Plain(Box<Tx<Progress>>, Sent<Vec<u8>>),
    Composed(Box<composed::tx::Tx>, ComposedSent<Vec<u8>>, Tls),
}

struct World {
    stream: Stream,
    isn: SeqNumber,
    shadow: Shadow,
    machine: Machine,
    /// Number of PDUs and records that software has written, and the end of their bytes.
    pdus: usize,
    records: usize,
    ready: usize,
    stats: Stats,
}

/// One connection without TLS.
///
/// # Errors
/// A difference from the model.
pub(crate) fn plain(random: &mut Random) -> Result<Stats, String> {
    run(random, None)
}

/// One connection with TLS.
///
/// # Errors
/// A difference from the model.
pub(crate) fn secure(random: &mut Random) -> Result<Stats, String> {
    let version = if random.once_in(4) { Version::Tls12 } else { Version::Tls13 };
    run(random, Some(version))
}

fn run(random: &mut Random, version: Option<Version>) -> Result<Stats, String> {
    let sizes = [3, 20, 200, 1448, 5000, 65_535];
    let segment_bytes_max = sizes[random.below(6) as usize];
    let data_sizes = [60, 600, 3000, 30_000];
    let stream_bytes = (segment_bytes_max as usize * 60).clamp(3000, 120_000);
    let shape = Shape {
        stream_bytes,
        data_bytes_max: data_sizes[random.below(4) as usize],
        record_bytes_max: [30, 500, 4000, 16_000][random.below(4) as usize],
        false_headers: None,
        mistakes: random.once_in(2),
        other_records: random.once_in(2),
        between: true,
        padding: false,
        version,
    };
    let stream = Stream::random(random, &shape);
    let isn = SeqNumber(0u32.wrapping_sub(random.below(2 * stream_bytes as u64) as u32));
    let machine = match &stream.secret {
        None => Machine::Plain(Box::new(Tx::new(isn, 0, 0)), Sent::new(isn, 0, MESSAGES_MAX)),
        Some(secret) => {
            let tx = Box::new(composed::tx::Tx::new(isn, 0, 0));
            Machine::Composed(tx, ComposedSent::new(isn, 0, MESSAGES_MAX), secret.tls())
        }
    };
    let shadow = Shadow::new(isn);
    let (pdus, records, ready, stats) = (0, 0, 0, Stats::default());
    let mut world = World { stream, isn, shadow, machine, pdus, records, ready, stats };
    world.play(random, segment_bytes_max)?;
    Ok(world.stats)
}

impl World {
    fn play(&mut self, random: &mut Random, segment_bytes_max: u64) -> Result<(), String> {
        let total = self.stream.wire.len();
        let (mut next, mut acknowledged) = (0, 0);
        while acknowledged < total {
            if random.once_in(2) {
                self.write()?;
            }
            let length = 1 + random.below(segment_bytes_max) as usize;
            match random.below(8) {
                0 => {
                    acknowledged += random.below((next - acknowledged) as u64 + 1) as usize;
                    self.acknowledge(acknowledged);
                }
                1 | 2 if acknowledged < next => {
                    let at = acknowledged + random.below((next - acknowledged) as u64) as usize;
                    self.packet(at, (at + length).min(next), true)?;
                }
                // A retransmission of acknowledged bytes is correct or dropped.
                3 if acknowledged > 0 => {
                    let at = random.below(acknowledged as u64) as usize;
                    self.packet(at, (at + length).min(next), false)?;
                }
                _ if next < self.ready => {
                    let end = (next + length).min(self.ready);
                    self.packet(next, end, true)?;
                    next = end;
                }
                _ => (),
            }
        }
        let kept = match &self.machine {
            Machine::Plain(_, sent) => sent.is_empty(),
            Machine::Composed(_, sent, _) => sent.is_empty(),
        };
        kept.then_some(()).ok_or_else(|| "messages are kept for nothing".to_owned())
    }

    /// Software writes a PDU, or a record with all PDUs that it needs.
    fn write(&mut self) -> Result<(), String> {
        let full = |_| "there is no room".to_owned();
        match &mut self.machine {
            Machine::Plain(_, sent) => {
                let Some((pdu, _)) = self.stream.pdus.get(self.pdus) else { return Ok(()) };
                sent.push(pdu.written.clone()).map_err(full)?;
                self.ready += pdu.written.len();
                self.pdus += 1;
            }
            Machine::Composed(_, sent, _) => {
                let Some(place) = self.stream.records.get(self.records) else { return Ok(()) };
                let starts = &self.stream.starts;
                while starts.get(self.pdus).is_some_and(|start| *start < place.content.end) {
                    let written = self.stream.pdus[self.pdus].0.written.clone();
                    sent.push_pdu(written).map_err(full)?;
                    self.pdus += 1;
                }
                let written = self.stream.written[place.range.clone()].to_vec();
                sent.push_record(written, place.content.len() as u32).map_err(full)?;
                self.ready = place.range.end;
                self.records += 1;
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, acknowledged: usize) {
        let seq = self.isn + acknowledged as u32;
        match &mut self.machine {
            Machine::Plain(_, sent) => sent.acknowledge(seq),
            Machine::Composed(_, sent, _) => sent.acknowledge(seq),
        };
    }

    /// TCP sends a packet; it must be sent if `must`, and must be correct in any case.
    fn packet(&mut self, at: usize, end: usize, must: bool) -> Result<(), String> {
        let seq = self.isn + at as u32;
        let mut payload = self.stream.written[at..end].to_vec();
        let (nvme, stats, shadow) = (&self.stream.nvme, &mut self.stats, &mut self.shadow);
        let verdict = match &mut self.machine {
            Machine::Plain(tx, sent) => {
                send(nvme, (shadow, tx), &mut stats.nvme, sent, seq, &mut payload)
            }
            Machine::Composed(tx, sent, tls) => {
                let both = (shadow, &mut **tx);
                composed::tx::send((tls, nvme), both, stats, sent, seq, &mut payload)
            }
        };
        match verdict {
            Verdict::Drop if must => Err(format!("byte {at} cannot be sent")),
            Verdict::Send if payload != self.stream.wire[at..end] => {
                let wrong = payload.iter().zip(&self.stream.wire[at..end]);
                let first = wrong.into_iter().position(|(left, right)| left != right);
                Err(format!("byte {:?} leaves wrongly", first.map(|first| at + first)))
            }
            Verdict::Drop | Verdict::Send => Ok(()),
        }
    }
}
