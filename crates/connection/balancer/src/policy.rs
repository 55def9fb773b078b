//! Policies for choosing a server of a pool. A policy sees servers as numbers with a load.
//!
//! A new policy is a variant of [`PolicyConfig`] with its name, its line of `--help` and its place
//! in `ALL`, and a variant of [`Policy`] with its arms in `new` and `choose`. The tests and the pages
//! of commands go through `PolicyConfig::ALL`.

use std::fmt;

use serde::{Deserialize, Serialize};
use unlade_migration::shard::Ring;

/// Load that a server of a sharded pool may have, as a multiple of the mean …
const LOAD_FACTOR: f64 = 1.25;
/// … or as a number, below which the mean is not significant.
const LOAD_FLOOR: usize = 32;
/// Stand-ins that are tried for a shard.
const STAND_INS_MAX: usize = 16;

/// Policy for choosing a server of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyConfig {
    /// Every server in turn.
    #[default]
    RoundRobin,
    /// The server with the smallest load: requests in flight and connections handed to it.
    LeastConnections,
    /// The server that consistent hashing with bounded load assigns to the path.
    Sharded,
}

impl PolicyConfig {
    /// Every policy.
    pub const ALL: [PolicyConfig; 3] =
        [PolicyConfig::RoundRobin, PolicyConfig::LeastConnections, PolicyConfig::Sharded];

    /// Returns the name in `lb.toml`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            PolicyConfig::RoundRobin => "round-robin",
            PolicyConfig::LeastConnections => "least-connections",
            PolicyConfig::Sharded => "sharded",
        }
    }

    /// Returns what it does, for `--help`.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            PolicyConfig::RoundRobin => "Each server in turn",
            PolicyConfig::LeastConnections => {
                "The server with the fewest requests in flight and adopted connections"
            }
            PolicyConfig::Sharded => {
                "The server that consistent hashing assigns to the path, or a stand-in under load"
            }
        }
    }

    /// Returns the policy with a name in `lb.toml`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<PolicyConfig> {
        PolicyConfig::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

impl fmt::Display for PolicyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The servers of a pool for one request. A server is its index in the configuration.
pub(crate) trait Candidates {
    /// Returns the number of servers.
    fn count(&self) -> usize;
    /// Returns true if the server can have the request.
    fn is_usable(&self, index: usize) -> bool;
    /// Returns true if the server is healthy, usable for this request or not.
    fn is_healthy(&self, index: usize) -> bool;
    /// Returns the load of the server: requests in flight and connections that it was handed.
    fn load(&self, index: usize) -> usize;
}

/// Policy of a pool, with what it computes once from the servers.
#[derive(Debug)]
pub(crate) enum Policy {
    RoundRobin,
    LeastConnections,
    Sharded(Ring),
}

impl Policy {
    /// Creates the policy for servers with `names`, in the order of the configuration.
    pub(crate) fn new(config: PolicyConfig, names: &[String]) -> Policy {
        match config {
            PolicyConfig::RoundRobin => Policy::RoundRobin,
            PolicyConfig::LeastConnections => Policy::LeastConnections,
            PolicyConfig::Sharded => {
                let members: Vec<(&str, u16)> =
                    names.iter().map(|name| (name.as_str(), 1)).collect();
                Policy::Sharded(Ring::new(&members))
            }
        }
    }

    /// Returns true if the path determines the server. A server then answers only requests for its
    /// own share by itself.
    pub(crate) fn is_sharded(&self) -> bool {
        matches!(self, Policy::Sharded(_))
    }

    /// Returns the index of the server for a request. `turn` grows by one with every request of a
    /// worker. `None`: no server is usable.
    pub(crate) fn choose(
        &self,
        path: &str,
        turn: usize,
        candidates: &impl Candidates,
    ) -> Option<usize> {
        let mut usable =
            in_turn(turn, candidates.count()).filter(|index| candidates.is_usable(*index));
        match self {
            Policy::RoundRobin => usable.next(),
            // Servers with equal load take turns, so that one server does not get every request of
            // an idle pool.
            Policy::LeastConnections => usable.min_by_key(|index| candidates.load(*index)),
            Policy::Sharded(ring) => shard(ring, path, candidates),
        }
    }
}

/// Returns the server that the path determines. If that one is unusable or overloaded, returns the
/// one that the path with a number determines, so that a stand-in is always the same as well.
fn shard(ring: &Ring, path: &str, candidates: &impl Candidates) -> Option<usize> {
    let servers = 0..candidates.count();
    let healthy = servers.clone().filter(|index| candidates.is_healthy(*index)).count();
    let total: usize = servers.clone().map(|index| candidates.load(index)).sum();
    let share = (total + 1) as f64 / healthy.max(1) as f64;
    let bound = ((share * LOAD_FACTOR).ceil() as usize).max(LOAD_FLOOR);
    let in_bound = |index: &usize| candidates.load(*index) < bound;
    let owner = ring.owner(path).filter(|index| candidates.is_usable(*index));
    if owner.is_some_and(|index| in_bound(&index)) {
        return owner;
    }
    let stand_in = (1..=STAND_INS_MAX)
        .filter_map(|number| ring.owner(&format!("{path}\0{number}")))
        .find(|index| candidates.is_usable(*index) && in_bound(index));
    // All candidates are overloaded: the owner is no worse than they are.
    let mut servers = servers;
    stand_in.or(owner).or_else(|| servers.find(|index| candidates.is_usable(*index)))
}

fn in_turn(turn: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (turn % count.max(1) + step) % count.max(1))
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer as _;
    use serde::de::value::StrDeserializer;

    use super::*;

    /// Servers by health, room for the request, and load.
    struct Servers(Vec<(bool, bool, usize)>);

    impl Servers {
        fn idle(count: usize) -> Servers {
            Servers(vec![(true, true, 0); count])
        }
    }

    impl Candidates for Servers {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn is_usable(&self, index: usize) -> bool {
            self.0[index].0 && self.0[index].1
        }

        fn is_healthy(&self, index: usize) -> bool {
            self.0[index].0
        }

        fn load(&self, index: usize) -> usize {
            self.0[index].2
        }
    }

    fn policy(config: PolicyConfig, count: usize) -> Policy {
        let names: Vec<String> = (1..=count).map(|n| format!("10.0.0.{n}:80")).collect();
        Policy::new(config, &names)
    }

    #[test]
    fn a_name_is_the_value_in_the_configuration() {
        for config in PolicyConfig::ALL {
            let value: StrDeserializer<'_, serde::de::value::Error> =
                config.as_str().into_deserializer();
            assert_eq!(PolicyConfig::deserialize(value).unwrap(), config);
            assert_eq!(PolicyConfig::from_name(config.as_str()), Some(config));
        }
        assert_eq!(PolicyConfig::from_name("random"), None);
        assert_eq!(PolicyConfig::ALL[0], PolicyConfig::default());
    }

    #[test]
    fn every_policy_chooses_a_usable_server_while_there_is_one() {
        for config in PolicyConfig::ALL {
            let policy = policy(config, 5);
            for usable in 0..1_u32 << 5 {
                let mut servers = Servers::idle(5);
                for (index, server) in servers.0.iter_mut().enumerate() {
                    server.1 = usable & (1 << index) != 0;
                    server.2 = 7 * index;
                }
                for turn in [0, 1, 4, 5, usize::MAX] {
                    let path = format!("/{turn}/{usable}");
                    let chosen = policy.choose(&path, turn, &servers);
                    assert_eq!(chosen.is_some(), usable != 0, "{config} {usable:b}");
                    assert!(chosen.is_none_or(|index| servers.is_usable(index)), "{config}");
                }
            }
            let of_none = Policy::new(config, &[]);
            assert_eq!(of_none.choose("/", 1, &Servers::idle(0)), None, "{config}");
        }
    }

    #[test]
    fn only_a_sharded_pool_depends_on_the_path() {
        let servers = Servers::idle(5);
        for config in PolicyConfig::ALL {
            let policy = policy(config, 5);
            let chosen: std::collections::BTreeSet<_> =
                (0..100).map(|n| policy.choose(&format!("/{n}"), 3, &servers)).collect();
            assert_eq!(chosen.len() > 1, policy.is_sharded(), "{config}");
        }
    }

    #[test]
    fn a_shard_that_is_overrun_has_one_stand_in() {
        let policy = policy(PolicyConfig::Sharded, 4);
        let mut servers = Servers::idle(4);
        let owner = policy.choose("/hot", 0, &servers).unwrap();
        servers.0[owner].2 = LOAD_FLOOR;
        let stand_in = policy.choose("/hot", 1, &servers).unwrap();
        assert_ne!(stand_in, owner);
        assert_eq!(policy.choose("/hot", 2, &servers), Some(stand_in));
        servers.0[owner].2 = 0;
        assert_eq!(policy.choose("/hot", 3, &servers), Some(owner));
    }
}
