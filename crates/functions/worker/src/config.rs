//! The configuration of a worker. Every key that is absent has a safe default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use unlade_config::ByteSize;
use unlade_guest_protocol::Layout;
use unlade_runtime::logs::LogConfig;

use crate::config_error::value;
use crate::copies::CopyService;
use crate::cut::ServicesConfig;
use crate::relay::Route;
use crate::store::credentials::CredentialsConfig;
use crate::store::http::{Addressing, Endpoint};
use crate::store::sign::Signer;
use crate::tenant::Limits;
use crate::tls::tls;

pub use crate::config_error::ConfigError;

/// The file given to `unlade fn worker --config`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerConfig {
    /// The socket where the gateway connects.
    pub control: PathBuf,
    /// The address of `/metrics` and `/healthz`; not served if absent.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// The object store.
    pub store: StoreConfig,
    /// Services other than S3; none if absent.
    #[serde(default)]
    pub services: ServicesConfig,
    /// Limits of each instance.
    #[serde(default)]
    pub instance: InstanceConfig,
    /// Limits of all instances together.
    #[serde(default)]
    pub tenant: TenantConfig,
    /// The copies of long bodies.
    #[serde(default)]
    pub copies: CopiesConfig,
    /// The socket of instances with an SDK of their own; not served if absent.
    #[serde(default)]
    pub relay: Option<RelayConfig>,
    /// Longest time of a drain.
    #[serde(default = "drain_timeout", with = "unlade_config::duration")]
    pub drain_timeout: Duration,
    /// Format and level of the log.
    #[serde(default)]
    pub log: LogConfig,
}

fn drain_timeout() -> Duration {
    Duration::from_secs(60)
}

/// How bodies are copied between the memory of functions and the worker's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CopiesConfig {
    /// The copier of long bodies: a service thread or the worker's thread.
    pub service: CopyService,
}

/// TCP for instances that run an SDK of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// Path of the socket file.
    pub path: PathBuf,
    /// Most connections at a time.
    #[serde(default = "relayed_connections")]
    pub connections_max: usize,
}

fn relayed_connections() -> usize {
    1024
}

/// The object store.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// `http://HOST:PORT` or `https://HOST`; the endpoint of AWS if absent.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region that signatures name.
    #[serde(default = "default_region")]
    pub region: String,
    /// The place of the bucket's name in a request.
    #[serde(default)]
    pub addressing: AddressingConfig,
    /// The keys.
    #[serde(default)]
    pub credentials: CredentialsConfig,
    /// A PEM file of trusted certificate authorities; the system's if absent.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// True if bodies are part of the signature; by default they are not where TLS protects them.
    #[serde(default)]
    pub sign_bodies: Option<bool>,
    /// True if large bodies are streamed to the store in `aws-chunked`; the store must support it.
    #[serde(default = "yes")]
    pub stream_bodies: bool,
    /// Timeout of a connection attempt.
    #[serde(default = "minute", with = "unlade_config::duration")]
    pub connect_timeout: Duration,
    /// Timeout of a read or write without progress.
    #[serde(default = "minute", with = "unlade_config::duration")]
    pub read_timeout: Duration,
    /// Most idle connections.
    #[serde(default = "connections")]
    pub idle_connections_max: usize,
    /// Time after which an idle connection is closed.
    #[serde(default = "idle_timeout", with = "unlade_config::duration")]
    pub idle_timeout: Duration,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

fn yes() -> bool {
    true
}

fn minute() -> Duration {
    Duration::from_secs(60)
}

fn idle_timeout() -> Duration {
    Duration::from_secs(15)
}

fn connections() -> usize {
    64
}

/// The place of the bucket's name in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressingConfig {
    /// In the host name at AWS, in the path elsewhere.
    #[default]
    Auto,
    /// In the path.
    Path,
    /// In the host name.
    Virtual,
}

/// Limits of each instance.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceConfig {
    /// Entries of each ring.
    pub ring_entries: u32,
    /// Bytes of each meta arena.
    pub meta_bytes: ByteSize,
    /// Slots for bodies that a function sends.
    pub guest_slots: u32,
    /// Slots for bodies that a function receives.
    pub host_slots: u32,
    /// Most slots that are lent for one body at a time.
    pub window_slots: u32,
    /// Most calls in flight.
    pub calls_max: usize,
}

impl Default for InstanceConfig {
    fn default() -> InstanceConfig {
        InstanceConfig {
            ring_entries: 256,
            meta_bytes: ByteSize(512 * 1024),
            // A result has at most 6 MiB, and writes are sent at the same time.
            guest_slots: 104,
            host_slots: 128,
            window_slots: 16,
            calls_max: 128,
        }
    }
}

/// Limits of all instances together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantConfig {
    /// Most calls in flight.
    pub calls_max: usize,
    /// Most bytes of bodies that the worker holds.
    pub held_bytes_max: ByteSize,
    /// The largest body of one call. The limit of S3 is 5 GiB.
    pub body_bytes_max: ByteSize,
    /// The largest body that is buffered in memory as a whole.
    pub staged_bytes_max: ByteSize,
    /// The smallest body that is streamed even if it could be acknowledged early.
    pub stream_bytes_min: ByteSize,
    /// The largest object that is prefetched.
    pub prefetch_bytes_max: ByteSize,
    /// Most bytes of writes that are not durable yet.
    pub dirty_bytes_max: ByteSize,
    /// Most writes that are not durable yet.
    pub pending_writes_max: usize,
    /// Most of those writes that are in flight at a time.
    pub writes_in_flight_max: usize,
    /// The journal of early acknowledgements; without it an acknowledgement waits for durability.
    pub journal: Option<PathBuf>,
    /// Timeout of a call with all of its attempts.
    #[serde(with = "unlade_config::duration")]
    pub call_timeout: Duration,
}

impl Default for TenantConfig {
    fn default() -> TenantConfig {
        TenantConfig {
            calls_max: 4096,
            held_bytes_max: ByteSize(512 << 20),
            body_bytes_max: ByteSize(5 << 30),
            staged_bytes_max: ByteSize(256 << 20),
            stream_bytes_min: ByteSize(8 << 20),
            prefetch_bytes_max: ByteSize(64 << 20),
            dirty_bytes_max: ByteSize(128 << 20),
            pending_writes_max: 4096,
            writes_in_flight_max: 32,
            journal: None,
            call_timeout: Duration::from_secs(300),
        }
    }
}

impl WorkerConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// The error, its place, and the remedy.
    pub fn load(path: &Path) -> Result<WorkerConfig, ConfigError> {
        let config: WorkerConfig = unlade_config::load(path)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what the types cannot express.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn check(&self) -> Result<(), ConfigError> {
        let limits = self.limits();
        limits.layout.header(1).map_err(|error| value("[instance]", error))?;
        if limits.window_slots == 0 || limits.window_slots > limits.layout.host_slots {
            return Err(value("[instance] window_slots", "1 to host_slots"));
        }
        self.services.check()?;
        self.store.parse().map(|_| ())
    }

    /// The route of the relay, if one is configured.
    ///
    /// # Errors
    /// The address of the store is invalid.
    pub fn route(&self) -> Result<Option<Route>, ConfigError> {
        let Some(relay) = &self.relay else { return Ok(None) };
        let (host, port, _) = self.store.parse()?;
        let (path, connections_max) = (relay.path.clone(), relay.connections_max);
        Ok(Some(Route { path, host, port, connections_max }))
    }

    /// The limits of an instance.
    pub fn limits(&self) -> Limits {
        let InstanceConfig { ring_entries, guest_slots, host_slots, .. } = self.instance;
        let meta_bytes = u32::try_from(self.instance.meta_bytes.0).unwrap_or(u32::MAX);
        Limits {
            layout: Layout { ring_entries, meta_bytes, guest_slots, host_slots },
            window_slots: self.instance.window_slots,
            calls_max: self.instance.calls_max,
            body_bytes_max: self.tenant.body_bytes_max.0,
            staged_bytes_max: self.tenant.staged_bytes_max.0,
            stream_bytes_min: self.tenant.stream_bytes_min.0,
            stream_bodies: self.store.stream_bodies,
            prefetch_bytes_max: self.tenant.prefetch_bytes_max.0,
            call_timeout: self.tenant.call_timeout,
            copies: self.copies.service,
        }
    }
}

impl StoreConfig {
    /// The host, the port, and true if the endpoint uses TLS.
    fn parse(&self) -> Result<(String, u16, bool), ConfigError> {
        let aws = format!("https://s3.{}.amazonaws.com", self.region);
        let endpoint = self.endpoint.as_deref().unwrap_or(&aws);
        let wrong = || value("[store] endpoint", "http://HOST[:PORT] or https://HOST[:PORT]");
        let (scheme, rest) = endpoint.split_once("://").ok_or_else(wrong)?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c);
        if rest.is_empty() || !rest.chars().all(is_host) {
            return Err(wrong());
        }
        let usual = if tls { 443 } else { 80 };
        let (host, port) = match rest.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (rest, usual),
        };
        Ok((host.to_owned(), port, tls))
    }

    /// The parameters of the transport.
    ///
    /// # Errors
    /// Keys or certificate authorities are missing.
    pub fn endpoint(&self) -> Result<Endpoint, ConfigError> {
        let (host, port, is_tls) = self.parse()?;
        let keys = self.credentials.keys()?;
        let addressing = match self.addressing {
            AddressingConfig::Path => Addressing::Path,
            AddressingConfig::Virtual => Addressing::VirtualHost,
            AddressingConfig::Auto if host.ends_with(".amazonaws.com") => Addressing::VirtualHost,
            AddressingConfig::Auto => Addressing::Path,
        };
        Ok(Endpoint {
            host,
            by_region: self.endpoint.is_none(),
            port,
            tls: if is_tls { Some(tls(self.ca.as_deref(), "[store] ca")?) } else { None },
            addressing,
            signer: keys.map(|keys| Signer::new(keys, &self.region)),
            signs_bodies: self.sign_bodies.unwrap_or(!is_tls),
            connect_timeout: self.connect_timeout,
            read_timeout: self.read_timeout,
            idle_max: self.idle_connections_max,
            idle_timeout: self.idle_timeout,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<WorkerConfig, ConfigError> {
        let config: WorkerConfig = unlade_config::parse(text, "worker.toml")?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn little_has_to_be_said() {
        let config = parsed("control = \"/run/w\"\n[store]\nendpoint = \"http://[::1]:9000\"\n");
        let config = config.unwrap();
        assert_eq!(config.store.parse().unwrap(), ("[::1]".to_owned(), 9000, false));
        assert_eq!(config.store.credentials, CredentialsConfig::Environment);
        assert_eq!(config.copies.service, CopyService::Auto);
        let aws = parsed("control = \"/run/w\"\n[store]\nregion = \"eu-west-1\"\n").unwrap();
        let due = ("s3.eu-west-1.amazonaws.com".to_owned(), 443, true);
        assert_eq!(aws.store.parse().unwrap(), due);
    }

    #[test]
    fn what_cannot_be_is_said() {
        for wrong in [
            "control = \"/run/w\"\n[store]\nendpoint = \"ftp://a\"\n",
            "control = \"/run/w\"\n[store]\nendpoint = \"http://a/b\"\n",
            "control = \"/run/w\"\n[store]\nendpoint = \"http://a:x\"\n",
            "control = \"/run/w\"\n[store]\n[instance]\nring_entries = 3\n",
            "control = \"/run/w\"\n[store]\n[instance]\nwindow_slots = 0\n",
            "control = \"/run/w\"\n[store]\n[instance]\nhost_slots = 4000000\n",
            "control = \"/run/w\"\n[store]\ncredentials = { from = \"keys\" }\n",
            "control = \"/run/w\"\n[store]\nother = 1\n",
            "control = \"/run/w\"\n[store]\n[copies]\nservice = \"sometimes\"\n",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
