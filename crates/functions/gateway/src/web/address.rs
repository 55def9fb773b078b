//! Addresses of function URLs and HTTP APIs: the host names that the gateway gives, and those that requests
//! name.
//!
//! `ID.lambda-url.REGION.DOMAIN` is a function, `ID.execute-api.REGION.DOMAIN` an HTTP API. The names of AWS
//! (`amazonaws.com`, `on.aws`) mean the same: outputs of templates have them. At any other name, the path
//! begins with `/lambda-url/ID` or `/execute-api/ID`.

use crate::config::REGION;

/// The label of function URLs, and the first segment of their paths.
const URL: &str = "lambda-url";
/// The label of HTTP APIs, and the first segment of their paths.
const API: &str = "execute-api";
/// Domains of AWS.
const AWS: [&str; 2] = ["amazonaws.com", "on.aws"];
/// Longest identifier, in bytes.
const ID_BYTES_MAX: usize = 64;

/// The resource behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function URL.
    Url,
    /// An HTTP API.
    Api,
}

impl Kind {
    fn of(label: &str) -> Option<Kind> {
        match label {
            URL => Some(Kind::Url),
            API => Some(Kind::Api),
            _ => None,
        }
    }
}

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The resource.
    pub kind: Kind,
    /// Its identifier.
    pub id: &'a str,
    /// The path within it; begins with `/`.
    pub path: &'a str,
}

/// The addresses of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses<'a> {
    /// The domain of host names.
    pub domain: &'a str,
    /// The port; `None` without a listener.
    pub port: Option<u16>,
}

impl<'a> Addresses<'a> {
    fn address(&self, id: &str, label: &str) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("http://{id}.{label}.{REGION}.{}{port}", self.domain)
    }

    /// The URL of a function; ends with `/`.
    pub fn function_url(&self, id: &str) -> String {
        self.address(id, URL) + "/"
    }

    /// The endpoint of an HTTP API; ends without `/`.
    pub fn api_endpoint(&self, id: &str) -> String {
        self.address(id, API)
    }

    /// The target of a request, by its host name (without port) or by its path.
    pub fn target<'b>(&self, host: &'b str, path: &'b str) -> Option<Target<'b>> {
        if let Some((kind, id)) = self.of_host(host) {
            return Some(Target { kind, id, path });
        }
        let (label, rest) = path.strip_prefix('/')?.split_once('/')?;
        let kind = Kind::of(label)?;
        let (id, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        is_id(id).then_some(Target { kind, id, path })
    }

    fn of_host<'b>(&self, host: &'b str) -> Option<(Kind, &'b str)> {
        let mut parts = host.splitn(4, '.');
        let (id, label, _region) = (parts.next()?, parts.next()?, parts.next()?);
        let domain = parts.next()?.trim_end_matches('.');
        let is_ours = [self.domain].iter().chain(&AWS).any(|own| domain.eq_ignore_ascii_case(own));
        let kind = Kind::of(&label.to_ascii_lowercase())?;
        (is_ours && is_id(id)).then_some((kind, id))
    }
}

/// Identifiers are small letters and digits.
fn is_id(id: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_digit)
}

/// The name in a `Host` field, without its port.
pub fn name_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Addresses<'_> = Addresses { domain: "localhost", port: Some(9002) };

    #[test]
    fn the_addresses_that_are_given_are_found() {
        let url = OWN.function_url("abc1");
        assert_eq!(url, "http://abc1.lambda-url.us-east-1.localhost:9002/");
        let endpoint = OWN.api_endpoint("abc1");
        assert_eq!(endpoint, "http://abc1.execute-api.us-east-1.localhost:9002");
        for (text, kind) in [(url.trim_end_matches('/'), Kind::Url), (&endpoint, Kind::Api)] {
            let host = name_of(text.strip_prefix("http://").unwrap());
            assert_eq!(OWN.target(host, "/a"), Some(Target { kind, id: "abc1", path: "/a" }));
        }
        let without = Addresses { port: None, ..OWN };
        assert_eq!(without.function_url("a"), "http://a.lambda-url.us-east-1.localhost/");
    }

    #[test]
    fn a_host_name_or_a_path_names_the_target() {
        let of = |host, path| OWN.target(host, path);
        let found = |kind, id, path| Some(Target { kind, id, path });
        let api = "a.execute-api.us-east-1.amazonaws.com";
        assert_eq!(of(api, "/lambda-url/b/c"), found(Kind::Api, "a", "/lambda-url/b/c"));
        assert_eq!(of("a.lambda-url.eu-west-1.on.aws.", "/"), found(Kind::Url, "a", "/"));
        assert_eq!(of("127.0.0.1", "/lambda-url/a/b/c"), found(Kind::Url, "a", "/b/c"));
        assert_eq!(of("127.0.0.1", "/execute-api/a"), found(Kind::Api, "a", "/"));
        for (host, path) in [
            ("a.lambda-url.us-east-1.example.com", "/"),
            ("a.other.us-east-1.localhost", "/"),
            ("A.lambda-url.us-east-1.localhost", "/"),
            ("localhost", "/"),
            ("localhost", "/lambda-url"),
            ("localhost", "/lambda-url//a"),
            ("localhost", "/other/a/b"),
            ("", ""),
        ] {
            assert_eq!(of(host, path), None, "{host} {path}");
        }
        assert_eq!((name_of("a.b:1"), name_of("[::1]:2"), name_of("a")), ("a.b", "::1", "a"));
    }
}
