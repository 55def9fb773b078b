//! Writes that were acknowledged and are not durable yet: their visibility to readers, their
//! order, and the end of an invocation's writes.
//!
//! - Writes of one key are sent in sequence; those of different keys in parallel.
//! - A reader of a key sees its last write. A reader of other state that depends on a pending
//!   write waits until the write is durable: [`Pending::blocks`].
//! - Bytes and writes are limited; beyond the limits writes are synchronous.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// An object: its bucket and key.
pub type Name = (String, String);

/// Limits of the pending writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of bodies.
    pub dirty_bytes_max: u64,
    /// Most writes.
    pub writes_max: usize,
    /// Most writes in flight at a time.
    pub in_flight_max: usize,
}

/// The pending writes that a call must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Those of this object.
    Object(&'a str, &'a str),
    /// Those of this bucket.
    Bucket(&'a str),
    /// All.
    Everything,
}

/// The limits leave no room for another pending write: it must be synchronous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too much is waiting to be written")]
pub struct Full;

#[derive(Debug)]
struct Entry<W> {
    name: Name,
    invocation: String,
    bytes: u64,
    write: W,
    in_flight: bool,
}

/// The pending writes. `W` is the caller's data of one write.
#[derive(Debug)]
pub struct Pending<W> {
    limits: Limits,
    entries: HashMap<u64, Entry<W>>,
    /// By bucket and key, oldest first.
    by_name: BTreeMap<Name, VecDeque<u64>>,
    /// Writes at the front of their key that were not sent, in the order in which they got there.
    ready: VecDeque<u64>,
    by_invocation: HashMap<String, usize>,
    dirty_bytes: u64,
    in_flight: usize,
    next: u64,
}

impl<W> Pending<W> {
    /// Creates a queue without writes.
    pub fn new(limits: Limits) -> Pending<W> {
        Pending {
            limits,
            entries: HashMap::new(),
            by_name: BTreeMap::new(),
            ready: VecDeque::new(),
            by_invocation: HashMap::new(),
            dirty_bytes: 0,
            in_flight: 0,
            next: 1,
        }
    }

    /// Adds a write of an object that has been acknowledged. Returns its number.
    ///
    /// # Errors
    /// [`Full`]: the write is not added.
    pub fn push(
        &mut self,
        name: Name,
        invocation: &str,
        bytes: u64,
        write: W,
    ) -> Result<u64, Full> {
        let limits = self.limits;
        let room = limits.dirty_bytes_max.saturating_sub(self.dirty_bytes);
        if bytes > room || self.entries.len() >= limits.writes_max {
            return Err(Full);
        }
        let id = self.next;
        self.next += 1;
        self.dirty_bytes += bytes;
        *self.by_invocation.entry(invocation.to_owned()).or_default() += 1;
        let queue = self.by_name.entry(name.clone()).or_default();
        queue.push_back(id);
        if queue.len() == 1 {
            self.ready.push_back(id);
        }
        let invocation = invocation.to_owned();
        self.entries.insert(id, Entry { name, invocation, bytes, write, in_flight: false });
        Ok(id)
    }

    /// The next write to send: the oldest of its key, in FIFO order.
    pub fn poll_ready(&mut self) -> Option<(u64, &W)> {
        if self.in_flight >= self.limits.in_flight_max {
            return None;
        }
        let id = self.ready.pop_front()?;
        let entry = self.entries.get_mut(&id)?;
        entry.in_flight = true;
        self.in_flight += 1;
        Some((id, &entry.write))
    }

    /// Ends a write that was sent, with success or failure. Returns the caller's data, and the
    /// invocation.
    pub fn ended(&mut self, id: u64) -> Option<(W, String)> {
        if !self.entries.get(&id)?.in_flight {
            return None;
        }
        let entry = self.entries.remove(&id)?;
        self.in_flight -= 1;
        self.dirty_bytes -= entry.bytes;
        if let Some(count) = self.by_invocation.get_mut(&entry.invocation) {
            *count -= 1;
            if *count == 0 {
                self.by_invocation.remove(&entry.invocation);
            }
        }
        if let Some(queue) = self.by_name.get_mut(&entry.name) {
            queue.pop_front();
            match queue.front() {
                Some(&next) => self.ready.push_back(next),
                None => {
                    self.by_name.remove(&entry.name);
                }
            }
        }
        Some((entry.write, entry.invocation))
    }

    /// The last pending write of an object, which its readers see.
    pub fn newest(&self, name: &Name) -> Option<&W> {
        let id = self.by_name.get(name)?.back()?;
        self.entries.get(id).map(|entry| &entry.write)
    }

    /// Returns true if a call must wait for a pending write.
    pub fn blocks(&self, scope: Scope<'_>) -> bool {
        match scope {
            Scope::Everything => !self.by_name.is_empty(),
            Scope::Object(bucket, key) => {
                self.by_name.contains_key(&(bucket.to_owned(), key.to_owned()))
            }
            Scope::Bucket(bucket) => {
                let mut from = self.by_name.range((bucket.to_owned(), String::new())..);
                from.next().is_some_and(|((found, _), _)| found == bucket)
            }
        }
    }

    /// Number of an invocation's pending writes.
    pub fn of_invocation(&self, invocation: &str) -> usize {
        self.by_invocation.get(invocation).copied().unwrap_or_default()
    }

    /// Number of pending writes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if no write is pending.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sum of the bytes of pending bodies.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    const LIMITS: Limits = Limits { dirty_bytes_max: 100, writes_max: 8, in_flight_max: 3 };

    /// A reference model: a list of writes with linear search.
    #[derive(Clone)]
    struct Slow {
        id: u64,
        name: Name,
        invocation: String,
        bytes: u64,
        value: u64,
        in_flight: bool,
    }

    #[test]
    fn it_does_what_a_list_does() {
        cases(500, |random| {
            let mut pending = Pending::new(LIMITS);
            let mut slow: Vec<Slow> = Vec::new();
            for step in 0..120 {
                let bucket = format!("b{}", random.below(2));
                let name = (bucket.clone(), format!("k{}", random.below(3)));
                match random.below(3) {
                    0 => {
                        let bytes = random.below(40);
                        let invocation = format!("i{}", random.below(3));
                        let held: u64 = slow.iter().map(|write| write.bytes).sum();
                        let fits = held + bytes <= 100 && slow.len() < 8;
                        let pushed = pending.push(name.clone(), &invocation, bytes, step);
                        assert_eq!(pushed.is_ok(), fits);
                        if let Ok(id) = pushed {
                            let name = name.clone();
                            let in_flight = false;
                            slow.push(Slow { id, name, invocation, bytes, value: step, in_flight });
                        }
                    }
                    1 => {
                        let flying = slow.iter().filter(|write| write.in_flight).count();
                        let found = pending.poll_ready().map(|(id, value)| (id, *value));
                        let first_of_key = |at: usize| {
                            !slow[..at].iter().any(|earlier| earlier.name == slow[at].name)
                        };
                        let may: Vec<u64> = (0..slow.len())
                            .filter(|&at| !slow[at].in_flight && first_of_key(at) && flying < 3)
                            .map(|at| slow[at].id)
                            .collect();
                        assert_eq!(found.is_some(), !may.is_empty());
                        if let Some((id, value)) = found {
                            assert!(may.contains(&id));
                            let write = slow.iter_mut().find(|write| write.id == id).unwrap();
                            assert_eq!(write.value, value);
                            write.in_flight = true;
                        }
                    }
                    _ => {
                        let any = slow.get(random.below(slow.len() as u64) as usize).cloned();
                        if let Some(write) = any {
                            let ended = pending.ended(write.id);
                            assert_eq!(ended.is_some(), write.in_flight);
                            if let Some((value, invocation)) = ended {
                                assert_eq!((value, &invocation), (write.value, &write.invocation));
                                slow.retain(|other| other.id != write.id);
                            }
                        }
                    }
                }
                let newest = slow.iter().rev().find(|write| write.name == name);
                assert_eq!(pending.newest(&name).copied(), newest.map(|write| write.value));
                assert_eq!(pending.blocks(Scope::Object(&name.0, &name.1)), newest.is_some());
                let in_bucket = slow.iter().any(|write| write.name.0 == bucket);
                assert_eq!(pending.blocks(Scope::Bucket(&bucket)), in_bucket);
                assert_eq!(pending.blocks(Scope::Everything), !slow.is_empty());
                let count = slow.iter().filter(|write| write.invocation == "i1").count();
                assert_eq!(pending.of_invocation("i1"), count);
                assert_eq!(pending.len(), slow.len());
                assert_eq!(
                    pending.dirty_bytes(),
                    slow.iter().map(|write| write.bytes).sum::<u64>()
                );
            }
        });
    }

    #[test]
    fn a_bucket_whose_name_begins_alike_is_another() {
        let mut pending = Pending::new(LIMITS);
        pending.push(("ab".into(), "k".into()), "i", 1, ()).unwrap();
        assert!(!pending.blocks(Scope::Bucket("a")));
        assert!(!pending.blocks(Scope::Bucket("abc")));
        assert!(pending.blocks(Scope::Bucket("ab")));
    }
}
