//! The target: the URL, the paths, and the expected hashes of the answers.

use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

/// Paths that one run may choose from.
const PATHS_MAX: usize = 100_000;

/// SHA-256 of a body.
pub type Sum = [u8; 32];

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub tls: bool,
    /// Host as written in the URL; an IPv6 address without its brackets.
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// Reads `http://host[:port]` or `https://…`; a path is refused, `--path` gives it.
    ///
    /// # Errors
    /// Says what is wrong with the URL.
    pub fn parse(url: &str) -> Result<Origin> {
        let (tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => bail!("`{url}` starts with neither http:// nor https://"),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('/') {
            bail!("`{url}` has a path; give it with --path");
        }
        let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().with_context(|| format!("`{url}`: bad port `{port}`"))?,
            None if tls => 443,
            None => 80,
        };
        if host.is_empty() {
            bail!("`{url}` has no host");
        }
        Ok(Origin { tls, host: host.to_owned(), port })
    }

    /// The first address of the host.
    ///
    /// # Errors
    /// The name does not resolve.
    pub fn resolve(&self) -> Result<SocketAddr> {
        let mut found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .with_context(|| format!("resolving {}", self.host))?;
        found.next().with_context(|| format!("{} has no address", self.host))
    }

    /// The `Host` header.
    pub fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.tls, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// One thing to ask for.
#[derive(Debug)]
pub struct Target {
    /// The request as it is sent.
    pub request: Vec<u8>,
    /// Expected hash of its body, when known.
    pub sum: Option<Sum>,
}

/// Renders the request of every path and looks its sum up.
///
/// # Errors
/// A path is not usable in a request, there are none or too many, or `sums` is given and lacks
/// one.
pub fn targets(
    origin: &Origin,
    paths: &[String],
    sums: Option<&HashMap<String, Sum>>,
) -> Result<Vec<Target>> {
    if paths.is_empty() || paths.len() > PATHS_MAX {
        bail!("{} paths given; 1 to {PATHS_MAX} are possible", paths.len());
    }
    let authority = origin.authority();
    paths
        .iter()
        .map(|path| {
            if !path.starts_with('/') || path.bytes().any(|b| !(0x21..0x7f).contains(&b)) {
                bail!("`{path}` is no path: it starts with `/` and has no space in it");
            }
            let name = path.split('?').next().unwrap_or(path).trim_start_matches('/');
            let sum = match sums {
                Some(sums) => Some(*sums.get(name).with_context(|| {
                    format!("`{path}` is not in the sums file; its answer cannot be checked")
                })?),
                None => None,
            };
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: unlade-load\r\n\
                 Accept: */*\r\n\r\n"
            );
            Ok(Target { request: request.into_bytes(), sum })
        })
        .collect()
}

/// Reads a file as `sha256sum` writes it: name to sum.
///
/// # Errors
/// The file cannot be read or a line is no sum and name; the message has its number.
pub fn read_sums(path: &Path) -> Result<HashMap<String, Sum>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    (1..)
        .zip(text.lines())
        .map(|(number, line)| {
            parse_sum(line).with_context(|| {
                format!(
                    "{}:{number}: not `64 hexadecimal digits, two spaces, name`",
                    path.display()
                )
            })
        })
        .collect()
}

fn parse_sum(line: &str) -> Option<(String, Sum)> {
    let (digits, name) = line.split_once("  ")?;
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut sum = [0u8; 32];
    for (index, byte) in sum.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some((name.to_owned(), sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let origin = Origin::parse("https://objects.lab").unwrap();
        assert_eq!((origin.tls, origin.port), (true, 443));
        assert_eq!(origin.authority(), "objects.lab");
        let origin = Origin::parse("http://10.0.0.1:8080/").unwrap();
        assert_eq!(origin.authority(), "10.0.0.1:8080");
        let origin = Origin::parse("http://[fd00::1]:81").unwrap();
        assert_eq!((origin.host.as_str(), origin.port), ("fd00::1", 81));
        assert_eq!(origin.authority(), "[fd00::1]:81");
        assert_eq!(origin.resolve().unwrap().to_string(), "[fd00::1]:81");
        for bad in ["ftp://x", "http://", "http://x:port", "http://x/y", "x"] {
            assert!(Origin::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sums() {
        let (name, sum) = parse_sum(&format!("{}0f  set/01", "ab".repeat(31))).unwrap();
        assert_eq!((name.as_str(), sum[0], sum[31]), ("set/01", 0xab, 0x0f));
        for bad in ["", "ab  x", &format!("{}  x", "zz".repeat(32)), &"ab".repeat(32)] {
            assert!(parse_sum(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn unchecked_paths_are_refused() {
        let origin = Origin::parse("http://x").unwrap();
        let sums = HashMap::from([("a".to_owned(), [1u8; 32])]);
        let paths = |path: &str| vec![path.to_owned()];
        assert!(targets(&origin, &paths("/a?q"), Some(&sums)).unwrap()[0].sum.is_some());
        assert!(targets(&origin, &paths("/b"), Some(&sums)).is_err());
        for bad in ["b", "/a b", "/a\r\nX: y"] {
            assert!(targets(&origin, &paths(bad), None).is_err(), "{bad}");
        }
        assert!(targets(&origin, &[], None).is_err());
    }
}
