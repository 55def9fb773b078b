//! The sidecar: adopts connections beside a local server, and forwards their requests to it.
//!
//! The local server needs no change. It has its own listening socket, for the requests that balancers
//! proxy; the sidecar has none. [`upstream`](crate::upstream) forwards the requests.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use unlade_channel::role::Balancers;
use unlade_channel::trust::ServerTrust;
use unlade_metrics::Meter;

use crate::adopted::{self, Unfinished};
use crate::config::{ConfigError, Limits};
use crate::context::{Context, Service};
use crate::listener::{Handoff, HandoffConfig, HandoffError};
use crate::upstream::config::SidecarConfig;
use crate::upstream::pool::{UpstreamSettings, Upstreams};

/// Interval of the search for idle connections whose time is over.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// Error of setting up a sidecar.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Connections cannot be adopted.
    #[error("[sidecar]: {0}")]
    Handoff(#[from] HandoffError),
}

/// A sidecar whose control channel listens. Each worker thread calls [`Sidecar::serve`].
#[derive(Clone, Debug)]
pub struct Sidecar {
    handoff: Handoff,
    upstream: UpstreamSettings,
    limits: Limits,
    meter: Arc<Meter>,
}

impl Sidecar {
    /// Checks the configuration, and reads its files.
    ///
    /// # Errors
    /// A value outside its range, or a file that cannot be used.
    pub fn check(config: &SidecarConfig) -> Result<(), SidecarError> {
        config.check()?;
        let balancers = Balancers::named(&config.balancers).map_err(HandoffError::from)?;
        ServerTrust::load(&config.trust(), &balancers).map_err(HandoffError::from)?;
        Ok(())
    }

    /// Binds the address of the control channel and attaches the steering programs. `meter` counts.
    ///
    /// # Errors
    /// The first resource that is unavailable.
    pub fn open(config: &SidecarConfig, meter: Arc<Meter>) -> Result<Sidecar, SidecarError> {
        config.check()?;
        let upstream = config.upstream()?;
        let handoff = HandoffConfig {
            address: config.address,
            trust: config.trust(),
            balancers: config.balancers.clone(),
            interface: config.interface.clone(),
            name: config.name.clone(),
            workers: config.workers,
            adoptions_max: config.adoptions_max,
            lease: config.lease,
            write_timeout: config.write_timeout,
        };
        let handoff = Handoff::open(&handoff, Arc::clone(&meter))?;
        tracing::info!(address = %config.address, upstream = %upstream.address, "adopting");
        Ok(Sidecar { handoff, upstream, limits: config.limits(), meter })
    }

    /// Reads the certificates of the control channel again.
    ///
    /// # Errors
    /// [`SidecarError::Handoff`]; the previous certificates stay in force.
    pub fn reload_trust(&self) -> Result<(), SidecarError> {
        Ok(self.handoff.reload_trust().map_err(HandoffError::from)?)
    }

    /// Adopts and serves connections as worker `worker`, counted from 0, until `draining` is ready
    /// and every connection has ended or was given back. Call it as [`Handoff::listen`].
    ///
    /// # Errors
    /// [`SidecarError::Handoff`].
    pub async fn serve(
        &self,
        worker: usize,
        draining: impl Future<Output = ()>,
    ) -> Result<(), SidecarError> {
        let upstreams = Upstreams::new(self.upstream.clone(), Arc::clone(&self.meter));
        let service = Service::Upstream(Rc::new(upstreams));
        let context = Context::with_service(self.limits, service, Arc::clone(&self.meter), None);
        let agent = adopted::start(&self.handoff, worker, &context)?;
        tokio::select! {
            () = draining => {}
            () = expire(&context) => {}
        }
        context.gate.drain();
        agent.drain();
        let unfinished =
            Unfinished { context: Rc::clone(&context), agent: Some(Rc::clone(&agent)) };
        context.idle().await;
        agent.drained().await;
        drop(unfinished);
        Ok(())
    }
}

/// Closes connections to the local server that have been idle for too long, forever.
async fn expire(context: &Context) {
    let mut expire = unlade_runtime::ticker::every(EXPIRE_EVERY);
    loop {
        expire.tick().await;
        context.expire(EXPIRE_EVERY);
    }
}
