//! Bodies of requests, and their digests.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::rc::Rc;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum};
use md5::{Digest as _, Md5};

/// The body of a request: the worker's own immutable copy.
#[derive(Debug, Default)]
pub struct Body {
    bytes: Rc<Vec<u8>>,
    crc32: OnceCell<String>,
    sha256: OnceCell<String>,
    md5: OnceCell<String>,
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body { bytes: Rc::new(bytes), ..Body::default() }
    }
}

impl Body {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A shared reference to the bytes.
    pub fn shared(&self) -> &Rc<Vec<u8>> {
        &self.bytes
    }

    /// CRC-32 in base64, in the format of `x-amz-checksum-crc32`.
    pub fn crc32(&self) -> &str {
        self.crc32
            .get_or_init(|| crc32_text(checksum(CrcAlgorithm::Crc32IsoHdlc, self.bytes()) as u32))
    }

    /// The checksum of an algorithm, by its name in the API, in base64; `None` if the algorithm is
    /// unknown.
    pub fn checksum(&self, algorithm: &str) -> Option<String> {
        let crc = |kind| checksum(kind, self.bytes());
        Some(match algorithm {
            "CRC32" => self.crc32().to_owned(),
            "CRC32C" => crc32_text(crc(CrcAlgorithm::Crc32Iscsi) as u32),
            "CRC64NVME" => STANDARD.encode(crc(CrcAlgorithm::Crc64Nvme).to_be_bytes()),
            "SHA1" => STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, self.bytes())),
            "SHA256" => STANDARD.encode(digest(&SHA256, self.bytes())),
            _ => return None,
        })
    }

    /// SHA-256 in hexadecimal, in the format of a signature.
    pub fn sha256(&self) -> &str {
        self.sha256.get_or_init(|| hex(digest(&SHA256, self.bytes()).as_ref()))
    }

    /// MD5 in hexadecimal: the entity tag of most stores for objects without encryption.
    pub fn md5(&self) -> &str {
        self.md5.get_or_init(|| hex(&Md5::digest(self.bytes())))
    }
}

/// Formats a CRC of 32 bits for a header field.
pub(crate) fn crc32_text(sum: u32) -> String {
    STANDARD.encode(sum.to_be_bytes())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_the_known_ones() {
        let body = Body::from(b"123456789".to_vec());
        // The check value of CRC-32 is cbf43926.
        assert_eq!(body.crc32(), STANDARD.encode([0xcb, 0xf4, 0x39, 0x26]));
        // The check values of CRC-32C and CRC-64/NVME are e3069283 and ae8b14860a799888.
        let due = STANDARD.encode([0xe3, 0x06, 0x92, 0x83]);
        assert_eq!(body.checksum("CRC32C"), Some(due));
        let due = STANDARD.encode(0xae8b_1486_0a79_9888_u64.to_be_bytes());
        assert_eq!(body.checksum("CRC64NVME"), Some(due));
        let due = "98O8HYCOBHMq32eZZczDTKeuNEE=";
        assert_eq!(body.checksum("SHA1").as_deref(), Some(due));
        assert_eq!(body.checksum("MD4"), None);
        assert_eq!(body.md5(), "25f9e794323b453885f5181f1b624d0b");
        let none = Body::default();
        let due = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(none.sha256(), due);
    }
}
