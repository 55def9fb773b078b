//! Objects that are fetched before the function asks for them, while its instance is restored.
//!
//! The role decides first. A demand GET of the same bucket, key, version and range takes the fetch
//! over, also in the middle; it serves one GET, is dropped when the invocation ends, or when its
//! object is written. What fails is nothing: the GET is then made in the ordinary way.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use meter::{Event, PrefetchEnd};
use object::operation::find;
use object::policy::Decision;
use object::retry::Attempts;
use object::{Head, Policy, Request};
use serde_json::{Map, Value};
use tokio::sync::Notify;
use wire::guest::control::ObjectName;

use crate::perform::{Performed, perform};
use crate::quota::HeldBytes;
use crate::store::{Body, Into, Local, Reader, TransportError};
use crate::tenant::Tenant;

/// Most fetches of an invocation.
pub const FETCHES_MAX: usize = object::hint::OBJECTS_MAX;
/// Most invocations that are waited for.
pub const INVOCATIONS_MAX: usize = 1024;
/// Octets that are received at once.
const PULL_BYTES: usize = 256 * 1024;
/// Parameters of a GET that a fetch can answer, beside its name.
const HARMLESS: &[&str] = &["Bucket", "Key", "VersionId", "Range", "ChecksumMode"];

/// How far a fetch is.
#[derive(Debug)]
enum State {
    /// No answer yet.
    Asked,
    /// The answer's head is there; its body comes.
    Coming { result: Map<String, Value>, head: Head, body_bytes: u64 },
    /// It came to nothing.
    Failed,
}

/// One fetch.
#[derive(Debug)]
pub struct Fetch {
    state: RefCell<State>,
    octets: RefCell<Vec<u8>>,
    ended: Cell<Option<bool>>,
    changed: Notify,
    held: RefCell<Option<HeldBytes>>,
    task: RefCell<Option<tokio::task::AbortHandle>>,
    started: Instant,
    /// When the last octet came.
    whole: Cell<Option<Instant>>,
    /// When the function asked.
    asked: Cell<Option<Instant>>,
    timings: Rc<Cell<Timings>>,
}

/// How well the fetches of an invocation were hidden: those that were used, and have come whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From their start to their last octet, together.
    pub total: Duration,
    /// Of that, what came after the function had asked.
    pub waited: Duration,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
    }
}

/// Fetches by invocation.
#[derive(Debug, Default)]
pub struct Prefetches {
    fetches: RefCell<HashMap<String, Invocation>>,
}

#[derive(Debug, Default)]
struct Invocation {
    fetches: HashMap<ObjectName, Rc<Fetch>>,
    timings: Rc<Cell<Timings>>,
}

/// What a GET takes over.
pub struct Taken {
    /// What an SDK would return.
    pub result: Map<String, Value>,
    /// Status and header fields.
    pub head: Head,
    /// The body, as it comes.
    pub reader: Box<dyn Reader>,
}

impl Prefetches {
    /// Begins to fetch objects for an invocation, as far as its role allows and there is room.
    pub fn begin(
        &self,
        tenant: &Rc<Tenant>,
        invocation: &str,
        policy: &Policy,
        objects: Vec<ObjectName>,
    ) {
        if self.fetches.borrow().len() >= INVOCATIONS_MAX {
            return;
        }
        for name in objects {
            let Some(request) = allowed(policy, &name) else {
                tenant.meter.add(Event::HostioPrefetch(PrefetchEnd::Denied));
                continue;
            };
            let mut fetches = self.fetches.borrow_mut();
            let own = fetches.entry(invocation.to_owned()).or_default();
            if own.fetches.len() < FETCHES_MAX && !own.fetches.contains_key(&name) {
                let fetch = Fetch::start(tenant, request, own.timings.clone());
                own.fetches.insert(name, fetch);
            }
        }
    }

    /// Takes the fetch that answers a GET, and waits for its head; nothing where there is none.
    pub async fn take(
        &self,
        tenant: &Tenant,
        invocation: &str,
        parameters: &Map<String, Value>,
    ) -> Option<Taken> {
        let name = asked(parameters)?;
        let fetch = self.fetches.borrow_mut().get_mut(invocation)?.fetches.remove(&name)?;
        fetch.asked.set(Some(Instant::now()));
        fetch.account(tenant);
        loop {
            let changed = fetch.changed.notified();
            match &*fetch.state.borrow() {
                State::Asked => {}
                State::Failed => return None,
                State::Coming { result, head, body_bytes } => {
                    let (result, head) = (result.clone(), head.clone());
                    let reader = Octets::of(fetch.clone(), *body_bytes);
                    return Some(Taken { result, head, reader: Box::new(reader) });
                }
            }
            changed.await;
        }
    }

    /// An object is being written: what was fetched of it is old.
    pub fn forget(&self, tenant: &Tenant, bucket: &str, key: Option<&str>) {
        for own in self.fetches.borrow_mut().values_mut() {
            let own = &mut own.fetches;
            let before = own.len();
            own.retain(|name, _| name.bucket != bucket || key.is_some_and(|key| name.key != key));
            let gone = (before - own.len()) as u64;
            tenant.meter.add_n(Event::HostioPrefetch(PrefetchEnd::Unused), gone);
        }
    }

    /// The invocation has ended.
    pub fn end(&self, tenant: &Tenant, invocation: &str) -> Timings {
        let own = self.fetches.borrow_mut().remove(invocation).unwrap_or_default();
        let unused = own.fetches.len() as u64;
        tenant.meter.add_n(Event::HostioPrefetch(PrefetchEnd::Unused), unused);
        own.timings.get()
    }
}

/// The GET of an object, if the role may make it.
fn allowed(policy: &Policy, name: &ObjectName) -> Option<Rc<Request>> {
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
    (policy.decide(operation, &parameters) == Decision::Allowed)
        .then(|| Request::new(operation, &parameters).ok().map(Rc::new))?
}

/// The object that a GET asks for, if nothing else is asked.
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
    fn start(tenant: &Rc<Tenant>, request: Rc<Request>, timings: Rc<Cell<Timings>>) -> Rc<Fetch> {
        let fetch = Rc::new(Fetch {
            state: RefCell::new(State::Asked),
            octets: RefCell::default(),
            ended: Cell::new(None),
            changed: Notify::new(),
            held: RefCell::default(),
            task: RefCell::default(),
            started: Instant::now(),
            whole: Cell::new(None),
            asked: Cell::new(None),
            timings,
        });
        let (weak, tenant) = (Rc::downgrade(&fetch), tenant.clone());
        let task = tokio::task::spawn_local(async move {
            let body = Rc::default();
            let performed = perform(&tenant, &request, &body, &mut Attempts::default()).await;
            let Some(fetch) = weak.upgrade() else { return };
            let reader = fetch.came(&tenant, performed.ok());
            drop(fetch);
            if let Some(mut reader) = reader {
                let whole = pull(&weak, &mut *reader).await;
                if let Some(fetch) = weak.upgrade() {
                    fetch.ended.set(Some(whole));
                    fetch.whole.set(whole.then(Instant::now));
                    fetch.account(&tenant);
                    fetch.changed.notify_waiters();
                }
            }
        });
        *fetch.task.borrow_mut() = Some(task.abort_handle());
        fetch
    }

    /// Counts how long it took, once it has come and was asked for.
    fn account(&self, tenant: &Tenant) {
        let (Some(whole), Some(asked)) = (self.whole.get(), self.asked.get()) else { return };
        let total = whole.duration_since(self.started);
        let waited = whole.saturating_duration_since(asked);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        tenant.meter.add_n(Event::HostioPrefetchTime, nanoseconds(total));
        tenant.meter.add_n(Event::HostioPrefetchWait, nanoseconds(waited));
        let before = self.timings.get();
        self.timings.set(Timings { total: before.total + total, waited: before.waited + waited });
    }

    fn came_bytes(&self) -> usize {
        self.octets.borrow().len()
    }

    /// The head has come: whether the body is wanted.
    fn came(&self, tenant: &Tenant, performed: Option<Performed>) -> Option<Box<dyn Reader>> {
        let wanted = performed.and_then(|performed| {
            let reader = performed.object?;
            let body_bytes = reader.left_bytes()?;
            let held = tenant.quota.hold(body_bytes)?;
            let fits = body_bytes <= tenant.limits.prefetch_bytes_max;
            fits.then_some((performed.result, performed.head, reader, body_bytes, held))
        });
        let Some((result, head, reader, body_bytes, held)) = wanted else {
            tenant.meter.add(Event::HostioPrefetch(PrefetchEnd::Failed));
            *self.state.borrow_mut() = State::Failed;
            self.changed.notify_waiters();
            return None;
        };
        *self.held.borrow_mut() = Some(held);
        self.octets.borrow_mut().reserve_exact(usize::try_from(body_bytes).unwrap_or_default());
        *self.state.borrow_mut() = State::Coming { result, head, body_bytes };
        self.changed.notify_waiters();
        Some(reader)
    }
}

/// Reads the body for whoever wants it; whether it came whole.
async fn pull(fetch: &std::rc::Weak<Fetch>, reader: &mut dyn Reader) -> bool {
    let mut octets = Vec::with_capacity(PULL_BYTES);
    loop {
        match reader.read(Into::Memory(&mut octets), PULL_BYTES).await {
            Ok(0) => return reader.left_bytes() == Some(0),
            Ok(_) => {}
            Err(_) => return false,
        }
        let Some(fetch) = fetch.upgrade() else { return false };
        fetch.octets.borrow_mut().append(&mut octets);
        fetch.changed.notify_waiters();
    }
}

/// Octets of this process as the body of an answer.
pub struct Octets {
    from: From,
    at: usize,
    bytes: u64,
}

enum From {
    Fetch(Rc<Fetch>),
    Body(Rc<Body>),
}

impl Octets {
    /// Those of a fetch, as they come.
    fn of(fetch: Rc<Fetch>, bytes: u64) -> Octets {
        Octets { from: From::Fetch(fetch), at: 0, bytes }
    }

    /// Those of a body.
    pub fn all(body: Rc<Body>) -> Octets {
        let bytes = body.octets().len() as u64;
        Octets { from: From::Body(body), at: 0, bytes }
    }

    /// None.
    pub fn empty() -> Octets {
        Octets::all(Rc::default())
    }

    async fn step(&mut self, to: Into<'_>, bytes_max: usize) -> Result<usize, TransportError> {
        let broken = |why: &str| Err(TransportError::broken("the store", why));
        let fetch = match &self.from {
            From::Body(body) => {
                let moved = put(to, &body.octets()[self.at..], bytes_max);
                self.at += moved;
                return Ok(moved);
            }
            From::Fetch(fetch) => fetch.clone(),
        };
        loop {
            let changed = fetch.changed.notified();
            if fetch.came_bytes() > self.at {
                let moved = put(to, &fetch.octets.borrow()[self.at..], bytes_max);
                self.at += moved;
                return Ok(moved);
            }
            match fetch.ended.get() {
                Some(_) if self.at as u64 == self.bytes => return Ok(0),
                Some(_) => return broken("it ended within a body that was fetched ahead"),
                None => changed.await,
            }
        }
    }
}

fn put(to: Into<'_>, octets: &[u8], bytes_max: usize) -> usize {
    let octets = &octets[..octets.len().min(bytes_max)];
    match to {
        Into::Memory(out) => out.extend_from_slice(octets),
        // The place was lent to whoever asks.
        Into::Region(region, at) => {
            if region.copy_in(at, octets).is_err() {
                return 0;
            }
        }
    }
    octets.len()
}

impl Reader for Octets {
    fn left_bytes(&self) -> Option<u64> {
        Some(self.bytes - self.at as u64)
    }

    fn read<'a>(
        &'a mut self,
        to: Into<'a>,
        bytes_max: usize,
    ) -> Local<'a, Result<usize, TransportError>> {
        Box::pin(self.step(to, bytes_max))
    }
}
