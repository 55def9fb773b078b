//! Offers and scopes of a balancer that misbehaves, sent to the agent of a real server: each is
//! refused with its reason, and counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use system_tests::counters::Metrics;
use system_tests::{Lab, needs, pool, turn};
use unlade_channel::channel::Channel;
use unlade_handoff_protocol::frame::{ConnectionId, Epoch, Frame, RefuseReason, Scope, Terms};
use unlade_handoff_protocol::snapshot::{
    Congestion, DirectionSecrets, EncodedSnapshot, NegotiatedOptions, Snapshot, SocketOptions,
    TcpSnapshot, TlsSnapshot, Windows,
};
use unlade_net::{FlowKey, SeqNumber};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// The scope that the offers name.
const SCOPE: u32 = 7;
/// More rings than a server keeps: its limit is 64 MiB, and each ring has at least 2 MiB.
const RINGS: u32 = 40;

fn scope(id: u32, ring: Option<(Vec<(String, u16)>, u16)>) -> Frame {
    let (host, prefix) = (String::new(), "/".to_owned());
    Frame::Scope(Scope { id, host, excluded_hosts: Vec::new(), prefix, excluded: Vec::new(), ring })
}

fn offer(id: u64, scope: u32, snapshot: EncodedSnapshot) -> Frame {
    let terms = Terms { scope, requests_max: 8, idle_return_ms: 60_000 };
    Frame::Offer { id: ConnectionId(id), epoch: Epoch(1), terms, snapshot }
}

/// Returns the state of a connection without queued bytes, from `client` to `service`.
fn snapshot(client: SocketAddr, service: SocketAddr, tls: Option<TlsSnapshot>) -> EncodedSnapshot {
    let windows = Windows {
        snd_wl1: 2000,
        snd_wnd: 60_000,
        max_window: 60_000,
        rcv_wnd: 60_000,
        rcv_wup: 2000,
    };
    let tcp = TcpSnapshot {
        flow: FlowKey::new(client, service),
        options: NegotiatedOptions {
            mss_bytes: 1448,
            window_scale: Some((7, 7)),
            sack: true,
            timestamp: None,
            ecn: false,
        },
        send_seq: SeqNumber(1000),
        receive_seq: SeqNumber(2000),
        send_queue: Vec::new(),
        receive_queue: Vec::new(),
        windows,
        congestion: Congestion { algorithm: "cubic".to_owned(), ..Congestion::default() },
        socket: SocketOptions::default(),
        segments_in: 1,
        peer_closed: false,
    };
    Snapshot { tcp, tls, plaintext: Vec::new() }.encoded()
}

/// Returns a record layer with a suite that no version has.
fn unknown_suite() -> TlsSnapshot {
    let secrets = || DirectionSecrets {
        key: vec![1; 16],
        iv: [2; 12],
        sequence: 3,
        traffic_secret: vec![4; 32],
    };
    let (read, write) = (secrets(), secrets());
    TlsSnapshot { version: 0x0304, suite: 0xfefe, read, write, ciphertext: Vec::new() }
}

/// Sends an offer and returns the reason of its refusal; `None` if the server takes it.
async fn refusal(channel: &mut Channel, offer: Frame) -> Option<RefuseReason> {
    channel.send(&offer).await.unwrap();
    loop {
        match channel.receive().await.unwrap() {
            Frame::Refuse { reason, .. } => return Some(reason),
            Frame::Ready { .. } => return None,
            Frame::Ping(number) => channel.send(&Frame::Pong(number)).await.unwrap(),
            Frame::Owned(owned) => assert!(owned.is_empty(), "{owned:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn bad_offers_and_too_many_rings_are_refused_and_counted() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = Lab::up(&["--servers", "1", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    let service = SocketAddr::new(v4, 80);
    // No process has this address; the server only needs a route to it.
    let client = |port: u16| {
        let mut octets = v4.to_string();
        octets.replace_range(octets.rfind('.').unwrap() + 1.., "200");
        SocketAddr::new(octets.parse().unwrap(), port)
    };
    let to = pool::agent(&lab, "s1");
    pool::run_at(&lab, "lb", async || {
        let mut channel = pool::hello(&lab, to, "lb", 4711).await.unwrap();
        channel.send(&scope(SCOPE, None)).await.unwrap();
        let good = || snapshot(client(40_000), service, None);
        let other = |tls| snapshot(client(40_001), service, tls);
        for (offer, expected) in [
            (offer(1, SCOPE + 1, good()), Some(RefuseReason::UnknownScope)),
            (offer(1, SCOPE, vec![0; 100].into()), Some(RefuseReason::BadSnapshot)),
            (offer(1, SCOPE, other(Some(unknown_suite()))), Some(RefuseReason::BadSnapshot)),
            (offer(2, SCOPE, good()), None),
            // The epoch of the offer is the epoch of the connection that the server has.
            (offer(2, SCOPE, other(None)), Some(RefuseReason::BadSnapshot)),
        ] {
            let said = format!("{offer:?}");
            assert_eq!(refusal(&mut channel, offer).await, expected, "{said}");
        }
        for id in 0..RINGS {
            let members = (0..64).map(|number| (format!("server {id} {number}"), u16::MAX));
            let ring = Some((members.collect(), 0));
            channel.send(&scope(100 + id, ring)).await.unwrap();
        }
        // The answer follows all of them.
        channel.send(&Frame::Ping(1)).await.unwrap();
        while channel.receive().await.unwrap() != Frame::Pong(1) {}
    });
    for reason in ["scope", "bad_snapshot", "tls", "epoch"] {
        let sample = format!("unlade_backend_adoptions_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(Metrics::read(&lab, "s1").get(&sample), 1, "{reason}");
    }
    assert!(Metrics::read(&lab, "s1").get("unlade_backend_scopes_refused_total") > 0);
}

#[test]
fn an_offer_to_a_server_that_drains_is_refused() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = Lab::up(&["--servers", "1", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    let mut octets = v4.to_string();
    octets.replace_range(octets.rfind('.').unwrap() + 1.., "200");
    let client = |port: u16| SocketAddr::new(octets.parse().unwrap(), port);
    let to = pool::agent(&lab, "s1");
    pool::run_at(&lab, "lb", async || {
        let mut channel = pool::hello(&lab, to, "lb", 4711).await.unwrap();
        channel.send(&scope(SCOPE, None)).await.unwrap();
        // A request in work keeps the server from its end.
        let mut upload = TcpStream::connect(SocketAddr::new(to.ip(), 8080)).unwrap();
        upload.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "PUT /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\
                    Expect: 100-continue\r\n\r\n";
        upload.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        upload.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100");
        lab.signal("s1", "TERM");
        // Offers that arrive before the signal are taken, and their connections returned.
        let refused = async {
            for port in 40_000..60_000 {
                let state = snapshot(client(port), SocketAddr::new(v4, 80), None);
                channel.send(&offer(port.into(), SCOPE, state)).await.unwrap();
                loop {
                    match channel.receive().await.unwrap() {
                        Frame::Refuse { reason, .. } => return reason,
                        Frame::Ready { .. } => break,
                        Frame::Ping(number) => channel.send(&Frame::Pong(number)).await.unwrap(),
                        _ => {}
                    }
                }
            }
            panic!("the server does not drain");
        };
        assert_eq!(tokio::time::timeout(PATIENCE, refused).await, Ok(RefuseReason::Draining));
        let sample = "unlade_backend_adoptions_refused_total{reason=\"draining\"}";
        assert_eq!(Metrics::read(&lab, "s1").get(sample), 1);
    });
}
