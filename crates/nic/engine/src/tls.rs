//! TLS records under AES-GCM: TLS 1.3 (RFC 8446 §5) and TLS 1.2 (RFC 5246 §6.2, RFC 5288).
//!
//! ```text
//!  1.3   type 23 │ 03 03 │ length │ ciphertext, inner type, padding │ tag
//!  1.2   type    │ 03 03 │ length │ nonce, 8 bytes │ ciphertext     │ tag
//! ```
//! Header, explicit nonce and tag do not change on receive. On transmit software writes header and
//! nonce, and leaves 16 bytes for the tag. KeyUpdate is handled by software: the machines restart
//! with another [`Tls`], at the first record of the new key.

use unlade_aead::{Key, KeyError, Progress as Sealed};

use crate::l5p::{L5p, Message};
use crate::placement::Placer;
use crate::rule::{Rule, holds};

/// Length of a record's header.
pub const HEADER_BYTES: usize = 5;
/// Length of a tag.
pub const TAG_BYTES: usize = 16;
/// Length of the nonce in a TLS 1.2 record.
pub const EXPLICIT_NONCE_BYTES: usize = 8;
/// Length of a nonce.
const NONCE_BYTES: usize = 12;

pub(crate) const APPLICATION_DATA: u8 = 23;
const CHANGE_CIPHER_SPEC: u8 = 20;
const HEARTBEAT: u8 = 24;

/// The negotiated version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2 with an explicit nonce in each record.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// One direction of a connection: its key, and the base of its nonces.
pub struct Tls {
    key: Key,
    version: Version,
    /// TLS 1.3: the whole IV; TLS 1.2: the first four bytes, the others are in the record.
    iv: [u8; NONCE_BYTES],
}

impl Tls {
    /// Creates the state from a key of 16 or 32 bytes, and the IV from the handshake. TLS 1.2 uses
    /// only the first four bytes of `iv`.
    ///
    /// # Errors
    /// The key has another length.
    pub fn new(version: Version, key: &[u8], iv: [u8; 12]) -> Result<Tls, KeyError> {
        Ok(Tls { key: Key::new(key)?, version, iv })
    }

    /// The negotiated version.
    pub fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Number of bytes before the ciphertext.
    pub(crate) fn prefix_bytes(&self) -> usize {
        match self.version {
            Version::Tls12 => HEADER_BYTES + EXPLICIT_NONCE_BYTES,
            Version::Tls13 => HEADER_BYTES,
        }
    }

    /// Minimum and maximum number of bytes after a header.
    fn limits(&self) -> (u16, u16) {
        match self.version {
            // At least an inner type; 2^14 + 256 (RFC 8446 §5.2).
            Version::Tls13 => (1 + TAG_BYTES as u16, (1 << 14) + 256),
            // 2^14 + 2048 (RFC 5246 §6.2.3).
            Version::Tls12 => ((EXPLICIT_NONCE_BYTES + TAG_BYTES) as u16, (1 << 14) + 2048),
        }
    }

    fn type_fits(&self, content_type: u8) -> bool {
        match self.version {
            Version::Tls13 => content_type == APPLICATION_DATA,
            Version::Tls12 => (CHANGE_CIPHER_SPEC..=HEARTBEAT).contains(&content_type),
        }
    }

    /// The nonce of record `number`; for TLS 1.2 with the explicit nonce of the record.
    pub(crate) fn nonce(&self, number: u64, explicit: &[u8; EXPLICIT_NONCE_BYTES]) -> [u8; 12] {
        let mut nonce = self.iv;
        match self.version {
            Version::Tls12 => nonce[4..].copy_from_slice(explicit),
            Version::Tls13 => {
                for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
                    *byte ^= number;
                }
            }
        }
        nonce
    }

    /// Starts to seal or open a record.
    pub(crate) fn start(&self, message: &Message, explicit: &[u8; EXPLICIT_NONCE_BYTES]) -> Sealed {
        let nonce = self.nonce(message.number, explicit);
        let header = &message.header[..HEADER_BYTES];
        match self.version {
            Version::Tls13 => self.key.begin(&nonce, header),
            Version::Tls12 => {
                let overhead = self.prefix_bytes() + TAG_BYTES;
                let plaintext_bytes = (message.message_bytes as usize - overhead) as u16;
                let mut aad = [0; 13];
                aad[..8].copy_from_slice(&message.number.to_be_bytes());
                aad[8..11].copy_from_slice(&header[..3]);
                aad[11..].copy_from_slice(&plaintext_bytes.to_be_bytes());
                self.key.begin(&nonce, &aad)
            }
        }
    }

    /// Bounds of nonce, ciphertext and tag in the next `bytes` bytes after `offset`.
    fn parts(&self, message: &Message, offset: u32, bytes: usize) -> Parts {
        let offset = offset as usize;
        let sealed = self.prefix_bytes();
        let tag = message.message_bytes as usize - TAG_BYTES;
        let nonce_end = sealed.saturating_sub(offset).min(bytes);
        let sealed_end = tag.saturating_sub(offset).clamp(nonce_end, bytes);
        Parts {
            nonce_end,
            sealed_end,
            nonce_at: offset.saturating_sub(HEADER_BYTES).min(EXPLICIT_NONCE_BYTES),
            tag_at: offset.saturating_sub(tag),
        }
    }

    /// The application data in the next `bytes` bytes after `offset` of a record, and the position
    /// of the content type byte (TLS 1.3).
    pub(crate) fn content(&self, message: &Message, offset: u32, bytes: usize) -> Content {
        let Parts { nonce_end: start, sealed_end, .. } = self.parts(message, offset, bytes);
        match self.version {
            Version::Tls12 if message.header[0] == APPLICATION_DATA => {
                Content { range: start..sealed_end, type_at: None }
            }
            Version::Tls12 => Content { range: start..start, type_at: None },
            Version::Tls13 => {
                let type_at = message.message_bytes as usize - TAG_BYTES - 1;
                let type_at = type_at.checked_sub(offset as usize).filter(|at| *at < bytes);
                let range = start..type_at.unwrap_or(sealed_end).max(start);
                Content { range, type_at }
            }
        }
    }

    /// The tag of the bytes processed so far.
    pub(crate) fn fingerprint(&self, at: &Progress) -> [u8; TAG_BYTES] {
        self.key.tag(&at.sealed).0
    }

    /// Stores bytes of the explicit nonce, and starts the record after the last one.
    fn take_nonce(&self, message: &Message, at: &mut Progress, parts: &Parts, bytes: &[u8]) {
        let end = parts.nonce_at + bytes.len();
        at.explicit[parts.nonce_at..end].copy_from_slice(bytes);
        if end == EXPLICIT_NONCE_BYTES {
            at.sealed = self.start(message, &at.explicit);
        }
    }
}

/// Bounds of application data in a range of a record.
pub(crate) struct Content {
    pub range: std::ops::Range<usize>,
    /// The record's last byte before the tag.
    pub type_at: Option<usize>,
}

/// Ends of the parts of a range of a record, and the offsets in nonce and tag at which it begins.
struct Parts {
    nonce_end: usize,
    sealed_end: usize,
    nonce_at: usize,
    tag_at: usize,
}

/// State of the processing of one record.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    sealed: Sealed,
    /// The tag: its received bytes, or the bytes to send.
    tag: [u8; TAG_BYTES],
    explicit: [u8; EXPLICIT_NONCE_BYTES],
}

impl L5p for Tls {
    const HEADER_BYTES: usize = HEADER_BYTES;

    const REWRITES: bool = true;

    type Progress = Progress;

    /// The nonce of TLS 1.3 depends on the number. That of TLS 1.2 is in the record, which may not
    /// be available to software.
    fn proves_number(&self) -> bool {
        self.version == Version::Tls13
    }

    fn message_bytes(&self, header: &[u8]) -> Option<u32> {
        let &[content_type, 3, 3, high, low] = header else { return None };
        let length = u16::from_be_bytes([high, low]);
        let (least, most) = self.limits();
        let most = if holds(Rule::Length) { most } else { u16::MAX };
        (self.type_fits(content_type) && (least..=most).contains(&length))
            .then(|| HEADER_BYTES as u32 + u32::from(length))
    }

    fn begin(&self, message: &Message) -> Progress {
        let explicit = [0; EXPLICIT_NONCE_BYTES];
        let sealed = match self.version {
            Version::Tls13 => self.start(message, &explicit),
            // A placeholder: the record starts when the nonce is complete.
            Version::Tls12 => Sealed::part(&[0; NONCE_BYTES], 0),
        };
        Progress { sealed, tag: [0; TAG_BYTES], explicit }
    }

    fn receive(
        &self,
        message: &Message,
        at: &mut Progress,
        offset: u32,
        bytes: &[u8],
        out: Option<&mut [u8]>,
        _placer: &mut Placer<'_>,
    ) -> bool {
        let parts = self.parts(message, offset, bytes.len());
        let Parts { nonce_end, sealed_end, tag_at, .. } = parts;
        if nonce_end > 0 {
            self.take_nonce(message, at, &parts, &bytes[..nonce_end]);
        }
        let sealed = &bytes[nonce_end..sealed_end];
        let tag = &bytes[sealed_end..];
        at.tag[tag_at..tag_at + tag.len()].copy_from_slice(tag);
        match out {
            Some(out) => {
                out[..nonce_end].copy_from_slice(&bytes[..nonce_end]);
                out[sealed_end..].copy_from_slice(tag);
                if !sealed.is_empty() {
                    self.key.decrypt_to(&mut at.sealed, sealed, &mut out[nonce_end..sealed_end]);
                }
            }
            None if sealed.is_empty() => (),
            None => self.key.authenticate(&mut at.sealed, sealed),
        }
        true
    }

    fn verify(&self, _message: &Message, at: &Progress) -> bool {
        self.key.verify(&at.sealed, &at.tag).is_ok()
    }

    fn transmit(&self, message: &Message, at: &mut Progress, offset: u32, bytes: &mut [u8]) {
        let parts = self.parts(message, offset, bytes.len());
        let Parts { nonce_end, sealed_end, tag_at, .. } = parts;
        if nonce_end > 0 {
            self.take_nonce(message, at, &parts, &bytes[..nonce_end]);
        }
        let (sealed, tag) = bytes.split_at_mut(sealed_end);
        let sealed = &mut sealed[nonce_end..];
        if !sealed.is_empty() {
            self.key.encrypt(&mut at.sealed, sealed);
        }
        if !tag.is_empty() {
            if tag_at == 0 {
                at.tag = self.key.tag(&at.sealed).0;
            }
            tag.copy_from_slice(&at.tag[tag_at..tag_at + tag.len()]);
        }
    }

    fn transmit_to(
        &self,
        message: &Message,
        at: &mut Progress,
        offset: u32,
        bytes: &[u8],
        out: &mut [u8],
    ) {
        let parts = self.parts(message, offset, bytes.len());
        let sealed = parts.nonce_end..parts.sealed_end;
        if sealed.len() != bytes.len() {
            // Nonce or tag are in range; such ranges are few and short.
            out.copy_from_slice(bytes);
            return self.transmit(message, at, offset, out);
        }
        if !bytes.is_empty() {
            self.key.encrypt_to(&mut at.sealed, bytes, out);
        }
    }
}

/// Returns content type and content length of a decrypted TLS 1.3 record, without padding
/// (RFC 8446 §5.4), or `None` if it has no type.
pub fn inner(plaintext: &[u8]) -> Option<(u8, usize)> {
    let at = plaintext.iter().rposition(|&byte| byte != 0)?;
    Some((plaintext[at], at))
}
