//! Relay of TCP connections for instances that have an SDK of their own: the baseline of remote
//! TCP without shared memory.
//!
//! An instance connects to a socket file; it has no network. The bytes are neither parsed nor
//! signed here: the instance's own credentials decide its rights. Only the store is reachable.

use std::cell::Cell;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use unlade_metrics::Event;

use crate::tenant::Tenant;

/// Pause after a failed accept: descriptors may be exhausted, perhaps by another tenant.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of one read, in either direction.
const COPY_BYTES: usize = 64 * 1024;

/// The ends of the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Path of the socket file.
    pub path: PathBuf,
    /// The store's name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Most connections at a time; further ones are closed at once.
    pub connections_max: usize,
}

/// Listens at a path. Any user that can reach the path may connect, because an instance runs as
/// another user.
///
/// # Errors
/// The system call failed.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// A permit of a connection, released when this is dropped.
struct ConnectionPermit(Rc<Cell<usize>>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Serves connections. Retries a failed accept after a short pause.
pub async fn serve(tenant: Rc<Tenant>, listener: UnixListener, route: Route) {
    let (route, taken) = (Rc::new(route), Rc::new(Cell::new(0)));
    loop {
        let instance = match listener.accept().await {
            Ok((instance, _)) => instance,
            Err(error) => {
                tracing::warn!(%error, "relay: no connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if taken.get() >= route.connections_max {
            tenant.meter.add(Event::HostioRelayRefused);
            continue;
        }
        taken.set(taken.get() + 1);
        let place = ConnectionPermit(taken.clone());
        let (tenant, route) = (tenant.clone(), route.clone());
        tokio::task::spawn_local(async move {
            let _place = place;
            if let Err(error) = carry(&tenant, instance, &route).await {
                tracing::debug!(%error, "relay: a connection");
            }
        });
    }
}

async fn carry(tenant: &Tenant, mut instance: UnixStream, route: &Route) -> io::Result<()> {
    let host = route.host.trim_start_matches('[').trim_end_matches(']');
    let mut store = match TcpStream::connect((host, route.port)).await {
        Ok(store) => store,
        Err(error) => {
            tenant.meter.add(Event::HostioRelayRefused);
            return Err(error);
        }
    };
    store.set_nodelay(true)?;
    tenant.meter.add(Event::HostioRelayed);
    copy_bidirectional_with_sizes(&mut instance, &mut store, COPY_BYTES, COPY_BYTES).await?;
    Ok(())
}
