//! What the connections of one worker share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use unlade_http::HeadLimits;
use unlade_metrics::Meter;
use unlade_tls::device::Device;

use crate::cache::{LookupError, OpenFiles, OpenObject};
use crate::clock::Clock;
use crate::config::BackendConfig;
use crate::session::Gate;
use crate::store::Store;

/// The limits of requests and connections; a reload replaces them for what comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sizes of a request's head.
    pub head: HeadLimits,
    /// From the first byte of a head to its last.
    pub head_timeout: Duration,
    /// From one request to the next.
    pub idle_timeout: Duration,
    /// Without progress of an upload.
    pub body_timeout: Duration,
    /// Without progress of a response.
    pub write_timeout: Duration,
    /// Largest object accepted.
    pub object_bytes_max: u64,
}

/// One worker's state. Nothing of it crosses threads but the store and the meter.
#[derive(Debug)]
pub struct Context {
    /// The objects.
    pub store: Arc<Store>,
    /// The counters.
    pub meter: Arc<Meter>,
    /// Whether the worker drains.
    pub gate: Gate,
    /// The time of day.
    pub clock: Clock,
    limits: Cell<Limits>,
    files: RefCell<OpenFiles>,
    writable: bool,
    device: Option<Arc<dyn Device>>,
    ended: Notify,
}

impl Context {
    /// The state of a worker that has no connection yet.
    pub fn new(config: &BackendConfig, store: Arc<Store>, meter: Arc<Meter>) -> Rc<Context> {
        Context::with_device(config, store, meter, None)
    }

    /// As [`Context::new`], with a device for the records of connections.
    pub fn with_device(
        config: &BackendConfig,
        store: Arc<Store>,
        meter: Arc<Meter>,
        device: Option<Arc<dyn Device>>,
    ) -> Rc<Context> {
        Rc::new(Context {
            store,
            meter,
            gate: Gate::default(),
            clock: Clock::default(),
            limits: Cell::new(config.limits()),
            files: RefCell::new(OpenFiles::new(config.open_files_max)),
            writable: config.writable,
            device,
            ended: Notify::new(),
        })
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        self.limits.get()
    }

    /// Takes over what a reload may change.
    pub fn reload(&self, config: &BackendConfig) {
        self.limits.set(config.limits());
    }

    /// What seals and opens the records of connections, where that is not software.
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.clone()
    }

    /// Whether objects may be changed.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// The object a request's path names.
    ///
    /// # Errors
    /// The path is no name, or the store has no such object.
    pub fn object(&self, path: &str) -> Result<Rc<OpenObject>, LookupError> {
        self.files.borrow_mut().get(&self.store, path, Instant::now())
    }

    /// Closes objects nobody asked for lately.
    pub fn expire_files(&self, older_than: Duration) {
        self.files.borrow_mut().expire(Instant::now(), older_than);
    }

    /// Waits until the worker has no connection left.
    pub async fn idle(&self) {
        while self.gate.sessions() > 0 {
            self.ended.notified().await;
        }
    }

    pub(crate) fn session_ended(&self) {
        if self.gate.sessions() == 0 {
            self.ended.notify_one();
        }
    }
}
