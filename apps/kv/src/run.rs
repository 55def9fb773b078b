//! Start of one of the two builds, selected at run time.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use unlade_copy::{Copier, Service};

use crate::copies::{Offloaded, Synchronous};
use crate::server::{Config, Server, ServerError};

/// Number of cores from which one is available for a copy service: the event loop uses one,
/// clients or the network another.
const SERVICE_CORES_MIN: usize = 3;

/// One of the builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// The event loop makes every copy
    Sync,
    /// Copies are absorbed; with a copy service if a core is available for it
    Offload,
    /// Copies are absorbed; always with a copy service
    Service,
    /// Copies are absorbed, without a copy service
    Alone,
}

/// Serves until `stop` is readable; calls `ready` with the listening address.
///
/// # Errors
/// [`ServerError`].
pub fn run(
    mode: Mode,
    config: &Config,
    stop: BorrowedFd<'_>,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ServerError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let with_service = match mode {
        Mode::Sync => {
            let server = Server::new(config, Synchronous)?;
            ready(server.address());
            return server.run(stop);
        }
        Mode::Offload => cores >= SERVICE_CORES_MIN,
        Mode::Service => true,
        Mode::Alone => false,
    };
    // Dropped after the server, because it may be receiving the server's values.
    let service =
        with_service.then(|| Service::start(unlade_copy::Config::default())).transpose()?;
    let copies = match &service {
        Some(service) => Offloaded::with_service(Arc::new(Copier::new(service.attach()?))),
        None => Offloaded::default(),
    };
    let server = Server::new(config, copies)?;
    ready(server.address());
    server.run(stop)
}
