//! Address of the local server.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

/// Port of HTTP, where an address has none.
const HTTP_PORT: u16 = 80;
/// Longest path of a Unix socket, in bytes (`sun_path` of unix(7), without its NUL).
const UNIX_PATH_BYTES_MAX: usize = 107;

/// Address of a local server: `http://127.0.0.1:8080`, or `unix:/run/app.sock`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum UpstreamAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// Error of a text that is no address of a local server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no local server: {reason}; write `http://127.0.0.1:8080` or `unix:/run/app.sock`"
)]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

impl FromStr for UpstreamAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<UpstreamAddress, AddressError> {
        let refused = |reason| AddressError { text: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                _ if !path.starts_with('/') => {
                    Err(refused("the path of the socket is not absolute"))
                }
                _ if path.len() > UNIX_PATH_BYTES_MAX => {
                    Err(refused("the path of the socket has more than 107 bytes"))
                }
                _ => Ok(UpstreamAddress::Unix(path.into())),
            };
        }
        if text.starts_with("https://") {
            return Err(refused("the sidecar speaks plain HTTP to it"));
        }
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(refused("it begins with neither `http://` nor `unix:`"));
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(refused("requests go on with their own paths, so it has none"));
        }
        let named = authority.strip_prefix("localhost").and_then(|port| match port {
            "" => Some(HTTP_PORT),
            _ => port.strip_prefix(':')?.parse().ok(),
        });
        if let Some(port) = named.filter(|port| *port != 0) {
            return Ok(UpstreamAddress::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        }
        let host = authority.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let ip = host.unwrap_or(authority).parse().ok();
        let with_default = ip.map(|ip| SocketAddr::new(ip, HTTP_PORT));
        match with_default.or_else(|| authority.parse().ok()) {
            Some(address) if address.port() != 0 => Ok(UpstreamAddress::Tcp(address)),
            _ => Err(refused("it has no IP address and port")),
        }
    }
}

impl TryFrom<String> for UpstreamAddress {
    type Error = AddressError;

    fn try_from(text: String) -> Result<UpstreamAddress, AddressError> {
        text.parse()
    }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamAddress::Tcp(address) => write!(f, "http://{address}"),
            UpstreamAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl UpstreamAddress {
    /// Returns the host for a request of HTTP/1.0 that names none.
    pub(crate) fn authority(&self) -> String {
        match self {
            UpstreamAddress::Tcp(address) => address.to_string(),
            UpstreamAddress::Unix(_) => "localhost".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
            ("http://localhost:3000", "http://127.0.0.1:3000"),
            ("http://localhost", "http://127.0.0.1:80"),
            ("http://10.0.0.21", "http://10.0.0.21:80"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("http://[::1]", "http://[::1]:80"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
        ] {
            assert_eq!(text.parse::<UpstreamAddress>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (text, reason) in [
            ("127.0.0.1:8080", "begins with neither"),
            ("https://127.0.0.1:8443", "plain HTTP"),
            ("http://app.example:8080", "no IP address and port"),
            ("http://127.0.0.1:0", "no IP address and port"),
            ("http://localhost:0", "no IP address and port"),
            ("http://127.0.0.1:8080/app", "their own paths"),
            ("unix:run/app.sock", "not absolute"),
            (&format!("unix:/{}", "a".repeat(107)), "more than 107 bytes"),
        ] {
            let error = text.parse::<UpstreamAddress>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("unix:/run/app.sock"), "{error}");
        }
    }
}
