//! Waiting for a task: check progress, copy unclaimed segments, wait for the rest.
//!
//! A waiter follows the service's rule: it claims a segment only when all older conflicting tasks
//! are done. It completes these tasks first. If one of them is a lazy copy, it asks the service
//! instead, which can read around it.

use std::num::NonZeroU16;
use std::ops::Range;
use std::time::{Duration, Instant};

use unlade_copy_kernels::Hint;
use unlade_copy_kernels::probes::{self, Maker};
use unlade_copy_service::TaskFailure;
use unlade_shm::segment::{self, Run};
use unlade_shm::{SyncKind, SyncTask, Ticket, Until, WaitPolicy, Waited};

use crate::copier::Copier;
use crate::error::CopyError;
use crate::pending::{Kind, Queued};

/// A waiter claims about this number of bytes at a time while the service works on the same bytes.
const RUN_BYTES: u32 = 32 << 10;
/// Maximum depth of dependencies that a waiter resolves itself; beyond it the service does.
pub(crate) const DEPTH_MAX: u32 = 32;
/// Wait policy while the service has claimed a segment.
const PATIENCE: WaitPolicy =
    WaitPolicy { until: Until::DoneOrFree, spins_max: 2_000, slice_us: 1_000, slices_max: 1 };

/// The run of `free` that a waiter copies next. The service copies from the first segment on. If it
/// is at work (`is_shared`), the waiter takes small runs from the end, so that the two meet;
/// otherwise it takes half of the first run, and leaves the rest to a service that may come.
fn run_here(free: u32, granule_shift: u8, is_shared: bool) -> Option<Run> {
    let few = (RUN_BYTES >> granule_shift).max(1);
    if is_shared {
        let run = segment::runs(free).last()?;
        let count = few.min(run.count);
        return Some(Run { first: run.first + run.count - count, count });
    }
    let run = segment::runs(free).next()?;
    Some(Run { first: run.first, count: few.max(run.count / 2).min(run.count) })
}

impl Copier {
    /// Waits until `bits` of a task are done, and helps to copy them.
    ///
    /// # Errors
    /// [`CopyError::Failed`] where the task failed.
    #[inline]
    pub(crate) fn complete(&self, ticket: Ticket, bits: u32) -> Result<(), CopyError> {
        match self.complete_unreported(ticket, bits) {
            Ok(()) => Ok(()),
            Err(code) => {
                self.failures().mark_reported(ticket, code);
                Err(CopyError::Failed(TaskFailure::of(code)))
            }
        }
    }

    /// As [`Copier::complete`], but does not mark the error as reported.
    #[inline]
    pub(crate) fn complete_unreported(&self, ticket: Ticket, bits: u32) -> Result<(), NonZeroU16> {
        let progress = self.queue().progress(ticket);
        if !progress.is_done(bits) {
            match self.pending().is_timed(ticket) {
                true => self.complete_slowly(ticket, bits, 0),
                false => self.complete_late(ticket, bits),
            }
        }
        match progress.ending() {
            Some(ending) => ending,
            // The slot was reused, and the error was moved to `failures`.
            None => self.failures().find(ticket).map_or(Ok(()), Err),
        }
    }

    #[cold]
    pub(crate) fn complete_slowly(&self, ticket: Ticket, bits: u32, depth: u32) {
        self.release_orphaned();
        let progress = self.queue().progress(ticket);
        // `None`: the task has retired, or another thread has not published it. There is nothing
        // to wait for.
        let Some(queued) = self.pending().get(ticket) else { return };
        while !progress.is_done(bits) {
            let free = bits & !progress.claimed();
            let until = if free == 0 {
                Until::DoneOrFree
            } else if queued.kind == Kind::Receive
                && self.is_served()
                && self.receive_here(ticket, &queued, bits, depth)
            {
                continue;
            } else if queued.kind != Kind::Copy {
                if self.is_served() {
                    self.promote(ticket, bits);
                } else {
                    self.transfer_here(ticket, &queued, depth);
                    continue;
                }
                Until::Done
            } else if self.copy_here(ticket, &queued, bits, free, depth) {
                continue;
            } else {
                self.promote(ticket, bits & !progress.done());
                Until::Done
            };
            self.stats().count_wait();
            match progress.wait(bits, &WaitPolicy { until, ..PATIENCE }, || self.is_served()) {
                Waited::Done => return,
                Waited::Free(_) | Waited::TimedOut => {}
                Waited::Stop => self.take_back(),
            }
        }
    }

    /// Waits for about `timeout` until `bits` of a task are done; does not help at sockets.
    pub(crate) fn wait_until(&self, ticket: Ticket, bits: u32, timeout: Duration) -> bool {
        let progress = self.queue().progress(ticket);
        let begin = Instant::now();
        while !progress.is_done(bits) {
            let is_copy = || self.pending().get(ticket).is_none_or(|it| it.kind == Kind::Copy);
            if !self.is_served() && is_copy() {
                return true;
            }
            if begin.elapsed() >= timeout {
                return false;
            }
            self.promote(ticket, bits & !progress.done());
            let policy = WaitPolicy { until: Until::Done, ..PATIENCE };
            if progress.wait(bits, &policy, || self.is_served()) == Waited::Stop {
                self.take_back();
            }
        }
        true
    }

    /// Claims and copies some of `free`, which are among the awaited `bits`, after conflicting
    /// older tasks. Returns false if the service should do it.
    fn copy_here(&self, ticket: Ticket, queued: &Queued, bits: u32, free: u32, depth: u32) -> bool {
        let progress = self.queue().progress(ticket);
        let is_shared = progress.claimed() & !progress.done() & bits != 0;
        let Some(run) = run_here(free, queued.granule_shift, is_shared) else { return true };
        let bytes = segment::bytes_of(run, queued.len_bytes, queued.granule_shift);
        let (start, len) = (bytes.start as usize, (bytes.end - bytes.start) as usize);
        if !self.complete_conflicting(ticket, queued.dst + start, queued.src + start, len, depth) {
            return false;
        }
        let mine = self.claim(ticket, run.bits());
        if mine != 0 {
            self.copy_claimed(ticket, queued, mine);
        }
        true
    }

    /// Copies segments that this thread has claimed. A bad address ends them with the same error
    /// as in the service.
    fn copy_claimed(&self, ticket: Ticket, queued: &Queued, mine: u32) {
        let progress = self.queue().progress(ticket);
        let hint = if queued.streams { Hint::Stream } else { Hint::Reuse };
        for run in segment::runs(mine) {
            let bytes = segment::bytes_of(run, queued.len_bytes, queued.granule_shift);
            let (start, len) = (bytes.start as usize, (bytes.end - bytes.start) as usize);
            let dst = (queued.dst + start) as *mut u8;
            let src = (queued.src + start) as *const u8;
            // SAFETY: the submitter promised that the mapped part of the ranges may be used, and
            // is not touched by others, until the task is completed. It is not completed, as these
            // segments are not done. This thread holds their claim, and no older pending task
            // touches them. Ranges that overlap are not queued.
            if unsafe { self.copy_now(dst, src, len, hint) }.is_err() {
                let code = TaskFailure::BadAddress.code();
                probes::done(dst.addr(), 0, ticket.0, Maker::Waiter, code.get());
                progress.fail(code, mine);
                return;
            }
            probes::done(dst.addr(), len, ticket.0, Maker::Waiter, 0);
        }
        progress.finish(mine);
        self.stats().count_helped(mine, queued);
    }

    /// Receives or sends in place of an ended service, and waits for the socket.
    fn transfer_here(&self, ticket: Ticket, queued: &Queued, depth: u32) {
        self.complete_at_socket_before(ticket, queued, depth);
        let len = queued.len_bytes as usize;
        let _ = match queued.kind {
            Kind::Receive => self.complete_conflicting(ticket, queued.dst, 0, len, depth),
            Kind::Copy | Kind::Send => self.complete_conflicting(ticket, 0, queued.src, len, depth),
            Kind::Forward => true,
        };
        let progress = self.queue().progress(ticket);
        let left = queued.all() & !progress.done();
        if left == 0 || !self.claim_all_or_none(ticket, left) {
            return;
        }
        // A daemon may have moved the first bytes.
        let first = Run { first: 0, count: left.trailing_zeros() };
        let first = segment::bytes_of(first, queued.len_bytes, queued.granule_shift).end;
        let from = first.max(self.moved(ticket));
        let held = self.local().and_then(|local| local.held_sends().get(ticket));
        let transferred = match (held, queued.kind) {
            (Some(held), Kind::Send) => {
                // SAFETY: the submitter promised that the bytes stay valid until the task is
                // completed, or until they are saved; no older task writes them.
                unsafe { crate::blocking::send_held(queued, &held) }
            }
            // SAFETY: as for a copy: the submitter promised that the bytes stay valid until the
            // task is completed, and no older task touches them.
            _ => unsafe { crate::blocking::wait_for_all(queued, from) },
        };
        match transferred {
            Ok(()) => progress.finish(left),
            Err(error) => progress.fail(TaskFailure::of_socket(&error).code(), left),
        };
    }

    /// Completes every older task that conflicts with a copy of `len` bytes. Returns false if one
    /// of them is lazy, or the dependencies are too deep, and the service should resolve it.
    pub(crate) fn complete_conflicting(
        &self,
        ticket: Ticket,
        dst: usize,
        src: usize,
        len: usize,
        depth: u32,
    ) -> bool {
        let mut at = self.oldest_pending();
        while at < ticket {
            if let Some(older) = self.pending().get(at) {
                let needed = older.writing(src, len);
                let ahead = needed | older.writing(dst, len) | older.reading(dst, len);
                if ahead != 0 && !self.queue().progress(at).is_done(ahead) {
                    if (older.is_lazy || depth >= DEPTH_MAX) && self.is_served() {
                        return false;
                    }
                    self.complete_slowly(at, ahead, depth + 1);
                }
            }
            at = at.next();
        }
        true
    }

    /// First ticket that may be pending, after skipping tasks that are over. Without this skip, a
    /// client that always syncs by token would search all tasks that it ever queued.
    pub(crate) fn oldest_pending(&self) -> Ticket {
        let known = self.pending().completed().max(self.queue().tail());
        let mut at = known.min(self.queue().head());
        while at < self.queue().head()
            && self.pending().get(at).is_some_and(|queued| self.is_over(at, &queued))
        {
            at = at.next();
        }
        self.pending().complete_below(at);
        at
    }

    /// Returns true if a task is done, and keeps its error, since its line may not be read again.
    /// The line may belong to another generation, if another thread has recorded the task and not
    /// published it yet.
    fn is_over(&self, ticket: Ticket, queued: &Queued) -> bool {
        let progress = self.queue().progress(ticket);
        let is_over = progress.is_current() && progress.is_done(queued.all());
        if is_over {
            if let Some(code) = progress.error() {
                self.failures().keep(ticket, code, queued.written());
            }
            self.learn_over(ticket, queued);
        }
        is_over
    }

    /// Keeps the error of the task whose slot `ticket` reuses.
    #[inline]
    pub(crate) fn keep_error_before(&self, ticket: Ticket) {
        let before = Ticket(ticket.0.wrapping_sub(self.queue().slots().into()));
        // In the first lap there was no such task: the line has another generation.
        if let Some(code) = self.queue().progress(before).error() {
            let written = self.pending().get(before).map_or(0..0, |queued| queued.written());
            self.failures().keep(before, code, written);
        }
    }

    /// Completes `bits(task)` of every pending task, oldest first. Keeps errors for later syncs.
    pub(crate) fn each_pending(&self, bits: impl Fn(&Queued) -> u32) {
        self.each_pending_of(0..0, bits);
    }

    /// Waits until every earlier copy and receive has written its bytes, but for no send. Keeps
    /// errors for a later sync.
    pub fn complete_written(&self) {
        self.each_pending(|queued| queued.writing(0, usize::MAX));
    }

    /// Completes all tasks, and makes the copies that the client keeps.
    pub(crate) fn complete_all(&self) {
        self.make_all_deferred();
        self.each_queued_of(0..0, Queued::all);
    }

    /// As [`Copier::each_pending`], for a caller that keeps the addresses `kept` valid meanwhile.
    pub(crate) fn each_pending_of(&self, kept: Range<usize>, bits: impl Fn(&Queued) -> u32) {
        self.make_deferred_where(|queued| bits(queued) != 0);
        self.each_queued_of(kept, bits);
    }

    /// As [`Copier::each_pending_of`], without the copies that the client keeps.
    pub(crate) fn each_queued_of(&self, kept: Range<usize>, bits: impl Fn(&Queued) -> u32) {
        let head = self.queue().head();
        let mut at = self.pending().completed();
        let mut all_done = true;
        while at < head {
            if let Some(queued) = self.pending().get(at) {
                let wanted = bits(&queued);
                if wanted != 0
                    && let Err(code) = self.complete_learning(at, &queued, wanted, &kept)
                {
                    self.failures().keep(at, code, queued.written());
                }
                // A line of another generation counts as done only if the ticket has retired:
                // another thread may have recorded its task and not published it yet.
                let is_over = self.is_over(at, &queued);
                all_done = all_done && (is_over || at < self.queue().tail());
            } else {
                all_done = all_done && at < self.queue().tail();
            }
            at = at.next();
            if all_done {
                self.pending().complete_below(at);
            }
        }
    }

    fn promote(&self, ticket: Ticket, bits: u32) {
        // If the ring is full, the next wait asks again.
        let _ = self.queue().push_sync(SyncTask { ticket, bits, kind: SyncKind::Promote });
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_meets_the_service_from_the_end() {
        let run = |free, shift, is_shared| {
            run_here(free, shift, is_shared).map(|run| (run.first, run.count))
        };
        // Segments of 32 KiB.
        assert_eq!(run(u32::MAX, 15, false), Some((0, 16)));
        assert_eq!(run(0xffff_0000, 15, false), Some((16, 8)));
        assert_eq!(run(1 << 31, 15, false), Some((31, 1)));
        assert_eq!(run(u32::MAX << 2, 15, true), Some((31, 1)));
        assert_eq!(run(0b0110_0100, 15, true), Some((6, 1)));
        // Segments of 1 KiB.
        assert_eq!(run(u32::MAX, 10, false), Some((0, 32)));
        assert_eq!(run(0b0110_0100, 10, true), Some((5, 2)));
        assert_eq!((run(0, 10, false), run(0, 10, true)), (None, None));
    }
}
