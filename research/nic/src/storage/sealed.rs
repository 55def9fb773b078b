//! Records with PDUs in them, which the device seals after it has filled in digests (TLS 1.3, RFC
//! 8446 §5.2). Both are kept: to retransmit a part of a record the device needs the record up to
//! that part, and the PDU up to the record.

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_nic_engine::software::sent::{Extent, Located, Sent};
use unlade_nic_engine::tls::{HEADER_BYTES, TAG_BYTES, Version};
use unlade_nic_engine::tx::{Found, Messages};
use unlade_nvme_wire::Pdu;

use super::frame::{Framed, Framer};
use super::kept::{PDUS_MAX, found};
use crate::queue::InnerRecovery;
use crate::span::{ALERT, APPLICATION_DATA, HANDSHAKE, Span};
use crate::tls::keys::{KeysError, Secrets, SoftKey};
use crate::tls::send::{
    CLOSE_NOTIFY, CONTENT_BYTES_MAX, Change, KEY_UPDATE, RECORDS_MAX, RECORDS_UNDER_KEY_MAX,
    SendError,
};

/// Bytes of a data digest that may precede the end of a record.
const DIGEST_BYTES: usize = unlade_nic_engine::nvme::DIGEST_BYTES;
/// Room for a data digest, the content's type, room for a tag.
static SUFFIX_DATA: [u8; DIGEST_BYTES + 1 + TAG_BYTES] = {
    let mut suffix = [0; DIGEST_BYTES + 1 + TAG_BYTES];
    suffix[DIGEST_BYTES] = APPLICATION_DATA;
    suffix
};
/// Bytes behind the content of a record.
const SUFFIX_BYTES: usize = 1 + TAG_BYTES;

/// The content of a record.
enum Content {
    /// Bytes of the stream of PDUs.
    Pdus { bytes: usize },
    /// Other content, of this type.
    Other { content_type: u8, raw: Bytes },
}

struct Record {
    /// Start in the stream of PDUs.
    content_at: SeqNumber,
    content: Content,
}

impl Record {
    fn content_bytes(&self) -> usize {
        match &self.content {
            Content::Pdus { bytes } => *bytes,
            Content::Other { raw, .. } => raw.len(),
        }
    }
}

impl Extent for Record {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.content_bytes() + SUFFIX_BYTES
    }
}

/// The records of one connection.
pub struct Sealed {
    secrets: Secrets,
    soft: SoftKey,
    /// Number of records under the key.
    number: u64,
    records: Sent<Record>,
    pdus: Sent<Framed>,
    /// The header that most records share.
    cached: (usize, Bytes),
}

impl Sealed {
    /// Returns true if records under these keys can be built here: TLS 1.3, with a suite that the
    /// device supports.
    pub fn fits(secrets: &Secrets) -> bool {
        secrets.version == Version::Tls13 && secrets.offloads()
    }

    /// Creates the state for records from `start` on, after `number` others under the key.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn new(secrets: Secrets, start: SeqNumber, number: u64) -> Result<Sealed, KeysError> {
        let soft = SoftKey::new(&secrets)?;
        let records = Sent::new(start, number, RECORDS_MAX);
        let mut pdus = Sent::new(SeqNumber(0), 0, PDUS_MAX);
        // No byte precedes the first PDU.
        pdus.acknowledge(SeqNumber(0));
        Ok(Sealed { secrets, soft, number, records, pdus, cached: (0, Bytes::new()) })
    }

    fn room_for(&self, records: usize) -> Result<(), SendError> {
        if self.records.len() + records > RECORDS_MAX || self.pdus.len() >= PDUS_MAX {
            return Err(SendError::Full);
        }
        match self.number + records as u64 > RECORDS_UNDER_KEY_MAX {
            true => Err(SendError::Worn),
            false => Ok(()),
        }
    }

    fn header(&self, content_bytes: usize) -> [u8; HEADER_BYTES] {
        let (prefix, _) = self.soft.prefix(self.number, APPLICATION_DATA, content_bytes);
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&prefix.to_le_bytes()[..HEADER_BYTES]);
        header
    }

    /// Keeps a record, for which there is room.
    fn keep(&mut self, content_at: SeqNumber, content: Content) -> Result<(), SendError> {
        let record = Record { content_at, content };
        self.records.push(record).map_err(|_| SendError::Full)?;
        self.number += 1;
        Ok(())
    }

    /// Appends the spans that TCP is to send for a PDU.
    pub(super) fn write(
        &mut self,
        framer: &mut Framer,
        (pdu, data): (&Pdu, Bytes),
        pieces: &mut Vec<Span>,
    ) -> Result<(), SendError> {
        let most = Framer::bytes_max(data.len());
        self.room_for(most.div_ceil(CONTENT_BYTES_MAX))?;
        let header = |pdu_bytes: usize| self.header(pdu_bytes.min(CONTENT_BYTES_MAX));
        let (first, framed) = framer.frame_behind(pdu, data, header);
        let pdu_bytes = framed.bytes();
        let content_at = self.pdus.next();
        self.pdus.push(framed.clone()).map_err(|_| SendError::Full)?;
        let mut start = 0;
        while start < pdu_bytes {
            let bytes = CONTENT_BYTES_MAX.min(pdu_bytes - start);
            let header = if start == 0 { first.clone() } else { self.header_piece(bytes) };
            pieces.push(Span::from(header));
            content(&framed, start, start + bytes, pieces);
            self.keep(content_at + start as u32, Content::Pdus { bytes })?;
            start += bytes;
        }
        Ok(())
    }

    fn header_piece(&mut self, content_bytes: usize) -> Bytes {
        if self.cached.0 != content_bytes || self.cached.1.is_empty() {
            let header = self.header(content_bytes);
            self.cached = (content_bytes, Bytes::copy_from_slice(&header));
        }
        self.cached.1.clone()
    }

    fn other(&mut self, content_type: u8, raw: Bytes) -> Result<Span, SendError> {
        let mut record = self.header(raw.len()).to_vec();
        record.extend_from_slice(&raw);
        record.push(content_type);
        record.resize(record.len() + TAG_BYTES, 0);
        self.keep(self.pdus.next(), Content::Other { content_type, raw })?;
        Ok(Span::from(Bytes::from(record)))
    }

    /// Creates a close_notify record.
    ///
    /// # Errors
    /// [`SendError::Full`].
    pub fn close(&mut self) -> Result<Span, SendError> {
        self.other(ALERT, Bytes::from_static(&CLOSE_NOTIFY))
    }

    /// Changes keys: returns the KeyUpdate record, and the change for the device.
    pub(super) fn update_keys(&mut self, request: bool) -> Result<(Span, Change), SendError> {
        let secrets = self.secrets.next()?;
        let soft = SoftKey::new(&secrets)?;
        let content = [&KEY_UPDATE[..], &[u8::from(request)]].concat();
        let record = self.other(HANDSHAKE, content.into())?;
        (self.secrets, self.soft, self.number) = (secrets.clone(), soft, 0);
        let (key, start) = self.records.change_key();
        Ok((record, Change { key, start, secrets }))
    }

    /// Drops records that end before `acknowledged`, and PDUs without remaining records.
    pub(super) fn acknowledge(&mut self, acknowledged: SeqNumber) {
        if self.records.acknowledge(acknowledged) == 0 {
            return;
        }
        let oldest = self.records.oldest().map(|kept| kept.held.content_at);
        self.pdus.acknowledge(oldest.unwrap_or(self.pdus.next()));
    }

    pub(super) fn oldest_key(&self) -> Option<u16> {
        self.records.oldest_key()
    }

    pub(super) fn unacknowledged(&self) -> usize {
        self.pdus.len()
    }
}

/// Appends the bytes of a PDU from `start` up to `end`, without its header, and the suffix of the
/// record. Room for a digest shares a buffer with the suffix.
fn content(framed: &Framed, start: usize, end: usize, pieces: &mut Vec<Span>) {
    let head_bytes = framed.head.len();
    let data_end = head_bytes + framed.data.len();
    let (from, until) = (start.max(head_bytes), end.min(data_end));
    if from < until {
        pieces.push(Span::from(framed.data.slice(from - head_bytes..until - head_bytes)));
    }
    let digest_bytes = end.saturating_sub(data_end.max(start));
    pieces.push(Span::from(Bytes::from_static(&SUFFIX_DATA[DIGEST_BYTES - digest_bytes..])));
}

impl Messages for Sealed {
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        found(self.records.locate(seq))
    }
}

impl Sealed {
    pub(super) fn under_one_key(&self, seq: SeqNumber, raw: usize) -> Option<(u16, usize)> {
        self.records.under_one_key(seq, raw)
    }

    /// Appends the bytes of the record that starts at `start`, up to `until`.
    pub(super) fn copy(&self, start: SeqNumber, until: SeqNumber, out: &mut Vec<u8>) {
        let Located::Message(kept) = self.records.locate(start) else { return };
        let wanted = out.len() + until.since(start).max(0) as usize;
        let record = kept.held;
        out.extend_from_slice(&self.header(record.content_bytes()));
        let content_type = match &record.content {
            Content::Pdus { bytes } => {
                self.copy_pdu(record.content_at, *bytes, out);
                APPLICATION_DATA
            }
            Content::Other { content_type, raw } => {
                out.extend_from_slice(raw);
                *content_type
            }
        };
        out.push(content_type);
        out.resize(out.len() + TAG_BYTES, 0);
        out.truncate(wanted);
    }

    /// The inner state of the record that starts at `start`.
    pub(super) fn inner(&self, start: SeqNumber, out: &mut InnerRecovery) -> bool {
        let Located::Message(kept) = self.records.locate(start) else { return false };
        let content_at = kept.held.content_at;
        (out.wanted, out.content_start) = (true, content_at);
        match self.pdus.locate(content_at) {
            Located::Message(pdu) => {
                (out.start, out.number) = (pdu.start, pdu.number);
                let before = content_at.since(pdu.start).max(0) as usize;
                pdu.held.copy(0, before, &mut out.raw);
                true
            }
            // The record has no PDU in it, and follows the last one.
            _ if content_at == self.pdus.next() => {
                (out.start, out.number) = (content_at, self.pdus.number());
                true
            }
            _ => false,
        }
    }

    /// Appends `bytes` of the stream of PDUs from `at` on, which are of one PDU.
    fn copy_pdu(&self, at: SeqNumber, bytes: usize, out: &mut Vec<u8>) {
        if let Located::Message(pdu) = self.pdus.locate(at) {
            let from = at.since(pdu.start).max(0) as usize;
            pdu.held.copy(from, from + bytes, out);
        }
    }
}
