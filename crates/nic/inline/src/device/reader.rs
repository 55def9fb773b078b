//! Extracts records from the bytes of the kernel's socket, with the engine's notes on them.

use std::sync::Arc;

use unlade_nic_engine::software::records::{RecordError, Records};
use unlade_nic_engine::{Stats, Tls};
use unlade_tls::{Received, RecordLayer};

use super::delivery_log::DeliveryHistory;
use super::flow::Flow;
use super::static_state;

/// The receiving direction of an offloaded connection.
pub struct Reader {
    flow: Arc<Flow>,
    records: Records,
    /// Number of key changes of the layer.
    generation: u32,
    ranges: Vec<(u64, DeliveryHistory)>,
    /// True if the layer has processed the current record's header.
    is_judged: bool,
    /// Bytes that were read from the socket.
    position: u64,
    stats: Stats,
    doubtful: u64,
}

impl Reader {
    /// Creates a reader for a stream in which a record starts at `offset`, after `number` others
    /// under its key. Bytes up to `read` were read from the socket before; those behind `offset`
    /// are passed next to [`Reader::receive_read`].
    pub fn new(flow: Arc<Flow>, tls: Tls, offset: u64, number: u64, read: u64) -> Reader {
        let start = flow.rx().seq(offset);
        Reader {
            flow,
            records: Records::new(tls, start, number),
            generation: 0,
            ranges: Vec::new(),
            is_judged: false,
            position: read,
            stats: Stats::default(),
            doubtful: 0,
        }
    }

    /// Takes bytes that were read before the offload began: they came as they were.
    ///
    /// # Errors
    /// As [`Reader::receive`].
    pub fn receive_read(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, unlade_tls::RecordError> {
        self.take(layer, bytes, &[(bytes.len() as u64, DeliveryHistory::one(None))], 0, plaintext)
    }

    /// Takes the next bytes of the socket. Application data is appended to `plaintext`.
    ///
    /// # Errors
    /// A protocol error of the peer or damage on the way; the layer has an alert for it.
    pub fn receive(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, unlade_tls::RecordError> {
        let mut ranges = std::mem::take(&mut self.ranges);
        {
            let mut rx = self.flow.rx();
            rx.read(bytes.len(), &mut ranges);
            if let Some(request) = rx.request() {
                self.records.request(request);
            }
        }
        let start = self.position;
        self.position += bytes.len() as u64;
        let received = self.take(layer, bytes, &ranges, start, plaintext)?;
        ranges.clear();
        self.ranges = ranges;
        if let Some(response) = self.records.response() {
            self.flow.rx().respond(response);
        }
        Ok(received)
    }

    /// Takes `bytes`, the first of which is at `start`; `ranges` lists their deliveries, each
    /// with its end.
    fn take(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        mut ranges: &[(u64, DeliveryHistory)],
        start: u64,
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, unlade_tls::RecordError> {
        if layer.is_closed_by_peer() {
            // Everything behind a close_notify is ignored (RFC 8446 §6.1).
            let output_pending = layer.output_pending();
            return Ok(Received { close_notify: true, output_pending });
        }
        let mut received = Received::default();
        let mut at = 0;
        while at < bytes.len() {
            while let [(until, _), rest @ ..] = ranges
                && *until <= start + at as u64
            {
                ranges = rest;
            }
            let Some((until, ways)) = ranges.first() else { break };
            let number = self.records.number();
            // A complete record that the device has authenticated need not be reassembled.
            let here = start + at as u64;
            let pieces =
                ranges.iter().map(|(until, ways)| ((until - here) as usize, ways.certain()));
            let whole = self.records.take_offloaded(&mut self.stats, &bytes[at..], pieces);
            let record = match whole {
                Some((record, taken)) => {
                    if let Some(header) = bytes[at..].first_chunk() {
                        layer.check_header(header)?;
                    }
                    at += taken;
                    record
                }
                None => {
                    let end = bytes.len().min((until - start) as usize);
                    let taken = self.records.push_uncertain(&bytes[at..end], ways.as_slice());
                    let refused =
                        |_: RecordError| refuse(layer, self.records.refused_header(), number);
                    at += taken.map_err(refused)?;
                    if let Some(header) = self.records.header().filter(|_| !self.is_judged) {
                        layer.check_header(header)?;
                        self.is_judged = true;
                    }
                    let opened = self.records.open(&mut self.stats);
                    let refused = |_: RecordError| refuse(layer, None, number);
                    let Some(record) = opened.map_err(refused)? else { continue };
                    record
                }
            };
            self.is_judged = false;
            received = layer.receive_opened(record.content_type, record.plaintext, plaintext)?;
            self.follow_key(layer);
            if received.close_notify {
                break;
            }
        }
        Ok(received)
    }

    /// Switches to another key if the previous record was the last one of its key.
    fn follow_key(&mut self, layer: &RecordLayer) {
        let (generation, _) = layer.generations();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let Some((keys, _)) = layer.device_keys() else { return };
        // Both are `Some`: the cipher has not changed.
        if let (Some(ours), Some(device)) = (static_state(&keys), static_state(&keys)) {
            let key = self.records.change_key(ours);
            self.flow.rx().change_key(device, self.records.start(), key);
        }
    }

    /// The bytes of an incomplete record, as they came on the wire. `None` if some of it, or of
    /// the bytes that are delivered and not read, was decrypted.
    pub fn unopened(&self) -> Option<&[u8]> {
        self.records.unopened().filter(|_| self.flow.rx().is_plain())
    }

    /// Counters since the last call: records by kind, and records with ambiguous delivery.
    pub fn take_stats(&mut self) -> (Stats, u64) {
        let doubtful = self.records.ambiguous_records() - self.doubtful;
        self.doubtful += doubtful;
        (std::mem::take(&mut self.stats), doubtful)
    }
}

/// Reports to the layer why the stream has ended with record `number` under its key. The error is
/// the same as the layer would have found, so that the peer gets the same alert as from software.
/// `header` is the one that the records refused.
fn refuse(
    layer: &mut RecordLayer,
    header: Option<&[u8; 5]>,
    number: u64,
) -> unlade_tls::RecordError {
    let found = header.and_then(|header| layer.check_header(header).err());
    // A header that the layer accepts belongs to a record that is shorter than any sealed one.
    let error = found.unwrap_or(unlade_tls::RecordError::BadRecordMac { sequence: number });
    layer.refuse(error);
    error
}
