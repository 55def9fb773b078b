//! The sending direction: plaintext becomes records, as spans for TCP and state for the device.
//!
//! With the offload a record is a header, a reference to the caller's bytes, and room for a tag;
//! the device seals it on output. It is one span in TCP, which keeps it until all of it is
//! acknowledged, since the device may need all of it to seal a part again. This module keeps only
//! the record starts.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use unlade_net::SeqNumber;
use unlade_nic_engine::software::runs::Runs;
use unlade_nic_engine::tls::Version;
use unlade_nic_engine::tx::{Found, Messages};

use super::Mode;
use super::keys::{KeysError, Secrets, SoftKey};
use crate::span::{ALERT, APPLICATION_DATA, Envelope, HANDSHAKE, Span, Suffix};

/// Largest number of content bytes in a record (RFC 8446 §5.1).
pub const CONTENT_BYTES_MAX: usize = 1 << 14;
/// Largest number of unacknowledged records.
pub const RECORDS_MAX: usize = 1 << 14;
/// Largest number of records under one key; the limit of RFC 8446 §5.5 is 2^24.5 full ones for
/// AES-GCM.
pub const RECORDS_UNDER_KEY_MAX: u64 = 1 << 24;

/// The message of a KeyUpdate (RFC 8446 §4.6.3), without its last byte.
pub(crate) const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// The alert close_notify (RFC 8446 §6.1).
pub(crate) const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// The reason that a record is not written; nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// [`RECORDS_MAX`] records are unacknowledged.
    #[error("too much is unacknowledged; send when some of it is")]
    Full,
    /// [`RECORDS_UNDER_KEY_MAX`] records were sealed with the key.
    #[error("the key has reached its record limit; change keys")]
    Worn,
    /// The content is longer than [`CONTENT_BYTES_MAX`].
    #[error("a record has at most {CONTENT_BYTES_MAX} bytes of content; send it in several")]
    TooLong,
    /// Keys cannot be changed.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// A request to the device: seal with other keys from `start` on.
pub struct Change {
    /// The flow's number of the key.
    pub key: u16,
    /// Start of the first record under it.
    pub start: SeqNumber,
    /// The keys.
    pub secrets: Secrets,
}

/// The sender of one direction.
pub struct Sender {
    mode: Mode,
    secrets: Secrets,
    soft: SoftKey,
    /// Number of the next record under the key.
    number: u64,
    sent: Runs,
    /// The envelope of TLS 1.3 records with this number of application data bytes.
    alike: Option<(usize, Envelope)>,
    /// Records that software has sealed; those that have arrived have no other owner.
    used: VecDeque<Bytes>,
}

impl Sender {
    /// Creates a sender. The next record starts at `start`, and has `number` before it under its
    /// key. If the device does not support the suite, the mode is [`Mode::Software`].
    ///
    /// # Errors
    /// [`KeysError::Length`].
    pub fn new(
        mode: Mode,
        secrets: Secrets,
        start: SeqNumber,
        number: u64,
    ) -> Result<Sender, KeysError> {
        let mode = if secrets.offloads() { mode } else { Mode::Software };
        let soft = SoftKey::new(&secrets)?;
        let sent = Runs::new(start, number, RECORDS_MAX);
        Ok(Sender { mode, secrets, soft, number, sent, alike: None, used: VecDeque::new() })
    }

    /// The side that seals.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The keys in use.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Prepares the next record with `content` for TCP: returns its envelope. In software mode
    /// the record is sealed: `content` is the record then, and the envelope is empty.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Worn`], [`SendError::TooLong`]; `content` is unchanged.
    #[inline]
    pub fn write(&mut self, content: &mut Bytes) -> Result<Envelope, SendError> {
        if self.number >= RECORDS_UNDER_KEY_MAX {
            return Err(SendError::Worn);
        }
        if content.len() > CONTENT_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        if self.mode == Mode::Software {
            *content = self.seal(APPLICATION_DATA, content)?;
            return Ok(Envelope::NONE);
        }
        let envelope = match self.alike {
            Some((bytes, envelope)) if bytes == content.len() => envelope,
            _ => self.envelope(APPLICATION_DATA, content.len()),
        };
        self.keep(envelope, content.len())
    }

    /// Creates a close_notify record.
    ///
    /// # Errors
    /// [`SendError::Full`].
    pub fn close(&mut self) -> Result<Span, SendError> {
        self.record(ALERT, Bytes::from_static(&CLOSE_NOTIFY))
    }

    /// Creates a KeyUpdate record (RFC 8446 §4.6.3), and switches to the next keys. With the
    /// offload the caller passes the returned change to the device. `request`: the peer is to
    /// change its keys too.
    ///
    /// # Errors
    /// [`SendError::Full`], [`KeysError::NoSecret`]: nothing was changed.
    pub fn update_keys(&mut self, request: bool) -> Result<(Span, Option<Change>), SendError> {
        if self.secrets.version != Version::Tls13 {
            return Err(KeysError::NoSecret.into());
        }
        let secrets = self.secrets.next()?;
        let soft = SoftKey::new(&secrets)?;
        let content = [&KEY_UPDATE[..], &[u8::from(request)]].concat();
        let record = self.record(HANDSHAKE, content.into())?;
        (self.secrets, self.soft, self.number) = (secrets.clone(), soft, 0);
        if self.mode == Mode::Software {
            return Ok((record, None));
        }
        let (key, start) = self.sent.change_key();
        Ok((record, Some(Change { key, start, secrets })))
    }

    /// Checks the limits of this sender for `records` more records.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Worn`].
    pub fn room_for(&self, records: usize) -> Result<(), SendError> {
        if self.sent.len() + records > RECORDS_MAX {
            return Err(SendError::Full);
        }
        match self.number + records as u64 > RECORDS_UNDER_KEY_MAX {
            true => Err(SendError::Worn),
            false => Ok(()),
        }
    }

    /// Creates a record with short content of this end.
    fn record(&mut self, content_type: u8, content: Bytes) -> Result<Span, SendError> {
        match self.mode {
            Mode::Software => self.seal(content_type, &content).map(Span::from),
            Mode::Offload => {
                let envelope = self.envelope(content_type, content.len());
                self.keep(envelope, content.len())?;
                Ok(Span::record(envelope, content))
            }
        }
    }

    #[inline(never)]
    fn seal(&mut self, content_type: u8, content: &[u8]) -> Result<Bytes, SendError> {
        let bytes = self.soft.prefix_bytes() + content.len() + self.soft.suffix_bytes();
        let mut record = self.buffer(bytes);
        let sealed = self.soft.seal(self.number, content_type, content, &mut record);
        sealed.map_err(|_| SendError::TooLong)?;
        self.number += 1;
        let record = record.freeze();
        if self.used.len() < RECORDS_MAX {
            self.used.push_back(record.clone());
        }
        Ok(record)
    }

    /// Takes a buffer for a record: that of a record that has arrived, if its length fits.
    fn buffer(&mut self, bytes: usize) -> BytesMut {
        if self.used.front().is_some_and(Bytes::is_unique)
            && let Some(Ok(buffer)) = self.used.pop_front().map(Bytes::try_into_mut)
            && buffer.len() == bytes
        {
            return buffer;
        }
        BytesMut::zeroed(bytes)
    }

    /// The envelope of the next record.
    #[inline(never)]
    fn envelope(&mut self, content_type: u8, content_bytes: usize) -> Envelope {
        let suffix = match (self.soft.version(), content_type) {
            (Version::Tls12, _) => Suffix::Tag,
            (Version::Tls13, HANDSHAKE) => Suffix::Handshake,
            (Version::Tls13, ALERT) => Suffix::Alert,
            (Version::Tls13, _) => Suffix::Data,
        };
        let (prefix, prefix_bytes) = self.soft.prefix(self.number, content_type, content_bytes);
        let envelope = Envelope::new(prefix, prefix_bytes, suffix);
        // With TLS 1.2 the envelope contains the record's number.
        if suffix == Suffix::Data {
            self.alike = Some((content_bytes, envelope));
        }
        envelope
    }

    /// Adds the next record.
    #[inline]
    fn keep(&mut self, envelope: Envelope, content_bytes: usize) -> Result<Envelope, SendError> {
        let record_bytes = (envelope.bytes() + content_bytes) as u32;
        self.sent.push(record_bytes).map_err(|_| SendError::Full)?;
        self.number += 1;
        Ok(envelope)
    }

    /// Notes that the bytes before `acknowledged` have arrived.
    pub fn acknowledge(&mut self, acknowledged: SeqNumber) {
        self.sent.acknowledge(acknowledged);
    }

    /// The oldest key with unacknowledged records; earlier ones are not needed any more.
    pub fn oldest_key(&self) -> Option<u16> {
        self.sent.oldest_key()
    }

    /// Number of unacknowledged records.
    pub fn unacknowledged(&self) -> usize {
        self.sent.len()
    }
}

impl Sender {
    /// See [`under_one_key`](Runs::under_one_key).
    pub fn under_one_key(&self, seq: SeqNumber, raw: usize) -> Option<(u16, usize)> {
        self.sent.under_one_key(seq, raw)
    }
}

impl Messages for Sender {
    /// The bytes are in TCP's buffer.
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        self.sent.find(seq)
    }
}
