//! A copy loop as a value: its name, its code, and the result of a run.

/// Cache hint for the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The bytes are read soon: store into the caches.
    Reuse,
    /// The bytes, or the copy that they are a part of, are too large for the caches
    /// ([`crate::stream::STREAM_BYTES_MIN`]) and not read soon: store around the caches. Copies of less
    /// than [`crate::stream::STREAM_PART_BYTES_MIN`] ignore this hint.
    Stream,
}

/// Result of a loop, in two registers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw {
    /// Zero if all is copied. Otherwise four times the number of bytes left, plus the kind of
    /// fault.
    left_and_kind: usize,
    /// The faulting address from the kernel. Meaningless without a fault.
    pub(crate) address: usize,
}

impl Raw {
    /// The result of a complete copy.
    pub(crate) const DONE: Raw = Raw { left_and_kind: 0, address: 0 };

    /// Returns true if all is copied.
    #[inline]
    pub(crate) fn is_done(self) -> bool {
        self.left_and_kind == 0
    }

    /// Returns the number of bytes at the end that are not copied.
    pub(crate) fn left_bytes(self) -> usize {
        self.left_and_kind >> 2
    }

    /// Returns the kind of fault.
    pub(crate) fn kind(self) -> usize {
        self.left_and_kind & 3
    }
}

/// A loop, with the arguments destination, source, length.
pub(crate) type Routine = unsafe extern "C" fn(*mut u8, *const u8, usize) -> Raw;

/// A copy loop.
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

    /// Returns the name: `avx512`, `avx2`, `sse2`, `erms`, `mixed`, `neon`, `bytes`, `libc`,
    /// `portable`, and `stream-` with some of these.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if faults in the loop can be caught. The C library's loops are not in our
    /// code.
    pub fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// Copies between slices.
    ///
    /// # Panics
    /// Panics if they differ in length.
    #[inline]
    pub fn copy_slice(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "source and destination differ in length");
        // SAFETY: valid slices of the same length; a shared and an exclusive one do not overlap.
        unsafe { self.copy(dst.as_mut_ptr(), src.as_ptr(), src.len()) };
    }

    pub(crate) fn routine(&self) -> Routine {
        self.routine
    }

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// As for [`crate::copy`].
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { run(self.routine, dst, src, len) };
    }
}

/// # Safety
/// As for [`crate::copy`].
#[inline]
pub(crate) unsafe fn run(routine: Routine, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: guaranteed by the caller.
    let raw = unsafe { routine(dst, src, len) };
    if !raw.is_done() {
        // SAFETY: guaranteed by the caller.
        unsafe { resume(routine, dst, src, len, raw) };
    }
}

/// Continues after a fault in an unguarded copy: the process must get its signal as if there were
/// no guard. So code without fault recovery copies the bad byte.
///
/// # Safety
/// As for [`crate::copy`].
#[cold]
unsafe fn resume(routine: Routine, dst: *mut u8, src: *const u8, len: usize, mut raw: Raw) {
    // If the byte can be copied now, the mapping has changed meanwhile. Every round copies a byte,
    // so the loop ends.
    while !raw.is_done() {
        let left = raw.left_bytes();
        let done = len - left;
        // SAFETY: the caller guarantees `len` valid bytes, and `done < len`.
        raw = unsafe {
            dst.add(done).write_volatile(src.add(done).read_volatile());
            routine(dst.add(done + 1), src.add(done + 1), left - 1)
        };
    }
}
