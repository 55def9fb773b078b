//! The engine's thread: frames from the kernel to the wire and back, in batches.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use unlade_sys::packet::PacketPort;
use unlade_sys::vnet::{FRAME_BYTES_MAX, VnetHeader, VnetTap};

use super::channel::Device;
use super::engine::Engine;
use super::flow_table::CONNECTIONS_MAX;
use super::impair::Impaired;
use crate::capture::Capture;
use crate::impair::Seeded;

/// Frames taken from one side before it is the other side's turn.
const BATCH_FRAMES: usize = 32;
/// Nanoseconds of a millisecond.
const NS_PER_MS: u64 = 1_000_000;
/// How long an engine with its own processor polls for frames before it sleeps.
pub const SPIN: Duration = Duration::from_micros(50);
/// Interval of the checks for silent connections.
const SWEEP_MS: u64 = 1000;
/// Longest sleep of the thread.
const SLEEP_MS: u64 = 250;
/// Shortest time between two log lines about a full table.
const FULL_LOG_MS: u64 = 10_000;
/// Largest number of the kernel's frames that wait for the device: in its queue, and in the queue
/// of the packet scheduler before that.
const WAITING_FRAMES_MAX: u64 = 2 * QUEUE_FRAMES as u64;
/// Frames that the kernel queues for a TAP device before it drops.
pub const QUEUE_FRAMES: u32 = 10_000;
/// Longest sleep while frames are delayed.
const HELD_SLEEP_MS: u64 = 1;

/// The wire side of an engine.
pub enum Wire {
    /// Another TAP device.
    Tap(VnetTap),
    /// A real interface.
    Packet(PacketPort),
}

impl Wire {
    fn receive(&self, frame: &mut [u8]) -> io::Result<(VnetHeader, usize)> {
        match self {
            Wire::Tap(tap) => tap.receive(frame),
            Wire::Packet(port) => port.receive(frame),
        }
    }

    fn send(&self, header: &VnetHeader, frame: &[u8]) -> io::Result<()> {
        match self {
            Wire::Tap(tap) => tap.send(header, frame),
            Wire::Packet(port) => port.send(header, frame),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Wire::Tap(tap) => tap.as_fd(),
            Wire::Packet(port) => port.as_fd(),
        }
    }
}

/// The two sides of an engine, and its options.
pub struct Setup {
    /// The kernel's side.
    pub host: VnetTap,
    /// The wire's side.
    pub wire: Wire,
    /// True if the wire accepts large segments and computes checksums.
    pub wire_is_large: bool,
    /// Impairment of the wire.
    pub impairment: Option<Seeded>,
    /// Capture file for the frames on the wire.
    pub capture: Option<Capture<BufWriter<File>>>,
    /// The processor to which the thread is pinned.
    pub core: Option<usize>,
    /// How long the thread polls for frames in vain before it sleeps, with yields in between. A
    /// sender need not wake it in that time; a wakeup costs more than many frames.
    pub spin: Duration,
    /// True if [`DeviceCounters::delivery_ns`](super::DeviceCounters::delivery_ns) and
    /// [`DeviceCounters::idle_ns`](super::DeviceCounters::idle_ns) are measured.
    pub is_timed: bool,
}

impl Setup {
    /// Sends a frame to the wire; false if the wire did not accept it.
    fn put(&mut self, header: &VnetHeader, frame: &[u8]) -> bool {
        if let Some(capture) = &mut self.capture {
            capture.frame(since_epoch(), frame);
        }
        self.wire.send(header, frame).is_ok()
    }

    /// Receives a frame from the wire.
    fn get(&mut self, frame: &mut [u8]) -> io::Result<(VnetHeader, usize)> {
        let (header, got) = self.wire.receive(frame)?;
        if let Some(capture) = &mut self.capture {
            capture.frame(since_epoch(), &frame[..got]);
        }
        Ok((header, got))
    }
}

/// A running engine; dropping it ends it.
pub struct Running {
    device: Device,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

impl Running {
    /// The kernel's id of the thread, for its processor time.
    pub fn tid(&self) -> i32 {
        self.tid
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.device.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the engine of `device`.
///
/// # Errors
/// The thread cannot be started.
pub fn start(device: Device, setup: Setup) -> io::Result<Running> {
    let seen = device.clone();
    let (named, name) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("nic-engine".to_owned()).spawn(move || {
        // The starter waits for that.
        let _ = named.send(gettid().as_raw_nonzero().get());
        if let Some(core) = setup.core {
            let mut cores = CpuSet::new();
            cores.set(core);
            if let Err(error) = sched_setaffinity(None, &cores) {
                tracing::warn!(core, %error, "the engine is not pinned");
            }
        }
        EngineLoop::new(seen, setup).run();
    })?;
    let tid = name.recv().map_err(io::Error::other)?;
    Ok(Running { device, thread: Some(thread), tid })
}

struct EngineLoop {
    device: Device,
    setup: Setup,
    engine: Engine,
    /// Impairments of the frames that are sent, and of those that are received.
    impaired: Option<(Impaired, Impaired)>,
    frame: Vec<u8>,
    since: Instant,
    swept_ms: u64,
    seen: SeenTime,
    full: FullTableLog,
}

/// The time up to which the engine has seen all that the kernel sent.
#[derive(Default)]
struct SeenTime {
    until_ms: u64,
    /// When [`WAITING_FRAMES_MAX`] frames have come since then, the frames that waited then have
    /// come.
    mark_ms: u64,
    frames: u64,
}

impl SeenTime {
    /// Notes that `frames` have come at `now_ms`; `is_empty` is true if no others waited.
    fn took(&mut self, now_ms: u64, frames: u64, is_empty: bool) {
        self.frames += frames;
        if is_empty {
            self.until_ms = now_ms;
        } else if self.frames > WAITING_FRAMES_MAX {
            self.until_ms = self.until_ms.max(self.mark_ms);
        } else {
            return;
        }
        (self.mark_ms, self.frames) = (now_ms, 0);
    }
}

/// Number of connections without a place that were logged.
#[derive(Default)]
struct FullTableLog {
    refused: u64,
    logged_ms: u64,
}

impl FullTableLog {
    /// Returns the number to log, given that `refused` were refused so far; `None` if no log is
    /// due.
    fn look(&mut self, now_ms: u64, refused: u64) -> Option<u64> {
        let new = refused - self.refused;
        let is_due = self.refused == 0 || now_ms >= self.logged_ms + FULL_LOG_MS;
        if new == 0 || !is_due {
            return None;
        }
        (self.refused, self.logged_ms) = (refused, now_ms);
        Some(new)
    }
}

impl EngineLoop {
    fn new(device: Device, setup: Setup) -> EngineLoop {
        let engine = Engine::new(setup.wire_is_large);
        let both = |one: Seeded| (Impaired::new(one, 0), Impaired::new(one, 1));
        let impaired = setup.impairment.map(both);
        let frame = vec![0; FRAME_BYTES_MAX];
        let (since, seen, full) = (Instant::now(), SeenTime::default(), FullTableLog::default());
        EngineLoop { device, setup, engine, impaired, frame, since, swept_ms: 0, seen, full }
    }

    fn run(mut self) {
        while !self.device.has_ended() {
            let now_ns = self.since.elapsed().as_nanos() as u64;
            let now_ms = now_ns / NS_PER_MS;
            let busy = self.take_host(now_ns) | self.take_wire(now_ns);
            self.release(now_ns);
            self.engine.table().has_seen(self.seen.until_ms);
            if now_ms >= self.swept_ms + SWEEP_MS {
                self.sweep(now_ms);
            }
            let impaired = self.impaired.as_ref().map_or([0; 3], |(out, back)| {
                let (out, back) = (out.stats(), back.stats());
                let reordered = out.reordered + back.reordered;
                [out.lost + back.lost, reordered, out.duplicated + back.duplicated]
            });
            self.device.publish(&mut self.engine, impaired);
            self.device.serve(now_ms, &mut self.engine);
            if !busy && !self.spin() {
                self.sleep();
            }
        }
        self.device.refuse_all();
    }

    /// Checks for connections that have ended, and for those that found no place.
    fn sweep(&mut self, now_ms: u64) {
        self.swept_ms = now_ms;
        let table = self.engine.table();
        table.sweep(self.seen.until_ms);
        if let Some(refused) = self.full.look(now_ms, table.refused) {
            tracing::warn!(
                refused,
                known = table.len(),
                offloaded = table.offloaded(),
                limit = CONNECTIONS_MAX,
                "all places of the device are taken: new connections stay in software until some \
                 end; share the load among several processes, each with a device of its own"
            );
        }
    }

    /// Polls for frames without sleeping. Returns true if there are some, or if there is other
    /// work.
    fn spin(&mut self) -> bool {
        if self.setup.spin.is_zero() {
            return false;
        }
        let from = self.setup.is_timed.then(thread_time);
        let until = Instant::now() + self.setup.spin;
        let mut found = false;
        while !found && Instant::now() < until {
            std::thread::yield_now();
            found = self.is_ready();
        }
        if let Some(from) = from {
            self.engine.count_idle(thread_time().saturating_sub(from));
        }
        found
    }

    /// Returns true if frames or requests are there.
    fn is_ready(&self) -> bool {
        poll(&mut self.polled(), Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn polled(&self) -> [PollFd<'_>; 3] {
        [
            PollFd::from_borrowed_fd(self.setup.host.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.setup.wire.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.device.waker(), PollFlags::IN),
        ]
    }

    fn sleep(&self) {
        let holds = self.impaired.as_ref().is_some_and(|(out, back)| out.holds() || back.holds());
        let timeout = Duration::from_millis(if holds { HELD_SLEEP_MS } else { SLEEP_MS });
        let mut fds = self.polled();
        let timeout = Timespec::try_from(timeout).ok();
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Processes frames of the kernel. Returns true if there were some.
    fn take_host(&mut self, now_ns: u64) -> bool {
        let now_ms = now_ns / NS_PER_MS;
        let EngineLoop { device, setup, engine, impaired, frame, seen, .. } = self;
        for count in 0..BATCH_FRAMES {
            let (header, got) = match setup.host.receive(frame) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => {
                    seen.took(now_ms, count as u64, true);
                    return count > 0;
                }
            };
            // Requests that precede this frame are served before it.
            device.serve(now_ms, engine);
            let mut unsent = 0;
            engine.host_frame(
                now_ms,
                &header,
                &mut frame[..got],
                &mut |header: &VnetHeader, frame: &[u8]| {
                    let mut send = |header: &VnetHeader, frame: &[u8]| {
                        unsent += u64::from(!setup.put(header, frame));
                    };
                    match impaired {
                        None => send(header, frame),
                        Some((out, _)) => {
                            let frame = &mut frame.to_vec();
                            out.pass(now_ns, header, frame, |header, frame| send(header, frame));
                        }
                    }
                },
            );
            (0..unsent).for_each(|_| engine.count_unsent());
        }
        seen.took(now_ms, BATCH_FRAMES as u64, false);
        true
    }

    /// Processes frames of the wire. Returns true if there were some.
    fn take_wire(&mut self, now_ns: u64) -> bool {
        let now_ms = now_ns / NS_PER_MS;
        let EngineLoop { setup, engine, impaired, frame, .. } = self;
        for count in 0..BATCH_FRAMES {
            let (header, got) = match setup.get(frame) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return count > 0,
            };
            let frame = &mut frame[..got];
            match impaired {
                None => deliver(engine, setup, now_ms, &header, frame),
                Some((_, back)) => back.pass(now_ns, &header, frame, |header, frame| {
                    deliver(engine, setup, now_ms, header, frame);
                }),
            }
        }
        true
    }

    /// Releases frames that have been delayed.
    fn release(&mut self, now_ns: u64) {
        let now_ms = now_ns / NS_PER_MS;
        let EngineLoop { setup, engine, impaired, .. } = self;
        let Some((out, back)) = impaired else { return };
        let mut unsent = 0;
        out.release(now_ns, |header, frame| {
            unsent += u64::from(!setup.put(header, frame));
        });
        back.release(now_ns, |header, frame| {
            deliver(engine, setup, now_ms, header, frame);
        });
        (0..unsent).for_each(|_| engine.count_unsent());
    }
}

/// Time since the Unix epoch.
fn since_epoch() -> Duration {
    UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn deliver(engine: &mut Engine, setup: &Setup, now_ms: u64, header: &VnetHeader, frame: &mut [u8]) {
    let (mut unsent, mut delivery) = (false, Duration::ZERO);
    engine.wire_frame(now_ms, header, frame, &mut |header: &VnetHeader, frame: &[u8]| {
        let from = setup.is_timed.then(Instant::now);
        unsent |= setup.host.send(header, frame).is_err();
        delivery += from.map_or(Duration::ZERO, |from| from.elapsed());
    });
    engine.count_delivery(delivery);
    if unsent {
        engine.count_unsent();
    }
}

#[cfg(test)]
mod tests {
    use super::{FULL_LOG_MS, FullTableLog, SeenTime, WAITING_FRAMES_MAX};

    #[test]
    fn what_waits_for_a_device_that_was_stopped_counts_as_not_seen() {
        let mut seen = SeenTime::default();
        seen.took(5, 3, true);
        assert_eq!(seen.until_ms, 5);
        // Stopped for a minute: frames of all that time may wait.
        let mut frames = 0;
        while frames <= WAITING_FRAMES_MAX {
            assert_eq!(seen.until_ms, 5);
            seen.took(60_000 + frames / 1000, 32, false);
            frames += 32;
        }
        // Frames from before the last check have come; more is not certain.
        assert_eq!(seen.until_ms, 5);
        for _ in 0..=WAITING_FRAMES_MAX / 32 {
            seen.took(61_000, 32, false);
        }
        assert!(seen.until_ms >= 60_000);
        seen.took(62_000, 0, true);
        assert_eq!(seen.until_ms, 62_000);
    }

    #[test]
    fn a_full_table_is_logged_and_seldom() {
        let mut full = FullTableLog::default();
        assert_eq!(full.look(0, 0), None);
        assert_eq!(full.look(1_000, 7), Some(7));
        assert_eq!(full.look(2_000, 9), None);
        assert_eq!(full.look(1_000 + FULL_LOG_MS, 12), Some(5));
        assert_eq!(full.look(5_000 + 2 * FULL_LOG_MS, 12), None);
    }
}
