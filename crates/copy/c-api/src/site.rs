//! The way of a copy from its call site: at once, if the site is known to copy at once and nothing
//! is pending, otherwise by the queue's admission.
//!
//! A site has a bit for each class of lengths that the admission usually has it copy at once. All
//! threads share the bits, and each thread counts the copies that it makes by them: after as many
//! as the admission has allowed, one goes to the admission again, which times it.

use std::sync::atomic::{AtomicU32, Ordering};

use unlade_copy::{CopyOptions, TASK_BYTES_MAX, is_refused};
use unlade_copy_scheduler::admit::{CLASSES, QUEUED_BYTES_MIN, class_of};

use crate::abi::{COPIER_SITE_HAS_STATE, COPIER_UNTIL_NEEDED, CallSite};
use crate::submit::{self, CopyRequest};
use crate::{countdown, process, sanitize, shm};

const _: () = assert!(CLASSES <= u32::BITS as usize);

impl CallSite {
    /// The bits of the classes; none at a site of a program for an older library.
    #[inline]
    fn at_once(&self) -> Option<&AtomicU32> {
        (self.flags & COPIER_SITE_HAS_STATE != 0).then_some(&self.state)
    }

    #[inline]
    fn is_at_once(&self, len: usize) -> bool {
        let bits = self.at_once().map_or(0, |bits| bits.load(Ordering::Relaxed));
        bits >> class_of(len as u64) & 1 != 0
    }

    /// Notes whether copies of this length are made at once. The word is written only if it
    /// changes: other threads read it.
    fn note(&self, len: usize, is_at_once: bool) {
        if let Some(bits) = self.at_once()
            && self.is_at_once(len) != is_at_once
        {
            bits.fetch_xor(1 << class_of(len as u64), Ordering::Relaxed);
        }
    }
}

/// Copies in the default queue.
///
/// # Safety
/// As for [`submit::copy`]; the site is null or static.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, site: *const CallSite) {
    // SAFETY: the caller's promise.
    let known = unsafe { site.as_ref() };
    if let Some(process) = process::started()
        && !is_refused(dst.addr(), src.addr(), len)
        && (len < QUEUED_BYTES_MIN as usize || may_copy_at_once(known, len))
    {
        let channel = &process.default;
        if channel.is_quiet() {
            // SAFETY: the caller's promise; nothing is pending, and the ranges do not overlap.
            return unsafe { channel.copy_quietly(dst, src, len, site.addr()) };
        }
        if !channel.is_watched() {
            // SAFETY: the caller's promise; the ranges do not overlap.
            return unsafe { channel.copy_at_once(dst, src, len, site.addr()) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { copy_by_admission(dst, src, len, known) };
}

/// Copies in the default queue, as late as possible.
///
/// # Safety
/// As for [`submit::copy`].
pub(crate) unsafe fn copy_lazily(dst: *mut u8, src: *const u8, len: usize) {
    let channel = &process::get().default;
    let lazy_us = Some(COPIER_UNTIL_NEEDED);
    if len > TASK_BYTES_MAX || sanitize::is_on() || shm::is_used() {
        let mut request = CopyRequest::plain(dst, src, len, 0);
        request.options.lazy_us = lazy_us;
        // SAFETY: the caller's promise.
        return unsafe { submit::copy(channel, request) };
    }
    let options = CopyOptions { lazy_us, ..CopyOptions::default() };
    // SAFETY: the caller's promise.
    let _ = unsafe { channel.submit(dst, src, len, len, &options) };
}

#[inline]
fn may_copy_at_once(site: Option<&CallSite>, len: usize) -> bool {
    len <= TASK_BYTES_MAX && site.is_some_and(|site| site.is_at_once(len)) && countdown::take()
}

/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_by_admission(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    site: Option<&'static CallSite>,
) {
    let channel = &process::get().default;
    let address = site.map_or(0, |site| std::ptr::from_ref(site).addr());
    if len > TASK_BYTES_MAX || sanitize::is_on() || shm::is_used() {
        let request = CopyRequest::plain(dst, src, len, address);
        // SAFETY: the caller's promise.
        return unsafe { submit::copy(channel, request) };
    }
    if site.is_some_and(|site| site.is_at_once(len)) {
        // The thread's number is used up.
        channel.ask_about(address, len);
    }
    let options = CopyOptions { site: address, ..CopyOptions::default() };
    // SAFETY: the caller's promise.
    let _ = unsafe { channel.submit(dst, src, len, len, &options) };
    if let Some(site) = site {
        let left = channel.left_at_once(address, len);
        site.note(len, left.is_some());
        countdown::set(left.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::{copier_amemcpy_at, csync};

    const BYTES: usize = 8 << 10;

    fn copy_at(site: &'static CallSite, to: &mut [u8], from: &[u8]) {
        assert!(to.len() == from.len() && !from.is_empty());
        // SAFETY: two live slices; the tests sync the copy before they use either.
        unsafe {
            copier_amemcpy_at(to.as_mut_ptr().cast(), from.as_ptr().cast(), from.len(), site)
        };
    }

    fn sync(bytes: &[u8]) -> i32 {
        csync(bytes.as_ptr().cast(), bytes.len())
    }

    /// A site that copies such bytes at once.
    fn settled_site() -> &'static CallSite {
        let site: &CallSite = Box::leak(Box::default());
        let (source, mut target) = (vec![1; BYTES], vec![0; BYTES]);
        // Nothing is gained by queueing: each copy is synced at once.
        let settled = (0..100_000).any(|_| {
            copy_at(site, &mut target, &source);
            assert!(sync(&target) == 0 && target == source);
            target.fill(0);
            site.is_at_once(BYTES)
        });
        assert!(settled);
        site
    }

    #[test]
    fn a_copy_at_once_sees_the_bytes_of_pending_copies() {
        let site = settled_site();
        let channel = &process::get().default;
        let (mut source, mut middle, mut target) = (vec![7; BYTES], vec![0; BYTES], vec![0; BYTES]);
        for round in 0..200 {
            source.fill(round as u8);
            let options = CopyOptions { queued: true, ..CopyOptions::default() };
            let (dst, src) = (middle.as_mut_ptr(), source.as_ptr());
            // SAFETY: both live until the sync below, and are not used before.
            let _ = unsafe { channel.submit(dst, src, BYTES, BYTES, &options) };
            assert!(!channel.is_quiet());
            copy_at(site, &mut target, &middle);
            assert_eq!((sync(&target), sync(&middle)), (0, 0));
            assert!(target == source && middle == source);
        }
    }

    #[test]
    fn a_bad_address_is_reported_by_the_sync_and_once() {
        let site = settled_site();
        let mut target = vec![0; BYTES];
        for _ in 0..100 {
            let dst = target.as_mut_ptr().cast();
            // SAFETY: nothing is mapped at the source, which the library must notice.
            unsafe { copier_amemcpy_at(dst, std::ptr::dangling(), BYTES, site) };
            assert_eq!((sync(&target), sync(&target)), (-1, 0));
        }
    }

    #[test]
    fn a_site_without_a_state_is_not_written() {
        let site: &CallSite = Box::leak(Box::new(CallSite { flags: 0, ..CallSite::default() }));
        let (source, mut target) = (vec![1; BYTES], vec![0; BYTES]);
        for _ in 0..1000 {
            copy_at(site, &mut target, &source);
            assert_eq!(sync(&target), 0);
        }
        assert!(site.state.load(Ordering::Relaxed) == 0 && target == source);
    }

    #[test]
    fn classes_are_noted_apart() {
        let site = CallSite::default();
        site.note(BYTES, true);
        site.note(BYTES, true);
        assert!(site.is_at_once(BYTES) && site.is_at_once(2 * BYTES - 1));
        assert!(!site.is_at_once(2 * BYTES) && !site.is_at_once(BYTES - 1));
        site.note(1 << 20, true);
        site.note(BYTES, false);
        assert!(!site.is_at_once(BYTES) && site.is_at_once(1 << 20));
    }
}
