//! Hostile, corrupt and unusual packets of adopted connections, with a real client, router,
//! balancer and server.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Command, Output};
use std::time::Duration;

use system_tests::client::{Client, Target};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, said, turn};
use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions};
use unlade_net::{FlowKey, SeqNumber};
use unlade_testkit::Random;

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Host whose connections stay at their server, and one whose connections are proxied.
const OFFLOADED: &str = "unlimited.objects.lab";
const PROXIED: &str = "off.objects.lab";

/// Requests an object several times over one connection, each time with a header line of a given
/// length. From the second request on, packets have IP options if requested.
const CLIENT: &str = r#"
import socket, sys
address, host, path, expected, requests, options, padding = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM)
s.settimeout(30)
s.connect((address, 80))
whole = open(expected, "rb").read()
for n in range(int(requests)):
    if n == 1 and options == "options":
        if family == socket.AF_INET:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([1, 1, 1, 1]))
        else:
            s.setsockopt(socket.IPPROTO_IPV6, 59, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Padding: {'x' * int(padding)}\r\n\r\n"
    s.sendall(request.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        got = s.recv(65536)
        assert got, "the end"
        answer += got
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    while len(body) < len(whole):
        got = s.recv(65536)
        assert got, "the end"
        body += got
    assert body == whole, "other bytes"
"#;

/// Uses one port for one connection after the other. Each is reset after a response.
const PORT: &str = r#"
import socket, struct, sys
address, host, rounds = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
port = 0
for n in range(int(rounds)):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", port))
    s.settimeout(30)
    s.connect((address, 80))
    port = s.getsockname()[1]
    s.sendall(f"GET /4KiB HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = b""
    while len(answer.partition(b"\r\n\r\n")[2]) < 4096:
        got = s.recv(65536)
        assert got, "the end"
        answer += got
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
"#;

fn lab() -> Lab {
    let lab = Lab::up(&["--servers", "1", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    lab
}

fn handed_over(lab: &Lab) -> u64 {
    Metrics::read(lab, "lb").get("unlade_lb_migrations_completed_total")
}

fn namespace(lab: &Lab, node: &str) -> String {
    format!("unlade-{}-{node}", lab.name)
}

/// Runs [`CLIENT`] in a network namespace.
fn ask(
    lab: &Lab,
    namespace: &str,
    to: IpAddr,
    host: &str,
    object: &str,
    (requests, options, padding_bytes): (u32, &str, u32),
) -> Output {
    let expected = lab.dir().join("objects").join(object);
    Command::new("ip")
        .args(["netns", "exec", namespace, "python3", "-c", CLIENT])
        .args([&to.to_string(), host, &format!("/{object}")])
        .arg(expected)
        .args([&requests.to_string(), options, &padding_bytes.to_string()])
        .output()
        .expect("ip runs")
}

/// Sends two acknowledgements half of the sequence space apart: one is ahead of the true one.
fn attack(flow: FlowKey, random: &mut Random) {
    for corrupt in [false, true] {
        let first = random.next() as u32;
        for ack in [first, first ^ 1 << 31] {
            let segment = Segment {
                flow,
                direction: Direction::ToService,
                seq: SeqNumber(random.next() as u32),
                ack: SeqNumber(ack),
                flags: TcpFlags::ACK,
                window: random.next() as u16,
                options: TcpOptions::default(),
                payload: &[],
            };
            let mut packet = segment.ip_packet().unwrap();
            let checksum_at = packet.len() - 4;
            if corrupt {
                packet[checksum_at] ^= 0x55;
            }
            unlade_sys::raw::send_packet(&packet, flow.service.ip()).unwrap();
        }
    }
}

fn local_ip(to: SocketAddr) -> IpAddr {
    let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(to).unwrap();
    socket.local_addr().unwrap().ip()
}

/// The server's host has no socket any more when the SYN arrives, and the balancer does not know yet.
#[test]
fn a_port_that_is_used_again_at_once_is_not_refused() {
    needs!("ip", "setsid", "curl", "python3");
    let _turn = turn();
    let lab = lab();
    // On a busy machine the balancer may know each time before the SYN arrives.
    for _ in 0..20 {
        for address in lab.virtual_ips().map(|ip| ip.to_string()) {
            let output = Command::new("ip")
                .args(["netns", "exec", &namespace(&lab, "client"), "python3", "-c", PORT])
                .args([&address, OFFLOADED, "6"])
                .output()
                .expect("ip runs");
            assert!(output.status.success(), "{address}: {}", said(&output));
        }
        if Metrics::read(&lab, "lb").get("unlade_delayed_syns_total") > 0 {
            return;
        }
    }
    panic!("no SYN was delayed: {}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn blind_and_corrupt_acknowledgements_do_not_stop_a_moved_connection() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let lab = lab();
    let whole = std::fs::read(lab.dir().join("objects/1MiB")).unwrap();
    let seed = unlade_testkit::seed();
    for (round, ip) in lab.virtual_ips().into_iter().enumerate() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lab.enter("client");
                let address = SocketAddr::new(ip, 80);
                // A small buffer makes the server wait for the client's acknowledgements.
                let receive_buffer_bytes = Some(32 * 1024);
                let target =
                    Target { address, tls: None, receive_buffer_bytes, patience: PATIENCE };
                let mut client = Client::connect(&target).unwrap();
                let flow = FlowKey::new((local_ip(address), client.port()).into(), address);
                let mut random = Random::numbered(seed, round as u64);
                let request = format!("GET /1MiB HTTP/1.1\r\nHost: {OFFLOADED}\r\n\r\n");
                for attempt in 0..2 {
                    let before = handed_over(&lab);
                    client.send(request.as_bytes()).unwrap();
                    if attempt == 0 {
                        assert!(wait_for(PATIENCE, || handed_over(&lab) > before));
                    }
                    attack(flow, &mut random);
                    let response = client.response(false).unwrap_or_else(|broken| {
                        let got = broken.partial.map(|response| response.body.len());
                        let faults = Metrics::read(&lab, "lb").noteworthy();
                        panic!("{address}: {:?} after {got:?} bytes; {faults}", broken.why)
                    });
                    assert!(response.body == whole, "{address}: other bytes");
                }
            });
        });
    }
    assert_eq!(Metrics::read(&lab, "lb").get("unlade_resets_sent_total"), 0);
}

#[test]
fn packets_with_options_or_extension_headers_reach_the_owner() {
    needs!("ip", "setsid", "curl", "python3");
    let _turn = turn();
    let lab = lab();
    for ip in lab.virtual_ips() {
        let before = handed_over(&lab);
        let asked =
            ask(&lab, &namespace(&lab, "client"), ip, OFFLOADED, "64KiB", (4, "options", 0));
        let metrics = Metrics::read(&lab, "lb");
        assert!(asked.status.success(), "{ip}: {}, {}", said(&asked), metrics.noteworthy());
        assert!(handed_over(&lab) > before, "{ip}: never handed over");
        assert_eq!(metrics.get("unlade_resets_sent_total"), 0);
    }
}

/// A host behind the lab's client, which acts as its router.
struct Behind<'l> {
    lab: &'l Lab,
    name: String,
}

impl<'l> Behind<'l> {
    fn new(lab: &'l Lab) -> Behind<'l> {
        let behind = Behind { lab, name: format!("{}-behind", lab.name) };
        let (name, router) = (behind.name.clone(), namespace(lab, "client"));
        ip(&format!("netns add {name}"));
        ip(&format!("-n {router} link add r0 type veth peer name x0 netns {name}"));
        for (namespace, device, host) in [(&router, "r0", 1), (&name, "x0", 2)] {
            ip(&format!("-n {namespace} addr add 10.77.0.{host}/24 dev {device}"));
            ip(&format!("-n {namespace} addr add fd77::{host}/64 dev {device} nodad"));
            ip(&format!("-n {namespace} link set {device} up"));
        }
        ip(&format!("-n {name} route add default via 10.77.0.1 advmss 500"));
        ip(&format!("-n {name} -6 route add default via fd77::1"));
        for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            behind.set("client", setting, "1");
        }
        for (option, net) in [("-4", "10.77.0.0/24"), ("-6", "fd77::/64")] {
            let scope = if option == "-6" { "scope global" } else { "" };
            let shown = ip(&format!("-n {router} {option} -o addr show dev eth0 {scope}"));
            let address = shown.split_whitespace().nth(3).and_then(|net| net.split('/').next());
            let address = address.expect("the client has an address");
            for node in ["lb", "s1"] {
                let node = namespace(lab, node);
                ip(&format!("-n {node} {option} route add {net} via {address}"));
            }
        }
        behind
    }

    /// Sets a sysctl below /proc/sys/net on a node.
    fn set(&self, node: &str, name: &str, value: &str) {
        let command = format!("echo {value} > /proc/sys/net/{name}");
        self.lab.exec_text(node, &["sh", "-c", &command]);
    }

    /// Returns a node's path MTU to this host; None if it is the link's MTU.
    fn learnt_mtu(&self, node: &str, from: IpAddr) -> Option<u32> {
        let to = if from.is_ipv6() { "fd77::2" } else { "10.77.0.2" };
        let namespace = namespace(self.lab, node);
        let route = ip(&format!("-n {namespace} route get {to} from {from}"));
        let mut words = route.split_whitespace().skip_while(|word| *word != "mtu");
        words.nth(1).and_then(|mtu| mtu.parse().ok())
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {}", said(&output));
    system_tests::text(&output)
}

#[test]
fn a_routers_mtu_is_learnt_by_the_server_that_answers() {
    needs!("ip", "setsid", "curl", "python3");
    let _turn = turn();
    let lab = lab();
    let behind = Behind::new(&lab);
    let router = namespace(&lab, "client");
    ip(&format!("-n {} route replace default via 10.77.0.1", behind.name));
    let [v4, v6] = lab.virtual_ips();
    // IPv4 last: an MTU below 1280 disables IPv6 on the link.
    for (to, mtu) in [(v6, 1300), (v4, 1000)] {
        ip(&format!("-n {router} link set r0 mtu {mtu}"));
        for (host, node) in [(PROXIED, "lb"), (OFFLOADED, "s1")] {
            assert_eq!(behind.learnt_mtu(node, to), None, "{node} knows before it can");
            let asked = ask(&lab, &behind.name, to, host, "1MiB", (1, "", 0));
            let metrics = Metrics::read(&lab, "lb").noteworthy();
            assert!(asked.status.success(), "{host}, {to}: {}, {metrics}", said(&asked));
            assert_eq!(behind.learnt_mtu(node, to), Some(mtu), "{host}, {to}: {metrics}");
        }
    }
    // The counter is updated at the next tick.
    let counted = || Metrics::read(&lab, "lb").get("unlade_redirected_icmp_errors_total") >= 2;
    assert!(wait_for(PATIENCE, counted), "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn fragments_reach_the_owner() {
    needs!("ip", "setsid", "curl", "python3");
    let _turn = turn();
    let lab = lab();
    let behind = Behind::new(&lab);
    let [v4, _] = lab.virtual_ips();
    // Segments of 1400 bytes without DF, and a router that must fragment them.
    let unset = format!("netns exec {} sh -c", behind.name);
    let output = Command::new("ip")
        .args(unset.split(' '))
        .arg("echo 1 > /proc/sys/net/ipv4/ip_no_pmtu_disc")
        .output()
        .expect("ip runs");
    assert!(output.status.success(), "{}", said(&output));
    ip(&format!("-n {} link set eth0 mtu 600", namespace(&lab, "client")));
    let asked = ask(&lab, &behind.name, v4, OFFLOADED, "64KiB", (6, "", 1300));
    let metrics = Metrics::read(&lab, "lb");
    assert!(asked.status.success(), "{}, {}", said(&asked), metrics.noteworthy());
    assert!(handed_over(&lab) > 0, "never handed over");
    assert_eq!(metrics.get("unlade_resets_sent_total"), 0);
    let fragmented = lab.exec_text("client", &["cat", "/proc/net/snmp"]);
    let mut lines = fragmented.lines().filter(|line| line.starts_with("Ip:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "FragCreates").unwrap();
    let created: u64 = values.split(' ').nth(at).unwrap().parse().unwrap();
    assert!(created >= 12, "the router made {created} fragments");
}
