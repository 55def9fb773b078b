//! Configuration of `unlade copyd`. Each missing key has a safe default.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use unlade_config::{ByteSize, SettingsError};
use unlade_copy_kernels::regions::REGIONS_MAX;
use unlade_copy_scheduler::share::{WEIGHT_DEFAULT, WEIGHT_MAX};
use unlade_runtime::logs::LogConfig;

use crate::config::{Config, Polling, Units};
use crate::service::{CLIENTS_MAX, THREADS_MAX};

/// Maximum of `region_bytes_max`: 1 TiB.
pub const REGION_BYTES_CEILING: u64 = 1 << 40;
/// Maximum of `sockets_max`.
pub const SOCKETS_CEILING: u16 = 1024;
/// Maximum length of the socket's path.
const SOCKET_BYTES_MAX: usize = 100;
/// Permission bits of a file mode.
const MODE_MAX: u32 = 0o777;

/// The file given to `unlade copyd --config`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// Socket path for clients.
    pub socket: PathBuf,
    /// File mode of the socket, as for chmod; `allow` lists the permitted clients.
    pub mode: u32,
    /// Address of `/metrics` and `/healthz`; without it there is no admin endpoint.
    pub admin: Option<SocketAddr>,
    /// Minimum number of copy threads.
    pub threads_min: usize,
    /// Maximum number of copy threads.
    pub threads_max: usize,
    /// Load below which a thread ends if the others can do its work.
    pub low_load_percent: u8,
    /// Load above which another thread starts.
    pub high_load_percent: u8,
    /// Time for which a load condition must hold.
    #[serde(with = "unlade_config::duration")]
    pub scale_after: Duration,
    /// Devices that copy in addition to the processor.
    pub units: UnitsConfig,
    /// Number of bytes copied for a client before the next client's turn.
    pub slice_bytes: ByteSize,
    /// Number of bytes after which progress is reported and new tasks are polled.
    pub run_bytes: ByteSize,
    /// Sleep policy of an idle thread.
    pub polling: PollingConfig,
    /// Maximum duration of one sleep.
    #[serde(with = "unlade_config::duration")]
    pub sleep_max: Duration,
    /// Maximum number of connected clients.
    pub clients_max: usize,
    /// Maximum number of regions of a client.
    pub regions_max: u16,
    /// Maximum number of bytes in all regions of a client.
    pub region_bytes_max: ByteSize,
    /// Maximum number of sockets of a client; 0 for none.
    pub sockets_max: u16,
    /// Maximum time from a client's connection to its QUEUE message.
    #[serde(with = "unlade_config::duration")]
    pub hello_timeout: Duration,
    /// Permitted clients.
    pub allow: Allow,
    /// Weights of the clients.
    pub weights: Weights,
    /// Format and level of the log.
    pub log: LogConfig,
}

/// As [`Polling`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollingConfig {
    /// Sleep after a polling time that adapts to recent waits.
    #[default]
    Adaptive,
    /// Never sleep; this needs a core per thread.
    Always,
}

/// As [`Units`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnitsConfig {
    /// All devices that are found at the start.
    #[default]
    Auto,
    /// No devices.
    None,
}

/// The `[allow]` table: users and primary groups that are permitted in addition to the daemon's
/// own user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Allow {
    /// Users.
    pub uids: Vec<u32>,
    /// Groups.
    pub gids: Vec<u32>,
}

/// The `[weights]` table, such as `uid.1000 = 300`. A user's weight has precedence over its
/// group's, which has precedence over its cgroup's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// By user.
    pub uid: BTreeMap<String, u32>,
    /// By group.
    pub gid: BTreeMap<String, u32>,
    /// Use `cpu.weight` of the client's cgroup (version 2) for all others.
    pub cgroup: bool,
    /// Default for clients without any of these.
    pub default: u32,
}

impl Default for Weights {
    fn default() -> Weights {
        let (uid, gid) = (BTreeMap::new(), BTreeMap::new());
        Weights { uid, gid, cgroup: true, default: WEIGHT_DEFAULT }
    }
}

impl Default for DaemonConfig {
    fn default() -> DaemonConfig {
        let service = Config::default();
        DaemonConfig {
            socket: PathBuf::from(super::SOCKET),
            mode: 0o666,
            admin: None,
            threads_min: service.threads_min,
            threads_max: service.threads_max,
            low_load_percent: service.low_load_percent,
            high_load_percent: service.high_load_percent,
            scale_after: service.scale_after,
            units: UnitsConfig::Auto,
            slice_bytes: ByteSize(service.slice_bytes),
            run_bytes: ByteSize(service.run_bytes),
            polling: PollingConfig::Adaptive,
            sleep_max: service.sleep_max,
            clients_max: 256,
            regions_max: 64,
            region_bytes_max: ByteSize(4 << 30),
            sockets_max: 64,
            hello_timeout: Duration::from_secs(5),
            allow: Allow::default(),
            weights: Weights::default(),
            log: LogConfig::default(),
        }
    }
}

/// Error in a configuration, for the operator to resolve.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or does not parse.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A value is out of range.
    #[error("{key} = {value} is outside {allowed}; correct it, or leave it out for the default")]
    Range {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The allowed range.
        allowed: String,
    },
    /// A reload tried to change a value that is fixed at the start.
    #[error("{key} cannot be changed by a reload; restart the copy daemon")]
    Fixed {
        /// The key.
        key: &'static str,
    },
}

/// Checks that a number is between 1 and `most`.
fn within(key: impl Into<String>, value: u64, most: u64) -> Result<(), ConfigError> {
    match (1..=most).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::Range {
            key: key.into(),
            value: value.to_string(),
            allowed: format!("1 to {most}"),
        }),
    }
}

impl DaemonConfig {
    /// Reads and checks a file; paths in it become relative to its directory.
    ///
    /// # Errors
    /// The file cannot be read, has an unknown key, or has a value out of range.
    pub fn load(path: &Path) -> Result<DaemonConfig, ConfigError> {
        let mut config: DaemonConfig = unlade_config::load(path)?;
        // join() leaves an absolute path unchanged.
        config.socket = path.parent().unwrap_or(Path::new("")).join(&config.socket);
        config.check().map(|()| config)
    }

    /// Checks the ranges of all values.
    ///
    /// # Errors
    /// [`ConfigError::Range`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let path_bytes = self.socket.as_os_str().len() as u64;
        within("the length of socket", path_bytes, SOCKET_BYTES_MAX as u64)?;
        within("mode", self.mode.into(), MODE_MAX.into())?;
        within("threads_max", self.threads_max as u64, THREADS_MAX as u64)?;
        within("threads_min", self.threads_min as u64, self.threads_max as u64)?;
        within("high_load_percent", self.high_load_percent.into(), 100)?;
        within("low_load_percent", self.low_load_percent.into(), self.high_load_percent.into())?;
        within("scale_after in ms", self.scale_after.as_millis() as u64, 60_000)?;
        within("clients_max", self.clients_max as u64, CLIENTS_MAX as u64)?;
        within("regions_max", self.regions_max.into(), REGIONS_MAX.into())?;
        within("region_bytes_max", self.region_bytes_max.bytes(), REGION_BYTES_CEILING)?;
        if self.sockets_max > 0 {
            within("sockets_max", self.sockets_max.into(), SOCKETS_CEILING.into())?;
        }
        within("slice_bytes", self.slice_bytes.bytes(), 1 << 30)?;
        within("run_bytes", self.run_bytes.bytes(), self.slice_bytes.bytes())?;
        within("sleep_max in ms", self.sleep_max.as_millis() as u64, 60_000)?;
        within("hello_timeout in ms", self.hello_timeout.as_millis() as u64, 3_600_000)?;
        within("weights.default", self.weights.default.into(), WEIGHT_MAX.into())?;
        for (kind, table) in [("uid", &self.weights.uid), ("gid", &self.weights.gid)] {
            for (id, weight) in table {
                let key = format!("weights.{kind}.{id}");
                if id.parse::<u32>().is_err() {
                    let allowed = format!("weights.{kind}.NUMBER");
                    return Err(ConfigError::Range { key, value: weight.to_string(), allowed });
                }
                within(key, (*weight).into(), WEIGHT_MAX.into())?;
            }
        }
        Ok(())
    }

    /// Checks that this configuration can replace `running` without a restart.
    ///
    /// # Errors
    /// [`ConfigError::Fixed`].
    pub fn check_reload(&self, running: &DaemonConfig) -> Result<(), ConfigError> {
        let fixed = [
            ("socket", self.socket != running.socket),
            ("mode", self.mode != running.mode),
            ("admin", self.admin != running.admin),
            ("log", self.log != running.log),
            (
                "threads_min, threads_max, low_load_percent, high_load_percent, scale_after, units, \
                 slice_bytes, run_bytes, polling or sleep_max",
                self.service() != running.service(),
            ),
        ];
        match fixed.into_iter().find(|(_, differs)| *differs) {
            Some((key, _)) => Err(ConfigError::Fixed { key }),
            None => Ok(()),
        }
    }

    /// Returns the configuration of the service's threads.
    pub fn service(&self) -> Config {
        Config {
            threads_min: self.threads_min,
            threads_max: self.threads_max,
            low_load_percent: self.low_load_percent,
            high_load_percent: self.high_load_percent,
            scale_after: self.scale_after,
            units: match self.units {
                UnitsConfig::Auto => Units::Auto,
                UnitsConfig::None => Units::None,
            },
            slice_bytes: self.slice_bytes.bytes(),
            run_bytes: self.run_bytes.bytes(),
            polling: match self.polling {
                PollingConfig::Adaptive => Polling::Adaptive,
                PollingConfig::Always => Polling::Always,
            },
            sleep_max: self.sleep_max,
            ..Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DaemonConfig, String> {
        let config: DaemonConfig =
            unlade_config::parse(text, "copyd.toml").map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn an_empty_file_is_a_configuration() {
        assert_eq!(parse(""), Ok(DaemonConfig::default()));
    }

    #[test]
    fn every_key_can_be_set() {
        let text = r#"
            socket = "/tmp/copyd.sock"
            mode = 0o660
            admin = "127.0.0.1:9900"
            threads_min = 1
            threads_max = 2
            low_load_percent = 20
            high_load_percent = 90
            scale_after = "1s"
            units = "none"
            slice_bytes = "256KiB"
            run_bytes = "16KiB"
            polling = "always"
            sleep_max = "50ms"
            clients_max = 10
            regions_max = 8
            region_bytes_max = "1GiB"
            sockets_max = 0
            hello_timeout = "2s"
            [allow]
            uids = [1000]
            gids = [100, 101]
            [weights]
            uid.1000 = 300
            gid.100 = 50
            cgroup = false
            default = 10
            [log]
            format = "json"
        "#;
        let config = parse(text).unwrap();
        assert_eq!((config.mode, config.threads_max), (0o660, 2));
        assert_eq!(config.weights.uid.get("1000"), Some(&300));
        let service = config.service();
        assert_eq!((service.polling, service.units), (Polling::Always, Units::None));
        assert_eq!((service.low_load_percent, service.high_load_percent), (20, 90));
        assert_eq!(service.scale_after, Duration::from_secs(1));
    }

    #[test]
    fn an_invalid_value_is_named() {
        for (text, named) in [
            ("threads_max = 0", "threads_max"),
            ("threads_min = 2", "threads_min"),
            ("thread_min = 1", "did you mean `threads_min`"),
            ("low_load_percent = 85", "low_load_percent"),
            ("high_load_percent = 101", "high_load_percent"),
            ("scale_after = \"2min\"", "scale_after"),
            ("units = \"all\"", "units"),
            ("mode = 0o1777", "mode"),
            ("regions_max = 1000", "regions_max"),
            ("sockets_max = 1025", "sockets_max"),
            ("weights.uid.1000 = 0", "weights.uid.1000"),
            ("weights.uid.root = 5", "weights.uid.root"),
            ("weights.default = 20000", "weights.default"),
            ("run_bytes = \"2GiB\"", "run_bytes"),
            ("sleep = \"1s\"", "sleep"),
            ("polling = \"never\"", "polling"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_reload_changes_limits_and_weights_only() {
        let running = DaemonConfig::default();
        let limits = DaemonConfig { clients_max: 3, ..running.clone() };
        assert!(limits.check_reload(&running).is_ok());
        for other in [
            DaemonConfig { threads_max: 2, ..running.clone() },
            DaemonConfig { units: UnitsConfig::None, ..running.clone() },
        ] {
            assert!(matches!(other.check_reload(&running), Err(ConfigError::Fixed { .. })));
        }
    }
}
