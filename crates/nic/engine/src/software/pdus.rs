//! Received NVMe/TCP PDUs: bytes that TCP delivers, in order, with the device's metadata.
//!
//! Data bytes are passed through without a copy; only headers are assembled here. A digest is
//! computed only if the device has not checked it. A header is reported after its digest was
//! verified. Data is followed by [`Event::End`] or [`Event::Corrupt`].
//!
//! ```
//! use unlade_nic_engine::nvme::Nvme;
//! use unlade_nic_engine::software::pdus::{Event, Input, PduError, Pdus};
//!
//! fn receive(pdus: &mut Pdus, bytes: &[u8], buffer: &mut [u8]) -> Result<(), PduError> {
//!     let mut input = Input::plain(bytes);
//!     while let Some(event) = pdus.next(&mut input)? {
//!         match event {
//!             Event::Header { header, data_bytes } => println!("{header:?}, {data_bytes} bytes"),
//!             Event::Data { offset, bytes, .. } => {
//!                 buffer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
//!             }
//!             // This event never occurs without a device.
//!             Event::Recheck { .. } => (),
//!             Event::End => println!("all of it is good"),
//!             Event::Corrupt => println!("the command fails"),
//!         }
//!     }
//!     Ok(())
//! }
//!
//! let nvme = Nvme { header_digest: false, data_digest: false, data_bytes_max: 1 << 20 };
//! let mut pdus = Pdus::new(nvme, unlade_net::SeqNumber(0));
//! let mut response = [0; 24];
//! response[..8].copy_from_slice(&[5, 0, 24, 0, 24, 0, 0, 0]);
//! receive(&mut pdus, &response, &mut []).expect("a PDU");
//! ```

use thiserror::Error;
use unlade_aead::crc32c;
use unlade_net::SeqNumber;

use crate::nvme::{COMMON_BYTES, DIGEST_BYTES, HEADER_BYTES_MAX, Layout, Nvme, Target, target};
use crate::placement::{Placed, PlacedRanges, Registration};
use crate::resync::{Pass, Request, Response};
use crate::rule::{Rule, holds};
use crate::software::boundaries::Boundaries;
use crate::stats::Stats;

/// Fatal error of a stream of PDUs, caused by the peer or by an attacker on the path. A wrong data
/// digest is not fatal ([`Event::Corrupt`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PduError {
    /// A PDU header is malformed, does not match the negotiated parameters, or has inconsistent
    /// lengths.
    #[error("no PDU where one should start; send a termination request and close the connection")]
    Malformed,
    /// The header was changed, so nothing that follows can be parsed.
    #[error("a header digest is wrong; send a termination request and close the connection")]
    HeaderDigest,
}

/// The device's metadata for received bytes. The default is no metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PduResult {
    /// The bytes are of this pass, and every digest that ends in them is correct (`crc_ok`).
    pub pass: Option<Pass>,
    /// Offset of the first PDU that starts in them, as seen by the device.
    pub boundary: Option<u32>,
    /// The ranges of them that were placed in registered buffers.
    pub placed: PlacedRanges,
}

impl PduResult {
    /// The metadata of the bytes from `start` to `end`, relative to `start`.
    pub fn of(&self, start: u32, end: u32) -> PduResult {
        let boundary = self.boundary.filter(|at| (start..end).contains(at)).map(|at| at - start);
        PduResult { pass: self.pass, boundary, placed: self.placed.of(start, end) }
    }

    /// Extends the metadata of the first `bytes` by that of the bytes after them. Returns false,
    /// without a change, if the two cannot be merged.
    pub fn append(&mut self, bytes: u32, behind: &PduResult) -> bool {
        let placed_unchecked = !self.placed.is_empty() || !behind.placed.is_empty();
        if self.pass != behind.pass || (self.pass.is_none() && placed_unchecked) {
            return false;
        }
        let mut placed = self.placed;
        for range in behind.placed.as_slice() {
            let (start, end) = (bytes + range.start, bytes + range.end);
            if !placed.push(Placed { start, end, ..*range }) {
                return false;
            }
        }
        self.placed = placed;
        self.boundary = self.boundary.or(behind.boundary.map(|at| bytes + at));
        true
    }
}

/// Bytes that TCP delivers, of one packet or of several with the same pass, with the device's
/// metadata.
#[derive(Clone, Copy, Debug)]
pub struct Input<'o> {
    bytes: &'o [u8],
    /// Number of consumed bytes.
    done: usize,
    result: PduResult,
}

impl<'o> Input<'o> {
    /// Bytes with the metadata `result`, whose ranges are relative to the first of them.
    pub fn new(bytes: &'o [u8], result: PduResult) -> Input<'o> {
        Input { bytes, done: 0, result }
    }

    /// Bytes that no device has processed.
    pub fn plain(bytes: &'o [u8]) -> Input<'o> {
        Input::new(bytes, PduResult::default())
    }

    /// Number of bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.done
    }

    fn take(&mut self, count: usize) -> &'o [u8] {
        let bytes = &self.bytes[self.done..self.done + count];
        self.done += count;
        bytes
    }

    /// The number of next bytes, at most `most`, that are placed contiguously or not at all, and
    /// the place where they are.
    fn run(&self, most: usize) -> (usize, Option<(Registration, u32)>) {
        let at = self.done as u32;
        for placed in self.result.placed.as_slice() {
            if at < placed.start {
                return (most.min((placed.start - at) as usize), None);
            }
            if at < placed.end {
                let offset = placed.offset.wrapping_add(at - placed.start);
                let count = most.min((placed.end - at) as usize);
                return (count, Some((placed.registration, offset)));
            }
        }
        (most, None)
    }
}

/// An event of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'e> {
    /// A complete PDU header, without its verified digest.
    Header {
        /// HLEN bytes.
        header: &'e [u8],
        /// Number of data bytes that follow.
        data_bytes: u32,
    },
    /// The next bytes of the PDU's data.
    Data {
        /// Their offset in the PDU's data; the offset in the buffer is DATAO more.
        offset: u32,
        /// The bytes, whether placed or not.
        bytes: &'e [u8],
        /// The registration in whose buffer the device has placed them, at the offset that the
        /// header gives. The copy can be skipped if this is the command's *current* registration.
        placed: Option<Registration>,
    },
    /// The device started to check a digest and did not complete it: the first `data_bytes` of the
    /// PDU's data must be passed to [`Pdus::recheck`] from their destination before the next event
    /// is requested. Never without metadata of a device.
    Recheck {
        /// Number of bytes to recheck.
        data_bytes: u32,
    },
    /// The PDU is complete, and its digests are correct.
    End,
    /// The PDU is complete, and its data digest is wrong: its data is invalid. The command fails
    /// (Transient Transport Error), the connection can continue.
    Corrupt,
}

/// Passes of the bytes of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// No byte has come yet.
    Empty,
    /// All bytes are of one pass.
    One(Pass),
    /// The device cannot have checked the PDU.
    Broken,
}

impl Run {
    fn join(&mut self, pass: Option<Pass>) {
        *self = match (*self, pass) {
            (Run::Empty, Some(pass)) => Run::One(pass),
            (Run::One(first), Some(pass)) if first == pass => *self,
            (Run::One(_), Some(_)) if !holds(Rule::OnePass) => *self,
            (Run::One(_), _) if !holds(Rule::Whole) => *self,
            _ => Run::Broken,
        };
    }

    fn is_one(self) -> bool {
        matches!(self, Run::One(_))
    }
}

/// Evidence that the device's checks apply to the current PDU.
#[derive(Clone, Copy, Debug)]
struct Trust {
    run: Run,
    /// The device saw the PDU start at its actual start, so it has the same header and end.
    /// Otherwise these bytes may have been the middle of another PDU for the device.
    aligned: bool,
}

impl Trust {
    /// Starts a PDU in bytes of this pass; `seen` if the device saw a PDU start there.
    fn start(&mut self, pass: Option<Pass>, seen: bool) {
        let follows = self.aligned && pass.is_some_and(|pass| self.run == Run::One(pass));
        self.aligned = follows || seen || !holds(Rule::Aligned);
        self.run = Run::Empty;
    }

    /// Returns true if the device has checked everything so far.
    fn is_whole(self) -> bool {
        self.run.is_one() && self.aligned
    }
}

/// The next step in a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Common,
    /// The rest of the header, its digest.
    Header(Layout),
    /// The header is to be reported.
    Shown(Layout),
    Pad(Layout),
    Data(Layout),
    DataDigest(Layout),
    Recheck(Layout),
    /// The PDU is complete; true if its data is correct.
    Verdict(bool),
    Failed(PduError),
}

/// Assembles headers and checks digests of one stream.
#[derive(Clone, Debug)]
pub struct Pdus {
    nvme: Nvme,
    stage: Stage,
    /// The received bytes of header and digest.
    header: [u8; HEADER_BYTES_MAX + DIGEST_BYTES],
    /// Consumed bytes of the PDU.
    offset: u32,
    trust: Trust,
    /// Number of data bytes at the start whose digest was left to the device.
    trusted_bytes: u32,
    /// The digest of the first of them, and their number, computed by [`Pdus::recheck`].
    rechecked: (u32, u32),
    /// The digest of the data after those.
    crc: u32,
    digest: [u8; DIGEST_BYTES],
    touched: bool,
    boundaries: Boundaries,
    /// The next byte of the stream.
    position: SeqNumber,
    response: Option<Response>,
    stats: Stats,
}

/// An event that does not borrow its header yet.
#[derive(Clone, Copy)]
pub(crate) enum Next<'o> {
    Header(Layout),
    Other(Event<'o>),
}

impl Pdus {
    /// Creates a parser for a stream in which a PDU starts at `start`.
    pub fn new(nvme: Nvme, start: SeqNumber) -> Pdus {
        Pdus {
            nvme,
            stage: Stage::Common,
            header: [0; HEADER_BYTES_MAX + DIGEST_BYTES],
            offset: 0,
            trust: Trust { run: Run::Empty, aligned: false },
            trusted_bytes: 0,
            rechecked: (0, 0),
            crc: 0,
            digest: [0; DIGEST_BYTES],
            touched: false,
            boundaries: Boundaries::new(start, 0),
            position: start,
            response: None,
            stats: Stats::default(),
        }
    }

    /// Sets digests and limits from the next PDU on (after ICReq and ICResp, which have neither).
    /// Call it between PDUs, after [`Event::End`].
    pub fn agree(&mut self, nvme: Nvme) {
        self.nvme = nvme;
    }

    /// Consumes the bytes of `input` for one event, or all of them.
    ///
    /// # Errors
    /// The error that ended the stream, now or earlier.
    pub fn next<'e, 'o: 'e>(
        &'e mut self,
        input: &mut Input<'o>,
    ) -> Result<Option<Event<'e>>, PduError> {
        Ok(self.step(input)?.map(|next| self.show(next)))
    }

    pub(crate) fn show<'e, 'o: 'e>(&'e self, next: Next<'o>) -> Event<'e> {
        match next {
            Next::Header(layout) => {
                let header = &self.header[..layout.header_end as usize];
                Event::Header { header, data_bytes: layout.data_bytes() }
            }
            Next::Other(event) => event,
        }
    }

    /// As [`Pdus::next`], without borrowing the header.
    pub(crate) fn step<'o>(&mut self, input: &mut Input<'o>) -> Result<Option<Next<'o>>, PduError> {
        loop {
            match self.stage {
                Stage::Failed(error) => return Err(error),
                Stage::Common => {
                    if !self.take_header(COMMON_BYTES, input) {
                        return Ok(None);
                    }
                    let common = self.header.first_chunk().copied().unwrap_or_default();
                    let layout = self.nvme.layout(&common);
                    self.stage = layout.map_or(Stage::Failed(PduError::Malformed), Stage::Header);
                }
                Stage::Header(layout) => {
                    if !self.take_header(layout.digest_end as usize, input) {
                        return Ok(None);
                    }
                    self.stage = self.judge_header(&layout);
                }
                Stage::Shown(layout) => {
                    self.stage = self.after_header(&layout);
                    return Ok(Some(Next::Header(layout)));
                }
                Stage::Pad(layout) => {
                    let left = (layout.data_start - self.offset) as usize;
                    self.take(left.min(input.left()), input);
                    if self.offset < layout.data_start {
                        return Ok(None);
                    }
                    self.stage = Stage::Data(layout);
                }
                Stage::Data(layout) => {
                    return Ok(self.data(&layout, input).map(Next::Other));
                }
                Stage::DataDigest(layout) => {
                    if !self.take_digest(&layout, input) {
                        return Ok(None);
                    }
                    if self.stage == Stage::Recheck(layout) {
                        let data_bytes = self.trusted_bytes;
                        return Ok(Some(Next::Other(Event::Recheck { data_bytes })));
                    }
                }
                Stage::Recheck(layout) => self.stage = self.judge_data(&layout),
                Stage::Verdict(good) => {
                    self.finish();
                    let event = if good { Event::End } else { Event::Corrupt };
                    return Ok(Some(Next::Other(event)));
                }
            }
        }
    }

    /// Consumes `count` bytes, which must be present.
    fn take<'o>(&mut self, count: usize, input: &mut Input<'o>) -> &'o [u8] {
        if count > 0 {
            if self.offset == 0 {
                let seen = input.result.boundary == Some(input.done as u32);
                self.trust.start(input.result.pass, seen);
            }
            self.trust.run.join(input.result.pass);
            self.touched |= input.result.pass.is_some();
            self.offset += count as u32;
            self.position = self.position + count as u32;
        }
        input.take(count)
    }

    /// Consumes bytes of header and header digest up to `until`; returns true if all are present.
    fn take_header(&mut self, until: usize, input: &mut Input<'_>) -> bool {
        let have = self.offset as usize;
        let bytes = self.take((until - have).min(input.left()), input);
        self.header[have..have + bytes.len()].copy_from_slice(bytes);
        have + bytes.len() == until
    }

    fn judge_header(&self, layout: &Layout) -> Stage {
        let (header, rest) = self.header.split_at(layout.header_end as usize);
        let digest = u32::from_le_bytes(rest.first_chunk().copied().unwrap_or_default());
        let wrong = layout.has_header_digest()
            && !self.trust.is_whole()
            && crc32c::update(0, header) != digest;
        if wrong {
            return Stage::Failed(PduError::HeaderDigest);
        }
        match target(header) {
            Some(target) if target.data_bytes != layout.data_bytes() => {
                Stage::Failed(PduError::Malformed)
            }
            _ => Stage::Shown(*layout),
        }
    }

    fn after_header(&self, layout: &Layout) -> Stage {
        match layout.data_bytes() {
            0 => Stage::Verdict(true),
            _ => Stage::Pad(*layout),
        }
    }

    /// The next bytes of data, placed contiguously or not at all.
    fn data<'o>(&mut self, layout: &Layout, input: &mut Input<'o>) -> Option<Event<'o>> {
        let left = (layout.data_end - self.offset) as usize;
        let (count, placed) = input.run(left.min(input.left()));
        if count == 0 {
            return None;
        }
        let offset = self.offset - layout.data_start;
        let bytes = self.take(count, input);
        let belongs = target(&self.header)
            .map(|Target { tag, offset: start, .. }| (tag, start.wrapping_add(offset)));
        let placed = placed.filter(|(registration, at)| {
            belongs == Some((registration.tag, *at)) || !holds(Rule::Destination)
        });
        if layout.has_data_digest() {
            if self.trust.is_whole() {
                self.trusted_bytes = offset + count as u32;
            } else {
                self.crc = crc32c::update(self.crc, bytes);
            }
        }
        if self.offset == layout.data_end {
            self.stage = match layout.has_data_digest() {
                true => Stage::DataDigest(*layout),
                false => Stage::Verdict(true),
            };
        }
        if placed.is_some() {
            self.stats.copy_skipped_bytes += count as u64;
        }
        let placed = placed.map(|(registration, _)| registration);
        Some(Event::Data { offset, bytes, placed })
    }

    /// Consumes bytes of the data digest; returns true if it is complete.
    fn take_digest(&mut self, layout: &Layout, input: &mut Input<'_>) -> bool {
        let have = (self.offset - layout.data_end) as usize;
        let bytes = self.take((DIGEST_BYTES - have).min(input.left()), input);
        self.digest[have..have + bytes.len()].copy_from_slice(bytes);
        if self.offset < layout.pdu_end {
            return false;
        }
        self.stage = match (self.trust.is_whole(), self.trusted_bytes) {
            (true, _) => Stage::Verdict(true),
            (false, 0) => self.judge_data(layout),
            (false, _) => Stage::Recheck(*layout),
        };
        true
    }

    /// Computes the digest of the next bytes that [`Event::Recheck`] asks for. If bytes are
    /// missing, the digest counts as wrong.
    pub fn recheck(&mut self, content: &[u8]) {
        let (crc, bytes) = self.rechecked;
        let bytes = bytes.saturating_add(content.len() as u32);
        self.rechecked = (crc32c::update(crc, content), bytes);
    }

    fn judge_data(&self, layout: &Layout) -> Stage {
        let (first, bytes) = self.rechecked;
        let behind = u64::from(layout.data_bytes() - self.trusted_bytes);
        let crc = crc32c::combine(first, self.crc, behind);
        let complete = bytes == self.trusted_bytes || !holds(Rule::Recheck);
        let good = complete && crc == u32::from_le_bytes(self.digest);
        Stage::Verdict(good || !holds(Rule::Recheck))
    }

    /// Finishes the PDU.
    fn finish(&mut self) {
        match (self.trust.is_whole(), self.touched) {
            (true, _) => self.stats.pdus_offloaded += 1,
            (false, true) => self.stats.pdus_partial += 1,
            (false, false) => self.stats.pdus_software += 1,
        }
        self.stage = Stage::Common;
        self.offset = 0;
        self.touched = false;
        self.trusted_bytes = 0;
        self.rechecked = (0, 0);
        self.crc = 0;
        let answer = self.boundaries.advance_to(self.position);
        self.response = answer.or(self.response);
    }

    /// Continues at `seq` in TCP's stream, because bytes of another protocol (TLS) precede it. All
    /// events of the bytes before must have been consumed.
    pub fn move_to(&mut self, seq: SeqNumber) {
        self.position = seq;
        if self.offset == 0 {
            let answer = self.boundaries.move_to(seq);
            self.response = answer.or(self.response);
        }
    }

    /// Start of the current PDU, or of the next one: PDUs up to it have been read.
    pub fn start(&self) -> SeqNumber {
        self.boundaries.start()
    }

    /// Accepts a request of the device; [`Pdus::response`] returns the answer, now or later.
    pub fn request(&mut self, request: Request) {
        let answer = self.boundaries.request(request);
        self.response = answer.or(self.response);
    }

    /// Returns a response for the device once.
    pub fn response(&mut self) -> Option<Response> {
        self.response.take()
    }

    /// Counters of PDUs, and of bytes whose copy could be skipped.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}
