//! Client, balancer and server in a network namespace each, joined by a bridge in a fourth.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::thread::{
    CpuSet, UnshareFlags, gettid, sched_getcpu, sched_setaffinity, unshare_unsafe,
};

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

fn unshare() -> bool {
    // SAFETY: a network namespace is a property of the thread and does not affect memory.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        Ok(()) => true,
        Err(error) => {
            println!("skipped: no network namespace: {error}");
            false
        }
    }
}

/// Addresses of client, balancer and server.
#[derive(Clone, Copy)]
pub struct Plan {
    pub addresses: [&'static str; 3],
    /// Device offloads of the sending hosts.
    pub offloads: bool,
    /// The longest responses are of so many bits. Without offloads, the kernel queues at most 1000
    /// packets of a link.
    pub length_bits: u32,
    /// The server's host takes rules.
    pub has_agent: bool,
}

/// Addresses of IPv6.
pub const IPV6: [&str; 3] = ["fd09:2::7", "fd09:2::1", "fd09:2::3"];
/// Those of IPv4.
pub const IPV4: [&str; 3] = ["10.9.2.7", "10.9.2.1", "10.9.2.3"];

impl Plan {
    pub fn address(&self, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.addresses[host].parse().expect("an address"), port)
    }
}

/// A message from the thread of a host to the main thread.
enum Told {
    /// It is in a namespace of its own.
    Thread(usize, std::num::NonZeroI32),
    Refused,
    /// Its interface has an address.
    Up,
}

/// Runs the program of a host in a namespace, after the main thread has given it the interface
/// `near`. Returns false if there is no namespace.
fn run_host(
    plan: Plan,
    host: usize,
    tell: &Sender<Told>,
    go: &Receiver<()>,
    program: Box<dyn FnOnce() + Send>,
) -> bool {
    if !unshare() {
        let _ = tell.send(Told::Refused);
        return false;
    }
    tell.send(Told::Thread(host, gettid().as_raw_nonzero())).expect("the main thread waits");
    if go.recv().is_err() {
        return false;
    }
    ip("link set lo up");
    // A tail loss probe retransmits what a busy machine has not acknowledged in time.
    std::fs::write("/proc/sys/net/ipv4/tcp_early_retrans", "0").expect("a setting");
    let bits = if plan.address(host, 0).is_ipv4() { "24" } else { "64" };
    let nodad = if bits == "64" { " nodad" } else { "" };
    ip(&format!("addr add {}/{bits} dev near{nodad}", plan.addresses[host]));
    // An address that is not confirmed yet cannot ask for a neighbour.
    std::fs::write("/proc/sys/net/ipv6/conf/near/accept_dad", "0").expect("a setting");
    ip("link set near up");
    if bits == "24" {
        ip("route change 10.9.2.0/24 dev near rto_min 10s");
    }
    if !plan.offloads {
        let off = ["-K", "near", "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        let output = Command::new("ethtool").args(off).output().expect("ethtool runs");
        assert!(output.status.success(), "{output:?}");
    }
    tell.send(Told::Up).expect("the main thread waits");
    if go.recv().is_ok() {
        program();
    }
    true
}

/// Runs this thread, and those that it creates, on one processor: packets that two processors have
/// queued overtake each other, which looks like a loss.
fn stay_on_one_processor() {
    let mut processors = CpuSet::new();
    processors.set(sched_getcpu());
    sched_setaffinity(None, &processors).expect("a processor of this thread");
}

/// Runs the three programs, each in a namespace with an interface `near`, joined by a bridge in a
/// fourth. Returns false if that is not permitted.
pub fn in_namespaces(
    plan: Plan,
    client: impl FnOnce() + Send + 'static,
    balancer: impl FnOnce() + Send + 'static,
    server: impl FnOnce() + Send + 'static,
) -> bool {
    let programs: [Box<dyn FnOnce() + Send>; 3] =
        [Box::new(client), Box::new(balancer), Box::new(server)];
    stay_on_one_processor();
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let (mut threads, mut goes) = (Vec::new(), Vec::new());
        for (host, program) in programs.into_iter().enumerate() {
            let (tell, (go, wait)) = (tell.clone(), channel());
            goes.push(go);
            threads.push(scope.spawn(move || run_host(plan, host, &tell, &wait, program)));
        }
        drop(tell);
        let hosts: Vec<_> = told.iter().take(3).collect();
        let is_refused = |told: &Told| !matches!(told, Told::Thread(..));
        if !unshare() || hosts.iter().any(is_refused) {
            return false;
        }
        ip("link add bridge type bridge");
        ip("link set bridge up");
        for told in &hosts {
            let Told::Thread(host, thread) = told else { return false };
            ip(&format!("link add port{host} type veth peer name near netns {thread}"));
            ip(&format!("link set port{host} master bridge"));
            ip(&format!("link set port{host} up"));
        }
        goes.iter().for_each(|go| go.send(()).expect("the hosts wait"));
        // Fewer, if a host fails.
        assert_eq!(told.iter().take(3).count(), 3, "all hosts are up");
        goes.iter().for_each(|go| go.send(()).expect("the hosts wait"));
        threads.into_iter().all(|thread| thread.join().expect("the host's program ends"))
    })
}
