//! One connection's deadlines, and its ear for the drain.
//!
//! Deadlines cost nothing while the socket keeps up: the timer is looked at only when an
//! operation must wait, and is moved only when it fires early or would fire late.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::time::{Instant, Sleep};

use crate::context::Context;

/// Why an operation did not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// Its time was up.
    Timeout,
    /// The server drains, and the operation was one that need not be finished.
    Draining,
}

/// Whether an operation is given up when the server drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDrain {
    /// It is finished: a request in flight.
    Finish,
    /// It is given up: waiting for a request.
    GiveUp,
}

/// How a connection came to this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carriage {
    /// It connected here, or a proxy did.
    Accepted,
    /// A balancer handed it over.
    Adopted,
}

/// How long a connection that has not brought a request yet may take to do so in a drain: it may
/// just have been established.
const FRESH_GRACE: Duration = Duration::from_millis(500);

/// Tells a worker's waiting connections that the server drains, without a cost while it does not.
#[derive(Debug, Default)]
pub struct Gate {
    draining: Cell<bool>,
    waiting: RefCell<Slab<Option<Waker>>>,
}

impl Gate {
    /// True from [`Gate::drain`] on.
    pub fn draining(&self) -> bool {
        self.draining.get()
    }

    /// Begins the drain and wakes whoever waits with [`OnDrain::GiveUp`].
    pub fn drain(&self) {
        self.draining.set(true);
        for (_, waker) in self.waiting.borrow_mut().iter_mut() {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Connections of this worker.
    pub fn sessions(&self) -> usize {
        self.waiting.borrow().len()
    }

    fn wait(&self, place: usize, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(slot) = waiting.get_mut(place) {
            match slot {
                Some(known) if known.will_wake(waker) => {}
                _ => *slot = Some(waker.clone()),
            }
        }
    }
}

/// What a worker keeps for one connection besides its stream.
#[derive(Debug)]
pub struct Session {
    context: Rc<Context>,
    place: usize,
    timer: Pin<Box<Sleep>>,
    /// Response heads are written here; kept for its allocation.
    pub(crate) out: Vec<u8>,
    /// Requests served since the connection last gave way to others.
    pub(crate) in_a_row: u32,
    carriage: Carriage,
    served: u64,
}

impl Session {
    /// Takes a place among the worker's connections until dropped.
    pub fn new(context: &Rc<Context>, carriage: Carriage) -> Session {
        let place = context.gate.waiting.borrow_mut().insert(None);
        let timer = Box::pin(tokio::time::sleep(context.limits().idle_timeout));
        let (context, out) = (context.clone(), Vec::new());
        Session { context, place, timer, out, in_a_row: 0, carriage, served: 0 }
    }

    /// The worker's context.
    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// How the connection came here.
    pub fn carriage(&self) -> Carriage {
        self.carriage
    }

    /// Notes that a request was served.
    pub(crate) fn note_served(&mut self) {
        self.served += 1;
    }

    /// Runs `operation` for at most `limit`.
    ///
    /// # Errors
    /// It was given up, for either reason; what it did up to then stays done.
    pub async fn within<T>(
        &mut self,
        limit: Duration,
        on_drain: OnDrain,
        operation: impl Future<Output = T>,
    ) -> Result<T, Interrupted> {
        let mut operation = pin!(operation);
        let mut deadline = None;
        let mut draining = false;
        poll_fn(|task| {
            if let Poll::Ready(done) = operation.as_mut().poll(task) {
                return Poll::Ready(Ok(done));
            }
            let deadline = deadline.get_or_insert_with(|| Instant::now() + limit);
            if on_drain == OnDrain::GiveUp && !draining {
                self.context.gate.wait(self.place, task.waker());
                draining = self.context.gate.draining();
                if draining && self.served > 0 {
                    return Poll::Ready(Err(Interrupted::Draining));
                }
                if draining {
                    *deadline = (*deadline).min(Instant::now() + FRESH_GRACE);
                }
            }
            if self.timer.deadline() > *deadline {
                self.timer.as_mut().reset(*deadline);
            }
            while self.timer.as_mut().poll(task).is_ready() {
                // An earlier operation's deadline, perhaps.
                if Instant::now() >= *deadline {
                    let due = Interrupted::Timeout;
                    return Poll::Ready(Err(if draining { Interrupted::Draining } else { due }));
                }
                self.timer.as_mut().reset(*deadline);
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.context.gate.waiting.borrow_mut().try_remove(self.place);
        self.context.session_ended();
    }
}
