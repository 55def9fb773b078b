//! Tests of the programs on single frames, including hostile ones.

use unlade_metrics::Event;
use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions, checksum, classify};
use unlade_net::{FlowKey, SeqNumber};
use unlade_testkit::{Random, cases};

use crate::bench::{Bench, Entry, Fate, set_state};
use crate::flow_entry::{FlowEntry, FlowState, Mac};
use crate::tracking::{SegmentFields, TrackedState};

const CLIENT: Mac = [2, 0, 0, 0, 0, 1];
const BALANCER: Mac = [2, 0, 0, 0, 0, 2];
const SERVER: Mac = [2, 0, 0, 0, 0, 3];
/// `HOPS_MAX` of bpf/rewrite.h.
const HOPS_MAX: usize = 16;
const STATES: [FlowState; 5] =
    [FlowState::Local, FlowState::Hold, FlowState::Redirect, FlowState::Linger, FlowState::Offered];
const ETHERNET_BYTES: usize = 14;

fn flows() -> [FlowKey; 2] {
    let flow = |client: &str, service: &str| {
        FlowKey::new(client.parse().unwrap(), service.parse().unwrap())
    };
    [
        flow("192.0.2.7:40000", "198.51.100.1:443"),
        flow("[2001:db8::7]:40000", "[2001:db8:1::1]:443"),
    ]
}

fn tracked() -> TrackedState {
    TrackedState {
        last_ack: SeqNumber(u32::MAX - 10_000),
        last_seq: SeqNumber(u32::MAX - 500),
        last_window: 500,
        window_max_bytes: 64_000,
        receive_window_bytes: 65_535,
        receive_max_bytes: 65_535 << 7,
        shift: 7,
    }
}

/// Returns a segment that updates nothing.
fn nothing_new() -> SegmentFields {
    let known = tracked();
    SegmentFields {
        seq: known.last_seq,
        ack: known.last_ack,
        payload_bytes: 0,
        window: known.last_window,
        flags: TcpFlags::ACK,
    }
}

fn frame(flow: FlowKey, fields: &SegmentFields, payload: &[u8]) -> Vec<u8> {
    let segment = Segment {
        flow,
        direction: Direction::ToService,
        seq: fields.seq,
        ack: fields.ack,
        flags: fields.flags,
        window: fields.window,
        options: TcpOptions::default(),
        payload: &payload[..fields.payload_bytes as usize],
    };
    segment.ethernet_frame(CLIENT, BALANCER).unwrap()
}

/// Inserts `words` words of padding: IPv4 options of four bytes, or IPv6 extension headers of
/// eight.
fn lengthen(frame: &[u8], words: usize) -> Vec<u8> {
    let mut out = frame.to_vec();
    if words == 0 {
        return out;
    }
    if frame[12] == 8 {
        out[14] = 0x45 + words as u8;
        let total = u16::from_be_bytes([out[16], out[17]]) + 4 * words as u16;
        out[16..18].copy_from_slice(&total.to_be_bytes());
        out.splice(34..34, vec![1; 4 * words]);
        write_ipv4_checksum(&mut out);
    } else {
        const DESTINATION_OPTIONS: u8 = 60;
        let total = u16::from_be_bytes([out[18], out[19]]) + 8 * words as u16;
        out[18..20].copy_from_slice(&total.to_be_bytes());
        out[20] = DESTINATION_OPTIONS;
        for word in 0..words {
            let next = if word == 0 { 6 } else { DESTINATION_OPTIONS };
            out.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
        }
    }
    out
}

fn write_ipv4_checksum(frame: &mut [u8]) {
    let header = usize::from(frame[14] & 0xf) * 4;
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..14 + header]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn hops(frame: &[u8]) -> u8 {
    if frame[12] == 8 { frame[22] } else { frame[21] }
}

fn set_hops(frame: &mut [u8], hops: u8) {
    if frame[12] == 8 {
        frame[22] = hops;
        write_ipv4_checksum(frame);
    } else {
        frame[21] = hops;
    }
}

fn known(flow_entry: &FlowEntry) -> TrackedState {
    flow_entry.counters().tracked.expect("something is known")
}

/// Creates a host with one flow, which is redirected to the server.
fn host(flow: &FlowKey) -> Option<(Bench, FlowEntry)> {
    let bench = Bench::open(BALANCER)?;
    let flow_entry = bench.acquire(flow);
    flow_entry.track(&tracked(), tracked().last_ack);
    flow_entry.redirect(SERVER);
    Some((bench, flow_entry))
}

/// Returns a number that is often near `center`, or near the distance `edge` from it.
fn near(random: &mut Random, center: SeqNumber, edge: u32) -> SeqNumber {
    let small = random.below(4u32);
    match random.below(6u32) {
        0 => center + small,
        1 => center - small,
        2 => center + edge + small - 2,
        3 => center - edge - small + 2,
        4 => center + random.below(edge),
        _ => SeqNumber(random.next() as u32),
    }
}

fn fields(random: &mut Random, known: &TrackedState) -> SegmentFields {
    let flags = match random.below(8u32) {
        0 => TcpFlags::SYN | TcpFlags::ACK,
        1 => TcpFlags::RST | TcpFlags::ACK,
        2 => TcpFlags::RST,
        3 => TcpFlags::PSH,
        4 => TcpFlags::FIN | TcpFlags::ACK,
        _ => TcpFlags::ACK,
    };
    SegmentFields {
        seq: near(random, known.last_seq, known.receive_window_bytes),
        ack: near(random, known.last_ack, known.window_max_bytes),
        payload_bytes: random.pick(&[0, 0, 1, 3, 511, 512, 513, 1460, 3000]),
        window: random.pick(&[known.last_window, 0, 499, 65_535]),
        flags,
    }
}

#[test]
fn the_programs_believe_what_the_rule_says() {
    let payload = vec![0x5a; 3000];
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        cases(3000, |random| {
            let before = tracked();
            flow_entry.track(&before, before.last_ack);
            // Two segments in sequence: the second meets the state that the first one updated.
            let mut expected = before;
            for _ in 0..2 {
                let fields = fields(random, &expected);
                let update = expected.evaluate(&fields);
                let entry = random.pick(&[Entry::Link, Entry::Xdp, Entry::Hold]);
                let mut frame = lengthen(&frame(flow, &fields, &payload), random.below(5usize));
                let broken = random.percent(25);
                if broken {
                    // Only in the last four bytes of the TCP header, outside the fields of the
                    // rule.
                    let at = frame.len() - fields.payload_bytes as usize - 4 + random.below(4usize);
                    frame[at] ^= 1 << random.below(8u32);
                }
                let fate = bench.run(entry, &mut frame);
                assert_eq!(
                    bench.counts().corrupt > 0,
                    broken && update.moves() && { !(entry == Entry::Xdp && update.old) }
                );
                // XDP passes frames that need a rewrite to the classifier.
                let passed = entry == Entry::Xdp && update.old;
                assert_eq!(fate, if passed { Fate::Passed } else { Fate::Redirected });
                if !broken && !passed {
                    expected = expected.apply(&fields, update);
                }
                assert_eq!(
                    known(&flow_entry),
                    expected,
                    "{fields:?} {update:?} {entry:?} {broken}"
                );
                if fate == Fate::Redirected && !broken && update.old {
                    let sent = classify(&frame).unwrap();
                    assert_eq!((sent.ack, sent.window), (expected.last_ack, expected.last_window));
                }
            }
        });
    }
}

#[test]
fn two_blind_acknowledgements_half_the_space_apart_move_nothing() {
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        cases(500, |random| {
            let first = random.next() as u32;
            for entry in [Entry::Link, Entry::Xdp, Entry::Hold] {
                for ack in [first, first ^ 1 << 31] {
                    let seq = SeqNumber(random.next() as u32);
                    let fields =
                        SegmentFields { seq, ack: SeqNumber(ack), window: 9, ..nothing_new() };
                    // One in 2^15 guesses the sequence number; then the acknowledgement number must
                    // be right, too.
                    if tracked().evaluate(&fields).moves() {
                        continue;
                    }
                    let mut frame = frame(flow, &fields, &[]);
                    let whole = frame.clone();
                    assert_eq!(bench.run(entry, &mut frame), Fate::Redirected);
                    assert_eq!(known(&flow_entry), tracked());
                    // The program does not make the segment acceptable either.
                    assert_eq!(frame[34..], {
                        let mut expected = whole;
                        let at = if flow.is_ipv6() { 21 } else { 22 };
                        expected[at] = frame[at];
                        expected[24..26].copy_from_slice(&frame[24..26]);
                        expected[34..].to_vec()
                    });
                }
            }
            // The client's next segment still reaches the owner unchanged.
            let fields = SegmentFields { ack: tracked().last_ack + 1, ..nothing_new() };
            let mut frame = frame(flow, &fields, &[]);
            bench.run(Entry::Link, &mut frame);
            assert_eq!(classify(&frame).unwrap().ack, fields.ack);
            flow_entry.track(&tracked(), tracked().last_ack);
        });
    }
}

#[test]
fn a_corrupt_segment_moves_nothing() {
    let payload: Vec<u8> = (0..3000u32).map(|at| (at * 7) as u8).collect();
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        let mut corrupt = 0;
        for payload_bytes in [0, 1, 2, 3, 4, 511, 512, 513, 1024, 1460, 3000] {
            let fields =
                SegmentFields { payload_bytes, ack: tracked().last_ack + 5, ..nothing_new() };
            for entry in [Entry::Link, Entry::Xdp, Entry::Hold] {
                let whole = frame(flow, &fields, &payload);
                let tcp = whole.len() - payload_bytes as usize - 20;
                for at in [tcp + 16, tcp + 19, (tcp + 20).min(whole.len() - 1), whole.len() - 1] {
                    let mut broken = whole.clone();
                    broken[at] ^= 0x10;
                    bench.run(entry, &mut broken);
                    assert_eq!(
                        known(&flow_entry),
                        tracked(),
                        "{payload_bytes} bytes, {entry:?}, {at}"
                    );
                    assert_eq!(bench.counts().corrupt, 1);
                    corrupt += 1;
                    assert_eq!(bench.meter.value(Event::SegmentCorrupt), corrupt);
                }
                bench.run(entry, &mut whole.clone());
                assert_eq!(
                    known(&flow_entry).last_ack,
                    fields.ack,
                    "{payload_bytes} bytes, {entry:?}"
                );
                flow_entry.track(&tracked(), tracked().last_ack);
            }
        }
        // A partial checksum of a virtual device is the sum of the pseudo header.
        let mut pending =
            frame(flow, &SegmentFields { ack: tracked().last_ack + 5, ..nothing_new() }, &[]);
        let tcp = pending.len() - 20;
        pending[tcp + 16..tcp + 18].fill(0);
        let rest = !unlade_net::packet::transport_checksum(
            flow.client.ip(),
            flow.service.ip(),
            &pending[tcp..],
        );
        let body = !checksum(&pending[tcp..]);
        let pseudo = rest.wrapping_sub(body) - u16::from(rest < body);
        pending[tcp + 16..tcp + 18].copy_from_slice(&pseudo.to_be_bytes());
        bench.run(Entry::Link, &mut pending);
        assert_eq!(known(&flow_entry).last_ack, tracked().last_ack + 5);
    }
}

#[test]
fn before_a_snapshot_is_known_nothing_is_learnt() {
    for flow in flows() {
        let Some(mut bench) = Bench::open(BALANCER) else { return };
        let flow_entry = bench.acquire(&flow);
        flow_entry.redirect(SERVER);
        for entry in [Entry::Link, Entry::Xdp, Entry::Hold] {
            assert_eq!(bench.run(entry, &mut frame(flow, &nothing_new(), &[])), Fate::Redirected);
            assert_eq!(flow_entry.counters().tracked, None);
        }
    }
}

#[test]
fn what_came_during_a_snapshot_stays_known() {
    let Some((_bench, flow_entry)) = host(&flows()[0]) else { return };
    let sent = tracked().last_ack + 1000;
    let newer = TrackedState { last_ack: tracked().last_ack + 400, ..tracked() };
    for (was, becomes) in [(400, 400), (1000, 1000), (1001, 0), (u32::MAX, 0), (0, 0)] {
        flow_entry
            .track(&TrackedState { last_ack: tracked().last_ack + was, ..newer }, SeqNumber(0));
        flow_entry.track(
            &TrackedState { last_ack: tracked().last_ack + was, ..newer },
            tracked().last_ack + was,
        );
        flow_entry.track(&tracked(), sent);
        assert_eq!(known(&flow_entry).last_ack, tracked().last_ack + becomes);
    }
}

/// Returns frames of every kind for one flow.
fn kinds(flow: FlowKey) -> Vec<Vec<u8>> {
    let data = SegmentFields { payload_bytes: 64, ..nothing_new() };
    let whole = frame(flow, &data, &[1; 64]);
    let reset = SegmentFields { flags: TcpFlags::RST, ..nothing_new() };
    let mut kinds = vec![lengthen(&whole, 2), frame(flow, &reset, &[])];
    kinds.extend(fragments(&whole, 7));
    kinds.push(whole);
    kinds.push(too_big(flow, tracked().last_ack, 1000));
    kinds
}

/// Splits the frame's packet into two fragments.
fn fragments(frame: &[u8], id: u16) -> [Vec<u8>; 2] {
    const FIRST_BYTES: usize = 32;
    let ipv6 = frame[12] != 8;
    let at = if ipv6 { 54 } else { 34 };
    let split = |range: std::ops::Range<usize>| {
        let (offset, more) = ((range.start - at) as u16, range.end < frame.len());
        let mut out = frame[..at].to_vec();
        let payload = &frame[range];
        if ipv6 {
            out[18..20].copy_from_slice(&(payload.len() as u16 + 8).to_be_bytes());
            out[20] = 44;
            let [id_high, id_low] = id.to_be_bytes();
            let [high, low] = (offset | u16::from(more)).to_be_bytes();
            out.extend([6, 0, high, low, 0xab, 0xcd, id_high, id_low]);
        } else {
            out[16..18].copy_from_slice(&(payload.len() as u16 + 20).to_be_bytes());
            out[18..20].copy_from_slice(&id.to_be_bytes());
            let field = (offset / 8) | if more { 0x2000 } else { 0 };
            out[20..22].copy_from_slice(&field.to_be_bytes());
            write_ipv4_checksum(&mut out);
        }
        out.extend_from_slice(payload);
        out
    };
    [split(at..at + FIRST_BYTES), split(at + FIRST_BYTES..frame.len())]
}

/// Returns an ICMP error of a router: a segment of the service with this sequence number was too
/// big.
fn too_big(flow: FlowKey, seq: SeqNumber, mtu: u16) -> Vec<u8> {
    let sent = Segment {
        flow,
        direction: Direction::ToClient,
        seq,
        ack: tracked().last_seq,
        flags: TcpFlags::ACK,
        window: 100,
        options: TcpOptions::default(),
        payload: &[7; 100],
    };
    let inner = sent.ip_packet().unwrap();
    let router = flow.client;
    let mut out = frame(FlowKey::new(router, flow.service), &nothing_new(), &[]);
    let ip_bytes = if flow.is_ipv6() { 40 } else { 20 };
    out.truncate(ETHERNET_BYTES + ip_bytes);
    let mut icmp = if flow.is_ipv6() { vec![2, 0] } else { vec![3, 4] };
    icmp.extend([0, 0, 0, 0]);
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(&inner[..ip_bytes + 8]);
    let length = icmp.len() as u16;
    if flow.is_ipv6() {
        out[18..20].copy_from_slice(&length.to_be_bytes());
        out[20] = 58;
    } else {
        out[16..18].copy_from_slice(&(length + 20).to_be_bytes());
        out[23] = 1;
        write_ipv4_checksum(&mut out);
    }
    out.extend(icmp);
    out
}

#[test]
fn no_tables_make_a_packet_run_in_circles() {
    for flow in flows() {
        let (Some(mut here), Some(mut there)) = (Bench::open(BALANCER), Bench::open(SERVER)) else {
            return;
        };
        let slots = [here.acquire(&flow), there.acquire(&flow)];
        for (first, second) in STATES.iter().flat_map(|a| STATES.iter().map(move |b| (*a, *b))) {
            for (kind, limit) in (0..kinds(flow).len()).flat_map(|kind| [(kind, 255), (kind, 3)]) {
                for flow_entry in &slots {
                    flow_entry.track(&tracked(), tracked().last_ack);
                }
                set_state(&slots[0], first, SERVER);
                set_state(&slots[1], second, BALANCER);
                let frames = kinds(flow);
                let mut frame = frames[kind].clone();
                set_hops(&mut frame, limit);
                let (mut redirected, mut rounds) = (0, 0);
                let mut entry = Entry::Link;
                // Held frames are written back each time, as user space does for a flow with an
                // owner.
                for round in 0..20 * HOPS_MAX {
                    rounds = round;
                    let bench = if frame[..6] == BALANCER { &mut here } else { &mut there };
                    match bench.run(entry, &mut frame) {
                        Fate::Passed | Fate::Dropped => break,
                        Fate::Redirected => (redirected, entry) = (redirected + 1, Entry::Link),
                        Fate::Held if entry == Entry::Hold => break,
                        Fate::Held => entry = Entry::Hold,
                    }
                }
                let what = format!("{first:?} {second:?} frame {kind}: {redirected} times");
                assert!(redirected <= HOPS_MAX && rounds < 20 * HOPS_MAX - 1, "{what}");
                for flow_entry in &slots {
                    flow_entry.local();
                    flow_entry.count_replayed(u32::MAX);
                }
            }
        }
        let counts = here.counts();
        assert!(counts.hops_exceeded + there.counts().hops_exceeded > 0, "{counts:?}");
    }
}

/// The server has returned a connection that the balancer still assigns to the server.
#[test]
fn a_lingering_flow_that_its_owner_sends_back_is_the_stacks() {
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        flow_entry.linger();
        let mut frame = frame(flow, &nothing_new(), &[]);
        assert_eq!(bench.run(Entry::Link, &mut frame), Fate::Redirected);
        assert_eq!(usize::from(hops(&frame)), HOPS_MAX);
        frame[..6].copy_from_slice(&BALANCER);
        frame[6..12].copy_from_slice(&SERVER);
        assert_eq!(bench.run(Entry::Link, &mut frame), Fate::Passed);
        // A corrupt SYN does not open a new connection; an intact one does.
        let syn = SegmentFields { flags: TcpFlags::SYN, ..nothing_new() };
        let mut broken = self::frame(flow, &syn, &[]);
        let end = broken.len() - 1;
        broken[end] ^= 1;
        bench.run(Entry::Link, &mut broken);
        assert_eq!(flow_entry.state(), FlowState::Linger);
        assert_eq!(bench.run(Entry::Link, &mut self::frame(flow, &syn, &[])), Fate::Passed);
        assert_eq!((flow_entry.state(), flow_entry.counters().tracked), (FlowState::Local, None));
    }
}

/// The owner refuses a connection of which it has no socket, until it has told of the last one's end.
#[test]
fn a_new_connection_for_another_owner_is_delayed_once() {
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        for (round, state) in
            [FlowState::Redirect, FlowState::Offered, FlowState::Hold].into_iter().enumerate()
        {
            set_state(&flow_entry, state, SERVER);
            let later = if state == FlowState::Redirect { Fate::Redirected } else { Fate::Held };
            for seq in [SeqNumber(round as u32), SeqNumber(7 + round as u32)] {
                let syn = SegmentFields { seq, flags: TcpFlags::SYN, ..nothing_new() };
                let mut run = |entry| bench.run(entry, &mut frame(flow, &syn, &[]));
                assert_eq!(run(Entry::Xdp), Fate::Passed, "tc decides");
                assert_eq!(run(Entry::Link), Fate::Dropped, "{state:?}");
                assert_eq!(run(Entry::Xdp), Fate::Passed);
                assert_eq!(run(Entry::Link), later, "{state:?}, sent again");
            }
            assert_eq!(bench.counts().syns_delayed, 2);
            flow_entry.local();
            flow_entry.count_replayed(u32::MAX);
        }
        assert_eq!(bench.meter.value(Event::SynDelayed), 6);
    }
}

#[test]
fn a_redirected_packet_is_whole() {
    for flow in flows() {
        let Some((mut bench, _slot)) = host(&flow) else { return };
        for words in 0..=4 {
            for entry in [Entry::Link, Entry::Xdp, Entry::Hold] {
                let fields = SegmentFields { payload_bytes: 5, ..nothing_new() };
                let mut frame = lengthen(&frame(flow, &fields, &[9; 5]), words);
                set_hops(&mut frame, 64);
                assert_eq!(bench.run(entry, &mut frame), Fate::Redirected, "{words} {entry:?}");
                assert_eq!((&frame[..6], &frame[6..12]), (&SERVER[..], &BALANCER[..]));
                assert_eq!(usize::from(hops(&frame)), HOPS_MAX);
                let before = frame.clone();
                if !flow.is_ipv6() {
                    write_ipv4_checksum(&mut frame);
                }
                assert_eq!(before, frame, "the header's checksum");
                assert!(classify(&frame).is_some_and(|found| found.payload_bytes == 5));
            }
        }
    }
}

#[test]
fn an_error_about_a_segment_under_way_goes_to_the_owner() {
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        let (first, window) = (tracked().last_ack, tracked().window_max_bytes);
        let (mut sent, mut refused) = (0, 0);
        for (seq, fate) in [
            (first, Fate::Redirected),
            (first + window, Fate::Redirected),
            (first - 1, Fate::Dropped),
            (first + window + 1, Fate::Dropped),
            (first + (1 << 31), Fate::Dropped),
        ] {
            let mut frame = too_big(flow, seq, 1000);
            let whole = frame.clone();
            assert_eq!(bench.run(Entry::Link, &mut frame), fate, "{seq:?}");
            let counts = bench.counts();
            let redirected = fate == Fate::Redirected;
            assert_eq!(
                (counts.errors_redirected, counts.errors_refused),
                (u64::from(redirected), u64::from(!redirected))
            );
            sent += u64::from(redirected);
            refused += u64::from(!redirected);
            let value = |event| bench.meter.value(event);
            assert_eq!((value(Event::IcmpRedirected), value(Event::IcmpRefused)), (sent, refused));
            if redirected {
                assert_eq!((&frame[..6], &frame[34..]), (&SERVER[..], &whole[34..]));
            }
        }
        let all = STATES.map(|state| {
            flow_entry.track(&tracked(), tracked().last_ack);
            set_state(&flow_entry, state, SERVER);
            bench.run(Entry::Link, &mut too_big(flow, first, 1000))
        });
        use Fate::{Passed, Redirected};
        assert_eq!(all, [Passed, Passed, Redirected, Redirected, Passed]);
        // An echo, and an error for another connection, go to the stack.
        flow_entry.redirect(SERVER);
        let mut echo = too_big(flow, first, 1000);
        let at = if flow.is_ipv6() { 54 } else { 34 };
        echo[at] = if flow.is_ipv6() { 128 } else { 8 };
        assert_eq!(bench.run(Entry::Link, &mut echo), Fate::Passed);
        let other = FlowKey { client: (flow.client.ip(), 4).into(), ..flow };
        assert_eq!(bench.run(Entry::Link, &mut too_big(other, first, 1000)), Fate::Passed);
        assert_eq!(flow_entry.counters().tracked, Some(tracked()));
    }
}

#[test]
fn later_fragments_follow_the_first_and_are_never_held() {
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        let fields =
            SegmentFields { payload_bytes: 64, ack: tracked().last_ack + 9, ..nothing_new() };
        let whole = frame(flow, &fields, &[1; 64]);
        let mut id = 0;
        let mut run = |bench: &mut Bench, order: [usize; 2]| {
            id += 1;
            order.map(|which| {
                let mut fragment = fragments(&whole, id)[which].clone();
                (bench.run(Entry::Link, &mut fragment), bench.run(Entry::Xdp, &mut fragment)).0
            })
        };
        use Fate::{Dropped, Passed, Redirected};
        assert_eq!(run(&mut bench, [0, 1]), [Redirected, Redirected]);
        // A later fragment that overtakes the first goes to this host's stack, which sends no
        // answer.
        assert_eq!(run(&mut bench, [1, 0]), [Passed, Redirected]);
        for (state, fates) in [
            (FlowState::Local, [Passed, Passed]),
            (FlowState::Hold, [Dropped, Dropped]),
            (FlowState::Offered, [Dropped, Dropped]),
            (FlowState::Linger, [Redirected, Redirected]),
        ] {
            set_state(&flow_entry, state, SERVER);
            assert_eq!(run(&mut bench, [0, 1]), fates, "{state:?}");
        }
        assert_eq!(bench.counts().fragments_dropped, 4);
        assert_eq!(bench.meter.value(Event::FragmentDropped), 4);
        assert_eq!(flow_entry.waiting(), 0);
        // A fragment's checksum covers bytes of other fragments.
        assert_eq!(flow_entry.counters().tracked, Some(tracked()));
    }
}

#[test]
fn more_extension_headers_than_are_looked_behind_are_dropped() {
    let [_, flow] = flows();
    let Some((mut bench, _slot)) = host(&flow) else { return };
    let mut frame = lengthen(&frame(flow, &nothing_new(), &[]), 5);
    assert_eq!(bench.run(Entry::Xdp, &mut frame), Fate::Passed);
    assert_eq!(bench.run(Entry::Link, &mut frame), Fate::Dropped);
    assert_eq!(bench.counts().extensions_dropped, 1);
    assert_eq!(bench.meter.value(Event::ExtensionsExceeded), 1);
}

#[test]
fn any_bytes_are_taken() {
    let payload = [3; 200];
    for flow in flows() {
        let Some((mut bench, flow_entry)) = host(&flow) else { return };
        let frames = kinds(flow);
        cases(3000, |random| {
            let mut frame = match random.percent(10) {
                true => frame(flow, &nothing_new(), &payload),
                false => random.pick(&frames),
            };
            for _ in 0..random.below(4u32) {
                let at = 12 + random.below(frame.len() - 12);
                frame[at] = random.next() as u8;
            }
            // The kernel refuses shorter frames in a test run.
            let least = ETHERNET_BYTES + 40;
            frame.truncate(least + random.below(frame.len() - least + 1));
            let known = flow_entry.counters().tracked;
            let fields = classify(&frame).map(|found| SegmentFields {
                seq: found.seq,
                ack: found.ack,
                payload_bytes: found.payload_bytes as u32,
                window: found.window,
                flags: found.flags,
            });
            for entry in [Entry::Link, Entry::Xdp] {
                bench.run(entry, &mut frame.clone());
            }
            // Only a valid segment can have updated the state.
            if fields.is_none() {
                assert_eq!(flow_entry.counters().tracked, known);
            }
            flow_entry.track(&tracked(), tracked().last_ack);
        });
    }
}
