//! Objects that are prefetched before the function requests them, while its instance is restored.
//!
//! The role is checked first. A GET of the same bucket, key, version and range takes the prefetch
//! over, also while it is in progress. A prefetch serves one GET; it is dropped when the
//! invocation ends or its object is written. A failed prefetch has no effect: the GET is sent in
//! the ordinary way.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::Notify;
use unlade_guest_protocol::control::ObjectName;
use unlade_metrics::{Event, PrefetchEnd};
use unlade_s3::operation::find;
use unlade_s3::policy::facts::Environment;
use unlade_s3::retry::Attempts;
use unlade_s3::{Head, Policy, Request};

use crate::copies::Copies;
use crate::perform::{Performed, StoreClient, perform};
use crate::quota::{HeldBytes, Quota};
use crate::store::{Body, Into, Local, Reader, TransportError};
use crate::writeback::WriteBack;

/// Most prefetches of an invocation.
pub const FETCHES_MAX: usize = unlade_s3::hint::OBJECTS_MAX;
/// Most invocations with prefetches.
pub const INVOCATIONS_MAX: usize = 1024;
/// The longest chunk in which a body is received.
const CHUNK_BYTES_MAX: usize = 1024 * 1024;
/// Minimum length of a chunk while no GET waits: long chunks are copied fastest.
const UNASKED_BYTES_MIN: usize = 512 * 1024;
/// Parameters of a GET that a prefetch can answer, beside its name.
const HARMLESS: &[&str] = &["Bucket", "Key", "VersionId", "Range", "ChecksumMode"];

/// The progress of a prefetch.
#[derive(Debug)]
enum PrefetchState {
    /// No response yet.
    Asked,
    /// The head of the response has arrived; its body is being received.
    Coming { result: Map<String, Value>, head: Head, body_bytes: u64 },
    /// It failed.
    Failed,
}

/// One prefetch.
#[derive(Debug)]
pub struct Fetch {
    state: RefCell<PrefetchState>,
    /// Chunks that were received and not read, in order.
    chunks: RefCell<VecDeque<Rc<Vec<u8>>>>,
    ended: Cell<Option<bool>>,
    changed: Notify,
    held: RefCell<Option<HeldBytes>>,
    task: RefCell<Option<tokio::task::AbortHandle>>,
    started: Instant,
    /// Time of arrival of the last byte.
    whole: Cell<Option<Instant>>,
    /// Time of the function's GET.
    asked: Cell<Option<Instant>>,
    timings: Rc<Cell<Timings>>,
}

/// Latency hiding of an invocation's prefetches: of those that were used and received in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Sum of the times from the start to the last byte.
    pub total: Duration,
    /// The part of `total` after the function's GET.
    pub waited: Duration,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
    }
}

/// The resources of a tenant that prefetches use.
pub struct Resources {
    /// The client of the store.
    pub store_client: Rc<StoreClient>,
    /// Writes that are not durable yet.
    pub writeback: Rc<WriteBack>,
    /// The limits of the tenant.
    pub quota: Rc<Quota>,
    /// Copies between regions and the worker's memory.
    pub copies: Rc<Copies>,
    /// Largest object that is prefetched.
    pub object_bytes_max: u64,
}

/// Prefetches by invocation.
pub struct Prefetches {
    resources: Rc<Resources>,
    fetches: RefCell<HashMap<String, Invocation>>,
}

#[derive(Debug, Default)]
struct Invocation {
    fetches: HashMap<ObjectName, Rc<Fetch>>,
    timings: Rc<Cell<Timings>>,
}

/// A prefetched response that a GET takes over.
pub struct PrefetchedResponse {
    /// The result that an SDK would return.
    pub result: Map<String, Value>,
    /// Status and header fields.
    pub head: Head,
    /// The body, as it arrives.
    pub reader: Box<dyn Reader>,
}

impl Prefetches {
    /// Creates a table without prefetches.
    pub fn new(resources: Resources) -> Prefetches {
        Prefetches { resources: Rc::new(resources), fetches: RefCell::default() }
    }

    fn count(&self, end: PrefetchEnd, prefetches: u64) {
        self.resources.store_client.meter.add_n(Event::HostioPrefetch(end), prefetches);
    }

    /// Starts to prefetch objects for an invocation, as far as its role and the quota allow.
    pub fn begin(&self, invocation: &str, policy: &Policy, objects: Vec<ObjectName>) {
        if self.fetches.borrow().len() >= INVOCATIONS_MAX {
            return;
        }
        let environment = self.resources.store_client.transport.environment(None);
        for name in objects {
            let Some(request) = allowed(policy, &name, &environment) else {
                self.count(PrefetchEnd::Denied, 1);
                continue;
            };
            let mut fetches = self.fetches.borrow_mut();
            let own = fetches.entry(invocation.to_owned()).or_default();
            if own.fetches.len() < FETCHES_MAX && !own.fetches.contains_key(&name) {
                let fetch = Fetch::start(&self.resources, request, own.timings.clone());
                own.fetches.insert(name, fetch);
            }
        }
    }

    /// Takes the prefetch that answers a GET, and waits for its head; `None` if there is none.
    pub async fn take(
        &self,
        invocation: &str,
        parameters: &Map<String, Value>,
    ) -> Option<PrefetchedResponse> {
        let name = asked(parameters)?;
        let fetch = self.fetches.borrow_mut().get_mut(invocation)?.fetches.remove(&name)?;
        fetch.asked.set(Some(Instant::now()));
        fetch.account(&self.resources);
        loop {
            let changed = fetch.changed.notified();
            match &*fetch.state.borrow() {
                PrefetchState::Asked => {}
                PrefetchState::Failed => return None,
                PrefetchState::Coming { result, head, body_bytes } => {
                    let (result, head) = (result.clone(), head.clone());
                    let reader = Bytes::of(&self.resources.copies, fetch.clone(), *body_bytes);
                    return Some(PrefetchedResponse { result, head, reader: Box::new(reader) });
                }
            }
            changed.await;
        }
    }

    /// Drops the prefetches of an object that is being written.
    pub fn forget(&self, bucket: &str, key: Option<&str>) {
        for own in self.fetches.borrow_mut().values_mut() {
            let own = &mut own.fetches;
            let before = own.len();
            own.retain(|name, _| name.bucket != bucket || key.is_some_and(|key| name.key != key));
            let gone = (before - own.len()) as u64;
            self.count(PrefetchEnd::Unused, gone);
        }
    }

    /// Ends the prefetches of an invocation.
    pub fn end(&self, invocation: &str) -> Timings {
        let own = self.fetches.borrow_mut().remove(invocation).unwrap_or_default();
        let unused = own.fetches.len() as u64;
        self.count(PrefetchEnd::Unused, unused);
        own.timings.get()
    }
}

/// The GET of an object, if the role allows it.
fn allowed(policy: &Policy, name: &ObjectName, environment: &Environment) -> Option<Rc<Request>> {
    let operation = find("GetObject")?;
    let mut parameters = Map::new();
    let mut add = |key: &str, value: &Option<String>| {
        if let Some(value) = value {
            parameters.insert(key.to_owned(), value.as_str().into());
        }
    };
    add("Bucket", &Some(name.bucket.clone()));
    add("Key", &Some(name.key.clone()));
    add("VersionId", &name.version);
    add("Range", &name.range);
    policy.decide(operation, &parameters, environment).ok()?;
    Request::new(operation, &parameters).ok().map(Rc::new)
}

/// The object that a GET requests, if a prefetch can answer its parameters.
fn asked(parameters: &Map<String, Value>) -> Option<ObjectName> {
    let set = |(_, value): &(&String, &Value)| !value.is_null();
    if parameters.iter().filter(set).any(|(name, _)| !HARMLESS.contains(&name.as_str())) {
        return None;
    }
    let text = |name: &str| parameters.get(name).and_then(Value::as_str).map(str::to_owned);
    if text("ChecksumMode").is_some_and(|mode| mode != "ENABLED") {
        return None;
    }
    let (bucket, key) = (text("Bucket")?, text("Key")?);
    Some(ObjectName { bucket, key, version: text("VersionId"), range: text("Range") })
}

impl Fetch {
    fn start(
        resources: &Rc<Resources>,
        request: Rc<Request>,
        timings: Rc<Cell<Timings>>,
    ) -> Rc<Fetch> {
        let fetch = Rc::new(Fetch {
            state: RefCell::new(PrefetchState::Asked),
            chunks: RefCell::default(),
            ended: Cell::new(None),
            changed: Notify::new(),
            held: RefCell::default(),
            task: RefCell::default(),
            started: Instant::now(),
            whole: Cell::new(None),
            asked: Cell::new(None),
            timings,
        });
        let (weak, resources) = (Rc::downgrade(&fetch), resources.clone());
        let task = tokio::task::spawn_local(async move {
            // The store does not have the pending writes yet.
            resources.writeback.barrier(&request, &Map::new()).await;
            let body = Rc::default();
            let client = &resources.store_client;
            let performed = perform(client, &request, &body, &mut Attempts::default()).await;
            let Some(fetch) = weak.upgrade() else { return };
            let reader = fetch.came(&resources, performed.ok());
            drop(fetch);
            if let Some(mut reader) = reader {
                let whole = pull(&weak, &mut *reader).await;
                if let Some(fetch) = weak.upgrade() {
                    fetch.ended.set(Some(whole));
                    fetch.whole.set(whole.then(Instant::now));
                    fetch.account(&resources);
                    fetch.changed.notify_waiters();
                }
            }
        });
        *fetch.task.borrow_mut() = Some(task.abort_handle());
        fetch
    }

    /// Records the duration, once the object has arrived and was requested.
    fn account(&self, resources: &Resources) {
        let (Some(whole), Some(asked)) = (self.whole.get(), self.asked.get()) else { return };
        let total = whole.duration_since(self.started);
        let waited = whole.saturating_duration_since(asked);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        resources.store_client.meter.add_n(Event::HostioPrefetchTime, nanoseconds(total));
        resources.store_client.meter.add_n(Event::HostioPrefetchWait, nanoseconds(waited));
        let before = self.timings.get();
        self.timings.set(Timings { total: before.total + total, waited: before.waited + waited });
    }

    fn share(&self, mut chunk: Vec<u8>) {
        // Unused capacity is returned.
        chunk.shrink_to_fit();
        self.chunks.borrow_mut().push_back(Rc::new(chunk));
        self.changed.notify_waiters();
    }

    /// Handles the arrival of the head; returns the reader if the body is wanted.
    fn came(&self, resources: &Resources, performed: Option<Performed>) -> Option<Box<dyn Reader>> {
        let wanted = performed.and_then(|performed| {
            let reader = performed.object?;
            let body_bytes = reader.left_bytes()?;
            let held = resources.quota.hold(body_bytes)?;
            let fits = body_bytes <= resources.object_bytes_max;
            fits.then_some((performed.result, performed.head, reader, body_bytes, held))
        });
        let Some((result, head, reader, body_bytes, held)) = wanted else {
            resources.store_client.meter.add(Event::HostioPrefetch(PrefetchEnd::Failed));
            *self.state.borrow_mut() = PrefetchState::Failed;
            self.changed.notify_waiters();
            return None;
        };
        *self.held.borrow_mut() = Some(held);
        *self.state.borrow_mut() = PrefetchState::Coming { result, head, body_bytes };
        self.changed.notify_waiters();
        Some(reader)
    }
}

/// Reads the body while the prefetch exists; returns true if it arrived in full.
async fn pull(fetch: &std::rc::Weak<Fetch>, reader: &mut dyn Reader) -> bool {
    let mut chunk = Vec::new();
    loop {
        let left =
            |reader: &dyn Reader| reader.left_bytes().map_or(usize::MAX, |left| left as usize);
        chunk.reserve(CHUNK_BYTES_MAX.min(left(reader)).saturating_sub(chunk.len()));
        let room = CHUNK_BYTES_MAX - chunk.len();
        let whole = match reader.read(Into::Memory(&mut chunk), room).await {
            Ok(0) => Some(reader.left_bytes() == Some(0)),
            Ok(_) => None,
            // Bytes received with the error may be invalid.
            Err(_) => return false,
        };
        let Some(fetch) = fetch.upgrade() else { return false };
        let is_last = whole.is_some() || left(reader) == 0;
        let is_due = is_last || chunk.len() >= UNASKED_BYTES_MIN || fetch.asked.get().is_some();
        if is_due && !chunk.is_empty() {
            fetch.share(std::mem::take(&mut chunk));
        }
        if let Some(whole) = whole {
            return whole;
        }
    }
}

/// A body in this process's memory as the body of a response.
pub struct Bytes {
    copies: Rc<Copies>,
    /// The source of further chunks.
    fetch: Option<Rc<Fetch>>,
    /// The chunk that is being read, and the read position.
    chunk: Rc<Vec<u8>>,
    read_bytes: usize,
    /// Bytes after this chunk.
    left_bytes: u64,
}

impl Bytes {
    /// The body of a prefetch, as it arrives.
    fn of(copies: &Rc<Copies>, fetch: Rc<Fetch>, left_bytes: u64) -> Bytes {
        let (copies, fetch, chunk) = (copies.clone(), Some(fetch), Rc::default());
        Bytes { copies, fetch, chunk, read_bytes: 0, left_bytes }
    }

    /// A complete body.
    pub fn all(copies: &Rc<Copies>, body: &Body) -> Bytes {
        let (copies, chunk) = (copies.clone(), body.shared().clone());
        let left_bytes = chunk.len() as u64;
        Bytes { copies, fetch: None, chunk, read_bytes: 0, left_bytes }
    }

    /// Loads a chunk to read from; returns false at the end.
    async fn has_chunk(&mut self) -> Result<bool, TransportError> {
        if self.read_bytes < self.chunk.len() {
            return Ok(true);
        }
        let Some(fetch) = &self.fetch else { return Ok(false) };
        loop {
            let changed = fetch.changed.notified();
            let next = fetch.chunks.borrow_mut().pop_front();
            if let Some(chunk) = next {
                (self.chunk, self.read_bytes) = (chunk, 0);
                return Ok(true);
            }
            match fetch.ended.get() {
                Some(_) if self.left_bytes == 0 => return Ok(false),
                Some(_) => return broken("it ended within a body that was fetched ahead"),
                None => changed.await,
            }
        }
    }

    async fn step(&mut self, to: Into<'_>, bytes_max: usize) -> Result<usize, TransportError> {
        if bytes_max == 0 || !self.has_chunk().await? {
            return Ok(0);
        }
        let bytes = (self.chunk.len() - self.read_bytes).min(bytes_max);
        let range = self.read_bytes..self.read_bytes + bytes;
        match to {
            Into::Memory(out) => out.extend_from_slice(&self.chunk[range]),
            Into::Region(arena, at) => {
                match self.copies.fill(arena, at, &self.chunk, range).await {
                    Ok(Ok(())) => {}
                    Ok(Err(why)) => return broken(&why.to_string()),
                    Err(why) => return broken(&why.to_string()),
                }
            }
        }
        self.read_bytes += bytes;
        self.left_bytes = self.left_bytes.saturating_sub(bytes as u64);
        Ok(bytes)
    }
}

fn broken<T>(why: &str) -> Result<T, TransportError> {
    Err(TransportError::broken("the store", why))
}

impl Reader for Bytes {
    fn left_bytes(&self) -> Option<u64> {
        Some(self.left_bytes)
    }

    fn read<'a>(
        &'a mut self,
        to: Into<'a>,
        bytes_max: usize,
    ) -> Local<'a, Result<usize, TransportError>> {
        Box::pin(self.step(to, bytes_max))
    }
}

/// An empty body.
pub struct Empty;

impl Reader for Empty {
    fn left_bytes(&self) -> Option<u64> {
        Some(0)
    }

    fn read<'a>(&'a mut self, _: Into<'a>, _: usize) -> Local<'a, Result<usize, TransportError>> {
        Box::pin(async { Ok(0) })
    }
}
