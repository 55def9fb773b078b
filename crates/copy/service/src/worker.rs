//! A service thread: polls its clients' queues, serves the client with the least service, and
//! sleeps when there is no work.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use unlade_copy_scheduler::idle::{IdleAction, IdlePolicy};
use unlade_copy_scheduler::share::Shares;
use unlade_copy_scheduler::{ClientId, Micros};

use crate::calibration::Calibration;
use crate::client::{Client, Turn};
use crate::config::Polling;
use crate::group::KnownShare;
use crate::mailbox::{Mailbox, Message, Route};
use crate::state::ServiceState;
use crate::units::Engine;

/// Maximum number of other clients that are polled for new work within a slice.
const OTHERS_MAX: usize = 16;
/// Number of polls of the queues between two reads of the clock, while the thread is idle.
const SPINS: u32 = 256;
/// Number of consecutive idle rounds before a calibration step of a thread that never sleeps.
const QUIET_MIN: u32 = 8;

/// A client of this thread.
struct Served {
    route: Arc<Route>,
    client: Box<Client>,
    share: KnownShare,
}

/// State of a thread.
pub(crate) struct Worker {
    number: usize,
    shared: Arc<ServiceState>,
    clients: Vec<Served>,
    shares: Shares,
    idle: IdlePolicy,
    engine: Engine,
    /// Earliest deadline of a lazy copy in this round.
    due: Option<Micros>,
    preempted: u64,
    /// Some clients are assigned to another thread.
    is_moving: bool,
    is_retiring: bool,
    load: Busy,
    calibration: Option<Box<Calibration>>,
    /// Number of consecutive idle rounds.
    quiet: u32,
}

/// Busy time of a thread.
#[derive(Default)]
struct Busy {
    us: u64,
    since: Option<Micros>,
}

/// Result of a round.
enum RoundResult {
    /// Work was done.
    Worked,
    /// There is no work before this time, if any, or before news.
    Quiet(Option<Micros>),
}

impl Worker {
    pub fn new(number: usize, shared: Arc<ServiceState>) -> Worker {
        let shares = Shares::new(shared.config.slice_bytes);
        let sleep_us = shared.config.sleep_max.as_micros() as u64;
        let idle = IdlePolicy::new(shared.config.polling.into(), sleep_us);
        let engine = Engine::new(&shared.devices, number);
        let calibration = Calibration::begin().map(Box::new);
        Worker {
            number,
            clients: Vec::new(),
            shares,
            idle,
            engine,
            due: None,
            preempted: 0,
            is_moving: false,
            is_retiring: false,
            // A previous thread may have had this number.
            load: Busy { us: shared.mailbox(number).busy_us(), since: None },
            calibration,
            quiet: 0,
            shared,
        }
    }

    fn now(&self) -> Micros {
        Micros(self.shared.origin.elapsed().as_micros() as u64)
    }

    /// Serves until the service stops, or until this thread is told to end and has no clients. It
    /// has no claims then.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mailbox = shared.mailbox(self.number);
        mailbox.bell().announce_awake();
        if let Err(error) = unlade_copy_kernels::guard::unblock() {
            tracing::error!(%error, "bad addresses would end the process: this thread does not copy");
            drop(mailbox.bell().announce_sleep());
            return;
        }
        while !shared.is_stopping() {
            self.read_messages(mailbox);
            if self.is_moving {
                self.give_away();
            }
            if self.is_retiring && self.clients.is_empty() && mailbox.close() {
                break;
            }
            let begin = self.now();
            match self.round(begin) {
                RoundResult::Worked => self.worked(begin, mailbox),
                RoundResult::Quiet(until) => {
                    self.load.since = None;
                    self.rest(until);
                }
            }
            if shared.scales() {
                shared.look(self.now());
            }
        }
        self.clients.iter_mut().for_each(|served| {
            served.client.cancel(&mut self.engine, shared.config.run_bytes);
        });
        // Clients need not ring here any more.
        drop(mailbox.bell().announce_sleep());
        self.clients.iter().for_each(|served| served.client.announce_sleep());
    }

    fn worked(&mut self, begin: Micros, mailbox: &Mailbox) {
        let now = self.now();
        self.quiet = 0;
        self.idle.record_work(now);
        if self.shared.scales() {
            let since = *self.load.since.get_or_insert(begin);
            self.load.us += now.0.saturating_sub(since.0);
            self.load.since = Some(now);
            mailbox.set_busy_us(self.load.us);
        }
    }

    fn read_messages(&mut self, mailbox: &Mailbox) {
        let messages = mailbox.receive();
        if messages.is_empty() {
            return;
        }
        for message in messages {
            match message {
                Message::Join(route, client) => self.take(route, client),
                Message::Leave(id) => self.let_go(id),
                Message::Move => self.is_moving = true,
                Message::Retire => (self.is_moving, self.is_retiring) = (true, true),
            }
        }
        // The queues of new clients are read after this fence: see `Attachment::ring`.
        fence(Ordering::SeqCst);
    }

    fn take(&mut self, route: Arc<Route>, client: Box<Client>) {
        let share = KnownShare::read(&route.share);
        match self.shares.join(route.id, share.membership) {
            Ok(()) => {
                client.announce_awake();
                // The client may have been reassigned on its way.
                self.is_moving |= route.assigned_thread() != self.number;
                self.clients.push(Served { route, client, share });
            }
            // The weight was checked and the id is new, so this is a bug. The client copies by
            // itself.
            Err(error) => tracing::error!(client = route.id.0, %error, "a client is not served"),
        }
    }

    fn let_go(&mut self, id: ClientId) {
        self.shares.leave(id);
        let run_bytes = self.shared.config.run_bytes;
        let Some(at) = self.clients.iter().position(|served| served.route.id == id) else { return };
        let mut served = self.clients.swap_remove(at);
        served.client.cancel(&mut self.engine, run_bytes);
    }

    /// Hands over the clients that are assigned to other threads and that no device of this thread
    /// works for. Their waiting transfers move with them.
    fn give_away(&mut self) {
        self.is_moving = false;
        let mut at = 0;
        while let Some(Served { route, client, .. }) = self.clients.get(at) {
            let assigned_thread = route.assigned_thread();
            if assigned_thread == self.number {
                at += 1;
                continue;
            }
            if client.is_at_device() {
                self.is_moving = true;
                at += 1;
                continue;
            }
            let Served { route, client, .. } = self.clients.swap_remove(at);
            self.shares.leave(route.id);
            match route.hand_over(client, assigned_thread, self.shared.mailbox(assigned_thread)) {
                Ok(()) => self.shared.counters.moves.add(1),
                Err(client) => {
                    // That thread has ended; the assignment has changed or will change soon.
                    self.take(route, client);
                    self.is_moving = true;
                    return;
                }
            }
        }
    }

    /// Accepts news of all clients, and serves one.
    fn round(&mut self, now: Micros) -> RoundResult {
        self.due = None;
        for Served { route, client, .. } in &mut self.clients {
            if client.intake(now) {
                // This includes a client that copies everything itself, because it continues to
                // submit.
                self.idle.record_work(now);
            }
            match client.is_idle() {
                true => self.shares.sleep(route.id),
                false => self.shares.wake(route.id),
            }
        }
        self.round_of_the_others()
    }

    /// Serves the client with the least service among those that may have work.
    fn round_of_the_others(&mut self) -> RoundResult {
        let Some(id) = self.shares.pick() else { return RoundResult::Quiet(self.due) };
        let Some(place) = self.clients.iter().position(|served| served.route.id == id) else {
            return RoundResult::Quiet(self.due);
        };
        let (before, rest) = self.clients.split_at_mut(place);
        let Some((served, behind)) = rest.split_first_mut() else {
            return RoundResult::Quiet(self.due);
        };
        // A client with new work need not wait for a whole slice of another client.
        let others = || {
            let mut others = before.iter().chain(behind.iter()).take(OTHERS_MAX);
            others.any(|other| other.client.is_idle() && other.client.has_news())
        };
        let config = &self.shared.config;
        let origin = self.shared.origin;
        let clock = || Micros(origin.elapsed().as_micros() as u64);
        let (slice_bytes, run_bytes) = (config.slice_bytes, config.run_bytes);
        let engine = &mut self.engine;
        let (copied_bytes, turn) =
            served.client.turn(clock, engine, slice_bytes, run_bytes, others);
        if copied_bytes > 0 && self.shared.scales() {
            served.route.bytes.fetch_add(copied_bytes, Ordering::Relaxed);
        }
        if let Some(membership) = served.share.refresh(&served.route.share) {
            self.shares.change(id, membership);
        }
        self.shares.charge(id, copied_bytes);
        match turn {
            _ if copied_bytes > 0 => return RoundResult::Worked,
            Turn::More => return RoundResult::Worked,
            Turn::Later(until) => self.due = Some(self.due.map_or(until, |due| due.min(until))),
            Turn::Wait | Turn::Idle => {}
        }
        // Other clients may have work.
        self.shares.sleep(id);
        self.round_of_the_others()
    }

    /// Spins, yields or sleeps. A calibration step takes the place of a sleep.
    fn rest(&mut self, until: Option<Micros>) {
        self.quiet = self.quiet.saturating_add(1);
        let never_sleeps = self.shared.config.polling == Polling::Always;
        if never_sleeps && self.quiet >= QUIET_MIN && self.calibration.is_some() {
            self.calibration = self.calibration.take().and_then(Calibration::step);
            return;
        }
        self.idle.set_active(self.shared.scenario_is_on());
        let preempted = self.was_preempted();
        if preempted {
            self.shared.mailbox(self.number).ring_location.keep_off();
        }
        match self.idle.next_action(self.now(), preempted) {
            IdleAction::Spin => {
                for _ in 0..SPINS {
                    if self.has_news() {
                        return;
                    }
                    std::hint::spin_loop();
                }
            }
            IdleAction::Yield => std::thread::yield_now(),
            IdleAction::Sleep(us) => self.sleep(until, Duration::from_micros(us)),
        }
    }

    /// Returns true if this thread was preempted since the last call.
    fn was_preempted(&mut self) -> bool {
        let now = involuntary_switches();
        std::mem::replace(&mut self.preempted, now) != now
    }

    fn has_news(&self) -> bool {
        self.shared.mailbox(self.number).has_message()
            || self.clients.iter().any(|served| served.client.has_news())
    }

    fn sleep(&mut self, until: Option<Micros>, most: Duration) {
        let shared = Arc::clone(&self.shared);
        let bell = shared.mailbox(self.number).bell();
        let pending_sleep = bell.announce_sleep();
        self.clients.iter().for_each(|served| served.client.announce_sleep());
        if !self.has_news() && !shared.is_stopping() {
            // Clients see a sleeping service meanwhile, and do not wait for the end of the step.
            let most = match self.calibration.take() {
                Some(calibration) => {
                    self.calibration = calibration.step();
                    Duration::ZERO
                }
                None => {
                    shared.counters.sleeps.add(1);
                    most
                }
            };
            let due = until.map(|until| until.0.saturating_sub(self.now().0));
            if bell.sleep(pending_sleep, due.map_or(most, Duration::from_micros).min(most)) {
                self.idle.record_ring();
                shared.mailbox(self.number).ring_location.keep_off();
            }
        }
        bell.announce_awake();
        self.clients.iter().for_each(|served| served.client.announce_awake());
    }
}

/// Returns the number of involuntary context switches of this thread; a system call.
fn involuntary_switches() -> u64 {
    unlade_sys::usage::ThreadUsage::now().map_or(0, |usage| usage.involuntary_switches)
}
