//! Received TLS records: bytes that TCP delivers, in order, with the device's metadata.

use std::collections::VecDeque;

use thiserror::Error;
use unlade_net::SeqNumber;
use zeroize::Zeroize;

use crate::l5p::L5p;
use crate::resync::{Pass, Request, Response, Worked};
use crate::rule::{Rule, holds};
use crate::software::ambiguity::{AmbiguousPart, AmbiguousRecord, DELIVERIES_MAX};
use crate::software::boundaries::Boundaries;
use crate::software::open::{Part, Position};
use crate::stats::Stats;
use crate::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, Tls, Version};

/// Fatal error of a stream of records, caused by the peer or by an attacker on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// A record header is malformed, or has an invalid length; see [`Records::refused_header`].
    #[error("no record where one should start; close the connection")]
    Malformed,
    /// The record was changed.
    #[error("a record was changed on its way; close the connection")]
    Forged,
}

/// An authentic record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// Number of records before it under its key.
    pub number: u64,
    /// The type in its header; in TLS 1.3 the content type follows the plaintext
    /// ([`inner`](crate::tls::inner)).
    pub content_type: u8,
    /// The plaintext.
    pub plaintext: &'r [u8],
}

/// Maximum number of keys that the device may be behind at one time.
pub const KEYS_MAX: usize = 8;

/// A previous key. The device uses it until it gets the next one, and may have decrypted records
/// of the current key with it.
struct Previous {
    key: u16,
    tls: Tls,
    /// The number that the device assigns to the current record, if it was synchronised.
    number: u64,
}

/// Assembles records from bytes that TCP delivers, and opens them. No content of a record is
/// released before all of it is authentic. At most one record is kept.
pub struct Records {
    tls: Tls,
    /// Index of the current key among those of the flow.
    key: u16,
    previous: VecDeque<Previous>,
    boundaries: Boundaries,
    number: u64,
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// The pass in which a message starts at the current record's start with its number.
    located: Option<Pass>,
    /// Bytes of it had been decrypted as bytes of another record, and were restored.
    restored: bool,
    ambiguous_parts: Vec<AmbiguousPart>,
    ambiguous_records: u64,
    /// Length of the record, if its header is complete.
    record_bytes: Option<usize>,
    /// The record was returned, or failed.
    given: bool,
    failed: Option<RecordError>,
    refused: Option<[u8; HEADER_BYTES]>,
    response: Option<Response>,
}

impl Records {
    /// Creates a reader for a stream in which record `number` under the key starts at `start`.
    pub fn new(tls: Tls, start: SeqNumber, number: u64) -> Records {
        Records {
            tls,
            key: 0,
            previous: VecDeque::new(),
            boundaries: Boundaries::new(start, number),
            number,
            bytes: Vec::new(),
            parts: Vec::new(),
            located: None,
            restored: false,
            ambiguous_parts: Vec::new(),
            ambiguous_records: 0,
            record_bytes: None,
            given: false,
            failed: None,
            refused: None,
            response: None,
        }
    }

    /// Accepts bytes that TCP delivers, with one metadata for all of them, up to the end of the
    /// record. Returns the number of accepted bytes; the rest is passed again after
    /// [`Records::open`].
    ///
    /// # Errors
    /// The error that ended the stream, now or earlier.
    pub fn push(&mut self, bytes: &[u8], worked: Option<Worked>) -> Result<usize, RecordError> {
        self.push_uncertain(bytes, &[worked])
    }

    /// As [`Records::push`], for bytes that the device has delivered more than once, in different
    /// forms, if it is unknown which copy TCP has kept. `deliveries` has at least one element, the
    /// likeliest first; elements beyond [`DELIVERIES_MAX`] are ignored. Ambiguous bytes never
    /// count as authentic: the record's tag decides.
    ///
    /// # Errors
    /// As [`Records::push`].
    ///
    /// # Panics
    /// `deliveries` is empty.
    pub fn push_uncertain(
        &mut self,
        bytes: &[u8],
        deliveries: &[Option<Worked>],
    ) -> Result<usize, RecordError> {
        self.failed.map_or(Ok(()), Err)?;
        if self.given {
            self.bytes.clear();
            self.parts.clear();
            self.ambiguous_parts.clear();
            self.record_bytes = None;
            self.given = false;
        }
        let mut taken = 0;
        if self.record_bytes.is_none() {
            taken = self.take(bytes, HEADER_BYTES, deliveries);
            if self.bytes.len() < HEADER_BYTES {
                return Ok(taken);
            }
            let Some(record_bytes) = self.tls.message_bytes(&self.bytes) else {
                self.refused = self.header().copied();
                return Err(self.fail(RecordError::Malformed));
            };
            self.record_bytes = Some(record_bytes as usize);
        }
        let record_bytes = self.record_bytes.unwrap_or(HEADER_BYTES);
        taken += self.take(&bytes[taken..], record_bytes, deliveries);
        Ok(taken)
    }

    /// Copies from `bytes` until the record has `until` bytes. Returns the number of copied bytes.
    fn take(&mut self, bytes: &[u8], until: usize, deliveries: &[Option<Worked>]) -> usize {
        let start = self.bytes.len();
        let taken = bytes.len().min(until - start);
        if taken == 0 {
            return 0;
        }
        self.bytes.extend_from_slice(&bytes[..taken]);
        let end = start + taken;
        let deliveries = &deliveries[..deliveries.len().min(DELIVERIES_MAX)];
        let mut sealed = start;
        if let [Some(worked)] = deliveries {
            self.locate(worked);
            let mut bytes = std::mem::take(&mut self.bytes);
            sealed += self.restore(worked, start, &mut bytes[start..]);
            self.bytes = bytes;
        }
        self.restored |= sealed > start;
        self.note(sealed, &[None]);
        self.note(end, deliveries);
        taken
    }

    /// Records that the bytes up to `end` came in one of these `deliveries`.
    fn note(&mut self, end: usize, deliveries: &[Option<Worked>]) {
        if self.parts.last().map_or(0, |last| last.end) >= end {
            return;
        }
        if self.is_like_last(deliveries) {
            if let Some(last) = self.parts.last_mut() {
                last.end = end;
            }
            return;
        }
        if deliveries.len() > 1 {
            self.ambiguous_parts.push(AmbiguousPart::new(self.parts.len(), deliveries));
        }
        self.parts.push(Part { end, worked: deliveries[0] });
    }

    /// Restores the ciphertext of `bytes`, which are at offset `at` of the current record and were
    /// processed as `worked`, if the device processed them as bytes of another record; those are
    /// the first bytes. Returns their number.
    pub fn restore(&self, worked: &Worked, at: usize, bytes: &mut [u8]) -> usize {
        let position = Position { start: self.start(), number: self.number };
        let (key, tls) = match self.previous.iter().find(|key| key.key == worked.pass.key) {
            Some(previous) => (previous.key, &previous.tls),
            None => (self.key, &self.tls),
        };
        let mistaken = key == worked.pass.key && tls.proves_number() && holds(Rule::Undo);
        match position.mistaken(at..at + bytes.len(), &worked.message).filter(|_| mistaken) {
            Some(count) => {
                // Numbers are presumed for TLS 1.3 only, whose nonce depends on the number alone.
                let explicit = [0; EXPLICIT_NONCE_BYTES];
                tls.undo(&position, at, &mut bytes[..count], &worked.message, &explicit);
                count
            }
            None => 0,
        }
    }

    /// Records if the device's pass agrees on the current record's start and number.
    fn locate(&mut self, worked: &Worked) {
        if worked.message.implies_start(self.start(), self.number) {
            self.located = Some(worked.pass);
        }
    }

    /// Returns true if bytes with these `deliveries` extend the last part. Ambiguous parts are
    /// never merged: TCP may have kept a different copy of each segment.
    fn is_like_last(&self, deliveries: &[Option<Worked>]) -> bool {
        let parts = self.parts.len();
        let is_last_ambiguous =
            self.ambiguous_parts.last().is_some_and(|ambiguous| ambiguous.part() + 1 == parts);
        !is_last_ambiguous && self.parts.last().is_some_and(|last| deliveries == [last.worked])
    }

    /// Number of records with ambiguous bytes.
    pub fn ambiguous_records(&self) -> u64 {
        self.ambiguous_records
    }

    /// Opens a record with ambiguous bytes; returns true if it is authentic for one combination of
    /// their deliveries.
    fn open_ambiguous(&mut self) -> bool {
        self.ambiguous_records += 1;
        let sealer = self.sealer();
        let record = AmbiguousRecord {
            bytes: &self.bytes,
            parts: &self.parts,
            ambiguous_parts: &self.ambiguous_parts,
        };
        let solution = record.solve(|bytes, parts| {
            sealer.return_to_sealed(bytes, parts);
            self.tls.tag(self.number, bytes, parts)
        });
        let Some(mut parts) = solution else { return false };
        let mut bytes = std::mem::take(&mut self.bytes);
        self.sealer().return_to_sealed(&mut bytes, &mut parts);
        let opened = self.tls.open(self.number, &mut bytes, &parts).is_ok();
        (self.bytes, self.parts) = (bytes, parts);
        opened
    }

    fn sealer(&self) -> Sealer<'_> {
        let position = Position { start: self.start(), number: self.number };
        Sealer { position, key: self.key, tls: &self.tls, previous: &self.previous }
    }

    /// Returns the record once, when it is complete.
    ///
    /// # Errors
    /// [`RecordError::Forged`], which ends the stream; or an earlier error.
    pub fn open(&mut self, stats: &mut Stats) -> Result<Option<Record<'_>>, RecordError> {
        self.failed.map_or(Ok(()), Err)?;
        if self.given || self.record_bytes != Some(self.bytes.len()) {
            return Ok(None);
        }
        stats.records_restored += u64::from(std::mem::take(&mut self.restored));
        if !self.ambiguous_parts.is_empty() {
            stats.records_partial += 1;
            if !self.open_ambiguous() {
                return Err(self.fail(RecordError::Forged));
            }
            return Ok(Some(self.give()));
        }
        let (mut bytes, mut parts) =
            (std::mem::take(&mut self.bytes), std::mem::take(&mut self.parts));
        self.sealer().return_to_sealed(&mut bytes, &mut parts);
        (self.bytes, self.parts) = (bytes, parts);
        let whole = match (self.parts.first(), self.parts.get(1)) {
            (Some(first), Some(_)) if !holds(Rule::Whole) => first.worked.is_some(),
            _ if !holds(Rule::OnePass) => self.parts.iter().all(|part| part.worked.is_some()),
            _ => self.proof(self.parts.iter().map(|part| part.worked)).is_some(),
        };
        if whole {
            stats.records_offloaded += 1;
        } else {
            match self.parts.iter().any(|part| part.worked.is_some()) {
                true => stats.records_partial += 1,
                false => stats.records_software += 1,
            }
            if self.tls.open(self.number, &mut self.bytes, &self.parts).is_err() {
                return Err(self.fail(RecordError::Forged));
            }
        }
        Ok(Some(self.give()))
    }

    /// Returns the authentic record, and moves to the next one.
    fn give(&mut self) -> Record<'_> {
        let number = self.number;
        let proof = self.proof(self.parts.iter().map(|part| part.worked));
        self.advance(self.bytes.len() as u32);
        // The device has processed all of it, and therefore agrees on the next record's start.
        self.located = proof.filter(|_| self.ambiguous_parts.is_empty());
        self.given = true;
        let plaintext = &self.bytes[self.tls.sealed_range(self.bytes.len())];
        Record { number, content_type: self.bytes[0], plaintext }
    }

    /// The header of the current record, if it is complete.
    pub fn header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.bytes.first_chunk().filter(|_| !self.given)
    }

    /// The header that ended the stream with [`RecordError::Malformed`].
    pub fn refused_header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.refused.as_ref()
    }

    /// The bytes of an incomplete record in their form on the wire, or `None` if a device has, or
    /// may have, decrypted some of them.
    pub fn unopened(&self) -> Option<&[u8]> {
        if self.given {
            return Some(&[]);
        }
        let sealed =
            self.ambiguous_parts.is_empty() && self.parts.iter().all(|part| part.worked.is_none());
        sealed.then_some(&self.bytes[..])
    }

    /// The pass that proves the authenticity of the current record: all of its bytes, with the
    /// metadata `worked`, are of this pass, and the device saw the record start.
    fn proof(&self, mut worked: impl Iterator<Item = Option<Worked>>) -> Option<Pass> {
        let first = worked.next()??;
        let same_key = first.pass.key == self.key || !holds(Rule::SameKey);
        let implies_start =
            |worked: &Worked| worked.message.implies_start(self.start(), self.number);
        let mut located = self.located == Some(first.pass) || implies_start(&first);
        for worked in worked {
            let worked = worked.filter(|worked| worked.pass == first.pass)?;
            located |= implies_start(&worked);
        }
        let located = located || !holds(Rule::Located);
        (same_key && located).then_some(first.pass)
    }

    /// Skips the next record, of `record_bytes` bytes that stay with the caller, if their metadata
    /// `worked` proves it authentic. Returns its number, or `None` if it must be opened because
    /// there is no proof or bytes of it were pushed.
    pub fn skip_offloaded(
        &mut self,
        stats: &mut Stats,
        record_bytes: u32,
        worked: impl Iterator<Item = Option<Worked>>,
    ) -> Option<u64> {
        if !self.is_between() {
            return None;
        }
        let pass = self.proof(worked)?;
        stats.records_offloaded += 1;
        let number = self.advance(record_bytes);
        self.located = Some(pass);
        Some(number)
    }

    /// Returns the next record and its length without a copy, if it is complete at the start of
    /// `bytes` and the metadata of the `chunks` (their ends in `bytes`, and the metadata) proves
    /// it authentic. Otherwise returns `None`, and the bytes must be pushed.
    pub fn take_offloaded<'o>(
        &mut self,
        stats: &mut Stats,
        bytes: &'o [u8],
        chunks: impl Iterator<Item = (usize, Option<Worked>)>,
    ) -> Option<(Record<'o>, usize)> {
        let record_bytes = self.tls.message_bytes(bytes.get(..HEADER_BYTES)?)?;
        let record = bytes.get(..record_bytes as usize)?;
        let mut start = 0;
        let of_record =
            chunks.take_while(|(end, _)| std::mem::replace(&mut start, *end) < record.len());
        let number =
            self.skip_offloaded(stats, record_bytes, of_record.map(|(_, worked)| worked))?;
        let plaintext = &record[self.tls.sealed_range(record.len())];
        Some((Record { number, content_type: record[0], plaintext }, record.len()))
    }

    /// Skips the next record, of `record_bytes` bytes, which came sealed and was opened by the
    /// caller as number [`Records::number`] with the current key. No byte of it was pushed.
    pub fn skip_opened(&mut self, stats: &mut Stats, record_bytes: u32) -> u64 {
        stats.records_software += 1;
        self.advance(record_bytes)
    }

    /// The number of the next record.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns true if no byte of the next record was pushed and no error has occurred.
    fn is_between(&self) -> bool {
        self.failed.is_none() && (self.given || self.bytes.is_empty())
    }

    /// Moves behind an authentic record. Returns its number.
    fn advance(&mut self, record_bytes: u32) -> u64 {
        self.located = None;
        let answer = self.boundaries.advance(record_bytes);
        self.response = answer.or(self.response);
        let number = self.number;
        self.number += 1;
        self.previous.iter_mut().for_each(|previous| previous.number += 1);
        number
    }

    /// The TLS version of the records.
    pub(crate) fn version(&self) -> Version {
        self.tls.version()
    }

    /// Returns true if the current record was returned: the next bytes are of another one.
    pub(crate) fn is_given(&self) -> bool {
        self.given
    }

    /// The opened record: its bytes, the number of bytes before the plaintext, and its parts.
    pub(crate) fn opened(&self) -> (&[u8], usize, &[Part]) {
        (&self.bytes, self.tls.prefix_bytes(), &self.parts)
    }

    fn fail(&mut self, error: RecordError) -> RecordError {
        self.bytes.zeroize();
        self.failed = Some(error);
        error
    }

    /// Changes the key for the next record and those after it (a KeyUpdate). Returns the index of
    /// the new key. The device gets it with [`Rx::restart`](crate::rx::Rx::restart), at
    /// [`Records::start`], and uses the previous key until then. For that [`KEYS_MAX`] keys are
    /// kept.
    pub fn change_key(&mut self, tls: Tls) -> u16 {
        let tls = std::mem::replace(&mut self.tls, tls);
        self.previous.push_back(Previous { key: self.key, tls, number: self.number });
        if self.previous.len() > KEYS_MAX {
            self.previous.pop_front();
        }
        self.number = 0;
        self.located = None;
        self.boundaries.restart(0);
        self.response = None;
        self.key = self.key.wrapping_add(1);
        self.key
    }

    /// Start of the current record, or of the next one after it was opened.
    pub fn start(&self) -> SeqNumber {
        self.boundaries.start()
    }

    /// Accepts a request of the device; [`Records::response`] returns the answer, now or later.
    pub fn request(&mut self, request: Request) {
        let answer = match request.key == self.key || !holds(Rule::SameKey) {
            true => self.boundaries.request(request),
            // Numbers under another key would give the device a wrong start.
            false => Some(Response { request, number: None }),
        };
        self.response = answer.or(self.response);
    }

    /// Returns a response for the device once.
    pub fn response(&mut self) -> Option<Response> {
        self.response.take()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// The current and the previous keys, and the current record's position.
struct Sealer<'r> {
    position: Position,
    key: u16,
    tls: &'r Tls,
    previous: &'r VecDeque<Previous>,
}

impl Sealer<'_> {
    /// Restores the ciphertext of bytes that were decrypted under another key or as bytes of
    /// another record, and marks them as sealed.
    fn return_to_sealed(&self, bytes: &mut [u8], parts: &mut [Part]) {
        let mut start = 0;
        for part in parts {
            let range = start..part.end;
            start = part.end;
            let Some(Worked { pass, message }) = part.worked else { continue };
            let previous = self.previous.iter().find(|key| key.key == pass.key);
            let is_mistaken = || self.position.mistaken(range.clone(), &message).is_some();
            let (number, tls) = match previous {
                Some(previous) => (previous.number, &previous.tls),
                None if pass.key == self.key && is_mistaken() && holds(Rule::Undo) => {
                    (self.position.number, self.tls)
                }
                None => continue,
            };
            let position = Position { number, ..self.position };
            tls.restore(&position, bytes, range, &message);
            part.worked = None;
        }
    }
}
