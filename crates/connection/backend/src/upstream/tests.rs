//! Clients of a sidecar, and a local server that does what the test says.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use unlade_http::HeadLimits;
use unlade_metrics::{Event, FinalClass, Gauge, Meter, SidecarFailure};
use unlade_runtime::Stream;

use super::address::UpstreamAddress;
use super::pool::{UpstreamSettings, Upstreams};
use super::proxy_protocol;
use crate::config::Limits;
use crate::context::{Context, Service};
use crate::serve::serve_connection;

/// Longer than any step of these tests; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// A time limit that is to be reached.
const SHORT: Duration = Duration::from_millis(50);
/// What the server sees of `GET /a` with the host `h`.
const FORWARDED: &str = "GET /a HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 127.0.0.1\r\n\
                         X-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\n\r\n";
const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A sidecar.
struct Side {
    context: Rc<Context>,
    meter: Arc<Meter>,
}

impl Side {
    fn new(address: UpstreamAddress) -> Side {
        Side::with(address, PATIENCE, |_| {})
    }

    /// `body_timeout` is the time limit without a byte of a body.
    fn with(
        address: UpstreamAddress,
        body_timeout: Duration,
        change: impl FnOnce(&mut UpstreamSettings),
    ) -> Side {
        let mut settings = UpstreamSettings {
            address,
            proxy_protocol: false,
            idle_max: 4,
            idle_timeout: PATIENCE,
            connect_timeout: PATIENCE,
            response_timeout: PATIENCE,
        };
        change(&mut settings);
        let limits = Limits {
            head: HeadLimits::default(),
            head_timeout: PATIENCE,
            idle_timeout: PATIENCE,
            body_timeout,
            write_timeout: PATIENCE,
            object_bytes_max: u64::MAX,
        };
        let meter = Arc::new(Meter::new());
        let upstreams = Rc::new(Upstreams::new(settings, Arc::clone(&meter)));
        let service = Service::Upstream(upstreams);
        let context = Context::with_service(limits, service, Arc::clone(&meter), None);
        Side { context, meter }
    }

    /// A sidecar, and its local server.
    async fn with_server() -> (Side, TcpListener) {
        let (address, listener) = server().await;
        (Side::new(address), listener)
    }

    /// Serves a connection while `script` runs with the client's end of it.
    async fn play<T>(&self, script: impl AsyncFnOnce(TcpStream) -> T) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let stream = Stream::plain(listener.accept().await.unwrap().0);
        let serving = serve_connection(stream, Rc::clone(&self.context));
        let both = async { tokio::join!(serving, script(client)).1 };
        tokio::time::timeout(PATIENCE, both).await.expect("the script ends in time")
    }

    fn count(&self, event: Event) -> u64 {
        self.meter.value(event)
    }

    fn failures(&self, reason: SidecarFailure) -> u64 {
        self.count(Event::SidecarFailed(reason))
    }
}

async fn server() -> (UpstreamAddress, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (UpstreamAddress::Tcp(listener.local_addr().unwrap()), listener)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let (server, _) = listener.accept().await.unwrap();
    server.set_nodelay(true).unwrap();
    server
}

/// Reads until the bytes end with `end`, and returns them.
async fn read_to(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut seen = Vec::new();
    while !seen.ends_with(end.as_bytes()) {
        let more = stream.read_buf(&mut seen).await.unwrap();
        assert_ne!(more, 0, "ended behind {:?}", String::from_utf8_lossy(&seen));
    }
    String::from_utf8(seen).unwrap()
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads all until the end of the connection; an error after a part is one.
async fn read_all(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut seen = Vec::new();
    stream.read_to_end(&mut seen).await?;
    Ok(String::from_utf8(seen).unwrap())
}

#[tokio::test]
async fn requests_of_several_clients_use_one_connection_again() {
    let (side, listener) = Side::with_server().await;
    let mut server = None;
    for round in 0..2 {
        side.play(async |mut client| {
            for _ in 0..2 {
                send(&mut client, GET).await;
                if server.is_none() {
                    server = Some(accept(&listener).await);
                }
                let server = server.as_mut().unwrap();
                assert_eq!(read_to(server, "\r\n\r\n").await, FORWARDED);
                assert_eq!(side.meter.gauge(Gauge::SidecarBusy), 1);
                send(server, OK).await;
                assert_eq!(read_to(&mut client, "hello").await, OK, "round {round}");
            }
        })
        .await;
    }
    assert_eq!(side.count(Event::SidecarConnected), 1);
    assert_eq!(side.count(Event::SidecarReused), 3);
    assert_eq!(side.count(Event::ObjectRequest(FinalClass::of(200))), 4);
    assert_eq!(side.count(Event::ObjectBytesOrdinary), 20);
    assert_eq!(side.meter.gauge(Gauge::SidecarBusy), 0);
    assert_eq!(side.meter.gauge(Gauge::SidecarIdle), 1);
    side.context.expire(Duration::ZERO);
    assert_eq!(side.meter.gauge(Gauge::SidecarIdle), 1);
}

#[tokio::test]
async fn a_unix_socket_is_an_address_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let side = Side::new(UpstreamAddress::Unix(path));
    side.play(async |mut client| {
        send(&mut client, "GET /old HTTP/1.0\r\n\r\n").await;
        let (mut server, _) = listener.accept().await.unwrap();
        let request = read_to(&mut server, "\r\n\r\n").await;
        assert!(request.starts_with("GET /old HTTP/1.1\r\nHost: localhost\r\n"), "{request}");
        server.write_all(OK.as_bytes()).await.unwrap();
        let response = read_all(&mut client).await.unwrap();
        assert_eq!(response, OK.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    })
    .await;
}

#[tokio::test]
async fn chunks_pass_as_they_are_and_an_old_client_gets_their_content() {
    let (side, listener) = Side::with_server().await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (first, rest) = ("3\r\nabc\r\n", "2;x=y\r\nde\r\n0\r\nExpires: 0\r\n\r\n");
    for old in [false, true] {
        side.play(async |mut client| {
            let request = if old { "GET /a HTTP/1.0\r\nHost: h\r\n\r\n" } else { GET };
            send(&mut client, request).await;
            let mut server = accept(&listener).await;
            assert_eq!(read_to(&mut server, "\r\n\r\n").await, FORWARDED);
            send(&mut server, &format!("{head}{first}")).await;
            let begin = read_to(&mut client, if old { "abc" } else { "abc\r\n" }).await;
            send(&mut server, rest).await;
            match old {
                false => {
                    assert_eq!(begin, format!("{head}{first}"));
                    assert_eq!(read_to(&mut client, "0\r\nExpires: 0\r\n\r\n").await, rest);
                }
                true => {
                    assert_eq!(begin, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc");
                    assert_eq!(read_all(&mut client).await.unwrap(), "de");
                }
            }
            // Its connection is not the one of the next round.
            server.set_zero_linger().unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn a_response_until_the_end_ends_the_clients_connection() {
    let (side, listener) = Side::with_server().await;
    side.play(async |mut client| {
        send(&mut client, GET).await;
        let mut server = accept(&listener).await;
        read_to(&mut server, "\r\n\r\n").await;
        send(&mut server, "HTTP/1.0 200 Fine\r\n\r\nhel").await;
        send(&mut server, "lo").await;
        drop(server);
        let response = read_all(&mut client).await.unwrap();
        assert_eq!(response, "HTTP/1.1 200 Fine\r\nConnection: close\r\n\r\nhello");
    })
    .await;
    assert_eq!(side.meter.gauge(Gauge::SidecarIdle), 0);
}

#[tokio::test]
async fn responses_without_a_body_have_none() {
    let (side, listener) = Side::with_server().await;
    side.play(async |mut client| {
        let mut server = None;
        for (method, response) in [
            ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
            ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n"),
            ("DELETE", "HTTP/1.1 204 No Content\r\n\r\n"),
            ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ] {
            send(&mut client, &GET.replace("GET", method)).await;
            if server.is_none() {
                server = Some(accept(&listener).await);
            }
            let server = server.as_mut().unwrap();
            assert_eq!(read_to(server, "\r\n\r\n").await, FORWARDED.replace("GET", method));
            send(server, response).await;
            assert_eq!(read_to(&mut client, "\r\n\r\n").await, response);
        }
    })
    .await;
    assert_eq!(side.count(Event::SidecarConnected), 1);
}

#[tokio::test]
async fn long_bodies_pass_both_ways_at_the_same_time() {
    let (side, listener) = Side::with_server().await;
    const BYTES: usize = 5 << 20;
    let body: Vec<u8> = (0..BYTES).map(|at| (at / 251) as u8).collect();
    side.play(async |client| {
        let (mut from, mut to) = client.into_split();
        let mut server = None;
        for chunked in [false, true] {
            let chunk_bytes = format!("{BYTES:x}\r\n").len() + "\r\n0\r\n\r\n".len();
            let due_bytes = BYTES + if chunked { chunk_bytes } else { 0 };
            let upload = async {
                let (framing, chunk) = match chunked {
                    false => (format!("Content-Length: {BYTES}"), String::new()),
                    true => ("Transfer-Encoding: chunked".to_owned(), format!("{BYTES:x}\r\n")),
                };
                let head = format!("POST /a HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n{chunk}");
                to.write_all(head.as_bytes()).await.unwrap();
                to.write_all(&body).await.unwrap();
                to.write_all(if chunked { b"\r\n0\r\n\r\n" } else { b"" }).await.unwrap();
            };
            let echo = async {
                if server.is_none() {
                    server = Some(accept(&listener).await);
                }
                let server = server.as_mut().unwrap();
                let mut seen = Vec::new();
                let head_end = loop {
                    server.read_buf(&mut seen).await.unwrap();
                    if let Some(at) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
                        break at + 4;
                    }
                };
                // All of the body goes back as it comes.
                let mut left = due_bytes;
                let framing = match chunked {
                    false => format!("Content-Length: {BYTES}"),
                    true => "Transfer-Encoding: chunked".to_owned(),
                };
                send(server, &format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n")).await;
                let mut piece = seen.split_off(head_end);
                loop {
                    left -= piece.len();
                    server.write_all(&piece).await.unwrap();
                    if left == 0 {
                        break;
                    }
                    piece.clear();
                    assert_ne!(server.read_buf(&mut piece).await.unwrap(), 0);
                }
            };
            let download = async {
                let mut seen = Vec::new();
                let mut body_at = None;
                while body_at.is_none_or(|at| seen.len() < at + due_bytes) {
                    assert_ne!(from.read_buf(&mut seen).await.unwrap(), 0);
                    let end = |seen: &[u8]| seen.windows(4).position(|four| four == b"\r\n\r\n");
                    body_at = body_at.or_else(|| end(&seen).map(|at| at + 4));
                }
                seen.split_off(body_at.unwrap())
            };
            let ((), (), seen) = tokio::join!(upload, echo, download);
            let content = match chunked {
                false => &seen[..],
                true => {
                    seen[format!("{BYTES:x}\r\n").len()..].strip_suffix(b"\r\n0\r\n\r\n").unwrap()
                }
            };
            assert!(content == body, "other bytes");
        }
    })
    .await;
    assert_eq!(side.count(Event::SidecarConnected), 1);
    assert_eq!(side.count(Event::ObjectRequest(FinalClass::of(200))), 2);
}

#[tokio::test]
async fn the_server_asks_for_a_body_and_interim_responses_pass() {
    let (side, listener) = Side::with_server().await;
    side.play(async |mut client| {
        let expect = "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        send(&mut client, &format!("PUT /a HTTP/1.1\r\nHost: h\r\n{expect}")).await;
        let mut server = accept(&listener).await;
        let request = read_to(&mut server, "\r\n\r\n").await;
        assert!(request.contains("\r\nExpect: 100-continue\r\n"), "{request}");
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
        let proceed = "HTTP/1.1 100 Continue\r\n\r\n";
        send(&mut server, &format!("{hints}{proceed}")).await;
        let interim = read_to(&mut client, proceed).await;
        assert_eq!(interim, format!("{hints}{proceed}"));
        send(&mut client, "hello").await;
        assert_eq!(read_to(&mut server, "hello").await, "hello");
        send(&mut server, OK).await;
        assert_eq!(read_to(&mut client, "hello").await, OK);
        // An answer in place of the request for the body: the body may come or not.
        send(&mut client, &format!("PUT /a HTTP/1.1\r\nHost: h\r\n{expect}")).await;
        read_to(&mut server, "\r\n\r\n").await;
        send(&mut server, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
        let refused = read_all(&mut client).await.unwrap();
        assert!(refused.ends_with("\r\nConnection: close\r\n\r\n"), "{refused}");
        assert_eq!(read_all(&mut server).await.unwrap(), "");
    })
    .await;
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced_if_the_request_may_be_repeated() {
    let (side, listener) = Side::with_server().await;
    side.play(async |mut client| {
        let mut server = None;
        for method in ["GET", "GET", "POST"] {
            send(&mut client, &GET.replace("GET", method)).await;
            if let Some(mut kept) = server.take() {
                // It reads the request, and ends.
                read_to(&mut kept, "\r\n\r\n").await;
            }
            if method == "POST" {
                let response = read_to(&mut client, "\n").await;
                assert!(response.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{response}");
                break;
            }
            let mut next = accept(&listener).await;
            assert_eq!(read_to(&mut next, "\r\n\r\n").await, FORWARDED);
            send(&mut next, OK).await;
            assert_eq!(read_to(&mut client, "hello").await, OK);
            server = Some(next);
        }
    })
    .await;
    assert_eq!((side.count(Event::SidecarRetried), side.count(Event::SidecarReused)), (1, 2));
    assert_eq!(side.failures(SidecarFailure::Closed), 1);
}

#[tokio::test]
async fn without_an_answer_the_client_gets_one_and_keeps_its_connection() {
    let (gone, listener) = server().await;
    drop(listener);
    let side = Side::new(gone);
    side.play(async |mut client| {
        for (request, body) in [
            (GET, "cannot be reached\n"),
            ("HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", "\r\n\r\n"),
            ("PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxx", "cannot be reached\n"),
        ] {
            send(&mut client, request).await;
            let response = read_to(&mut client, body).await;
            assert!(response.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{response}");
            assert!(!response.contains("Connection"), "{response}");
        }
    })
    .await;
    assert_eq!(side.failures(SidecarFailure::Connect), 3);
    assert_eq!(side.count(Event::ObjectRequest(FinalClass::of(502))), 3);

    // Nobody accepts: the kernel completes the handshake, and no response comes.
    let (address, _listener) = server().await;
    let side = Side::with(address, PATIENCE, |settings| settings.response_timeout = SHORT);
    side.play(async |mut client| {
        send(&mut client, GET).await;
        let response = read_to(&mut client, "did not answer in time\n").await;
        assert!(response.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{response}");
        // A client that waits until the server asks for the body is not the one that is late.
        let expect = "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        send(&mut client, &format!("PUT /a HTTP/1.1\r\nHost: h\r\n{expect}")).await;
        let response = read_all(&mut client).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{response}");
    })
    .await;
    assert_eq!(side.failures(SidecarFailure::ResponseTimeout), 2);
}

#[tokio::test]
async fn a_server_with_a_full_queue_is_not_waited_for_without_end() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&SockAddr::from(any)).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    // The queue has place for one connection; the kernel drops the handshakes of further ones.
    let full: Vec<Socket> = (0..4)
        .map(|_| {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            // In progress, or established.
            let _ = client.connect(&address.into());
            client
        })
        .collect();
    let address = UpstreamAddress::Tcp(address);
    let side = Side::with(address, PATIENCE, |settings| settings.connect_timeout = SHORT);
    side.play(async |mut client| {
        send(&mut client, GET).await;
        let response = read_to(&mut client, "did not accept in time\n").await;
        assert!(response.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{response}");
    })
    .await;
    assert_eq!(side.failures(SidecarFailure::ConnectTimeout), 1);
    drop(full);
}

#[tokio::test]
async fn a_malformed_answer_does_not_reach_the_client() {
    let (side, listener) = Side::with_server().await;
    let many = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(33);
    for answer in ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n", &many] {
        side.play(async |mut client| {
            send(&mut client, GET).await;
            let mut server = accept(&listener).await;
            read_to(&mut server, "\r\n\r\n").await;
            send(&mut server, answer).await;
            let response = read_to(&mut client, "answer is malformed\n").await;
            let hints = response.matches("HTTP/1.1 103 ").count();
            assert_eq!(hints, if answer == many { 32 } else { 0 });
            assert!(response.contains("HTTP/1.1 502 Bad Gateway\r\n"), "{response}");
        })
        .await;
    }
    assert_eq!(side.failures(SidecarFailure::BadResponse), 3);
}

#[tokio::test]
async fn a_response_that_breaks_off_does_not_look_complete() {
    let (address, listener) = server().await;
    let side = Side::with(address, SHORT, |_| {});
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel";
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
    for (begin, end) in [(head, None), (chunks, Some("zz\r\n")), (head, Some(""))] {
        side.play(async |mut client| {
            send(&mut client, GET).await;
            let mut server = accept(&listener).await;
            read_to(&mut server, "\r\n\r\n").await;
            send(&mut server, begin).await;
            assert_eq!(read_to(&mut client, &begin[begin.len() - 3..]).await, begin);
            match end {
                None => drop(server),
                Some(end) => send(&mut server, end).await,
            }
            let error = read_all(&mut client).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        })
        .await;
    }
    for reason in [SidecarFailure::Closed, SidecarFailure::BadResponse, SidecarFailure::Stalled] {
        assert_eq!(side.failures(reason), 1, "{reason:?}");
    }
    assert_eq!(side.count(Event::BackendBroken), 3);
}

#[tokio::test]
async fn an_upload_waits_for_neither_side_without_end() {
    let (address, listener) = server().await;
    let side = Side::with(address, SHORT, |_| {});
    // The server reads nothing of more than the sockets hold.
    side.play(async |client| {
        let (mut from, mut to) = client.into_split();
        let upload = async {
            let head =
                format!("PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", 1u64 << 40);
            to.write_all(head.as_bytes()).await.unwrap();
            let piece = vec![b'x'; 1 << 20];
            // Until the sidecar closes.
            while to.write_all(&piece).await.is_ok() {}
        };
        let answer = async {
            let _server = accept(&listener).await;
            read_to(&mut from, "made no progress in time\n").await
        };
        let ((), response) = tokio::join!(upload, answer);
        assert!(response.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{response}");
        assert!(response.contains("\r\nConnection: close\r\n"), "{response}");
    })
    .await;
    assert_eq!(side.failures(SidecarFailure::Stalled), 1);
    // The client sends a part only.
    side.play(async |mut client| {
        send(&mut client, "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\npart").await;
        let response = read_all(&mut client).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{response}");
    })
    .await;
    assert_eq!(side.count(Event::BackendStalled), 1);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request_at_the_server() {
    let (side, listener) = Side::with_server().await;
    side.play(async |mut client| {
        send(&mut client, GET).await;
        let mut server = accept(&listener).await;
        read_to(&mut server, "\r\n\r\n").await;
        client.set_zero_linger().unwrap();
        drop(client);
        assert_eq!(read_all(&mut server).await.unwrap(), "");
    })
    .await;
    assert_eq!(side.count(Event::SidecarAbandoned), 1);
    // One that only ends its direction gets its response.
    side.play(async |mut client| {
        send(&mut client, GET).await;
        client.shutdown().await.unwrap();
        let mut server = accept(&listener).await;
        read_to(&mut server, "\r\n\r\n").await;
        send(&mut server, OK).await;
        assert_eq!(read_all(&mut client).await.unwrap(), OK);
    })
    .await;
    assert_eq!(side.count(Event::SidecarAbandoned), 1);
}

#[tokio::test]
async fn a_malformed_request_is_refused() {
    let (side, listener) = Side::with_server().await;
    let chunked = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    side.play(async |mut client| {
        send(&mut client, &format!("{chunked}zz\r\n")).await;
        let response = read_all(&mut client).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
    })
    .await;
    // The server has got a part of it.
    side.play(async |mut client| {
        send(&mut client, &format!("{chunked}3\r\nabc\r\n")).await;
        let mut server = accept(&listener).await;
        read_to(&mut server, "abc\r\n").await;
        send(&mut client, "zz\r\n").await;
        let response = read_all(&mut client).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
        assert_eq!(read_all(&mut server).await.unwrap(), "");
    })
    .await;
    assert_eq!(side.count(Event::SidecarBodyRefused), 2);
    for method in ["TRACE /a", "CONNECT h:80"] {
        side.play(async |mut client| {
            send(&mut client, &format!("{method} HTTP/1.1\r\nHost: h:80\r\n\r\n")).await;
            let response = read_all(&mut client).await.unwrap();
            assert!(response.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{response}");
        })
        .await;
    }
    side.play(async |mut client| {
        send(&mut client, "GET /a HTTP/1.1\r\n\r\n").await;
        let response = read_all(&mut client).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
    })
    .await;
    assert_eq!(side.count(Event::ObjectHeadRefused("missing_host".into())), 1);
}

#[tokio::test]
async fn a_header_of_the_proxy_protocol_names_the_one_client_of_a_connection() {
    let (address, listener) = server().await;
    let side = Side::with(address, PATIENCE, |settings| settings.proxy_protocol = true);
    for _ in 0..2 {
        side.play(async |mut client| {
            let mut server = None;
            for round in 0..2 {
                send(&mut client, GET).await;
                if server.is_none() {
                    server = Some(accept(&listener).await);
                }
                let server = server.as_mut().unwrap();
                if round == 0 {
                    let (from, to) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
                    let mut header = proxy_protocol::header(from, to);
                    let due = header.clone();
                    server.read_exact(&mut header).await.unwrap();
                    assert_eq!(header, due);
                }
                assert_eq!(read_to(server, "\r\n\r\n").await, FORWARDED);
                send(server, OK).await;
                assert_eq!(read_to(&mut client, "hello").await, OK);
            }
            // The client leaves, and its connection to the server with it.
            drop(client);
            assert_eq!(read_all(server.as_mut().unwrap()).await.unwrap(), "");
        })
        .await;
    }
    assert_eq!((side.count(Event::SidecarConnected), side.count(Event::SidecarReused)), (2, 2));
}
