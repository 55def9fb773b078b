//! Number of threads, and assignment of clients to them (Copier, SOSP 2025, §4.5.1).
//!
//! The thread that finds a period over examines the load of all threads. It starts or stops one,
//! or reassigns clients. The assignment is only a target (`assigned_thread`): the thread that has
//! the client hands it over when no device works on its bytes. So exactly one thread has the
//! client, or has it in its mailbox, and that thread polls its queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use unlade_copy_scheduler::scale::{Assignments, Bounds, Load, Moved, Scale, Scaler, ThreadId};
use unlade_copy_scheduler::{ClientId, Micros};

use crate::config::Config;
use crate::counters::Counters;
use crate::group::Share;
use crate::mailbox::{Mailbox, Message, Route};

/// Interval of the load checks, in microseconds.
pub(crate) const LOOK_US: u64 = 10_000;

/// The threads of a service, as far as their number is concerned.
pub(crate) struct Threads<'a> {
    pub mailboxes: &'a [Mailbox],
    pub counters: &'a Counters,
    /// Starts the thread with this number; returns false if that is impossible, or not possible
    /// yet.
    pub start: &'a dyn Fn(usize) -> bool,
}

impl Threads<'_> {
    fn mailbox(&self, thread: usize) -> &Mailbox {
        &self.mailboxes[thread]
    }
}

/// State of threads and clients.
pub(crate) struct Scaling {
    scaler: Scaler,
    assignments: Assignments,
    clients: BTreeMap<ClientId, ClientRecord>,
    /// Number of running threads; they have the numbers below this one.
    running: usize,
    threads_min: usize,
    balance_us: u64,
    /// Time of the last load check, and each thread's busy time then.
    looked_at: Micros,
    busy_us: Vec<u64>,
    balanced_at: Micros,
}

struct ClientRecord {
    route: Arc<Route>,
    /// Value of the client's byte counter at the last check.
    bytes: u64,
}

impl Scaling {
    pub fn new(config: &Config) -> Scaling {
        let fraction = |percent: u8| f32::from(percent) / 100.0;
        let sustained_us = u64::try_from(config.scale_after.as_micros()).unwrap_or(u64::MAX);
        let bounds = Bounds {
            low_load: fraction(config.low_load_percent),
            high_load: fraction(config.high_load_percent),
            sustained_us,
            threads_max: config.threads_max,
        };
        Scaling {
            scaler: Scaler::new(bounds),
            assignments: Assignments::default(),
            clients: BTreeMap::new(),
            running: 0,
            threads_min: config.threads_min,
            balance_us: sustained_us.max(LOOK_US),
            looked_at: Micros(0),
            busy_us: vec![0; config.threads_max],
            balanced_at: Micros(0),
        }
    }

    pub fn running(&self) -> usize {
        self.running
    }

    /// Records a new thread; it gets the next number.
    pub fn started(&mut self) {
        self.assignments.start(name(self.running));
        self.running += 1;
    }

    /// Adds a client, and assigns it to a thread.
    pub fn place(&mut self, id: ClientId, share: Share) -> Arc<Route> {
        let thread = self.assignments.place(id).map_or(0, |thread| usize::from(thread.0));
        let route = Arc::new(Route::new(id, share, thread));
        self.clients.insert(id, ClientRecord { route: Arc::clone(&route), bytes: 0 });
        route
    }

    pub fn leave(&mut self, id: ClientId) {
        self.assignments.leave(id);
        self.clients.remove(&id);
    }

    /// Evaluates a period: starts or stops a thread, or moves clients.
    pub fn look(&mut self, threads: &Threads<'_>, now: Micros) {
        let period_us = now.0.saturating_sub(self.looked_at.0);
        self.looked_at = now;
        let mut loads = Vec::with_capacity(self.running);
        for (thread, before) in self.busy_us.iter_mut().enumerate().take(self.running) {
            let busy_us = threads.mailbox(thread).busy_us();
            let since = std::mem::replace(before, busy_us);
            loads.push(Load { busy_us: busy_us.saturating_sub(since), period_us });
        }
        match self.scaler.observe(&loads, now) {
            Scale::Start => self.start(threads, now),
            Scale::Stop if self.running > self.threads_min => self.stop(threads),
            Scale::Stop | Scale::Keep => {
                if self.running > 1 && now.0 >= self.balanced_at.0 + self.balance_us {
                    self.balance(threads, now);
                }
            }
        }
    }

    /// Starts a thread if there are clients for it.
    fn start(&mut self, threads: &Threads<'_>, now: Micros) {
        let active = self.measure();
        if active > self.running && (threads.start)(self.running) {
            self.started();
            tracing::info!(threads = self.running, "the load is high: one thread more");
        }
        self.rebalance(threads, now);
    }

    /// Makes the last thread give its clients away and end.
    fn stop(&mut self, threads: &Threads<'_>) {
        self.running -= 1;
        let moved = self.assignments.stop(name(self.running));
        self.apply_moves(threads, &moved);
        // A thread ends only after this message.
        let _ = threads.mailbox(self.running).send(Message::Retire);
        threads.counters.threads_stopped.add(1);
        tracing::info!(threads = self.running, "the load is low: one thread less");
    }

    fn balance(&mut self, threads: &Threads<'_>, now: Micros) {
        self.measure();
        self.rebalance(threads, now);
    }

    /// Measures the bytes copied for each client since the last call; returns the number of active
    /// clients.
    fn measure(&mut self) -> usize {
        let mut active = 0;
        for (id, known) in &mut self.clients {
            let bytes = known.route.bytes.load(Ordering::Relaxed);
            let since = bytes - std::mem::replace(&mut known.bytes, bytes);
            active += usize::from(since > 0);
            self.assignments.measure(*id, since);
        }
        active
    }

    fn rebalance(&mut self, threads: &Threads<'_>, now: Micros) {
        self.balanced_at = now;
        let moved = self.assignments.rebalance();
        self.apply_moves(threads, &moved);
    }

    /// Records new assignments, and informs the current threads.
    fn apply_moves(&mut self, threads: &Threads<'_>, moved: &[Moved]) {
        for Moved { client, to, .. } in moved {
            let Some(known) = self.clients.get(client) else { continue };
            known.route.assign(usize::from(to.0));
            // The thread that has the client is running. If it has just given the client away, the
            // next thread checks the assignment on arrival.
            let _ = threads.mailbox(known.route.thread()).send(Message::Move);
        }
    }
}

fn name(thread: usize) -> ThreadId {
    ThreadId(u16::try_from(thread).unwrap_or(u16::MAX))
}
