//! Stores that go around the caches, for what is large and not read soon.
//!
//! They save the reading of lines that are overwritten anyway and leave the caches to others, but
//! wait for memory. So they pay only where the copy would not stay in the caches: on the machine
//! that this was measured on (32 MiB of shared cache) they gave 0.6 of a normal copy's throughput
//! at 4 MiB, 1.1 at 16 MiB and 1.4 at 64 MiB. What they stored is ordered by a fence
//! before the copy returns, so a release store after it publishes it as after any other copy.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::kernel::{Kernel, Raw, Routine};
use crate::{arch, portable};

/// From this length on, in bytes, a whole copy is better made by stores around the caches
/// ([`crate::Hint::Stream`]).
pub const STREAM_BYTES_MIN: usize = 8 << 20;
/// The shortest part of such a copy, in bytes, that is: a shorter one is not worth the fence.
pub const STREAM_PART_BYTES_MIN: usize = 4 << 10;

/// The loops of this kind that this machine can run, the preferred first.
pub fn available() -> &'static [Kernel] {
    static FOUND: OnceLock<Vec<Kernel>> = OnceLock::new();
    FOUND.get_or_init(|| arch::streams().collect())
}

static ROUTINE: AtomicPtr<()> = AtomicPtr::new(first as *mut ());

/// The loop that stores around the caches.
#[inline]
pub(crate) fn routine() -> Routine {
    // SAFETY: the initial value and `first` alone write there, and both are routines.
    unsafe { std::mem::transmute::<*mut (), Routine>(ROUTINE.load(Ordering::Relaxed)) }
}

/// Finds out which processor this is, at the first copy. Async-signal-safe.
///
/// # Safety
/// As for the routine that it finds.
unsafe extern "C" fn first(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    let found = arch::streams().next().unwrap_or(portable::LIBC).routine();
    ROUTINE.store(found as *mut (), Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { found(dst, src, len) }
}
