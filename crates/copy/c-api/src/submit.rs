//! Copies in: split into tasks, noted where others look for them, submitted.

use std::ffi::c_int;
use std::sync::Arc;

use unlade_copy::{How, TASK_BYTES_MAX, TaskFailure, is_refused};
use unlade_copy_scheduler::plan::Chunk;
use unlade_copy_scheduler::shift::{self, Move};

use crate::abi::{self, DESCR_TOKENS, Descr, Func, TaskOpts};
use crate::channel::{Channel, Parts};
use crate::completion;
use crate::{sanitize, shm};

/// A task has at most so many segments.
const SEGMENTS_MAX: usize = 32;
/// The smallest granularity, in bytes.
const GRANULARITY_MIN: usize = 1024;
/// What a descriptor's state is that was filled.
pub(crate) const FILLED: u32 = 0x434f_5059;

/// A copy as it is asked for.
pub(crate) struct Job<'d> {
    pub dst: *mut u8,
    pub src: *const u8,
    pub len: usize,
    pub how: How,
    pub part_bytes: usize,
    pub func: Option<Func>,
    pub descr: Option<&'d mut Descr>,
}

impl Job<'_> {
    /// A copy without wishes.
    pub fn plain(dst: *mut u8, src: *const u8, len: usize, site: usize) -> Job<'static> {
        let how = How { site, ..How::default() };
        Job { dst, src, len, how, part_bytes: TASK_BYTES_MAX, func: None, descr: None }
    }

    /// Adds what the options say.
    ///
    /// # Errors
    /// EINVAL: a flag is unknown.
    pub fn with(mut self, opts: &TaskOpts) -> Result<Self, c_int> {
        if opts.flags & !(abi::COPIER_LAZY | abi::COPIER_QUEUED) != 0 {
            return Err(libc::EINVAL);
        }
        self.how.lazy_us = (opts.flags & abi::COPIER_LAZY != 0).then_some(opts.lazy_us);
        self.how.queued = opts.flags & abi::COPIER_QUEUED != 0;
        if opts.granularity_bytes != 0 {
            // Tasks have so many segments at most: shorter ones, finer ones.
            let granularity = (opts.granularity_bytes as usize).max(GRANULARITY_MIN);
            self.part_bytes = granularity.saturating_mul(SEGMENTS_MAX).min(TASK_BYTES_MAX);
        }
        Ok(self)
    }
}

/// Submits a copy. One whose ranges overlap or wrap is not made: the sync of its bytes says so.
///
/// # Safety
/// As for [`unlade_copy::Copier::submit`]; `how.site` is 0 or the address of a static
/// [`abi::Site`], and the function may be called with its argument once.
pub(crate) unsafe fn copy(channel: &Arc<Channel>, job: Job<'_>) {
    if is_refused(job.dst.addr(), job.src.addr(), job.len) {
        // SAFETY: the caller's promise.
        return unsafe { refuse(channel, job) };
    }
    // SAFETY: the caller's promise.
    unsafe { submit(channel, job, &[]) };
}

/// A copy that makes no sense: its handler runs, and whoever syncs its bytes is told.
///
/// # Safety
/// As for [`copy`], of the function.
#[cold]
unsafe fn refuse(channel: &Arc<Channel>, job: Job<'_>) {
    let Job { dst, src, len, func, descr, part_bytes, .. } = job;
    let begun = if shm::is_used() { shm::begin(dst.addr(), len) } else { None };
    channel.at_once().keep(dst.addr(), len, TaskFailure::Refused);
    let failure = Some(TaskFailure::Refused.code().get().into());
    let parts = Parts { part_bytes, failure, ..Parts::default() };
    if let Some(handler) = completion::handler(func, 1, None) {
        // It may free the source, which older copies may still read.
        channel.settle_for_write(src.addr(), len);
        // SAFETY: it has one part, and this is it.
        unsafe { completion::call(handler) };
    }
    if let Some(descr) = descr {
        fill(descr, channel, dst, len, &parts);
    }
    if let Some(begun) = begun {
        shm::submitted(begun, channel, parts);
    }
}

/// Submits a copy of ranges that may overlap, as copies that do not: see [`shift`]. One that has to
/// be made at once is.
///
/// # Safety
/// As for [`copy`], but that the ranges may overlap.
pub(crate) unsafe fn move_bytes(channel: &Arc<Channel>, job: Job<'_>) {
    let (dst, src) = (job.dst.addr(), job.src.addr());
    match shift::split(dst as u64, src as u64, job.len as u64) {
        // SAFETY: the caller's promise; the ranges do not overlap.
        Move::Copies(copies) if copies.len() == 1 => unsafe { copy(channel, job) },
        Move::Copies(copies) if !shm::is_used() => {
            // SAFETY: the caller's promise; none of the copies overlaps itself.
            unsafe { submit(channel, job, &copies) };
        }
        // SAFETY: the caller's promise.
        _ => unsafe { move_at_once(channel, job) },
    }
}

/// Submits a copy, or the copies that a move has become, one after the other; each as tasks of at
/// most `part_bytes`. No copies: the job is one.
///
/// # Safety
/// As for [`copy`]; the copies are of the job's bytes, and none overlaps itself.
unsafe fn submit(channel: &Arc<Channel>, job: Job<'_>, copies: &[Chunk]) {
    let Job { dst, src, len, how, part_bytes, func, descr } = job;
    let is_move = !copies.is_empty();
    let whole = [Chunk { dst: dst.addr() as u64, src: src.addr() as u64, len: len as u64 }];
    let copies = if is_move { copies } else { &whole };
    let parts_of = |copy: &Chunk| (copy.len as usize).div_ceil(part_bytes).max(1);
    let record = watch(channel, &how, dst, src, len);
    let count: usize = copies.iter().map(parts_of).sum();
    let how = How { handler: completion::handler(func, count, record), ..how };
    let begun = if shm::is_used() { shm::begin(dst.addr(), len) } else { None };
    let mut parts = Parts { part_bytes, ..Parts::default() };
    let all = copies.iter().flat_map(|copy| {
        let start = copy.dst as usize - dst.addr();
        (0..parts_of(copy)).map(move |number| {
            let from = number * part_bytes;
            (number, start + from, part_bytes.min(copy.len as usize - from))
        })
    });
    for (before, (number, at, part)) in all.enumerate() {
        let (to, from) = (dst.wrapping_add(at), src.wrapping_add(at));
        // SAFETY: the caller's promise, for a part of the ranges.
        let submitted = unsafe { channel.submit(to, from, part, len, &how) };
        if !is_move && (begun.is_some() || number < DESCR_TOKENS) {
            parts.tokens.extend(submitted.token);
        }
        if submitted.has_failed {
            parts.failure = Some(TaskFailure::BadAddress.code().get().into());
        }
        if submitted.has_failed && before + 1 < count {
            // What comes after a bad address is not tried: it may be more than there is memory.
            let rest = if is_move { 0 } else { at + part };
            channel.at_once().keep(dst.addr() + rest, len - rest, TaskFailure::BadAddress);
            if let Some(handler) = how.handler {
                // SAFETY: so many parts were not submitted.
                unsafe { completion::give_up(handler, count - before - 1) };
            }
            break;
        }
    }
    if let Some(descr) = descr {
        fill(descr, channel, dst, len, &parts);
    }
    if let Some(begun) = begun {
        shm::submitted(begun, channel, parts);
    }
}

fn watch(channel: &Channel, how: &How, dst: *mut u8, src: *const u8, len: usize) -> Option<u64> {
    if !sanitize::is_on() {
        return None;
    }
    sanitize::submitted(channel.id, dst.addr(), src.addr(), len, how.site)
}

/// # Safety
/// As for [`move_bytes`].
unsafe fn move_at_once(channel: &Channel, job: Job<'_>) {
    let Job { dst, src, len, how, func, descr, part_bytes } = job;
    let record = watch(channel, &how, dst, src, len);
    // A copy that failed leaves its destination as it was, which is what is moved then.
    channel.settle_for_write(src.addr(), len);
    channel.settle_for_write(dst.addr(), len);
    // SAFETY: the caller's promise; and of this queue nothing is pending there any more. An error is
    // kept for who syncs.
    let _ = unsafe { channel.at_once().move_bytes(dst, src, len) };
    if let Some(handler) = completion::handler(func, 1, record) {
        // SAFETY: it has one part, and this is it.
        unsafe { completion::call(handler) };
    }
    if let Some(descr) = descr {
        fill(descr, channel, dst, len, &Parts { part_bytes, ..Parts::default() });
    }
}

fn fill(descr: &mut Descr, channel: &Channel, dst: *mut u8, len: usize, parts: &Parts) {
    let count = parts.tokens.len().min(DESCR_TOKENS);
    for (place, token) in parts.tokens.iter().take(count).enumerate() {
        // SAFETY: there is room for so many, aligned well enough (asserted where they are defined).
        unsafe { descr.data.as_mut_ptr().cast::<unlade_copy::Token>().add(place).write(*token) };
    }
    descr.tokens = count as u32;
    descr.queue = channel.incarnation;
    descr.dst = dst.cast();
    descr.len_bytes = len;
    descr.part_bytes = parts.part_bytes;
    descr.state = FILLED;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use unlade_copy::AtOnce;

    const ARENA: usize = 64 << 10;

    /// Moves within an arena, between two copies that it depends on; all is queued, and only the
    /// last is waited for.
    fn move_queued(len: usize, from: usize, to: usize, part_bytes: usize) {
        let channel = &process::get().default;
        let first: Vec<u8> = (0..ARENA as u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let (mut arena, mut last) = (vec![0u8; ARENA], vec![1u8; ARENA]);
        let mut expected = first.clone();
        expected.copy_within(from..from + len, to);
        let how = How { queued: true, ..How::default() };
        let job = |dst, src, len| Job { how, part_bytes, ..Job::plain(dst, src, len, 0) };
        let (base, out) = (arena.as_mut_ptr(), last.as_mut_ptr());
        // SAFETY: all ranges are in the three vectors, which are looked at when all is synced.
        unsafe {
            copy(channel, job(base, first.as_ptr(), ARENA));
            move_bytes(channel, job(base.add(to), base.add(from), len));
            copy(channel, job(out, base, ARENA));
        }
        channel.sync_range(out.addr(), ARENA, true).unwrap();
        channel.sync_range(base.addr(), ARENA, true).unwrap();
        assert!(arena == expected && last == expected, "{len} bytes from {from} to {to}");
    }

    #[test]
    fn moves_are_as_by_memmove_whatever_overlaps() {
        for len in [0usize, 1, 2, 7, 8, 9, 64, 100, 1000, 1025, 5000, 20_000] {
            let parts = [1, 2, 3, 7, 8, 9].map(|parts| len / parts);
            let near = [0, 1, 2, len.saturating_sub(1), len + 1, len + 100];
            for distance in parts.into_iter().chain(near) {
                let low = 20_000;
                move_queued(len, low, low + distance, TASK_BYTES_MAX);
                move_queued(len, low + distance, low, TASK_BYTES_MAX);
            }
        }
    }

    #[test]
    fn moves_are_as_by_memmove_in_tasks_of_any_length() {
        for part_bytes in [64, 1000, 1024, 4096] {
            for distance in [1000, 1024, 3000, 9_999, 10_000] {
                move_queued(10_000, 5_000, 5_000 + distance, part_bytes);
                move_queued(10_000, 5_000 + distance, 5_000, part_bytes);
            }
        }
    }

    #[test]
    fn overlapping_bytes_are_carried() {
        for (from, to) in [(0, 1), (1, 0), (0, 5000), (5000, 0), (100, 40_000), (7, 7)] {
            let mut bytes: Vec<u8> = (0..100_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + 50_000, to);
            let base = bytes.as_mut_ptr();
            // SAFETY: both ranges are in the vector.
            unsafe { AtOnce::guarded().move_bytes(base.add(to), base.add(from), 50_000) }.unwrap();
            assert!(bytes == expected, "{from} {to}");
        }
    }

    #[test]
    fn options_are_checked() {
        let job = || Job::plain(std::ptr::null_mut(), std::ptr::null(), 0, 0);
        let opts =
            TaskOpts { granularity_bytes: 2048, flags: abi::COPIER_QUEUED, ..<_>::default() };
        let with = job().with(&opts).ok().unwrap();
        assert!(with.how.queued && with.how.lazy_us.is_none());
        assert_eq!(with.part_bytes, 64 << 10);
        assert!(job().with(&TaskOpts { flags: 4, ..<_>::default() }).is_err());
        let tiny = TaskOpts { granularity_bytes: 1, ..<_>::default() };
        assert_eq!(job().with(&tiny).ok().unwrap().part_bytes, 32 << 10);
    }
}
