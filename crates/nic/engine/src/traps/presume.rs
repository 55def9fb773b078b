//! Pitfalls of decryption with a presumed number.

use unlade_net::SeqNumber;

use crate::Stats;
use crate::model::peer::{Secret, plant_one, random_bytes};
use crate::resync::{Request, Response, Worked};
use crate::rule::{OFF, Rule};
use crate::rx::{PRESUMED_BYTES_MAX, REPEATS_MIN, Received, Rx, State};
use crate::software::records::{RecordError, Records};
use crate::tls::{HEADER_BYTES, Progress, TAG_BYTES, Tls, Version};
use unlade_testkit::Random;

/// Plaintext length of the usual record, and its length.
const USUAL: usize = 300;
const USUAL_BYTES: usize = HEADER_BYTES + USUAL + TAG_BYTES;

/// A stream, the receiving device, and software.
struct Bench {
    secret: Secret,
    tls: Tls,
    isn: SeqNumber,
    wire: Vec<u8>,
    written: Vec<u8>,
    /// Starts of the records, and the end of the last one.
    starts: Vec<usize>,
    rx: Rx<Progress>,
    /// Counters of the device, and of software.
    stats: [Stats; 2],
    records: Records,
    /// TCP's bytes: ranges with the device's metadata.
    delivered: Vec<(usize, Vec<u8>, Option<Worked>)>,
    opened: usize,
    out: Vec<u8>,
}

impl Bench {
    fn new(lengths: &[usize]) -> Bench {
        Bench::at(lengths, SeqNumber(1000))
    }

    fn at(lengths: &[usize], isn: SeqNumber) -> Bench {
        let random = &mut Random::new(11);
        let secret = Secret::random(random, Version::Tls13);
        let contents: Vec<Vec<u8>> =
            lengths.iter().map(|length| random_bytes(random, *length)).collect();
        Bench::of(secret, &contents, isn)
    }

    fn of(secret: Secret, contents: &[Vec<u8>], isn: SeqNumber) -> Bench {
        let mut rx = Rx::new(isn, 0);
        rx.presume(true);
        let records = Records::new(secret.tls(), isn, 0);
        let mut bench = Bench {
            tls: secret.tls(),
            secret,
            isn,
            wire: Vec::new(),
            written: Vec::new(),
            starts: vec![0],
            rx,
            stats: Default::default(),
            records,
            delivered: Vec::new(),
            opened: 0,
            out: vec![0; 1 << 16],
        };
        let secret = bench.secret.clone();
        bench.append(&secret, contents);
        bench
    }

    /// Appends records, numbered from 0.
    fn append(&mut self, secret: &Secret, contents: &[Vec<u8>]) {
        for (number, content) in contents.iter().enumerate() {
            let (written, sealed) = secret.record(number as u64, 0, content);
            self.written.extend(written);
            self.wire.extend(sealed);
            self.starts.push(self.wire.len());
        }
    }

    /// Device and TCP receive bytes.
    fn receive(&mut self, at: usize, end: usize) -> Received {
        let payload = self.wire[at..end].to_vec();
        let received = self.device(at, &payload);
        let from = if received.pass.is_some() { received.from as usize } else { payload.len() };
        self.delivered.push((at, payload[..from].to_vec(), None));
        let rest = self.out[from..payload.len()].to_vec();
        self.delivered.push((at + from, rest, received.worked()));
        received
    }

    /// Only the device receives the bytes.
    fn device(&mut self, at: usize, payload: &[u8]) -> Received {
        let seq = self.isn + at as u32;
        self.rx.receive(&self.tls, &mut self.stats[0], seq, payload, &mut self.out)
    }

    /// Software reads up to `end`.
    fn read(&mut self, end: usize) -> Result<(), RecordError> {
        self.delivered.sort_by_key(|(at, ..)| *at);
        for (at, bytes, worked) in std::mem::take(&mut self.delivered) {
            if at >= end {
                self.delivered.push((at, bytes, worked));
                continue;
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let taken = self.records.push(rest, worked)?;
                rest = &rest[taken..];
                let Some(record) = self.records.open(&mut self.stats[1])? else { continue };
                let place = self.starts[self.opened] + HEADER_BYTES;
                let right = &self.written[place..self.starts[self.opened + 1] - TAG_BYTES];
                assert_eq!(record.plaintext, right, "record {}", self.opened);
                self.opened += 1;
            }
        }
        Ok(())
    }

    /// Receives the usual records, loses the bytes from `lost` up to `found`, and receives a
    /// packet from there up to `end`.
    fn lose(&mut self, lost: usize, found: usize, end: usize) -> Received {
        assert!(self.receive(0, lost).pass.is_some());
        self.receive(found, end)
    }

    /// The lost bytes are retransmitted.
    fn repair(&mut self, lost: usize, found: usize) {
        assert_eq!(self.receive(lost, found), Received::default());
    }

    fn answer(&mut self, request: Request) -> bool {
        self.records.request(request);
        let response = self.records.response().expect("it was read");
        self.rx.respond(&mut self.stats[0], &response)
    }
}

/// After the loss of a packet with a record header, the next record is decrypted from its first
/// byte on.
#[test]
fn the_record_behind_a_loss_is_offloaded_whole() {
    for before in [0, 1, 500, 1000, 2000] {
        let mut bench = Bench::at(&[USUAL; 8], SeqNumber(0u32.wrapping_sub(before)));
        let (lost, found) = (bench.starts[3] - 20, bench.starts[3] + 30);
        let received = bench.lose(lost, found, bench.starts[4] + 100);
        assert_eq!(received.from as usize, bench.starts[4] - found);
        let message = received.message.expect("a record");
        assert_eq!((message.start, message.number), (bench.isn + bench.starts[4] as u32, 4));
        assert!(received.request.is_some());
        assert_eq!(bench.rx.state(), State::Presuming);
        // Its tag proves the number.
        let (at, end) = (bench.starts[4] + 100, bench.wire.len());
        assert!(bench.receive(at, end).pass.is_some());
        assert_eq!((bench.rx.state(), bench.stats[0].rx_presumed_right), (State::Offloading, 1));
        bench.repair(lost, found);
        bench.read(end).expect("genuine");
        assert_eq!((bench.opened, bench.stats[1].records_offloaded), (8, 6));
        assert_eq!(bench.stats[1].records_restored, 0);
    }
}

#[test]
fn without_the_switch_nothing_is_presumed() {
    let mut bench = Bench::new(&[USUAL; 8]);
    bench.rx.presume(false);
    let (lost, found) = (bench.starts[3] - 20, bench.starts[3] + 30);
    let received = bench.lose(lost, found, bench.starts[4] + 100);
    assert_eq!((received.pass, bench.rx.state()), (None, State::Tracking));
}

#[test]
fn there_is_evidence_or_nothing_is_presumed() {
    let far = PRESUMED_BYTES_MAX as usize / USUAL_BYTES + 3;
    let usual = vec![USUAL; far + 4];
    let cases: [(&[usize], usize, usize); 4] = [
        // Too few records of one length; a length that does not fit; a length that was not
        // repeated.
        (&usual, usize::from(REPEATS_MIN) - 1, usize::from(REPEATS_MIN)),
        (&[USUAL, USUAL, USUAL, 40, USUAL, USUAL], 3, 4),
        (&[USUAL, USUAL, USUAL, 70, USUAL, USUAL, USUAL], 5, 6),
        // Too far.
        (&usual, 3, far + 3),
    ];
    for (lengths, lost, found) in cases {
        let mut bench = Bench::new(lengths);
        let (lost, at) = (bench.starts[lost] - 20, bench.starts[found] - 20);
        let received = bench.lose(lost, at, bench.starts[found] + 100);
        assert_eq!((received.pass, bench.rx.state()), (None, State::Tracking));
    }
}

/// Two records replace one in the lost bytes.
fn wrong_by_one() -> Bench {
    let first = 100;
    let second = USUAL_BYTES - 2 * (HEADER_BYTES + TAG_BYTES) - first;
    Bench::new(&[USUAL, USUAL, USUAL, first, second, USUAL, USUAL, USUAL, USUAL])
}

#[test]
fn a_number_that_is_wrong_by_one_costs_one_record_and_nothing_else() {
    // The number is corrected by a tag, or by software, before or after that tag.
    for tells in 0..3 {
        let mut bench = wrong_by_one();
        let starts = bench.starts.clone();
        let (lost, found) = (starts[3] - 20, starts[5] - 30);
        let received = bench.lose(lost, found, starts[5] + 100);
        let request = received.request.expect("a question");
        assert_eq!(received.message.map(|message| message.number), Some(4), "it is the fifth");
        if tells == 0 {
            bench.repair(lost, found);
            bench.read(starts[5]).expect("genuine");
            assert!(bench.answer(request));
            assert_eq!(bench.rx.state(), State::Offloading);
        }
        let pass = bench.receive(starts[5] + 100, starts[6] - 50).pass;
        assert_eq!(pass.is_some(), tells > 0);
        let end = starts[6] + 100;
        let received = bench.receive(starts[6] - 50, end);
        assert_eq!(received.pass.is_some(), tells == 0);
        if tells > 0 {
            assert_eq!((received, bench.rx.state()), (Received::default(), State::Tracking));
            bench.repair(lost, found);
        }
        if tells == 1 {
            bench.read(starts[5]).expect("genuine");
            assert!(bench.answer(request));
        }
        assert!(tells == 2 || bench.rx.state() == State::Offloading);
        assert_eq!(bench.receive(end, bench.wire.len()).pass.is_some(), tells < 2);
        bench.read(bench.wire.len()).expect("genuine");
        assert_eq!((bench.opened, bench.stats[1].records_restored), (9, 1));
        assert_eq!(bench.stats[0].rx_presumed_wrong, 1);
    }
}

#[test]
fn after_a_wrong_presumption_lengths_have_to_repeat_again() {
    let mut bench = wrong_by_one();
    let starts = bench.starts.clone();
    bench.lose(starts[3] - 20, starts[5] - 30, starts[6] + 10);
    assert_eq!(bench.rx.state(), State::Tracking);
    let received = bench.receive(starts[7] + 5, starts[8] + 100);
    assert_eq!((received.pass, bench.rx.state()), (None, State::Tracking));
}

/// Bytes decrypted with a wrong number never count as authentic.
fn trust_the_number(rule: Rule) -> Result<(), RecordError> {
    let mut bench = wrong_by_one();
    let starts = bench.starts.clone();
    let (lost, found) = (starts[3] - 20, starts[5] - 30);
    bench.lose(lost, found, starts[5] + 100);
    bench.receive(starts[5] + 100, starts[6]);
    bench.repair(lost, found);
    OFF.set(Some(rule));
    let read = bench.read(bench.starts[6]);
    OFF.set(None);
    read
}

#[test]
fn a_presumed_number_is_compared_with_the_true_one() {
    assert_eq!(trust_the_number(Rule::Wrap), Ok(()), "another rule");
    assert_eq!(trust_the_number(Rule::Undo), Err(RecordError::Forged));
}

/// A peer that has its keys can choose its ciphertext, including a false header at the position of
/// an expected one.
#[test]
fn a_peer_that_plants_a_header_where_one_is_awaited_harms_nobody() {
    let random = &mut Random::new(5);
    let secret = Secret::random(random, Version::Tls13);
    // The fourth record is shorter by 50 bytes: the sixth starts 50 bytes before its expected
    // start.
    let lengths = [USUAL, USUAL, USUAL, USUAL - 50, USUAL, USUAL, USUAL, USUAL, USUAL];
    let mut contents: Vec<Vec<u8>> =
        lengths.iter().map(|length| random_bytes(random, *length)).collect();
    for lie in [USUAL + TAG_BYTES, 20, USUAL * 3] {
        plant_one(&secret, (5, 0), &mut contents[5], 50 - HEADER_BYTES, lie as u16);
        let mut bench = Bench::of(secret.clone(), &contents, SeqNumber(u32::MAX - 1700));
        let starts = bench.starts.clone();
        // The true header is lost too.
        let (lost, found) = (starts[3] - 20, starts[5] + 10);
        let received = bench.lose(lost, found, starts[6] - 10);
        if lie == 20 {
            // It ends within the packet, and is no record.
            assert_eq!(received.pass, None);
        } else {
            assert_eq!(received.from as usize, 40);
        }
        for at in (starts[6] - 10..bench.wire.len()).step_by(100) {
            bench.receive(at, (at + 100).min(bench.wire.len()));
        }
        bench.repair(lost, found);
        bench.read(bench.wire.len()).expect("genuine");
        assert_eq!(bench.opened, 9, "{lie}");
        let restored = bench.stats[1].records_restored;
        assert_eq!(restored, [1, 0, 3][usize::from(lie == 20) + 2 * usize::from(lie > 500)]);
    }
}

/// Under the previous key numbers continue, while a new key starts with 0.
#[test]
fn a_presumption_across_a_key_update_is_wrong_and_undone() {
    let random = &mut Random::new(23);
    let mut bench = Bench::new(&[USUAL; 5]);
    let next = Secret::random(random, Version::Tls13);
    let contents: Vec<Vec<u8>> = (0..4).map(|_| random_bytes(random, USUAL)).collect();
    bench.append(&next, &contents);
    let starts = bench.starts.clone();
    // The old key's last record is lost, with the first header under the new key.
    let (lost, found) = (starts[4] - 20, starts[6] - 20);
    let received = bench.lose(lost, found, starts[7] - 50);
    assert_eq!(received.message.map(|message| message.number), Some(6));
    let old = received.request.expect("a question");
    bench.repair(lost, found);
    let behind = bench.delivered.split_off(0);
    let (before, mut rest): (Vec<_>, Vec<_>) = behind.into_iter().partition(|(at, ..)| *at < lost);
    bench.delivered = before;
    bench.read(lost).expect("genuine");
    // Up to the end of the old key's last record, then the rest under the new key.
    rest.sort_by_key(|(at, ..)| *at);
    let cut = starts[5] - rest[0].0;
    let head = rest[0].1[..cut].to_vec();
    bench.delivered = vec![(rest[0].0, head, None)];
    bench.read(starts[5]).expect("genuine");
    assert_eq!(bench.opened, 5);
    let key = bench.records.change_key(next.tls());
    rest[0] = (starts[5], rest[0].1[cut..].to_vec(), None);
    bench.delivered = rest;
    bench.read(starts[8]).expect("genuine");
    // The device gets a negative response, and then the key.
    bench.records.request(old);
    let response = bench.records.response().expect("an answer");
    assert_eq!(response.number, None);
    assert!(bench.rx.respond(&mut bench.stats[0], &response));
    assert_eq!(bench.rx.state(), State::Searching);
    bench.rx.restart(bench.records.start(), 1, key);
    bench.receive(starts[7] - 50, starts[9]);
    bench.read(starts[9]).expect("genuine");
    assert_eq!(bench.opened, 9);
}

#[test]
fn an_answer_to_another_question_proves_nothing() {
    let mut bench = Bench::new(&[USUAL; 8]);
    let (lost, found) = (bench.starts[3] - 20, bench.starts[3] + 30);
    let request = bench.lose(lost, found, bench.starts[4] + 100).request.expect("a question");
    let stale = Request { generation: request.generation.wrapping_sub(1), ..request };
    for number in [None, Some(4), Some(7)] {
        let response = Response { request: stale, number };
        assert!(!bench.rx.respond(&mut bench.stats[0], &response));
        assert_eq!(bench.rx.state(), State::Presuming);
    }
    assert!(bench.rx.respond(&mut bench.stats[0], &Response { request, number: Some(4) }));
    assert_eq!(bench.rx.state(), State::Offloading);
}

#[test]
fn a_negative_answer_ends_the_pass() {
    let mut bench = Bench::new(&[USUAL; 8]);
    let (lost, found) = (bench.starts[3] - 20, bench.starts[3] + 30);
    let request = bench.lose(lost, found, bench.starts[4] + 100).request.expect("a question");
    assert!(bench.rx.respond(&mut bench.stats[0], &Response { request, number: None }));
    let counted = (bench.stats[0].rx_presumed_wrong, bench.stats[0].rx_resync_denied);
    assert_eq!((bench.rx.state(), counted), (State::Searching, (1, 1)));
    let next = bench.receive(bench.starts[4] + 100, bench.starts[5] + 100);
    assert_eq!(next.pass, None);
}

/// An attacker whose packets TCP rejects and the device accepts makes the device treat a forged
/// record as the middle of another one, which is not verified before the forged one is read.
fn a_record_within_another() -> Result<u64, RecordError> {
    let random = &mut Random::new(3);
    let mut bench = Bench::new(&[100, 200, 400, 100]);
    let starts = bench.starts.clone();
    bench.receive(0, starts[1]);
    // Only the device gets the second record as garbage, except for a header before its end, of a
    // record that covers the third one. The true second record is then old.
    let at = starts[2] - 40;
    let mut garbage = random_bytes(random, starts[2] - starts[1]);
    garbage[..HEADER_BYTES].copy_from_slice(&[23, 3, 3, 0, (at - starts[1] - 5) as u8]);
    let covers = (starts[3] - at) as u16;
    garbage[at - starts[1]..][..3].copy_from_slice(&[23, 3, 3]);
    garbage[at - starts[1] + 3..][..2].copy_from_slice(&covers.to_be_bytes());
    bench.device(starts[1], &garbage);
    assert_eq!(bench.receive(starts[1], starts[2]), Received::default());
    // The plaintext of the third record is known, and so is the device's key stream for its bytes.
    let zeros = vec![0; usize::from(covers) - TAG_BYTES];
    let (_, stream) = bench.secret.record(2, 0, &zeros);
    let mut forged = vec![23, 3, 3, 0, 90];
    forged.extend(random_bytes(random, 90));
    let shown = forged.clone();
    for (byte, key) in forged.iter_mut().zip(&stream[HEADER_BYTES + 35..]) {
        *byte ^= key;
    }
    let received = bench.device(starts[2], &forged);
    assert!(received.pass.is_some() && bench.out[..shown.len()] == shown);
    // The record does not count as authentic for a caller that keeps the bytes.
    let worked = [received.worked()].into_iter();
    if bench.read(starts[2]).is_ok() {
        let proved = bench.records.skip_offloaded(&mut bench.stats[1], 95, worked);
        if let Some(number) = proved {
            return Ok(number);
        }
    }
    // Nor for a caller that has it opened.
    bench.delivered.push((starts[2], shown, received.worked()));
    bench.starts[3] = starts[2] + 95;
    bench.written.splice(starts[2].., bench.out[..95].to_vec());
    bench.read(starts[2] + 95).map(|()| 0)
}

#[test]
fn a_record_that_the_device_has_not_seen_start_is_not_released() {
    assert!(a_record_within_another().is_err());
    OFF.set(Some(Rule::Located));
    let without = a_record_within_another();
    OFF.set(None);
    assert_eq!(without, Ok(2), "without the rule it is released");
}
