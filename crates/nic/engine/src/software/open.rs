//! Decryption of a record that the device has decrypted in part.
//!
//! Every byte passes through counter mode once and through GHASH once, as if the device had
//! decrypted nothing. Sealed bytes are decrypted and hashed. For decrypted bytes the ciphertext is
//! regenerated, hashed and discarded. The cost is that of decrypting a record, less than the
//! paper's fallback, which encrypts the record before it decrypts it.

use std::ops::Range;

use unlade_aead::{Forged, Progress};
use unlade_net::SeqNumber;
use zeroize::Zeroize;

use crate::l5p::{HEADER_BYTES_MAX, Message};
use crate::resync::{Extent, Worked};
use crate::rule::{Rule, holds};
use crate::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, TAG_BYTES, Tls, Version};

/// Number of bytes whose ciphertext is regenerated in one step.
const CHUNK_BYTES: usize = 1024;

/// A range of a record that was delivered in one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// End of the range, bytes from the start of the record. It starts at the end of the previous
    /// one.
    pub end: usize,
    /// Metadata of its decryption by the device; `None` if it came sealed.
    pub worked: Option<Worked>,
}

/// A record's position in the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// Start of the record.
    pub start: SeqNumber,
    /// Its number, or the number that the device assumed.
    pub number: u64,
}

impl Position {
    /// The bytes of the record that the device processed as bytes of `message`.
    fn overlap(&self, record_bytes: usize, message: &Extent) -> Range<usize> {
        let clamp = |at: i64| at.clamp(0, record_bytes as i64) as usize;
        let start = i64::from(message.start.since(self.start));
        clamp(start)..clamp(start + i64::from(message.bytes))
    }

    /// Number of bytes in `range` of the record that the device processed as bytes of another
    /// message; they are the first ones.
    pub(crate) fn mistaken(&self, range: Range<usize>, message: &Extent) -> Option<usize> {
        let taken = self.overlap(range.end, message).end.saturating_sub(range.start);
        let is_own = (message.start, message.number) == (self.start, self.number);
        (taken > 0 && !is_own).then_some(taken)
    }
}

impl Tls {
    /// The range of the ciphertext in a record.
    pub(crate) fn sealed_range(&self, record_bytes: usize) -> Range<usize> {
        self.prefix_bytes()..record_bytes - TAG_BYTES
    }

    /// The nonce in a TLS 1.2 record; zeros for TLS 1.3.
    pub(crate) fn explicit(&self, record: &[u8]) -> [u8; EXPLICIT_NONCE_BYTES] {
        let mut explicit = [0; EXPLICIT_NONCE_BYTES];
        let range = HEADER_BYTES..HEADER_BYTES + EXPLICIT_NONCE_BYTES;
        if let Some(nonce) = record.get(range).filter(|_| self.version() == Version::Tls12) {
            explicit.copy_from_slice(nonce);
        }
        explicit
    }

    /// Opens a complete `record` in place, record `number`, whose `parts` came sealed or
    /// decrypted.
    ///
    /// # Errors
    /// [`Forged`]: the content of `record` must not be used.
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

    /// The tag of record `number` whose `parts` came in the given forms. The content of `record`
    /// must not be used afterwards.
    pub(crate) fn tag(&self, number: u64, record: &mut [u8], parts: &[Part]) -> [u8; TAG_BYTES] {
        let at = self.pass_over(number, record, parts);
        self.key().tag(&at).0
    }

    /// Decrypts the sealed parts, and hashes the ciphertext of all parts.
    fn pass_over(&self, number: u64, record: &mut [u8], parts: &[Part]) -> Progress {
        let sealed = self.sealed_range(record.len());
        let mut header = [0; HEADER_BYTES_MAX];
        header[..HEADER_BYTES].copy_from_slice(&record[..HEADER_BYTES]);
        let message = Message { number, message_bytes: record.len() as u32, header };
        let mut at = self.start(&message, &self.explicit(record));
        let mut piece = [0; CHUNK_BYTES];
        let mut start = 0;
        for part in parts {
            let range = start.max(sealed.start)..part.end.min(sealed.end);
            start = part.end;
            let Some(bytes) = record.get_mut(range) else { continue };
            match part.worked {
                None => self.key().decrypt(&mut at, bytes),
                Some(_) if !holds(Rule::Restore) => self.key().authenticate(&mut at, bytes),
                Some(_) => {
                    for plain in bytes.chunks(CHUNK_BYTES) {
                        self.key().encrypt_to(&mut at, plain, &mut piece[..plain.len()]);
                    }
                }
            }
        }
        piece.zeroize();
        at
    }

    /// Regenerates the ciphertext of the bytes in `range` of a record at `position`, which the
    /// device has decrypted under this key: of the bytes that it processed as bytes of `message`
    /// with that message's parameters, of the bytes after them with the record's own.
    pub(crate) fn restore(
        &self,
        position: &Position,
        record: &mut [u8],
        range: Range<usize>,
        message: &Extent,
    ) {
        let middle = position.overlap(record.len(), message).end.clamp(range.start, range.end);
        let own =
            Extent { start: position.start, bytes: record.len() as u32, number: position.number };
        let explicit = self.explicit(record);
        self.undo(position, range.start, &mut record[range.start..middle], message, &explicit);
        self.undo(position, middle, &mut record[middle..range.end], &own, &explicit);
    }

    /// Regenerates the ciphertext of bytes that start `at` bytes after the start of a record at
    /// `position`, and that were decrypted as bytes of `message`, with that `explicit` nonce.
    pub(crate) fn undo(
        &self,
        position: &Position,
        at: usize,
        bytes: &mut [u8],
        message: &Extent,
        explicit: &[u8; EXPLICIT_NONCE_BYTES],
    ) {
        // Only the message's ciphertext was transformed.
        let start = i64::from(message.start.since(position.start)) - at as i64;
        let body = start + self.prefix_bytes() as i64;
        let end = start + i64::from(message.bytes) - TAG_BYTES as i64;
        let (first, end) = (body.max(0), end.min(bytes.len() as i64));
        if first < end {
            let nonce = self.nonce(message.number, explicit);
            let bytes = &mut bytes[first as usize..end as usize];
            self.key().keystream(&nonce, (first - body) as u64, bytes);
        }
    }
}
