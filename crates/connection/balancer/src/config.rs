//! The configuration file `lb.toml` as values, and the checks that need more than one value.
//!
//! Every absent key has a safe default; an unknown key is an error. Paths are relative to the
//! directory of the file.

mod direct_return;
mod route;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use direct_return::DirectReturnConfig;
pub use route::{BodyPath, REQUESTS_PER_MIGRATION_DEFAULT, RequestsPerMigration};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use unlade_config::{ByteSize, SettingsError};
use unlade_http::HEAD_BYTES_CEILING;
use unlade_runtime::logs::LogConfig;

use crate::policy::PolicyConfig;

/// Most listeners of a process.
pub const LISTENERS_MAX: usize = 64;
/// Most routes of a process.
pub const ROUTES_MAX: usize = 4096;
/// Most pools of a process.
pub const POOLS_MAX: usize = 256;
/// Most servers of a pool.
pub const SERVERS_MAX: usize = 256;
/// Largest value of `limits.connections_max`: more descriptors than a process can have.
const CONNECTIONS_MAX: usize = 1 << 22;
/// Largest value of `limits.headers_max`.
const HEADERS_MAX: usize = 1000;
/// A whole `lb.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancerConfig {
    /// Address of `/metrics` and `/healthz`; they are not served where it is absent.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// Number of threads; one per CPU where absent.
    #[serde(default)]
    pub workers: Option<usize>,
    /// Keep each worker on one CPU.
    #[serde(default)]
    pub pin_workers: bool,
    /// Method that moves proxied bodies.
    #[serde(default)]
    pub body: BodyPath,
    /// `[[listener]]`: addresses that clients connect to.
    #[serde(default, rename = "listener")]
    pub listeners: Vec<ListenerConfig>,
    /// `[[route]]`: maps requests to pools.
    #[serde(default, rename = "route")]
    pub routes: Vec<RouteConfig>,
    /// `[pool.NAME]`: interchangeable servers.
    #[serde(default, rename = "pool")]
    pub pools: BTreeMap<String, PoolConfig>,
    /// `[offload]`: how connections are handed over.
    #[serde(default)]
    pub offload: OffloadConfig,
    /// `[timeouts]`.
    #[serde(default)]
    pub timeouts: TimeoutsConfig,
    /// `[limits]`.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// `[log]`.
    #[serde(default)]
    pub log: LogConfig,
    /// Longest wait for requests in flight after SIGTERM.
    #[serde(default = "drain_timeout_default", with = "unlade_config::duration")]
    pub drain_timeout: Duration,
    /// The file that this was read from, for SIGHUP and for messages.
    #[serde(skip)]
    pub origin: Option<PathBuf>,
}

fn drain_timeout_default() -> Duration {
    Duration::from_secs(30)
}

/// One address that clients connect to.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerConfig {
    /// IPv4 or IPv6 address and port.
    pub address: SocketAddr,
    /// TLS of the listener, where it has TLS.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Overrides of `[timeouts]` for this listener.
    #[serde(default)]
    pub timeouts: TimeoutsConfig,
    /// Most connections of this listener at a time; `limits.connections_max` holds as well.
    #[serde(default)]
    pub connections_max: Option<usize>,
    /// Listen although no interface has the address yet.
    #[serde(default)]
    pub freebind: bool,
}

/// The identity of a TLS listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file: the certificate, then its issuers.
    pub certificate: PathBuf,
    /// PEM file: the private key.
    pub key: PathBuf,
    /// Oldest protocol accepted.
    #[serde(default)]
    pub min_version: TlsVersion,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum TlsVersion {
    /// RFC 5246, with AEAD suites only.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

/// Maps requests to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Host name (`objects.example`, or `*.example` for every name below); any where absent.
    #[serde(default)]
    pub host: Option<String>,
    /// Start of the path, compared byte by byte as the client sent it.
    #[serde(default = "prefix_default")]
    pub prefix: String,
    /// Name of the pool.
    pub pool: String,
    /// Condition for handing connections to the server.
    #[serde(default)]
    pub offload: OffloadMode,
    /// Number of requests that a server answers before the connection comes home.
    #[serde(default)]
    pub requests_per_migration: RequestsPerMigration,
    /// Protocols that a connection may change to (RFC 9110 §7.8), never HTTP/2. Other offers of
    /// clients are removed, and their requests are answered in HTTP/1.1.
    #[serde(default = "upgrade_default")]
    pub upgrade: Vec<String>,
}

fn upgrade_default() -> Vec<String> {
    vec!["websocket".to_owned()]
}

fn prefix_default() -> String {
    "/".to_owned()
}

/// Condition for handing over the connections of a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OffloadMode {
    /// Proxy everything.
    #[default]
    Off,
    /// Hand over every connection that can be handed over.
    Always,
    /// Hand over where it is expected to cost less than proxying.
    Auto,
}

/// A pool of interchangeable servers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Policy for choosing a server.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// Addresses: `10.0.0.21`, `fd00::21`, or with a port of its own for ordinary proxying,
    /// `10.0.0.21:8081`, `[fd00::21]:8081`.
    pub servers: Vec<ServerAddress>,
    /// Port for ordinary proxying, for servers without a port of their own.
    #[serde(default)]
    pub http_port: Option<u16>,
    /// Port of the servers' agents; without it no connection is handed over.
    #[serde(default)]
    pub agent_port: Option<u16>,
    /// Identities of the mutual TLS between balancer and agents.
    #[serde(default)]
    pub trust: Option<TrustConfig>,
    /// Health checks of the servers.
    #[serde(default)]
    pub health: HealthConfig,
    /// Connections to the servers.
    #[serde(default)]
    pub upstream: UpstreamConfig,
    /// Direct return of responses, for servers whose hosts run `unlade agent`.
    #[serde(default)]
    pub direct_return: Option<DirectReturnConfig>,
    /// The servers' agents seal responses to clients with TLS, so that their bytes pass this balancer as they
    /// are. Needs `agent_port` and `trust`.
    #[serde(default)]
    pub sealing: bool,
}

/// The address of a server, with or without a port of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerAddress {
    /// The address.
    pub ip: IpAddr,
    /// The port for ordinary proxying, where it differs from the pool's `http_port`.
    pub http_port: Option<u16>,
}

impl FromStr for ServerAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(ServerAddress { ip, http_port: None });
        }
        match text.parse::<SocketAddr>() {
            Ok(address) => Ok(ServerAddress { ip: address.ip(), http_port: Some(address.port()) }),
            Err(_) => Err(format!(
                "`{text}` is not a server address; write 10.0.0.21, 10.0.0.21:8080 or [fd00::21]:8080"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for ServerAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Trust between this balancer and the agents of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustConfig {
    /// PEM file: the authority of the pool.
    pub ca: PathBuf,
    /// PEM file: this balancer's certificate.
    pub certificate: PathBuf,
    /// PEM file: this balancer's key.
    pub key: PathBuf,
}

/// Health checks of the servers of a pool.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// Path requested with GET; a 2xx or 3xx response is healthy. A TCP connection is enough where
    /// it is absent.
    pub path: Option<String>,
    /// Time between two checks of a server.
    #[serde(with = "unlade_config::duration")]
    pub interval: Duration,
    /// Longest duration of one check.
    #[serde(with = "unlade_config::duration")]
    pub timeout: Duration,
    /// Consecutive successes that bring a server back.
    pub rise: u32,
    /// Consecutive failures, failed connections of requests included, that take a server out.
    pub fall: u32,
}

impl Default for HealthConfig {
    fn default() -> Self {
        HealthConfig {
            path: None,
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
        }
    }
}

/// Connections to the servers of a pool.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamConfig {
    /// Most requests in flight to one server; a server at the limit is passed over.
    pub requests_max: usize,
    /// Most idle connections that a worker keeps to one server.
    pub idle_max: usize,
    /// Lifetime of an idle connection.
    #[serde(with = "unlade_config::duration")]
    pub idle_timeout: Duration,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        UpstreamConfig { requests_max: 4096, idle_max: 256, idle_timeout: Duration::from_secs(30) }
    }
}

/// `[offload]`: how connections are handed over.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OffloadConfig {
    /// Interface towards clients and servers; where absent, the one that carries the first
    /// listener's address.
    pub interface: Option<String>,
    /// File that records the connections that are away, so that the next balancer resets them if
    /// this one is killed. Default: below /run/unlade, named after interface and network
    /// namespace.
    pub journal: Option<PathBuf>,
    /// Longest time that a connection may stay without an owner after a party died.
    #[serde(with = "unlade_config::duration")]
    pub lease: Duration,
    /// Longest time from the freeze of a connection to its adoption; beyond it the connection is
    /// restored here and proxied.
    #[serde(with = "unlade_config::duration")]
    pub deadline: Duration,
    /// Most connections that are away at a time.
    pub flows_max: u32,
    /// Kernel hook that steers packets.
    pub steering: SteeringConfig,
    /// Most bytes of packets held for all connections between two owners.
    pub hold_bytes_max: ByteSize,
    /// How long the flow entry of a connection that came home is kept, for packets under way.
    #[serde(with = "unlade_config::duration")]
    pub linger: Duration,
    /// How long a server keeps a connection whose client is idle. Where absent it is learnt: as
    /// long as the connection would be kept open, and less the fuller the flow table is.
    #[serde(with = "unlade_config::duration")]
    pub idle_return: Option<Duration>,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        OffloadConfig {
            interface: None,
            journal: None,
            lease: Duration::from_secs(10),
            deadline: Duration::from_secs(1),
            flows_max: 65_536,
            steering: SteeringConfig::Auto,
            hold_bytes_max: ByteSize::mib(64),
            linger: Duration::from_secs(1),
            idle_return: None,
        }
    }
}

/// Kernel hook that steers packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SteeringConfig {
    /// XDP where the driver has it natively, else tc.
    #[default]
    Auto,
    /// The traffic control hook.
    Tc,
    /// The driver's hook.
    Xdp,
}

/// `[timeouts]`, and a listener's overrides of it. An absent value falls back to the next level,
/// finally to [`Timeouts::default`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutsConfig {
    /// Longest TLS handshake.
    #[serde(with = "unlade_config::duration")]
    pub handshake: Option<Duration>,
    /// Longest time from the first byte of a request to the end of its head.
    #[serde(with = "unlade_config::duration")]
    pub head: Option<Duration>,
    /// Longest time without progress of a head.
    #[serde(with = "unlade_config::duration")]
    pub head_stall: Option<Duration>,
    /// Longest idle time between two requests.
    #[serde(with = "unlade_config::duration")]
    pub idle: Option<Duration>,
    /// Longest time without progress of a body, either way.
    #[serde(with = "unlade_config::duration")]
    pub body_stall: Option<Duration>,
    /// Longest time to connect to a server.
    #[serde(with = "unlade_config::duration")]
    pub upstream_connect: Option<Duration>,
    /// Longest time from the end of a request to the head of its response.
    #[serde(with = "unlade_config::duration")]
    pub upstream_response: Option<Duration>,
    /// How long bytes that a client still sends are read and dropped after the last response of a
    /// connection that is closed early.
    #[serde(with = "unlade_config::duration")]
    pub close: Option<Duration>,
    /// Longest time without bytes, in both directions, of a connection that has changed its
    /// protocol.
    #[serde(with = "unlade_config::duration")]
    pub tunnel_idle: Option<Duration>,
}

/// Timeouts in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest TLS handshake.
    pub handshake: Duration,
    /// Longest time from the first byte of a request to the end of its head.
    pub head: Duration,
    /// Longest time without progress of a head.
    pub head_stall: Duration,
    /// Longest idle time between two requests.
    pub idle: Duration,
    /// Longest time without progress of a body, either way.
    pub body_stall: Duration,
    /// Longest time to connect to a server.
    pub upstream_connect: Duration,
    /// Longest time from the end of a request to the head of its response.
    pub upstream_response: Duration,
    /// How long bytes that a client still sends are read and dropped after the last response of a
    /// connection that is closed early.
    pub close: Duration,
    /// Longest time without bytes, in both directions, of a connection that has changed its
    /// protocol.
    pub tunnel_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            head_stall: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            body_stall: Duration::from_secs(30),
            upstream_connect: Duration::from_secs(3),
            upstream_response: Duration::from_secs(60),
            close: Duration::from_secs(2),
            tunnel_idle: Duration::from_secs(600),
        }
    }
}

impl TimeoutsConfig {
    /// Returns these values; absent ones are taken from `below`.
    pub fn over(&self, below: Timeouts) -> Timeouts {
        Timeouts {
            handshake: self.handshake.unwrap_or(below.handshake),
            head: self.head.unwrap_or(below.head),
            head_stall: self.head_stall.unwrap_or(below.head_stall),
            idle: self.idle.unwrap_or(below.idle),
            body_stall: self.body_stall.unwrap_or(below.body_stall),
            upstream_connect: self.upstream_connect.unwrap_or(below.upstream_connect),
            upstream_response: self.upstream_response.unwrap_or(below.upstream_response),
            close: self.close.unwrap_or(below.close),
            tunnel_idle: self.tunnel_idle.unwrap_or(below.tunnel_idle),
        }
    }

    fn all(&self) -> [(&'static str, Option<Duration>); 9] {
        [
            ("handshake", self.handshake),
            ("head", self.head),
            ("head_stall", self.head_stall),
            ("idle", self.idle),
            ("body_stall", self.body_stall),
            ("upstream_connect", self.upstream_connect),
            ("upstream_response", self.upstream_response),
            ("close", self.close),
            ("tunnel_idle", self.tunnel_idle),
        ]
    }
}

/// `[limits]`: resources that one client, and all clients, may use.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Most client connections at a time; connections that are away do not count.
    pub connections_max: usize,
    /// Most connections of one client address (of one /64 network for IPv6).
    pub connections_per_client_max: usize,
    /// Most bytes of a request's head.
    pub head_bytes_max: ByteSize,
    /// Most header fields of a request.
    pub headers_max: usize,
    /// Most bytes of a request's target.
    pub target_bytes_max: ByteSize,
    /// Most bytes of a request's body.
    pub body_bytes_max: ByteSize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        LimitsConfig {
            connections_max: 16_384,
            connections_per_client_max: 4096,
            head_bytes_max: ByteSize::kib(16),
            headers_max: 100,
            target_bytes_max: ByteSize::kib(8),
            body_bytes_max: ByteSize::mib(16 << 10),
        }
    }
}

/// Error of a configuration, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or is not the expected TOML.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A value is invalid, or two values are incompatible.
    #[error("{origin}: {place}: {problem}")]
    Invalid {
        /// The file.
        origin: String,
        /// Table and key.
        place: String,
        /// The problem and its remedy.
        problem: String,
    },
}

impl BalancerConfig {
    /// Reads `path`; paths in it become relative to its directory. Not yet validated.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has keys or values that are not known.
    pub fn load(path: &Path) -> Result<BalancerConfig, ConfigError> {
        let mut config: BalancerConfig = unlade_config::load(path)?;
        config.origin = Some(path.to_owned());
        let base = path.parent().unwrap_or(Path::new(""));
        for file in config.files_mut() {
            // join() keeps an absolute path as it is.
            *file = base.join(&*file);
        }
        Ok(config)
    }

    /// Reads `text` as `lb.toml`; `origin` names it in messages. Not yet validated.
    ///
    /// # Errors
    /// As [`BalancerConfig::load`].
    pub fn parse(text: &str, origin: &str) -> Result<BalancerConfig, ConfigError> {
        Ok(unlade_config::parse(text, origin)?)
    }

    fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let tls = self.listeners.iter_mut().filter_map(|l| l.tls.as_mut());
        let trust = self.pools.values_mut().filter_map(|p| p.trust.as_mut());
        tls.flat_map(|t| [&mut t.certificate, &mut t.key])
            .chain(trust.flat_map(|t| [&mut t.ca, &mut t.certificate, &mut t.key]))
    }

    /// Returns the timeouts of `listener`.
    pub fn timeouts_of(&self, listener: &ListenerConfig) -> Timeouts {
        listener.timeouts.over(self.timeouts.over(Timeouts::default()))
    }

    /// Checks references, duplicates and combinations of values.
    ///
    /// # Errors
    /// The first problem found, with its table and key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check().map_err(|Problem { place, problem }| ConfigError::Invalid {
            origin: self.origin.as_ref().map_or("lb.toml".into(), |p| p.display().to_string()),
            place,
            problem,
        })
    }

    fn check(&self) -> Result<(), Problem> {
        if let Some(workers) = self.workers {
            within("workers", workers, 1, unlade_runtime::workers::WORKERS_MAX)?;
        }
        within("number of [[listener]] tables", self.listeners.len(), 1, LISTENERS_MAX)?;
        within("number of [[route]] tables", self.routes.len(), 1, ROUTES_MAX)?;
        within("number of [pool.…] tables", self.pools.len(), 1, POOLS_MAX)?;
        self.check_timeouts("timeouts", &self.timeouts)?;
        self.check_listeners()?;
        self.check_limits()?;
        self.check_offload()?;
        for (name, pool) in &self.pools {
            pool.check(name)?;
        }
        self.check_routes()
    }

    fn check_timeouts(&self, table: &str, timeouts: &TimeoutsConfig) -> Result<(), Problem> {
        for (key, value) in timeouts.all() {
            if value == Some(Duration::ZERO) {
                return problem(format!("{table}.{key}"), "is zero; leave it out for the default");
            }
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), Problem> {
        let mut seen = BTreeSet::new();
        for listener in &self.listeners {
            let place = format!("listener {}", listener.address);
            // For port 0 the kernel chooses a different port each time.
            if listener.address.port() != 0 && !seen.insert(listener.address) {
                return problem(place, "is defined twice; keep one of the two");
            }
            if listener.connections_max == Some(0) {
                return problem(place, "connections_max is zero; remove the listener instead");
            }
            self.check_timeouts(&format!("{place}: timeouts"), &listener.timeouts)?;
        }
        match self.admin {
            Some(admin) if seen.contains(&admin) => {
                problem("admin", format!("{admin} is a listener's address; give it its own"))
            }
            _ => Ok(()),
        }
    }

    fn check_limits(&self) -> Result<(), Problem> {
        let limits = &self.limits;
        let connections = limits.connections_max;
        within("limits.connections_max", connections, 1, CONNECTIONS_MAX)?;
        let per_client = limits.connections_per_client_max;
        within("limits.connections_per_client_max", per_client, 1, CONNECTIONS_MAX)?;
        let head = limits.head_bytes_max.as_usize();
        within("limits.head_bytes_max", head, 256, HEAD_BYTES_CEILING)?;
        within("limits.headers_max", limits.headers_max, 1, HEADERS_MAX)?;
        let target = limits.target_bytes_max.as_usize();
        within("limits.target_bytes_max", target, 16, head)
    }

    fn check_offload(&self) -> Result<(), Problem> {
        let offload = &self.offload;
        let times = [
            ("lease", Some(offload.lease)),
            ("deadline", Some(offload.deadline)),
            ("idle_return", offload.idle_return),
        ];
        for (key, value) in times {
            if value == Some(Duration::ZERO) {
                return problem(format!("offload.{key}"), "is zero; leave it out for the default");
            }
        }
        if offload.deadline > offload.lease {
            return problem("offload.deadline", "is longer than offload.lease; shorten it");
        }
        if offload.flows_max == 0 {
            return problem("offload.flows_max", "is zero; set `offload = \"off\"` in the routes");
        }
        Ok(())
    }

    fn check_routes(&self) -> Result<(), Problem> {
        let mut seen = BTreeSet::new();
        for route in &self.routes {
            let host = route.host.as_deref().map(str::to_ascii_lowercase);
            let place =
                format!("route host {:?} prefix {:?}", host.as_deref().unwrap_or(""), route.prefix);
            check_host(&place, host.as_deref())?;
            if !is_path(&route.prefix) {
                return problem(place, "the prefix is not the start of a path; begin it with `/`");
            }
            for name in &route.upgrade {
                if !crate::upgrade::is_allowable(&name.to_ascii_lowercase()) {
                    let what = format!(
                        "upgrade: `{name}` is no protocol that can pass; name one like \
                         \"websocket\", without a version (HTTP/2 never passes)"
                    );
                    return problem(place, what);
                }
            }
            if !seen.insert((host, route.prefix.clone())) {
                return problem(place, "is defined twice; keep one of the two");
            }
            let Some(pool) = self.pools.get(&route.pool) else {
                let known = self.pools.keys().map(|n| format!("`{n}`")).collect::<Vec<_>>();
                let known = known.join(", ");
                let what = format!("pool `{}` does not exist; existing pools: {known}", route.pool);
                return problem(place, what);
            };
            if route.offload != OffloadMode::Off {
                pool.check_offload(&place, &route.pool)?;
            }
        }
        Ok(())
    }
}

/// A problem and its place in the file.
struct Problem {
    place: String,
    problem: String,
}

fn problem<T>(place: impl Into<String>, problem: impl Into<String>) -> Result<T, Problem> {
    Err(Problem { place: place.into(), problem: problem.into() })
}

fn within(place: &str, value: usize, min: usize, max: usize) -> Result<(), Problem> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => problem(place, format!("is {value}; use {min} to {max}")),
    }
}

fn check_host(place: &str, host: Option<&str>) -> Result<(), Problem> {
    let Some(host) = host else { return Ok(()) };
    let name = host.strip_prefix("*.").unwrap_or(host);
    let good =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
    if name.is_empty() || !name.chars().all(good) {
        return problem(place, "the host is not a name; write objects.example or *.example");
    }
    let has_port = !name.starts_with('[') && name.contains(':');
    if has_port || name.contains("]:") {
        return problem(place, "the host has a port; leave it out, any port matches");
    }
    Ok(())
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic())
}

impl PoolConfig {
    /// Returns the address of `server` for ordinary proxying. `None`: no port is configured, which
    /// [`BalancerConfig::validate`] refuses.
    pub fn http_address(&self, server: &ServerAddress) -> Option<SocketAddr> {
        Some(SocketAddr::new(server.ip, server.http_port.or(self.http_port)?))
    }

    /// Returns the address of the agent of `server`, in a pool that has agents.
    pub fn agent_address(&self, server: &ServerAddress) -> Option<SocketAddr> {
        Some(SocketAddr::new(server.ip, self.agent_port?))
    }

    fn check(&self, name: &str) -> Result<(), Problem> {
        let place = format!("pool.{name}");
        within(&format!("{place}: number of servers"), self.servers.len(), 1, SERVERS_MAX)?;
        let mut seen = BTreeSet::new();
        for server in &self.servers {
            let Some(address) = self.http_address(server) else {
                let what = format!("server {} has no port; set http_port", server.ip);
                return problem(place, what);
            };
            if address.port() == 0 {
                return problem(place, format!("server {address}: port 0 cannot be connected to"));
            }
            if !seen.insert(address) {
                return problem(place, format!("server {address} is defined twice"));
            }
        }
        if self.agent_port == Some(0) {
            return problem(format!("{place}.agent_port"), "is zero; give the agents' port");
        }
        if self.sealing && (self.agent_port.is_none() || self.trust.is_none()) {
            let what = "needs agent_port and trust = { ca, certificate, key }: the clients' keys go to \
                        the agents, under mutual TLS only; set both, or remove it";
            return problem(format!("{place}.sealing"), what);
        }
        let health = &self.health;
        within(&format!("{place}.health.rise"), health.rise as usize, 1, 1000)?;
        within(&format!("{place}.health.fall"), health.fall as usize, 1, 1000)?;
        if health.interval.is_zero() || health.timeout.is_zero() {
            return problem(format!("{place}.health"), "interval and timeout must not be zero");
        }
        if health.path.as_deref().is_some_and(|path| !is_path(path)) {
            return problem(format!("{place}.health.path"), "is not a path; begin it with `/`");
        }
        within(&format!("{place}.upstream.requests_max"), self.upstream.requests_max, 1, 1 << 20)?;
        within(&format!("{place}.upstream.idle_max"), self.upstream.idle_max, 0, 1 << 16)
    }

    fn check_offload(&self, place: &str, name: &str) -> Result<(), Problem> {
        if self.agent_port.is_none() {
            let what =
                format!("offload needs pool.{name}.agent_port; set it, or offload = \"off\"");
            return problem(place, what);
        }
        if self.trust.is_none() {
            let what = format!(
                "offload needs pool.{name}.trust = {{ ca, certificate, key }}: connections are \
                 handed over under mutual TLS only; set it, or offload = \"off\""
            );
            return problem(place, what);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
