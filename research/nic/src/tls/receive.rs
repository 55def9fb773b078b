//! The receiving direction: records become plaintext.
//!
//! A record that the device has decrypted and authenticated completely in one pass is returned
//! without a copy: software reads its header and its type only. Any other record is assembled and
//! opened. No byte of a record is returned before all of it is authenticated.

use std::collections::VecDeque;

use bytes::Bytes;
use thiserror::Error;
use unlade_net::SeqNumber;
use unlade_nic_engine::Stats;
use unlade_nic_engine::resync::{Request, Response};
use unlade_nic_engine::software::records::{RecordError, Records};
use unlade_nic_engine::tls::{HEADER_BYTES, TAG_BYTES, Version, inner};
use zeroize::Zeroize;

use super::Mode;
use super::keys::{KeysError, Secrets, SoftKey};
use crate::flow::Protocol;
use crate::rx_bytes::RxBytes;
use crate::span::{ALERT, APPLICATION_DATA, HANDSHAKE};

/// Limit of buffered handshake messages until one of them is complete.
const HANDSHAKE_BYTES_MAX: usize = 1 << 17;
/// Types of handshake messages (RFC 8446 §4).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The reason of the stream's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReceiveError {
    /// An error of the peer, or damage in transit.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The peer sent a message that is not valid after a handshake.
    #[error("the peer sent an unexpected message; close the connection")]
    Unexpected,
    /// The peer has sent an alert (RFC 8446 §6).
    #[error("the peer sent alert {0}")]
    Alert(u8),
    /// The next keys cannot be derived.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// Plaintext, at its place.
#[derive(Clone, Debug)]
pub enum Chunk {
    /// At the place where the device has put it.
    Placed(RxBytes),
    /// Opened by software.
    Opened(Bytes),
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        match self {
            Chunk::Placed(piece) => piece.as_slice(),
            Chunk::Opened(raw) => raw,
        }
    }
}

/// The content of a record.
pub enum Event {
    /// Application data; it is in the chunks.
    Data,
    /// The end of the peer's stream.
    Closed,
    /// Content without relevance for the application.
    Nothing,
    /// The peer has changed its keys, and requests the same if `answer` is set. With the offload
    /// the device is to go on with `device`.
    KeyUpdate {
        /// True if a KeyUpdate is to be sent.
        answer: bool,
        /// The change for the device.
        device: Option<Restart>,
    },
}

/// A request to the device: go on with other keys.
pub struct Restart {
    /// Start of the first record under them.
    pub start: SeqNumber,
    /// Software's number of the key.
    pub key: u16,
    /// The keys.
    pub secrets: Secrets,
}

/// The receiver of one direction.
pub struct Receiver {
    secrets: Secrets,
    soft: SoftKey,
    /// With the offload: the record starts, and records that came partly decrypted.
    records: Option<Records>,
    /// Without it: number of the next record.
    number: u64,
    pieces: VecDeque<RxBytes>,
    pieces_bytes: usize,
    /// Length of the next record, once its header is there.
    record_bytes: Option<usize>,
    /// Parts of the current record.
    parts: Vec<RxBytes>,
    /// An assembled record.
    gathered: Vec<u8>,
    handshake: Vec<u8>,
    failed: Option<ReceiveError>,
    closed: bool,
    /// Sequence number of the content of the newest record that is not completely read.
    content_at: SeqNumber,
}

impl Receiver {
    /// Creates a receiver. A record starts at `start`, with `number` before it under its key. If
    /// the device does not support the suite, the mode is [`Mode::Software`].
    ///
    /// # Errors
    /// [`KeysError::Length`].
    pub fn new(
        mode: Mode,
        secrets: Secrets,
        start: SeqNumber,
        number: u64,
    ) -> Result<Receiver, KeysError> {
        let soft = SoftKey::new(&secrets)?;
        let offloads = mode == Mode::Offload && secrets.offloads();
        let records = match offloads {
            true => Some(Records::new(secrets.tls()?, start, number)),
            false => None,
        };
        Ok(Receiver {
            secrets,
            soft,
            records,
            number,
            pieces: VecDeque::new(),
            pieces_bytes: 0,
            record_bytes: None,
            parts: Vec::new(),
            gathered: Vec::new(),
            handshake: Vec::new(),
            failed: None,
            closed: false,
            content_at: start,
        })
    }

    /// The side that opens.
    pub fn mode(&self) -> Mode {
        if self.records.is_some() { Mode::Offload } else { Mode::Software }
    }

    /// The protocol for the device; `None` if software opens all records.
    ///
    /// # Errors
    /// [`KeysError::Length`].
    pub fn protocol(&self) -> Result<Option<Protocol>, KeysError> {
        match self.mode() {
            Mode::Offload => self.secrets.protocol(),
            Mode::Software => Ok(None),
        }
    }

    /// Processes the device's question about the start of a record.
    pub fn request(&mut self, request: Request) {
        if let Some(records) = &mut self.records {
            records.request(request);
        }
    }

    /// Takes the pending answer for the device.
    pub fn response(&mut self) -> Option<Response> {
        self.records.as_mut()?.response()
    }

    /// Sequence number of the next content byte to read, of records that the device may have
    /// processed; `raw` bytes of it are read.
    pub fn content_at(&mut self, raw: usize) -> SeqNumber {
        let at = self.content_at;
        self.content_at = at + raw as u32;
        at
    }

    /// Takes bytes that TCP delivers, in order.
    pub fn push(&mut self, piece: RxBytes) {
        self.pieces_bytes += piece.len();
        self.pieces.push_back(piece);
    }

    /// Number of bytes of which no record was returned.
    pub fn pending_bytes(&self) -> usize {
        self.pieces_bytes
    }

    /// Processes the next record, if all of it is there; its plaintext is appended to `out`.
    ///
    /// # Errors
    /// The stream has ended with this error, now or earlier.
    pub fn next(
        &mut self,
        stats: &mut Stats,
        out: &mut VecDeque<Chunk>,
    ) -> Result<Option<Event>, ReceiveError> {
        self.failed.map_or(Ok(()), Err)?;
        let event = self.record(stats, out);
        if let Err(error) = event {
            self.failed = Some(error);
        }
        event
    }

    fn record(
        &mut self,
        stats: &mut Stats,
        out: &mut VecDeque<Chunk>,
    ) -> Result<Option<Event>, ReceiveError> {
        let Some(record_bytes) = self.length()? else { return Ok(None) };
        if self.closed {
            return Err(ReceiveError::Unexpected);
        }
        let header_type = self.first_byte();
        if let Some(records) = &self.records {
            self.content_at = records.start() + self.soft.prefix_bytes() as u32;
        }
        self.take(record_bytes);
        let before = out.len();
        let event = match self.release(stats, header_type, record_bytes) {
            Some(content_type) => self.placed(content_type, out),
            None => self.open(stats, header_type, record_bytes, out),
        };
        self.parts.clear();
        if event.is_err() {
            out.truncate(before);
        }
        event.map(Some)
    }

    /// The length of the next record, if all of it is there.
    fn length(&mut self) -> Result<Option<usize>, ReceiveError> {
        if self.record_bytes.is_none() && self.pieces_bytes >= HEADER_BYTES {
            self.record_bytes = Some(self.header_length().ok_or(RecordError::Malformed)?);
        }
        match self.record_bytes {
            Some(record_bytes) if self.pieces_bytes >= record_bytes => {
                self.record_bytes = None;
                Ok(Some(record_bytes))
            }
            _ => Ok(None),
        }
    }

    fn header_length(&self) -> Option<usize> {
        let mut header = [0; HEADER_BYTES];
        let mut have = 0;
        for piece in &self.pieces {
            let raw = &piece.as_slice()[..piece.len().min(HEADER_BYTES - have)];
            let part = &mut header[have..have + raw.len()];
            part.copy_from_slice(raw);
            if let (Some(records), Some(worked)) = (&self.records, piece.worked) {
                records.restore(&worked, have, part);
            }
            have += raw.len();
        }
        if have < HEADER_BYTES {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let (types, most) = match self.secrets.version {
            Version::Tls13 => (APPLICATION_DATA..=APPLICATION_DATA, (1 << 14) + 256),
            Version::Tls12 => (ALERT..=APPLICATION_DATA, (1 << 14) + 2048),
        };
        let least = self.soft.prefix_bytes() - HEADER_BYTES + self.soft.suffix_bytes();
        let fits = types.contains(&header[0])
            && header[1..3] == [3, 3]
            && (least..=most).contains(&length);
        fits.then_some(HEADER_BYTES + length)
    }

    fn first_byte(&self) -> u8 {
        self.pieces.front().and_then(|piece| piece.as_slice().first()).copied().unwrap_or(0)
    }

    /// Moves the bytes of a record to the parts.
    fn take(&mut self, record_bytes: usize) {
        self.pieces_bytes -= record_bytes;
        let mut left = record_bytes;
        while left > 0 {
            let Some(mut piece) = self.pieces.pop_front() else { return };
            if piece.len() > left {
                self.parts.push(piece.split_front(left));
                self.pieces.push_front(piece);
                return;
            }
            left -= piece.len();
            if !piece.is_empty() {
                self.parts.push(piece);
            }
        }
    }

    /// Reduces the parts to the content, if the device has decrypted the record; returns its
    /// type.
    fn release(&mut self, stats: &mut Stats, header_type: u8, record_bytes: usize) -> Option<u8> {
        let worked = self.parts.iter().map(|part| part.worked);
        self.records.as_mut()?.skip_offloaded(stats, record_bytes as u32, worked)?;
        let mut front = self.soft.prefix_bytes();
        for part in &mut self.parts {
            let taken = front.min(part.len());
            part.skip(taken);
            front -= taken;
        }
        self.cut(TAG_BYTES);
        if self.secrets.version == Version::Tls12 {
            return Some(header_type);
        }
        // The type is behind the content, and padding behind that.
        while let Some(last) = self.parts.last_mut() {
            if let Some(at) = last.as_slice().iter().rposition(|&value| value != 0) {
                let content_type = last.as_slice()[at];
                last.truncate(at);
                return Some(content_type);
            }
            self.parts.pop();
        }
        // No type at all is an error of the peer, reported as a type that does not exist.
        Some(0)
    }

    /// Drops the last bytes of the parts.
    fn cut(&mut self, mut raw: usize) {
        while let Some(last) = self.parts.last_mut() {
            if last.len() > raw {
                return last.truncate(last.len() - raw);
            }
            raw -= last.len();
            self.parts.pop();
        }
    }

    fn placed(
        &mut self,
        content_type: u8,
        out: &mut VecDeque<Chunk>,
    ) -> Result<Event, ReceiveError> {
        if content_type == APPLICATION_DATA {
            let parts = self.parts.drain(..).filter(|part| !part.is_empty());
            out.extend(parts.map(Chunk::Placed));
            return Ok(Event::Data);
        }
        let content: Vec<u8> =
            self.parts.iter().flat_map(|part| part.as_slice()).copied().collect();
        self.control(content_type, &content)
    }

    /// Opens the record of the parts in software.
    fn open(
        &mut self,
        stats: &mut Stats,
        header_type: u8,
        record_bytes: usize,
        out: &mut VecDeque<Chunk>,
    ) -> Result<Event, ReceiveError> {
        let sealed = self.parts.iter().all(|part| part.worked.is_none());
        let mut plain = match (&mut self.records, sealed) {
            (Some(records), false) => mend(records, stats, &self.parts)?,
            _ => {
                let plain = self.open_sealed(record_bytes)?;
                match &mut self.records {
                    Some(records) => records.skip_opened(stats, record_bytes as u32),
                    None => {
                        stats.records_software += 1;
                        0
                    }
                };
                plain
            }
        };
        self.number += 1;
        let mut content_type = header_type;
        if self.secrets.version == Version::Tls13 {
            let (inner_type, content_bytes) = inner(&plain).ok_or(ReceiveError::Unexpected)?;
            content_type = inner_type;
            plain.truncate(content_bytes);
        }
        if content_type == APPLICATION_DATA {
            if !plain.is_empty() {
                out.push_back(Chunk::Opened(plain.into()));
            }
            return Ok(Event::Data);
        }
        self.control(content_type, &plain)
    }

    fn open_sealed(&mut self, record_bytes: usize) -> Result<Vec<u8>, ReceiveError> {
        let number = self.records.as_ref().map_or(self.number, Records::number);
        let mut plain = vec![0; record_bytes - self.soft.prefix_bytes() - TAG_BYTES];
        let opened = match self.parts.as_slice() {
            [only] => self.soft.open(number, only.as_slice(), &mut plain),
            parts => {
                self.gathered.clear();
                parts.iter().for_each(|part| self.gathered.extend_from_slice(part.as_slice()));
                self.soft.open(number, &self.gathered, &mut plain)
            }
        };
        if opened.is_err() {
            plain.zeroize();
            return Err(RecordError::Forged.into());
        }
        Ok(plain)
    }

    /// Processes content other than application data.
    fn control(&mut self, content_type: u8, content: &[u8]) -> Result<Event, ReceiveError> {
        match (content_type, content) {
            (ALERT, [_, 0]) => {
                self.closed = true;
                Ok(Event::Closed)
            }
            (ALERT, [_, description]) => Err(ReceiveError::Alert(*description)),
            (HANDSHAKE, [_, ..]) if self.secrets.version == Version::Tls13 => {
                if self.handshake.len() + content.len() > HANDSHAKE_BYTES_MAX {
                    return Err(ReceiveError::Unexpected);
                }
                self.handshake.extend_from_slice(content);
                self.messages()
            }
            _ => Err(ReceiveError::Unexpected),
        }
    }

    /// Processes complete handshake messages. Keys change at the end of a record (RFC 8446 §5.1).
    fn messages(&mut self) -> Result<Event, ReceiveError> {
        while let [kind, high, middle, low, rest @ ..] = self.handshake.as_slice() {
            let bytes = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            match (*kind, rest) {
                (KEY_UPDATE, [request @ (0 | 1)]) if bytes == 1 => {
                    let answer = *request == 1;
                    self.handshake.clear();
                    return self.change_keys(answer);
                }
                (KEY_UPDATE, []) if bytes == 1 => return Ok(Event::Nothing),
                (NEW_SESSION_TICKET, rest) if bytes <= HANDSHAKE_BYTES_MAX => {
                    if rest.len() < bytes {
                        return Ok(Event::Nothing);
                    }
                    self.handshake.drain(..4 + bytes);
                }
                _ => return Err(ReceiveError::Unexpected),
            }
        }
        Ok(Event::Nothing)
    }

    fn change_keys(&mut self, answer: bool) -> Result<Event, ReceiveError> {
        let secrets = self.secrets.next()?;
        self.soft = SoftKey::new(&secrets)?;
        self.secrets = secrets.clone();
        self.number = 0;
        let device = match &mut self.records {
            Some(records) => {
                let key = records.change_key(secrets.tls()?);
                Some(Restart { start: records.start(), key, secrets })
            }
            None => None,
        };
        Ok(Event::KeyUpdate { answer, device })
    }
}

/// Opens a record that the device has decrypted in part, or completely in several passes.
fn mend(
    records: &mut Records,
    stats: &mut Stats,
    parts: &[RxBytes],
) -> Result<Vec<u8>, ReceiveError> {
    for part in parts {
        records.push(part.as_slice(), part.worked)?;
    }
    let record = records.open(stats)?.ok_or(RecordError::Malformed)?;
    Ok(record.plaintext.to_vec())
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.gathered.zeroize();
        self.handshake.zeroize();
    }
}
