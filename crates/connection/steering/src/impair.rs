//! A link that loses, duplicates and delays packets, for tests on kernels without netem.
//!
//! The programs of `bpf/impair.bpf.c` make a decision for each packet of a link, in both
//! directions. Delayed packets go to a TAP device, one for each direction. A thread keeps each for
//! a random time and writes it back, so that others overtake it. With segmentation offload, a
//! packet here has up to 64 KiB.
//!
//! The decision for the n-th packet of a direction is [`Chances::fate`] of the seed and n, which
//! the programs compute: egress is direction 0, ingress direction 1. The order of the packets depends on the peers' timing, so a run cannot be repeated packet by packet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData};
use aya::programs::{SchedClassifier, TcAttachType, tc};
use aya::{Ebpf, EbpfLoader};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use unlade_sys::link::{Link, Mac};
use unlade_sys::tap::Tap;
use unlade_testkit::Random;
use unlade_testkit::line::Chances;

use crate::error::SteerError;
use crate::hold::wait;
use crate::load::{program, take};

/// The object that build.rs creates.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/impair.bpf.o"));

/// Maximum number of delayed frames; more are dropped and counted.
const LATE_FRAMES_MAX: usize = 65_536;
/// Queue length of a device, in frames.
const DEVICE_FRAMES_MAX: u32 = 16_384;
/// Longest delay.
pub const DELAY_MAX: Duration = Duration::from_secs(1);
/// Largest frame.
const FRAME_BYTES_MAX: usize = 65_536;
/// Number of frames read from one device before the other is read.
const FRAMES_PER_TURN: usize = 64;
/// MTU of the devices, that of Ethernet.
const MTU_BYTES: u32 = 1500;
/// Names of the devices and of the programs at their ingress.
const DEVICES: [(&str, &str); 2] = [("late-out", "late_egress"), ("late-in", "late_ingress")];
/// The programs of the link.
const LINK_PROGRAMS: [(&str, TcAttachType); 2] =
    [("impair_egress", TcAttachType::Egress), ("impair_ingress", TcAttachType::Ingress)];

/// Impairment of a link.
#[derive(Clone, Debug)]
pub struct ImpairConfig {
    /// The link, in the current network namespace.
    pub interface: String,
    /// Probabilities of loss, duplication and delay; the programs damage no packet.
    pub chances: Chances,
    /// Longest delay, at most [`DELAY_MAX`].
    pub delay_max: Duration,
    /// Seed of the decisions.
    pub seed: u64,
}

/// Counters of an impaired link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairCounters {
    /// Packets seen by the programs.
    pub seen: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets delayed, before segmentation.
    pub delayed: u64,
    /// Delayed frames that were sent, after segmentation to the MTU.
    pub released: u64,
    /// Delayed frames lost unintentionally: above the limit, or refused by the kernel.
    pub overflowed: u64,
}

/// An impaired link; dropping it ends the impairment.
pub struct Impairment {
    counts: Array<MapData, u64>,
    late: Arc<LateCounters>,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Keeps programs and links alive.
    _ebpf: Ebpf,
}

impl std::fmt::Debug for Impairment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Impairment").field("late", &self.late).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct LateCounters {
    released: AtomicU64,
    overflowed: AtomicU64,
}

impl Impairment {
    /// Creates the devices and attaches the programs.
    ///
    /// # Errors
    /// [`SteerError`]; nothing stays attached.
    pub fn open(config: &ImpairConfig) -> Result<Impairment, SteerError> {
        let link = Link::by_name(&config.interface).map_err(SteerError::Link)?;
        let taps = [device(0)?, device(1)?];
        let [late_out, late_in] = [taps[0].link().index, taps[1].link().index];
        let mut ebpf = EbpfLoader::new()
            .override_global("drop_below", &config.chances.loss.threshold(), true)
            .override_global("duplicate_below", &config.chances.duplicate.threshold(), true)
            .override_global("delay_below", &config.chances.late.threshold(), true)
            .override_global("seed", &config.seed, true)
            .override_global("link_ifindex", &link.index, true)
            .override_global("late_out_ifindex", &late_out, true)
            .override_global("late_in_ifindex", &late_in, true)
            .load(OBJECT)?;
        let places = LINK_PROGRAMS.map(|(name, hook)| (name, hook, link.name.as_str()));
        let late = DEVICES.map(|(device, name)| (name, TcAttachType::Ingress, device));
        for (name, ..) in places.iter().chain(&late) {
            let classifier: &mut SchedClassifier = program(&mut ebpf, name)?;
            classifier.load().map_err(|source| SteerError::Program { name, source })?;
        }
        let counts = Array::try_from(take(&mut ebpf, "counts")?).map_err(SteerError::Map)?;
        // The return path first, so that no packet is diverted without a way back.
        for (name, hook, interface) in late.into_iter().chain(places) {
            attach(&mut ebpf, name, hook, interface)?;
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| SteerError::Hold(errno.into()))?;
        let mut this = Impairment {
            counts,
            late: Arc::default(),
            stop: Arc::default(),
            wake: Arc::new(wake),
            thread: None,
            _ebpf: ebpf,
        };
        this.thread = Some(this.start(taps, config).map_err(SteerError::Hold)?);
        Ok(this)
    }

    fn start(&self, taps: [Tap; 2], config: &ImpairConfig) -> io::Result<JoinHandle<()>> {
        let (stop, wake) = (Arc::clone(&self.stop), Arc::clone(&self.wake));
        let mut waiting = Waiting {
            heap: BinaryHeap::new(),
            random: Random::new(config.seed),
            delay_max: config.delay_max.min(DELAY_MAX),
            counters: Arc::clone(&self.late),
            buffer: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            number: 0,
        };
        std::thread::Builder::new().name("late".to_owned()).spawn(move || {
            while !stop.load(Ordering::Acquire) {
                let [out, back] = taps.each_ref().map(|tap| PollFd::new(tap, PollFlags::IN));
                let mut fds = [out, back, PollFd::new(&*wake, PollFlags::IN)];
                wait(&mut fds, &wake, waiting.pause(Instant::now()));
                waiting.take_in(&taps);
                waiting.release(&taps, Instant::now());
            }
        })
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// The kernel refuses access to the counters.
    pub fn counters(&self) -> Result<ImpairCounters, SteerError> {
        let read = |index: u32| self.counts.get(&index, 0).map_err(SteerError::Map);
        Ok(ImpairCounters {
            seen: read(0)?,
            dropped: read(1)?,
            duplicated: read(2)?,
            delayed: read(3)?,
            released: self.late.released.load(Ordering::Relaxed),
            overflowed: self.late.overflowed.load(Ordering::Relaxed),
        })
    }
}

impl Drop for Impairment {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn device(number: u8) -> Result<Tap, SteerError> {
    let name = DEVICES[usize::from(number)].0;
    // Locally administered; it does not appear in frames, which keep their own addresses.
    let mac: Mac = [0x02, 0x75, 0x6e, 0x6c, 0x64, number];
    Tap::create(name, mac, DEVICE_FRAMES_MAX, MTU_BYTES).map_err(SteerError::Hold)
}

fn attach(
    ebpf: &mut Ebpf,
    name: &'static str,
    hook: TcAttachType,
    interface: &str,
) -> Result<(), SteerError> {
    let classifier: &mut SchedClassifier = program(ebpf, name)?;
    // Kernels before Linux 6.6 have no tcx links and need a clsact qdisc.
    let _ = tc::qdisc_add_clsact(interface);
    let attached = classifier.attach(interface, hook);
    attached.map(drop).map_err(|source| SteerError::Program { name, source })
}

/// Delayed frames, ordered by due time.
struct Waiting {
    heap: BinaryHeap<Reverse<Late>>,
    random: Random,
    delay_max: Duration,
    counters: Arc<LateCounters>,
    buffer: Box<[u8]>,
    number: u64,
}

/// A delayed frame, ordered by due time and then by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Late {
    due: Instant,
    number: u64,
    device: usize,
    frame: Box<[u8]>,
}

impl Waiting {
    fn pause(&self, now: Instant) -> Option<Duration> {
        self.heap.peek().map(|Reverse(next)| next.due.saturating_duration_since(now))
    }

    fn take_in(&mut self, taps: &[Tap; 2]) {
        for (device, tap) in taps.iter().enumerate() {
            for _ in 0..FRAMES_PER_TURN {
                let Ok(length) = tap.receive(&mut self.buffer) else { break };
                // Ignore frames that the kernel itself sends on a new device.
                if self.buffer.get(6..12) == Some(&tap.link().mac[..]) {
                    continue;
                }
                let delay = self.delay();
                self.push(device, length, Instant::now() + delay);
            }
        }
    }

    fn push(&mut self, device: usize, length: usize, due: Instant) {
        if self.heap.len() >= LATE_FRAMES_MAX {
            self.counters.overflowed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let frame = self.buffer[..length.min(FRAME_BYTES_MAX)].into();
        self.number += 1;
        self.heap.push(Reverse(Late { due, number: self.number, device, frame }));
    }

    fn release(&mut self, taps: &[Tap; 2], now: Instant) {
        while let Some(Reverse(next)) = self.heap.peek() {
            if next.due > now {
                return;
            }
            let Some(Reverse(late)) = self.heap.pop() else { return };
            let sent = taps.get(late.device).is_some_and(|tap| tap.send(&late.frame).is_ok());
            let counter = if sent { &self.counters.released } else { &self.counters.overflowed };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a random delay up to the maximum.
    fn delay(&mut self) -> Duration {
        self.delay_max.mul_f64(self.random.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> Waiting {
        Waiting {
            heap: BinaryHeap::new(),
            random: Random::new(1),
            delay_max: Duration::from_millis(5),
            counters: Arc::default(),
            buffer: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            number: 0,
        }
    }

    #[test]
    fn delays_are_within_bounds_and_repeatable() {
        let (mut a, mut b) = (waiting(), waiting());
        let delays: Vec<Duration> = (0..1000).map(|_| a.delay()).collect();
        assert!(delays.iter().all(|&delay| delay <= a.delay_max));
        assert!(delays.iter().any(|&delay| delay > a.delay_max / 2));
        assert!(delays.iter().all(|&delay| delay == b.delay()));
    }

    #[test]
    fn the_next_to_go_is_first_and_the_heap_has_a_limit() {
        let mut waiting = waiting();
        let now = Instant::now();
        for ms in [3, 1, 2] {
            waiting.push(0, 14, now + Duration::from_millis(ms));
        }
        assert_eq!(waiting.pause(now), Some(Duration::from_millis(1)));
        assert_eq!(waiting.pause(now + Duration::from_secs(1)), Some(Duration::ZERO));
        for _ in 0..LATE_FRAMES_MAX {
            waiting.push(1, 14, now);
        }
        assert_eq!(waiting.heap.len(), LATE_FRAMES_MAX);
        assert_eq!(waiting.counters.overflowed.load(Ordering::Relaxed), 3);
    }
}
