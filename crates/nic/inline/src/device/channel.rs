//! The channel between the L5P software and the engine's thread: requests to offload a
//! connection, and counters. They exchange everything else in the [`Flow`] that they share.

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
use super::flow::Flow;
use super::flow_table::Offer;

/// Largest number of requests that wait for the engine.
pub const REQUESTS_MAX: usize = 1024;

enum Request {
    Create { offer: Offer, reply: oneshot::Sender<Result<Arc<Flow>, Refused>> },
    Release { name: FlowKey, flow: Arc<Flow>, end: SeqNumber, reply: oneshot::Sender<()> },
}

/// A snapshot of all counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceCounters {
    /// Counters of the engine's machines.
    pub device: Stats,
    /// Counters of the engine.
    pub engine: Counters,
    /// Counters of software: records, in their three kinds.
    pub software: Stats,
    /// Records with bytes that were delivered in different ways.
    pub records_ambiguous: u64,
    /// Connections that are offloaded.
    pub offloaded_connections: u64,
    /// Connections that were offloaded and have ended, and whose names are still kept.
    pub ended_connections: u64,
    /// Connections that have a place in the engine's table.
    pub connections: u64,
    /// Time that the kernel took to accept frames from the engine and to run its TCP on them, on
    /// the engine's thread, in nanoseconds; zero if not measured.
    pub delivery_ns: u64,
    /// Processor time that the engine's thread spent polling for frames in vain before it slept,
    /// in nanoseconds; zero if not measured.
    pub idle_ns: u64,
    /// Frames that the wire has lost, reordered and duplicated on purpose.
    pub impaired: [u64; 3],
}

struct DeviceState {
    requests: Mutex<VecDeque<Request>>,
    /// True if there may be requests.
    pending: AtomicBool,
    /// True if the engine is to end, or has ended.
    ended: AtomicBool,
    wake: OwnedFd,
    counted: Mutex<DeviceCounters>,
}

/// Handle of the device for software. Clones refer to the same device.
#[derive(Clone)]
pub struct Device(Arc<DeviceState>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Creates a device whose engine is not yet started.
    ///
    /// # Errors
    /// The kernel has no eventfd left.
    pub fn new() -> io::Result<Device> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Device(Arc::new(DeviceState {
            requests: Mutex::default(),
            pending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            wake,
            counted: Mutex::default(),
        })))
    }

    /// Requests the offload of a connection. No byte may be written to the socket, or read from
    /// it, before the answer is there.
    ///
    /// # Errors
    /// [`Refused`]: nothing has changed.
    pub async fn create(&self, offer: Offer) -> Result<Arc<Flow>, Refused> {
        let (reply, answer) = oneshot::channel();
        match self.request(Request::Create { offer, reply }) {
            true => answer.await.unwrap_or(Err(Refused::Gone)),
            false => Err(Refused::Gone),
        }
    }

    /// Ends the offload of a connection that goes on in software. All bytes written up to `end`
    /// are acknowledged. When this returns, nothing that the engine has opened is still on its
    /// way through it. Returns false if the engine has ended, or has too many requests.
    pub async fn release(&self, name: FlowKey, flow: Arc<Flow>, end: SeqNumber) -> bool {
        let (reply, answer) = oneshot::channel();
        self.request(Request::Release { name, flow, end, reply }) && answer.await.is_ok()
    }

    /// Queues a request for the engine; false if the engine has ended, or too many requests wait.
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

    /// Asks the engine to end.
    pub fn end(&self) {
        let _requests = locked(&self.0.requests);
        self.0.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns true if the engine was asked to end.
    pub fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // A full counter has the same effect as a write: the eventfd is readable.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Descriptor that becomes readable when the engine has work.
    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }

    /// Serves the waiting requests, on the engine's thread.
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
                // The requester may be gone; then only the engine holds the flow.
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

    /// Refuses all requests: the engine answers no more.
    pub(super) fn refuse_all(&self) {
        self.end();
        locked(&self.0.requests).clear();
    }

    /// The counters so far.
    pub fn counters(&self) -> DeviceCounters {
        *locked(&self.0.counted)
    }

    /// Publishes the engine's counters.
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

    /// Adds the counters of a connection's software.
    pub fn add_software(&self, stats: &Stats, records_ambiguous: u64) {
        let mut counted = locked(&self.0.counted);
        counted.software.add(stats);
        counted.records_ambiguous += records_ambiguous;
    }
}
