//! Limits, timeouts, reloads and the drain.

mod common;

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::*;
use socket2::{Domain, Socket, Type};
use unlade_balancer::BalancerConfig;
use unlade_metrics::{Event, RefusedConnection, UpstreamFailure};

#[test]
fn connections_beyond_a_limit_are_refused_in_order_and_counted() {
    let server = Server::ordinary();
    for limit in ["connections_max = 3", "connections_per_client_max = 3"] {
        let lb = Lb::before(server.address, &format!("limits = {{ {limit} }}"));
        let mut clients: Vec<Client> = (0..3).map(|_| lb.connect()).collect();
        for client in &mut clients {
            assert_eq!(client.get("/size/1").status(), 200);
        }
        let mut refused = lb.connect();
        let answer = refused.answer();
        assert_eq!((answer.status(), answer.header("retry-after").as_deref()), (503, Some("1")));
        refused.assert_closed();
        assert_eq!(lb.count(Event::ConnectionRefused(RefusedConnection::Limit)), 1);
        drop(clients.pop());
        lb.wait_for(Event::ConnectionClosed, 1);
        assert_eq!(lb.connect().get("/size/1").status(), 200);
    }
}

#[test]
fn a_listener_has_a_limit_of_its_own() {
    let server = Server::ordinary();
    let text = config(server.address, "").replace("[[route]]", "connections_max = 1\n[[route]]");
    let lb = Lb::new(&text);
    let mut first = lb.connect();
    assert_eq!(first.get("/size/1").status(), 200);
    assert_eq!(lb.connect().answer().status(), 503);
}

#[test]
fn a_client_that_never_begins_is_closed() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "timeouts = { head = \"50ms\" }");
    let mut client = lb.connect();
    client.assert_closed();
    lb.wait_for(Event::HeadTimeout, 1);
}

#[test]
fn a_head_that_never_ends_is_answered_and_closed() {
    let server = Server::ordinary();
    for timeouts in ["head = \"2s\"", "head_stall = \"50ms\""] {
        let lb = Lb::before(server.address, &format!("timeouts = {{ {timeouts} }}"));
        let mut client = lb.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n");
        let mut slow = client.stream.try_clone().unwrap();
        // Single bytes do not extend the time limit of a head.
        let dripping = std::thread::spawn(move || {
            for _ in 0..1000 {
                std::thread::sleep(Duration::from_millis(10));
                if timeouts.contains("stall") || slow.write_all(b"x").is_err() {
                    break;
                }
            }
        });
        let answer = client.answer();
        assert_eq!((answer.status(), answer.header("connection").as_deref()), (408, Some("close")));
        drop(client);
        dripping.join().unwrap();
        lb.wait_for(Event::HeadTimeout, 1);
    }
}

#[test]
fn a_silent_connection_is_closed() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "timeouts = { idle = \"50ms\" }");
    let mut client = lb.connect();
    assert_eq!(client.get("/size/1").status(), 200);
    client.assert_closed();
    lb.wait_for(Event::IdleTimeout, 1);
}

#[test]
fn a_body_that_stops_is_not_waited_for() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "timeouts = { body_stall = \"50ms\" }");
    let mut client = lb.connect();
    client.send("PUT /sha HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(client.answer().status(), 408);
    client.assert_closed();
    assert_eq!(lb.count(Event::ClientStalled), 1);
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "timeouts = { body_stall = \"2s\" }");
    let mut client = lb.connect();
    // More than all socket buffers on the path hold.
    client.send("GET /size/40000000 HTTP/1.1\r\nHost: a\r\n\r\n");
    lb.wait_for(Event::ClientStalled, 1);
    lb.wait_for(Event::ConnectionClosed, 1);
    assert!(client.rest().is_err());
}

#[test]
fn draining_finishes_what_is_in_flight() {
    let (begun, beginning) = channel();
    let (go, going) = channel::<()>();
    let (begun, going) = (Mutex::new(begun), Mutex::new(going));
    let server = Server::answering(move |request| {
        if request.target() == "/slow" {
            begun.lock().unwrap().send(()).unwrap();
            going.lock().unwrap().recv().unwrap();
        }
        with_length("200 OK", b"done")
    });
    let lb = Lb::before(server.address, "");
    let address = lb.address();
    let mut idle = lb.connect();
    assert_eq!(idle.get("/fast").text(), "done");
    let mut busy = lb.connect();
    busy.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    beginning.recv_timeout(PATIENCE).unwrap();
    lb.handle.drain();
    // The idle connection is closed at once, and no new one is accepted.
    idle.assert_closed();
    let start = std::time::Instant::now();
    while std::net::TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < PATIENCE, "still listening");
        std::thread::sleep(Duration::from_millis(5));
    }
    go.send(()).unwrap();
    let answer = busy.answer();
    assert_eq!((answer.text(), answer.header("connection").as_deref()), ("done", Some("close")));
    busy.assert_closed();
    drop(busy);
    lb.join();
}

#[test]
fn a_reload_is_in_force_for_the_next_request() {
    let named =
        |name: &'static str| Server::answering(move |_| with_length("200 OK", name.as_bytes()));
    let (old, new) = (named("old"), named("new"));
    let lb = Lb::before(old.address, "");
    let mut client = lb.connect();
    assert_eq!(client.get("/").text(), "old");
    let parse = |text: &str| BalancerConfig::parse(text, "test").unwrap();
    lb.handle.reload(parse(&config(new.address, ""))).unwrap();
    // The same connection; the worker gets the new plan within moments.
    let start = std::time::Instant::now();
    while client.get("/").text() != "new" {
        assert!(start.elapsed() < PATIENCE, "the old configuration is still in force");
    }
    let error = lb.handle.reload(parse(&config(new.address, "pin_workers = true"))).unwrap_err();
    assert!(error.to_string().contains("takes a restart"), "{error}");
    assert_eq!(client.get("/").text(), "new");
}

#[test]
fn health_checks_take_servers_out_and_back() {
    let sick = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let state = sick.clone();
    let moody = Server::answering(move |request| {
        let status = match state.load(std::sync::atomic::Ordering::SeqCst) {
            true if request.target() == "/healthz" => "500 Sick",
            _ => "200 OK",
        };
        with_length(status, b"moody")
    });
    let steady = Server::answering(|_| with_length("200 OK", b"steady"));
    let text = config(moody.address, "").replace(
        "[pool.p]\nservers = [",
        &format!(
            "[pool.p]\nhealth = {{ path = \"/healthz\", interval = \"10ms\", rise = 2, fall = 2 }}\n\
             servers = [\"{}\", ",
            steady.address
        ),
    );
    let lb = Lb::new(&text);
    let mut client = lb.connect();
    let mut names = |count: usize| -> Vec<String> {
        (0..count).map(|_| client.get("/").text().to_owned()).collect()
    };
    assert!(names(4).contains(&"moody".to_owned()));
    sick.store(true, std::sync::atomic::Ordering::SeqCst);
    lb.wait_for(Event::HealthChanged(unlade_metrics::Health::Unhealthy), 1);
    assert!(names(10).iter().all(|name| name == "steady"));
    sick.store(false, std::sync::atomic::Ordering::SeqCst);
    lb.wait_for(Event::HealthChanged(unlade_metrics::Health::Healthy), 1);
    assert!(names(4).contains(&"moody".to_owned()));
}

#[test]
fn without_a_healthy_server_requests_are_refused_at_once() {
    let server = Server::answering(|_| with_length("500 No", b""));
    let text = config(server.address, "")
        .replace("[pool.p]", "[pool.p]\nhealth = { path = \"/\", interval = \"10ms\", fall = 1 }");
    let lb = Lb::new(&text);
    lb.wait_for(Event::HealthChanged(unlade_metrics::Health::Unhealthy), 1);
    let mut client = lb.connect();
    let answer = client.get("/");
    assert_eq!((answer.status(), answer.header("retry-after").as_deref()), (503, Some("1")));
    // The connection itself is not at fault.
    assert_eq!(client.get("/").status(), 503);
}

#[test]
fn the_admin_endpoint_tells() {
    let server = Server::ordinary();
    let text = config(server.address, "admin = \"127.0.0.1:0\"");
    let balancer =
        unlade_balancer::Balancer::bind(BalancerConfig::parse(&text, "t").unwrap()).unwrap();
    let (admin, address) = (balancer.admin_address().unwrap(), balancer.addresses()[0]);
    let handle = balancer.handle();
    let running = std::thread::spawn(move || balancer.run(false).unwrap());
    assert_eq!(Client::connect(address).get("/size/10").status(), 200);
    assert_eq!(Client::connect(admin).get("/healthz").text(), "ok\n");
    let servers = Client::connect(admin).get("/servers");
    assert!(servers.text().contains(&format!("\"address\":\"{}\"", server.address)));
    assert!(servers.text().contains("\"healthy\":true"));
    let metrics = Client::connect(admin).get("/metrics");
    assert!(metrics.text().contains("unlade_lb_connections_accepted_total 1"));
    assert!(metrics.text().ends_with("# EOF\n"));
    handle.stop();
    running.join().unwrap();
}

#[test]
fn what_cannot_be_bound_is_said_before_anything_runs() {
    let server = Server::ordinary();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let text = config(server.address, "").replace("127.0.0.1:0", &address.to_string());
    let config = BalancerConfig::parse(&text, "test").unwrap();
    unlade_balancer::check(config.clone()).unwrap();
    let message = unlade_balancer::Balancer::bind(config).unwrap_err().to_string();
    assert!(message.contains(&address.to_string()), "{message}");
}

#[test]
fn requests_of_many_connections_do_not_mix() {
    let server = Server::new(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some(request) = Request::read(&mut reader) {
            stream.write_all(&ordinary(&request)).unwrap();
        }
    });
    let text = config(server.address, "").replace("workers = 1", "workers = 2");
    let lb = Lb::new(&text);
    let address = lb.address();
    let threads: Vec<_> = (0..8)
        .map(|seed: usize| {
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                for round in 0..40 {
                    let size = (seed * 7919 + round * 104_729) % 400_000;
                    if round % 3 == 0 {
                        let body = pattern(size);
                        client.send(format!(
                            "PUT /sha HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
                        ));
                        client.send(&body);
                        assert_eq!(client.answer().text(), sha(&body));
                    } else {
                        assert!(client.get(&format!("/size/{size}")).body == pattern(size));
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    lb.wait_for(Event::Request(unlade_metrics::Mode::Proxy), 320);
}

#[test]
fn a_server_that_accepts_and_fails_its_checks_is_taken_out() {
    // Closes after each answer, so that every request needs a connection, which succeeds.
    let server = Server::answering(|request| match request.target() {
        "/healthz" => with_length("500 Sick", b""),
        _ => b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok".to_vec(),
    });
    let text = config(server.address, "").replace(
        "[pool.p]",
        "[pool.p]\nhealth = { path = \"/healthz\", interval = \"10ms\", fall = 3 }",
    );
    let lb = Lb::new(&text);
    let start = std::time::Instant::now();
    while lb.connect().get("/").status() == 200 {
        assert!(start.elapsed() < PATIENCE, "the server is still in");
    }
    assert_eq!(lb.count(Event::HealthChanged(unlade_metrics::Health::Unhealthy)), 1);
}

/// The kernel drops the SYN of a connection for which the server's backlog has no room.
#[test]
fn a_server_that_accepts_no_connection_is_not_waited_for() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut backlog = Vec::new();
    while let Ok(filler) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        backlog.push(filler);
        assert!(backlog.len() < 100, "the backlog has no end");
    }
    let lb = Lb::before(address, "timeouts = { upstream_connect = \"50ms\" }");
    assert_eq!(lb.connect().get("/size/1").status(), 504);
    lb.wait_for(Event::UpstreamFailed(UpstreamFailure::ConnectTimeout), 1);
}
