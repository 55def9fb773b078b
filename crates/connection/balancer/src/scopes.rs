//! The scopes that are defined to one server on the present channel: numbers for the requests that
//! it may answer without asking. Sans-IO.
//!
//! The configuration determines how many there are ([`ScopeKey`]), not the hosts that clients
//! name. If the numbers run out, the least recently used one gets another scope: connections under
//! its former scope come back with their next request.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plan::Routing;
use crate::route::ScopeKey;

/// Most scopes that are defined to one server.
pub(crate) const SCOPES_MAX: usize = 1024;
/// The scope that admits nothing; its number is never assigned.
pub(crate) const SCOPE_NONE: u32 = 0;

/// Key of a scope: the key in the route table, and the index of the server in its pool.
pub(crate) type Key = (ScopeKey, usize);

/// The scopes of one channel.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    /// The routing that the keys belong to.
    routing: Option<Arc<Routing>>,
    known: HashMap<Key, Entry>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    id: u32,
    used: u64,
}

impl Scopes {
    /// Returns the number of a scope; true if it has to be defined first.
    pub(crate) fn number(&mut self, routing: &Arc<Routing>, key: Key) -> (u32, bool) {
        if self.routing.as_ref().is_none_or(|known| !Arc::ptr_eq(known, routing)) {
            // Every number is free again. Connections under a number that is redefined come back.
            self.routing = Some(Arc::clone(routing));
            self.known.clear();
        }
        self.clock += 1;
        let used = self.clock;
        if let Some(entry) = self.known.get_mut(&key) {
            entry.used = used;
            return (entry.id, false);
        }
        let id = match self.known.len() < SCOPES_MAX {
            true => SCOPE_NONE + 1 + self.known.len() as u32,
            false => self.give_up_oldest(),
        };
        self.known.insert(key, Entry { id, used });
        (id, true)
    }

    fn give_up_oldest(&mut self) -> u32 {
        let oldest = self.known.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
        oldest.and_then(|key| self.known.remove(&key)).map_or(SCOPE_NONE + 1, |entry| entry.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BalancerConfig;
    use crate::plan::Plan;
    use crate::server::KnownServers;

    fn plan() -> Plan {
        let text = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\npool = \"p\"\n\
                    [pool.p]\nservers = [\"127.0.0.1:1\"]\n";
        let config = BalancerConfig::parse(text, "test").unwrap();
        Plan::new(config, &mut KnownServers::default()).unwrap()
    }

    #[test]
    fn scopes_are_numbered_once_and_the_oldest_makes_room() {
        let plan = plan();
        let key = plan.routes.scope_key(plan.routes.get(0).unwrap(), None);
        let mut scopes = Scopes::default();
        for server in 0..SCOPES_MAX {
            assert_eq!(scopes.number(&plan.routing, (key, server)), (server as u32 + 1, true));
        }
        assert_eq!(scopes.number(&plan.routing, (key, 0)), (1, false));
        // The second number is the least recently used one.
        assert_eq!(scopes.number(&plan.routing, (key, SCOPES_MAX)), (2, true));
        assert_eq!(scopes.number(&plan.routing, (key, 0)), (1, false));
        assert_eq!(scopes.number(&plan.routing, (key, 1)), (3, true));
    }

    #[test]
    fn other_routes_have_other_scopes() {
        let (one, other) = (plan(), plan());
        let key = one.routes.scope_key(one.routes.get(0).unwrap(), None);
        let mut scopes = Scopes::default();
        for routing in [&one.routing, &other.routing, &one.routing] {
            assert_eq!(scopes.number(routing, (key, 0)), (1, true));
            assert_eq!(scopes.number(routing, (key, 0)), (1, false));
        }
    }
}
