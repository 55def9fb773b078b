//! Responses to a balancer's TLS clients are sealed at the server's host, beside stock nginx and beside servers
//! that frame, delay and break their responses in every way.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};

use rustls::ClientConnection;
use system_tests::client::{Client, End, TlsVersions, tls_config};
use system_tests::counters::{Metrics, wait_for};
use system_tests::site::{LONG, PATHS, PATIENCE, Site, Way, fetch};
use system_tests::{Lab, needs, pool, turn, unlade_lab};
use tokio::io::AsyncWriteExt;
use unlade_channel::channel::Channel;
use unlade_channel::role::Balancers;
use unlade_channel::sealing::{Opened, SealingReceiver};
use unlade_channel::trust::ServerTrust;
use unlade_handoff_protocol::frame::Frame;
use unlade_tls::piece::{Piece, PieceEnd};

/// The host whose pool has sealing.
const HOST: &str = "sealed.objects.lab";
/// Hosts whose pools have it, also with direct return: without rules at the server's host, and with them.
const HOSTS: [&str; 3] = [HOST, "forward.objects.lab", "late.objects.lab"];
/// Where a test's own server listens, at the server's host.
const OWN_SERVER: &str = "127.0.0.1:8083";
const SEALED: &str = "unlade_lb_sealed_responses_total";

fn count(lab: &Lab, sample: &str) -> u64 {
    Metrics::read(lab, "lb").get(sample)
}

fn declined(lab: &Lab, reason: &str) -> u64 {
    count(lab, &format!("unlade_lb_sealed_responses_declined_total{{reason=\"{reason}\"}}"))
}

/// Asserts that every response since the start was sealed.
fn assert_none_declined(lab: &Lab) {
    for reason in ["agent", "connection", "broken", "way"] {
        assert_eq!(declined(lab, reason), 0, "{reason}: {}", Metrics::read(lab, "lb").noteworthy());
    }
}

#[test]
fn responses_are_those_of_nginx_and_its_log_has_the_client() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    for way in [Way::Tcp, Way::Unix, Way::ProxyProtocol] {
        site.start_agent(way);
        let (lab, ca) = (&site.lab, site.lab.dir().join("pki/ca.crt").display().to_string());
        let (before, lines) = (count(lab, SEALED), site.log().len());
        let mut asked = 0;
        for what in [&[][..], &["--head"], &["--range", "100-900000"]] {
            let own = fetch(lab, "s1", "http://127.0.0.1:8081", what);
            for address in lab.virtual_ips() {
                for versions in ["--tlsv1.3", "--tls-max"] {
                    let to = match address.is_ipv4() {
                        true => format!("{HOST}:443:{address}"),
                        false => format!("{HOST}:443:[{address}]"),
                    };
                    let mut options = vec!["--cacert", &ca, "--resolve", &to, versions];
                    options.extend((versions == "--tls-max").then_some("1.2"));
                    options.extend(what);
                    let fetched = fetch(lab, "client", &format!("https://{HOST}"), &options);
                    let case = format!("{way:?} {options:?}");
                    assert_eq!(fetched.lasting_heads(), own.lasting_heads(), "{case}");
                    assert_eq!(fetched.ways().into_iter().collect::<Vec<_>>(), ["local"], "{case}");
                    for (at, path) in PATHS.iter().enumerate() {
                        // For HEAD, curl writes the head there.
                        let same = what.contains(&"--head") || fetched.bodies[at] == own.bodies[at];
                        assert!(same, "{case}, {path}: other bytes");
                    }
                    asked += PATHS.len() as u64;
                    let of_client = |line: &&[String; 7]| line[2] == fetched.from;
                    let log = site.log();
                    let lines = log[lines..].iter().filter(of_client).count();
                    assert!(
                        lines >= PATHS.len(),
                        "{case}: the log has {lines} lines of the client"
                    );
                }
            }
        }
        assert_eq!(count(lab, SEALED), before + asked, "{way:?}");
        assert_none_declined(lab);
        assert_eq!(site.sidecar("unlade_backend_sealed_responses_total"), asked, "{way:?}");
        assert!(site.sidecar("unlade_backend_sealing_connections") > 0, "{way:?}");
        site.end_agent();
    }
}

/// A server at the server's host that answers each request by a function, until that returns false.
struct OwnServer {
    address: SocketAddr,
}

impl OwnServer {
    fn start(lab: &Lab, answer: fn(&str, &mut TcpStream) -> bool) -> OwnServer {
        let bind = || {
            lab.enter("s1");
            TcpListener::bind(OWN_SERVER).unwrap()
        };
        let listener = std::thread::scope(|scope| scope.spawn(bind).join().unwrap());
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let Ok(tcp) = tcp else { return };
                std::thread::spawn(move || serve(tcp, answer));
            }
        });
        OwnServer { address }
    }
}

fn serve(mut tcp: TcpStream, answer: fn(&str, &mut TcpStream) -> bool) {
    tcp.set_nodelay(true).unwrap();
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match tcp.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        if !answer(head.split(' ').nth(1).unwrap(), &mut tcp) {
            return;
        }
    }
}

/// Content of the responses.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 3 + at / 1021) as u8).collect()
}

/// Lengths around those of a record, and long ones.
const LENGTHS: [usize; 8] = [0, 1, 16_200, 16_384, 16_385, 70_000, 300_000, 3_000_000];

/// Answers `/FRAMING/LENGTH`.
fn framed(path: &str, tcp: &mut TcpStream) -> bool {
    let mut words = path.split('/').skip(1);
    let framing = words.next().unwrap();
    let content = content(words.next().unwrap().parse().unwrap());
    let mut say = |bytes: &[u8]| {
        // The client may be gone.
        let _ = tcp.write_all(bytes);
    };
    let length = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
    match framing {
        "length" => say(length.as_bytes()),
        // Each byte of the head, and the body in pieces that are no records.
        "drop" => {
            length.as_bytes().chunks(1).for_each(&mut say);
            content.chunks(10_007).for_each(&mut say);
            return true;
        }
        "interim" => {
            say(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n");
            say(b"HTTP/1.1 103 Early Hints\r\nLink: </other.css>; rel=preload\r\n\r\n");
            say(length.as_bytes());
        }
        "chunked" => {
            say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for chunk in content.chunks(9_001) {
                say(format!("{:x}\r\n", chunk.len()).as_bytes());
                say(chunk);
                say(b"\r\n");
            }
            say(b"0\r\nX-Sum: 7\r\n\r\n");
            return true;
        }
        "until-close" => {
            say(b"HTTP/1.1 200 OK\r\n\r\n");
            content.chunks(10_007).for_each(say);
            return false;
        }
        "close" => {
            let head = length.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
            say(head.as_bytes());
            say(&content);
            return false;
        }
        // The client cannot take such a response for a whole one.
        "broken-length" | "broken-chunked" => {
            match framing {
                "broken-length" => say(length.as_bytes()),
                _ => say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\n"),
            }
            say(&content[..content.len() / 2]);
            let _ = tcp.shutdown(Shutdown::Both);
            return false;
        }
        "malformed" => say(b"nonsense\r\n\r\n"),
        other => panic!("{other}"),
    }
    say(&content);
    true
}

/// Runs curl at the client; returns its exit status, what it says for `-w`, and the bodies.
fn curl(
    lab: &Lab,
    host: &str,
    paths: &[String],
    options: &[&str],
) -> (Option<i32>, String, Vec<Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let ca = lab.dir().join("pki/ca.crt").display().to_string();
    let mut curl = vec!["curl", "-sS", "--max-time", "60", "--cacert", &ca];
    curl.extend(["-w", "%{http_code} %{num_connects}\\n"]);
    curl.extend(options);
    let outputs: Vec<String> = (0..paths.len())
        .map(|at| directory.path().join(at.to_string()).display().to_string())
        .collect();
    let urls: Vec<String> = paths.iter().map(|path| format!("https://{host}/{path}")).collect();
    for (url, output) in urls.iter().zip(&outputs) {
        curl.extend(["-o", output, url]);
    }
    let output = lab.exec("client", &curl);
    let bodies = outputs.iter().map(|output| fs::read(output).unwrap_or_default()).collect();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), bodies)
}

#[test]
fn every_framing_reaches_the_client_as_it_was_sent() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    let own = OwnServer::start(&site.lab, framed);
    site.start_agent_before(&format!("http://{}", own.address), "");
    let mut asked = 0;
    let framings = ["length", "drop", "interim", "chunked", "until-close", "close"];
    for (host, framing) in HOSTS.iter().flat_map(|host| framings.map(|framing| (host, framing))) {
        let paths = LENGTHS.map(|length| format!("{framing}/{length}"));
        for options in [&["--tlsv1.3"][..], &["--tls-max", "1.2"], &["--no-alpn", "--http1.0"]] {
            let (status, told, bodies) = curl(&site.lab, host, &paths, options);
            assert_eq!(status, Some(0), "{host} {framing} {options:?}: {told}");
            for ((body, length), told) in bodies.iter().zip(LENGTHS).zip(told.lines()) {
                assert!(*body == content(length), "{framing} {options:?}: {length}: other bytes");
                assert!(told.starts_with("200 "), "{framing} {options:?}: {told}");
            }
            let connects: Vec<&str> = told.lines().map(|line| &line[4..]).collect();
            let ends = framing == "until-close" || options.contains(&"--http1.0");
            let due = if ends { "1" } else { "0" };
            assert!(connects[1..].iter().all(|told| *told == due), "{framing} {options:?}: {told}");
            asked += LENGTHS.len() as u64;
        }
    }
    assert_eq!(count(&site.lab, SEALED), asked);
    assert_none_declined(&site.lab);
}

#[test]
fn a_response_that_breaks_does_not_look_complete() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    let own = OwnServer::start(&site.lab, framed);
    site.start_agent_before(&format!("http://{}", own.address), "");
    let mut broken = 0;
    for (host, framing) in
        HOSTS.iter().flat_map(|host| ["broken-length", "broken-chunked"].map(|how| (host, how)))
    {
        // A path's second response is expected to be long.
        for length in [70_000, 70_000, 3_000_000, 3_000_000] {
            let paths = [format!("{framing}/{length}")];
            let (status, told, bodies) = curl(&site.lab, host, &paths, &[]);
            assert_ne!(status, Some(0), "{host} {framing}/{length}: {told}");
            let whole = content(length);
            let is_prefix = bodies[0].len() < length && whole.starts_with(&bodies[0]);
            assert!(is_prefix, "{framing}/{length}: {} other bytes", bodies[0].len());
            broken += 1;
            let counted = wait_for(PATIENCE, || declined(&site.lab, "broken") == broken);
            assert!(counted, "{}", Metrics::read(&site.lab, "lb").noteworthy());
        }
    }
    // A response that has not begun is the agent's own.
    let paths = ["malformed/0", "length/10", "length/0"].map(str::to_owned);
    let (status, told, _) = curl(&site.lab, HOST, &paths, &[]);
    assert_eq!((status, told.as_str()), (Some(0), "502 1\n200 0\n200 0\n"));
    assert_eq!(declined(&site.lab, "broken"), broken);
}

#[test]
fn without_an_agent_responses_are_proxied() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    site.start_agent(Way::Tcp);
    let mut client = site.connect(HOST, true);
    assert_eq!(way_of(&site, &mut client), "local");
    // In order: no connection ends.
    site.end_agent();
    assert_eq!(way_of(&site, &mut client), "front");
    assert_eq!(declined(&site.lab, "agent"), 1);
    // The agent is not asked for a while.
    assert_eq!(way_of(&site, &mut client), "front");
    assert_eq!(declined(&site.lab, "agent"), 1);
    site.start_agent(Way::Tcp);
    assert!(wait_for(PATIENCE, || way_of(&site, &mut client) == "local"));
    // In the middle of a response: what the client has is right, and nothing hangs.
    let mut other = site.connect(HOST, true);
    let request = format!("GET /slow/1MiB HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    site.at_client(|| other.send(request.as_bytes()).unwrap());
    assert!(wait_for(PATIENCE, || site.sidecar("unlade_sidecar_busy_connections") > 0));
    site.agent = None;
    let ended = site.at_client(|| other.response(false).unwrap_err());
    let whole = fs::read(site.lab.dir().join("objects/1MiB")).unwrap();
    if let Some(partial) = ended.partial {
        assert!(whole.starts_with(&partial.body), "other bytes");
    }
    assert!(wait_for(PATIENCE, || declined(&site.lab, "broken") == 1));
    assert_eq!(way_of(&site, &mut site.connect(HOST, true)), "front");
}

/// Responses that bypassed the balancer's sockets.
fn returns(lab: &Lab, begin: &str) -> u64 {
    count(lab, &format!("unlade_lb_direct_returns_total{{begin=\"{begin}\"}}"))
}

#[test]
fn sealed_records_bypass_the_balancers_sockets() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    site.start_agent(Way::Tcp);
    for (host, begin) in [("forward.objects.lab", "early"), ("late.objects.lab", "late")] {
        let mut clients = [site.connect(host, true), site.connect(host, true)];
        let (before, sealed) = (returns(&site.lab, begin), count(&site.lab, SEALED));
        let objects = ["64KiB", "1MiB", "4KiB", "256KiB", LONG];
        const ROUNDS: usize = 6;
        for (round, name) in (0..ROUNDS).flat_map(|round| objects.map(|name| (round, name))) {
            let whole = fs::read(site.lab.dir().join("objects").join(name)).unwrap();
            for client in &mut clients {
                // Some requests come together.
                let together = 1 + round % 2;
                let request = format!("GET /{name} HTTP/1.1\r\nHost: {host}\r\n\r\n");
                site.at_client(|| {
                    client.send(request.repeat(together).as_bytes()).unwrap();
                    for _ in 0..together {
                        let response = client.response(false).unwrap();
                        assert!(response.body == whole, "{host} {round} {name}: {response:?}");
                        assert_eq!(response.header("x-way"), Some("local"));
                    }
                });
            }
        }
        let asked = (objects.len() * clients.len() * (ROUNDS + ROUNDS / 2)) as u64;
        let lb = || Metrics::read(&site.lab, "lb").noteworthy();
        // The end of a response that bypasses the sockets can be seen later.
        let counted = wait_for(PATIENCE, || count(&site.lab, SEALED) == sealed + asked);
        assert!(counted, "{host}: {} of {asked}: {}", count(&site.lab, SEALED) - sealed, lb());
        // A path's first response is not expected, and late ones are longer than two of the objects.
        let due = if begin == "early" { asked / 2 } else { asked / 3 };
        let counted = wait_for(PATIENCE, || returns(&site.lab, begin) >= before + due);
        assert!(counted, "{host}: {} of {asked}: {}", returns(&site.lab, begin) - before, lb());
    }
    assert_none_declined(&site.lab);
}

/// Asks for an object. Returns the way of the response.
fn way_of(site: &Site, client: &mut Client) -> String {
    let request = format!("GET /64KiB HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let response = site.at_client(|| {
        client.send(request.as_bytes()).unwrap();
        client.response(false).unwrap()
    });
    assert_eq!(response.status(), 200, "{response:?}");
    response.header("x-way").unwrap().to_owned()
}

/// The pool's configuration has no sizes, so the balancer chooses, also if a response is sealed at all.
#[test]
fn sealing_here_is_tried_where_the_balancer_chooses() {
    needs!("ip", "setsid", "kill", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    site.start_agent(Way::Tcp);
    let lab = &site.lab;
    let ca = lab.dir().join("pki/ca.crt").display().to_string();
    let load = ["load", "--url", "https://chosen.objects.lab", "--ca", &ca, "--path", "/64KiB"];
    let load = [&load[..], &["--connections", "4", "--duration", "10min"]].concat();
    let _load = lab.start("client", &unlade_lab(), &load);
    let is_tried = wait_for(2 * PATIENCE, || declined(lab, "way") > 0);
    assert!(is_tried, "{}", Metrics::read(lab, "lb").noteworthy());
    assert!(count(lab, SEALED) > 0);
    assert_eq!(declined(lab, "broken"), 0);
}

#[test]
fn a_client_that_aborts_ends_its_request_at_nginx() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    site.start_agent(Way::Tcp);
    for host in HOSTS.iter().cycle().take(6) {
        let mut client = site.connect(host, true);
        let request = format!("GET /slow/1MiB HTTP/1.1\r\nHost: {host}\r\n\r\n");
        site.at_client(|| client.send(request.as_bytes()).unwrap());
        assert!(wait_for(PATIENCE, || site.sidecar("unlade_sidecar_busy_connections") > 0));
        client.abort();
        let none = wait_for(PATIENCE, || site.sidecar("unlade_sidecar_busy_connections") == 0);
        assert!(none, "the request goes on at the local server");
    }
}

/// A client that asks for other keys, and at last ends its direction with a request.
#[test]
fn the_clients_own_messages_are_obeyed() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::with(&["--direct-return"]);
    site.start_agent(Way::Tcp);
    let [v4, _] = site.lab.virtual_ips();
    let ca = site.lab.dir().join("pki/ca.crt");
    let whole = fs::read(site.lab.dir().join("objects/64KiB")).unwrap();
    site.at_client(|| {
        let mut config = (*tls_config(&ca, TlsVersions::Both)).clone();
        let log = unlade_tls::client::capture(&mut config);
        let name = HOST.try_into().unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut tcp = TcpStream::connect((v4, 443)).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp).unwrap();
        }
        let mut record = unlade_tls::client::from_rustls(connection, &log, &[]).unwrap();
        let request = format!("GET /64KiB HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        for number in 0..8 {
            let mut out = Vec::new();
            if number % 2 == 1 {
                assert!(record.update_keys(true, &mut out).unwrap());
            }
            record.seal(request.as_bytes(), &mut out).unwrap();
            if number == 7 {
                record.close_notify(&mut out);
            }
            tcp.write_all(&out).unwrap();
            let mut seen = Vec::new();
            let head_bytes = |seen: &[u8]| seen.windows(4).position(|end| end == b"\r\n\r\n");
            while head_bytes(&seen).is_none_or(|at| seen.len() < at + 4 + whole.len()) {
                let mut buffer = [0; 20_000];
                let count = tcp.read(&mut buffer).unwrap();
                assert!(count > 0, "the balancer has closed the connection");
                record.receive(&buffer[..count], &mut seen).unwrap();
            }
            assert!(seen.ends_with(&whole), "other bytes");
        }
    });
    assert_eq!((count(&site.lab, SEALED), declined(&site.lab, "connection")), (7, 1));
    assert_eq!(declined(&site.lab, "broken"), 0);
}

/// Wrong answers of an agent.
#[derive(Debug, Clone, Copy)]
enum Lie {
    Nonsense,
    WrongProof,
    Surplus,
    TooManyRecords,
    Short,
    Silence,
}

/// An agent that answers one request.
async fn lie(lab: &Lab, listener: &tokio::net::TcpListener, lie: Lie) {
    let trust = pool::trust(lab, "s1");
    let trust = ServerTrust::load(&trust, &Balancers::default()).unwrap();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        let Ok(mut channel) = Channel::accept(tcp, Arc::clone(&trust.server)).await else {
            continue;
        };
        // The balancer opens a control channel too.
        let Ok(Frame::Sealing { key, .. }) = channel.receive().await else { continue };
        let Opened { mut tcp, mut receiver, mut proof } =
            SealingReceiver::open(channel, &key).unwrap();
        let Ok(Some(Frame::Seal { .. })) = receiver.receive(&tcp).await else { continue };
        let end = Some(PieceEnd { status: 200, keep_alive: true });
        let piece = Piece { bytes: 0, records: 0, end };
        let mut out = match lie {
            Lie::TooManyRecords => proof.header(&Piece { records: 1 << 40, ..piece }).to_vec(),
            Lie::Short => proof.header(&Piece { bytes: 1000, records: 1, end }).to_vec(),
            Lie::Silence => return,
            _ => proof.header(&piece).to_vec(),
        };
        match lie {
            Lie::Nonsense => out = vec![b'x'; 4096],
            Lie::WrongProof => out[30] ^= 1,
            Lie::Surplus => out.extend([23, 3, 3, 0, 5]),
            Lie::Short => out.extend([0; 500]),
            _ => {}
        }
        tcp.write_all(&out).await.unwrap();
        return;
    }
}

#[test]
fn an_agent_that_lies_costs_its_clients_connection_only() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let site = Site::with(&["--direct-return"]);
    let address = pool::agent(&site.lab, "s1");
    let lies = [
        Lie::Nonsense,
        Lie::WrongProof,
        Lie::Surplus,
        Lie::TooManyRecords,
        Lie::Short,
        Lie::Silence,
    ];
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pool::run_at(&site.lab, "s1", async || {
                let listener = tokio::net::TcpListener::bind(address).await.unwrap();
                ready.send(()).unwrap();
                for lied in lies {
                    lie(&site.lab, &listener, lied).await;
                }
            });
        });
        is_ready.recv().unwrap();
        for (at, lied) in lies.into_iter().enumerate() {
            let mut client = site.connect(HOST, true);
            let request = format!("GET /64KiB HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
            let ended = site.at_client(|| {
                client.send(request.as_bytes()).unwrap();
                client.response(false).unwrap_err()
            });
            assert!(ended.partial.is_none() && ended.why != End::TimedOut, "{lied:?}: {ended:?}");
            let counted = wait_for(PATIENCE, || declined(&site.lab, "broken") == at as u64 + 1);
            assert!(counted, "{lied:?}: {}", Metrics::read(&site.lab, "lb").noteworthy());
        }
    });
    assert_eq!((count(&site.lab, SEALED), declined(&site.lab, "agent")), (0, 0));
}
