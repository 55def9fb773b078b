//! Finds the route of a request: the most specific host first (a name, `*.` of a name, any), then
//! the longest prefix of the path.
//!
//! Hosts are compared without case and port. Paths are compared byte by byte as the client sent
//! them: a route chooses servers and is no access control, and the server parses the path again.

use std::collections::HashMap;

use unlade_migration::scope::{host_name, names};

use crate::config::{OffloadMode, RequestsPerMigration, RouteConfig};

/// A route of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Its index in the configuration.
    pub index: usize,
    /// As configured, in lower case: `None` for any host.
    pub host: Option<String>,
    /// Start of the path.
    pub prefix: String,
    /// Index of the pool.
    pub pool: usize,
    /// Condition for handing connections over.
    pub offload: OffloadMode,
    /// Number of requests that a server answers before the connection comes home.
    pub requests_per_migration: RequestsPerMigration,
    /// Protocols that a connection may change to, in lower case.
    pub upgrade: Vec<String>,
}

/// The further requests that a server may answer itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteScope {
    /// Host of these requests: a name, `*.` and a name, or empty for any.
    pub host: String,
    /// Names under it that are excluded.
    pub excluded_hosts: Vec<String>,
    /// Prefix of their paths.
    pub prefix: String,
    /// Prefixes of other routes, which are excluded.
    pub excluded: Vec<String>,
}

/// Key of a scope in a table: the route, and the most specific of the table's hosts that the
/// request's host falls under. Clients cannot create more keys than the configuration has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ScopeKey {
    route: usize,
    level: Option<usize>,
}

/// A configured host, and its routes.
#[derive(Debug, Default)]
struct Level {
    name: String,
    routes: Vec<usize>,
}

/// All routes, indexed for lookup.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    routes: Vec<Route>,
    /// Index in `levels` of a name.
    by_host: HashMap<String, usize>,
    /// The routes of each configured host, longest prefix first.
    levels: Vec<Level>,
    any: Vec<usize>,
    has_wildcards: bool,
}

impl RouteTable {
    /// Creates a table. `pool_index` returns the index of a pool by its name.
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
                Some(host) => table.level(host).push(index),
                None => table.any.push(index),
            }
            table.has_wildcards |= host.as_deref().is_some_and(|host| host.starts_with("*."));
            table.routes.push(Route {
                index,
                host: host.clone(),
                prefix: config.prefix.clone(),
                pool,
                offload: config.offload,
                requests_per_migration: config.requests_per_migration,
                upgrade: config.upgrade.iter().map(|name| name.to_ascii_lowercase()).collect(),
            });
        }
        let routes = &table.routes;
        let lists = table.levels.iter_mut().map(|level| &mut level.routes);
        for list in lists.chain([&mut table.any]) {
            list.sort_by_key(|index| {
                std::cmp::Reverse(routes.get(*index).map_or(0, |route| route.prefix.len()))
            });
        }
        table
    }

    /// Returns the routes of a host; registers a new host.
    fn level(&mut self, host: &str) -> &mut Vec<usize> {
        let next = self.levels.len();
        let at = *self.by_host.entry(host.to_owned()).or_insert(next);
        if at == next {
            self.levels.push(Level { name: host.to_owned(), routes: Vec::new() });
        }
        &mut self.levels[at].routes
    }

    /// Returns the number of routes.
    pub(crate) fn len(&self) -> usize {
        self.routes.len()
    }

    /// Returns the route with this index in the configuration.
    pub(crate) fn get(&self, index: usize) -> Option<&Route> {
        self.routes.get(index)
    }

    /// Returns the route of a request. `host` as the client sent it; `path` without its query, or
    /// `*`.
    pub(crate) fn find(&self, host: Option<&str>, path: &str) -> Option<&Route> {
        let path = if path == "*" { "/" } else { path };
        let named = |_, level: &Level| self.longest(&level.routes, path);
        self.first_level(host, named).or_else(|| self.longest(&self.any, path))
    }

    /// Calls `ask` for the configured hosts that a request's host falls under, most specific
    /// first, until one returns a value.
    fn first_level<'t, T>(
        &'t self,
        host: Option<&str>,
        mut ask: impl FnMut(usize, &'t Level) -> Option<T>,
    ) -> Option<T> {
        if self.by_host.is_empty() {
            return None;
        }
        let name = host_name(host?);
        let depth = if self.has_wildcards { usize::MAX } else { 1 };
        let known = names(&name).take(depth).filter_map(|name| self.by_host.get(&*name));
        known.copied().find_map(|at| ask(at, self.levels.get(at)?))
    }

    fn longest(&self, list: &[usize], path: &str) -> Option<&Route> {
        list.iter()
            .filter_map(|index| self.routes.get(*index))
            .find(|route| path.starts_with(&route.prefix))
    }

    /// Returns the scope of a request of `route` for `host`.
    pub(crate) fn scope_key(&self, route: &Route, host: Option<&str>) -> ScopeKey {
        ScopeKey { route: route.index, level: self.first_level(host, |at, _| Some(at)) }
    }

    /// Returns the further requests that a server may answer after a request of this scope; `None`
    /// for a scope of another table.
    pub(crate) fn scope(&self, key: ScopeKey) -> Option<RouteScope> {
        let route = self.routes.get(key.route)?;
        let host = match key.level {
            Some(at) => self.levels.get(at)?.name.as_str(),
            None => "",
        };
        let mut excluded = Vec::new();
        // A route of a more specific host, or of the same host with a longer prefix, takes the
        // paths with its prefix.
        let mut note = |list: &[usize]| {
            for other in list.iter().filter_map(|index| self.routes.get(*index)) {
                if other.prefix.starts_with(&route.prefix) && other.index != route.index {
                    excluded.push(other.prefix.clone());
                }
            }
            list.contains(&route.index)
        };
        let mut own_level = false;
        // The first wildcard that contains a wildcard is the wildcard itself.
        let chain = names(host).skip(usize::from(host.starts_with('*')));
        for at in chain.filter_map(|name| self.by_host.get(&*name)) {
            own_level = own_level || self.levels.get(*at).is_some_and(|l| note(&l.routes));
        }
        if !own_level {
            note(&self.any);
        }
        Some(RouteScope {
            host: host.to_owned(),
            excluded_hosts: self.names_below(host),
            prefix: route.prefix.clone(),
            excluded,
        })
    }

    /// Returns the configured hosts that are more specific than `host`.
    fn names_below(&self, host: &str) -> Vec<String> {
        let below = |name: &&str| match host.strip_prefix('*') {
            _ if host.is_empty() => true,
            Some(domain) => *name != host && name.ends_with(domain),
            None => false,
        };
        let names = self.levels.iter().map(|level| level.name.as_str());
        names.filter(below).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use unlade_migration::scope::ScopeFilter;

    fn table(routes: &[(&str, &str)]) -> RouteTable {
        let routes: Vec<RouteConfig> = routes
            .iter()
            .map(|(host, prefix)| RouteConfig {
                host: (!host.is_empty()).then(|| (*host).to_owned()),
                prefix: (*prefix).to_owned(),
                pool: "p".to_owned(),
                offload: OffloadMode::Off,
                requests_per_migration: RequestsPerMigration::default(),
                upgrade: Vec::new(),
            })
            .collect();
        RouteTable::new(&routes, |_| Some(0))
    }

    fn frame(scope: &RouteScope) -> unlade_handoff_protocol::frame::Scope {
        let RouteScope { host, excluded_hosts, prefix, excluded } = scope.clone();
        unlade_handoff_protocol::frame::Scope {
            id: 1,
            host,
            excluded_hosts,
            prefix,
            excluded,
            ring: None,
        }
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
            // No route of the host itself matches: less specific hosts do.
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
        let scope = |index, host| {
            let key = table.scope_key(table.get(index).unwrap(), host);
            table.scope(key).unwrap()
        };
        let any = scope(1, Some("objects.example:80"));
        assert_eq!((any.host.as_str(), any.excluded_hosts.len()), ("objects.example", 0));
        assert_eq!(any.excluded, ["/images/large/"]);
        let rest = scope(0, None);
        assert_eq!((rest.host.as_str(), &*rest.excluded), ("", &["/images/".to_owned()][..]));
        assert_eq!(rest.excluded_hosts, ["objects.example", "*.example"]);
        let all = scope(0, Some("objects.example")).excluded;
        assert_eq!(all, ["/images/large/", "/v1", "/images/"]);
        let below = scope(3, Some("x.example"));
        assert_eq!((below.host.as_str(), below.excluded.len()), ("*.example", 0));
        assert_eq!(below.excluded_hosts, ["objects.example"]);
    }

    #[test]
    fn a_scope_is_of_any_host_where_hosts_do_not_matter() {
        let table = table(&[("", "/")]);
        let key = table.scope_key(table.get(0).unwrap(), Some("a"));
        let scope = table.scope(key).unwrap();
        assert_eq!((scope.host.as_str(), scope.excluded_hosts.len()), ("", 0));
    }

    /// Any client can send any Host: the configuration bounds the number of scopes.
    #[test]
    fn hosts_that_clients_invent_make_no_scopes() {
        let table = table(&[
            ("", "/"),
            ("", "/images/"),
            ("objects.example", "/"),
            ("*.example", "/"),
            ("*.deep.example", "/v1"),
        ]);
        let mut keys = std::collections::HashSet::new();
        for n in 0..5000 {
            let hosts = [format!("{n}.org"), format!("{n}.example"), format!("a.{n}.deep.example")];
            for (host, path) in
                hosts.iter().flat_map(|host| ["/", "/images/1", "/v1"].map(|p| (host, p)))
            {
                let route = table.find(Some(host), path).unwrap();
                keys.insert(table.scope_key(route, Some(host)));
            }
        }
        // `/` and `/images/` of any host; `/` below `example`, and both routes further below.
        assert_eq!(keys.len(), 5);
    }

    proptest! {
        /// The table routes every request that a scope admits to the same route.
        #[test]
        fn scopes_agree_with_the_table(
            routes in proptest::collection::vec(
                ("(|a\\.b|b|\\*\\.b|\\*\\.a\\.b|x\\.a\\.b)", "/[xy/]{0,3}"), 1..8),
            hosts in proptest::collection::vec(
                "(|a\\.b|b|c\\.b|c|x\\.a\\.b|y\\.a\\.b|A\\.B\\.|a\\.b:80)", 2),
            first in "/[xy/]{0,4}",
            second in "/[xy/]{0,4}",
        ) {
            // No configuration has a route twice.
            let pairs: BTreeSet<(&str, &str)> =
                routes.iter().map(|(h, p)| (h.as_str(), p.as_str())).collect();
            let table = table(&pairs.into_iter().collect::<Vec<_>>());
            let [one, other] = [0, 1].map(|n| Some(hosts[n].as_str()).filter(|h| !h.is_empty()));
            if let Some(route) = table.find(one, &first) {
                let scope = table.scope(table.scope_key(route, one)).unwrap();
                let filter = ScopeFilter::new(&frame(&scope));
                prop_assert!(filter.admits(one, &first), "{scope:?}");
                for host in [one, other] {
                    if filter.admits(host, &second) {
                        let found = table.find(host, &second).map(|found| found.index);
                        prop_assert_eq!(found, Some(route.index), "{:?}", scope);
                    }
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
