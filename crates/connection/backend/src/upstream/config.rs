//! The table `[sidecar]` of `agent.toml`. Every optional key has a safe default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use unlade_channel::trust::TrustFiles;
use unlade_http::HeadLimits;
use unlade_runtime::workers::{WORKERS_MAX, cores};

use super::address::UpstreamAddress;
use super::pool::UpstreamSettings;
use crate::config::{CONNECTIONS_CEILING, ConfigError, Limits};

/// Largest value of `upstream_idle_max`.
pub const IDLE_CEILING: usize = 1 << 16;

/// Message for a table that names no local server.
const NO_UPSTREAM: &str = "[sidecar] names no local server; \
    add `upstream = \"http://127.0.0.1:8080\"` to it, or say --upstream";

/// Adoption of connections beside a local server, to which their requests are forwarded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SidecarConfig {
    /// The local server; required unless the command line names it.
    #[serde(default)]
    pub upstream: Option<UpstreamAddress>,
    /// Address of the control channel, to which balancers connect.
    pub address: SocketAddr,
    /// This host's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key of the certificate, PEM.
    pub key: PathBuf,
    /// CA of the trusted balancers, PEM.
    pub ca: PathBuf,
    /// Names of the balancers; see [`AgentConfig::balancers`](crate::config::AgentConfig::balancers).
    #[serde(default)]
    pub balancers: Vec<String>,
    /// Interface of client packets; by default the one that has `address`.
    #[serde(default)]
    pub interface: Option<String>,
    /// Name of this host in logs; `address` by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Begins each connection to the local server with a header of the PROXY protocol, version 2.
    /// Each then serves one client.
    #[serde(default)]
    pub proxy_protocol: bool,
    /// Number of worker threads; by default the number of CPUs available to the process.
    #[serde(default = "cores")]
    pub workers: usize,
    /// Maximum number of open adopted connections, over all workers.
    #[serde(default = "adoptions_max")]
    pub adoptions_max: usize,
    /// Maximum number of idle connections to the local server, of each worker.
    #[serde(default = "upstream_idle_max")]
    pub upstream_idle_max: usize,
    /// Time after which an idle connection to the local server is closed.
    #[serde(default = "thirty_seconds", with = "unlade_config::duration")]
    pub upstream_idle_timeout: Duration,
    /// Time limit of a connection to the local server.
    #[serde(default = "connect_timeout", with = "unlade_config::duration")]
    pub connect_timeout: Duration,
    /// Time limit from the end of a request to the head of its response.
    #[serde(default = "response_timeout", with = "unlade_config::duration")]
    pub response_timeout: Duration,
    /// Time limit from the first byte of a request's head to its last.
    #[serde(default = "head_timeout", with = "unlade_config::duration")]
    pub head_timeout: Duration,
    /// Time limit without a byte of a request's or a response's body.
    #[serde(default = "thirty_seconds", with = "unlade_config::duration")]
    pub body_timeout: Duration,
    /// Time limit without an acknowledged byte of a response.
    #[serde(default = "thirty_seconds", with = "unlade_config::duration")]
    pub write_timeout: Duration,
    /// Time limit of a drain.
    #[serde(default = "thirty_seconds", with = "unlade_config::duration")]
    pub drain_timeout: Duration,
    /// How long an adopted connection continues without a frame from its balancer.
    #[serde(default = "lease", with = "unlade_config::duration")]
    pub lease: Duration,
}

fn adoptions_max() -> usize {
    16 * 1024
}

fn upstream_idle_max() -> usize {
    64
}

fn connect_timeout() -> Duration {
    Duration::from_secs(3)
}

fn response_timeout() -> Duration {
    Duration::from_secs(60)
}

fn head_timeout() -> Duration {
    Duration::from_secs(10)
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

fn lease() -> Duration {
    Duration::from_secs(5)
}

impl SidecarConfig {
    /// Makes the paths of files relative to `base`.
    pub fn resolve(&mut self, base: &Path) {
        for file in [&mut self.ca, &mut self.certificate, &mut self.key] {
            // join() keeps an absolute path as it is.
            *file = base.join(&*file);
        }
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// The first value outside its range, or no local server.
    pub fn check(&self) -> Result<(), ConfigError> {
        let range = |key, value: String, allowed| Err(ConfigError::Range { key, value, allowed });
        let numbers = [
            ("sidecar.workers", self.workers, 1, WORKERS_MAX),
            ("sidecar.adoptions_max", self.adoptions_max, 1, CONNECTIONS_CEILING),
            ("sidecar.upstream_idle_max", self.upstream_idle_max, 0, IDLE_CEILING),
        ];
        for (key, value, least, most) in numbers {
            if !(least..=most).contains(&value) {
                return range(key, value.to_string(), format!("{least} to {most}"));
            }
        }
        let timeouts = [
            ("sidecar.upstream_idle_timeout", self.upstream_idle_timeout),
            ("sidecar.connect_timeout", self.connect_timeout),
            ("sidecar.response_timeout", self.response_timeout),
            ("sidecar.head_timeout", self.head_timeout),
            ("sidecar.body_timeout", self.body_timeout),
            ("sidecar.write_timeout", self.write_timeout),
            ("sidecar.drain_timeout", self.drain_timeout),
            ("sidecar.lease", self.lease),
        ];
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(24 * 3600));
        if let Some((key, value)) =
            timeouts.iter().find(|(_, value)| !(least..=most).contains(value))
        {
            return range(key, format!("{value:?}"), "1ms to 1day".to_owned());
        }
        self.upstream().map(drop)
    }

    /// Returns the settings of the connections to the local server.
    ///
    /// # Errors
    /// No local server is named.
    pub fn upstream(&self) -> Result<UpstreamSettings, ConfigError> {
        let address = self.upstream.clone().ok_or(ConfigError::Together(NO_UPSTREAM))?;
        Ok(UpstreamSettings {
            address,
            proxy_protocol: self.proxy_protocol,
            idle_max: self.upstream_idle_max,
            idle_timeout: self.upstream_idle_timeout,
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
        })
    }

    /// Returns the files of the control channel.
    pub fn trust(&self) -> TrustFiles {
        TrustFiles {
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }

    /// Returns the limits of adopted connections. Bodies are forwarded as they come, so their size
    /// has none.
    pub fn limits(&self) -> Limits {
        Limits {
            head: HeadLimits::default(),
            head_timeout: self.head_timeout,
            idle_timeout: self.write_timeout,
            body_timeout: self.body_timeout,
            write_timeout: self.write_timeout,
            object_bytes_max: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str =
        "address = \"10.0.0.21:7900\"\nca = \"/ca\"\ncertificate = \"c\"\nkey = \"k\"\n";

    fn parse(more: &str) -> Result<SidecarConfig, String> {
        let parsed: Result<SidecarConfig, _> =
            unlade_config::parse(&format!("{LEAST}{more}"), "agent.toml");
        let config = parsed.map_err(|error| error.to_string())?;
        config.check().map(|()| config).map_err(|error| error.to_string())
    }

    #[test]
    fn five_keys_are_enough() {
        let mut config = parse("upstream = \"unix:/run/app.sock\"\n").unwrap();
        let settings = config.upstream().unwrap();
        assert_eq!(settings.address, UpstreamAddress::Unix("/run/app.sock".into()));
        assert_eq!((settings.idle_max, settings.proxy_protocol), (64, false));
        config.resolve(Path::new("/etc/unlade"));
        assert_eq!((config.ca, config.key), ("/ca".into(), "/etc/unlade/k".into()));
    }

    #[test]
    fn wrong_values_are_named() {
        let server = "upstream = \"http://127.0.0.1:8080\"\n";
        for (lines, cause) in [
            ("", "[sidecar] names no local server"),
            ("upstream = \"127.0.0.1:8080\"\n", "begins with neither `http://` nor `unix:`"),
            (&format!("{server}workers = 0\n"), "sidecar.workers = 0 is outside 1 to "),
            (&format!("{server}upstream_idle_max = 65537\n"), "sidecar.upstream_idle_max"),
            (&format!("{server}body_timeout = \"0s\"\n"), "sidecar.body_timeout = 0ns"),
            (&format!("{server}connect_timeuot = \"1s\"\n"), "`connect_timeout`"),
        ] {
            let error = parse(lines).unwrap_err();
            assert!(error.contains(cause), "{lines}: {error}");
        }
    }
}
