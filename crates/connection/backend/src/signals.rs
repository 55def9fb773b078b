//! Signals from the agent to the task that owns an adopted connection.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use unlade_handoff_protocol::frame::{ReturnReason, Terms};

/// Control signals from the agent to the task that owns a connection's stream.
#[derive(Debug, Default)]
pub(crate) struct ControlSignals {
    pub(crate) abort: Cell<bool>,
    /// Close without a RST: another host owns the connection.
    pub(crate) silent: Cell<bool>,
    pub(crate) recall: Cell<Option<ReturnReason>>,
    pub(crate) terms: Cell<Option<Terms>>,
    waker: RefCell<Option<Waker>>,
}

impl ControlSignals {
    /// Signals that the lease is over.
    pub(crate) fn abort(&self) {
        self.abort.set(true);
        self.wake();
    }

    /// Signals that another host owns the connection.
    pub(crate) fn abandon(&self) {
        self.silent.set(true);
        self.abort();
    }

    pub(crate) fn recall(&self, reason: ReturnReason) {
        self.recall.set(Some(reason));
        self.wake();
    }

    pub(crate) fn set_terms(&self, terms: Terms) {
        self.terms.set(Some(terms));
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits until `ready` returns a value.
    pub(crate) async fn until<T>(&self, mut ready: impl FnMut(&ControlSignals) -> Option<T>) -> T {
        poll_fn(|context| match ready(self) {
            Some(value) => Poll::Ready(value),
            None => {
                *self.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}
