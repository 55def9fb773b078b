//! The events that the gateway has not taken, in memory: their numbers, and the way to the gateway. Their
//! files are in [`crate::intents`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot};

use crate::fault::Fault;
use crate::record::EVENTS_MAX;

/// Distance of a reservation of numbers, which are nanoseconds: an hour. One is written, at most, in
/// this time.
const RESERVED: u64 = 3_600_000_000_000;

/// A bucket and a key.
type Name = (String, String);

/// A question for the gateway: may a bucket invoke these functions?
pub struct Question {
    /// The bucket.
    pub bucket: String,
    /// The ARNs of the functions.
    pub functions: Vec<String>,
    /// The refused functions, with the reason.
    pub answer: oneshot::Sender<Vec<(String, String)>>,
}

#[derive(Default)]
struct State {
    /// The last number.
    last: u64,
    /// The number up to which numbers are reserved.
    reserved: u64,
    /// All events, also those whose change is not made yet.
    count: usize,
    /// Events of changes that were made.
    ready: BTreeMap<u64, Name>,
    /// The last event of a key, if its mark may not be durable.
    loose: HashMap<Name, u64>,
}

/// The index of the events.
pub struct Outbox {
    state: Mutex<State>,
    /// Signalled when the gateway is to be told something.
    pub news: Notify,
    gateway: OnceLock<mpsc::Sender<Question>>,
    refused: AtomicU64,
    /// Most events, which tests lower.
    pub events_max: AtomicUsize,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox {
            state: Mutex::default(),
            news: Notify::new(),
            gateway: OnceLock::new(),
            refused: AtomicU64::new(0),
            events_max: AtomicUsize::new(EVENTS_MAX),
        }
    }
}

impl Outbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects the way to the gateway. Without one no event is made, because nobody would take it.
    pub fn connect(&self, gateway: mpsc::Sender<Question>) {
        let _ = self.gateway.set(gateway);
    }

    /// The way to the gateway, if there is one.
    pub fn gateway(&self) -> Option<&mpsc::Sender<Question>> {
        self.gateway.get()
    }

    /// Continues behind the numbers of a previous process.
    pub fn resume(&self, reserved: u64) {
        let mut state = self.state();
        state.last = state.last.max(reserved);
        state.reserved = state.reserved.max(reserved);
    }

    /// Begins an event and returns its number: the time in nanoseconds, or the number after the last one
    /// if the clock was set back. `reserve` makes the end of the reserved numbers durable, so that the
    /// next process does not use one again.
    ///
    /// # Errors
    /// There are as many events as may be, which is counted, or `reserve` failed.
    pub fn begin(
        &self,
        now_ns: u64,
        reserve: impl FnOnce(u64) -> io::Result<()>,
    ) -> Result<u64, Fault> {
        let mut state = self.state();
        if state.count >= self.events_max.load(Ordering::Relaxed) {
            drop(state);
            self.refused.fetch_add(1, Ordering::Relaxed);
            self.news.notify_one();
            return Err(Fault::OutboxFull);
        }
        let number = now_ns.max(state.last.saturating_add(1));
        if number > state.reserved {
            let reserved = number.saturating_add(RESERVED);
            reserve(reserved)?;
            state.reserved = reserved;
        }
        state.last = number;
        state.count += 1;
        Ok(number)
    }

    /// Ends an event whose change was not made.
    pub fn cancel(&self) {
        self.state().count -= 1;
    }

    /// Notes that the change of an event was made; its mark need not be durable.
    pub fn make_ready(&self, number: u64, name: Name) {
        let mut state = self.state();
        state.loose.insert(name.clone(), number);
        state.ready.insert(number, name);
        drop(state);
        self.news.notify_one();
    }

    /// Adds an event of a previous process.
    pub fn restore(&self, number: u64, name: Name) {
        let mut state = self.state();
        state.count += 1;
        state.last = state.last.max(number);
        state.ready.insert(number, name);
    }

    /// Returns true if an event is ready.
    pub fn is_ready(&self, number: u64) -> bool {
        self.state().ready.contains_key(&number)
    }

    /// The event of a key whose mark may not be durable.
    pub fn loose(&self, bucket: &str, key: &str) -> Option<u64> {
        let state = self.state();
        if state.loose.is_empty() {
            return None;
        }
        state.loose.get(&(bucket.to_owned(), key.to_owned())).copied()
    }

    /// Notes that the mark of an event is durable.
    pub fn fasten(&self, bucket: &str, key: &str) {
        self.state().loose.remove(&(bucket.to_owned(), key.to_owned()));
    }

    /// The first ready event that is not among those that were sent.
    pub fn next(&self, sent: &BTreeSet<u64>) -> Option<u64> {
        self.state().ready.keys().find(|number| !sent.contains(number)).copied()
    }

    /// Removes an event that the gateway has.
    pub fn remove(&self, number: u64) {
        let mut state = self.state();
        let Some(name) = state.ready.remove(&number) else { return };
        state.count -= 1;
        if state.loose.get(&name) == Some(&number) {
            state.loose.remove(&name);
        }
    }

    /// The number of changes that were refused since the last call.
    pub fn take_refused(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> Name {
        ("box".to_owned(), key.to_owned())
    }

    #[test]
    fn numbers_increase_when_the_clock_is_set_back_and_in_the_next_process() {
        let outbox = Outbox::default();
        let mut reserved = Vec::new();
        for (now_ns, due) in [(100, 100), (100, 101), (50, 102), (200, 200)] {
            let number = outbox.begin(now_ns, |end| {
                reserved.push(end);
                Ok(())
            });
            assert_eq!(number.unwrap(), due);
        }
        assert_eq!(reserved, [100 + RESERVED], "one reservation is enough for an hour");
        let next = Outbox::default();
        next.resume(reserved[0]);
        let number = next.begin(201, |end| {
            reserved.push(end);
            Ok(())
        });
        assert_eq!(number.unwrap(), reserved[0] + 1);
        let failed = next.begin(u64::MAX - 1, |_| Err(io::Error::other("no disk")));
        assert!(matches!(failed, Err(Fault::System(_))));
    }

    #[test]
    fn a_full_outbox_refuses_and_counts() {
        let outbox = Outbox::default();
        outbox.events_max.store(2, Ordering::Relaxed);
        let begin = || outbox.begin(1, |_| Ok(()));
        let (first, _) = (begin().unwrap(), begin().unwrap());
        assert!(matches!(begin(), Err(Fault::OutboxFull)));
        assert_eq!((outbox.take_refused(), outbox.take_refused()), (1, 0));
        outbox.make_ready(first, name("a"));
        assert!(begin().is_err());
        outbox.remove(first);
        outbox.remove(first);
        outbox.cancel();
        assert!(begin().is_ok() && begin().is_ok() && begin().is_err());
    }

    #[test]
    fn an_event_is_sent_once_in_order_and_its_key_is_loose_until_then() {
        let outbox = Outbox::default();
        for number in 1..=3 {
            assert_eq!(outbox.begin(number, |_| Ok(())).unwrap(), number);
        }
        outbox.make_ready(2, name("a"));
        outbox.make_ready(3, name("b"));
        let mut sent = BTreeSet::new();
        assert_eq!(outbox.next(&sent), Some(2));
        sent.insert(2);
        // An earlier one becomes ready later.
        outbox.make_ready(1, name("c"));
        assert_eq!(outbox.next(&sent), Some(1));
        assert_eq!((outbox.loose("box", "a"), outbox.loose("box", "d")), (Some(2), None));
        outbox.fasten("box", "a");
        outbox.remove(3);
        assert_eq!((outbox.loose("box", "a"), outbox.loose("box", "b")), (None, None));
        assert!(outbox.is_ready(2) && !outbox.is_ready(3));
    }
}
