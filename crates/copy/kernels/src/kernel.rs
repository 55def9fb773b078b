//! The copy loops, and which of them copies how much.
//!
//! Copies are sorted into classes by their length. Each class has a loop, at first the one that is
//! known to be good on such processors, later what [`crate::calibrate`] found. The choice is a
//! table of function addresses: a copy looks up its class and calls.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::{arch, portable, stream};

/// Classes of length that have a loop of their own.
pub const CLASSES: usize = 8;

/// The longest copy of each class, in bytes; each begins behind the one before.
pub const CLASS_BYTES_MAX: [usize; CLASSES] =
    [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, usize::MAX];

/// The class of a copy of `bytes`.
pub fn class(bytes: usize) -> usize {
    let log2_ceil = usize::BITS - bytes.saturating_sub(1).leading_zeros();
    (log2_ceil.saturating_sub(7) as usize / 2).min(CLASSES - 1)
}

/// What becomes of the bytes after the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// They are read soon: they belong into the caches.
    Reuse,
    /// They are too many for the caches, or of a copy that has too many
    /// ([`stream::STREAM_BYTES_MIN`]), and not read soon: they go around the caches. Less than
    /// [`stream::STREAM_PART_BYTES_MIN`] do not.
    Stream,
}

/// What a loop returns, in two registers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw {
    /// Zero where all is copied. Else four times the bytes that are left, and the kind of fault.
    left_and_kind: usize,
    /// What the kernel says was touched. Without a meaning where there was no fault.
    pub(crate) address: usize,
}

impl Raw {
    /// All is copied.
    pub(crate) const DONE: Raw = Raw { left_and_kind: 0, address: 0 };

    /// Whether all is copied.
    pub(crate) fn is_done(self) -> bool {
        self.left_and_kind == 0
    }

    /// How many bytes, the last ones, are not copied.
    pub(crate) fn left_bytes(self) -> usize {
        self.left_and_kind >> 2
    }

    /// The kind of fault.
    pub(crate) fn kind(self) -> usize {
        self.left_and_kind & 3
    }
}

/// A loop: destination, source, bytes.
pub(crate) type Routine = unsafe extern "C" fn(*mut u8, *const u8, usize) -> Raw;

/// One copy loop.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    name: &'static str,
    routine: Routine,
    guarded: bool,
}

impl Kernel {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) const fn guarded(name: &'static str, routine: Routine) -> Kernel {
        Kernel { name, routine, guarded: true }
    }

    pub(crate) const fn unguarded(name: &'static str, routine: Routine) -> Kernel {
        Kernel { name, routine, guarded: false }
    }

    /// What it is called: `avx512`, `avx2`, `sse2`, `erms`, `neon`, `bytes`, `libc`, `portable`,
    /// and `stream-` with some of these.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether faults in it can be caught. The C library's loops are not in our code.
    pub fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// Copies between slices.
    ///
    /// # Panics
    /// They differ in length.
    #[inline]
    pub fn copy_slice(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "source and destination differ in length");
        // SAFETY: valid slices of one length; a shared and an exclusive one do not overlap.
        unsafe { self.copy(dst.as_mut_ptr(), src.as_ptr(), src.len()) };
    }

    pub(crate) fn routine(&self) -> Routine {
        self.routine
    }

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// As for [`copy`].
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { run(self.routine, dst, src, len) };
    }
}

/// The loops that this machine can run, the preferred first; the last two are `libc` and
/// `portable`.
pub fn available() -> &'static [Kernel] {
    static FOUND: OnceLock<Vec<Kernel>> = OnceLock::new();
    FOUND.get_or_init(|| arch::kernels().chain([portable::LIBC, portable::PORTABLE]).collect())
}

/// The loop that is preferred where nothing was measured.
pub fn best() -> &'static Kernel {
    &available()[0]
}

/// Copies up to so many bytes are the C library's: it begins sooner than any loop of ours.
const SHORT_BYTES_MAX: usize = 1 << 10;

/// The C library's calls are somebody else's business; see [`keep_from_libc`].
static IS_LIBC_WATCHED: AtomicBool = AtomicBool::new(false);

/// From now on no copy of [`copy`] is the C library's, where there is a loop of ours: a sanitizer
/// that intercepts its calls would take our copies for the program's own.
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
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { run(chosen(&PLAIN, len, hint), dst, src, len) };
}

/// # Safety
/// As for [`copy`].
#[inline]
unsafe fn run(routine: Routine, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    let raw = unsafe { routine(dst, src, len) };
    if !raw.is_done() {
        // SAFETY: the caller's promise.
        unsafe { resume(routine, dst, src, len, raw) };
    }
}

/// A loop faulted that nobody guards: the process is to get its signal as if there were no guard.
/// So the bad byte is copied by code in which faults are not caught.
///
/// # Safety
/// As for [`copy`].
#[cold]
unsafe fn resume(routine: Routine, dst: *mut u8, src: *const u8, len: usize, mut raw: Raw) {
    // Where the byte can be copied after all, the mapping has changed meanwhile. Every round
    // copies a byte, so this ends.
    while !raw.is_done() {
        let left = raw.left_bytes();
        let done = len - left;
        // SAFETY: the caller promised `len` valid bytes, and `done < len`.
        raw = unsafe {
            dst.add(done).write_volatile(src.add(done).read_volatile());
            routine(dst.add(done + 1), src.add(done + 1), left - 1)
        };
    }
}

/// The loop of each class.
pub(crate) type Table = [AtomicPtr<()>; CLASSES];

/// The loops of copies that nobody guards, and of those that somebody does.
pub(crate) static PLAIN: Table = [const { AtomicPtr::new(first_plain as *mut ()) }; CLASSES];
pub(crate) static GUARDED: Table = [const { AtomicPtr::new(first_guarded as *mut ()) }; CLASSES];

/// The loop for a copy.
#[inline]
pub(crate) fn chosen(table: &Table, len: usize, hint: Hint) -> Routine {
    if hint == Hint::Stream && len >= stream::STREAM_PART_BYTES_MIN {
        return stream::routine();
    }
    let address = table[class(len)].load(Ordering::Relaxed);
    // SAFETY: only `store` and the initial values write to a table, and those are addresses of
    // routines.
    unsafe { std::mem::transmute::<*mut (), Routine>(address) }
}

/// Makes a kernel the one of a class, and where it cannot be guarded, `guarded` that of guarded
/// copies.
pub(crate) fn choose(class: usize, plain: Kernel, guarded: Kernel) {
    PLAIN[class].store(plain.routine as *mut (), Ordering::Relaxed);
    if guarded.guarded {
        GUARDED[class].store(guarded.routine as *mut (), Ordering::Relaxed);
    }
}

/// Puts the preferred loop where there is none yet. Async-signal-safe: the first copy may be
/// interrupted by a handler that copies, so there is no lock and no allocation.
fn set_defaults() {
    let best = arch::kernels().next().unwrap_or(portable::LIBC).routine as *mut ();
    for (table, first) in [(&PLAIN, first_plain as *mut ()), (&GUARDED, first_guarded as *mut ())] {
        for entry in table {
            // Another thread may have put the result of a calibration there: then that stays.
            let _ = entry.compare_exchange(first, best, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What stands in the table at first: finds out which processor this is.
///
/// # Safety
/// As for [`copy`].
unsafe extern "C" fn first_plain(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    set_defaults();
    // SAFETY: the caller's promise.
    unsafe { chosen(&PLAIN, len, Hint::Reuse)(dst, src, len) }
}

/// As [`first_plain`], for guarded copies.
///
/// # Safety
/// As for [`crate::Guard::copy_guarded`].
unsafe extern "C" fn first_guarded(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    set_defaults();
    // SAFETY: the caller's promise.
    unsafe { chosen(&GUARDED, len, Hint::Reuse)(dst, src, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_end_where_the_table_says() {
        assert_eq!(class(0), 0);
        for (at, last) in CLASS_BYTES_MAX.into_iter().enumerate() {
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
