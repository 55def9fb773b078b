//! One queue of the library: a client of the service, or, without a service, synchronous copies.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use unlade_copy::explain::SiteNames;
use unlade_copy::{
    AtOnce, Attachment, Copier, CopyError, CopyOptions, Remaps, Remote, StatsRead, Token,
};
use unlade_copy_kernels::probes::{self, NO_TICKET};

use crate::errno;

/// Number of the default queue; the same in a child after a fork.
pub(crate) const DEFAULT_ID: u64 = 1;
static NEXT_ID: AtomicU64 = AtomicU64::new(DEFAULT_ID + 1);

/// A queue.
pub(crate) struct Channel {
    /// Unique among all queues of the process and of its ancestors.
    pub id: u64,
    /// Unique also among the default queues of the process and of its ancestors.
    pub incarnation: u64,
    copier: Option<Copier>,
    /// Makes the copies if there is no service.
    at_once: AtOnce,
}

/// Result of a submission.
pub(crate) struct Submitted {
    /// `None` without a service.
    pub token: Option<Token>,
    /// The copy was synchronous and failed: the sync of its bytes returns the error.
    pub has_failed: bool,
}

impl Channel {
    /// Creates the default queue.
    pub fn default_queue(attachment: Option<Attachment>) -> Channel {
        Channel::numbered(DEFAULT_ID, attachment)
    }

    /// Creates another queue.
    pub fn new(attachment: Option<Attachment>) -> Channel {
        Channel::numbered(NEXT_ID.fetch_add(1, Ordering::Relaxed), attachment)
    }

    /// Creates a queue that a daemon serves.
    pub fn of_daemon(remote: Remote) -> Channel {
        Channel::of(NEXT_ID.fetch_add(1, Ordering::Relaxed), Some(Copier::new(remote)))
    }

    fn numbered(id: u64, attachment: Option<Attachment>) -> Channel {
        Channel::of(id, attachment.map(Copier::new))
    }

    fn of(id: u64, copier: Option<Copier>) -> Channel {
        let incarnation = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let copier = copier.map(|copier| copier.with_site_names(SiteNames::CallSite));
        let at_once = if copier.is_some() { AtOnce::default() } else { AtOnce::guarded() };
        Channel { id, incarnation, copier, at_once }
    }

    /// Sets which copies of a source that is given up are made by moving pages.
    pub fn with_remaps(mut self, remaps: Remaps) -> Channel {
        self.copier = self.copier.map(|copier| copier.with_remaps(remaps));
        self
    }

    /// Copies by the calling thread, and the errors of the queue's copies.
    pub fn at_once(&self) -> &AtOnce {
        self.copier.as_ref().map_or(&self.at_once, Copier::at_once)
    }

    /// The client of the service; none without one.
    pub fn copier(&self) -> Option<&Copier> {
        self.copier.as_ref()
    }

    /// Returns true if a service copies.
    pub fn is_served(&self) -> bool {
        self.copier.is_some()
    }

    /// Returns true if no copy is pending, no error is unreported, and nothing watches copies.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.at_once().is_quiet()
    }

    /// The queue is never quiet from now on: something watches all copies.
    pub fn watch(&self) {
        self.at_once().watch();
    }

    /// Copies at once while the queue is quiet. An error is kept for the sync.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for the duration of the call; the ranges do not overlap.
    #[inline]
    pub unsafe fn copy_quietly(&self, dst: *mut u8, src: *const u8, len: usize, site: usize) {
        match &self.copier {
            // SAFETY: the caller's promise.
            Some(copier) => unsafe { copier.copy_quietly(dst, src, len, site) },
            // SAFETY: the caller's promise.
            None => drop(unsafe { self.at_once.copy(dst, src, len, len) }),
        }
    }

    /// Returns true if something watches all copies: see [`Channel::watch`].
    pub fn is_watched(&self) -> bool {
        self.at_once().is_watched()
    }

    /// Copies at once, after pending copies that touch the bytes. An error is kept for the sync.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for the duration of the call; the ranges do not overlap.
    #[inline(never)]
    pub unsafe fn copy_at_once(&self, dst: *mut u8, src: *const u8, len: usize, site: usize) {
        match &self.copier {
            // SAFETY: the caller's promise.
            Some(copier) => unsafe { copier.copy_in_order(dst, src, len, site) },
            // SAFETY: the caller's promise.
            None => drop(unsafe { self.at_once.copy(dst, src, len, len) }),
        }
    }

    /// Number of copies that this thread makes at once at a site before it asks the admission;
    /// none if it queues them.
    pub fn left_at_once(&self, site: usize, len: usize) -> Option<u32> {
        self.copier.as_ref().map_or(Some(u32::MAX), |copier| copier.left_at_once(site, len))
    }

    /// Has the next such copy of this thread ask the admission.
    pub fn ask_about(&self, site: usize, len: usize) {
        self.copier.iter().for_each(|copier| copier.ask_about(site, len));
    }

    /// Submits a copy, which is all or part of `whole_bytes`. Without a service the copy is
    /// synchronous, and its handler runs.
    ///
    /// # Safety
    /// As for [`Copier::submit_part`].
    #[inline]
    pub unsafe fn submit(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        whole_bytes: usize,
        options: &CopyOptions,
    ) -> Submitted {
        if let Some(copier) = &self.copier {
            // SAFETY: the caller's promise.
            let token = unsafe { copier.submit_part(dst, src, len, whole_bytes, options) };
            return Submitted { token: Some(token), has_failed: token.has_failed_at_once() };
        }
        // SAFETY: the caller's promise.
        let has_failed = unsafe { self.at_once.copy(dst, src, len, whole_bytes) }.is_err();
        if let Some((function, argument)) = options.handler {
            // SAFETY: the caller promises that it is the address of such a function.
            let function = unsafe {
                std::mem::transmute::<*const (), extern "C" fn(usize)>(function as *const ())
            };
            function(argument);
        }
        Submitted { token: None, has_failed }
    }

    /// Waits for copies into the bytes; with `readers`, also for copies out of them.
    ///
    /// # Errors
    /// The error number of a failed copy.
    #[inline]
    pub fn sync_range(&self, address: usize, len: usize, readers: bool) -> Result<(), c_int> {
        let synced = match &self.copier {
            None => self.sync_range_at_once(address, len),
            Some(copier) if readers => copier.sync_for_write(address, len),
            Some(copier) => copier.sync_range(address, len),
        };
        synced.map_err(errno::of_copy)
    }

    /// Drops the copies into the bytes that are made only when something needs them.
    pub fn discard(&self, address: usize, len: usize) {
        self.copier.iter().for_each(|copier| copier.discard(address, len));
    }

    /// As [`Channel::sync_range`], without a service.
    fn sync_range_at_once(&self, address: usize, len: usize) -> Result<(), CopyError> {
        probes::sync(address, len, NO_TICKET);
        let synced = self.at_once.sync_range(address, len);
        self.at_once.settle();
        synced
    }

    /// Waits for copies into the bytes and out of them. Keeps errors for a later sync.
    pub fn complete_for_write(&self, address: usize, len: usize) {
        self.copier.iter().for_each(|copier| copier.complete_for_write(address, len));
    }

    /// Waits until all copies and receives have written their bytes. Keeps errors for a later sync.
    pub fn complete_written(&self) {
        self.copier.iter().for_each(Copier::complete_written);
    }

    /// Waits for all copies, and runs all handlers.
    ///
    /// # Errors
    /// The error number of a failed copy.
    pub fn sync_all(&self) -> Result<(), c_int> {
        let synced = match &self.copier {
            None => self.at_once.sync_all(),
            Some(copier) => copier.sync_handlers(),
        };
        synced.map_err(errno::of_copy)
    }

    /// A new descriptor that is readable when handlers are due. `None` without a service, where
    /// handlers run at once, or if no descriptor is available.
    pub fn event(&self) -> Option<OwnedFd> {
        self.copier.as_ref()?.event().ok()?.try_clone_to_owned().ok()
    }

    /// Wakes the service if it sleeps.
    pub fn ring(&self) {
        self.copier.iter().for_each(Copier::ring);
    }

    /// Runs the handlers that are due. Returns their number.
    pub fn run_handlers(&self) -> usize {
        self.copier.as_ref().map_or(0, Copier::run_handlers)
    }

    /// Deferred copies that were never made, and their bytes.
    pub fn never_made(&self) -> (u64, u64) {
        self.copier.as_ref().map_or((0, 0), Copier::never_made)
    }

    /// Statistics of the queue.
    pub fn stats(&self) -> StatsRead {
        self.copier.as_ref().map_or_else(StatsRead::default, |copier| copier.stats().read())
    }
}

/// The tokens of a copy that was submitted in parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub tokens: SmallVec<[Token; 1]>,
    pub part_bytes: usize,
    /// Error number of bytes that have no token and could not be copied.
    pub failure: Option<c_int>,
}

impl Parts {
    fn over(&self, range: Range<usize>) -> impl Iterator<Item = (&Token, Range<usize>)> {
        let part_bytes = self.part_bytes.max(1);
        let first = range.start / part_bytes;
        self.tokens.iter().enumerate().skip(first).map_while(move |(number, token)| {
            let base = number * part_bytes;
            let part = range.start.max(base) - base..(range.end - base.min(range.end));
            (base < range.end).then(|| (token, part.start..part.end.min(part_bytes)))
        })
    }

    /// Returns true if the tokens cover all of the range.
    pub fn covers(&self, range: &Range<usize>) -> bool {
        range.end <= self.tokens.len().saturating_mul(self.part_bytes)
    }

    /// Returns true if the bytes are copied.
    pub fn is_ready(&self, channel: &Channel, range: Range<usize>) -> bool {
        let Some(copier) = &channel.copier else { return true };
        self.over(range).all(|(token, part)| copier.is_ready(token, part))
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    /// The error number of the failed copy.
    pub fn sync(&self, channel: &Channel, range: Range<usize>) -> Result<(), c_int> {
        let mut result = match self.failure {
            Some(failure) if !self.covers(&range) => Err(failure),
            _ => Ok(()),
        };
        let Some(copier) = &channel.copier else { return result };
        for (token, part) in self.over(range) {
            // Wait for all parts, even after a failure.
            result = result.and(copier.sync(token, part).map_err(errno::of_copy));
        }
        result
    }

    /// Aborts the copy.
    pub fn abort(&self, channel: &Channel) {
        let Some(copier) = &channel.copier else { return };
        // Last ones first, so that no part of a send starts because its predecessor has ended.
        self.tokens.iter().rev().for_each(|token| copier.abort(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_service_copies_are_made_at_once() {
        extern "C" fn note(argument: usize) {
            // SAFETY: the test below passes the address of a live atomic.
            unsafe { &*(argument as *const AtomicU64) }.fetch_add(1, Ordering::Relaxed);
        }
        let channel = Channel::new(None);
        let called = AtomicU64::new(0);
        let handler = Some((note as *const () as usize, &raw const called as usize));
        let (source, mut destination) = ([5u8; 100], [0u8; 100]);
        let options = CopyOptions { handler, lazy_us: Some(1000), ..CopyOptions::default() };
        // SAFETY: two live arrays; the handler is a valid function.
        let submitted = unsafe {
            channel.submit(destination.as_mut_ptr(), source.as_ptr(), 100, 100, &options)
        };
        assert!(submitted.token.is_none() && !submitted.has_failed);
        assert_eq!((destination, called.into_inner()), (source, 1));
        assert_eq!(channel.sync_all(), Ok(()));
        assert!(!channel.is_served());
    }
}
