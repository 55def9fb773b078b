//! Responses of ordinary servers go to the client directly, while both connections stay at the
//! balancer: with real programs in a lab.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, said, turn};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(30);
const HOST: &str = "direct.objects.lab";
const RETURNS: &str = "unlade_lb_direct_returns_total";
const EARLY: &str = "unlade_lb_direct_returns_total{begin=\"early\"}";
const LATE: &str = "unlade_lb_direct_returns_total{begin=\"late\"}";
const UNFIT: &str = "unlade_lb_direct_returns_unfit_total";
const PROXIED: &str = "unlade_lb_fallbacks_total{reason=\"direct_return\"}";
const BYTES: &str = "unlade_lb_direct_return_bytes_total";

fn lab() -> Lab {
    let args = ["--servers", "1", "--objects", "small", "--fronts", "offload"];
    Lab::up(&[&args[..], &["--lb-workers", "1", "--direct-return", "--offload", "off"]].concat())
}

/// Connects from the client's network, with a receive buffer of so many bytes (0: the usual one).
fn connect(lab: &Lab, buffer_bytes: usize) -> TcpStream {
    connect_with(lab, |socket| {
        if buffer_bytes > 0 {
            socket.set_recv_buffer_size(buffer_bytes).unwrap();
        }
    })
}

fn connect_with(lab: &Lab, set: impl FnOnce(&Socket) + Send) -> TcpStream {
    let [v4, _] = lab.virtual_ips();
    let open = || {
        lab.enter("client");
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set(&socket);
        socket.connect_timeout(&SocketAddr::new(v4, 80).into(), PATIENCE).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

/// Requests an object, and compares the response's body.
fn ask(lab: &Lab, stream: &mut TcpStream, object: &str) {
    ask_host(lab, stream, HOST, object);
}

fn ask_host(lab: &Lab, stream: &mut TcpStream, host: &str, object: &str) {
    request(stream, host, object);
    receive(lab, stream, object);
}

fn request(stream: &mut TcpStream, host: &str, object: &str) {
    let request = format!("GET /{object} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
}

fn receive_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    head
}

fn receive(lab: &Lab, stream: &mut TcpStream, object: &str) {
    let head = receive_head(stream);
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    let expected = std::fs::read(lab.dir().join("objects").join(object)).unwrap();
    let mut body = vec![0; expected.len()];
    stream.read_exact(&mut body).unwrap();
    assert!(body == expected, "{object}: other bytes");
}

/// Responses that were relayed for a reason.
fn unfit(lab: &Lab, reason: &str) -> u64 {
    count(lab, &format!("{UNFIT}{{reason=\"{reason}\"}}"))
}

fn count(lab: &Lab, sample: &str) -> u64 {
    Metrics::read(lab, "lb").get(sample)
}

#[test]
fn large_responses_bypass_the_balancer() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    // The first response of a connection to a server can come whole before there is a limit.
    for object in ["4KiB", "1MiB", "64KiB", "1KiB", "1MiB", "256KiB", "1MiB"] {
        ask(&lab, &mut client, object);
    }
    // Three of 1 MiB; at most 64 KiB of the first are relayed, and 16 KiB of the others.
    let bytes = (3 << 20) - (96 << 10);
    let counted = wait_for(PATIENCE, || count(&lab, BYTES) >= bytes && count(&lab, RETURNS) >= 3);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    // Other clients use the same connection to the server.
    let connected = "unlade_lb_upstream_connects_total";
    let before = count(&lab, connected);
    for _ in 0..3 {
        ask(&lab, &mut connect(&lab, 0), "1MiB");
    }
    assert_eq!(count(&lab, connected), before);
}

#[test]
fn a_response_that_is_expected_is_direct_from_its_first_byte_on() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let mut clients = [connect(&lab, 0), connect(&lab, 0)];
    for object in ["64KiB", "256KiB", "1MiB"] {
        ask(&lab, &mut clients[0], object);
        let (early, bytes) = (count(&lab, EARLY), count(&lab, BYTES));
        for _ in 0..3 {
            for client in &mut clients {
                ask(&lab, client, object);
            }
        }
        let length = std::fs::metadata(lab.dir().join("objects").join(object)).unwrap().len();
        let counted = wait_for(PATIENCE, || {
            count(&lab, EARLY) >= early + 5 && count(&lab, BYTES) >= bytes + 5 * length
        });
        assert!(counted, "{object}: {}", Metrics::read(&lab, "lb").noteworthy());
    }
    assert!(count(&lab, LATE) > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_head_that_is_not_fit_comes_through_the_balancer() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    for _ in 0..3 {
        ask(&lab, &mut client, "64KiB");
    }
    assert!(wait_for(PATIENCE, || count(&lab, EARLY) > 0));
    let ended = "HTTP/1.1 304 ";
    for turn in 0..4 {
        let fields = "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n";
        let request = format!("GET /64KiB HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let head = receive_head(&mut client);
        assert!(head.starts_with(ended.as_bytes()), "{}", String::from_utf8_lossy(&head));
        // The path is known to be long again.
        (0..1 + turn % 2).for_each(|_| ask(&lab, &mut client, "64KiB"));
    }
    let counted = wait_for(PATIENCE, || unfit(&lab, "head") > 0);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_client_with_a_small_window_is_relayed_to() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    reconfigure(&lab, |text| {
        text.replace("direct_return = {", "direct_return = { from_bytes = \"8KiB\",")
    });
    ask(&lab, &mut connect(&lab, 0), "1MiB");
    // It reads nothing before the balancer has decided: its window is shorter than what was relayed.
    let mut client = connect(&lab, 8192);
    request(&mut client, HOST, "256KiB");
    let counted = wait_for(PATIENCE, || unfit(&lab, "window") > 0);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    receive(&lab, &mut client, "256KiB");
}

/// Restarts the balancer with another configuration.
fn reconfigure(lab: &Lab, change: impl FnOnce(&str) -> String) {
    let file = lab.dir().join("config/lb.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed = change(&text);
    assert_ne!(changed, text);
    std::fs::write(&file, changed).unwrap();
    let restarted = lab.run("restart", &["lb"]);
    assert!(restarted.status.success(), "{}", said(&restarted));
}

#[test]
fn connections_that_do_not_fit_are_relayed_to_and_counted() {
    needs!("ip", "setsid", "sysctl");
    let _turn = turn();
    let lab = lab();
    ask(&lab, &mut connect(&lab, 0), "1MiB");
    let mut narrow = connect_with(&lab, |socket| socket.set_tcp_mss(536).unwrap());
    ask(&lab, &mut narrow, "1MiB");
    assert!(unfit(&lab, "segments") > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    // Of new connections of the client's network.
    let set = lab.exec("client", &["sysctl", "-q", "-w", "net.ipv4.tcp_timestamps=0"]);
    assert!(set.status.success(), "{}", said(&set));
    ask(&lab, &mut connect(&lab, 0), "1MiB");
    assert!(unfit(&lab, "timestamps") > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_full_table_relays_and_is_counted() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    reconfigure(&lab, |text| text.replace("[offload]", "[offload]\nflows_max = 1"));
    let mut clients = [connect(&lab, 0), connect(&lab, 0)];
    for client in &mut clients {
        ask(&lab, client, "1MiB");
    }
    assert!(unfit(&lab, "failed") > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_connection_with_direct_responses_is_not_handed_over() {
    needs!("ip", "setsid");
    let _turn = turn();
    let args = ["--servers", "1", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(
        &[&args[..], &["--lb-workers", "1", "--direct-return", "--offload", "always"]].concat(),
    );
    lab.wait_channels();
    let mut client = connect(&lab, 0);
    for _ in 0..3 {
        ask(&lab, &mut client, "1MiB");
    }
    assert!(count(&lab, RETURNS) > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    ask_host(&lab, &mut client, "objects.lab", "4KiB");
    assert!(count(&lab, PROXIED) > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    // The next response of such a connection goes its own way again.
    ask(&lab, &mut client, "1MiB");
}

#[test]
fn without_an_agent_every_byte_still_comes() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    ask(&lab, &mut client, "1MiB");
    lab.signal("s1-agent", "KILL");
    for object in ["256KiB", "64KiB", "256KiB"] {
        ask(&lab, &mut client, object);
    }
    ask(&lab, &mut connect(&lab, 0), "256KiB");
    // So much comes here that the host cannot have taken the rule: no further splice begins.
    for _ in 0..2 {
        ask(&lab, &mut client, "1MiB");
    }
    let log = std::fs::read_to_string(lab.dir().join("logs/lb.log")).unwrap();
    assert_eq!(log.matches("does not take rules").count(), 1, "{log}");
    let before = count(&lab, RETURNS);
    ask(&lab, &mut client, "1MiB");
    assert_eq!(count(&lab, RETURNS), before);
}

/// Puts another server in the place of the lab's, and asks for large and small objects.
fn returns_of(program: &Path, arguments: &dyn Fn(&Lab) -> Vec<String>) {
    let lab = lab();
    lab.end("s1", "TERM");
    let arguments = arguments(&lab);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let _server = lab.start("s1", program, &arguments);
    let url = format!("http://{}/1KiB", server_address(&lab));
    let answers = || lab.exec("lb", &["curl", "-sf", "-o", "/dev/null", &url]).status.success();
    assert!(wait_for(PATIENCE, answers), "{} does not answer at {url}", program.display());
    let mut clients = [connect(&lab, 0), connect(&lab, 0)];
    for object in ["1MiB", "4KiB", "1MiB", "256KiB", "64KiB", "1MiB", "1MiB"] {
        for client in &mut clients {
            ask(&lab, client, object);
        }
    }
    let counted = wait_for(PATIENCE, || count(&lab, RETURNS) >= 6);
    assert!(counted, "{}: {}", program.display(), Metrics::read(&lab, "lb").noteworthy());
}

/// Returns the address of the lab's server.
fn server_address(lab: &Lab) -> String {
    let text = std::fs::read_to_string(lab.dir().join("config/lb.toml")).unwrap();
    let servers = text.lines().find(|line| line.starts_with("servers = ")).unwrap();
    format!("{}:8080", servers.split('"').nth(1).unwrap())
}

fn objects(lab: &Lab) -> String {
    lab.dir().join("objects").display().to_string()
}

#[test]
fn nginx_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    returns_of(Path::new("nginx"), &|lab| {
        let (file, dir) = (lab.dir().join("config/stock.conf"), lab.dir());
        let text = format!(
            "daemon off;\nmaster_process off;\nuser root;\npid {dir}/stock.pid;\nevents {{}}\nhttp {{\n  \
             access_log off;\n  sendfile on;\n  server {{ listen 8080; root {objects}; }}\n}}\n",
            dir = dir.display(),
            objects = objects(lab),
        );
        std::fs::write(&file, text).unwrap();
        let error_log = dir.join("logs/stock.log").display().to_string();
        vec!["-c".to_owned(), file.display().to_string(), "-e".to_owned(), error_log]
    });
}

#[test]
fn pythons_server_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "python3");
    let _turn = turn();
    returns_of(Path::new("python3"), &|lab| {
        let fixed = ["-m", "http.server", "8080", "--protocol", "HTTP/1.1", "--directory"];
        fixed.map(str::to_owned).into_iter().chain([objects(lab)]).collect()
    });
}

#[test]
fn a_server_in_go_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "go");
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("server");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source);
    build.env("GOPROXY", "off").env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
    let built = build.env("CGO_ENABLED", "0").output().unwrap();
    assert!(built.status.success(), "{}", said(&built));
    returns_of(&program, &|lab| vec![":8080".to_owned(), objects(lab)]);
}

#[test]
fn short_responses_show_that_there_is_no_agent() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    ask(&lab, &mut client, "256KiB");
    lab.end("s1-agent", "KILL");
    let log = || std::fs::read_to_string(lab.dir().join("logs/lb.log")).unwrap();
    let warnings = || log().matches("does not take rules").count();
    // Some do not begin: their connections do not fit each other just then.
    for _ in 0..40 {
        if warnings() > 0 {
            break;
        }
        ask(&lab, &mut client, "256KiB");
    }
    assert_eq!(warnings(), 1, "{}", log());
}

#[test]
fn a_key_that_is_no_key_is_named() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    std::fs::write(lab.dir().join("pki/rules.key"), "short").unwrap();
    let restarted = lab.run("restart", &["lb"]);
    let said = said(&restarted);
    assert!(!restarted.status.success() && said.contains("32 hexadecimal digits"), "{said}");
}
