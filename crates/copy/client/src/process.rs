//! The copy service in this process.

use std::io;
use std::sync::Arc;

use unlade_copy_kernels::model::{Clock, Paced};
use unlade_copy_kernels::{OwnMemory, Space};
use unlade_copy_service::{
    AttachError, Attachment, Config, Counts, Devices, Group, Scenario, Share,
};

use crate::fork::{self, OfProcess};

/// Reason why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Bad addresses could not be caught.
    #[error("the copy service cannot catch bad addresses: {0}")]
    Guard(#[from] unlade_copy_kernels::guard::InstallError),
    /// The threads of the service do not start.
    #[error(transparent)]
    Service(#[from] unlade_copy_service::StartError),
    /// Forks cannot be observed. A child could then wait for threads that it does not have.
    #[error("the copy service cannot be told of forks: {0}; is there no memory left?")]
    Forks(#[source] io::Error),
}

/// Threads that copy for this process. They end when this value is dropped.
///
/// A child after fork(2) does not have these threads. There every [`Copier`](crate::Copier) of the
/// parent copies synchronously, and the waiter makes the copies that were pending at the fork.
/// Handlers, sends and receives of the parent's tasks run in the parent only: in the child,
/// pending sends and receives end with [`TaskFailure::CANCELLED`](crate::TaskFailure::CANCELLED).
/// The value need not be dropped in the child, and the child may start its own service. Children
/// by vfork(2) or a bare clone(2), and signal handlers, must not use this type.
pub struct Service {
    service: OfProcess<unlade_copy_service::Service>,
    memory: Arc<dyn Space>,
}

impl Service {
    /// Starts a service.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Service, StartError> {
        Service::start_with(config, unlade_copy_service::Service::start, |memory| memory)
    }

    /// Starts a service that copies with these devices in addition to the processor, whatever
    /// `config` selects.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_beside(config: Config, devices: Devices) -> Result<Service, StartError> {
        let start = |config| unlade_copy_service::Service::start_with(config, devices);
        Service::start_with(config, start, |memory| memory)
    }

    /// As [`Service::start_beside`], with copies by the processor in simulated time, at
    /// `bytes_per_us`: to model devices that this machine does not have.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_paced(
        config: Config,
        devices: Devices,
        clock: &Clock,
        bytes_per_us: u64,
    ) -> Result<Service, StartError> {
        let start = |config| unlade_copy_service::Service::start_with(config, devices);
        let pace = |memory| Arc::new(Paced::new(memory, clock, 0, bytes_per_us)) as Arc<dyn Space>;
        Service::start_with(config, start, pace)
    }

    fn start_with(
        config: Config,
        start: impl FnOnce(
            Config,
        )
            -> Result<unlade_copy_service::Service, unlade_copy_service::StartError>,
        wrap: impl FnOnce(Arc<dyn Space>) -> Arc<dyn Space>,
    ) -> Result<Service, StartError> {
        // Observe forks before the first thread starts.
        fork::watch().map_err(StartError::Forks)?;
        let guard = unlade_copy_kernels::guard::install()?;
        // SAFETY: copies enter a queue of this service only through `Copier::submit`, whose
        // callers promise exactly this.
        let memory = wrap(Arc::new(unsafe { OwnMemory::new(guard) }));
        Ok(Service { service: OfProcess::new(start(config)?), memory })
    }

    /// Attaches a new client.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(&self) -> Result<Attachment, AttachError> {
        self.attach_weighted(1)
    }

    /// Attaches a new client with a weight. Under contention it gets `weight` times as many bytes
    /// copied as a client of weight 1.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_weighted(&self, weight: u32) -> Result<Attachment, AttachError> {
        if self.service.is_orphan() {
            return Err(AttachError::Stopping);
        }
        self.service.attach(Arc::clone(&self.memory), weight)
    }

    /// As [`Service::attach_weighted`], with a queue of `slots` tasks: a power of two, 16 to 4096.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_with(&self, weight: u32, slots: u32) -> Result<Attachment, AttachError> {
        if self.service.is_orphan() {
            return Err(AttachError::Stopping);
        }
        let share = Share::whole(self.service.group(weight));
        self.service.attach_with(Arc::clone(&self.memory) as _, share, slots)
    }

    /// Creates a group for clients that share a weight: under contention they get together `weight`
    /// times as many bytes copied as a client of weight 1, however many they are.
    pub fn group(&self, weight: u32) -> Group {
        self.service.group(weight)
    }

    /// As [`Service::attach`], for a client of a group.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_in(&self, group: &Group) -> Result<Attachment, AttachError> {
        if self.service.is_orphan() {
            return Err(AttachError::Stopping);
        }
        self.service.attach_to(Arc::clone(&self.memory), Share::whole(group.clone()))
    }

    /// Keeps the threads awake while the returned value lives; see
    /// [`unlade_copy_service::Service::scenario`].
    pub fn scenario(&self) -> Scenario {
        self.service.scenario()
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.service.threads()
    }

    /// Counters of the service.
    pub fn counts(&self) -> Counts {
        self.service.counts()
    }
}
