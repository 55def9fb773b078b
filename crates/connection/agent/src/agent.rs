//! Start, sweeps, SIGHUP and end of the agent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use unlade_metrics::{Meter, Role};
use unlade_runtime::admin::{self, AdminError, AdminServer, Answer, Health, Routes};
use unlade_runtime::{Control, Phase, Watch, WorkersConfig, ticker};
use unlade_steering::SteerError;
use unlade_steering::direct::DirectReturn;

use crate::config::AgentConfig;
use crate::error::AgentError;
use crate::report::Reported;
use crate::secret::Secret;

/// Number of sweeps in the time after which an entry is idle.
const SWEEPS: u32 = 4;
/// Nothing is drained; this limits the end of the thread.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The attached programs and the counts that the meter has.
#[derive(Debug)]
struct Attached {
    direct: DirectReturn,
    reported: Reported,
}

/// State of the agent, shared with the thread of the admin endpoint.
#[derive(Debug)]
struct Agent {
    interface: String,
    attached: Mutex<Attached>,
    meter: Arc<Meter>,
}

/// Reads the key file of a configuration.
///
/// # Errors
/// Those of [`Secret::read`].
pub fn check(config: &AgentConfig) -> Result<(), AgentError> {
    Secret::read(&config.key_file).map(drop)
}

/// Runs the agent until SIGTERM or SIGINT. SIGHUP reads the key file again.
///
/// # Errors
/// The key file, the interface or the admin address; later, the error that ended the agent.
pub fn run(config: &AgentConfig) -> Result<(), AgentError> {
    let control = Control::new(Secret::read(&config.key_file)?);
    let agent = Arc::new(Agent::open(config, *control.config())?);
    let admin = start_admin(config, &control, &agent)?;
    tracing::info!(interface = %config.interface, port = config.rules_port, "taking rules");
    let workers = WorkersConfig {
        name: "agent",
        threads: 1,
        pin: false,
        drain_timeout: DRAIN_TIMEOUT,
        signals: true,
    };
    let reload = || Secret::read(&config.key_file);
    let (shared, idle) = (Arc::clone(&agent), config.idle);
    let main = move |_, watch| tend(Arc::clone(&shared), idle, watch);
    unlade_runtime::run_workers(&workers, &control, reload, main)?;
    drop(admin);
    agent.report()
}

impl Agent {
    fn open(config: &AgentConfig, secret: Secret) -> Result<Agent, AgentError> {
        let interface = config.interface.clone();
        let direct = DirectReturn::open(&interface, config.rules_port, config.flows_max)
            .map_err(|error| steer(&interface, error))?;
        let attached = Mutex::new(Attached { direct, reported: Reported::default() });
        let meter = Arc::new(Meter::for_role(Role::Agent));
        let agent = Agent { interface, attached, meter };
        // An earlier agent's entries are gone: without a floor, its datagrams would be new again.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let floor = since.saturating_sub(config.idle).as_nanos() as u64;
        agent.change(|attached| {
            secret.keys().try_for_each(|key| attached.direct.raise_floor(key.number, floor))
        })?;
        agent.set_secret(secret)?;
        Ok(agent)
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

    fn report(&self) -> Result<(), AgentError> {
        self.change(|Attached { direct, reported }| reported.add_to(&self.meter, direct))
    }
}

fn steer(interface: &str, error: SteerError) -> AgentError {
    AgentError::Steer { interface: interface.to_owned(), source: Box::new(error) }
}

fn start_admin(
    config: &AgentConfig,
    control: &Control<Secret>,
    agent: &Arc<Agent>,
) -> Result<Option<AdminServer>, AdminError> {
    let Some(address) = config.admin else { return Ok(None) };
    let watch = control.watch();
    let health = move || Health::from(watch.phase());
    let meter = Arc::clone(&agent.meter);
    let agent = Arc::clone(agent);
    let figures = move |_: Option<&str>| match agent.report() {
        Ok(()) => {
            Answer { content_type: admin::METRICS_TYPE, ..Answer::text(agent.meter.render()) }
        }
        Err(error) => Answer::text(format!("{error}\n")).with_status(500),
    };
    let routes = Routes::new(meter, health, "unlade agent", env!("CARGO_PKG_VERSION"));
    admin::start(address, routes.route("/metrics", figures)).map(Some)
}

/// Removes idle entries and applies new secrets, until the end.
async fn tend(
    agent: Arc<Agent>,
    idle: Duration,
    mut watch: Watch<Secret>,
) -> Result<(), AgentError> {
    let mut drain = watch.clone();
    let mut sweeps = ticker::every(idle / SWEEPS);
    loop {
        tokio::select! {
            () = drain.reached(Phase::Draining) => return Ok(()),
            secret = watch.reloaded() => {
                agent.set_secret(*secret)?;
                tracing::info!("the key file is read again");
            }
            _ = sweeps.tick() => agent.sweep(idle)?,
        }
    }
}
