//! A thread of the load: an epoll loop over its connections.

use super::client::{Client, DROP_BYTES, End, RECEIVE_BYTES, Shared};
use super::linger::{Lingering, WAIT_MAX};
use super::outcome::Outcome;
use super::plan::Plan;
use super::tls::Tls;
use anyhow::{Context, Result};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use unlade_testkit::Random;

/// Events taken at one go.
const EVENTS_MAX: usize = 256;
/// How often timeouts are looked for.
const SWEEP: Duration = Duration::from_millis(50);
/// How long a connection that failed rests before it is tried again.
const RETRY: Duration = Duration::from_millis(20);
/// Failures in a row, no request answered between them, after which a worker gives up.
const FAILURES_MAX: u32 = 500;
/// Ciphertext that may be left over: an incomplete record (RFC 8446, section 5.2, and TLS 1.2's
/// larger one) or handshake message.
const LEFTOVER_BYTES_MAX: usize = 80 * 1024;

/// The epoll data of sockets that linger; others have the index of their slot.
const LINGERS: u64 = u64::MAX;

/// A place for a connection; it is filled again when the connection ends.
struct Slot {
    client: Option<Client>,
    random: Random,
    /// When to connect (again).
    due: Option<Instant>,
    watches_write: bool,
}

/// Result of a worker.
pub struct Report {
    pub outcome: Outcome,
    pub elapsed: Duration,
}

/// Runs connections `first..first + count` of the plan until its end.
///
/// # Errors
/// The kernel refuses an epoll instance or a socket.
pub fn run(plan: &Plan, first: usize, count: usize, budget: Option<u64>) -> Result<Report> {
    let mut worker = Worker::new(plan, first, count, budget)?;
    worker.turn_until_end()?;
    Ok(Report { outcome: worker.shared.outcome, elapsed: worker.measured.elapsed() })
}

struct Worker<'p> {
    plan: &'p Plan,
    /// Number of its first connection.
    first: usize,
    epoll: OwnedFd,
    slots: Vec<Slot>,
    lingering: Lingering,
    shared: Shared<'p>,
    start: Instant,
    /// When measuring began: the start, or the end of the warm-up.
    measured: Instant,
    warm: bool,
    failures: u32,
    answered: u64,
}

impl<'p> Worker<'p> {
    fn new(plan: &'p Plan, first: usize, count: usize, budget: Option<u64>) -> Result<Self> {
        let start = Instant::now();
        let slots = (0..count).map(|index| {
            let number = (first + index) as u64;
            // Connections open evenly over the ramp.
            let share = (first + index) as f64 / plan.connections.max(1) as f64;
            Slot {
                client: None,
                random: Random::new(plan.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                due: Some(start + plan.ramp.mul_f64(share)),
                watches_write: false,
            }
        });
        let shared = Shared {
            targets: &plan.targets,
            lengths: vec![None; plan.targets.len()],
            verify: plan.verify,
            pipeline: plan.pipeline,
            requests_per_connection: plan.requests_per_connection,
            budget,
            stopping: false,
            copy_bodies: plan.copy_bodies,
            outcome: Outcome::new(),
            inbox: vec![0; LEFTOVER_BYTES_MAX + RECEIVE_BYTES],
            sink: vec![0; DROP_BYTES],
            requests: Vec::new(),
            sent: first as u64,
        };
        Ok(Worker {
            plan,
            first,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?,
            slots: slots.collect(),
            lingering: Lingering::default(),
            shared,
            start,
            measured: start,
            warm: plan.warmup.is_zero(),
            failures: 0,
            answered: 0,
        })
    }

    fn turn_until_end(&mut self) -> Result<()> {
        if self.warm {
            self.announce()?;
        }
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut swept = self.start;
        while !self.is_over() {
            events.clear();
            let wait = Timespec { tv_sec: 0, tv_nsec: SWEEP.as_nanos() as i64 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait))
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("epoll_wait"),
            }
            if events.iter().any(|event| event.data.u64() == LINGERS) {
                self.lingering.advance(&mut self.shared.sink, Instant::now());
            }
            for event in &events {
                let slot = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                self.serve(slot, event.flags)?;
            }
            let now = Instant::now();
            if !self.warm && now.duration_since(self.start) >= self.plan.warmup {
                self.warm = true;
                self.measured = now;
                self.shared.outcome = Outcome::new();
                self.answered = 0;
                self.announce()?;
            }
            if events.is_empty() || now.duration_since(swept) >= SWEEP || now < self.ramp_end() {
                swept = now;
                self.sweep(now)?;
            }
        }
        self.await_lingering()
    }

    /// Waits until the servers have closed the connections that linger, within their limit.
    fn await_lingering(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.lingering.is_empty() && began.elapsed() < WAIT_MAX {
            events.clear();
            let wait = Timespec { tv_sec: 0, tv_nsec: SWEEP.as_nanos() as i64 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait))
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("epoll_wait"),
            }
            self.lingering.advance(&mut self.shared.sink, Instant::now());
        }
        Ok(())
    }

    /// Keeps a TLS connection that ended in the orderly way until the server closes it.
    fn linger(&mut self, client: Client, now: Instant) {
        let data = epoll::EventData::new_u64(LINGERS);
        // Without events the sweep finds its end.
        let _ = epoll::modify(&self.epoll, &client.socket, data, epoll::EventFlags::IN);
        self.lingering.add(client.socket, now);
    }

    /// One worker speaks for all: they start together.
    fn announce(&self) -> Result<()> {
        match self.plan.announce && self.first == 0 {
            true => unlade_command::output::line("{}"),
            false => Ok(()),
        }
    }

    fn ramp_end(&self) -> Instant {
        self.start + self.plan.ramp + SWEEP
    }

    /// Returns true if the time is up, all requests are answered, or no answer comes any more.
    fn is_over(&mut self) -> bool {
        let time_is_up =
            self.plan.duration.is_some_and(|length| self.warm && self.measured.elapsed() >= length);
        if time_is_up && !self.plan.finish {
            return true;
        }
        self.shared.stopping |= time_is_up || self.plan.stop.load(Ordering::Relaxed);
        let nothing_due = self.shared.budget == Some(0) || self.shared.stopping;
        let busy = self.slots.iter().any(|slot| slot.client.is_some());
        self.failures >= FAILURES_MAX || (nothing_due && !busy)
    }

    fn serve(&mut self, index: usize, flags: epoll::EventFlags) -> Result<()> {
        let Some(slot) = self.slots.get_mut(index) else { return Ok(()) };
        let Some(client) = slot.client.as_mut() else { return Ok(()) };
        let now = Instant::now();
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let outcome = if flags.contains(epoll::EventFlags::OUT) {
            client.on_writable(&mut self.shared, &mut slot.random, now)
        } else {
            Ok(())
        };
        let outcome = outcome.and_then(|()| match flags.intersects(readable) {
            true => client.on_readable(&mut self.shared, &mut slot.random, now),
            false => Ok(()),
        });
        match outcome {
            Ok(()) => self.watch(index),
            Err(end) => {
                self.end(index, end, now);
                Ok(())
            }
        }
    }

    /// Asks for writability only while it matters.
    fn watch(&mut self, index: usize) -> Result<()> {
        let Some(slot) = self.slots.get_mut(index) else { return Ok(()) };
        let Some(client) = &slot.client else { return Ok(()) };
        let wants = client.wants_write();
        if wants != slot.watches_write {
            slot.watches_write = wants;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &client.socket, data, interest(wants)).context("epoll")?;
        }
        Ok(())
    }

    /// Counts why a connection ended and makes room for the next.
    fn end(&mut self, index: usize, end: End, now: Instant) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let client = slot.client.take();
        let due = client.as_ref().map_or(0, Client::due);
        if let Some(budget) = &mut self.shared.budget {
            *budget += due as u64;
        }
        let outcome = &mut self.shared.outcome;
        let mut orderly = false;
        match &end {
            End::Done | End::ServerCloses => orderly = true,
            End::Refused(_) => outcome.connect_failures += 1,
            End::Reset(_) => outcome.resets += 1,
            End::ClosedEarly => outcome.closed_early += 1,
            End::Malformed(_) => outcome.malformed += 1,
            End::Tls(_) => outcome.tls_failures += 1,
            End::Timeout => outcome.timeouts += 1,
        }
        if !orderly {
            outcome.remember(|| format!("{end} ({due} responses due)"));
        }
        let answered = outcome.requests;
        self.failures = match orderly || answered > self.answered {
            true => 0,
            false => self.failures + 1,
        };
        self.answered = answered;
        slot.due = Some(if orderly { now } else { now + RETRY });
        if let Some(client) = client.filter(|client| orderly && client.is_encrypted()) {
            self.linger(client, now);
        }
        if orderly && !self.is_finished() {
            // At once: an interrupted stream of connections would be measured as idleness.
            if let Err(error) = self.open(index, now) {
                self.shared.outcome.connect_failures += 1;
                self.shared.outcome.remember(|| format!("{error:#}"));
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.shared.stopping || self.shared.budget == Some(0)
    }

    /// Opens what is due and ends what takes too long.
    fn sweep(&mut self, now: Instant) -> Result<()> {
        self.lingering.advance(&mut self.shared.sink, now);
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            if let Some(client) = &slot.client {
                if now.saturating_duration_since(client.progress) > self.plan.timeout {
                    self.end(index, End::Timeout, now);
                }
            } else if slot.due.is_some_and(|due| due <= now) && !self.is_finished() {
                self.open(index, now)?;
            }
        }
        Ok(())
    }

    fn open(&mut self, index: usize, now: Instant) -> Result<()> {
        let addresses = &self.plan.addresses;
        let turn = (self.first + index) % addresses.len().max(1);
        let Some(address) = addresses.get(turn) else { return Ok(()) };
        let family = match address.is_ipv4() {
            true => AddressFamily::INET,
            false => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None).context("socket")?;
        sockopt::set_tcp_nodelay(&socket, true).context("TCP_NODELAY")?;
        let tls = match &self.plan.tls {
            Some((config, name)) => Some(Tls::new(config, name)?),
            None => None,
        };
        match connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => {
                self.end(index, End::Refused(errno), now);
                return Ok(());
            }
        }
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.epoll, &socket, data, interest(true)).context("epoll")?;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.client = Some(Client::new(socket, tls, now));
            slot.due = None;
            slot.watches_write = true;
        }
        Ok(())
    }
}

fn interest(write: bool) -> epoll::EventFlags {
    match write {
        true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        false => epoll::EventFlags::IN,
    }
}
