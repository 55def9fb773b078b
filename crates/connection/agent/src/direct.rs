//! Direct return: the attached programs, their sweeps, and their counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use unlade_metrics::Meter;
use unlade_runtime::{Phase, Watch, ticker};
use unlade_steering::SteerError;
use unlade_steering::direct::DirectReturn;

use crate::config::DirectConfig;
use crate::error::AgentError;
use crate::report::Reported;
use crate::secret::Secret;

/// Number of sweeps in the time after which an entry is idle.
const SWEEPS: u32 = 4;

/// The attached programs and the counts that the meter has.
#[derive(Debug)]
struct Attached {
    direct: DirectReturn,
    reported: Reported,
}

/// Direct return, shared with the thread of the admin endpoint.
#[derive(Debug)]
pub(crate) struct Direct {
    interface: String,
    attached: Mutex<Attached>,
    meter: Arc<Meter>,
}

impl Direct {
    /// Attaches the programs.
    ///
    /// # Errors
    /// [`AgentError::Steer`].
    pub(crate) fn open(
        config: &DirectConfig,
        secret: Secret,
        meter: Arc<Meter>,
    ) -> Result<Direct, AgentError> {
        let interface = config.interface.clone();
        let direct = DirectReturn::open(&interface, config.rules_port, config.flows_max)
            .map_err(|error| steer(&interface, error))?;
        let attached = Mutex::new(Attached { direct, reported: Reported::default() });
        let direct = Direct { interface, attached, meter };
        // An earlier agent's entries are gone: without a floor, its datagrams would be new again.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let floor = since.saturating_sub(config.idle).as_nanos() as u64;
        direct.change(|attached| {
            secret.keys().try_for_each(|key| attached.direct.raise_floor(key.number, floor))
        })?;
        direct.set_secret(secret)?;
        Ok(direct)
    }

    fn lock(&self) -> MutexGuard<'_, Attached> {
        // A panic leaves the programs and the counts consistent: every change is one system call.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Attached) -> Result<(), SteerError>,
    ) -> Result<(), AgentError> {
        change(&mut self.lock()).map_err(|error| steer(&self.interface, error))
    }

    fn set_secret(&self, secret: Secret) -> Result<(), AgentError> {
        self.change(|attached| secret.keys().try_for_each(|key| attached.direct.set_key(&key)))
    }

    fn sweep(&self, idle: Duration) -> Result<(), AgentError> {
        self.change(|attached| attached.direct.sweep(idle))
    }

    /// Adds the counts of the programs to the meter.
    ///
    /// # Errors
    /// [`AgentError::Steer`].
    pub(crate) fn report(&self) -> Result<(), AgentError> {
        self.change(|Attached { direct, reported }| reported.add_to(&self.meter, direct))
    }

    /// Removes idle entries and applies new secrets, until the drain.
    ///
    /// # Errors
    /// [`AgentError::Steer`].
    pub(crate) async fn tend(
        &self,
        idle: Duration,
        mut watch: Watch<Option<Secret>>,
    ) -> Result<(), AgentError> {
        let mut drain = watch.clone();
        let mut sweeps = ticker::every(idle / SWEEPS);
        loop {
            tokio::select! {
                () = drain.reached(Phase::Draining) => return Ok(()),
                secret = watch.reloaded() => {
                    if let Some(secret) = *secret {
                        self.set_secret(secret)?;
                        tracing::info!("the key file is read again");
                    }
                }
                _ = sweeps.tick() => self.sweep(idle)?,
            }
        }
    }
}

fn steer(interface: &str, error: SteerError) -> AgentError {
    AgentError::Steer { interface: interface.to_owned(), source: Box::new(error) }
}
