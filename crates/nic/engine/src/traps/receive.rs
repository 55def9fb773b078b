//! Pitfalls of receiving TLS.

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use crate::model::peer::{Secret, random_bytes};
use crate::resync::{Extent, Pass, Request, Response, Worked};
use crate::rule::{OFF, Rule};
use crate::rx::{ANSWER_BYTES_MIN, Received, Rx, State};
use crate::software::boundaries::{Boundaries, REMEMBERED_MAX};
use crate::software::records::{RecordError, Records};
use crate::tls::{Progress, Tls, Version};
use crate::{Stats, tls};

const VERSIONS: [Version; 2] = [Version::Tls12, Version::Tls13];

/// A stream, and the receiving device.
struct Bench {
    secret: Secret,
    tls: Tls,
    isn: SeqNumber,
    wire: Vec<u8>,
    written: Vec<u8>,
    /// Starts of the records, and the end of the last one.
    starts: Vec<usize>,
    rx: Rx<Progress>,
    stats: Stats,
    out: Vec<u8>,
}

impl Bench {
    /// Records with plaintext of the given lengths, from number 0.
    fn new(version: Version, lengths: &[usize]) -> Bench {
        Bench::at(version, lengths, SeqNumber(1000))
    }

    fn at(version: Version, lengths: &[usize], isn: SeqNumber) -> Bench {
        let random = &mut Random::new(7);
        let secret = Secret::random(random, version);
        let (mut wire, mut written, mut starts) = (Vec::new(), Vec::new(), vec![0]);
        for (number, &length) in lengths.iter().enumerate() {
            let plaintext = random_bytes(random, length);
            let (record, sealed) = secret.record(number as u64, number as u64, &plaintext);
            written.extend(record);
            wire.extend(sealed);
            starts.push(wire.len());
        }
        let out = vec![0; wire.len() + 1];
        let (rx, stats) = (Rx::new(isn, 0), Stats::default());
        Bench { tls: secret.tls(), secret, isn, wire, written, starts, rx, stats, out }
    }

    fn receive(&mut self, at: usize, end: usize) -> Received {
        let payload = self.wire[at..end].to_vec();
        self.receive_other(at, &payload)
    }

    fn receive_other(&mut self, at: usize, payload: &[u8]) -> Received {
        let seq = self.isn + at as u32;
        self.rx.receive(&self.tls, &mut self.stats, seq, payload, &mut self.out)
    }

    fn records(&self) -> Records {
        Records::new(self.secret.tls(), self.isn, 0)
    }

    fn answer(&mut self, request: Request, number: Option<u64>) -> bool {
        self.rx.respond(&mut self.stats, &Response { request, number })
    }

    fn seq(&self, at: usize) -> SeqNumber {
        self.isn + at as u32
    }

    /// Loses synchronisation: the second record's header is missing, and the third is a candidate.
    fn lose(&mut self) -> Request {
        let at = self.starts[2] - 5;
        let end = self.starts[3] - 5;
        self.receive(at, end).request.expect("the third record is a candidate")
    }
}

/// Metadata of a device that has decrypted the record with this number.
fn worked(bench: &Bench, number: usize) -> Worked {
    let (start, end) = (bench.starts[number], bench.starts[number + 1]);
    let (bytes, number) = ((end - start) as u32, number as u64);
    let message = Extent { start: bench.seq(start), bytes, number };
    Worked { pass: Pass { key: 0, generation: 0 }, message }
}

/// Delivers bytes with metadata to software; returns the plaintext of opened records.
fn deliver(
    records: &mut Records,
    stats: &mut Stats,
    mut bytes: &[u8],
    worked: Option<Worked>,
) -> Result<Vec<Vec<u8>>, RecordError> {
    let mut opened = Vec::new();
    while !bytes.is_empty() {
        let taken = records.push(bytes, worked)?;
        bytes = &bytes[taken..];
        if let Some(record) = records.open(stats)? {
            opened.push(record.plaintext.to_vec());
        }
    }
    Ok(opened)
}

#[test]
fn a_header_may_be_split_after_every_byte() {
    for version in VERSIONS {
        let prefix = if version == Version::Tls12 { 13 } else { 5 };
        for split in 1..=prefix {
            // In order.
            let mut bench = Bench::new(version, &[50, 60, 70]);
            let at = bench.starts[1] + split;
            let end = bench.wire.len();
            assert!(bench.receive(0, at).pass.is_some());
            assert!(bench.receive(at, end).pass.is_some(), "{version:?}, split after {split}");
            // While searching: the second record's start was lost, the third is split.
            let mut bench = Bench::new(version, &[50, 60, 70, 80]);
            let at = bench.starts[2] + split;
            let end = bench.wire.len();
            let first = bench.receive(bench.starts[2] - 10, at).request;
            let second = bench.receive(at, end).request;
            let request = first.or(second).expect("a request");
            assert_eq!(first.is_some(), split >= 5);
            assert_eq!(request.tcpsn, bench.seq(bench.starts[2]));
            // After a skip to a header: the tail of the first record is lost.
            let mut bench = Bench::new(version, &[50, 60, 70]);
            let at = bench.starts[1] + split;
            assert!(bench.receive(0, 20).pass.is_some());
            let hop = bench.starts[1] - 3;
            let received = bench.receive(hop, at);
            assert!(received.pass.is_some() && received.from == 3);
            assert!(bench.receive(at, end.min(bench.wire.len())).pass.is_some());
        }
    }
}

#[test]
fn a_carry_is_for_packets_in_order_only() {
    let mut bench = Bench::new(Version::Tls13, &[50, 60, 70, 80]);
    let split = bench.starts[2] + 2;
    bench.receive(bench.starts[2] - 10, split);
    // The bytes that would complete the header are not adjacent to it.
    let rest = bench.wire[split..split + 40].to_vec();
    assert_eq!(bench.receive_other(split + 100, &rest).request, None);
}

#[test]
fn a_partly_old_packet_goes_up_raw_and_its_new_bytes_are_taken_in() {
    for version in VERSIONS {
        let mut bench = Bench::new(version, &[300, 300]);
        let end = bench.wire.len();
        assert!(bench.receive(0, 100).pass.is_some());
        assert_eq!(bench.receive(60, 200), Received::default());
        let received = bench.receive(200, end);
        assert!(received.pass.is_some());
        assert_eq!(bench.stats.rx_overlap_packets, 1);
        let tag = bench.starts[1] - tls::TAG_BYTES;
        assert_eq!(bench.out[..tag - 200], bench.written[200..tag]);
    }
}

#[test]
fn what_is_old_passes_by() {
    let mut bench = Bench::new(Version::Tls13, &[300, 300]);
    assert!(bench.receive(0, 200).pass.is_some());
    assert_eq!(bench.receive(50, 200), Received::default());
    assert_eq!(bench.receive(0, 1), Received::default());
    assert!(bench.receive(200, bench.wire.len()).pass.is_some());
}

#[test]
fn a_packet_that_starts_with_the_awaited_header_is_decrypted() {
    let mut bench = Bench::new(Version::Tls13, &[300, 300]);
    let (second, end) = (bench.starts[1], bench.wire.len());
    assert!(bench.receive(0, 200).pass.is_some());
    assert!(bench.receive(second, end).pass.is_some());
}

#[test]
fn a_packet_whose_record_fails_goes_up_unmodified_and_unflagged() {
    for version in VERSIONS {
        let mut bench = Bench::new(version, &[300, 300, 300]);
        let (second, end) = (bench.starts[1], bench.wire.len());
        assert!(bench.receive(0, 100).pass.is_some());
        let mut payload = bench.wire[100..second + 50].to_vec();
        payload[60] ^= 1;
        assert_eq!(bench.receive_other(100, &payload), Received::default());
        assert_eq!(bench.stats.rx_tls_err, 1);
        // The next record is not affected.
        assert!(bench.receive(second + 50, end).pass.is_some());
    }
}

#[test]
fn plaintext_waits_for_its_tag() {
    for version in VERSIONS {
        let mut bench = Bench::new(version, &[300]);
        let (mut records, mut stats) = (bench.records(), Stats::default());
        let end = bench.wire.len();
        let worked = bench.receive(0, end - 1).worked();
        let decrypted = bench.out[..end - 1].to_vec();
        assert!(worked.is_some());
        assert_eq!(deliver(&mut records, &mut stats, &decrypted, worked), Ok(vec![]));
        // The last byte is wrong: the device gives no metadata, and software detects it.
        let last = [bench.wire[end - 1] ^ 1];
        assert_eq!(bench.receive_other(end - 1, &last), Received::default());
        assert_eq!(deliver(&mut records, &mut stats, &last, None), Err(RecordError::Forged));
        assert_eq!(records.push(&[0], None), Err(RecordError::Forged));
    }
}

#[test]
fn a_record_that_came_partly_decrypted_is_opened() {
    for version in VERSIONS {
        for mask in 0..16u32 {
            let bench = Bench::new(version, &[5000]);
            let (mut records, mut stats) = (bench.records(), Stats::default());
            let cuts = [0, 1003, 2500, 4001, bench.wire.len() - tls::TAG_BYTES];
            let mut opened = Vec::new();
            for (part, cut) in cuts.windows(2).enumerate() {
                let plain = mask >> part & 1 == 1;
                let source = if plain { &bench.written } else { &bench.wire };
                let worked = plain.then_some(worked(&bench, 0));
                let bytes = &source[cut[0]..cut[1]];
                opened.extend(deliver(&mut records, &mut stats, bytes, worked).expect("genuine"));
            }
            let tag = &bench.wire[cuts[4]..];
            opened.extend(deliver(&mut records, &mut stats, tag, None).expect("genuine"));
            let prefix = bench.secret.prefix_bytes();
            assert_eq!(opened, [&bench.written[prefix..cuts[4]]]);
            assert_eq!(stats.records_partial, u64::from(mask != 0));
        }
    }
}

/// An attacker whose packets TCP rejects makes the device verify the true record, and gives TCP
/// the first part of another one.
fn two_passes() -> Result<Vec<Vec<u8>>, RecordError> {
    let mut bench = Bench::new(Version::Tls13, &[100, 200, 100, 100]);
    let (mut records, mut stats) = (bench.records(), Stats::default());
    let (first, second, third) = (bench.starts[0], bench.starts[1], bench.starts[2]);
    // TCP accepts the first record, and the changed start of the second.
    let worked = bench.receive(first, second).worked();
    let bytes = bench.out[..second].to_vec();
    deliver(&mut records, &mut stats, &bytes, worked)?;
    let cut = second + 100;
    let mut changed = bench.wire[second..cut].to_vec();
    changed[50] ^= 0x20;
    let worked = bench.receive_other(second, &changed).worked();
    let bytes = bench.out[..changed.len()].to_vec();
    deliver(&mut records, &mut stats, &bytes, worked)?;
    // Only the device gets the following bytes: it loses synchronisation, and finds the first
    // record.
    bench.receive_other(bench.wire.len() + 1000, &[0; 50]);
    let request = bench.receive(first, second).request.expect("the first record");
    records.request(request);
    let response = records.response().expect("it was read");
    assert!(bench.rx.respond(&mut bench.stats, &response));
    assert_eq!(response.number, Some(0));
    assert!(bench.receive(second, cut).pass.is_some());
    // TCP gets the rest, with metadata of a verified record.
    let worked = bench.receive(cut, third).worked();
    assert!(worked.is_some());
    let bytes = bench.out[..third - cut].to_vec();
    deliver(&mut records, &mut stats, &bytes, worked)
}

#[test]
fn two_passes_do_not_make_a_record_authentic() {
    assert_eq!(two_passes(), Err(RecordError::Forged));
    OFF.set(Some(Rule::OnePass));
    let opened = two_passes();
    OFF.set(None);
    assert!(opened.is_ok_and(|opened| opened.len() == 1), "without the rule it is released");
}

#[test]
fn old_data_that_was_matched_is_answered_in_any_case() {
    let mut bench = Bench::new(Version::Tls13, &[100; 4]);
    let request = bench.lose();
    let ask = |tcpsn| Request { tcpsn, ..request };
    let mut boundaries = Boundaries::new(bench.isn, 0);
    for _ in 0..3 {
        assert_eq!(boundaries.advance(122), None);
    }
    // Already read, and no record starts there.
    let response = boundaries.request(ask(bench.seq(130))).expect("an answer");
    assert_eq!(response.number, None);
    // Before all known boundaries.
    let response = boundaries.request(ask(bench.isn - 122)).expect("an answer");
    assert_eq!(response.number, None);
    // Not read yet.
    assert_eq!(boundaries.request(ask(bench.seq(3 * 122 + 5))), None);
    assert_eq!(boundaries.advance(122).map(|response| response.number), Some(None));
    // Too old to be remembered.
    for _ in 0..REMEMBERED_MAX {
        assert_eq!(boundaries.advance(122), None);
    }
    let response = boundaries.request(ask(bench.seq(3 * 122))).expect("an answer");
    assert_eq!(response.number, None);
    assert_eq!(boundaries.request(ask(bench.seq(4 * 122))).and_then(|r| r.number), Some(4));
    assert!(bench.answer(request, None));
    assert_eq!(bench.rx.state(), State::Searching);
}

#[test]
fn a_record_that_was_read_before_the_question_came_is_confirmed() {
    let mut bench = Bench::new(Version::Tls13, &[100, 100, 100, 100, 100, 100]);
    let request = bench.lose();
    let mut records = bench.records();
    let stats = &mut Stats::default();
    let read = bench.wire[..bench.starts[4]].to_vec();
    assert_eq!(deliver(&mut records, stats, &read, None).map(|opened| opened.len()), Ok(4));
    records.request(request);
    let response = records.response().expect("an answer");
    assert_eq!(response.number, Some(2));
    assert!(bench.rx.respond(&mut bench.stats, &response));
    let (fourth, end) = (bench.starts[3], bench.wire.len());
    let received = bench.receive(fourth - 5, fourth + 5);
    assert!(received.pass.is_some() && received.from == 5);
    assert!(bench.receive(fourth + 5, end).pass.is_some());
}

#[test]
fn a_question_that_nobody_answers_expires_and_later_ones_wait_longer() {
    let mut bench = Bench::new(Version::Tls13, &[100; 6]);
    let request = bench.lose();
    let old = vec![0; 50_000];
    let mut waited = 0;
    while bench.rx.state() == State::Tracking {
        bench.out.resize(old.len(), 0);
        bench.receive_other(0usize.wrapping_sub(60_000), &old);
        waited += old.len();
        assert!(waited <= ANSWER_BYTES_MIN as usize + old.len());
    }
    assert_eq!(bench.stats.rx_resync_expired, 1);
    assert!(!bench.answer(request, Some(2)), "it is too late");
    let (fourth, end) = (bench.starts[3], bench.starts[4]);
    assert!(bench.receive(fourth, end).request.is_some());
    let mut again = 0;
    while bench.rx.state() == State::Tracking {
        bench.receive_other(0usize.wrapping_sub(60_000), &old);
        again += old.len();
    }
    assert!(again >= 2 * ANSWER_BYTES_MIN as usize);
}

#[test]
fn a_stale_confirmation_after_a_restarted_search_changes_nothing() {
    let mut bench = Bench::new(Version::Tls13, &[100; 8]);
    let stale = bench.lose();
    // The search restarts: the next header is missing, and a later one is found.
    let (sixth, seventh) = (bench.starts[5], bench.starts[6]);
    let request = bench.receive(sixth, seventh).request.expect("another candidate");
    assert_ne!(stale, request);
    assert!(!bench.answer(stale, Some(2)));
    // A response to the same candidate of another search does not count either.
    let earlier = Request { generation: request.generation - 1, ..request };
    assert!(!bench.answer(earlier, Some(5)));
    assert_eq!(bench.rx.state(), State::Tracking);
    assert_eq!(bench.stats.rx_tls_resync_res_skip, 2);
    assert!(bench.answer(request, Some(5)));
    assert!(bench.receive(seventh, bench.wire.len()).pass.is_some());
}

#[test]
fn a_false_header_in_the_payload_is_not_believed() {
    let mut bench = Bench::new(Version::Tls13, &[100, 100]);
    // A sequence of headers only.
    let mut payload = Vec::new();
    while payload.len() < 1400 {
        payload.extend([23, 3, 3, 0, 30]);
        payload.extend([0; 30]);
    }
    bench.out.resize(2000, 0);
    let request = bench.receive_other(5000, &payload).request.expect("it looks like one");
    assert_eq!(bench.receive_other(5000 + payload.len(), &payload), Received::default());
    assert_eq!(bench.rx.state(), State::Tracking);
    assert!(bench.answer(request, None));
    assert_eq!((bench.rx.state(), bench.stats.rx_resync_denied), (State::Searching, 1));
}

#[test]
fn sequence_numbers_wrap_anywhere() {
    for version in VERSIONS {
        let total = Bench::new(version, &[40, 40, 40, 40]).wire.len();
        for before in 0..=total as u32 {
            let mut bench = Bench::at(version, &[40; 4], SeqNumber(0u32.wrapping_sub(before)));
            let mut records = bench.records();
            let stats = &mut Stats::default();
            let (second, third, fourth) = (bench.starts[1], bench.starts[2], bench.starts[3]);
            // A lost header, a candidate, a response, and continuation.
            let request = bench.receive(second + 3, third + 20).request.expect("a candidate");
            let read = bench.wire[..third].to_vec();
            deliver(&mut records, stats, &read, None).expect("genuine");
            records.request(request);
            let response = records.response().expect("an answer");
            assert_eq!(response.number, Some(2));
            assert!(bench.rx.respond(&mut bench.stats, &response));
            assert_eq!(bench.receive(third + 20, fourth), Received::default());
            assert!(bench.receive(fourth, total).pass.is_some(), "{before} before the wrap");
        }
    }
}

#[test]
fn empty_packets_change_nothing_and_a_keepalives_byte_is_not_taken_in() {
    let mut bench = Bench::new(Version::Tls13, &[100, 100]);
    assert!(bench.receive(0, 60).pass.is_some());
    let before = format!("{:?}", bench.rx);
    // Acknowledgements, FIN, RST, at any position.
    for at in [0, 60, 61, 5000] {
        assert_eq!(bench.receive_other(at, &[]), Received::default());
    }
    assert_eq!(bench.receive_other(59, &[0xaa]), Received::default());
    assert_eq!(before, format!("{:?}", bench.rx));
    // TCP has a byte that the device has not; the keepalive comes in its place.
    assert_eq!(bench.receive(61, 62), Received::default());
    assert_eq!(bench.receive_other(60, &[0xaa]), Received::default());
    assert!(bench.receive(60, bench.wire.len()).pass.is_some());
}

#[test]
fn lengths_out_of_limits_are_no_headers() {
    for (version, least, most) in [(Version::Tls13, 17, 16640), (Version::Tls12, 24, 18432)] {
        for (length, fits) in [(least - 1, false), (least, true), (most, true), (most + 1, false)] {
            let mut bench = Bench::new(version, &[100]);
            let [high, low] = u16::to_be_bytes(length);
            bench.receive_other(0, &[23, 3, 3, high, low, 1, 2, 3]);
            assert_eq!(bench.rx.state() == State::Offloading, fits, "{version:?} {length}");
            let records = &mut bench.records();
            let taken = records.push(&[23, 3, 3, high, low], None);
            assert_eq!(taken.is_ok(), fits);
        }
    }
}

#[test]
fn a_key_update_makes_nothing_unreadable() {
    for version in VERSIONS {
        let mut bench = Bench::new(version, &[100, 100]);
        let random = &mut Random::new(9);
        let next = Secret::random(random, version);
        let change = bench.wire.len();
        for number in 0..4 {
            let (written, sealed) = next.record(number, number, &random_bytes(random, 200));
            bench.written.extend(written);
            bench.wire.extend(sealed);
            bench.starts.push(bench.wire.len());
        }
        bench.out.resize(bench.wire.len(), 0);
        let (mut records, mut stats) = (bench.records(), Stats::default());
        let mut opened = 0;
        let mut go = |bench: &mut Bench, records: &mut Records, at, end| {
            let received = bench.receive(at, end);
            let bytes = match received.pass {
                Some(_) => bench.out[..end - at].to_vec(),
                None => bench.wire[at..end].to_vec(),
            };
            let said = received.worked();
            opened += deliver(records, &mut stats, &bytes, said).expect("genuine").len();
            received.pass
        };
        assert!(go(&mut bench, &mut records, 0, change).is_some());
        let key = records.change_key(next.tls());
        // The device still has the previous key, and decrypts with it.
        let at = change + 150;
        assert!(go(&mut bench, &mut records, change, at).is_some());
        bench.rx.restart(records.start(), 0, key);
        bench.tls = next.tls();
        // It is behind, and synchronises at a header under the new key.
        let fifth = bench.starts[4];
        let end = bench.wire.len();
        let mut request = None;
        for (at, end) in [(at, bench.starts[3] + 10), (bench.starts[3] + 10, fifth)] {
            let received = bench.receive(at, end);
            assert_eq!(received.pass, None);
            request = request.or(received.request);
            let bytes = bench.wire[at..end].to_vec();
            opened += deliver(&mut records, &mut Stats::default(), &bytes, None).expect("ok").len();
        }
        records.request(request.expect("a candidate"));
        let response = records.response().expect("an answer");
        assert!(bench.rx.respond(&mut bench.stats, &response));
        let worked = bench.receive(fifth, end).worked();
        let bytes = bench.out[..end - fifth].to_vec();
        assert_eq!(worked.map(|worked| worked.pass.key), Some(key));
        opened += deliver(&mut records, &mut Stats::default(), &bytes, worked).expect("ok").len();
        assert_eq!(opened, 6);
    }
}

#[test]
fn a_device_with_the_key_before_is_told_nothing() {
    let mut bench = Bench::new(Version::Tls13, &[100; 4]);
    let request = bench.lose();
    let mut records = bench.records();
    let read = bench.wire[..bench.starts[2]].to_vec();
    deliver(&mut records, &mut Stats::default(), &read, None).expect("genuine");
    records.change_key(Secret::random(&mut Random::new(3), Version::Tls13).tls());
    records.request(request);
    assert_eq!(records.response().map(|response| response.number), Some(None));
    // Without the rule it gets the number of a record that it cannot open.
    OFF.set(Some(Rule::SameKey));
    records.request(request);
    OFF.set(None);
    assert_eq!(records.response().map(|response| response.number), Some(Some(0)));
}
