//! The databases, by number.

use crate::copies::Arrival;
use crate::store::Store;

/// Number of databases.
pub(crate) const DATABASES: usize = 16;

/// The databases.
#[derive(Debug)]
pub(crate) struct Databases<I> {
    stores: Vec<Store<I>>,
}

impl<I: Arrival> Databases<I> {
    /// Creates empty databases.
    pub fn new() -> Databases<I> {
        Databases { stores: (0..DATABASES).map(|_| Store::default()).collect() }
    }

    /// Returns a database.
    ///
    /// # Panics
    /// Panics if the number is not below [`DATABASES`].
    pub fn get(&mut self, number: usize) -> &mut Store<I> {
        &mut self.stores[number]
    }

    /// Returns the databases in order.
    pub fn all(&self) -> impl Iterator<Item = &Store<I>> {
        self.stores.iter()
    }

    /// Returns the memory use of keys and values, in bytes.
    pub fn bytes(&self) -> usize {
        self.stores.iter().map(Store::bytes).sum()
    }

    /// Removes expired keys, a limited number at a time.
    pub fn sweep(&mut self, now_ms: u64) {
        self.stores.iter_mut().for_each(|store| store.sweep(now_ms));
    }

    /// Returns the next deadline.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.stores.iter().filter_map(Store::next_deadline_ms).min()
    }

    /// Removes all keys of all databases.
    pub fn clear(&mut self, now_ms: u64) {
        self.stores.iter_mut().for_each(|store| store.clear(now_ms));
    }

    /// Exchanges the keys of two databases.
    ///
    /// # Panics
    /// Panics if a number is not below [`DATABASES`].
    pub fn swap(&mut self, one: usize, other: usize, now_ms: u64) {
        let (low, high) = (one.min(other), one.max(other));
        if let Some((before, behind)) = self.stores.split_at_mut_checked(high)
            && low != high
        {
            before[low].swap(&mut behind[0], now_ms);
        }
    }

    /// Returns the number of expired keys that were removed since the last call.
    pub fn take_expired(&mut self) -> u64 {
        self.stores.iter_mut().map(Store::take_expired).sum()
    }
}
