//! The inputs that the fuzzers start from. They are committed under `tests/fuzz/seeds/`; they are
//! generated from values here, so that a change of a format changes them as well.

use super::lines::step;
use super::pdus::{pdu_seeds, rx_seeds};
use unlade_copy::channel::wire::{ChannelMessage, ReplyBytes, TaskPlace};
use unlade_copy::explain::{Board, Cause, Change, Counts, Report, Serving, Site, State, View};
use unlade_copy_adapters::ParcelWriter;
use unlade_copy_adapters::parcel::Value;
use unlade_copy_service::daemon::message::{Class, Limits, Refusal, Reply, Request};
use unlade_handoff_protocol::frame::{
    CloseReason, ConnectionId, Epoch, Frame, PROTOCOL_VERSION, RefuseReason, ReturnReason,
    SEALING_VERSION, Scope, Terms, Usage,
};
use unlade_handoff_protocol::snapshot::Snapshot;
use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions};
use unlade_net::state::{
    Congestion, DirectionSecrets, NegotiatedOptions, SocketOptions, TcpSnapshot, TlsSnapshot,
    Windows,
};
use unlade_net::{FlowKey, SeqNumber};

/// A seed: the target, the name of its file, and its content.
pub type Seed = (&'static str, String, Vec<u8>);

/// Every seed.
pub fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, content: Vec<u8>| {
        seeds.push((target, name.to_owned(), content));
    };
    for (name, snapshot) in [("plain", plain()), ("tls-ipv6", with_tls())] {
        add("snapshot", name, encoded(&snapshot));
    }
    let mut stream = Vec::new();
    for (name, frame) in frames() {
        let mut content = Vec::new();
        frame.encode(&mut content);
        stream.extend_from_slice(&content);
        add("frame", name, content);
    }
    add("frame", "stream", stream);
    for (name, text) in REQUESTS {
        add("http_request", name, text.as_bytes().to_vec());
    }
    for (name, text) in RESPONSES {
        add("http_response", name, text.as_bytes().to_vec());
    }
    for (name, text) in BODIES {
        add("chunked", name, text.as_bytes().to_vec());
    }
    for (target, name, content) in super::guest::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::endpoint::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::http_event::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::archive::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::notifications::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::policy::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::stacks::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::traces::seeds() {
        add(target, name, content);
    }
    for (target, name, content) in super::tcp::seeds() {
        add(target, name, content);
    }
    for (name, content) in packets() {
        add("packet", name, content);
    }
    for (name, script) in SCRIPTS {
        add("record", name, script.to_vec());
    }
    for (name, content) in super::sealing::seeds() {
        add("sealing", name, content);
    }
    for (name, content) in super::splice::seeds() {
        add("splice_datagram", name, content);
    }
    for (name, content) in super::splice::HEADS {
        add("splice_head", name, content.to_vec());
    }
    for (name, content) in copyd_messages() {
        add("copyd_message", name, content);
    }
    for (name, script) in queue_scripts() {
        add("copyd_lines", name, script);
    }
    for (name, content) in tables() {
        add("copyd_why", name, content);
    }
    for (name, content) in channel_words() {
        add("channel_word", name, content);
    }
    for (name, content) in parcels() {
        add("parcel", name, content);
    }
    for (name, text) in RESP_REQUESTS {
        add("resp_request", name, text.as_bytes().to_vec());
    }
    for (name, script) in chunk_scripts() {
        add("aead_chunks", name, script);
    }
    for (name, content) in super::nvme::seeds() {
        add("nvme_pdu", name, content);
    }
    for (name, content) in super::initiator::nvme_initiator_seeds() {
        add("nvme_initiator", name, content);
    }
    for (name, content) in super::initiator::psk_seeds() {
        add("psk", name, content);
    }
    for (name, content) in pdu_seeds() {
        add("offload_pdus", name, content);
    }
    for (name, content) in super::presume::scripts() {
        add("offload_presume", name, content);
    }
    for (name, content) in rx_seeds() {
        add("offload_rx", name, content);
    }
    for (name, content) in super::storage::storage_seeds() {
        add("nic_storage", name, content);
    }
    for (name, script) in super::inline_device::scripts() {
        add("inline_device", name, script);
    }
    seeds
}

/// A short message in one chunk, and one of many blocks that is cut near their edges.
fn chunk_scripts() -> [(&'static str, Vec<u8>); 2] {
    let mut many = vec![0x71, 13, 0, 15, 0, 16, 0, 17, 1, 0, 1, 1, 2, 90, 2, 91];
    many.extend((0..13 + 800_u32).map(|byte| (byte * 7) as u8));
    [("short", b"\x00\x05headr0123456789".to_vec()), ("many-blocks", many)]
}

/// Tables of call sites: empty, with a site that queues and a short one, and with more changes than
/// there is room for.
fn tables() -> [(&'static str, Vec<u8>); 3] {
    let mut view = View { state: State::Queued, cause: Cause::Pays, ..View::default() };
    (1..12_u16).for_each(|number| {
        let ns = f32::from(number) * 100.0;
        view.copy.add(ns);
        view.inline.add(1.1 * ns);
        view.window.add(40.0 * ns);
        view.base.add(ns / 5.0);
        view.submit.add(40.0);
    });
    view.allowance_ns = -500.0;
    let site = |class: usize, line: u32, view: View| Site {
        client: 1,
        serving: Serving::Threads,
        address: 0x5555_5000 + 64 * u64::from(line),
        file: Some("src/server.c".to_owned()),
        line,
        class,
        since_ns: 1_000_000,
        counts: Counts { at_once: 130, at_once_bytes: 130 << 16, ..Counts::default() },
        view,
    };
    let change = |number: u64| Change {
        number,
        at_ns: 7000 * number,
        client: 1,
        address: 0x5555_5000,
        class: 6,
        from: State::Trial,
        to: State::Queued,
        cause: Cause::Pays,
        inline_ns: 500.0,
        queued_ns: 100.0,
        window_ns: 20_000.0,
        allowance_ns: 30_000.0,
    };
    let filled = |sites: Vec<Site>, changes: u64| {
        let mut report = Report::empty(4711);
        (report.sites, report.clients, report.changes_total) = (sites, 1, changes);
        report.changes = (0..changes).map(change).collect();
        Board::of_report(&report, 3, 4).image()
    };
    let both = vec![site(6, 12, view), site(0, 0, View::short())];
    [("empty", filled(vec![], 0)), ("sites", filled(both.clone(), 2)), ("changes", filled(both, 7))]
}

fn channel_words() -> [(&'static str, Vec<u8>); 5] {
    let task = Some(TaskPlace { ticket: 4711, granule_shift: 11 });
    let reply = ReplyBytes::new(b"seven").expect("it is short");
    [
        ("hello", ChannelMessage::Hello { slots: 4, slot_bytes: 64 << 10 }),
        ("sent", ChannelMessage::Sent { slot: 3, len: 60_000, task }),
        ("there", ChannelMessage::Sent { slot: 0, len: 100, task: None }),
        ("released", ChannelMessage::Released { slot: 3, reply }),
        ("stalled", ChannelMessage::Stalled { slot: 3 }),
    ]
    .map(|(name, said)| (name, said.encode().as_slice().to_vec()))
}

fn parcels() -> [(&'static str, Vec<u8>); 3] {
    let values = [
        Value::I32(-7),
        Value::I64(1 << 40),
        Value::String("sieben".to_owned()),
        Value::Bytes(vec![0xff; 40]),
    ];
    [("numbers", &values[..2]), ("text", &values[2..3]), ("all", &values[..])].map(
        |(name, values)| {
            let mut writer = ParcelWriter::new(Vec::new());
            values.iter().for_each(|value| {
                writer.value(value).expect("memory takes all");
            });
            (name, writer.into_inner())
        },
    )
}

const RESP_REQUESTS: [(&str, &str); 4] = [
    ("set", "*5\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n$2\r\nEX\r\n$2\r\n10\r\n"),
    ("pipelined", "*2\r\n$3\r\nGET\r\n$1\r\na\r\n*0\r\n*1\r\n$4\r\nPING\r\n"),
    ("inline", "set \"a \\x41\\n\" 'b\\'' c\r\n\r\nPING\n"),
    ("open", "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$100\r\nabc"),
];

fn copyd_messages() -> [(&'static str, Vec<u8>); 11] {
    let limits = Limits {
        version: 2,
        regions_max: 64,
        sockets_max: 64,
        pid: 4711,
        region_bytes_max: 4 << 30,
        epoch: 1,
    };
    let [hello, segment, queue, socket, forget] = [
        Request::hello(Class::Background),
        Request::Segment { region: 3, bytes: 1 << 20 },
        Request::Queue,
        Request::Socket { socket: 5 },
        Request::Forget { socket: 5 },
    ]
    .map(|request| request.encode().as_slice().to_vec());
    let [welcome, added, served, refused, passed, forgotten] = [
        Reply::Welcome(limits),
        Reply::Added { region: 3 },
        Reply::Served,
        Reply::Refused(Refusal::RegionLimit),
        Reply::Passed { socket: 5 },
        Reply::Forgotten { socket: 5 },
    ]
    .map(|reply| reply.encode().as_slice().to_vec());
    [
        ("hello", hello),
        ("segment", segment),
        ("queue", queue),
        ("welcome", welcome),
        ("added", added),
        ("served", served),
        ("refused", refused),
        ("socket", socket),
        ("forget", forget),
        ("passed", passed),
        ("forgotten", forgotten),
    ]
}

/// A script's number within its range.
fn number(value: u16) -> [u8; 3] {
    let [low, high] = value.to_le_bytes();
    [0, low, high]
}

/// A line of a script: ticket relative to the tail, length, positions within region 1, shape.
fn line(ticket: u16, len: u16, dst: u16, src: u16, shape: &[u8]) -> Vec<u8> {
    let numbers = [ticket + 2, len, dst, src].map(number).concat();
    [&[step::ACQUIRE, step::TASK][..], &numbers, &[1, 1], shape].concat()
}

/// Scripts of the target of shared lines: steps with their arguments.
fn queue_scripts() -> [(&'static str, Vec<u8>); 6] {
    let turn = [step::TURN, 1, 6];
    let sync =
        |ticket: u16, kind: u8| [&[step::SYNC, kind][..], &number(ticket + 2), &[255; 4]].concat();
    let progress =
        |ticket: u16, what: u8| [&[step::PROGRESS][..], &number(ticket + 2), &[0, what]].concat();
    // Plain; lazy with a delay; with a handler.
    let (plain, lazy, handled) =
        ([0x40], [0x41, 0, 0, 0, 9], [[0x42].as_slice(), &[7; 16]].concat());
    let chain = [line(0, 600, 2000, 0, &lazy), line(1, 600, 3000, 2000, &plain)].concat();
    [
        (
            "copies",
            [line(0, 64, 0, 1024, &plain), line(1, 4000, 96, 95, &plain), turn.to_vec()].concat(),
        ),
        (
            "chain",
            [chain.clone(), turn.to_vec(), sync(1, 0), turn.to_vec(), vec![step::DOZE]].concat(),
        ),
        ("abort", [chain, sync(0, 1), turn.to_vec(), progress(0, 3), turn.to_vec()].concat()),
        (
            "handler",
            [
                line(0, 512, 0, 1024, &handled),
                turn.to_vec(),
                vec![step::HANDLER],
                progress(0, 5),
                turn.to_vec(),
            ]
            .concat(),
        ),
        // Claimed by the client, then recycled during its use; and a line that is not acquired.
        (
            "claims",
            [
                line(0, 512, 0, 1024, &plain),
                progress(0, 0),
                turn.to_vec(),
                progress(0, 1),
                turn.to_vec(),
                progress(16, 0),
            ]
            .concat(),
        ),
        // The words of the header, and the following words.
        (
            "words",
            [
                line(0, 512, 0, 1024, &plain),
                vec![step::WORDS, 8, 0, 7, 1, 200, 0, 3],
                vec![9; 60],
                turn.to_vec(),
            ]
            .concat(),
        ),
    ]
}

const REQUESTS: [(&str, &str); 8] = [
    ("get", "GET /bucket/object?part=1 HTTP/1.1\r\nHost: objects.lab:8443\r\nAccept: */*\r\n\r\n"),
    ("put", "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello"),
    ("chunked", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("absolute", "\r\nGET http://a:80/x HTTP/1.1\r\nHost: a:80\r\nConnection: close, x\r\n\r\n"),
    (
        "options",
        "OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    ),
    ("http10", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    (
        "te-cl",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    ("fold", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n"),
];

const RESPONSES: [(&str, &str); 6] = [
    ("ok", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\nhello"),
    (
        "chunked",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: X-A\r\nX-A: 1\r\n\r\n",
    ),
    ("continue", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"),
    ("until-close", "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nbody"),
    ("not-modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
    ("no-reason", "HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n"),
];

const BODIES: [(&str, &str); 4] = [
    ("plain", "5\r\nhello\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\nGET / HTTP/1.1\r\n"),
    ("extensions", "5;name=\"value\";x\r\nhello\r\n0;last\r\n\r\n"),
    ("trailer", "0\r\nX-Checksum: 1234\r\nX-Empty:\r\n\r\n"),
    ("overflow", "ffffffffffffffff\r\nhello"),
];

/// Scripts of the record target: chunk sizes, then steps of content type, length and content.
const SCRIPTS: [(&str, &[u8]); 6] = [
    ("data", b"\x03\x17\x05hello\x17\x00\x17\x05world"),
    ("key-update", b"\x00\x17\x01a\x16\x05\x18\x00\x00\x01\x01\x17\x01b"),
    ("key-update-in-two", b"\x10\x16\x02\x18\x00\x16\x03\x00\x01\x00\x17\x01b"),
    ("close", b"\x00\x17\x02hi\x15\x02\x01\x00\x17\x04late"),
    ("alert", b"\xff\x15\x02\x02\x28"),
    ("garbage", b"\x01\x17\x02hi\x00\x07\x17\x03\x03\x00\x02xx"),
];

fn encoded(snapshot: &Snapshot) -> Vec<u8> {
    let mut content = Vec::new();
    snapshot.encode(&mut content);
    content
}

fn tcp(flow: FlowKey) -> TcpSnapshot {
    TcpSnapshot {
        flow,
        options: NegotiatedOptions {
            mss_bytes: 1460,
            window_scale: Some((7, 8)),
            sack: true,
            timestamp: Some(123_456),
            ..NegotiatedOptions::default()
        },
        send_seq: SeqNumber(u32::MAX - 3),
        receive_seq: SeqNumber(77),
        send_queue: b"HTTP/1.1 200 OK\r\n".to_vec(),
        receive_queue: b"GET / HTTP/1.1\r\n".to_vec(),
        windows: Windows {
            snd_wl1: 70,
            snd_wnd: 65_535,
            max_window: 131_072,
            rcv_wnd: 64_240,
            rcv_wup: 77,
        },
        congestion: Congestion {
            cwnd_segments: 40,
            ssthresh_segments: 20,
            rtt_us: 1500,
            idle_ms: 3,
            algorithm: "cubic".to_owned(),
        },
        socket: SocketOptions {
            keepalive_s: Some((60, 10, 5)),
            user_timeout_ms: 30_000,
            nodelay: true,
        },
        segments_in: 9,
        peer_closed: false,
    }
}

fn flow(client: &str, service: &str) -> FlowKey {
    let address = |text: &str| text.parse().expect("an address");
    FlowKey::new(address(client), address(service))
}

fn plain() -> Snapshot {
    let tcp = tcp(flow("192.0.2.1:40000", "10.0.0.1:80"));
    Snapshot { tcp, tls: None, plaintext: b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n".to_vec() }
}

fn with_tls() -> Snapshot {
    let direction = |byte: u8| DirectionSecrets {
        key: vec![byte; 16],
        iv: [byte; 12],
        sequence: byte.into(),
        traffic_secret: vec![byte; 32],
    };
    let tls = TlsSnapshot {
        version: 0x0304,
        suite: 0x1301,
        read: direction(1),
        write: direction(2),
        ciphertext: vec![0x17, 3, 3, 0, 40, 1, 2, 3],
    };
    let mut tcp = tcp(flow("[2001:db8::1]:40000", "[2001:db8::2]:443"));
    (tcp.peer_closed, tcp.options.window_scale, tcp.socket.keepalive_s) = (true, None, None);
    Snapshot { tcp, tls: Some(tls), plaintext: Vec::new() }
}

/// One frame of each kind.
fn frames() -> Vec<(&'static str, Frame)> {
    let (id, epoch) = (ConnectionId(0x0102_0304_0506_0708), Epoch(3));
    let terms = Terms { scope: 1, requests_max: 8, idle_return_ms: 5000 };
    let usage = Usage { requests: 3, sent_bytes: 1 << 33, received_bytes: 400 };
    let snapshot = || encoded(&plain());
    let members = vec![("10.0.0.21:8080".to_owned(), 1), ("10.0.0.22:8080".to_owned(), 3)];
    let scope = Scope {
        id: 1,
        host: "*.objects.lab".to_owned(),
        excluded_hosts: vec!["private.objects.lab".to_owned()],
        prefix: "/".to_owned(),
        excluded: vec!["/private/".to_owned()],
        ring: Some((members, 1)),
    };
    let hello = Frame::Hello {
        version: PROTOCOL_VERSION,
        instance: 42,
        name: "lb-1".to_owned(),
        mac: [2, 0, 0, 0, 0, 1],
        lease_ms: 10_000,
    };
    let restored =
        Frame::Ready { id, epoch, restore_tcp_ns: 39_000, restore_tls_ns: 15_000, held_ns: 9_000 };
    let reason = ReturnReason::NextRequest;
    vec![
        ("hello", hello),
        ("owned", Frame::Owned(vec![(id, epoch), (ConnectionId(9), Epoch(0))])),
        ("scope", Frame::Scope(scope)),
        ("offer", Frame::Offer { id, epoch, terms, snapshot: snapshot().into() }),
        ("ready", restored),
        ("refuse", Frame::Refuse { id, epoch, reason: RefuseReason::Overloaded }),
        ("recall", Frame::Recall { id, epoch }),
        ("abandon", Frame::Abandon { id, epoch }),
        ("unread", Frame::Unread { id, epoch, at_bytes: 0, bytes: b"body".to_vec().into() }),
        (
            "return",
            Frame::Return {
                id,
                epoch,
                reason,
                usage,
                unread_bytes: 4,
                snapshot: snapshot().into(),
            },
        ),
        ("closed", Frame::Closed { id, epoch, reason: CloseReason::ByClient, usage }),
        ("ping", Frame::Ping(7)),
        ("pong", Frame::Pong(7)),
        ("drain", Frame::Drain),
        ("sealing", Frame::Sealing { version: SEALING_VERSION, key: vec![7; 32].into() }),
        (
            "seal",
            Frame::Seal {
                is_apart: true,
                client: "192.0.2.1:40000".parse().expect("an address"),
                service: "10.0.0.1:443".parse().expect("an address"),
                delegation: vec![3; 40].into(),
                request: b"GET / HTTP/1.1\r\n\r\n".to_vec().into(),
            },
        ),
    ]
}

fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let data = Segment {
        flow: flow("192.0.2.1:40000", "10.0.0.1:80"),
        direction: Direction::ToService,
        seq: SeqNumber(1),
        ack: SeqNumber(2),
        flags: TcpFlags::PSH | TcpFlags::ACK,
        window: 501,
        options: TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::default() },
        payload: b"GET / HTTP/1.1\r\n\r\n",
    };
    let syn = Segment {
        flow: flow("[2001:db8::1]:40000", "[2001:db8::2]:443"),
        flags: TcpFlags::SYN,
        options: TcpOptions {
            mss: Some(1440),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((1, 0)),
        },
        payload: b"",
        ..data
    };
    let frame = |segment: &Segment<'_>| {
        segment.ethernet_frame([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).expect("a short segment")
    };
    let plain = frame(&data);
    let tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    vec![
        ("ipv4-data", plain),
        ("ipv4-vlan", tagged),
        ("ipv6-syn", frame(&syn)),
        ("ipv4-raw", data.ip_packet().expect("a short segment")),
    ]
}
