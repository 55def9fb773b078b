//! Holds packets that arrive while their flow has no owner, and replays them in order.
//!
//! The programs send such frames to a TAP device. A thread reads them and queues them by flow. Once
//! the flow has an owner again, the frames are written back to the device, where the programs
//! forward them to the local stack or out of the link. The programs count both directions (in bytes
//! of payload, because the device segments large frames). They pass a new frame only if both
//! counters are equal, which keeps the order.
//!
//! An owner that has frozen a connection sends its frames back; they arrive here before user space
//! receives the owner's message. They wait for the next owner. Without one they are sent to the old
//! owner again after a pause, repeatedly as long as it sends them back.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use unlade_net::flow::FrameSegment;
use unlade_net::{FlowKey, SeqNumber};
use unlade_sys::link::Link;
use unlade_sys::tap::Tap;

use crate::error::SteerError;
use crate::flow_entry::FlowEntry;
use crate::raw_entry::{Mac, RawFlowEntry};
use crate::table::Table;

/// Buffer size of one frame, in bytes; frames are segmented to the link's MTU.
const FRAME_BYTES_MAX: usize = 65_536;
/// Maximum number of rounds of one replay. Each round replays the frames that arrived during the
/// previous one.
const REPLAY_ROUNDS_MAX: usize = 64;
/// Time after which a frame that left the programs and did not arrive in the queue counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(20);
/// How long frames that an owner sent back wait for another owner before the old one gets them
/// again. An owner that failed to give the connection back sends no message about that.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// Interval of the search for queues of flows without an entry.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of held packets.
#[derive(Clone, Debug)]
pub struct HoldLimits {
    /// Name of the TAP device; at most 15 bytes, unique in the network namespace.
    pub device: String,
    /// Queue length of the device, in frames; the kernel drops further ones.
    pub device_frames_max: u32,
    /// Maximum number of bytes held for one flow; a peer cannot send more than its granted window.
    pub flow_bytes_max: usize,
    /// Maximum number of bytes held for all flows together.
    pub bytes_max: usize,
    /// MTU of the link.
    pub mtu_bytes: u32,
}

impl Default for HoldLimits {
    fn default() -> HoldLimits {
        HoldLimits {
            device: "unlade-hold".to_owned(),
            device_frames_max: 16_384,
            flow_bytes_max: 8 * 1024 * 1024,
            bytes_max: 256 * 1024 * 1024,
            mtu_bytes: 1500,
        }
    }
}

/// Counters of the hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldCounters {
    /// Frames read from the device.
    pub held: u64,
    /// Frames written back.
    pub replayed: u64,
    /// Frames above a limit, or lost between kernel and thread.
    pub lost: u64,
    /// Bytes that are waiting.
    pub waiting_bytes: u64,
}

impl HoldCounters {
    fn note(&mut self, sent: io::Result<()>) {
        match sent {
            Ok(()) => self.replayed += 1,
            Err(_) => self.lost += 1,
        }
    }
}

#[derive(Debug, Default)]
struct FlowQueue {
    /// Frames in the order of their sequence numbers: a frame that an owner sent back may arrive
    /// behind one that the client sent later.
    frames: VecDeque<(SeqNumber, Box<[u8]>)>,
    bytes: usize,
    /// Earliest time to send frames again to the owner that sent them back.
    retry_at: Option<Instant>,
}

#[derive(Debug)]
struct Queues {
    flows: HashMap<FlowKey, FlowQueue>,
    /// Flows that wait for possibly lost frames, and the start of the wait.
    suspects: Vec<(FlowKey, Instant)>,
    limits: HoldLimits,
    counters: HoldCounters,
    buffer: Box<[u8]>,
}

/// The hold device and its thread.
#[derive(Debug)]
pub(crate) struct Hold {
    tap: Arc<Tap>,
    queues: Arc<Mutex<Queues>>,
    stop: Arc<AtomicBool>,
    /// Number of workers that wait for the lock. The thread yields to them, because it would
    /// otherwise reacquire the lock before they get it.
    waiting: Arc<AtomicU32>,
    wake: Arc<OwnedFd>,
    thread: OnceLock<JoinHandle<()>>,
}

impl Hold {
    /// Creates the device with the link's hardware address, so that the local stack accepts its
    /// frames as addressed to this host.
    pub(crate) fn open(limits: &HoldLimits, link: &Link) -> Result<Hold, SteerError> {
        let tap = Tap::create(&limits.device, link.mac, limits.device_frames_max, limits.mtu_bytes)
            .map_err(SteerError::Hold)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| SteerError::Hold(errno.into()))?;
        let queues = Queues {
            flows: HashMap::new(),
            suspects: Vec::new(),
            limits: limits.clone(),
            counters: HoldCounters::default(),
            buffer: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
        };
        Ok(Hold {
            tap: Arc::new(tap),
            queues: Arc::new(Mutex::new(queues)),
            stop: Arc::new(AtomicBool::new(false)),
            waiting: Arc::default(),
            wake: Arc::new(wake),
            thread: OnceLock::new(),
        })
    }

    pub(crate) fn device_index(&self) -> u32 {
        self.tap.link().index
    }

    pub(crate) fn device_name(&self) -> &str {
        &self.tap.link().name
    }

    /// Starts the thread that reads the device.
    pub(crate) fn start(&self, table: Arc<Table>) -> io::Result<()> {
        let (tap, queues) = (Arc::clone(&self.tap), Arc::clone(&self.queues));
        let (stop, wake) = (Arc::clone(&self.stop), Arc::clone(&self.wake));
        let waiting = Arc::clone(&self.waiting);
        let thread = std::thread::Builder::new().name("hold".to_owned()).spawn(move || {
            while !stop.load(Ordering::Acquire) {
                let pause = lock(&queues).pause();
                let mut fds =
                    [PollFd::new(&*tap, PollFlags::IN), PollFd::new(&*wake, PollFlags::IN)];
                wait(&mut fds, &wake, pause);
                while waiting.load(Ordering::Acquire) > 0 {
                    std::thread::yield_now();
                }
                let mut queues = lock(&queues);
                queues.drain(&tap, &table);
                queues.write_off(&table);
                queues.purge(&tap, &table);
            }
        })?;
        // Set once: only the constructor of `Steering` calls `start`.
        let _ = self.thread.set(thread);
        Ok(())
    }

    /// Writes back the waiting frames of a flow in order, including frames that arrive meanwhile.
    pub(crate) fn replay(&self, entry: &FlowEntry, table: &Table) -> u32 {
        self.replay_locked(self.lock_first(), entry, table)
    }

    fn lock_first(&self) -> MutexGuard<'_, Queues> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let queues = lock(&self.queues);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        queues
    }

    /// Redirects a flow and sends the missing frames to the new owner: first those with data that
    /// the old owner received late, then the waiting ones.
    pub(crate) fn redirect(
        &self,
        entry: &FlowEntry,
        owner: Mac,
        late: &[Vec<u8>],
        table: &Table,
    ) -> u32 {
        // Without the lock the thread would forward waiting frames as soon as the flow has an
        // owner.
        let queues = self.lock_first();
        // Counted first, so that new frames queue behind.
        for frame in late {
            entry.count_injected(weight(frame));
        }
        entry.redirect(owner);
        for frame in late {
            // Sent or lost, the frame is no longer waiting.
            let _ = self.tap.send(frame);
            entry.count_replayed(weight(frame));
        }
        self.replay_locked(queues, entry, table)
    }

    fn replay_locked(
        &self,
        mut queues: MutexGuard<'_, Queues>,
        entry: &FlowEntry,
        table: &Table,
    ) -> u32 {
        let (mut sent, mut sent_back) = (0, false);
        for round in 0..REPLAY_ROUNDS_MAX {
            queues.drain(&self.tap, table);
            // The thread handles frames that the new owner sends back at once: that owner is about
            // to give the connection back too.
            let queue = queues.flows.get(entry.flow());
            sent_back = round > 0 && queue.is_some_and(|queue| queue.retry_at.is_some());
            if sent_back {
                break;
            }
            sent += queues.flush(&self.tap, entry.flow(), table);
            if entry.waiting() == 0 {
                return sent;
            }
        }
        if !sent_back {
            // A frame is between the programs and the device, or lost.
            queues.suspects.push((*entry.flow(), Instant::now()));
        }
        drop(queues);
        let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
        sent
    }

    pub(crate) fn counters(&self) -> HoldCounters {
        lock(&self.queues).counters
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes a frame to the device. It is counted as replayed only afterwards, so that no new frame on
/// another core overtakes it: the write delivers the frame before it returns.
fn give_back(tap: &Tap, entry: Option<&RawFlowEntry>, frame: &[u8]) -> io::Result<()> {
    let sent = tap.send(frame);
    if let Some(entry) = entry {
        entry.count_replayed(weight(frame));
    }
    sent
}

/// Returns the weight of a frame as the programs count it: bytes of payload, or 1 if it has none.
fn weight(frame: &[u8]) -> u32 {
    let Some(segment) = FrameSegment::find(frame) else { return 1 };
    let header = frame.get(segment.tcp_at + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    segment.segment_bytes.saturating_sub(header).max(1) as u32
}

fn sequence_number(frame: &[u8]) -> SeqNumber {
    let at = FrameSegment::find(frame).map_or(usize::MAX - 8, |segment| segment.tcp_at + 4);
    let bytes = frame.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    SeqNumber(bytes.map_or(0, u32::from_be_bytes))
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a device has a frame, `wake` is signalled, or `pause` is over. `fds` are the devices
/// and `wake`.
pub(crate) fn wait(fds: &mut [PollFd<'_>], wake: &OwnedFd, pause: Option<Duration>) {
    let timeout = pause.map(|pause| rustix::event::Timespec {
        tv_sec: pause.as_secs() as i64,
        tv_nsec: pause.subsec_nanos().into(),
    });
    // An interrupted poll is harmless: the caller checks all devices.
    let _ = poll(fds, timeout.as_ref());
    let mut count = [0; 8];
    let _ = rustix::io::read(wake, &mut count);
}

impl Queues {
    fn pause(&self) -> Option<Duration> {
        if !self.suspects.is_empty() {
            return Some(LOST_AFTER);
        }
        match self.flows.values().any(|queue| queue.retry_at.is_some()) {
            true => Some(RETRY_AFTER),
            false => (!self.flows.is_empty()).then_some(PURGE_INTERVAL),
        }
    }

    /// Reads every frame of the device into its flow's queue, or writes it back at once if the
    /// flow has an owner and no waiting frames.
    fn drain(&mut self, tap: &Tap, table: &Table) {
        while let Ok(length) = tap.receive(&mut self.buffer) {
            self.counters.held += 1;
            let Some(flow) = FlowKey::of_frame(&self.buffer[..length]) else { continue };
            let entry = table.entry_of(&flow);
            let owned = entry.is_none_or(|entry| !entry.is_held());
            let source = self.buffer.get(6..12).unwrap_or_default();
            let sent_back = entry.is_some_and(|entry| entry.is_owner(source));
            if owned && !sent_back && !self.flows.contains_key(&flow) {
                let frame = &self.buffer[..length];
                self.counters.note(give_back(tap, entry, frame));
                continue;
            }
            self.push(flow, length, entry);
            if sent_back && let Some(queue) = self.flows.get_mut(&flow) {
                queue.retry_at.get_or_insert_with(|| Instant::now() + RETRY_AFTER);
            }
        }
    }

    fn push(&mut self, flow: FlowKey, length: usize, entry: Option<&RawFlowEntry>) {
        let waiting = self.counters.waiting_bytes as usize;
        let queue = self.flows.entry(flow).or_default();
        if queue.bytes + length > self.limits.flow_bytes_max
            || waiting + length > self.limits.bytes_max
        {
            self.counters.lost += 1;
            if let Some(entry) = entry {
                entry.count_replayed(weight(&self.buffer[..length]));
            }
            return;
        }
        queue.bytes += length;
        let frame = &self.buffer[..length];
        let seq = sequence_number(frame);
        let later = queue.frames.iter().rev().take_while(|(other, _)| seq.before(*other)).count();
        queue.frames.insert(queue.frames.len() - later, (seq, frame.into()));
        self.counters.waiting_bytes += length as u64;
    }

    fn flush(&mut self, tap: &Tap, flow: &FlowKey, table: &Table) -> u32 {
        let Some(queue) = self.flows.remove(flow) else { return 0 };
        self.counters.waiting_bytes -= queue.bytes as u64;
        let count = queue.frames.len() as u32;
        let entry = table.entry_of(flow);
        for (_, frame) in queue.frames {
            self.counters.note(give_back(tap, entry, &frame));
        }
        count
    }

    /// Counts frames as lost that the programs sent and the device did not deliver.
    fn write_off(&mut self, table: &Table) {
        let now = Instant::now();
        let mut lost = 0;
        let flows = &self.flows;
        self.suspects.retain(|(flow, since)| {
            let Some(entry) = table.entry_of(flow).filter(|entry| entry.waiting() > 0) else {
                return false;
            };
            if now.duration_since(*since) < LOST_AFTER || flows.contains_key(flow) {
                return true;
            }
            let missing = entry.waiting();
            entry.count_replayed(missing);
            lost += 1;
            false
        });
        self.counters.lost += lost;
    }

    /// Writes back the frames of flows that have no entry or have an owner.
    fn purge(&mut self, tap: &Tap, table: &Table) {
        let now = Instant::now();
        let owned = |flow: &FlowKey| table.entry_of(flow).is_none_or(|entry| !entry.is_held());
        let due = |queue: &FlowQueue| queue.retry_at.is_none_or(|at| at <= now);
        let over = self.flows.iter().filter(|(flow, queue)| due(queue) && owned(flow));
        let flows: Vec<FlowKey> = over.map(|(flow, _)| *flow).collect();
        for flow in flows {
            self.flush(tap, &flow, table);
        }
    }
}
