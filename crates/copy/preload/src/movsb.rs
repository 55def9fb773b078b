//! The other loop: `rep movsb`.

use std::arch::asm;
use std::ffi::c_void;

/// Copies upwards with `rep movsb`.
///
/// # Safety
/// `src` is valid for reads of `len` bytes and `dst` for writes. `dst` is not within the `len`
/// bytes from `src` on.
pub unsafe fn rep_movsb(dst: *mut c_void, src: *const c_void, len: usize) {
    // SAFETY: guaranteed by the caller; the direction flag is clear in every function.
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") dst => _,
            inout("rsi") src => _,
            inout("rcx") len => _,
            options(nostack, preserves_flags),
        );
    }
}
