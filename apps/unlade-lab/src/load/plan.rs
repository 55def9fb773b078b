//! A run of the load, ready to go.

use super::client::Verify;
use super::target::Target;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A run, ready to go.
pub struct Plan {
    /// Connections go to them in turn; there is at least one.
    pub addresses: Vec<SocketAddr>,
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    pub targets: Vec<Target>,
    pub connections: usize,
    pub duration: Option<Duration>,
    pub warmup: Duration,
    pub ramp: Duration,
    pub timeout: Duration,
    pub finish: bool,
    pub pipeline: usize,
    pub requests_per_connection: Option<u64>,
    pub verify: Verify,
    pub copy_bodies: bool,
    pub seed: u64,
    pub announce: bool,
    /// Once true, no request is begun any more.
    pub stop: Arc<AtomicBool>,
}
