//! Holds and replays the packets of live connections between two network namespaces.
//! Needs CAP_NET_ADMIN and CAP_BPF.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};
use unlade_metrics::{Event, Meter};
use unlade_net::state::SocketOptions;
use unlade_net::{FlowKey, SeqNumber};
use unlade_steering::flow_entry::FlowState;
use unlade_steering::{FlowEntry, HoldLimits, Hook, Steering, SteeringConfig, TrackedState};
use unlade_sys::repair::{self, Accept, Known};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest hold without an effect on the sender: TCP retransmits nothing within twice that time.
const UNNOTICED_HOLD: Duration = Duration::from_millis(100);

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// Runs `here` and `there` in two fresh network namespaces joined by a veth pair: addresses
/// 10.9.0.1 (interface `near`) and 10.9.0.2. Returns false if that is not permitted.
fn in_namespaces<A: Send, B: Send>(
    here: impl FnOnce() -> A + Send,
    there: impl FnOnce() -> B + Send,
) -> Option<(A, B)> {
    let unshare = || {
        // SAFETY: a network namespace is a property of the thread and does not affect memory.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
    };
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let (done, finished) = mpsc::channel::<()>();
        let far = scope.spawn(move || {
            if let Err(error) = unshare() {
                println!("skipped: no network namespace: {error}");
                return None;
            }
            tell.send(gettid().as_raw_nonzero()).ok()?;
            // The near side moves the interface into this namespace.
            finished.recv().ok()?;
            ip("addr add 10.9.0.2/24 dev far");
            ip("addr add fd09::2/64 dev far nodad");
            ip("link set far up");
            Some(there())
        });
        let near = scope.spawn(move || {
            let far = told.recv().ok()?;
            unshare().ok()?;
            ip("link set lo up");
            ip(&format!("link add near type veth peer name far netns {far}"));
            ip("addr add 10.9.0.1/24 dev near");
            ip("addr add fd09::1/64 dev near nodad");
            ip("link set near up");
            done.send(()).ok()?;
            Some(here())
        });
        let (near, far) = (near.join(), far.join());
        match (near, far) {
            (Ok(near), Ok(far)) => near.zip(far),
            (Err(panic), _) | (_, Err(panic)) => std::panic::resume_unwind(panic),
        }
    })
}

fn steering() -> Steering {
    steering_within(HoldLimits::default())
}

fn steering_within(limits: HoldLimits) -> Steering {
    let config = SteeringConfig {
        interface: "near".into(),
        flows_max: 64,
        hold: Some(HoldLimits { device: "hold".into(), ..limits }),
        hook: Hook::Tc,
    };
    Steering::open(&config).unwrap()
}

/// Sets the tracked state of an entry from a snapshot. Returns the end of the acknowledged data.
fn track(entry: &FlowEntry, server: &TcpStream) -> SeqNumber {
    let known = Known {
        flow: *entry.flow(),
        socket: SocketOptions::default(),
        mss_bytes: None,
        algorithm: String::new(),
    };
    repair::freeze(server).unwrap();
    let snapshot = repair::snapshot(server, &known, Accept::Established).unwrap();
    repair::thaw(server).unwrap();
    entry.track(&TrackedState::of(&snapshot), snapshot.send_end());
    assert_eq!(snapshot.send_seq, snapshot.send_end());
    snapshot.send_end()
}

/// Waits until a condition holds.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of retransmitted segments of this thread's namespace.
fn retransmissions() -> u64 {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut tcp = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    let at = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// Maximum number of holds during a message.
const ROUNDS: u64 = 20;

fn held_bytes_come_in_order(address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    let message: Vec<u8> = (0..600_000u32).map(|at| (at ^ at >> 9) as u8).collect();
    let sent = message.clone();
    let (go, start) = mpsc::channel::<()>();
    let near = move || {
        let steering = steering();
        let listener = TcpListener::bind(address).unwrap();
        let (mut server, client) = listener.accept().unwrap();
        let flow = FlowKey::new(client, server.local_addr().unwrap());
        let entry = steering.acquire(&flow).unwrap();
        let mut received = vec![0; message.len()];
        // Several rounds, so that new packets meet waiting ones.
        let (mut at, mut longest) = (0, Duration::ZERO);
        entry.hold();
        go.send(()).unwrap();
        for round in 0..ROUNDS {
            let begin = Instant::now();
            entry.hold();
            std::thread::sleep(Duration::from_millis(2));
            if round == 0 {
                wait_until("a held packet", || entry.waiting() > 0);
                server.set_nonblocking(true).unwrap();
                let error = server.read(&mut received).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                server.set_nonblocking(false).unwrap();
            }
            entry.local();
            steering.replay(&entry);
            longest = longest.max(begin.elapsed());
            at += server.read(&mut received[at..]).unwrap();
            if at == received.len() {
                break;
            }
        }
        assert_eq!(entry.state(), FlowState::Local);
        server.read_exact(&mut received[at..]).unwrap();
        assert!(received == message, "bytes differ");
        server.write_all(b"ok").unwrap();
        let counters = steering.hold_counters();
        assert!(counters.held > 0 && counters.lost == 0, "{counters:?}");
        drop(entry);
        assert_eq!(steering.flows_in_use(), 0);
        (counters, longest)
    };
    let far = move || {
        // Disables tail loss probes.
        std::fs::write("/proc/sys/net/ipv4/tcp_early_retrans", "0").unwrap();
        let mut client = connect(address);
        start.recv().unwrap();
        client.write_all(&sent).unwrap();
        let mut ok = [0; 2];
        client.read_exact(&mut ok).unwrap();
        retransmissions()
    };
    let Some(((counters, longest), retransmitted)) = in_namespaces(near, far) else { return };
    println!("{counters:?}, {retransmitted} retransmitted, held for {longest:?} at most");
    // On a busy machine a hold may last long enough for a justified retransmission. Reordered
    // packets look lost to the client, too; if held packets were lost, all of them would be.
    if longest < UNNOTICED_HOLD {
        assert!(retransmitted <= ROUNDS + counters.held / 2, "held packets were retransmitted");
    }
}

#[test]
fn held_ipv4_packets_reach_the_socket_in_order() {
    held_bytes_come_in_order("10.9.0.1:8000");
}

#[test]
fn held_ipv6_packets_reach_the_socket_in_order() {
    held_bytes_come_in_order("[fd09::1]:8000");
}

#[test]
fn packets_above_the_limit_of_a_flow_are_lost_and_sent_again() {
    let address: SocketAddr = "10.9.0.1:8003".parse().unwrap();
    let message: Vec<u8> = (0..100_000u32).map(|at| (at ^ at >> 9) as u8).collect();
    let sent = message.clone();
    let (go, start) = mpsc::channel::<()>();
    let near = move || {
        // Room for two packets; the first flight of a client has ten.
        let steering =
            steering_within(HoldLimits { flow_bytes_max: 4000, ..HoldLimits::default() });
        let meter = Meter::new();
        let report = || {
            steering.report_packets(&meter);
            [Event::PacketsHeld, Event::PacketsReplayed, Event::PacketsLost]
                .map(|event| meter.value(event))
        };
        let listener = TcpListener::bind(address).unwrap();
        let (mut server, client) = listener.accept().unwrap();
        let entry = steering.acquire(&FlowKey::new(client, server.local_addr().unwrap())).unwrap();
        assert_eq!(report()[2], 0);
        entry.hold();
        go.send(()).unwrap();
        wait_until("a lost packet", || steering.hold_counters().lost > 0);
        assert!(report()[2] > 0);
        entry.local();
        steering.replay(&entry);
        // The client sends the lost packets again.
        let mut received = vec![0; message.len()];
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_exact(&mut received).unwrap();
        assert!(received == message, "bytes differ");
        server.write_all(b"ok").unwrap();
        // The device also gets frames of the kernel itself, which are not replayed.
        let [held, replayed, lost] = report();
        assert!(replayed > 0 && held >= replayed + lost, "{held} {replayed} {lost}");
        assert_eq!(lost, steering.hold_counters().lost);
        assert_eq!(report()[2], lost, "each is reported once");
    };
    let far = move || {
        let mut client = connect(address);
        start.recv().unwrap();
        client.write_all(&sent).unwrap();
        let mut ok = [0; 2];
        client.read_exact(&mut ok).unwrap();
    };
    in_namespaces(near, far);
}

#[test]
fn what_an_owner_sends_back_waits_for_the_next_one() {
    let address: SocketAddr = "10.9.0.1:8001".parse().unwrap();
    let message: Vec<u8> = (0..200_000u32).map(|at| (at ^ at >> 9) as u8).collect();
    let sent = message.clone();
    let (tell, told) = mpsc::channel::<unlade_steering::Mac>();
    let (go, start) = mpsc::channel::<()>();
    let near = move || {
        let steering = steering();
        let listener = TcpListener::bind(address).unwrap();
        let (mut server, client) = listener.accept().unwrap();
        let flow = FlowKey::new(client, server.local_addr().unwrap());
        let entry = steering.acquire(&flow).unwrap();
        // The client's host is also the owner, so every packet comes from the owner.
        entry.redirect(told.recv().unwrap());
        go.send(()).unwrap();
        // The owner gets the packets again after a pause, which loses them here; the client then
        // retransmits them.
        wait_until("a packet sent back", || entry.counters().held > 0);
        server.set_nonblocking(true).unwrap();
        let error = server.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        server.set_nonblocking(false).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        entry.local();
        steering.replay(&entry);
        let mut received = vec![0; message.len()];
        server.read_exact(&mut received).unwrap();
        assert!(received == message, "bytes differ");
        server.write_all(b"ok").unwrap();
        let counters = steering.hold_counters();
        assert!(counters.held > 0 && counters.lost == 0, "{counters:?}");
    };
    let far = move || {
        let mut client = connect(address);
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        tell.send(unlade_sys::link::Link::by_name("far").unwrap().mac).unwrap();
        start.recv().unwrap();
        client.write_all(&sent).unwrap();
        let mut ok = [0; 2];
        client.read_exact(&mut ok).unwrap();
    };
    in_namespaces(near, far);
}

#[test]
fn a_client_that_was_served_by_the_next_owner_reaches_it() {
    const NOBODY: unlade_steering::Mac = [2, 0, 0, 0, 0, 9];
    let address: SocketAddr = "10.9.0.1:8002".parse().unwrap();
    let (go, start) = mpsc::channel::<()>();
    let near = move || {
        let steering = steering();
        let listener = TcpListener::bind(address).unwrap();
        let (mut server, client) = listener.accept().unwrap();
        server.set_nodelay(true).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let entry = steering.acquire(&FlowKey::new(client, server.local_addr().unwrap())).unwrap();
        let mut byte = [0];
        server.write_all(b"1").unwrap();
        server.read_exact(&mut byte).unwrap();
        // Nothing is tracked before a snapshot sets the bounds.
        assert_eq!(entry.counters().tracked, None);
        let sent = track(&entry, &server);
        // An owner that has not answered yet gets no packets: the client's next byte waits.
        entry.hold();
        entry.offer(NOBODY, sent);
        go.send(()).unwrap();
        wait_until("the held byte", || entry.waiting() > 0);
        assert_eq!(entry.counters().packets, 0);
        entry.local();
        steering.replay(&entry);
        server.read_exact(&mut byte).unwrap();
        // This socket is now the next owner and answers, so it gets the client's next packets.
        entry.hold();
        entry.offer(NOBODY, sent);
        server.write_all(b"2").unwrap();
        wait_until("a packet to the next owner", || entry.counters().packets > 0);
        assert_eq!(entry.state(), FlowState::Offered);
        assert_eq!(entry.waiting(), 0);
        assert!(entry.counters().tracked.is_some_and(|known| sent.before(known.last_ack)));
        // The client retransmits, since no socket answered.
        entry.local();
        server.read_exact(&mut byte).unwrap();
    };
    let far = move || {
        let mut client = connect(address);
        client.set_nodelay(true).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        client.write_all(b"a").unwrap();
        start.recv().unwrap();
        client.write_all(b"b").unwrap();
        client.read_exact(&mut byte).unwrap();
        client.write_all(b"c").unwrap();
        // Waits until the near side has ended the connection.
        let _ = client.read(&mut byte);
    };
    in_namespaces(near, far);
}

#[test]
fn a_full_table_is_refused_and_a_freed_slot_is_used_again() {
    // The far side keeps its namespace, and thereby the link, until the near side is done.
    let (done, finished) = mpsc::channel::<()>();
    let near = move || {
        let _done = done;
        let steering = steering();
        let flow = |port| {
            FlowKey::new(SocketAddr::from(([10, 9, 0, 2], port)), "10.9.0.1:80".parse().unwrap())
        };
        let slots: Vec<_> = (1..=64).map(|port| steering.acquire(&flow(port)).unwrap()).collect();
        let error = steering.acquire(&flow(65)).unwrap_err();
        assert!(matches!(error, unlade_steering::SteerError::TableFull), "{error}");
        drop(slots);
        steering.acquire(&flow(65)).unwrap();
    };
    in_namespaces(near, move || finished.recv().is_err());
}
