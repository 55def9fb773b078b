//! Copies that the calling thread makes: synchronous ones, and those it makes while it waits for a
//! queued copy.
//!
//! A bad address ends such a copy with the same error as in the service. The error is kept for the
//! sync of the bytes, like the error of a queued copy.

use std::num::NonZeroU16;
use std::ops::Range;

use unlade_copy_kernels::probes::{self, Maker, NO_TICKET};
use unlade_copy_kernels::stream::STREAM_BYTES_MIN;
use unlade_copy_kernels::{Fault, Guard, Hint};
use unlade_copy_service::TaskFailure;
use unlade_shm::Ticket;

use crate::error::{CopyError, to_result};
use crate::failures::Failures;

/// Copies by the calling thread, and the errors of copies.
#[derive(Debug, Default)]
pub struct AtOnce {
    /// `None` if bad addresses cannot be caught. They then raise a signal, as in `memcpy`.
    guard: Option<Guard>,
    failures: Failures,
}

/// Size of the bounce buffer for overlapping moves.
const BOUNCE_BYTES: usize = 16 << 10;

/// Returns true if no copy can have these ranges: they overlap, wrap around the address space, or
/// are longer than any allocation.
#[inline(always)]
pub fn is_refused(dst: usize, src: usize, len: usize) -> bool {
    // If two disjoint ranges wrap around the end of the address space, one of the two starts is
    // within `len` bytes of the end.
    dst.abs_diff(src) < len || dst.max(src) > usize::MAX - len || len > isize::MAX as usize
}

/// Cache hint for a copy of `whole_bytes`, or for one part of it.
#[inline]
pub(crate) fn hint_for(whole_bytes: usize) -> Hint {
    if whole_bytes >= STREAM_BYTES_MIN { Hint::Stream } else { Hint::Reuse }
}

impl AtOnce {
    /// Creates copies that catch bad addresses where the processor and the kernel support it.
    /// Installs handlers for SIGSEGV and SIGBUS, which pass on all other faults.
    pub fn guarded() -> AtOnce {
        AtOnce { guard: unlade_copy_kernels::guard::install().ok(), failures: Failures::default() }
    }

    #[inline]
    pub(crate) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Returns true if no copy of the queue is pending, as far as this thread may know of it, no
    /// error is unreported, and no window is measured.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.failures.attention().is_quiet()
    }

    /// Returns true after [`AtOnce::watch`].
    pub fn is_watched(&self) -> bool {
        self.failures.attention().is_raised_for_ever()
    }

    /// Lets the queue never be quiet from now on.
    pub fn watch(&self) {
        self.failures.attention().raise_for_ever();
    }

    /// Copies. The caller keeps the error.
    ///
    /// # Errors
    /// [`Fault`]: a byte cannot be read or written. Those before it may have been copied.
    ///
    /// # Safety
    /// The mapped part of `src` may be read, and the mapped part of `dst` may be overwritten. The
    /// ranges do not overlap. No other thread writes either range or reads `dst` during the call.
    /// Where bad addresses cannot be caught, both ranges are fully mapped.
    #[inline(always)]
    pub(crate) unsafe fn copy_now(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        hint: Hint,
    ) -> Result<(), Fault> {
        match &self.guard {
            // SAFETY: the caller's promise. If the thread blocks the signals, or the handlers were
            // replaced, a fault has the same effect as in `memcpy`: the kernel ends the process,
            // or the other handler runs.
            Some(guard) => unsafe { guard.copy_guarded(dst, src, len, hint) },
            None => {
                // SAFETY: the caller's promise.
                unsafe { unlade_copy_kernels::copy(dst, src, len, hint) };
                Ok(())
            }
        }
    }

    /// Copies `len` bytes, which are all or part of `whole_bytes`. An error is also kept for the
    /// sync of the bytes.
    ///
    /// # Errors
    /// [`TaskFailure::BadAddress`]; [`TaskFailure::Refused`] where the ranges overlap or wrap:
    /// then nothing was copied.
    ///
    /// # Safety
    /// The mapped part of `src` may be read, and the mapped part of `dst` may be overwritten. No
    /// other thread writes either range or reads `dst` during the call. Where bad addresses cannot
    /// be caught, both ranges are fully mapped.
    pub unsafe fn copy(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        whole_bytes: usize,
    ) -> Result<(), TaskFailure> {
        probes::submit(dst.addr(), src.addr(), len, NO_TICKET, 0);
        if is_refused(dst.addr(), src.addr(), len) {
            return Err(self.fail_now(dst.addr(), len, TaskFailure::Refused));
        }
        self.failures.overwrite(dst.addr(), len);
        // SAFETY: the caller's promise; the ranges do not overlap.
        let copied = unsafe { self.copy_now(dst, src, len, hint_for(whole_bytes)) };
        if copied.is_err() {
            return Err(self.fail_now(dst.addr(), len, TaskFailure::BadAddress));
        }
        probes::done(dst.addr(), len, NO_TICKET, Maker::Submitter, 0);
        Ok(())
    }

    /// Moves `len` bytes between ranges that may overlap, through a bounce buffer. The C library's
    /// `memmove` is not used because sanitizers intercept it. Otherwise as [`AtOnce::copy`].
    ///
    /// # Errors
    /// As for [`AtOnce::copy`].
    ///
    /// # Safety
    /// As for [`AtOnce::copy`].
    pub unsafe fn move_bytes(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> Result<(), TaskFailure> {
        let wraps = dst.addr().max(src.addr()) > usize::MAX - len || len > isize::MAX as usize;
        let mut bounce = [0u8; BOUNCE_BYTES];
        let is_up = dst.addr() > src.addr();
        let mut carry = |done: usize, count: usize| {
            let at = if is_up { len - done - count } else { done };
            let (from, to) = (src.wrapping_add(at), dst.wrapping_add(at));
            // SAFETY: within the ranges that the caller promises; the bounce buffer overlaps
            // neither.
            unsafe {
                self.copy_now(bounce.as_mut_ptr(), from, count, Hint::Reuse)?;
                self.copy_now(to, bounce.as_ptr(), count, Hint::Reuse)
            }
        };
        probes::submit(dst.addr(), src.addr(), len, NO_TICKET, 0);
        self.failures.overwrite(dst.addr(), len);
        let mut done = 0;
        while done < len {
            let count = BOUNCE_BYTES.min(len - done);
            let failure = match wraps {
                true => Some(TaskFailure::Refused),
                false => carry(done, count).err().map(|_| TaskFailure::BadAddress),
            };
            if let Some(failure) = failure {
                return Err(self.fail_now(dst.addr(), len, failure));
            }
            done += count;
        }
        probes::done(dst.addr(), len, NO_TICKET, Maker::Submitter, 0);
        Ok(())
    }

    /// Keeps the error of a copy that the calling thread has just tried, and returns it.
    #[cold]
    fn fail_now(&self, dst: usize, len: usize, failure: TaskFailure) -> TaskFailure {
        self.fail(dst, len, failure);
        probes::done(dst, 0, NO_TICKET, Maker::Submitter, failure.code().get());
        failure
    }

    /// Keeps the error of a copy that did not write `len` bytes from `dst` on, for the sync of
    /// these bytes. Returns a ticket that no task has.
    #[cold]
    pub(crate) fn fail(&self, dst: usize, len: usize, failure: TaskFailure) -> Ticket {
        self.failures.keep_at_once(failure.code(), dst..dst.saturating_add(len))
    }

    /// Keeps an error for the sync of `len` bytes from `dst` on.
    pub fn keep(&self, dst: usize, len: usize, failure: TaskFailure) {
        let _ = self.fail(dst, len, failure);
    }

    /// Returns the error of a copy into these bytes, once.
    ///
    /// # Errors
    /// [`CopyError`]: a copy failed, and no later copy has written the bytes.
    pub fn sync_range(&self, address: usize, len: usize) -> Result<(), CopyError> {
        to_result(self.take_written(address..address.saturating_add(len)))
    }

    /// Settles the attention, of a queue without a service.
    pub fn settle(&self) {
        self.failures.attention().settle(|| !self.failures.has_unreported());
    }

    #[inline]
    pub(crate) fn take_written(&self, bytes: Range<usize>) -> Option<NonZeroU16> {
        self.failures.take_written(bytes)
    }

    /// Returns the error of any copy, once.
    ///
    /// # Errors
    /// [`CopyError`]: a copy failed, and its error was not reported yet.
    pub fn sync_all(&self) -> Result<(), CopyError> {
        to_result(self.failures.take_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_ranges_are_refused() {
        let far = 1 << 40;
        assert!(!is_refused(far, 2 * far, 100) && !is_refused(far, far + 100, 100));
        assert!(!is_refused(far + 100, far, 100) && !is_refused(far, far, 0));
        assert!(!is_refused(usize::MAX, 5, 0) && !is_refused(0, 0, 0));
        assert!(is_refused(far, far, 1) && is_refused(far, far + 99, 100));
        assert!(is_refused(far + 99, far, 100));
        assert!(is_refused(usize::MAX - 10, far, 100) && is_refused(far, usize::MAX - 10, 100));
        for len in [usize::MAX, usize::MAX - 1, isize::MAX as usize + 1] {
            assert!(is_refused(0, far, len) && is_refused(far, 0, len) && is_refused(0, 1, len));
        }
        let half = isize::MAX as usize;
        assert!(!is_refused(0, half, half), "it fits, and is nobody's memory");
    }

    #[test]
    fn errors_of_synchronous_copies_are_reported_once_for_each_byte() {
        let at_once = AtOnce::guarded();
        at_once.keep(1000, 100, TaskFailure::BadAddress);
        at_once.keep(5000, 100, TaskFailure::Refused);
        assert_eq!(at_once.sync_range(0, 1000), Ok(()));
        let failed = |failure| Err(CopyError::Failed(failure));
        assert_eq!(at_once.sync_range(1000, 10), failed(TaskFailure::BadAddress));
        assert_eq!(at_once.sync_range(1000, 10), Ok(()));
        assert_eq!(at_once.sync_range(0, usize::MAX), failed(TaskFailure::BadAddress));
        assert_eq!((at_once.sync_all(), at_once.sync_range(0, usize::MAX)), (Ok(()), Ok(())));
    }
}
