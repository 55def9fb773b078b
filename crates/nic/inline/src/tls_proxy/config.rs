//! The configuration of `unlade nic run`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use unlade_config::SettingsError;
use unlade_runtime::logs::LogConfig;

use crate::impair::{ImpairmentError, Seeded};

/// Largest number of terminators and originators together.
pub const LISTENERS_MAX: usize = 64;
/// Upper limit of the configured number of concurrent connections.
pub const CONNECTIONS_CEILING: usize = 65_536;
/// Longest name of an interface.
const LINK_NAME_BYTES_MAX: usize = 15;

/// The file given to `unlade nic run --config`, or the equivalent flags.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The TAP device that is created for the host's TCP.
    pub tap: String,
    /// Its addresses, such as `10.9.0.1/24`.
    pub addresses: Vec<String>,
    /// Networks behind it, such as `10.0.0.0/8` or `10.0.0.0/8@10.9.0.254`.
    pub routes: Vec<String>,
    /// The destination of its frames: `tap:NAME@NETNS`, `tap:NAME` or `packet:INTERFACE`. Without
    /// it there is no device, only software.
    pub wire: String,
    /// The largest IP packet.
    pub mtu_bytes: u32,
    /// True to seal and open records in software, over the same devices.
    pub software: bool,
    /// Impairment of the wire, such as `loss=2%,reorder=2%,duplicate=1%,seed=7`.
    pub impair: String,
    /// Capture file for the frames on the wire.
    pub pcap: Option<PathBuf>,
    /// The processor to which the engine's thread is pinned.
    pub engine_core: Option<usize>,
    /// The processor to which all other threads are pinned.
    pub host_core: Option<usize>,
    /// Address of `/metrics` and `/healthz`; not served if absent.
    pub admin: Option<SocketAddr>,
    /// Largest number of concurrent connections.
    pub connections_max: usize,
    /// Time limit from a connection's start to the end of its handshake.
    #[serde(with = "unlade_config::duration")]
    pub handshake_timeout: Duration,
    /// How long connections may take to end after SIGTERM.
    #[serde(with = "unlade_config::duration")]
    pub drain_timeout: Duration,
    /// Listeners that accept TLS, and connect in the clear.
    pub terminate: Vec<Terminate>,
    /// Listeners that accept in the clear, and connect by TLS.
    pub originate: Vec<Originate>,
    /// Format and level of the log.
    pub log: LogConfig,
}

/// A `[[terminate]]` table: TLS in front of a plain server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminate {
    /// Address of the listener for TLS, over the TAP device.
    pub listen: SocketAddr,
    /// The server.
    pub backend: SocketAddr,
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// Application protocols that the server speaks, best first.
    #[serde(default)]
    pub alpn: Vec<String>,
}

/// An `[[originate]]` table: TLS behind a plain client.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Originate {
    /// Address of the listener for the client.
    pub listen: SocketAddr,
    /// The server, over the TAP device.
    pub connect: SocketAddr,
    /// The name that its certificate must have.
    pub name: String,
    /// Certificates of the CAs that may have signed it, PEM.
    pub ca: PathBuf,
    /// Application protocols that the client speaks, best first.
    #[serde(default)]
    pub alpn: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tap: "unl0".to_owned(),
            addresses: Vec::new(),
            routes: Vec::new(),
            wire: String::new(),
            mtu_bytes: 1500,
            software: false,
            impair: String::new(),
            pcap: None,
            engine_core: None,
            host_core: None,
            admin: None,
            connections_max: 4096,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(30),
            terminate: Vec::new(),
            originate: Vec::new(),
            log: LogConfig::default(),
        }
    }
}

/// An error in a configuration, for the operator to correct.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] SettingsError),
    /// There is no listener.
    #[error("nothing to do: add a [[terminate]] or an [[originate]] table, or the flags for one")]
    Nothing,
    /// There are too many listeners.
    #[error("{0} listeners are more than {LISTENERS_MAX}; run several processes")]
    Listeners(usize),
    /// A number is out of its range.
    #[error("{key} = {value} is not within {least} to {most}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// Smallest value.
        least: u64,
        /// Largest value.
        most: u64,
    },
    /// The wire is not an interface or a namespace.
    #[error("wire = {0:?} is none of tap:NAME@NETNS, tap:NAME, packet:INTERFACE")]
    Wire(String),
    /// A name is not valid for an interface.
    #[error("{key} = {value:?} is not an interface's name of 1 to 15 letters, digits, - _ .")]
    Name {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// A value is not an address with a prefix.
    #[error("{key}: {value:?} is not ADDRESS/PREFIX, such as 10.9.0.1/24")]
    Prefix {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The impairment is invalid.
    #[error("impair: {0}")]
    Impair(#[from] ImpairmentError),
}

/// The destination of frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireName {
    /// A TAP device to create, in a network namespace or in the current one.
    Tap {
        /// Its name.
        name: String,
        /// The namespace's name.
        namespace: Option<String>,
    },
    /// An existing interface.
    Packet(String),
}

impl FromStr for WireName {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<WireName, ConfigError> {
        let wrong = || ConfigError::Wire(text.to_owned());
        match text.split_once(':').ok_or_else(wrong)? {
            ("tap", rest) => {
                let (name, namespace) = match rest.split_once('@') {
                    Some((name, namespace)) => (name, Some(namespace.to_owned())),
                    None => (rest, None),
                };
                let plain = |name: &str| {
                    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
                };
                let sensible = namespace.as_deref().is_none_or(plain);
                if !is_link_name(name) || !sensible {
                    return Err(wrong());
                }
                Ok(WireName::Tap { name: name.to_owned(), namespace })
            }
            ("packet", name) if is_link_name(name) => Ok(WireName::Packet(name.to_owned())),
            _ => Err(wrong()),
        }
    }
}

fn is_link_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LINK_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Parses an address and its prefix length.
pub fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, bits))
}

impl Config {
    /// Reads a file, and checks it.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let config: Config = unlade_config::load(path)?;
        config.check()?;
        Ok(config)
    }

    /// The wire, if there is one.
    ///
    /// # Errors
    /// [`ConfigError::Wire`].
    pub fn wire(&self) -> Result<Option<WireName>, ConfigError> {
        if self.wire.is_empty() { Ok(None) } else { self.wire.parse().map(Some) }
    }

    /// The impairment of the wire, if there is one.
    ///
    /// # Errors
    /// [`ConfigError::Impair`].
    pub fn impairment(&self) -> Result<Option<Seeded>, ConfigError> {
        if self.impair.is_empty() { Ok(None) } else { Ok(Some(self.impair.parse()?)) }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.terminate.len() + self.originate.len() {
            0 => Err(ConfigError::Nothing),
            count if count > LISTENERS_MAX => Err(ConfigError::Listeners(count)),
            _ => self.check_device(),
        }
    }

    /// Checks the part of the device only, not the part of the listeners.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn check_device(&self) -> Result<(), ConfigError> {
        if !is_link_name(&self.tap) {
            return Err(ConfigError::Name { key: "tap", value: self.tap.clone() });
        }
        within("connections_max", self.connections_max as u64, 1, CONNECTIONS_CEILING as u64)?;
        // IPv6 requires 1280 bytes; no Ethernet has more than 9000.
        within("mtu_bytes", self.mtu_bytes.into(), 1280, 9000)?;
        for address in &self.addresses {
            prefix(address).ok_or_else(|| bad_prefix("addresses", address))?;
        }
        for route in &self.routes {
            let (network, gateway) = route.split_once('@').unwrap_or((route, "::"));
            let sensible = prefix(network).is_some() && gateway.parse::<IpAddr>().is_ok();
            sensible.then_some(()).ok_or_else(|| bad_prefix("routes", route))?;
        }
        self.wire()?;
        self.impairment().map(drop)
    }
}

fn bad_prefix(key: &'static str, value: &str) -> ConfigError {
    ConfigError::Prefix { key, value: value.to_owned() }
}

fn within(key: &'static str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::Range { key, value, least, most }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        tap = "unl7"
        addresses = ["10.9.0.1/24", "fd09::1/64"]
        routes = ["10.0.0.0/8@10.9.0.2"]
        wire = "tap:unlw@peer"
        impair = "loss=2%,seed=3"
        [[terminate]]
        listen = "10.9.0.1:443"
        backend = "127.0.0.1:80"
        certificate = "a.crt"
        key = "a.key"
        [[originate]]
        listen = "127.0.0.1:8080"
        connect = "10.9.0.2:443"
        name = "peer.example"
        ca = "ca.crt"
    "#;

    fn parse(text: &str) -> Result<(), ConfigError> {
        unlade_config::parse::<Config>(text, "nic.toml")?.check()
    }

    #[test]
    fn a_whole_file_is_understood() {
        let config: Config = unlade_config::parse(TEXT, "nic.toml").unwrap();
        config.check().unwrap();
        let wire = WireName::Tap { name: "unlw".to_owned(), namespace: Some("peer".to_owned()) };
        assert_eq!(config.wire().unwrap(), Some(wire));
        assert_eq!(config.impairment().unwrap().unwrap().impairment.loss_ppm, 20_000);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(matches!(parse(""), Err(ConfigError::Nothing)));
        for (from, to) in [
            ("tap:unlw@peer", "tap:unlw@../peer"),
            ("tap:unlw@peer", "tap:"),
            ("tap:unlw@peer", "veth:a"),
            ("10.9.0.1/24", "10.9.0.1/33"),
            ("10.9.0.1/24", "10.9.0.1"),
            ("@10.9.0.2", "@nowhere"),
            ("loss=2%", "loss=200%"),
            ("unl7", "a name that is too long"),
            ("tap =", "mtu_bytes = 10\ntap ="),
        ] {
            assert!(TEXT.contains(from));
            assert!(parse(&TEXT.replace(from, to)).is_err(), "{to}");
        }
    }
}
