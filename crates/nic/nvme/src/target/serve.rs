//! The process: listeners, workers, signals, the admin endpoint.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use unlade_metrics::Meter;
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminError, AdminServer, Answer, Health, Routes};
use unlade_runtime::listen;
use unlade_runtime::listen::{ListenError, ListenOptions};
use unlade_runtime::{
    Control, Ended, Phase, Watch, WorkerInfo, WorkersConfig, WorkersError, run_workers,
};

use crate::target::config::{ConfigError, TargetConfig};
use crate::target::connection::{Acceptor, serve_stream};
use crate::target::subsystem::{Subsystem, SubsystemError};

/// Pause after a failed accept (out of descriptors), to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An error that prevents the start of a target, or ends it early.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The namespaces cannot be opened.
    #[error(transparent)]
    Subsystem(#[from] SubsystemError),
    /// The address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin endpoint cannot be started.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The workers failed.
    #[error(transparent)]
    Workers(#[from] WorkersError),
}

/// A listening target: all steps that depend on the configuration have succeeded.
pub struct Target {
    shared: Arc<ServerState>,
    control: Control<()>,
    address: SocketAddr,
    admin: Option<AdminServer>,
}

struct ServerState {
    subsystem: Arc<Subsystem>,
    acceptor: Option<Arc<dyn Acceptor>>,
    /// Taken by the workers at their start.
    listeners: Mutex<Vec<StdListener>>,
}

impl Target {
    /// Opens the namespaces and listens. An acceptor, if given, secures every connection.
    ///
    /// # Errors
    /// The first resource that is not available.
    pub fn bind(
        config: TargetConfig,
        acceptor: Option<Arc<dyn Acceptor>>,
    ) -> Result<Target, TargetError> {
        let subsystem = Arc::new(Subsystem::open(config, acceptor.is_some())?);
        let config = &subsystem.config;
        let listeners =
            listen::bind_shared(config.listen, config.workers, &ListenOptions::default())?;
        let local = listeners.first().and_then(|listener| listener.local_addr().ok());
        let address = local.unwrap_or(config.listen);
        let control = Control::new(());
        let admin = start_admin(&control, &subsystem)?;
        for namespace in &subsystem.namespaces {
            let (number, blocks) = (namespace.number, namespace.blocks);
            let block_bytes = 1_u32 << namespace.block_power;
            tracing::info!(number, blocks, block_bytes, uuid = %namespace.uuid, "namespace");
        }
        tracing::info!(%address, nqn = %subsystem.nqn(), "serving NVMe/TCP");
        let shared = ServerState { subsystem, acceptor, listeners: Mutex::new(listeners) };
        Ok(Target { shared: Arc::new(shared), control, address, admin })
    }

    /// The address of the listener (with the chosen port, if the configured one is 0).
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin endpoint.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// A handle that ends the target.
    pub fn control(&self) -> Control<()> {
        self.control.clone()
    }

    /// The subsystem, with its counters.
    pub fn subsystem(&self) -> Arc<Subsystem> {
        self.shared.subsystem.clone()
    }

    /// Serves until drained or stopped. `signals` enables the process's signal handling.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run(self, signals: bool) -> Result<Ended, TargetError> {
        let config = &self.shared.subsystem.config;
        let workers = WorkersConfig {
            threads: config.workers,
            drain_timeout: config.drain_timeout,
            signals,
            ..WorkersConfig::new("nvme")
        };
        let shared = self.shared.clone();
        let main = move |info: WorkerInfo, watch| worker(shared.clone(), info, watch);
        let reload = || Err::<(), _>(ConfigError::Fixed);
        Ok(run_workers(&workers, &self.control, reload, main)?)
    }
}

/// Runs a target until SIGTERM or SIGINT. The caller has set up the log.
///
/// # Errors
/// See [`TargetError`].
pub fn run(config: TargetConfig, acceptor: Option<Arc<dyn Acceptor>>) -> Result<(), TargetError> {
    Target::bind(config, acceptor)?.run(true).map(drop)
}

fn start_admin(
    control: &Control<()>,
    subsystem: &Arc<Subsystem>,
) -> Result<Option<AdminServer>, AdminError> {
    let Some(address) = subsystem.config.admin else { return Ok(None) };
    let watch = control.watch();
    let health = move || Health::from(watch.phase());
    let counted = subsystem.clone();
    let metrics = move |_: Option<&str>| Answer {
        status: 200,
        content_type: admin::METRICS_TYPE,
        body: counted.counts().render(),
    };
    let routes = Routes::new(Arc::new(Meter::new()), health, "unlade", env!("CARGO_PKG_VERSION"))
        .route("/metrics", metrics);
    admin::start(address, routes).map(Some)
}

/// The loop of one worker: accepts until the process drains, and then waits for its connections.
async fn worker(
    shared: Arc<ServerState>,
    _info: WorkerInfo,
    mut watch: Watch<()>,
) -> Result<(), ListenError> {
    let listener = shared.listeners.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let Some(listener) = listener else { return Ok(()) };
    let listener = listen::register(listener)?;
    let connections_max = shared.subsystem.config.connections_max;
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = watch.reached(Phase::Draining) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((tcp, _)) if at_limit(&shared.subsystem, connections_max) => {
                shared.subsystem.counters.refused.add(1);
                drop(tcp);
            }
            Ok((tcp, peer)) => {
                tracing::debug!(%peer, "connection");
                shared.subsystem.counters.accepted.add(1);
                let place = ConnectionSlot::new(&shared.subsystem);
                connections.spawn_local(connection(tcp, shared.clone(), watch.clone(), place));
            }
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

fn at_limit(subsystem: &Subsystem, connections_max: usize) -> bool {
    subsystem.counters.connections.get() >= connections_max as u64
}

/// One slot of the limit of concurrent connections.
struct ConnectionSlot {
    subsystem: Arc<Subsystem>,
}

impl ConnectionSlot {
    fn new(subsystem: &Arc<Subsystem>) -> ConnectionSlot {
        subsystem.counters.connections.add(1);
        ConnectionSlot { subsystem: subsystem.clone() }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.subsystem.counters.connections.subtract(1);
    }
}

async fn connection(
    tcp: TcpStream,
    shared: Arc<ServerState>,
    mut watch: Watch<()>,
    _place: ConnectionSlot,
) {
    let subsystem = shared.subsystem.clone();
    let mut draining = pin!(async move { watch.reached(Phase::Draining).await });
    let local = match prepare(&tcp) {
        Ok(local) => local,
        Err(error) => return tracing::debug!(%error, "connection lost at once"),
    };
    let Some(acceptor) = &shared.acceptor else {
        return serve_stream(tcp, local, subsystem, draining).await;
    };
    let limit = subsystem.config.connect_timeout;
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(limit, acceptor.accept(tcp)) => accepted,
        () = &mut draining => return,
    };
    match accepted {
        Ok(Ok(stream)) => serve_stream(stream, local, subsystem, draining).await,
        Ok(Err(error)) => tracing::info!(%error, "a host could not be authenticated"),
        Err(_) => {
            subsystem.counters.timeouts.add(1);
            tracing::info!("a host did not finish the TLS handshake in time");
        }
    }
}

fn prepare(tcp: &TcpStream) -> io::Result<SocketAddr> {
    tcp.set_nodelay(true)?;
    tcp.local_addr()
}
