//! Pitfalls of receiving NVMe/TCP over TLS.

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use super::place::{BOTH, Memory};
use crate::composed::{Stats, rx::Received, rx::Rx};
use crate::model::pdus::{Pdu, data};
use crate::model::peer::Secret;
use crate::nvme::types::C2H_DATA;
use crate::placement::{Placement, Placer, Registration};
use crate::rx::State;
use crate::software::composed::{ComposedPdus, ComposedResult, Opened};
use crate::software::pdus::Event;
use crate::software::records::RecordError;
use crate::tls::{TAG_BYTES, Tls, Version};

const ISN: SeqNumber = SeqNumber(u32::MAX - 300);

/// Number of leading unchanged bytes of a packet with a result, and the packet's bytes for
/// software.
type View = (usize, Vec<u8>);

/// Device, software and a stream.
struct Bench {
    secret: Secret,
    tls: Tls,
    wire: Vec<u8>,
    /// Starts of the records, and the end of the last one.
    starts: Vec<usize>,
    rx: Rx,
    stats: Stats,
    placement: Placement,
    memory: Memory,
    software: ComposedPdus,
    /// Number of bytes that software copied, and the PDUs and data that it got.
    copied: usize,
    ended: usize,
    data: Vec<u8>,
    out: Vec<u8>,
}

impl Bench {
    /// Records with the given contents; for TLS 1.3 the type is appended.
    fn new(version: Version, contents: &[(&[u8], u8)]) -> Bench {
        let secret = Secret::random(&mut Random::new(3), version);
        let (mut wire, mut starts) = (Vec::new(), vec![0]);
        for (number, (content, content_type)) in contents.iter().enumerate() {
            let mut plaintext = content.to_vec();
            if version == Version::Tls13 {
                plaintext.push(*content_type);
            }
            wire.extend(secret.record(number as u64, number as u64, &plaintext).1);
            starts.push(wire.len());
        }
        let mut placement = Placement::new(8);
        for tag in 0..8 {
            placement.add(Registration { tag, generation: 1 }, 10_000).expect("a free tag");
        }
        let out = vec![0; wire.len() + 1];
        let software = ComposedPdus::new(secret.tls(), BOTH, ISN, 0);
        Bench {
            tls: secret.tls(),
            secret,
            wire,
            starts,
            rx: Rx::new(ISN, 0),
            stats: Stats::default(),
            placement,
            memory: Memory::default(),
            software,
            copied: 0,
            ended: 0,
            data: Vec::new(),
            out,
        }
    }

    /// The device processes a packet; returns its result and the bytes for software.
    fn receive(&mut self, at: usize, payload: &[u8]) -> (Received, ComposedResult, View) {
        let mut placer = Placer::new(&mut self.placement, &mut self.memory);
        let (protocols, packet) = ((&self.tls, &BOTH), (ISN + at as u32, payload));
        let stats = &mut self.stats;
        let received = self.rx.receive(protocols, stats, packet, &mut self.out, &mut placer);
        let result = ComposedResult::of(&received, placer.take());
        let from = received.tls.from as usize;
        let view = match result.tls {
            Some(_) => [&payload[..from], &self.out[from..payload.len()]].concat(),
            None => payload.to_vec(),
        };
        (received, result, (from, view))
    }

    /// Delivers bytes to software.
    fn deliver(&mut self, (from, view): &View, result: ComposedResult) -> Result<(), RecordError> {
        let (head, rest) = view.split_at(*from);
        let nvme = result.nvme.of(*from as u32, u32::MAX);
        self.push(head, ComposedResult::default())?;
        self.push(rest, ComposedResult { nvme, ..result })
    }

    fn push(&mut self, mut view: &[u8], mut result: ComposedResult) -> Result<(), RecordError> {
        while !view.is_empty() {
            let taken = self.software.push(view, &result)?;
            view = &view[taken..];
            result.nvme = result.nvme.of(taken as u32, u32::MAX);
            let Some(opened) = self.software.open(&mut self.stats.tls)? else { continue };
            let Opened::Pdus(mut content) = opened else { continue };
            while let Some(event) = content.event().expect("PDUs") {
                match event {
                    Event::Header { .. } => self.data.clear(),
                    Event::Data { bytes, placed, .. } => {
                        self.data.extend(bytes);
                        self.copied += if placed.is_none() { bytes.len() } else { 0 };
                    }
                    Event::Recheck { data_bytes } => {
                        content.recheck(&self.data[..data_bytes as usize]);
                    }
                    Event::End => self.ended += 1,
                    Event::Corrupt => panic!("a digest is wrong"),
                }
            }
        }
        Ok(())
    }

    /// Receives and delivers a range of the stream.
    fn go(&mut self, at: usize, end: usize) -> Received {
        let payload = self.wire[at..end].to_vec();
        let (received, result, view) = self.receive(at, &payload);
        self.deliver(&view, result).expect("genuine");
        received
    }
}

fn reads(count: u16) -> Vec<Pdu> {
    (0..count).map(|tag| data(&BOTH, C2H_DATA, tag, 0, &[tag as u8; 50])).collect()
}

fn joined(pdus: &[Pdu]) -> Vec<u8> {
    pdus.iter().flat_map(|pdu| pdu.wire.clone()).collect()
}

#[test]
fn a_pdu_may_be_split_over_records_after_every_byte() {
    for version in [Version::Tls12, Version::Tls13] {
        let inner = joined(&reads(3));
        for split in 1..inner.len() {
            let contents = [(&inner[..split], 23), (&inner[split..], 23)];
            for packet_bytes in [usize::MAX, 61] {
                let mut bench = Bench::new(version, &contents);
                let end = bench.wire.len();
                for at in (0..end).step_by(packet_bytes.min(end)) {
                    let received = bench.go(at, (at + packet_bytes.min(end)).min(end));
                    assert!(received.tls.pass.is_some(), "{version:?}, {split}");
                }
                let stats = bench.software.stats();
                assert_eq!((bench.ended, bench.copied), (3, 0), "{version:?}, {split}");
                assert_eq!((stats.pdus_offloaded, stats.copy_skipped_bytes), (3, 150));
                for tag in 0..3_u16 {
                    let registration = Registration { tag, generation: 1 };
                    assert_eq!(bench.memory.0[&registration][..50], vec![tag as u8; 50]);
                }
            }
        }
    }
}

#[test]
fn records_of_one_byte_and_of_none_are_gone_through() {
    let inner = joined(&reads(1));
    let empty: (&[u8], u8) = (&[], 23);
    let contents: Vec<(&[u8], u8)> = inner.chunks(1).flat_map(|byte| [(byte, 23), empty]).collect();
    let mut bench = Bench::new(Version::Tls13, &contents);
    bench.go(0, bench.wire.len());
    assert_eq!((bench.ended, bench.software.stats().pdus_offloaded), (1, 1));
}

#[test]
fn a_record_that_fails_is_not_released_whatever_was_placed_of_it() {
    for version in [Version::Tls12, Version::Tls13] {
        let inner = data(&BOTH, C2H_DATA, 1, 0, &[7; 300]).wire;
        let mut bench = Bench::new(version, &[(&inner[..], 23)]);
        let end = bench.wire.len();
        bench.wire[150] ^= 1;
        let first = bench.wire[..200].to_vec();
        let (received, result, view) = bench.receive(0, &first);
        assert!(received.tls.pass.is_some() && !result.nvme.placed.is_empty());
        assert_eq!(bench.deliver(&view, result), Ok(()));
        let rest = bench.wire[200..end].to_vec();
        let (received, result, view) = bench.receive(200, &rest);
        assert_eq!(received.tls.pass, None);
        assert_eq!(result, ComposedResult::default());
        assert_eq!(bench.deliver(&view, result), Err(RecordError::Forged));
        assert_eq!(bench.ended, 0);
    }
}

#[test]
fn a_record_that_holds_something_else_makes_the_inner_machine_lose_its_place() {
    let first = joined(&reads(2));
    let behind = joined(&reads(6)[2..]);
    let padded = [&behind[..78], &[23, 0, 0]].concat();
    let other: [(&[u8], u8); 2] = [(&[0x18, 0, 0, 0, 1], 22), (&padded, 0)];
    for (content, content_type) in other {
        let is_padded = content_type == 0;
        let rest = if is_padded { &behind[78..] } else { &behind[..] };
        let contents = [(&first[..], 23), (content, content_type), (rest, 23)];
        let mut bench = Bench::new(Version::Tls13, &contents);
        let (second, third, end) = (bench.starts[1], bench.starts[2], bench.wire.len());
        assert!(bench.go(0, second).nvme.is_some());
        assert_eq!(bench.go(second, third).nvme, None);
        assert_eq!(bench.rx.states(), (State::Offloading, State::Searching));
        let received = bench.go(third, end);
        assert!(received.tls.pass.is_some() && received.nvme_request.is_some());
        assert_eq!(bench.ended, 6);
    }
}

#[test]
fn the_inner_machine_comes_back_by_its_own_question() {
    let inner = joined(&reads(8));
    let cuts: Vec<(&[u8], u8)> = inner.chunks(100).map(|content| (content, 23)).collect();
    let mut bench = Bench::new(Version::Tls13, &cuts);
    let starts = bench.starts.clone();
    assert!(bench.go(0, starts[1] + 20).nvme.is_some());
    // A packet is late: the device continues after it.
    let late = bench.wire[starts[1] + 20..starts[1] + 50].to_vec();
    let behind = bench.wire[starts[1] + 50..starts[2] + 40].to_vec();
    let (received, result, view) = bench.receive(starts[1] + 50, &behind);
    assert_eq!((received.tls.from, received.nvme), (72, None));
    assert!(received.tls.pass.is_some());
    assert_eq!(bench.rx.states(), (State::Offloading, State::Searching));
    let (_, late_result, late_view) = bench.receive(starts[1] + 20, &late);
    bench.deliver(&late_view, late_result).expect("genuine");
    bench.deliver(&view, result).expect("genuine");
    // The outer machine continues with the third record, and the inner one requests.
    let received = bench.go(starts[2] + 40, starts[3]);
    assert_eq!(received.tls.pass.map(|pass| pass.key), Some(0));
    let request = received.nvme_request.expect("a PDU in it");
    let stale = crate::resync::Request { generation: request.generation - 1, ..request };
    bench.software.request(request);
    let response = bench.software.response().expect("it was read");
    // PDUs have 82 bytes: the first one that starts in the third record's content.
    let first = 200_usize.next_multiple_of(82);
    assert_eq!(request.tcpsn, ISN + (starts[2] + 5 + first - 200) as u32);
    assert_eq!(response.number, Some(first as u64 / 82));
    let other = crate::resync::Response { request: stale, ..response };
    assert!(!bench.rx.respond_nvme(&mut bench.stats, &other));
    assert!(bench.rx.respond_nvme(&mut bench.stats, &response));
    assert_eq!(bench.rx.states(), (State::Offloading, State::Offloading));
    let end = bench.wire.len();
    let received = bench.go(starts[3], end);
    assert!(received.tls.pass.is_some());
    let received_all = bench.ended;
    assert_eq!(received_all, 8);
    assert!(bench.software.stats().pdus_offloaded >= 1);
}

#[test]
fn what_was_decrypted_with_another_key_says_nothing_of_pdus() {
    let inner = joined(&reads(4));
    let half = inner.len() / 2;
    let mut bench = Bench::new(Version::Tls13, &[(&inner[..half], 23), (&[24, 0, 0, 0, 1], 22)]);
    let next = Secret::random(&mut Random::new(8), Version::Tls13);
    let change = bench.wire.len();
    let plaintext = [&inner[half..], &[23]].concat();
    bench.wire.extend(next.record(0, 0, &plaintext).1);
    let end = bench.wire.len();
    bench.out.resize(end, 0);
    assert_eq!(bench.secret.version, Version::Tls13);
    let second = bench.starts[1];
    bench.go(0, second);
    bench.go(second, change);
    bench.software.records().change_key(next.tls());
    // The device has not got the key.
    let cut = end - TAG_BYTES - 10;
    assert!(bench.go(change, cut).tls.pass.is_some());
    bench.go(cut, end);
    assert_eq!((bench.ended, bench.copied), (4, 100));
}
