//! Decides if the next request of a connection may be answered by the server that has it.
//!
//! A server that holds a connection must answer only requests that the balancer would have sent
//! to it: the same host, the same route, and for sharded pools an object of its own.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use unlade_handoff_protocol::frame::Scope;

use crate::shard::Ring;

/// Longest host that names are compared with; DNS allows 253 bytes.
pub const HOST_BYTES_MAX: usize = 255;

/// A scope, prepared for queries.
#[derive(Debug)]
pub struct ScopeFilter {
    host: String,
    excluded_hosts: HashSet<String>,
    prefix: String,
    excluded: Vec<String>,
    ring: Option<(Arc<Ring>, usize)>,
}

impl ScopeFilter {
    /// Prepares a scope that the balancer defined.
    pub fn new(scope: &Scope) -> ScopeFilter {
        let ring = scope.ring.as_ref().map(|(members, _)| Arc::new(ring_of(members)));
        ScopeFilter::with_ring(scope, ring)
    }

    /// As [`ScopeFilter::new`], with the ring of the scope's members, which scopes may share.
    pub fn with_ring(scope: &Scope, ring: Option<Arc<Ring>>) -> ScopeFilter {
        let own = scope.ring.as_ref().map(|(_, own)| usize::from(*own));
        ScopeFilter {
            host: scope.host.to_ascii_lowercase(),
            excluded_hosts: scope.excluded_hosts.iter().map(|h| h.to_ascii_lowercase()).collect(),
            prefix: scope.prefix.clone(),
            excluded: scope.excluded.clone(),
            ring: ring.zip(own),
        }
    }

    /// Returns the ring that distributes the scope's objects.
    pub fn ring(&self) -> Option<&Arc<Ring>> {
        self.ring.as_ref().map(|(ring, _)| ring)
    }

    /// Returns true if a request for `path` (without its query) on `host` (port and case are
    /// ignored) may be answered here.
    pub fn admits(&self, host: Option<&str>, path: &str) -> bool {
        self.admits_host(host)
            && path.starts_with(&self.prefix)
            && !self.excluded.iter().any(|longer| path.starts_with(longer))
            && self.ring.as_ref().is_none_or(|(ring, own)| ring.owner(path) == Some(*own))
    }

    fn admits_host(&self, host: Option<&str>) -> bool {
        if self.host.is_empty() && self.excluded_hosts.is_empty() {
            return true;
        }
        let name = host_name(host.unwrap_or_default());
        let fits = match self.host.strip_prefix('*') {
            _ if self.host.is_empty() => true,
            None => name == self.host,
            Some(domain) => name.ends_with(domain),
        };
        fits && !names(&name).any(|name| self.excluded_hosts.contains(&*name))
    }
}

/// Normalises a Host value for comparisons: without port and final dot, in lower case; empty if it
/// is longer than any name.
pub fn host_name(host: &str) -> String {
    let host = strip_port(host);
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.len() > HOST_BYTES_MAX { String::new() } else { host.to_ascii_lowercase() }
}

/// Returns the names that a host (see [`host_name`]) falls under, most specific first: its own,
/// and `*.` of every domain that contains it.
pub fn names(host: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let dots = host.bytes().enumerate().filter(|(_, byte)| *byte == b'.');
    let wildcards = dots.map(|(at, _)| Cow::Owned(format!("*{}", &host[at..])));
    std::iter::once(Cow::Borrowed(host)).chain(wildcards)
}

/// Returns the ring of a scope's members.
pub fn ring_of(members: &[(String, u16)]) -> Ring {
    let members: Vec<(&str, u16)> =
        members.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    Ring::new(&members)
}

/// Returns a Host value without its port; brackets of an IPv6 literal stay.
pub fn strip_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(at) if !host[at..].contains(']') => &host[..at],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(host: &str, prefix: &str, excluded: &[&str]) -> ScopeFilter {
        hosts_but(host, &[], prefix, excluded)
    }

    fn hosts_but(host: &str, but: &[&str], prefix: &str, excluded: &[&str]) -> ScopeFilter {
        let scope = Scope {
            id: 1,
            host: host.into(),
            excluded_hosts: but.iter().map(|&text| text.into()).collect(),
            prefix: prefix.into(),
            excluded: excluded.iter().map(|&text| text.into()).collect(),
            ring: None,
        };
        ScopeFilter::new(&scope)
    }

    #[test]
    fn hosts_of_other_routes_are_not_admitted() {
        let rest = hosts_but("", &["objects.example", "*.images.example"], "/", &[]);
        for host in ["example", "images.example", "x.example", "[fd00::1]:80", ""] {
            assert!(rest.admits(Some(host), "/a"), "{host}");
        }
        assert!(rest.admits(None, "/a"));
        for host in
            ["Objects.example.", "objects.example:80", "a.images.example", "a.b.images.example"]
        {
            assert!(!rest.admits(Some(host), "/a"), "{host}");
        }
        let below = hosts_but("*.example", &["*.images.example"], "/", &[]);
        assert!(below.admits(Some("objects.example:8080"), "/"));
        for host in ["example", "a.images.example", "objects.example.org", ""] {
            assert!(!below.admits(Some(host), "/"), "{host}");
        }
        assert!(!below.admits(None, "/"));
        let long = format!("{}.example", "a".repeat(HOST_BYTES_MAX));
        assert!(!below.admits(Some(&long), "/") && rest.admits(Some(&long), "/"));
    }

    #[test]
    fn the_route_decides() {
        let filter = scope("objects.example", "/o/", &["/o/private/"]);
        assert!(filter.admits(Some("Objects.Example:8443"), "/o/a"));
        assert!(!filter.admits(Some("objects.example"), "/o/private/a"));
        assert!(!filter.admits(Some("objects.example"), "/other"));
        assert!(!filter.admits(Some("elsewhere.example"), "/o/a"));
        assert!(!filter.admits(None, "/o/a"));
        assert!(scope("", "/", &[]).admits(None, "/o/a"));
    }

    #[test]
    fn ports_are_stripped_but_not_from_addresses() {
        assert_eq!(strip_port("[2001:db8::1]:80"), "[2001:db8::1]");
        assert_eq!(strip_port("[2001:db8::1]"), "[2001:db8::1]");
        assert_eq!(strip_port("a:1"), "a");
    }
}
