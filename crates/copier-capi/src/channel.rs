//! One queue of the library: a client of the service, or none, where everything is copied at once.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use copier::{Attachment, Copier, How, StatsRead, Token};
use copyunit::Hint;
use smallvec::SmallVec;

use crate::errno;

/// Number of the queue that everybody uses; the same in a child after a fork.
pub(crate) const DEFAULT_ID: u64 = 1;
static NEXT_ID: AtomicU64 = AtomicU64::new(DEFAULT_ID + 1);

/// From so many bytes on a copy made at once goes past the caches.
const STREAM_BYTES_MIN: usize = 8 << 20;

/// A queue.
pub(crate) struct Channel {
    /// Distinct among all queues of the process and of those it was forked from.
    pub id: u64,
    /// Distinct also among the default queues of a process and of those it was forked from.
    pub incarnation: u64,
    copier: Option<Copier>,
}

impl Channel {
    /// The default queue.
    pub fn default_queue(attachment: Option<Attachment>) -> Channel {
        Channel::numbered(DEFAULT_ID, attachment)
    }

    /// Another queue.
    pub fn new(attachment: Option<Attachment>) -> Channel {
        Channel::numbered(NEXT_ID.fetch_add(1, Ordering::Relaxed), attachment)
    }

    fn numbered(id: u64, attachment: Option<Attachment>) -> Channel {
        let incarnation = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Channel { id, incarnation, copier: attachment.map(Copier::new) }
    }

    /// Whether a service copies.
    pub fn is_served(&self) -> bool {
        self.copier.is_some()
    }

    /// Submits a copy; nothing where it was made at once for want of a service. A handler is run
    /// then.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    #[inline]
    pub unsafe fn submit(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        how: &How,
    ) -> Option<Token> {
        if let Some(copier) = &self.copier {
            // SAFETY: the caller's promise.
            return Some(unsafe { copier.submit(dst, src, len, how) });
        }
        // SAFETY: the caller's promise.
        unsafe { copy_now(dst, src, len) };
        if let Some((function, argument)) = how.handler {
            // SAFETY: the caller promises that it is the address of such a function.
            let function = unsafe {
                std::mem::transmute::<*const (), extern "C" fn(usize)>(function as *const ())
            };
            function(argument);
        }
        None
    }

    /// Waits for copies into the bytes; with `readers`, also for copies out of them.
    ///
    /// # Errors
    /// The number of the error that one ended with.
    #[inline]
    pub fn sync_range(&self, address: usize, len: usize, readers: bool) -> Result<(), c_int> {
        let Some(copier) = &self.copier else { return Ok(()) };
        let synced = match readers {
            false => copier.sync_range(address, len),
            true => copier.sync_for_write(address, len),
        };
        synced.map_err(errno::of_copy)
    }

    /// Waits for copies into the bytes and out of them. Errors are left to who syncs.
    pub fn settle_for_write(&self, address: usize, len: usize) {
        self.copier.iter().for_each(|copier| copier.settle_for_write(address, len));
    }

    /// Waits for everything, and runs all handlers.
    ///
    /// # Errors
    /// The number of the error that one ended with.
    pub fn sync_all(&self) -> Result<(), c_int> {
        let Some(copier) = &self.copier else { return Ok(()) };
        copier.sync_handlers().map_err(errno::of_copy)
    }

    /// A descriptor of the caller's that is readable when handlers are due. Nothing where there is
    /// no service, so that they run at once; or no descriptor.
    pub fn event(&self) -> Option<OwnedFd> {
        self.copier.as_ref()?.event().ok()?.try_clone_to_owned().ok()
    }

    /// Wakes the service, where it sleeps.
    pub fn ring(&self) {
        self.copier.iter().for_each(Copier::ring);
    }

    /// Runs the handlers that are due; how many.
    pub fn run_handlers(&self) -> usize {
        self.copier.as_ref().map_or(0, Copier::run_handlers)
    }

    /// What the queue has done.
    pub fn stats(&self) -> StatsRead {
        self.copier.as_ref().map_or_else(StatsRead::default, |copier| copier.stats().read())
    }
}

/// Copies at once, past no sanitizer's interceptor of `memcpy`.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes; they do not overlap.
pub(crate) unsafe fn copy_now(dst: *mut u8, src: *const u8, len: usize) {
    let hint = if len >= STREAM_BYTES_MIN { Hint::Stream } else { Hint::Reuse };
    // SAFETY: the caller's promise.
    unsafe { copyunit::copy(dst, src, len, hint) };
}

/// The tokens of a copy that was submitted in parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub tokens: SmallVec<[Token; 1]>,
    pub part_bytes: usize,
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

    /// Whether the tokens tell of all of the range.
    pub fn know(&self, range: &Range<usize>) -> bool {
        range.end <= self.tokens.len().saturating_mul(self.part_bytes)
    }

    /// Whether the bytes are there.
    pub fn is_ready(&self, channel: &Channel, range: Range<usize>) -> bool {
        let Some(copier) = &channel.copier else { return true };
        self.over(range).all(|(token, part)| copier.is_ready(token, part))
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    /// The number of the error that the copy ended with.
    pub fn sync(&self, channel: &Channel, range: Range<usize>) -> Result<(), c_int> {
        let Some(copier) = &channel.copier else { return Ok(()) };
        let mut result = Ok(());
        for (token, part) in self.over(range) {
            // All of them, whatever becomes of the first.
            result = result.and(copier.sync(token, part).map_err(errno::of_copy));
        }
        result
    }

    /// Asks for the copy not to be made.
    pub fn abort(&self, channel: &Channel) {
        let Some(copier) = &channel.copier else { return };
        self.tokens.iter().for_each(|token| copier.abort(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_service_copies_are_made_at_once() {
        extern "C" fn note(argument: usize) {
            // SAFETY: the test below gives the address of a live atomic.
            unsafe { &*(argument as *const AtomicU64) }.fetch_add(1, Ordering::Relaxed);
        }
        let channel = Channel::new(None);
        let called = AtomicU64::new(0);
        let handler = Some((note as *const () as usize, &raw const called as usize));
        let (source, mut destination) = ([5u8; 100], [0u8; 100]);
        let how = How { handler, lazy_us: Some(1000), ..How::default() };
        // SAFETY: two arrays that live; the handler is one.
        let token = unsafe { channel.submit(destination.as_mut_ptr(), source.as_ptr(), 100, &how) };
        assert!(token.is_none());
        assert_eq!((destination, called.into_inner()), (source, 1));
        assert_eq!(channel.sync_all(), Ok(()));
        assert!(!channel.is_served());
    }
}
