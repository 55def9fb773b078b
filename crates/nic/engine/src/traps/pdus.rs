//! Pitfalls of software's PDU parser.

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use crate::Nvme;
use crate::model::pdus::{Pdu, agreed, any, data, pdu};
use crate::model::peer::random_bytes;
use crate::nvme::types::{C2H_DATA, C2H_TERM, CAPSULE_RESP, H2C_DATA, IC_RESP, R2T};
use crate::placement::{Placed, PlacedRanges, Registration};
use crate::resync::{Pass, Request};
use crate::software::pdus::{Event, Input, PduError, PduResult, Pdus};

const BOTH: Nvme = Nvme { header_digest: true, data_digest: true, data_bytes_max: 1 << 20 };
const PASS: Pass = Pass { key: 0, generation: 3 };

/// A PDU as reported to software.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    header: Vec<u8>,
    data: Vec<u8>,
    good: Option<bool>,
    rechecked_bytes: u32,
    placed_bytes: usize,
}

fn take(pdus: &mut Pdus, seen: &mut Vec<Seen>, mut input: Input<'_>) -> Result<(), PduError> {
    let mut recheck = None;
    loop {
        if let Some(data_bytes) = recheck.take() {
            let last: &Seen = seen.last().expect("a PDU");
            pdus.recheck(&last.data[..data_bytes as usize]);
        }
        let Some(event) = pdus.next(&mut input)? else { break };
        if let Event::Header { header, data_bytes } = event {
            seen.push(Seen { header: header.to_vec(), ..Seen::default() });
            assert!(data_bytes <= 1 << 20);
            continue;
        }
        let last = seen.last_mut().expect("a header comes first");
        assert_eq!(last.good, None, "nothing follows the verdict");
        match event {
            Event::Header { .. } => (),
            Event::Data { offset, bytes, placed } => {
                assert_eq!(offset as usize, last.data.len());
                last.data.extend(bytes);
                last.placed_bytes += if placed.is_some() { bytes.len() } else { 0 };
            }
            Event::Recheck { data_bytes } => {
                last.rechecked_bytes = data_bytes;
                recheck = Some(data_bytes);
            }
            Event::End => last.good = Some(true),
            Event::Corrupt => last.good = Some(false),
        }
    }
    assert_eq!(input.left(), 0, "all of it is taken");
    Ok(())
}

fn good(sent: &Pdu) -> Seen {
    let (header, data) = (sent.header.clone(), sent.data.clone());
    Seen { header, data, good: Some(true), ..Seen::default() }
}

#[test]
fn pdus_do_not_depend_on_how_bytes_arrive() {
    unlade_testkit::cases(300, |random| {
        let nvme = agreed(random);
        let mut wire = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..20 {
            let length = random.below(600) as usize;
            let pdu = match random.below(3) {
                0 => data(
                    &nvme,
                    C2H_DATA,
                    7,
                    random.next() as u32,
                    &random_bytes(random, length + 1),
                ),
                1 => data(
                    &nvme,
                    H2C_DATA,
                    9,
                    random.next() as u32,
                    &random_bytes(random, length + 1),
                ),
                _ => any(random, &nvme, length),
            };
            wire.extend(&pdu.wire);
            sent.push(pdu);
        }
        let start = SeqNumber(random.next() as u32);
        let (mut pdus, mut seen) = (Pdus::new(nvme, start), Vec::new());
        let mut rest = &wire[..];
        while !rest.is_empty() {
            let taken = (1 + random.below(300) as usize).min(rest.len());
            // Correct metadata, for some bytes.
            let pass = random.once_in(2).then_some(PASS);
            let at = (wire.len() - rest.len()) as u32;
            let mut starts = sent.iter().scan(0, |at, sent| {
                *at += sent.wire.len() as u32;
                Some(*at - sent.wire.len() as u32)
            });
            let boundary = starts.find(|start| *start >= at).map(|start| start - at);
            let boundary = boundary.filter(|start| *start < taken as u32);
            let result = PduResult { pass, boundary, ..PduResult::default() };
            take(&mut pdus, &mut seen, Input::new(&rest[..taken], result)).expect("genuine");
            rest = &rest[taken..];
        }
        for (seen, sent) in seen.iter_mut().zip(&sent) {
            seen.rechecked_bytes = 0;
            assert_eq!(*seen, good(sent));
        }
        assert_eq!(seen.len(), sent.len());
        assert_eq!(pdus.start(), start + wire.len() as u32);
    });
}

#[test]
fn a_byte_that_was_changed_is_noticed_wherever_it_is() {
    let sent = [data(&BOTH, C2H_DATA, 7, 0, &[5; 50]), pdu(&BOTH, CAPSULE_RESP, &[1; 16], &[], 0)];
    let first = &sent[0];
    for at in 0..first.wire.len() {
        let mut wire = [&first.wire[..], &sent[1].wire[..]].concat();
        wire[at] ^= 0x40;
        let (mut pdus, mut seen) = (Pdus::new(BOTH, SeqNumber(0)), Vec::new());
        let taken = take(&mut pdus, &mut seen, Input::plain(&wire));
        if at < first.ends[1] {
            assert!(matches!(taken, Err(PduError::HeaderDigest | PduError::Malformed)), "{at}");
            assert!(seen.is_empty(), "a header is not shown before its digest is right");
            assert_eq!(pdus.next(&mut Input::plain(&[0; 8])), Err(taken.expect_err("an error")));
        } else {
            // The command fails, and the connection continues.
            assert_eq!(taken, Ok(()));
            assert_eq!(seen[0].good, Some(false), "byte {at}");
            assert_eq!(seen[1], good(&sent[1]));
        }
    }
}

#[test]
fn what_the_device_has_not_checked_to_the_end_is_computed() {
    let sent = data(&BOTH, C2H_DATA, 7, 4096, &random_bytes(&mut Random::new(1), 3000));
    for broken in [None, Some(40), Some(2900), Some(sent.wire.len() - 1)] {
        for cut in [1, 24, 28, 29, 1000, 3027, 3028, 3029, sent.wire.len()] {
            for passes in [[Some(PASS), None], [None, Some(PASS)], [Some(PASS), Some(PASS)]] {
                let mut wire = sent.wire.clone();
                if let Some(at) = broken {
                    wire[at] ^= 1;
                }
                let claims_wrong =
                    passes == [Some(PASS); 2] || cut == wire.len() && passes[0].is_some();
                if broken.is_some() && claims_wrong {
                    continue;
                }
                let (mut pdus, mut seen) = (Pdus::new(BOTH, SeqNumber(0)), Vec::new());
                let parts = [(&wire[..cut], passes[0], Some(0)), (&wire[cut..], passes[1], None)];
                for (bytes, pass, boundary) in parts {
                    let result = PduResult { pass, boundary, ..PduResult::default() };
                    take(&mut pdus, &mut seen, Input::new(bytes, result)).expect("a good header");
                }
                assert_eq!(seen[0].good, Some(broken.is_none()), "{broken:?} {cut} {passes:?}");
                let trusted = if passes[0].is_some() { cut.clamp(28, 3028) - 28 } else { 0 };
                let rechecked = if claims_wrong { 0 } else { trusted as u32 };
                assert_eq!(seen[0].rechecked_bytes, rechecked, "{cut} {passes:?}");
            }
        }
    }
}

#[test]
fn data_that_was_not_given_again_counts_as_wrong() {
    let sent = data(&BOTH, C2H_DATA, 7, 0, &[0; 100]);
    let mut pdus = Pdus::new(BOTH, SeqNumber(0));
    let result = PduResult { pass: Some(PASS), boundary: Some(0), ..PduResult::default() };
    let mut events = Vec::new();
    for mut input in [Input::new(&sent.wire[..90], result), Input::plain(&sent.wire[90..])] {
        while let Some(event) = pdus.next(&mut input).expect("genuine") {
            events.push(format!("{event:?}"));
        }
    }
    assert_eq!(events[events.len() - 2..], ["Recheck { data_bytes: 62 }", "Corrupt"]);
}

#[test]
fn placed_bytes_are_told_apart_and_those_elsewhere_are_not_believed() {
    let sent = data(&BOTH, C2H_DATA, 7, 500, &[9; 100]);
    let registration = Registration { tag: 7, generation: 2 };
    let range = |start, end, offset, tag| Placed {
        start,
        end,
        registration: Registration { tag, ..registration },
        offset,
    };
    let cases = [
        (range(40, 80, 512, 7), 40),
        // At the wrong offset of the buffer, or in another buffer.
        (range(40, 80, 513, 7), 0),
        (range(40, 80, 512, 8), 0),
        (range(28, 128, 500, 7), 100),
    ];
    for (placed, bytes) in cases {
        let mut ranges = PlacedRanges::NONE;
        assert!(ranges.push(placed));
        let (mut pdus, mut seen) = (Pdus::new(BOTH, SeqNumber(0)), Vec::new());
        let result = PduResult { pass: Some(PASS), boundary: Some(0), placed: ranges };
        take(&mut pdus, &mut seen, Input::new(&sent.wire, result)).expect("genuine");
        assert_eq!((seen[0].placed_bytes, &seen[0].data), (bytes, &sent.data));
        assert_eq!(pdus.stats().copy_skipped_bytes, bytes as u64);
    }
}

#[test]
fn headers_that_contradict_themselves_or_what_was_agreed_are_refused() {
    let nvme = Nvme { data_bytes_max: 1000, ..BOTH };
    let good = data(&nvme, C2H_DATA, 1, 0, &[0; 1000]);
    let change = |at: usize, to: u8| {
        let mut wire = good.wire.clone();
        wire[at] = to;
        wire
    };
    let sealed = |mut wire: Vec<u8>| {
        let digest = crc32c::crc32c(&wire[..24]);
        wire[24..28].copy_from_slice(&digest.to_le_bytes());
        wire
    };
    let cases = [
        ("a type that is none", change(0, 8)),
        ("an unknown flag", change(1, 0x1f)),
        ("no header digest", change(1, 0x0e)),
        ("no data digest", change(1, 0x0d)),
        ("a header of another length", change(2, 72)),
        ("data within the header", change(3, 24)),
        ("data that is not aligned", change(3, 29)),
        ("data far behind", change(3, 132)),
        ("a length below the header's", [&good.wire[..4], &[27, 0, 0, 0]].concat()),
        ("room for a digest only", [&good.wire[..4], &[32, 0, 0, 0]].concat()),
        ("too much data", data(&nvme, C2H_DATA, 1, 0, &[0; 1001]).wire),
        ("a length of 4 GiB", [&good.wire[..4], &[0xff; 4]].concat()),
        ("another length of data than the PDU's", sealed(change(16, 1))),
        ("data behind a completion", pdu(&nvme, R2T, &[], &[0; 10], 0).wire),
        ("a long termination request", pdu(&nvme, C2H_TERM, &[], &[0; 129], 0).wire),
    ];
    for (what, wire) in cases {
        let (mut pdus, mut seen) = (Pdus::new(nvme, SeqNumber(0)), Vec::new());
        let taken = take(&mut pdus, &mut seen, Input::plain(&wire));
        assert_eq!(taken, Err(PduError::Malformed), "{what}");
    }
    // At the limits.
    for wire in [good.wire.clone(), pdu(&nvme, C2H_TERM, &[], &[0; 128], 0).wire] {
        let (mut pdus, mut seen) = (Pdus::new(nvme, SeqNumber(0)), Vec::new());
        assert_eq!(take(&mut pdus, &mut seen, Input::plain(&wire)), Ok(()));
        assert_eq!(seen[0].good, Some(true));
    }
}

#[test]
fn digests_are_agreed_on_after_the_first_pdu() {
    let none = Nvme { header_digest: false, data_digest: false, ..BOTH };
    let first = pdu(&none, IC_RESP, &[1; 120], &[], 0);
    let second = data(&BOTH, C2H_DATA, 1, 0, &[3; 30]);
    let (mut pdus, mut seen) = (Pdus::new(none, SeqNumber(0)), Vec::new());
    take(&mut pdus, &mut seen, Input::plain(&first.wire)).expect("ICResp");
    pdus.agree(BOTH);
    take(&mut pdus, &mut seen, Input::plain(&second.wire)).expect("C2HData");
    assert_eq!(seen, [good(&first), good(&second)]);
}

#[test]
fn a_question_is_answered_when_the_stream_was_read_so_far() {
    let sent = data(&BOTH, C2H_DATA, 1, 0, &[3; 30]);
    let isn = SeqNumber(u32::MAX - 40);
    let (mut pdus, mut seen) = (Pdus::new(BOTH, isn), Vec::new());
    let bytes = sent.wire.len() as u32;
    let request = |tcpsn| Request { tcpsn, key: 0, generation: 1 };
    pdus.request(request(isn + bytes));
    assert_eq!(pdus.response(), None);
    take(&mut pdus, &mut seen, Input::plain(&sent.wire)).expect("genuine");
    let response = pdus.response().expect("an answer");
    assert_eq!((response.request.tcpsn, response.number), (isn + bytes, Some(1)));
    pdus.request(request(isn + 5));
    assert_eq!(pdus.response().map(|response| response.number), Some(None));
}

#[test]
fn the_middle_of_another_pdu_is_not_taken_for_checked() {
    // The device has a wrong length of the first PDU, and treats the second as its data.
    let first = pdu(&BOTH, CAPSULE_RESP, &[1; 16], &[], 0);
    let mut second = data(&BOTH, C2H_DATA, 7, 0, &[9; 100]);
    second.wire[60] ^= 1;
    let (mut pdus, mut seen) = (Pdus::new(BOTH, SeqNumber(0)), Vec::new());
    let result = PduResult { pass: Some(PASS), ..PduResult::default() };
    take(&mut pdus, &mut seen, Input::plain(&first.wire)).expect("genuine");
    take(&mut pdus, &mut seen, Input::new(&second.wire, result)).expect("a good header");
    assert_eq!(seen[1].good, Some(false));
}
