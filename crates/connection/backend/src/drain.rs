//! Notification of a worker's connections of a drain.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use slab::Slab;

/// Notifies a worker's waiting connections of a drain.
#[derive(Debug, Default)]
pub struct Gate {
    draining: Cell<bool>,
    waiting: RefCell<Slab<Option<Waker>>>,
}

impl Gate {
    /// Returns true after [`Gate::drain`].
    pub fn draining(&self) -> bool {
        self.draining.get()
    }

    /// Begins the drain and wakes all operations that wait with [`OnDrain::GiveUp`](crate::session::OnDrain::GiveUp).
    pub fn drain(&self) {
        self.draining.set(true);
        for (_, waker) in self.waiting.borrow_mut().iter_mut() {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Returns the number of connections of this worker.
    pub fn sessions(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Registers a connection; returns its place.
    pub(crate) fn enter(&self) -> usize {
        self.waiting.borrow_mut().insert(None)
    }

    /// Removes a connection.
    pub(crate) fn leave(&self, place: usize) {
        self.waiting.borrow_mut().try_remove(place);
    }

    /// Notes the waker of an operation that a drain interrupts.
    pub(crate) fn wait(&self, place: usize, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(slot) = waiting.get_mut(place) {
            match slot {
                Some(known) if known.will_wake(waker) => {}
                _ => *slot = Some(waker.clone()),
            }
        }
    }
}
