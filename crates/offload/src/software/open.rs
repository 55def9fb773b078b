//! What is left to do for a record that the device has decrypted in part.
//!
//! Every octet goes through counter mode once and through GHASH once, as if nothing had been
//! decrypted: what came sealed is decrypted and hashed, of what came decrypted the ciphertext is
//! made again, hashed and thrown away. So it costs what decrypting a record costs, less than the
//! paper's fallback, which encrypts the record before it decrypts it.

use aead::{Forged, Progress};
use zeroize::Zeroize;

use crate::l5p::{HEADER_BYTES_MAX, Message};
use crate::resync::Pass;
use crate::rule::{Rule, holds};
use crate::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, TAG_BYTES, Tls, Version};

/// Octets whose ciphertext is made again at once.
const PIECE_BYTES: usize = 1024;

/// A range of a record that came in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it ends, octets behind the start of the record. It starts where the one before ends.
    pub end: usize,
    /// The pass in which the device has decrypted it; nothing where it came sealed.
    pub pass: Option<Pass>,
}

impl Tls {
    /// The octets of a record that are ciphertext, from its start on.
    pub(crate) fn sealed_range(&self, record_bytes: usize) -> std::ops::Range<usize> {
        self.prefix_bytes()..record_bytes - TAG_BYTES
    }

    fn explicit(&self, record: &[u8]) -> [u8; EXPLICIT_NONCE_BYTES] {
        let mut explicit = [0; EXPLICIT_NONCE_BYTES];
        if self.version() == Version::Tls12 {
            explicit.copy_from_slice(&record[HEADER_BYTES..HEADER_BYTES + EXPLICIT_NONCE_BYTES]);
        }
        explicit
    }

    /// Opens a whole `record` in place, record `number`, whose `parts` have come sealed or
    /// decrypted.
    ///
    /// # Errors
    /// [`Forged`]: what is in `record` must not be used.
    pub(crate) fn open(
        &self,
        number: u64,
        record: &mut [u8],
        parts: &[Part],
    ) -> Result<(), Forged> {
        let sealed = self.sealed_range(record.len());
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&record[sealed.end..]);
        let at = self.pass_over(number, record, parts);
        self.key().verify(&at, &tag)
    }

    /// The tag that record `number` must have, if its `parts` have come so; what is in `record` is
    /// not to be used afterwards.
    pub(crate) fn tag(&self, number: u64, record: &mut [u8], parts: &[Part]) -> [u8; TAG_BYTES] {
        let at = self.pass_over(number, record, parts);
        self.key().tag(&at).0
    }

    /// Decrypts what came sealed, and hashes the ciphertext of everything.
    fn pass_over(&self, number: u64, record: &mut [u8], parts: &[Part]) -> Progress {
        let sealed = self.sealed_range(record.len());
        let mut header = [0; HEADER_BYTES_MAX];
        header[..HEADER_BYTES].copy_from_slice(&record[..HEADER_BYTES]);
        let message = Message { number, message_bytes: record.len() as u32, header };
        let mut at = self.start(&message, &self.explicit(record));
        let mut piece = [0; PIECE_BYTES];
        let mut start = 0;
        for part in parts {
            let range = start.max(sealed.start)..part.end.min(sealed.end);
            start = part.end;
            let Some(octets) = record.get_mut(range) else { continue };
            match part.pass {
                None => self.key().decrypt(&mut at, octets),
                Some(_) if !holds(Rule::Restore) => self.key().authenticate(&mut at, octets),
                Some(_) => {
                    for plain in octets.chunks(PIECE_BYTES) {
                        self.key().encrypt_to(&mut at, plain, &mut piece[..plain.len()]);
                    }
                }
            }
        }
        piece.zeroize();
        at
    }

    /// Makes ciphertext again of what was decrypted of `record` as record `number` under this key,
    /// which was not its key: in those `parts` that were decrypted under `key`. They count as
    /// sealed then.
    pub(crate) fn restore(&self, number: u64, record: &mut [u8], parts: &mut [Part], key: u16) {
        let sealed = self.sealed_range(record.len());
        let nonce = self.nonce(number, &self.explicit(record));
        let mut start = 0;
        for part in parts {
            let range = start.max(sealed.start)..part.end.min(sealed.end);
            start = part.end;
            if part.pass.is_none_or(|pass| pass.key != key) {
                continue;
            }
            part.pass = None;
            let offset = range.start.saturating_sub(sealed.start) as u64;
            if let Some(octets) = record.get_mut(range) {
                self.key().keystream(&nonce, offset, octets);
            }
        }
    }
}
