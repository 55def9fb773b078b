//! Balancer and servers killed, stopped and drained under load: every connection of a client goes
//! on with the right bytes or ends; none hangs for longer than a lease; nothing is left over.
//!
//! `UNLADE_KILL_ROUNDS` says how many, `UNLADE_SEED` when and what, `UNLADE_BLOW` (0 to 11) that it is
//! always the same.

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

/// Clients at a time.
const CLIENTS: usize = 12;
const SERVERS: usize = 3;
/// The lease, and what a busy machine may add. Longer than any process is stopped for: a proxied
/// request waits for the server as long as it is told to.
const PATIENCE: Duration = Duration::from_secs(10 + 8);
/// How long a process may take to go on after it is told to end.
const DRAIN_WAIT: Duration = Duration::from_secs(35);
/// How long it may take until requests are answered again.
const RECOVERY_WAIT: Duration = Duration::from_secs(20);
/// Objects asked for, small and large.
const OBJECTS: [&str; 6] = ["4KiB", "64KiB", "set/17", "256KiB", "set/48", "1MiB"];

/// What is done to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    KillServer,
    KillBalancer,
    KillBoth,
    DrainServer,
    DrainBalancer,
    StopServer(Duration),
    StopBalancer(Duration),
}

/// A dozen: every kind, the commonest more than once.
const BLOWS: [Blow; 12] = [
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

/// The blow of a round. The long stop comes in the first dozen and then in every tenth.
fn blow(round: usize) -> Blow {
    if let Ok(only) = std::env::var("UNLADE_BLOW") {
        return BLOWS[only.parse::<usize>().expect("a number") % BLOWS.len()];
    }
    let (dozen, number) = (round / BLOWS.len(), round % BLOWS.len());
    match BLOWS[number] {
        Blow::StopServer(long) if long.as_secs() > 10 && dozen % 10 != 0 => Blow::KillServer,
        blow => blow,
    }
}

/// What the clients share with who strikes.
struct Shared {
    addresses: [std::net::IpAddr; 2],
    tls: Arc<rustls::ClientConfig>,
    hosts: Vec<String>,
    objects: BTreeMap<&'static str, Vec<u8>>,
    /// Even while nothing is wrong, odd from a blow until everything works again.
    phase: AtomicU64,
    stop: AtomicBool,
    answered: AtomicU64,
    ended: AtomicU64,
    faults: Mutex<Vec<String>>,
    started: Instant,
}

impl Shared {
    fn new(lab: &Lab) -> Shared {
        let content = |name: &'static str| {
            (name, std::fs::read(lab.dir().join("objects").join(name)).unwrap())
        };
        Shared {
            addresses: lab.virtual_ips(),
            tls: tls_config(&lab.dir().join("pki/ca.crt"), TlsVersions::Both),
            hosts: hosts(),
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
        let tls = random.percent(50);
        let ip = self.addresses[usize::from(random.percent(30))];
        Target {
            address: SocketAddr::new(ip, if tls { 443 } else { 80 }),
            tls: tls.then(|| (self.tls.clone(), "objects.lab".to_owned())),
            receive_buffer_bytes: None,
            patience: PATIENCE,
        }
    }

    /// Connection after connection until told to stop.
    fn client(&self, mut random: Random) {
        while !self.stop.load(Ordering::Relaxed) {
            let target = self.target(&mut random);
            let phase = self.phase.load(Ordering::SeqCst);
            let begun = Instant::now();
            let (requests, end) = match Client::connect(&target) {
                Ok(client) => self.requests(client, &mut random),
                Err(error) => (0, End::of(&error)),
            };
            let what = format!(
                "{} {}: after {requests} requests and {:.1} s {end:?}, phase {phase}",
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

    /// Some requests on one connection, some of them pipelined.
    fn requests(&self, mut client: Client, random: &mut Random) -> (usize, End) {
        let host = random.pick(&self.hosts);
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
            // Where sending fails the reason is yet to be read.
            let _ = client.send(text.as_bytes());
            for name in names {
                let response = match client.response(false) {
                    Ok(response) => response,
                    Err(broken) => return (requests, self.judge(name, broken)),
                };
                if response.status() >= 500 {
                    // Said by the balancer in the name of a server that is gone.
                    return (requests, End::Closed);
                }
                if response.status() != 200 || response.body != self.objects[name] {
                    return (requests, End::Garbage(format!("{host} {name}: {response:?}")));
                }
                requests += 1;
                self.answered.fetch_add(1, Ordering::Relaxed);
                if response.closes() {
                    // Announced, as when a process drains.
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
        // So that what is left over afterwards is not the client's doing.
        let _ = client.finish_sending();
        match client.wait_end() {
            End::Closed | End::Truncated => (requests, End::Open),
            other => (requests, other),
        }
    }

    /// What came of a response that broke off is to be right all the same.
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

/// Who strikes.
struct Striker<'l> {
    lab: &'l Lab,
    shared: &'l Shared,
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

    /// Starts a process that has ended; without it the rounds are over.
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

    /// Asks a process to end and waits until it has.
    fn drain(&mut self, process: &str) {
        self.signal(process, Signal::TERM);
        let gone = || !self.lab.processes().iter().any(|(name, _)| name == process);
        if !wait_for(DRAIN_WAIT, gone) {
            self.shared.fault(format!("{process} does not end after SIGTERM"));
        }
    }

    /// One round: work in peace, a blow at a moment of its own, recovery. Whether there is
    /// another.
    fn round(&mut self, round: usize) -> bool {
        self.sleep(250, 150);
        let server = format!("s{}", 1 + self.random.below(SERVERS));
        let blow = blow(round);
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
        // What the blow hit has ended by now, or does so within the lease: wait for the slow
        // ones only where someone can still be waiting.
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

/// Gauges of the balancer that are 0 when no client is there.
const BALANCER_GAUGES: [&str; 6] = [
    "unlade_lb_open_connections",
    "unlade_lb_owned_flows",
    "unlade_lb_migrations_in_flight",
    "unlade_lb_upstream_busy_connections",
    "unlade_held_bytes",
    "unlade_flow_entries",
];

/// The gauge of a server that is 0 when no client is there.
const SERVER_GAUGE: &str = "unlade_backend_adopted_connections";

/// What is still held although no client is there.
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

/// Sockets of a node that belong to clients' connections, in whatever state but listening and
/// waiting for late packets, as the kernel shows them.
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

/// Descriptors of every process, those left out that its gauges explain.
fn descriptor_counts(lab: &Lab) -> BTreeMap<String, BTreeMap<String, usize>> {
    let explained = |name: &str| match name {
        "lb" => "unlade_lb_upstream_idle_connections",
        _ => "unlade_backend_open_connections",
    };
    let count = |(name, pid): (String, u64)| {
        let mut kinds = descriptors(pid);
        // Pipes for splicing are kept for the next one.
        kinds.remove("pipe");
        let pooled = Metrics::read(lab, &name).get(explained(&name)) as usize;
        if let Some(sockets) = kinds.get_mut("socket") {
            *sockets = sockets.saturating_sub(pooled);
        }
        (name, kinds)
    };
    lab.processes().into_iter().map(count).collect()
}

/// Waits until nothing of the clients is left; what is. The kernel keeps the socket of a connection
/// that only one side has closed for tcp_fin_timeout, a minute.
fn settle(lab: &Lab) -> Vec<String> {
    let mut left = Vec::new();
    wait_for(Duration::from_secs(75), || {
        left = left_over(lab);
        left.is_empty()
    });
    left
}

/// Runs `strike` while clients are served, and the clients until it is over.
fn under_load(lab: &Lab, shared: &Shared, seed: u64, strike: impl FnOnce()) {
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let random = Random::numbered(seed, number as u64);
            scope.spawn(move || {
                lab.enter("client");
                shared.client(random);
            });
        }
        // Also when it panics: the scope waits for the clients.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(strike));
        shared.stop.store(true, Ordering::SeqCst);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Sends a request without reading the answer.
fn ask(lab: &Lab, host: &str, object: &str) -> Client {
    let [v4, _] = lab.virtual_ips();
    let address = SocketAddr::new(v4, 80);
    let buffer = Some(4096);
    let target = Target { address, tls: None, receive_buffer_bytes: buffer, patience: PATIENCE };
    let mut client = Client::connect(&target).unwrap();
    client.send(format!("GET /{object} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    client
}

/// Each gauge that [`left_over`] wants to be 0 is seen above 0 first: otherwise it would prove
/// nothing.
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
            // Neither reads its answer: one stays at the balancer, the other at the server.
            (ask(&lab, "off.objects.lab", "1MiB"), ask(&lab, "one.objects.lab", "1MiB"))
        });
        let clients = clients.join().unwrap();
        let here = ["unlade_lb_open_connections", "unlade_lb_upstream_busy_connections"];
        wait_above_zero("lb", &here);
        wait_above_zero("lb", &["unlade_lb_owned_flows", "unlade_flow_entries"]);
        wait_above_zero("s1", &[SERVER_GAUGE]);
        drop(clients);

        // The server does not answer the offer, and the client sends more meanwhile.
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

#[test]
fn whoever_dies_no_connection_hangs_and_nothing_leaks() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let (seed, rounds) = (seed(), env_number("UNLADE_KILL_ROUNDS", BLOWS.len()));
    println!("seed {seed}, {rounds} rounds");
    let servers = SERVERS.to_string();
    let lab =
        Lab::up(&["--tls", "--objects", "small", "--fronts", "offload", "--servers", &servers]);
    lab.wait_channels();
    // The usual state is that after work, not that after the start.
    let calm = Shared::new(&lab);
    under_load(&lab, &calm, seed ^ 1, || std::thread::sleep(Duration::from_millis(700)));
    let faults = calm.faults.into_inner().unwrap();
    assert!(faults.is_empty(), "nobody was killed yet: {faults:#?}");
    let left = settle(&lab);
    assert!(left.is_empty(), "nobody was killed yet, but this is left over: {left:?}");
    let usual = descriptor_counts(&lab);

    let shared = Shared::new(&lab);
    let mut striker =
        Striker { lab: &lab, shared: &shared, random: Random::numbered(seed, 1 << 32) };
    under_load(&lab, &shared, seed, || {
        (0..rounds).all(|round| striker.round(round));
    });

    let ended = shared.ended.load(Ordering::Relaxed);
    let answered = shared.answered.load(Ordering::Relaxed);
    println!("{answered} answers, {ended} connections ended by {rounds} blows");
    println!("balancer: {}", Metrics::read(&lab, "lb").noteworthy());
    let mut faults = shared.faults.into_inner().unwrap();
    faults.extend(settle(&lab).into_iter().map(|left| format!("left over: {left}")));
    let mut now = BTreeMap::new();
    let as_usual = wait_for(Duration::from_secs(15), || {
        now = descriptor_counts(&lab);
        now == usual
    });
    if !as_usual {
        faults.push(format!("descriptors: {now:?}, not as before {usual:?}"));
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
