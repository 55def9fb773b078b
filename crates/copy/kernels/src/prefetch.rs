//! Prefetch of bytes into the caches before a system call reads them.

/// Distance between two prefetches.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Prefetches `bytes` into the nearest cache. Call it right before a system call copies them: the
/// kernel's copy loop (`rep movsb`) waits for each line, and this function requests many lines at
/// a time. Without effect if the machine has no such instruction.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch accesses no memory, for any address; this one is within `bytes`.
        // Every processor of this architecture has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
