//! Plaintext becomes records: octets for TCP, in pieces, and the device's knowledge of them.
//!
//! With the offload a record is a header, the caller's own octets, and room for a tag; the device seals
//! it on the way out. It is kept until all of it is acknowledged, since the device may need all of it
//! to seal a part again.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use offload::software::sent::{Extent, Located, Sent};
use offload::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, TAG_BYTES, Version};
use offload::tx::{Found, MessageState, Messages};
use thiserror::Error;
use wire::SeqNumber;

use super::Mode;
use super::keys::{KeysError, Secrets, SoftKey};
use crate::driver::Source;

/// Most octets of content in a record (RFC 8446 §5.1).
pub const CONTENT_BYTES_MAX: usize = 1 << 14;
/// Most records that are not acknowledged.
pub const RECORDS_MAX: usize = 1 << 14;
/// Most records under one key; RFC 8446 §5.5 has less than 2^24.5 full ones for AES-GCM.
pub const RECORDS_UNDER_KEY_MAX: u64 = 1 << 24;

/// Content types (RFC 8446 §5.1).
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;
/// The message of a KeyUpdate (RFC 8446 §4.6.3), but for its last octet.
pub(crate) const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// A warning that nothing follows (RFC 8446 §6.1).
pub(crate) const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// What is behind content, with TLS 1.3: a type, and room for a tag.
static SUFFIX_DATA: [u8; 1 + TAG_BYTES] = suffix(APPLICATION_DATA);
static SUFFIX_HANDSHAKE: [u8; 1 + TAG_BYTES] = suffix(HANDSHAKE);
static SUFFIX_ALERT: [u8; 1 + TAG_BYTES] = suffix(ALERT);

const fn suffix(content_type: u8) -> [u8; 1 + TAG_BYTES] {
    let mut suffix = [0; 1 + TAG_BYTES];
    suffix[0] = content_type;
    suffix
}

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
    #[error("a record has at most {CONTENT_BYTES_MAX} octets of content; send it in several")]
    TooLong,
    /// Keys cannot be changed.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// A record as software wrote it, its content where the caller has it.
pub struct Record {
    prefix: [u8; HEADER_BYTES + EXPLICIT_NONCE_BYTES],
    prefix_bytes: u8,
    content: Bytes,
    suffix: &'static [u8],
}

impl Extent for Record {
    fn octets(&self) -> usize {
        usize::from(self.prefix_bytes) + self.content.len() + self.suffix.len()
    }
}

impl Record {
    /// Appends the first `octets` to `out`.
    fn copy(&self, octets: usize, out: &mut Vec<u8>) {
        let mut left = octets;
        for part in [&self.prefix[..usize::from(self.prefix_bytes)], &self.content, self.suffix] {
            let taken = left.min(part.len());
            out.extend_from_slice(&part[..taken]);
            left -= taken;
        }
    }
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
    sent: Sent<Record>,
    /// A prefix that fits all records of TLS 1.3 with so much content.
    cached: (usize, Bytes),
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
        let mode = if secrets.suite.offloads() { mode } else { Mode::Software };
        let soft = SoftKey::new(&secrets)?;
        let sent = Sent::new(start, number, RECORDS_MAX);
        Ok(Sender {
            mode,
            secrets,
            soft,
            number,
            sent,
            cached: (0, Bytes::new()),
            used: VecDeque::new(),
        })
    }

    /// Who seals.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The keys in use.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Appends the octets of a record with `content` to `pieces`, which go to TCP next.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Worn`], [`SendError::TooLong`].
    pub fn write(&mut self, content: Bytes, pieces: &mut Vec<Bytes>) -> Result<(), SendError> {
        if self.number >= RECORDS_UNDER_KEY_MAX {
            return Err(SendError::Worn);
        }
        self.record(APPLICATION_DATA, content, pieces)
    }

    /// The same for a warning that nothing follows.
    ///
    /// # Errors
    /// [`SendError::Full`].
    pub fn close(&mut self, pieces: &mut Vec<Bytes>) -> Result<(), SendError> {
        self.record(ALERT, Bytes::from_static(&CLOSE_NOTIFY), pieces)
    }

    /// The same for a KeyUpdate (RFC 8446 §4.6.3), after which the next keys are used. With the
    /// offload the device is to be told of them. `request`: the peer is to change its keys too.
    ///
    /// # Errors
    /// [`SendError::Full`], [`KeysError::NoSecret`]: nothing was changed.
    pub fn update_keys(
        &mut self,
        request: bool,
        pieces: &mut Vec<Bytes>,
    ) -> Result<Option<Change>, SendError> {
        if self.secrets.version != Version::Tls13 {
            return Err(KeysError::NoSecret.into());
        }
        let secrets = self.secrets.next()?;
        let soft = SoftKey::new(&secrets)?;
        let content = [&KEY_UPDATE[..], &[u8::from(request)]].concat();
        self.record(HANDSHAKE, content.into(), pieces)?;
        (self.secrets, self.soft, self.number) = (secrets.clone(), soft, 0);
        if self.mode == Mode::Software {
            return Ok(None);
        }
        let (key, start) = self.sent.change_key();
        Ok(Some(Change { key, start, secrets }))
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

    fn record(
        &mut self,
        content_type: u8,
        content: Bytes,
        pieces: &mut Vec<Bytes>,
    ) -> Result<(), SendError> {
        if content.len() > CONTENT_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        match self.mode {
            Mode::Software => self.seal(content_type, &content, pieces)?,
            Mode::Offload => self.describe(content_type, content, pieces)?,
        }
        self.number += 1;
        Ok(())
    }

    fn seal(
        &mut self,
        content_type: u8,
        content: &[u8],
        pieces: &mut Vec<Bytes>,
    ) -> Result<(), SendError> {
        let bytes = self.soft.prefix_bytes() + content.len() + self.soft.suffix_bytes();
        let mut record = self.buffer(bytes);
        let sealed = self.soft.seal(self.number, content_type, content, &mut record);
        sealed.map_err(|_| SendError::TooLong)?;
        let record = record.freeze();
        if self.used.len() < RECORDS_MAX {
            self.used.push_back(record.clone());
        }
        pieces.push(record);
        Ok(())
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

    fn describe(
        &mut self,
        content_type: u8,
        content: Bytes,
        pieces: &mut Vec<Bytes>,
    ) -> Result<(), SendError> {
        let mut prefix = [0; HEADER_BYTES + EXPLICIT_NONCE_BYTES];
        let prefix_bytes = self.soft.prefix(self.number, content_type, content.len(), &mut prefix);
        let suffix: &'static [u8] = match (self.soft.version(), content_type) {
            (Version::Tls12, _) => &SUFFIX_DATA[1..],
            (Version::Tls13, HANDSHAKE) => &SUFFIX_HANDSHAKE,
            (Version::Tls13, ALERT) => &SUFFIX_ALERT,
            (Version::Tls13, _) => &SUFFIX_DATA,
        };
        let record =
            Record { prefix, prefix_bytes: prefix_bytes as u8, content: content.clone(), suffix };
        self.sent.push(record).map_err(|_| SendError::Full)?;
        pieces.push(self.prefix_piece(&prefix[..prefix_bytes], content.len()));
        if !content.is_empty() {
            pieces.push(content);
        }
        pieces.push(Bytes::from_static(suffix));
        Ok(())
    }

    /// A prefix as a piece; one that is like the last is not made anew.
    fn prefix_piece(&mut self, prefix: &[u8], content_bytes: usize) -> Bytes {
        let alike = self.soft.version() == Version::Tls13;
        if !alike || self.cached.1.is_empty() || self.cached.0 != content_bytes {
            self.cached = (content_bytes, Bytes::copy_from_slice(prefix));
        }
        self.cached.1.clone()
    }

    /// Octets before `acknowledged` have arrived.
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

impl Messages for Sender {
    /// The octets are not in one place: [`Source::copy`] gives them.
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        match self.sent.locate(seq) {
            Located::Message(kept) => Found::Message(MessageState {
                start: kept.start,
                number: kept.number,
                key: kept.key,
                bytes: &[],
            }),
            Located::Before { until } => Found::Before { until },
            Located::Unknown => Found::Unknown,
        }
    }
}

impl Source for Sender {
    fn under_one_key(&self, seq: SeqNumber, octets: usize) -> Option<(u16, usize)> {
        self.sent.under_one_key(seq, octets)
    }

    fn copy(&self, start: SeqNumber, until: SeqNumber, out: &mut Vec<u8>) {
        if let Located::Message(kept) = self.sent.locate(start) {
            kept.held.copy(until.since(start).max(0) as usize, out);
        }
    }
}
