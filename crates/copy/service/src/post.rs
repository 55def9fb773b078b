//! Mailboxes of the service threads, and routes of the clients.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unlade_copy_scheduler::ClientId;
use unlade_shm::{Doorbell, DoorbellLine, Scope};

use crate::client::Client;
use crate::place::Ringer;

/// A message to a thread.
pub(crate) enum Mail {
    /// Serve this client from now on.
    Join(Arc<Route>, Box<Client>),
    /// This client has detached.
    Leave(ClientId),
    /// Some of the thread's clients are assigned to another thread.
    Move,
    /// Give all clients away, and end.
    Retire,
}

#[derive(Default)]
struct Mailbox {
    mail: Vec<Mail>,
    /// A thread reads the mailbox.
    is_open: bool,
}

/// Mailbox and doorbell of a thread.
#[derive(Default)]
pub(crate) struct Post {
    bell: DoorbellLine,
    mailbox: Mutex<Mailbox>,
    has_mail: AtomicBool,
    busy: Busy,
    /// Processor of the last ring.
    pub ringer: Ringer,
}

/// Busy time of the thread, on a cache line of its own because it changes all the time.
#[derive(Default)]
#[repr(align(64))]
struct Busy(AtomicU64);

impl Post {
    pub fn bell(&self) -> Doorbell<'_> {
        self.bell.doorbell(Scope::Private)
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the mailbox for a new thread. Returns false if the previous thread has not ended yet.
    pub fn open(&self) -> bool {
        let mut mailbox = self.mailbox();
        !std::mem::replace(&mut mailbox.is_open, true)
    }

    /// Closes the mailbox and returns true, unless a message is in it.
    pub fn close(&self) -> bool {
        let mut mailbox = self.mailbox();
        mailbox.is_open &= !mailbox.mail.is_empty();
        !mailbox.is_open
    }

    /// Sends a message, unless the mailbox is closed.
    pub fn send(&self, mail: Mail) -> Result<(), Mail> {
        self.send_after(mail, || {})
    }

    /// As [`Mailbox::send`]; calls `before` first, but only if the mailbox is open.
    pub fn send_after(&self, mail: Mail, before: impl FnOnce()) -> Result<(), Mail> {
        let mut mailbox = self.mailbox();
        if !mailbox.is_open {
            return Err(mail);
        }
        before();
        mailbox.mail.push(mail);
        drop(mailbox);
        self.has_mail.store(true, Ordering::Release);
        self.bell().ring();
        Ok(())
    }

    pub fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Relaxed)
    }

    pub fn receive(&self) -> Vec<Mail> {
        // This is polled all the time: a load is cheaper than an exclusive access to the line.
        match self.has_mail() && self.has_mail.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut self.mailbox().mail),
            false => Vec::new(),
        }
    }

    /// Returns the busy time of the thread, in microseconds.
    pub fn busy_us(&self) -> u64 {
        self.busy.0.load(Ordering::Relaxed)
    }

    pub fn set_busy_us(&self, us: u64) {
        self.busy.0.store(us, Ordering::Relaxed);
    }
}

/// Location of a client; shared by its attachment, its thread and the scaling.
#[derive(Debug)]
pub(crate) struct Route {
    pub id: ClientId,
    pub weight: u32,
    /// The thread that serves the client, or that has it in its mailbox.
    thread: AtomicUsize,
    /// The thread that is to serve the client.
    home: AtomicUsize,
    /// Number of bytes copied for the client.
    pub bytes: AtomicU64,
    /// Held while the client moves, and while a message to its thread is sent.
    gate: Mutex<()>,
}

impl Route {
    pub fn new(id: ClientId, weight: u32, thread: usize) -> Route {
        let (thread, home) = (AtomicUsize::new(thread), AtomicUsize::new(thread));
        Route { id, weight, thread, home, bytes: AtomicU64::new(0), gate: Mutex::default() }
    }

    /// Returns the thread that serves the client, as far as is known.
    #[inline]
    pub fn thread(&self) -> usize {
        self.thread.load(Ordering::Relaxed)
    }

    pub fn home(&self) -> usize {
        self.home.load(Ordering::Relaxed)
    }

    pub fn set_home(&self, thread: usize) {
        self.home.store(thread, Ordering::Relaxed);
    }

    /// Moves the client to another thread. Returns the client if that thread has ended.
    ///
    /// The new thread is recorded before it can read the queue: see
    /// [`Attachment::ring`](crate::Attachment::ring).
    pub fn hand_over(
        self: &Arc<Self>,
        client: Box<Client>,
        to: usize,
        post: &Post,
    ) -> Result<(), Box<Client>> {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let mail = Mail::Join(Arc::clone(self), client);
        match post.send_after(mail, || self.thread.store(to, Ordering::Relaxed)) {
            Err(Mail::Join(_, client)) => Err(client),
            _ => Ok(()),
        }
    }

    /// Informs the client's thread that the client has detached.
    pub fn leave(&self, posts: &[Post]) {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread with clients or messages does not end.
        let _ = posts[self.thread()].send(Mail::Leave(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_does_not_end_before_its_mail_is_read() {
        let post = Post::default();
        assert!(post.send(Mail::Move).is_err(), "nobody is there");
        assert!(post.open() && !post.open());
        assert!(post.send(Mail::Move).is_ok() && !post.close());
        assert_eq!((post.has_mail(), post.receive().len(), post.receive().len()), (true, 1, 0));
        assert!(post.close());
        assert!(matches!(post.send(Mail::Leave(ClientId(1))), Err(Mail::Leave(_))));
        assert!(post.open());
    }
}
