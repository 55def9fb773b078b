//! Start, SIGHUP and end of the agent.

use std::sync::Arc;
use std::time::Duration;

use unlade_backend::Sidecar;
use unlade_metrics::{Meter, Role};
use unlade_runtime::admin::{self, AdminError, AdminServer, Answer, Health, Routes};
use unlade_runtime::{Control, Ended, Phase, Watch, WorkerInfo, WorkersConfig};

use crate::config::{AgentConfig, DirectConfig};
use crate::direct::Direct;
use crate::error::AgentError;
use crate::secret::Secret;

/// Without a sidecar nothing is drained; this limits the end of the thread.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The tasks of an agent.
#[derive(Clone, Debug)]
struct Tasks {
    direct: Option<Arc<Direct>>,
    sidecar: Option<Sidecar>,
    /// Time after which an entry of direct return is idle.
    idle: Duration,
}

/// Checks the configuration, and reads its files.
///
/// # Errors
/// Those of [`AgentConfig::check`], of [`Secret::read`], and of [`Sidecar::check`].
pub fn check(config: &AgentConfig) -> Result<(), AgentError> {
    config.check()?;
    read_secret(config.direct()?.as_ref())?;
    if let Some(sidecar) = &config.sidecar {
        Sidecar::check(sidecar)?;
    }
    Ok(())
}

/// Runs the agent until SIGTERM or SIGINT. SIGHUP reads the key file, and the certificates of the
/// sidecar, again.
///
/// # Errors
/// The configuration, the key file, the interface, the sidecar or the admin address; later, the
/// error that ended the agent.
pub fn run(config: &AgentConfig) -> Result<(), AgentError> {
    config.check()?;
    let direct = config.direct()?;
    let control = Control::new(read_secret(direct.as_ref())?);
    let role = if config.sidecar.is_some() { Role::Sidecar } else { Role::Agent };
    let meter = Arc::new(Meter::for_role(role));
    let tasks = open(config, direct.as_ref(), *control.config(), &meter)?;
    let admin = start_admin(config, &control, &tasks, meter)?;
    let workers = WorkersConfig {
        name: "agent",
        threads: config.sidecar.as_ref().map_or(1, |sidecar| sidecar.workers),
        pin: false,
        drain_timeout: config.sidecar.as_ref().map_or(DRAIN_TIMEOUT, |s| s.drain_timeout),
        signals: true,
    };
    let reloaded = tasks.clone();
    let reload = move || {
        let secret = read_secret(direct.as_ref())?;
        if let Some(sidecar) = &reloaded.sidecar {
            sidecar.reload_trust()?;
        }
        Ok::<_, AgentError>(secret)
    };
    let shared = tasks.clone();
    let main = move |info, watch| work(shared.clone(), info, watch);
    let ended = unlade_runtime::run_workers(&workers, &control, reload, main)?;
    drop(admin);
    if ended == Ended::Dropped {
        tracing::warn!("stopped with requests in flight");
    }
    tasks.report()
}

/// Reads the key file of direct return.
fn read_secret(direct: Option<&DirectConfig>) -> Result<Option<Secret>, AgentError> {
    direct.map(|direct| Secret::read(&direct.key_file)).transpose()
}

fn open(
    config: &AgentConfig,
    direct: Option<&DirectConfig>,
    secret: Option<Secret>,
    meter: &Arc<Meter>,
) -> Result<Tasks, AgentError> {
    let attached = match direct.zip(secret) {
        Some((direct, secret)) => Some(Direct::open(direct, secret, Arc::clone(meter))?),
        None => None,
    };
    let sidecar = match &config.sidecar {
        Some(sidecar) => Some(Sidecar::open(sidecar, Arc::clone(meter))?),
        None => None,
    };
    if let Some(direct) = direct {
        tracing::info!(interface = %direct.interface, port = direct.rules_port, "taking rules");
    }
    Ok(Tasks { direct: attached.map(Arc::new), sidecar, idle: config.idle })
}

impl Tasks {
    /// Adds the counts of the programs to the meter.
    fn report(&self) -> Result<(), AgentError> {
        self.direct.as_ref().map_or(Ok(()), |direct| direct.report())
    }
}

/// Runs one worker: each serves adopted connections, and the first one tends direct return.
async fn work(
    tasks: Tasks,
    info: WorkerInfo,
    watch: Watch<Option<Secret>>,
) -> Result<(), AgentError> {
    let mut drain = watch.clone();
    let serve = async {
        match &tasks.sidecar {
            Some(sidecar) => {
                let draining = drain.reached(Phase::Draining);
                sidecar.serve(info.index, draining).await.map_err(AgentError::from)
            }
            None => Ok(()),
        }
    };
    let tend = async {
        match &tasks.direct {
            Some(direct) if info.index == 0 => direct.tend(tasks.idle, watch).await,
            _ => Ok(()),
        }
    };
    tokio::try_join!(serve, tend).map(|_| ())
}

fn start_admin(
    config: &AgentConfig,
    control: &Control<Option<Secret>>,
    tasks: &Tasks,
    meter: Arc<Meter>,
) -> Result<Option<AdminServer>, AdminError> {
    let Some(address) = config.admin else { return Ok(None) };
    let watch = control.watch();
    let health = move || Health::from(watch.phase());
    let (tasks, rendered) = (tasks.clone(), Arc::clone(&meter));
    let figures = move |_: Option<&str>| match tasks.report() {
        Ok(()) => Answer { content_type: admin::METRICS_TYPE, ..Answer::text(rendered.render()) },
        Err(error) => Answer::text(format!("{error}\n")).with_status(500),
    };
    let routes = Routes::new(meter, health, "unlade agent", env!("CARGO_PKG_VERSION"));
    admin::start(address, routes.route("/metrics", figures)).map(Some)
}
