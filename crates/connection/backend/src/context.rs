//! State that the connections of one worker share.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use unlade_metrics::Meter;
use unlade_tls::device::Device;

use crate::clock::Clock;
use crate::config::{BackendConfig, Limits};
use crate::drain::Gate;
use crate::objects::Objects;
use crate::store::Store;
use crate::upstream::pool::Upstreams;

/// The component that answers requests.
#[derive(Clone, Debug)]
pub enum Service {
    /// The object server of this process.
    Objects(Rc<Objects>),
    /// A local server, to which requests are forwarded.
    Upstream(Rc<Upstreams>),
}

/// State of one worker. Only the meter, the device and the store are shared between threads.
#[derive(Debug)]
pub struct Context {
    /// The counters.
    pub meter: Arc<Meter>,
    /// Drain state of the worker.
    pub gate: Gate,
    /// The clock of Date fields.
    pub clock: Clock,
    limits: Cell<Limits>,
    service: Service,
    device: Option<Arc<dyn Device>>,
    ended: Notify,
}

impl Context {
    /// Creates the state of a worker of the object server, without connections.
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
        let objects = Objects::new(store, config.open_files_max, config.writable);
        let service = Service::Objects(Rc::new(objects));
        Context::with_service(config.limits(), service, meter, device)
    }

    /// Creates the state of a worker of any service, without connections.
    pub fn with_service(
        limits: Limits,
        service: Service,
        meter: Arc<Meter>,
        device: Option<Arc<dyn Device>>,
    ) -> Rc<Context> {
        Rc::new(Context {
            meter,
            gate: Gate::default(),
            clock: Clock::default(),
            limits: Cell::new(limits),
            service,
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

    /// Returns the component that answers requests.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Returns true if objects may be changed.
    pub fn writable(&self) -> bool {
        matches!(&self.service, Service::Objects(objects) if objects.writable())
    }

    /// Closes objects last checked at least `older_than` ago, and idle connections to a local server
    /// whose time is over. To be called from time to time.
    pub fn expire(&self, older_than: Duration) {
        match &self.service {
            Service::Objects(objects) => objects.expire(older_than),
            Service::Upstream(upstreams) => upstreams.sweep(tokio::time::Instant::now()),
        }
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
