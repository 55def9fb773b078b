//! The program of direct return, on single frames, against the rule of `unlade-splice`.

use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use unlade_net::packet::{Direction, Segment as Written, TcpFlags, TcpOptions, checksum};
use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::Rule;
use unlade_splice::datagram::{Datagram, Grant, Key, encode};
use unlade_splice::segment::{Segment, Timestamps};
use unlade_testkit::{Random, cases};

use crate::direct::{DirectCounts, EGRESS, INGRESS, Rules, SentDirectly, load};
use crate::load::program;

const FLOWS_MAX: u32 = 8;
/// UDP port of rules.
const PORT: u16 = 7901;
pub(crate) const KEY: Key = Key { number: 5, secret: [9; 16] };
const TC_REDIRECT: i32 = 7;
const TC_SHOT: i32 = 2;
pub(crate) const TC_NEXT: i32 = -1;
const ETHERNET_BYTES: usize = 14;
const TIMESTAMPS_BYTES: usize = 12;

fn flow(client: &str, service: &str) -> FlowKey {
    FlowKey::new(client.parse().unwrap(), service.parse().unwrap())
}

/// A balancer's connection to a server, and a client's connection to the balancer.
pub(crate) fn flows() -> [(FlowKey, FlowKey); 2] {
    [
        (flow("10.0.0.2:51000", "10.0.0.3:8080"), flow("192.0.2.7:40000", "198.51.100.1:80")),
        (
            flow("[2001:db8::2]:51000", "[2001:db8::3]:8080"),
            flow("[2001:db8:9::7]:40000", "[2001:db8:1::1]:80"),
        ),
    ]
}

pub(crate) struct Host {
    ebpf: Ebpf,
    rules: Rules,
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
        let rules = Rules::new(&mut ebpf, FLOWS_MAX).unwrap();
        Some(Host { ebpf, rules })
    }

    /// A host that accepts rules with [`KEY`].
    pub(crate) fn with_key() -> Option<Host> {
        let mut host = Host::open()?;
        host.rules.set_key(&KEY).unwrap();
        Some(host)
    }

    fn verdict(&mut self, name: &'static str, frame: &[u8]) -> (i32, Vec<u8>) {
        self.verdict_of(name, frame, 0)
    }

    /// Runs a program on a frame with a mark.
    pub(crate) fn verdict_of(
        &mut self,
        name: &'static str,
        frame: &[u8],
        mark: u32,
    ) -> (i32, Vec<u8>) {
        let mut out = vec![0; frame.len() + 64];
        // `mark` of struct __sk_buff, behind `len` and `pkt_type`.
        let mut context = [0; 12];
        context[8..].copy_from_slice(&mark.to_ne_bytes());
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let classifier = program::<SchedClassifier>(&mut self.ebpf, name).unwrap();
        let ran = classifier.test_run(options).expect("the program runs");
        out.truncate(ran.data_size_out as usize);
        (ran.return_value as i32, out)
    }

    /// Sends a frame. Returns the rewritten one; `None`: it passed unchanged.
    pub(crate) fn run(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
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

    /// Receives the datagram of a rule.
    pub(crate) fn get(&mut self, datagram: &Datagram, key: &Key) {
        assert!(self.receive(&udp(&datagram.server, PORT, &encode(datagram, key))));
    }

    /// Forgets all connections.
    pub(crate) fn forget(&mut self) {
        self.rules.sweep(Duration::ZERO, Instant::now()).unwrap();
    }
}

/// Returns the offset of the TCP header.
pub(crate) fn tcp_at(frame: &[u8]) -> usize {
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
pub(crate) enum Options {
    None,
    Timestamps(Timestamps),
    /// As many NOPs as timestamps have bytes.
    Nops,
}

/// Returns the frame of a segment that a service sends.
fn frame(flow: FlowKey, segment: &Segment, options: Options) -> Vec<u8> {
    let payload = vec![0x5a; segment.payload_bytes as usize];
    frame_of(flow, segment, options, &payload)
}

/// As [`frame`], with a payload.
pub(crate) fn frame_of(
    flow: FlowKey,
    segment: &Segment,
    options: Options,
    payload: &[u8],
) -> Vec<u8> {
    let timestamps = match options {
        Options::None => None,
        Options::Timestamps(Timestamps { value, echo }) => Some((value, echo)),
        Options::Nops => Some((0, 0)),
    };
    let written = Written {
        flow,
        direction: Direction::ToClient,
        seq: segment.seq,
        ack: segment.ack,
        flags: segment.flags,
        window: segment.window,
        options: TcpOptions { timestamps, ..TcpOptions::default() },
        payload,
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

pub(crate) fn rule(random: &mut Random) -> Rule {
    let first = SeqNumber(random.next() as u32);
    Rule {
        first,
        end: (random.below(2u32) == 0).then(|| first + random.below(60_000u32)),
        request_end: SeqNumber(random.next() as u32),
        delta: random.next() as u32,
        ack: SeqNumber(random.next() as u32),
        window: random.next() as u16,
        clock: (random.below(2u32) == 0).then(|| (random.next() as u32, random.next() as u32)),
        awaits_head: false,
    }
}

#[test]
fn the_program_translates_as_the_rule_says() {
    let Some(mut host) = Host::with_key() else { return };
    let (mut counter, mut direct, mut others) = (0, 0, 0);
    cases(4000, |random| {
        let (server_flow, client_flow) = random.pick(&flows());
        let rule = rule(random);
        counter += 1;
        host.get(
            &Datagram { counter, server: server_flow, client: client_flow, rule, grant: None },
            &KEY,
        );
        let timestamps = (random.below(3u32) > 0)
            .then(|| Timestamps { value: random.next() as u32, echo: random.next() as u32 });
        let segment = |random: &mut Random| Segment {
            seq: near(random, rule.first),
            ack: near(random, rule.request_end),
            flags: match random.below(8u32) {
                // A SYN would clear the rule.
                0 => TcpFlags(random.next() as u8 & !TcpFlags::SYN.0),
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
        host.forget();
    });
    assert!(direct > 100 && others > 100, "{direct} {others}");
}

/// A rule, and the frame of a segment of it.
fn rule_and_frame(server: FlowKey) -> (Rule, Vec<u8>) {
    let rule = Rule {
        first: SeqNumber(1),
        end: None,
        request_end: SeqNumber(9),
        delta: 7,
        ack: SeqNumber(5),
        window: 100,
        clock: None,
        awaits_head: false,
    };
    (rule, frame(server, &segment(TcpFlags::ACK, 1, 100), Options::None))
}

/// A segment that acknowledges the request.
fn segment(flags: TcpFlags, seq: u32, payload_bytes: u32) -> Segment {
    Segment { seq: SeqNumber(seq), ack: SeqNumber(9), flags, payload_bytes, ..Segment::default() }
}

#[test]
fn without_a_rule_a_segment_goes_to_the_balancer() {
    let Some(mut host) = Host::with_key() else { return };
    let mut sent = SentDirectly::default();
    for (counter, (server, client)) in (1..).zip(flows()) {
        let (rule, frame) = rule_and_frame(server);
        assert_eq!(host.run(&frame), None, "an unknown connection");
        assert_eq!(host.rules.flows().unwrap(), 0);
        host.get(&Datagram { counter, server, client, rule, grant: None }, &KEY);
        assert_eq!(host.rules.flows().unwrap(), 1);
        assert!(host.run(&frame).is_some());
        sent = SentDirectly { segments: sent.segments + 1, bytes: sent.bytes + 100 };
        assert_eq!(host.rules.sent_directly().unwrap(), sent);
        host.forget();
        assert_eq!(host.run(&frame), None, "the connection is forgotten");
        assert_eq!(host.rules.flows().unwrap(), 0);
        assert_eq!(host.rules.sent_directly().unwrap(), sent, "a total stays");
    }
}

#[test]
fn a_syn_ends_the_rule_of_an_earlier_connection() {
    let Some(mut host) = Host::with_key() else { return };
    let mut counter = 0;
    for (server, client) in flows() {
        let (rule, response) = rule_and_frame(server);
        let probe = frame(server, &segment(TcpFlags::ACK, 0, 0), Options::None);
        for flags in [TcpFlags::SYN, TcpFlags::SYN | TcpFlags::ACK] {
            counter += 1;
            let datagram = Datagram { counter, server, client, rule, grant: None };
            host.get(&datagram, &KEY);
            assert!(host.run(&response).is_some());
            assert!(host.run(&probe).is_some(), "a probe is behind a byte that was sent");
            assert_eq!(host.run(&frame(server, &segment(flags, 0, 0), Options::None)), None);
            assert_eq!(host.run(&response), None, "no rule of the new connection");
            let old = host.rules.counts().unwrap().old;
            host.get(&datagram, &KEY);
            assert_eq!(host.rules.counts().unwrap().old, old + 1, "the number stays");
            assert_eq!(host.run(&response), None);
            // The response of above was noted as sent. The SYN of the next connection ends that, too.
            assert_eq!(host.run(&frame(server, &segment(flags, 0, 0), Options::None)), None);
            counter += 1;
            host.get(&Datagram { counter, ..datagram }, &KEY);
            assert_eq!(host.run(&probe), None, "no byte was sent yet");
            assert!(host.run(&response).is_some());
        }
        assert_eq!(host.rules.flows().unwrap(), 1);
        host.forget();
    }
}

#[test]
fn a_full_table_refuses_other_connections() {
    let Some(mut host) = Host::with_key() else { return };
    let client = flows()[0].1;
    let (rule, _) = rule_and_frame(flows()[0].0);
    let datagram = |port: u32, counter: u64| {
        let server = flow(&format!("10.0.0.2:{}", port + 1), "10.0.0.3:80");
        Datagram { counter, server, client, rule, grant: None }
    };
    for port in 0..FLOWS_MAX {
        host.get(&datagram(port, 1 + u64::from(port)), &KEY);
    }
    let mut due = DirectCounts { taken: u64::from(FLOWS_MAX), ..DirectCounts::default() };
    assert_eq!(host.rules.counts().unwrap(), due);
    host.get(&datagram(FLOWS_MAX, 100), &KEY);
    due.full += 1;
    host.get(&datagram(0, 101), &KEY);
    due.taken += 1;
    assert_eq!(host.rules.counts().unwrap(), due, "a known connection has its place");
    assert_eq!(host.rules.flows().unwrap(), u64::from(FLOWS_MAX));
    host.forget();
    host.get(&datagram(FLOWS_MAX, 102), &KEY);
    due.taken += 1;
    assert_eq!(host.rules.counts().unwrap(), due, "there is a place again");
    assert_eq!(host.rules.flows().unwrap(), 1);
}

#[test]
fn an_idle_connection_is_removed_and_its_datagrams_stay_old() {
    let Some(mut host) = Host::with_key() else { return };
    let idle = Duration::from_secs(600);
    let start = Instant::now();
    let ([(server, client), (other, _)], other_key) = (flows(), Key { number: 6, ..KEY });
    host.rules.set_key(&other_key).unwrap();
    let (rule, response) = rule_and_frame(server);
    let datagram = Datagram { counter: 20, server, client, rule, grant: None };
    host.get(&datagram, &KEY);
    host.get(
        &Datagram { counter: 19, server: other, client: flows()[1].1, rule, grant: None },
        &KEY,
    );
    let mut due = DirectCounts { taken: 2, ..DirectCounts::default() };
    // A sweep notices the entries, a segment of one, a rule of it, and that nothing has changed.
    let sweep = |host: &mut Host, idles: f64, flows: u64| {
        host.rules.sweep(idle, start + idle.mul_f64(idles)).unwrap();
        assert_eq!(host.rules.flows().unwrap(), flows, "after {idles}");
    };
    sweep(&mut host, 0.0, 2);
    sweep(&mut host, 0.9, 2);
    assert!(host.run(&response).is_some());
    sweep(&mut host, 1.0, 1);
    let datagram = Datagram { counter: 21, ..datagram };
    host.get(&datagram, &KEY);
    due.taken += 1;
    sweep(&mut host, 1.9, 1);
    sweep(&mut host, 2.8, 1);
    sweep(&mut host, 2.9, 0);
    assert_eq!(host.rules.counts().unwrap(), due);

    for counter in [19, 21] {
        host.get(&Datagram { counter, ..datagram }, &KEY);
        host.get(&Datagram { counter, server: other, ..datagram }, &KEY);
    }
    due.old += 4;
    assert_eq!(host.rules.counts().unwrap(), due, "all datagrams of the key up to 21 are old");
    assert_eq!(host.rules.flows().unwrap(), 0);
    // Another secret does not lower the floor.
    host.rules.set_key(&Key { secret: [1; 16], ..KEY }).unwrap();
    host.get(&datagram, &Key { secret: [1; 16], ..KEY });
    due.old += 1;
    host.get(&datagram, &other_key);
    due.taken += 1;
    assert_eq!(host.rules.counts().unwrap(), due, "another balancer has numbers of its own");
    host.forget();
    host.get(&Datagram { counter: 22, ..datagram }, &Key { secret: [1; 16], ..KEY });
    due.taken += 1;
    assert_eq!(host.rules.counts().unwrap(), due);
    assert!(host.run(&response).is_some());
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
fn a_rule_with_a_window_goes_on_as_an_acknowledgement() {
    let Some(mut host) = Host::with_key() else { return };
    let mut counter = 0;
    cases(500, |random| {
        let (server, client) = random.pick(&flows());
        let rule = rule(random);
        counter += 1;
        let timestamps = (random.below(2u32) == 0)
            .then(|| Timestamps { value: random.next() as u32, echo: random.next() as u32 });
        let grant = Grant {
            ack: SeqNumber(random.next() as u32),
            window: random.next() as u16,
            timestamps,
        };
        let datagram = Datagram { counter, server, client, rule, grant: Some(grant) };
        let datagram = udp(&server, PORT, &encode(&datagram, &KEY));
        let due = Segment {
            seq: rule.request_end,
            ack: grant.ack,
            flags: TcpFlags::ACK,
            window: grant.window,
            ..Segment::default()
        };
        let options = timestamps.map_or(Options::None, Options::Timestamps);
        let due = frame(FlowKey::new(server.service, server.client), &due, options);
        assert_eq!(host.verdict(INGRESS, &datagram), (TC_NEXT, due));
        assert!(host.receive(&datagram), "a replayed one acknowledges nothing");
    });
    assert_eq!(host.rules.counts().unwrap().taken, counter);
}

#[test]
fn a_datagram_sets_the_rule_that_it_carries() {
    let Some(mut host) = Host::with_key() else { return };
    let mut taken = 0;
    cases(500, |random| {
        let (server, client) = random.pick(&flows());
        let rule = rule(random);
        taken += 1;
        host.get(&Datagram { counter: taken, server, client, rule, grant: None }, &KEY);
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
    });
    assert_eq!(host.rules.counts().unwrap(), DirectCounts { taken, ..DirectCounts::default() });
}

#[test]
fn forged_and_old_datagrams_change_nothing() {
    let Some(mut host) = Host::open() else { return };
    let (server, client) = flows()[0];
    let rule = Rule { end: None, clock: None, ..rule(&mut Random::new(1)) };
    let other = Rule { delta: rule.delta + 1, ..rule };
    let datagram = Datagram { counter: 10, server, client, rule, grant: None };
    let segment = Segment {
        seq: rule.first,
        ack: rule.request_end,
        flags: TcpFlags::ACK,
        payload_bytes: 1,
        ..Segment::default()
    };
    let segment = frame(server, &segment, Options::None);
    let mut due = DirectCounts::default();

    host.get(&datagram, &KEY);
    due.forged += 1;
    assert_eq!(host.rules.counts().unwrap(), due, "no key yet");
    host.rules.set_key(&KEY).unwrap();
    host.rules.raise_floor(KEY.number, 9).unwrap();
    // A bit of the content, of the tag, another secret, a number out of range.
    for bit in [800, 128 * 8 + 3] {
        let mut bytes = encode(&datagram, &KEY);
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(host.receive(&udp(&server, PORT, &bytes)));
    }
    host.get(&datagram, &Key { secret: [8; 16], ..KEY });
    host.get(&datagram, &Key { number: u32::MAX, ..KEY });
    due.forged += 4;
    host.get(&Datagram { counter: 9, ..datagram }, &KEY);
    due.old += 1;
    assert_eq!(host.rules.counts().unwrap(), due);
    assert_eq!(host.run(&segment), None, "no rule was taken");
    assert_eq!(host.rules.flows().unwrap(), 0, "no entry was made");

    host.get(&datagram, &KEY);
    due.taken += 1;
    let first = host.run(&segment);
    assert!(first.is_some());
    // The key of another balancer.
    let foreign = Key { number: 6, secret: [7; 16] };
    host.rules.set_key(&foreign).unwrap();
    host.get(&Datagram { counter: 11, rule: other, ..datagram }, &foreign);
    due.forged += 1;
    assert_eq!(host.run(&segment), first);
    // A replayed number: the rule stays.
    host.get(&Datagram { rule: other, ..datagram }, &KEY);
    due.old += 1;
    assert_eq!(host.run(&segment), first);
    host.get(&Datagram { counter: 11, rule: other, ..datagram }, &KEY);
    due.taken += 1;
    let second = host.run(&segment);
    assert!(second.is_some() && second != first);
    host.rules.remove_key(KEY.number).unwrap();
    host.get(&Datagram { counter: 12, ..datagram }, &KEY);
    due.forged += 1;
    assert_eq!(host.rules.counts().unwrap(), due);

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
