//! Backends: the processor instructions that a key uses.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

/// The instructions that a key uses. All backends give the same results, and a
/// [`Progress`](crate::Progress) of one can continue with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// x86-64 with AVX-512 (F, BW), VAES and VPCLMULQDQ.
    Vaes512,
    /// x86-64 with AES-NI, PCLMULQDQ and AVX.
    AesNi,
    /// Armv8 with AES and PMULL.
    Armv8,
    /// The RustCrypto crates, which are portable and run in constant time.
    Portable,
}

impl Backend {
    /// All backends, the fastest first.
    pub const ALL: [Backend; 4] =
        [Backend::Vaes512, Backend::AesNi, Backend::Armv8, Backend::Portable];

    /// The fastest backend of this machine.
    pub fn best() -> Backend {
        let supported = Backend::ALL.into_iter().find(|backend| backend.is_supported());
        supported.unwrap_or(Backend::Portable)
    }

    /// Returns true if this machine has the instructions.
    pub fn is_supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Backend::Vaes512 => {
                Backend::AesNi.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("vaes")
                    && is_x86_feature_detected!("vpclmulqdq")
            }
            #[cfg(target_arch = "x86_64")]
            Backend::AesNi => {
                is_x86_feature_detected!("aes")
                    && is_x86_feature_detected!("pclmulqdq")
                    && is_x86_feature_detected!("avx")
            }
            #[cfg(target_arch = "aarch64")]
            Backend::Armv8 => {
                is_aarch64_feature_detected!("aes") && is_aarch64_feature_detected!("pmull")
            }
            Backend::Portable => true,
            _ => false,
        }
    }
}

/// Operations on a chunk.
pub(crate) mod mode {
    /// Encrypts the bytes, and hashes the result.
    pub(crate) const ENCRYPT: u8 = 0;
    /// Hashes the bytes, and decrypts them.
    pub(crate) const DECRYPT: u8 = 1;
    /// Hashes the bytes, and writes nothing.
    pub(crate) const AUTHENTICATE: u8 = 2;
    /// Applies the key stream, and hashes nothing.
    pub(crate) const KEYSTREAM: u8 = 3;
}
