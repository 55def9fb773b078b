//! Pools of interchangeable servers. A reloaded configuration takes over the servers that it keeps.

use std::sync::Arc;

use unlade_channel::trust::Membership;

use crate::config::{HealthConfig, PoolConfig, UpstreamConfig};
use crate::direct_pool::DirectPool;
use crate::policy::{Candidates, Policy};
use crate::server::{KnownServers, Server};

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
    /// Direct return of responses, in a pool that has it.
    pub direct_return: Option<DirectPool>,
    /// Agents seal responses to clients with TLS.
    pub sealing: bool,
    policy: Policy,
}

impl Pool {
    /// Creates the pool of `config`; servers in `known`, found by their addresses, are taken over.
    pub(crate) fn new(
        name: &str,
        config: &PoolConfig,
        trust: Option<Arc<Membership>>,
        direct_return: Option<DirectPool>,
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
        let names: Vec<String> = servers.iter().map(|server| shard_name(server)).collect();
        Pool {
            name: name.to_owned(),
            servers,
            health: config.health.clone(),
            upstream: config.upstream.clone(),
            trust,
            direct_return,
            sealing: config.sealing,
            policy: Policy::new(config.policy, &names),
        }
    }

    /// Returns true if the path determines the server.
    pub(crate) fn is_sharded(&self) -> bool {
        self.policy.is_sharded()
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
        let choose = |with_silent| {
            self.policy.choose(path, *turn, &Request { pool: self, passed_over, with_silent })
        };
        choose(false).or_else(|| choose(true))
    }
}

/// The servers of a pool for one request.
struct Request<'a> {
    pool: &'a Pool,
    /// Servers that have failed this request already.
    passed_over: &'a [usize],
    /// Servers whose agent is silent are usable.
    with_silent: bool,
}

impl Request<'_> {
    fn server(&self, index: usize) -> Option<&Server> {
        self.pool.servers.get(index).map(Arc::as_ref)
    }
}

impl Candidates for Request<'_> {
    fn count(&self) -> usize {
        self.pool.servers.len()
    }

    fn is_usable(&self, index: usize) -> bool {
        self.server(index).is_some_and(|server| {
            server.is_healthy()
                && (self.with_silent || !server.is_silent())
                && server.in_flight() < self.pool.upstream.requests_max
                && !self.passed_over.contains(&index)
        })
    }

    fn is_healthy(&self, index: usize) -> bool {
        self.server(index).is_some_and(Server::is_healthy)
    }

    fn load(&self, index: usize) -> usize {
        self.server(index).map_or(0, Server::load)
    }
}

/// Returns the name of a server in the ring: stable over restarts and the same on every balancer.
fn shard_name(server: &Server) -> String {
    server.address.to_string()
}

#[cfg(test)]
mod tests {
    use unlade_metrics::Meter;

    use crate::policy::PolicyConfig;
    use crate::server::{AtServer, InFlight};

    use super::*;

    fn pool(policy: &str, servers: usize) -> Pool {
        let list: Vec<String> = (1..=servers).map(|n| format!("\"10.0.0.{n}:80\"")).collect();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[route]]\npool = \"p\"\n\
             [pool.p]\npolicy = \"{policy}\"\nservers = [{}]\nupstream = {{ requests_max = 10 }}",
            list.join(", ")
        );
        let config = crate::config::BalancerConfig::parse(&text, "test").unwrap();
        Pool::new("p", &config.pools["p"], None, None, &mut KnownServers::default())
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
    fn a_server_whose_agent_is_silent_gets_what_nobody_else_can_have() {
        for policy in PolicyConfig::ALL {
            let pool = pool(policy.as_str(), 3);
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
        let first = pool("round-robin", 2);
        fail(&first, 0);
        let mut known = KnownServers::of(&first.servers);
        let address = first.servers[0].address;
        assert!(!known.get_or_make(address, None).is_healthy());
    }
}
