//! The process: one tenant, one thread.

use std::future::pending;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meter::{Meter, Role};
use service::admin::{self, AdminError, Health, Routes};
use service::system::{SystemError, system};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use crate::config::{ConfigError, WorkerConfig};
use crate::control;
use crate::journal::Journal;
use crate::quota::{self, Quota};
use crate::relay;
use crate::store::HttpStore;
use crate::tenant::Tenant;
use crate::writeback::WriteBack;

/// Why a worker does not run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The operator's.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The admin endpoint.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The machine's, or another worker's.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Makes a tenant of a configuration. Writes that a worker before had acknowledged begin at once.
///
/// # Errors
/// What is missing. Must be called within a [`LocalSet`].
pub fn tenant(config: &WorkerConfig, meter: Arc<Meter>) -> Result<Rc<Tenant>, WorkerError> {
    let own = &config.tenant;
    let transport = Box::new(HttpStore::new(config.store.endpoint()?));
    let (calls_max, held_bytes_max) = (own.calls_max, own.held_bytes_max.0);
    let quota = Quota::new(quota::Limits { calls_max, held_bytes_max });
    let (journal, begun) = match &own.journal {
        None => (None, Vec::new()),
        Some(path) => {
            let what = format!("the journal {}", path.display());
            let (journal, begun) = Journal::open(path).map_err(system(what))?;
            (Some(journal), begun)
        }
    };
    let limits = object::pending::Limits {
        dirty_bytes_max: own.dirty_bytes_max.0,
        writes_max: own.pending_writes_max,
        in_flight_max: own.writes_in_flight_max,
    };
    let writeback = WriteBack::new(limits, journal);
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| system("getrandom")(error.into()))?;
    let seed = u64::from_le_bytes(seed);
    let tenant = Tenant::new(transport, config.limits(), quota, writeback, meter, seed);
    if !begun.is_empty() {
        tracing::info!(writes = begun.len(), "journal: made again");
    }
    tenant.writeback.replay(&tenant, begun);
    Ok(tenant)
}

/// Runs a worker until SIGTERM or SIGINT; then no gateway is accepted, and what is pending is
/// written. A second signal ends at once.
///
/// # Errors
/// What keeps it from running.
pub fn run(config: &WorkerConfig) -> Result<(), WorkerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("the runtime"))?;
    LocalSet::new().block_on(&runtime, serve(config))
}

async fn serve(config: &WorkerConfig) -> Result<(), WorkerError> {
    let meter = Arc::new(Meter::for_role(Role::Worker));
    let draining = Arc::new(AtomicBool::new(false));
    let tenant = tenant(config, meter.clone())?;
    let _admin = match config.admin {
        None => None,
        Some(address) => {
            let draining = draining.clone();
            let health = move || match draining.load(Ordering::Relaxed) {
                true => Health::Draining,
                false => Health::Ok,
            };
            let version = env!("CARGO_PKG_VERSION");
            Some(admin::start(address, Routes::new(meter, health, "unlade", version))?)
        }
    };
    if let Some(route) = config.route()? {
        let what = || format!("the relay's socket {}", route.path.display());
        let listener = relay::listen(&route.path).map_err(|error| system(what())(error))?;
        let tenant = tenant.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = relay::serve(tenant, listener, route).await {
                tracing::error!(%error, "the relay has ended");
            }
        });
    }
    let (listener, _socket) = listen(&config.control)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system("SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("SIGINT"))?;
    tracing::info!(control = %config.control.display(), "worker");
    tokio::select! {
        served = control::serve(tenant.clone(), listener) => {
            served.map_err(system("the control socket"))?;
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    draining.store(true, Ordering::Relaxed);
    tokio::select! {
        () = tenant.writeback.empty() => {}
        () = tokio::time::sleep(config.drain_timeout) => {
            tracing::error!("what is pending was not written in time");
        }
        _ = terminate.recv() => tracing::warn!("told twice: what is pending is lost"),
        _ = interrupt.recv() => tracing::warn!("told twice: what is pending is lost"),
        () = pending() => {}
    }
    Ok(())
}

/// A socket's file, which goes with the worker.
struct SocketFile<'a>(&'a Path);

impl Drop for SocketFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn listen(path: &Path) -> Result<(UnixListener, SocketFile<'_>), WorkerError> {
    let failed = || system(format!("the control socket {}", path.display()));
    // One that nobody listens on was left behind.
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(failed()(io::Error::other("another worker listens there")).into());
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(failed())?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, private).map_err(failed())?;
    Ok((listener, SocketFile(path)))
}
