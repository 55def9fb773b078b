//! Eviction of bytes from all caches, for measurements with cold caches.

/// Writes back and evicts the lines of `bytes` from the caches of all cores. Returns false,
/// without effect, if the machine has no unprivileged instruction for it.
#[cfg(target_arch = "x86_64")]
pub fn evict(bytes: &[u8]) -> bool {
    use core::arch::x86_64::{_mm_clflush, _mm_mfence};
    const LINE_BYTES: usize = 64;
    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: the instruction requires only an address that is valid for reads. It is in the
        // base set of this architecture, and changes no byte.
        unsafe { _mm_clflush(line.as_ptr()) };
    }
    // SAFETY: a fence, in the base set of this architecture.
    unsafe { _mm_mfence() };
    true
}

/// As on x86, but without effect.
#[cfg(not(target_arch = "x86_64"))]
pub fn evict(_bytes: &[u8]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_stay_what_they_are() {
        let bytes: Vec<u8> = (0..1000).map(|at| at as u8).collect();
        assert_eq!(super::evict(&bytes[3..]), cfg!(target_arch = "x86_64"));
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}
