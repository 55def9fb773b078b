//! The process: one control thread for the socket and all sessions, the threads that copy, and
//! their end.
//!
//! On SIGTERM nobody is accepted any more, each thread ends after the copy that it is at, and then
//! the sessions close: nothing is claimed at that time, and clients make what is left themselves.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use unlade_copy_kernels::Guard;
use unlade_copy_kernels::guard::{self, InstallError};
use unlade_metrics::Meter;
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminError, AdminServer, Answer, Health, Routes};
use unlade_runtime::{Control, Ended, Phase, Watch, WorkersConfig, WorkersError};

use crate::counters::Counters;
use crate::daemon::config::{ConfigError, DaemonConfig};
use crate::daemon::listen::{BindError, Listening, is_allowed};
use crate::daemon::message::{Refusal, Reply};
use crate::daemon::metrics::{self, Sessions, add};
use crate::daemon::session::{self, Context};
use crate::daemon::socket;
use crate::service::{Service, StartError};

/// Pause after a failed accept (descriptors exhausted), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the threads are looked after.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the threads may take to end; each is at one copy.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a daemon cannot start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The admin endpoint.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The log.
    #[error(transparent)]
    Log(#[from] unlade_runtime::logs::LogError),
    /// Bad addresses could not be caught.
    #[error("the copy daemon cannot catch bad addresses: {0}")]
    Guard(#[from] InstallError),
    /// The threads that copy.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The control thread.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// The system's.
    #[error("the copy daemon's socket cannot be watched: {0}")]
    Watch(std::io::Error),
    /// Our own mistake: what it had claimed nobody else can take while the process lives.
    #[error("a thread that copies has panicked; restart the copy daemon, and report this")]
    Broken,
}

/// A daemon whose socket is bound and whose threads run: what can fail for the operator's sake
/// has not.
pub struct Daemon {
    control: Control<DaemonConfig>,
    shared: Arc<Shared>,
    admin: Option<AdminServer>,
}

/// What the control thread is given.
struct Shared {
    /// Taken by it.
    parts: Mutex<Option<(Listening, Service)>>,
    sessions: Arc<Sessions>,
    guard: Guard,
    epoch: u64,
}

impl Daemon {
    /// Binds the socket and starts the threads.
    ///
    /// # Errors
    /// The first thing that cannot be had.
    pub fn bind(config: DaemonConfig) -> Result<Daemon, DaemonError> {
        config.check()?;
        raise_descriptor_limit();
        let guard = guard::install()?;
        let listening = Listening::bind(&config.socket, config.mode)?;
        let service = Service::start(config.service())?;
        let sessions = Arc::new(Sessions::default());
        let control = Control::new(config);
        let admin = start_admin(&control, &sessions, service.counters())?;
        let config = control.config();
        tracing::info!(socket = %config.socket.display(), "copying for others");
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch = since.map_or(0, |since| since.as_nanos() as u64);
        let parts = Mutex::new(Some((listening, service)));
        Ok(Daemon { control, shared: Arc::new(Shared { parts, sessions, guard, epoch }), admin })
    }

    /// Where the admin endpoint is.
    pub fn admin(&self) -> Option<std::net::SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// Ends or reloads the daemon from elsewhere.
    pub fn control(&self) -> Control<DaemonConfig> {
        self.control.clone()
    }

    /// Serves until drained or stopped. `reload` is asked for a configuration on SIGHUP; `signals`
    /// says whether the process's signals are obeyed at all.
    ///
    /// # Errors
    /// What ended it.
    pub fn run(
        self,
        signals: bool,
        mut reload: impl FnMut() -> Result<DaemonConfig, ConfigError>,
    ) -> Result<Ended, DaemonError> {
        let running = self.control.config();
        let drain_timeout = DRAIN_TIMEOUT;
        let workers =
            WorkersConfig { name: "copyd-control", threads: 1, pin: false, drain_timeout, signals };
        let checked_reload = || {
            let config = reload()?;
            config.check_reload(&running)?;
            Ok::<DaemonConfig, ConfigError>(config)
        };
        let shared = Arc::clone(&self.shared);
        let main = move |_, watch| control(Arc::clone(&shared), watch);
        Ok(unlade_runtime::run_workers(&workers, &self.control, checked_reload, main)?)
    }
}

fn start_admin(
    control: &Control<DaemonConfig>,
    sessions: &Arc<Sessions>,
    counters: Arc<Counters>,
) -> Result<Option<AdminServer>, AdminError> {
    let Some(address) = control.config().admin else { return Ok(None) };
    let watch = control.watch();
    let health = move || match watch.phase() {
        Phase::Running => Health::Ok,
        Phase::Draining | Phase::Stopping => Health::Draining,
    };
    let sessions = Arc::clone(sessions);
    let figures = move |_: Option<&str>| Answer {
        content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ..Answer::text(metrics::render(&sessions, &counters.read()))
    };
    let version = env!("CARGO_PKG_VERSION");
    let routes = Routes::new(Arc::new(Meter::default()), health, "unlade copyd", version);
    admin::start(address, routes.route("/metrics", figures)).map(Some)
}

/// The control thread's life.
async fn control(shared: Arc<Shared>, mut watch: Watch<DaemonConfig>) -> Result<(), DaemonError> {
    let parts = shared.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((listening, service)) = parts else { return Ok(()) };
    let context = Rc::new(Context {
        service: RefCell::new(Some(service)),
        config: RefCell::new(watch.config()),
        sessions: Arc::clone(&shared.sessions),
        guard: shared.guard,
        epoch: shared.epoch,
    });
    let mut drain = watch.clone();
    let ended = tokio::select! {
        ended = accept(&listening, &context) => ended,
        ended = tend(&context, &mut watch) => ended,
        () = drain.reached(Phase::Draining) => Ok(()),
    };
    drop(listening);
    // Waits for the threads: when the sessions close, after this, nothing is claimed.
    drop(context.service.take());
    ended
}

/// Takes over reloads, and looks after the threads.
async fn tend(context: &Context, watch: &mut Watch<DaemonConfig>) -> Result<(), DaemonError> {
    let mut look = unlade_runtime::ticker::every(LOOK_EVERY);
    loop {
        tokio::select! {
            config = watch.reloaded() => {
                context.config.replace(config);
            }
            _ = look.tick() => {
                if !context.service.borrow().as_ref().is_none_or(Service::is_whole) {
                    return Err(DaemonError::Broken);
                }
            }
        }
    }
}

/// Accepts clients, each a task of this thread.
async fn accept(listening: &Listening, context: &Rc<Context>) -> Result<(), DaemonError> {
    let socket = socket::watch(Arc::clone(&listening.socket)).map_err(DaemonError::Watch)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let mut ready = socket.readable().await.map_err(DaemonError::Watch)?;
        match ready.try_io(|socket| Ok(accept_with(socket.get_ref(), flags)?)) {
            Ok(Ok(client)) => welcome(client, context),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a client is not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Err(_) => {}
        }
        tokio::task::yield_now().await;
    }
}

/// Begins a session, if there may be one.
fn welcome(client: OwnedFd, context: &Rc<Context>) {
    add(&context.sessions.accepted, 1);
    let Ok(peer) = socket_peercred(&client) else { return };
    let config = context.config.borrow();
    let open = context.sessions.open.load(std::sync::atomic::Ordering::Relaxed);
    let refusal = if !is_allowed(&config.allow, &peer) {
        Some(Refusal::NotAllowed)
    } else {
        (open >= config.clients_max as u64).then_some(Refusal::Full)
    };
    match refusal {
        None => {
            tokio::task::spawn_local(session::run(client, peer, Rc::clone(context)));
        }
        Some(why) => {
            tracing::info!(pid = peer.pid.as_raw_nonzero(), %why, "a client is refused");
            add(&context.sessions.refused, 1);
            // It may be gone.
            let _ = socket::send(client.as_fd(), Reply::Refused(why).encode().as_slice(), &[]);
        }
    }
}

/// A client takes three descriptors: takes as many as the process may.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files stays as it is");
        }
    }
}

/// Runs a daemon by `config` until SIGTERM or SIGINT. SIGHUP keeps `config`.
///
/// # Errors
/// It cannot start, or a thread failed.
pub fn run(config: DaemonConfig) -> Result<(), DaemonError> {
    unlade_runtime::logs::init(&config.log)?;
    let same = config.clone();
    Daemon::bind(config)?.run(true, move || Ok(same.clone())).map(report)
}

/// Runs a daemon by the configuration in `path`, read again on SIGHUP.
///
/// # Errors
/// The configuration, as for [`run`] otherwise.
pub fn run_from(path: &Path) -> Result<(), DaemonError> {
    let config = DaemonConfig::load(path)?;
    unlade_runtime::logs::init(&config.log)?;
    Daemon::bind(config)?.run(true, || DaemonConfig::load(path)).map(report)
}

fn report(ended: Ended) {
    match ended {
        Ended::Finished => tracing::info!("drained"),
        Ended::Dropped => tracing::warn!("stopped before the threads had ended"),
    }
}
