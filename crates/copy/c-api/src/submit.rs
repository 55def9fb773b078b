//! Submission of copies: splits them into tasks, and records them for the other modules.

use std::ffi::c_int;
use std::sync::Arc;

use unlade_copy::{CopyOptions, TASK_BYTES_MAX, TaskFailure, is_refused};
use unlade_copy_scheduler::plan::Chunk;
use unlade_copy_scheduler::shift::{self, Move};

use crate::abi::{self, DESCR_TOKENS, Descr, Func, TaskOpts};
use crate::channel::{Channel, Parts};
use crate::completion;
use crate::{sanitize, shm};

/// Maximum number of segments of a task.
const SEGMENTS_MAX: usize = 32;
/// The smallest granularity, in bytes.
const GRANULARITY_MIN: usize = 1024;
/// State of a filled descriptor.
pub(crate) const FILLED: u32 = 0x434f_5059;
/// State of the descriptor of a send: its address is that of the source.
pub(crate) const SENT: u32 = 0x5345_4e54;

/// A requested copy.
pub(crate) struct CopyRequest<'d> {
    pub dst: *mut u8,
    pub src: *const u8,
    pub len: usize,
    pub options: CopyOptions,
    pub part_bytes: usize,
    /// The content of the source is given up.
    pub is_last_use: bool,
    pub func: Option<Func>,
    pub descr: Option<&'d mut Descr>,
}

impl CopyRequest<'_> {
    /// Creates a copy without options.
    pub fn plain(dst: *mut u8, src: *const u8, len: usize, site: usize) -> CopyRequest<'static> {
        let options = CopyOptions { site, ..CopyOptions::default() };
        CopyRequest {
            dst,
            src,
            len,
            options,
            part_bytes: TASK_BYTES_MAX,
            is_last_use: false,
            func: None,
            descr: None,
        }
    }

    /// Applies the options.
    ///
    /// # Errors
    /// EINVAL: a flag is unknown, or excludes another one.
    pub fn with(mut self, opts: &TaskOpts) -> Result<Self, c_int> {
        let both = abi::COPIER_LAZY | abi::COPIER_LAST_USE;
        if opts.flags & !(both | abi::COPIER_QUEUED) != 0 || opts.flags & both == both {
            return Err(libc::EINVAL);
        }
        self.is_last_use = opts.flags & abi::COPIER_LAST_USE != 0;
        self.options.lazy_us = (opts.flags & abi::COPIER_LAZY != 0).then_some(opts.lazy_us);
        self.options.queued = opts.flags & abi::COPIER_QUEUED != 0;
        if opts.granularity_bytes != 0 {
            // A task has at most this number of segments: shorter tasks have finer ones.
            let granularity = (opts.granularity_bytes as usize).max(GRANULARITY_MIN);
            self.part_bytes = granularity.saturating_mul(SEGMENTS_MAX).min(TASK_BYTES_MAX);
        }
        Ok(self)
    }
}

/// Submits a copy. If its ranges overlap or wrap, it fails: the sync of its bytes returns the
/// error.
///
/// # Safety
/// As for [`unlade_copy::Copier::submit`]; `options.site` is 0 or the address of a static
/// [`abi::CallSite`], and the function may be called with its argument once.
pub(crate) unsafe fn copy(channel: &Arc<Channel>, request: CopyRequest<'_>) {
    if is_refused(request.dst.addr(), request.src.addr(), request.len) {
        // SAFETY: the caller's promise.
        return unsafe { refuse(channel, request) };
    }
    // SAFETY: the caller's promise.
    if request.is_last_use && unsafe { remap(channel, &request) } {
        let parts = Parts { part_bytes: request.part_bytes, ..Parts::default() };
        if let Some(handler) = completion::handler(request.func, 1, None) {
            // SAFETY: the handler has one part, and this is it.
            unsafe { completion::call(handler) };
        }
        if let Some(descr) = request.descr {
            fill(descr, channel, request.dst, request.len, &parts);
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { submit(channel, request, &[]) };
}

/// Makes a copy by moving pages, if that is possible and takes less time. Copies that something
/// watches are copied.
///
/// # Safety
/// As for [`copy`]; the content of the source is given up.
#[cold]
unsafe fn remap(channel: &Channel, request: &CopyRequest<'_>) -> bool {
    let Some(copier) = channel.copier() else { return false };
    if shm::is_used() || sanitize::is_on() {
        copier.note_copied(request.len);
        return false;
    }
    let (dst, src) = (request.dst, request.src.cast_mut());
    // SAFETY: the caller's promise.
    unsafe { copier.remap(dst, src, request.len, request.options.site) }
}

/// Fails an invalid copy: runs its handler, and keeps the error for the sync of its bytes.
///
/// # Safety
/// As for [`copy`], for the function.
#[cold]
unsafe fn refuse(channel: &Arc<Channel>, request: CopyRequest<'_>) {
    let CopyRequest { dst, src, len, func, descr, part_bytes, .. } = request;
    let begun = if shm::is_used() { shm::begin(dst.addr(), len) } else { None };
    channel.at_once().keep(dst.addr(), len, TaskFailure::Refused);
    let failure = Some(TaskFailure::Refused.code().get().into());
    let parts = Parts { part_bytes, failure, ..Parts::default() };
    if let Some(handler) = completion::handler(func, 1, None) {
        // The handler may free the source, which older copies may still read.
        channel.complete_for_write(src.addr(), len);
        // SAFETY: the handler has one part, and this is it.
        unsafe { completion::call(handler) };
    }
    if let Some(descr) = descr {
        fill(descr, channel, dst, len, &parts);
    }
    if let Some(begun) = begun {
        shm::submitted(begun, channel, parts);
    }
}

/// Submits a move between ranges that may overlap, as copies that do not: see [`shift`]. If that
/// is not possible, the move is synchronous.
///
/// # Safety
/// As for [`copy`], except that the ranges may overlap.
pub(crate) unsafe fn move_bytes(channel: &Arc<Channel>, request: CopyRequest<'_>) {
    let (dst, src) = (request.dst.addr(), request.src.addr());
    match shift::split(dst as u64, src as u64, request.len as u64) {
        // SAFETY: the caller's promise; the ranges do not overlap.
        Move::Copies(copies) if copies.len() == 1 => unsafe { copy(channel, request) },
        Move::Copies(copies) if !shm::is_used() => {
            // SAFETY: the caller's promise; none of the copies overlaps itself.
            unsafe { submit(channel, request, &copies) };
        }
        // SAFETY: the caller's promise.
        _ => unsafe { move_at_once(channel, request) },
    }
}

/// Submits a copy, or the copies of a split move in order; each as tasks of at most `part_bytes`.
/// Without `copies` the request is one copy.
///
/// # Safety
/// As for [`copy`]; the copies are of the job's bytes, and none overlaps itself.
unsafe fn submit(channel: &Arc<Channel>, request: CopyRequest<'_>, copies: &[Chunk]) {
    let CopyRequest { dst, src, len, options, part_bytes, func, descr, .. } = request;
    let is_move = !copies.is_empty();
    let whole = [Chunk { dst: dst.addr() as u64, src: src.addr() as u64, len: len as u64 }];
    let copies = if is_move { copies } else { &whole };
    let parts_of = |copy: &Chunk| (copy.len as usize).div_ceil(part_bytes).max(1);
    let record = watch(channel, &options, dst, src, len);
    let count: usize = copies.iter().map(parts_of).sum();
    let options = CopyOptions { handler: completion::handler(func, count, record), ..options };
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
        let submitted = unsafe { channel.submit(to, from, part, len, &options) };
        if !is_move && (begun.is_some() || number < DESCR_TOKENS) {
            parts.tokens.extend(submitted.token);
        }
        if submitted.has_failed {
            parts.failure = Some(TaskFailure::BadAddress.code().get().into());
        }
        if submitted.has_failed && before + 1 < count {
            // The rest after a bad address is not tried: it may exceed the mapped memory by far.
            let rest = if is_move { 0 } else { at + part };
            channel.at_once().keep(dst.addr() + rest, len - rest, TaskFailure::BadAddress);
            if let Some(handler) = options.handler {
                // SAFETY: these parts were not submitted.
                unsafe { completion::skip_parts(handler, count - before - 1) };
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

fn watch(
    channel: &Channel,
    options: &CopyOptions,
    dst: *mut u8,
    src: *const u8,
    len: usize,
) -> Option<u64> {
    if !sanitize::is_on() {
        return None;
    }
    sanitize::submitted(channel.id, dst.addr(), src.addr(), len, options.site)
}

/// # Safety
/// As for [`move_bytes`].
unsafe fn move_at_once(channel: &Channel, request: CopyRequest<'_>) {
    let CopyRequest { dst, src, len, options, func, descr, part_bytes, .. } = request;
    let record = watch(channel, &options, dst, src, len);
    // A failed copy leaves its destination unchanged; the move uses these bytes.
    channel.complete_for_write(src.addr(), len);
    channel.complete_for_write(dst.addr(), len);
    // SAFETY: the caller's promise; and no copy of this queue is pending there. The error is kept
    // for the sync.
    let _ = unsafe { channel.at_once().move_bytes(dst, src, len) };
    if let Some(handler) = completion::handler(func, 1, record) {
        // SAFETY: the handler has one part, and this is it.
        unsafe { completion::call(handler) };
    }
    if let Some(descr) = descr {
        fill(descr, channel, dst, len, &Parts { part_bytes, ..Parts::default() });
    }
}

/// Fills a descriptor with the tasks of a copy, a receive or a send.
pub(crate) fn fill(descr: &mut Descr, channel: &Channel, dst: *mut u8, len: usize, parts: &Parts) {
    let count = parts.tokens.len().min(DESCR_TOKENS);
    for (place, token) in parts.tokens.iter().take(count).enumerate() {
        // SAFETY: `data` has room for them and is aligned (asserted at its definition).
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

    /// Queues a move within an arena, between two copies that it depends on, and waits for the
    /// last copy only.
    fn move_queued(len: usize, from: usize, to: usize, part_bytes: usize) {
        let channel = &process::get().default;
        let first: Vec<u8> = (0..ARENA as u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let (mut arena, mut last) = (vec![0u8; ARENA], vec![1u8; ARENA]);
        let mut expected = first.clone();
        expected.copy_within(from..from + len, to);
        let options = CopyOptions { queued: true, ..CopyOptions::default() };
        let request = |dst, src, len| CopyRequest {
            options,
            part_bytes,
            ..CopyRequest::plain(dst, src, len, 0)
        };
        let (base, out) = (arena.as_mut_ptr(), last.as_mut_ptr());
        // SAFETY: all ranges are in the three vectors, which are read after the sync.
        unsafe {
            copy(channel, request(base, first.as_ptr(), ARENA));
            move_bytes(channel, request(base.add(to), base.add(from), len));
            copy(channel, request(out, base, ARENA));
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
    fn overlapping_bytes_are_moved() {
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
        let request = || CopyRequest::plain(std::ptr::null_mut(), std::ptr::null(), 0, 0);
        let opts =
            TaskOpts { granularity_bytes: 2048, flags: abi::COPIER_QUEUED, ..<_>::default() };
        let with = request().with(&opts).ok().unwrap();
        assert!(with.options.queued && with.options.lazy_us.is_none());
        assert_eq!(with.part_bytes, 64 << 10);
        for flags in [8, abi::COPIER_LAZY | abi::COPIER_LAST_USE] {
            assert!(request().with(&TaskOpts { flags, ..<_>::default() }).is_err());
        }
        let last = TaskOpts { flags: abi::COPIER_LAST_USE, ..<_>::default() };
        assert!(request().with(&last).ok().unwrap().is_last_use);
        let tiny = TaskOpts { granularity_bytes: 1, ..<_>::default() };
        assert_eq!(request().with(&tiny).ok().unwrap().part_bytes, 32 << 10);
    }
}
