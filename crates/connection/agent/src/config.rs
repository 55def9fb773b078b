//! Configuration of `unlade agent`. Each optional key has a safe default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use unlade_runtime::logs::LogConfig;

use crate::error::AgentError;

/// Largest value of `flows_max`.
pub const FLOWS_CEILING: u32 = 1 << 20;
/// Smallest and largest value of `idle`.
const IDLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));

/// Contents of the file given to `unlade agent --config`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// Interface by which the server's host reaches balancers and clients.
    pub interface: String,
    /// File with the secret that authenticates rules.
    pub key_file: PathBuf,
    /// UDP port to which balancers send rules.
    #[serde(default = "rules_port")]
    pub rules_port: u16,
    /// Maximum number of connections with an entry.
    #[serde(default = "flows_max")]
    pub flows_max: u32,
    /// Time without a rule and without a direct segment after which an entry is removed.
    #[serde(default = "idle", with = "unlade_config::duration")]
    pub idle: Duration,
    /// Address of `/metrics` and `/healthz`; they are not served by default.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// Format and level of the log.
    #[serde(default)]
    pub log: LogConfig,
}

fn rules_port() -> u16 {
    7901
}

fn flows_max() -> u32 {
    65536
}

fn idle() -> Duration {
    Duration::from_secs(600)
}

impl AgentConfig {
    /// Reads and checks a file; paths in it become relative to its directory.
    ///
    /// # Errors
    /// The file cannot be read, has an unknown key, or has a value out of range.
    pub fn load(path: &Path) -> Result<AgentConfig, AgentError> {
        let mut config: AgentConfig = unlade_config::load(path)?;
        // join() leaves an absolute path unchanged.
        config.key_file = path.parent().unwrap_or(Path::new("")).join(&config.key_file);
        config.check().map(|()| config)
    }

    /// Checks the ranges of all values.
    ///
    /// # Errors
    /// [`AgentError::Range`].
    pub fn check(&self) -> Result<(), AgentError> {
        let refused = |key, value, allowed| Err(AgentError::Range { key, value, allowed });
        if self.rules_port == 0 {
            return refused("rules_port", "0".to_owned(), "1 to 65535");
        }
        if !(1..=FLOWS_CEILING).contains(&self.flows_max) {
            return refused("flows_max", self.flows_max.to_string(), "1 to 1048576");
        }
        if !(IDLE.0..=IDLE.1).contains(&self.idle) {
            return refused("idle", format!("{:?}", self.idle), "1s to 1 day");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AgentConfig, String> {
        let config: AgentConfig =
            unlade_config::parse(text, "agent.toml").map_err(|error| error.to_string())?;
        config.check().map(|()| config).map_err(|error| error.to_string())
    }

    #[test]
    fn two_keys_are_enough() {
        let config = parse("interface = \"eth0\"\nkey_file = \"rules.key\"\n").unwrap();
        assert_eq!((config.rules_port, config.flows_max), (7901, 65536));
        assert_eq!((config.idle, config.admin), (Duration::from_secs(600), None));
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_cause() {
        let rest = "interface = \"eth0\"\nkey_file = \"rules.key\"\n";
        for (line, cause) in [
            (
                "rules_prot = 1",
                "agent.toml:3: unknown key `rules_prot`; did you mean `rules_port`?",
            ),
            ("rules_port = 0", "rules_port = 0 is outside 1 to 65535"),
            ("flows_max = 0", "flows_max = 0 is outside 1 to 1048576"),
            ("idle = \"1ms\"", "idle = 1ms is outside 1s to 1 day"),
        ] {
            let error = parse(&format!("{rest}{line}\n")).unwrap_err();
            assert!(error.starts_with(cause), "{error}");
        }
        let error = parse("interface = \"eth0\"\n").unwrap_err();
        assert!(error.contains("key_file"), "{error}");
    }
}
