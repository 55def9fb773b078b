//! Sends TCP and UDP over a link that loses, duplicates and delays packets. Needs CAP_NET_ADMIN and
//! CAP_BPF.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::thread::{
    CpuSet, UnshareFlags, gettid, sched_getcpu, sched_setaffinity, unshare_unsafe,
};
use unlade_steering::impair::{ImpairConfig, Impairment};
use unlade_testkit::line::{Chance, Chances, Fate};

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// Enters a namespace without IPv6, where a new link would send its own packets and falsify the
/// counters.
fn unshare() -> rustix::io::Result<()> {
    // SAFETY: a network namespace is a property of the thread and does not affect memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    for place in ["all", "default"] {
        // A kernel without IPv6 has neither the file nor such packets.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{place}/disable_ipv6"), "1");
    }
    Ok(())
}

/// Runs `near` and `far` in two fresh network namespaces joined by a veth pair: 10.9.1.1
/// (interface `near`) and 10.9.1.2.
fn in_namespaces(near: impl FnOnce() + Send, far: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let (done, finished) = mpsc::channel::<()>();
        let far = scope.spawn(move || {
            if let Err(error) = unshare() {
                println!("skipped: no network namespace: {error}");
                return;
            }
            tell.send(gettid().as_raw_nonzero()).unwrap();
            if finished.recv().is_err() {
                return;
            }
            ip("addr add 10.9.1.2/24 dev far");
            ip("link set far up");
            ip("neigh add 10.9.1.1 lladdr 02:00:00:00:00:01 dev far nud permanent");
            far();
        });
        let near = scope.spawn(move || {
            let Ok(peer) = told.recv() else { return };
            unshare().unwrap();
            ip("link set lo up");
            let far = format!("far address 02:00:00:00:00:02 netns {peer}");
            ip(&format!("link add near address 02:00:00:00:00:01 type veth peer name {far}"));
            ip("addr add 10.9.1.1/24 dev near");
            ip("link set near up");
            // A static neighbour avoids ARP packets.
            ip("neigh add 10.9.1.2 lladdr 02:00:00:00:00:02 dev near nud permanent");
            done.send(()).unwrap();
            near();
        });
        for thread in [near, far] {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

fn config() -> ImpairConfig {
    ImpairConfig {
        interface: "near".into(),
        chances: Chances::default(),
        delay_max: Duration::from_millis(3),
        seed: 7,
    }
}

/// The fates of the 1000 datagrams, in the order in which they are sent.
fn fates(chances: Chances) -> impl Iterator<Item = (u32, Fate)> {
    (0..1000).map(move |number| (number, chances.fate(config().seed, 0, number.into())))
}

/// Sends 1000 numbered datagrams; returns those that arrive at the far side.
fn datagrams(
    config: ImpairConfig,
    check: impl FnOnce(Vec<u32>, unlade_steering::impair::ImpairCounters) + Send,
) {
    let (ready, start) = mpsc::channel::<()>();
    let (sent, all_sent) = mpsc::channel();
    let near = move || {
        start.recv().unwrap();
        // The kernel keeps the order of packets that are sent on one CPU.
        let mut cores = CpuSet::new();
        cores.set(sched_getcpu());
        sched_setaffinity(None, &cores).unwrap();
        let socket = UdpSocket::bind("10.9.1.1:0").unwrap();
        // One datagram passes before the link is impaired.
        socket.send_to(&u32::MAX.to_ne_bytes(), "10.9.1.2:5000").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let link = Impairment::open(&config).unwrap();
        for number in 0..1000u32 {
            socket.send_to(&number.to_ne_bytes(), "10.9.1.2:5000").unwrap();
            if number % 50 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut counters = link.counters().unwrap();
        while counters.released + counters.overflowed < counters.delayed {
            assert!(Instant::now() < deadline, "not everybody late has come: {counters:?}");
            std::thread::sleep(Duration::from_millis(1));
            counters = link.counters().unwrap();
        }
        sent.send(counters).unwrap();
    };
    let far = move || {
        let socket = UdpSocket::bind("10.9.1.2:5000").unwrap();
        // The near side impairs the link meanwhile.
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The buffer fits all datagrams, in case this thread is not scheduled for a while.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20).unwrap();
        ready.send(()).unwrap();
        let (mut arrived, mut bytes) = (Vec::new(), [0; 4]);
        while socket.recv(&mut bytes).is_ok() {
            let number = u32::from_ne_bytes(bytes);
            if number != u32::MAX {
                if arrived.is_empty() {
                    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                }
                arrived.push(number);
            }
        }
        check(arrived, all_sent.recv().unwrap());
    };
    in_namespaces(near, far);
}

#[test]
fn lost_datagrams_are_counted() {
    let chances = Chances { loss: Chance::of(0.2), ..Chances::default() };
    datagrams(ImpairConfig { chances, ..config() }, |arrived, counters| {
        assert!((100..300).contains(&counters.dropped), "{counters:?}");
        // The programs decide as the model does.
        let due = fates(chances).filter(|(_, fate)| !fate.is_lost).map(|(number, _)| number);
        assert!(arrived.iter().copied().eq(due));
        assert_eq!(arrived.len() as u64, 1000 - counters.dropped);
        assert_eq!((counters.duplicated, counters.delayed), (0, 0));
    });
}

#[test]
fn doubled_datagrams_come_twice() {
    let chances = Chances { duplicate: Chance::of(0.1), ..Chances::default() };
    datagrams(ImpairConfig { chances, ..config() }, |arrived, counters| {
        let due = fates(chances).filter(|(_, fate)| fate.is_doubled).count();
        assert_eq!(counters.duplicated, due as u64, "{counters:?}");
        assert_eq!(arrived.len() as u64, 1000 + counters.duplicated);
        assert_eq!(arrived.iter().collect::<HashSet<_>>().len(), 1000);
    });
}

#[test]
fn late_datagrams_are_overtaken() {
    let chances = Chances { late: Chance::of(0.1), ..Chances::default() };
    datagrams(ImpairConfig { chances, ..config() }, |arrived, counters| {
        let due = fates(chances).filter(|(_, fate)| fate.is_late).count();
        assert_eq!(counters.delayed, due as u64, "{counters:?}");
        assert_eq!((counters.released, counters.overflowed), (counters.delayed, 0));
        assert_eq!(arrived.iter().collect::<HashSet<_>>().len(), 1000);
        assert!(!arrived.is_sorted());
    });
}

#[test]
fn a_connection_survives_all_of_it() {
    let message: Vec<u8> = (0..6_000_000u32).map(|at| (at ^ at >> 9) as u8).collect();
    let expected = message.clone();
    let (ready, start) = mpsc::channel::<()>();
    let near = move || {
        start.recv().unwrap();
        let one = Chance::of(0.01);
        let chances =
            Chances { loss: one, duplicate: one, late: Chance::of(0.02), ..Chances::default() };
        let bad = ImpairConfig { chances, ..config() };
        let link = Impairment::open(&bad).unwrap();
        let mut stream = TcpStream::connect("10.9.1.2:5001").unwrap();
        stream.write_all(&message).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).unwrap();
        assert_eq!(echo, b"all");
        let counters = link.counters().unwrap();
        assert!(counters.seen > 50, "{counters:?}");
    };
    let far = move || {
        let listener = TcpListener::bind("10.9.1.2:5001").unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received == expected);
        stream.write_all(b"all").unwrap();
    };
    in_namespaces(near, far);
}
