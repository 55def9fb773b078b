//! Number of service threads, and assignment of clients to them.
//!
//! The average load is kept between two bounds (Copier, SOSP 2025, §4.5.1). A change requires that
//! its condition has held for some time. A thread stops only if the others would stay below the
//! upper bound with its work, so a load near a bound does not start and stop threads in turn.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::{ClientId, Micros};

/// Maximum number of threads.
pub const THREADS_MAX: usize = 64;
/// Maximum number of clients that [`Assignments::rebalance`] moves at once.
pub const MOVES_MAX: usize = 16;
/// Threads are balanced if their loads differ by less than this fraction (one part in
/// `IMBALANCE_PART`) of the busier one's load.
const IMBALANCE_PART: u64 = 4;

/// Bounds for the number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Average load (1 is always busy) below which a thread may stop.
    pub low_load: f32,
    /// Average load above which another thread may start.
    pub high_load: f32,
    /// Time for which the condition must hold, in microseconds.
    pub sustained_us: u64,
    /// Maximum number of threads.
    pub threads_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { low_load: 0.3, high_load: 0.8, sustained_us: 100_000, threads_max: 1 }
    }
}

/// Load of a thread in the last period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Time spent copying, in microseconds.
    pub busy_us: u64,
    /// Length of the period, in microseconds.
    pub period_us: u64,
}

/// Change of the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Start one more thread.
    Start,
    /// Stop the last thread; all others keep their clients.
    Stop,
    /// No change.
    Keep,
}

/// Observes the load of the running threads.
#[derive(Debug)]
pub struct Scaler {
    bounds: Bounds,
    /// The wanted change and, in `since`, the time at which its condition began to hold.
    wanted: Scale,
    since: Micros,
}

impl Scaler {
    /// Creates a scaler without observations.
    pub fn new(bounds: Bounds) -> Scaler {
        Scaler { bounds, wanted: Scale::Keep, since: Micros(0) }
    }

    /// Evaluates a period; `loads` has the loads of all running threads. The last thread never
    /// stops: it sleeps when it has no work ([`crate::idle`]).
    pub fn observe(&mut self, loads: &[Load], now: Micros) -> Scale {
        let wanted = self.wanted_for(loads);
        if wanted != self.wanted {
            (self.wanted, self.since) = (wanted, now);
        }
        let lasted_us = now.0.saturating_sub(self.since.0);
        if wanted == Scale::Keep || lasted_us < self.bounds.sustained_us {
            return Scale::Keep;
        }
        // The next change must satisfy its condition again, with the new number of threads.
        self.wanted = Scale::Keep;
        wanted
    }

    fn wanted_for(&self, loads: &[Load]) -> Scale {
        let busy = loads.iter().map(|load| load.busy_us.min(load.period_us) as f64).sum::<f64>();
        let period = loads.iter().map(|load| load.period_us as f64).sum::<f64>();
        let (threads, average) = (loads.len(), busy / period.max(1.0));
        let bounds = &self.bounds;
        if average > f64::from(bounds.high_load) && threads < bounds.threads_max.min(THREADS_MAX) {
            return Scale::Start;
        }
        let fewer = threads.saturating_sub(1).max(1) as f64;
        let then = average * threads as f64 / fewer;
        let low = average < f64::from(bounds.low_load) && then < f64::from(bounds.high_load);
        if low && threads > 1 { Scale::Stop } else { Scale::Keep }
    }
}

/// Identifies a service thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u16);

/// A change of a client's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The client.
    pub client: ClientId,
    /// The previous thread.
    pub from: ThreadId,
    /// The new thread.
    pub to: ThreadId,
}

#[derive(Clone, Copy, Debug)]
struct Assignment {
    thread: ThreadId,
    /// Number of bytes copied in the last period.
    bytes: u64,
}

/// Assignment of clients to threads. A client keeps its thread, and so the contents of that core's
/// cache, unless the thread stops or has clearly more work than another one.
#[derive(Debug, Default)]
pub struct Assignments {
    /// Running threads, each with the number of bytes copied for its clients in the last period.
    threads: BTreeMap<ThreadId, u64>,
    clients: BTreeMap<ClientId, Assignment>,
}

impl Assignments {
    /// Adds a thread; returns false if there are [`THREADS_MAX`] already.
    pub fn start(&mut self, thread: ThreadId) -> bool {
        if self.threads.len() >= THREADS_MAX {
            return false;
        }
        self.threads.entry(thread).or_insert(0);
        true
    }

    /// Removes a thread. Its clients move to the other threads; if there are none, they are
    /// unassigned until they are placed again.
    pub fn stop(&mut self, thread: ThreadId) -> Vec<Moved> {
        self.threads.remove(&thread);
        let unassigned: Vec<_> = self
            .clients
            .iter()
            .filter(|(_, assignment)| assignment.thread == thread)
            .map(|(client, assignment)| (*client, assignment.bytes))
            .collect();
        let mut moved = Vec::new();
        for (client, bytes) in unassigned {
            self.clients.remove(&client);
            if let Some(to) = self.assign(client, bytes) {
                moved.push(Moved { client, from: thread, to });
            }
        }
        moved
    }

    /// Returns the thread of this client; a new client gets the thread with the least work. `None`
    /// without threads.
    pub fn place(&mut self, client: ClientId) -> Option<ThreadId> {
        match self.clients.get(&client) {
            Some(assignment) => Some(assignment.thread),
            None => self.assign(client, 0),
        }
    }

    fn assign(&mut self, client: ClientId, bytes: u64) -> Option<ThreadId> {
        // Among threads with equal loads, choose the one with fewer clients.
        let count =
            |thread| self.clients.values().filter(|assignment| assignment.thread == thread).count();
        let (thread, _) =
            self.threads.iter().min_by_key(|(thread, bytes)| (**bytes, count(**thread)))?;
        let thread = *thread;
        self.clients.insert(client, Assignment { thread, bytes });
        self.add(thread, bytes);
        Some(thread)
    }

    /// Removes a client.
    pub fn leave(&mut self, client: ClientId) {
        if let Some(assignment) = self.clients.remove(&client) {
            self.subtract(assignment.thread, assignment.bytes);
        }
    }

    /// Records the number of bytes copied for a client in the last period.
    pub fn measure(&mut self, client: ClientId, bytes: u64) {
        let Some(assignment) = self.clients.get_mut(&client) else { return };
        let (thread, before) = (assignment.thread, assignment.bytes);
        assignment.bytes = bytes;
        self.subtract(thread, before);
        self.add(thread, bytes);
    }

    fn add(&mut self, thread: ThreadId, bytes: u64) {
        if let Some(load) = self.threads.get_mut(&thread) {
            *load = load.saturating_add(bytes);
        }
    }

    fn subtract(&mut self, thread: ThreadId, bytes: u64) {
        if let Some(load) = self.threads.get_mut(&thread) {
            *load = load.saturating_sub(bytes);
        }
    }

    /// Moves clients from the busiest thread to the one with the least work, while that brings
    /// their loads clearly closer.
    pub fn rebalance(&mut self) -> SmallVec<[Moved; 4]> {
        let mut moves = SmallVec::new();
        while moves.len() < MOVES_MAX {
            let Some(moved) = self.best_move() else { break };
            let bytes = self.clients.get(&moved.client).map_or(0, |assignment| assignment.bytes);
            self.subtract(moved.from, bytes);
            self.add(moved.to, bytes);
            self.clients.insert(moved.client, Assignment { thread: moved.to, bytes });
            moves.push(moved);
        }
        moves
    }

    fn best_move(&self) -> Option<Moved> {
        let (&from, most) = self.threads.iter().max_by_key(|(_, bytes)| **bytes)?;
        let (&to, least) = self.threads.iter().min_by_key(|(_, bytes)| **bytes)?;
        let gap = most - least;
        if gap <= most / IMBALANCE_PART {
            return None;
        }
        // The gap shrinks by twice the moved load, so more than half of the gap would invert it.
        let fits = |assignment: &Assignment| {
            assignment.thread == from && assignment.bytes > 0 && assignment.bytes <= gap / 2
        };
        let candidates = self.clients.iter().filter(|(_, assignment)| fits(assignment));
        let (client, _) = candidates.max_by_key(|(_, assignment)| assignment.bytes)?;
        Some(Moved { client: *client, from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { low_load: 0.3, high_load: 0.8, sustained_us: 1000, threads_max: 3 };

    /// Applies a demand (in threads) until nothing changes; returns the number of running threads
    /// and the number of changes.
    fn threads_for(demand: f64, mut threads: usize) -> (usize, usize) {
        let (mut scaler, mut changes) = (Scaler::new(BOUNDS), 0);
        for period in 0..200 {
            let each = (demand / threads as f64).min(1.0);
            let load = Load { busy_us: (each * 100.0) as u64, period_us: 100 };
            match scaler.observe(&vec![load; threads], Micros(period * 100)) {
                Scale::Start => threads += 1,
                Scale::Stop => threads -= 1,
                Scale::Keep => continue,
            }
            changes += 1;
        }
        (threads, changes)
    }

    #[test]
    fn threads_follow_the_load_and_become_stable() {
        assert_eq!(threads_for(0.0, 1), (1, 0));
        assert_eq!(threads_for(0.79, 1), (1, 0));
        assert_eq!(threads_for(1.2, 1), (2, 1));
        assert_eq!(threads_for(9.0, 1), (3, 2));
        assert_eq!(threads_for(0.1, 3), (1, 2));
        for demand in 0..400 {
            let (_, changes) = threads_for(f64::from(demand) / 100.0, 1 + demand as usize % 3);
            assert!(changes <= 2, "{demand}");
        }
    }

    #[test]
    fn a_moment_is_not_enough() {
        let mut scaler = Scaler::new(BOUNDS);
        let load = |busy_us| [Load { busy_us, period_us: 100 }];
        for period in 0..100 {
            let busy_us = if period % 9 == 0 { 10 } else { 100 };
            assert_eq!(scaler.observe(&load(busy_us), Micros(period * 100)), Scale::Keep);
        }
        assert_eq!(Scaler::new(BOUNDS).observe(&[], Micros(u64::MAX)), Scale::Keep);
    }

    #[test]
    fn clients_stay_unless_there_is_a_reason() {
        let mut assignments = Assignments::default();
        assert_eq!(assignments.place(ClientId(1)), None);
        assert!(assignments.start(ThreadId(0)));
        let clients = (1..=4).map(ClientId);
        clients.clone().for_each(|client| assert_eq!(assignments.place(client), Some(ThreadId(0))));
        clients.clone().for_each(|client| assignments.measure(client, 100));
        assignments.start(ThreadId(1));
        assert_eq!(assignments.rebalance().len(), 2);
        assert!(assignments.rebalance().is_empty());
        let moved = assignments.stop(ThreadId(1));
        assert_eq!(moved.len(), 2);
        clients.for_each(|client| assert_eq!(assignments.place(client), Some(ThreadId(0))));
        assert!(assignments.stop(ThreadId(0)).is_empty());
        assert_eq!(assignments.place(ClientId(1)), None);
    }

    #[test]
    fn threads_are_limited() {
        let mut assignments = Assignments::default();
        assert!((0..THREADS_MAX as u16).all(|thread| assignments.start(ThreadId(thread))));
        assert!(!assignments.start(ThreadId(999)));
    }

    #[test]
    fn loads_add_up_whatever_happens() {
        unlade_testkit::cases(100, |random| {
            let mut assignments = Assignments::default();
            for _ in 0..200 {
                let thread = ThreadId(random.below(5) as u16);
                let client = ClientId(random.below(20) as u32);
                match random.below(8) {
                    0 => assert!(assignments.start(thread)),
                    1 => drop(assignments.stop(thread)),
                    2 => assignments.leave(client),
                    3 => assert!(assignments.rebalance().len() <= MOVES_MAX),
                    4 => drop(assignments.place(client)),
                    _ => assignments.measure(client, random.below(1000)),
                }
                for (thread, bytes) in &assignments.threads {
                    let of = assignments
                        .clients
                        .values()
                        .filter(|assignment| assignment.thread == *thread);
                    assert_eq!(of.map(|assignment| assignment.bytes).sum::<u64>(), *bytes);
                }
                assert!(
                    assignments
                        .clients
                        .values()
                        .all(|assignment| assignments.threads.contains_key(&assignment.thread))
                );
            }
        });
    }
}
