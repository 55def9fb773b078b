//! `unlade agent` at a server's host: rules in datagrams, segments that go to a client directly,
//! and everything as before when the agent has ended. Two hosts in network namespaces of their
//! own: the server's, and one that is balancer and client.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};
use system_tests::{admin, needs, text, unique_name, unlade};
use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::Rule;
use unlade_splice::datagram::{Datagram, Key, encode};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of metrics that a wait reads at most.
const READS_MAX: u32 = 100_000;
const ADMIN: u16 = 9902;
const RULES: u16 = 7901;
const SERVER: &str = "10.9.3.3";
const BALANCER: &str = "10.9.3.1";
const CLIENT: &str = "10.9.3.7:40000";
/// No host has it, so that the client's host accepts segments from it.
const SERVICE: &str = "10.9.3.9:80";
const IPV4_BYTES: usize = 20;

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// The namespaces of the server's host and of the balancer's, joined by a veth pair with ends
/// `near`. Removed on drop, also if the test fails.
struct Hosts {
    directory: tempfile::TempDir,
    names: [String; 2],
}

impl Hosts {
    fn new() -> Hosts {
        let name = unique_name();
        let names = [format!("unlade-{name}-s"), format!("unlade-{name}-b")];
        let hosts = Hosts { directory: tempfile::tempdir().unwrap(), names };
        for name in &hosts.names {
            run("ip", &["netns", "add", name]);
            run("ip", &["-n", name, "link", "set", "lo", "up"]);
        }
        let [server, balancer] = &hosts.names;
        let pair = ["link", "add", "near", "netns", server, "type", "veth", "peer", "near"];
        run("ip", &[&pair[..], &["netns", balancer]].concat());
        for (name, address) in [(server, SERVER), (balancer, BALANCER), (balancer, "10.9.3.7")] {
            run("ip", &["-n", name, "addr", "add", &format!("{address}/24"), "dev", "near"]);
            run("ip", &["-n", name, "link", "set", "near", "up"]);
        }
        hosts
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the key file.
    fn write_key(&self, key: &Key, mode: u32) {
        let digits: String = key.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(self.path("rules.key"), format!("{digits}\n")).unwrap();
        fs::set_permissions(self.path("rules.key"), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Returns the command that runs the agent on an interface of the server's host.
    fn agent(&self, interface: &str, idle: &str) -> Command {
        let config = format!(
            "interface = {interface:?}\nkey_file = \"rules.key\"\nrules_port = {RULES}\n\
             flows_max = 1\nidle = {idle:?}\nadmin = \"127.0.0.1:{ADMIN}\"\n"
        );
        fs::write(self.path("agent.toml"), config).unwrap();
        let mut command = Command::new("ip");
        // `ip` becomes the agent: its process gets the signals.
        command.args(["netns", "exec", &self.names[0]]).arg(unlade());
        command.args(["agent", "--config"]).arg(self.path("agent.toml"));
        command.stdin(Stdio::null()).env_remove("UNLADE_LOG");
        command
    }

    /// Runs a function in a host's namespace: that of the server, or of the balancer.
    fn inside<T: Send>(&self, host: usize, function: impl FnOnce() -> T + Send) -> T {
        let name = &self.names[host];
        let within = move || {
            let namespace = fs::File::open(format!("/run/netns/{name}")).expect("it exists");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the test may enter it");
            function()
        };
        std::thread::scope(|scope| scope.spawn(within).join().expect("the function returns"))
    }

    /// Returns the value of a metric; `None` while the agent does not serve.
    fn metric(&self, name: &str) -> Option<u64> {
        let page = self.inside(0, || admin::get(ADMIN, "/metrics")).ok()?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(|value| value.parse().expect("a number"))
    }

    fn await_metric(&self, name: &str, is_due: impl Fn(u64) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..READS_MAX {
            let value = self.metric(name);
            if value.is_some_and(&is_due) {
                return;
            }
            assert!(Instant::now() < deadline, "{name} is {value:?}");
            std::thread::yield_now();
        }
        panic!("{name} does not change");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One may be missing if the set-up failed.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// A running agent, killed on drop.
struct Agent(Child);

impl Agent {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both ends of a connection, and a socket that sees the packets of the balancer's host.
struct Connection {
    balancer: TcpStream,
    server: TcpStream,
    packets: Socket,
}

/// A TCP segment with data.
struct Seen {
    seq: SeqNumber,
    ack: SeqNumber,
    ports: [u16; 2],
    payload: Vec<u8>,
}

impl Connection {
    fn open(hosts: &Hosts) -> Connection {
        let server = SocketAddr::new(SERVER.parse().unwrap(), 8080);
        let listener = hosts.inside(0, || TcpListener::bind(server)).expect("a free port");
        let packets = hosts.inside(1, || {
            Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).expect("root may")
        });
        packets.set_read_timeout(Some(PATIENCE)).unwrap();
        let balancer = hosts.inside(1, || TcpStream::connect(server)).expect("the server listens");
        balancer.set_read_timeout(Some(PATIENCE)).unwrap();
        let (server, _) = listener.accept().expect("the connection");
        server.set_nodelay(true).unwrap();
        Connection { balancer, server, packets }
    }

    fn flow(&self) -> FlowKey {
        FlowKey::new(self.balancer.local_addr().unwrap(), self.balancer.peer_addr().unwrap())
    }

    /// Returns the next segment with data that comes from an address to the balancer's host.
    fn next_from(&mut self, from: &str) -> Seen {
        let from: SocketAddr = from.parse().unwrap();
        let std::net::IpAddr::V4(address) = from.ip() else { panic!("{from} is IPv4") };
        let deadline = Instant::now() + PATIENCE;
        let mut packet = [0; 2048];
        while Instant::now() < deadline {
            let bytes = self.packets.read(&mut packet).expect("a packet in time");
            let (header, tcp) = packet[..bytes].split_at(IPV4_BYTES);
            let data_at = usize::from(tcp[12] >> 4) * 4;
            if header[12..16] != address.octets() || tcp.len() <= data_at {
                continue;
            }
            let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
            let port = |at: usize| u16::from_be_bytes(tcp[at..at + 2].try_into().unwrap());
            return Seen {
                seq: SeqNumber(word(4)),
                ack: SeqNumber(word(8)),
                ports: [port(0), port(2)],
                payload: tcp[data_at..].to_vec(),
            };
        }
        panic!("no segment from {from}");
    }
}

/// Nanoseconds since 1970, as balancers number their datagrams.
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

fn rules(result: &str) -> String {
    format!("unlade_agent_rules_total{{result=\"{result}\"}}")
}

fn blank_rule() -> Rule {
    Rule {
        first: SeqNumber(0),
        end: None,
        request_end: SeqNumber(0),
        delta: 1000,
        ack: SeqNumber(77),
        window: 500,
        clock: None,
        awaits_head: false,
    }
}

#[test]
fn segments_of_a_rule_go_to_the_client_until_the_agent_ends() {
    needs!("ip");
    let hosts = Hosts::new();
    let key = Key { number: 1, secret: [0xa5; 16] };
    hosts.write_key(&key, 0o600);
    let mut agent = Agent(hosts.agent("near", "1h").spawn().expect("the agent starts"));
    hosts.await_metric("unlade_agent_connections", |value| value == 0);
    let mut connection = Connection::open(&hosts);
    let rules_from = hosts.inside(1, || UdpSocket::bind((BALANCER, 0))).unwrap();
    let send = |datagram: &Datagram, key: &Key| {
        rules_from.send_to(&encode(datagram, key), (SERVER, RULES)).expect("a route");
    };

    // Without a rule, the balancer gets the response. Its numbers make the rule.
    connection.server.write_all(b"r").unwrap();
    let Seen { seq, ack, .. } = connection.next_from(&format!("{SERVER}:8080"));
    let rule = Rule { first: seq + 1, request_end: ack, ..blank_rule() };
    let client = FlowKey::new(CLIENT.parse().unwrap(), SERVICE.parse().unwrap());
    let datagram =
        Datagram { counter: now_ns(), server: connection.flow(), client, rule, grant: None };
    assert_eq!(hosts.metric("unlade_agent_connections"), Some(0));
    send(&datagram, &key);
    hosts.await_metric(&rules("taken"), |value| value == 1);
    assert_eq!(hosts.metric("unlade_agent_connections"), Some(1));
    connection.server.write_all(b"esponse").unwrap();
    let direct = connection.next_from(SERVICE);
    assert_eq!((direct.seq, direct.ack), (seq + 1001, SeqNumber(77)));
    assert_eq!((direct.ports, &direct.payload[..]), ([80, 40000], &b"esponse"[..]));
    hosts.await_metric("unlade_agent_direct_segments_total", |value| value >= 1);
    hosts.await_metric("unlade_agent_direct_bytes_total", |value| value >= 7);

    // Datagrams that change nothing.
    send(&datagram, &key);
    hosts.await_metric(&rules("old"), |value| value == 1);
    let hours = Duration::from_secs(2 * 60 * 60).as_nanos() as u64;
    let mut server = datagram.server;
    server.client.set_port(server.client.port() ^ 1);
    send(&Datagram { counter: now_ns() - hours, server, ..datagram }, &key);
    hosts.await_metric(&rules("old"), |value| value == 2);
    send(&Datagram { counter: now_ns(), server, ..datagram }, &key);
    hosts.await_metric(&rules("full"), |value| value == 1);
    let next = Key { secret: [0x5a; 16], ..key };
    send(&Datagram { counter: now_ns(), ..datagram }, &next);
    hosts.await_metric(&rules("forged"), |value| value == 1);
    assert_eq!(hosts.metric(&rules("taken")), Some(1));

    // Another key, after SIGHUP. Datagrams before it are forged.
    hosts.write_key(&next, 0o600);
    agent.signal(Signal::HUP);
    let deadline = Instant::now() + PATIENCE;
    while hosts.metric(&rules("taken")) == Some(1) {
        assert!(Instant::now() < deadline, "the key file is not read again");
        send(&Datagram { counter: now_ns(), ..datagram }, &next);
    }

    // The end: the segment that the client has not acknowledged reaches the balancer.
    agent.signal(Signal::TERM);
    let status = agent.0.wait().unwrap();
    assert!(status.success(), "{status}");
    let mut response = [0; 8];
    connection.balancer.read_exact(&mut response).expect("the server sends it again");
    assert_eq!(&response, b"response");
}

#[test]
fn an_idle_connection_makes_place_for_another_one() {
    needs!("ip");
    let hosts = Hosts::new();
    let key = Key { number: 1, secret: [3; 16] };
    hosts.write_key(&key, 0o600);
    let agent = Agent(hosts.agent("near", "1s").spawn().expect("the agent starts"));
    hosts.await_metric("unlade_agent_connections", |value| value == 0);
    let rules_from = hosts.inside(1, || UdpSocket::bind((BALANCER, 0))).unwrap();
    let client = FlowKey::new(CLIENT.parse().unwrap(), SERVICE.parse().unwrap());
    let mut last = None;
    for (port, taken) in [(1, 1), (2, 2)] {
        let server = FlowKey::new(
            SocketAddr::new(BALANCER.parse().unwrap(), port),
            SocketAddr::new(SERVER.parse().unwrap(), 8080),
        );
        let datagram =
            Datagram { counter: now_ns(), server, client, rule: blank_rule(), grant: None };
        let datagram = encode(&datagram, &key);
        rules_from.send_to(&datagram, (SERVER, RULES)).expect("a route");
        hosts.await_metric(&rules("taken"), |value| value == taken);
        hosts.await_metric("unlade_agent_connections", |value| value == 0);
        last = Some(datagram);
    }
    rules_from.send_to(&last.unwrap(), (SERVER, RULES)).expect("a route");
    hosts.await_metric(&rules("old"), |value| value == 1);
    assert_eq!(hosts.metric("unlade_agent_connections"), Some(0));
    drop(agent);
}

#[test]
fn an_agent_that_cannot_start_says_why() {
    needs!("ip");
    let hosts = Hosts::new();
    let key = Key { number: 0, secret: [1; 16] };
    let refused = |interface: &str, more: &[&str]| {
        let output = hosts.agent(interface, "1h").args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for more in [&[][..], &["--check"]] {
        hosts.write_key(&key, 0o644);
        let said = refused("near", more);
        assert!(said.contains("rules.key: mode 644 lets other users read the key"), "{said}");
        hosts.write_key(&key, 0o600);
        fs::write(hosts.path("rules.key"), "no key\n").unwrap();
        let said = refused("near", more);
        assert!(said.contains("rules.key: it must have 32 hexadecimal digits"), "{said}");
        fs::remove_file(hosts.path("rules.key")).unwrap();
        let said = refused("near", more);
        assert!(said.contains("rules.key: No such file"), "{said}");
    }
    hosts.write_key(&key, 0o600);
    let said = refused("far0", &[]);
    assert!(said.contains("interface far0: "), "{said}");
    let output = hosts.agent("near", "1h").arg("--check").output().unwrap();
    assert!(output.status.success() && text(&output).ends_with("agent.toml: valid"), "{output:?}");
}
