//! The probes, each of them a small real thing.

use super::finding::{Finding, Outcome, Part};
use super::nic;
use anyhow::{Context, Result, bail};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use unlade_command::namespace::inside;
use unlade_command::tools::{find_program, ip_batch, run};
use unlade_net::FlowKey;
use unlade_steering::load::Hook;
use unlade_steering::{HoldLimits, Steering, SteeringConfig, Windows};
use unlade_sys::raw::FrameSocket;
use unlade_sys::repair::{self, Accept, Known};

/// Flows of the probe's table.
const FLOWS_MAX: u32 = 16;
/// Descriptors under which a busy balancer runs short.
const DESCRIPTORS_WANTED: u64 = 16_384;

/// Every probe, in the order of the report.
pub fn all() -> Vec<Finding> {
    let room = Room::new();
    let within = |probe: fn() -> Result<String>| match &room {
        Ok(room) => inside(&room.name, probe),
        Err(error) => bail!("not tried: {error:#}"),
    };
    let needed =
        |feature, result| finding(Part::ConnectionOffload, feature, result, Outcome::Missing);
    let better = |feature, result| finding(Part::Better, feature, result, Outcome::FallsBack);
    let lab = |feature, result| finding(Part::Lab, feature, result, Outcome::Missing);
    let mut findings = vec![
        needed("TCP_REPAIR", within(tcp_repair)),
        needed("steering, balancer", within(balancer_steering)),
        needed("steering, server", within(server_steering)),
        better("XDP on veth", within(driver_hook)),
        better("congestion window", congestion_window()),
        better("kernel TLS", kernel_tls()),
        better("BPF accounting", bpf_accounting()),
        better("file descriptors", descriptors()),
        lab(
            "network namespaces",
            room.as_ref().map(|_| created()).map_err(|e| anyhow::anyhow!("{e:#}")),
        ),
        lab("link rates (tbf)", within(link_rates)),
        nic::finding("TAP device", within(nic::tap)),
        nic::finding("packet sockets", within(nic::packets)),
    ];
    for program in ["ethtool", "setsid", "curl"] {
        findings.push(lab(program, installed(program)));
    }
    for program in ["nginx", "haproxy", "wrk"] {
        findings.push(finding(Part::Lab, program, installed(program), Outcome::FallsBack));
    }
    findings
}

fn finding(
    part: Part,
    feature: &'static str,
    result: Result<String>,
    otherwise: Outcome,
) -> Finding {
    match result {
        Ok(detail) => Finding { part, feature, outcome: Outcome::Works, detail },
        Err(error) => Finding { part, feature, outcome: otherwise, detail: format!("{error:#}") },
    }
}

/// A namespace for the probes, with a veth pair; removed when dropped.
struct Room {
    name: String,
}

impl Room {
    fn new() -> Result<Room> {
        let room = Room { name: format!("unlade-doctor-{}", std::process::id()) };
        run("ip", &["netns", "add", &room.name])?;
        let lines = [
            "link set lo up",
            "link add eth0 type veth peer name eth1",
            "addr add 10.255.255.1/24 dev eth0",
            "link set eth0 up",
            "link set eth1 up",
        ];
        ip_batch(&room.name, &lines.map(str::to_owned))?;
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A namespace that was not made cannot be removed; nothing to say about that.
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}

fn created() -> String {
    "one was made for these probes".to_owned()
}

/// Moves a connection from one socket to another and talks over it.
fn tcp_repair() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (server, peer) = listener.accept()?;
    let local = server.local_addr()?;
    // The listener would take the restored socket's place.
    drop(listener);
    let known = Known {
        flow: FlowKey::new(peer, local),
        socket: Default::default(),
        mss_bytes: None,
        algorithm: "cubic".to_owned(),
    };
    client.write_all(b"unread")?;
    repair::freeze(&server)?;
    let snapshot = repair::snapshot(&server, &known, Accept::Established)?;
    drop(server);
    let socket = repair::restore(&snapshot, || {})?.activate()?;
    let mut moved = TcpStream::from(socket);
    moved.set_nonblocking(false)?;
    for stream in [&client, &moved] {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    }
    let (mut heard, mut answer) = ([0u8; 6], [0u8; 2]);
    moved.read_exact(&mut heard).context("reading what was unread before the move")?;
    moved.write_all(b"ok")?;
    client.read_exact(&mut answer).context("the answer after the move")?;
    if &heard != b"unread" || &answer != b"ok" {
        bail!("a moved connection delivered other bytes");
    }
    Ok("a connection moved between two sockets, unread bytes with it".to_owned())
}

/// Loads the steering programs and attaches them to a link.
fn steering(hook: Hook, hold: bool) -> Result<Steering> {
    let config = SteeringConfig {
        interface: "eth0".to_owned(),
        flows_max: FLOWS_MAX,
        hold: hold.then(HoldLimits::default),
        hook,
    };
    Ok(Steering::open(&config)?)
}

fn balancer_steering() -> Result<String> {
    steering(Hook::Tc, true)?;
    Ok("eBPF at tc ingress, packets held in a TAP device".to_owned())
}

fn driver_hook() -> Result<String> {
    steering(Hook::Xdp, false)?;
    Ok("eBPF in the driver's hook".to_owned())
}

/// Requirements for a server that gives connections back: its packets go to the balancer, and those that
/// came too late are sent there.
fn server_steering() -> Result<String> {
    let steering = steering(Hook::Tc, false)?;
    FrameSocket::open(steering.link()).context("a packet socket (CAP_NET_RAW)")?;
    Ok("eBPF at tc ingress, and a packet socket".to_owned())
}

fn congestion_window() -> Result<String> {
    Windows::open().context("moved connections start slowly again")?;
    Ok("a sockops program restores it on moved connections".to_owned())
}

fn kernel_tls() -> Result<String> {
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    match available.split_ascii_whitespace().any(|name| name == "tls") {
        true => Ok("the kernel offers the tls ULP".to_owned()),
        false => bail!("no tls ULP in this kernel; records are sealed in user space"),
    }
}

fn bpf_accounting() -> Result<String> {
    unlade_steering::stats::enable()
        .context("experiments cannot count the time of BPF programs")?;
    Ok("the kernel accounts the run time of BPF programs".to_owned())
}

fn descriptors() -> Result<String> {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    match limit >= DESCRIPTORS_WANTED {
        true => Ok(format!("up to {limit} in a process")),
        false => bail!("only {limit} in a process; connections beyond are refused"),
    }
}

fn link_rates() -> Result<String> {
    let tbf = ["root", "tbf", "rate", "1gbit", "burst", "262144", "latency", "20ms"];
    run("tc", &[&["qdisc", "add", "dev", "eth1"][..], &tbf].concat())?;
    Ok("a link was given a rate".to_owned())
}

fn installed(program: &str) -> Result<String> {
    match find_program(program) {
        Some(path) => Ok(path.display().to_string()),
        None => bail!("not installed; `scripts/setup` installs it"),
    }
}
