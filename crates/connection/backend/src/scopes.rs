//! The scopes of a channel, which select the requests that a connection may stay for, and the hash
//! rings that they share.
//!
//! A balancer defines scopes as its clients' requests need them, so this server does not control
//! their number. Scopes of one pool share one ring, which the process keeps as long as a scope uses
//! it. Above a limit the offer is refused, and the balancer proxies the request.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use unlade_handoff_protocol::frame::Scope;
use unlade_migration::scope::{ScopeFilter, ring_of};
use unlade_migration::shard::Ring;

/// Maximum number of scopes of one channel; a further one replaces the oldest.
pub(crate) const SCOPES_MAX: usize = 4096;
/// Maximum size of the text in the scopes of one channel, in bytes.
const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum memory of all rings, in bytes.
const RINGS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The scope that admits no request. It is never evicted.
const SCOPE_NONE: u32 = 0;

/// The rings of all channels of a process. Scopes own them; this table has weak references.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rings(Arc<Mutex<Vec<KnownRing>>>);

#[derive(Debug)]
struct KnownRing {
    members: Vec<(String, u16)>,
    ring: Weak<Ring>,
}

impl Rings {
    /// Returns the ring of `members`, existing or new. Returns None if a new ring would exceed the
    /// memory limit.
    fn get(&self, members: &[(String, u16)]) -> Option<Arc<Ring>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.ring.strong_count() > 0);
        let same = known.iter().find(|known| known.members == members);
        if let Some(ring) = same.and_then(|known| known.ring.upgrade()) {
            return Some(ring);
        }
        let alive = known.iter().filter_map(|known| known.ring.upgrade());
        let taken_bytes: usize = alive.map(|ring| ring.bytes()).sum();
        let ring = Arc::new(ring_of(members));
        if taken_bytes + ring.bytes() > RINGS_BYTES_MAX {
            return None;
        }
        known.push(KnownRing { members: members.to_vec(), ring: Arc::downgrade(&ring) });
        Some(ring)
    }
}

/// The scopes of one channel.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    rings: Rings,
    /// Scopes by number, in the order of their definition.
    known: BTreeMap<u32, Known>,
    text_bytes: usize,
}

#[derive(Debug)]
struct Known {
    filter: Rc<ScopeFilter>,
    text_bytes: usize,
}

impl Scopes {
    /// Creates an empty table.
    pub(crate) fn new(rings: Rings) -> Scopes {
        Scopes { rings, ..Scopes::default() }
    }

    /// Returns the filter of the scope with this number.
    pub(crate) fn get(&self, id: u32) -> Option<Rc<ScopeFilter>> {
        self.known.get(&id).map(|known| Rc::clone(&known.filter))
    }

    /// Defines a scope. Returns false if a limit prevents that.
    pub(crate) fn define(&mut self, scope: &Scope) -> bool {
        self.forget(scope.id);
        let ring = match &scope.ring {
            None => None,
            Some((members, _)) => match self.rings.get(members) {
                None => return false,
                ring => ring,
            },
        };
        let excluded = scope.excluded.iter().chain(&scope.excluded_hosts);
        let excluded_bytes: usize = excluded.map(String::len).sum();
        let text_bytes = scope.host.len() + scope.prefix.len() + excluded_bytes;
        if text_bytes > TEXT_BYTES_MAX {
            return false;
        }
        while self.known.len() >= SCOPES_MAX || self.text_bytes + text_bytes > TEXT_BYTES_MAX {
            let oldest = self.known.keys().copied().find(|id| *id != SCOPE_NONE);
            let Some(oldest) = oldest else { break };
            self.forget(oldest);
        }
        self.text_bytes += text_bytes;
        let filter = Rc::new(ScopeFilter::with_ring(scope, ring));
        self.known.insert(scope.id, Known { filter, text_bytes });
        true
    }

    fn forget(&mut self, id: u32) {
        if let Some(known) = self.known.remove(&id) {
            self.text_bytes -= known.text_bytes;
        }
    }

    /// Removes all scopes, at the end of the channel.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.text_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(id: u32, host: &str, ring: Option<&[(String, u16)]>) -> Scope {
        let (host, prefix) = (host.to_owned(), "/".to_owned());
        let ring = ring.map(|members| (members.to_vec(), 0));
        Scope { id, host, excluded_hosts: Vec::new(), prefix, excluded: Vec::new(), ring }
    }

    fn pool(count: usize, weight: u16) -> Vec<(String, u16)> {
        (0..count).map(|at| (format!("10.0.{}.{}:8080", at / 256, at % 256), weight)).collect()
    }

    #[test]
    fn many_hosts_of_a_sharded_pool_share_one_ring() {
        let rings = Rings::default();
        let (members, mut channels) = (pool(256, 1), Vec::new());
        for _ in 0..2 {
            let mut scopes = Scopes::new(rings.clone());
            for id in 1..=400 {
                assert!(scopes.define(&scope(id, &format!("h{id}.lab"), Some(&members))));
            }
            channels.push(scopes);
        }
        let ring_of = |scopes: &Scopes, id| {
            let filter = scopes.get(id).unwrap();
            Arc::downgrade(filter.ring().unwrap())
        };
        let ring = ring_of(&channels[0], 1);
        for scopes in &channels {
            assert!((1..=400).all(|id| Weak::ptr_eq(&ring_of(scopes, id), &ring)));
        }
        // The last channel drops the ring.
        channels.iter_mut().for_each(Scopes::clear);
        assert_eq!(ring.strong_count(), 0);
    }

    #[test]
    fn a_changed_pool_has_a_ring_of_its_own() {
        let mut scopes = Scopes::default();
        assert!(scopes.define(&scope(1, "", Some(&pool(3, 1)))));
        assert!(scopes.define(&scope(2, "", Some(&pool(4, 1)))));
        let (three, four) = (scopes.get(1).unwrap(), scopes.get(2).unwrap());
        assert_eq!((three.ring().unwrap().len(), four.ring().unwrap().len()), (3, 4));
    }

    #[test]
    fn rings_beyond_their_memory_are_refused_and_those_given_up_make_room() {
        let mut scopes = Scopes::default();
        // Each ring has 4 MiB.
        let large = |at: usize| pool(1024 - at, 256);
        let kept =
            (0..64).take_while(|at| scopes.define(&scope(*at as u32 + 1, "", Some(&large(*at)))));
        let kept = kept.count();
        assert!((8..=17).contains(&kept), "{kept} rings of 4 MiB");
        assert!(scopes.define(&scope(100, "", Some(&large(0)))), "one that is known");
        scopes.clear();
        assert!(scopes.define(&scope(1, "", Some(&large(kept)))));
    }

    #[test]
    fn the_oldest_scope_makes_room_for_a_new_one() {
        let mut scopes = Scopes::default();
        let last = SCOPES_MAX as u32 + 9;
        for id in 0..=last {
            assert!(scopes.define(&scope(id, "h", None)));
        }
        assert_eq!(scopes.known.len(), SCOPES_MAX);
        assert!(scopes.get(SCOPE_NONE).is_some() && scopes.get(last).is_some());
        assert!(scopes.get(1).is_none());
        assert_eq!(scopes.text_bytes, SCOPES_MAX * 2);
    }
}
