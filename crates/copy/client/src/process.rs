//! The service in this process.

use std::io;
use std::sync::Arc;

use unlade_copy_kernels::model::{Clock, Paced};
use unlade_copy_kernels::{OwnMemory, Space};
use unlade_copy_service::{AttachError, Attachment, Config, Counts, Devices, Scenario};

use crate::fork::{self, OfProcess};

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Bad addresses could not be caught.
    #[error("the copy service cannot catch bad addresses: {0}")]
    Guard(#[from] unlade_copy_kernels::guard::InstallError),
    /// The threads.
    #[error(transparent)]
    Service(#[from] unlade_copy_service::StartError),
    /// A child after fork(2) could wait for threads that it does not have.
    #[error("the copy service cannot be told of forks: {0}; is there no memory left?")]
    Forks(#[source] io::Error),
}

/// Threads of this process that copy for it; they end with this value.
///
/// A child after fork(2) does not have them. There every [`Copier`](crate::Copier) of the parent's
/// copies at once; what was pending at the fork is copied by whoever waits for it, and handlers of
/// it run in the parent only, as sends and receives are made there only (in the child they end with
/// [`TaskFailure::CANCELLED`](crate::TaskFailure::CANCELLED)). The value need not be dropped there,
/// and a child may start a service of its own. Not for children by vfork(2) or a bare clone(2), nor
/// for handlers of signals.
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

    /// Starts a service that copies with these devices beside the processor, whatever `config`
    /// says.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_beside(config: Config, devices: Devices) -> Result<Service, StartError> {
        let start = |config| unlade_copy_service::Service::start_with(config, devices);
        Service::start_with(config, start, |memory| memory)
    }

    /// As [`Service::start_beside`], with copies by the processor in the time of a model, at
    /// `bytes_per_us`: for what is to be known of devices that are not there.
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
        // Before there is a thread that a fork could lose.
        fork::watch().map_err(StartError::Forks)?;
        let guard = unlade_copy_kernels::guard::install()?;
        // SAFETY: copies get into a queue of this service by `Copier::submit` only, whose callers
        // promise just that.
        let memory = wrap(Arc::new(unsafe { OwnMemory::new(guard) }));
        Ok(Service { service: OfProcess::new(start(config)?), memory })
    }

    /// A new client.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(&self) -> Result<Attachment, AttachError> {
        self.attach_weighted(1)
    }

    /// A new client that gets `weight` times as many bytes copied as one of weight 1, where both
    /// want more than there is.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_weighted(&self, weight: u32) -> Result<Attachment, AttachError> {
        if self.service.is_orphan() {
            return Err(AttachError::Stopping);
        }
        self.service.attach(Arc::clone(&self.memory), weight)
    }

    /// As [`Service::attach_weighted`], with a queue for so many tasks: a power of two, 16 to 4096.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_with(&self, weight: u32, slots: u32) -> Result<Attachment, AttachError> {
        if self.service.is_orphan() {
            return Err(AttachError::Stopping);
        }
        self.service.attach_with(Arc::clone(&self.memory) as _, weight, slots)
    }

    /// Keeps the threads awake while the value lives; see [`unlade_copy_service::Service::scenario`].
    pub fn scenario(&self) -> Scenario {
        self.service.scenario()
    }

    /// How many threads run.
    pub fn threads(&self) -> usize {
        self.service.threads()
    }

    /// What the service has done.
    pub fn counts(&self) -> Counts {
        self.service.counts()
    }
}
