//! LRU cache of flow contexts in the device: a cache of bounded size in front of the host's memory
//! (§6.5 of the paper). This module decides and counts; its caller moves the contexts.

use std::collections::HashMap;

use crate::context::CONTEXT_BYTES_MAX;

/// Identifier of a context: a flow in one direction.
pub type ContextId = u32;

/// The list end marker: no entry.
const NONE: usize = usize::MAX;

/// Result of a context access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The context was in the cache.
    Hit,
    /// The context is fetched; `evicted` is written back to the host's memory.
    Miss {
        /// The least recently used context, if the cache was full.
        evicted: Option<ContextId>,
    },
}

/// Counters; they only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Accesses to a cached context.
    pub hits: u64,
    /// Accesses to a context that was not cached.
    pub misses: u64,
    /// Contexts that were evicted.
    pub evictions: u64,
    /// Bytes fetched and written back for misses and evictions.
    pub moved_bytes: u64,
}

struct Slot {
    id: ContextId,
    /// Neighbours in the order of use, as indexes into `slots`.
    newer: usize,
    older: usize,
}

/// A cache that evicts the least recently used context.
pub struct Cache {
    slots: Vec<Slot>,
    places: HashMap<ContextId, usize>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
    capacity: usize,
    stats: CacheStats,
}

impl Cache {
    /// A cache of `cache_bytes` bytes. It has room for at least one context.
    pub fn new(cache_bytes: usize) -> Cache {
        Cache {
            slots: Vec::new(),
            places: HashMap::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity: (cache_bytes / CONTEXT_BYTES_MAX).max(1),
            stats: CacheStats::default(),
        }
    }

    /// Number of contexts that the cache has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The counters.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Records an access to the context and caches it, evicting another one if the cache is full.
    pub fn access(&mut self, id: ContextId) -> Access {
        if let Some(&slot) = self.places.get(&id) {
            self.stats.hits += 1;
            self.unlink(slot);
            self.link(slot);
            return Access::Hit;
        }
        self.stats.misses += 1;
        self.stats.moved_bytes += CONTEXT_BYTES_MAX as u64;
        let full = self.places.len() == self.capacity;
        let evicted = full.then(|| self.slots[self.oldest].id);
        if let Some(evicted) = evicted {
            self.remove(evicted);
            self.stats.evictions += 1;
            self.stats.moved_bytes += CONTEXT_BYTES_MAX as u64;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { id, newer: NONE, older: NONE });
            self.slots.len() - 1
        });
        self.slots[slot].id = id;
        self.places.insert(id, slot);
        self.link(slot);
        Access::Miss { evicted }
    }

    /// Removes a destroyed context. Nothing is written back.
    pub fn remove(&mut self, id: ContextId) {
        if let Some(slot) = self.places.remove(&id) {
            self.unlink(slot);
            self.free.push(slot);
        }
    }

    fn unlink(&mut self, slot: usize) {
        let Slot { newer, older, .. } = self.slots[slot];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older].newer = newer,
        }
    }

    fn link(&mut self, slot: usize) {
        self.slots[slot].newer = NONE;
        self.slots[slot].older = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest].newer = slot,
        }
        self.newest = slot;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{Access, CONTEXT_BYTES_MAX, Cache, CacheStats};

    #[test]
    fn the_least_recently_used_context_makes_room_and_its_cost_is_counted() {
        unlade_testkit::cases(50, |random| {
            let room = 1 + random.below(8) as usize;
            let mut cache = Cache::new(room * CONTEXT_BYTES_MAX + random.below(200) as usize);
            assert_eq!(cache.capacity(), room);
            let mut model: VecDeque<u32> = VecDeque::new();
            let mut count = CacheStats::default();
            for _ in 0..500 {
                let id = random.below(12) as u32;
                if random.once_in(20) {
                    cache.remove(id);
                    model.retain(|&other| other != id);
                    continue;
                }
                let expected = if model.contains(&id) {
                    count.hits += 1;
                    model.retain(|&other| other != id);
                    Access::Hit
                } else {
                    count.misses += 1;
                    count.moved_bytes += 208;
                    let evicted = if model.len() == room { model.pop_front() } else { None };
                    count.evictions += u64::from(evicted.is_some());
                    count.moved_bytes += if evicted.is_some() { 208 } else { 0 };
                    Access::Miss { evicted }
                };
                model.push_back(id);
                assert_eq!(cache.access(id), expected);
            }
            assert_eq!(cache.stats(), count);
        });
    }
}
