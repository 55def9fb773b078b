//! Loops that store around the caches, for large copies that are not read soon.
//!
//! Such stores avoid reading lines that are overwritten anyway and leave the caches to other data,
//! but wait for memory. So they pay only if the copy would not stay in the caches: on the
//! development machine (32 MiB of shared cache) they reached 0.6 of a normal copy's throughput at
//! 4 MiB, 1.1 at 16 MiB and 1.4 at 64 MiB. A program that reads the bytes afterwards waits for
//! memory once more: with that, a copy of 16 MiB took 1.1 to 1.6 times as long. A fence orders these stores before the copy returns, so
//! a later release store publishes them as after any other copy.

use std::sync::atomic::{AtomicPtr, Ordering};

use once_cell::race::OnceBox;

use crate::routine::{Kernel, Raw, Routine};
use crate::{arch, portable};

/// Length in bytes from which stores around the caches are better for a whole copy
/// ([`crate::Hint::Stream`]).
pub const STREAM_BYTES_MIN: usize = 32 << 20;
/// Minimum length of a part of such a copy, in bytes: for a shorter one the fence does not pay.
pub const STREAM_PART_BYTES_MIN: usize = 4 << 10;

/// Returns the loops of this kind that this machine can run, the preferred first.
pub fn available() -> &'static [Kernel] {
    static FOUND: OnceBox<Vec<Kernel>> = OnceBox::new();
    FOUND.get_or_init(|| Box::new(arch::streams().collect()))
}

static ROUTINE: AtomicPtr<()> = AtomicPtr::new(first as *mut ());

/// Returns the loop that stores around the caches.
#[inline]
pub(crate) fn routine() -> Routine {
    // SAFETY: only the initial value and `first` write to it, and both are routines.
    unsafe { std::mem::transmute::<*mut (), Routine>(ROUTINE.load(Ordering::Relaxed)) }
}

/// Detects the processor at the first copy. Async-signal-safe.
///
/// # Safety
/// As for the routine that it finds.
unsafe extern "C" fn first(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    let found = arch::streams().next().unwrap_or(portable::LIBC).routine();
    ROUTINE.store(found as *mut (), Ordering::Relaxed);
    // SAFETY: guaranteed by the caller.
    unsafe { found(dst, src, len) }
}
