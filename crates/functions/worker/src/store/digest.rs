//! Incremental checksums of bodies.

use aws_lc_rs::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;

use super::body::crc32_text;

/// The state of one checksum.
pub(super) enum Digest {
    /// A CRC of 32 bits.
    Crc32(Box<crc_fast::Digest>),
    /// A CRC of 64 bits.
    Crc64(Box<crc_fast::Digest>),
    /// A hash.
    Hash(digest::Context),
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest")
    }
}

impl Digest {
    /// Creates the checksum of an algorithm, by its name in the API or in header fields; `None` if
    /// the name is unknown.
    pub(super) fn new(algorithm: &str) -> Option<Digest> {
        let crc = |kind| Box::new(crc_fast::Digest::new(kind));
        Some(match algorithm.to_ascii_uppercase().as_str() {
            "CRC32" => Digest::Crc32(crc(CrcAlgorithm::Crc32IsoHdlc)),
            "CRC32C" => Digest::Crc32(crc(CrcAlgorithm::Crc32Iscsi)),
            "CRC64NVME" => Digest::Crc64(crc(CrcAlgorithm::Crc64Nvme)),
            "SHA1" => Digest::Hash(digest::Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
            "SHA256" => Digest::Hash(digest::Context::new(&SHA256)),
            _ => return None,
        })
    }

    /// Adds bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Digest::Crc32(digest) | Digest::Crc64(digest) => digest.update(bytes),
            Digest::Hash(context) => context.update(bytes),
        }
    }

    /// The current value, in base64.
    pub(super) fn text(&self) -> String {
        match self {
            Digest::Crc32(digest) => crc32_text(digest.finalize() as u32),
            Digest::Crc64(digest) => STANDARD.encode(digest.finalize().to_be_bytes()),
            Digest::Hash(context) => STANDARD.encode(context.clone().finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Body;
    use unlade_testkit::cases;

    /// Compares with the checksum of the whole body, for random splits.
    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        cases(60, |random| {
            let bytes: Vec<u8> = (0..random.below(5000)).map(|_| random.next() as u8).collect();
            let whole = Body::from(bytes.clone());
            for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"] {
                let mut digest = Digest::new(&algorithm.to_ascii_lowercase()).unwrap();
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    let (piece, after) =
                        rest.split_at(1 + random.below(rest.len() as u64) as usize);
                    digest.update(piece);
                    rest = after;
                }
                assert_eq!(Some(digest.text()), whole.checksum(algorithm), "{algorithm}");
            }
        });
        assert!(Digest::new("MD4").is_none());
    }
}
