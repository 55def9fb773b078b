//! Fallback to the proxy, and refusal of untrusted peers, with real programs.

use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use system_tests::client::{Client, End, Target, TlsVersions, tls_config};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, said, turn};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(20);

fn lab() -> Lab {
    let lab = Lab::up(&["--servers", "1", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    lab
}

/// Waits for at least `due` handovers: the client's response precedes the counter, and a returned
/// connection is handed over again.
fn wait_handed_over(lab: &Lab, due: u64) {
    assert!(
        wait_for(PATIENCE, || handed_over(lab) >= due),
        "{} of {due}: {}",
        handed_over(lab),
        Metrics::read(lab, "lb").noteworthy()
    );
}

fn handed_over(lab: &Lab) -> u64 {
    Metrics::read(lab, "lb").get("unlade_lb_migrations_completed_total")
}

/// Requests an object over an existing connection. Returns the status and the body.
fn get(stream: &mut TcpStream, path: &str) -> std::io::Result<(u16, Vec<u8>)> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: one.objects.lab\r\n\r\n")?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<usize>().ok());
    let status = number(head.split(' ').nth(1)).unwrap_or(0);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let mut body = vec![0; number(length).unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok((status as u16, body))
}

/// Connects a client's socket with a protocol and a local port (0 for any).
fn connect(to: IpAddr, protocol: i32, port: u16) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol.into()))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.connect_timeout(&SocketAddr::new(to, 80).into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Runs `work` on a thread inside the client's network.
fn at_client<T: Send>(lab: &Lab, work: impl FnOnce() -> T + Send) -> T {
    at(lab, "client", work)
}

/// Runs `work` on a thread inside a node's network.
fn at<T: Send>(lab: &Lab, node: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            lab.enter(node);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn who_is_not_of_the_pool_is_refused_and_counted() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let lab = lab();
    let config = std::fs::read_to_string(lab.dir().join("config/s1.toml")).unwrap();
    let mut agent = config.lines().skip_while(|line| *line != "[agent]");
    let agent = agent.nth(1).and_then(|line| line.split('"').nth(1)).unwrap();
    // Without a certificate, and with one of another CA.
    let pki = |file: &str| lab.dir().join("pki").join(file).display().to_string();
    let strange = lab.dir().join("pki/strange");
    let (certificate, key) = (strange.with_extension("crt"), strange.with_extension("key"));
    let made = lab.exec(
        "lb",
        &[
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=strange",
            "-keyout",
            key.to_str().unwrap(),
            "-out",
            certificate.to_str().unwrap(),
        ],
    );
    let url = format!("https://{agent}/");
    let ca = pki("pool-ca.crt");
    let mut strangers = vec![vec!["curl", "-s", "--max-time", "5", "--cacert", &ca, &url]];
    if made.status.success() {
        let own = ["--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
        strangers.push([strangers[0].as_slice(), &own].concat());
    }
    for stranger in &strangers {
        let output = lab.exec("lb", stranger);
        assert!(!output.status.success(), "{}", said(&output));
    }
    let counted = || Metrics::read(&lab, "s1").get("unlade_untrusted_peers_total");
    let due = strangers.len() as u64;
    assert!(wait_for(PATIENCE, || counted() == due), "{} of {due}", counted());
    // Members of the pool are not affected.
    let [v4, _] = lab.virtual_ips();
    let (status, _) = at_client(&lab, || get(&mut connect(v4, 6, 0).unwrap(), "/4KiB")).unwrap();
    assert_eq!(status, 200);
    wait_handed_over(&lab, 1);
}

#[test]
fn a_server_without_an_agent_is_proxied_to() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = lab();
    let (_server, _) = lab.without_agent();
    let [v4, _] = lab.virtual_ips();
    let whole = std::fs::read(lab.dir().join("objects/64KiB")).unwrap();
    let ask = || at_client(&lab, || get(&mut connect(v4, 6, 0)?, "/64KiB"));
    // Before the health checks find the server, other statuses are possible.
    let answered = wait_for(PATIENCE, || ask().is_ok_and(|(status, _)| status == 200));
    assert!(answered, "{:?}", ask().map(|(status, _)| status));
    let fallbacks = || Metrics::read(&lab, "lb").get("unlade_lb_fallbacks_total");
    let before = fallbacks();
    assert_eq!(ask().unwrap(), (200, whole));
    assert_eq!((fallbacks() - before, handed_over(&lab)), (1, 0));
}

#[test]
fn what_tcp_rarely_does_breaks_no_connection() {
    const IPPROTO_MPTCP: i32 = 262;
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let lab = lab();
    let [v4, _] = lab.virtual_ips();
    let whole = std::fs::read(lab.dir().join("objects/64KiB")).unwrap();
    at_client(&lab, || {
        match connect(v4, IPPROTO_MPTCP, 0) {
            Ok(mut multipath) => {
                for _ in 0..4 {
                    assert_eq!(get(&mut multipath, "/64KiB").unwrap(), (200, whole.clone()));
                }
            }
            Err(error) => println!("no multipath TCP here: {error}"),
        }
        // Urgent data between requests, which no process reads, while the connection moves.
        let mut urgent = connect(v4, 6, 0).unwrap();
        for _ in 0..4 {
            assert_eq!(get(&mut urgent, "/64KiB").unwrap(), (200, whole.clone()));
            socket2::SockRef::from(&urgent).send_out_of_band(b"!").unwrap();
        }
    });
    assert!(wait_for(PATIENCE, || handed_over(&lab) > 0));
}

#[test]
fn a_killed_balancer_leaves_nothing_that_steers() {
    const PORT: u16 = 45_678;
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = lab();
    let [v4, _] = lab.virtual_ips();
    let devices = || lab.exec_text("lb", &["ip", "-o", "link", "show"]);
    let with = devices().lines().count();
    // On a busy machine an offer may miss its deadline; then the next request is handed over.
    let moves = |connection: &mut TcpStream| {
        let moved = wait_for(PATIENCE, || {
            assert_eq!(get(connection, "/4KiB").unwrap().0, 200);
            handed_over(&lab) > 0
        });
        assert!(moved, "{}", Metrics::read(&lab, "lb").noteworthy());
    };
    let mut old = at_client(&lab, || connect(v4, 6, PORT).unwrap());
    moves(&mut old);
    lab.end("lb", "KILL");
    let gone = wait_for(PATIENCE, || devices().lines().count() == with - 1);
    assert!(gone, "the hold device is still there: {}", devices());
    let restarted = lab.run("restart", &["lb"]);
    assert!(restarted.status.success(), "{}", said(&restarted));
    // The old connection ends and does not hang.
    let end = |error: std::io::Error| error.kind() != std::io::ErrorKind::WouldBlock;
    let ended = wait_for(PATIENCE, || get(&mut old, "/4KiB").is_err_and(end));
    assert!(ended, "the connection outlived its balancer");
    drop(old);
    // A new connection with the same addresses and ports moves as any other.
    lab.wait_channels();
    let mut new = at_client(&lab, || connect(v4, 6, PORT).unwrap());
    moves(&mut new);
}

/// A client with a small window reads for longer than server and flow linger. The end of the
/// response, in the server's socket by then, must still reach the client, followed by an orderly
/// end.
#[test]
fn a_slow_reader_gets_the_end_of_its_answer() {
    // Longer than the 2 s for which a server reads input after its last response, and than the
    // second for which a flow lingers.
    const SLOW: Duration = Duration::from_secs(5);
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let lab = Lab::up(&["--tls", "--servers", "1", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    let [v4, v6] = lab.virtual_ips();
    let whole = std::fs::read(lab.dir().join("objects/64KiB")).unwrap();
    let tls = tls_config(&lab.dir().join("pki/ca.crt"), TlsVersions::Both);
    let fetch = |(address, tls): (SocketAddr, Option<Arc<rustls::ClientConfig>>), leave_first| {
        lab.enter("client");
        let tls = tls.map(|tls| (tls, "objects.lab".to_owned()));
        let target = Target { address, tls, receive_buffer_bytes: Some(2048), patience: PATIENCE };
        let mut client = Client::connect(&target).unwrap();
        let connection = if leave_first { "keep-alive" } else { "close" };
        let head = format!("Host: one.objects.lab\r\nConnection: {connection}\r\n\r\n");
        client.send(format!("GET /64KiB HTTP/1.1\r\n{head}").as_bytes()).unwrap();
        if leave_first {
            client.finish_sending().unwrap();
        }
        std::thread::sleep(SLOW);
        let response = client.response(false).unwrap();
        assert_eq!((response.status(), response.body.len()), (200, whole.len()), "{address}");
        assert!(response.body == whole, "{address}: other bytes");
        assert_eq!(
            client.wait_end(),
            End::Closed,
            "{address}, the client leaves first: {leave_first}"
        );
    };
    std::thread::scope(|scope| {
        for leave_first in [false, true] {
            scope.spawn(move || fetch(((v4, 80).into(), None), leave_first));
            let tls = tls.clone();
            scope.spawn(move || fetch(((v6, 443).into(), Some(tls)), leave_first));
        }
    });
    let reset = Metrics::read(&lab, "lb").get("unlade_resets_sent_total");
    // A client that leaves before its request is parsed is not moved.
    let expected = handed_over(&lab) >= 2 && reset == 0;
    assert!(expected, "{}", Metrics::read(&lab, "lb").noteworthy());
}

/// Returns the counter of one reason of fallback.
fn fallback(lab: &Lab, reason: &str) -> u64 {
    Metrics::read(lab, "lb").get(&format!("unlade_lb_fallbacks_total{{reason=\"{reason}\"}}"))
}

fn log_of(lab: &Lab, process: &str) -> String {
    std::fs::read_to_string(lab.dir().join("logs").join(format!("{process}.log"))).unwrap()
}

/// Returns the balancer's log line about a fallback of this reason.
fn fallback_line(lab: &Lab, reason: &str) -> Option<String> {
    let log = log_of(lab, "lb");
    let of_reason = format!("reason=\"{reason}\"");
    let is_it = |line: &&str| {
        line.contains("proxied instead of handed over") && line.contains(of_reason.as_str())
    };
    log.lines().find(is_it).map(str::to_owned)
}

#[test]
fn a_missing_virtual_ip_is_counted_and_logged_as_such() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let lab = lab();
    let [v4, _] = lab.virtual_ips();
    lab.exec_text("s1", &["ip", "address", "del", &format!("{v4}/32"), "dev", "lo"]);
    let (status, _) = at_client(&lab, || get(&mut connect(v4, 6, 0).unwrap(), "/4KiB")).unwrap();
    assert_eq!(status, 200, "the request is proxied");
    let counted = wait_for(PATIENCE, || fallback(&lab, "address_not_local") == 1);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    assert_eq!(fallback(&lab, "restore_failed"), 0);
    let refused = "unlade_backend_adoptions_refused_total{reason=\"address\"}";
    assert_eq!(Metrics::read(&lab, "s1").get(refused), 1);
    // The line names the cause, the remedy, the route and the server.
    let line = fallback_line(&lab, "address_not_local").expect("a line in the balancer's log");
    for part in ["add it there to lo", "host=\"one.objects.lab\"", "server=\"", "client="] {
        assert!(line.contains(part), "no {part} in: {line}");
    }
    assert!(log_of(&lab, "s1").contains("offer refused"), "the server's log has the errno");
}

/// Completes a TLS handshake with the client's Finished, a request and close_notify in one segment,
/// and returns the response. The balancer reads the end of the client's direction together with the
/// request.
fn ask_and_close_with_finished(target: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Vec<u8> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = "objects.lab".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(tls, name).unwrap();
    client.write_tls(&mut stream).unwrap();
    while client.is_handshaking() {
        assert!(client.read_tls(&mut stream).unwrap() > 0, "the balancer closed");
        client.process_new_packets().unwrap();
    }
    let request = b"GET /4KiB HTTP/1.1\r\nHost: one.objects.lab\r\n\r\n";
    client.writer().write_all(request).unwrap();
    client.send_close_notify();
    let mut last = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut last).unwrap();
    }
    stream.write_all(&last).unwrap();
    let mut response = Vec::new();
    rustls::Stream::new(&mut client, &mut stream).read_to_end(&mut response).unwrap();
    response
}

#[test]
fn a_tls_session_that_the_client_has_ended_is_not_moved() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let lab = Lab::up(&["--tls", "--servers", "1", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    let tls = tls_config(&lab.dir().join("pki/ca.crt"), TlsVersions::Both);
    let response = at_client(&lab, || ask_and_close_with_finished((v4, 443).into(), tls));
    assert!(response.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&response));
    let whole = std::fs::read(lab.dir().join("objects/4KiB")).unwrap();
    assert!(response.ends_with(&whole), "other bytes");
    let counted = wait_for(PATIENCE, || fallback(&lab, "tls_state") == 1);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    assert_eq!(handed_over(&lab), 0);
}

/// A program of the server has a socket with the addresses and ports of the client's connection.
#[test]
fn a_connection_whose_addresses_are_taken_at_the_server_is_proxied() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let lab = lab();
    let [v4, _] = lab.virtual_ips();
    let mut client = at_client(&lab, || connect(v4, 6, 0).unwrap());
    let address = client.local_addr().unwrap();
    let taken = at(&lab, "s1", || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // In repair mode it connects without a packet.
        unlade_sys::repair::freeze(&socket).unwrap();
        socket.bind(&SocketAddr::new(v4, 80).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        socket
    });
    let (status, _) = get(&mut client, "/4KiB").unwrap();
    assert_eq!(status, 200, "the request is proxied");
    let refused = "unlade_backend_adoptions_refused_total{reason=\"flow_in_use\"}";
    let counted = wait_for(PATIENCE, || Metrics::read(&lab, "s1").get(refused) > 0);
    assert!(counted, "{}", Metrics::read(&lab, "s1").noteworthy());
    assert!(wait_for(PATIENCE, || fallback(&lab, "restore_failed") > 0));
    assert_eq!(fallback(&lab, "address_not_local"), 0);
    assert!(log_of(&lab, "s1").contains("has the addresses of the connection"));
    drop(taken);
}

#[test]
fn a_server_that_does_not_answer_an_offer_is_counted_as_a_missed_deadline() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = lab();
    let [v4, _] = lab.virtual_ips();
    lab.signal("s1", "STOP");
    let mut client = at_client(&lab, || {
        let mut client = connect(v4, 6, 0).unwrap();
        write!(client, "GET /4KiB HTTP/1.1\r\nHost: one.objects.lab\r\n\r\n").unwrap();
        client
    });
    // The balancer reclaims the connection only after the lease.
    let counted = wait_for(PATIENCE + PATIENCE, || fallback(&lab, "deadline") == 1);
    let counts = Metrics::read(&lab, "lb").noteworthy();
    lab.signal("s1", "CONT");
    assert!(counted, "{counts}");
    assert!(fallback_line(&lab, "deadline").is_some_and(|line| line.contains("server=\"")));
    let mut start = [0; 12];
    client.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
}
