//! NVMe/TCP over TLS: PDUs out of received records, and both kept for what is sent again.

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

/// Most parts of a record that have results of their own; what is beyond is computed and copied.
pub const RESULTS_MAX: usize = 256;

/// What the device says of received bytes. The default is that it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComposedResult {
    /// They are decrypted.
    pub tls: Option<Worked>,
    /// What is said of the application data in them. Ranges count from the first of all bytes.
    pub nvme: PduResult,
}

/// The result for bytes of the record.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// From the record's start.
    start: usize,
    end: usize,
    result: PduResult,
}

/// Opens records, and finds PDUs in them. Nothing of a record is given out before all of it is
/// authentic; so what the device has placed of a record that is not is never said to be there.
pub struct ComposedPdus {
    records: Records,
    pdus: Pdus,
    marks: Vec<Mark>,
    /// Bytes of the record.
    record_bytes: usize,
}

/// What a record held.
pub enum Opened<'r> {
    /// PDUs, or parts of them: all are to be taken.
    Pdus(Content<'r>),
    /// Something else: its content type, and what it says.
    Other(u8, &'r [u8]),
}

/// PDUs in a record.
pub struct Content<'r> {
    pdus: &'r mut Pdus,
    /// The record's bytes up to the end of its content.
    bytes: &'r [u8],
    marks: &'r [Mark],
    parts: &'r [Part],
    /// Where the record starts, and the next byte of it to be taken.
    start: SeqNumber,
    at: usize,
    input: Input<'r>,
}

impl ComposedPdus {
    /// A record starts at `start`, after `number` others under its key, and a PDU in it.
    pub fn new(tls: Tls, nvme: Nvme, start: SeqNumber, number: u64) -> ComposedPdus {
        ComposedPdus {
            records: Records::new(tls, start, number),
            pdus: Pdus::new(nvme, start),
            marks: Vec::new(),
            record_bytes: 0,
        }
    }

    /// The records, for keys and questions of the outer machine.
    pub fn records(&mut self) -> &mut Records {
        &mut self.records
    }

    /// Takes bytes that TCP delivers, as [`Records::push`] does.
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

    /// The record, when it is complete: once.
    ///
    /// # Errors
    /// [`RecordError::Forged`], and the stream has ended; or it had before.
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

    /// The device asks for a PDU; the answer comes from [`ComposedPdus::response`].
    pub fn request(&mut self, request: Request) {
        self.pdus.request(request);
    }

    /// An answer for the inner machine, once.
    pub fn response(&mut self) -> Option<Response> {
        self.pdus.response()
    }

    /// See [`Pdus::stats`].
    pub fn stats(&self) -> &Stats {
        self.pdus.stats()
    }
}

impl Content<'_> {
    /// The next event, as [`Pdus::next`] gives it; nothing where the record is used up.
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

    /// Goes on with the next bytes that have one result.
    fn turn(&mut self) {
        self.pdus.move_to(self.start + self.at as u32);
        let mark = self.marks.iter().find(|mark| self.at < mark.end);
        let end = mark.map_or(self.bytes.len(), |mark| mark.end.min(self.bytes.len()));
        let part = self.parts.iter().find(|part| self.at < part.end);
        let end = part.map_or(end, |part| end.min(part.end));
        // What was decrypted wrongly was not looked at rightly.
        let decrypted = part.is_some_and(|part| part.worked.is_some());
        let result = match mark.filter(|_| decrypted) {
            None => PduResult::default(),
            Some(mark) => mark.result.of((self.at - mark.start) as u32, (end - mark.start) as u32),
        };
        self.input = Input::new(&self.bytes[self.at..end], result);
        self.at = end;
    }
}

/// PDUs and records that were sent: each is kept until it cannot be needed any more.
pub struct ComposedSent<B> {
    records: Sent<B>,
    pdus: Sent<B>,
    /// Where each of the records starts, and its application data in the inner stream.
    starts: VecDeque<(SeqNumber, SeqNumber)>,
    /// Where the next ones start.
    next: SeqNumber,
    next_content: SeqNumber,
}

impl<B: AsRef<[u8]>> ComposedSent<B> {
    /// No record yet; the first will start at `start` and have `number` before it under its key. At
    /// most `messages_max` records and as many PDUs are kept.
    pub fn new(start: SeqNumber, number: u64, messages_max: usize) -> ComposedSent<B> {
        ComposedSent {
            records: Sent::new(start, number, messages_max),
            pdus: Sent::new(SeqNumber(0), 0, messages_max),
            starts: VecDeque::new(),
            next: start,
            next_content: SeqNumber(0),
        }
    }

    /// The inner stream goes on with `pdu`, as software wrote it. It comes before the first record
    /// with bytes of it.
    ///
    /// # Errors
    /// [`Full`]; nothing is kept then.
    pub fn push_pdu(&mut self, pdu: B) -> Result<(), Full> {
        self.pdus.push(pdu)
    }

    /// The stream goes on with `record`, as software wrote it, with `content_bytes` bytes of the
    /// inner stream in it; none where it is no application data.
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

    /// As [`Sent::acknowledge`], and lets go of PDUs that end before every record that is left: the
    /// first record may go on with a PDU that began long before it.
    pub fn acknowledge(&mut self, acknowledged: SeqNumber) -> usize {
        let released = self.records.acknowledge(acknowledged);
        self.starts.drain(..released);
        let content = self.starts.front().map_or(self.next_content, |(_, content)| *content);
        self.pdus.acknowledge(content);
        released
    }

    /// How many records and PDUs are kept.
    pub fn len(&self) -> (usize, usize) {
        (self.records.len(), self.pdus.len())
    }

    /// True where everything is acknowledged.
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
            // The record has no PDU in it, and is behind the last one.
            _ if start == self.pdus.next() => {
                MessageState { start, number: self.pdus.number(), key: 0, bytes: &[] }
            }
            _ => return None,
        };
        Some(InnerState { start, pdu })
    }
}

impl ComposedResult {
    /// What is said of a packet that the device gave `received` for, with what it has `placed`; of
    /// its bytes from `received.tls.from` on.
    pub fn of(received: &crate::composed::rx::Received, placed: PlacedRanges) -> ComposedResult {
        let tls = received.tls.worked();
        let nvme = match tls {
            Some(_) => PduResult { pass: received.nvme, boundary: received.boundary, placed },
            None => PduResult::default(),
        };
        ComposedResult { tls, nvme }
    }
}
