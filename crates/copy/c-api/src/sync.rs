//! Waiting for copies by address or by descriptor, and aborting copies.

use std::ffi::c_int;
use std::ops::Range;

use unlade_copy::Token;
use unlade_copy_kernels::probes::{self, NO_TICKET};

use crate::abi::{self, DESCR_TOKENS, Descr};
use crate::channel::{Channel, Parts};
use crate::process::Process;
use crate::ranges::Access;
use crate::submit::{FILLED, SENT};
use crate::{sanitize, shm};

/// Number of polls of an aborted copy before waiting for it: a waiter may copy it after all.
const ABORT_LOOKS_MAX: u32 = 1_000;

/// Waits for copies into the bytes; for a write also for copies out of them.
///
/// # Errors
/// The error number of a failed copy into them.
#[inline]
pub(crate) fn range(
    channel: &Channel,
    address: usize,
    len: usize,
    access: Access,
) -> Result<(), c_int> {
    if channel.is_quiet() {
        probes::sync(address, len, NO_TICKET);
        return Ok(());
    }
    let synced = channel.sync_range(address, len, access == Access::Write);
    synced.and(completed(channel, address, len, access))
}

/// As [`range`] for a write, of bytes that nothing will look at.
///
/// # Errors
/// As for [`range`].
pub(crate) fn discard(channel: &Channel, address: usize, len: usize) -> Result<(), c_int> {
    if channel.is_quiet() {
        probes::sync(address, len, NO_TICKET);
        return Ok(());
    }
    channel.discard(address, len);
    range(channel, address, len, Access::Write)
}

/// Reports the sync to the sanitizer, and waits for copies of other processes.
#[inline]
fn completed(channel: &Channel, address: usize, len: usize, access: Access) -> Result<(), c_int> {
    if sanitize::is_on() {
        sanitize::synced(channel.id, address, len, access);
    }
    if shm::is_used() { shm::wait(address, len) } else { Ok(()) }
}

/// Content of a descriptor.
struct DescriptorContent {
    is_send: bool,
    /// The destination; the source of a send.
    dst: usize,
    len: usize,
    parts: Parts,
}

/// Reads a descriptor; `None` if there is nothing to wait for.
///
/// # Errors
/// EINVAL: it is invalid, or of another queue.
///
/// # Safety
/// It is zeroed, or was filled by [`crate::submit`] in this process or in an ancestor.
unsafe fn read(
    process: &Process,
    channel: &Channel,
    descr: &Descr,
) -> Result<Option<DescriptorContent>, c_int> {
    match descr.state {
        0 => return Ok(None),
        FILLED | SENT => {}
        _ => return Err(libc::EINVAL),
    }
    if descr.queue != channel.incarnation {
        // The queue was closed, or belongs to the parent of a fork: its copies are completed.
        // Otherwise the caller passed the wrong queue.
        let is_elsewhere = process.channels().iter().any(|one| one.incarnation == descr.queue);
        return if is_elsewhere { Err(libc::EINVAL) } else { Ok(None) };
    }
    let count = (descr.tokens as usize).min(DESCR_TOKENS);
    let tokens = descr.data.as_ptr().cast::<Token>();
    // SAFETY: `fill` has written this number of tokens.
    let tokens = (0..count).map(|place| unsafe { tokens.add(place).read() }).collect();
    let parts = Parts { tokens, part_bytes: descr.part_bytes, failure: None };
    let (is_send, dst) = (descr.state == SENT, descr.dst.addr());
    Ok(Some(DescriptorContent { is_send, dst, len: descr.len_bytes, parts }))
}

/// Waits for bytes of a descriptor's copy, as selected by `flags`.
///
/// # Errors
/// EINVAL: the descriptor is invalid or of another queue, a flag is unknown, or the offset is
/// beyond the copy. EAGAIN: the bytes are not copied, and the flags forbid waiting. ENOTSUP: the
/// state cannot be determined without waiting. Otherwise the error number of the copy.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn descr(
    process: &Process,
    channel: &Channel,
    descr: &Descr,
    offset: usize,
    size: usize,
    flags: u32,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let Some(content) = (unsafe { read(process, channel, descr) })? else { return Ok(()) };
    if offset > content.len {
        return Err(libc::EINVAL);
    }
    let range = offset..offset.saturating_add(size).min(content.len);
    let address = content.dst.wrapping_add(range.start);
    let access = access_of(flags)?;
    if flags & abi::COPIER_SYNC_TRY != 0 {
        try_range(channel, &content.parts, &range, access)?;
    }
    if content.is_send {
        let synced = content.parts.sync(channel, range.clone());
        return synced.and(completed(channel, address, range.len(), Access::Write));
    }
    let synced = match content.parts.covers(&clipped(&range, &content)) {
        true => content.parts.sync(channel, range.clone()),
        false => channel.sync_range(address, range.len(), false),
    };
    if access == Access::Write {
        synced?;
        return self::range(channel, address, range.len(), access);
    }
    synced.and(completed(channel, address, range.len(), access))
}

/// The last token covers less than a part, so a complete set of tokens covers any range.
fn clipped(range: &Range<usize>, content: &DescriptorContent) -> Range<usize> {
    let is_whole =
        content.parts.tokens.len().saturating_mul(content.parts.part_bytes) >= content.len;
    if is_whole { 0..0 } else { range.clone() }
}

fn access_of(flags: u32) -> Result<Access, c_int> {
    if flags & !(abi::COPIER_SYNC_WRITE | abi::COPIER_SYNC_TRY) != 0 {
        return Err(libc::EINVAL);
    }
    let is_write = flags & abi::COPIER_SYNC_WRITE != 0;
    Ok(if is_write { Access::Write } else { Access::Read })
}

fn try_range(
    channel: &Channel,
    parts: &Parts,
    range: &Range<usize>,
    access: Access,
) -> Result<(), c_int> {
    if !channel.is_served() {
        return Ok(());
    }
    if access == Access::Write || !parts.covers(range) {
        return Err(libc::ENOTSUP);
    }
    if parts.is_ready(channel, range.clone()) { Ok(()) } else { Err(libc::EAGAIN) }
}

/// Waits by address, as selected by `flags`.
///
/// # Errors
/// ENOTSUP: the flags forbid waiting, which requires a descriptor. Otherwise as for [`descr`].
pub(crate) fn address(
    channel: &Channel,
    address: usize,
    size: usize,
    flags: u32,
) -> Result<(), c_int> {
    let access = access_of(flags)?;
    if flags & abi::COPIER_SYNC_TRY != 0 && channel.is_served() {
        return Err(libc::ENOTSUP);
    }
    range(channel, address, size, access)
}

/// Aborts a copy, and waits until neither its source nor its destination is accessed any more.
///
/// # Errors
/// EINVAL: the descriptor is invalid, or of another queue.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn abort(
    process: &Process,
    channel: &Channel,
    descr: &Descr,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let Some(content) = (unsafe { read(process, channel, descr) })? else { return Ok(()) };
    let covered =
        0..content.len.min(content.parts.tokens.len().saturating_mul(content.parts.part_bytes));
    content.parts.abort(channel);
    for _ in 0..ABORT_LOOKS_MAX {
        if content.parts.is_ready(channel, covered.clone()) {
            break;
        }
        std::thread::yield_now();
    }
    // The caller has given the copy up, so its error is dropped.
    let _ = content.parts.sync(channel, covered);
    let access = if content.is_send { Access::Write } else { Access::Read };
    if !content.is_send {
        let _ = channel.sync_range(content.dst, content.len, false);
    }
    let _ = completed(channel, content.dst, content.len, access);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync_all::sync_all;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use unlade_copy::{Config, CopyOptions, Polling, Service};

    use crate::submit::{self, CopyRequest};

    const BYTES: usize = 4000;

    /// Submits a copy that the caller syncs by address.
    fn copy(channel: &Arc<Channel>, dst: *mut u8, src: *const u8) {
        let options = CopyOptions { queued: true, ..CopyOptions::default() };
        // SAFETY: the tests' buffers live until the end, and unsynced bytes are not read. Only the
        // service uses the unmapped addresses, and it detects the fault.
        unsafe {
            submit::copy(channel, CopyRequest { options, ..CopyRequest::plain(dst, src, BYTES, 0) })
        };
    }

    fn eventually(what: &str, is_so: &dyn Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_csync_long_after_a_failure_fails() {
        let service =
            Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap();
        let channel = Arc::new(Channel::new(service.attach_with(1, 64).ok()));
        let (source, mut destination) = (vec![7u8; BYTES], vec![0u8; BYTES]);
        let mut go_round = || {
            for _ in 0..100 {
                copy(&channel, destination.as_mut_ptr(), source.as_ptr());
                range(&channel, destination.as_ptr().addr(), BYTES, Access::Read).unwrap();
            }
        };
        go_round();
        let nowhere = [1usize, 2].map(|page| page << 16);
        for address in nowhere {
            // A full queue would make the copy synchronous.
            eventually("the queue is empty", &|| {
                service.counts().completed == channel.stats().queued
            });
            let faults = service.counts().faults;
            copy(&channel, std::ptr::without_provenance_mut(address), source.as_ptr());
            eventually("the fault is found", &|| service.counts().faults > faults);
        }
        go_round();
        let synced = |access| range(&channel, nowhere[0], BYTES, access);
        assert_eq!(synced(Access::Read), Err(libc::EFAULT));
        assert_eq!(synced(Access::Write), Ok(()));
        assert_eq!(sync_all(&channel), Err(libc::EFAULT), "the other one");
        assert_eq!(sync_all(&channel), Ok(()));
    }
}
