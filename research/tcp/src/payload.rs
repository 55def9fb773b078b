//! What holds bytes of the stream. The connection never looks into it.

use bytes::{Buf, Bytes};

/// A buffer with bytes of the stream that can be divided without copying them. What is known of
/// the bytes beside their value, such as the result of a device, goes with each part.
pub trait Payload: Sized {
    /// How many bytes there are.
    fn bytes(&self) -> usize;

    /// Lets go of the first `bytes`, which are no more than there are.
    fn skip(&mut self, bytes: usize);

    /// Lets go of what is behind the first `bytes`, which are no more than there are.
    fn truncate(&mut self, bytes: usize);

    /// Takes out the first `bytes`, which are no more than there are.
    fn split_front(&mut self, bytes: usize) -> Self;
}

impl Payload for Bytes {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn skip(&mut self, bytes: usize) {
        self.advance(bytes);
    }

    fn truncate(&mut self, bytes: usize) {
        Bytes::truncate(self, bytes);
    }

    fn split_front(&mut self, bytes: usize) -> Bytes {
        self.split_to(bytes)
    }
}

/// A buffer with something that is true of all its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked<B, M> {
    /// The bytes.
    pub buffer: B,
    /// What is true of them.
    pub mark: M,
}

impl<B: Payload, M: Clone> Payload for Marked<B, M> {
    fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    fn skip(&mut self, bytes: usize) {
        self.buffer.skip(bytes);
    }

    fn truncate(&mut self, bytes: usize) {
        self.buffer.truncate(bytes);
    }

    fn split_front(&mut self, bytes: usize) -> Marked<B, M> {
        Marked { buffer: self.buffer.split_front(bytes), mark: self.mark.clone() }
    }
}
