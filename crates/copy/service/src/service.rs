//! The service: its threads, and its attached clients.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use unlade_copy_kernels::Space;
use unlade_copy_scheduler::ClientId;
use unlade_copy_scheduler::admit::Costs;
use unlade_copy_scheduler::share::GroupId;
use unlade_shm::{LayoutError, Memory, MemoryError, Queue};

use crate::calibration;
use crate::client::{Client, KeepAlive};
use crate::config::Config;
use crate::counters::{Counters, Counts};
use crate::group::{Group, Share};
use crate::handler_event::HandlerEvent;
use crate::held::HeldSends;
use crate::mailbox::{Mailbox, Message, Route};
use crate::state::ServiceState;
use crate::units::Devices;
use crate::worker::Worker;

/// Maximum number of threads of a service.
pub const THREADS_MAX: usize = 64;
/// Maximum number of clients of a service.
pub const CLIENTS_MAX: usize = 4096;

/// Error of a service's start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The number of threads is zero or too large, or the minimum exceeds the maximum.
    #[error("{min} to {max} threads: give 1 to {THREADS_MAX}, the smaller number first")]
    Threads {
        /// Minimum number of threads.
        min: usize,
        /// Maximum number of threads.
        max: usize,
    },
    /// The system cannot start a thread.
    #[error("the copy service's thread does not start: {0}")]
    Spawn(#[from] io::Error),
}

/// Error of an attachment.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The maximum number of clients is attached.
    #[error("{CLIENTS_MAX} clients are attached: copy without the service, or share a client")]
    Full,
    /// The service is stopping.
    #[error("the copy service is stopping")]
    Stopping,
    /// There is no memory for the queue.
    #[error("no memory for a queue: {0}")]
    Memory(#[from] MemoryError),
    /// The number of slots is invalid.
    #[error("the queue: {0}")]
    Layout(#[from] LayoutError),
}

/// Records a panic of a thread.
struct PanicFlag(Arc<ServiceState>);

impl Drop for PanicFlag {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs a thread of the service.
fn run(number: usize, shared: Arc<ServiceState>) {
    let _alarm = PanicFlag(Arc::clone(&shared));
    Worker::new(number, shared).run();
}

/// Threads that copy for clients; they end when this value is dropped.
pub struct Service {
    shared: Arc<ServiceState>,
}

impl Service {
    /// Starts a service with the devices of `config`. Its threads inherit the processors of the
    /// calling thread: a thread that is bound to one of them should start the service before.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Service, StartError> {
        Service::start_with(config, Devices::of(config.units))
    }

    /// Starts a service with these devices, independent of `config`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(config: Config, devices: Devices) -> Result<Service, StartError> {
        let (min, max) = (config.threads_min, config.threads_max);
        if min == 0 || min > max || max > THREADS_MAX {
            return Err(StartError::Threads { min, max });
        }
        let service = Service { shared: Arc::new(ServiceState::new(config, devices, run)) };
        for number in 0..min {
            service.shared.spawn(number)?;
            service.shared.scaling().started();
        }
        Ok(service)
    }

    /// Creates a group for clients that share a weight, 1 to
    /// [`WEIGHT_MAX`](unlade_copy_scheduler::share::WEIGHT_MAX); other values become the
    /// nearest of these.
    pub fn group(&self, weight: u32) -> Group {
        let id = GroupId(self.shared.next_group.fetch_add(1, Ordering::Relaxed));
        Group::new(id, weight)
    }

    /// Attaches a client whose addresses are in `space`, as a group of its own.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(&self, space: Arc<dyn Space>, weight: u32) -> Result<Attachment, AttachError> {
        self.attach_to(space, Share::whole(self.group(weight)))
    }

    /// As [`Service::attach`], with a share of a group.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_to(
        &self,
        space: Arc<dyn Space>,
        share: Share,
    ) -> Result<Attachment, AttachError> {
        self.attach_with(space, share, self.shared.config.slots)
    }

    /// As [`Service::attach_to`], with a given number of queue slots: a power of two, 16 to 4096.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_with(
        &self,
        space: Arc<dyn Space>,
        share: Share,
        slots: u32,
    ) -> Result<Attachment, AttachError> {
        let bytes = Queue::bytes_for(slots)?;
        let queue = Queue::create(Memory::heap(bytes)?, slots)?;
        self.join(queue, space, share, None)
    }

    /// Attaches a client in another process, with a queue that the client made. The service drops
    /// `keep_alive` when it has released the client: from then on it does not read, write or claim
    /// anything of the client.
    ///
    /// The service maintains the doorbell in the queue. A client that finds it asleep must cause a
    /// call of [`Attachment::ring`].
    ///
    /// # Errors
    /// [`AttachError::Full`], [`AttachError::Stopping`].
    pub fn attach_remote(
        &self,
        queue: Queue,
        space: Arc<dyn Space>,
        share: Share,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Result<Attachment, AttachError> {
        self.join(queue, space, share, Some(keep_alive))
    }

    fn join(
        &self,
        queue: Queue,
        space: Arc<dyn Space>,
        share: Share,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Attachment, AttachError> {
        let shared = &self.shared;
        if shared.is_stopping() {
            return Err(AttachError::Stopping);
        }
        if shared.clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            shared.clients.fetch_sub(1, Ordering::Relaxed);
            return Err(AttachError::Full);
        }
        let queue = Arc::new(queue);
        let id = ClientId(shared.next_client.fetch_add(1, Ordering::Relaxed));
        let client =
            Client::new(Arc::clone(&queue), space, Arc::clone(&shared.counters), keep_alive);
        let handler_event = client.handler_event();
        let held_sends = client.held_sends();
        let mut scaling = shared.scaling();
        let route = scaling.place(id, share);
        // The thread is running. If it is stopped, that happens later, and it then hands the
        // client on.
        let _ = shared
            .mailbox(route.thread())
            .send(Message::Join(Arc::clone(&route), Box::new(client)));
        drop(scaling);
        let ringer = Ringer { shared: Arc::clone(shared), route };
        Ok(Attachment { queue, ringer, handler_event, held_sends })
    }

    /// Keeps the threads awake while the value lives, with [`crate::Polling::Scenario`]: for a
    /// phase of work with many copies (Copier, SOSP 2025, §4.5.1).
    pub fn scenario(&self) -> Scenario {
        self.shared.scenarios.fetch_add(1, Ordering::Relaxed);
        self.shared.mailboxes.iter().for_each(|mailbox| {
            mailbox.bell().ring();
        });
        Scenario(Arc::clone(&self.shared))
    }

    /// Returns the counters' values.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// Returns the counters themselves, to be read even after the service's end.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Returns the number of running threads.
    pub fn threads(&self) -> usize {
        self.shared.scaling().running()
    }

    /// Returns the machine-dependent costs, as far as they are measured: see
    /// [`Attachment::costs`].
    pub fn costs(&self) -> Costs {
        calibration::costs()
    }

    /// Returns true if no thread of the service has panicked. A panicked thread, which is a bug,
    /// may have left claims that are never released.
    pub fn is_whole(&self) -> bool {
        !self.shared.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Service {
    /// Ends the threads, each after its current copy. Queued tasks are left to the clients that
    /// wait for them.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for mailbox in &self.shared.mailboxes {
            mailbox.bell().ring();
        }
        // No thread starts from now on.
        let threads = std::mem::take(&mut *self.shared.threads());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the copy service panicked");
            }
        }
        // A client that no thread has begun to serve holds its connection, and this state by its
        // ringer.
        for message in self.shared.mailboxes.iter().flat_map(Mailbox::shut) {
            if let Message::Join(_, client) = message {
                client.handler_event().notify();
            }
        }
    }
}

/// Keeps the threads of a service awake; see [`Service::scenario`].
pub struct Scenario(Arc<ServiceState>);

impl Drop for Scenario {
    fn drop(&mut self) {
        self.0.scenarios.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Wakes the thread of a client.
#[derive(Clone)]
pub struct Ringer {
    shared: Arc<ServiceState>,
    route: Arc<Route>,
}

impl std::fmt::Debug for Ringer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ringer").field(&self.route.id).finish()
    }
}

impl Ringer {
    /// Wakes the thread if it sleeps.
    pub fn ring(&self) {
        // When the client moves, its new thread is recorded first, and reads the queue after a
        // fence of its own. The order of the two fences decides: either the new thread sees the
        // published task, or this call sees the new thread and rings its doorbell.
        fence(Ordering::SeqCst);
        let mailbox = self.shared.mailbox(self.route.thread());
        if !mailbox.bell().is_awake() {
            mailbox.ring_location.note();
        }
        mailbox.bell().ring();
    }
}

/// The client's side: its queue, and the doorbell of its thread.
pub struct Attachment {
    queue: Arc<Queue>,
    ringer: Ringer,
    handler_event: Arc<HandlerEvent>,
    held_sends: Arc<HeldSends>,
}

impl Attachment {
    /// Returns the queue.
    #[inline]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    #[inline]
    fn mailbox(&self) -> &Mailbox {
        self.ringer.shared.mailbox(self.ringer.route.thread())
    }

    /// Changes the weight of the client's group, as [`Group::set_weight`] does. Other values become the nearest
    /// of these. Bytes that are copied from now on count by it.
    pub fn set_weight(&self, weight: u32) {
        self.ringer.route.share.get().group.set_weight(weight);
    }

    /// Moves the client to another group, or changes its weight there. It begins in another group as
    /// a client that has just been attached.
    pub fn set_share(&self, share: Share) {
        self.ringer.route.share.set(share);
    }

    /// Returns the machine-dependent costs. They are measured when a service of this process is
    /// idle for the first time; before that, they are defaults.
    pub fn costs(&self) -> Costs {
        calibration::costs()
    }

    /// Returns true if a thread polls the queue; a hint.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.mailbox().bell().is_awake()
    }

    /// Wakes the thread if it sleeps.
    pub fn ring(&self) {
        self.ringer.ring();
    }

    /// Returns a handle that wakes the thread from elsewhere.
    pub fn ringer(&self) -> Ringer {
        self.ringer.clone()
    }

    /// Returns a descriptor that is readable when handlers are due or the service has ended, until
    /// [`Attachment::clear_event`].
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn event(&self) -> io::Result<BorrowedFd<'_>> {
        self.handler_event.event()
    }

    /// Makes the descriptor unreadable, before a look for handlers. No effect if there is no
    /// descriptor.
    pub fn clear_event(&self) {
        self.handler_event.clear();
    }

    /// Returns the table of the client's sends whose bytes may move.
    pub fn held_sends(&self) -> &HeldSends {
        &self.held_sends
    }

    /// Returns true while the service runs. After that, it has no claims.
    pub fn is_served(&self) -> bool {
        !self.ringer.shared.is_stopping()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.ringer.shared.clients.fetch_sub(1, Ordering::Relaxed);
        self.ringer.shared.scaling().leave(self.ringer.route.id);
        self.ringer.route.leave(&self.ringer.shared.mailboxes);
    }
}
