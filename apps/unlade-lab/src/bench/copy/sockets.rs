//! Receives and sends by the service, beside recv(2) and send(2), on a TCP connection of this
//! machine.

use super::usage::CopyTime;
use crate::bench::figures::median;
use crate::bench::record::Sink;
use crate::bench::samples::{clock_ns, ns};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Polling, Service};

const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const LINE_BYTES: usize = 64;
/// Room asked for in each socket: the largest message in the kernel's own measure.
const SOCKET_BYTES: usize = 8 << 20;
/// How long a message may be on its way from one socket of this machine to another.
const ARRIVAL: Duration = Duration::from_secs(2);

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Receive,
    Send,
}

/// The parameters that stay fixed.
#[derive(Debug, Clone, Copy)]
struct Case {
    direction: Direction,
    bytes: usize,
    has_window: bool,
}

impl Case {
    fn fields(self) -> Map<String, Value> {
        let direction = match self.direction {
            Direction::Receive => "recv",
            Direction::Send => "send",
        };
        let case =
            json!({ "direction": direction, "bytes": self.bytes, "window": self.has_window });
        case.as_object().cloned().unwrap_or_default()
    }

    fn repeats(self) -> usize {
        ((8 << 20) / self.bytes).clamp(16, 128)
    }
}

/// Both ends of a connection, and the bytes that go over it.
pub(super) struct Wire {
    pub near: TcpStream,
    far: TcpStream,
    pub message: Vec<u8>,
    received: Vec<u8>,
}

impl Wire {
    /// Connects two sockets that hold `bytes` bytes.
    ///
    /// # Errors
    /// No socket is to be had.
    pub fn new(bytes: usize) -> Result<Wire> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
        // Windows are negotiated when the connection is made: before that there must be room.
        room(&listener);
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        for socket in [&near, &far] {
            room(socket);
            socket.set_nodelay(true)?;
        }
        let message = (0..bytes).map(|at| (at % 251) as u8).collect();
        Ok(Wire { near, far, message, received: vec![0; bytes] })
    }

    /// Sends a message from the far end, and waits until all of it is there.
    ///
    /// # Errors
    /// The sockets hold fewer bytes.
    pub fn feed(&self) -> Result<()> {
        send_all(&self.far, &self.message)?;
        let begin = Instant::now();
        while (ioctl_fionread(&self.near)? as usize) < self.message.len() {
            if begin.elapsed() > ARRIVAL {
                bail!("a socket holds no {} bytes: raise net.core.rmem_max", self.message.len());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Takes a message at the far end, and looks at it.
    ///
    /// # Errors
    /// Other bytes came.
    pub fn drain(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.received.len() {
            let (got, _) = recv(&self.far, &mut self.received[at..], RecvFlags::empty())?;
            ensure!(got > 0, "the connection ended");
            at += got;
        }
        ensure!(self.received == self.message, "other bytes arrived than were sent");
        Ok(())
    }
}

/// As much room as the kernel gives.
fn room(socket: impl AsFd) {
    // Without the privilege the usual limit holds, and `Wire::feed` says where it is too small.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES);
    let _ = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES);
}

pub(super) fn send_all(socket: &TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let sent = send(socket, bytes, SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// One byte of each line.
fn read_lines(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum()
}

fn wait(window: Duration) {
    let from = Instant::now();
    while from.elapsed() < window {
        std::hint::spin_loop();
    }
}

/// One message by the program itself: nanoseconds.
fn alone(wire: &mut Wire, direction: Direction, window: Duration) -> Result<f64> {
    if direction == Direction::Receive {
        wire.feed()?;
    }
    let begin = Instant::now();
    match direction {
        Direction::Receive => {
            let mut at = 0;
            while at < wire.received.len() {
                at += recv(&wire.near, &mut wire.received[at..], RecvFlags::empty())?.0;
            }
        }
        Direction::Send => send_all(&wire.near, &wire.message)?,
    }
    let moved = Instant::now();
    wait(window);
    let resumed = Instant::now();
    if direction == Direction::Receive {
        black_box(read_lines(&wire.received));
    }
    let took = ns(begin, moved) + ns(resumed, Instant::now());
    finish(wire, direction)?;
    Ok(took)
}

/// The same by the service.
fn served(copier: &Copier, wire: &mut Wire, direction: Direction, window: Duration) -> Result<f64> {
    if direction == Direction::Receive {
        wire.feed()?;
    }
    let Wire { near, message, received, .. } = &mut *wire;
    let begin = Instant::now();
    let took = copier.scope(|scope| -> Result<f64> {
        let (moved, resumed);
        match direction {
            Direction::Receive => {
                let pending = scope.receive(near.as_fd(), received)?;
                moved = Instant::now();
                wait(window);
                resumed = Instant::now();
                let all = pending.len();
                black_box(read_lines(pending.sync(0..all)?));
            }
            Direction::Send => {
                let sent = scope.send(near.as_fd(), message)?;
                moved = Instant::now();
                wait(window);
                resumed = Instant::now();
                sent.wait()?;
            }
        }
        Ok(ns(begin, moved) + ns(resumed, Instant::now()))
    })?;
    finish(wire, direction)?;
    Ok(took)
}

fn finish(wire: &mut Wire, direction: Direction) -> Result<()> {
    match direction {
        Direction::Send => wire.drain(),
        Direction::Receive => {
            ensure!(wire.received == wire.message, "other bytes arrived than were sent");
            wire.received.fill(0);
            Ok(())
        }
    }
}

/// Nanoseconds of both ways, the ratio of the rounds, and what the service used for one message.
struct Outcome {
    alone_ns: f64,
    served_ns: f64,
    ratio: f64,
    service_cpu_ns: f64,
}

fn measure(service: &Service, case: Case, rounds: usize, clock_ns: f64) -> Result<Outcome> {
    let copier = Copier::new(service.attach().context("a client")?);
    let mut wire = Wire::new(case.bytes)?;
    let mut first = Vec::new();
    for _ in 0..9 {
        first.push(alone(&mut wire, case.direction, Duration::ZERO)?);
    }
    let window = match case.has_window {
        true => Duration::from_nanos((4.0 * median(&first)) as u64 + 3_000),
        false => Duration::ZERO,
    };
    // A window of nothing takes a look at the clock too.
    let overhead = 2.0 * clock_ns;
    let (mut own, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut service_cpu_ns, repeats) = (Vec::new(), case.repeats());
    for _ in 0..rounds {
        let mut samples = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            samples.push((alone(&mut wire, case.direction, window)? - overhead).max(1.0));
        }
        let alone_ns = median(&samples);
        samples.clear();
        // The service is awake only while it is asked, as in a program that has much to receive.
        let _awake = service.scenario();
        served(&copier, &mut wire, case.direction, window)?;
        let before = CopyTime::now();
        for _ in 0..repeats {
            let took = served(&copier, &mut wire, case.direction, window)?;
            samples.push((took - overhead).max(1.0));
        }
        let cpu = CopyTime::now() - before;
        service_cpu_ns.push(cpu.service_s * 1e9 / repeats as f64);
        let served_ns = median(&samples);
        own.push(alone_ns);
        theirs.push(served_ns);
        ratios.push(served_ns / alone_ns);
    }
    Ok(Outcome {
        alone_ns: median(&own),
        served_ns: median(&theirs),
        ratio: median(&ratios),
        service_cpu_ns: median(&service_cpu_ns),
    })
}

/// Cost of asking a socket for the number of bytes it holds: a receive by the service begins so.
fn fionread_ns(clock_ns: f64) -> Result<f64> {
    const LOOKS: usize = 100;
    let wire = Wire::new(4096)?;
    wire.feed()?;
    let mut samples = Vec::new();
    for _ in 0..101 {
        let begin = Instant::now();
        for _ in 0..LOOKS {
            black_box(ioctl_fionread(&wire.near)?);
        }
        samples.push((ns(begin, Instant::now()) - clock_ns) / LOOKS as f64);
    }
    Ok(median(&samples))
}

/// Receives.
pub fn run_recv(quick: bool, sink: &mut Sink) -> Result<()> {
    run(Direction::Receive, quick, sink)?;
    let fionread_ns = fionread_ns(clock_ns())?;
    line(format_args!("how many bytes are there (FIONREAD): {fionread_ns:.0} ns"))?;
    let metrics = Map::from_iter([("fionread_ns".to_owned(), fionread_ns.into())]);
    sink.write(Map::from_iter([("direction".to_owned(), "recv".into())]), "offload", metrics)
}

/// Sends.
pub fn run_send(quick: bool, sink: &mut Sink) -> Result<()> {
    run(Direction::Send, quick, sink)
}

fn run(direction: Direction, quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 7 } else { 21 };
    let service = Service::start(Config { polling: Polling::Scenario, ..Config::default() })?;
    let clock_ns = clock_ns();
    let heads = ["service", "at once", "ratio", "service CPU"].map(|head| format!("{head:>12}"));
    line(format_args!("{:<24}{}", "nanoseconds", heads.concat()))?;
    for has_window in [true, false] {
        for bytes in SIZES {
            let case = Case { direction, bytes, has_window };
            // A thread each, so that nothing is learnt from one case for the next.
            let outcome = std::thread::scope(|scope| {
                let measuring = scope.spawn(|| measure(&service, case, rounds, clock_ns));
                measuring.join().map_err(|_| anyhow!("the measuring thread panicked"))?
            })?;
            report(case, &outcome, sink)?;
        }
    }
    Ok(())
}

fn report(case: Case, outcome: &Outcome, sink: &mut Sink) -> Result<()> {
    let Outcome { alone_ns, served_ns, ratio, service_cpu_ns } = *outcome;
    let map = |value: Value| value.as_object().cloned().unwrap_or_default();
    let alone = json!({ "latency_ns": alone_ns, "client_cpu_ns": alone_ns });
    sink.write(case.fields(), "syscall", map(alone))?;
    let served = json!({
        "latency_ns": served_ns, "client_cpu_ns": served_ns, "service_cpu_ns": service_cpu_ns
    });
    sink.write(case.fields(), "offload", map(served))?;
    sink.write(case.fields(), "ratio", map(json!({ "latency_ratio_vs_syscall": ratio })))?;
    let window = if case.has_window { "window" } else { "at once" };
    let label = format!("{window} {}", unlade_config::ByteSize(case.bytes as u64));
    line(format_args!(
        "{label:<24}{served_ns:>12.0}{alone_ns:>12.0}{ratio:>12.2}{service_cpu_ns:>12.0}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_and_both_ways_bring_the_right_bytes() {
        let polling = Config { polling: Polling::Scenario, ..Config::default() };
        let service = Service::start(polling).unwrap();
        for direction in [Direction::Receive, Direction::Send] {
            for bytes in [1 << 10, 64 << 10] {
                let case = Case { direction, bytes, has_window: true };
                let outcome = measure(&service, case, 1, 0.0).unwrap();
                assert!(outcome.alone_ns > 0.0 && outcome.served_ns > 0.0 && outcome.ratio > 0.0);
            }
        }
        assert!(fionread_ns(0.0).unwrap() > 0.0);
    }
}
