//! The program of direct return, on responses whose heads decide, against [`HostRule`].

use unlade_net::packet::TcpFlags;
use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::datagram::Datagram;
use unlade_splice::head::fit;
use unlade_splice::segment::{Segment, Timestamps};
use unlade_splice::{HostRule, Rule, Sent};
use unlade_testkit::{Random, cases};

use crate::direct::EGRESS;
use crate::direct_tests::{Host, KEY, Options, TC_NEXT, flows, frame_of, rule, tcp_at};

/// `COPY_MARK` of bpf/direct.bpf.c.
const COPY_MARK: u32 = 0x756e_0000;
const URGENT_AT: usize = 18;
pub(crate) const CHECK_AT: usize = 16;

/// Leaves the checksum to the device, as the kernel does: the field has the sum of the pseudo
/// header.
pub(crate) fn pending(mut frame: Vec<u8>) -> Vec<u8> {
    let at = tcp_at(&frame);
    let addresses = if frame[12] == 8 { 26..34 } else { 22..54 };
    let mut covered = frame[addresses].to_vec();
    covered.extend_from_slice(&((frame.len() - at) as u32).to_be_bytes());
    covered.extend_from_slice(&[0, 0, 0, 6]);
    let sum = !unlade_net::packet::checksum(&covered);
    frame[at + CHECK_AT..at + CHECK_AT + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn without_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let at = tcp_at(&frame) + CHECK_AT;
    frame[at..at + 2].fill(0);
    frame
}

/// Returns a head that is often fit, and nearly fit otherwise.
fn head(random: &mut Random) -> Vec<u8> {
    const STATUS: [&str; 5] = ["200 OK", "206 Partial Content", "200 ", "304 Not Modified", "2000"];
    const NAMES: [&str; 14] = [
        "Server",
        "ETag",
        "x-amz-request-id",
        "Connection",
        "CONNECTION",
        "Keep-Alive",
        "Transfer-Encoding",
        "te",
        "Upgrade",
        "Proxy-Authenticate",
        "Proxy",
        "Content-Length",
        "Content-Lengths",
        "x-content-length",
    ];
    const VALUES: [&str; 6] =
        [" keep-alive", " Keep-Alive", " close", " 5", "", "\t a long one: b"];
    let mut text = format!("HTTP/1.1 {}\r\n", STATUS[usual(random, STATUS.len())]);
    let bytes = random.below(3u32) * random.below(9_000u32);
    let length = format!("Content-Length: {bytes}\r\n");
    let fields = random.below(6u32);
    let at = random.below(fields + 1);
    for field in 0..=fields {
        if field == at && random.below(20u32) > 0 {
            text.push_str(&length);
        } else if random.below(3u32) > 0 {
            text.push_str("Connection: keep-alive\r\n");
        } else {
            let name = NAMES[usual(random, NAMES.len())];
            let value = VALUES[random.below(VALUES.len())];
            text.push_str(&format!("{name}:{value}\r\n"));
        }
    }
    if random.below(30u32) == 0 {
        text.push_str(&format!("Long: {}\r\n", "x".repeat(random.below(1100usize))));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    if random.below(4u32) == 0 {
        const OTHERS: [u8; 8] = *b"\r\n :\tA0\x7f";
        let at = random.below(bytes.len());
        bytes[at] = OTHERS[random.below(OTHERS.len())];
    }
    bytes
}

/// Returns one of `count` numbers, mostly one of the first three.
fn usual(random: &mut Random, count: usize) -> usize {
    if random.below(3u32) > 0 { random.below(3usize) } else { random.below(count) }
}

/// A segment of a response, its payload, and its options.
struct Written<'p> {
    segment: Segment,
    payload: &'p [u8],
    timestamps: Option<Timestamps>,
}

fn compare(
    host: &mut Host,
    (server, client): (FlowKey, FlowKey),
    rule: &mut HostRule,
    sent_end: &mut SeqNumber,
    written: &Written<'_>,
) -> Sent {
    let Written { segment, payload, timestamps } = written;
    let options = timestamps.map_or(Options::None, Options::Timestamps);
    let due = rule.send(segment, payload, *sent_end);
    if sent_end.before(segment.end()) {
        *sent_end = segment.end();
    }
    let out = host.run(&pending(frame_of(server, segment, options, payload)));
    let expected = match due {
        Sent::Balancer => None,
        Sent::Client(shown) | Sent::Both(shown, _) => {
            let options = match (shown.timestamps, timestamps) {
                (Some(timestamps), _) => Options::Timestamps(timestamps),
                (None, Some(_)) => Options::Nops,
                (None, None) => Options::None,
            };
            Some(pending(frame_of(client, &shown, options, payload)))
        }
    };
    // The kernel does not know of these frames that their checksum is left to the device.
    let [out, expected] = [out, expected].map(|frame| frame.map(without_checksum));
    let text = payload.escape_ascii().to_string();
    assert!(out == expected, "{segment:?} {rule:?} {:?} {text}", out.is_some());
    due
}

#[test]
fn the_program_reads_heads_as_the_model_does() {
    let Some(mut host) = Host::with_key() else { return };
    let (mut counter, mut fits, mut unfits, mut copies) = (0, 0, 0, 0);
    cases(4000, |random| {
        let flows = random.pick(&flows());
        let rule = Rule { awaits_head: true, end: None, ..rule(random) };
        counter += 1;
        let (server, client) = flows;
        host.get(&Datagram { counter, server, client, rule, grant: None }, &KEY);
        let mut host_rule = HostRule::new(rule, None);
        let mut sent_end = rule.first;
        let timestamps = (random.below(3u32) > 0)
            .then(|| Timestamps { value: random.next() as u32, echo: random.next() as u32 });
        let head = head(random);
        let mut response = head.clone();
        let body = fit(&head).map_or(random.below(2_000u32), |head| head.body_bytes);
        response.extend((0..body).map(|n| n as u8));
        match fit(&response) {
            Some(_) => fits += 1,
            None => unfits += 1,
        }
        // The first segment has the head, seldom a part of it; others follow, and some come again.
        let mut at = 0;
        for turn in 0..5 {
            let most = response.len() - at;
            let count = match random.below(4u32) {
                // A program is run on a page at most.
                0 if turn > 0 => 1 + random.below(most.clamp(1, 2_000)),
                _ => head.len() + random.below(1200usize),
            };
            let count = if random.below(20u32) == 0 { head.len() / 2 } else { count };
            let payload = &response[at..at + count.min(most)];
            let segment = Segment {
                seq: rule.first + at as u32,
                ack: rule.request_end,
                flags: TcpFlags::ACK,
                payload_bytes: payload.len() as u32,
                timestamps,
                ..Segment::default()
            };
            let written = Written { segment, payload, timestamps };
            let sent = compare(&mut host, flows, &mut host_rule, &mut sent_end, &written);
            copies += u32::from(matches!(sent, Sent::Both(..)));
            at =
                if random.below(3u32) == 0 { random.below(head.len()) } else { at + payload.len() };
            at = at.min(response.len());
        }
        host.forget();
    });
    assert!(fits > 500 && unfits > 500 && copies > 500, "{fits} {unfits} {copies}");
}

#[test]
fn a_complete_checksum_cannot_be_cut_so_the_response_goes_to_the_balancer() {
    let Some(mut host) = Host::with_key() else { return };
    let (server, client) = flows()[0];
    let rule = Rule { awaits_head: true, end: None, clock: None, ..rule(&mut Random::new(1)) };
    host.get(&Datagram { counter: 1, server, client, rule, grant: None }, &KEY);
    let payload = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345";
    let segment = Segment {
        seq: rule.first,
        ack: rule.request_end,
        flags: TcpFlags::ACK,
        payload_bytes: payload.len() as u32,
        ..Segment::default()
    };
    let frame = frame_of(server, &segment, Options::None, payload);
    assert_eq!(host.run(&frame), None);
    assert!(host.run(&pending(frame)).is_some());
}

#[test]
fn a_copy_has_the_head_and_a_mark() {
    let Some(mut host) = Host::with_key() else { return };
    cases(200, |random| {
        let (server, _) = random.pick(&flows());
        let payload: Vec<u8> = (0..1 + random.below(3_000u32)).map(|n| n as u8).collect();
        let kept = 1 + random.below(1024usize);
        let segment = |payload: &[u8]| Segment {
            seq: SeqNumber(7),
            ack: SeqNumber(9),
            flags: TcpFlags::ACK,
            payload_bytes: payload.len() as u32,
            ..Segment::default()
        };
        let timestamps = Timestamps { value: 3, echo: 4 };
        let options =
            if random.below(2u32) == 0 { Options::None } else { Options::Timestamps(timestamps) };
        let frame = |payload: &[u8]| pending(frame_of(server, &segment(payload), options, payload));
        let mark = COPY_MARK | kept as u32;
        let (verdict, out) = host.verdict_of(EGRESS, &frame(&payload), mark);
        assert_eq!(verdict, TC_NEXT);
        let mut due = frame(&payload[..kept.min(payload.len())]);
        let at = tcp_at(&due) + URGENT_AT;
        due[at..at + 2].copy_from_slice(&[0, 1]);
        assert_eq!(out, due, "{kept} of {}", payload.len());
    });
}
