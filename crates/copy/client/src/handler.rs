//! Handlers: functions of this process that run when a copy is over (UFUNC of Copier, SOSP 2025,
//! §4.1).
//!
//! Usually the service reports which handlers are due. Once all older tasks are over, the client
//! can decide that itself: the source of a copy is no longer in use. The thread that takes a
//! handler runs it.

use std::io;
use std::os::fd::BorrowedFd;

use unlade_shm::{Flags, Ticket};

use crate::call_handler::call_handler;
use crate::copier::Copier;
use crate::error::{CopyError, to_result};
use crate::remote::Remote;

impl Copier {
    /// Runs the handlers that are due in this thread. Returns their number.
    pub fn run_handlers(&self) -> usize {
        if self.is_orphan() {
            // The parent runs them.
            return 0;
        }
        if let Some(remote) = self.remote() {
            return self.run_remote_handlers(remote);
        }
        self.clear_event();
        let mut count = 0;
        while let Some(ticket) = self.queue().pop_handler() {
            let Some(Ok(task)) = self.queue().peek(ticket) else { continue };
            if self.queue().progress(ticket).take_handler() {
                // SAFETY: only this process writes its lines: the service in this process does
                // not. The submitter promised that the handler may be called.
                unsafe { call_handler(task.handler as usize, task.argument as usize) };
                count += 1;
            }
        }
        if !self.is_served() {
            count += self.run_left_handlers();
        }
        count
    }

    /// As [`Copier::run_handlers`], for lines in memory shared with a daemon. A dead daemon
    /// reports no handlers, so complete their tasks here.
    fn run_remote_handlers(&self, remote: &Remote) -> usize {
        let mut count = 0;
        while let Some(ticket) = self.queue().pop_handler() {
            count += usize::from(self.run_remote_handler(remote, ticket));
        }
        if remote.tasks().has_handlers() && !self.is_served() {
            count += self.run_left_handlers();
        }
        count
    }

    /// Runs the handler of a task, if it is waiting and the task is over.
    pub(crate) fn run_remote_handler(&self, remote: &Remote, ticket: Ticket) -> bool {
        let progress = self.queue().progress(ticket);
        let queued = self.pending().get(ticket);
        if queued.is_some_and(|queued| !progress.is_done(queued.all())) {
            return false;
        }
        let Some((function, argument)) = remote.tasks().take_handler(ticket) else { return false };
        progress.take_handler();
        // SAFETY: both are from this process's own memory. The submitter promised that the handler
        // may be called; it is taken once.
        unsafe { call_handler(function, argument) };
        true
    }

    /// A descriptor that is readable when handlers are due, for event loops. Then call
    /// [`Copier::run_handlers`], which makes it unreadable until the next handler is due. The
    /// descriptor is also readable if handlers may be due: at first, and when the service has
    /// ended.
    ///
    /// To be notified of the end of a copy, give the copy a handler.
    ///
    /// # Errors
    /// The process has no descriptors left. [`io::ErrorKind::Unsupported`]: a daemon serves, which
    /// reports handlers in shared memory only.
    pub fn event(&self) -> io::Result<BorrowedFd<'_>> {
        match self.local() {
            Some(attachment) => attachment.event(),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Clears the event before handlers are run.
    pub(crate) fn clear_event(&self) {
        if let Some(attachment) = self.local() {
            attachment.clear_event();
        }
    }

    /// As [`Copier::sync_all`], and runs the handlers of all these copies. When it returns, each
    /// handler has run, or runs in another thread that has taken it. The service need not be
    /// awake.
    ///
    /// # Errors
    /// [`CopyError`] if a copy failed whose error was not reported yet. Handlers have run
    /// nevertheless.
    pub fn sync_handlers(&self) -> Result<(), CopyError> {
        let head = self.queue().head();
        self.complete_all();
        if !self.is_orphan() {
            self.run_handlers();
            self.run_handlers_below(head);
        }
        to_result(self.failures().take_all())
    }

    /// Runs the handlers that an ended service has left. Returns their number.
    pub(crate) fn run_left_handlers(&self) -> usize {
        let head = self.queue().head();
        // Handlers run also after an error; a later sync reports it.
        self.complete_all();
        self.run_handlers_below(head)
    }

    /// Runs the handlers of tasks below `head`, which are all over.
    fn run_handlers_below(&self, head: Ticket) -> usize {
        let mut count = 0;
        if let Some(remote) = self.remote() {
            for ticket in remote.tasks().waiting().filter(|ticket| *ticket < head) {
                self.queue().progress(ticket).handler_due();
                count += usize::from(self.run_remote_handler(remote, ticket));
            }
            return count;
        }
        let mut at = self.queue().tail();
        while at < head {
            count += usize::from(self.run_local_handler(at));
            at = at.next();
        }
        count
    }

    /// Runs the handler of a task that is over, unless another thread has taken it.
    fn run_local_handler(&self, ticket: Ticket) -> bool {
        let Some(Ok(task)) = self.queue().peek(ticket) else { return false };
        let progress = self.queue().progress(ticket);
        // Not over if another thread has just published it.
        let is_over = progress.is_done(task.bits());
        if !is_over || !task.flags.contains(Flags::HANDLER) {
            return false;
        }
        progress.handler_due();
        let is_mine = progress.take_handler();
        if is_mine {
            // SAFETY: only this process writes its lines: the service in this process does not.
            // The submitter promised that the handler may be called; it is taken once.
            unsafe { call_handler(task.handler as usize, task.argument as usize) };
        }
        is_mine
    }
}
