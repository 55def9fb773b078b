//! Octets that came, where the device has put them: parts of batches, counted by references, so that a
//! batch goes back to the device when nobody has a part of it any more.

use std::cell::RefCell;
use std::rc::Rc;

use offload::resync::Pass;

use crate::queue::RxBatch;

/// Batches that nobody refers to any more, on their way back to the device.
#[derive(Clone, Debug, Default)]
pub struct Returned {
    batches: Rc<RefCell<Vec<Box<RxBatch>>>>,
}

impl Returned {
    /// The next of them.
    pub fn pop(&self) -> Option<Box<RxBatch>> {
        self.batches.borrow_mut().pop()
    }
}

/// A batch to which parts refer.
#[derive(Debug)]
pub struct Held {
    /// There until it is dropped.
    batch: Option<Box<RxBatch>>,
    returned: Returned,
}

impl Held {
    /// A batch that the device gave; when nobody has a part of it, it is in `returned`.
    pub fn new(batch: Box<RxBatch>, returned: &Returned) -> Rc<Held> {
        Rc::new(Held { batch: Some(batch), returned: returned.clone() })
    }

    /// The batch.
    pub fn batch(&self) -> Option<&RxBatch> {
        self.batch.as_deref()
    }

    fn octets(&self) -> &[u8] {
        self.batch.as_deref().map_or(&[], |batch| &batch.octets)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.returned.batches.borrow_mut().extend(self.batch.take());
    }
}

#[derive(Clone, Debug)]
enum Buffer {
    Batch(Rc<Held>),
    Own(Rc<[u8]>),
}

/// Octets of one stream, and the pass in which the device has worked on them, if it has.
#[derive(Clone, Debug)]
pub struct Piece {
    buffer: Buffer,
    start: usize,
    end: usize,
    /// The pass.
    pub pass: Option<Pass>,
}

impl Piece {
    /// A range of a batch.
    pub fn of_batch(held: &Rc<Held>, range: std::ops::Range<usize>, pass: Option<Pass>) -> Piece {
        let buffer = Buffer::Batch(Rc::clone(held));
        Piece { buffer, start: range.start, end: range.end, pass }
    }

    /// A copy of `octets`, which keeps no batch from the device.
    pub fn copied(octets: &[u8], pass: Option<Pass>) -> Piece {
        Piece { buffer: Buffer::Own(octets.into()), start: 0, end: octets.len(), pass }
    }

    /// The octets.
    pub fn as_slice(&self) -> &[u8] {
        let octets = match &self.buffer {
            Buffer::Batch(held) => held.octets(),
            Buffer::Own(octets) => octets,
        };
        octets.get(self.start..self.end).unwrap_or_default()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True where there are none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Lets go of the first `octets`, or of all.
    pub fn skip(&mut self, octets: usize) {
        self.start = self.end.min(self.start + octets);
    }

    /// Lets go of what is behind the first `octets`.
    pub fn truncate(&mut self, octets: usize) {
        self.end = self.end.min(self.start + octets);
    }

    /// Takes out the first `octets`, or all.
    pub fn split_front(&mut self, octets: usize) -> Piece {
        let mut front = self.clone();
        front.truncate(octets);
        self.skip(octets);
        front
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl tcp::Payload for Piece {
    fn octets(&self) -> usize {
        self.len()
    }

    fn skip(&mut self, octets: usize) {
        Piece::skip(self, octets);
    }

    fn truncate(&mut self, octets: usize) {
        Piece::truncate(self, octets);
    }

    fn split_front(&mut self, octets: usize) -> Piece {
        Piece::split_front(self, octets)
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
        batch.octets[..6].copy_from_slice(b"abcdef");
        let returned = Returned::default();
        let held = Held::new(batch, &returned);
        let mut piece = Piece::of_batch(&held, 0..6, None);
        drop(held);
        let front = piece.split_front(2);
        assert_eq!((front.as_slice(), piece.as_slice()), (&b"ab"[..], &b"cdef"[..]));
        piece.truncate(3);
        piece.skip(1);
        assert_eq!((piece.as_slice(), piece.len()), (&b"de"[..], 2));
        drop(front);
        assert!(returned.pop().is_none());
        let copy = Piece::copied(piece.as_slice(), None);
        drop(piece);
        let batch = returned.pop().unwrap();
        assert!(host.free.push(batch).is_ok());
        assert_eq!(copy.as_slice(), b"de");
    }
}
