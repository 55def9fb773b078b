//! Copy loops, and the choice of a loop for each length.
//!
//! Copies are sorted into classes by length. Each class has a loop: initially the one that is
//! known to be good on such processors, later the one that [`crate::calibrate`] chose. The choice
//! is a table of function addresses; a copy looks up its class and calls.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use once_cell::race::OnceBox;

use crate::routine::{Raw, Routine, run};
use crate::{arch, portable, stream};

pub use crate::routine::{Hint, Kernel};

/// Number of length classes with a loop of their own: up to 256 bytes, then a class for each power of
/// two up to 1 MiB, and one for all longer copies.
pub const CLASSES: usize = 14;

const FIRST_CLASS_LOG2: u32 = 8;

/// Returns the class of a copy of `bytes`.
#[inline]
pub fn class(bytes: usize) -> usize {
    let log2_ceil = usize::BITS - bytes.saturating_sub(1).leading_zeros();
    (log2_ceil.saturating_sub(FIRST_CLASS_LOG2) as usize).min(CLASSES - 1)
}

/// Returns the maximum length of a class, in bytes; each class begins behind the previous one.
pub const fn class_bytes_max(class: usize) -> usize {
    if class + 1 < CLASSES { 1 << (FIRST_CLASS_LOG2 as usize + class) } else { usize::MAX }
}

/// Returns the loops that this machine can run, the preferred first; the last two are `libc` and
/// `portable`.
pub fn available() -> &'static [Kernel] {
    static FOUND: OnceBox<Vec<Kernel>> = OnceBox::new();
    FOUND.get_or_init(|| {
        Box::new(arch::kernels().chain([portable::LIBC, portable::PORTABLE]).collect())
    })
}

/// Returns the preferred loop before any measurement.
pub fn best() -> &'static Kernel {
    &available()[0]
}

/// Maximum length of copies by the C library, which starts faster than any loop of ours.
const SHORT_BYTES_MAX: usize = 1 << 10;

/// True if the C library's calls are intercepted; see [`keep_from_libc`].
static IS_LIBC_WATCHED: AtomicBool = AtomicBool::new(false);

/// Excludes the C library from [`copy`] from now on, if there is another loop. A sanitizer that
/// intercepts its calls would take our copies for the program's own.
pub fn keep_from_libc() {
    IS_LIBC_WATCHED.store(true, Ordering::Relaxed);
}

/// Copies `len` bytes, with the loop of their class.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, `dst` for writes, and they do not overlap.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, hint: Hint) {
    if len <= SHORT_BYTES_MAX && !IS_LIBC_WATCHED.load(Ordering::Relaxed) {
        // SAFETY: guaranteed by the caller.
        return unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { run(chosen(&PLAIN, len, hint), dst, src, len) };
}

/// Loop of each class.
pub(crate) type Table = [AtomicPtr<()>; CLASSES];

/// Loops for unguarded copies and for guarded copies.
pub(crate) static PLAIN: Table = [const { AtomicPtr::new(first_plain as *mut ()) }; CLASSES];
pub(crate) static GUARDED: Table = [const { AtomicPtr::new(first_guarded as *mut ()) }; CLASSES];

/// Returns the loop for a copy.
#[inline(always)]
pub(crate) fn chosen(table: &Table, len: usize, hint: Hint) -> Routine {
    if hint == Hint::Stream && len >= stream::STREAM_PART_BYTES_MIN {
        return stream::routine();
    }
    let address = table[class(len)].load(Ordering::Relaxed);
    // SAFETY: only `store` and the initial values write to a table, and those are addresses of
    // routines.
    unsafe { std::mem::transmute::<*mut (), Routine>(address) }
}

/// Sets the loop of a class; for guarded copies `guarded` replaces it if it cannot be guarded.
pub(crate) fn choose(class: usize, plain: Kernel, guarded: Kernel) {
    PLAIN[class].store(plain.routine() as *mut (), Ordering::Relaxed);
    if guarded.is_guarded() {
        GUARDED[class].store(guarded.routine() as *mut (), Ordering::Relaxed);
    }
}

/// Sets the preferred loop of each class that has none yet. Async-signal-safe: a handler that
/// copies may interrupt the first copy, so there is no lock and no allocation.
fn set_defaults() {
    let best = arch::kernels().next().unwrap_or(portable::LIBC).routine() as *mut ();
    for (table, first) in [(&PLAIN, first_plain as *mut ()), (&GUARDED, first_guarded as *mut ())] {
        for entry in table {
            // A calibration in another thread may have set its result already, which has
            // precedence.
            let _ = entry.compare_exchange(first, best, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Initial entry of the table: detects the processor.
///
/// # Safety
/// As for [`copy`].
unsafe extern "C" fn first_plain(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    set_defaults();
    // SAFETY: guaranteed by the caller.
    unsafe { chosen(&PLAIN, len, Hint::Reuse)(dst, src, len) }
}

/// As [`first_plain`], for guarded copies.
///
/// # Safety
/// As for [`crate::Guard::copy_guarded`].
unsafe extern "C" fn first_guarded(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    set_defaults();
    // SAFETY: guaranteed by the caller.
    unsafe { chosen(&GUARDED, len, Hint::Reuse)(dst, src, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_end_where_the_table_says() {
        assert_eq!(class(0), 0);
        for at in 0..CLASSES {
            let last = class_bytes_max(at);
            assert_eq!(class(last), at);
            if at + 1 < CLASSES {
                assert_eq!(class(last + 1), at + 1);
            }
        }
    }

    #[test]
    fn a_part_of_a_long_copy_goes_past_the_caches_and_a_short_one_does_not() {
        let part = stream::STREAM_PART_BYTES_MIN;
        for (len, hint, streams) in [
            (1 << 20, Hint::Stream, true),
            (part, Hint::Stream, true),
            (part - 1, Hint::Stream, false),
            (1 << 20, Hint::Reuse, false),
        ] {
            for table in [&PLAIN, &GUARDED] {
                let is_stream = chosen(table, len, hint) as usize == stream::routine() as usize;
                assert_eq!(is_stream, streams, "{len} bytes, {hint:?}");
            }
        }
    }

    #[test]
    fn the_preferred_loop_can_be_guarded() {
        assert_eq!(best().is_guarded(), arch::GUARDED);
        let names: Vec<&str> = available().iter().map(Kernel::name).collect();
        assert!(names.ends_with(&["libc", "portable"]), "{names:?}");
    }
}
