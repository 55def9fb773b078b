//! Where a thread is reached, and where a client is.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unlade_copy_scheduler::ClientId;
use unlade_shm::{Doorbell, DoorbellLine, Scope};

use crate::client::Client;
use crate::place::Ringer;

/// What is sent to a thread.
pub(crate) enum Mail {
    /// A client, to be served from now on.
    Join(Arc<Route>, Box<Client>),
    /// A client that has gone.
    Leave(ClientId),
    /// Some of its clients have their homes elsewhere.
    Move,
    /// It is to give all its clients away, and to end.
    Retire,
}

#[derive(Default)]
struct Mailbox {
    mail: Vec<Mail>,
    /// Somebody empties it.
    is_open: bool,
}

/// Where a thread is reached.
#[derive(Default)]
pub(crate) struct Post {
    bell: DoorbellLine,
    mailbox: Mutex<Mailbox>,
    has_mail: AtomicBool,
    busy: Busy,
    /// Where somebody rang from last.
    pub ringer: Ringer,
}

/// How long the thread has been at work, on a line of its own: it writes all the time.
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

    /// A thread is about to start. False where the one before has not ended yet.
    pub fn open(&self) -> bool {
        let mut mailbox = self.mailbox();
        !std::mem::replace(&mut mailbox.is_open, true)
    }

    /// The thread ends, unless there is mail.
    pub fn close(&self) -> bool {
        let mut mailbox = self.mailbox();
        mailbox.is_open &= !mailbox.mail.is_empty();
        !mailbox.is_open
    }

    /// Sends, unless the thread has ended.
    pub fn send(&self, mail: Mail) -> Result<(), Mail> {
        self.send_after(mail, || {})
    }

    /// As [`Post::send`]; `before` is done first, and only where it is sent.
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
        // Looked at all the time: a load costs less than taking the line.
        match self.has_mail() && self.has_mail.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut self.mailbox().mail),
            false => Vec::new(),
        }
    }

    /// Microseconds that the thread has been at work.
    pub fn busy_us(&self) -> u64 {
        self.busy.0.load(Ordering::Relaxed)
    }

    pub fn set_busy_us(&self, us: u64) {
        self.busy.0.store(us, Ordering::Relaxed);
    }
}

/// Where a client is: what its attachment, the thread that serves it and the scaling share.
#[derive(Debug)]
pub(crate) struct Route {
    pub id: ClientId,
    pub weight: u32,
    /// Who serves it, or has it in the mail.
    thread: AtomicUsize,
    /// Who is to serve it.
    home: AtomicUsize,
    /// Bytes copied for it.
    pub bytes: AtomicU64,
    /// Held while it changes hands, and while its thread is written to.
    gate: Mutex<()>,
}

impl Route {
    pub fn new(id: ClientId, weight: u32, thread: usize) -> Route {
        let (thread, home) = (AtomicUsize::new(thread), AtomicUsize::new(thread));
        Route { id, weight, thread, home, bytes: AtomicU64::new(0), gate: Mutex::default() }
    }

    /// Who serves it, as far as is known.
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

    /// Gives the client to another thread. It comes back where that one has ended.
    ///
    /// The new thread is named before it can look at the queue: see
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

    /// Tells whoever has the client that it has gone.
    pub fn leave(&self, posts: &[Post]) {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that has a client, or its mail, does not end.
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
