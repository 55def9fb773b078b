//! Sends whose bytes may move before the socket has taken them.
//!
//! A client that sends past a deferred copy reads the copy's source. The program may want to change
//! that source while the socket is full. The client then saves the bytes and moves them here; the
//! task in the queue stays the same.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use unlade_shm::Ticket;

/// Addresses and lengths.
type Places = SmallVec<[(u64, u64); 4]>;

/// The places of a send's bytes, in the order of the stream.
#[derive(Debug)]
pub struct HeldBytes {
    places: Mutex<Places>,
    /// Number of the first bytes that the client has sent before the task.
    sent: u64,
}

impl HeldBytes {
    /// Creates the bytes at these places: addresses and lengths. The first `sent` are sent.
    pub fn new(places: impl IntoIterator<Item = (u64, u64)>, sent: u64) -> HeldBytes {
        HeldBytes { places: Mutex::new(places.into_iter().collect()), sent }
    }

    /// Number of the first bytes that were sent before the task.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Moves all bytes of the place with this number to another address. When this returns, no
    /// thread reads them at the earlier one.
    pub fn move_to(&self, number: usize, address: u64) {
        if let Some((place, _)) = self.lock().get_mut(number) {
            *place = address;
        }
    }

    /// Calls `send` with the places of the bytes `at..end`, which do not move meanwhile. It should
    /// not wait.
    pub fn with<T>(&self, at: u64, end: u64, send: impl FnOnce(&[(u64, u64)]) -> T) -> T {
        let places = self.lock();
        let mut begin = 0;
        let parts: Places = places
            .iter()
            .filter_map(|&(place, len)| {
                let (from, to) = (at.max(begin), end.min(begin + len));
                let skipped = from - begin;
                begin += len;
                (from < to).then(|| (place.wrapping_add(skipped), to - from))
            })
            .collect();
        send(&parts)
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sends of a client whose bytes may move.
#[derive(Debug, Default)]
pub struct HeldSends {
    /// Number of sends; other tasks need no lock.
    count: AtomicUsize,
    sends: Mutex<Vec<(Ticket, Arc<HeldBytes>)>>,
}

impl HeldSends {
    /// Adds a send, before it is published.
    pub fn add(&self, ticket: Ticket, bytes: Arc<HeldBytes>) {
        self.change(|sends| sends.push((ticket, bytes)));
    }

    /// Removes a send that is over.
    pub fn remove(&self, ticket: Ticket) {
        self.change(|sends| sends.retain(|(other, _)| *other != ticket));
    }

    /// The bytes of a send; none if they do not move.
    pub fn get(&self, ticket: Ticket) -> Option<Arc<HeldBytes>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let sends = self.lock();
        sends.iter().find(|(other, _)| *other == ticket).map(|(_, bytes)| Arc::clone(bytes))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<(Ticket, Arc<HeldBytes>)>)) {
        let mut sends = self.lock();
        change(&mut sends);
        // The publication of a task orders this store before the service's load.
        self.count.store(sends.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Ticket, Arc<HeldBytes>)>> {
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_where_they_are_now() {
        let held = HeldBytes::new([(1000, 10), (5000, 100), (9000, 1)], 0);
        let parts = |at, end| held.with(at, end, <[_]>::to_vec);
        assert_eq!(parts(0, 111), [(1000, 10), (5000, 100), (9000, 1)]);
        assert_eq!(parts(10, 60), [(5000, 50)]);
        assert_eq!(parts(9, 11), [(1009, 1), (5000, 1)]);
        assert!(parts(111, 111).is_empty());
        held.move_to(1, 70_000);
        held.move_to(3, 1);
        assert_eq!(parts(15, 111), [(70_005, 95), (9000, 1)]);
    }

    #[test]
    fn sends_are_found_by_ticket() {
        let sends = HeldSends::default();
        assert!(sends.get(Ticket(7)).is_none());
        sends.add(Ticket(7), Arc::new(HeldBytes::new([(1, 1)], 0)));
        assert!(sends.get(Ticket(7)).is_some() && sends.get(Ticket(8)).is_none());
        sends.remove(Ticket(7));
        assert!(sends.get(Ticket(7)).is_none());
    }
}
