//! Received bytes at the place where the device has put them: reference-counted parts of batches,
//! so that a batch returns to the device when its last part is dropped.

use std::cell::RefCell;
use std::rc::Rc;

use unlade_nic_engine::resync::Worked;
use unlade_nic_engine::software::pdus::PduResult;

use crate::queue::{RxBatch, RxSegment};

/// Batches without references, on their way back to the device.
#[derive(Clone, Debug, Default)]
pub struct Returned {
    #[allow(clippy::vec_box, reason = "a batch stays in its box all the way round")]
    batches: Rc<RefCell<Vec<Box<RxBatch>>>>,
}

impl Returned {
    /// Takes the next of them.
    pub fn pop(&self) -> Option<Box<RxBatch>> {
        self.batches.borrow_mut().pop()
    }
}

/// A batch with references to its parts.
#[derive(Debug)]
pub struct SharedBatch {
    /// `Some` until it is dropped.
    batch: Option<Box<RxBatch>>,
    returned: Returned,
}

impl SharedBatch {
    /// Wraps a batch of the device; after the last reference it is in `returned`.
    pub fn new(batch: Box<RxBatch>, returned: &Returned) -> Rc<SharedBatch> {
        Rc::new(SharedBatch { batch: Some(batch), returned: returned.clone() })
    }

    /// The batch.
    pub fn batch(&self) -> Option<&RxBatch> {
        self.batch.as_deref()
    }

    fn bytes(&self) -> &[u8] {
        self.batch.as_deref().map_or(&[], |batch| &batch.raw)
    }
}

impl Drop for SharedBatch {
    fn drop(&mut self) {
        self.returned.batches.borrow_mut().extend(self.batch.take());
    }
}

#[derive(Clone, Debug)]
enum Buffer {
    Batch(Rc<SharedBatch>),
    Own(Rc<[u8]>),
    RxMetadata(Rc<RxMetadata>),
}

/// A copy of a segment's payload, with the device's results for it.
#[derive(Debug)]
struct RxMetadata {
    raw: Box<[u8]>,
    pdus: PduResult,
}

/// Bytes of one stream, and the device's work on them, if there was any.
#[derive(Clone, Debug)]
pub struct RxBytes {
    buffer: Buffer,
    start: usize,
    end: usize,
    /// Index of its segment in the batch.
    segment: Option<u16>,
    /// The pass of the device.
    pub worked: Option<Worked>,
}

impl RxBytes {
    /// Creates a reference to a range of a batch.
    pub fn of_batch(
        held: &Rc<SharedBatch>,
        range: std::ops::Range<usize>,
        worked: Option<Worked>,
    ) -> RxBytes {
        let buffer = Buffer::Batch(Rc::clone(held));
        RxBytes { buffer, start: range.start, end: range.end, segment: None, worked }
    }

    /// The payload of the batch's segment with this index, from `from` bytes on; empty if there
    /// is no such segment.
    fn of_segment(held: &Rc<SharedBatch>, index: usize, from: usize) -> RxBytes {
        let segment = held.batch().and_then(|batch| batch.segments.get(index));
        let (mut range, worked) =
            segment.map_or((0..0, None), |found| (found.payload.clone(), found.worked));
        range.start = range.end.min(range.start + from);
        let mut piece = RxBytes::of_batch(held, range, worked);
        piece.segment = segment.and(u16::try_from(index).ok());
        piece
    }

    /// A copy of the `segment`'s payload, from `from` bytes on; it does not keep the batch from
    /// the device.
    fn copied_segment(raw: &[u8], segment: &RxSegment, from: usize) -> RxBytes {
        if segment.pdus == PduResult::default() {
            return RxBytes::copied(&raw[from..], segment.worked);
        }
        let told = RxMetadata { raw: raw.into(), pdus: segment.pdus };
        let (buffer, end) = (Buffer::RxMetadata(Rc::new(told)), raw.len());
        RxBytes { buffer, start: from, end, segment: None, worked: segment.worked }
    }

    /// Appends the payload of the batch's `segment` with this index to `pieces`: the part that is
    /// as it came, and the part that the device has processed. Copies do not keep the batch from
    /// the device.
    pub fn append(
        pieces: &mut Vec<RxBytes>,
        held: &Rc<SharedBatch>,
        (batch, index): (&RxBatch, usize),
        copies: bool,
    ) {
        let Some(segment) = batch.segments.get(index) else { return };
        let raw = &batch.raw[segment.payload.clone()];
        let from = segment.from.min(raw.len());
        if from > 0 && copies {
            pieces.push(RxBytes::copied(&raw[..from], None));
        } else if from > 0 {
            let start = segment.payload.start;
            pieces.push(RxBytes::of_batch(held, start..start + from, None));
        }
        pieces.push(match copies {
            true => RxBytes::copied_segment(raw, segment, from),
            false => RxBytes::of_segment(held, index, from),
        });
    }

    /// The device's results for PDUs in it.
    pub fn pdus(&self) -> PduResult {
        match self.told() {
            Some((pdus, first)) => pdus.of((self.start - first) as u32, (self.end - first) as u32),
            None => PduResult::default(),
        }
    }

    /// The device's results for its segment, and the segment's start.
    fn told(&self) -> Option<(&PduResult, usize)> {
        match &self.buffer {
            Buffer::Batch(held) => {
                let segment = held.batch()?.segments.get(usize::from(self.segment?))?;
                Some((&segment.pdus, segment.payload.start))
            }
            Buffer::Own(_) => None,
            Buffer::RxMetadata(told) => Some((&told.pdus, 0)),
        }
    }

    /// A copy of `bytes`, which keeps no batch from the device.
    pub fn copied(raw: &[u8], worked: Option<Worked>) -> RxBytes {
        let buffer = Buffer::Own(raw.into());
        RxBytes { buffer, start: 0, end: raw.len(), segment: None, worked }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        let raw = match &self.buffer {
            Buffer::Batch(held) => held.bytes(),
            Buffer::Own(raw) => raw,
            Buffer::RxMetadata(told) => &told.raw,
        };
        raw.get(self.start..self.end).unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Drops the first `raw` bytes, or all.
    pub fn skip(&mut self, raw: usize) {
        self.start = self.end.min(self.start + raw);
    }

    /// Drops the bytes behind the first `raw` bytes.
    pub fn truncate(&mut self, raw: usize) {
        self.end = self.end.min(self.start + raw);
    }

    /// Splits off the first `raw` bytes, or all.
    pub fn split_front(&mut self, raw: usize) -> RxBytes {
        let mut front = self.clone();
        front.truncate(raw);
        self.skip(raw);
        front
    }
}

impl AsRef<[u8]> for RxBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl unlade_research_tcp::Payload for RxBytes {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn skip(&mut self, raw: usize) {
        RxBytes::skip(self, raw);
    }

    fn truncate(&mut self, raw: usize) {
        RxBytes::truncate(self, raw);
    }

    fn split_front(&mut self, raw: usize) -> RxBytes {
        RxBytes::split_front(self, raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{QueueConfig, pair};

    #[test]
    fn a_batch_goes_back_when_its_last_part_does() {
        let (mut host, mut device) = pair(QueueConfig { tx_entries: 2, rx_batches: 1 });
        let mut batch = device.free.pop().unwrap();
        batch.raw[..6].copy_from_slice(b"abcdef");
        let returned = Returned::default();
        let held = SharedBatch::new(batch, &returned);
        let mut piece = RxBytes::of_batch(&held, 0..6, None);
        drop(held);
        let front = piece.split_front(2);
        assert_eq!((front.as_slice(), piece.as_slice()), (&b"ab"[..], &b"cdef"[..]));
        piece.truncate(3);
        piece.skip(1);
        assert_eq!((piece.as_slice(), piece.len()), (&b"de"[..], 2));
        drop(front);
        assert!(returned.pop().is_none());
        let copy = RxBytes::copied(piece.as_slice(), None);
        drop(piece);
        let batch = returned.pop().unwrap();
        assert!(host.free.push(batch).is_ok());
        assert_eq!(copy.as_slice(), b"de");
    }
}
