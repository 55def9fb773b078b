//! The engine's machines for packets in order, without threads, rings and TCP, beside the primitives
//! that they use and a copy.

use super::super::figures::median;
use super::super::record::Sink;
use super::figures::object;
use anyhow::Result;
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;
use unlade_aead::{Key, crc32c};
use unlade_command::output::line;
use unlade_net::SeqNumber;
use unlade_nic_engine::composed;
use unlade_nic_engine::nvme::{self, FLAG_DDGST, FLAG_HDGST, types};
use unlade_nic_engine::placement::{Buffers, Placement, Placer, Registration};
use unlade_nic_engine::rx::Rx;
use unlade_nic_engine::tls::{self, Tls, Version};
use unlade_nic_engine::tx::Tx;
use unlade_nic_engine::{Nvme, Stats};

/// Payload of a packet, bytes.
const PACKET_BYTES: usize = 1448;
/// Data of a PDU, and application data of a record, bytes.
const DATA_BYTES: usize = 64 * 1024;
const RECORD_BYTES: usize = 16 * 1024;
/// Length of a stream.
const STREAM_BYTES: usize = 1 << 20;
const KEY: [u8; 16] = [7; 16];
const NVME: Nvme = Nvme { header_digest: true, data_digest: true, data_bytes_max: 1 << 20 };

struct Memory(Vec<u8>);

impl Buffers for Memory {
    fn place(&mut self, _: Registration, offset: u32, bytes: &[u8]) -> bool {
        let start = offset as usize % DATA_BYTES;
        let end = (start + bytes.len()).min(DATA_BYTES);
        self.0[start..end].copy_from_slice(&bytes[..end - start]);
        true
    }
}

/// Data PDUs in the form that software writes.
fn pdus() -> Vec<u8> {
    let mut stream = Vec::new();
    while stream.len() < STREAM_BYTES {
        let plen = 24 + 4 + DATA_BYTES as u32 + 4;
        stream.extend([types::C2H_DATA, FLAG_HDGST | FLAG_DDGST, 24, 28]);
        stream.extend(plen.to_le_bytes());
        stream.extend([0; 8]);
        stream.extend((DATA_BYTES as u32).to_le_bytes());
        stream.extend([0; 8]);
        stream.resize(stream.len() + DATA_BYTES + 4, 0x5a);
    }
    stream
}

/// TLS 1.3 records with the given content, in the form that software writes.
fn records(content: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for content in content.chunks(RECORD_BYTES) {
        stream.extend([23, 3, 3]);
        stream.extend((content.len() as u16 + 17).to_be_bytes());
        stream.extend(content);
        stream.push(23);
        stream.extend([0; 16]);
    }
    stream
}

fn tls() -> Tls {
    Tls::new(Version::Tls13, &KEY, [1; 12]).expect("a key of 16 bytes")
}

/// A measured contender: its mode and name, the bytes of its stream, and a function that returns the
/// seconds for the stream.
type Contender = (&'static str, &'static str, usize, Box<dyn FnMut() -> f64>);

fn timed(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

/// Calls `packet` with each packet of `stream`.
fn each(stream: &[u8], mut packet: impl FnMut(SeqNumber, &[u8])) {
    let mut seq = SeqNumber(0);
    for payload in stream.chunks(PACKET_BYTES) {
        packet(seq, payload);
        seq = seq + payload.len() as u32;
    }
}

fn each_mut(stream: &mut [u8], mut packet: impl FnMut(SeqNumber, &mut [u8])) {
    let mut seq = SeqNumber(0);
    for payload in stream.chunks_mut(PACKET_BYTES) {
        packet(seq, payload);
        seq = seq + payload.len() as u32;
    }
}

fn sending(name: &'static str, written: Vec<u8>, kind: u8) -> Contender {
    let (key, mut sent) = (tls(), written.clone());
    let run = move || {
        sent.copy_from_slice(&written);
        let (mut stats, mut both) = (Stats::default(), composed::Stats::default());
        let mut tls_tx = Tx::<tls::Progress>::new(SeqNumber(0), 0, 0);
        let mut nvme_tx = Tx::<nvme::Progress>::new(SeqNumber(0), 0, 0);
        let mut composed = composed::tx::Tx::new(SeqNumber(0), 0, 0);
        timed(|| {
            each_mut(&mut sent, |seq, payload| {
                black_box(match kind {
                    0 => tls_tx.transmit(&key, &mut stats, seq, payload),
                    1 => nvme_tx.transmit(&NVME, &mut stats, seq, payload),
                    _ => composed.transmit((&key, &NVME), &mut both, seq, payload),
                });
            });
        })
    };
    ("offload", name, written_bytes(kind), Box::new(run))
}

fn written_bytes(kind: u8) -> usize {
    match kind {
        0 => records(&vec![0; STREAM_BYTES]).len(),
        1 => pdus().len(),
        _ => records(&pdus()).len(),
    }
}

/// The form on the wire of `written`.
fn sealed(written: &[u8], kind: u8) -> Vec<u8> {
    let mut wire = written.to_vec();
    let key = tls();
    match kind {
        0 => {
            let mut tx = Tx::<tls::Progress>::new(SeqNumber(0), 0, 0);
            tx.transmit(&key, &mut Stats::default(), SeqNumber(0), &mut wire);
        }
        1 => {
            let mut tx = Tx::<nvme::Progress>::new(SeqNumber(0), 0, 0);
            tx.transmit(&NVME, &mut Stats::default(), SeqNumber(0), &mut wire);
        }
        _ => {
            let mut tx = composed::tx::Tx::new(SeqNumber(0), 0, 0);
            let mut stats = composed::Stats::default();
            tx.transmit((&key, &NVME), &mut stats, SeqNumber(0), &mut wire);
        }
    }
    wire
}

fn receiving(name: &'static str, written: &[u8], kind: u8, places: bool) -> Contender {
    let (key, wire) = (tls(), sealed(written, kind));
    let (mut out, mut memory) = (vec![0; PACKET_BYTES], Memory(vec![0; DATA_BYTES]));
    let bytes = wire.len();
    let run = move || {
        let (mut stats, mut both) = (Stats::default(), composed::Stats::default());
        let mut tls_rx = Rx::<tls::Progress>::new(SeqNumber(0), 0);
        let mut nvme_rx = Rx::<nvme::Progress>::new(SeqNumber(0), 0);
        let mut composed = composed::rx::Rx::new(SeqNumber(0), 0);
        let mut placement = Placement::new(1);
        if places {
            // Unlimited buffer: each PDU of the stream overwrites it.
            let registration = Registration { tag: 0, generation: 1 };
            placement.add(registration, u32::MAX).expect("a free tag");
        }
        let mut good = 0;
        let seconds = timed(|| {
            each(&wire, |seq, payload| {
                if places && kind > 0 && seq.0 as usize % (DATA_BYTES / 2) < PACKET_BYTES {
                    let registration = Registration { tag: 0, generation: 1 };
                    placement.remove(registration).expect("it is there");
                    placement.add(registration, u32::MAX).expect("a free tag");
                }
                let mut placer = Placer::new(&mut placement, &mut memory);
                let packet = (seq, payload);
                let (stats, both, out) = (&mut stats, &mut both, &mut out[..]);
                let pass = match kind {
                    0 => tls_rx.receive(&key, stats, seq, payload, out).pass,
                    1 => nvme_rx.receive_placing(&NVME, stats, packet, out, &mut placer).pass,
                    _ => composed.receive((&key, &NVME), both, packet, out, &mut placer).nvme,
                };
                good += usize::from(pass.is_some());
            });
        });
        assert_eq!(good, wire.len().div_ceil(PACKET_BYTES), "everything is offloaded");
        seconds
    };
    ("offload", name, bytes, Box::new(run))
}

fn primitives() -> Vec<Contender> {
    let source = vec![0x33; STREAM_BYTES];
    let (copied, hashed, mut opened) = (source.clone(), source.clone(), source);
    let mut to = vec![0; STREAM_BYTES];
    let key = Key::new(&KEY).expect("a key of 16 bytes");
    let copy = move || {
        timed(|| {
            for (from, to) in copied.chunks(PACKET_BYTES).zip(to.chunks_mut(PACKET_BYTES)) {
                black_box(&mut *to).copy_from_slice(black_box(from));
            }
        })
    };
    let hash = move || {
        timed(|| {
            let pieces = hashed.chunks(PACKET_BYTES);
            black_box(pieces.fold(0, |crc, piece| crc32c::update(crc, black_box(piece))));
        })
    };
    let open = move || {
        timed(|| {
            for record in opened.chunks_mut(RECORD_BYTES) {
                let mut at = key.begin(&[1; 12], &[23, 3, 3, 64, 17]);
                record.chunks_mut(PACKET_BYTES).for_each(|piece| key.decrypt(&mut at, piece));
                black_box(key.tag(&at));
            }
        })
    };
    vec![
        ("memcpy", "primitive", STREAM_BYTES, Box::new(copy)),
        ("crc32c", "primitive", STREAM_BYTES, Box::new(hash)),
        ("aes-gcm", "primitive", STREAM_BYTES, Box::new(open)),
    ]
}

fn contenders() -> Vec<Contender> {
    let (plain, both) = (pdus(), records(&pdus()));
    let only_tls = records(&vec![0x5a; STREAM_BYTES]);
    let mut contenders = primitives();
    contenders.push(sending("tx tls", only_tls.clone(), 0));
    contenders.push(sending("tx nvme", plain.clone(), 1));
    contenders.push(sending("tx nvme-tls", both.clone(), 2));
    contenders.push(receiving("rx tls", &only_tls, 0, false));
    contenders.push(receiving("rx nvme, digests only", &plain, 1, false));
    contenders.push(receiving("rx nvme, placed", &plain, 1, true));
    contenders.push(receiving("rx nvme-tls, digests only", &both, 2, false));
    contenders.push(receiving("rx nvme-tls, placed", &both, 2, true));
    contenders
}

/// Runs the part.
///
/// # Errors
/// Results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 15 } else { 61 };
    let mut contenders = contenders();
    let mut seconds = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for ((_, _, _, run), seconds) in contenders.iter_mut().zip(&mut seconds) {
            seconds.push(run());
        }
    }
    line(format_args!(
        "{PACKET_BYTES} bytes a packet, records of {RECORD_BYTES}, PDUs of {DATA_BYTES}"
    ))?;
    line(format_args!("{:<10}{:<28}{:>14}{:>10}", "", "", "ns per packet", "GB/s"))?;
    for ((mode, name, bytes, _), seconds) in contenders.iter().zip(&seconds) {
        let median_s = median(seconds);
        let packet_ns = median_s / bytes.div_ceil(PACKET_BYTES) as f64 * 1e9;
        let bytes_per_s = *bytes as f64 / median_s;
        let case = json!({ "part": "machines", "what": name, "packet_bytes": PACKET_BYTES });
        let metrics = json!({ "throughput_bytes_per_s": bytes_per_s, "packet_ns": packet_ns });
        sink.write(object(&case), mode, object(&metrics))?;
        let rate = bytes_per_s / 1e9;
        line(format_args!("{mode:<10}{name:<28}{packet_ns:>14.0}{rate:>10.1}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_offloads_its_whole_stream() {
        // A receiving machine asserts it in its run.
        for (mode, name, bytes, mut run) in contenders() {
            assert!(run() > 0.0 && bytes >= STREAM_BYTES, "{mode} {name}");
        }
    }
}
