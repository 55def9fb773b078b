//! The C functions as a C program uses them for one copy, in safe Rust, for programs that measure
//! them.

use crate::abi::CallSite;
use crate::exports::{amemcpy_lazily, cdiscard, copier_amemcpy_at, csync};
use crate::process;

/// Syncs the destination even if the work panics.
struct SyncOnDrop<'d>(&'d mut [u8]);

impl Drop for SyncOnDrop<'_> {
    #[inline]
    fn drop(&mut self) {
        // Both ranges are valid and do not overlap, so the copy cannot fail.
        csync(self.0.as_ptr().cast(), self.0.len());
    }
}

/// Gives the bytes up even if the work panics.
struct DiscardOnDrop<'d>(&'d mut [u8]);

impl Drop for DiscardOnDrop<'_> {
    #[inline]
    fn drop(&mut self) {
        cdiscard(self.0.as_ptr().cast(), self.0.len());
    }
}

/// Calls amemcpy() for `source` into `destination` at a call site, then `work`, then csync() for
/// all of the destination. Returns the result of `work`.
///
/// # Panics
/// Panics if the lengths differ.
#[inline]
pub fn copy_while<T>(
    site: &'static CallSite,
    destination: &mut [u8],
    source: &[u8],
    work: impl FnOnce() -> T,
) -> T {
    assert_eq!(source.len(), destination.len(), "source and destination differ in length");
    let sync = SyncOnDrop(destination);
    let dst = sync.0.as_mut_ptr().cast();
    // SAFETY: both are valid, and borrowed until the copy is synced at the end of this function;
    // the call site is static.
    unsafe { copier_amemcpy_at(dst, source.as_ptr().cast(), source.len(), site) };
    let value = work();
    drop(sync);
    value
}

/// Calls amemcpy_lazily() for `source` into `middle`, amemcpy() on into `destination` at a call
/// site, csync() for all of the destination, `work`, and cdiscard() for `middle`, whose content is
/// then any. Returns the result of `work`.
///
/// # Panics
/// Panics if the lengths differ.
#[inline]
pub fn chain<T>(
    site: &'static CallSite,
    destination: &mut [u8],
    middle: &mut [u8],
    source: &[u8],
    work: impl FnOnce(&[u8]) -> T,
) -> T {
    assert!(source.len() == middle.len() && source.len() == destination.len());
    let middle = DiscardOnDrop(middle);
    let sync = SyncOnDrop(destination);
    let (to, between) = (sync.0.as_mut_ptr(), middle.0.as_mut_ptr());
    let bytes = source.len();
    // SAFETY: all three are valid, and borrowed until the copies are synced or dropped at the end
    // of this function; the call site is static.
    unsafe {
        amemcpy_lazily(between.cast(), source.as_ptr().cast(), bytes);
        copier_amemcpy_at(to.cast(), between.cast(), bytes, site);
    }
    let copied = csync(sync.0.as_ptr().cast(), bytes);
    assert_eq!(copied, 0, "valid memory is copied");
    work(sync.0)
}

/// Number of copies of the process' default queue that were queued.
pub fn queued() -> u64 {
    process::started().map_or(0, |process| process.default.stats().queued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_there_afterwards_also_after_a_panic() {
        let site: &CallSite = Box::leak(Box::default());
        let (source, mut destination) = (vec![3; 100_000], vec![0; 100_000]);
        assert_eq!(copy_while(site, &mut destination, &source, || 7), 7);
        assert_eq!(destination, source);
        destination.fill(0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            copy_while(site, &mut destination, &source, || panic!("in the window"));
        }));
        assert!(panicked.is_err() && destination == source);
    }
}
