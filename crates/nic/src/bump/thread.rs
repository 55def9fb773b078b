//! The engine's thread: frames from the kernel to the wire and back, in batches.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use linux::packet::PacketPort;
use linux::vnet::{FRAME_BYTES_MAX, VnetHeader, VnetTap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::channel::Device;
use super::engine::Engine;
use super::impair::Impaired;
use crate::capture::Capture;
use crate::impair::Seeded;

/// Frames taken from one side before the other has its turn.
const BATCH_FRAMES: usize = 32;
/// Nanoseconds of a millisecond.
const NS_PER_MS: u64 = 1_000_000;
/// How long an engine that has a processor of its own looks for frames before it sleeps.
pub const SPIN: Duration = Duration::from_micros(50);
/// How often silent connections are looked for.
const SWEEP_MS: u64 = 1000;
/// How long the thread sleeps at most.
const SLEEP_MS: u64 = 250;
/// How long it sleeps while frames are held back.
const HELD_SLEEP_MS: u64 = 1;

/// Where frames go.
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
            Wire::Packet(port) => port.receive(frame).map(|got| (VnetHeader::default(), got)),
        }
    }

    fn send(&self, header: &VnetHeader, frame: &[u8]) -> io::Result<()> {
        match self {
            Wire::Tap(tap) => tap.send(header, frame),
            Wire::Packet(port) => port.send(frame),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Wire::Tap(tap) => tap.as_fd(),
            Wire::Packet(port) => port.as_fd(),
        }
    }
}

/// The two sides of an engine, and how it runs.
pub struct Setup {
    /// The kernel's side.
    pub host: VnetTap,
    /// The other one.
    pub wire: Wire,
    /// The wire takes large segments and makes checksums.
    pub wire_is_large: bool,
    /// What the wire does to frames.
    pub impairment: Option<Seeded>,
    /// Where frames on the wire are written to.
    pub capture: Option<Capture<BufWriter<File>>>,
    /// The processor that the thread stays on.
    pub core: Option<usize>,
    /// For so long the thread looks for frames in vain before it sleeps, and lets others run in
    /// between: who sends need not wake it then, which costs more than many a frame.
    pub spin: Duration,
    /// [`Counted::delivery_ns`](super::Counted::delivery_ns) and
    /// [`Counted::idle_ns`](super::Counted::idle_ns) are measured.
    pub is_timed: bool,
}

impl Setup {
    /// A frame leaves; false where the wire did not take it.
    fn put(&mut self, header: &VnetHeader, frame: &[u8]) -> bool {
        if let Some(capture) = &mut self.capture {
            capture.frame(since_epoch(), frame);
        }
        self.wire.send(header, frame).is_ok()
    }

    /// A frame has come.
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
    /// The kernel's number of the thread, by which its processor time can be asked for.
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
/// There is no thread to be had.
pub fn start(device: Device, setup: Setup) -> io::Result<Running> {
    let seen = device.clone();
    let (named, name) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("nic-engine".to_owned()).spawn(move || {
        // Who has started it waits for that.
        let _ = named.send(gettid().as_raw_nonzero().get());
        if let Some(core) = setup.core {
            let mut cores = CpuSet::new();
            cores.set(core);
            if let Err(error) = sched_setaffinity(None, &cores) {
                tracing::warn!(core, %error, "the engine is not pinned");
            }
        }
        Loop::new(seen, setup).run();
    })?;
    let tid = name.recv().map_err(io::Error::other)?;
    Ok(Running { device, thread: Some(thread), tid })
}

struct Loop {
    device: Device,
    setup: Setup,
    engine: Engine,
    /// What the wire does to frames that go out, and that come in.
    impaired: Option<(Impaired, Impaired)>,
    frame: Vec<u8>,
    since: Instant,
    swept_ms: u64,
}

impl Loop {
    fn new(device: Device, setup: Setup) -> Loop {
        let engine = Engine::new(setup.wire_is_large);
        let both = |one: Seeded| (Impaired::new(one, 1), Impaired::new(one, 2));
        let impaired = setup.impairment.map(both);
        let frame = vec![0; FRAME_BYTES_MAX];
        Loop { device, setup, engine, impaired, frame, since: Instant::now(), swept_ms: 0 }
    }

    fn run(mut self) {
        while !self.device.has_ended() {
            let now_ns = self.since.elapsed().as_nanos() as u64;
            let now_ms = now_ns / NS_PER_MS;
            let busy = self.take_host(now_ns) | self.take_wire(now_ns);
            self.release(now_ns);
            if now_ms >= self.swept_ms + SWEEP_MS {
                self.engine.table().sweep(now_ms);
                self.swept_ms = now_ms;
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

    /// Waits for frames without sleeping; true where there are some, or there is something else to
    /// do.
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

    /// Frames or requests are there.
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

    /// Frames of the kernel's; true where there were some.
    fn take_host(&mut self, now_ns: u64) -> bool {
        let now_ms = now_ns / NS_PER_MS;
        let Loop { device, setup, engine, impaired, frame, .. } = self;
        for count in 0..BATCH_FRAMES {
            let (header, got) = match setup.host.receive(frame) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return count > 0,
            };
            // What was asked for before the kernel has sent this frame comes before it.
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
        true
    }

    /// Frames of the wire's; true where there were some.
    fn take_wire(&mut self, now_ns: u64) -> bool {
        let now_ms = now_ns / NS_PER_MS;
        let Loop { setup, engine, impaired, frame, .. } = self;
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

    /// Lets frames go on that have been held back.
    fn release(&mut self, now_ns: u64) {
        let now_ms = now_ns / NS_PER_MS;
        let Loop { setup, engine, impaired, .. } = self;
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

/// What the clock on the wall says.
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
