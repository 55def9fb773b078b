//! The daemon process: one control thread for the socket and all sessions, the copy threads, and
//! the shutdown.
//!
//! On SIGTERM the daemon stops accepting, each thread ends after its current copy, and then the
//! sessions close. Nothing is claimed at that time, so the clients copy the rest themselves.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
use unlade_copy_kernels::Guard;
use unlade_copy_kernels::guard::{self, InstallError};
use unlade_metrics::Meter;
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminError, AdminServer, Answer, Health, Routes};
use unlade_runtime::{Control, Ended, Phase, Watch, WorkersConfig, WorkersError};

use crate::counters::Counters;
use crate::daemon::closer::{Closer, Connection, Places};
use crate::daemon::config::{ConfigError, DaemonConfig};
use crate::daemon::listen::{BindError, Listening, is_allowed};
use crate::daemon::message::{Refusal, Reply};
use crate::daemon::metrics::{self, Sessions};
use crate::daemon::session::{self, Context};
use crate::daemon::socket;
use crate::daemon::weight::KernelFiles;
use crate::service::{Service, StartError};

/// Pause after a failed accept (no descriptors left), to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval of the checks of the threads.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for the threads to end; each one finishes one copy.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of refused connections that are not closed yet. Beyond it no client is accepted.
const TURNED_AWAY_MAX: usize = 64;

/// Error of the daemon's start or run.
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
    /// The handler for bad addresses cannot be installed.
    #[error("the copy daemon cannot catch bad addresses: {0}")]
    Guard(#[from] InstallError),
    /// The copy threads do not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The control thread fails.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// The socket cannot be watched.
    #[error("the copy daemon's socket cannot be watched: {0}")]
    Watch(std::io::Error),
    /// A copy thread panicked, which is a bug. No other thread can take its claims while the
    /// process lives.
    #[error("a thread that copies has panicked; restart the copy daemon, and report this")]
    Broken,
}

/// A daemon whose socket is bound and whose threads run. All steps that depend on the operator's
/// configuration have succeeded.
pub struct Daemon {
    control: Control<DaemonConfig>,
    shared: Arc<ControlState>,
    admin: Option<AdminServer>,
    counters: Arc<Counters>,
}

/// State that is passed to the control thread.
struct ControlState {
    /// Taken by the control thread.
    parts: Mutex<Option<(Listening, Service)>>,
    sessions: Arc<Sessions>,
    guard: Guard,
    epoch: u64,
    files: KernelFiles,
}

impl Daemon {
    /// Binds the socket and starts the threads.
    ///
    /// # Errors
    /// The first resource that is not available.
    pub fn bind(config: DaemonConfig) -> Result<Daemon, DaemonError> {
        Daemon::bind_with(config, KernelFiles::default())
    }

    /// As [`Daemon::bind`], with the weights of cgroups in other directories.
    ///
    /// # Errors
    /// As for [`Daemon::bind`].
    pub fn bind_with(config: DaemonConfig, files: KernelFiles) -> Result<Daemon, DaemonError> {
        config.check()?;
        // Each client needs four descriptors, and one for each socket that it passes.
        unlade_runtime::limits::raise_descriptor_limit();
        let guard = guard::install()?;
        let listening = Listening::bind(&config.socket, config.mode)?;
        let service = Service::start(config.service())?;
        let sessions = Arc::new(Sessions::default());
        let control = Control::new(config);
        let counters = service.counters();
        let admin = start_admin(&control, &sessions, Arc::clone(&counters))?;
        let config = control.config();
        tracing::info!(socket = %config.socket.display(), "copying for others");
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch = since.map_or(0, |since| since.as_nanos() as u64);
        let parts = Mutex::new(Some((listening, service)));
        Ok(Daemon {
            control,
            shared: Arc::new(ControlState { parts, sessions, guard, epoch, files }),
            admin,
            counters,
        })
    }

    /// Returns the address of the admin endpoint.
    pub fn admin(&self) -> Option<std::net::SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// Returns a handle that ends or reloads the daemon from elsewhere.
    pub fn control(&self) -> Control<DaemonConfig> {
        self.control.clone()
    }

    /// Serves until the daemon is drained or stopped. `reload` returns a new configuration on
    /// SIGHUP; `signals` enables the handling of process signals.
    ///
    /// # Errors
    /// The error that ended the daemon.
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
        let ended = unlade_runtime::run_workers(&workers, &self.control, checked_reload, main)?;
        // Debug builds record the text for a check of the tests.
        if cfg!(debug_assertions) {
            metrics::render(&self.shared.sessions, &self.counters.read());
        }
        Ok(ended)
    }
}

fn start_admin(
    control: &Control<DaemonConfig>,
    sessions: &Arc<Sessions>,
    counters: Arc<Counters>,
) -> Result<Option<AdminServer>, AdminError> {
    let Some(address) = control.config().admin else { return Ok(None) };
    let watch = control.watch();
    let health = move || Health::from(watch.phase());
    let sessions = Arc::clone(sessions);
    let figures = move |_: Option<&str>| Answer {
        content_type: admin::METRICS_TYPE,
        ..Answer::text(metrics::render(&sessions, &counters.read()))
    };
    let version = env!("CARGO_PKG_VERSION");
    let routes = Routes::new(Arc::new(Meter::default()), health, "unlade copyd", version);
    admin::start(address, routes.route("/metrics", figures)).map(Some)
}

/// Runs the control thread.
async fn control(
    shared: Arc<ControlState>,
    mut watch: Watch<DaemonConfig>,
) -> Result<(), DaemonError> {
    let parts = shared.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((listening, service)) = parts else { return Ok(()) };
    let context = Rc::new(Context {
        service: RefCell::new(Some(service)),
        config: RefCell::new(watch.config()),
        sessions: Arc::clone(&shared.sessions),
        guard: shared.guard,
        epoch: shared.epoch,
        files: shared.files.clone(),
        groups: RefCell::default(),
        next_session: Cell::new(0),
        clients: Places::default(),
        turned_away: Places::default(),
    });
    let mut drain = watch.clone();
    let ended = tokio::select! {
        ended = accept(&listening, &context) => ended,
        ended = tend(&context, &mut watch) => ended,
        () = drain.reached(Phase::Draining) => Ok(()),
    };
    // Connections that were not accepted are closed with the socket, and the descriptors in them: that
    // may wait for their clients.
    let socket = Arc::clone(&listening.socket);
    drop(listening);
    let closer = std::thread::Builder::new().name("copyd-closer".to_owned());
    // Without a thread it is closed here.
    let _ = closer.spawn(move || drop(socket));
    // Waits for the threads. The sessions close after this, when nothing is claimed.
    drop(context.service.take());
    ended
}

/// Applies reloads, and checks the threads.
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

/// Accepts clients; each one becomes a task of this thread.
async fn accept(listening: &Listening, context: &Rc<Context>) -> Result<(), DaemonError> {
    let socket = socket::watch(Arc::clone(&listening.socket)).map_err(DaemonError::Watch)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let mut spare = None;
    loop {
        let mut ready = socket.readable().await.map_err(DaemonError::Watch)?;
        // The closer comes first, because nothing else may close what it finds no thread for.
        let closer = match closer(context, &mut spare) {
            Ok(closer) => closer,
            Err(error) => {
                tracing::warn!(%error, "a client is not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match ready.try_io(|socket| Ok(accept_with(socket.get_ref(), flags)?)) {
            Ok(Ok(client)) => welcome(Connection::new(client, &closer), context),
            Ok(Err(error)) => {
                spare = Some(closer);
                tracing::warn!(%error, "a client is not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Err(_) => spare = Some(closer),
        }
        tokio::task::yield_now().await;
    }
}

/// Returns the closer of the next connection; `spare` is one that no connection has got.
fn closer(context: &Context, spare: &mut Option<Arc<Closer>>) -> std::io::Result<Arc<Closer>> {
    if context.turned_away.taken() >= TURNED_AWAY_MAX {
        let why = format!(
            "the close of {TURNED_AWAY_MAX} refused connections waits for their clients; let fewer \
             users connect, by the mode of the socket"
        );
        return Err(std::io::Error::other(why));
    }
    spare.take().map_or_else(|| Closer::start(&context.sessions), Ok)
}

/// Starts a session if the client is permitted and there is room.
fn welcome(client: Connection, context: &Rc<Context>) {
    context.sessions.accepted.add(1);
    let Ok(peer) = socket_peercred(&client) else {
        client.closer().take(&context.turned_away);
        return;
    };
    let config = context.config.borrow();
    let refusal = if !is_allowed(&config.allow, &peer) {
        Some(Refusal::NotAllowed)
    } else {
        (context.clients.taken() >= config.clients_max).then_some(Refusal::Full)
    };
    match refusal {
        None => {
            client.closer().take(&context.clients);
            tokio::task::spawn_local(session::run(client, peer, Rc::clone(context)));
        }
        Some(why) => {
            client.closer().take(&context.turned_away);
            tracing::info!(pid = peer.pid.as_raw_nonzero(), %why, "a client is refused");
            context.sessions.refused.add(1);
            // The client may have closed already.
            let _ = socket::send(client.as_fd(), Reply::Refused(why).encode().as_slice(), &[]);
        }
    }
}

/// Runs a daemon until SIGTERM or SIGINT. On SIGHUP `reload` returns the configuration. The caller
/// has set up the log.
///
/// # Errors
/// [`DaemonError`].
pub fn run(
    config: DaemonConfig,
    reload: impl FnMut() -> Result<DaemonConfig, ConfigError>,
) -> Result<(), DaemonError> {
    Daemon::bind(config)?.run(true, reload).map(report)
}

fn report(ended: Ended) {
    match ended {
        Ended::Finished => tracing::info!("drained"),
        Ended::Dropped => tracing::warn!("stopped before the threads had ended"),
    }
}
