//! Between the L5P software and the engine's thread: requests to offload a connection, and what was
//! counted. All else that the two say to each other is in the [`Flow`] they share.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;
use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::Stats;
use unlade_tls::device::Refused;

use super::engine::{Counters, Engine};
use super::sides::Flow;
use super::track::Offer;

/// Most requests that wait for the engine.
pub const REQUESTS_MAX: usize = 1024;

enum Request {
    Create { offer: Offer, reply: oneshot::Sender<Result<Arc<Flow>, Refused>> },
    Release { name: FlowKey, flow: Arc<Flow>, end: SeqNumber, reply: oneshot::Sender<()> },
}

/// What was counted, at some time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// By the engine's machines.
    pub device: Stats,
    /// By the engine.
    pub engine: Counters,
    /// By software: records, in their three kinds.
    pub software: Stats,
    /// Records with bytes that had come in different ways.
    pub records_doubtful: u64,
    /// Connections that are offloaded.
    pub offloaded_connections: u64,
    /// Connections that were offloaded and have ended, and whose names are remembered.
    pub ended_connections: u64,
    /// Connections that have a place in the engine's table.
    pub connections: u64,
    /// Time in which the kernel took frames from the engine, and its TCP worked on them, on the
    /// engine's thread, in nanoseconds; where that is measured.
    pub delivery_ns: u64,
    /// Processor time in which the engine's thread looked for frames in vain before it slept, in
    /// nanoseconds; where that is measured.
    pub idle_ns: u64,
    /// Frames that the wire has lost, reordered and doubled on purpose.
    pub impaired: [u64; 3],
}

struct Shared {
    requests: Mutex<VecDeque<Request>>,
    /// There may be requests.
    pending: AtomicBool,
    /// The engine is to end, or has ended.
    ended: AtomicBool,
    wake: OwnedFd,
    counted: Mutex<Counted>,
}

/// The device, seen by software. Clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// A device whose engine is still to start.
    ///
    /// # Errors
    /// The kernel has no eventfd to give.
    pub fn new() -> io::Result<Device> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Device(Arc::new(Shared {
            requests: Mutex::default(),
            pending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            wake,
            counted: Mutex::default(),
        })))
    }

    /// Asks for a connection to be offloaded. No byte may be written to the socket, or read from
    /// it, before the answer is there.
    ///
    /// # Errors
    /// [`Refused`]: everything stays as it was.
    pub async fn create(&self, offer: Offer) -> Result<Arc<Flow>, Refused> {
        let (reply, answer) = oneshot::channel();
        match self.request(Request::Create { offer, reply }) {
            true => answer.await.unwrap_or(Err(Refused::Gone)),
            false => Err(Refused::Gone),
        }
    }

    /// Ends the offload of a connection that goes on in software. What was written up to `end` is
    /// acknowledged. When this is over nothing is on its way through the engine that it has opened.
    /// False where the engine has ended, or has too much to do.
    pub async fn release(&self, name: FlowKey, flow: Arc<Flow>, end: SeqNumber) -> bool {
        let (reply, answer) = oneshot::channel();
        self.request(Request::Release { name, flow, end, reply }) && answer.await.is_ok()
    }

    /// Puts a request before the engine; false where it has ended, or too many wait.
    fn request(&self, request: Request) -> bool {
        {
            let mut requests = locked(&self.0.requests);
            if self.has_ended() || requests.len() == REQUESTS_MAX {
                return false;
            }
            requests.push_back(request);
        }
        self.0.pending.store(true, Ordering::Release);
        self.wake();
        true
    }

    /// Tells the engine to end.
    pub fn end(&self) {
        let _requests = locked(&self.0.requests);
        self.0.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// True where the engine was told to end.
    pub fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // Full is as good as written: it is readable.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Becomes readable when the engine has something to look at.
    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }

    /// The engine's thread does what was asked for.
    pub(super) fn serve(&self, now_ms: u64, engine: &mut Engine) {
        let pending = &self.0.pending;
        if !pending.load(Ordering::Relaxed) || !pending.swap(false, Ordering::Acquire) {
            return;
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.wake, &mut count);
        let requests = std::mem::take(&mut *locked(&self.0.requests));
        for request in requests {
            match request {
                // Who has asked may be gone; then nobody holds the flow but the engine.
                Request::Create { offer, reply } => {
                    let _ = reply.send(engine.table().create(now_ms, offer));
                }
                Request::Release { name, flow, end, reply } => {
                    engine.table().release(&name, &flow, end);
                    let _ = reply.send(());
                }
            }
        }
    }

    /// Nobody will answer any more.
    pub(super) fn refuse_all(&self) {
        self.end();
        locked(&self.0.requests).clear();
    }

    /// What was counted so far.
    pub fn counted(&self) -> Counted {
        *locked(&self.0.counted)
    }

    /// Says what the engine has counted.
    pub(super) fn publish(&self, engine: &mut Engine, impaired: [u64; 3]) {
        let (device, counters) = (*engine.stats(), engine.counters());
        let delivery_ns = engine.delivery().as_nanos() as u64;
        let idle_ns = engine.idle().as_nanos() as u64;
        let table = engine.table();
        let (offloaded, ended) = (table.offloaded() as u64, table.ended() as u64);
        let connections = table.len() as u64;
        let mut counted = locked(&self.0.counted);
        counted.device = device;
        counted.engine = counters;
        counted.offloaded_connections = offloaded;
        counted.ended_connections = ended;
        counted.connections = connections;
        counted.delivery_ns = delivery_ns;
        counted.idle_ns = idle_ns;
        counted.impaired = impaired;
    }

    /// Adds what a connection's software has counted.
    pub fn add_software(&self, stats: &Stats, records_doubtful: u64) {
        let mut counted = locked(&self.0.counted);
        counted.software.add(stats);
        counted.records_doubtful += records_doubtful;
    }
}
