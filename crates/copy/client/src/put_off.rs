//! Copies that the client keeps until something looks at them; see [`crate::deferred`].

use unlade_copy_service::TaskFailure;
use unlade_shm::{Task, Ticket};

use crate::at_once::hint_for;
use crate::copier::{Copier, CopyOptions, Part, Token};
use crate::deferred::{Deferral, Deferred};
use crate::error::CopyError;
use crate::failures::DEFERRED;
use crate::pending::{Kind, Queued};

/// A delay that does not end: the copy is made if something looks at it, otherwise never.
pub(crate) const UNTIL_NEEDED_US: u32 = u32::MAX;

impl Deferral {
    /// The task that this copy would be. Nothing but a send reads its spare memory.
    fn queued(&self) -> Queued {
        let task = Task::copy(self.dst as u64, self.src as u64, self.len as u32);
        Queued {
            kind: if self.sent.is_some() { Kind::Send } else { Kind::Copy },
            dst: self.dst,
            src: self.src,
            len_bytes: task.len_bytes,
            granule_shift: task.granule_shift,
            is_lazy: true,
            streams: false,
        }
    }
}

impl Copier {
    /// Returns true if the client keeps such a copy itself. A handler needs the service.
    #[inline]
    pub(crate) fn may_defer(&self, options: &CopyOptions) -> bool {
        options.lazy_us == Some(UNTIL_NEEDED_US)
            && !options.queued
            && options.handler.is_none()
            && self.local().is_some()
    }

    /// Defers a copy.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    pub(crate) unsafe fn defer(&self, part: Part) -> Token {
        let (dst, src) = (part.dst.expose_provenance(), part.src.expose_provenance());
        if part.len == 0 {
            return Token::DONE;
        }
        self.failures().overwrite(dst, part.len);
        let id = self
            .deferred()
            .with(|table| table.defer(dst, src, part.len, |copy| self.make_deferred(copy)));
        self.attention().raise();
        Token::kept(Ticket(DEFERRED | id))
    }

    /// Changes a copy that is made or queued now so that it does not need the destinations of
    /// deferred copies; those that it meets otherwise are made. A handler may free the source, so
    /// nothing may need it then.
    #[cold]
    pub(crate) fn past_deferred(&self, part: Part, has_handler: bool) -> Part {
        if !self.deferred().any() || part.len == 0 {
            return part;
        }
        if has_handler {
            let (src, len) = (part.src.addr(), part.len);
            self.make_deferred_where(|copy| copy.writing(src, len) | copy.reading(src, len) != 0);
        }
        let (dst, src) = (part.dst.addr(), part.src.expose_provenance());
        let from = self.deferred().with(|table| {
            table.drop_sent(|send| self.is_sent(send));
            table.precede(dst, src, part.len, |copy| self.make_deferred(copy))
        });
        // The source of the deferred copy was exposed, or it is the same address.
        Part { src: std::ptr::with_exposed_provenance(from), ..part }
    }

    /// Makes the deferred copies that a task of `len` bytes from `src` to `dst` meets.
    #[cold]
    pub(crate) fn make_deferred_meeting(&self, dst: usize, src: usize, len: usize) {
        self.make_deferred_where(|queued| {
            queued.writing(src, len) | queued.writing(dst, len) | queued.reading(dst, len) != 0
        });
    }

    /// Makes the deferred copies that `is_due` names.
    pub(crate) fn make_deferred_where(&self, is_due: impl Fn(&Queued) -> bool) {
        if self.deferred().any() {
            let is_due = |copy: &Deferral| is_due(&copy.queued());
            self.deferred().with(|table| {
                table.drop_sent(|send| self.is_sent(send));
                table.make(is_due, |copy| self.make_deferred(copy));
            });
        }
    }

    /// Makes all deferred copies; what is being sent stays where it is.
    pub(crate) fn make_all_deferred(&self) {
        if self.deferred().any() {
            let is_copy = |copy: &Deferral| copy.sent.is_none();
            self.deferred().with(|table| table.make(is_copy, |copy| self.make_deferred(copy)));
        }
    }

    /// Makes the deferred copy of a token, unless that has happened.
    pub(crate) fn make_deferred_numbered(&self, id: u64) {
        if self.deferred().any() {
            self.deferred()
                .with(|table| table.make(|copy| copy.id == id, |copy| self.make_deferred(copy)));
        }
    }

    /// Makes a deferred copy, with the table locked: a thread that looks for it waits.
    pub(crate) fn make_deferred(&self, copy: &Deferral) {
        let &Deferral { id, dst, src, len, .. } = copy;
        if let Some((send, number)) = &copy.sent {
            return self.save_piece(copy, send, *number);
        }
        if self.pending().completed() != self.queue().head() {
            self.each_queued_of(0..0, |queued| {
                queued.writing(src, len) | queued.writing(dst, len) | queued.reading(dst, len)
            });
        }
        let to = std::ptr::with_exposed_provenance_mut(dst);
        let from = std::ptr::with_exposed_provenance(src);
        // SAFETY: the submitter of the copy promised that both ranges are valid and not used until
        // it is completed; it is completed below. Its ranges do not overlap (the table changes a
        // source only to one that does not meet the destination), and no queued task touches them:
        // older ones are completed above, and younger ones were submitted past this copy.
        if unsafe { self.copy_now(to, from, len, hint_for(len)) }.is_err() {
            let code = TaskFailure::BadAddress.code();
            self.failures().keep(Ticket(DEFERRED | id), code, dst..dst.saturating_add(len));
        }
        self.stats().count_at_once(len);
    }

    /// Number of deferred copies that were never made because nothing looked at their bytes, and
    /// the number of these bytes.
    pub fn never_made(&self) -> (u64, u64) {
        self.deferred().dropped()
    }

    /// Says that the program will not look at the `len` bytes from `address` on: copies into them
    /// that the client keeps ([`CopyOptions::lazy_us`]) are dropped. Then as
    /// [`Copier::sync_for_write`]: the bytes may be changed or freed, and their content is
    /// undefined.
    ///
    /// # Errors
    /// As for [`Copier::sync_for_write`].
    pub fn discard_range(&self, address: usize, len: usize) -> Result<(), CopyError> {
        self.discard(address, len);
        self.sync_for_write(address, len)
    }

    /// The first half of [`Copier::discard_range`]: does not wait.
    pub fn discard(&self, address: usize, len: usize) {
        if self.deferred().any() {
            let bytes = address..address.saturating_add(len);
            self.deferred().with(|table| table.discard(&bytes));
        }
    }

    /// Drops the deferred copy of a token.
    pub(crate) fn drop_deferred(&self, id: u64) {
        self.deferred().with(|table| table.drop_copy(id));
    }

    /// Returns true if the copy of a token is still deferred.
    pub(crate) fn is_deferred(&self, id: u64) -> bool {
        let deferred: &Deferred = self.deferred();
        deferred.has(id)
    }
}
