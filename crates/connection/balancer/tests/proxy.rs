//! The behaviour of the proxy as an ordinary client sees it.

mod common;

use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use unlade_metrics::{Event, Mode, UpstreamFailure};

/// Sizes around every threshold of buffers, pipes and socket buffers.
const SIZES: [usize; 10] =
    [0, 1, 100, 4096, 65_536, 262_143, 262_144, 300_000, 1_048_577, 5_000_000];

#[test]
fn bodies_arrive_whole_in_every_framing() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    for size in SIZES {
        for kind in ["size", "chunked"] {
            let answer = client.get(&format!("/{kind}/{size}"));
            assert_eq!(answer.status(), 200);
            assert!(answer.body == pattern(size), "{kind} {size}");
        }
    }
    for size in SIZES {
        let mut client = lb.connect();
        let answer = client.get(&format!("/until-close/{size}"));
        assert!(answer.body == pattern(size), "{size}");
        assert_eq!(answer.header("connection").as_deref(), Some("close"));
        client.assert_closed();
    }
    assert!(lb.count(Event::BytesSpliced) > 5_000_000);
    assert_eq!(lb.count(Event::Request(Mode::Proxy)), 3 * SIZES.len() as u64);
}

#[test]
fn one_connection_to_the_server_serves_many_requests() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let server = Server::new(move |stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some(request) = Request::read(&mut reader) {
            stream.write_all(&ordinary(&request)).unwrap();
        }
    });
    let once = "[pool.p]\nhealth = { interval = \"1h\" }";
    let lb = Lb::new(&config(server.address, "").replace("[pool.p]", once));
    for _ in 0..5 {
        let mut client = lb.connect();
        for _ in 0..4 {
            assert_eq!(client.get("/size/10").body, pattern(10));
        }
    }
    // The health check has one more.
    assert!(connections.load(Ordering::SeqCst) <= 2);
    assert_eq!(lb.count(Event::UpstreamConnected), 1);
    assert_eq!(lb.count(Event::UpstreamReused), 19);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    let mut burst = String::new();
    for size in 0..50 {
        burst.push_str(&format!("GET /size/{} HTTP/1.1\r\nHost: a\r\n\r\n", size * 1000));
        let body = "x".repeat(size);
        let length = body.len();
        burst.push_str(&format!(
            "PUT /sha HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
    }
    // While the responses wait for the client, the balancer waits too and stops reading, so the
    // burst must fit in the kernel's buffers.
    client.send(burst);
    for size in 0..50 {
        assert!(client.answer().body == pattern(size * 1000));
        assert_eq!(client.answer().text(), sha("x".repeat(size).as_bytes()));
    }
}

#[test]
fn uploads_arrive_whole_in_every_framing() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    for size in SIZES.into_iter().chain([10 << 20]) {
        let body = pattern(size);
        client.send(format!("PUT /sha HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"));
        client.send(&body);
        assert_eq!(client.answer().text(), sha(&body), "length {size}");
        client.send("PUT /sha HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&body, 70_000));
        assert_eq!(client.answer().text(), sha(&body), "chunked {size}");
    }
}

#[test]
fn the_server_learns_of_the_client_and_not_of_the_hop() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    client.send(
        "GET /head HTTP/1.1\r\nHost: objects.example\r\nConnection: keep-alive, X-Hop\r\n\
         X-Hop: secret\r\nUpgrade: websocket\r\nX-Forwarded-For: 203.0.113.9\r\n\
         X-Forwarded-Proto: https\r\nAccept: */*\r\n\r\n",
    );
    let seen = client.answer();
    assert_eq!(header(seen.text(), "host").unwrap(), "objects.example");
    assert_eq!(header(seen.text(), "x-forwarded-for").unwrap(), "203.0.113.9, 127.0.0.1");
    assert_eq!(header(seen.text(), "x-forwarded-proto").unwrap(), "http");
    assert_eq!(header(seen.text(), "x-forwarded-host").unwrap(), "objects.example");
    assert_eq!(header(seen.text(), "accept").unwrap(), "*/*");
    for gone in ["connection", "x-hop", "upgrade"] {
        assert_eq!(header(seen.text(), gone), None);
    }
}

#[test]
fn head_204_and_304_have_no_body() {
    let server = Server::answering(|request| match request.target() {
        "/304" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n".to_vec(),
        _ => ordinary(request),
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    client.send("HEAD /size/5000 HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.answer_to(true).unwrap();
    assert_eq!(answer.header("content-length").as_deref(), Some("5000"));
    assert_eq!(client.get("/empty").status(), 204);
    let answer = client.get("/304");
    assert_eq!((answer.status(), answer.header("content-length").as_deref()), (304, Some("9")));
    assert_eq!(client.get("/size/3").body, pattern(3));
}

#[test]
fn an_old_client_is_answered_in_its_way() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    client.send("GET /chunked/200000 HTTP/1.0\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.header("transfer-encoding"), None);
    assert!(answer.body == pattern(200_000));
    let mut client = lb.connect();
    client.send("GET /size/5 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.header("connection").as_deref(), Some("keep-alive"));
    client.send("GET /size/6 HTTP/1.0\r\n\r\n");
    assert_eq!(client.answer().body, pattern(6));
    client.assert_closed();
}

#[test]
fn the_body_is_asked_for_by_the_server() {
    let server = Server::new(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some(head) = read_head(&mut reader) {
            assert_eq!(header(&head, "expect").as_deref(), Some("100-continue"));
            if head.contains("/no") {
                let refusal = b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(refusal).unwrap();
                return;
            }
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").unwrap();
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            let mut body = [0; 5];
            reader.read_exact(&mut body).unwrap();
            stream.write_all(&with_length("200 OK", &body)).unwrap();
        }
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    let head = "PUT /yes HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    client.send(head);
    let hints = client.answer();
    assert_eq!((hints.status(), hints.header("link").as_deref()), (103, Some("</a>")));
    assert_eq!(client.answer().status(), 100);
    client.send("hello");
    assert_eq!(client.answer().text(), "hello");
    client.send(head.replace("/yes", "/no"));
    let refused = client.answer();
    assert_eq!((refused.status(), refused.header("connection").as_deref()), (417, Some("close")));
    client.assert_closed();
}

#[test]
fn a_server_may_answer_before_it_has_read_everything() {
    let server = Server::new(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        let Some(head) = read_head(&mut reader) else { return };
        if head.starts_with("PUT /refuse") {
            stream.write_all(&with_length("413 Too Much", b"no")).unwrap();
            return;
        }
        // Every byte is returned at once, long before the last one arrives.
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        let mut left: usize = header(&head, "content-length").unwrap().parse().unwrap();
        let mut piece = vec![0; 10_000];
        while left > 0 {
            let count = reader.read(&mut piece).unwrap();
            left -= count;
            let chunk = chunked(&piece[..count], count);
            stream.write_all(&chunk[..chunk.len() - 5]).unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    const BYTES: usize = 3_000_000;
    client.send(format!("PUT /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {BYTES}\r\n\r\n"));
    let mut sending = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || sending.write_all(&pattern(BYTES)).unwrap());
    let answer = client.answer();
    sender.join().unwrap();
    assert!(answer.body == pattern(BYTES));

    let mut client = lb.connect();
    client.send("PUT /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nabc");
    let answer = client.answer();
    assert_eq!((answer.status(), answer.text()), (413, "no"));
    assert_eq!(answer.header("connection").as_deref(), Some("close"));
    client.assert_closed();
}

#[test]
fn a_dead_pooled_connection_is_not_the_clients_problem() {
    // Answers once per connection, promises more, and closes as soon as a second request arrives.
    let server = Server::new(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        let Some(request) = Request::read(&mut reader) else { return };
        stream.write_all(&ordinary(&request)).unwrap();
        let _ = read_head(&mut reader);
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    for _ in 0..6 {
        assert_eq!(client.get("/size/10").body, pattern(10));
    }
    assert_eq!(lb.count(Event::UpstreamRetried), 5);
    // A request that may have been carried out is not sent again.
    client.send("POST /sha HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.answer().status(), 502);
    assert_eq!(lb.count(Event::UpstreamRetried), 5);
    assert_eq!(lb.count(Event::UpstreamFailed(UpstreamFailure::Closed)), 1);
}

#[test]
fn a_server_that_cannot_be_reached_is_passed_over() {
    let server = Server::ordinary();
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let text = config(server.address, "")
        .replace("servers = [", &format!("servers = [\"{dead}\", "))
        .replace("[pool.p]", "[pool.p]\nhealth = { interval = \"1h\", fall = 3 }");
    let lb = Lb::new(&text);
    let mut client = lb.connect();
    for _ in 0..20 {
        client.send("POST /sha HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(client.answer().text(), sha(b"abc"));
    }
    // Passive observation took it out; otherwise half of the requests would have reached it.
    assert!(lb.count(Event::UpstreamFailed(UpstreamFailure::Connect)) <= 3);
    assert_eq!(lb.count(Event::HealthChanged(unlade_metrics::Health::Unhealthy)), 1);
}

#[test]
fn no_route_no_server_no_tunnel() {
    let server = Server::ordinary();
    let text = config(server.address, "").replace("[[route]]", "[[route]]\nprefix = \"/size/\"");
    let lb = Lb::new(&text);
    let mut client = lb.connect();
    assert_eq!(client.get("/other").status(), 404);
    assert_eq!(client.get("/size/1").status(), 200);
    // A body that is in the input is skipped, and the connection continues.
    client.send("PUT /other HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.answer().status(), 404);
    client.send("TRACE /size/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status(), 405);
    client.send("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n");
    assert_eq!(client.answer().status(), 501);
    assert_eq!(client.get("/size/2").status(), 200);
    assert_eq!(lb.count(Event::RequestUnrouted), 2);
    // A body that is not in the input is not waited for.
    client.send("PUT /other HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\nabc");
    assert_eq!(client.answer().header("connection").as_deref(), Some("close"));
    client.assert_closed();

    drop(server);
    let mut client = lb.connect();
    assert_eq!(client.get("/size/1").status(), 502);
}

#[test]
fn routes_choose_by_host_and_prefix() {
    let named =
        |name: &'static str| Server::answering(move |_| with_length("200 OK", name.as_bytes()));
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let text = format!(
        "workers = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         [[route]]\npool = \"a\"\n\
         [[route]]\nhost = \"objects.example\"\npool = \"b\"\n\
         [[route]]\nhost = \"objects.example\"\nprefix = \"/c/\"\npool = \"c\"\n\
         [pool.a]\nservers = [\"{}\"]\n[pool.b]\nservers = [\"{}\"]\n[pool.c]\nservers = [\"{}\"]\n",
        a.address, b.address, c.address
    );
    let lb = Lb::new(&text);
    let mut client = lb.connect();
    for (host, path, name) in [
        ("elsewhere", "/c/1", "a"),
        ("objects.example:8080", "/", "b"),
        ("OBJECTS.example", "/c/1", "c"),
        ("objects.example", "/c", "b"),
    ] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.answer().text(), name, "{host} {path}");
    }
}

#[test]
fn ipv6_and_several_workers() {
    let server = Server::ordinary();
    let text = config(server.address, "")
        .replace("workers = 1", "workers = 2")
        .replace("127.0.0.1:0", "[::1]:0");
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let lb = Lb::new(&text);
    assert!(lb.address().is_ipv6());
    let mut clients: Vec<Client> = (0..16).map(|_| lb.connect()).collect();
    for client in &mut clients {
        assert!(client.get("/size/300000").body == pattern(300_000));
        client.send("GET /head HTTP/1.1\r\nHost: [::1]:80\r\n\r\n");
        let seen = client.answer();
        assert_eq!(header(seen.text(), "x-forwarded-for").unwrap(), "::1");
    }
}

#[test]
fn a_client_that_only_ends_its_direction_gets_its_answer() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    client.send("GET /size/1000000 HTTP/1.1\r\nHost: a\r\n\r\n");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(client.answer().body == pattern(1_000_000));
    client.assert_closed();
}

#[test]
fn a_client_that_resets_releases_the_server() {
    let (gone, ended) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let server = Server::new(move |stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_head(&mut reader).is_some() {
            // Never answers; waits for the balancer to close.
            let end = reader.read(&mut [0; 1]);
            let _ = gone.lock().unwrap().send(end.unwrap_or(0));
        }
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    lb.wait_for(Event::UpstreamConnected, 1);
    socket2::SockRef::from(&client.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), 0);
    lb.wait_for(Event::ConnectionClosed, 1);
}
