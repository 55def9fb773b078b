//! The service in this process.

use std::sync::Arc;

use copyd::{AttachError, Attachment, Config, Counts, Scenario};
use copyunit::OwnMemory;

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Bad addresses could not be caught.
    #[error("the copy service cannot catch bad addresses: {0}")]
    Guard(#[from] copyunit::guard::InstallError),
    /// The threads.
    #[error(transparent)]
    Service(#[from] copyd::StartError),
}

/// Threads of this process that copy for it; they end with this value.
pub struct Service {
    service: copyd::Service,
    memory: Arc<OwnMemory>,
}

impl Service {
    /// Starts a service.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Service, StartError> {
        let guard = copyunit::guard::install()?;
        // SAFETY: copies get into a queue of this service by `Copier::submit` only, whose callers
        // promise just that.
        let memory = Arc::new(unsafe { OwnMemory::new(guard) });
        Ok(Service { service: copyd::Service::start(config)?, memory })
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
        self.service.attach(Arc::clone(&self.memory) as _, weight)
    }

    /// Keeps the threads awake while the value lives; see [`copyd::Service::scenario`].
    pub fn scenario(&self) -> Scenario {
        self.service.scenario()
    }

    /// What the service has done.
    pub fn counts(&self) -> Counts {
        self.service.counts()
    }
}
