//! Deadlines of one connection.
//!
//! Deadlines cost nothing while the socket is ready: the timer is used only when an operation must
//! wait, and is reset only when it fires early or would fire late.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::context::Context;
use crate::upstream::pool::Upstream;

/// Reason why an operation was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// The time limit expired.
    Timeout,
    /// The server drains, and the operation need not be finished.
    Draining,
}

/// Behaviour of an operation when the server drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDrain {
    /// The operation continues: a request in flight.
    Finish,
    /// The operation is interrupted: waiting for a request.
    GiveUp,
}

/// Origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionOrigin {
    /// A client or a proxy connected to this server.
    Accepted,
    /// A balancer handed the connection over.
    Adopted,
}

/// How long a drain waits for the first request of a connection, which may just have been
/// established.
const FRESH_GRACE: Duration = Duration::from_millis(500);

/// State of one connection besides its stream.
#[derive(Debug)]
pub struct Session {
    context: Rc<Context>,
    place: usize,
    timer: Pin<Box<Sleep>>,
    /// Buffer of response heads, kept for its allocation.
    pub(crate) out: Vec<u8>,
    /// Number of requests served since the task last yielded to others.
    pub(crate) in_a_row: u32,
    /// The connection to the local server that serves this client only.
    pub(crate) upstream: Option<Upstream>,
    origin: ConnectionOrigin,
    served: u64,
}

impl Session {
    /// Registers a connection of the worker until dropped.
    pub fn new(context: &Rc<Context>, origin: ConnectionOrigin) -> Session {
        let place = context.gate.enter();
        let timer = Box::pin(tokio::time::sleep(context.limits().idle_timeout));
        let (context, out) = (context.clone(), Vec::new());
        Session { context, place, timer, out, in_a_row: 0, upstream: None, origin, served: 0 }
    }

    /// Returns the worker's context.
    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// Returns the origin of the connection.
    pub fn origin(&self) -> ConnectionOrigin {
        self.origin
    }

    /// Counts a served request.
    pub(crate) fn note_served(&mut self) {
        self.served += 1;
    }

    /// Runs `operation` for at most `limit`.
    ///
    /// # Errors
    /// The operation was interrupted; its effects up to then remain.
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
                // The timer may still have the deadline of an earlier operation.
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
        self.context.gate.leave(self.place);
        self.context.session_ended();
    }
}
