//! Long copies between regions and the worker's memory. The copy service makes them where that
//! frees the worker's thread for other work; otherwise the worker's thread makes them at once.
//!
//! A copy in progress is stored here, with both of its ends, until it is over. A task that awaits
//! a copy blocks no thread. When the task is cancelled, or the epoch ends, the copy is aborted,
//! and neither end is accessed after that call returns. The content of the bytes is checked after
//! the copy.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use unlade_copy::{
    ArenaCopy, AtOnceReason, Config, Copier, CopyOptions, FinishedCopy, Polling, Service,
    StartedCopy, Units,
};
use unlade_metrics::{CopyBy, CopyFallback, Event, Meter};
use unlade_shm::Arena;
use unlade_shm::shared::OutOfRegion;

use crate::quota::Quota;

/// Shorter copies are made at once: a request to the service and its notification cost the
/// worker's thread about as long.
pub const SERVICE_BYTES_MIN: usize = 512 * 1024;
/// Least number of cores with which one is spare for copies: functions use one, the worker
/// another.
pub const SERVICE_CORES_MIN: usize = 3;
/// Most copies in progress; further ones are made at once.
pub const COPIES_MAX: usize = 64;
/// Capacity of the service's queue in tasks: one for each MiB of a copy.
const TASKS_MAX: u32 = 128;
/// Call site of copies from a region. The service learns the cost of each direction separately.
const SITE_APPEND: usize = 1;
/// Call site of copies into a region.
const SITE_FILL: usize = 2;
/// Longest sleep of the service's thread; each queued task wakes it earlier.
const SLEEP_MAX: Duration = Duration::from_secs(24 * 3600);

/// The copier of long bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyService {
    /// The service, if a core is spare for it, other calls wait for the worker meanwhile, and it
    /// was measured to be faster.
    #[default]
    Auto,
    /// The worker's thread.
    Off,
    /// The service, for all copies: for measurements and tests.
    Always,
}

/// A service and its client: one for all tenants of a thread.
struct Running {
    copier: Arc<Copier>,
    /// The service; dropped after its client.
    service: Service,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("counts", &self.service.counts()).finish_non_exhaustive()
    }
}

/// A tenant's client of the service. Each tenant of a thread has its own tasks.
#[derive(Debug)]
struct Client {
    running: Rc<Running>,
    /// Notified when a copy may have ended.
    ended: Rc<Notify>,
    listener: AbortHandle,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

thread_local! {
    static RUNNING: RefCell<Weak<Running>> = const { RefCell::new(Weak::new()) };
}

/// See the [module](self).
#[derive(Debug)]
pub struct Copies {
    service: CopyService,
    cores: usize,
    quota: Rc<Quota>,
    meter: Arc<Meter>,
    /// The client, created on first use; an inner `None` means that it could not be started.
    client: OnceCell<Option<Client>>,
    under_way: RefCell<HashMap<u64, ArenaCopy>>,
    next: Cell<u64>,
    /// How copies are queued that are not left to what is learnt.
    how: Cell<CopyOptions>,
}

/// A copy that was begun.
#[derive(Debug)]
enum Copy {
    /// The copy is over; its result.
    Over(Vec<u8>),
    /// The copy is in progress.
    UnderWay(UnderWay),
}

/// A copy in progress; dropping it aborts the copy.
#[derive(Debug)]
struct UnderWay {
    copies: Rc<Copies>,
    number: u64,
}

/// The epoch whose memory was part of a copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the epoch ended while its memory was being copied")]
pub struct EpochEnded;

impl Copies {
    /// Creates the copies of a tenant. The service starts with the first copy that benefits from
    /// it.
    pub fn new(service: CopyService, quota: Rc<Quota>, meter: Arc<Meter>) -> Rc<Copies> {
        Rc::new(Copies {
            service,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            quota,
            meter,
            client: OnceCell::new(),
            under_way: RefCell::default(),
            next: Cell::new(0),
            how: Cell::new(CopyOptions { queued: true, ..CopyOptions::default() }),
        })
    }

    /// Appends bytes of an arena to a vector. On cancellation the bytes are lost.
    ///
    /// # Errors
    /// Outer: the range is outside the arena. Inner: the epoch has ended.
    pub async fn append(
        self: &Rc<Self>,
        arena: &Rc<Arena>,
        offset: usize,
        bytes: usize,
        to: Vec<u8>,
    ) -> Result<Result<Vec<u8>, EpochEnded>, OutOfRegion> {
        let copy = match self.service_for(bytes, SITE_APPEND) {
            None => self.appended(arena, offset, bytes, to)?,
            Some((copier, how)) => {
                let begun = copier.append_from(arena, offset, bytes, to, &how)?;
                self.begun(begun, bytes, |content| content)
            }
        };
        Ok(self.over(copy, bytes).await)
    }

    /// Copies `range` of a buffer into an arena. On cancellation any part may have been copied.
    ///
    /// # Errors
    /// Outer: the range is outside the arena. Inner: the epoch has ended.
    pub async fn fill(
        self: &Rc<Self>,
        arena: &Rc<Arena>,
        offset: usize,
        from: &Rc<Vec<u8>>,
        range: Range<usize>,
    ) -> Result<Result<(), EpochEnded>, OutOfRegion> {
        let bytes = range.len();
        let copy = match self.service_for(bytes, SITE_FILL) {
            None => {
                arena.copy_in(offset, &from[range])?;
                self.count(CopyBy::Worker, bytes);
                Copy::Over(Vec::new())
            }
            Some((copier, how)) => {
                let begun = copier.copy_into(arena, offset, from, range, &how)?;
                self.begun(begun, bytes, |()| Vec::new())
            }
        };
        Ok(self.over(copy, bytes).await.map(drop))
    }

    /// Ends an epoch: aborts the copies from and to its memory. None of it is read or written
    /// after this returns.
    pub fn end(&self, arena: &Rc<Arena>) {
        let ends = |_: &u64, copy: &mut ArenaCopy| Rc::ptr_eq(copy.arena(), arena);
        let given_up: Vec<_> = self.under_way.borrow_mut().extract_if(ends).collect();
        drop(given_up);
    }

    /// Number of copies in progress.
    pub fn under_way(&self) -> usize {
        self.under_way.borrow().len()
    }

    fn appended(
        &self,
        arena: &Arena,
        offset: usize,
        bytes: usize,
        mut to: Vec<u8>,
    ) -> Result<Copy, OutOfRegion> {
        arena.append_to(offset, bytes, &mut to)?;
        self.count(CopyBy::Worker, bytes);
        Ok(Copy::Over(to))
    }

    /// The service, if it may make a copy of so many bytes, and how.
    fn service_for(&self, bytes: usize, site: usize) -> Option<(&Arc<Copier>, CopyOptions)> {
        let how = match self.service {
            CopyService::Off => return None,
            CopyService::Always => self.how.get(),
            // One of the calls is that of this copy. Without others the worker has no other work,
            // except with these bytes.
            CopyService::Auto if bytes < SERVICE_BYTES_MIN || self.quota.calls() < 2 => {
                return None;
            }
            CopyService::Auto => CopyOptions { site, ..CopyOptions::default() },
        };
        if bytes == 0 {
            return None;
        }
        let too_few_cores = match self.service {
            CopyService::Always => false,
            _ => self.cores < SERVICE_CORES_MIN,
        };
        if too_few_cores {
            return self.fall_back(CopyFallback::Cores);
        }
        if self.under_way() >= COPIES_MAX {
            return self.fall_back(CopyFallback::Full);
        }
        let client = self.client.get_or_init(|| match Client::new() {
            Ok(client) => Some(client),
            Err(error) => {
                tracing::warn!(%error, "no copy service: the worker's thread copies");
                None
            }
        });
        match client {
            Some(client) => Some((&client.running.copier, how)),
            None => self.fall_back(CopyFallback::Unavailable),
        }
    }

    fn fall_back<T>(&self, why: CopyFallback) -> Option<T> {
        self.meter.add(Event::HostioCopyFallback(why));
        None
    }

    fn count(&self, by: CopyBy, bytes: usize) {
        self.meter.add(Event::HostioCopy(by));
        self.meter.add_n(Event::HostioCopied(by), bytes as u64);
    }

    fn begun<T>(
        self: &Rc<Self>,
        begun: StartedCopy<T>,
        bytes: usize,
        content: impl FnOnce(T) -> Vec<u8>,
    ) -> Copy {
        match begun {
            StartedCopy::AtOnce(made, why) => {
                self.count(CopyBy::Worker, bytes);
                if why == AtOnceReason::Full {
                    self.meter.add(Event::HostioCopyFallback(CopyFallback::Full));
                }
                Copy::Over(content(made))
            }
            StartedCopy::Queued(copy) => {
                let number = self.next.get();
                self.next.set(number + 1);
                self.under_way.borrow_mut().insert(number, copy);
                Copy::UnderWay(UnderWay { copies: self.clone(), number })
            }
        }
    }

    async fn over(&self, copy: Copy, bytes: usize) -> Result<Vec<u8>, EpochEnded> {
        let under_way = match copy {
            Copy::Over(content) => return Ok(content),
            Copy::UnderWay(under_way) => under_way,
        };
        let finished = under_way.ended().await.ok_or(EpochEnded)?;
        Ok(self.finished(finished, bytes))
    }

    /// Counts a queued copy. This thread has repeated what the service could not copy.
    fn finished(&self, copy: FinishedCopy, bytes: usize) -> Vec<u8> {
        if copy.failed {
            self.meter.add(Event::HostioCopyFallback(CopyFallback::Failed));
        }
        self.count(if copy.failed { CopyBy::Worker } else { CopyBy::Service }, bytes);
        copy.bytes
    }
}

impl UnderWay {
    /// Waits for the end; nothing where the epoch ended before.
    async fn ended(&self) -> Option<FinishedCopy> {
        let told = self.copies.client.get()?.as_ref()?.ended.clone();
        loop {
            let ended = told.notified();
            if self.copies.under_way.borrow().get(&self.number)?.is_ready() {
                break;
            }
            ended.await;
        }
        let copy = self.copies.under_way.borrow_mut().remove(&self.number)?;
        Some(copy.finish())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let given_up = self.copies.under_way.borrow_mut().remove(&self.number);
        drop(given_up);
    }
}

/// The reason why there is no service.
#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error(transparent)]
    Start(#[from] unlade_copy::StartError),
    #[error(transparent)]
    Attach(#[from] unlade_copy::AttachError),
    #[error("the descriptor that tells of copies: {0}")]
    Event(#[from] io::Error),
}

impl Running {
    fn of_this_thread() -> Result<Rc<Running>, ServiceError> {
        if let Some(running) = RUNNING.with_borrow(Weak::upgrade) {
            return Ok(running);
        }
        let running = Rc::new(Running::start()?);
        RUNNING.set(Rc::downgrade(&running));
        Ok(running)
    }

    /// Starts a thread that sleeps while its queue is empty.
    fn start() -> Result<Running, ServiceError> {
        let service = Service::start(Config {
            polling: Polling::Scenario,
            units: Units::Auto,
            slots: TASKS_MAX,
            sleep_max: SLEEP_MAX,
            ..Config::default()
        })?;
        let copier = Arc::new(Copier::new(service.attach()?));
        Ok(Running { copier, service })
    }
}

impl Client {
    fn new() -> Result<Client, ServiceError> {
        let running = Running::of_this_thread()?;
        let event = watch(running.copier.event()?.try_clone_to_owned()?)?;
        let (ended, copier) = (Rc::new(Notify::new()), running.copier.clone());
        let told = ended.clone();
        let listener = tokio::task::spawn_local(async move {
            while let Ok(mut readable) = event.readable().await {
                readable.clear_ready();
                // The handlers are empty; a pending handler only signals that a copy has ended, of
                // this tenant or of another: each tenant is notified.
                copier.run_handlers();
                told.notify_waiters();
            }
        });
        let listener = listener.abort_handle();
        Ok(Client { running, ended, listener })
    }
}

// `AsyncFd` requires that the value never closes its descriptor or returns a different one;
// `OwnedFd` fulfils that.
#[allow(deprecated, reason = "the descriptor is owned, and its number stays the same")]
fn watch(event: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(event, Interest::READABLE)
}

#[cfg(test)]
mod tests;
