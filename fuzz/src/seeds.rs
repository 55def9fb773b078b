//! The inputs that the fuzzers start from. They are committed under `fuzz/seeds/`; made from
//! values here so that a change of a format changes them as well.

use copyd::daemon::message::{Class, Limits, Refusal, Reply, Request};
use wire::frame::{
    CloseReason, ConnectionId, Epoch, Frame, PROTOCOL_VERSION, RefuseReason, ReturnReason, Scope,
    Terms, Usage,
};
use wire::packet::{Direction, Segment, TcpFlags, TcpOptions};
use wire::snapshot::{
    Congestion, DirectionSecrets, NegotiatedOptions, Snapshot, SocketOptions, TcpSnapshot,
    TlsSnapshot, Windows,
};
use wire::{FlowKey, SeqNumber};

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
    for (name, content) in packets() {
        add("packet", name, content);
    }
    for (name, script) in SCRIPTS {
        add("record", name, script.to_vec());
    }
    for (name, content) in copyd_messages() {
        add("copyd_message", name, content);
    }
    seeds
}

fn copyd_messages() -> [(&'static str, Vec<u8>); 7] {
    let limits =
        Limits { version: 1, regions_max: 64, pid: 4711, region_bytes_max: 4 << 30, epoch: 1 };
    let [hello, segment, queue] = [
        Request::hello(Class::Background),
        Request::Segment { region: 3, bytes: 1 << 20 },
        Request::Queue,
    ]
    .map(|request| request.encode().as_slice().to_vec());
    let [welcome, added, served, refused] = [
        Reply::Welcome(limits),
        Reply::Added { region: 3 },
        Reply::Served,
        Reply::Refused(Refusal::RegionLimit),
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

/// Scripts of the record target: pieces, then steps of content type, length and content.
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
    let direction = |octet: u8| DirectionSecrets {
        key: vec![octet; 16],
        iv: [octet; 12],
        sequence: octet.into(),
        traffic_secret: vec![octet; 32],
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
        host: "objects.lab".to_owned(),
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
    let restored = Frame::Ready { id, epoch, restore_tcp_ns: 39_000, restore_tls_ns: 15_000 };
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
        ("return", Frame::Return { id, epoch, reason, usage, snapshot: snapshot().into() }),
        ("closed", Frame::Closed { id, epoch, reason: CloseReason::ByClient, usage }),
        ("ping", Frame::Ping(7)),
        ("pong", Frame::Pong(7)),
        ("drain", Frame::Drain),
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
