//! Aborts: the caller gives a copy up, and nothing touches its bytes afterwards.

use unlade_shm::{SyncKind, SyncTask, WaitPolicy, Waited};

use crate::copier::{Copier, TASK_BYTES_MAX, Token};
use crate::pending::{Kind, Queued};

impl Copier {
    /// Aborts a copy. Segments on which no other task depends are not copied, and the content of
    /// their destination is undefined. When this returns the copy is completed: its bytes may be
    /// used again.
    ///
    /// A send or a forward that waits for its socket ends with
    /// [`TaskFailure::CANCELLED`](crate::TaskFailure::CANCELLED). Bytes already sent stay sent,
    /// and the receiver cannot detect the abort. A receive still takes its bytes out of the
    /// stream; it ends with this error if another reader took them.
    pub fn abort(&self, token: &Token) {
        if let Some(id) = token.deferral() {
            self.drop_deferred(id);
        }
        if !token.has_task() {
            // The caller has given the copy up, so its error is dropped.
            let _ = self.sync(token, 0..0);
            return;
        }
        self.release_orphaned();
        if let Some(queued) = self.pending().get(token.ticket).filter(Queued::writes) {
            // Copies that the client keeps may depend on this one.
            let (dst, len) = (queued.dst, queued.len_bytes as usize);
            self.make_deferred_where(|copy| copy.reading(dst, len) != 0);
        }
        let all = token.bits(0..usize::MAX);
        let progress = self.queue().progress(token.ticket);
        if let Some(remote) = self.remote()
            && let Some(queued) = self.pending().get(token.ticket)
            && !progress.is_done(all)
        {
            if queued.kind == Kind::Receive {
                // The bytes leave the stream in any case.
                self.complete_slowly(token.ticket, all, 0);
            } else {
                remote.note_abort(&queued);
            }
        }
        let wish = SyncTask { ticket: token.ticket, bits: all, kind: SyncKind::Abort };
        // A full ring drains as soon as the service polls it.
        while self.queue().push_sync(wish).is_err() && self.is_served() {
            self.ring();
            std::thread::yield_now();
        }
        self.ring();
        // Do not help: that would copy the aborted bytes.
        let policy = WaitPolicy { slices_max: u32::MAX, ..WaitPolicy::default() };
        if progress.wait(all, &policy, || self.is_served()) != Waited::Done {
            // No service runs that could abort the task.
            let queued = self.pending().get(token.ticket);
            if queued.is_some_and(|queued| queued.destination_socket().is_some()) {
                // No task depends on a send or a forward.
                progress.abort_rest(all);
            }
            self.complete_slowly(token.ticket, all, 0);
        }
        // The caller has given the copy up, so mark its error as reported.
        if let Some(code) = progress.error() {
            self.failures().mark_reported(token.ticket, code);
        }
    }

    /// As [`Copier::abort`]. Without a service, segments that are not copied stay so.
    pub(crate) fn abandon(&self, token: &Token) {
        if token.has_task() && !self.is_served() {
            self.take_back();
            self.queue().progress(token.ticket).abort_rest(token.bits(0..TASK_BYTES_MAX));
        }
        self.abort(token);
    }
}
