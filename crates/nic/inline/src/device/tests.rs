//! A model of a kernel at one end, a sealing peer at the other, and a comparison of every byte.

use std::sync::Arc;

use bytes::Bytes;
use unlade_metrics::OpenMetrics;
use unlade_net::packet::{Direction, Segment as Made, TcpFlags, TcpOptions};
use unlade_net::state::{DirectionSecrets, TlsSnapshot};
use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::resync::Pass;
use unlade_nic_engine::tx::Verdict;
use unlade_nic_engine::{Stats, Tls, tls::Version};
use unlade_sys::vnet::VnetHeader;
use unlade_testkit::Random;
use unlade_tls::RecordLayer;

use super::channel::DeviceCounters;
use super::ended::QUIET_MS;
use super::engine::Engine;
use super::flow::{Flow, Receiving, RxOutcome, RxSide, TxSide};
use super::flow_table::{IDLE_MS, Offer};
use super::reader::Reader;
use crate::tls_proxy::metrics::add_device;
use unlade_tls::device::{Begin, Refused};

mod counters;

const KEY: [u8; 16] = [7; 16];
const IV: [u8; 12] = [9; 12];

fn tls() -> Tls {
    Tls::new(Version::Tls13, &KEY, IV).unwrap()
}

/// A record in the clear, with room for its tag.
fn in_clear(content: &[u8]) -> Vec<u8> {
    let length = (content.len() + 17) as u16;
    let mut record = vec![23, 3, 3];
    record.extend(length.to_be_bytes());
    record.extend(content);
    record.push(23);
    record.extend([0; 16]);
    record
}

/// Records and their bytes on the wire, `before` bytes behind the stream's start.
struct Stream {
    records: Vec<Bytes>,
    content: Vec<u8>,
    clear: Vec<u8>,
    sealed: Vec<u8>,
}

fn stream(random: &mut Random, count: usize, content_bytes_max: u64) -> Stream {
    let (mut records, mut content) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let piece: Vec<u8> =
            (0..random.below(content_bytes_max)).map(|_| random.next() as u8).collect();
        records.push(Bytes::from(in_clear(&piece)));
        content.extend(piece);
    }
    let clear: Vec<u8> = records.concat();
    let mut sealed = clear.clone();
    let mut side = TxSide::new(SeqNumber(0), 0, 0, tls());
    records.iter().for_each(|record| side.push(record.clone()).unwrap());
    let verdict = side.send(&mut Stats::default(), SeqNumber(0), &mut sealed);
    assert_eq!(verdict, Verdict::Send);
    Stream { records, content, clear, sealed }
}

fn layer() -> RecordLayer {
    let direction =
        || DirectionSecrets { key: KEY.to_vec(), iv: IV, sequence: 0, traffic_secret: vec![1; 32] };
    RecordLayer::from_snapshot(&TlsSnapshot {
        version: 0x0304,
        suite: 0x1301,
        read: direction(),
        write: direction(),
        ciphertext: Vec::new(),
    })
    .unwrap()
}

/// The bytes that a kernel keeps of a stream.
struct Kernel {
    bytes: Vec<Option<u8>>,
    next: usize,
    read: usize,
}

impl Kernel {
    /// Takes a segment, and keeps the bytes that it lacks.
    fn take(&mut self, start: usize, bytes: &[u8]) {
        for (place, byte) in self.bytes[start..].iter_mut().zip(bytes) {
            place.get_or_insert(*byte);
        }
        while self.bytes.get(self.next).is_some_and(Option::is_some) {
            self.next += 1;
        }
    }
}

/// One connection over a wire that loses, duplicates and reorders, to a kernel that drops some of
/// the segments. Returns the number of records with ambiguous delivery.
fn receive_over_a_bad_wire(random: &mut Random) -> u64 {
    let longest_bytes = [1200, 6000][random.below(2) as usize];
    let stream = stream(random, 40, longest_bytes);
    let origin = SeqNumber(random.next() as u32);
    let receiving = Receiving { tls: tls(), offset: 0, number: 0, read: 0 };
    let rx = RxSide::new(origin, receiving, origin);
    let tx = TxSide::new(SeqNumber(0), 0, 0, tls());
    let flow = Arc::new(Flow::new(tx, rx));
    let mut reader = Reader::new(flow.clone(), tls(), 0, 0, 0);
    let (mut layer, mut stats) = (layer(), Stats::default());
    let total = stream.sealed.len();
    let mut kernel = Kernel { bytes: vec![None; total], next: 0, read: 0 };
    let (mut plaintext, mut sent, mut out) = (Vec::new(), 0, vec![0; total]);
    while kernel.read < total {
        // The next segment, or a retransmission with other boundaries: from the oldest byte on,
        // or from not far behind it.
        let again = (sent == total || random.below(4) == 0) && kernel.next < sent;
        let start = match again {
            true => (kernel.next + (random.below(2) * random.below(2500)) as usize).min(sent - 1),
            false => sent,
        };
        let end = (start + 1 + random.below(500) as usize).min(if again { sent } else { total });
        sent = sent.max(end);
        if random.below(20) == 0 {
            continue;
        }
        let bytes = &stream.sealed[start..end];
        let out = &mut out[..bytes.len()];
        let seq = origin + start as u32;
        let outcome = flow.receive(&mut stats, seq, bytes, out);
        let dropped = random.below(25) == 0;
        match outcome {
            RxOutcome::Raw if !dropped => kernel.take(start, bytes),
            RxOutcome::Decrypted if !dropped => kernel.take(start, out),
            _ => (),
        }
        if random.below(3) == 0 {
            flow.rx().acknowledge(origin + kernel.next as u32);
        }
        if random.below(4) == 0 || kernel.next == total {
            let bytes: Vec<u8> =
                kernel.bytes[kernel.read..kernel.next].iter().map(|byte| byte.unwrap()).collect();
            kernel.read = kernel.next;
            reader.receive(&mut layer, &bytes, &mut plaintext).unwrap();
        }
    }
    assert_eq!(plaintext, stream.content);
    let (records, doubtful) = reader.take_stats();
    assert_eq!(records.records_offloaded + records.records_partial + records.records_software, 40);
    doubtful
}

#[test]
fn whatever_copy_the_kernel_keeps_the_plaintext_is_right() {
    let doubtful = std::cell::Cell::new(0);
    unlade_testkit::cases(150, |random| {
        doubtful.set(doubtful.get() + receive_over_a_bad_wire(random))
    });
    println!("{} records were in doubt", doubtful.get());
    assert!(std::env::var_os("UNLADE_SEED").is_some() || doubtful.get() > 0);
}

#[test]
fn a_byte_that_was_changed_ends_the_connection_also_in_doubt() {
    unlade_testkit::cases(50, |random| {
        let stream = stream(random, 3, 600);
        let mut sealed = stream.sealed.clone();
        let at = random.below(sealed.len() as u64) as usize;
        sealed[at] ^= 1 << random.below(8);
        let (origin, mut stats) = (SeqNumber(5), Stats::default());
        let receiving = Receiving { tls: tls(), offset: 0, number: 0, read: 0 };
        let rx = RxSide::new(origin, receiving, origin);
        let flow = Arc::new(Flow::new(TxSide::new(origin, 0, 0, tls()), rx));
        let mut reader = Reader::new(flow.clone(), tls(), 0, 0, 0);
        let mut delivered = Vec::new();
        for chunk in sealed.chunks(100) {
            let mut out = vec![0; chunk.len()];
            let seq = origin + delivered.len() as u32;
            let first = flow.receive(&mut stats, seq, chunk, &mut out);
            flow.receive(&mut stats, seq, chunk, &mut vec![0; chunk.len()]);
            delivered.extend(if first == RxOutcome::Decrypted { &out } else { chunk });
        }
        let mut plaintext = Vec::new();
        let ended = reader.receive(&mut layer(), &delivered, &mut plaintext);
        // A longer length is a record that never ends.
        assert!(ended.is_err() || plaintext.len() < stream.content.len());
        assert!(stream.content.starts_with(&plaintext));
    });
}

#[test]
fn whatever_the_kernel_sends_again_the_wire_gets_the_same_bytes() {
    unlade_testkit::cases(100, |random| {
        let before: Vec<u8> = (0..random.below(300)).map(|_| random.next() as u8).collect();
        let stream = stream(random, 30, 900);
        let wire = [&before[..], &stream.sealed].concat();
        let clear = [&before[..], &stream.clear].concat();
        let origin = SeqNumber(random.next() as u32);
        let mut side = TxSide::new(origin, before.len() as u64, 0, tls());
        let (mut written, mut stats) = (before.len(), Stats::default());
        let mut records = stream.records.iter();
        let mut acknowledged = 0;
        let mut dropped = 0;
        while acknowledged < wire.len() {
            if random.below(2) == 0
                && let Some(record) = records.next()
            {
                side.push(record.clone()).unwrap();
                written += record.len();
            }
            let start = acknowledged + random.below((written - acknowledged) as u64 + 1) as usize;
            let end = (start + random.below(2500) as usize).min(written);
            let mut payload = clear[start..end].to_vec();
            match side.send(&mut stats, origin + start as u32, &mut payload) {
                Verdict::Send => assert_eq!(payload, wire[start..end]),
                Verdict::Drop => dropped += 1,
            }
            if random.below(3) == 0 {
                acknowledged +=
                    random.below((end.max(acknowledged) - acknowledged) as u64 + 1) as usize;
                side.acknowledge(acknowledged as u64);
            }
        }
        assert_eq!((dropped, side.is_empty()), (0, true));
    });
}

#[test]
fn records_under_several_keys_are_sealed_each_with_its_own() {
    let other = || Tls::new(Version::Tls13, &[8; 32], IV).unwrap();
    let (one, two) = (in_clear(&[1; 500]), in_clear(&[2; 700]));
    let mut expected = [one.clone(), two.clone()];
    for (tls, record) in [tls(), other()].into_iter().zip(&mut expected) {
        let mut side = TxSide::new(SeqNumber(0), 0, 0, tls);
        side.push(Bytes::from(record.clone())).unwrap();
        assert_eq!(side.send(&mut Stats::default(), SeqNumber(0), record), Verdict::Send);
    }
    let clear = [one.clone(), two.clone()].concat();
    let expected = expected.concat();
    let mut side = TxSide::new(SeqNumber(0), 0, 0, tls());
    side.push(one.clone().into()).unwrap();
    side.change_key(other()).unwrap();
    side.push(two.into()).unwrap();
    let mut stats = Stats::default();
    for (start, end) in [(0, clear.len()), (100, 900), (0, 400), (one.len(), clear.len())] {
        let mut payload = clear[start..end].to_vec();
        let verdict = side.send(&mut stats, SeqNumber(start as u32), &mut payload);
        assert_eq!((verdict, &payload[..]), (Verdict::Send, &expected[start..end]));
    }
    side.acknowledge(one.len() as u64);
    let mut payload = clear[one.len()..].to_vec();
    let verdict = side.send(&mut stats, SeqNumber(one.len() as u32), &mut payload);
    assert_eq!((verdict, &payload[..]), (Verdict::Send, &expected[one.len()..]));
    assert_eq!(side.send(&mut stats, SeqNumber(0), &mut [0; 10]), Verdict::Drop);
}

#[test]
fn streams_go_on_beyond_the_wrap_of_numbers() {
    let record = Bytes::from(in_clear(&[1; 16_384]));
    let mut side = TxSide::new(SeqNumber(1000), 0, 0, tls());
    let (mut offset, mut stats) = (0u64, Stats::default());
    // Sealing 5 GiB takes long: most of it is skipped, as if it had been sent and acknowledged.
    while offset < 5 << 30 {
        side.push(record.clone()).unwrap();
        offset += record.len() as u64;
        if offset % 97 == 0 {
            let seq = SeqNumber(1000) + (offset - record.len() as u64) as u32;
            let mut payload = record.to_vec();
            assert_eq!(side.send(&mut stats, seq, &mut payload), Verdict::Send);
            assert!(payload != record);
        }
        side.acknowledge(offset);
    }
    assert!(stats.tx_tls_encrypted_packets > 1000);
    // Bytes that may not be sent again.
    assert_eq!(side.send(&mut stats, SeqNumber(1000), &mut [0; 10]), Verdict::Drop);
}

#[test]
fn what_comes_before_the_stream_is_dropped() {
    let mut side = TxSide::new(SeqNumber(1000), 50, 0, tls());
    let mut stats = Stats::default();
    assert_eq!(side.send(&mut stats, SeqNumber(1000), &mut [1; 50]), Verdict::Send);
    assert_eq!(side.send(&mut stats, SeqNumber(999), &mut [1; 50]), Verdict::Drop);
    assert_eq!(side.send(&mut stats, SeqNumber(1000), &mut [1; 51]), Verdict::Drop);
}

// Frames through the engine.

fn name() -> FlowKey {
    FlowKey::new("10.9.0.1:443".parse().unwrap(), "10.9.0.2:5000".parse().unwrap())
}

/// A frame of the host, or of the peer.
fn frame(by_host: bool, flags: TcpFlags, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let direction = if by_host { Direction::ToService } else { Direction::ToClient };
    let (flow, window, options) = (name(), 900, TcpOptions::default());
    let (seq, ack) = (SeqNumber(seq), SeqNumber(ack));
    Made { flow, direction, seq, ack, flags, window, options, payload }
        .ethernet_frame([2; 6], [4; 6])
        .unwrap()
}

fn from_host(engine: &mut Engine, now_ms: u64, mut frame: Vec<u8>) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    engine.host_frame(
        now_ms,
        &VnetHeader::default(),
        &mut frame,
        &mut |_: &VnetHeader, frame: &[u8]| {
            out.push(frame.to_vec());
        },
    );
    out
}

fn from_wire(engine: &mut Engine, mut frame: Vec<u8>) -> Vec<(VnetHeader, Vec<u8>)> {
    let mut out = Vec::new();
    engine.wire_frame(
        0,
        &VnetHeader::default(),
        &mut frame,
        &mut |header: &VnetHeader, frame: &[u8]| {
            out.push((*header, frame.to_vec()));
        },
    );
    out
}

const SYN_ACK: TcpFlags = TcpFlags(0x12);
/// The first sequence numbers of host and peer.
const HOST: u32 = u32::MAX - 100;
const PEER: u32 = 77;

fn offer(sent_bytes: u64, read: u64) -> Offer {
    Offer {
        name: name(),
        begin: Begin::Seen,
        sent_bytes,
        sent_number: 0,
        sending: tls(),
        receiving: Receiving { tls: tls(), offset: read, number: 0, read },
    }
}

/// An engine with a connection that the peer has opened, offloaded from the start.
fn offloaded() -> (Engine, Arc<Flow>) {
    let mut engine = Engine::new(false);
    from_wire(&mut engine, frame(false, TcpFlags::SYN, PEER - 1, 0, &[]));
    from_host(&mut engine, 0, frame(true, SYN_ACK, HOST - 1, PEER, &[]));
    let flow = engine.table().create(0, offer(0, 0)).unwrap();
    (engine, flow)
}

fn payload_of(frame: &[u8], bytes: usize) -> &[u8] {
    &frame[frame.len() - bytes..]
}

#[test]
fn frames_are_sealed_and_opened_and_have_right_checksums() {
    let (mut engine, flow) = offloaded();
    let record = in_clear(b"something to say");
    flow.tx().push(record.clone().into()).unwrap();
    let out = from_host(&mut engine, 0, frame(true, TcpFlags::ACK, HOST, PEER, &record));
    let sealed = payload_of(&out[0], record.len()).to_vec();
    assert!(sealed[5..] != record[5..] && sealed[..5] == record[..5]);
    let checked = crate::classify::classify(&out[0], crate::classify::Checksums::Verify);
    assert!(matches!(checked, crate::classify::Kind::Segment(_)));
    // The sealed bytes come back as if the peer had sealed them.
    let up = from_wire(&mut engine, frame(false, TcpFlags::ACK, PEER, HOST, &sealed));
    assert!(up[0].0.checksum_at.is_some());
    assert_eq!(&payload_of(&up[0].1, record.len())[5..21], b"something to say");
    let mut ranges = Vec::new();
    flow.rx().read(record.len(), &mut ranges);
    let pass = Some(Pass { key: 0, generation: 0 });
    assert!(matches!(&ranges[..], [(_, history)] if passes(history) == [pass]));
}

#[test]
fn a_frame_with_a_wrong_checksum_goes_up_as_it_came() {
    let (mut engine, flow) = offloaded();
    let mut bad = frame(false, TcpFlags::ACK, PEER, HOST, &in_clear(&[1; 100]));
    *bad.last_mut().unwrap() ^= 1;
    let up = from_wire(&mut engine, bad.clone());
    assert_eq!(up, [(VnetHeader::default(), bad)]);
    assert_eq!(engine.counters().damaged_frames, 1);
    assert_eq!(flow.rx().ambiguous_bytes(), 0);
}

#[test]
fn nothing_leaves_in_the_clear() {
    let (mut engine, flow) = offloaded();
    let ack = |payload: &[u8]| frame(true, TcpFlags::ACK, HOST, PEER, payload);
    let is_sent = |engine: &mut Engine, frame: Vec<u8>| !from_host(engine, 0, frame).is_empty();
    // The bytes at the place of a record are no record for the device.
    assert!(!is_sent(&mut engine, ack(b"no record at all")));
    // The record was not announced.
    assert!(!is_sent(&mut engine, ack(&in_clear(b"unknown"))));
    assert_eq!(engine.counters().tx_dropped_frames, 2);
    // A fragment.
    let mut fragment = ack(&in_clear(b"hidden"));
    fragment[20] = 0x20;
    assert!(!is_sent(&mut engine, fragment));
    assert_eq!(engine.counters().hidden_dropped_frames, 1);
    // Acknowledgements pass.
    assert!(is_sent(&mut engine, ack(&[])));
    // The connection ends; its kernel goes on.
    drop(flow);
    let reset = frame(true, TcpFlags::RST | TcpFlags::ACK, HOST, PEER, &[]);
    assert!(is_sent(&mut engine, reset));
    assert!(!is_sent(&mut engine, ack(&in_clear(b"late"))));
    assert_eq!(engine.counters().ended_dropped_frames, 1);
    engine.table().sweep(QUIET_MS - 1);
    assert!(!is_sent(&mut engine, ack(&in_clear(b"later"))));
    // A new connection of that name is separate.
    from_host(&mut engine, 0, frame(true, TcpFlags::SYN, HOST - 5000, 0, &[]));
    assert_eq!(engine.table().offloaded(), 0);
    assert!(is_sent(&mut engine, frame(true, TcpFlags::ACK, HOST - 4999, PEER, b"in the clear")));
}

#[test]
fn an_orderly_end_leaves_only_the_name() {
    let (mut engine, flow) = offloaded();
    let fin = TcpFlags::FIN | TcpFlags::ACK;
    from_host(&mut engine, 0, frame(true, fin, HOST, PEER, &[]));
    from_wire(&mut engine, frame(false, TcpFlags::ACK, PEER, HOST.wrapping_add(1), &[]));
    engine.table().sweep(1);
    assert_eq!(Arc::strong_count(&flow), 2);
    let weak = Arc::downgrade(&flow);
    drop(flow);
    engine.table().sweep(2);
    assert!(weak.upgrade().is_none());
    let table = engine.table();
    assert_eq!((table.offloaded(), table.len(), table.ended()), (0, 0, 1));
    table.sweep(3 + QUIET_MS);
    assert_eq!(table.ended(), 0);
}

#[test]
fn numbers_are_those_that_the_kernel_has_agreed_to() {
    // Only the kernel opens a connection here.
    let mut engine = Engine::new(false);
    from_wire(&mut engine, frame(false, TcpFlags::SYN, 1, 0, &[]));
    assert_eq!(engine.table().create(0, offer(0, 0)).err(), Some(Refused::Unknown));
    // The kernel opens it: an answer to another number does not count.
    from_host(&mut engine, 0, frame(true, TcpFlags::SYN, HOST - 1, 0, &[]));
    from_wire(&mut engine, frame(false, SYN_ACK, 4000, HOST + 1, &[]));
    assert_eq!(engine.table().create(0, offer(0, 0)).err(), Some(Refused::Unknown));
    from_wire(&mut engine, frame(false, SYN_ACK, PEER - 1, HOST, &[]));
    // Later ones change nothing, nor does a SYN that is sent again.
    from_wire(&mut engine, frame(false, SYN_ACK, 9000, HOST, &[]));
    from_host(&mut engine, 0, frame(true, TcpFlags::SYN, HOST - 1, 0, &[]));
    let flow = engine.table().create(0, offer(0, 30)).unwrap();
    assert_eq!(flow.rx().seq(30), SeqNumber(PEER + 30));
    assert_eq!(engine.table().create(0, offer(0, 0)).err(), Some(Refused::Duplicate));
}

#[test]
fn what_came_before_the_offload_is_in_doubt_when_it_comes_again() {
    let mut engine = Engine::new(false);
    from_host(&mut engine, 0, frame(true, SYN_ACK, HOST - 1, PEER, &[]));
    let sealed = stream(&mut Random::new(3), 1, 100).sealed;
    // Delivered before the offload was requested; software has not read it.
    from_wire(&mut engine, frame(false, TcpFlags::ACK, PEER, HOST, &sealed));
    let flow = engine.table().create(0, offer(0, 0)).unwrap();
    // The same again: the device takes it for the next.
    let up = from_wire(&mut engine, frame(false, TcpFlags::ACK, PEER, HOST, &sealed));
    assert!(up[0].0.checksum_at.is_some());
    let mut ranges = Vec::new();
    flow.rx().read(sealed.len(), &mut ranges);
    assert_eq!(ranges.len(), 1);
    assert_eq!(passes(&ranges[0].1), [None, Some(Pass { key: 0, generation: 0 })]);
}

#[test]
fn silent_connections_that_are_not_offloaded_are_forgotten() {
    let mut engine = Engine::new(false);
    from_host(&mut engine, 5, frame(true, SYN_ACK, HOST - 1, PEER, &[]));
    engine.table().sweep(IDLE_MS);
    assert_eq!(engine.table().len(), 1);
    engine.table().sweep(IDLE_MS + 5);
    assert!(engine.table().is_empty());
}

#[test]
fn a_released_connection_sends_what_software_seals_and_nothing_older() {
    let (mut engine, flow) = offloaded();
    let clear = in_clear(b"sealed by the device");
    flow.tx().push(clear.clone().into()).unwrap();
    let first = frame(true, TcpFlags::ACK, HOST, PEER, &clear);
    assert_eq!(from_host(&mut engine, 0, first.clone()).len(), 1);
    let end = SeqNumber(HOST) + clear.len() as u32;
    engine.table().release(&name(), &flow, end);
    assert_eq!(engine.table().offloaded(), 0);
    // The same again, as the kernel has it: in the clear.
    assert!(from_host(&mut engine, 0, first).is_empty());
    // Bytes that software has sealed pass unchanged.
    let sealed = frame(true, TcpFlags::ACK, end.0, PEER, b"sealed in software");
    assert_eq!(from_host(&mut engine, 0, sealed.clone()), [sealed]);
    // Received bytes are delivered as they come, and noted while software may ask.
    let bytes = stream(&mut Random::new(5), 1, 100).sealed;
    let up = from_wire(&mut engine, frame(false, TcpFlags::ACK, PEER, HOST, &bytes));
    assert_eq!((up[0].0.checksum_at, payload_of(&up[0].1, bytes.len())), (None, &bytes[..]));
    assert!(flow.rx().is_plain());
    // Wherever the sequence numbers are, sent bytes pass.
    let mut seq = end;
    for _ in 0..9 {
        seq = seq + (1 << 29);
        let later = frame(true, TcpFlags::ACK, seq.0, PEER, b"later");
        assert_eq!(from_host(&mut engine, 0, later).len(), 1);
    }
}

#[test]
fn what_was_opened_before_the_release_is_not_plain() {
    let (mut engine, flow) = offloaded();
    let bytes = stream(&mut Random::new(6), 1, 300).sealed;
    from_wire(&mut engine, frame(false, TcpFlags::ACK, PEER, HOST, &bytes));
    engine.table().release(&name(), &flow, SeqNumber(HOST));
    assert!(!flow.rx().is_plain());
    flow.rx().read(bytes.len(), &mut Vec::new());
    assert!(flow.rx().is_plain());
}

#[test]
fn a_restored_connection_has_the_numbers_of_its_snapshot() {
    let restored = |sent_bytes, read| Offer {
        begin: Begin::Restored {
            send_seq: SeqNumber(HOST),
            receive_seq: SeqNumber(PEER),
            delivered_bytes_max: 5000,
        },
        ..offer(sent_bytes, read)
    };
    let mut engine = Engine::new(false);
    let flow = engine.table().create(0, restored(40, 0)).unwrap();
    // Bytes that were sent before, sealed elsewhere, may be sent again unchanged; the next are
    // sealed.
    let before = frame(true, TcpFlags::ACK, HOST, PEER, &[7; 40]);
    assert_eq!(from_host(&mut engine, 0, before.clone()), [before]);
    let record = in_clear(b"the first one here");
    flow.tx().push(record.clone().into()).unwrap();
    let next = frame(true, TcpFlags::ACK, HOST.wrapping_add(40), PEER, &record);
    let out = from_host(&mut engine, 0, next);
    assert!(payload_of(&out[0], record.len())[5..] != record[5..]);
    // Bytes that the kernel may have got before the request are ambiguous when they are
    // decrypted.
    let bytes = stream(&mut Random::new(7), 1, 100).sealed;
    from_wire(&mut engine, frame(false, TcpFlags::ACK, PEER, HOST, &bytes));
    let mut ranges = Vec::new();
    flow.rx().read(bytes.len(), &mut ranges);
    assert_eq!(passes(&ranges[0].1), [None, Some(Pass { key: 0, generation: 0 })]);
    // It is taken over only once, unless the first one is gone.
    assert_eq!(engine.table().create(0, restored(0, 0)).err(), Some(Refused::Duplicate));
    drop(flow);
    engine.table().create(0, restored(0, 0)).unwrap();
    assert_eq!(engine.table().offloaded(), 1);
}

#[test]
fn a_packet_may_be_decrypted_from_the_middle_on() {
    let (mut engine, flow) = offloaded();
    let records: Vec<Vec<u8>> = (0..6).map(|_| in_clear(&[7; 400])).collect();
    let clear = records.concat();
    let mut sealed = clear.clone();
    let mut side = TxSide::new(SeqNumber(PEER), 0, 0, tls());
    records.iter().for_each(|record| side.push(record.clone().into()).unwrap());
    let verdict = side.send(&mut Stats::default(), SeqNumber(PEER), &mut sealed);
    assert_eq!(verdict, Verdict::Send);
    // The head of the fourth record is lost; where the fifth starts is presumed.
    let bytes = records[0].len();
    let (lost, found, fifth) = (3 * bytes - 50, 3 * bytes + 60, 4 * bytes);
    let came = |at: usize, end: usize| {
        frame(false, TcpFlags::ACK, PEER.wrapping_add(at as u32), HOST, &sealed[at..end])
    };
    from_wire(&mut engine, came(0, lost));
    let up = from_wire(&mut engine, came(found, sealed.len()));
    assert!(up[0].0.checksum_at.is_some());
    let payload = payload_of(&up[0].1, sealed.len() - found);
    assert_eq!(payload[..fifth - found], sealed[found..fifth]);
    let content = fifth + 5..fifth + bytes - 16;
    assert_eq!(payload[content.start - found..content.end - found], clear[content]);
    from_wire(&mut engine, came(lost, found));
    let mut ranges = Vec::new();
    flow.rx().read(sealed.len(), &mut ranges);
    let told: Vec<_> = ranges.iter().map(|(until, history)| (*until, passes(history))).collect();
    let raw = vec![None];
    let worked = |generation| vec![Some(Pass { key: 0, generation })];
    assert_eq!(
        told,
        [(lost as u64, worked(0)), (fifth as u64, raw), (sealed.len() as u64, worked(1)),]
    );
    let counters = DeviceCounters { device: *engine.stats(), ..DeviceCounters::default() };
    let mut text = OpenMetrics::new();
    add_device(&mut text, &counters);
    let text = text.finish();
    for line in [
        "unlade_nic_rx_presumed_total 1",
        "unlade_nic_rx_presumed_right_total 1",
        "unlade_nic_rx_presumed_wrong_total 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// The passes in which bytes were decrypted.
fn passes(history: &super::delivery_log::DeliveryHistory) -> Vec<Option<Pass>> {
    history.as_slice().iter().map(|way| way.map(|worked| worked.pass)).collect()
}
