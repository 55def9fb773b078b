//! One expanded key, for one backend.

use zeroize::Zeroizing;

use crate::backend::Backend;
use crate::chunk::Chunk;
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
