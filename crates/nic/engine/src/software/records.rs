//! Received TLS records: what TCP delivers, in order, with what the device says of it.

use std::collections::VecDeque;

use thiserror::Error;
use unlade_net::SeqNumber;
use zeroize::Zeroize;

use crate::l5p::L5p;
use crate::resync::{Pass, Request, Response, Worked};
use crate::rule::{Rule, holds};
use crate::software::boundaries::Boundaries;
use crate::software::doubt::{Doubt, Doubtful, WAYS_MAX};
use crate::software::open::{Part, Position};
use crate::stats::Stats;
use crate::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, Tls, Version};

/// Why a stream of records ends. It is the peer's fault, or of somebody on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Where a record should start there is none, or one of a length that no record has; see
    /// [`Records::refused_header`].
    #[error("no record where one should start; close the connection")]
    Malformed,
    /// The record is not what its sender has sent.
    #[error("a record was changed on its way; close the connection")]
    Forged,
}

/// A record that is authentic.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// How many were before it under its key.
    pub number: u64,
    /// The type in its header; with TLS 1.3 the true one is behind the plaintext
    /// ([`inner`](crate::tls::inner)).
    pub content_type: u8,
    /// What it says.
    pub plaintext: &'r [u8],
}

/// Most keys that a device may have been wrong about at one time.
pub const KEYS_MAX: usize = 8;

/// A key before the current one. The device goes on with it until it is told, and has decrypted
/// records of the current key with it then.
struct Previous {
    key: u16,
    tls: Tls,
    /// The number that the device takes the current record for, if it was right before.
    number: u64,
}

/// Puts records together from what TCP delivers, and opens them. Nothing of a record is given out
/// before all of it is authentic. At most one record is kept.
pub struct Records {
    tls: Tls,
    /// The current key among those of the flow.
    key: u16,
    previous: VecDeque<Previous>,
    boundaries: Boundaries,
    number: u64,
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// In this pass a message starts where the current record does, and has its number.
    located: Option<Pass>,
    /// Bytes of it had been decrypted as some of another one.
    restored: bool,
    doubts: Vec<Doubt>,
    doubtful: u64,
    /// Length of the record, once its header is there.
    record_bytes: Option<usize>,
    /// The record was given out, or failed.
    given: bool,
    failed: Option<RecordError>,
    refused: Option<[u8; HEADER_BYTES]>,
    response: Option<Response>,
}

impl Records {
    /// A record starts at `start`, after `number` others under the key.
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
            doubts: Vec::new(),
            doubtful: 0,
            record_bytes: None,
            given: false,
            failed: None,
            refused: None,
            response: None,
        }
    }

    /// Takes bytes that TCP delivers, of which the device says the same, up to the end of the
    /// record. Returns how many; the others are to be given again after
    /// [`Records::open`].
    ///
    /// # Errors
    /// The stream has ended with an error: this one, or an earlier one.
    pub fn push(&mut self, bytes: &[u8], worked: Option<Worked>) -> Result<usize, RecordError> {
        self.push_uncertain(bytes, &[worked])
    }

    /// As [`Records::push`], for bytes that the device has delivered more than once, in different
    /// `ways`, and nobody knows which ones TCP has kept. The likeliest way comes first; there is
    /// one at least, and those beyond [`WAYS_MAX`] do not count. Nothing in doubt is taken for
    /// authentic: the record's tag decides.
    ///
    /// # Errors
    /// As [`Records::push`].
    ///
    /// # Panics
    /// `ways` is empty.
    pub fn push_uncertain(
        &mut self,
        bytes: &[u8],
        ways: &[Option<Worked>],
    ) -> Result<usize, RecordError> {
        self.failed.map_or(Ok(()), Err)?;
        if self.given {
            self.bytes.clear();
            self.parts.clear();
            self.doubts.clear();
            self.record_bytes = None;
            self.given = false;
        }
        let mut taken = 0;
        if self.record_bytes.is_none() {
            taken = self.take(bytes, HEADER_BYTES, ways);
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
        taken += self.take(&bytes[taken..], record_bytes, ways);
        Ok(taken)
    }

    /// Takes of `bytes` what is missing until there are `until`.
    fn take(&mut self, bytes: &[u8], until: usize, ways: &[Option<Worked>]) -> usize {
        let start = self.bytes.len();
        let taken = bytes.len().min(until - start);
        if taken == 0 {
            return 0;
        }
        self.bytes.extend_from_slice(&bytes[..taken]);
        let end = start + taken;
        let ways = &ways[..ways.len().min(WAYS_MAX)];
        let mut sealed = start;
        if let [Some(worked)] = ways {
            self.locate(worked);
            let mut bytes = std::mem::take(&mut self.bytes);
            sealed += self.restore(worked, start, &mut bytes[start..]);
            self.bytes = bytes;
        }
        self.restored |= sealed > start;
        self.note(sealed, &[None]);
        self.note(end, ways);
        taken
    }

    /// Bytes up to `end` came in these `ways`.
    fn note(&mut self, end: usize, ways: &[Option<Worked>]) {
        if self.parts.last().map_or(0, |last| last.end) >= end {
            return;
        }
        if self.is_like_last(ways) {
            if let Some(last) = self.parts.last_mut() {
                last.end = end;
            }
            return;
        }
        if ways.len() > 1 {
            self.doubts.push(Doubt::new(self.parts.len(), ways));
        }
        self.parts.push(Part { end, worked: ways[0] });
    }

    /// Makes `bytes`, which are `at` bytes behind the start of the current record and were `worked`
    /// on so, what they were, as far as the device has taken them for some of another record: the
    /// first ones. Returns how many.
    pub fn restore(&self, worked: &Worked, at: usize, bytes: &mut [u8]) -> usize {
        let position = Position { start: self.start(), number: self.number };
        let (key, tls) = match self.previous.iter().find(|key| key.key == worked.pass.key) {
            Some(previous) => (previous.key, &previous.tls),
            None => (self.key, &self.tls),
        };
        let mistaken = key == worked.pass.key && tls.proves_number() && holds(Rule::Undo);
        match position.mistaken(at..at + bytes.len(), &worked.message).filter(|_| mistaken) {
            Some(count) => {
                // Only TLS 1.3 is presumed: there the number says all.
                let explicit = [0; EXPLICIT_NONCE_BYTES];
                tls.undo(&position, at, &mut bytes[..count], &worked.message, &explicit);
                count
            }
            None => 0,
        }
    }

    /// Learns where the current record is in the device's pass.
    fn locate(&mut self, worked: &Worked) {
        if worked.message.tells(self.start(), self.number) {
            self.located = Some(worked.pass);
        }
    }

    /// True where bytes that came in these `ways` belong to the part before them. What is in doubt
    /// stays apart: TCP may have kept each segment in another way.
    fn is_like_last(&self, ways: &[Option<Worked>]) -> bool {
        let parts = self.parts.len();
        let doubtful = self.doubts.last().is_some_and(|doubt| doubt.part() + 1 == parts);
        !doubtful && self.parts.last().is_some_and(|last| ways == [last.worked])
    }

    /// How many records had bytes in doubt.
    pub fn doubtful(&self) -> u64 {
        self.doubtful
    }

    /// Opens a record with bytes in doubt: true where it is authentic in one of the ways in which
    /// they may have come.
    fn open_in_doubt(&mut self) -> bool {
        self.doubtful += 1;
        let sealer = self.sealer();
        let doubtful = Doubtful { bytes: &self.bytes, parts: &self.parts, doubts: &self.doubts };
        let solution = doubtful.solve(|bytes, parts| {
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

    /// The record, when it is complete: once.
    ///
    /// # Errors
    /// [`RecordError::Forged`], and the stream has ended; or it had before.
    pub fn open(&mut self, stats: &mut Stats) -> Result<Option<Record<'_>>, RecordError> {
        self.failed.map_or(Ok(()), Err)?;
        if self.given || self.record_bytes != Some(self.bytes.len()) {
            return Ok(None);
        }
        stats.records_restored += u64::from(std::mem::take(&mut self.restored));
        if !self.doubts.is_empty() {
            stats.records_partial += 1;
            if !self.open_in_doubt() {
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

    /// The record was authentic: it is given out, and the next one is awaited.
    fn give(&mut self) -> Record<'_> {
        let number = self.number;
        let proof = self.proof(self.parts.iter().map(|part| part.worked));
        self.advance(self.bytes.len() as u32);
        // All of it was what the device has seen: so the next one starts there too.
        self.located = proof.filter(|_| self.doubts.is_empty());
        self.given = true;
        let plaintext = &self.bytes[self.tls.sealed_range(self.bytes.len())];
        Record { number, content_type: self.bytes[0], plaintext }
    }

    /// The header of the current record, once all of it was pushed.
    pub fn header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.bytes.first_chunk().filter(|_| !self.given)
    }

    /// The header that ended the stream with [`RecordError::Malformed`].
    pub fn refused_header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.refused.as_ref()
    }

    /// What was pushed of a record that is not complete, as it came on the wire. Nothing where a
    /// device has decrypted some of it, or may have.
    pub fn unopened(&self) -> Option<&[u8]> {
        if self.given {
            return Some(&[]);
        }
        let sealed = self.doubts.is_empty() && self.parts.iter().all(|part| part.worked.is_none());
        sealed.then_some(&self.bytes[..])
    }

    /// The pass that shows that the current record is authentic: all of its bytes, which were
    /// `worked` on so, are of it, and the device has seen the record start.
    fn proof(&self, mut worked: impl Iterator<Item = Option<Worked>>) -> Option<Pass> {
        let first = worked.next()??;
        let same_key = first.pass.key == self.key || !holds(Rule::SameKey);
        let tells = |worked: &Worked| worked.message.tells(self.start(), self.number);
        let mut located = self.located == Some(first.pass) || tells(&first);
        for worked in worked {
            let worked = worked.filter(|worked| worked.pass == first.pass)?;
            located |= tells(&worked);
        }
        let located = located || !holds(Rule::Located);
        (same_key && located).then_some(first.pass)
    }

    /// The next record, `record_bytes` long, is authentic where its bytes, which stay with the
    /// caller, were `worked` on so. Returns its number. Nothing where that proves nothing, or bytes
    /// of it were pushed: it is to be opened then.
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

    /// The next record, where it is at the start of `bytes`, whole, and authentic by what the device
    /// says of its `pieces` (where in `bytes` each ends, and how it was worked on): it stays where
    /// it is. With it comes its length. Nothing where that is not so: the bytes are to be pushed.
    pub fn take_offloaded<'o>(
        &mut self,
        stats: &mut Stats,
        bytes: &'o [u8],
        pieces: impl Iterator<Item = (usize, Option<Worked>)>,
    ) -> Option<(Record<'o>, usize)> {
        let record_bytes = self.tls.message_bytes(bytes.get(..HEADER_BYTES)?)?;
        let record = bytes.get(..record_bytes as usize)?;
        let mut start = 0;
        let of_record =
            pieces.take_while(|(end, _)| std::mem::replace(&mut start, *end) < record.len());
        let number =
            self.skip_offloaded(stats, record_bytes, of_record.map(|(_, worked)| worked))?;
        let plaintext = &record[self.tls.sealed_range(record.len())];
        Some((Record { number, content_type: record[0], plaintext }, record.len()))
    }

    /// The next record, `record_bytes` long, came sealed, and the caller has opened it, as number
    /// [`Records::number`] and with the current key. Nothing of it was pushed.
    pub fn skip_opened(&mut self, stats: &mut Stats, record_bytes: u32) -> u64 {
        stats.records_software += 1;
        self.advance(record_bytes)
    }

    /// The number of the next record.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Nothing of the next record was pushed, and no error has come.
    fn is_between(&self) -> bool {
        self.failed.is_none() && (self.given || self.bytes.is_empty())
    }

    /// A record was authentic. Returns its number.
    fn advance(&mut self, record_bytes: u32) -> u64 {
        self.located = None;
        let answer = self.boundaries.advance(record_bytes);
        self.response = answer.or(self.response);
        let number = self.number;
        self.number += 1;
        self.previous.iter_mut().for_each(|previous| previous.number += 1);
        number
    }

    /// The version of the records.
    pub(crate) fn version(&self) -> Version {
        self.tls.version()
    }

    /// True where the record was given out: the next bytes are of another one.
    pub(crate) fn is_given(&self) -> bool {
        self.given
    }

    /// The record that was opened: its bytes, how many are before the plaintext, and how its parts
    /// came.
    pub(crate) fn opened(&self) -> (&[u8], usize, &[Part]) {
        (&self.bytes, self.tls.prefix_bytes(), &self.parts)
    }

    fn fail(&mut self, error: RecordError) -> RecordError {
        self.bytes.zeroize();
        self.failed = Some(error);
        error
    }

    /// The next record is the first under another key (a KeyUpdate). Returns which of the flow's
    /// keys it is: the device is to be told with [`Rx::restart`](crate::rx::Rx::restart), at
    /// [`Records::start`]. Until then it goes on with the key before. [`KEYS_MAX`] keys are
    /// remembered for that.
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

    /// Where the current record starts, or the next one after it was opened.
    pub fn start(&self) -> SeqNumber {
        self.boundaries.start()
    }

    /// The device asks; the answer comes from [`Records::response`], now or later.
    pub fn request(&mut self, request: Request) {
        let answer = match request.key == self.key || !holds(Rule::SameKey) {
            true => self.boundaries.request(request),
            // Counted under another key, where the device would begin would be wrong.
            false => Some(Response { request, number: None }),
        };
        self.response = answer.or(self.response);
    }

    /// An answer for the device, once.
    pub fn response(&mut self) -> Option<Response> {
        self.response.take()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// What is known of the keys of the current record, and those before.
struct Sealer<'r> {
    position: Position,
    key: u16,
    tls: &'r Tls,
    previous: &'r VecDeque<Previous>,
}

impl Sealer<'_> {
    /// What was decrypted under a key that was not the record's, or as some of another record, is
    /// made what it was, and counts as sealed.
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
