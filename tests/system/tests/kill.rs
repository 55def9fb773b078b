//! Kills, stops and drains balancer and servers under load: every client connection continues with
//! the right bytes or ends; none hangs for longer than a lease; no state is left over. The same with the
//! agents of direct return: every connection continues. The same with sealed responses.
//!
//! `UNLADE_KILL_ROUNDS` is the number of rounds, `UNLADE_SEED` selects times and faults,
//! `UNLADE_BLOW` (0 to 11) selects one fault for all rounds.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use system_tests::client::{Client, End, Target, TlsVersions, tls_config};
use system_tests::counters::{Metrics, descriptors, wait_for};
use system_tests::variables::{env_number, hosts};
use system_tests::{Lab, needs, said, turn};
use unlade_testkit::{Random, seed};

/// Number of concurrent clients.
const CLIENTS: usize = 12;
const SERVERS: usize = 3;
/// Time limit of a client: the lease and a margin for a busy machine. It exceeds the longest stop
/// of a process, because a proxied request waits for the server.
const PATIENCE: Duration = Duration::from_secs(10 + 8);
/// Time limit of a drain.
const DRAIN_WAIT: Duration = Duration::from_secs(35);
/// Time limit until requests are answered again.
const RECOVERY_WAIT: Duration = Duration::from_secs(20);
/// Requested objects, small and large.
const OBJECTS: [&str; 6] = ["4KiB", "64KiB", "set/17", "256KiB", "set/48", "1MiB"];

/// An injected fault and its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    KillServer,
    KillBalancer,
    KillBoth,
    DrainServer,
    DrainBalancer,
    StopServer(Duration),
    StopBalancer(Duration),
    KillAgent,
    DrainAgent,
    StopAgent(Duration),
}

/// The faults of twelve rounds.
type Blows = [Blow; 12];

/// Every kind for connections that move, common ones repeatedly.
const BLOWS: Blows = [
    Blow::KillServer,
    Blow::KillBalancer,
    Blow::DrainServer,
    Blow::StopServer(Duration::from_secs(3)),
    Blow::KillServer,
    Blow::DrainBalancer,
    Blow::KillBoth,
    Blow::StopServer(Duration::from_secs(15)),
    Blow::KillServer,
    Blow::StopBalancer(Duration::from_secs(3)),
    Blow::KillBalancer,
    Blow::DrainServer,
];

/// Those of agents, for direct return.
const AGENT_BLOWS: Blows = {
    let [kill, drain, stop] =
        [Blow::KillAgent, Blow::DrainAgent, Blow::StopAgent(Duration::from_secs(1))];
    [kill, drain, kill, stop, kill, drain, kill, kill, drain, kill, stop, kill]
};

/// Returns the fault of a round. The long stop is in the first dozen and then in every tenth one.
fn blow(blows: &Blows, round: usize) -> Blow {
    if let Ok(only) = std::env::var("UNLADE_BLOW") {
        return blows[only.parse::<usize>().expect("a number") % blows.len()];
    }
    let (dozen, number) = (round / blows.len(), round % blows.len());
    match blows[number] {
        Blow::StopServer(long) if long.as_secs() > 10 && dozen % 10 != 0 => Blow::KillServer,
        blow => blow,
    }
}

/// State shared by the clients and the fault injector.
struct Shared {
    addresses: [std::net::IpAddr; 2],
    /// Of half of the connections.
    tls: Option<Arc<rustls::ClientConfig>>,
    hosts: Vec<String>,
    /// See [`Case`].
    leaves_percent: u64,
    objects: BTreeMap<&'static str, Vec<u8>>,
    /// Even without a fault, odd from a fault until recovery.
    phase: AtomicU64,
    stop: AtomicBool,
    answered: AtomicU64,
    ended: AtomicU64,
    faults: Mutex<Vec<String>>,
    started: Instant,
}

impl Shared {
    fn new(lab: &Lab, case: &Case) -> Shared {
        let content = |name: &'static str| {
            (name, std::fs::read(lab.dir().join("objects").join(name)).unwrap())
        };
        Shared {
            addresses: lab.virtual_ips(),
            tls: case.has_tls.then(|| tls_config(&lab.dir().join("pki/ca.crt"), TlsVersions::Both)),
            hosts: case.hosts.clone(),
            leaves_percent: case.leaves_percent,
            objects: OBJECTS.map(content).into(),
            phase: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            faults: Mutex::new(Vec::new()),
            started: Instant::now(),
        }
    }

    fn fault(&self, what: String) {
        let at = self.started.elapsed().as_secs_f64();
        self.faults.lock().unwrap().push(format!("{at:.3} s: {what}"));
    }

    fn target(&self, random: &mut Random) -> Target {
        let tls = self.tls.as_ref().filter(|_| random.percent(50));
        let ip = self.addresses[usize::from(random.percent(30))];
        Target {
            address: SocketAddr::new(ip, if tls.is_some() { 443 } else { 80 }),
            tls: tls.map(|tls| (tls.clone(), "objects.lab".to_owned())),
            receive_buffer_bytes: None,
            patience: PATIENCE,
        }
    }

    /// Opens connections in sequence until stopped.
    fn client(&self, mut random: Random) {
        while !self.stop.load(Ordering::Relaxed) {
            let target = self.target(&mut random);
            let phase = self.phase.load(Ordering::SeqCst);
            let begun = Instant::now();
            let host = random.pick(&self.hosts);
            let (requests, end) = match Client::connect(&target) {
                Ok(client) => self.requests(client, &host, &mut random),
                Err(error) => (0, End::of(&error)),
            };
            let what = format!(
                "{} {} {host}: after {requests} requests and {:.1} s {end:?}, phase {phase}",
                if target.tls.is_some() { "TLS" } else { "plain" },
                target.address,
                begun.elapsed().as_secs_f64(),
            );
            let calm = phase.is_multiple_of(2) && phase == self.phase.load(Ordering::SeqCst);
            match end {
                End::Open => {}
                End::TimedOut => self.fault(format!("hangs: {what}")),
                End::Garbage(_) => self.fault(format!("wrong bytes: {what}")),
                _ if calm => self.fault(format!("lost although nothing was wrong: {what}")),
                _ => {
                    self.ended.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// Sends requests on one connection, some of them pipelined.
    fn requests(&self, mut client: Client, host: &str, random: &mut Random) -> (usize, End) {
        let mut requests = 0;
        for _ in 0..1 + random.below(30) {
            let depth = if random.percent(70) { 1 } else { 1 + random.below(6) };
            let names: Vec<&'static str> = (0..depth)
                .map(|_| OBJECTS[random.below(OBJECTS.len()).min(random.below(OBJECTS.len()))])
                .collect();
            let mut text = String::new();
            for name in &names {
                let _ = write!(text, "GET /{name} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            }
            // If sending fails, reading returns the reason.
            let _ = client.send(text.as_bytes());
            if random.percent(self.leaves_percent) {
                return (requests, End::Open);
            }
            for name in names {
                let response = match client.response(false) {
                    Ok(response) => response,
                    Err(broken) => return (requests, self.judge(name, broken)),
                };
                if response.status() >= 500 {
                    // The balancer answers for a server that is gone.
                    return (requests, End::Closed);
                }
                if response.status() != 200 || response.body != self.objects[name] {
                    return (requests, End::Garbage(format!("{host} {name}: {response:?}")));
                }
                requests += 1;
                self.answered.fetch_add(1, Ordering::Relaxed);
                if response.closes() {
                    // An announced end, as in a drain.
                    let phase_is_calm = self.phase.load(Ordering::SeqCst).is_multiple_of(2);
                    return (requests, if phase_is_calm { End::Closed } else { End::Open });
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if random.percent(10) {
                std::thread::sleep(Duration::from_millis(random.below(60) as u64));
            }
        }
        // An orderly end, so that the client causes no leftover state.
        let _ = client.finish_sending();
        match client.wait_end() {
            End::Closed | End::Truncated => (requests, End::Open),
            other => (requests, other),
        }
    }

    /// Checks the received part of an incomplete response.
    fn judge(&self, name: &str, broken: system_tests::client::Broken) -> End {
        match broken.partial {
            Some(partial) if partial.status() == 200 => {
                match self.objects[name].starts_with(&partial.body) {
                    true => broken.why,
                    false => End::Garbage(format!("{name}: {partial:?}, then {:?}", broken.why)),
                }
            }
            _ => broken.why,
        }
    }
}

/// Fault injector.
struct Striker<'l> {
    lab: &'l Lab,
    shared: &'l Shared,
    blows: &'l Blows,
    random: Random,
}

impl Striker<'_> {
    fn pid(&self, process: &str) -> Pid {
        let all = self.lab.processes();
        let found = all.iter().find(|(name, _)| name == process);
        let pid = found.unwrap_or_else(|| panic!("{process} does not run: {all:?}")).1;
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    fn signal(&self, process: &str, signal: Signal) {
        kill_process(self.pid(process), signal).unwrap();
    }

    fn sleep(&mut self, least_ms: usize, more_ms: usize) {
        let pause_ms = least_ms + self.random.below(more_ms);
        std::thread::sleep(Duration::from_millis(pause_ms as u64));
    }

    /// Restarts a process; the rounds end if that fails.
    fn restart(&self, process: &str) -> bool {
        let output = self.lab.run("restart", &[process]);
        let runs = self.lab.processes().iter().any(|(name, _)| name == process);
        if !output.status.success() || !runs {
            let said = said(&output);
            let end = said.lines().last().unwrap_or_default();
            self.shared.fault(format!("{process} does not start again: {end}"));
        }
        output.status.success() && runs
    }

    /// Drains a process and waits for its end.
    fn drain(&mut self, process: &str) {
        self.signal(process, Signal::TERM);
        let gone = || !self.lab.processes().iter().any(|(name, _)| name == process);
        if !wait_for(DRAIN_WAIT, gone) {
            self.shared.fault(format!("{process} does not end after SIGTERM"));
        }
    }

    /// Runs one round: load without a fault, a fault at a random moment, recovery. Returns true if
    /// another round may follow.
    fn round(&mut self, round: usize) -> bool {
        self.sleep(250, 150);
        let server = format!("s{}", 1 + self.random.below(SERVERS));
        let agent = format!("{server}-agent");
        let blow = blow(self.blows, round);
        self.shared.phase.fetch_add(1, Ordering::SeqCst);
        let down: Vec<&str> = match blow {
            Blow::KillServer => {
                self.signal(&server, Signal::KILL);
                vec![&server]
            }
            Blow::KillBalancer => {
                self.signal("lb", Signal::KILL);
                vec!["lb"]
            }
            Blow::KillBoth => {
                self.signal(&server, Signal::KILL);
                self.signal("lb", Signal::KILL);
                vec![&server, "lb"]
            }
            Blow::DrainServer => {
                self.drain(&server);
                vec![&server]
            }
            Blow::DrainBalancer => {
                self.drain("lb");
                vec!["lb"]
            }
            Blow::StopServer(length) => {
                self.stop(&server, length);
                vec![]
            }
            Blow::StopBalancer(length) => {
                self.stop("lb", length);
                vec![]
            }
            Blow::KillAgent => {
                self.signal(&agent, Signal::KILL);
                vec![&agent]
            }
            Blow::DrainAgent => {
                self.drain(&agent);
                vec![&agent]
            }
            Blow::StopAgent(length) => {
                self.stop(&agent, length);
                vec![]
            }
        };
        self.sleep(50, 500);
        if !down.iter().all(|process| self.restart(process)) {
            return false;
        }
        self.lab.wait_channels();
        let before = self.shared.answered.load(Ordering::Relaxed);
        let due = before + 4 * CLIENTS as u64;
        let answered = || self.shared.answered.load(Ordering::Relaxed);
        if !wait_for(RECOVERY_WAIT, || answered() >= due) {
            let got = answered() - before;
            self.shared.fault(format!("round {round}, {blow:?}: {got} answers in 20 s"));
        }
        // Affected connections have ended, or end within the lease. Wait for the latter only
        // after faults that can leave clients waiting.
        if matches!(blow, Blow::StopServer(_) | Blow::StopBalancer(_)) {
            self.sleep(1_000, 1);
        }
        self.shared.phase.fetch_add(1, Ordering::SeqCst);
        println!("round {round}: {blow:?} {server}, {} answers so far", answered());
        true
    }

    fn stop(&mut self, process: &str, length: Duration) {
        self.signal(process, Signal::STOP);
        std::thread::sleep(length);
        self.signal(process, Signal::CONT);
    }
}

/// Gauges of the balancer that are 0 without clients.
const BALANCER_GAUGES: [&str; 6] = [
    "unlade_lb_open_connections",
    "unlade_lb_owned_flows",
    "unlade_lb_migrations_in_flight",
    "unlade_lb_upstream_busy_connections",
    "unlade_held_bytes",
    "unlade_flow_entries",
];

/// Gauge of a server that is 0 without clients.
const SERVER_GAUGE: &str = "unlade_backend_adopted_connections";

/// Returns state that remains without clients.
fn left_over(lab: &Lab) -> Vec<String> {
    let lb = Metrics::read(lab, "lb");
    let mut left = lb.not_zero(&BALANCER_GAUGES);
    if !lb.is_there() {
        left.push("lb does not answer".to_owned());
    }
    for node in lab.nodes().iter().filter(|node| *node != "client") {
        if node.starts_with('s') {
            let server = Metrics::read(lab, node);
            let gauge = server.not_zero(&[SERVER_GAUGE]);
            left.extend(gauge.iter().map(|gauge| format!("{node}: {gauge}")));
            if !server.is_there() {
                left.push(format!("{node} does not answer"));
            }
        }
        let sockets = client_sockets(lab, node);
        left.extend(sockets.iter().map(|socket| format!("{node}: a client's socket: {socket}")));
    }
    left
}

/// Returns the sockets of a node that belong to client connections, in the kernel's format, except
/// in the states LISTEN and TIME_WAIT.
fn client_sockets(lab: &Lab, node: &str) -> Vec<String> {
    let table = lab.exec_text(node, &["cat", "/proc/net/tcp", "/proc/net/tcp6"]);
    let of_client = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, state) = (words.next(), words.next(), words.next());
        let port = local.and_then(|local| local.rsplit_once(':')).map(|(_, port)| port);
        // 80 and 443 in hexadecimal; 06 is TIME_WAIT, 0A LISTEN.
        matches!(port, Some("0050" | "01BB")) && !matches!(state, Some("06" | "0A"))
    };
    table.lines().filter(of_client).map(str::to_owned).collect()
}

/// Counts the descriptors of every process, except those that its gauges explain.
fn descriptor_counts(lab: &Lab) -> BTreeMap<String, BTreeMap<String, usize>> {
    let explained = |name: &str| match name {
        "lb" => Metrics::read(lab, name).get("unlade_lb_upstream_idle_connections"),
        agent if agent.ends_with("-agent") => 0,
        server => {
            let metrics = Metrics::read(lab, server);
            metrics.get("unlade_backend_open_connections")
                + metrics.get("unlade_backend_sealing_connections")
        }
    };
    let count = |(name, pid): (String, u64)| {
        let mut kinds = descriptors(pid);
        // Pipes for splice are pooled.
        kinds.remove("pipe");
        let pooled = explained(&name) as usize;
        if let Some(sockets) = kinds.get_mut("socket") {
            *sockets = sockets.saturating_sub(pooled);
        }
        (name, kinds)
    };
    lab.processes().into_iter().map(count).collect()
}

/// Waits until no state of clients is left; returns the rest. The kernel keeps a half-closed socket
/// for tcp_fin_timeout, one minute.
fn settle(lab: &Lab) -> Vec<String> {
    let mut left = Vec::new();
    wait_for(Duration::from_secs(75), || {
        left = left_over(lab);
        left.is_empty()
    });
    left
}

/// Runs `strike` under the load of clients, which end afterwards.
fn under_load(lab: &Lab, shared: &Shared, seed: u64, strike: impl FnOnce()) {
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let random = Random::numbered(seed, number as u64);
            scope.spawn(move || {
                lab.enter("client");
                shared.client(random);
            });
        }
        // Catches panics, because the scope waits for the clients.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(strike));
        shared.stop.store(true, Ordering::SeqCst);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Sends a request without reading the response.
fn ask(lab: &Lab, host: &str, object: &str) -> Client {
    let [v4, _] = lab.virtual_ips();
    let address = SocketAddr::new(v4, 80);
    let buffer = Some(4096);
    let target = Target { address, tls: None, receive_buffer_bytes: buffer, patience: PATIENCE };
    let mut client = Client::connect(&target).unwrap();
    client.send(format!("GET /{object} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    client
}

/// Each gauge that [`left_over`] expects to be 0 is above 0 with clients; otherwise the check would
/// prove nothing.
#[test]
fn the_gauges_of_the_leak_check_are_above_zero_while_clients_are_there() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = Lab::up(&["--objects", "small", "--fronts", "offload", "--servers", "1"]);
    lab.wait_channels();
    let wait_above_zero = |process: &str, gauges: &[&str]| {
        for gauge in gauges {
            let seen = wait_for(PATIENCE, || Metrics::read(&lab, process).get(gauge) > 0);
            assert!(seen, "{gauge} of {process} stays 0");
        }
    };
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            lab.enter("client");
            // Neither client reads its response: one stays at the balancer, the other at the
            // server.
            (ask(&lab, "off.objects.lab", "1MiB"), ask(&lab, "one.objects.lab", "1MiB"))
        });
        let clients = clients.join().unwrap();
        let here = ["unlade_lb_open_connections", "unlade_lb_upstream_busy_connections"];
        wait_above_zero("lb", &here);
        wait_above_zero("lb", &["unlade_lb_owned_flows", "unlade_flow_entries"]);
        wait_above_zero("s1", &[SERVER_GAUGE]);
        drop(clients);

        // The stopped server does not answer the offer, while the client sends more.
        lab.signal("s1", "STOP");
        let mut client = scope
            .spawn(|| {
                lab.enter("client");
                ask(&lab, "one.objects.lab", "4KiB")
            })
            .join()
            .unwrap();
        wait_above_zero("lb", &["unlade_lb_migrations_in_flight"]);
        client.send(b"GET /4KiB HTTP/1.1\r\nHost: one.objects.lab\r\n\r\n").unwrap();
        wait_above_zero("lb", &["unlade_held_bytes"]);
        lab.signal("s1", "CONT");
    });
    let left = settle(&lab);
    assert!(left.is_empty(), "left over: {left:?}");
}

/// A kind of load, and its faults.
struct Case {
    /// Of `unlade-lab up`.
    options: &'static [&'static str],
    has_tls: bool,
    hosts: Vec<String>,
    blows: Blows,
    /// A connection may end by a fault.
    may_end: bool,
    /// Percentage of the requests whose client leaves without the response.
    leaves_percent: u64,
    /// Counters of the balancer that move without a fault.
    works: &'static [&'static str],
}

#[test]
fn whoever_dies_no_connection_hangs_and_nothing_leaks() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    run_rounds(&Case {
        options: &["--tls"],
        has_tls: true,
        hosts: hosts(),
        blows: BLOWS,
        may_end: true,
        leaves_percent: 0,
        works: &["unlade_lb_migrations_completed_total"],
    });
}

#[test]
fn agents_that_die_end_no_connection_and_leave_nothing() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    run_rounds(&Case {
        options: &["--direct-return"],
        has_tls: false,
        hosts: direct_hosts(),
        blows: AGENT_BLOWS,
        may_end: false,
        leaves_percent: 0,
        works: &["unlade_lb_direct_returns_total"],
    });
}

#[test]
fn whoever_dies_or_leaves_during_direct_return_no_connection_hangs() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    run_rounds(&Case {
        options: &["--direct-return"],
        has_tls: false,
        hosts: direct_hosts(),
        blows: BLOWS,
        may_end: true,
        leaves_percent: 3,
        works: &["unlade_lb_direct_returns_total"],
    });
}

#[test]
fn whoever_dies_or_leaves_during_sealed_responses_no_connection_hangs() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    run_rounds(&Case {
        options: &["--tls", "--direct-return"],
        has_tls: true,
        hosts: ["sealed", "forward", "late"].map(|name| format!("{name}.objects.lab")).to_vec(),
        blows: BLOWS,
        may_end: true,
        leaves_percent: 3,
        works: &["unlade_lb_sealed_responses_total", "unlade_lb_direct_returns_total"],
    });
}

fn direct_hosts() -> Vec<String> {
    ["early", "late", "direct", "forward"].map(|name| format!("{name}.objects.lab")).to_vec()
}

/// Runs the rounds of a case.
fn run_rounds(case: &Case) {
    let (seed, rounds) = (seed(), env_number("UNLADE_KILL_ROUNDS", case.blows.len()));
    println!("seed {seed}, {rounds} rounds");
    let servers = SERVERS.to_string();
    let args = ["--objects", "small", "--fronts", "offload", "--servers", &servers];
    let lab = Lab::up(&[&args[..], case.options].concat());
    lab.wait_channels();
    // Load before the baseline, which must be the state after work.
    let calm = Shared::new(&lab, case);
    under_load(&lab, &calm, seed ^ 1, || std::thread::sleep(Duration::from_millis(700)));
    let faults = calm.faults.into_inner().unwrap();
    assert!(faults.is_empty(), "nobody was killed yet: {faults:#?}");
    let left = settle(&lab);
    assert!(left.is_empty(), "nobody was killed yet, but this is left over: {left:?}");
    for works in case.works {
        assert!(Metrics::read(&lab, "lb").get(works) > 0, "{works} stays 0");
    }
    let usual = descriptor_counts(&lab);

    let shared = Shared::new(&lab, case);
    let (random, blows) = (Random::numbered(seed, 1 << 32), &case.blows);
    let mut striker = Striker { lab: &lab, shared: &shared, blows, random };
    under_load(&lab, &shared, seed, || {
        (0..rounds).all(|round| striker.round(round));
    });

    let ended = shared.ended.load(Ordering::Relaxed);
    let answered = shared.answered.load(Ordering::Relaxed);
    println!("{answered} answers, {ended} connections ended by {rounds} blows");
    assert!(case.may_end || ended == 0, "{ended} connections ended");
    println!("balancer: {}", Metrics::read(&lab, "lb").noteworthy());
    let mut faults = shared.faults.into_inner().unwrap();
    faults.extend(settle(&lab).into_iter().map(|left| format!("left over: {left}")));
    let mut now = BTreeMap::new();
    let as_usual = wait_for(Duration::from_secs(15), || {
        now = descriptor_counts(&lab);
        // The calm load may have left connections that were closing.
        let has_more = |name: &String, kind: &String, count: usize| {
            usual.get(name).and_then(|kinds| kinds.get(kind)).is_none_or(|usual| count > *usual)
        };
        let mut all =
            now.iter().flat_map(|(name, kinds)| kinds.iter().map(move |kind| (name, kind)));
        !all.any(|(name, (kind, count))| has_more(name, kind, *count))
    });
    if !as_usual {
        faults.push(format!("descriptors: {now:?}, more than before {usual:?}"));
    }
    for (name, _) in lab.processes() {
        let log = lab.dir().join("logs").join(format!("{name}.log"));
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let panics = text.lines().filter(|line| line.contains("panicked")).map(str::to_owned);
        faults.extend(panics.map(|line| format!("{name}: {line}")));
    }
    let down = lab.run("down", &[]);
    assert!(down.status.success(), "{}", said(&down));
    faults.extend(lab.traces());
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
}
