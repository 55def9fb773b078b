//! The bytes of a call: read, transformed in place, or from one buffer to another.

use crate::backend::mode;

/// The bytes of a chunk.
pub(crate) enum Chunk<'a> {
    /// Transformed in place.
    InPlace(&'a mut [u8]),
    /// Transformed from the first slice to the second, of the same length.
    Between(&'a [u8], &'a mut [u8]),
    /// Read only.
    Read(&'a [u8]),
}

impl Chunk<'_> {
    /// Length; asserts that the variant is allowed for `MODE`.
    pub(crate) fn len<const MODE: u8>(&self) -> usize {
        match self {
            Chunk::InPlace(data) => data.len(),
            Chunk::Between(from, to) => {
                assert_eq!(
                    from.len(),
                    to.len(),
                    "source and destination must have the same length"
                );
                from.len()
            }
            Chunk::Read(data) => {
                assert!(
                    MODE == mode::AUTHENTICATE,
                    "only authentication can use a read-only chunk"
                );
                data.len()
            }
        }
    }

    /// Source and destination.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn pointers(self) -> (*const u8, *mut u8) {
        match self {
            Chunk::InPlace(data) => {
                let to = data.as_mut_ptr();
                (to, to)
            }
            Chunk::Between(from, to) => (from.as_ptr(), to.as_mut_ptr()),
            Chunk::Read(data) => (data.as_ptr(), std::ptr::null_mut()),
        }
    }
}
