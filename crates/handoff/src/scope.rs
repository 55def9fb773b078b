//! Whether the next request of a connection may stay where the connection is.
//!
//! A server that holds a connection must answer only requests that the balancer would have sent
//! to it: the same host, the same route, and for sharded pools an object of its own.

use std::sync::Arc;

use wire::frame::Scope;

use crate::shard::Ring;

/// A scope, ready to be asked.
#[derive(Debug)]
pub struct ScopeFilter {
    host: String,
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

    /// As [`ScopeFilter::new`], with the ring of the scope's members, which many scopes may share.
    pub fn with_ring(scope: &Scope, ring: Option<Arc<Ring>>) -> ScopeFilter {
        let own = scope.ring.as_ref().map(|(_, own)| usize::from(*own));
        let ring = ring.zip(own);
        ScopeFilter {
            host: scope.host.to_ascii_lowercase(),
            prefix: scope.prefix.clone(),
            excluded: scope.excluded.clone(),
            ring,
        }
    }

    /// The ring that the scope's objects are spread by.
    pub fn ring(&self) -> Option<&Arc<Ring>> {
        self.ring.as_ref().map(|(ring, _)| ring)
    }

    /// True where a request for `path` (without its query) on `host` (port and case are not
    /// looked at) may be answered here.
    pub fn admits(&self, host: Option<&str>, path: &str) -> bool {
        let host_fits = self.host.is_empty()
            || host.is_some_and(|host| strip_port(host).eq_ignore_ascii_case(&self.host));
        host_fits
            && path.starts_with(&self.prefix)
            && !self.excluded.iter().any(|longer| path.starts_with(longer))
            && self.ring.as_ref().is_none_or(|(ring, own)| ring.owner(path) == Some(*own))
    }
}

/// The ring of a scope's members.
pub fn ring_of(members: &[(String, u16)]) -> Ring {
    let members: Vec<(&str, u16)> =
        members.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    Ring::new(&members)
}

/// A Host value without its port; brackets of an IPv6 literal stay.
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
        ScopeFilter::new(&Scope {
            id: 1,
            host: host.into(),
            prefix: prefix.into(),
            excluded: excluded.iter().map(|&text| text.into()).collect(),
            ring: None,
        })
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
