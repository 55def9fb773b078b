//! Bytes brought into the caches ahead of a system call that reads them.

/// Distance of two prefetches.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Brings `bytes` close, as far as they are in a cache farther away or in memory. To be called
/// right before a system call copies them: the kernel's copy loop (`rep movsb`) waits for each
/// line, and this asks for many at a time. Does nothing where the machine has no such instruction.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch touches nothing, wherever it points; this is within `bytes`. Every
        // processor of this architecture has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
