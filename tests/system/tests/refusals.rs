//! Handovers that a server or the kernel refuses, connections that come home for want of requests,
//! and those that are lost, with real programs: each is counted by its reason.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use socket2::SockRef;
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, said, turn};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a lab with one server; connections are handed over from the first request on.
fn lab() -> Lab {
    let args = ["--servers", "1", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(&[&args[..], &["--lb-workers", "1"]].concat());
    lab.wait_channels();
    lab
}

/// Changes the configuration of a process and restarts it.
fn reconfigure(lab: &Lab, process: &str, change: impl FnOnce(&str) -> String) {
    let file = lab.dir().join(format!("config/{process}.toml"));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, change(&text)).unwrap();
    let restarted = lab.run("restart", &[process]);
    assert!(restarted.status.success(), "{process}: {}", said(&restarted));
    lab.wait_channels();
}

/// Connects from the client's network.
fn connect(lab: &Lab) -> TcpStream {
    let [v4, _] = lab.virtual_ips();
    let open = || {
        lab.enter("client");
        let stream = TcpStream::connect_timeout(&SocketAddr::new(v4, 80), PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

const GET: &[u8] = b"GET /4KiB HTTP/1.1\r\nHost: unlimited.objects.lab\r\n\r\n";

/// Requests an object of 4 KiB and reads the response, whose status must be 200.
fn ask(stream: &mut TcpStream) {
    stream.write_all(GET).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    stream.read_exact(&mut [0; 4096]).unwrap();
}

fn count(lab: &Lab, node: &str, sample: &str) -> u64 {
    Metrics::read(lab, node).get(sample)
}

/// Waits until every sample is above zero.
fn wait_counted(lab: &Lab, samples: &[(&str, &str)]) {
    for (node, sample) in samples {
        let counted = wait_for(PATIENCE, || count(lab, node, sample) > 0);
        assert!(counted, "{sample}: {}", Metrics::read(lab, node).noteworthy());
    }
}

fn client_ip(lab: &Lab) -> IpAddr {
    connect(lab).local_addr().unwrap().ip()
}

#[test]
fn a_server_that_cannot_restore_a_connection_refuses_it() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let client = format!("{}/32", client_ip(&lab));
    lab.exec_text("s1", &["ip", "route", "add", "unreachable", &client]);
    ask(&mut connect(&lab));
    wait_counted(
        &lab,
        &[
            ("lb", "unlade_lb_fallbacks_total{reason=\"restore_failed\"}"),
            ("s1", "unlade_backend_adoptions_refused_total{reason=\"tcp\"}"),
        ],
    );
    // With its route, the server adopts again.
    lab.exec_text("s1", &["ip", "route", "del", "unreachable", &client]);
    ask(&mut connect(&lab));
    wait_counted(&lab, &[("lb", "unlade_lb_migrations_completed_total")]);
}

#[test]
fn a_server_with_its_number_of_connections_refuses_more() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    reconfigure(&lab, "s1", |text| format!("adoptions_max = 1\n{text}"));
    let mut held: Vec<TcpStream> = (0..3).map(|_| connect(&lab)).collect();
    held.iter_mut().for_each(ask);
    wait_counted(
        &lab,
        &[
            ("lb", "unlade_lb_fallbacks_total{reason=\"overloaded\"}"),
            ("s1", "unlade_backend_adoptions_refused_total{reason=\"overloaded\"}"),
            ("lb", "unlade_lb_migrations_completed_total"),
        ],
    );
}

#[test]
fn a_full_flow_table_keeps_connections_at_the_balancer() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    reconfigure(&lab, "lb", |text| text.replace("[offload]", "[offload]\nflows_max = 1"));
    let mut held: Vec<TcpStream> = Vec::new();
    let full = wait_for(PATIENCE, || {
        held.push(connect(&lab));
        ask(held.last_mut().unwrap());
        count(&lab, "lb", "unlade_lb_fallbacks_total{reason=\"table_full\"}") > 0
    });
    assert!(full, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn an_idle_connection_comes_home_and_is_lost_without_its_address() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    reconfigure(&lab, "lb", |text| text.replace("[offload]", "[offload]\nidle_return = \"100ms\""));
    let mut client = connect(&lab);
    ask(&mut client);
    wait_counted(
        &lab,
        &[
            ("lb", "unlade_lb_returns_total{trigger=\"idle\"}"),
            ("s1", "unlade_backend_releases_total{trigger=\"idle\"}"),
            ("lb", "unlade_lb_reclaims_total"),
        ],
    );
    // It goes on at the balancer.
    ask(&mut client);
    // Without its address, the balancer cannot rebuild a connection.
    let moved = || count(&lab, "lb", "unlade_lb_migrations_completed_total");
    let [v4, _] = lab.virtual_ips();
    let removed = wait_for(PATIENCE, || {
        let before = moved();
        let mut client = connect(&lab);
        ask(&mut client);
        let left = wait_for(Duration::from_secs(1), || moved() > before);
        lab.exec_text("lb", &["ip", "address", "del", &format!("{v4}/32"), "dev", "eth0"]);
        let lost = || count(&lab, "lb", "unlade_lb_migrations_lost_total") > 0;
        let lost = left && wait_for(Duration::from_secs(2), lost);
        lab.exec_text("lb", &["ip", "address", "add", &format!("{v4}/32"), "dev", "eth0"]);
        lost
    });
    assert!(removed, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_connection_that_was_reset_is_not_handed_over() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    // The kernel accepts the connection; the stopped balancer finds request and reset together.
    lab.signal("lb", "STOP");
    let mut client = connect(&lab);
    client.write_all(GET).unwrap();
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    lab.signal("lb", "CONT");
    wait_counted(&lab, &[("lb", "unlade_lb_fallbacks_total{reason=\"not_established\"}")]);
}

/// Returns the hard limit of a process's descriptors.
fn hard_limit(pid: u64) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().nth(1).and_then(|hard| hard.parse().ok()).expect("a number")
}

#[test]
fn connections_wait_while_the_balancer_has_no_descriptors() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let processes = lab.processes();
    let (_, pid) = processes.iter().find(|(name, _)| name == "lb").expect("the balancer runs");
    let process = Pid::from_raw(*pid as i32);
    let log = || std::fs::read_to_string(lab.dir().join("logs/lb.log")).unwrap();
    let maximum = hard_limit(*pid);
    let lower = Rlimit { current: Some(0), maximum: Some(maximum) };
    let before = prlimit(process, Resource::Nofile, lower).expect("the limit is lowered");
    let mut client = connect(&lab);
    let noticed = wait_for(PATIENCE, || log().contains("raise the limit of descriptors"));
    prlimit(process, Resource::Nofile, before).expect("the limit is restored");
    assert!(noticed, "{}", log());
    ask(&mut client);
    let refused = "unlade_lb_connections_refused_total{reason=\"resources\"}";
    assert!(count(&lab, "lb", refused) > 0);
}
