//! Keys, their values, and their deadlines.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use crate::copies::Arrival;
use crate::value::Value;

/// Assumed memory overhead of a key.
const KEY_OVERHEAD_BYTES: usize = 128;
/// Maximum number of expired keys that are removed at a time.
const EXPIRED_MAX: usize = 256;

#[derive(Debug)]
struct Entry<I> {
    value: Rc<Value<I>>,
    deadline_ms: Option<u64>,
}

/// A database.
#[derive(Debug)]
pub(crate) struct Store<I> {
    entries: HashMap<Rc<[u8]>, Entry<I>>,
    deadlines: BTreeSet<(u64, Rc<[u8]>)>,
    bytes: usize,
}

impl<I> Default for Store<I> {
    fn default() -> Store<I> {
        Store { entries: HashMap::new(), deadlines: BTreeSet::new(), bytes: 0 }
    }
}

/// Time to live of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ttl {
    /// The key does not exist.
    Absent,
    /// The key has no deadline.
    Never,
    /// Milliseconds until the deadline.
    Ms(u64),
}

impl<I: Arrival> Store<I> {
    /// Returns the number of keys, including expired ones that are not removed yet.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of keys with a deadline.
    pub fn with_deadline(&self) -> usize {
        self.deadlines.len()
    }

    /// Returns the memory use of keys and values, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8], now_ms: u64) -> Option<&Rc<Value<I>>> {
        if !self.deadlines.is_empty() && self.is_over(key, now_ms) {
            self.remove(key);
        }
        self.entries.get(key).map(|entry| &entry.value)
    }

    fn is_over(&self, key: &[u8], now_ms: u64) -> bool {
        let entry = self.entries.get(key);
        entry.and_then(|entry| entry.deadline_ms).is_some_and(|deadline| deadline <= now_ms)
    }

    /// Sets the value of a key, and its deadline if any.
    pub fn set(&mut self, key: &[u8], value: Rc<Value<I>>, deadline_ms: Option<u64>) {
        self.bytes += value.len();
        match self.entries.get_mut(key) {
            Some(entry) => {
                self.bytes -= entry.value.len();
                entry.value = value;
            }
            None => {
                self.bytes += key.len() + KEY_OVERHEAD_BYTES;
                self.entries.insert(key.into(), Entry { value, deadline_ms: None });
            }
        }
        self.set_deadline(key, deadline_ms);
    }

    fn set_deadline(&mut self, key: &[u8], deadline_ms: Option<u64>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let before = std::mem::replace(&mut entry.deadline_ms, deadline_ms);
        if before == deadline_ms {
            return;
        }
        let key: Rc<[u8]> = key.into();
        if let Some(before) = before {
            self.deadlines.remove(&(before, Rc::clone(&key)));
        }
        if let Some(deadline) = deadline_ms {
            self.deadlines.insert((deadline, key));
        }
    }

    /// Removes a key. Returns true if it existed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let Some((key, entry)) = self.entries.remove_entry(key) else { return false };
        self.bytes -= entry.value.len() + key.len() + KEY_OVERHEAD_BYTES;
        if let Some(deadline) = entry.deadline_ms {
            self.deadlines.remove(&(deadline, key));
        }
        true
    }

    /// Sets or clears the deadline of a key. Returns false if the key does not exist.
    pub fn expire(&mut self, key: &[u8], deadline_ms: Option<u64>, now_ms: u64) -> bool {
        if self.get(key, now_ms).is_none() {
            return false;
        }
        match deadline_ms {
            Some(deadline) if deadline <= now_ms => {
                self.remove(key);
            }
            _ => self.set_deadline(key, deadline_ms),
        }
        true
    }

    /// Returns the time to live of a key.
    pub fn ttl(&mut self, key: &[u8], now_ms: u64) -> Ttl {
        if self.get(key, now_ms).is_none() {
            return Ttl::Absent;
        }
        let deadline = self.entries.get(key).and_then(|entry| entry.deadline_ms);
        deadline.map_or(Ttl::Never, |deadline| Ttl::Ms(deadline.saturating_sub(now_ms)))
    }

    /// Removes expired keys, a limited number at a time.
    pub fn sweep(&mut self, now_ms: u64) {
        for _ in 0..EXPIRED_MAX {
            let Some((deadline, key)) = self.deadlines.first() else { return };
            if *deadline > now_ms {
                return;
            }
            let key = Rc::clone(key);
            self.remove(&key);
        }
    }

    /// Returns the next deadline.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        *self = Store::default();
    }
}
