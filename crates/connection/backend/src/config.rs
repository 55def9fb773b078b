//! The configuration of `unlade backend`. Every optional key has a safe default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use unlade_config::{ByteSize, SettingsError};
use unlade_http::HeadLimits;
use unlade_runtime::logs::LogConfig;
use unlade_runtime::workers::{WORKERS_MAX, cores};

/// Largest value of `connections_max` and `adoptions_max`.
pub const CONNECTIONS_CEILING: usize = 1 << 20;
/// Largest value of `open_files_max`, for each worker.
pub const OPEN_FILES_CEILING: usize = 1 << 16;

/// Message for `tls = "nic"` without a device.
const NO_NIC: &str = "tls = \"nic\" needs a [nic] table with a `wire`; or say tls = \"software\"";
/// Message for `tls = "nic"` with an agent on another interface than the device's.
const OTHER_INTERFACE: &str = "with tls = \"nic\" adopted connections go through the device: \
    set `interface` in [agent] to the `tap` of [nic]";

/// Contents of the file given to `unlade backend --config`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendConfig {
    /// Address of `/metrics` and `/healthz`; they are not served by default.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// Address of plain HTTP.
    pub http: SocketAddr,
    /// HTTP over TLS; not served without the table.
    #[serde(default)]
    pub https: Option<HttpsConfig>,
    /// Component that encrypts and decrypts TLS records.
    #[serde(default)]
    pub tls: TlsMode,
    /// The device for `tls = "nic"`.
    #[serde(default)]
    pub nic: Option<NicConfig>,
    /// Control channel for connections that balancers hand over; none are adopted without the
    /// table.
    #[serde(default)]
    pub agent: Option<AgentConfig>,
    /// Directory of the objects, each a file.
    pub root: PathBuf,
    /// Allows PUT and DELETE.
    #[serde(default = "yes")]
    pub writable: bool,
    /// Number of worker threads; by default the number of CPUs available to the process.
    #[serde(default = "cores")]
    pub workers: usize,
    /// Pins each worker to one CPU.
    #[serde(default)]
    pub pin: bool,
    /// Maximum number of open connections that were accepted directly, over all workers.
    #[serde(default = "connections_max")]
    pub connections_max: usize,
    /// Maximum number of open adopted connections, over all workers.
    #[serde(default = "connections_max")]
    pub adoptions_max: usize,
    /// Maximum number of objects that each worker keeps open.
    #[serde(default = "open_files_max")]
    pub open_files_max: usize,
    /// Size limit of an uploaded object.
    #[serde(default = "object_bytes_max")]
    pub object_bytes_max: ByteSize,
    /// Time limit from the first byte of a request's head to its last.
    #[serde(default = "head_timeout", with = "unlade_config::duration")]
    pub head_timeout: Duration,
    /// Time limit between two requests of a connection.
    #[serde(default = "idle_timeout", with = "unlade_config::duration")]
    pub idle_timeout: Duration,
    /// Time limit without a received byte of an upload.
    #[serde(default = "transfer_timeout", with = "unlade_config::duration")]
    pub body_timeout: Duration,
    /// Time limit without an acknowledged byte of a response.
    #[serde(default = "transfer_timeout", with = "unlade_config::duration")]
    pub write_timeout: Duration,
    /// Time limit of a drain.
    #[serde(default = "drain_timeout", with = "unlade_config::duration")]
    pub drain_timeout: Duration,
    /// How long an adopted connection continues without a frame from its balancer.
    #[serde(default = "lease", with = "unlade_config::duration")]
    pub lease: Duration,
    /// Accepted for old files, without effect: the balancer's `offload.idle_return` decides.
    #[serde(default, with = "unlade_config::duration")]
    pub idle_return: Option<Duration>,
    /// Format and level of the log.
    #[serde(default)]
    pub log: LogConfig,
}

/// The `[agent]` table: the control channel, always mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// Address to which balancers connect.
    pub address: SocketAddr,
    /// This server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key of the certificate, PEM.
    pub key: PathBuf,
    /// CA of the trusted balancers, PEM.
    pub ca: PathBuf,
    /// Names of the balancers, for certificates without a role: host names, IP addresses or URIs
    /// among a certificate's subject alternative names. If empty, a balancer's certificate must
    /// have the URI `unlade://role/balancer`.
    #[serde(default)]
    pub balancers: Vec<String>,
    /// Interface of client packets; by default the one that has `address`.
    #[serde(default)]
    pub interface: Option<String>,
    /// Name of this server in logs; `address` by default.
    #[serde(default)]
    pub name: Option<String>,
}

/// The `[https]` table: HTTP over TLS, accepted directly.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpsConfig {
    /// Address of HTTP over TLS; with `tls = "nic"` it is reachable only through the device.
    pub address: SocketAddr,
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key of the certificate, PEM.
    pub key: PathBuf,
}

/// Component that encrypts and decrypts the records of accepted and adopted TLS connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// The worker.
    #[default]
    Software,
    /// The engine of a software NIC, on its own core; the worker if the engine refuses a
    /// connection.
    Nic,
}

/// The `[nic]` table: the software NIC, as `unlade nic run` has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NicConfig {
    /// Name of the TAP device to create for the host's TCP.
    pub tap: String,
    /// Addresses of the TAP device, such as `10.9.0.1/24`.
    pub addresses: Vec<String>,
    /// Routes through the TAP device, such as `10.0.0.0/8` or `10.0.0.0/8@10.9.0.254`.
    pub routes: Vec<String>,
    /// Network side of the device: `tap:NAME@NETNS`, `tap:NAME` or `packet:INTERFACE`.
    pub wire: String,
    /// MTU in bytes.
    pub mtu_bytes: u32,
    /// Impairment of the wire, such as `loss=2%,reorder=2%,duplicate=1%,seed=7`.
    pub impair: String,
    /// File to which frames on the wire are written.
    pub pcap: Option<PathBuf>,
    /// CPU to which the engine is pinned.
    pub engine_core: Option<usize>,
}

impl Default for NicConfig {
    fn default() -> NicConfig {
        NicConfig {
            tap: "unl0".to_owned(),
            addresses: Vec::new(),
            routes: Vec::new(),
            wire: String::new(),
            mtu_bytes: 1500,
            impair: String::new(),
            pcap: None,
            engine_core: None,
        }
    }
}

fn yes() -> bool {
    true
}

fn connections_max() -> usize {
    16 * 1024
}

fn open_files_max() -> usize {
    1024
}

fn object_bytes_max() -> ByteSize {
    ByteSize(5 << 30)
}

fn head_timeout() -> Duration {
    Duration::from_secs(10)
}

fn idle_timeout() -> Duration {
    Duration::from_secs(60)
}

fn transfer_timeout() -> Duration {
    Duration::from_secs(30)
}

fn drain_timeout() -> Duration {
    Duration::from_secs(30)
}

fn lease() -> Duration {
    Duration::from_secs(5)
}

/// Limits of requests and connections. A reload replaces them for later operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size limits of a request's head.
    pub head: HeadLimits,
    /// Time limit from the first byte of a head to its last.
    pub head_timeout: Duration,
    /// Time limit between two requests.
    pub idle_timeout: Duration,
    /// Time limit without progress of an upload.
    pub body_timeout: Duration,
    /// Time limit without progress of a response.
    pub write_timeout: Duration,
    /// Size limit of an uploaded object.
    pub object_bytes_max: u64,
}

/// Error in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or does not parse.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A value is outside its range.
    #[error("{key} = {value} is outside {allowed}; correct it, or leave it out for the default")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// Values contradict each other.
    #[error("{0}")]
    Together(&'static str),
    /// A reload changes a value that a running process cannot change.
    #[error("{key} cannot be changed by a reload; restart the backend")]
    Fixed {
        /// The key.
        key: &'static str,
    },
}

impl BackendConfig {
    /// Creates the configuration of a server of `root` on `http`, with defaults for the rest.
    pub fn new(http: SocketAddr, root: PathBuf) -> BackendConfig {
        BackendConfig {
            admin: None,
            http,
            https: None,
            tls: TlsMode::Software,
            nic: None,
            agent: None,
            root,
            writable: true,
            workers: cores(),
            pin: false,
            connections_max: connections_max(),
            adoptions_max: connections_max(),
            open_files_max: open_files_max(),
            object_bytes_max: object_bytes_max(),
            head_timeout: head_timeout(),
            idle_timeout: idle_timeout(),
            body_timeout: transfer_timeout(),
            write_timeout: transfer_timeout(),
            drain_timeout: drain_timeout(),
            lease: lease(),
            idle_return: None,
            log: LogConfig::default(),
        }
    }

    /// Reads and checks a file; paths in it become relative to its directory.
    ///
    /// # Errors
    /// The file cannot be read, has an unknown key, or has a value outside its range.
    pub fn load(path: &Path) -> Result<BackendConfig, ConfigError> {
        let mut config: BackendConfig = unlade_config::load(path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        // join() keeps an absolute path as it is.
        config.root = base.join(&config.root);
        if let Some(agent) = &mut config.agent {
            for file in [&mut agent.ca, &mut agent.certificate, &mut agent.key] {
                *file = base.join(&*file);
            }
        }
        if let Some(https) = &mut config.https {
            https.certificate = base.join(&https.certificate);
            https.key = base.join(&https.key);
        }
        if let Some(pcap) = config.nic.as_mut().and_then(|nic| nic.pcap.as_mut()) {
            *pcap = base.join(&*pcap);
        }
        config.check()?;
        Ok(config)
    }

    /// Returns the configured device for TLS records, if `tls = "nic"`.
    ///
    /// # Errors
    /// The device is not configured, or adopted connections would not go through it.
    pub fn device(&self) -> Result<Option<&NicConfig>, ConfigError> {
        if self.tls == TlsMode::Software {
            return Ok(None);
        }
        let Some(nic) = self.nic.as_ref().filter(|nic| !nic.wire.is_empty()) else {
            return Err(ConfigError::Together(NO_NIC));
        };
        let adopts_elsewhere =
            self.agent.as_ref().is_some_and(|agent| agent.interface.as_ref() != Some(&nic.tap));
        match adopts_elsewhere {
            true => Err(ConfigError::Together(OTHER_INTERFACE)),
            false => Ok(Some(nic)),
        }
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// The first value outside its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let number = |key, value: usize, most: usize| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(range(key, value.to_string(), format!("1 to {most}"))),
        };
        number("workers", self.workers, WORKERS_MAX)?;
        number("connections_max", self.connections_max, CONNECTIONS_CEILING)?;
        number("adoptions_max", self.adoptions_max, CONNECTIONS_CEILING)?;
        if self.open_files_max > OPEN_FILES_CEILING {
            let allowed = format!("0 to {OPEN_FILES_CEILING}");
            return Err(range("open_files_max", self.open_files_max.to_string(), allowed));
        }
        self.device()?;
        let timeouts = [
            ("head_timeout", self.head_timeout),
            ("idle_timeout", self.idle_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
            ("drain_timeout", self.drain_timeout),
            ("lease", self.lease),
        ];
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(24 * 3600));
        match timeouts.iter().find(|(_, value)| !(least..=most).contains(value)) {
            Some((key, value)) => Err(range(key, format!("{value:?}"), "1ms to 1day".to_owned())),
            None => Ok(()),
        }
    }

    /// Checks that a reload changes only what a running process can change.
    ///
    /// # Errors
    /// The first key that needs a restart.
    pub fn check_reload(&self, running: &BackendConfig) -> Result<(), ConfigError> {
        self.check()?;
        let fixed = [
            ("admin", self.admin != running.admin),
            ("http", self.http != running.http),
            ("https", self.https != running.https),
            ("tls", self.tls != running.tls),
            ("nic", self.nic != running.nic),
            ("agent", self.agent != running.agent),
            ("root", self.root != running.root),
            ("writable", self.writable != running.writable),
            ("workers", self.workers != running.workers),
            ("pin", self.pin != running.pin),
            ("open_files_max", self.open_files_max != running.open_files_max),
            ("drain_timeout", self.drain_timeout != running.drain_timeout),
            ("log", self.log != running.log),
        ];
        match fixed.iter().find(|(_, changed)| *changed) {
            Some((key, _)) => Err(ConfigError::Fixed { key }),
            None => Ok(()),
        }
    }

    /// Returns the keys that differ from the running configuration, and whose running values stay
    /// in force until a restart. Such a key does not prevent a reload.
    pub fn changed_until_restart(&self, running: &BackendConfig) -> Vec<&'static str> {
        let keys = [
            ("adoptions_max", self.adoptions_max != running.adoptions_max),
            ("lease", self.lease != running.lease),
        ];
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// Logs the given keys that have no effect.
    pub(crate) fn warn_of_ineffective(&self) {
        if self.idle_return.is_some() {
            tracing::warn!(
                key = "idle_return",
                "has no effect: `idle_return` in [offload] of the balancer decides; remove the key"
            );
        }
    }

    /// Returns the limits of connections.
    pub fn limits(&self) -> Limits {
        Limits {
            head: HeadLimits::default(),
            head_timeout: self.head_timeout,
            idle_timeout: self.idle_timeout,
            body_timeout: self.body_timeout,
            write_timeout: self.write_timeout,
            object_bytes_max: self.object_bytes_max.bytes(),
        }
    }
}

fn range(key: &'static str, value: String, allowed: String) -> ConfigError {
    ConfigError::Range { key, value, allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BackendConfig, SettingsError> {
        unlade_config::parse(text, "backend.toml")
    }

    const LEAST: &str = "http = \"127.0.0.1:8080\"\nroot = \"/srv/objects\"\n";

    #[test]
    fn two_lines_are_enough() {
        let config = parse(LEAST).unwrap();
        config.check().unwrap();
        let http = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(config, BackendConfig::new(http, "/srv/objects".into()));
    }

    #[test]
    fn every_key_can_be_said() {
        let config = parse(
            r#"
            admin = "127.0.0.1:9901"
            http = "[::1]:8080"
            root = "objects"
            writable = false
            workers = 3
            pin = true
            connections_max = 10
            adoptions_max = 11
            open_files_max = 0
            object_bytes_max = "64MiB"
            head_timeout = "1s"
            idle_timeout = "2s"
            body_timeout = "3s"
            write_timeout = "4s"
            drain_timeout = "5s"
            lease = "6s"
            idle_return = "700ms"
            tls = "nic"
            [https]
            address = "10.9.0.1:443"
            certificate = "h.crt"
            key = "h.key"
            [nic]
            tap = "unl7"
            addresses = ["10.9.0.1/24"]
            routes = ["10.0.0.0/8@10.9.0.254"]
            wire = "packet:eth0"
            mtu_bytes = 9000
            impair = "loss=1%"
            pcap = "wire.pcap"
            engine_core = 1
            [agent]
            interface = "unl7"
            address = "10.0.0.2:7900"
            certificate = "a.crt"
            key = "a.key"
            ca = "ca.crt"
            balancers = ["lb.example", "10.0.0.3"]
            [log]
            format = "json"
            level = "debug"
            "#,
        )
        .unwrap();
        config.check().unwrap();
        assert_eq!(config.object_bytes_max.bytes(), 64 << 20);
        assert_eq!(config.idle_return, Some(Duration::from_millis(700)));
        assert_eq!(config.agent.unwrap().address.port(), 7900);
    }

    #[test]
    fn a_device_needs_a_wire_and_what_is_adopted_goes_through_it() {
        let said = |more: &str| {
            let config = parse(&format!("tls = \"nic\"\n{LEAST}{more}")).unwrap();
            config.check().map_err(|error| error.to_string())
        };
        assert!(said("").unwrap_err().contains("needs a [nic] table"));
        assert!(said("[nic]\ntap = \"a0\"\n").unwrap_err().contains("`wire`"));
        let nic = "[nic]\nwire = \"packet:eth0\"\n";
        said(nic).unwrap();
        let agent = "[agent]\naddress = \"10.0.0.2:1\"\nca = \"a\"\nkey = \"k\"\n\
                     certificate = \"c\"\n";
        assert!(said(&format!("{agent}{nic}")).unwrap_err().contains("`interface` in [agent]"));
        said(&format!("{agent}interface = \"unl0\"\n{nic}")).unwrap();
        // With `tls = "software"` the [nic] table is not used.
        assert_eq!(parse(&format!("{LEAST}{nic}")).unwrap().device().unwrap(), None);
    }

    #[test]
    fn misspelt_keys_are_named_with_the_nearest() {
        let message = parse(&format!("{LEAST}writeable = true\n")).unwrap_err().to_string();
        assert!(message.contains("backend.toml:3"), "{message}");
        assert!(message.contains("writable"), "{message}");
    }

    #[test]
    fn values_outside_their_range_are_named() {
        let refused = |line: &str| {
            parse(&format!("{LEAST}{line}\n")).unwrap().check().unwrap_err().to_string()
        };
        assert!(refused("workers = 0").starts_with("workers = 0 is outside 1 to "));
        assert!(refused("connections_max = 99999999").starts_with("connections_max"));
        assert!(refused("open_files_max = 99999999").starts_with("open_files_max"));
        assert!(refused("write_timeout = \"0s\"").starts_with("write_timeout"));
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("backend.toml");
        let agent = "[agent]\naddress = \"127.0.0.1:1\"\nca = \"/ca\"\nkey = \"k\"\n";
        let text = format!("http = \"127.0.0.1:0\"\nroot = \"o\"\n{agent}certificate = \"c\"\n");
        std::fs::write(&path, text).unwrap();
        let config = BackendConfig::load(&path).unwrap();
        let agent = config.agent.unwrap();
        assert_eq!(config.root, directory.path().join("o"));
        assert_eq!(agent.key, directory.path().join("k"));
        assert_eq!(agent.ca, Path::new("/ca"));
    }

    #[test]
    fn a_reload_changes_limits_and_nothing_bound_to_the_process() {
        let running = parse(LEAST).unwrap();
        let mut changed = running.clone();
        changed.idle_timeout = Duration::from_secs(5);
        changed.connections_max = 7;
        changed.check_reload(&running).unwrap();
        assert!(changed.changed_until_restart(&running).is_empty());
        changed.adoptions_max = 8;
        changed.lease = Duration::from_secs(9);
        changed.check_reload(&running).unwrap();
        assert_eq!(changed.changed_until_restart(&running), ["adoptions_max", "lease"]);
        changed.root = "/elsewhere".into();
        let message = changed.check_reload(&running).unwrap_err().to_string();
        assert_eq!(message, "root cannot be changed by a reload; restart the backend");
    }
}
