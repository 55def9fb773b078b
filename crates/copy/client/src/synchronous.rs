//! Copies that the submitting thread makes before its call returns.

use unlade_copy_kernels::probes::{self, Maker, NO_TICKET};
use unlade_copy_kernels::{Fault, Hint};
use unlade_copy_service::TaskFailure;

use crate::admission::Place;
use crate::attention::Attention;
use crate::call_handler::call_handler;
use crate::copier::{Copier, CopyOptions, Part, Token};

impl Copier {
    /// Copies at once, at most [`TASK_BYTES_MAX`](crate::TASK_BYTES_MAX), while the queue is quiet
    /// ([`AtOnce::is_quiet`](crate::AtOnce::is_quiet)). An error is kept for the sync of the bytes.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for the duration of the call; the ranges do not overlap.
    #[inline(always)]
    pub unsafe fn copy_quietly(&self, dst: *mut u8, src: *const u8, len: usize, site: usize) {
        self.stats().count_at_once(len);
        probes::submit(dst.addr(), src.addr(), len, NO_TICKET, site);
        // SAFETY: the caller's promise.
        if unsafe { self.copy_now(dst, src, len, Hint::Reuse) }.is_err() {
            self.at_once().keep(dst.addr(), len, TaskFailure::BadAddress);
            probes::done(
                dst.addr(),
                0,
                NO_TICKET,
                Maker::Submitter,
                TaskFailure::BadAddress.code().get(),
            );
            return;
        }
        probes::done(dst.addr(), len, NO_TICKET, Maker::Submitter, 0);
    }

    /// Copies at once, at most [`TASK_BYTES_MAX`](crate::TASK_BYTES_MAX), after pending tasks that
    /// touch the bytes, and past deferred copies. An error is kept for the sync of the bytes.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for the duration of the call; the ranges do not overlap.
    #[inline]
    pub unsafe fn copy_in_order(&self, dst: *mut u8, src: *const u8, len: usize, site: usize) {
        let options = CopyOptions { site, ..CopyOptions::default() };
        let part = Part { dst, src, len, hint: Hint::Reuse, place: Place::of(site, len) };
        self.note_short(&part);
        let part = self.past_deferred(part, false);
        // SAFETY: the caller's promise.
        let _ = unsafe { self.make_at_once(part, &options) };
    }

    /// # Safety
    /// As for [`Copier::submit`].
    #[inline(always)]
    pub(crate) unsafe fn make_at_once(&self, part: Part, options: &CopyOptions) -> Token {
        self.stats().count_at_once(part.len);
        probes::submit(part.dst.addr(), part.src.addr(), part.len, NO_TICKET, options.site);
        // SAFETY: the caller's promise.
        if unsafe { self.copy_at_once(part) }.is_err() {
            // SAFETY: the caller's promise.
            return unsafe { self.fail_at_once(part, TaskFailure::BadAddress, options) };
        }
        probes::done(part.dst.addr(), part.len, NO_TICKET, Maker::Submitter, 0);
        if let Some((function, argument)) = options.handler {
            // The handler may free the source, which older copies may still read.
            self.complete_for_write(part.src.addr(), part.len);
            // SAFETY: the caller's promise.
            unsafe { call_handler(function, argument) };
        }
        Token::DONE
    }

    /// Fails a copy that cannot be made: keeps its error for the sync, and runs its handler.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for the handler.
    #[cold]
    pub(crate) unsafe fn fail_at_once(
        &self,
        part: Part,
        failure: TaskFailure,
        options: &CopyOptions,
    ) -> Token {
        let ticket = self.at_once().fail(part.dst.addr(), part.len, failure);
        probes::done(part.dst.addr(), 0, NO_TICKET, Maker::Submitter, failure.code().get());
        if let Some((function, argument)) = options.handler {
            // The handler may free the source, which older copies may still read.
            self.complete_for_write(part.src.addr(), part.len);
            // SAFETY: the caller's promise.
            unsafe { call_handler(function, argument) };
        }
        Token::failed(ticket)
    }

    /// Copies synchronously, after pending tasks that touch the bytes.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for the duration of the call.
    #[inline(always)]
    unsafe fn copy_at_once(&self, part: Part) -> Result<(), Fault> {
        let Part { dst, src, len, hint, .. } = part;
        if !self.attention().is_quiet() {
            self.precede(dst.addr(), src.addr(), len);
        }
        // SAFETY: the caller's promise; and no pending task touches these bytes now.
        unsafe { self.copy_now(dst, src, len, hint) }
    }

    /// # Errors
    /// [`Fault`]: a byte cannot be read or written.
    ///
    /// # Safety
    /// The mapped part of `src` may be read, and the mapped part of `dst` may be overwritten. They
    /// do not overlap, and no other thread writes either or reads `dst` during the call. For a
    /// client of a daemon both are fully mapped.
    #[inline(always)]
    pub(crate) unsafe fn copy_now(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        hint: Hint,
    ) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.at_once().copy_now(dst, src, len, hint) }
    }

    /// Completes the tasks that must precede a copy, and drops the errors of its destination. The
    /// failure of a pending copy does not affect this one: its destination is unchanged, as after
    /// a `memcpy` that did not happen.
    #[cold]
    fn precede(&self, dst: usize, src: usize, len: usize) {
        // Deferred copies were regarded at the submission.
        if self.pending().completed() != self.queue().head() {
            self.each_queued_of(0..0, |queued| {
                queued.writing(src, len) | queued.writing(dst, len) | queued.reading(dst, len)
            });
        }
        self.failures().overwrite(dst, len);
        self.settle();
    }

    /// See [`Attention`].
    #[inline]
    pub(crate) fn attention(&self) -> &Attention {
        self.failures().attention()
    }

    /// Settles the attention, if nothing is left that a copy or a sync must regard.
    pub(crate) fn settle(&self) {
        self.attention().settle(|| {
            let is_done = self.pending().completed() == self.queue().head();
            if self.deferred().has_sends() {
                self.deferred().with(|table| table.drop_sent(|send| self.is_sent(send)));
            }
            let is_done = is_done && !self.deferred().any();
            let is_over =
                is_done && !self.failures().has_unreported() && !self.window().is_active();
            is_over && self.admission().is_introduced()
        });
    }
}
