//! Pools of interchangeable servers, and the choice of the server for a request.
//!
//! The state of a server that all workers share is atomic: requests in flight, connections handed
//! to it, health. A reloaded configuration takes over the servers that it keeps.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use unlade_metrics::{Event, Gauge, Health, Meter};
use unlade_migration::shard::Ring;

use unlade_channel::trust::Membership;

use crate::config::{HealthConfig, PolicyConfig, PoolConfig, UpstreamConfig};

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

/// A pool of one configuration.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Its name in the configuration.
    pub name: String,
    /// Its servers, in the order of the configuration.
    pub servers: Vec<Arc<Server>>,
    /// Health checks of the servers.
    pub health: HealthConfig,
    /// Connections to the servers.
    pub upstream: UpstreamConfig,
    /// Identity towards the agents, in a pool that has them.
    pub trust: Option<Arc<Membership>>,
    policy: Policy,
}

#[derive(Debug)]
enum Policy {
    RoundRobin,
    LeastConnections,
    Sharded(Ring),
}

impl Pool {
    /// Creates the pool of `config`; servers in `known`, found by their addresses, are taken over.
    pub(crate) fn new(
        name: &str,
        config: &PoolConfig,
        trust: Option<Arc<Membership>>,
        known: &mut KnownServers,
    ) -> Pool {
        let servers: Vec<Arc<Server>> = config
            .servers
            .iter()
            .filter_map(|server| {
                let agent = config.agent_address(server);
                Some(known.get_or_make(config.http_address(server)?, agent))
            })
            .collect();
        let policy = match config.policy {
            PolicyConfig::RoundRobin => Policy::RoundRobin,
            PolicyConfig::LeastConnections => Policy::LeastConnections,
            PolicyConfig::Sharded => {
                let names: Vec<String> = servers.iter().map(|s| shard_name(s)).collect();
                let members: Vec<(&str, u16)> =
                    names.iter().map(|name| (name.as_str(), 1)).collect();
                Policy::Sharded(Ring::new(&members))
            }
        };
        Pool {
            name: name.to_owned(),
            servers,
            health: config.health.clone(),
            upstream: config.upstream.clone(),
            trust,
            policy,
        }
    }

    /// Returns true if the path determines the server.
    pub(crate) fn is_sharded(&self) -> bool {
        matches!(self.policy, Policy::Sharded(_))
    }

    /// Returns names and weights of the ring's members, in the order of [`Pool::servers`]; a
    /// server computes its own share from them. Empty if the pool is not sharded.
    pub(crate) fn ring_members(&self) -> Vec<(String, u16)> {
        match self.is_sharded() {
            true => self.servers.iter().map(|server| (shard_name(server), 1)).collect(),
            false => Vec::new(),
        }
    }

    /// Returns the index of the server for a request. `turn` is the worker's own counter;
    /// `passed_over` returns true for servers that have failed this request already. A server
    /// whose agent is silent gets requests only if every other one fails. `None`: no server is
    /// healthy and has room.
    pub(crate) fn choose(
        &self,
        path: &str,
        turn: &mut usize,
        passed_over: &[usize],
    ) -> Option<usize> {
        *turn = turn.wrapping_add(1);
        let healthy = |index: usize| {
            self.servers.get(index).is_some_and(|server| {
                server.is_healthy()
                    && server.in_flight() < self.upstream.requests_max
                    && !passed_over.contains(&index)
            })
        };
        let heard = |index: usize| {
            healthy(index) && self.servers.get(index).is_some_and(|server| !server.is_silent())
        };
        self.choose_of(path, *turn, heard).or_else(|| self.choose_of(path, *turn, healthy))
    }

    fn choose_of(&self, path: &str, turn: usize, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let count = self.servers.len();
        match &self.policy {
            Policy::RoundRobin => in_turn(turn, count).find(|index| usable(*index)),
            // Servers with equal load take turns, so that one server does not get every request of
            // an idle pool.
            Policy::LeastConnections => in_turn(turn, count)
                .filter(|index| usable(*index))
                .min_by_key(|index| self.servers.get(*index).map_or(0, |s| s.load())),
            Policy::Sharded(ring) => self.shard(ring, path, usable),
        }
    }

    /// Returns the server that the path determines. If that one is unusable or overloaded, returns
    /// the one that the path with a number determines, so that a stand-in is always the same as
    /// well.
    fn shard(&self, ring: &Ring, path: &str, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let healthy = self.servers.iter().filter(|server| server.is_healthy()).count();
        let total: usize = self.servers.iter().map(|server| server.load()).sum();
        let share = (total + 1) as f64 / healthy.max(1) as f64;
        let bound = ((share * LOAD_FACTOR).ceil() as usize).max(LOAD_FLOOR);
        let in_bound = |index: &usize| self.servers.get(*index).is_some_and(|s| s.load() < bound);
        let owner = ring.owner(path).filter(|index| usable(*index));
        if owner.is_some_and(|index| in_bound(&index)) {
            return owner;
        }
        let stand_in = (1..=STAND_INS_MAX)
            .filter_map(|number| ring.owner(&format!("{path}\0{number}")))
            .find(|index| usable(*index) && in_bound(index));
        // All candidates are overloaded: the owner is no worse than they are.
        stand_in.or(owner).or_else(|| (0..self.servers.len()).find(|index| usable(*index)))
    }
}

/// Load that a server of a sharded pool may have, as a multiple of the mean …
const LOAD_FACTOR: f64 = 1.25;
/// … or as a number, below which the mean is not significant.
const LOAD_FLOOR: usize = 32;
/// Stand-ins that are tried for a shard.
const STAND_INS_MAX: usize = 16;

fn in_turn(turn: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (turn % count.max(1) + step) % count.max(1))
}

/// Returns the name of a server in the ring: stable over restarts and the same on every balancer.
fn shard_name(server: &Server) -> String {
    server.address.to_string()
}

/// The servers of the process by their addresses.
#[derive(Debug, Default)]
pub(crate) struct KnownServers {
    servers: HashMap<(SocketAddr, Option<SocketAddr>), Arc<Server>>,
}

impl KnownServers {
    /// Collects the servers of `pools`.
    pub(crate) fn of(pools: &[Arc<Pool>]) -> KnownServers {
        let servers = pools.iter().flat_map(|pool| &pool.servers);
        let servers =
            servers.map(|server| ((server.address, server.agent), server.clone())).collect();
        KnownServers { servers }
    }

    /// Iterates over every server.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    fn get_or_make(&mut self, address: SocketAddr, agent: Option<SocketAddr>) -> Arc<Server> {
        let make = || Arc::new(Server::new(address, agent));
        self.servers.entry((address, agent)).or_insert_with(make).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(policy: &str, servers: usize) -> Pool {
        let list: Vec<String> = (1..=servers).map(|n| format!("\"10.0.0.{n}:80\"")).collect();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[route]]\npool = \"p\"\n\
             [pool.p]\npolicy = \"{policy}\"\nservers = [{}]\nupstream = {{ requests_max = 10 }}",
            list.join(", ")
        );
        let config = crate::config::BalancerConfig::parse(&text, "test").unwrap();
        Pool::new("p", &config.pools["p"], None, &mut KnownServers::default())
    }

    fn fail(pool: &Pool, index: usize) {
        let meter = Meter::new();
        for _ in 0..pool.health.fall {
            pool.servers[index].observe(false, &pool.health, &meter);
        }
    }

    #[test]
    fn round_robin_takes_turns_and_skips_the_sick() {
        let pool = pool("round-robin", 3);
        let mut turn = 0;
        let mut next = |passed: &[usize]| pool.choose("/", &mut turn, passed);
        let first: Vec<_> = (0..6).map(|_| next(&[]).unwrap()).collect();
        assert_eq!(first[..3], first[3..]);
        let mut sorted = first[..3].to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2]);
        fail(&pool, 1);
        assert!((0..9).all(|_| next(&[]) != Some(1)));
        assert!((0..9).all(|_| next(&[0]) == Some(2)));
        assert_eq!(next(&[0, 2]), None);
    }

    #[test]
    fn least_connections_prefers_the_idle_and_respects_the_limit() {
        let pool = pool("least-connections", 3);
        let mut turn = 0;
        let busy: Vec<InFlight> = [0, 0, 1, 1, 1, 2]
            .iter()
            .map(|index: &usize| InFlight::begin(pool.servers[*index].clone()))
            .collect();
        assert_eq!(pool.choose("/", &mut turn, &[]), Some(2));
        drop(busy);
        let full: Vec<InFlight> =
            (0..30).map(|n| InFlight::begin(pool.servers[n / 10].clone())).collect();
        assert_eq!(pool.choose("/", &mut turn, &[]), None);
        drop(full);
        let idle: std::collections::BTreeSet<_> =
            (0..9).filter_map(|_| pool.choose("/", &mut turn, &[])).collect();
        assert_eq!(idle.len(), 3);
    }

    #[test]
    fn a_shard_keeps_its_server_while_it_can() {
        let pool = pool("sharded", 5);
        let mut turn = 0;
        let path = |n: usize| format!("/objects/{n}");
        let homes: Vec<_> =
            (0..200).map(|n| pool.choose(&path(n), &mut turn, &[]).unwrap()).collect();
        assert!((0..5).all(|server| homes.contains(&server)));
        fail(&pool, 2);
        for (n, home) in homes.iter().enumerate() {
            let now = pool.choose(&path(n), &mut turn, &[]).unwrap();
            assert!(if *home == 2 { now != 2 } else { now == *home }, "{n}: {home} {now}");
        }
        assert_eq!(pool.ring_members().len(), 5);
    }

    #[test]
    fn a_shard_that_is_overrun_has_one_stand_in() {
        let pool = pool("sharded", 4);
        let pool =
            Pool { upstream: UpstreamConfig { requests_max: 1000, ..pool.upstream }, ..pool };
        let mut turn = 0;
        let mut choose = || pool.choose("/hot", &mut turn, &[]).unwrap();
        let owner = choose();
        let load: Vec<InFlight> =
            (0..LOAD_FLOOR).map(|_| InFlight::begin(pool.servers[owner].clone())).collect();
        let stand_in = choose();
        assert_ne!(stand_in, owner);
        assert_eq!(choose(), stand_in);
        drop(load);
        assert_eq!(choose(), owner);
    }

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
    fn a_server_whose_agent_is_silent_gets_what_nobody_else_can_have() {
        for policy in ["round-robin", "least-connections", "sharded"] {
            let pool = pool(policy, 3);
            let mut turn = 0;
            let mut choose = |passed: &[usize]| pool.choose("/objects/7", &mut turn, passed);
            let silent = choose(&[]).unwrap();
            pool.servers[silent].set_silent(true);
            assert!((0..9).all(|_| choose(&[]) != Some(silent)), "{policy}");
            let others: Vec<usize> = (0..3).filter(|index| *index != silent).collect();
            assert_eq!(choose(&others), Some(silent), "{policy}");
            pool.servers[silent].set_silent(false);
            assert!((0..9).any(|_| choose(&[]) == Some(silent)), "{policy}");
        }
    }

    /// Connections of idle clients are no requests: they divert no request from its server.
    #[test]
    fn connections_at_a_server_are_no_requests_in_flight() {
        let pool = pool("least-connections", 2);
        let server = &pool.servers[0];
        let parked: Vec<AtServer> = (0..50).map(|_| AtServer::begin(server.clone())).collect();
        assert_eq!((server.in_flight(), server.load()), (0, 50));
        assert_eq!(pool.choose("/", &mut 0, &[1]), Some(0));
        assert_eq!(pool.choose("/", &mut 0, &[]), Some(1));
        drop(parked);
        assert_eq!(server.load(), 0);
    }

    #[test]
    fn servers_survive_a_reload() {
        let first = Arc::new(pool("round-robin", 2));
        fail(&first, 0);
        let mut known = KnownServers::of(std::slice::from_ref(&first));
        let address = first.servers[0].address;
        assert!(!known.get_or_make(address, None).is_healthy());
        assert!(known.get_or_make(address, Some(address)).is_healthy());
    }
}
