//! Responses of ordinary servers go to the client directly, while both connections stay at the
//! balancer: with real programs in a lab.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, said, turn};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(30);
const HOST: &str = "direct.objects.lab";
const RETURNS: &str = "unlade_lb_direct_returns_total";
const UNFIT: &str = "unlade_lb_direct_returns_unfit_total";
const BYTES: &str = "unlade_lb_direct_return_bytes_total";

fn lab() -> Lab {
    let args = ["--servers", "1", "--objects", "small", "--fronts", "offload"];
    Lab::up(&[&args[..], &["--lb-workers", "1", "--direct-return", "--offload", "off"]].concat())
}

/// Connects from the client's network, with a receive buffer of so many bytes (0: the usual one).
fn connect(lab: &Lab, buffer_bytes: usize) -> TcpStream {
    let [v4, _] = lab.virtual_ips();
    let open = || {
        lab.enter("client");
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if buffer_bytes > 0 {
            socket.set_recv_buffer_size(buffer_bytes).unwrap();
        }
        socket.connect_timeout(&SocketAddr::new(v4, 80).into(), PATIENCE).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

/// Requests an object, and compares the response's body.
fn ask(lab: &Lab, stream: &mut TcpStream, object: &str) {
    let request = format!("GET /{object} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    let expected = std::fs::read(lab.dir().join("objects").join(object)).unwrap();
    let mut body = vec![0; expected.len()];
    stream.read_exact(&mut body).unwrap();
    assert!(body == expected, "{object}: other bytes");
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
fn a_client_with_a_small_window_is_relayed_to() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    ask(&lab, &mut connect(&lab, 0), "1MiB");
    ask(&lab, &mut connect(&lab, 2048), "256KiB");
    assert!(count(&lab, UNFIT) > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
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
