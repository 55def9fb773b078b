//! Configuration: the namespaces, and all limits. Every absent key has a safe default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use unlade_config::{ByteSize, SettingsError};
use unlade_nvme_wire::Digests;
use unlade_nvme_wire::fabrics::{DISCOVERY_NQN, Nqn, NqnError};
use unlade_runtime::logs::LogConfig;
use uuid::Uuid;

/// Largest number of namespaces of a target.
pub const NAMESPACES_MAX: usize = 256;
/// Largest number of I/O queues of a controller.
pub const QUEUES_MAX: u16 = 64;
/// Largest number of entries of a queue.
pub const QUEUE_DEPTH_MAX: u16 = 1024;
/// Smallest number of entries of the admin queue that a target must offer (NVMe Base §6.3).
pub const ADMIN_QUEUE_DEPTH: u16 = 32;
/// Largest number of concurrent controllers.
pub const CONTROLLERS_MAX: u16 = 1024;
/// Largest data in a capsule of the admin queue, bytes (NVMe/TCP §3.3.2).
pub const ADMIN_CAPSULE_BYTES: usize = 8192;
/// Largest configurable data in any capsule, bytes.
pub const CAPSULE_BYTES_CEILING: u64 = 64 << 10;
/// Largest configurable data of a command, bytes.
pub const TRANSFER_BYTES_CEILING: u64 = 16 << 20;
/// Largest memory of one namespace, bytes.
pub const RAM_BYTES_CEILING: u64 = 1 << 40;

/// The file given to `unlade nvme target --config`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetConfig {
    /// Address of the listener for hosts.
    pub listen: SocketAddr,
    /// Address of `/metrics` and `/healthz`; not served if absent.
    pub admin: Option<SocketAddr>,
    /// The subsystem's name; if absent, it is derived from the namespaces
    /// ([`TargetConfig::identified`]).
    pub nqn: Option<String>,
    /// The namespaces, numbered from 1.
    pub namespaces: Vec<NamespaceConfig>,
    /// Number of threads; connections are spread over them.
    pub workers: usize,
    /// Largest number of concurrent connections.
    pub connections_max: usize,
    /// Largest number of concurrent controllers (associations).
    pub controllers_max: u16,
    /// I/O queues of a controller.
    pub queues: u16,
    /// Entries of an I/O queue.
    pub queue_depth: u16,
    /// Largest data in a capsule of an I/O queue.
    pub in_capsule_bytes: ByteSize,
    /// Largest data of a command (MDTS): a power of two, at least 4 KiB.
    pub transfer_bytes_max: ByteSize,
    /// Largest data in one PDU of a host (MAXH2CDATA).
    pub host_data_bytes_max: ByteSize,
    /// Largest data of one R2T.
    pub request_bytes_max: ByteSize,
    /// Outstanding R2Ts of one command; the host may allow fewer.
    pub requests_max: u32,
    /// Largest data in one PDU to a host.
    pub send_bytes_max: ByteSize,
    /// Largest data of a connection's commands in memory; further commands wait.
    pub in_flight_bytes_max: ByteSize,
    /// True if hosts may use header digests.
    pub header_digest: bool,
    /// True if hosts may use data digests.
    pub data_digest: bool,
    /// Time limit from a connection to its Connect command.
    #[serde(with = "unlade_config::duration")]
    pub connect_timeout: Duration,
    /// Time limit for running commands at shutdown.
    #[serde(with = "unlade_config::duration")]
    pub drain_timeout: Duration,
    /// Format and level of the log.
    pub log: LogConfig,
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 4420)),
            admin: None,
            nqn: None,
            namespaces: Vec::new(),
            workers: unlade_runtime::workers::cores(),
            connections_max: 1024,
            controllers_max: 64,
            queues: 8,
            queue_depth: 128,
            in_capsule_bytes: ByteSize(8 << 10),
            transfer_bytes_max: ByteSize(1 << 20),
            host_data_bytes_max: ByteSize(256 << 10),
            request_bytes_max: ByteSize(1 << 20),
            requests_max: 4,
            send_bytes_max: ByteSize(256 << 10),
            in_flight_bytes_max: ByteSize(16 << 20),
            header_digest: true,
            data_digest: true,
            connect_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            log: LogConfig::default(),
        }
    }
}

/// One namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceConfig {
    /// A file or block device, or `ram:SIZE`.
    pub source: Source,
    /// Bytes of a block: 512 or 4096.
    #[serde(default = "block_bytes_default")]
    pub block_bytes: u32,
    /// True to refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Its identity; if absent, one that is kept beside the image, or for memory a random one.
    #[serde(default)]
    pub uuid: Option<Identity>,
}

fn block_bytes_default() -> u32 {
    4096
}

/// The configured identity of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Identity {
    /// A new one in each process.
    Random,
    /// This one.
    Fixed(Uuid),
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Identity, String> {
        if text == "random" {
            return Ok(Identity::Random);
        }
        match Uuid::parse_str(text) {
            Ok(uuid) if uuid.is_nil() || uuid.is_max() => {
                Err(format!("{uuid} is a reserved UUID; leave uuid out, and one is chosen"))
            }
            Ok(uuid) => Ok(Identity::Fixed(uuid)),
            Err(error) => Err(format!("a uuid, or \"random\": {error}")),
        }
    }
}

impl TryFrom<String> for Identity {
    type Error = String;

    fn try_from(text: String) -> Result<Identity, String> {
        text.parse()
    }
}

/// The storage of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Source {
    /// Memory of this size, zeroed at first.
    Ram(ByteSize),
    /// A file or a block device.
    File(PathBuf),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text.strip_prefix("ram:") {
            Some(size) => {
                let size = ByteSize::from_str(size).map_err(|error| error.to_string())?;
                Ok(Source::Ram(size))
            }
            None if text.is_empty() => Err("a namespace is a file, or ram:SIZE".to_owned()),
            None => Ok(Source::File(PathBuf::from(text))),
        }
    }
}

impl TryFrom<String> for Source {
    type Error = String;

    fn try_from(text: String) -> Result<Source, String> {
        text.parse()
    }
}

/// An error in a configuration, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or does not parse.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The subsystem's name is invalid.
    #[error("nqn = {name:?}: {error}; a name such as nqn.2026-01.com.example:disk is good")]
    Name {
        /// The configured name.
        name: String,
        /// The error.
        #[source]
        error: NqnError,
    },
    /// The name is reserved for discovery subsystems.
    #[error(
        "nqn = {DISCOVERY_NQN:?} is reserved for discovery, which is always served; choose another"
    )]
    Discovery,
    /// There is no namespace.
    #[error("no namespace; give at least one, such as disk.img or ram:1GiB")]
    NoNamespace,
    /// A value is out of its range.
    #[error("{key} = {value} is outside {allowed}; correct it, or leave it out for the default")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The allowed range.
        allowed: String,
    },
    /// A running process cannot change its configuration.
    #[error("a target cannot be reloaded: hosts know its namespaces and limits; restart it")]
    Fixed,
}

fn within(key: &'static str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::Range { key, value, allowed: format!("{least} to {most}") }),
    }
}

/// Parses a name.
///
/// # Errors
/// The name is invalid.
pub(crate) fn parse_name(name: &str) -> Result<Nqn, ConfigError> {
    Nqn::new(name).map_err(|error| ConfigError::Name { name: name.to_owned(), error })
}

impl TargetConfig {
    /// Reads and checks a file; paths in it become relative to its directory.
    ///
    /// # Errors
    /// The file cannot be read, has an unknown key, or a value outside its range.
    pub fn load(path: &Path) -> Result<TargetConfig, ConfigError> {
        let config = TargetConfig::read(path)?;
        config.check().map(|()| config)
    }

    /// Reads a file without a check of the values: the caller changes some.
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown key.
    pub fn read(path: &Path) -> Result<TargetConfig, ConfigError> {
        let mut config: TargetConfig = unlade_config::load(path)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        for namespace in &mut config.namespaces {
            if let Source::File(file) = &mut namespace.source {
                // join() keeps an absolute path as it is.
                *file = directory.join(&file);
            }
        }
        Ok(config)
    }

    /// Checks all values.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        self.name()?;
        if self.namespaces.is_empty() {
            return Err(ConfigError::NoNamespace);
        }
        within("the number of namespaces", self.namespaces.len() as u64, 1, NAMESPACES_MAX as u64)?;
        for namespace in &self.namespaces {
            namespace.check()?;
        }
        within("workers", self.workers as u64, 1, unlade_runtime::workers::WORKERS_MAX as u64)?;
        within("connections_max", self.connections_max as u64, 1, 65536)?;
        within("controllers_max", self.controllers_max.into(), 1, CONTROLLERS_MAX.into())?;
        within("queues", self.queues.into(), 1, QUEUES_MAX.into())?;
        within("queue_depth", self.queue_depth.into(), 2, QUEUE_DEPTH_MAX.into())?;
        within("in_capsule_bytes", self.in_capsule_bytes.0, 0, CAPSULE_BYTES_CEILING)?;
        within("transfer_bytes_max", self.transfer_bytes_max.0, 4096, TRANSFER_BYTES_CEILING)?;
        self.check_sizes()?;
        within("requests_max", self.requests_max.into(), 1, 16)?;
        within("connect_timeout in ms", self.connect_timeout.as_millis() as u64, 1, 3_600_000)?;
        within("drain_timeout in ms", self.drain_timeout.as_millis() as u64, 1, 3_600_000)
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        let ceiling = TRANSFER_BYTES_CEILING;
        if !self.transfer_bytes_max.0.is_power_of_two() {
            let (key, value) = ("transfer_bytes_max", self.transfer_bytes_max.0);
            let allowed = "the powers of two".to_owned();
            return Err(ConfigError::Range { key, value, allowed });
        }
        for (key, value) in [
            ("host_data_bytes_max", self.host_data_bytes_max),
            ("request_bytes_max", self.request_bytes_max),
            ("send_bytes_max", self.send_bytes_max),
        ] {
            within(key, value.0, 4096, ceiling)?;
            if !value.0.is_multiple_of(4) {
                let allowed = "the multiples of 4".to_owned();
                return Err(ConfigError::Range { key, value: value.0, allowed });
            }
        }
        if !self.in_capsule_bytes.0.is_multiple_of(16) {
            let (key, value) = ("in_capsule_bytes", self.in_capsule_bytes.0);
            return Err(ConfigError::Range { key, value, allowed: "the multiples of 16".into() });
        }
        let least = self.transfer_bytes_max.0.max(CAPSULE_BYTES_CEILING);
        within("in_flight_bytes_max", self.in_flight_bytes_max.0, least, 1 << 32)
    }

    /// The subsystem's name, if it is configured.
    ///
    /// # Errors
    /// The name is invalid, or that of discovery.
    pub fn name(&self) -> Result<Option<Nqn>, ConfigError> {
        match self.nqn.as_deref() {
            Some(DISCOVERY_NQN) => Err(ConfigError::Discovery),
            Some(name) => parse_name(name).map(Some),
            None => Ok(None),
        }
    }

    /// The digests that hosts may use.
    pub fn digests(&self) -> Digests {
        Digests { header: self.header_digest, data: self.data_digest }
    }
}

impl NamespaceConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if ![512, 4096].contains(&self.block_bytes) {
            let (key, value) = ("block_bytes", self.block_bytes.into());
            return Err(ConfigError::Range { key, value, allowed: "512 and 4096".to_owned() });
        }
        match self.source {
            Source::Ram(size) => {
                within("the size of a ram namespace", size.0, 4096, RAM_BYTES_CEILING)
            }
            Source::File(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> TargetConfig {
        let source = "ram:1MiB".parse().unwrap();
        let namespace = NamespaceConfig { source, block_bytes: 512, read_only: false, uuid: None };
        TargetConfig { namespaces: vec![namespace], ..TargetConfig::default() }
    }

    #[test]
    fn defaults_are_valid_once_something_is_served() {
        assert!(matches!(TargetConfig::default().check(), Err(ConfigError::NoNamespace)));
        served().check().unwrap();
    }

    #[test]
    fn sources() {
        assert_eq!("ram:2MiB".parse(), Ok(Source::Ram(ByteSize(2 << 20))));
        assert_eq!("disk.img".parse(), Ok(Source::File("disk.img".into())));
        assert!("ram:much".parse::<Source>().is_err());
        assert!("".parse::<Source>().is_err());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: fn(&mut TargetConfig)| {
            let mut config = served();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refused(|c| c.nqn = Some("disk".into())).contains("nqn."));
        assert!(refused(|c| c.nqn = Some(DISCOVERY_NQN.into())).contains("discovery"));
        assert!(refused(|c| c.namespaces[0].block_bytes = 520).contains("512 and 4096"));
        assert!(refused(|c| c.transfer_bytes_max = ByteSize(5000)).contains("powers of two"));
        assert!(refused(|c| c.in_flight_bytes_max = ByteSize(4096)).contains("in_flight"));
        assert!(refused(|c| c.queue_depth = 1).contains("queue_depth"));
        assert!(refused(|c| c.send_bytes_max = ByteSize(5001)).contains("multiples of 4"));
    }

    #[test]
    fn a_file_names_namespaces_beside_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target.toml");
        let text = "queues = 2\n[[namespaces]]\nsource = \"a.img\"\nblock_bytes = 512\n\
                    [[namespaces]]\nsource = \"ram:1MiB\"\n";
        std::fs::write(&path, text).unwrap();
        let config = TargetConfig::load(&path).unwrap();
        assert_eq!(config.namespaces[0].source, Source::File(directory.path().join("a.img")));
        assert_eq!(config.namespaces[1].block_bytes, 4096);
        std::fs::write(&path, "queue = 2\n").unwrap();
        assert!(TargetConfig::load(&path).unwrap_err().to_string().contains("queues"));
    }
}
