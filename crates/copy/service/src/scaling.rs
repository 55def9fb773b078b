//! How many threads run, and which clients they have (Copier, SOSP 2025, §4.5.1).
//!
//! Whichever thread finds that a period is over looks at the load of all, and starts or stops one,
//! or moves clients. What it decides is a client's *home*; the thread that has the client hands it
//! over when it has nothing of it at a device. So a client is always with exactly one thread, or
//! in one's mail, and whoever has it looks at its queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use unlade_copy_scheduler::scale::{Bounds, Homes, Load, Moved, Scale, Scaler, ThreadId};
use unlade_copy_scheduler::{ClientId, Micros};

use crate::config::Config;
use crate::post::{Mail, Route};
use crate::service::Shared;

/// How often the load is looked at, microseconds.
pub(crate) const LOOK_US: u64 = 10_000;

/// What is known of threads and clients.
pub(crate) struct Scaling {
    scaler: Scaler,
    homes: Homes,
    clients: BTreeMap<ClientId, Known>,
    /// Threads that run; they have the numbers below.
    running: usize,
    threads_min: usize,
    balance_us: u64,
    /// When the load was looked at last, and how long each thread had been at work by then.
    looked_at: Micros,
    busy_us: Vec<u64>,
    balanced_at: Micros,
}

struct Known {
    route: Arc<Route>,
    /// Bytes copied for it when that was looked at last.
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
            homes: Homes::default(),
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

    /// Another thread runs: the number that it has.
    pub fn started(&mut self) {
        self.homes.start(name(self.running));
        self.running += 1;
    }

    /// A client comes: the thread that serves it.
    pub fn place(&mut self, id: ClientId, weight: u32) -> Arc<Route> {
        let thread = self.homes.place(id).map_or(0, |thread| usize::from(thread.0));
        let route = Arc::new(Route::new(id, weight, thread));
        self.clients.insert(id, Known { route: Arc::clone(&route), bytes: 0 });
        route
    }

    pub fn leave(&mut self, id: ClientId) {
        self.homes.leave(id);
        self.clients.remove(&id);
    }

    /// A period is over: starts or stops a thread, moves clients.
    pub fn look(&mut self, shared: &Arc<Shared>, now: Micros) {
        let period_us = now.0.saturating_sub(self.looked_at.0);
        self.looked_at = now;
        let mut loads = Vec::with_capacity(self.running);
        for (thread, before) in self.busy_us.iter_mut().enumerate().take(self.running) {
            let busy_us = shared.post(thread).busy_us();
            let since = std::mem::replace(before, busy_us);
            loads.push(Load { busy_us: busy_us.saturating_sub(since), period_us });
        }
        match self.scaler.observe(&loads, now) {
            Scale::Start => self.start(shared, now),
            Scale::Stop if self.running > self.threads_min => self.stop(shared),
            Scale::Stop | Scale::Keep => {
                if self.running > 1 && now.0 >= self.balanced_at.0 + self.balance_us {
                    self.balance(shared, now);
                }
            }
        }
    }

    /// Starts a thread, if there are clients for it.
    fn start(&mut self, shared: &Arc<Shared>, now: Micros) {
        let active = self.measure();
        if active > self.running && shared.start_thread(self.running) {
            self.started();
            tracing::info!(threads = self.running, "the load is high: one thread more");
        }
        self.rebalance(shared, now);
    }

    /// Has the last thread give its clients away, and end.
    fn stop(&mut self, shared: &Shared) {
        self.running -= 1;
        let moved = self.homes.stop(name(self.running));
        self.settle(shared, &moved);
        // A thread ends only when it was told to, which is here.
        let _ = shared.post(self.running).send(Mail::Retire);
        shared.counters.threads_stopped.add(1);
        tracing::info!(threads = self.running, "the load is low: one thread less");
    }

    fn balance(&mut self, shared: &Shared, now: Micros) {
        self.measure();
        self.rebalance(shared, now);
    }

    /// How much was copied for each client since the last time; for how many anything was.
    fn measure(&mut self) -> usize {
        let mut active = 0;
        for (id, known) in &mut self.clients {
            let bytes = known.route.bytes.load(Ordering::Relaxed);
            let since = bytes - std::mem::replace(&mut known.bytes, bytes);
            active += usize::from(since > 0);
            self.homes.measure(*id, since);
        }
        active
    }

    fn rebalance(&mut self, shared: &Shared, now: Micros) {
        self.balanced_at = now;
        let moved = self.homes.rebalance();
        self.settle(shared, &moved);
    }

    /// Says who is to serve whom, and tells those who do so far.
    fn settle(&mut self, shared: &Shared, moved: &[Moved]) {
        for Moved { client, to, .. } in moved {
            let Some(known) = self.clients.get(client) else { continue };
            known.route.set_home(usize::from(to.0));
            // Whoever has the client runs. If it has just given it away, the next one looks where
            // the home is when it comes.
            let _ = shared.post(known.route.thread()).send(Mail::Move);
        }
    }
}

fn name(thread: usize) -> ThreadId {
    ThreadId(u16::try_from(thread).unwrap_or(u16::MAX))
}
