//! A fair scheduler of tenants that share a thread.
//!
//! The tasks of each tenant form a set. In each turn the scheduler polls one set: among the sets
//! that are ready, that of the tenant that has used the least time so far. Then it polls the
//! kernel for events. A tenant gets its share of the thread regardless of the number of another
//! tenant's tasks, and waits for at most one turn of each other tenant. Within a turn [`Turn`]
//! limits the submissions that the worker accepts from guests.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::{JoinHandle, LocalSet};
use tracing::Span;

/// Work that the guests of a tenant may cause in a turn, in units: a submission is one unit, and
/// [`UNIT_BYTES`] of a body are one unit.
pub const UNITS_TURN: i64 = 512;
/// Bytes of bodies that count as one unit.
pub const UNIT_BYTES: u64 = 16 * 1024;

/// The scheduling policy: the ready share with the least used time is next; among equals the one
/// that has waited longest.
#[derive(Debug, Default)]
pub struct Shares {
    /// Least used time among the ready shares at the last turn.
    floor: Duration,
    turns: u64,
}

/// The used time of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    used: Duration,
    last: u64,
}

impl Shares {
    /// Selects the next of the ready shares. A share that was idle for some time does not receive
    /// that time afterwards.
    pub fn next<'a>(
        &mut self,
        ready: impl Iterator<Item = (usize, &'a mut Share)>,
    ) -> Option<usize> {
        let floor = self.floor;
        let raised = ready.map(|(index, share)| {
            share.used = share.used.max(floor);
            (*share, index)
        });
        let (share, index) = raised.min()?;
        self.floor = share.used;
        Some(index)
    }

    /// Charges a share for its turn.
    pub fn charge(&mut self, share: &mut Share, used: Duration) {
        self.turns += 1;
        share.last = self.turns;
        share.used += used;
    }
}

/// The rest of a tenant's turn. A turn that was not created by [`FairScheduler`] is unlimited.
#[derive(Debug)]
pub struct Turn {
    left: Cell<Option<i64>>,
    /// Sessions that wait to continue, in FIFO order.
    place: Semaphore,
    waiting: Cell<bool>,
    renewed: Notify,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn {
            left: Cell::new(None),
            place: Semaphore::new(1),
            waiting: Cell::new(false),
            renewed: Notify::new(),
        }
    }
}

impl Turn {
    /// Creates a limited turn.
    pub fn bounded() -> Rc<Turn> {
        let turn = Turn::default();
        turn.left.set(Some(UNITS_TURN));
        Rc::new(turn)
    }

    /// Returns true if a session has to wait for the next turn.
    pub fn is_over(&self) -> bool {
        self.left.get().is_some_and(|left| left <= 0)
    }

    /// Waits until a part of the turn is left; sessions continue in the order in which they came.
    pub async fn begin(&self) {
        if !self.is_over() && self.place.try_acquire().is_ok() {
            return;
        }
        // The semaphore is never closed.
        let _place = self.place.acquire().await;
        while self.is_over() {
            let renewed = self.renewed.notified();
            self.waiting.set(true);
            renewed.await;
        }
    }

    /// Charges submissions and bytes to the turn.
    pub fn spend(&self, submissions: u32, bytes: u64) {
        if let Some(left) = self.left.get() {
            let bytes = i64::try_from(bytes / UNIT_BYTES).unwrap_or(i64::MAX);
            let units = i64::from(submissions).saturating_add(bytes);
            // The debt of one step beyond the end is limited.
            self.left.set(Some(left.saturating_sub(units).max(-UNITS_TURN)));
        }
    }

    /// Starts the next turn.
    fn renew(&self) {
        if let Some(left) = self.left.get() {
            self.left.set(Some(left.saturating_add(UNITS_TURN).min(UNITS_TURN)));
            self.waiting.set(false);
            self.renewed.notify_waiters();
        }
    }
}

/// The waker of the thread.
#[derive(Debug, Default)]
struct Thread(Mutex<Option<Waker>>);

impl Thread {
    fn is(&self, waker: &Waker) {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.as_ref().is_some_and(|own| own.will_wake(waker)) {
            *own = Some(waker.clone());
        }
    }

    fn wake(&self) {
        let own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*own {
            waker.wake_by_ref();
        }
    }
}

/// The waker of a set: marks it as ready.
#[derive(Debug)]
struct Ready {
    is: AtomicBool,
    thread: Arc<Thread>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is.swap(true, Ordering::AcqRel) {
            self.thread.wake();
        }
    }
}

/// The tasks of a tenant.
struct TenantTasks {
    set: LocalSet,
    /// The first task: the others end with it.
    first: JoinHandle<()>,
    ready: Arc<Ready>,
    turn: Rc<Turn>,
    share: Share,
    left: Option<oneshot::Sender<()>>,
    /// The tenant's span, for the log.
    span: Span,
}

impl TenantTasks {
    /// Polls one turn; returns true if it was the last.
    fn poll(&mut self) -> bool {
        self.ready.is.store(false, Ordering::Release);
        self.turn.renew();
        let waker = Waker::from(self.ready.clone());
        let _whose = self.span.enter();
        let ended = Pin::new(&mut self.set).poll(&mut Context::from_waker(&waker)).is_ready();
        if self.turn.waiting.get() {
            self.ready.wake_by_ref();
        }
        ended || self.first.is_finished()
    }
}

/// The scheduler of the sets.
#[derive(Default)]
pub struct FairScheduler {
    added: RefCell<Vec<TenantTasks>>,
    thread: Arc<Thread>,
}

impl FairScheduler {
    /// Runs a future that may add sets, until it has ended. The added sets end with it.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        runtime: &Runtime,
        main: impl FnOnce(Rc<FairScheduler>) -> F,
    ) -> Option<T> {
        let begin = Instant::now();
        FairScheduler::run_by(Box::new(move || begin.elapsed()), runtime, main)
    }

    fn run_by<T: 'static, F: Future<Output = T> + 'static>(
        clock: Clock,
        runtime: &Runtime,
        main: impl FnOnce(Rc<FairScheduler>) -> F,
    ) -> Option<T> {
        let scheduler = Rc::new(FairScheduler::default());
        let (say, mut said) = oneshot::channel();
        let (work, main_turn) = (main(scheduler.clone()), Rc::new(Turn::default()));
        let ended = scheduler.add(Span::none(), main_turn, async move {
            let _ = say.send(work.await);
        });
        let (seats, shares) = (Vec::new(), Shares::default());
        let mut round = Round { scheduler, seats, shares, clock };
        let mut ended = Box::pin(ended);
        runtime.block_on(poll_fn(|context| {
            round.turn(context);
            ended.as_mut().poll(context).map(drop)
        }));
        // Tasks are dropped on the runtime where they ran.
        runtime.block_on(async { drop(round) });
        said.try_recv().ok()
    }

    /// Adds a set that begins with `first`; its other tasks end with it. Returns a receiver of its
    /// end. Its log entries are within `span`.
    pub fn add(
        &self,
        span: Span,
        turn: Rc<Turn>,
        work: impl Future<Output = ()> + 'static,
    ) -> oneshot::Receiver<()> {
        let set = LocalSet::new();
        let first = set.spawn_local(work);
        let (left, ended) = oneshot::channel();
        let ready = Arc::new(Ready { is: AtomicBool::new(true), thread: self.thread.clone() });
        let (share, left) = (Share::default(), Some(left));
        self.added.borrow_mut().push(TenantTasks { set, first, ready, turn, share, left, span });
        self.thread.wake();
        ended
    }
}

/// A clock: the time since an arbitrary instant.
type Clock = Box<dyn FnMut() -> Duration>;

struct Round {
    scheduler: Rc<FairScheduler>,
    seats: Vec<TenantTasks>,
    shares: Shares,
    clock: Clock,
}

impl Round {
    /// Runs one turn of a ready set.
    fn turn(&mut self, context: &mut Context<'_>) {
        self.scheduler.thread.is(context.waker());
        self.seats.append(&mut self.scheduler.added.borrow_mut());
        let is_ready = |seat: &TenantTasks| seat.ready.is.load(Ordering::Acquire);
        let seats = self.seats.iter_mut().enumerate();
        let ready = seats.filter(|(_, seat)| is_ready(seat));
        let Some(at) = self.shares.next(ready.map(|(at, seat)| (at, &mut seat.share))) else {
            return;
        };
        let Some(seat) = self.seats.get_mut(at) else { return };
        let begin = (self.clock)();
        let ended = seat.poll();
        let used = (self.clock)().saturating_sub(begin);
        self.shares.charge(&mut seat.share, used);
        if ended {
            let mut seat = self.seats.swap_remove(at);
            let left = seat.left.take();
            // Drops all of its tasks and their resources.
            drop(seat);
            if let Some(left) = left {
                let _ = left.send(());
            }
        }
        if self.seats.iter().any(is_ready) {
            context.waker().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn whoever_has_used_the_least_is_next_and_nobody_saves_up() {
        let mut shares = Shares::default();
        let mut all = [Share::default(); 3];
        let mut turns = [0_u32; 3];
        // The first has long turns; the third is idle at first.
        for round in 0..3000 {
            let here = if round < 1000 { 2 } else { 3 };
            let ready = all.iter_mut().enumerate().take(here);
            let at = shares.next(ready).unwrap();
            turns[at] += 1;
            shares.charge(&mut all[at], Duration::from_micros(if at == 0 { 900 } else { 100 }));
            if round == 999 {
                assert_eq!(turns, [100, 900, 0]);
                turns = [0; 3];
            }
        }
        assert!(turns[2] > 0 && turns[1].abs_diff(turns[2]) <= 10, "{turns:?}");
        assert!(turns[0] * 8 <= turns[1] && turns[1] <= turns[0] * 10, "{turns:?}");
        assert!(shares.next(std::iter::empty()).is_none());
    }

    /// One set with a thousand tasks that are always ready, and one with a single task.
    #[test]
    fn many_tasks_of_one_do_not_keep_another_from_its_turns() {
        let steps = Rc::new(Cell::new(0_u64));
        let done = {
            let steps = steps.clone();
            let mut now = Duration::ZERO;
            let clock = move || {
                now += Duration::from_micros(1);
                now
            };
            FairScheduler::run_by(Box::new(clock), &runtime(), |scheduler| async move {
                let flood = scheduler.add(Span::none(), Turn::bounded(), async move {
                    for _ in 0..1000 {
                        let steps = steps.clone();
                        tokio::task::spawn_local(async move {
                            loop {
                                steps.set(steps.get() + 1);
                                again().await;
                            }
                        });
                    }
                    std::future::pending().await
                });
                let one = scheduler.add(Span::none(), Turn::bounded(), async {
                    for _ in 0..100 {
                        again().await;
                    }
                });
                one.await.unwrap();
                drop(flood);
            })
        };
        assert!(done.is_some());
        // One turn of 61 steps for each of the hundred, if all turns have the same length.
        assert!((1..=105 * 61).contains(&steps.get()), "{}", steps.get());
    }

    async fn again() {
        let mut is_woken = false;
        poll_fn(|context| {
            if is_woken {
                return Poll::Ready(());
            }
            is_woken = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[test]
    fn what_was_added_ends_with_its_first_task_and_leaves_nothing() {
        let held = Rc::new(());
        let seen = held.clone();
        FairScheduler::run(&runtime(), |scheduler| async move {
            let kept = held.clone();
            let ended = scheduler.add(Span::none(), Turn::bounded(), async move {
                tokio::task::spawn_local(async move {
                    let _kept = kept;
                    std::future::pending::<()>().await;
                });
                tokio::time::sleep(Duration::from_millis(1)).await;
            });
            assert_eq!(Rc::strong_count(&held), 3);
            ended.await.unwrap();
            assert_eq!(Rc::strong_count(&held), 2);
            let broken = scheduler
                .add(Span::none(), Turn::bounded(), async { panic!("a tenant's own fault") });
            broken.await.unwrap();
        });
        assert_eq!(Rc::strong_count(&seen), 1);
    }

    /// Sessions whose work exceeds a turn continue in their order, and none starves.
    #[test]
    fn sessions_of_a_tenant_go_on_in_their_order() {
        let counts = Rc::new(RefCell::new([0_u64; 8]));
        let seen = counts.clone();
        FairScheduler::run(&runtime(), |scheduler| async move {
            let turn = Turn::bounded();
            let own = turn.clone();
            let ended = scheduler.add(Span::none(), turn, async move {
                let all = tokio::task::JoinSet::new();
                let mut all = all;
                for at in 0..8 {
                    let (turn, counts) = (own.clone(), counts.clone());
                    all.spawn_local(async move {
                        loop {
                            turn.begin().await;
                            counts.borrow_mut()[at] += 1;
                            turn.spend(200, 0);
                            let most = *counts.borrow().iter().max().unwrap();
                            if most == 50 {
                                return;
                            }
                        }
                    });
                }
                all.join_next().await;
            });
            ended.await.unwrap();
        });
        let counts = *seen.borrow();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        // A session continues at once while the turn lasts: three batches are a turn.
        assert!(*most == 50 && most - least <= 4, "{counts:?}");
    }

    #[test]
    fn a_turn_is_over_when_its_units_are_spent() {
        let turn = Turn::bounded();
        turn.spend(1, UNIT_BYTES * 510);
        assert!(!turn.is_over());
        turn.spend(1, 0);
        assert!(turn.is_over());
        turn.spend(0, u64::MAX);
        turn.renew();
        assert!(turn.is_over(), "what was taken beyond the end is paid for");
        turn.renew();
        assert!(!turn.is_over());
        let endless = Turn::default();
        endless.spend(u32::MAX, u64::MAX);
        assert!(!endless.is_over());
    }
}
