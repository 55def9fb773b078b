//! Keys in the PSK interchange format (NVMe/TCP 1.1 §3.6.1.5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;
use zeroize::Zeroizing;

const PREFIX: &str = "NVMeTLSkey-1:";
const CRC_BYTES: usize = 4;

/// A parse error of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Not `NVMeTLSkey-1:hh:…:`.
    #[error("not a key in the interchange format: NVMeTLSkey-1:HASH:BASE64: is expected")]
    Form,
    /// HASH is not 00, 01 or 02.
    #[error("the key's hash must be 00 (none), 01 (SHA-256) or 02 (SHA-384)")]
    Hash,
    /// The rest is not valid Base64.
    #[error("the key is not valid Base64; was it cut when it was copied?")]
    Base64,
    /// The length is neither 32 nor 48 bytes.
    #[error("the key has {0} bytes, where 32 or 48 are allowed")]
    Length(usize),
    /// The checksum differs.
    #[error("the key's checksum is wrong: a character was changed when it was copied")]
    Checksum,
    /// The length does not fit the hash: SHA-256 has 32 bytes, SHA-384 has 48.
    #[error("a key of {bytes} bytes does not fit hash {hash:02}")]
    Mismatch {
        /// Bytes of the key.
        bytes: usize,
        /// The number of the hash.
        hash: u8,
    },
    /// The system's random source fails.
    #[error("the system's random source fails")]
    Random,
}

/// The derivation of the retained key from a configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// None: it is the retained key.
    None,
    /// HKDF with SHA-256 and the host's NQN.
    Sha256,
    /// HKDF with SHA-384 and the host's NQN.
    Sha384,
}

/// A configured key: 32 or 48 bytes that an administrator gives to both ends.
#[derive(Clone)]
pub struct ConfiguredKey {
    bytes: Zeroizing<Vec<u8>>,
    transform: Transform,
}

impl core::fmt::Debug for ConfiguredKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ConfiguredKey({} bytes, {:?})", self.bytes.len(), self.transform)
    }
}

impl ConfiguredKey {
    /// Reads the interchange format; white space around it is ignored.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(text: &str) -> Result<ConfiguredKey, KeyError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(KeyError::Form)?;
        let (hash, rest) = rest.split_once(':').ok_or(KeyError::Form)?;
        let encoded = rest.strip_suffix(':').ok_or(KeyError::Form)?;
        let transform = match hash {
            "00" => Transform::None,
            "01" => Transform::Sha256,
            "02" => Transform::Sha384,
            _ => return Err(KeyError::Hash),
        };
        let decoded = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| KeyError::Base64)?);
        let bytes = decoded.len().saturating_sub(CRC_BYTES);
        let (key, crc) = decoded.split_at(bytes);
        if !matches!(bytes, 32 | 48) {
            return Err(KeyError::Length(bytes));
        }
        if crc != crc32(key).to_le_bytes() {
            return Err(KeyError::Checksum);
        }
        ConfiguredKey::new(key, transform)
    }

    /// Creates a key from these bytes.
    ///
    /// # Errors
    /// [`KeyError::Length`], [`KeyError::Mismatch`].
    pub fn new(content: &[u8], transform: Transform) -> Result<ConfiguredKey, KeyError> {
        match (content.len(), transform) {
            (32, Transform::None | Transform::Sha256)
            | (48, Transform::None | Transform::Sha384) => {
                Ok(ConfiguredKey { bytes: Zeroizing::new(content.to_vec()), transform })
            }
            (bytes @ (32 | 48), transform) => {
                Err(KeyError::Mismatch { bytes, hash: number(transform) })
            }
            (bytes, _) => Err(KeyError::Length(bytes)),
        }
    }

    /// Creates a random key for SHA-256, or SHA-384.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate(is_long: bool) -> Result<ConfiguredKey, KeyError> {
        let (bytes, transform) =
            if is_long { (48, Transform::Sha384) } else { (32, Transform::Sha256) };
        let mut content = Zeroizing::new(vec![0; bytes]);
        aws_lc_rs::rand::fill(&mut content).map_err(|_| KeyError::Random)?;
        Ok(ConfiguredKey { bytes: content, transform })
    }

    /// The key in the interchange format.
    pub fn encode(&self) -> Zeroizing<String> {
        let mut bytes = self.bytes.clone();
        bytes.extend_from_slice(&crc32(&self.bytes).to_le_bytes());
        let encoded = Zeroizing::new(STANDARD.encode(&*bytes));
        Zeroizing::new(format!("{PREFIX}{:02}:{}:", number(self.transform), &*encoded))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn transform(&self) -> Transform {
        self.transform
    }
}

fn number(transform: Transform) -> u8 {
    match transform {
        Transform::None => 0,
        Transform::Sha256 => 1,
        Transform::Sha384 => 2,
    }
}

/// CRC-32 of RFC 1952, bit by bit: a key is short.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that are published with other implementations.
    const SHORT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const LONG: &str = "NVMeTLSkey-1:02:\
        VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    #[test]
    fn published_keys_are_read_and_written() {
        for text in [SHORT, LONG, &SHORT.replace(":01:", ":00:")] {
            let key = ConfiguredKey::parse(&format!(" {text}\n")).unwrap();
            assert_eq!(key.encode().as_str(), text);
            assert!(!format!("{key:?}").contains("55"), "the key is not shown");
        }
        assert_eq!(ConfiguredKey::parse(SHORT).unwrap().bytes()[..4], [0x55, 0x12, 0xdb, 0xb6]);
    }

    #[test]
    fn keys_that_were_copied_badly_are_refused() {
        let refused = |text: &str| ConfiguredKey::parse(text).unwrap_err();
        assert_eq!(refused("secret"), KeyError::Form);
        assert_eq!(refused(&SHORT[..SHORT.len() - 1]), KeyError::Form);
        assert_eq!(refused(&SHORT.replace(":01:", ":03:")), KeyError::Hash);
        assert_eq!(refused(&SHORT.replace("VRL", "VRK")), KeyError::Checksum);
        assert_eq!(refused(&SHORT.replace("VRL", "V L")), KeyError::Base64);
        assert_eq!(refused("NVMeTLSkey-1:01:AAAA:"), KeyError::Length(0));
        let swapped = refused(&SHORT.replace(":01:", ":02:"));
        assert_eq!(swapped, KeyError::Mismatch { bytes: 32, hash: 2 });
    }

    #[test]
    fn generated_keys_are_random_and_survive_the_format() {
        for is_long in [false, true] {
            let one = ConfiguredKey::generate(is_long).unwrap();
            let other = ConfiguredKey::generate(is_long).unwrap();
            assert_ne!(one.bytes(), other.bytes());
            assert_eq!(ConfiguredKey::parse(&one.encode()).unwrap().bytes(), one.bytes());
        }
    }
}
