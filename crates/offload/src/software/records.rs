//! Received TLS records: what TCP delivers, in order, with what the device says of it.

use std::collections::VecDeque;

use thiserror::Error;
use wire::SeqNumber;
use zeroize::Zeroize;

use crate::l5p::L5p;
use crate::resync::{Pass, Request, Response};
use crate::rule::{Rule, holds};
use crate::software::boundaries::Boundaries;
use crate::software::doubt::{Doubt, Doubtful, WAYS_MAX};
use crate::software::open::Part;
use crate::stats::Stats;
use crate::tls::{HEADER_BYTES, Tls, Version};

/// Why a stream of records ends. It is the peer's fault, or of somebody on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Where a record should start there is none, or one longer than allowed.
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
    /// The number that the device takes the current record for.
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
    octets: Vec<u8>,
    parts: Vec<Part>,
    doubts: Vec<Doubt>,
    doubtful: u64,
    /// Length of the record, once its header is there.
    record_bytes: Option<usize>,
    /// The record was given out, or failed.
    given: bool,
    failed: Option<RecordError>,
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
            octets: Vec::new(),
            parts: Vec::new(),
            doubts: Vec::new(),
            doubtful: 0,
            record_bytes: None,
            given: false,
            failed: None,
            response: None,
        }
    }

    /// Takes octets that TCP delivers, of one packet or of several with the same `pass`, up to the
    /// end of the record. Returns how many; the others are to be given again after
    /// [`Records::open`].
    ///
    /// # Errors
    /// The stream has ended with an error: this one, or an earlier one.
    pub fn push(&mut self, octets: &[u8], pass: Option<Pass>) -> Result<usize, RecordError> {
        self.push_uncertain(octets, &[pass])
    }

    /// As [`Records::push`], for octets that the device has delivered more than once, in different
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
        octets: &[u8],
        ways: &[Option<Pass>],
    ) -> Result<usize, RecordError> {
        self.failed.map_or(Ok(()), Err)?;
        if self.given {
            self.octets.clear();
            self.parts.clear();
            self.doubts.clear();
            self.record_bytes = None;
            self.given = false;
        }
        let mut taken = 0;
        if self.record_bytes.is_none() {
            taken = self.take(octets, HEADER_BYTES, ways);
            if self.octets.len() < HEADER_BYTES {
                return Ok(taken);
            }
            let Some(record_bytes) = self.tls.message_bytes(&self.octets) else {
                return Err(self.fail(RecordError::Malformed));
            };
            self.record_bytes = Some(record_bytes as usize);
        }
        let record_bytes = self.record_bytes.unwrap_or(HEADER_BYTES);
        taken += self.take(&octets[taken..], record_bytes, ways);
        Ok(taken)
    }

    /// Takes of `octets` what is missing until there are `until`.
    fn take(&mut self, octets: &[u8], until: usize, ways: &[Option<Pass>]) -> usize {
        let taken = octets.len().min(until - self.octets.len());
        if taken == 0 {
            return 0;
        }
        self.octets.extend_from_slice(&octets[..taken]);
        let (end, pass) = (self.octets.len(), ways[0]);
        let ways = &ways[..ways.len().min(WAYS_MAX)];
        if self.is_like_last(ways) {
            if let Some(last) = self.parts.last_mut() {
                last.end = end;
            }
            return taken;
        }
        if ways.len() > 1 {
            self.doubts.push(Doubt::new(self.parts.len(), ways));
        }
        self.parts.push(Part { end, pass });
        taken
    }

    /// True where octets that came in these `ways` belong to the part before them. What is in doubt
    /// stays apart: TCP may have kept each segment in another way.
    fn is_like_last(&self, ways: &[Option<Pass>]) -> bool {
        let parts = self.parts.len();
        let doubtful = self.doubts.last().is_some_and(|doubt| doubt.part() + 1 == parts);
        !doubtful && self.parts.last().is_some_and(|last| ways == [last.pass])
    }

    /// How many records had octets in doubt.
    pub fn doubtful(&self) -> u64 {
        self.doubtful
    }

    /// Opens a record with octets in doubt: true where it is authentic in one of the ways in which
    /// they may have come.
    fn open_in_doubt(&mut self) -> bool {
        self.doubtful += 1;
        let Records { tls, number, previous, octets, parts, doubts, .. } = self;
        let doubtful = Doubtful { octets, parts, doubts };
        let solution = doubtful.solve(|octets, parts| {
            return_to_sealed(previous, octets, parts);
            tls.tag(*number, octets, parts)
        });
        let Some(solution) = solution else { return false };
        *parts = solution;
        return_to_sealed(previous, octets, parts);
        tls.open(*number, octets, parts).is_ok()
    }

    /// The record, when it is complete: once.
    ///
    /// # Errors
    /// [`RecordError::Forged`], and the stream has ended; or it had before.
    pub fn open(&mut self, stats: &mut Stats) -> Result<Option<Record<'_>>, RecordError> {
        self.failed.map_or(Ok(()), Err)?;
        if self.given || self.record_bytes != Some(self.octets.len()) {
            return Ok(None);
        }
        if !self.doubts.is_empty() {
            stats.records_partial += 1;
            if !self.open_in_doubt() {
                return Err(self.fail(RecordError::Forged));
            }
            return Ok(Some(self.give()));
        }
        return_to_sealed(&self.previous, &mut self.octets, &mut self.parts);
        let whole = match (self.parts.first(), self.parts.get(1)) {
            (Some(first), Some(_)) if !holds(Rule::Whole) => first.pass.is_some(),
            _ if !holds(Rule::OnePass) => self.parts.iter().all(|part| part.pass.is_some()),
            (Some(only), None) => only.pass.is_some(),
            _ => false,
        };
        if whole {
            stats.records_offloaded += 1;
        } else {
            match self.parts.iter().any(|part| part.pass.is_some()) {
                true => stats.records_partial += 1,
                false => stats.records_software += 1,
            }
            if self.tls.open(self.number, &mut self.octets, &self.parts).is_err() {
                return Err(self.fail(RecordError::Forged));
            }
        }
        Ok(Some(self.give()))
    }

    /// The record was authentic: it is given out, and the next one is awaited.
    fn give(&mut self) -> Record<'_> {
        let number = self.number;
        self.advance(self.octets.len() as u32);
        self.given = true;
        let plaintext = &self.octets[self.tls.sealed_range(self.octets.len())];
        Record { number, content_type: self.octets[0], plaintext }
    }

    /// The next record is authentic, because every octet of it, `record_bytes` of them, came in
    /// `pass`; its octets stay with the caller. Returns its number. Nothing where that proves nothing,
    /// or octets of it were pushed: it is to be opened then.
    pub fn skip_offloaded(
        &mut self,
        stats: &mut Stats,
        record_bytes: u32,
        pass: Pass,
    ) -> Option<u64> {
        let proves = pass.key == self.key || !holds(Rule::SameKey);
        if !proves || !self.is_between() {
            return None;
        }
        stats.records_offloaded += 1;
        Some(self.advance(record_bytes))
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
        self.failed.is_none() && (self.given || self.octets.is_empty())
    }

    /// A record was authentic. Returns its number.
    fn advance(&mut self, record_bytes: u32) -> u64 {
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

    /// True where the record was given out: the next octets are of another one.
    pub(crate) fn is_given(&self) -> bool {
        self.given
    }

    /// The record that was opened: its octets, how many are before the plaintext, and how its parts
    /// came.
    pub(crate) fn opened(&self) -> (&[u8], usize, &[Part]) {
        (&self.octets, self.tls.prefix_bytes(), &self.parts)
    }

    fn fail(&mut self, error: RecordError) -> RecordError {
        self.octets.zeroize();
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
        self.octets.zeroize();
    }
}

/// What was decrypted under a key that was not the record's is made what it was.
fn return_to_sealed(previous: &VecDeque<Previous>, octets: &mut [u8], parts: &mut [Part]) {
    for Previous { key, tls, number } in previous {
        tls.restore(*number, octets, parts, *key);
    }
}
