//! The address `nvme+tcp://HOST[:PORT][/NSID][?nqn=NQN]`, and `nvme+tls://` for TLS.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;
use unlade_nvme_wire::Nqn;
use unlade_nvme_wire::fabrics::NqnError;

/// Port of I/O controllers; discovery controllers also use 8009 (NVMe/TCP §3.1).
pub const PORT: u16 = 4420;

/// The address of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// True for TLS.
    pub is_tls: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// NSID.
    pub namespace: Option<u32>,
    /// The subsystem's name.
    pub subsystem: Option<Nqn>,
}

/// A parse error of an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The scheme is neither of the two.
    #[error("an address starts with nvme+tcp:// or nvme+tls://")]
    Scheme,
    /// There is no host.
    #[error("the address names no host: nvme+tcp://HOST:PORT/NSID is expected")]
    Host,
    /// An IPv6 address without brackets, or brackets that do not match.
    #[error("an IPv6 address stands in brackets: nvme+tcp://[::1]:4420/1")]
    Brackets,
    /// The port is invalid.
    #[error("{0:?} is not a port (1 to 65535)")]
    Port(String),
    /// The namespace is invalid.
    #[error("{0:?} is not a namespace: a number from 1 on is expected behind the `/`")]
    Namespace(String),
    /// The query has an unknown key.
    #[error("{0:?} is not known behind the `?`; only nqn=NAME is")]
    Query(String),
    /// The subsystem's name is invalid.
    #[error("nqn: {0}")]
    Name(#[from] NqnError),
    /// A percent sign without two hexadecimal digits.
    #[error("{0:?}: a percent sign is followed by two hexadecimal digits")]
    Percent(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let (is_tls, rest) = match text.split_once("://") {
            Some(("nvme+tcp", rest)) => (false, rest),
            Some(("nvme+tls", rest)) => (true, rest),
            _ => return Err(AddressError::Scheme),
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(a, b)| (a, Some(b)));
        let (authority, path) = rest.split_once('/').map_or((rest, ""), |parts| parts);
        let (host, port) = split_port(authority)?;
        if host.is_empty() {
            return Err(AddressError::Host);
        }
        let port = match port {
            None => PORT,
            Some(port) => match port.parse() {
                Ok(number) if number > 0 => number,
                _ => return Err(AddressError::Port(port.to_owned())),
            },
        };
        let namespace = match path {
            "" => None,
            path => match path.parse() {
                // All ones stand for all namespaces (NVMe Base §3.2.1.2).
                Ok(number @ 1..=0xffff_fffe) => Some(number),
                _ => return Err(AddressError::Namespace(path.to_owned())),
            },
        };
        let subsystem = match query.map(|query| query.split_once('=').ok_or(query)) {
            None => None,
            Some(Ok(("nqn", name))) => Some(Nqn::new(&decode(name)?)?),
            Some(Ok((other, _)) | Err(other)) => {
                return Err(AddressError::Query(other.to_owned()));
            }
        };
        Ok(Address { is_tls, host: host.to_owned(), port, namespace, subsystem })
    }
}

impl Address {
    /// `HOST:PORT`, for messages.
    pub fn peer(&self) -> String {
        peer(&self.host, self.port)
    }
}

/// `HOST:PORT`; an IPv6 address in brackets.
pub(super) fn peer(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

fn split_port(authority: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(AddressError::Brackets)?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(AddressError::Brackets),
        };
    }
    match authority.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(AddressError::Brackets),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((authority, None)),
    }
}

/// Percent-encoding (RFC 3986 §2.1).
fn decode(text: &str) -> Result<String, AddressError> {
    let wrong = || AddressError::Percent(text.to_owned());
    let decoded = unlade_http::percent::decoded(text).ok_or_else(wrong)?;
    String::from_utf8(decoded).map_err(|_| wrong())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "nvme+tls" } else { "nvme+tcp" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port)?,
            false => write!(f, "{scheme}://{}:{}", self.host, self.port)?,
        }
        if let Some(namespace) = self.namespace {
            write!(f, "/{namespace}")?;
        }
        if let Some(subsystem) = &self.subsystem {
            write!(f, "?nqn={}", subsystem.as_str().replace('%', "%25"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let address: Address =
            "nvme+tcp://127.0.0.1:4421/7?nqn=nqn.2014-08.org.a:b".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port), ("127.0.0.1", 4421));
        assert_eq!(address.namespace, Some(7));
        assert_eq!(address.subsystem.as_ref().unwrap().as_str(), "nqn.2014-08.org.a:b");
        for text in [
            "nvme+tcp://127.0.0.1:4421/7?nqn=nqn.2014-08.org.a:b",
            "nvme+tls://storage.example:4420/1",
            "nvme+tls://[2001:db8::1]:4420",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let short: Address = "nvme+tls://host".parse().unwrap();
        assert_eq!((short.port, short.namespace, short.is_tls), (4420, None, true));
        let encoded: Address = "nvme+tcp://h?nqn=nqn.a%3ab".parse().unwrap();
        assert_eq!(encoded.subsystem.unwrap().as_str(), "nqn.a:b");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| text.parse::<Address>().unwrap_err();
        assert_eq!(wrong("tcp://h"), AddressError::Scheme);
        assert_eq!(wrong("127.0.0.1:4420"), AddressError::Scheme);
        assert_eq!(wrong("nvme+tcp:///1"), AddressError::Host);
        assert_eq!(wrong("nvme+tcp://::1/1"), AddressError::Brackets);
        assert_eq!(wrong("nvme+tcp://[::1/1"), AddressError::Brackets);
        assert_eq!(wrong("nvme+tcp://[::1]4420/1"), AddressError::Brackets);
        for port in ["0", "65536", "", "x"] {
            assert_eq!(wrong(&format!("nvme+tcp://h:{port}")), AddressError::Port(port.into()));
        }
        for number in ["0", "4294967295", "x", "1/2"] {
            let text = format!("nvme+tcp://h/{number}");
            assert_eq!(wrong(&text), AddressError::Namespace(number.into()));
        }
        assert_eq!(wrong("nvme+tcp://h?key=1"), AddressError::Query("key".into()));
        assert!(matches!(wrong("nvme+tcp://h?nqn=disk"), AddressError::Name(_)));
        assert!(matches!(wrong("nvme+tcp://h?nqn=nqn.%4"), AddressError::Percent(_)));
        assert!(matches!(wrong("nvme+tcp://h?nqn=nqn.%ff"), AddressError::Percent(_)));
    }
}
