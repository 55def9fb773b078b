//! Portable copies, by code outside this crate that cannot be guarded.

use crate::routine::{Kernel, Raw};

/// The C library's `memcpy`, which chooses its loop by processor itself.
pub(crate) const LIBC: Kernel = Kernel::unguarded("libc", libc);

/// The compiler's copy, which is usually a call of the same `memcpy`.
pub(crate) const PORTABLE: Kernel = Kernel::unguarded("portable", portable);

/// # Safety
/// As for [`crate::copy`].
unsafe extern "C" fn libc(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::memcpy(dst.cast(), src.cast(), len) };
    Raw::DONE
}

/// # Safety
/// As for [`crate::copy`].
unsafe extern "C" fn portable(dst: *mut u8, src: *const u8, len: usize) -> Raw {
    // SAFETY: guaranteed by the caller; bytes have no alignment.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    Raw::DONE
}

/// Stub for architectures without loops of their own.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) mod arch {
    use std::ffi::c_void;

    use crate::routine::Kernel;

    pub(crate) const GUARDED: bool = false;

    pub(crate) fn kernels() -> impl Iterator<Item = Kernel> {
        std::iter::empty()
    }

    pub(crate) fn streams() -> impl Iterator<Item = Kernel> {
        std::iter::once(super::LIBC)
    }

    /// Returns false: there are no loops here to recover from.
    ///
    /// # Safety
    /// None is needed here.
    pub(crate) unsafe fn divert(_: *mut c_void, _: usize, _: usize) -> bool {
        false
    }
}
