//! Copies in: split into tasks, noted where others look for them, submitted.

use std::ffi::c_int;
use std::sync::Arc;

use copier::{How, TASK_BYTES_MAX};

use crate::abi::{self, DESCR_TOKENS, Descr, Func, TaskOpts};
use crate::channel::{Channel, Parts, copy_now};
use crate::completion;
use crate::{sanitize, shm};

/// A task has at most so many segments.
const SEGMENTS_MAX: usize = 32;
/// The smallest granularity, in bytes.
const GRANULARITY_MIN: usize = 1024;
/// A move over a distance is cut into parts as long as the distance; one that would have more than
/// so many times its distance is made at once.
const MOVE_PARTS_MAX: usize = 8;
/// Bytes that are carried at a time where source and destination overlap.
const BOUNCE_BYTES: usize = 16 << 10;
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

/// Which part goes first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Forward,
    Backward,
}

/// Submits a copy of ranges that do not overlap.
///
/// # Safety
/// As for [`copier::Copier::submit`]; `how.site` is 0 or the address of a static
/// [`abi::Site`], and the function may be called with its argument once.
pub(crate) unsafe fn copy(channel: &Arc<Channel>, job: Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { submit(channel, job, Order::Forward) };
}

/// Submits a copy of ranges that may overlap, as tasks that do not: the one first whose source is
/// overwritten by others (Copier, SOSP 2025, §4.1).
///
/// # Safety
/// As for [`copy`], but that the ranges may overlap.
pub(crate) unsafe fn move_bytes(channel: &Arc<Channel>, mut job: Job<'_>) {
    let distance = job.dst.addr().abs_diff(job.src.addr());
    if distance >= job.len {
        // SAFETY: the caller's promise; the ranges do not overlap.
        return unsafe { copy(channel, job) };
    }
    let in_shm = shm::is_used();
    if in_shm || distance == 0 || job.len / distance > MOVE_PARTS_MAX {
        // SAFETY: the caller's promise.
        return unsafe { move_at_once(channel, job) };
    }
    job.part_bytes = job.part_bytes.min(distance);
    let order = if job.dst.addr() > job.src.addr() { Order::Backward } else { Order::Forward };
    // SAFETY: the caller's promise; no part is longer than the distance, so that none overlaps
    // itself.
    unsafe { submit(channel, job, order) };
}

/// # Safety
/// As for [`copy`]; parts of `part_bytes` do not overlap themselves.
unsafe fn submit(channel: &Arc<Channel>, job: Job<'_>, order: Order) {
    let Job { dst, src, len, how, part_bytes, func, descr } = job;
    let record = watch(channel, &how, dst, src, len);
    let count = len.div_ceil(part_bytes).max(1);
    let how = How { handler: completion::handler(func, count, record, &channel.handlers), ..how };
    let begun = if shm::is_used() { shm::begin(dst.addr(), len) } else { None };
    let mut parts = Parts { part_bytes, ..Parts::default() };
    for number in 0..count {
        let (from, to) = match order {
            Order::Forward => (number * part_bytes, ((number + 1) * part_bytes).min(len)),
            Order::Backward => {
                (len.saturating_sub((number + 1) * part_bytes), len - number * part_bytes)
            }
        };
        // SAFETY: the caller's promise, for a part of the ranges.
        let token = unsafe { channel.submit(dst.add(from), src.add(from), to - from, &how) };
        if order == Order::Forward && (begun.is_some() || number < DESCR_TOKENS) {
            parts.tokens.extend(token);
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
    let _ = channel.sync_range(src.addr(), len, false);
    let _ = channel.sync_range(dst.addr(), len, true);
    // SAFETY: the caller's promise; and of this queue nothing is pending there any more.
    unsafe { carry(dst, src, len) };
    if let Some(handler) = completion::handler(func, 1, record, &channel.handlers) {
        // SAFETY: it has one part, and this is it.
        unsafe { completion::call(handler) };
    }
    if let Some(descr) = descr {
        fill(descr, channel, dst, len, &Parts { part_bytes, ..Parts::default() });
    }
}

/// Moves now, in pieces through a buffer of its own: the C library's `memmove` would be stopped by
/// a sanitizer.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes.
unsafe fn carry(dst: *mut u8, src: *const u8, len: usize) {
    let mut bounce = [0u8; BOUNCE_BYTES];
    let is_up = dst.addr() > src.addr();
    let mut done = 0;
    while done < len {
        let count = BOUNCE_BYTES.min(len - done);
        let at = if is_up { len - done - count } else { done };
        // SAFETY: within the ranges; the buffer is neither of them.
        unsafe {
            copy_now(bounce.as_mut_ptr(), src.add(at), count);
            copy_now(dst.add(at), bounce.as_ptr(), count);
        }
        done += count;
    }
}

fn fill(descr: &mut Descr, channel: &Channel, dst: *mut u8, len: usize, parts: &Parts) {
    let count = parts.tokens.len().min(DESCR_TOKENS);
    for (place, token) in parts.tokens.iter().take(count).enumerate() {
        // SAFETY: there is room for so many, aligned well enough (asserted where they are defined).
        unsafe { descr.data.as_mut_ptr().cast::<copier::Token>().add(place).write(*token) };
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

    #[test]
    fn overlapping_bytes_are_carried() {
        for (from, to) in [(0, 1), (1, 0), (0, 5000), (5000, 0), (100, 40_000), (7, 7)] {
            let mut bytes: Vec<u8> = (0..100_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + 50_000, to);
            let base = bytes.as_mut_ptr();
            // SAFETY: both ranges are in the vector.
            unsafe { carry(base.add(to), base.add(from), 50_000) };
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
