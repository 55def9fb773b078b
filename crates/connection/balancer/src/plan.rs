//! A loaded configuration: routes, pools, identities. It is immutable; a reload creates another
//! one and passes it to the workers, which use it from their next request on.

use std::net::SocketAddr;
use std::sync::Arc;

use unlade_channel::trust::{Membership, TrustError, TrustFiles};
use unlade_config::KeyFileError;
use unlade_http::HeadLimits;
use unlade_metrics::Meter;
use unlade_runtime::identity::IdentityError;
use unlade_steering::splice::Splicing;

use crate::clients::ClientLimits;
use crate::config::{
    BalancerConfig, ConfigError, DirectReturnConfig, ListenerConfig, PoolConfig, RouteConfig,
    Timeouts, TrustConfig,
};
use crate::direct_pool::DirectPool;
use crate::machine::{Machine, open_splicing};
use crate::policy::PolicyConfig;
use crate::pool::Pool;
use crate::route::RouteTable;
use crate::server::{KnownServers, Server};
use crate::tls;

/// A loaded configuration.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Its source.
    pub config: BalancerConfig,
    /// Maps requests to pools.
    pub routes: RouteTable,
    /// The pools; routes refer to them by index.
    pub pools: Vec<Arc<Pool>>,
    /// Settings of each listener, in the order of the configuration.
    pub listeners: Vec<ListenerPlan>,
    /// Limits of request heads.
    pub head_limits: HeadLimits,
    /// Most bytes of a request's body.
    pub body_bytes_max: u64,
    /// Shared by plans that send every request to the same server on the same terms.
    pub routing: Arc<Routing>,
    /// Resources for moving connections, once a route offloads.
    pub machine: Option<Machine>,
    /// Programs of direct return, once a pool has it.
    pub splicing: Option<Arc<Splicing>>,
}

/// The part of a plan that decides where requests go.
#[derive(Debug, PartialEq)]
pub(crate) struct Routing {
    routes: Vec<RouteConfig>,
    pools: Vec<PoolRouting>,
}

/// Name, policy, and addresses of the servers and of their agents.
type PoolRouting = (String, PolicyConfig, Vec<(Option<SocketAddr>, Option<SocketAddr>)>);

impl Routing {
    fn of(config: &BalancerConfig) -> Routing {
        let pool = |(name, pool): (&String, &PoolConfig)| {
            let addresses = |server| (pool.http_address(server), pool.agent_address(server));
            (name.clone(), pool.policy, pool.servers.iter().map(addresses).collect())
        };
        Routing { routes: config.routes.clone(), pools: config.pools.iter().map(pool).collect() }
    }
}

/// Settings of one listener.
#[derive(Debug)]
pub(crate) struct ListenerPlan {
    /// Its configured address.
    pub address: SocketAddr,
    /// Its identity, if it has TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Its timeouts.
    pub timeouts: Timeouts,
    /// Limits of connections.
    pub limits: ClientLimits,
}

/// Error of a configuration that cannot be put into force, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// An invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An unusable identity of a listener.
    #[error("listener {address}: tls: {error}")]
    Tls {
        /// The listener.
        address: SocketAddr,
        /// The error.
        #[source]
        error: Box<IdentityError>,
    },
    /// An unusable identity towards the agents of a pool.
    #[error("pool.{pool}.trust: {error}")]
    Trust {
        /// The pool.
        pool: String,
        /// The error.
        #[source]
        error: Box<TrustError>,
    },
    /// An unusable key for the agents of a pool.
    #[error("pool.{pool}.direct_return: {error}")]
    Key {
        /// The pool.
        pool: String,
        /// The error.
        #[source]
        error: KeyFileError,
    },
    /// A change that needs a restart.
    #[error(
        "{what} changed; that takes a restart, so nothing of the new configuration is in force"
    )]
    Restart {
        /// The changed keys.
        what: &'static str,
    },
}

impl Plan {
    /// Iterates over the servers of every pool.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.pools.iter().flat_map(|pool| &pool.servers)
    }

    /// Validates `config` and loads the files that it names. Servers in `known` keep their state.
    ///
    /// # Errors
    /// The first problem found.
    pub(crate) fn new(config: BalancerConfig, known: &mut KnownServers) -> Result<Plan, PlanError> {
        config.validate()?;
        let mut pools = Vec::with_capacity(config.pools.len());
        for (name, pool) in &config.pools {
            let load = |trust| -> Result<Arc<Membership>, PlanError> {
                let files = trust_files(trust);
                let failed =
                    |error| PlanError::Trust { pool: name.clone(), error: Box::new(error) };
                let membership = Membership::load(&files).map(Arc::new).map_err(failed)?;
                if let Err(error) = unlade_channel::trust::balancer_role(&files).map_err(failed)? {
                    tracing::warn!(pool = name, %error, "agents may refuse this balancer");
                }
                Ok(membership)
            };
            let trust = pool.trust.as_ref().map(load).transpose()?;
            let key = |config: &DirectReturnConfig| {
                let failed = |error| PlanError::Key { pool: name.clone(), error };
                DirectPool::load(config).map_err(failed)
            };
            let direct_return = pool.direct_return.as_ref().map(key).transpose()?;
            pools.push(Arc::new(Pool::new(name, pool, trust, direct_return, known)));
        }
        let pool_index = |name: &str| pools.iter().position(|pool| pool.name == name);
        let routes = RouteTable::new(&config.routes, pool_index);
        let listeners =
            config.listeners.iter().map(|l| listener(&config, l)).collect::<Result<_, _>>()?;
        let limits = &config.limits;
        Ok(Plan {
            routes,
            pools,
            listeners,
            head_limits: HeadLimits {
                head_bytes_max: limits.head_bytes_max.as_usize(),
                headers_max: limits.headers_max,
                target_bytes_max: limits.target_bytes_max.as_usize(),
            },
            body_bytes_max: limits.body_bytes_max.bytes(),
            routing: Arc::new(Routing::of(&config)),
            machine: None,
            splicing: None,
            config,
        })
    }

    /// Creates the plan of a changed configuration, which replaces this one.
    ///
    /// # Errors
    /// As [`Plan::new`]; or the change needs a restart.
    pub(crate) fn reload(
        &self,
        mut config: BalancerConfig,
        meter: &Meter,
    ) -> Result<Plan, PlanError> {
        let addresses = |config: &BalancerConfig| {
            config.listeners.iter().map(|l| l.address).collect::<Vec<_>>()
        };
        let restart = |what| Err(PlanError::Restart { what });
        if addresses(&config) != addresses(&self.config) {
            return restart("the listeners' addresses");
        }
        if config.workers != self.config.workers || config.pin_workers != self.config.pin_workers {
            return restart("workers or pin_workers");
        }
        if config.admin != self.config.admin {
            return restart("admin");
        }
        if let Some(what) = self.machine.as_ref().and_then(|_| self.fixed_offload(&config)) {
            return restart(what);
        }
        let kept = self.keep_running_values(&mut config);
        let mut plan = Plan::new(config, &mut KnownServers::of(self.servers()))?;
        for key in kept {
            tracing::warn!(key, "changed; the old value stays in force until a restart");
        }
        if plan.routing == self.routing {
            plan.routing = Arc::clone(&self.routing);
        }
        plan.splicing = self.splicing.clone().or_else(|| open_splicing(&plan.config));
        plan.machine = self.machine.clone().or_else(|| Machine::open(&plan.config, meter));
        Ok(plan)
    }

    /// Replaces the values of `config` that only a restart puts into force by the running ones, and
    /// returns their keys. The listeners' addresses must be those of this plan.
    fn keep_running_values(&self, config: &mut BalancerConfig) -> Vec<String> {
        let running = &self.config;
        let mut kept = Vec::new();
        if config.log != running.log {
            config.log.clone_from(&running.log);
            kept.push("log".to_owned());
        }
        if config.drain_timeout != running.drain_timeout {
            config.drain_timeout = running.drain_timeout;
            kept.push("drain_timeout".to_owned());
        }
        for (new, old) in config.listeners.iter_mut().zip(&running.listeners) {
            if new.freebind != old.freebind {
                new.freebind = old.freebind;
                kept.push(format!("listener {}: freebind", old.address));
            }
        }
        kept
    }

    /// Returns the changed key of `[offload]` that cannot change while connections can be handed
    /// over.
    fn fixed_offload(&self, config: &BalancerConfig) -> Option<&'static str> {
        let (old, new) = (&self.config.offload, &config.offload);
        let changes = [
            (old.interface != new.interface, "offload.interface"),
            (old.journal != new.journal, "offload.journal"),
            // The servers received the lease in HELLO.
            (old.lease != new.lease, "offload.lease"),
            (old.flows_max != new.flows_max, "offload.flows_max"),
            (old.steering != new.steering, "offload.steering"),
            (old.hold_bytes_max != new.hold_bytes_max, "offload.hold_bytes_max"),
        ];
        changes.into_iter().find(|(differs, _)| *differs).map(|(_, key)| key)
    }
}

fn listener(config: &BalancerConfig, listener: &ListenerConfig) -> Result<ListenerPlan, PlanError> {
    let address = listener.address;
    let tls = listener
        .tls
        .as_ref()
        .map(tls::load)
        .transpose()
        .map_err(|error| PlanError::Tls { address, error: Box::new(error) })?;
    let limits = ClientLimits {
        connections_max: config.limits.connections_max,
        listener_max: listener.connections_max.unwrap_or(usize::MAX),
        per_client_max: config.limits.connections_per_client_max,
    };
    let timeouts = config.timeouts_of(listener);
    Ok(ListenerPlan { address, tls, timeouts, limits })
}

/// Converts a pool's trust settings for the control channel.
pub(crate) fn trust_files(trust: &TrustConfig) -> TrustFiles {
    TrustFiles {
        ca: trust.ca.clone(),
        certificate: trust.certificate.clone(),
        key: trust.key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> BalancerConfig {
        let base = "[[route]]\npool = \"p\"\n[pool.p]\nservers = [\"127.0.0.1:1\"]\n";
        BalancerConfig::parse(&format!("{text}{base}"), "test").unwrap()
    }

    #[test]
    fn a_reload_keeps_servers_and_refuses_what_needs_a_restart() {
        let listener = "[[listener]]\naddress = \"127.0.0.1:1\"\n";
        let plan = Plan::new(config(listener), &mut KnownServers::default()).unwrap();
        let meter = Meter::new();
        let more = config(&format!("{listener}connections_max = 7\n"));
        let again = plan.reload(more, &meter).unwrap();
        assert!(Arc::ptr_eq(&plan.pools[0].servers[0], &again.pools[0].servers[0]));
        assert_eq!(again.listeners[0].limits.listener_max, 7);
        // None of the changes decides where requests go.
        assert!(Arc::ptr_eq(&plan.routing, &again.routing));
        let mut elsewhere = config(listener);
        elsewhere.routes[0].prefix = "/objects".to_owned();
        let elsewhere = plan.reload(elsewhere, &meter).unwrap();
        assert!(!Arc::ptr_eq(&plan.routing, &elsewhere.routing));
        for (changed, what) in [
            (listener.replace(":1", ":2"), "listeners"),
            (format!("workers = 1\n{listener}"), "workers"),
            (format!("admin = \"127.0.0.1:3\"\n{listener}"), "admin"),
        ] {
            let message = plan.reload(config(&changed), &meter).unwrap_err().to_string();
            assert!(message.contains(what), "{message}");
        }
    }

    #[test]
    fn a_reload_keeps_and_names_the_values_that_need_a_restart() {
        let listener = "[[listener]]\naddress = \"127.0.0.1:1\"\n";
        let plan = Plan::new(config(listener), &mut KnownServers::default()).unwrap();
        let all = format!("drain_timeout = \"7s\"\n{listener}freebind = true\n");
        let changed = || {
            let mut changed = config(&all);
            changed.log.level = "debug".to_owned();
            changed
        };
        let keys = ["log", "drain_timeout", "listener 127.0.0.1:1: freebind"];
        assert_eq!(plan.keep_running_values(&mut changed()), keys);
        let next = plan.reload(changed(), &Meter::new()).unwrap();
        assert_eq!(next.config.drain_timeout, plan.config.drain_timeout);
        assert!(!next.config.listeners[0].freebind);
        // The second reload of the same file names them again: they are still not in force.
        assert_eq!(next.keep_running_values(&mut changed()), keys);
        assert!(next.keep_running_values(&mut config(listener)).is_empty());
    }

    /// Every key of `[offload]` either follows a reload, or is named in the error.
    #[test]
    fn a_reload_of_offload_follows_or_names_the_key() {
        let listener = "[[listener]]\naddress = \"127.0.0.1:1\"\n";
        let plan = Plan::new(config(listener), &mut KnownServers::default()).unwrap();
        let fixed = |key: &str, value: &str| {
            let text = format!("offload = {{ {key} = {value} }}\n{listener}");
            plan.fixed_offload(&config(&text))
        };
        for (key, value) in
            [("deadline", "\"2s\""), ("linger", "\"3s\""), ("idle_return", "\"9s\"")]
        {
            assert_eq!(fixed(key, value), None, "{key}");
        }
        for (key, value) in [
            ("interface", "\"eth7\""),
            ("journal", "\"/run/x\""),
            ("lease", "\"20s\""),
            ("flows_max", "7"),
            ("steering", "\"tc\""),
            ("hold_bytes_max", "\"1MiB\""),
        ] {
            assert_eq!(fixed(key, value), Some(&*format!("offload.{key}")), "{key}");
        }
    }

    #[test]
    fn files_that_are_not_there_are_named() {
        let text = "[[listener]]\naddress = \"127.0.0.1:1\"\n\
                    tls = { certificate = \"/nowhere/a.crt\", key = \"/nowhere/a.key\" }\n";
        let error = Plan::new(config(text), &mut KnownServers::default()).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("listener 127.0.0.1:1: tls: /nowhere/a.crt"), "{message}");
    }
}
