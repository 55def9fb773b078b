//! The supported cipher suites, and the properties of their AEADs.

use aws_lc_rs::aead;
use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::cipher_suite;

use crate::expand::Hash;

/// TLS 1.2 as encoded in records and snapshots.
pub(crate) const TLS12: u16 = 0x0303;
/// TLS 1.3 as encoded in snapshots.
pub(crate) const TLS13: u16 = 0x0304;
/// Length of the tag of every AEAD here.
pub(crate) const TAG_BYTES: usize = 16;
/// Length of the explicit nonce of TLS 1.2 AES-GCM (RFC 5288 §3).
pub(crate) const EXPLICIT_NONCE_BYTES: usize = 8;

/// Records after which an AES-GCM key should be replaced: below the 2^24.5 of RFC 8446 §5.5, with
/// a margin for records that are already laid out.
const GCM_RECORDS_SOFT: u64 = 1 << 24;
/// Records after which an AES-GCM key must not be used: 2^24.5 (RFC 8446 §5.5; RFC 9325 §4.4
/// recommends the same for TLS 1.2).
const GCM_RECORDS_MAX: u64 = 23_726_566;
/// ChaCha20-Poly1305 is limited by the sequence number only (RFC 8446 §5.5).
const CHACHA_RECORDS_SOFT: u64 = 1 << 62;
/// Exclusive upper limit of sequence numbers: close to wrapping (RFC 8446 §5.3).
pub(crate) const SEQUENCE_MAX: u64 = u64::MAX - (1 << 16);

/// A cipher that a device can seal and open with. [`Cipher::device`] names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
}

/// The AEAD of a suite. All its properties are defined here, for each cipher by name: a new cipher
/// inherits nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
    /// A GCM cipher that no device supports. The library lacks ARIA, and AES replaces it: tests
    /// check the table's entries for a suite, not its ciphertext.
    #[cfg(test)]
    Aria128Gcm,
}

impl Cipher {
    /// The algorithm that seals and opens in software.
    pub const fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
            #[cfg(test)]
            Cipher::Aria128Gcm => &aead::AES_128_GCM,
        }
    }

    /// Bytes of a key.
    pub fn key_bytes(self) -> usize {
        self.algorithm().key_len()
    }

    /// The device's name for the cipher, if devices support it: the only place that decides it.
    pub const fn device(self) -> Option<DeviceCipher> {
        match self {
            Cipher::Aes128Gcm => Some(DeviceCipher::Aes128Gcm),
            Cipher::Aes256Gcm => Some(DeviceCipher::Aes256Gcm),
            Cipher::ChaCha20Poly1305 => None,
            #[cfg(test)]
            Cipher::Aria128Gcm => None,
        }
    }

    /// The hash of the TLS 1.3 suite with this AEAD (RFC 8446 §B.4).
    pub const fn hash(self) -> Hash {
        match self {
            Cipher::Aes256Gcm => Hash::Sha384,
            Cipher::Aes128Gcm | Cipher::ChaCha20Poly1305 => Hash::Sha256,
            #[cfg(test)]
            Cipher::Aria128Gcm => Hash::Sha256,
        }
    }

    /// Returns true if TLS 1.2 sends a part of the nonce with each record.
    pub const fn explicit_nonce(self) -> bool {
        match self {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => true,
            Cipher::ChaCha20Poly1305 => false,
            #[cfg(test)]
            Cipher::Aria128Gcm => true,
        }
    }

    /// Records after which a key should be replaced, and those after which it must be.
    const fn records(self) -> (u64, u64) {
        match self {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => (GCM_RECORDS_SOFT, GCM_RECORDS_MAX),
            Cipher::ChaCha20Poly1305 => (CHACHA_RECORDS_SOFT, SEQUENCE_MAX),
            #[cfg(test)]
            Cipher::Aria128Gcm => (GCM_RECORDS_SOFT, GCM_RECORDS_MAX),
        }
    }
}

/// The properties of a cipher suite that are needed to protect records.
pub(crate) struct Suite {
    /// 0x0303 or 0x0304.
    pub version: u16,
    /// IANA number.
    pub number: u16,
    /// Name in rustls: that of IANA with the version before it.
    pub name: &'static str,
    /// The AEAD.
    pub cipher: Cipher,
    /// The suite in rustls; `None` only for a row of the tests.
    pub rustls: Option<&'static SupportedCipherSuite>,
    /// The hash of the key schedule (TLS 1.3).
    pub hash: Hash,
    /// Length of a traffic secret; 0 for TLS 1.2.
    pub secret_bytes: usize,
    /// True if each record contains its explicit nonce (TLS 1.2 AES-GCM).
    pub explicit_nonce: bool,
    /// Records after which the sender should change keys (TLS 1.3) or close (TLS 1.2).
    pub records_soft: u64,
    /// Records after which the sender must not use the key.
    pub records_max: u64,
}

impl Suite {
    /// The suite with this version and number, if it is supported.
    pub(crate) fn find(version: u16, number: u16) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| suite.version == version && suite.number == number)
    }

    /// TLS_AES_128_GCM_SHA256, which every implementation has (RFC 8446 §9.1).
    pub(crate) fn first() -> &'static Suite {
        &SUITES[0]
    }

    /// Returns true for TLS 1.3.
    pub(crate) fn is_13(&self) -> bool {
        self.version == TLS13
    }
}

const fn tls13(
    number: u16,
    name: &'static str,
    cipher: Cipher,
    rustls: Option<&'static SupportedCipherSuite>,
) -> Suite {
    let (records_soft, records_max) = cipher.records();
    let hash = cipher.hash();
    Suite {
        version: TLS13,
        number,
        name,
        cipher,
        rustls,
        hash,
        secret_bytes: hash.bytes(),
        explicit_nonce: false,
        records_soft,
        records_max,
    }
}

const fn tls12(
    number: u16,
    name: &'static str,
    cipher: Cipher,
    rustls: Option<&'static SupportedCipherSuite>,
) -> Suite {
    let (records_soft, records_max) = cipher.records();
    Suite {
        version: TLS12,
        number,
        name,
        cipher,
        rustls,
        hash: Hash::Sha256,
        secret_bytes: 0,
        explicit_nonce: cipher.explicit_nonce(),
        records_soft,
        records_max,
    }
}

/// A row of [`SUITES`]: the version, the IANA number, the AEAD, and the suite's name in rustls.
macro_rules! row {
    ($version:ident, $number:literal, $cipher:ident, $name:ident) => {
        $version($number, stringify!($name), Cipher::$cipher, Some(&cipher_suite::$name))
    };
}

/// The supported suites, in the server's order of preference. AES-128-GCM is first: it is the
/// fastest with AES instructions, and its keys are the smallest to move.
pub(crate) static SUITES: &[Suite] = &[
    row!(tls13, 0x1301, Aes128Gcm, TLS13_AES_128_GCM_SHA256),
    row!(tls13, 0x1302, Aes256Gcm, TLS13_AES_256_GCM_SHA384),
    row!(tls13, 0x1303, ChaCha20Poly1305, TLS13_CHACHA20_POLY1305_SHA256),
    row!(tls12, 0xc02b, Aes128Gcm, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    row!(tls12, 0xc02f, Aes128Gcm, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    row!(tls12, 0xc02c, Aes256Gcm, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    row!(tls12, 0xc030, Aes256Gcm, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    row!(tls12, 0xcca9, ChaCha20Poly1305, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    row!(tls12, 0xcca8, ChaCha20Poly1305, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    #[cfg(test)]
    tls12(0xc05c, "TLS_ECDHE_ECDSA_WITH_ARIA_128_GCM_SHA256", Cipher::Aria128Gcm, None),
];

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

    use super::*;

    fn numbers(suite: &SupportedCipherSuite) -> (u16, u16) {
        (suite.version().version.into(), suite.suite().into())
    }

    #[test]
    fn every_row_agrees_with_its_suite_in_rustls() {
        for suite in SUITES {
            let Some(rustls) = suite.rustls else {
                assert_eq!(suite.cipher, Cipher::Aria128Gcm, "{} is not in rustls", suite.name);
                continue;
            };
            assert_eq!((suite.version, suite.number), numbers(rustls), "{}", suite.name);
            assert_eq!(suite.name, format!("{rustls:?}"));
        }
    }

    #[test]
    fn every_suite_of_rustls_has_one_row() {
        for suite in ALL_CIPHER_SUITES {
            let (version, number) = numbers(suite);
            let of_suite = |row: &&Suite| (row.version, row.number) == (version, number);
            let rows = SUITES.iter().filter(of_suite).count();
            assert!(
                rows == 1,
                "SUITES in src/suite.rs has {rows} rows for {suite:?} ({number:#06x}); add one, \
                 or remove the others"
            );
        }
        assert_eq!(Suite::first().number, 0x1301);
    }
}
