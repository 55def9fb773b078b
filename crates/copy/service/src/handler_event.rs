//! A descriptor that becomes readable when handlers are due, for clients that wait in an event
//! loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that is created on the first request; before that, notifications have no effect.
#[derive(Debug, Default)]
pub(crate) struct HandlerEvent {
    event: OnceLock<OwnedFd>,
}

impl HandlerEvent {
    /// Returns the descriptor. It is readable at first, because earlier handlers were not
    /// notified.
    pub fn event(&self) -> io::Result<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let made = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Another thread may have set it first; both are equivalent.
            let _ = self.event.set(made);
            // The client now looks for handlers; the service makes a handler due and then looks
            // for the descriptor. The fences on both sides guarantee that at least one of them
            // sees the other's store.
            fence(Ordering::SeqCst);
        }
        self.event.get().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Notifies; called after handlers became due.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if let Some(event) = self.event.get() {
            // A full counter is readable as well.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    /// Clears the descriptor; called before a look for handlers.
    pub fn clear(&self) {
        if let Some(event) = self.event.get() {
            // An empty counter is not an error.
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
    }
}
