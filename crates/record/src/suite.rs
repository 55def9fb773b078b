//! The cipher suites that can be carried over: three AEADs, two protocol versions.

use aws_lc_rs::{aead, hkdf};

/// TLS 1.2 as it stands in records and snapshots.
pub(crate) const TLS12: u16 = 0x0303;
/// TLS 1.3 as it stands in snapshots.
pub(crate) const TLS13: u16 = 0x0304;
/// Length of the tag of every AEAD here.
pub(crate) const TAG_BYTES: usize = 16;
/// Length of the explicit nonce of TLS 1.2 AES-GCM (RFC 5288 §3).
pub(crate) const EXPLICIT_NONCE_BYTES: usize = 8;

/// Records after which an AES-GCM key is to be replaced: below the 2^24.5 of RFC 8446 §5.5 with
/// room for what is already laid out.
const GCM_RECORDS_SOFT: u64 = 1 << 24;
/// Records after which an AES-GCM key is used no further: 2^24.5 (RFC 8446 §5.5; RFC 9325 §4.4
/// recommends the same for TLS 1.2).
const GCM_RECORDS_MAX: u64 = 23_726_566;
/// ChaCha20-Poly1305 is bounded by the sequence number only (RFC 8446 §5.5).
const CHACHA_RECORDS_SOFT: u64 = 1 << 62;
/// No sequence number may reach this: it would be near to wrapping (RFC 8446 §5.3).
pub(crate) const SEQUENCE_MAX: u64 = u64::MAX - (1 << 16);

/// What is to be known of a cipher suite to protect records with it.
pub(crate) struct Suite {
    /// 0x0303 or 0x0304.
    pub version: u16,
    /// IANA number.
    pub number: u16,
    /// IANA name.
    pub name: &'static str,
    /// The AEAD.
    pub aead: &'static aead::Algorithm,
    /// The hash of the key schedule (TLS 1.3).
    pub hkdf: hkdf::Algorithm,
    /// Length of a traffic secret; 0 for TLS 1.2.
    pub secret_bytes: usize,
    /// A nonce half is sent with each record (TLS 1.2 AES-GCM).
    pub explicit_nonce: bool,
    /// Records after which the sender should change keys (TLS 1.3) or close (TLS 1.2).
    pub records_soft: u64,
    /// Records after which the sender must not use the key.
    pub records_max: u64,
}

impl Suite {
    /// The suite with this version and number, where it is one of ours.
    pub(crate) fn find(version: u16, number: u16) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| suite.version == version && suite.number == number)
    }

    /// TLS_AES_128_GCM_SHA256, which every implementation has (RFC 8446 §9.1).
    pub(crate) fn first() -> &'static Suite {
        &SUITES[0]
    }

    /// True for TLS 1.3.
    pub(crate) fn is_13(&self) -> bool {
        self.version == TLS13
    }
}

const fn tls13(
    number: u16,
    name: &'static str,
    aead: &'static aead::Algorithm,
    hkdf: hkdf::Algorithm,
    secret_bytes: usize,
    (records_soft, records_max): (u64, u64),
) -> Suite {
    Suite {
        version: TLS13,
        number,
        name,
        aead,
        hkdf,
        secret_bytes,
        explicit_nonce: false,
        records_soft,
        records_max,
    }
}

const fn tls12(
    number: u16,
    name: &'static str,
    aead: &'static aead::Algorithm,
    (records_soft, records_max): (u64, u64),
) -> Suite {
    Suite {
        version: TLS12,
        number,
        name,
        aead,
        hkdf: hkdf::HKDF_SHA256,
        secret_bytes: 0,
        explicit_nonce: records_max == GCM_RECORDS_MAX,
        records_soft,
        records_max,
    }
}

const GCM: (u64, u64) = (GCM_RECORDS_SOFT, GCM_RECORDS_MAX);
const CHACHA: (u64, u64) = (CHACHA_RECORDS_SOFT, SEQUENCE_MAX);

static SUITES: [Suite; 9] = [
    tls13(0x1301, "TLS13_AES_128_GCM_SHA256", &aead::AES_128_GCM, hkdf::HKDF_SHA256, 32, GCM),
    tls13(0x1302, "TLS13_AES_256_GCM_SHA384", &aead::AES_256_GCM, hkdf::HKDF_SHA384, 48, GCM),
    tls13(
        0x1303,
        "TLS13_CHACHA20_POLY1305_SHA256",
        &aead::CHACHA20_POLY1305,
        hkdf::HKDF_SHA256,
        32,
        CHACHA,
    ),
    tls12(0xc02b, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", &aead::AES_128_GCM, GCM),
    tls12(0xc02c, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", &aead::AES_256_GCM, GCM),
    tls12(0xc02f, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", &aead::AES_128_GCM, GCM),
    tls12(0xc030, "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", &aead::AES_256_GCM, GCM),
    tls12(0xcca8, "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", &aead::CHACHA20_POLY1305, CHACHA),
    tls12(
        0xcca9,
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        &aead::CHACHA20_POLY1305,
        CHACHA,
    ),
];
