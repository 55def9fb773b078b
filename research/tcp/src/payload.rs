//! What holds octets of the stream. The connection never looks into it.

use bytes::{Buf, Bytes};

/// A buffer with octets of the stream that can be divided without copying them. What is known of
/// the octets beside their value, such as the result of a device, goes with each part.
pub trait Payload: Sized {
    /// How many octets there are.
    fn octets(&self) -> usize;

    /// Lets go of the first `octets`, which are no more than there are.
    fn skip(&mut self, octets: usize);

    /// Lets go of what is behind the first `octets`, which are no more than there are.
    fn truncate(&mut self, octets: usize);

    /// Takes out the first `octets`, which are no more than there are.
    fn split_front(&mut self, octets: usize) -> Self;
}

impl Payload for Bytes {
    fn octets(&self) -> usize {
        self.len()
    }

    fn skip(&mut self, octets: usize) {
        self.advance(octets);
    }

    fn truncate(&mut self, octets: usize) {
        Bytes::truncate(self, octets);
    }

    fn split_front(&mut self, octets: usize) -> Bytes {
        self.split_to(octets)
    }
}

/// A buffer with something that is true of all its octets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked<B, M> {
    /// The octets.
    pub buffer: B,
    /// What is true of them.
    pub mark: M,
}

impl<B: Payload, M: Clone> Payload for Marked<B, M> {
    fn octets(&self) -> usize {
        self.buffer.octets()
    }

    fn skip(&mut self, octets: usize) {
        self.buffer.skip(octets);
    }

    fn truncate(&mut self, octets: usize) {
        self.buffer.truncate(octets);
    }

    fn split_front(&mut self, octets: usize) -> Marked<B, M> {
        Marked { buffer: self.buffer.split_front(octets), mark: self.mark.clone() }
    }
}
