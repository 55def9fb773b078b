//! The keys of one direction of a connection.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use thiserror::Error;
use unlade_nic_engine::Tls;
use unlade_nic_engine::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, TAG_BYTES, Version};
use unlade_nic_inline::device::static_state;
use unlade_tls::Cipher;
use unlade_tls::device;
use unlade_tls::expand::expand_label;
use zeroize::Zeroizing;

use crate::flow::Protocol;

/// Bytes of a nonce.
const NONCE_BYTES: usize = 12;

/// The reason that keys cannot be used; an error of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeysError {
    /// The key's length does not fit the cipher.
    #[error("a key of {0} bytes does not fit the cipher")]
    Length(usize),
    /// There is no traffic secret to derive the next keys from.
    #[error("there is no traffic secret; the connection cannot change its keys")]
    NoSecret,
}

/// A record failed authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a record failed authentication; close the connection")]
pub struct Forged;

/// The result of a handshake for one direction.
#[derive(Clone)]
pub struct Secrets {
    /// The negotiated version.
    pub version: Version,
    /// The AEAD of the negotiated suite.
    pub cipher: Cipher,
    /// The key.
    pub key: Zeroizing<Vec<u8>>,
    /// The IV; TLS 1.2 with AES-GCM uses its first four bytes.
    pub iv: [u8; NONCE_BYTES],
    /// TLS 1.3: the secret from which the next keys are derived.
    pub traffic_secret: Option<Zeroizing<Vec<u8>>>,
}

impl Secrets {
    /// The secrets after a KeyUpdate (RFC 8446 §7.2, §7.3).
    ///
    /// # Errors
    /// [`KeysError::NoSecret`].
    pub fn next(&self) -> Result<Secrets, KeysError> {
        let secret = self.traffic_secret.as_ref().ok_or(KeysError::NoSecret)?;
        let hash = self.cipher.hash();
        let expand = |from: &[u8], label: &[u8], out: &mut [u8]| {
            expand_label(hash, from, label, &[], out).map_err(|_| KeysError::NoSecret)
        };
        let mut next = Zeroizing::new(vec![0; secret.len()]);
        expand(secret, b"traffic upd", &mut next)?;
        let mut key = Zeroizing::new(vec![0; self.key.len()]);
        let mut iv = [0; NONCE_BYTES];
        expand(&next, b"key", &mut key)?;
        expand(&next, b"iv", &mut iv)?;
        Ok(Secrets { key, iv, traffic_secret: Some(next), ..*self })
    }

    /// Returns true if the device can seal and open with these keys.
    pub fn offloads(&self) -> bool {
        self.cipher.device().is_some()
    }

    /// The protocol for the device; `None` if it does not support the suite.
    ///
    /// # Errors
    /// [`KeysError::Length`].
    pub fn protocol(&self) -> Result<Option<Protocol>, KeysError> {
        match self.offloads() {
            true => Ok(Some(Protocol::Tls(Box::new(self.tls()?)))),
            false => Ok(None),
        }
    }

    /// The keys for software's part of the offload.
    ///
    /// # Errors
    /// [`KeysError::Length`]; also for a suite that the device does not support.
    pub fn tls(&self) -> Result<Tls, KeysError> {
        let is_13 = self.version == Version::Tls13;
        device::Keys::of(self.cipher, is_13, &self.key, self.iv, 0)
            .and_then(|keys| static_state(&keys))
            .ok_or(KeysError::Length(self.key.len()))
    }
}

/// A key with which software seals and opens whole records.
pub struct SoftKey {
    key: LessSafeKey,
    version: Version,
    cipher: Cipher,
    iv: [u8; NONCE_BYTES],
}

impl SoftKey {
    /// Creates the key of one direction.
    ///
    /// # Errors
    /// [`KeysError::Length`].
    pub fn new(secrets: &Secrets) -> Result<SoftKey, KeysError> {
        let key = UnboundKey::new(secrets.cipher.algorithm(), &secrets.key)
            .map_err(|_| KeysError::Length(secrets.key.len()))?;
        let &Secrets { version, cipher, iv, .. } = secrets;
        Ok(SoftKey { key: LessSafeKey::new(key), version, cipher, iv })
    }

    /// The negotiated version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Number of bytes before the ciphertext.
    pub fn prefix_bytes(&self) -> usize {
        HEADER_BYTES + self.explicit_bytes()
    }

    /// Bytes of the nonce in the record.
    fn explicit_bytes(&self) -> usize {
        match self.version == Version::Tls12 && self.cipher.explicit_nonce() {
            true => EXPLICIT_NONCE_BYTES,
            false => 0,
        }
    }

    /// Bytes behind the content: the type of TLS 1.3, and the tag.
    pub fn suffix_bytes(&self) -> usize {
        TAG_BYTES + usize::from(self.version == Version::Tls13)
    }

    /// Header and explicit nonce of record `number`, the first byte lowest, and their length. The
    /// explicit nonce is the record's number, which is unique under the key.
    #[inline]
    pub fn prefix(&self, number: u64, content_type: u8, content_bytes: usize) -> (u128, usize) {
        let prefix_bytes = self.prefix_bytes();
        let behind = prefix_bytes - HEADER_BYTES + content_bytes + self.suffix_bytes();
        let outer = if self.version == Version::Tls13 { 23 } else { content_type };
        let length = (behind as u16).swap_bytes();
        let header = u128::from(outer) | 0x0303 << 8 | u128::from(length) << 24;
        (header | u128::from(number.swap_bytes()) << (8 * HEADER_BYTES), prefix_bytes)
    }

    fn nonce(&self, number: u64, explicit: &[u8]) -> Nonce {
        let mut nonce = self.iv;
        if explicit.is_empty() {
            for (value, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
                *value ^= number;
            }
        } else {
            nonce[4..].copy_from_slice(explicit);
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Additional data; for TLS 1.2 with the plaintext's length (RFC 5246 §6.2.3.3).
    fn aad(&self, number: u64, header: &[u8; HEADER_BYTES], plain_bytes: usize) -> Aad13 {
        let mut raw = [0; 13];
        match self.version {
            Version::Tls13 => raw[..HEADER_BYTES].copy_from_slice(header),
            Version::Tls12 => {
                raw[..8].copy_from_slice(&number.to_be_bytes());
                raw[8..11].copy_from_slice(&header[..3]);
                raw[11..].copy_from_slice(&(plain_bytes as u16).to_be_bytes());
            }
        }
        let bytes = if self.version == Version::Tls13 { HEADER_BYTES } else { 13 };
        Aad13 { raw, bytes }
    }

    /// Seals a whole record: `content` goes to `out`, which is as long as the record, between a
    /// prefix and a tag.
    ///
    /// # Errors
    /// Errors of the library: the content is too long.
    pub fn seal(
        &self,
        number: u64,
        content_type: u8,
        content: &[u8],
        out: &mut [u8],
    ) -> Result<(), Forged> {
        let (prefix, prefix_bytes) = self.prefix(number, content_type, content.len());
        let prefix = prefix.to_le_bytes();
        let (front, behind) = out.split_at_mut_checked(prefix_bytes).ok_or(Forged)?;
        front.copy_from_slice(&prefix[..prefix_bytes]);
        let (sealed, rest) = behind.split_at_mut_checked(content.len()).ok_or(Forged)?;
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&prefix[..HEADER_BYTES]);
        let aad = self.aad(number, &header, content.len());
        let nonce = self.nonce(number, &prefix[HEADER_BYTES..prefix_bytes]);
        let inner: &[u8] = if self.version == Version::Tls13 { &[content_type] } else { &[] };
        self.key
            .seal_out_of_place_scatter(
                nonce,
                Aad::from(aad.as_slice()),
                content,
                sealed,
                inner,
                rest,
            )
            .map_err(|_| Forged)
    }

    /// Opens a whole `record` into `out`, which has room for the content between prefix and tag.
    ///
    /// # Errors
    /// [`Forged`]: the content of `out` must not be used.
    pub fn open(&self, number: u64, record: &[u8], out: &mut [u8]) -> Result<(), Forged> {
        let sealed = self.prefix_bytes()..record.len().checked_sub(TAG_BYTES).ok_or(Forged)?;
        let cipher = record.get(sealed.clone()).ok_or(Forged)?;
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&record[..HEADER_BYTES]);
        let aad = self.aad(number, &header, cipher.len());
        let nonce = self.nonce(number, &record[HEADER_BYTES..sealed.start]);
        let tag = &record[sealed.end..];
        self.key
            .open_separate_gather(nonce, Aad::from(aad.as_slice()), cipher, tag, out)
            .map_err(|_| Forged)
    }
}

/// Additional data of either version.
struct Aad13 {
    raw: [u8; 13],
    bytes: usize,
}

impl Aad13 {
    fn as_slice(&self) -> &[u8] {
        &self.raw[..self.bytes]
    }
}
