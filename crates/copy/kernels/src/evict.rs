//! Bytes out of all caches: for measurements of what is not in one.

/// Writes the lines of `bytes` back and forgets them, in every core's caches. False where the
/// machine has no such instruction for programs: nothing is done then.
#[cfg(target_arch = "x86_64")]
pub fn evict(bytes: &[u8]) -> bool {
    use core::arch::x86_64::{_mm_clflush, _mm_mfence};
    const LINE_BYTES: usize = 64;
    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: the address is valid for reads, which is all that the instruction asks for; it
        // is in the base set of this architecture, and changes no byte.
        unsafe { _mm_clflush(line.as_ptr()) };
    }
    // SAFETY: a fence, in the base set of this architecture.
    unsafe { _mm_mfence() };
    true
}

/// As on x86, where it does something.
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
