//! The translation in eBPF (bpf/splice.h), function by function, against `unlade-splice`.

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use unlade_net::packet::TcpFlags;
use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::head::Head;
use unlade_splice::raw::{
    RawClient, RawClock, RawRule, RawSegment, RawServer, RawSplice, RawStart, unfit,
};
use unlade_splice::{ClientFlow, FromServer, Rule, Segment, ServerFlow, Splice, Start, splice};
use unlade_testkit::{Random, cases};

use crate::direct_tests::{Options, frame_of, tcp_at};
use crate::head_tests::{CHECK_AT, pending};
use crate::load::program;

static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/splice_vector.bpf.o"));
const PROGRAM: &str = "splice_vector";
const ETHERNET_BYTES: usize = 14;
const TO_SOCKET: u32 = 1;
const TO_SERVER: u32 = 2;
const TO_CLIENT: u32 = 8;

/// `enum operation` of bpf/splice_vector.bpf.c.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum Operation {
    ClientReceive,
    SpliceReceiveFromClient,
    SendToClient,
    ServerForSocket,
    SpliceReceiveFromServer,
    SendToServer,
    OwedAck,
    Begin,
    SetLength,
    End,
    Room,
    Extend,
    GrantEarly,
    EndIfOver,
    ReceiveHead,
    SendToClientAlone,
    KeptAck,
    ReceiveHeader,
}

const OPERATIONS: [Operation; 18] = [
    Operation::ClientReceive,
    Operation::SpliceReceiveFromClient,
    Operation::SendToClient,
    Operation::ServerForSocket,
    Operation::SpliceReceiveFromServer,
    Operation::SendToServer,
    Operation::OwedAck,
    Operation::Begin,
    Operation::SetLength,
    Operation::End,
    Operation::Room,
    Operation::Extend,
    Operation::GrantEarly,
    Operation::EndIfOver,
    Operation::ReceiveHead,
    Operation::SendToClientAlone,
    Operation::KeptAck,
    Operation::ReceiveHeader,
];

/// `struct vector` of bpf/splice_vector.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    operation: u32,
    result: u32,
    now_ms: u64,
    client: RawClient,
    server: RawServer,
    splice: RawSplice,
    segment: RawSegment,
    ack: RawSegment,
    start: RawStart,
    rule: RawRule,
    arguments: [u32; 2],
    is_reusable: u32,
    /// `struct splice_fit`: bytes of the head, of the response, status.
    head: [u32; 3],
}

const _: () = assert!(size_of::<Vector>() == 16 + 80 + 88 + 64 + 72 + 72 + 48 + 48 + 24);

/// Returns the vector as the program has left it.
fn run(ebpf: &mut Ebpf, vector: &Vector) -> Vector {
    // SAFETY: `Vector` is repr(C) and has integers only; the assertion shows that no byte of it is
    // padding.
    let bytes: &[u8; size_of::<Vector>()] = unsafe { &*std::ptr::from_ref(vector).cast() };
    let mut frame = vec![0; ETHERNET_BYTES];
    frame.extend_from_slice(bytes);
    let mut out = vec![0; frame.len()];
    let options = TestRunOptions {
        data_in: Some(&frame),
        data_out: Some(&mut out),
        ..TestRunOptions::default()
    };
    let ran = program::<SchedClassifier>(ebpf, PROGRAM).unwrap().test_run(options).unwrap();
    assert_eq!(ran.return_value, 0);
    // SAFETY: `out` has the bytes of a `Vector` behind the header, every pattern of bits is one,
    // and the read needs no alignment.
    unsafe { out.as_ptr().add(ETHERNET_BYTES).cast::<Vector>().read_unaligned() }
}

/// Returns a number near `at`, often equal, and seldom far away.
fn near(random: &mut Random, at: u32) -> u32 {
    let distance = match random.below(8u32) {
        0 | 1 => 0,
        2 => random.below(4u32),
        3..=6 => random.below(90_000u32),
        _ => random.below(u32::MAX),
    };
    if random.below(2u32) == 0 { at.wrapping_add(distance) } else { at.wrapping_sub(distance) }
}

fn clock(random: &mut Random, now_ms: u64) -> RawClock {
    let value = now_ms as u32;
    RawClock {
        is_used: random.below(2u32),
        shift: random.below(3u32) * 8,
        echoed: near(random, value),
        peer: near(random, value),
        value: near(random, value),
        reserved: 0,
        at_ms: now_ms.saturating_sub(random.below(100u64)),
    }
}

fn segment(random: &mut Random, seq: u32, ack: u32, now_ms: u64) -> RawSegment {
    const FLAGS: [u32; 10] = [0x10, 0x10, 0x10, 0x18, 0x11, 0x14, 0x12, 0x04, 0x02, 0x00];
    let mut sack = [[0; 2]; 4];
    let count = if random.below(3u32) == 0 { random.below(5u32) } else { 0 };
    let seq = near(random, seq);
    let ack = near(random, ack);
    for block in sack.iter_mut().take(count as usize) {
        let start = near(random, ack);
        *block = [start, start.wrapping_add(random.below(9_000u32))];
    }
    let has_timestamps = random.below(2u32);
    RawSegment {
        seq,
        ack,
        flags: FLAGS[random.below(FLAGS.len())],
        window: random.below(0x1_0000u32) * random.below(2u32),
        payload_bytes: random.below(2u32) * random.below(9_000u32),
        has_timestamps,
        value: has_timestamps * near(random, now_ms as u32),
        echo: has_timestamps * near(random, now_ms as u32),
        sack_count: count,
        sack,
        is_copy: random.below(2u32),
    }
}

/// Returns a state and a segment whose numbers are near each other.
fn any(random: &mut Random) -> Vector {
    let now_ms = 1 << 33 | random.below(1u64 << 31);
    let at = 0u32.wrapping_sub(random.below(300_000u32));
    let there = random.below(u32::MAX);
    let theirs = near(random, there);
    let delta = at.wrapping_sub(there);
    let bypassed = random.below(2u32) * random.below(1u32 << 31);
    let client = RawClient {
        bypassed,
        sent_end: near(random, at),
        acked: near(random, at),
        socket_acked: near(random, at),
        window_bytes: random.below(200_000u32) * random.below(2u32),
        window_max_bytes: random.below(400_000u32),
        scale: random.below(15u32),
        receive_max_bytes: random.below(400_000u32),
        received: near(random, theirs),
        window: random.below(0x1_0000u32),
        is_reset: random.below(4u32) / 3,
        hold: random.below(3u32),
        clock: clock(random, now_ms),
    };
    let server = RawServer {
        bypassed: random.below(2u32) * random.below(1u32 << 31),
        passed_end: near(random, there),
        acked: near(random, there),
        granted: near(random, there),
        socket_edge: near(random, there),
        request_end: near(random, theirs),
        scale: random.below(15u32),
        peer_seen: random.below(2u32),
        peer_value: 0,
        limit_bytes: random.below(2u32) * 16_384,
        limit_end: near(random, there),
        told: near(random, there),
        peer_at_ms: 0,
        clock: clock(random, now_ms),
    };
    let seen = server.peer_seen;
    let has_end = random.below(3u32).min(1);
    let first = near(random, there);
    let splice = RawSplice {
        is_active: 1,
        first,
        end: has_end * near(random, there),
        has_end,
        delta,
        is_complete: random.below(2u32),
        owes_ack: random.below(2u32),
        awaits_head: random.below(2u32) * (1 - has_end),
        head_bytes: 0,
        clock_offset: near(random, 0),
        forwarded_bytes: random.below(u32::MAX),
        early_bytes: random.below(2u32) * random.below(90_000u32),
        rule_ack: near(random, theirs),
        has_fin: random.below(8u32) / 7,
        status: 0,
        is_sealed: random.below(2u32),
    };
    let has_length = random.below(4u32).min(1);
    let longest = random.below(2u32) << 30;
    let is_awaited = (1 - has_length) * random.below(2u32);
    Vector {
        now_ms,
        client,
        server: RawServer {
            peer_value: seen * near(random, now_ms as u32),
            peer_at_ms: u64::from(seen) * now_ms.saturating_sub(random.below(90u64)),
            ..server
        },
        splice,
        start: RawStart {
            next: near(random, there.wrapping_sub(server.bypassed)),
            socket_next: near(random, server.passed_end.wrapping_sub(server.bypassed)),
            written_end: near(random, client.sent_end.wrapping_sub(bypassed)),
            request_end: near(random, theirs),
            has_length,
            length_bytes: has_length * near(random, longest),
            segment_bytes: random.below(2u32) * random.below(90_000u32),
            awaits_head: is_awaited,
            expected_bytes: is_awaited * near(random, longest),
            received: near(random, client.received),
            is_judged_here: random.below(2u32),
            is_sealed: random.below(2u32),
        },
        ..Vector::default()
    }
}

fn start_of(raw: &RawStart) -> Start {
    Start {
        next: SeqNumber(raw.next),
        socket_next: SeqNumber(raw.socket_next),
        written_end: SeqNumber(raw.written_end),
        received: SeqNumber(raw.received),
        request_end: SeqNumber(raw.request_end),
        length_bytes: (raw.has_length != 0).then_some(raw.length_bytes),
        segment_bytes: raw.segment_bytes,
        expected_bytes: (raw.awaits_head != 0).then_some(raw.expected_bytes),
        is_judged_here: raw.is_judged_here != 0,
        is_sealed: raw.is_sealed != 0,
    }
}

/// Runs the operation with the functions of `unlade-splice`. Returns the expected vector, and the
/// segments that are compared: for `segment`, for `ack`.
fn model(operation: Operation, vector: &Vector) -> (Vector, Option<Segment>, Option<Segment>) {
    let mut out = *vector;
    let now_ms = vector.now_ms;
    let mut client = ClientFlow::from(vector.client);
    let mut server = ServerFlow::from(vector.server);
    let mut spliced = Option::<Splice>::from(vector.splice).expect("it is active");
    let mut is_active = true;
    let segment = Segment::from(vector.segment);
    let (mut shown, mut ack) = (None, None);
    match operation {
        Operation::ClientReceive => {
            let arrived = splice::receive_from_client(&mut client, &segment);
            out.result = TO_SOCKET * u32::from(arrived.socket.is_some());
            out.result |= TO_CLIENT * u32::from(arrived.client.is_some());
            shown = arrived.socket.or(arrived.client);
        }
        Operation::SpliceReceiveFromClient => {
            let arrived = spliced.receive_from_client(&mut client, &mut server, &segment, now_ms);
            (shown, ack) = (arrived.socket.or(arrived.client), arrived.server);
            out.result = TO_SOCKET * u32::from(arrived.socket.is_some());
            out.result |= TO_CLIENT * u32::from(arrived.client.is_some());
            out.result |= TO_SERVER * u32::from(ack.is_some());
        }
        Operation::SendToClient => {
            shown = spliced.send_to_client(&mut client, &segment, now_ms);
            out.result = shown.is_some().into();
        }
        Operation::SendToClientAlone => {
            shown = splice::send_to_client(&mut client, &segment, now_ms);
            out.result = shown.is_some().into();
        }
        Operation::KeptAck => {
            ack = client.kept_ack(now_ms);
            out.result = ack.is_some().into();
        }
        Operation::ServerForSocket => {
            shown = splice::receive_from_server(&mut server, &segment, now_ms);
            out.result = shown.is_some().into();
        }
        Operation::SpliceReceiveFromServer => {
            let came = spliced.receive_from_server(&client, &mut server, &segment, now_ms);
            (shown, out.result) = match came {
                FromServer::Dropped => (None, 0),
                FromServer::Socket(shown) => (Some(shown), TO_SOCKET),
                FromServer::Client(shown) => (Some(shown), TO_CLIENT),
                FromServer::Head { .. } => panic!("{came:?}"),
            };
        }
        Operation::SendToServer => {
            shown = Some(spliced.send_to_server(&client, &mut server, &segment, now_ms));
        }
        Operation::OwedAck => {
            ack = spliced.owed_ack(&client, &mut server, now_ms);
            out.result = ack.is_some().into();
        }
        Operation::Begin => {
            let start = start_of(&vector.start);
            if let Ok((begun, _)) = Splice::begin(&mut client, &mut server, start, now_ms) {
                spliced = begun;
            }
        }
        Operation::Extend => server.extend(SeqNumber(vector.arguments[1]), vector.arguments[0]),
        Operation::GrantEarly => {
            let bytes = vector.arguments[0];
            ack = Some(spliced.grant_early(&client, &mut server, bytes, now_ms));
        }
        Operation::EndIfOver => {
            is_active = spliced.end_if_over(&mut client, &mut server, now_ms).is_err();
            out.result = u32::from(!is_active);
        }
        Operation::ReceiveHead => {
            let [head_bytes, response_bytes, status] = vector.head;
            let body_bytes = response_bytes - head_bytes;
            let head = Head { status: status as u16, head_bytes, body_bytes };
            let taken = spliced.receive_head(&client, &mut server, &segment, head, now_ms);
            match taken {
                Some(FromServer::Head { client, socket }) => {
                    out.result = TO_SOCKET | if client.is_some() { TO_CLIENT } else { 0 };
                    (shown, ack) = (client, Some(socket));
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        Operation::ReceiveHeader => {
            let bytes = vector.arguments[0];
            shown = spliced.receive_header(&client, &mut server, &segment, bytes, now_ms);
            out.result = TO_SOCKET * u32::from(shown.is_some());
        }
        Operation::Room => ack = Some(server.room(now_ms)),
        Operation::SetLength => spliced.set_length(&client, vector.arguments[0]),
        Operation::End => {
            let [socket_next, written_end] = vector.arguments.map(SeqNumber);
            let ended = spliced.end(&mut client, &mut server, socket_next, written_end, now_ms);
            if let Ok(ended) = ended {
                ack = ended.ack;
                out.result = 1 + u32::from(ack.is_some());
                out.is_reusable = ended.is_reusable.into();
                is_active = false;
            }
        }
    }
    out.client = client.into();
    out.server = server.into();
    out.splice = if is_active { spliced.into() } else { RawSplice::default() };
    (out, shown, ack)
}

#[test]
fn both_translations_agree() {
    let mut ebpf = match EbpfLoader::new().load(OBJECT) {
        Ok(ebpf) => ebpf,
        Err(error) => return println!("skipped: {error}"),
    };
    let classifier: &mut SchedClassifier = program(&mut ebpf, PROGRAM).unwrap();
    if let Err(error) = classifier.load() {
        return println!("skipped: {error}");
    }
    let (mut ended, mut begun, mut over) = (0, 0, 0);
    let (mut forwarded, mut cut, mut heads, mut copies, mut kept) = (0, 0, 0, 0, 0);
    let mut headers = 0;
    cases(2000, |random| {
        for operation in OPERATIONS {
            let mut vector = any(random);
            vector.operation = operation as u32;
            let RawClient { acked, received, sent_end, .. } = vector.client;
            let RawServer { passed_end, request_end, .. } = vector.server;
            let (now_ms, is_from_client) = (vector.now_ms, random.below(2u32) == 0);
            vector.segment = match operation {
                Operation::SendToClient | Operation::SendToClientAlone => {
                    segment(random, sent_end.wrapping_sub(vector.client.bypassed), received, now_ms)
                }
                Operation::ServerForSocket | Operation::SpliceReceiveFromServer => {
                    segment(random, passed_end, request_end, now_ms)
                }
                Operation::SendToServer => segment(
                    random,
                    request_end,
                    passed_end.wrapping_sub(vector.server.bypassed),
                    now_ms,
                ),
                _ => segment(random, received, acked, now_ms),
            };
            if matches!(operation, Operation::SpliceReceiveFromClient)
                && vector.segment.flags == 0x04
                && is_from_client
            {
                vector.segment.seq = vector.splice.rule_ack;
            }
            if matches!(operation, Operation::SpliceReceiveFromServer) && is_from_client {
                let (splice, segment) = (&mut vector.splice, &mut vector.segment);
                (splice.has_end, splice.awaits_head) = (1, 0);
                splice.first = segment.seq.wrapping_sub(random.below(3u32));
                vector.server.passed_end = near(random, segment.seq);
                segment.ack = request_end.wrapping_sub(random.below(90_000u32));
                segment.is_copy = 0;
                // Bytes, or the end of the connection within the response.
                if random.below(3u32) == 0 {
                    (segment.payload_bytes, segment.flags) = (0, 0x11);
                } else {
                    segment.payload_bytes = 1 + random.below(9_000u32);
                    segment.sack_count *= random.below(2u32);
                }
                splice.end = near(random, segment.seq.wrapping_add(segment.payload_bytes));
            }
            if matches!(operation, Operation::ReceiveHead | Operation::ReceiveHeader) {
                let (splice, segment) = (&mut vector.splice, &mut vector.segment);
                (splice.has_end, splice.end, splice.awaits_head) = (0, 0, 1);
                segment.seq = splice.first.wrapping_add(random.below(9u32) / 8);
                vector.server.passed_end = segment.seq.wrapping_add(random.below(9u32) / 8);
                segment.ack = request_end.wrapping_sub(random.below(70_000u32));
            }
            if matches!(operation, Operation::ReceiveHead) {
                let segment = &mut vector.segment;
                vector.server.socket_edge = vector.server.passed_end.wrapping_add(30_000);
                segment.sack_count *= random.below(2u32);
                let head_bytes = 1 + random.below(1024u32);
                segment.payload_bytes = match segment.is_copy {
                    0 => head_bytes * random.below(2u32) + random.below(9_000u32),
                    _ => head_bytes + random.below(9u32) / 8,
                };
                let status = 200 + 6 * random.below(2u32);
                vector.head = [head_bytes, head_bytes + random.below(9_000u32), status];
            }
            if matches!(operation, Operation::ReceiveHeader) {
                vector.server.socket_edge = vector.server.passed_end.wrapping_add(300);
                vector.segment.payload_bytes = random.below(9u32) * 40;
                vector.arguments = [1 + random.below(1u32 << 30), 0];
            }
            if matches!(operation, Operation::EndIfOver) {
                let splice = &mut vector.splice;
                let (first, written) = (splice.first, splice.first.wrapping_add(splice.delta));
                vector.client.sent_end = near(random, written);
                vector.server.passed_end = near(random, first);
                vector.server.acked = near(random, splice.end);
                splice.is_complete |= random.below(2u32);
            }
            if matches!(operation, Operation::End) {
                let next = passed_end.wrapping_sub(vector.server.bypassed);
                let written = sent_end.wrapping_sub(vector.client.bypassed);
                vector.arguments = [near(random, next), near(random, written)];
            } else if is_from_client && !matches!(operation, Operation::ReceiveHeader) {
                vector.arguments = [random.below(1u32 << 30), near(random, passed_end)];
            }
            let (expected, shown, ack) = model(operation, &vector);
            let found = run(&mut ebpf, &vector);
            assert_eq!(found.client, expected.client, "{operation:?} {vector:?}");
            assert_eq!(found.server, expected.server, "{operation:?} {vector:?}");
            if expected.splice.is_active != 0 {
                assert_eq!(found.splice, expected.splice, "{operation:?} {vector:?}");
            } else {
                assert_eq!(found.splice.is_active, 0, "{operation:?} {vector:?}");
                ended += 1;
                over += u32::from(matches!(operation, Operation::EndIfOver));
            }
            if matches!(operation, Operation::SpliceReceiveFromServer) {
                forwarded += u32::from(expected.result == TO_CLIENT);
                let is_cut = |shown: Segment| {
                    let next = vector.server.passed_end.wrapping_sub(vector.server.bypassed);
                    let moved = vector.segment.seq.wrapping_sub(vector.server.bypassed);
                    shown.has_any(TcpFlags::FIN) && shown.seq.0 == next && moved != next
                };
                cut += u32::from(shown.is_some_and(is_cut));
            }
            if matches!(operation, Operation::SendToClientAlone) {
                kept += u32::from(expected.result == 0);
            }
            if matches!(operation, Operation::ReceiveHeader) {
                headers += expected.result;
            }
            if matches!(operation, Operation::ReceiveHead) {
                heads += u32::from(expected.result & TO_CLIENT != 0);
                copies += u32::from(expected.result == TO_SOCKET);
            }
            if let Some(shown) = shown {
                assert_eq!(Segment::from(found.segment), shown, "{operation:?} {vector:?}");
            }
            if let Some(ack) = ack {
                assert_eq!(Segment::from(found.ack), ack, "{operation:?} {vector:?}");
            }
            if matches!(operation, Operation::Begin) {
                let (mut client, mut server) = (vector.client.into(), vector.server.into());
                let start = start_of(&vector.start);
                match Splice::begin(&mut client, &mut server, start, now_ms) {
                    Ok((_, rule)) => {
                        assert_eq!(found.result, 0, "{vector:?}");
                        assert_eq!(Rule::from(found.rule), rule, "{vector:?}");
                        begun += 1;
                    }
                    Err(reason) => assert_eq!(unfit(found.result), Some(reason), "{vector:?}"),
                }
            } else {
                assert_eq!(found.result, expected.result, "{operation:?} {vector:?}");
                assert_eq!(found.is_reusable, expected.is_reusable, "{operation:?} {vector:?}");
            }
        }
    });
    assert!(
        ended - over > 20 && begun > 20 && over > 20 && forwarded > 20 && cut > 5 && heads > 20,
        "{ended} ended, {over} over, {begun} begun, {forwarded} forwarded, {cut} cut, {heads} heads"
    );
    assert!(copies > 20 && kept > 20, "{copies} copies, {kept} kept");
    assert!(headers > 20, "{headers} headers");
}

#[test]
fn a_complete_checksum_that_looks_partial_is_complete() {
    let flow = FlowKey::new("10.0.0.2:5000".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
    let segment = Segment { flags: TcpFlags::ACK, window: 500, ..Segment::default() };
    let frame = |word: u16| frame_of(flow, &segment, Options::None, &word.to_be_bytes());
    let check = |frame: &[u8]| {
        let at = tcp_at(frame) + CHECK_AT;
        u16::from_be_bytes([frame[at], frame[at + 1]])
    };
    let (complete, partial) = (frame(0), pending(frame(0)));
    // The checksum of a segment is smaller by a word of its payload, in one's complement.
    let sum = u32::from(check(&complete)) + u32::from(!check(&partial));
    let doubtful = frame((sum % 0xffff) as u16);
    assert_eq!(check(&doubtful), check(&partial));

    let mut ebpf = EbpfLoader::new().load(OBJECT).unwrap();
    let classifier: &mut SchedClassifier = program(&mut ebpf, "partial_vector").unwrap();
    classifier.load().unwrap();
    let run = |frame: &[u8]| {
        let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::default() };
        classifier.test_run(options).unwrap().return_value
    };
    assert_eq!([run(&complete), run(&partial), run(&doubtful)], [0, 1, 0]);
}
