//! One expanded key, for one backend.

use zeroize::Zeroizing;

use crate::backend::{Backend, mode};
use crate::portable::{self, Cipher};
use crate::progress::{BLOCK_BYTES, Progress};
#[cfg(target_arch = "aarch64")]
use crate::{aarch64, schedule};
#[cfg(target_arch = "x86_64")]
use crate::{schedule, vaes512, x86_64};

/// An expanded key. An engine of a backend exists only if the processor supports the backend.
pub(crate) enum Engine {
    #[cfg(target_arch = "x86_64")]
    Vaes512(Box<schedule::Keys>),
    #[cfg(target_arch = "x86_64")]
    AesNi(Box<schedule::Keys>),
    #[cfg(target_arch = "aarch64")]
    Armv8(Box<schedule::Keys>),
    Portable(Box<portable::Keys>),
}

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
    fn len<const MODE: u8>(&self) -> usize {
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
    fn pointers(self) -> (*const u8, *mut u8) {
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

impl Engine {
    /// Expands `key`, of 16 or 32 bytes; also returns the hash key. Returns `None` for another
    /// length or an unsupported backend.
    pub(crate) fn new(
        key: &[u8],
        backend: Backend,
    ) -> Option<(Engine, Zeroizing<[u8; BLOCK_BYTES]>)> {
        let cipher = Cipher::new(key)?;
        let hash_key = Zeroizing::new(cipher.block([0; BLOCK_BYTES]));
        let engine = match backend {
            _ if !backend.is_supported() => return None,
            #[cfg(target_arch = "x86_64")]
            Backend::Vaes512 => {
                // SAFETY: the backend is supported.
                Engine::Vaes512(unsafe { x86_64::expand(key, &hash_key) })
            }
            #[cfg(target_arch = "x86_64")]
            Backend::AesNi => {
                // SAFETY: the backend is supported.
                Engine::AesNi(unsafe { x86_64::expand(key, &hash_key) })
            }
            #[cfg(target_arch = "aarch64")]
            Backend::Armv8 => {
                // SAFETY: the backend is supported.
                Engine::Armv8(unsafe { aarch64::expand(key, &hash_key) })
            }
            Backend::Portable => Engine::Portable(Box::new(portable::Keys::new(cipher, &hash_key))),
            _ => return None,
        };
        Some((engine, hash_key))
    }

    /// The backend.
    pub(crate) fn backend(&self) -> Backend {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Vaes512(_) => Backend::Vaes512,
            #[cfg(target_arch = "x86_64")]
            Engine::AesNi(_) => Backend::AesNi,
            #[cfg(target_arch = "aarch64")]
            Engine::Armv8(_) => Backend::Armv8,
            Engine::Portable(_) => Backend::Portable,
        }
    }

    /// The hash of the padded additional data.
    pub(crate) fn begin(&self, aad: &[u8]) -> [u8; BLOCK_BYTES] {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Vaes512(keys) | Engine::AesNi(keys) => {
                // SAFETY: such an engine exists only where the backend is supported.
                unsafe { x86_64::begin(keys, aad) }
            }
            #[cfg(target_arch = "aarch64")]
            Engine::Armv8(keys) => {
                // SAFETY: such an engine exists only where the backend is supported.
                unsafe { aarch64::begin(keys, aad) }
            }
            Engine::Portable(keys) => keys.begin(aad),
        }
    }

    /// Applies `MODE` to the next bytes of the message.
    ///
    /// # Panics
    /// The lengths of a [`Chunk::Between`] differ, or the message becomes too long.
    #[inline]
    pub(crate) fn run<const MODE: u8>(&self, at: &mut Progress, piece: Chunk<'_>) {
        let bytes = piece.len::<MODE>();
        at.admit(bytes);
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Vaes512(keys) => {
                let (from, to) = piece.pointers();
                // SAFETY: such an engine exists only where the backend is supported; the pointers
                // are those of slices of `bytes`: an exclusive one, two that do not overlap, or,
                // where the mode writes nothing, a shared one.
                unsafe { vaes512::run::<MODE>(keys, at, from, to, bytes) };
            }
            #[cfg(target_arch = "x86_64")]
            Engine::AesNi(keys) => {
                let (from, to) = piece.pointers();
                // SAFETY: as above.
                unsafe { x86_64::run::<MODE>(keys, at, from, to, bytes) };
            }
            #[cfg(target_arch = "aarch64")]
            Engine::Armv8(keys) => {
                let (from, to) = piece.pointers();
                // SAFETY: as above.
                unsafe { aarch64::run::<MODE>(keys, at, from, to, bytes) };
            }
            Engine::Portable(keys) => keys.run::<MODE>(at, piece),
        }
        at.offset += bytes as u64;
    }

    /// The tag of the message that ends at `at`.
    pub(crate) fn tag(&self, at: &Progress) -> [u8; BLOCK_BYTES] {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Vaes512(keys) | Engine::AesNi(keys) => {
                // SAFETY: such an engine exists only where the backend is supported.
                unsafe { x86_64::tag(keys, at) }
            }
            #[cfg(target_arch = "aarch64")]
            Engine::Armv8(keys) => {
                // SAFETY: such an engine exists only where the backend is supported.
                unsafe { aarch64::tag(keys, at) }
            }
            Engine::Portable(keys) => keys.tag(at),
        }
    }
}
