//! A descriptor that becomes readable when handlers are due: for clients that wait in an event loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that is made when somebody asks for it; until then, nothing is told.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    event: OnceLock<OwnedFd>,
}

impl Notice {
    /// The descriptor. The first time it is readable: what was due before was told to nobody.
    pub fn event(&self) -> io::Result<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let made = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Another thread may have been faster; either is as good.
            let _ = self.event.set(made);
            // Who looks for handlers next, and who makes one due and then looks for the
            // descriptor: one of them comes last, and sees.
            fence(Ordering::SeqCst);
        }
        self.event.get().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// After handlers became due.
    pub fn tell(&self) {
        fence(Ordering::SeqCst);
        if let Some(event) = self.event.get() {
            // Full: it is readable.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    /// Before looking for handlers.
    pub fn clear(&self) {
        if let Some(event) = self.event.get() {
            // Empty: nothing was told.
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
    }
}
