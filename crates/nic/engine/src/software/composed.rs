//! NVMe/TCP over TLS: PDUs from received records, and storage of both for retransmission.

use std::collections::VecDeque;

use unlade_net::SeqNumber;

use crate::composed::tx::{ComposedMessages, InnerState};
use crate::framing::distance;
use crate::nvme::Nvme;
use crate::placement::PlacedRanges;
use crate::resync::{Request, Response, Worked};
use crate::software::open::Part;
use crate::software::pdus::{Event, Input, PduError, PduResult, Pdus};
use crate::software::records::{RecordError, Records};
use crate::software::sent::{Full, Sent};
use crate::stats::Stats;
use crate::tls::{APPLICATION_DATA, Tls, Version, inner};
use crate::tx::{Found, MessageState, Messages};

/// Maximum number of parts of a record with separate results; further data is computed and copied.
pub const RESULTS_MAX: usize = 256;

/// The device's metadata for received bytes. The default is no metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComposedResult {
    /// Set if the bytes are decrypted.
    pub tls: Option<Worked>,
    /// Metadata of the application data in them. Ranges are relative to the first of all bytes.
    pub nvme: PduResult,
}

/// The result for bytes of the record.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Offset from the record's start.
    start: usize,
    end: usize,
    result: PduResult,
}

/// Opens records, and parses PDUs in them. No content of a record is released before all of it is
/// authentic; therefore data that was placed from a forged record is never reported as placed.
pub struct ComposedPdus {
    records: Records,
    pdus: Pdus,
    marks: Vec<Mark>,
    /// Bytes of the record.
    record_bytes: usize,
}

/// The content of a record.
pub enum Opened<'r> {
    /// PDUs, or parts of them; the caller reads all of them.
    Pdus(Content<'r>),
    /// Another content type, and the content.
    Other(u8, &'r [u8]),
}

/// PDUs in a record.
pub struct Content<'r> {
    pdus: &'r mut Pdus,
    /// The record's bytes up to the end of its content.
    bytes: &'r [u8],
    marks: &'r [Mark],
    parts: &'r [Part],
    /// Start of the record, and the next byte of it to read.
    start: SeqNumber,
    at: usize,
    input: Input<'r>,
}

impl ComposedPdus {
    /// Creates a reader for a stream in which record `number`, and a PDU in it, start at `start`.
    pub fn new(tls: Tls, nvme: Nvme, start: SeqNumber, number: u64) -> ComposedPdus {
        ComposedPdus {
            records: Records::new(tls, start, number),
            pdus: Pdus::new(nvme, start),
            marks: Vec::new(),
            record_bytes: 0,
        }
    }

    /// The records, for keys and requests of the outer machine.
    pub fn records(&mut self) -> &mut Records {
        &mut self.records
    }

    /// Accepts bytes that TCP delivers, as [`Records::push`] does.
    ///
    /// # Errors
    /// The stream of records has ended with an error.
    pub fn push(&mut self, bytes: &[u8], result: &ComposedResult) -> Result<usize, RecordError> {
        if self.records.is_given() {
            self.marks.clear();
            self.record_bytes = 0;
        }
        let taken = self.records.push(bytes, result.tls)?;
        if taken == 0 {
            return Ok(0);
        }
        let (start, end) = (self.record_bytes, self.record_bytes + taken);
        self.record_bytes = end;
        let said = result.nvme.of(0, taken as u32);
        let full = self.marks.len() == RESULTS_MAX;
        match self.marks.last_mut() {
            Some(last) if full => (last.end, last.result) = (end, PduResult::default()),
            Some(last)
                if last.result.pass == said.pass
                    && last.result.placed.is_empty()
                    && said.placed.is_empty() =>
            {
                let before = (start - last.start) as u32;
                let boundary = said.boundary.map(|at| at + before);
                last.result.boundary = last.result.boundary.or(boundary);
                last.end = end;
            }
            _ => self.marks.push(Mark { start, end, result: said }),
        }
        Ok(taken)
    }

    /// Returns the record once, when it is complete.
    ///
    /// # Errors
    /// [`RecordError::Forged`], which ends the stream; or an earlier error.
    pub fn open(&mut self, stats: &mut Stats) -> Result<Option<Opened<'_>>, RecordError> {
        let start = self.records.start();
        let version = self.records.version();
        let Some(record) = self.records.open(stats)? else { return Ok(None) };
        let (content_type, content_bytes) = match version {
            Version::Tls12 => (record.content_type, record.plaintext.len()),
            Version::Tls13 => inner(record.plaintext).unwrap_or((0, 0)),
        };
        let (bytes, prefix, parts) = self.records.opened();
        let bytes = &bytes[..prefix + content_bytes];
        if content_type != APPLICATION_DATA {
            return Ok(Some(Opened::Other(content_type, &bytes[prefix..])));
        }
        let (pdus, marks) = (&mut self.pdus, &self.marks[..]);
        let input = Input::plain(&[]);
        Ok(Some(Opened::Pdus(Content { pdus, bytes, marks, parts, start, at: prefix, input })))
    }

    /// Accepts a request for a PDU; the response comes from [`ComposedPdus::response`].
    pub fn request(&mut self, request: Request) {
        self.pdus.request(request);
    }

    /// Returns a response for the inner machine once.
    pub fn response(&mut self) -> Option<Response> {
        self.pdus.response()
    }

    /// See [`Pdus::stats`].
    pub fn stats(&self) -> &Stats {
        self.pdus.stats()
    }
}

impl Content<'_> {
    /// The next event, as [`Pdus::next`] returns it, or `None` at the end of the record.
    ///
    /// # Errors
    /// The stream of PDUs has ended with an error: this one, or an earlier one.
    pub fn event(&mut self) -> Result<Option<Event<'_>>, PduError> {
        loop {
            if let Some(next) = self.pdus.step(&mut self.input)? {
                return Ok(Some(self.pdus.show(next)));
            }
            if self.at == self.bytes.len() {
                return Ok(None);
            }
            self.turn();
        }
    }

    /// See [`Pdus::recheck`].
    pub fn recheck(&mut self, bytes: &[u8]) {
        self.pdus.recheck(bytes);
    }

    /// Advances to the next bytes with one result.
    fn turn(&mut self) {
        self.pdus.move_to(self.start + self.at as u32);
        let mark = self.marks.iter().find(|mark| self.at < mark.end);
        let end = mark.map_or(self.bytes.len(), |mark| mark.end.min(self.bytes.len()));
        let part = self.parts.iter().find(|part| self.at < part.end);
        let end = part.map_or(end, |part| end.min(part.end));
        // Without correct decryption the metadata of the inner machine is invalid.
        let decrypted = part.is_some_and(|part| part.worked.is_some());
        let result = match mark.filter(|_| decrypted) {
            None => PduResult::default(),
            Some(mark) => mark.result.of((self.at - mark.start) as u32, (end - mark.start) as u32),
        };
        self.input = Input::new(&self.bytes[self.at..end], result);
        self.at = end;
    }
}

/// Sent PDUs and records, each kept until no retransmission can need it.
pub struct ComposedSent<B> {
    records: Sent<B>,
    pdus: Sent<B>,
    /// Starts of each record, and of its application data in the inner stream.
    starts: VecDeque<(SeqNumber, SeqNumber)>,
    /// Starts of the next ones.
    next: SeqNumber,
    next_content: SeqNumber,
}

impl<B: AsRef<[u8]>> ComposedSent<B> {
    /// Creates an empty store; the first record starts at `start` and is number `number` under its
    /// key. At most `messages_max` records and as many PDUs are kept.
    pub fn new(start: SeqNumber, number: u64, messages_max: usize) -> ComposedSent<B> {
        ComposedSent {
            records: Sent::new(start, number, messages_max),
            pdus: Sent::new(SeqNumber(0), 0, messages_max),
            starts: VecDeque::new(),
            next: start,
            next_content: SeqNumber(0),
        }
    }

    /// Appends `pdu` to the inner stream, as software wrote it. It must precede the first record
    /// with bytes of it.
    ///
    /// # Errors
    /// [`Full`]; nothing is kept then.
    pub fn push_pdu(&mut self, pdu: B) -> Result<(), Full> {
        self.pdus.push(pdu)
    }

    /// Appends `record` to the stream, as software wrote it, with `content_bytes` bytes of the
    /// inner stream in it; 0 if it is no application data.
    ///
    /// # Errors
    /// [`Full`]; nothing is kept then.
    pub fn push_record(&mut self, record: B, content_bytes: u32) -> Result<(), Full> {
        let record_bytes = record.as_ref().len() as u32;
        self.records.push(record)?;
        self.starts.push_back((self.next, self.next_content));
        self.next = self.next + record_bytes;
        self.next_content = self.next_content + content_bytes;
        Ok(())
    }

    /// As [`Sent::change_key`].
    pub fn change_key(&mut self) -> (u16, SeqNumber) {
        self.records.change_key()
    }

    /// As [`Sent::under_one_key`].
    pub fn under_one_key(&self, seq: SeqNumber, bytes: usize) -> Option<(u16, usize)> {
        self.records.under_one_key(seq, bytes)
    }

    /// As [`Sent::acknowledge`], and frees PDUs that end before every remaining record: the first
    /// record may continue a PDU that began long before it.
    pub fn acknowledge(&mut self, acknowledged: SeqNumber) -> usize {
        let released = self.records.acknowledge(acknowledged);
        self.starts.drain(..released);
        let content = self.starts.front().map_or(self.next_content, |(_, content)| *content);
        self.pdus.acknowledge(content);
        released
    }

    /// Numbers of records and PDUs that are kept.
    pub fn len(&self) -> (usize, usize) {
        (self.records.len(), self.pdus.len())
    }

    /// Returns true if everything is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.pdus.is_empty()
    }
}

impl<B: AsRef<[u8]>> Messages for ComposedSent<B> {
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        self.records.find(seq)
    }
}

impl<B: AsRef<[u8]>> ComposedMessages for ComposedSent<B> {
    fn inner(&self, record: SeqNumber) -> Option<InnerState<'_>> {
        let at = self.starts.partition_point(|(start, _)| distance(*start, record) < 0);
        let &(_, start) = self.starts.get(at).filter(|(start, _)| *start == record)?;
        let pdu = match self.pdus.find(start) {
            Found::Message(pdu) => pdu,
            // The record contains no PDU, and follows the last one.
            _ if start == self.pdus.next() => {
                MessageState { start, number: self.pdus.number(), key: 0, bytes: &[] }
            }
            _ => return None,
        };
        Some(InnerState { start, pdu })
    }
}

impl ComposedResult {
    /// Metadata of a packet with the device's result `received` and the ranges `placed`, for its
    /// bytes from `received.tls.from` on.
    pub fn of(received: &crate::composed::rx::Received, placed: PlacedRanges) -> ComposedResult {
        let tls = received.tls.worked();
        let nvme = match tls {
            Some(_) => PduResult { pass: received.nvme, boundary: received.boundary, placed },
            None => PduResult::default(),
        };
        ComposedResult { tls, nvme }
    }
}
