//! Moves live loopback connections from one socket to another. Needs CAP_NET_ADMIN.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use unlade_net::FlowKey;
use unlade_net::state::{QUEUE_BYTES_MAX, SocketOptions, TcpSnapshot};
use unlade_sys::info::TcpInfo;
use unlade_sys::repair::{self, Accept, Known, Queue, RepairError, Restored};

fn pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

fn known(server: &TcpStream) -> Known {
    Known {
        flow: FlowKey::new(server.peer_addr().unwrap(), server.local_addr().unwrap()),
        socket: SocketOptions { nodelay: true, ..SocketOptions::default() },
        mss_bytes: None,
        algorithm: "cubic".to_owned(),
    }
}

/// Freezes, snapshots and silently closes `server`; `None` without the capability.
fn take(server: TcpStream) -> Option<TcpSnapshot> {
    if let Err(RepairError::Refused(error)) = repair::freeze(&server) {
        println!("skipped: {error}");
        return None;
    }
    Some(repair::snapshot(&server, &known(&server), Accept::Established).unwrap())
}

fn live(restored: Restored) -> TcpStream {
    let stream = TcpStream::from(restored.activate().unwrap());
    stream.set_nonblocking(false).unwrap();
    stream
}

fn moves_with_unread_bytes(address: &str) {
    let (mut client, mut server) = pair(address);
    client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut start = [0; 4];
    server.read_exact(&mut start).unwrap();
    let segment_bytes = TcpInfo::of(&server).unwrap().snd_mss_bytes;
    let Some(snapshot) = take(server) else { return };
    assert_eq!(snapshot.receive_queue, b"/ HTTP/1.1\r\n");
    assert!(snapshot.send_queue.is_empty());

    let mut server = live(repair::restore(&snapshot, || ()).unwrap());
    // The loopback's segments are larger than the kernel's limit for the option.
    let restored_bytes = TcpInfo::of(&server).unwrap().snd_mss_bytes;
    assert!(restored_bytes >= segment_bytes.min(30_000), "{restored_bytes} of {segment_bytes}");
    let mut rest = [0; 12];
    server.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"/ HTTP/1.1\r\n");
    // Large enough to need window updates and acknowledgements both ways.
    let body: Vec<u8> = (0..4_000_000u32).map(|at| (at ^ at >> 8) as u8).collect();
    let sender = std::thread::spawn({
        let body = body.clone();
        move || {
            server.write_all(&body).unwrap();
            server
        }
    });
    let mut received = vec![0; body.len()];
    client.read_exact(&mut received).unwrap();
    assert_eq!(received, body);
    let mut server = sender.join().unwrap();
    client.write_all(b"bye").unwrap();
    drop(client);
    let mut end = Vec::new();
    server.read_to_end(&mut end).unwrap();
    assert_eq!(end, b"bye");
}

/// A segment that is larger than the window waits for the persist timer, every time.
#[test]
fn segments_of_a_moved_connection_fit_a_small_window() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    client.set_recv_buffer_size(2048).unwrap();
    client.connect(&listener.local_addr().unwrap().into()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let own_bytes = TcpInfo::of(&server).unwrap().snd_mss_bytes;
    let Some(snapshot) = take(server) else { return };
    let window_bytes = snapshot.windows.max_window;
    let server = live(repair::restore(&snapshot, || ()).unwrap());
    let restored_bytes = TcpInfo::of(&server).unwrap().snd_mss_bytes;
    println!("window {window_bytes}, segments {own_bytes}, then {restored_bytes}");
    assert_eq!(restored_bytes, own_bytes);
    assert!(restored_bytes <= window_bytes / 2);
}

#[test]
fn an_ipv4_connection_moves_with_its_unread_bytes() {
    moves_with_unread_bytes("127.0.0.1:0");
}

#[test]
fn an_ipv6_connection_moves_with_its_unread_bytes() {
    moves_with_unread_bytes("[::1]:0");
}

#[test]
fn what_is_sent_and_not_acknowledged_moves_what_is_not_sent_cannot() {
    let (mut client, mut server) = pair("127.0.0.1:0");
    server.set_nonblocking(true).unwrap();
    socket2::SockRef::from(&server).set_send_buffer_size(400_000).unwrap();
    let body: Vec<u8> = (0..8_000_000u32).map(|at| (at ^ at >> 7) as u8).collect();
    // The client does not read: bytes that do not fit its window stay in the send queue.
    let mut written = 0;
    while let Ok(count) = server.write(&body[written..(written + 65_536).min(body.len())]) {
        written += count;
        if written == body.len() {
            break;
        }
    }
    assert!(repair::unsent_bytes(&server).unwrap() > 0);
    if let Err(RepairError::Refused(error)) = repair::freeze(&server) {
        println!("skipped: {error}");
        return;
    }
    let refused = repair::snapshot(&server, &known(&server), Accept::Established);
    assert!(matches!(refused, Err(RepairError::Unsent(1..))), "{refused:?}");
    repair::thaw(&server).unwrap();
    let mut received = vec![0; body.len()];
    let mut at = 0;
    while repair::unsent_bytes(&server).unwrap() > 0 {
        at += client.read(&mut received[at..]).unwrap();
    }
    let Some(snapshot) = take(server) else { return };
    let mut server = live(repair::restore(&snapshot, || ()).unwrap());
    let rest = body[written..].to_vec();
    let sender = std::thread::spawn(move || server.write_all(&rest).unwrap());
    client.read_exact(&mut received[at..]).unwrap();
    assert!(received == body);
    sender.join().unwrap();
}

#[test]
fn a_frozen_connection_thaws_as_if_nothing_had_been() {
    let (mut client, mut server) = pair("127.0.0.1:0");
    if let Err(RepairError::Refused(error)) = repair::freeze(&server) {
        println!("skipped: {error}");
        return;
    }
    repair::snapshot(&server, &known(&server), Accept::Established).unwrap();
    client.write_all(b"late").unwrap();
    repair::thaw(&server).unwrap();
    let mut late = [0; 4];
    server.read_exact(&mut late).unwrap();
    server.write_all(b"fine").unwrap();
    client.read_exact(&mut late).unwrap();
    assert_eq!(&late, b"fine");
}

#[test]
fn a_half_closed_connection_is_declined() {
    let (client, server) = pair("127.0.0.1:0");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    // The FIN is processed once a read returns the end.
    assert_eq!((&server).read(&mut [0; 1]).unwrap(), 0);
    if let Err(RepairError::Refused(error)) = repair::freeze(&server) {
        println!("skipped: {error}");
        return;
    }
    let error = repair::snapshot(&server, &known(&server), Accept::Established).unwrap_err();
    assert!(matches!(error, RepairError::NotEstablished(8)), "{error}");
    // But an owner that handles the end can move it: the response still reaches the client.
    let known = known(&server);
    let snapshot = repair::snapshot(&server, &known, Accept::PeerClosed).unwrap();
    assert!(snapshot.peer_closed);
    drop(server);
    let mut server = live(repair::restore(&snapshot, || ()).unwrap());
    server.write_all(b"late answer").unwrap();
    drop(server);
    let mut answer = String::new();
    (&client).read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "late answer");
}

/// Bytes that a frozen socket has received beyond a snapshot's limit are acknowledged: code that
/// looks for late bytes must find them.
#[test]
fn an_overlong_receive_queue_is_reported_as_such_and_can_be_read_later() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&listener).set_recv_buffer_size(8 << 20).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    socket2::SockRef::from(&client).set_send_buffer_size(4 << 20).unwrap();
    client.set_nonblocking(true).unwrap();
    let body: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ at >> 9) as u8).collect();
    let (mut written, begun) = (0, std::time::Instant::now());
    while repair::unread_bytes(&server).unwrap() <= QUEUE_BYTES_MAX {
        if begun.elapsed() > std::time::Duration::from_secs(10) {
            return println!("skipped: net.core.rmem_max leaves no room for such a queue");
        }
        match client.write(&body[written..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    if let Err(RepairError::Refused(error)) = repair::freeze(&server) {
        return println!("skipped: {error}");
    }
    let refused = repair::snapshot(&server, &known(&server), Accept::PeerClosed).unwrap_err();
    let of_queue = matches!(refused, RepairError::QueueTooLong { queue: Queue::Receive, .. });
    assert!(of_queue, "{refused}");
    let later = repair::snapshot_later(&server, &known(&server)).unwrap();
    assert!(later.receive_queue.len() > QUEUE_BYTES_MAX);
    assert!(body.starts_with(&later.receive_queue));
}
