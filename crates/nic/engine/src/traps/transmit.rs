//! Pitfalls of sending.

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use crate::Stats;
use crate::model::peer::{Secret, random_bytes};
use crate::software::sent::{Full, Sent};
use crate::tls::{Progress, Tls, Version};
use crate::tx::{Found, MessageState, Messages, Shadow, Tx, Verdict, send};

struct Bench {
    tls: Tls,
    isn: SeqNumber,
    written: Vec<u8>,
    wire: Vec<u8>,
    starts: Vec<usize>,
    sent: Sent<Vec<u8>>,
    shadow: Shadow,
    tx: Tx<Progress>,
    stats: Stats,
}

impl Bench {
    fn new(version: Version, lengths: &[usize], isn: SeqNumber) -> Bench {
        let random = &mut Random::new(11);
        let secret = Secret::random(random, version);
        let mut bench = Bench {
            tls: secret.tls(),
            isn,
            written: Vec::new(),
            wire: Vec::new(),
            starts: vec![0],
            sent: Sent::new(isn, 0, 1000),
            shadow: Shadow::new(isn),
            tx: Tx::new(isn, 0, 0),
            stats: Stats::default(),
        };
        for (number, &length) in lengths.iter().enumerate() {
            let (written, sealed) = secret.record(number as u64, 77, &random_bytes(random, length));
            bench.sent.push(written.clone()).expect("there is room");
            bench.written.extend(written);
            bench.wire.extend(sealed);
            bench.starts.push(bench.wire.len());
        }
        bench
    }

    /// Sends bytes; returns true if they were sent and are correct.
    fn send(&mut self, at: usize, end: usize) -> bool {
        let mut payload = self.written[at..end].to_vec();
        let seq = self.isn + at as u32;
        let both = (&mut self.shadow, &mut self.tx);
        let verdict = send(&self.tls, both, &mut self.stats, &self.sent, seq, &mut payload);
        assert!(verdict == Verdict::Drop || payload == self.wire[at..end], "leaves wrongly");
        verdict == Verdict::Send
    }
}

#[test]
fn a_retransmission_may_span_records_and_be_as_long_as_a_super_segment() {
    for version in [Version::Tls12, Version::Tls13] {
        let lengths = [16000, 16000, 3, 16000, 20000 - 3617, 900];
        let mut bench = Bench::new(version, &lengths, SeqNumber(u32::MAX - 20_000));
        let end = bench.wire.len();
        assert!(bench.send(0, 30_000) && bench.send(30_000, end));
        assert_eq!(bench.stats.tx_tls_ooo, 0);
        assert!(bench.send(9_001, 9_001 + 45_000));
        assert!(bench.send(bench.starts[1] - 7, bench.starts[4] + 4));
        assert_eq!(bench.stats.tx_tls_ooo, 2);
        assert!(bench.stats.tx_replayed_bytes > 9_001);
    }
}

#[test]
fn a_retransmission_may_start_at_every_byte_of_a_record() {
    for version in [Version::Tls12, Version::Tls13] {
        let mut bench = Bench::new(version, &[40, 40], SeqNumber(5));
        let end = bench.wire.len();
        assert!(bench.send(0, end));
        for at in 0..end {
            assert!(bench.send(at, end), "from byte {at}");
            assert!(bench.send(at, at + 1), "byte {at}");
        }
    }
}

#[test]
fn a_packet_whose_record_is_not_known_is_dropped() {
    let mut bench = Bench::new(Version::Tls13, &[100, 100], SeqNumber(5));
    let (second, end) = (bench.starts[1], bench.wire.len());
    assert!(bench.send(0, end));
    bench.sent.acknowledge(bench.isn + second as u32);
    assert!(!bench.send(10, 60));
    assert_eq!(bench.stats.tx_tls_drop_no_sync_data, 1);
    assert!(bench.send(second + 10, end), "the other one is known");
}

/// Software that gives wrong answers.
struct Liar(Found<'static>);

impl Messages for Liar {
    fn find(&self, _: SeqNumber) -> Found<'_> {
        self.0
    }
}

#[test]
fn software_that_says_something_wrong_has_its_packet_dropped() {
    static WRITTEN: [u8; 60] = [0x55; 60];
    let message =
        |start: u32, bytes| MessageState { start: SeqNumber(start), number: 0, key: 0, bytes };
    let short = message(0, &WRITTEN[..10]);
    let behind = message(200, &WRITTEN[..]);
    let no_header = message(90, &WRITTEN[..]);
    let other_key = MessageState { key: 1, ..message(100, &WRITTEN[..]) };
    let secret = Secret::random(&mut Random::new(1), Version::Tls13);
    for lie in [short, behind, no_header, other_key] {
        let liar = Liar(Found::Message(lie));
        let (mut shadow, mut tx) = (Shadow::new(SeqNumber(0)), Tx::new(SeqNumber(0), 0, 0));
        let mut stats = Stats::default();
        let mut payload = vec![0x55; 40];
        for _ in 0..2 {
            let both = (&mut shadow, &mut tx);
            let seq = SeqNumber(100);
            let verdict = send(&secret.tls(), both, &mut stats, &liar, seq, &mut payload);
            assert_eq!(verdict, Verdict::Drop, "{lie:?}");
        }
    }
}

#[test]
fn a_record_is_kept_until_all_of_it_is_acknowledged() {
    let mut bench = Bench::new(Version::Tls13, &[100, 100], SeqNumber(u32::MAX - 60));
    let (second, end) = (bench.starts[1] as u32, bench.wire.len());
    assert!(bench.send(0, end));
    assert_eq!(bench.sent.acknowledge(bench.isn + (second - 1)), 0);
    assert!(bench.send(second as usize - 1, end), "its last byte can be sent again");
    assert_eq!(bench.sent.acknowledge(bench.isn + second), 1);
    assert_eq!(bench.sent.acknowledge(bench.isn), 0);
    assert_eq!(bench.sent.acknowledge(bench.isn + (end as u32 + 1)), 0, "beyond what was sent");
    assert_eq!((bench.sent.acknowledge(bench.isn + end as u32), bench.sent.len()), (1, 0));
}

#[test]
fn what_was_sent_before_the_offload_is_sent_again_as_it_was() {
    let mut bench = Bench::new(Version::Tls13, &[100], SeqNumber(3));
    let end = bench.wire.len();
    assert!(bench.send(0, end));
    let before = [9; 20];
    let seq = bench.isn - 20;
    let mut go = |seq, payload: &mut [u8], sent: &Sent<Vec<u8>>| {
        let both = (&mut bench.shadow, &mut bench.tx);
        send(&bench.tls, both, &mut bench.stats, sent, seq, payload)
    };
    let mut payload = before;
    assert_eq!((go(seq, &mut payload, &bench.sent), payload), (Verdict::Send, before));
    // A packet with both.
    let mut both = [&before[..], &bench.written[..50]].concat();
    assert_eq!(go(seq, &mut both, &bench.sent), Verdict::Send);
    assert_eq!(both, [&before[..], &bench.wire[..50]].concat());
    // After its acknowledgement the message is gone.
    bench.sent.acknowledge(bench.isn);
    assert_eq!(go(seq, &mut payload, &bench.sent), Verdict::Drop);
}

#[test]
fn a_malformed_record_is_dropped_and_counted() {
    let mut bench = Bench::new(Version::Tls13, &[100], SeqNumber(3));
    let mut payload = bench.written[..50].to_vec();
    payload[0] = 0xff;
    let both = (&mut bench.shadow, &mut bench.tx);
    let verdict = send(&bench.tls, both, &mut bench.stats, &bench.sent, bench.isn, &mut payload);
    assert_eq!((verdict, bench.stats.tx_tls_err), (Verdict::Drop, 1));
}

#[test]
fn each_key_seals_its_own_records() {
    let random = &mut Random::new(2);
    let secrets = [(); 2].map(|()| Secret::random(random, Version::Tls13));
    let start = SeqNumber(u32::MAX - 70);
    let mut sent = Sent::new(start, 0, 10);
    let (first, first_wire) = secrets[0].record(0, 0, &random_bytes(random, 100));
    let (second, second_wire) = secrets[1].record(0, 0, &random_bytes(random, 100));
    sent.push(first.clone()).expect("room");
    let (key, next) = sent.change_key();
    sent.push(second.clone()).expect("room");
    let written = [first.clone(), second].concat();
    let wire = [first_wire, second_wire].concat();
    assert_eq!(sent.under_one_key(start + 10, 150), Some((0, first.len() - 10)));
    assert_eq!(sent.under_one_key(next, 50), Some((key, 50)));
    let stats = &mut Stats::default();
    // The old key's machine rejects records under the new key, and vice versa.
    for (index, at) in [(0, first.len() + 10), (1, 10)] {
        let (mut shadow, mut tx) = (Shadow::new(start), Tx::new(start, 0, index as u16));
        let mut payload = written[at..at + 40].to_vec();
        let seq = start + at as u32;
        let tls = secrets[index].tls();
        let verdict = send(&tls, (&mut shadow, &mut tx), stats, &sent, seq, &mut payload);
        assert_eq!(verdict, Verdict::Drop);
        let right = 1 - index;
        let (mut shadow, mut tx) = (Shadow::new(start), Tx::new(start, 0, right as u16));
        let mut payload = written[at..at + 40].to_vec();
        let tls = secrets[right].tls();
        let verdict = send(&tls, (&mut shadow, &mut tx), stats, &sent, seq, &mut payload);
        assert_eq!((verdict, &payload[..]), (Verdict::Send, &wire[at..at + 40]));
    }
}

#[test]
fn the_map_of_what_was_sent_has_limits() {
    let mut sent = Sent::new(SeqNumber(0), 0, 2);
    assert_eq!(sent.push(vec![0; 10]), Ok(()));
    assert_eq!(sent.push(vec![0; 10]), Ok(()));
    assert_eq!(sent.push(vec![0; 10]), Err(Full));
    assert_eq!(sent.acknowledge(SeqNumber(10)), 1);
    assert_eq!(sent.push(vec![0; 10]), Ok(()));
}
