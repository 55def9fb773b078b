//! Configuration of `unlade agent`. Each optional key has a safe default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use unlade_backend::SidecarConfig;
use unlade_backend::sidecar::SidecarError;
use unlade_backend::upstream::address::UpstreamAddress;
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
    /// Interface by which the server's host reaches balancers and clients, for direct return; required
    /// without a sidecar.
    #[serde(default)]
    pub interface: Option<String>,
    /// File with the secret that authenticates rules; required without a sidecar.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
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
    /// Adoption of connections for a local server; none are adopted without the table.
    #[serde(default)]
    pub sidecar: Option<SidecarConfig>,
    /// Format and level of the log.
    #[serde(default)]
    pub log: LogConfig,
}

/// The keys of direct return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectConfig {
    /// Interface by which the server's host reaches balancers and clients.
    pub interface: String,
    /// File with the secret that authenticates rules.
    pub key_file: PathBuf,
    /// UDP port to which balancers send rules.
    pub rules_port: u16,
    /// Maximum number of connections with an entry.
    pub flows_max: u32,
    /// Time after which an unused entry is removed.
    pub idle: Duration,
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
    /// Reads and checks a file; paths in it become relative to its directory. `upstream`, if any, is
    /// the local server in place of that of the file.
    ///
    /// # Errors
    /// The file cannot be read, has an unknown key, lacks a required one, or has a value out of range.
    pub fn load(
        path: &Path,
        upstream: Option<&UpstreamAddress>,
    ) -> Result<AgentConfig, AgentError> {
        let mut config: AgentConfig = unlade_config::load(path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        // join() leaves an absolute path unchanged.
        config.key_file = config.key_file.map(|file| base.join(file));
        if let Some(sidecar) = &mut config.sidecar {
            sidecar.resolve(base);
        }
        if let Some(upstream) = upstream {
            let sidecar = config.sidecar.as_mut().ok_or(AgentError::NoSidecar)?;
            sidecar.upstream = Some(upstream.clone());
        }
        config.check().map(|()| config)
    }

    /// Returns the keys of direct return; None if there is only a sidecar.
    ///
    /// # Errors
    /// [`AgentError::Missing`].
    pub fn direct(&self) -> Result<Option<DirectConfig>, AgentError> {
        match (&self.interface, &self.key_file) {
            (None, None) if self.sidecar.is_some() => Ok(None),
            (None, _) => Err(AgentError::Missing { key: "interface" }),
            (_, None) => Err(AgentError::Missing { key: "key_file" }),
            (Some(interface), Some(key_file)) => Ok(Some(DirectConfig {
                interface: interface.clone(),
                key_file: key_file.clone(),
                rules_port: self.rules_port,
                flows_max: self.flows_max,
                idle: self.idle,
            })),
        }
    }

    /// Checks the ranges of all values, and that no required key is missing.
    ///
    /// # Errors
    /// [`AgentError::Range`], [`AgentError::Missing`], [`AgentError::Sidecar`].
    pub fn check(&self) -> Result<(), AgentError> {
        self.direct()?;
        if let Some(sidecar) = &self.sidecar {
            sidecar.check().map_err(SidecarError::from)?;
        }
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

    const SIDECAR: &str = "[sidecar]\naddress = \"10.0.0.21:7900\"\nca = \"/ca\"\n\
                           certificate = \"c\"\nkey = \"k\"\n";

    #[test]
    fn a_sidecar_needs_no_direct_return_and_may_have_it() {
        let sidecar = format!("{SIDECAR}upstream = \"http://127.0.0.1:8080\"\n");
        let config = parse(&sidecar).unwrap();
        assert_eq!(config.direct().unwrap(), None);
        let both = format!("interface = \"eth0\"\nkey_file = \"k\"\n{sidecar}");
        assert_eq!(parse(&both).unwrap().direct().unwrap().unwrap().interface, "eth0");
        let half = parse(&format!("key_file = \"k\"\n{sidecar}")).unwrap_err();
        assert!(half.contains("the key `interface` is missing"), "{half}");
        let unnamed = parse(SIDECAR).unwrap_err();
        assert!(unnamed.contains("say --upstream"), "{unnamed}");
    }

    #[test]
    fn the_command_line_names_the_local_server() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("agent.toml");
        let upstream: UpstreamAddress = "unix:/run/app.sock".parse().unwrap();
        std::fs::write(&file, SIDECAR).unwrap();
        let config = AgentConfig::load(&file, Some(&upstream)).unwrap();
        let sidecar = config.sidecar.unwrap();
        assert_eq!(sidecar.key, directory.path().join("k"));
        assert_eq!(sidecar.upstream.as_ref(), Some(&upstream));
        std::fs::write(&file, "interface = \"eth0\"\nkey_file = \"k\"\n").unwrap();
        let error = AgentConfig::load(&file, Some(&upstream)).unwrap_err().to_string();
        assert!(error.starts_with("--upstream needs the table [sidecar]"), "{error}");
    }
}
