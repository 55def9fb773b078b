//! Storage of bytes of the stream, opaque to the connection.

use bytes::{Buf, Bytes};

/// A buffer with bytes of the stream that can be divided without a copy. Metadata of the bytes,
/// such as the result of a device, stays with each part.
pub trait Payload: Sized {
    /// Number of bytes.
    fn bytes(&self) -> usize;

    /// Drops the first `bytes`, at most all of them.
    fn skip(&mut self, bytes: usize);

    /// Drops everything after the first `bytes`, at most all of them.
    fn truncate(&mut self, bytes: usize);

    /// Splits off the first `bytes`, at most all of them.
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

/// A buffer with metadata that applies to all of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked<B, M> {
    /// The bytes.
    pub buffer: B,
    /// Their metadata.
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
