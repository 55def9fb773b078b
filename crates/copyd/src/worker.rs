//! One thread of the service: polls its clients' queues, serves the one that was served least, and
//! sleeps when there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use copyplan::idle::{Idle, Rest};
use copyplan::share::Shares;
use copyplan::{ClientId, Micros};

use crate::client::{Client, Turn};
use crate::service::{Mail, Shared};

/// Looks at the queues between two looks at the clock, while there is nothing to do.
const SPINS: u32 = 256;

/// A thread's state.
pub(crate) struct Worker {
    number: usize,
    shared: Arc<Shared>,
    clients: Vec<(ClientId, Client)>,
    shares: Shares,
    idle: Idle,
    /// When the earliest lazy copy is due, as far as this round has seen.
    due: Option<Micros>,
    preempted: u64,
    origin: Instant,
}

/// What is known after a round.
enum Round {
    /// Something was done.
    Worked,
    /// Nothing can be done before this time, if any, or news.
    Quiet(Option<Micros>),
}

impl Worker {
    pub fn new(number: usize, shared: Arc<Shared>) -> Worker {
        let shares = Shares::new(shared.config.slice_bytes);
        let sleep_us = shared.config.sleep_max.as_micros() as u64;
        let idle = Idle::new(shared.config.polling.into(), sleep_us);
        Worker {
            number,
            shared,
            clients: Vec::new(),
            shares,
            idle,
            due: None,
            preempted: 0,
            origin: Instant::now(),
        }
    }

    fn now(&self) -> Micros {
        Micros(self.origin.elapsed().as_micros() as u64)
    }

    /// Serves until the service stops. Nothing is claimed then.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let bell = shared.post(self.number).bell();
        bell.announce_awake();
        if let Err(error) = copyunit::guard::unblock() {
            tracing::error!(%error, "bad addresses would end the process: this thread does not copy");
            drop(bell.announce_sleep());
            return;
        }
        while !shared.is_stopping() {
            self.read_mail();
            match self.round() {
                Round::Worked => self.idle.worked(self.now()),
                Round::Quiet(until) => self.rest(until),
            }
        }
        self.clients.iter_mut().for_each(|(_, client)| client.cancel());
        // Nobody need ring here any more.
        drop(bell.announce_sleep());
        self.clients.iter().for_each(|(_, client)| client.announce_sleep());
    }

    fn read_mail(&mut self) {
        let post = self.shared.post(self.number);
        if !post.has_mail.swap(false, Ordering::Acquire) {
            return;
        }
        let mail = std::mem::take(&mut *post.mail());
        for mail in mail {
            match mail {
                Mail::Join(id, weight, client) => match self.shares.join(id, weight) {
                    Ok(()) => {
                        client.announce_awake();
                        self.clients.push((id, *client));
                    }
                    // Its weight was checked, and its number is new: this is our own mistake. The
                    // client copies by itself.
                    Err(error) => tracing::error!(client = id.0, %error, "a client is not served"),
                },
                Mail::Leave(id) => {
                    self.shares.leave(id);
                    self.clients.retain_mut(|(known, client)| {
                        let leaves = *known == id;
                        if leaves {
                            client.cancel();
                        }
                        !leaves
                    });
                }
            }
        }
    }

    /// Takes in news of all clients, and serves one.
    fn round(&mut self) -> Round {
        let now = self.now();
        self.due = None;
        for (id, client) in &mut self.clients {
            client.intake(now);
            match client.is_idle() {
                true => self.shares.sleep(*id),
                false => self.shares.wake(*id),
            }
        }
        self.round_of_the_others()
    }

    /// Serves whoever was served least of those that may have something to do.
    fn round_of_the_others(&mut self) -> Round {
        let Some(id) = self.shares.pick() else { return Round::Quiet(self.due) };
        let Some((_, client)) = self.clients.iter_mut().find(|(known, _)| *known == id) else {
            return Round::Quiet(self.due);
        };
        let config = &self.shared.config;
        let origin = self.origin;
        let clock = || Micros(origin.elapsed().as_micros() as u64);
        let (copied_bytes, turn) = client.turn(clock, config.slice_bytes, config.run_bytes);
        self.shares.charge(id, copied_bytes);
        match turn {
            _ if copied_bytes > 0 => return Round::Worked,
            Turn::More => return Round::Worked,
            Turn::Later(until) => self.due = Some(self.due.map_or(until, |due| due.min(until))),
            Turn::Wait | Turn::Idle => {}
        }
        // Others may have what can be done.
        self.shares.sleep(id);
        self.round_of_the_others()
    }

    /// Spins, yields or sleeps.
    fn rest(&mut self, until: Option<Micros>) {
        self.idle.set_active(self.shared.scenario_is_on());
        let preempted = self.was_preempted();
        match self.idle.nothing(self.now(), preempted) {
            Rest::Spin => {
                for _ in 0..SPINS {
                    if self.has_news() {
                        return;
                    }
                    std::hint::spin_loop();
                }
            }
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep(us) => self.sleep(until, Duration::from_micros(us)),
        }
    }

    /// Whether the core was taken from this thread since it was asked last: somebody else needs it.
    fn was_preempted(&mut self) -> bool {
        let now = involuntary_switches();
        std::mem::replace(&mut self.preempted, now) != now
    }

    fn has_news(&self) -> bool {
        self.shared.post(self.number).has_mail.load(Ordering::Relaxed)
            || self.clients.iter().any(|(_, client)| client.has_news())
    }

    fn sleep(&mut self, until: Option<Micros>, most: Duration) {
        let shared = Arc::clone(&self.shared);
        let bell = shared.post(self.number).bell();
        let drowsy = bell.announce_sleep();
        self.clients.iter().for_each(|(_, client)| client.announce_sleep());
        if !self.has_news() && !shared.is_stopping() {
            shared.counters.sleeps.add(1);
            let due = until.map(|until| until.0.saturating_sub(self.now().0));
            bell.sleep(drowsy, due.map_or(most, Duration::from_micros).min(most));
        }
        bell.announce_awake();
        self.clients.iter().for_each(|(_, client)| client.announce_awake());
    }
}

/// How often the core was taken from this thread; a system call.
fn involuntary_switches() -> u64 {
    linux::usage::ThreadUsage::now().map_or(0, |usage| usage.involuntary_switches)
}
