//! The backend process: binds the sockets, runs the workers and drains them.

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use unlade_metrics::{Meter, Role};
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminError, AdminServer, Answer, Health, Routes};
use unlade_runtime::identity::{Identity, IdentityError};
use unlade_runtime::listen;
use unlade_runtime::listen::{ListenError, ListenOptions};
use unlade_runtime::{Control, Ended, Phase, Watch, WorkerInfo, WorkersConfig, WorkersError};
use unlade_tls::device::Device;

use unlade_channel::trust::TrustFiles;

use crate::accept::{self, ConnectionLimit, Listener};
use crate::adopted::{self, Unfinished};
use crate::config::{AgentConfig, BackendConfig, ConfigError, NicConfig};
use crate::context::Context;
use crate::listener::{Handoff, HandoffConfig, HandoffError};
use crate::store::{Store, StoreError};
use crate::tls;

/// Age at which a worker closes an unused object, and the interval of this check.
const EXPIRE_EVERY: Duration = Duration::from_secs(5);

/// Error of starting or running a backend.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin endpoint cannot start.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The objects' directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The certificate or key of `[https]` cannot be used.
    #[error(transparent)]
    Tls(#[from] Box<IdentityError>),
    /// The device for TLS records cannot be attached.
    #[error("[nic]: {0}")]
    Device(Box<dyn Error + Send + Sync>),
    /// `tls = "nic"` in a program without a device.
    #[error("tls = \"nic\": this program has no device; `unlade backend` has one")]
    NoDevice,
    /// The log cannot be initialized.
    #[error(transparent)]
    Log(#[from] unlade_runtime::logs::LogError),
    /// A worker failed.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// Connections cannot be adopted.
    #[error("[agent]: {0}; without the table objects are served, and nothing is adopted")]
    Handoff(#[from] HandoffError),
}

/// A backend whose sockets are bound and whose store is open, so that errors of the configuration
/// are already excluded.
#[derive(Debug)]
pub struct Server {
    control: Control<BackendConfig>,
    store: Arc<Store>,
    meter: Arc<Meter>,
    connection_limit: Arc<ConnectionLimit>,
    listeners: Listeners,
    /// Certificate chain of `[https]`; empty without the table.
    chain: Vec<CertificateDer<'static>>,
    http: SocketAddr,
    https: Option<SocketAddr>,
    admin: Option<AdminServer>,
    handoff: Option<Handoff>,
    device: Option<Arc<dyn Device>>,
}

/// Listening sockets, one of each kind for each worker, which takes them when it starts.
#[derive(Debug, Clone)]
struct Listeners {
    http: Arc<Mutex<Vec<TcpListener>>>,
    https: Arc<Mutex<Vec<TcpListener>>>,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl Listeners {
    /// Takes the listeners of one worker: without TLS, and with.
    fn take(&self) -> Result<(Option<Listener>, Option<Listener>), ListenError> {
        let take = |from: &Mutex<Vec<TcpListener>>, tls: &Option<Arc<rustls::ServerConfig>>| {
            let taken = from.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let taken = taken
                .map(|socket| Ok(Listener { tcp: listen::register(socket)?, tls: tls.clone() }));
            taken.transpose()
        };
        Ok((take(&self.http, &None)?, take(&self.https, &self.tls)?))
    }
}

/// Builds the configuration of adoption from `[agent]` and the limits.
fn handoff_config(config: &BackendConfig, agent: &AgentConfig) -> HandoffConfig {
    let trust = TrustFiles {
        ca: agent.ca.clone(),
        certificate: agent.certificate.clone(),
        key: agent.key.clone(),
    };
    HandoffConfig {
        address: agent.address,
        trust,
        balancers: agent.balancers.clone(),
        interface: agent.interface.clone(),
        name: agent.name.clone(),
        workers: config.workers,
        adoptions_max: config.adoptions_max,
        lease: config.lease,
        write_timeout: config.write_timeout,
    }
}

impl Server {
    /// Binds all addresses and opens all files of `config`.
    ///
    /// # Errors
    /// The first resource that is unavailable.
    pub fn bind(config: BackendConfig) -> Result<Server, BackendError> {
        Server::bind_with(config, None)
    }

    /// Like [`Server::bind`], with the device for `tls = "nic"`. Other modes do not use it.
    ///
    /// # Errors
    /// As for [`Server::bind`], or `tls = "nic"` without a device.
    pub fn bind_with(
        config: BackendConfig,
        device: Option<Arc<dyn Device>>,
    ) -> Result<Server, BackendError> {
        config.check()?;
        config.warn_of_ineffective();
        let device = match config.device()? {
            None => None,
            Some(_) => Some(device.ok_or(BackendError::NoDevice)?),
        };
        // For connections and open objects.
        unlade_runtime::limits::raise_descriptor_limit();
        let store = Arc::new(Store::open(&config.root, config.writable)?);
        let listeners =
            listen::bind_shared(config.http, config.workers, &ListenOptions::default())?;
        let http = listeners.first().and_then(|first| first.local_addr().ok());
        let http = http.unwrap_or(config.http);
        let (https, identity) = bind_https(&config, device.as_deref())?;
        let https_address = https.first().and_then(|first| first.local_addr().ok());
        let meter = Arc::new(Meter::for_role(Role::Backend));
        let connection_limit = Arc::new(ConnectionLimit::new(config.connections_max));
        let admin_address = config.admin;
        let control = Control::new(config);
        let admin = match admin_address {
            None => None,
            Some(address) => {
                let watch = control.watch();
                let health = move || Health::from(watch.phase());
                let version = env!("CARGO_PKG_VERSION");
                let stages = meter.clone();
                let mut routes = Routes::new(meter.clone(), health, "unlade backend", version)
                    .route("/stages", move |_| Answer::json(stages.stages_json()));
                if let Some(device) = &device {
                    let (meter, device) = (meter.clone(), device.clone());
                    routes = routes.route("/metrics", move |_| metrics(&meter, &*device));
                }
                Some(admin::start(address, routes)?)
            }
        };
        let handoff = match &control.config().agent {
            Some(agent) => {
                let config = handoff_config(&control.config(), agent);
                Some(Handoff::open(&config, Arc::clone(&meter))?)
            }
            None => None,
        };
        tracing::info!(address = %http, root = %control.config().root.display(), "serving objects");
        let (http_sockets, https_sockets) = (Mutex::new(listeners), Mutex::new(https));
        let (chain, tls) = match identity {
            Some(Identity { chain, config }) => (chain, Some(config)),
            None => (Vec::new(), None),
        };
        let listeners =
            Listeners { http: Arc::new(http_sockets), https: Arc::new(https_sockets), tls };
        let https = https_address;
        Ok(Server {
            control,
            store,
            meter,
            connection_limit,
            listeners,
            chain,
            http,
            https,
            admin,
            handoff,
            device,
        })
    }

    /// Returns the address of HTTP over TLS, if it is served.
    pub fn https(&self) -> Option<SocketAddr> {
        self.https
    }

    /// Returns the address of HTTP, with the chosen port if the configured one is 0.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Returns the address of the admin endpoint.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// Returns a handle that stops or reloads the server.
    pub fn control(&self) -> Control<BackendConfig> {
        self.control.clone()
    }

    /// Returns the counters.
    pub fn meter(&self) -> Arc<Meter> {
        self.meter.clone()
    }

    /// Serves until drained or stopped. `reload` returns the configuration for a SIGHUP; `signals`
    /// enables the handling of the process's signals.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run(
        self,
        signals: bool,
        mut reload: impl FnMut() -> Result<BackendConfig, ConfigError>,
    ) -> Result<Ended, BackendError> {
        let running = self.control.config();
        let workers = WorkersConfig {
            name: "backend",
            threads: running.workers,
            pin: running.pin,
            drain_timeout: running.drain_timeout,
            signals,
        };
        let handoff = self.handoff.clone();
        let chain = self.chain.clone();
        let checked_reload = || {
            let config = reload()?;
            config.check_reload(&running)?;
            if let Some(handoff) = &handoff {
                handoff.reload_trust().map_err(HandoffError::from)?;
            }
            for key in config.changed_until_restart(&running) {
                tracing::warn!(key, "changed; the old value stays in force until a restart");
            }
            if let Some(https) = &config.https {
                tls::warn_of_replaced(https, &chain);
            }
            Ok::<BackendConfig, BackendError>(config)
        };
        let shared = SharedState {
            store: self.store.clone(),
            meter: self.meter.clone(),
            connection_limit: self.connection_limit.clone(),
            listeners: self.listeners.clone(),
            handoff: self.handoff.clone(),
            device: self.device.clone(),
        };
        let main = move |info, watch| worker(shared.clone(), info, watch);
        Ok(unlade_runtime::run_workers(&workers, &self.control, checked_reload, main)?)
    }
}

/// State that all workers share.
#[derive(Debug, Clone)]
struct SharedState {
    store: Arc<Store>,
    meter: Arc<Meter>,
    connection_limit: Arc<ConnectionLimit>,
    listeners: Listeners,
    handoff: Option<Handoff>,
    device: Option<Arc<dyn Device>>,
}

/// Binds the sockets of `[https]`. With a device they are bound to its interface: packets on
/// another path would not be encrypted.
fn bind_https(
    config: &BackendConfig,
    device: Option<&dyn Device>,
) -> Result<(Vec<TcpListener>, Option<Identity>), BackendError> {
    let Some(https) = &config.https else { return Ok((Vec::new(), None)) };
    let identity = tls::load(https).map_err(Box::new)?;
    let device = device.map(|device| device.interface().to_owned());
    let options = ListenOptions { device, ..ListenOptions::default() };
    let sockets = listen::bind_shared(https.address, config.workers, &options)?;
    tracing::info!(address = %https.address, tls = ?config.tls, "serving objects over TLS");
    Ok((sockets, Some(identity)))
}

/// Answers `/metrics`, including the device's metrics.
fn metrics(meter: &Meter, device: &dyn Device) -> Answer {
    let mut text = meter.text();
    device.add_metrics(&mut text);
    Answer { status: 200, content_type: admin::METRICS_TYPE, body: text.finish() }
}

/// Runs one worker: accepts until the drain, then waits for the requests in flight.
async fn worker(
    shared: SharedState,
    info: WorkerInfo,
    mut watch: Watch<BackendConfig>,
) -> Result<(), BackendError> {
    let context =
        Context::with_device(&watch.config(), shared.store, shared.meter, shared.device.clone());
    let (Some(http), https) = shared.listeners.take()? else { return Ok(()) };
    let agent = match &shared.handoff {
        Some(handoff) => Some(adopted::start(handoff, info.index, &context)?),
        None => None,
    };
    tracing::debug!(worker = info.index, "worker ready");
    let mut drain = watch.clone();
    tokio::select! {
        () = accept::accept(&http, &context, &shared.connection_limit) => {}
        () = accept_tls(https.as_ref(), &context, &shared.connection_limit) => {}
        () = tend(&context, &mut watch, &shared.connection_limit) => {}
        () = drain.reached(Phase::Draining) => {}
    }
    context.gate.drain();
    if let Some(agent) = &agent {
        agent.drain();
    }
    let unfinished = Unfinished { context: Rc::clone(&context), agent: agent.clone() };
    accept::accept_last(http, &context, &shared.connection_limit).await;
    if let Some(https) = https {
        accept::accept_last(https, &context, &shared.connection_limit).await;
    }
    context.idle().await;
    if let Some(agent) = &agent {
        agent.drained().await;
    }
    drop(unfinished);
    Ok(())
}

async fn accept_tls(
    listener: Option<&Listener>,
    context: &Rc<Context>,
    connection_limit: &Arc<ConnectionLimit>,
) {
    match listener {
        Some(listener) => accept::accept(listener, context, connection_limit).await,
        None => std::future::pending().await,
    }
}

/// Applies reloads and closes unused objects.
async fn tend(
    context: &Rc<Context>,
    watch: &mut Watch<BackendConfig>,
    connection_limit: &ConnectionLimit,
) {
    let mut expire = unlade_runtime::ticker::every(EXPIRE_EVERY);
    loop {
        tokio::select! {
            config = watch.reloaded() => {
                context.reload(&config);
                connection_limit.set_most(config.connections_max);
            }
            _ = expire.tick() => context.expire(EXPIRE_EVERY),
        }
    }
}

/// Runs a backend with `config` and its log until SIGTERM or SIGINT, then drains it. SIGHUP keeps
/// `config`.
///
/// # Errors
/// The backend cannot start, or a worker failed.
pub fn run(config: BackendConfig) -> Result<(), BackendError> {
    unlade_runtime::logs::init(&config.log)?;
    let same = config.clone();
    Server::bind(config)?.run(true, move || Ok(same.clone())).map(report)
}

/// Runs a backend with `config`, which SIGHUP reads again from `path`; `attach` provides the device
/// for `tls = "nic"`. The caller has set up the log.
///
/// # Errors
/// As [`run`], and those of `attach`.
pub fn run_with(
    config: BackendConfig,
    path: &Path,
    attach: impl FnOnce(&NicConfig) -> Result<Arc<dyn Device>, Box<dyn Error + Send + Sync>>,
) -> Result<(), BackendError> {
    let device = config.device()?.map(attach).transpose().map_err(BackendError::Device)?;
    Server::bind_with(config, device)?.run(true, || BackendConfig::load(path)).map(report)
}

fn report(ended: Ended) {
    match ended {
        Ended::Finished => tracing::info!("drained"),
        Ended::Dropped => tracing::warn!("stopped with requests in flight"),
    }
}
