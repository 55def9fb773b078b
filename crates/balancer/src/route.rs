//! Which route a request takes: the most specific host first (a name, `*.` of a name, any), then
//! the longest prefix of the path.
//!
//! Hosts compare without case and port. Paths compare octet by octet as the client sent them:
//! a route chooses servers, it guards nothing, and the server reads the path again.

use std::collections::HashMap;

use handoff::scope::strip_port;

use crate::config::{OffloadMode, RequestsPerMigration, RouteConfig};

/// Longest host that is looked up; DNS allows 253 octets.
const HOST_BYTES_MAX: usize = 255;

/// A route of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Its place in the configuration.
    pub index: usize,
    /// `None`: any host; `*.name`: hosts below `name`. Lower case.
    pub host: Option<String>,
    /// Start of the path.
    pub prefix: String,
    /// Index of the pool.
    pub pool: usize,
    /// Whether connections are handed over.
    pub offload: OffloadMode,
    /// How many requests a server answers before the connection comes home.
    pub requests_per_migration: RequestsPerMigration,
}

/// What a server must know to tell which further requests are its own to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteScope {
    /// Host that requests must be for; empty for any.
    pub host: String,
    /// What their path must begin with.
    pub prefix: String,
    /// What their path must not begin with: other routes.
    pub excluded: Vec<String>,
}

/// All routes, ready to be asked.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    routes: Vec<Route>,
    /// Indices by longest prefix first.
    by_host: HashMap<String, Vec<usize>>,
    any: Vec<usize>,
    has_wildcards: bool,
}

impl RouteTable {
    /// `pool_index` finds the pool of a name.
    pub(crate) fn new(
        routes: &[RouteConfig],
        pool_index: impl Fn(&str) -> Option<usize>,
    ) -> RouteTable {
        let mut table = RouteTable::default();
        for config in routes {
            let Some(pool) = pool_index(&config.pool) else { continue };
            let index = table.routes.len();
            let host = config.host.as_deref().map(str::to_ascii_lowercase);
            match &host {
                Some(host) => table.by_host.entry(host.clone()).or_default().push(index),
                None => table.any.push(index),
            }
            table.has_wildcards |= host.as_deref().is_some_and(|host| host.starts_with("*."));
            table.routes.push(Route {
                index,
                host,
                prefix: config.prefix.clone(),
                pool,
                offload: config.offload,
                requests_per_migration: config.requests_per_migration,
            });
        }
        let routes = &table.routes;
        for list in table.by_host.values_mut().chain([&mut table.any]) {
            list.sort_by_key(|index| {
                std::cmp::Reverse(routes.get(*index).map_or(0, |route| route.prefix.len()))
            });
        }
        table
    }

    /// How many routes there are.
    pub(crate) fn len(&self) -> usize {
        self.routes.len()
    }

    /// The route of a place in the configuration.
    pub(crate) fn get(&self, index: usize) -> Option<&Route> {
        self.routes.get(index)
    }

    /// The route of a request. `host` as the client sent it; `path` without its query, or `*`.
    pub(crate) fn find(&self, host: Option<&str>, path: &str) -> Option<&Route> {
        let path = if path == "*" { "/" } else { path };
        if !self.by_host.is_empty()
            && let Some(host) = host
        {
            let mut levels = Levels::of(self, host);
            while let Some(list) = levels.next() {
                if let Some(route) = self.longest(list, path) {
                    return Some(route);
                }
            }
        }
        self.longest(&self.any, path)
    }

    fn longest(&self, list: &[usize], path: &str) -> Option<&Route> {
        list.iter()
            .filter_map(|index| self.routes.get(*index))
            .find(|route| path.starts_with(&route.prefix))
    }

    /// What a server that answers a request of `route` for `host` may answer further.
    pub(crate) fn scope(&self, route: &Route, host: Option<&str>) -> RouteScope {
        let mut excluded = Vec::new();
        // A more specific host's route, or one of the same host with a longer prefix, takes
        // what begins with its prefix.
        let mut note = |list: &[usize], own: bool| {
            for other in list.iter().filter_map(|index| self.routes.get(*index)) {
                if other.prefix.starts_with(&route.prefix) && !(own && other.index == route.index) {
                    excluded.push(other.prefix.clone());
                }
            }
        };
        let mut own_level = false;
        if let Some(host) = host {
            let mut levels = Levels::of(self, host);
            while let (false, Some(list)) = (own_level, levels.next()) {
                own_level = list.contains(&route.index);
                note(list, own_level);
            }
        }
        if !own_level {
            note(&self.any, true);
        }
        let any_host = route.host.is_none() && self.by_host.is_empty();
        let host = if any_host { None } else { host };
        RouteScope {
            host: host.map(|host| strip_port(host).to_ascii_lowercase()).unwrap_or_default(),
            prefix: route.prefix.clone(),
            excluded,
        }
    }
}

/// The lists of routes that a host falls under, most specific first.
struct Levels<'t> {
    table: &'t RouteTable,
    name: Vec<u8>,
    /// Where in `name` the next name to look up begins; past the end when there is none.
    at: usize,
}

impl<'t> Levels<'t> {
    fn of(table: &'t RouteTable, host: &str) -> Levels<'t> {
        let host = strip_port(host);
        let host = host.strip_suffix('.').unwrap_or(host);
        let name = if host.len() > HOST_BYTES_MAX { "" } else { host };
        // Two octets in front make room for `*.`.
        let mut text = b"*.".to_vec();
        text.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
        Levels { table, name: text, at: 2 }
    }

    fn next(&mut self) -> Option<&'t Vec<usize>> {
        while self.at <= self.name.len() {
            let start = self.at;
            let first = start == 2;
            if !first && !self.table.has_wildcards {
                return None;
            }
            // What is looked up next: the part behind the next dot, as a wildcard.
            let rest = self.name.get(start..)?;
            let step = rest.iter().position(|byte| *byte == b'.').map_or(rest.len(), |dot| dot);
            let found = match first {
                true => self.lookup(start),
                // `start` is behind a dot; the two octets before it become `*.`.
                false => {
                    let wildcard = self.name.get_mut(start - 2..start)?;
                    wildcard.copy_from_slice(b"*.");
                    self.lookup(start - 2)
                }
            };
            self.at = start + step + 1;
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn lookup(&self, start: usize) -> Option<&'t Vec<usize>> {
        let name = std::str::from_utf8(self.name.get(start..)?).ok()?;
        self.table.by_host.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(routes: &[(&str, &str)]) -> RouteTable {
        let routes: Vec<RouteConfig> = routes
            .iter()
            .map(|(host, prefix)| RouteConfig {
                host: (!host.is_empty()).then(|| (*host).to_owned()),
                prefix: (*prefix).to_owned(),
                pool: "p".to_owned(),
                offload: OffloadMode::Off,
                requests_per_migration: RequestsPerMigration::default(),
            })
            .collect();
        RouteTable::new(&routes, |_| Some(0))
    }

    fn found(table: &RouteTable, host: &str, path: &str) -> Option<usize> {
        table.find((!host.is_empty()).then_some(host), path).map(|route| route.index)
    }

    #[test]
    fn host_first_then_the_longest_prefix() {
        let table = table(&[
            ("", "/"),
            ("Objects.example", "/"),
            ("objects.example", "/images/"),
            ("*.example", "/v1"),
            ("", "/images/"),
            ("*.deep.example", "/v1"),
            ("[fd00::1]", "/"),
        ]);
        for (host, path, expected) in [
            ("objects.example", "/a", 1),
            ("OBJECTS.EXAMPLE:8443", "/images/a", 2),
            ("objects.example.", "/images/a", 2),
            ("other.example", "/v1/x", 3),
            ("a.b.example", "/v1", 3),
            ("x.deep.example", "/v1", 5),
            ("deep.example", "/v1", 3),
            // No route of the host's own fits: less specific ones do.
            ("other.example", "/images/x", 4),
            ("example", "/v1", 0),
            ("", "/v1", 0),
            ("[fd00::1]:80", "/", 6),
            ("", "*", 0),
        ] {
            assert_eq!(found(&table, host, path), Some(expected), "{host} {path}");
        }
    }

    #[test]
    fn no_route_is_none() {
        let table = table(&[("objects.example", "/o/")]);
        assert_eq!(found(&table, "objects.example", "/x"), None);
        assert_eq!(found(&table, "elsewhere", "/o/a"), None);
        assert_eq!(found(&table, "", "/o/a"), None);
        assert_eq!(found(&table, &"a".repeat(5000), "/o/a"), None);
    }

    #[test]
    fn a_scope_leaves_out_what_other_routes_take() {
        let table = table(&[
            ("", "/"),
            ("", "/images/"),
            ("objects.example", "/images/large/"),
            ("*.example", "/v1"),
        ]);
        let scope = |index, host| table.scope(table.get(index).unwrap(), host);
        let any = scope(1, Some("objects.example:80"));
        assert_eq!(any.host, "objects.example");
        assert_eq!(any.excluded, ["/images/large/"]);
        assert_eq!(scope(0, None).excluded, ["/images/"]);
        let all = scope(0, Some("objects.example")).excluded;
        assert_eq!(all, ["/images/large/", "/v1", "/images/"]);
        assert_eq!(scope(3, Some("x.example")).excluded, [""; 0]);
    }

    #[test]
    fn a_scope_is_of_any_host_where_hosts_do_not_matter() {
        let table = table(&[("", "/")]);
        assert_eq!(table.scope(table.get(0).unwrap(), Some("a")).host, "");
    }

    proptest! {
        /// What a scope admits, the table routes the same way.
        #[test]
        fn scopes_agree_with_the_table(
            routes in proptest::collection::vec(("(|a\\.b|b|\\*\\.b)", "/[xy/]{0,3}"), 1..8),
            host in "(a\\.b|b|c\\.b|c)",
            first in "/[xy/]{0,4}",
            second in "/[xy/]{0,4}",
        ) {
            let pairs: Vec<(&str, &str)> =
                routes.iter().map(|(h, p)| (h.as_str(), p.as_str())).collect();
            let table = table(&pairs);
            if let Some(route) = table.find(Some(&host), &first) {
                let scope = table.scope(route, Some(&host));
                let stays = second.starts_with(&scope.prefix)
                    && !scope.excluded.iter().any(|prefix| second.starts_with(prefix));
                if stays {
                    prop_assert_eq!(found(&table, &host, &second), Some(route.index));
                }
            }
        }

        #[test]
        fn hostile_hosts_never_panic(host in ".*", path in ".*") {
            let table = table(&[("*.b", "/"), ("b", "/")]);
            let _ = found(&table, &host, &path);
        }
    }
}
