//! Mailboxes of the service threads, and routes of the clients.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unlade_copy_scheduler::ClientId;
use unlade_shm::{Doorbell, DoorbellLine, Scope};

use crate::client::Client;
use crate::group::{Share, SharedShare};
use crate::placement::RingLocation;

/// A message to a thread.
pub(crate) enum Message {
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
struct Inbox {
    messages: Vec<Message>,
    /// A thread reads the mailbox.
    is_open: bool,
}

/// Inbox and doorbell of a thread.
#[derive(Default)]
pub(crate) struct Mailbox {
    bell: DoorbellLine,
    inbox: Mutex<Inbox>,
    has_message: AtomicBool,
    busy: Busy,
    /// Processor of the last ring.
    pub ring_location: RingLocation,
}

/// Busy time of the thread, on a cache line of its own because it changes all the time.
#[derive(Default)]
#[repr(align(64))]
struct Busy(AtomicU64);

impl Mailbox {
    pub fn bell(&self) -> Doorbell<'_> {
        self.bell.doorbell(Scope::Private)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the mailbox for a new thread. Returns false if the previous thread has not ended yet.
    pub fn open(&self) -> bool {
        let mut inbox = self.inbox();
        !std::mem::replace(&mut inbox.is_open, true)
    }

    /// Closes the mailbox and returns true, unless a message is in it.
    pub fn close(&self) -> bool {
        let mut inbox = self.inbox();
        inbox.is_open &= !inbox.messages.is_empty();
        !inbox.is_open
    }

    /// Closes the mailbox of a thread that has ended, and returns what it has not read.
    pub fn shut(&self) -> Vec<Message> {
        let mut inbox = self.inbox();
        inbox.is_open = false;
        std::mem::take(&mut inbox.messages)
    }

    /// Sends a message, unless the mailbox is closed.
    pub fn send(&self, message: Message) -> Result<(), Message> {
        self.send_after(message, || {})
    }

    /// As [`Mailbox::send`]; calls `before` first, but only if the mailbox is open.
    pub fn send_after(&self, message: Message, before: impl FnOnce()) -> Result<(), Message> {
        let mut inbox = self.inbox();
        if !inbox.is_open {
            return Err(message);
        }
        before();
        inbox.messages.push(message);
        drop(inbox);
        self.has_message.store(true, Ordering::Release);
        self.bell().ring();
        Ok(())
    }

    pub fn has_message(&self) -> bool {
        self.has_message.load(Ordering::Relaxed)
    }

    pub fn receive(&self) -> Vec<Message> {
        // This is polled all the time: a load is cheaper than an exclusive access to the line.
        match self.has_message() && self.has_message.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut self.inbox().messages),
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
    /// The thread of the client sees a change with the next turn.
    pub share: SharedShare,
    /// The thread that serves the client, or that has it in its mailbox.
    thread: AtomicUsize,
    /// The thread that is to serve the client.
    assigned_thread: AtomicUsize,
    /// Number of bytes copied for the client.
    pub bytes: AtomicU64,
    /// Held while the client moves, and while a message to its thread is sent.
    gate: Mutex<()>,
}

impl Route {
    pub fn new(id: ClientId, share: Share, thread: usize) -> Route {
        let (thread, assigned_thread) = (AtomicUsize::new(thread), AtomicUsize::new(thread));
        Route {
            id,
            share: SharedShare::new(share),
            thread,
            assigned_thread,
            bytes: AtomicU64::new(0),
            gate: Mutex::default(),
        }
    }

    /// Returns the thread that serves the client, as far as is known.
    #[inline]
    pub fn thread(&self) -> usize {
        self.thread.load(Ordering::Relaxed)
    }

    pub fn assigned_thread(&self) -> usize {
        self.assigned_thread.load(Ordering::Relaxed)
    }

    pub fn assign(&self, thread: usize) {
        self.assigned_thread.store(thread, Ordering::Relaxed);
    }

    /// Moves the client to another thread. Returns the client if that thread has ended.
    ///
    /// The new thread is recorded before it can read the queue: see
    /// [`Attachment::ring`](crate::Attachment::ring).
    pub fn hand_over(
        self: &Arc<Self>,
        client: Box<Client>,
        to: usize,
        mailbox: &Mailbox,
    ) -> Result<(), Box<Client>> {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let message = Message::Join(Arc::clone(self), client);
        match mailbox.send_after(message, || self.thread.store(to, Ordering::Relaxed)) {
            Err(Message::Join(_, client)) => Err(client),
            _ => Ok(()),
        }
    }

    /// Informs the client's thread that the client has detached.
    pub fn leave(&self, mailboxes: &[Mailbox]) {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread with clients or messages does not end.
        let _ = mailboxes[self.thread()].send(Message::Leave(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_does_not_end_before_its_mail_is_read() {
        let mailbox = Mailbox::default();
        assert!(mailbox.send(Message::Move).is_err(), "the mailbox is closed");
        assert!(mailbox.open() && !mailbox.open());
        assert!(mailbox.send(Message::Move).is_ok() && !mailbox.close());
        assert_eq!(
            (mailbox.has_message(), mailbox.receive().len(), mailbox.receive().len()),
            (true, 1, 0)
        );
        assert!(mailbox.close());
        assert!(matches!(mailbox.send(Message::Leave(ClientId(1))), Err(Message::Leave(_))));
        assert!(mailbox.open());
        assert!(mailbox.send(Message::Move).is_ok());
        assert_eq!(mailbox.shut().len(), 1);
        assert!(mailbox.send(Message::Move).is_err() && mailbox.receive().is_empty());
    }
}
