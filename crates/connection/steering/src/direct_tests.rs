//! The program of direct return, on single frames, against the rule of `unlade-splice`.

use std::sync::Arc;

use aya::Ebpf;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use unlade_net::packet::{Direction, Segment as Written, TcpFlags, TcpOptions, checksum};
use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::Rule;
use unlade_splice::datagram::{Datagram, Key, encode};
use unlade_splice::segment::{Segment, Timestamps};
use unlade_testkit::{Random, cases};

use crate::direct::{DirectCounts, DirectFlow, EGRESS, INGRESS, Rules, load};
use crate::load::program;

const FLOWS_MAX: u32 = 8;
/// UDP port of rules.
const PORT: u16 = 7901;
const KEY: Key = Key { number: 5, secret: [9; 16] };
const TC_REDIRECT: i32 = 7;
const TC_SHOT: i32 = 2;
const TC_NEXT: i32 = -1;
const ETHERNET_BYTES: usize = 14;
const TIMESTAMPS_BYTES: usize = 12;

fn flow(client: &str, service: &str) -> FlowKey {
    FlowKey::new(client.parse().unwrap(), service.parse().unwrap())
}

/// A balancer's connection to a server, and a client's connection to the balancer.
fn flows() -> [(FlowKey, FlowKey); 2] {
    [
        (flow("10.0.0.2:51000", "10.0.0.3:8080"), flow("192.0.2.7:40000", "198.51.100.1:80")),
        (
            flow("[2001:db8::2]:51000", "[2001:db8::3]:8080"),
            flow("[2001:db8:9::7]:40000", "[2001:db8:1::1]:80"),
        ),
    ]
}

struct Host {
    ebpf: Ebpf,
    rules: Arc<Rules>,
}

impl Host {
    fn open() -> Option<Host> {
        let mut ebpf = match load(PORT, FLOWS_MAX) {
            Ok(ebpf) => ebpf,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let rules = Arc::new(Rules::new(&mut ebpf, FLOWS_MAX).unwrap());
        Some(Host { ebpf, rules })
    }

    fn verdict(&mut self, name: &'static str, frame: &[u8]) -> (i32, Vec<u8>) {
        let mut out = vec![0; frame.len() + 64];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        let classifier = program::<SchedClassifier>(&mut self.ebpf, name).unwrap();
        let ran = classifier.test_run(options).expect("the program runs");
        out.truncate(ran.data_size_out as usize);
        (ran.return_value as i32, out)
    }

    /// Sends a frame. Returns the rewritten one; `None`: it passed unchanged.
    fn run(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        match self.verdict(EGRESS, frame) {
            (TC_REDIRECT, out) => Some(out),
            (TC_NEXT, out) => {
                assert_eq!(out, frame, "a frame that passes is unchanged");
                None
            }
            (other, _) => panic!("{other} is no verdict"),
        }
    }

    /// Receives a frame. Returns true if it was dropped.
    fn receive(&mut self, frame: &[u8]) -> bool {
        match self.verdict(INGRESS, frame) {
            (TC_NEXT, _) => false,
            (TC_SHOT, _) => true,
            (other, _) => panic!("{other} is no verdict"),
        }
    }
}

/// Returns the offset of the TCP header.
fn tcp_at(frame: &[u8]) -> usize {
    ETHERNET_BYTES + if frame[12] == 8 { 20 } else { 40 }
}

fn write_checksum(frame: &mut [u8]) {
    let at = tcp_at(frame);
    let addresses = if frame[12] == 8 { 26..34 } else { 22..54 };
    frame[at + 16..at + 18].fill(0);
    let mut covered = frame[addresses].to_vec();
    covered.extend_from_slice(&((frame.len() - at) as u32).to_be_bytes());
    covered.extend_from_slice(&[0, 0, 0, 6]);
    covered.extend_from_slice(&frame[at..]);
    let sum = checksum(&covered);
    frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Options of a segment.
#[derive(Clone, Copy)]
enum Options {
    None,
    Timestamps(Timestamps),
    /// As many NOPs as timestamps have bytes.
    Nops,
}

/// Returns the frame of a segment that a service sends.
fn frame(flow: FlowKey, segment: &Segment, options: Options) -> Vec<u8> {
    let timestamps = match options {
        Options::None => None,
        Options::Timestamps(Timestamps { value, echo }) => Some((value, echo)),
        Options::Nops => Some((0, 0)),
    };
    let payload = vec![0x5a; segment.payload_bytes as usize];
    let written = Written {
        flow,
        direction: Direction::ToClient,
        seq: segment.seq,
        ack: segment.ack,
        flags: segment.flags,
        window: segment.window,
        options: TcpOptions { timestamps, ..TcpOptions::default() },
        payload: &payload,
    };
    let mut frame = written.ethernet_frame([2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 2]).unwrap();
    let at = tcp_at(&frame) + 20;
    match options {
        Options::None => {}
        // Linux writes the NOPs first.
        Options::Timestamps(_) => frame[at..at + TIMESTAMPS_BYTES].rotate_right(2),
        Options::Nops => frame[at..at + TIMESTAMPS_BYTES].fill(1),
    }
    write_checksum(&mut frame);
    frame
}

fn near(random: &mut Random, center: SeqNumber) -> SeqNumber {
    match random.below(4u32) {
        0 => center,
        1 => center + random.below(4u32),
        2 => center - random.below(4u32),
        _ => center + random.below(100_000u32) - 50_000,
    }
}

fn rule(random: &mut Random) -> Rule {
    let first = SeqNumber(random.next() as u32);
    Rule {
        first,
        end: (random.below(2u32) == 0).then(|| first + random.below(60_000u32)),
        request_end: SeqNumber(random.next() as u32),
        delta: random.next() as u32,
        ack: SeqNumber(random.next() as u32),
        window: random.next() as u16,
        clock: (random.below(2u32) == 0).then(|| (random.next() as u32, random.next() as u32)),
    }
}

#[test]
fn the_program_translates_as_the_rule_says() {
    let Some(mut host) = Host::open() else { return };
    let (mut direct, mut others) = (0, 0);
    cases(4000, |random| {
        let (server_flow, client_flow) = random.pick(&flows());
        let entry: DirectFlow = host.rules.acquire(&server_flow, KEY.number, 0).unwrap();
        let rule = rule(random);
        entry.set(&rule, &client_flow);
        let timestamps = (random.below(3u32) > 0)
            .then(|| Timestamps { value: random.next() as u32, echo: random.next() as u32 });
        let segment = |random: &mut Random| Segment {
            seq: near(random, rule.first),
            ack: near(random, rule.request_end),
            flags: match random.below(8u32) {
                0 => TcpFlags(random.next() as u8),
                1 => TcpFlags::ACK | TcpFlags::PSH,
                _ => TcpFlags::ACK,
            },
            window: random.next() as u16,
            payload_bytes: if random.below(4u32) == 0 { 0 } else { random.below(1400u32) },
            timestamps,
            ..Segment::default()
        };
        let options = timestamps.map_or(Options::None, Options::Timestamps);
        let mut sent_end = None;
        // The second one may be a probe.
        for _ in 0..2 {
            let segment = segment(random);
            let due = rule.translate(&segment, sent_end.unwrap_or(segment.seq));
            let out = host.run(&frame(server_flow, &segment, options));
            match due {
                Some(due) => {
                    let options = match (due.timestamps, timestamps) {
                        (Some(timestamps), _) => Options::Timestamps(timestamps),
                        (None, Some(_)) => Options::Nops,
                        (None, None) => Options::None,
                    };
                    assert_eq!(
                        out,
                        Some(frame(client_flow, &due, options)),
                        "{segment:?} {rule:?}"
                    );
                    direct += 1;
                }
                None => {
                    assert_eq!(out, None, "{segment:?} {rule:?}");
                    others += 1;
                }
            }
            if sent_end.is_none_or(|end: SeqNumber| end.before(segment.end())) {
                sent_end = Some(segment.end());
            }
        }
    });
    assert!(direct > 100 && others > 100, "{direct} {others}");
}

#[test]
fn without_a_rule_a_segment_goes_to_the_balancer() {
    let Some(mut host) = Host::open() else { return };
    for (server_flow, client_flow) in flows() {
        let rule = Rule {
            first: SeqNumber(1),
            end: None,
            request_end: SeqNumber(9),
            delta: 7,
            ack: SeqNumber(5),
            window: 100,
            clock: None,
        };
        let segment = Segment {
            seq: SeqNumber(1),
            ack: SeqNumber(9),
            flags: TcpFlags::ACK,
            payload_bytes: 100,
            ..Segment::default()
        };
        let frame = frame(server_flow, &segment, Options::None);
        assert_eq!(host.run(&frame), None, "an unknown connection");
        let entry = host.rules.acquire(&server_flow, KEY.number, 0).unwrap();
        assert_eq!(host.run(&frame), None, "no rule yet");
        entry.set(&rule, &client_flow);
        assert!(host.run(&frame).is_some());
        assert_eq!(entry.sent_directly(), (1, 100));
        entry.clear();
        assert_eq!(host.run(&frame), None, "no rule any more");
        entry.set(&rule, &client_flow);
        assert!(host.run(&frame).is_some());
        drop(entry);
        assert_eq!(host.run(&frame), None, "the connection is forgotten");
    }
    let entries: Vec<_> = (0..FLOWS_MAX as u16)
        .map(|port| {
            let balancer = format!("10.0.0.2:{}", port + 1);
            host.rules.acquire(&flow(&balancer, "10.0.0.3:80"), KEY.number, 0)
        })
        .collect();
    assert!(entries.iter().all(Result::is_ok));
    let more = host.rules.acquire(&flow("10.0.0.2:99", "10.0.0.3:80"), KEY.number, 0);
    assert!(matches!(more, Err(crate::SteerError::TableFull)));
}

/// Returns the frame of a datagram.
fn udp(from: &FlowKey, port: u16, payload: &[u8]) -> Vec<u8> {
    let segment =
        Segment { flags: TcpFlags::ACK, payload_bytes: payload.len() as u32, ..Segment::default() };
    let mut frame = frame(FlowKey::new(from.service, from.client), &segment, Options::None);
    let at = tcp_at(&frame);
    let length = (8 + payload.len()) as u16;
    frame.splice(at..at + 20, [0; 8]);
    frame[at + 2..at + 4].copy_from_slice(&port.to_be_bytes());
    frame[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
    frame[at + 8..].copy_from_slice(payload);
    if frame[12] == 8 {
        frame[16..18].copy_from_slice(&(20 + length).to_be_bytes());
        frame[23] = 17;
    } else {
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame[20] = 17;
    }
    frame
}

#[test]
fn a_datagram_sets_the_rule_that_it_carries() {
    let Some(mut host) = Host::open() else { return };
    host.rules.set_key(&KEY).unwrap();
    let mut taken = 0;
    cases(500, |random| {
        let (server, client) = random.pick(&flows());
        let entry = host.rules.acquire(&server, KEY.number, 0).unwrap();
        let rule = rule(random);
        let datagram = Datagram { counter: 1 + random.next() / 2, server, client, rule };
        assert!(host.receive(&udp(&server, PORT, &encode(&datagram, &KEY))));
        taken += 1;
        let clock = rule.clock.map(|_| Timestamps { value: 3, echo: 4 });
        let segment = Segment {
            seq: rule.first,
            ack: rule.request_end,
            flags: TcpFlags::ACK,
            payload_bytes: 1,
            timestamps: clock,
            ..Segment::default()
        };
        let written = |flow: FlowKey, segment: &Segment| {
            frame(flow, segment, segment.timestamps.map_or(Options::None, Options::Timestamps))
        };
        let due = rule.translate(&segment, segment.seq).map(|due| written(client, &due));
        assert_eq!(host.run(&written(server, &segment)), due, "{rule:?}");
        drop(entry);
    });
    assert_eq!(host.rules.counts().unwrap(), DirectCounts { taken, ..DirectCounts::default() });
}

#[test]
fn forged_unknown_and_old_datagrams_change_nothing() {
    let Some(mut host) = Host::open() else { return };
    let (server, client) = flows()[0];
    let rule = Rule { end: None, clock: None, ..rule(&mut Random::new(1)) };
    let other = Rule { delta: rule.delta + 1, ..rule };
    let datagram = Datagram { counter: 10, server, client, rule };
    let segment = Segment {
        seq: rule.first,
        ack: rule.request_end,
        flags: TcpFlags::ACK,
        payload_bytes: 1,
        ..Segment::default()
    };
    let segment = frame(server, &segment, Options::None);
    let sent = |host: &mut Host, datagram: &Datagram, key: &Key| {
        assert!(host.receive(&udp(&server, PORT, &encode(datagram, key))));
    };
    let mut due = DirectCounts::default();

    sent(&mut host, &datagram, &KEY);
    due.forged += 1;
    assert_eq!(host.rules.counts().unwrap(), due, "no key yet");
    host.rules.set_key(&KEY).unwrap();
    sent(&mut host, &datagram, &KEY);
    due.unknown += 1;
    let entry = host.rules.acquire(&server, KEY.number, 9).unwrap();
    // A bit of the content, of the tag, another secret, another balancer's key, a key out of range.
    for bit in [800, 128 * 8 + 3] {
        let mut bytes = encode(&datagram, &KEY);
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(host.receive(&udp(&server, PORT, &bytes)));
    }
    sent(&mut host, &datagram, &Key { secret: [8; 16], ..KEY });
    let foreign = Key { number: 6, secret: [7; 16] };
    host.rules.set_key(&foreign).unwrap();
    sent(&mut host, &datagram, &foreign);
    sent(&mut host, &datagram, &Key { number: u32::MAX, ..KEY });
    due.forged += 5;
    sent(&mut host, &Datagram { counter: 9, ..datagram }, &KEY);
    due.old += 1;
    assert_eq!(host.rules.counts().unwrap(), due);
    assert_eq!(host.run(&segment), None, "no rule was taken");

    sent(&mut host, &datagram, &KEY);
    due.taken += 1;
    let first = host.run(&segment);
    assert!(first.is_some());
    // A replayed number: the rule stays.
    sent(&mut host, &Datagram { rule: other, ..datagram }, &KEY);
    due.old += 1;
    assert_eq!(host.run(&segment), first);
    sent(&mut host, &Datagram { counter: 11, rule: other, ..datagram }, &KEY);
    due.taken += 1;
    let second = host.run(&segment);
    assert!(second.is_some() && second != first);
    host.rules.remove_key(KEY.number).unwrap();
    sent(&mut host, &Datagram { counter: 12, ..datagram }, &KEY);
    due.forged += 1;
    assert_eq!(host.rules.counts().unwrap(), due);
    drop(entry);

    // Datagrams of others pass.
    let bytes = encode(&datagram, &KEY);
    assert!(!host.receive(&udp(&server, PORT + 1, &bytes)), "another port");
    assert!(!host.receive(&udp(&server, PORT, &bytes[..100])), "another length");
    let mut text = bytes;
    text[0] = b'G';
    assert!(!host.receive(&udp(&server, PORT, &text)), "another kind");
    assert!(!host.receive(&segment), "TCP");
    assert_eq!(host.rules.counts().unwrap(), due);
}
