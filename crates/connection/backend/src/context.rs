//! State that the connections of one worker share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use unlade_metrics::Meter;
use unlade_tls::device::Device;

use crate::cache::{LookupError, OpenFiles, OpenObject};
use crate::clock::Clock;
use crate::config::{BackendConfig, Limits};
use crate::drain::Gate;
use crate::store::Store;

/// State of one worker. Only the store, the meter and the device are shared between threads.
#[derive(Debug)]
pub struct Context {
    /// The objects.
    pub store: Arc<Store>,
    /// The counters.
    pub meter: Arc<Meter>,
    /// Drain state of the worker.
    pub gate: Gate,
    /// The clock of Date fields.
    pub clock: Clock,
    limits: Cell<Limits>,
    files: RefCell<OpenFiles>,
    writable: bool,
    device: Option<Arc<dyn Device>>,
    ended: Notify,
}

impl Context {
    /// Creates the state of a worker without connections.
    pub fn new(config: &BackendConfig, store: Arc<Store>, meter: Arc<Meter>) -> Rc<Context> {
        Context::with_device(config, store, meter, None)
    }

    /// Like [`Context::new`], with a device for TLS records.
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

    /// Returns the current limits.
    pub fn limits(&self) -> Limits {
        self.limits.get()
    }

    /// Applies the settings that a reload may change.
    pub fn reload(&self, config: &BackendConfig) {
        self.limits.set(config.limits());
    }

    /// Returns the device that encrypts and decrypts TLS records; None for software.
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.clone()
    }

    /// Returns true if objects may be changed.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Returns the object that a request's path names.
    ///
    /// # Errors
    /// The path is not a valid name, or the store has no such object.
    pub fn object(&self, path: &str) -> Result<Rc<OpenObject>, LookupError> {
        self.files.borrow_mut().get(&self.store, path, Instant::now())
    }

    /// Closes objects last checked at least `older_than` ago.
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
