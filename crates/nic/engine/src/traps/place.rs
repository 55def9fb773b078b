//! Pitfalls of receiving NVMe/TCP: digests and placement.

use std::collections::HashMap;

use unlade_net::SeqNumber;

use crate::model::pdus::{Pdu, data, pdu};
use crate::nvme::Progress;
use crate::nvme::types::{C2H_DATA, CAPSULE_RESP, H2C_DATA};
use crate::placement::{
    Buffers, Placed, Placement, PlacementError, Placer, RANGES_MAX, Registrar, Registration,
};
use crate::resync::Response;
use crate::rule::{OFF, Rule};
use crate::rx::{Received, Rx, State};
use crate::software::pdus::{Event, Input, PduResult, Pdus};
use crate::{Nvme, Stats};

pub(super) const BOTH: Nvme =
    Nvme { header_digest: true, data_digest: true, data_bytes_max: 1 << 16 };

/// Buffers of 64 KiB, filled with 0xaa.
#[derive(Default)]
pub(super) struct Memory(pub HashMap<Registration, Vec<u8>>);

impl Buffers for Memory {
    fn place(&mut self, registration: Registration, offset: u32, bytes: &[u8]) -> bool {
        let buffer = self.0.entry(registration).or_insert_with(|| vec![0xaa; 1 << 16]);
        let start = offset as usize;
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        true
    }
}

/// A device with buffers of 1000 bytes for tags 0 to 7, and a received stream.
struct Bench {
    nvme: Nvme,
    isn: SeqNumber,
    wire: Vec<u8>,
    starts: Vec<usize>,
    rx: Rx<Progress>,
    stats: Stats,
    placement: Placement,
    memory: Memory,
}

const fn registered(tag: u16) -> Registration {
    Registration { tag, generation: 1 }
}

impl Bench {
    fn new(nvme: Nvme, pdus: &[Pdu]) -> Bench {
        Bench::at(nvme, pdus, SeqNumber(1000))
    }

    fn at(nvme: Nvme, pdus: &[Pdu], isn: SeqNumber) -> Bench {
        let mut placement = Placement::new(8);
        for tag in 0..8 {
            placement.add(registered(tag), 1000).expect("a free tag");
        }
        let (mut wire, mut starts) = (Vec::new(), vec![0]);
        for pdu in pdus {
            wire.extend(&pdu.wire);
            starts.push(wire.len());
        }
        let (rx, stats, memory) = (Rx::new(isn, 0), Stats::default(), Memory::default());
        Bench { nvme, isn, wire, starts, rx, stats, placement, memory }
    }

    fn receive(&mut self, at: usize, end: usize) -> (Received, Vec<Placed>) {
        let payload = self.wire[at..end].to_vec();
        self.receive_other(at, &payload)
    }

    fn receive_other(&mut self, at: usize, payload: &[u8]) -> (Received, Vec<Placed>) {
        let mut placer = Placer::new(&mut self.placement, &mut self.memory);
        let packet = (self.isn + at as u32, payload);
        let stats = &mut self.stats;
        let received = self.rx.receive_placing(&self.nvme, stats, packet, &mut [], &mut placer);
        (received, placer.take().as_slice().to_vec())
    }

    fn buffer(&self, tag: u16) -> &[u8] {
        self.memory.0.get(&registered(tag)).map_or(&[], |buffer| &buffer[..1000])
    }
}

fn bytes(ranges: &[Placed]) -> usize {
    ranges.iter().map(|placed| (placed.end - placed.start) as usize).sum()
}

fn filled(byte: u8, count: usize) -> Vec<u8> {
    vec![byte; count]
}

#[test]
fn a_pdu_may_be_split_after_every_byte() {
    for digests in 0..4 {
        let nvme = Nvme { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, ..BOTH };
        for pdu_type in [C2H_DATA, H2C_DATA] {
            let pdus = [1, 2].map(|tag| data(&nvme, pdu_type, tag, 100, &[tag as u8; 60]));
            let total = pdus[0].wire.len() + pdus[1].wire.len();
            for split in 1..total {
                let mut bench = Bench::new(nvme, &pdus);
                let first = bench.receive(0, split);
                let second = bench.receive(split, total);
                assert!(first.0.pass.is_some() && second.0.pass.is_some(), "after {split}");
                assert_eq!(bytes(&first.1) + bytes(&second.1), 120);
                for tag in [1, 2] {
                    assert_eq!(bench.buffer(tag)[100..160], filled(tag as u8, 60));
                }
                assert_eq!(bench.stats.rx_placed_bytes, 120);
                // One byte at a time.
                let mut bench = Bench::new(nvme, &pdus[..1]);
                for at in 0..pdus[0].wire.len() {
                    assert!(bench.receive(at, at + 1).0.pass.is_some());
                }
                assert_eq!(bench.buffer(1)[100..160], filled(1, 60));
                if split > 40 {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_common_header_that_is_searched_may_be_split_after_every_byte() {
    let pdus = [1, 2, 3, 4].map(|tag| data(&BOTH, C2H_DATA, tag, 0, &[9; 60]));
    for split in 1..24 {
        let mut bench = Bench::new(BOTH, &pdus);
        let (third, fourth, end) = (bench.starts[2], bench.starts[3], bench.wire.len());
        let first = bench.receive(third - 5, third + split).0.request;
        let second = bench.receive(third + split, fourth).0.request;
        assert_eq!(first.is_some(), split >= 8);
        let request = first.or(second).expect("a request");
        assert_eq!(request.tcpsn, bench.isn + third as u32);
        assert!(bench.rx.respond(&mut bench.stats, &Response { request, number: Some(2) }));
        let (received, placed) = bench.receive(fourth, end);
        assert!(received.pass.is_some());
        assert_eq!((received.boundary, bytes(&placed)), (Some(0), 60));
    }
}

#[test]
fn a_false_header_in_data_is_not_believed() {
    let mut inside = Vec::new();
    while inside.len() < 900 {
        inside.extend(&data(&BOTH, C2H_DATA, 5, 0, &[7; 10]).wire);
    }
    let mut bench = Bench::new(BOTH, &[data(&BOTH, C2H_DATA, 1, 0, &inside)]);
    let request = bench.receive(200, 500).0.request.expect("it looks like one");
    assert_eq!(bench.receive(500, 900), (Received::default(), vec![]));
    // Software rejects it, because no PDU starts there.
    let mut pdus = Pdus::new(BOTH, bench.isn);
    let mut input = Input::plain(&bench.wire);
    while pdus.next(&mut input).expect("genuine").is_some() {}
    pdus.request(request);
    let response = pdus.response().expect("an answer");
    assert_eq!(response.number, None);
    assert!(bench.rx.respond(&mut bench.stats, &response));
    assert_eq!(bench.rx.state(), State::Searching);
    assert!(bench.memory.0.is_empty());
}

#[test]
fn data_of_an_unknown_tag_is_delivered_and_not_placed() {
    for tag in [8, 500, u16::MAX] {
        let mut bench = Bench::new(BOTH, &[data(&BOTH, C2H_DATA, tag, 0, &[1; 50])]);
        let (received, placed) = bench.receive(0, bench.wire.len());
        assert!(received.pass.is_some() && placed.is_empty() && bench.memory.0.is_empty());
    }
    // Data without a registered buffer is not placed either.
    let mut bench = Bench::new(BOTH, &[pdu(&BOTH, 4, &[0; 64], &[1; 50], 0)]);
    assert!(bench.receive(0, bench.wire.len()).1.is_empty());
}

#[test]
fn data_beyond_its_buffer_is_not_placed_at_all() {
    for (offset, length, fits) in [
        (0, 1000, true),
        (0, 1001, false),
        (999, 1, true),
        (999, 2, false),
        (1000, 1, false),
        (u32::MAX, 1, false),
        (u32::MAX - 10, 20, false),
    ] {
        let pdus = [data(&BOTH, C2H_DATA, 1, offset, &filled(3, length))];
        let mut bench = Bench::new(BOTH, &pdus);
        let (received, placed) = bench.receive(0, bench.wire.len());
        assert!(received.pass.is_some());
        assert_eq!(bytes(&placed), if fits { length } else { 0 }, "{length} at {offset}");
    }
}

#[test]
fn what_the_header_says_of_the_data_must_be_so() {
    let mut lie = data(&BOTH, C2H_DATA, 1, 0, &[3; 50]);
    lie.wire[16] = 40;
    let digest = crc32c::crc32c(&lie.wire[..24]);
    lie.wire[24..28].copy_from_slice(&digest.to_le_bytes());
    let mut bench = Bench::new(BOTH, &[lie]);
    assert!(bench.receive(0, bench.wire.len()).1.is_empty());
}

#[test]
fn late_data_never_touches_a_withdrawn_buffer_nor_the_next_one() {
    let pdus = [data(&BOTH, C2H_DATA, 1, 0, &[3; 100]), data(&BOTH, C2H_DATA, 1, 0, &[4; 100])];
    let mut bench = Bench::new(BOTH, &pdus);
    assert_eq!(bytes(&bench.receive(0, 60).1), 32);
    // The command is aborted while its data arrives, and another one gets its tag.
    bench.placement.remove(registered(1)).expect("it is there");
    assert_eq!(bench.placement.remove(registered(1)), Err(PlacementError::Unknown(1)));
    let (received, placed) = bench.receive(60, 90);
    assert!(received.pass.is_some() && placed.is_empty());
    let next = Registration { tag: 1, generation: 2 };
    bench.placement.add(next, 1000).expect("a free tag");
    assert!(bench.receive(90, bench.starts[1]).1.is_empty());
    assert_eq!(bench.buffer(1)[..32], filled(3, 32));
    assert_eq!(bench.buffer(1)[32], 0xaa);
    assert!(!bench.memory.0.contains_key(&next));
    // The new command's data is placed.
    let placed = bench.receive(bench.starts[1], bench.starts[2]).1;
    assert_eq!((bytes(&placed), placed[0].registration), (100, next));
    // A retransmission of the first command's data is not.
    bench.receive(0, bench.starts[1]);
    assert_eq!(bench.memory.0[&next][..100], filled(4, 100));
}

#[test]
fn a_tag_is_not_used_again_before_the_device_has_let_go() {
    let mut registrar = Registrar::new(4);
    let first = registrar.register(3).expect("a free tag");
    assert_eq!(registrar.register(3), Err(PlacementError::InUse(3)));
    assert_eq!(registrar.acknowledged(first), Err(PlacementError::Unknown(3)));
    assert_eq!(registrar.withdraw(first), Ok(()));
    assert_eq!(registrar.register(3), Err(PlacementError::InUse(3)));
    assert_eq!(registrar.withdraw(first), Err(PlacementError::Unknown(3)));
    assert_eq!(registrar.acknowledged(first), Ok(()));
    let second = registrar.register(3).expect("it is free");
    assert_ne!(first, second);
    assert_eq!(registrar.withdraw(first), Err(PlacementError::Unknown(3)));
    assert_eq!(registrar.register(4), Err(PlacementError::Tag(4)));
    let mut placement = Placement::new(4);
    placement.add(second, 10).expect("free");
    assert_eq!(placement.add(second, 10), Err(PlacementError::InUse(3)));
    assert_eq!(placement.add(Registration { tag: 4, ..second }, 1), Err(PlacementError::Tag(4)));
}

fn placed_twice() -> u8 {
    let pdus = [data(&BOTH, C2H_DATA, 1, 0, &[3; 100]), data(&BOTH, C2H_DATA, 1, 50, &[4; 100])];
    let mut bench = Bench::new(BOTH, &pdus);
    bench.receive(0, bench.wire.len());
    bench.buffer(1)[60]
}

#[test]
fn duplicate_data_never_touches_the_buffer() {
    assert_eq!(placed_twice(), 3);
    OFF.set(Some(Rule::Again));
    let without = placed_twice();
    OFF.set(None);
    assert_eq!(without, 4, "without the rule it is overwritten");
}

#[test]
fn packets_that_come_again_or_late_are_not_placed() {
    let mut bench = Bench::new(BOTH, &[data(&BOTH, C2H_DATA, 1, 0, &filled(3, 900))]);
    let end = bench.wire.len();
    assert_eq!(bytes(&bench.receive(0, 100).1), 72);
    // Later bytes come first: they go up unchanged, and are copied.
    assert_eq!(bench.receive(200, 300), (Received::default(), vec![]));
    let (received, placed) = bench.receive(100, 200);
    assert!(received.pass.is_some() && placed.is_empty(), "TCP may have others behind it");
    let (received, placed) = bench.receive(200, 300);
    assert!(received.pass.is_some() && placed.is_empty());
    let (received, placed) = bench.receive(300, end);
    assert!(received.pass.is_some());
    assert_eq!(bytes(&placed), end - 300 - 4);
    assert_eq!(bench.buffer(1)[100..172], filled(0xaa, 72));
}

#[test]
fn several_pdus_of_several_commands_are_placed_each_in_its_buffer() {
    let part = |tag: u16, offset| data(&BOTH, C2H_DATA, tag, offset, &[tag as u8; 100]);
    let pdus = [part(1, 0), part(2, 0), part(1, 100), part(2, 300), part(1, 200)];
    let mut bench = Bench::new(BOTH, &pdus);
    let end = bench.wire.len();
    for at in (0..end).step_by(70) {
        let (received, _) = bench.receive(at, (at + 70).min(end));
        assert!(received.pass.is_some());
    }
    assert_eq!(bench.buffer(1)[..301], [filled(1, 300), vec![0xaa]].concat());
    assert_eq!(bench.buffer(2)[..100], filled(2, 100));
    assert_eq!(bench.buffer(2)[300..400], filled(2, 100));
    assert_eq!(bench.buffer(2)[100..300], filled(0xaa, 200));
}

#[test]
fn there_are_so_many_ranges_in_a_packet_and_the_others_are_delivered() {
    let pdus: Vec<Pdu> =
        (0..7).map(|tag| data(&BOTH, C2H_DATA, tag, 0, &[tag as u8; 20])).collect();
    let mut bench = Bench::new(BOTH, &pdus);
    let (received, placed) = bench.receive(0, bench.wire.len());
    assert!(received.pass.is_some());
    assert_eq!((placed.len(), bench.memory.0.len()), (RANGES_MAX, RANGES_MAX));
    // Software copies the bytes that were not placed.
    let mut ranges = crate::placement::PlacedRanges::NONE;
    placed.iter().for_each(|placed| assert!(ranges.push(*placed)));
    let result = PduResult { pass: received.pass, boundary: received.boundary, placed: ranges };
    let mut software = Pdus::new(BOTH, bench.isn);
    let mut input = Input::new(&bench.wire, result);
    let mut copied = 0;
    while let Some(event) = software.next(&mut input).expect("genuine") {
        assert!(!matches!(event, Event::Corrupt | Event::Recheck { .. }));
        if let Event::Data { bytes, placed: None, .. } = event {
            copied += bytes.len();
        }
    }
    assert_eq!((copied, software.stats().pdus_offloaded), (60, 7));
}

#[test]
fn a_header_that_is_out_of_limits_is_none() {
    let nvme = Nvme { data_bytes_max: 500, ..BOTH };
    for (length, fits) in [(500, true), (501, false)] {
        let mut bench = Bench::new(nvme, &[data(&nvme, C2H_DATA, 1, 0, &filled(1, length))]);
        bench.receive(0, bench.wire.len());
        assert_eq!(bench.rx.state() == State::Offloading, fits);
    }
    for change in [(0, 0x0a), (1, 0xff), (2, 23), (3, 255), (7, 1)] {
        let mut bench = Bench::new(BOTH, &[data(&BOTH, C2H_DATA, 1, 0, &[1; 50])]);
        bench.wire[change.0] = change.1;
        bench.receive(0, bench.wire.len());
        assert_eq!(bench.rx.state(), State::Searching, "{change:?}");
    }
}

fn placed_in_spite_of_its_header() -> usize {
    let mut bench = Bench::new(BOTH, &[data(&BOTH, C2H_DATA, 1, 0, &[1; 50])]);
    bench.wire[8] = 2;
    let (received, placed) = bench.receive(0, bench.wire.len());
    assert_eq!(received.pass, None);
    bytes(&placed)
}

#[test]
fn a_wrong_header_digest_leaves_the_packet_unflagged_and_nothing_is_placed() {
    assert_eq!(placed_in_spite_of_its_header(), 0);
    OFF.set(Some(Rule::HeaderFirst));
    let without = placed_in_spite_of_its_header();
    OFF.set(None);
    assert_eq!(without, 50, "without the rule it goes to another command's buffer");
}

#[test]
fn a_wrong_data_digest_leaves_its_packet_unflagged_and_no_other() {
    let pdus = [1, 2, 3].map(|tag| data(&BOTH, C2H_DATA, tag, 0, &[9; 60]));
    let mut bench = Bench::new(BOTH, &pdus);
    let (second, third, end) = (bench.starts[1], bench.starts[2], bench.wire.len());
    bench.wire[second + 50] ^= 1;
    assert!(bench.receive(0, second + 40).0.pass.is_some());
    let (received, placed) = bench.receive(second + 40, third);
    assert_eq!((received.pass, bytes(&placed)), (None, 48));
    assert_eq!(bench.stats.rx_tls_err, 1);
    assert!(bench.receive(third, end).0.pass.is_some());
}

#[test]
fn sequence_numbers_wrap_anywhere_in_a_pdu() {
    let pdus = [1, 2, 3, 4].map(|tag| data(&BOTH, C2H_DATA, tag, 10, &[tag as u8; 30]));
    let total = pdus.iter().map(|pdu| pdu.wire.len()).sum::<usize>();
    for before in 0..=total as u32 {
        let mut bench = Bench::at(BOTH, &pdus, SeqNumber(0u32.wrapping_sub(before)));
        let (second, third, fourth) = (bench.starts[1], bench.starts[2], bench.starts[3]);
        assert_eq!(bytes(&bench.receive(0, second).1), 30);
        let request = bench.receive(second + 3, third + 20).0.request.expect("a candidate");
        let mut software = Pdus::new(BOTH, bench.isn);
        let mut input = Input::plain(&bench.wire[..third]);
        while software.next(&mut input).expect("genuine").is_some() {}
        software.request(request);
        let response = software.response().expect("an answer");
        assert_eq!(response.number, Some(2));
        assert!(bench.rx.respond(&mut bench.stats, &response));
        bench.receive(third + 20, fourth);
        let (received, placed) = bench.receive(fourth, total);
        assert!(received.pass.is_some(), "{before} before the wrap");
        assert_eq!(bytes(&placed), 30);
    }
}

/// The device has a wrong DATAO, from a packet that TCP rejects.
fn believed_where_it_is_not() -> usize {
    let nvme = Nvme { header_digest: false, data_digest: false, ..BOTH };
    let mut bench = Bench::new(nvme, &[data(&nvme, C2H_DATA, 1, 0, &[9; 100])]);
    let mut header = bench.wire[..24].to_vec();
    header[12] = 200;
    bench.receive_other(0, &header);
    let (received, placed) = bench.receive(24, bench.wire.len());
    let mut ranges = crate::placement::PlacedRanges::NONE;
    placed.iter().for_each(|placed| assert!(ranges.push(*placed)));
    let mut software = Pdus::new(nvme, bench.isn);
    let result = PduResult { pass: received.pass, boundary: received.boundary, placed: ranges };
    let parts = [Input::plain(&bench.wire[..24]), Input::new(&bench.wire[24..], result)];
    let mut believed = 0;
    for mut input in parts {
        while let Some(event) = software.next(&mut input).expect("genuine") {
            if let Event::Data { bytes, placed: Some(_), .. } = event {
                believed += bytes.len();
            }
        }
    }
    believed
}

#[test]
fn data_that_was_put_elsewhere_is_copied() {
    assert_eq!(believed_where_it_is_not(), 0);
    OFF.set(Some(Rule::Destination));
    let without = believed_where_it_is_not();
    OFF.set(None);
    assert_eq!(without, 100, "without the rule the copy is skipped");
}

#[test]
fn a_completion_has_its_header_checked_and_no_data() {
    let mut bench = Bench::new(BOTH, &[pdu(&BOTH, CAPSULE_RESP, &[5; 16], &[], 0)]);
    assert!(bench.receive(0, 28).0.pass.is_some());
    let mut bench = Bench::new(BOTH, &[pdu(&BOTH, CAPSULE_RESP, &[5; 16], &[], 0)]);
    bench.wire[20] ^= 4;
    assert_eq!(bench.receive(0, 28).0.pass, None);
}
