//! Sending TLS: the device's output against the stream as the peer seals it.

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use crate::Stats;
use crate::model::peer::{Shape, Stream, random_bytes};
use crate::software::sent::Sent;
use crate::tls::{Progress, Tls, Version};
use crate::tx::{Shadow, Tx, Verdict, send};

/// Number of bytes sent before the offload started.
const BEFORE_BYTES: usize = 300;

struct World {
    stream: Stream,
    /// The bytes before the offload, and the stream.
    wire: Vec<u8>,
    isn: SeqNumber,
    keys: Vec<Tls>,
    machines: Vec<(Shadow, Tx<Progress>)>,
    sent: Sent<Vec<u8>>,
    /// Number of records that software has written.
    written: usize,
    stats: Stats,
}

/// One connection.
///
/// # Errors
/// A difference from the model.
pub(crate) fn run(random: &mut Random) -> Result<Stats, String> {
    let version = if random.once_in(2) { Version::Tls12 } else { Version::Tls13 };
    let sizes = [3, 20, 200, 1448, 5000, 65535];
    let segment_bytes_max = sizes[random.below(6) as usize];
    let stream_bytes = (segment_bytes_max as usize * 100).clamp(4000, 250_000);
    let plaintext_sizes = [20, 300, 2000, 16384 - 256];
    let shape = Shape {
        stream_bytes,
        plaintext_bytes_max: plaintext_sizes[random.below(4) as usize],
        false_headers: None,
        keys: if random.once_in(3) { 1 + random.below(2) as usize } else { 0 },
        regular: false,
    };
    let stream = Stream::random(random, version, &shape);
    let isn = SeqNumber(0u32.wrapping_sub(random.below(2 * stream_bytes as u64) as u32));
    let begin = isn + BEFORE_BYTES as u32;
    let mut wire = random_bytes(random, BEFORE_BYTES);
    wire.extend(&stream.wire);
    let keys = stream.secrets.iter().map(|secret| secret.tls()).collect();
    let mut world = World {
        wire,
        isn,
        keys,
        machines: vec![(Shadow::new(begin), Tx::new(begin, stream.number, 0))],
        sent: Sent::new(begin, stream.number, 10_000),
        written: 0,
        stats: Stats::default(),
        stream,
    };
    world.play(random, segment_bytes_max)?;
    Ok(world.stats)
}

impl World {
    fn play(&mut self, random: &mut Random, segment_bytes_max: u64) -> Result<(), String> {
        let total = self.wire.len();
        let (mut next, mut acknowledged) = (BEFORE_BYTES, 0);
        while acknowledged < total {
            // The end of the bytes that software has written.
            let ready = self.write(random);
            let length = 1 + random.below(segment_bytes_max) as usize;
            match random.below(8) {
                0 => {
                    acknowledged += random.below((next - acknowledged) as u64 + 1) as usize;
                    self.sent.acknowledge(self.isn + acknowledged as u32);
                    // An old acknowledgement has no effect.
                    self.sent.acknowledge(self.isn + (acknowledged / 2) as u32);
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
                _ if next < ready => {
                    let end = (next + length).min(ready);
                    self.packet(next, end, true)?;
                    next = end;
                }
                _ => (),
            }
        }
        match self.sent.len() {
            0 => Ok(()),
            kept => Err(format!("{kept} messages are kept for nothing")),
        }
    }

    /// Software sometimes writes a record; returns the end of the written bytes.
    fn write(&mut self, random: &mut Random) -> usize {
        let next = self.stream.records.get(self.written);
        if let Some(place) = next.filter(|_| random.once_in(2)) {
            if usize::from(place.key) == self.machines.len() {
                let (key, start) = self.sent.change_key();
                self.machines.push((Shadow::new(start), Tx::new(start, 0, key)));
            }
            let record = self.stream.written[place.start..place.end].to_vec();
            self.sent.push(record).expect("there is room");
            self.written += 1;
        }
        let last = self.written.checked_sub(1).map(|last| &self.stream.records[last]);
        BEFORE_BYTES + last.map_or(0, |place| place.end)
    }

    /// TCP sends a packet; it must be sent if `must`, and must be correct in any case.
    fn packet(&mut self, mut at: usize, end: usize, must: bool) -> Result<(), String> {
        while at < end {
            let seq = self.isn + at as u32;
            let one = self.sent.under_one_key(seq, end - at);
            // With one key `under_one_key` is not needed: unknown bytes are dropped anyway.
            let (key, length) = match one {
                Some(one) => one,
                None if self.machines.len() == 1 => (0, end - at),
                None if must => return Err(format!("byte {at} is not known")),
                None => return Ok(()),
            };
            let mut payload = self.payload(at, at + length);
            let tls = &self.keys[usize::from(key)];
            let (shadow, tx) = &mut self.machines[usize::from(key)];
            let verdict = send(tls, (shadow, tx), &mut self.stats, &self.sent, seq, &mut payload);
            match verdict {
                Verdict::Drop if must => return Err(format!("byte {at} cannot be sent")),
                Verdict::Drop => (),
                Verdict::Send if payload != self.wire[at..at + length] => {
                    return Err(format!("byte {at} or behind leaves wrongly"));
                }
                Verdict::Send => (),
            }
            at += length;
        }
        Ok(())
    }

    /// TCP's bytes: the stream in the clear, after the bytes that were already sealed.
    fn payload(&self, at: usize, end: usize) -> Vec<u8> {
        let byte = |at: usize| match at.checked_sub(BEFORE_BYTES) {
            Some(at) => self.stream.written[at],
            None => self.wire[at],
        };
        (at..end).map(byte).collect()
    }
}
