//! Connections that change their protocol (RFC 9110 §7.8): the changes that pass, those that do
//! not, and the end of a tunnel. Servers and clients are written by hand, so that every byte is
//! visible.

mod common;

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;

use common::{Client, Lb, Request, Server, config, pattern, with_length};
use unlade_metrics::{Direction, Event, Gauge};

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

/// A server that agrees to every upgrade, greets in the same write, and then does `talk`.
fn agreeing(talk: impl Fn(TcpStream) + Send + Sync + 'static) -> Server {
    Server::new(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = Request::read(&mut reader) {
            if request.header("upgrade").is_none() {
                let head = request.head.clone();
                stream.write_all(&with_length("200 OK", head.as_bytes())).unwrap();
                continue;
            }
            stream.write_all(format!("{AGREED}\r\nhello").as_bytes()).unwrap();
            // Bytes that came with the request belong to the tunnel.
            let early = reader.buffer().to_vec();
            stream.write_all(&early).unwrap();
            return talk(stream);
        }
    })
}

/// Sends everything back until the client has ended, then ends too.
fn echo(mut stream: TcpStream) {
    let mut bytes = vec![0; 70_000];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = stream.write_all(b"bye");
}

/// A tunnel through `lb`: its head, and the server's greeting.
fn open(lb: &Lb) -> (Client, String) {
    let mut client = lb.connect();
    client.send(ASK);
    let head = client.head().unwrap();
    (client, head)
}

fn take(client: &mut Client, count: usize) -> Vec<u8> {
    client.take(count).unwrap()
}

#[test]
fn a_websocket_passes_with_every_byte_and_both_ends() {
    let server = agreeing(echo);
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    // Bytes behind the head are sent before there is a response.
    client.send(format!("{ASK}early"));
    let head = client.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    assert_eq!(common::header(&head, "upgrade").unwrap(), "websocket");
    assert_eq!(common::header(&head, "connection").unwrap(), "Upgrade");
    assert_eq!(
        common::header(&head, "sec-websocket-accept").unwrap(),
        "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    );
    let mut greeting = take(&mut client, 10);
    greeting.sort_unstable();
    let mut due = b"helloearly".to_vec();
    due.sort_unstable();
    assert_eq!(greeting, due);
    // More than all buffers hold, both ways at the same time.
    let sent = pattern(9_000_000);
    let mut writer = client.stream.try_clone().unwrap();
    let all = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&all).unwrap();
        // The other direction continues.
        writer.shutdown(Shutdown::Write).unwrap();
    });
    assert!(take(&mut client, sent.len()) == sent);
    writing.join().unwrap();
    assert_eq!(client.rest().unwrap(), b"bye");
    lb.wait_for(Event::ConnectionClosed, 1);
    let up = sent.len() as u64 + 5;
    assert_eq!(lb.count(Event::TunnelBytes(Direction::ToServer)), up);
    assert_eq!(lb.count(Event::TunnelBytes(Direction::ToClient)), up + 5 + 3);
    assert_eq!((lb.count(Event::TunnelOpened), lb.gauge(Gauge::OpenTunnels)), (1, 0));
    // The connection to the server is not used again.
    assert_eq!(lb.connect().get("/").status(), 200);
    assert_eq!((lb.count(Event::UpstreamConnected), lb.count(Event::UpstreamReused)), (2, 0));
}

#[test]
fn an_upgrade_that_is_refused_is_an_ordinary_answer() {
    let server = Server::answering(|request| match request.target() {
        "/chat" => with_length("426 No", b"no"),
        _ => with_length("200 OK", b"yes"),
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    // The bytes that follow are a request then.
    client.send(format!("{ASK}GET /next HTTP/1.1\r\nHost: test\r\n\r\n"));
    assert_eq!((client.answer().status(), client.answer().text()), (426, "yes"));
    assert_eq!(client.get("/more").text(), "yes");
    assert_eq!((lb.count(Event::TunnelOpened), lb.count(Event::UpstreamConnected)), (0, 1));
}

/// RFC 9113 §3.1; requests inside an upgraded connection would pass the balancer unread.
#[test]
fn an_upgrade_to_http2_is_not_passed_on() {
    let server = agreeing(echo);
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    for upgrade in ["h2c", "h2c, irc", "H2C", "irc/6.9"] {
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"
        ));
        let seen = client.answer();
        assert_eq!(seen.status(), 200, "{upgrade}");
        let seen = seen.text().to_ascii_lowercase();
        assert!(!seen.contains("upgrade") && !seen.contains("http2-settings"), "{seen}");
    }
    // A repeated field, or a request with a body, is not treated as an upgrade.
    for twice in
        ["Upgrade: websocket\r\nUpgrade: websocket", "Upgrade: websocket\r\nContent-Length: 2"]
    {
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n{twice}\r\n\r\n"));
        if twice.contains("Length") {
            client.send("ab");
        }
        let seen = client.answer();
        assert!(seen.status() == 200 && !seen.text().contains("Upgrade"), "{seen:?}");
    }
}

/// A server that changes the protocol without a request, or to another protocol than requested,
/// would make the client read bytes as responses that are none.
#[test]
fn a_change_that_nobody_asked_for_is_refused() {
    let server = Server::answering(|request| match request.target() {
        "/h2c" => AGREED.replace("websocket", "h2c").into_bytes(),
        _ => AGREED.as_bytes().to_vec(),
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.answer_to(false).unwrap().status(), 502);
    let mut client = lb.connect();
    client.send(ASK.replace("/chat", "/h2c"));
    assert_eq!(client.answer_to(false).unwrap().status(), 502);
    assert_eq!(lb.count(Event::TunnelOpened), 0);
}

#[test]
fn a_route_says_which_protocols_pass() {
    let server = agreeing(echo);
    let none = config(server.address, "").replace("[[route]]", "[[route]]\nupgrade = []");
    let lb = Lb::new(&none);
    let mut client = lb.connect();
    client.send(ASK);
    assert_eq!(client.answer().status(), 200);
    let other = config(server.address, "").replace("[[route]]", "[[route]]\nupgrade = [\"IRC\"]");
    let lb = Lb::new(&other);
    let mut client = lb.connect();
    client.send(ASK.replace("websocket", "irc/6.9, websocket"));
    // The server agrees to a protocol that it was not offered.
    assert_eq!(client.answer_to(false).unwrap().status(), 502);
}

#[test]
fn a_silent_tunnel_is_closed_in_order() {
    let server = agreeing(echo);
    let lb = Lb::before(server.address, "timeouts = { tunnel_idle = \"150ms\" }");
    let (mut client, head) = open(&lb);
    assert!(head.contains(" 101 "), "{head}");
    assert_eq!(take(&mut client, 5), b"hello");
    // Neither side sends anything: both see the end, and the server sends a last message.
    assert_eq!(client.rest().unwrap(), b"");
    lb.wait_for(Event::TunnelIdle, 1);
}

#[test]
fn a_server_that_breaks_is_not_taken_for_one_that_ends() {
    let server = agreeing(|stream| {
        socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    client.send(ASK);
    let error = client.rest().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// A tunnel has no message for a drain: it is closed in order, at a pause.
#[test]
fn a_drain_closes_tunnels_in_order() {
    let (tell, told) = mpsc::channel();
    let server = agreeing(move |mut stream| {
        let mut rest = Vec::new();
        tell.send(stream.read_to_end(&mut rest).map(|_| rest)).unwrap();
    });
    let lb = Lb::before(server.address, "");
    let (mut client, _) = open(&lb);
    assert_eq!(take(&mut client, 5), b"hello");
    client.send("last words");
    lb.wait_for(Event::TunnelBytes(Direction::ToServer), 10);
    lb.handle.drain();
    assert_eq!(client.rest().unwrap(), b"");
    drop(client);
    assert_eq!(told.recv().unwrap().unwrap(), b"last words");
    lb.join();
}

#[test]
fn a_client_that_is_gone_takes_its_server_along() {
    let (tell, told) = mpsc::channel();
    let server = agreeing(move |mut stream| {
        tell.send(stream.read(&mut [0; 9]).map_err(|error| error.kind())).unwrap();
    });
    let lb = Lb::before(server.address, "");
    let (mut client, _) = open(&lb);
    assert_eq!(take(&mut client, 5), b"hello");
    socket2::SockRef::from(&client.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(told.recv().unwrap(), Err(std::io::ErrorKind::ConnectionReset));
    lb.wait_for(Event::ConnectionClosed, 1);
}
