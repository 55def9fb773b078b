//! The service of one tenant: its sockets, and its drain.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UnixListener;
use tokio::sync::watch;
use unlade_metrics::Meter;
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminServer, Health, Routes};
use unlade_runtime::system::system;

use crate::config::WorkerConfig;
use crate::control;
use crate::open::{WorkerError, read_journal, tenant_with};
use crate::relay;
use crate::scheduler::Turn;
use crate::tenant::Tenant;

/// The phase of a tenant or of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Gateways are accepted.
    #[default]
    Serving,
    /// No gateway is accepted; pending writes are finished.
    Draining,
    /// Pending writes are lost.
    Ending,
}

impl Phase {
    /// The following phase.
    #[must_use]
    pub fn next(self) -> Phase {
        match self {
            Phase::Serving => Phase::Draining,
            Phase::Draining | Phase::Ending => Phase::Ending,
        }
    }
}

/// Waits until a phase, or a later one, is reached. A dropped sender counts as the last phase.
pub async fn reached(told: &mut watch::Receiver<Phase>, phase: Phase) {
    let _ = told.wait_for(|now| *now >= phase).await;
}

/// Serves a tenant until a drain is requested, and drains. Must be called within a
/// [`LocalSet`](tokio::task::LocalSet), in which its sessions outlive it.
///
/// # Errors
/// The reason why the tenant cannot be served.
pub async fn serve(
    config: &WorkerConfig,
    meter: Arc<Meter>,
    turn: Rc<Turn>,
    mut told: watch::Receiver<Phase>,
) -> Result<(), WorkerError> {
    let read = config.clone();
    // A long journal must not block the other tenants.
    let read = tokio::task::spawn_blocking(move || read_journal(&read)).await;
    let journal = read.map_err(|_| WorkerError::Ended)??;
    let tenant = tenant_with(config, meter.clone(), turn, journal)?;
    let draining = Arc::new(AtomicBool::new(false));
    let _admin = metrics(config, meter, draining.clone())?;
    carry(config, &tenant)?;
    let (listener, _socket) = listen(&config.control)?;
    tracing::info!(control = %config.control.display(), "worker");
    tokio::select! {
        () = control::serve(tenant.clone(), listener) => {}
        () = reached(&mut told, Phase::Draining) => {}
    }
    draining.store(true, Ordering::Relaxed);
    tokio::select! {
        () = tenant.writeback.empty() => {}
        () = tokio::time::sleep(config.drain_timeout) => {
            tracing::error!("what is pending was not written in time");
        }
        () = reached(&mut told, Phase::Ending) => {
            tracing::warn!("told twice: what is pending is lost");
        }
    }
    Ok(())
}

fn metrics(
    config: &WorkerConfig,
    meter: Arc<Meter>,
    draining: Arc<AtomicBool>,
) -> Result<Option<AdminServer>, WorkerError> {
    let Some(address) = config.admin else { return Ok(None) };
    let routes = Routes::new(meter, Health::by_flag(draining), "unlade", env!("CARGO_PKG_VERSION"));
    Ok(Some(admin::start(address, routes)?))
}

/// Relays connections of instances that have an SDK of their own.
fn carry(config: &WorkerConfig, tenant: &Rc<Tenant>) -> Result<(), WorkerError> {
    let Some(route) = config.route()? else { return Ok(()) };
    let what = || format!("the relay's socket {}", route.path.display());
    let listener = relay::listen(&route.path).map_err(|error| system(what())(error))?;
    tokio::task::spawn_local(relay::serve(tenant.clone(), listener, route));
    Ok(())
}

/// A socket file that is removed when this is dropped.
struct SocketFile<'a>(&'a Path);

impl Drop for SocketFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn listen(path: &Path) -> Result<(UnixListener, SocketFile<'_>), WorkerError> {
    let failed = || system(format!("the control socket {}", path.display()));
    // A file without a listener is a leftover.
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(failed()(io::Error::other("another worker listens there")).into());
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(failed())?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, private).map_err(failed())?;
    Ok((listener, SocketFile(path)))
}
