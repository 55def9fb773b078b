//! Copies whose source the program gives up: the page tables make them, where that takes less time
//! ([`unlade_copy_kernels::remap`]).
//!
//! The calling thread moves the pages, in the submission, after all older tasks that touch either
//! range. It copies the bytes before the first whole page and behind the last one.

use unlade_copy_kernels::probes::{self, Maker, NO_TICKET};
use unlade_copy_kernels::remap::{Choice, REMAP_BYTES_MIN, Remapper};
use unlade_copy_service::TaskFailure;

use crate::at_once::{hint_for, is_refused};
use crate::copier::Copier;

impl Copier {
    /// Sets which copies of a source that is given up are made by the page tables.
    pub fn with_remaps(mut self, remaps: Choice) -> Copier {
        self.remaps = remaps;
        self
    }

    /// Makes a copy of `len` bytes by moving pages, if that is possible and takes less time. Returns
    /// false if nothing was done: then the bytes are to be copied ([`Copier::submit`]). If it returns
    /// true the copy is over: an error of the bytes beside whole pages is kept for their sync.
    ///
    /// The source stays mapped and writable; its content is undefined afterwards. Pages move where
    /// both ranges begin at the same place in a page, are private anonymous memory, each in one
    /// mapping, and only of this process. They have to be absent in the destination, as in new
    /// memory, or huge pages on both sides. No other byte changes.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for the duration of the call. The program does not rely on the
    /// content of the source afterwards, and no reference points there during the call.
    pub unsafe fn remap(&self, dst: *mut u8, src: *mut u8, len: usize, site: usize) -> bool {
        let (to, from) = (dst.expose_provenance(), src.expose_provenance());
        // SAFETY: the caller's promise.
        let is_made =
            !is_refused(to, from, len) && unsafe { self.remap_ranges(to, from, len, site) };
        if !is_made {
            self.stats().count_last_use_copied(len);
        }
        is_made
    }

    /// Counts a copy of a source that is given up and that the caller has copied.
    pub fn note_copied(&self, len: usize) {
        self.stats().count_last_use_copied(len);
    }

    /// # Safety
    /// As for [`Copier::remap`]; the ranges neither overlap nor wrap.
    unsafe fn remap_ranges(&self, dst: usize, src: usize, len: usize, site: usize) -> bool {
        // Memory that is shared with a daemon stays where it is.
        if len < REMAP_BYTES_MIN || self.local().is_none() || self.remaps == Choice::Never {
            return false;
        }
        let Some(remapper) = Remapper::of_process() else { return false };
        let Some(plan) = remapper.plan(dst, src, len, site, self.remaps) else { return false };
        self.precede_remap(dst, src, len);
        // SAFETY: the caller's promise; and all copies of this client that touch the ranges are
        // over.
        let moved = unsafe { remapper.run(&plan) };
        if moved < plan.bytes.len() {
            self.stats().count_remap_refused();
        }
        if moved == 0 {
            return false;
        }
        probes::submit(dst, src, len, NO_TICKET, site);
        let end = plan.bytes.start + moved;
        // SAFETY: the caller's promise, for parts of the ranges.
        unsafe {
            self.copy_beside(dst, src, plan.bytes.start);
            self.copy_beside(dst + end, src + end, len - end);
        }
        probes::done(dst + plan.bytes.start, moved, NO_TICKET, Maker::PageTables, 0);
        self.stats().count_remapped(moved);
        self.stats().count_last_use_copied(len - moved);
        true
    }

    /// Completes what touches the ranges, and drops deferred copies that are overwritten.
    fn precede_remap(&self, dst: usize, src: usize, len: usize) {
        if !self.attention().is_quiet() {
            self.discard(dst, len);
            self.complete_for_write(src, len);
            self.complete_for_write(dst, len);
            self.failures().overwrite(dst, len);
            self.settle();
        }
    }

    /// Copies bytes that are not in whole pages, or whose pages could not be moved.
    ///
    /// # Safety
    /// As for [`Copier::remap`].
    unsafe fn copy_beside(&self, dst: usize, src: usize, len: usize) {
        if len == 0 {
            return;
        }
        let to = std::ptr::with_exposed_provenance_mut(dst);
        let from = std::ptr::with_exposed_provenance(src);
        // SAFETY: the caller's promise: a part of ranges that do not overlap, which no pending copy
        // touches.
        let copied = unsafe { self.copy_now(to, from, len, hint_for(len)) };
        let code = match copied {
            Ok(()) => 0,
            Err(_) => {
                self.at_once().keep(dst, len, TaskFailure::BadAddress);
                TaskFailure::BadAddress.code().get()
            }
        };
        let done = if code == 0 { len } else { 0 };
        probes::done(dst, done, NO_TICKET, Maker::Submitter, code);
    }
}
