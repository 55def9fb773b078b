//! Plaintext becomes records: bytes for TCP, in pieces, and the device's knowledge of them.
//!
//! With the offload a record is a header, the caller's own bytes, and room for a tag; the device seals
//! it on the way out. It is one piece to TCP, which keeps it until all of it is acknowledged, since the
//! device may need all of it to seal a part again: here is known only where records start.

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

/// Most bytes of content in a record (RFC 8446 §5.1).
pub const CONTENT_BYTES_MAX: usize = 1 << 14;
/// Most records that are not acknowledged.
pub const RECORDS_MAX: usize = 1 << 14;
/// Most records under one key; RFC 8446 §5.5 has less than 2^24.5 full ones for AES-GCM.
pub const RECORDS_UNDER_KEY_MAX: u64 = 1 << 24;

/// The message of a KeyUpdate (RFC 8446 §4.6.3), but for its last byte.
pub(crate) const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// A warning that nothing follows (RFC 8446 §6.1).
pub(crate) const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// Why a record is not written; nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// [`RECORDS_MAX`] records are not acknowledged.
    #[error("too much is unacknowledged; send when some of it is")]
    Full,
    /// [`RECORDS_UNDER_KEY_MAX`] records were sealed with the key.
    #[error("the key has sealed all that it may; change keys")]
    Worn,
    /// The content is longer than [`CONTENT_BYTES_MAX`].
    #[error("a record has at most {CONTENT_BYTES_MAX} bytes of content; send it in several")]
    TooLong,
    /// Keys cannot be changed.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// The device is to seal with other keys from `start` on.
pub struct Change {
    /// How the flow's machines call the key.
    pub key: u16,
    /// Where the first record under it starts.
    pub start: SeqNumber,
    /// The keys.
    pub secrets: Secrets,
}

/// One direction's writer.
pub struct Sender {
    mode: Mode,
    secrets: Secrets,
    soft: SoftKey,
    /// The next record's, under the key.
    number: u64,
    sent: Runs,
    /// What is around all records of TLS 1.3 with so much application data.
    alike: Option<(usize, Envelope)>,
    /// Records that software has sealed; nobody else has those that have arrived.
    used: VecDeque<Bytes>,
}

impl Sender {
    /// The next record will start at `start`, and has `number` before it under its key. A suite that
    /// the device does not know makes the mode [`Mode::Software`].
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

    /// Who seals.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The keys in use.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// What goes to TCP next, a record with `content`: what is around it is returned. Software's part is
    /// done in place: `content` is the record then, and nothing is around it.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Worn`], [`SendError::TooLong`]; `content` is as it was.
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

    /// The same for a warning that nothing follows.
    ///
    /// # Errors
    /// [`SendError::Full`].
    pub fn close(&mut self) -> Result<Span, SendError> {
        self.record(ALERT, Bytes::from_static(&CLOSE_NOTIFY))
    }

    /// The same for a KeyUpdate (RFC 8446 §4.6.3), after which the next keys are used. With the
    /// offload the device is to be told of them, by what comes beside the record. `request`: the peer
    /// is to change its keys too.
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

    /// Whether so many more records can be written, as far as is known here.
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

    /// A record of this end's own, whose content is short.
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

    /// Room for a record: that of one that has arrived, if it is as long.
    fn buffer(&mut self, bytes: usize) -> BytesMut {
        if self.used.front().is_some_and(Bytes::is_unique)
            && let Some(Ok(buffer)) = self.used.pop_front().map(Bytes::try_into_mut)
            && buffer.len() == bytes
        {
            return buffer;
        }
        BytesMut::zeroed(bytes)
    }

    /// What is around the next record.
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
        // With TLS 1.2 the record's number is in it.
        if suffix == Suffix::Data {
            self.alike = Some((content_bytes, envelope));
        }
        envelope
    }

    /// The next record is this one.
    #[inline]
    fn keep(&mut self, envelope: Envelope, content_bytes: usize) -> Result<Envelope, SendError> {
        let record_bytes = (envelope.bytes() + content_bytes) as u32;
        self.sent.push(record_bytes).map_err(|_| SendError::Full)?;
        self.number += 1;
        Ok(envelope)
    }

    /// Bytes before `acknowledged` have arrived.
    pub fn acknowledge(&mut self, acknowledged: SeqNumber) {
        self.sent.acknowledge(acknowledged);
    }

    /// Keys before this one are not needed any more: their records are acknowledged.
    pub fn oldest_key(&self) -> Option<u16> {
        self.sent.oldest_key()
    }

    /// How many records are not acknowledged.
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
    /// The bytes are TCP's.
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        self.sent.find(seq)
    }
}
