use bytes::Bytes;
use unlade_net::FlowKey;
use unlade_net::packet::{Direction, Segment as Made, TcpOptions};
use unlade_nic_engine::Tls;
use unlade_nic_engine::tls::Version;

use super::*;
use crate::flow::Protocol;
use crate::port::memory;
use crate::queue::{HostQueue, QueueConfig, TcpHeader, pair};
use crate::span::Span;

const FLOW: FlowId = FlowId(0);
const START: SeqNumber = SeqNumber(u32::MAX - 3000);

struct Rig {
    engine: Engine<memory::MemoryPort>,
    host: HostQueue,
    wire: memory::MemoryPort,
}

fn name() -> FlowKey {
    FlowKey::new(([10, 0, 0, 1], 4000).into(), ([10, 0, 0, 2], 443).into())
}

fn tls(key: u8) -> Protocol {
    Protocol::Tls(Box::new(Tls::new(Version::Tls13, &[key; 16], [9; 12]).unwrap()))
}

fn rig(config: QueueConfig) -> Rig {
    let (ours, wire) = memory::pair(256, 2048);
    let (host, device) = pair(config);
    let mut rig = Rig { engine: Engine::new(ours, device), host, wire };
    let template = Template::new([2; 6], [4; 6], &name()).unwrap();
    rig.tell(Command::Open { name: name(), template });
    rig
}

impl Rig {
    fn tell(&mut self, command: Command) {
        let entry = TxEntry::Command(Box::new(Addressed { flow: FLOW, command }));
        assert!(self.host.tx.push(entry).is_ok());
    }

    fn describe(&mut self, seq: SeqNumber, payload: &[u8], mss_bytes: usize) {
        let mut packet = self.host.spare.pop().unwrap();
        let mut header = [0; 60];
        header[..4].copy_from_slice(&[1, 187, 15, 160]);
        (header[12], header[13]) = (0x50, (TcpFlags::ACK | TcpFlags::PSH).0);
        packet.flow = FLOW;
        packet.header = TcpHeader::new(header, 20);
        packet.seq = seq;
        let pieces = payload.chunks(700).map(Bytes::copy_from_slice);
        packet.pieces.extend(pieces.map(Span::from));
        (packet.payload_bytes, packet.mss_bytes) = (payload.len(), mss_bytes);
        assert!(self.host.tx.push(TxEntry::Packet(packet)).is_ok());
    }

    /// Payloads that were sent, with their sequence numbers, and their PSH flags.
    fn left(&mut self) -> Vec<(SeqNumber, Vec<u8>, bool)> {
        let mut left = Vec::new();
        while let Some(frame) = self.wire.receive() {
            let Kind::Segment(found) = classify(frame.as_slice(), Checksums::Verify) else {
                panic!("a frame with wrong checksums has left");
            };
            assert_eq!(found.reversed(), name());
            let pushed = found.flags.contains(TcpFlags::PSH);
            left.push((found.seq, frame.as_slice()[found.payload].to_vec(), pushed));
            self.wire.recycle(frame);
        }
        left
    }

    fn comes(&mut self, seq: SeqNumber, payload: &[u8], ack: u32) {
        let raw = Made {
            flow: name(),
            direction: Direction::ToService,
            seq,
            ack: SeqNumber(ack),
            flags: TcpFlags::ACK,
            window: 9,
            options: TcpOptions { timestamps: Some((1, 1)), ..TcpOptions::default() },
            payload,
        }
        .ethernet_frame([4; 6], [2; 6])
        .unwrap();
        self.raw(&raw);
    }

    fn raw(&mut self, raw: &[u8]) {
        let mut frame = self.wire.empty();
        assert!(frame.copy_from(raw));
        assert!(self.wire.send(frame));
    }

    /// All segments that were delivered, with their payloads.
    fn up(&mut self) -> Vec<(RxSegment, Vec<u8>)> {
        let mut up = Vec::new();
        while let Ok(mut batch) = self.host.rx.pop() {
            for segment in batch.segments.drain(..) {
                let payload = batch.raw[segment.payload.clone()].to_vec();
                up.push((segment, payload));
            }
            batch.used_bytes = 0;
            assert!(self.host.free.push(batch).is_ok());
        }
        up
    }
}

/// A record as software writes it, and its bytes on the wire under key 7, number `number`.
fn record(number: u64, content: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut written = vec![23, 3, 3];
    written.extend((content.len() as u16 + 17).to_be_bytes());
    written.extend(content);
    written.push(23);
    written.extend([0; 16]);
    let mut sealed = written.clone();
    let mut flow = crate::flow::Flows::new(CACHE_BYTES);
    let flow = flow.create(FLOW, name()).unwrap();
    flow.create_tx(tls(7), START, number, 0).unwrap();
    assert_eq!(flow.transmit(0, START, &mut sealed), unlade_nic_engine::tx::Verdict::Send);
    (written, sealed)
}

#[test]
fn a_large_segment_is_cut_sealed_and_comes_back() {
    let mut rig = rig(QueueConfig::default());
    let content: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
    let (written, sealed) = record(0, &content);
    rig.tell(Command::CreateTx { protocol: tls(7), start: START, number: 0, key: 0 });
    rig.describe(START, &written, 1000);
    rig.engine.poll(0);
    let left = rig.left();
    let mut at = START;
    for (index, (seq, payload, pushed)) in left.iter().enumerate() {
        assert_eq!((*seq, *pushed), (at, index == left.len() - 1));
        at = at + payload.len() as u32;
    }
    assert_eq!(left.len(), 6);
    let payload: Vec<u8> = left.into_iter().flat_map(|(_, payload, _)| payload).collect();
    assert_eq!(payload, sealed);
    let packet = rig.host.completions.pop().unwrap();
    assert_eq!((packet.sent, packet.pieces.len()), (Sent::Whole, 8));
    let machines = rig.engine.report().machines;
    assert_eq!(machines.tx_tls_encrypted_packets, 6, "each frame is a packet");
    assert_eq!(machines.tx_tls_encrypted_bytes, sealed.len() as u64);
}

#[test]
fn of_a_large_segment_that_cannot_be_sealed_to_its_end_no_frame_leaves() {
    let mut rig = rig(QueueConfig::default());
    let (written, _) = record(0, &[1; 3000]);
    rig.tell(Command::CreateTx { protocol: tls(7), start: START, number: 0, key: 0 });
    // The bytes behind the record are not a record.
    rig.describe(START, &[&written[..], &[0; 100]].concat(), 1000);
    rig.engine.poll(0);
    assert_eq!(rig.left(), []);
    assert_eq!(rig.host.completions.pop().unwrap().sent, Sent::Dropped);
    let report = rig.engine.report();
    assert_eq!((report.counters.tx_dropped, report.machines.tx_tls_err), (1, 1));
    assert_eq!((report.counters.tx_frames, report.machines.tx_tls_encrypted_packets), (0, 0));
}

#[test]
fn commands_take_effect_between_the_packets_they_stand_between() {
    let mut rig = rig(QueueConfig::default());
    let (written, sealed) = record(0, b"some content");
    rig.describe(START - 5, b"clear", 1000);
    rig.tell(Command::CreateTx { protocol: tls(7), start: START, number: 0, key: 0 });
    rig.describe(START, &written, 1000);
    rig.tell(Command::DestroyTx { key: 0 });
    rig.describe(START + sealed.len() as u32, &written, 1000);
    rig.engine.poll(0);
    let left: Vec<Vec<u8>> = rig.left().into_iter().map(|(_, payload, _)| payload).collect();
    assert_eq!(left, [b"clear".to_vec(), sealed], "what no context seals does not leave");
    let sent: Vec<Sent> =
        std::iter::from_fn(|| rig.host.completions.pop().ok()).map(|packet| packet.sent).collect();
    assert_eq!(sent, [Sent::Whole, Sent::Whole, Sent::Dropped]);
    rig.tell(Command::Close);
    rig.describe(START, &written, 1000);
    rig.engine.poll(0);
    assert_eq!(rig.left(), []);
    assert_eq!(rig.engine.report().counters.tx_malformed, 1);
}

#[test]
fn results_that_differ_are_never_put_together() {
    let mut rig = rig(QueueConfig::default());
    let content = [0x33; 3000];
    let (written, mut sealed) = record(0, &content);
    rig.tell(Command::CreateRx { protocol: tls(7), start: START, number: 0 });
    rig.engine.poll(0);
    // The tag is in the last packet: it fails, and is delivered as it came.
    let last = sealed.len() - 1;
    sealed[last] ^= 1;
    let mut at = START;
    for payload in sealed.chunks(1000) {
        rig.comes(at, payload, 5);
        at = at + payload.len() as u32;
    }
    rig.engine.poll(0);
    let up = rig.up();
    assert_eq!(up.iter().map(|(segment, _)| segment.frames).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(up[0].1, written[..3000]);
    assert_eq!(up[1].1, sealed[3000..]);
    assert!(up[0].0.worked.is_some() && up[1].0.worked.is_none());
    assert_eq!((up[1].0.seq, up[1].0.flow), (START + 3000, Some(FLOW)));
    let headers = up[1].0.headers.clone();
    assert_eq!((headers.len(), up[1].0.tcp_at - headers.start), (66, 34));
    assert_eq!(rig.engine.report().machines.rx_tls_err, 1);
}

#[test]
fn behind_a_lost_record_the_next_one_is_decrypted_from_its_first_byte_on() {
    for presumes in [true, false] {
        let mut rig = rig(QueueConfig::default());
        rig.engine.presume(presumes);
        rig.tell(Command::CreateRx { protocol: tls(7), start: START, number: 0 });
        rig.engine.poll(0);
        let (mut clear, mut wire, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..6 {
            let (written, sealed) = record(number, &[number as u8; 1500]);
            starts.push(wire.len());
            clear.extend(written);
            wire.extend(sealed);
        }
        // The head of the fourth record is lost.
        let (lost, found) = (starts[3] - 100, starts[3] + 400);
        let head = starts[4] - found;
        for (at, end) in [(0, lost), (found, starts[4] + 200), (starts[4] + 200, wire.len())] {
            let mut at = at;
            for payload in wire[at..end].chunks(1400) {
                rig.comes(START + at as u32, payload, 5);
                at += payload.len();
            }
        }
        rig.engine.poll(0);
        let up = rig.up();
        let report = rig.engine.report().machines;
        assert_eq!(
            (report.rx_presumed, report.rx_presumed_right),
            match presumes {
                true => (1, 1),
                false => (0, 0),
            }
        );
        let found_head = up.iter().find(|(segment, _)| segment.from > 0);
        assert_eq!(found_head.is_some(), presumes);
        let Some((segment, raw)) = found_head else { continue };
        // The following frames stay separate: there is a question here.
        assert_eq!((segment.from, segment.seq), (head, START + found as u32));
        assert_eq!(raw[..head], wire[found..starts[4]]);
        assert_eq!(raw[head..], clear[starts[4]..starts[4] + 200]);
        let message = segment.worked.unwrap().message;
        assert_eq!((message.start, message.number), (START + starts[4] as u32, 4));
    }
}

#[test]
fn segments_whose_headers_differ_are_not_put_together() {
    let mut rig = rig(QueueConfig::default());
    rig.engine.poll(0);
    rig.comes(START, &[1; 100], 5);
    rig.comes(START + 100, &[2; 100], 5);
    rig.comes(START + 200, &[3; 100], 6);
    rig.comes(START + 400, &[4; 100], 6);
    rig.comes(START + 500, &[], 6);
    rig.comes(START + 500, &[5; 100], 6);
    rig.engine.poll(0);
    let frames: Vec<u32> = rig.up().iter().map(|(segment, _)| segment.frames).collect();
    assert_eq!(frames, [2, 1, 1, 1, 1]);
}

#[test]
fn damaged_and_foreign_frames_go_up_as_they_came() {
    let mut rig = rig(QueueConfig::default());
    let (_, sealed) = record(0, &[1; 500]);
    rig.tell(Command::CreateRx { protocol: tls(7), start: START, number: 0 });
    rig.engine.poll(0);
    let mut raw = Made {
        flow: name(),
        direction: Direction::ToService,
        seq: START,
        ack: SeqNumber(5),
        flags: TcpFlags::ACK,
        window: 9,
        options: TcpOptions::default(),
        payload: &sealed,
    }
    .ethernet_frame([4; 6], [2; 6])
    .unwrap();
    raw[100] ^= 4;
    rig.raw(&raw);
    rig.raw(&[0xff; 60]);
    rig.engine.poll(0);
    let up: Vec<RxKind> = rig.up().iter().map(|(segment, _)| segment.kind).collect();
    assert_eq!(up, [RxKind::Damaged, RxKind::Other]);
    let report = rig.engine.report();
    assert_eq!((report.counters.rx_damaged, report.counters.rx_other), (1, 1));
    assert_eq!(report.machines, Stats::default(), "no machine has seen them");
}

#[test]
fn without_empty_buffers_frames_are_lost_and_counted_and_the_machine_sees_a_gap() {
    let mut rig = rig(QueueConfig { tx_entries: 8, rx_batches: 1 });
    rig.engine.poll(0);
    for number in 0..200u32 {
        rig.comes(START + number * 3000, &[number as u8; 1000], number);
        rig.engine.poll(0);
    }
    let counters = rig.engine.report().counters;
    assert!(counters.rx_no_buffer > 0, "{counters:?}");
    let up = rig.up();
    assert_eq!(up.len() as u64 + counters.rx_no_buffer, 200);
    for (index, (segment, _)) in up.iter().enumerate() {
        assert_eq!(segment.seq, START + index as u32 * 3000, "the first ones, in order");
    }
    rig.comes(START, b"again", 0);
    rig.engine.poll(0);
    assert_eq!(rig.up().len(), 1, "with a buffer it goes on");
}

#[test]
fn a_full_line_makes_the_send_ring_wait_and_loses_nothing() {
    let mut rig = rig(QueueConfig { tx_entries: 64, rx_batches: 1 });
    for number in 0..40u32 {
        rig.describe(START + number * 10_000, &[number as u8; 10_000], 1000);
    }
    let mut frames = 0;
    for _ in 0..40 {
        while rig.engine.poll(0) > 0 {}
        assert!(rig.wire.room() > 0);
        frames += rig.left().len();
    }
    assert_eq!(frames, 400);
    assert_eq!(rig.engine.report().counters.tx_dropped, 0);
}

#[test]
fn descriptors_that_contradict_themselves_are_dropped() {
    let mut rig = rig(QueueConfig::default());
    rig.describe(START, &[1; 100], 0);
    rig.describe(START, &[1; 5000], 10);
    let mut packet = rig.host.spare.pop().unwrap();
    packet.payload_bytes = 7;
    assert!(rig.host.tx.push(TxEntry::Packet(packet)).is_ok());
    rig.engine.poll(0);
    assert_eq!(rig.left(), []);
    let counters = rig.engine.report().counters;
    assert_eq!((counters.tx_malformed, counters.tx_dropped), (3, 3));
}

#[test]
fn buffers_come_back_when_they_are_withdrawn_refused_or_their_flow_is_gone() {
    let mut rig = rig(QueueConfig::default());
    let registration = |tag, generation| Registration { tag, generation };
    let register = |tag, generation, value: u8| {
        let buffer = vec![value; 3].into();
        Command::Register { registration: registration(tag, generation), buffer }
    };
    rig.tell(register(1, 1, 11));
    rig.tell(register(1, 2, 12));
    rig.tell(register(2, 1, 21));
    rig.tell(Command::Withdraw(registration(1, 2)));
    rig.tell(Command::Withdraw(registration(1, 1)));
    rig.engine.poll(0);
    rig.tell(Command::Close);
    rig.tell(register(3, 1, 31));
    rig.engine.poll(0);
    let back: Vec<(Registration, u8)> = std::iter::from_fn(|| rig.host.withdrawn.pop().ok())
        .map(|withdrawn| (withdrawn.registration, withdrawn.buffer[0]))
        .collect();
    let expected = [(1, 2, 12), (1, 1, 11), (2, 1, 21), (3, 1, 31)]
        .map(|(tag, generation, value)| (registration(tag, generation), value));
    assert_eq!(back, expected);
    assert_eq!(rig.engine.report().counters.commands_refused, 2);
}
