//! One database: keys, their values, their deadlines, and the keys that clients watch.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use indexmap::IndexMap;

use crate::copies::Arrival;
use crate::value::{Lost, Value};

/// Assumed memory overhead of a key.
const KEY_OVERHEAD_BYTES: usize = 128;
/// Maximum number of expired keys that are removed at a time.
const EXPIRED_MAX: usize = 256;

#[derive(Debug)]
struct Entry<I> {
    value: Rc<Value<I>>,
    deadline_ms: Option<u64>,
}

/// A key that clients watch.
#[derive(Debug)]
struct Watched {
    /// Number of watches.
    count: usize,
    /// Number of the key's last change.
    change: u64,
}

/// State of a key when a client began to watch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    change: u64,
    is_there: bool,
}

/// A database.
#[derive(Debug)]
pub(crate) struct Store<I> {
    /// A removal moves the last key to the place of the removed one: see [`Store::scan`].
    entries: IndexMap<Rc<[u8]>, Entry<I>>,
    deadlines: BTreeSet<(u64, Rc<[u8]>)>,
    bytes: usize,
    watched: HashMap<Rc<[u8]>, Watched>,
    /// Number of changes of watched keys.
    changes: u64,
    /// Number of keys that were removed because their deadline had passed.
    expired: u64,
}

impl<I> Default for Store<I> {
    fn default() -> Store<I> {
        Store {
            entries: IndexMap::new(),
            deadlines: BTreeSet::new(),
            bytes: 0,
            watched: HashMap::new(),
            changes: 0,
            expired: 0,
        }
    }
}

/// Deadline of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// The key does not exist.
    Absent,
    /// The key has no deadline.
    Never,
    /// Milliseconds since 1970.
    At(u64),
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

    /// Returns the number of expired keys that were removed since the last call.
    pub fn take_expired(&mut self) -> u64 {
        std::mem::take(&mut self.expired)
    }

    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8], now_ms: u64) -> Option<&Rc<Value<I>>> {
        if !self.deadlines.is_empty() && self.is_over(key, now_ms) {
            self.take(key);
            self.expired += 1;
        }
        self.entries.get(key).map(|entry| &entry.value)
    }

    fn is_over(&self, key: &[u8], now_ms: u64) -> bool {
        let entry = self.entries.get(key);
        entry.and_then(|entry| entry.deadline_ms).is_some_and(|deadline| deadline <= now_ms)
    }

    /// Returns true if the key exists and is not expired.
    pub fn has(&self, key: &[u8], now_ms: u64) -> bool {
        self.entries.contains_key(key) && !self.is_over(key, now_ms)
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
        self.put_deadline(key, deadline_ms);
        self.touch(key);
    }

    /// Changes the bytes of an existing key's value. `None` if the key does not exist.
    ///
    /// # Errors
    /// [`Lost`]: the value could not be received.
    pub fn edit<T>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Vec<u8>) -> T,
    ) -> Option<Result<T, Lost>> {
        let entry = self.entries.get_mut(key)?;
        // A value that is being received, sent or queued has other owners, for whom it stays.
        if Rc::get_mut(&mut entry.value).is_none() {
            match entry.value.copy() {
                Ok(copy) => entry.value = Rc::new(copy),
                Err(lost) => return Some(Err(lost)),
            }
        }
        let value = Rc::get_mut(&mut entry.value)?;
        self.bytes -= value.len();
        let result = value.edit(change);
        self.bytes += value.len();
        self.touch(key);
        Some(result)
    }

    fn put_deadline(&mut self, key: &[u8], deadline_ms: Option<u64>) {
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

    /// Removes a key. Returns true if it existed; an expired key does not exist.
    pub fn remove(&mut self, key: &[u8], now_ms: u64) -> bool {
        let is_there = self.get(key, now_ms).is_some() && self.take(key);
        if is_there {
            self.touch(key);
        }
        is_there
    }

    fn take(&mut self, key: &[u8]) -> bool {
        let Some((key, entry)) = self.entries.swap_remove_entry(key) else { return false };
        self.bytes -= entry.value.len() + key.len() + KEY_OVERHEAD_BYTES;
        if let Some(deadline) = entry.deadline_ms {
            self.deadlines.remove(&(deadline, key));
        }
        true
    }

    /// Sets or clears the deadline of a key; a deadline that has passed removes it. Returns false
    /// if the key does not exist.
    pub fn expire(&mut self, key: &[u8], deadline_ms: Option<u64>, now_ms: u64) -> bool {
        if self.get(key, now_ms).is_none() {
            return false;
        }
        match deadline_ms {
            Some(deadline) if deadline <= now_ms => {
                self.take(key);
            }
            _ => self.put_deadline(key, deadline_ms),
        }
        self.touch(key);
        true
    }

    /// Returns the deadline of a key.
    pub fn deadline(&mut self, key: &[u8], now_ms: u64) -> Deadline {
        if self.get(key, now_ms).is_none() {
            return Deadline::Absent;
        }
        let deadline = self.entries.get(key).and_then(|entry| entry.deadline_ms);
        deadline.map_or(Deadline::Never, Deadline::At)
    }

    /// Removes expired keys, a limited number at a time.
    pub fn sweep(&mut self, now_ms: u64) {
        for _ in 0..EXPIRED_MAX {
            let Some((deadline, key)) = self.deadlines.first() else { return };
            if *deadline > now_ms {
                return;
            }
            let key = Rc::clone(key);
            self.take(&key);
            self.expired += 1;
        }
    }

    /// Returns the next deadline.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Removes all keys.
    pub fn clear(&mut self, now_ms: u64) {
        let is_there = |key: &&Rc<[u8]>| self.has(key, now_ms);
        let watched: Vec<_> = self.watched.keys().filter(is_there).cloned().collect();
        watched.iter().for_each(|key| self.touch(key));
        self.entries = IndexMap::new();
        self.deadlines = BTreeSet::new();
        self.bytes = 0;
    }

    /// Exchanges all keys with another database. Watches stay with the database's number.
    pub fn swap(&mut self, other: &mut Store<I>, now_ms: u64) {
        let watched = |one: &Store<I>, other: &Store<I>| -> Vec<Rc<[u8]>> {
            let is_changed = |key: &&Rc<[u8]>| one.has(key, now_ms) || other.has(key, now_ms);
            one.watched.keys().filter(is_changed).cloned().collect()
        };
        let (mine, others) = (watched(self, other), watched(other, self));
        mine.iter().for_each(|key| self.touch(key));
        others.iter().for_each(|key| other.touch(key));
        std::mem::swap(&mut self.entries, &mut other.entries);
        std::mem::swap(&mut self.deadlines, &mut other.deadlines);
        std::mem::swap(&mut self.bytes, &mut other.bytes);
    }

    /// Returns the keys that are not expired.
    pub fn keys(&self, now_ms: u64) -> impl Iterator<Item = &[u8]> {
        let alive = move |entry: &Entry<I>| entry.deadline_ms.is_none_or(|at| at > now_ms);
        self.entries.iter().filter(move |(_, entry)| alive(entry)).map(|(key, _)| &**key)
    }

    /// Returns `count` keys before `cursor` (0: from the start of the scan), without expired ones,
    /// and the next cursor (0 at the end of the scan).
    ///
    /// Keys are visited from the last place to the first. A removal moves the last key to an
    /// earlier place, and an insertion adds a place at the end, so no key can move from a place
    /// that is still to be visited to one that was: a scan returns every key that exists all the
    /// time, and may return a key twice.
    pub fn scan(&self, cursor: u64, count: usize, now_ms: u64) -> (Vec<Rc<[u8]>>, u64) {
        let len = self.entries.len();
        let end = match usize::try_from(cursor) {
            Ok(cursor) if cursor > 0 => cursor.min(len),
            _ => len,
        };
        let start = end.saturating_sub(count);
        let places = (start..end).rev().filter_map(|place| self.entries.get_index(place));
        let alive = places.filter(|(_, entry)| entry.deadline_ms.is_none_or(|at| at > now_ms));
        (alive.map(|(key, _)| Rc::clone(key)).collect(), start as u64)
    }

    /// Returns a key that is not expired, selected by `random`.
    pub fn any(&mut self, mut random: impl FnMut() -> u64, now_ms: u64) -> Option<Rc<[u8]>> {
        loop {
            let len = self.entries.len() as u64;
            let place = random().checked_rem(len)?;
            let key = self.entries.get_index(place as usize).map(|(key, _)| Rc::clone(key))?;
            // Removes an expired key, so that the loop ends.
            if self.get(&key, now_ms).is_some() {
                return Some(key);
            }
        }
    }

    /// Notes a change of a key for those who watch it.
    fn touch(&mut self, key: &[u8]) {
        if self.watched.is_empty() {
            return;
        }
        if let Some(watched) = self.watched.get_mut(key) {
            self.changes += 1;
            watched.change = self.changes;
        }
    }

    /// Begins to watch a key.
    pub fn watch(&mut self, key: &Rc<[u8]>, now_ms: u64) -> Seen {
        let is_there = self.has(key, now_ms);
        let changes = self.changes;
        let new = || Watched { count: 0, change: changes };
        let watched = self.watched.entry(Rc::clone(key)).or_insert_with(new);
        watched.count += 1;
        Seen { change: watched.change, is_there }
    }

    /// Returns true if a watched key is as it was seen.
    pub fn is_as_seen(&self, key: &[u8], seen: Seen, now_ms: u64) -> bool {
        let change = self.watched.get(key).map(|watched| watched.change);
        change == Some(seen.change) && self.has(key, now_ms) == seen.is_there
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, key: &[u8]) {
        let Some(watched) = self.watched.get_mut(key) else { return };
        watched.count -= 1;
        if watched.count == 0 {
            self.watched.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use crate::value::Origin;
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use unlade_testkit::cases;

    /// A scan returns every key that exists all the time, whatever comes and goes meanwhile.
    #[test]
    fn a_scan_misses_no_key_that_stays() {
        cases(500, |random| {
            let pool = Rc::new(Pool::default());
            let value = Rc::new(Value::copied(b"x", Origin::Whole, &pool));
            let mut store: Store<Infallible> = Store::default();
            let key = |number: u64| number.to_string().into_bytes();
            for number in 0..random.below(60) {
                store.set(&key(number), Rc::clone(&value), None);
            }
            let mut stay: BTreeSet<Vec<u8>> = store.keys(0).map(<[u8]>::to_vec).collect();
            let (mut seen, mut cursor) = (BTreeSet::new(), 0);
            loop {
                let (found, next) = store.scan(cursor, 1 + random.below(7usize), 0);
                seen.extend(found.iter().map(|key| key.to_vec()));
                if next == 0 {
                    break;
                }
                cursor = next;
                for _ in 0..random.below(4) {
                    let key = key(random.below(90));
                    if random.chance(1, 2) {
                        store.remove(&key, 0);
                        stay.remove(&key);
                    } else {
                        store.set(&key, Rc::clone(&value), None);
                    }
                }
            }
            assert!(stay.is_subset(&seen), "missed {:?}", stay.difference(&seen));
        });
    }

    #[test]
    fn a_cursor_beyond_the_end_starts_at_the_end() {
        let store: Store<Infallible> = Store::default();
        assert_eq!(store.scan(u64::MAX, 10, 0), (Vec::new(), 0));
    }
}
