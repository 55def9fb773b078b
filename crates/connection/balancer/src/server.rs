//! A server of a pool: load, health, silence of its agent.
//!
//! The state that all workers share is atomic: requests in flight, connections handed to it, health.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use unlade_metrics::{Event, Gauge, Health, Meter};

use crate::config::HealthConfig;

/// A server, shared by all workers.
#[derive(Debug)]
pub(crate) struct Server {
    /// Address for ordinary proxying.
    pub address: SocketAddr,
    /// Address of its agent, if it has one.
    pub agent: Option<SocketAddr>,
    in_flight: AtomicUsize,
    /// Connections that it has, or is about to have.
    adopted: AtomicUsize,
    /// Its agent is silent: the server may be stopped or cut off although it accepts connections.
    silent: AtomicBool,
    healthy: AtomicBool,
    /// Consecutive checks or connections with one result: successes while it is unhealthy,
    /// failures while it is healthy.
    streak: AtomicU32,
}

impl Server {
    /// Creates a server that counts as healthy at first.
    pub(crate) fn new(address: SocketAddr, agent: Option<SocketAddr>) -> Server {
        Server {
            address,
            agent,
            in_flight: AtomicUsize::new(0),
            adopted: AtomicUsize::new(0),
            silent: AtomicBool::new(false),
            healthy: AtomicBool::new(true),
            streak: AtomicU32::new(0),
        }
    }

    /// Returns the number of requests that it is answering through this balancer.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that it was handed.
    pub(crate) fn adopted(&self) -> usize {
        self.adopted.load(Ordering::Relaxed)
    }

    /// Returns its load: requests in flight, and connections that it was handed.
    pub(crate) fn load(&self) -> usize {
        self.in_flight() + self.adopted()
    }

    /// Returns true if it gets requests.
    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Returns true if it gets requests while other servers of its pool can get them.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_healthy() && !self.is_silent()
    }

    /// Returns true if its agent is silent.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Records that the agent is silent, or that the server has shown a sign of life.
    pub(crate) fn set_silent(&self, silent: bool) {
        // Every proxied response calls this: it writes a shared cache line only to change the
        // value.
        if self.is_silent() != silent {
            self.silent.store(silent, Ordering::Relaxed);
            tracing::warn!(server = %self.address, silent, "the silence of a server's agent changed");
        }
    }

    /// Records the result of a check, or of a connection for a request.
    pub(crate) fn observe(&self, good: bool, health: &HealthConfig, meter: &Meter) {
        let healthy = self.is_healthy();
        if good == healthy {
            // Every proxied request calls this: it writes a shared cache line only to change the
            // value.
            if self.streak.load(Ordering::Relaxed) != 0 {
                self.streak.store(0, Ordering::Relaxed);
            }
            return;
        }
        let streak = self.streak.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let enough = if healthy { health.fall } else { health.rise };
        if streak < enough {
            return;
        }
        let change =
            self.healthy.compare_exchange(healthy, good, Ordering::Relaxed, Ordering::Relaxed);
        if change.is_err() {
            return;
        }
        self.streak.store(0, Ordering::Relaxed);
        let (to, delta) = if good { (Health::Healthy, 1) } else { (Health::Unhealthy, -1) };
        meter.add(Event::HealthChanged(to));
        meter.gauge_add(Gauge::ServersHealthy, delta);
        tracing::warn!(server = %self.address, health = to.as_str(), "a server's health changed");
    }
}

/// One request in flight to a server; ends when dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    server: Arc<Server>,
}

impl InFlight {
    /// Begins a request to `server`.
    pub(crate) fn begin(server: Arc<Server>) -> InFlight {
        server.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight { server }
    }

    /// The server.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.server.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One connection at a server; ends when dropped.
#[derive(Debug)]
pub(crate) struct AtServer {
    server: Arc<Server>,
}

impl AtServer {
    /// Counts one more connection for `server`.
    pub(crate) fn begin(server: Arc<Server>) -> AtServer {
        server.adopted.fetch_add(1, Ordering::Relaxed);
        AtServer { server }
    }
}

impl Drop for AtServer {
    fn drop(&mut self) {
        self.server.adopted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The servers of the process by their addresses.
#[derive(Debug, Default)]
pub(crate) struct KnownServers {
    servers: HashMap<(SocketAddr, Option<SocketAddr>), Arc<Server>>,
}

impl KnownServers {
    /// Collects `servers`.
    pub(crate) fn of<'a>(servers: impl IntoIterator<Item = &'a Arc<Server>>) -> KnownServers {
        let by_addresses = |server: &Arc<Server>| ((server.address, server.agent), server.clone());
        KnownServers { servers: servers.into_iter().map(by_addresses).collect() }
    }

    /// Iterates over every server.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    /// Returns the server with these addresses; creates it if there is none.
    pub(crate) fn get_or_make(
        &mut self,
        address: SocketAddr,
        agent: Option<SocketAddr>,
    ) -> Arc<Server> {
        let make = || Arc::new(Server::new(address, agent));
        self.servers.entry((address, agent)).or_insert_with(make).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_changes_after_rise_and_fall_in_a_row() {
        let meter = Meter::new();
        let server = Server::new("10.0.0.1:80".parse().unwrap(), None);
        let health = HealthConfig { rise: 2, fall: 3, ..HealthConfig::default() };
        for (good, expected) in [
            (false, true),
            (false, true),
            (true, true),
            (false, true),
            (false, true),
            (false, false),
            (true, false),
            (false, false),
            (true, false),
            (true, true),
        ] {
            server.observe(good, &health, &meter);
            assert_eq!(server.is_healthy(), expected);
        }
        assert_eq!(meter.value(Event::HealthChanged(Health::Unhealthy)), 1);
        assert_eq!(meter.value(Event::HealthChanged(Health::Healthy)), 1);
    }

    #[test]
    fn a_server_is_known_by_both_addresses() {
        let health = HealthConfig { fall: 1, ..HealthConfig::default() };
        let address = "10.0.0.1:80".parse().unwrap();
        let server = Arc::new(Server::new(address, None));
        server.observe(false, &health, &Meter::new());
        let mut known = KnownServers::of([&server]);
        assert!(!known.get_or_make(address, None).is_healthy());
        assert!(known.get_or_make(address, Some(address)).is_healthy());
        assert_eq!(known.iter().count(), 2);
    }
}
