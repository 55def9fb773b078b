//! The service: its threads, and who is attached to it.

use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use copyplan::ClientId;
use copyunit::Space;
use ring::{Doorbell, DoorbellLine, LayoutError, Memory, MemoryError, Queue, Scope};

use crate::client::{Client, Held};
use crate::config::Config;
use crate::counters::{Counters, Counts};
use crate::worker::Worker;

/// Most threads of a service.
pub const THREADS_MAX: usize = 64;
/// Most clients of a service.
pub const CLIENTS_MAX: usize = 4096;

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No threads, or too many.
    #[error("{0} threads: give 1 to {THREADS_MAX}")]
    Threads(usize),
    /// The system has no more.
    #[error("the copy service's thread does not start: {0}")]
    Spawn(#[from] io::Error),
}

/// Why a client is not taken.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// As many are attached as there may be.
    #[error("{CLIENTS_MAX} clients are attached: copy without the service, or share a client")]
    Full,
    /// The service is stopping.
    #[error("the copy service is stopping")]
    Stopping,
    /// No memory for the queue.
    #[error("no memory for a queue: {0}")]
    Memory(#[from] MemoryError),
    /// The number of slots is none that a queue can have.
    #[error("the queue: {0}")]
    Layout(#[from] LayoutError),
}

/// What is sent to a thread.
pub(crate) enum Mail {
    /// A client, with its weight.
    Join(ClientId, u32, Box<Client>),
    /// A client that has gone.
    Leave(ClientId),
}

/// Where a thread is reached.
#[derive(Default)]
pub(crate) struct Post {
    bell: DoorbellLine,
    mail: Mutex<Vec<Mail>>,
    pub has_mail: AtomicBool,
    clients: AtomicUsize,
}

impl Post {
    pub fn bell(&self) -> Doorbell<'_> {
        self.bell.doorbell(Scope::Private)
    }

    pub fn mail(&self) -> MutexGuard<'_, Vec<Mail>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, mail: Mail) {
        self.mail().push(mail);
        self.has_mail.store(true, Ordering::Release);
        self.bell().ring();
    }
}

/// What the threads and the attachments share.
pub(crate) struct Shared {
    pub config: Config,
    pub counters: Arc<Counters>,
    posts: Box<[Post]>,
    stopping: AtomicBool,
    scenarios: AtomicUsize,
    clients: AtomicUsize,
    next_client: AtomicU32,
}

impl Shared {
    pub fn post(&self, thread: usize) -> &Post {
        &self.posts[thread]
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub fn scenario_is_on(&self) -> bool {
        self.scenarios.load(Ordering::Relaxed) > 0
    }
}

/// Threads that copy for clients; they end with this value.
pub struct Service {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    /// Starts a service.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Service, StartError> {
        if !(1..=THREADS_MAX).contains(&config.threads_max) {
            return Err(StartError::Threads(config.threads_max));
        }
        let shared = Arc::new(Shared {
            config,
            counters: Arc::default(),
            posts: (0..config.threads_max).map(|_| Post::default()).collect(),
            stopping: AtomicBool::new(false),
            scenarios: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            next_client: AtomicU32::new(0),
        });
        let mut service = Service { shared, threads: Vec::new() };
        for number in 0..config.threads_max {
            let worker = Worker::new(number, Arc::clone(&service.shared));
            let thread = std::thread::Builder::new().name(format!("copyd-{number}"));
            service.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(service)
    }

    /// A client whose addresses are in `space`.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(&self, space: Arc<dyn Space>, weight: u32) -> Result<Attachment, AttachError> {
        let slots = self.shared.config.slots;
        let bytes = Queue::bytes_for(slots)?;
        let queue = Queue::create(Memory::heap(bytes)?, slots)?;
        self.join(queue, space, weight, None)
    }

    /// A client in another process, with a queue that it made. `held` goes when the service has
    /// let go of the client: from then on nothing of it is read, written or claimed.
    ///
    /// The service keeps the doorbell in the queue; who finds that it says *asleep* has
    /// [`Attachment::ring`] called.
    ///
    /// # Errors
    /// [`AttachError::Full`], [`AttachError::Stopping`].
    pub fn attach_remote(
        &self,
        queue: Queue,
        space: Arc<dyn Space>,
        weight: u32,
        held: Arc<dyn Any + Send + Sync>,
    ) -> Result<Attachment, AttachError> {
        self.join(queue, space, weight, Some(held))
    }

    fn join(
        &self,
        queue: Queue,
        space: Arc<dyn Space>,
        weight: u32,
        held: Option<Held>,
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
        let thread = self.emptiest();
        let client = Client::new(Arc::clone(&queue), space, Arc::clone(&shared.counters), held);
        shared.post(thread).clients.fetch_add(1, Ordering::Relaxed);
        shared.post(thread).send(Mail::Join(id, weight, Box::new(client)));
        Ok(Attachment { queue, shared: Arc::clone(shared), id, thread: AtomicUsize::new(thread) })
    }

    fn emptiest(&self) -> usize {
        let clients = |thread: &usize| self.shared.post(*thread).clients.load(Ordering::Relaxed);
        (0..self.shared.posts.len()).min_by_key(clients).unwrap_or(0)
    }

    /// Keeps the threads awake while the value lives, with [`crate::Polling::Scenario`]: for a
    /// stretch of work that copies much (Copier, SOSP 2025, §4.5.1).
    pub fn scenario(&self) -> Scenario {
        self.shared.scenarios.fetch_add(1, Ordering::Relaxed);
        self.shared.posts.iter().for_each(|post| {
            post.bell().ring();
        });
        Scenario(Arc::clone(&self.shared))
    }

    /// What the service has done.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// The counters, for who wants to read them after the service's end.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Whether all its threads still run. One that panicked, a mistake of ours, may have left
    /// claims behind that nobody gives back.
    pub fn is_whole(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Service {
    /// Ends the threads, each after the copy that it is at. What is queued still is left to
    /// whoever waits for it.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for post in &self.shared.posts {
            post.bell().ring();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the copy service panicked");
            }
        }
    }
}

/// Keeps the threads of a service awake; see [`Service::scenario`].
pub struct Scenario(Arc<Shared>);

impl Drop for Scenario {
    fn drop(&mut self) {
        self.0.scenarios.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's end: its queue, and the bell of who serves it.
pub struct Attachment {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    id: ClientId,
    thread: AtomicUsize,
}

impl Attachment {
    /// The queue.
    #[inline]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    fn post(&self) -> &Post {
        self.shared.post(self.thread.load(Ordering::Relaxed))
    }

    /// Whether a thread looks at the queue by itself; a hint.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.post().bell().is_awake()
    }

    /// Wakes the thread where it sleeps.
    pub fn ring(&self) {
        // Where the client moves to another thread: that one looks at the queue after it is told
        // of, and so before or after what was published.
        fence(Ordering::SeqCst);
        self.post().bell().ring();
    }

    /// Whether the service still runs. Where it does not, nothing is claimed by it.
    pub fn is_served(&self) -> bool {
        !self.shared.is_stopping()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let post = self.post();
        post.clients.fetch_sub(1, Ordering::Relaxed);
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        post.send(Mail::Leave(self.id));
    }
}
