//! Interoperability with Linux's TCP, through a TAP device in its own network namespace. Needs
//! CAP_NET_ADMIN.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use unlade_net::FlowKey;
use unlade_net::packet::{
    ETHER_TYPE_IPV4, EthernetRepr, EthernetView, Ipv4Repr, Ipv4View, PROTOCOL_TCP, TcpFlags,
    classify, transport_checksum,
};
use unlade_research_tcp::{
    Config, HEADER_BYTES_MAX, Header, Id, Outgoing, Stack, StackConfig, State, Time,
};
use unlade_sys::tap::Tap;
use unlade_testkit::{Random, setting};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const KERNEL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Timeout that is sufficient for every test on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// Treatment of frames in both directions; probabilities are per thousand.
#[derive(Clone, Copy)]
struct NetworkConditions {
    lost: u64,
    /// Swapped with the next frame.
    late: u64,
    doubled: u64,
}

const FAIR: NetworkConditions = NetworkConditions { lost: 0, late: 0, doubled: 0 };
const FOUL: NetworkConditions = NetworkConditions { lost: 20, late: 20, doubled: 5 };

/// The device, our stack on it, and this thread's time.
struct Driver {
    tap: Tap,
    stack: Stack<Bytes>,
    start: Instant,
    weather: NetworkConditions,
    random: Random,
    /// Delayed frames, by direction.
    late: [VecDeque<Vec<u8>>; 2],
    gather: Vec<Bytes>,
}

impl Driver {
    /// Creates a device between this thread's new namespace and our stack, or `None` without
    /// permission.
    fn new(weather: NetworkConditions) -> Option<Driver> {
        // SAFETY: a network namespace is a property of the thread; no memory is shared or lost.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            println!("skipped: no network namespace: {error}");
            return None;
        }
        let tap = match Tap::create("kernel", KERNEL_MAC, 4096, 1500) {
            Ok(tap) => tap,
            Err(error) => {
                println!("skipped: no TAP device: {error}");
                return None;
            }
        };
        ip("link set lo up");
        ip(&format!("addr add {KERNEL}/24 dev kernel"));
        ip(&format!("neigh add {OURS} lladdr 02:00:00:00:00:02 dev kernel nud permanent"));
        let seed = setting("UNLADE_SEED").unwrap_or(1);
        println!("UNLADE_SEED={seed}");
        let config = Config { receive_buffer_bytes: 1 << 20, ..Config::default() };
        Some(Driver {
            tap,
            stack: Stack::new(StackConfig::new(config, [3; 16])),
            start: Instant::now(),
            weather,
            random: Random::new(seed),
            late: [VecDeque::new(), VecDeque::new()],
            gather: Vec::new(),
        })
    }

    fn now(&self) -> Time {
        Time::from_ns(self.start.elapsed().as_nanos() as u64 + 1)
    }

    /// Processes all pending events, or waits briefly.
    fn turn(&mut self) {
        let mut frame = [0; 2048];
        let mut busy = false;
        for _ in 0..64 {
            match self.tap.receive(&mut frame) {
                Ok(bytes) => {
                    busy = true;
                    self.impair(0, frame[..bytes].to_vec());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let now = self.now();
        self.stack.handle_timeout(now);
        self.transmit();
        if !busy {
            self.rest();
        }
    }

    fn rest(&mut self) {
        // A delayed frame is delivered at this point at the latest.
        for direction in 0..2 {
            while let Some(frame) = self.late[direction].pop_front() {
                self.pass(direction, &frame);
            }
        }
        self.transmit();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let _ = poll(&mut [PollFd::new(&self.tap, PollFlags::IN)], Some(&timeout));
    }

    fn impair(&mut self, direction: usize, frame: Vec<u8>) {
        if self.random.chance(self.weather.lost, 1000) {
            return;
        }
        if self.random.chance(self.weather.late, 1000) {
            return self.late[direction].push_back(frame);
        }
        self.pass(direction, &frame);
        if self.random.chance(self.weather.doubled, 1000) {
            self.pass(direction, &frame);
        }
        while let Some(late) = self.late[direction].pop_front() {
            self.pass(direction, &late);
        }
    }

    fn pass(&mut self, direction: usize, frame: &[u8]) {
        if direction == 1 {
            let (headers, payload) = frame.split_at(frame.len().min(54));
            self.tap.send_parts(headers, payload).expect("the device takes frames");
            return;
        }
        let Some(found) = classify(frame) else { return };
        let ethernet = EthernetView::new(frame).unwrap();
        let ip = Ipv4View::new(ethernet.payload()).unwrap();
        assert_eq!(transport_checksum(KERNEL.into(), OURS.into(), ip.payload()), 0);
        let (header, at) = Header::decode(ip.payload()).expect("a header");
        let mut pieces = Vec::new();
        if found.payload_bytes > 0 {
            pieces.push(Bytes::copy_from_slice(&ip.payload()[at..]));
        }
        let now = self.now();
        self.stack.receive(now, found.flow, &header, &mut pieces);
        self.transmit();
    }

    fn transmit(&mut self) {
        let mut gather = core::mem::take(&mut self.gather);
        while let Some(out) = self.stack.poll_transmit(self.now(), &mut gather) {
            for frame in frames(&out, &gather) {
                self.impair(1, frame);
            }
        }
        self.gather = gather;
    }

    /// Runs until `done` returns true.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Driver) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            self.turn();
            assert!(begin.elapsed() < PATIENCE, "never: {what}");
        }
    }

    /// Runs until the connection is closed or in TIME-WAIT.
    fn until_closed(&mut self, id: Id) {
        self.until("both have closed", |driver| {
            let connection = driver.stack.get(id).expect("it was not released");
            matches!(connection.state(), State::Closed | State::TimeWait)
        });
        assert_eq!(self.stack.get(id).unwrap().error(), None);
    }

    /// Sends and receives the given numbers of bytes, checks them, and returns when both are
    /// complete.
    fn trade(&mut self, id: Id, send: usize, receive: usize) {
        let (mut sent, mut received) = (0, 0);
        self.until("all bytes have gone and come", |driver| {
            let connection = driver.stack.get_mut(id).expect("it was not released");
            while sent < send {
                let count = (send - sent).min(30_000);
                let piece: Bytes = (sent..sent + count).map(byte).collect();
                if connection.send(piece).is_err() {
                    break;
                }
                sent += count;
            }
            while let Some((_, part)) = connection.read() {
                for &value in &part {
                    assert_eq!(value, byte(received + 7), "byte {received}");
                    received += 1;
                }
            }
            assert_eq!(connection.error(), None);
            assert!(received <= receive);
            sent == send && received == receive
        });
    }

    fn connect(&mut self, port: u16) -> Id {
        let remote = SocketAddr::from((KERNEL, port));
        let now = self.now();
        let id = self.stack.connect(now, SocketAddr::from((OURS, 40_000)), remote).unwrap();
        self.until("a connection", |driver| driver.stack.get(id).unwrap().is_established());
        id
    }
}

fn byte(at: usize) -> u8 {
    ((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// The packets of a segment.
fn frames(out: &Outgoing, gather: &[Bytes]) -> Vec<Vec<u8>> {
    let payload = gather.concat();
    let mss = usize::from(out.segment.mss_bytes).max(1);
    let count = payload.len().div_ceil(mss).max(1);
    let frame = |number: usize| {
        let part = &payload[number * mss..payload.len().min((number + 1) * mss)];
        let mut header = out.segment.header;
        header.seq = header.seq + (number * mss) as u32;
        if number + 1 < count {
            header.flags.0 &= !(TcpFlags::FIN.0 | TcpFlags::PSH.0);
        }
        frame_of(&out.flow, &header, part)
    };
    (0..count).map(frame).collect()
}

fn frame_of(flow: &FlowKey, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut emitted = [0; HEADER_BYTES_MAX];
    let bytes = header.emit((flow.service.port(), flow.client.port()), &mut emitted);
    let mut segment = [&emitted[..bytes], payload].concat();
    let sum = transport_checksum(OURS.into(), KERNEL.into(), &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::new();
    EthernetRepr {
        destination: KERNEL_MAC,
        source: OUR_MAC,
        vlan: None,
        ether_type: ETHER_TYPE_IPV4,
    }
    .emit(&mut frame);
    let ip = Ipv4Repr {
        source: OURS,
        destination: KERNEL,
        protocol: PROTOCOL_TCP,
        ttl: 64,
        tos: 0,
        ident: 0,
        dont_fragment: true,
        payload_bytes: segment.len(),
    };
    ip.emit(&mut frame).expect("it fits");
    frame.extend_from_slice(&segment);
    assert!(frame.len() <= 1514);
    frame
}

/// Behaviour of the kernel's side of a connection.
type Peer = fn(TcpStream, usize, usize);

/// Sends and receives concurrently, then closes in its own way.
fn trade(stream: &TcpStream, send: usize, receive: usize) {
    let mut writer = stream.try_clone().unwrap();
    let writes = std::thread::spawn(move || {
        let all: Vec<u8> = (0..send).map(|at| byte(at + 7)).collect();
        writer.write_all(&all).unwrap();
    });
    let mut all = vec![0; receive];
    (&*stream).read_exact(&mut all).unwrap();
    assert!(all.iter().enumerate().all(|(at, &value)| value == byte(at)));
    writes.join().unwrap();
}

fn closes_last(mut stream: TcpStream, send: usize, receive: usize) {
    trade(&stream, send, receive);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end");
}

fn closes_first(mut stream: TcpStream, send: usize, receive: usize) {
    trade(&stream, send, receive);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end");
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Listens with the kernel's TCP, in this thread's namespace.
fn kernel_server(peer: Peer, send: usize, receive: usize) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind((KERNEL, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        peer(patient(stream), send, receive);
    });
    (port, thread)
}

/// Our stack connects to the kernel; `ours_first`: our stack closes first.
fn client(weather: NetworkConditions, send: usize, receive: usize, ours_first: bool) {
    let Some(mut driver) = Driver::new(weather) else { return };
    let peer: Peer = if ours_first { closes_last } else { closes_first };
    let (port, thread) = kernel_server(peer, receive, send);
    let id = driver.connect(port);
    driver.trade(id, send, receive);
    finish(&mut driver, id, ours_first, thread);
}

/// The kernel connects to our stack.
fn server(weather: NetworkConditions, send: usize, receive: usize, ours_first: bool) {
    let Some(mut driver) = Driver::new(weather) else { return };
    let address = SocketAddr::from((OURS, 80));
    driver.stack.listen(address, 4).unwrap();
    let peer: Peer = if ours_first { closes_last } else { closes_first };
    let thread = std::thread::spawn(move || {
        peer(patient(TcpStream::connect(address).unwrap()), receive, send);
    });
    let mut accepted = None;
    driver.until("somebody asks", |driver| {
        accepted = driver.stack.accept(address);
        accepted.is_some()
    });
    let id = accepted.unwrap();
    driver.trade(id, send, receive);
    finish(&mut driver, id, ours_first, thread);
}

fn finish(driver: &mut Driver, id: Id, ours_first: bool, thread: JoinHandle<()>) {
    if !ours_first {
        driver.until("the end of what the kernel sends", |driver| {
            driver.stack.get(id).unwrap().is_read_to_end()
        });
    }
    driver.stack.get_mut(id).unwrap().close();
    driver.until_closed(id);
    driver.until("the kernel's thread ends", |_| thread.is_finished());
    thread.join().unwrap();
    println!("{:?}", driver.stack.get(id).unwrap().stats());
}

const MIB: usize = 1 << 20;

#[test]
fn bulk_to_the_kernel() {
    client(FAIR, 32 * MIB, 0, true);
}

#[test]
fn bulk_from_the_kernel() {
    client(FAIR, 0, 32 * MIB, false);
}

#[test]
fn both_ways_at_once_as_its_server() {
    server(FAIR, 8 * MIB, 8 * MIB, true);
}

#[test]
fn the_kernel_asks_and_closes_first() {
    server(FAIR, 100_000, MIB, false);
}

#[test]
fn nothing_but_opening_and_closing() {
    client(FAIR, 0, 0, true);
    client(FAIR, 0, 0, false);
    server(FAIR, 0, 0, true);
    server(FAIR, 0, 0, false);
}

#[test]
fn loss_and_reordering_to_the_kernel() {
    client(FOUL, 4 * MIB, 0, true);
}

#[test]
fn loss_and_reordering_from_the_kernel() {
    client(FOUL, 0, 4 * MIB, false);
}

#[test]
fn loss_and_reordering_both_ways_as_its_server() {
    server(FOUL, 2 * MIB, 2 * MIB, false);
}

#[test]
fn nobody_listens() {
    let Some(mut driver) = Driver::new(FAIR) else { return };
    let (now, remote) = (driver.now(), SocketAddr::from((KERNEL, 9)));
    let id = driver.stack.connect(now, SocketAddr::from((OURS, 40_000)), remote).unwrap();
    driver.until("a refusal", |driver| driver.stack.get(id).unwrap().error().is_some());
    assert_eq!(
        driver.stack.get(id).unwrap().error(),
        Some(unlade_research_tcp::ConnectionError::Refused)
    );
    let thread = std::thread::spawn(|| TcpStream::connect((OURS, 80)).unwrap_err().kind());
    driver.until("a refusal of ours", |_| thread.is_finished());
    assert_eq!(thread.join().unwrap(), ErrorKind::ConnectionRefused);
}

#[test]
fn an_abort_reaches_the_kernel_and_its_own_reaches_us() {
    let Some(mut driver) = Driver::new(FAIR) else { return };
    let resets: Peer = |mut stream, _, _| {
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    };
    let (port, thread) = kernel_server(resets, 0, 0);
    let id = driver.connect(port);
    driver.stack.get_mut(id).unwrap().abort();
    driver.until("the kernel knows", |_| thread.is_finished());
    thread.join().unwrap();
    driver.stack.release(id);
    // Unread bytes turn the kernel's close into a reset.
    let closes: Peer = |stream, _, _| {
        stream.peek(&mut [0]).unwrap();
    };
    let (port, thread) = kernel_server(closes, 0, 0);
    let id = driver.connect(port);
    driver.stack.get_mut(id).unwrap().send(Bytes::from_static(b"unread")).unwrap();
    driver.until("a reset", |driver| driver.stack.get(id).unwrap().error().is_some());
    assert_eq!(
        driver.stack.get(id).unwrap().error(),
        Some(unlade_research_tcp::ConnectionError::Reset)
    );
    thread.join().unwrap();
}
