//! Source of the bytes of records: a receive buffer that is modified in place.

use std::io::{self, Read};
use std::ops::Range;

use unlade_copy::Inbound;

/// Unprocessed bytes of a stream, contiguous in memory.
pub trait Feed {
    /// Number of bytes received or being received since the buffer was last emptied.
    fn received(&self) -> usize;

    /// Number of free bytes in the buffer.
    fn room(&self) -> usize;

    /// Waits for the bytes of `range`, which is within [`Feed::received`], and returns them.
    ///
    /// # Errors
    /// The bytes were not received; the stream is unusable.
    fn bytes(&mut self, range: Range<usize>) -> io::Result<&mut [u8]>;

    /// Receives behind the bytes in the buffer, which has room. Returns the number of bytes, 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// The source's error; [`io::ErrorKind::WouldBlock`] if it has no bytes and is non-blocking.
    fn receive(&mut self) -> io::Result<usize>;

    /// Removes the bytes before `used`; the others move to the front.
    ///
    /// # Errors
    /// As for [`Feed::bytes`], for any byte in the buffer.
    fn consume(&mut self, used: usize) -> io::Result<()>;
}

impl Feed for Inbound {
    #[inline]
    fn received(&self) -> usize {
        self.len()
    }

    #[inline]
    fn room(&self) -> usize {
        Inbound::room(self)
    }

    #[inline]
    fn bytes(&mut self, range: Range<usize>) -> io::Result<&mut [u8]> {
        Ok(self.sync_mut(range)?)
    }

    fn receive(&mut self) -> io::Result<usize> {
        Inbound::receive(self)
    }

    fn consume(&mut self, used: usize) -> io::Result<()> {
        Ok(Inbound::consume(self, used)?)
    }
}

/// A reader and a buffer, for use without a service: bytes are available as soon as they are read.
pub struct Buffered<R> {
    reader: R,
    buffer: Box<[u8]>,
    filled: usize,
}

impl<R> std::fmt::Debug for Buffered<R> {
    /// Omits the plaintext.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffered").field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl<R: Read> Buffered<R> {
    /// Creates a feed that reads from `reader` into a buffer of `capacity` bytes.
    pub fn new(reader: R, capacity: usize) -> Buffered<R> {
        Buffered { reader, buffer: vec![0; capacity].into_boxed_slice(), filled: 0 }
    }

    /// The underlying reader.
    pub fn reader(&self) -> &R {
        &self.reader
    }
}

impl<R: Read> Feed for Buffered<R> {
    #[inline]
    fn received(&self) -> usize {
        self.filled
    }

    #[inline]
    fn room(&self) -> usize {
        self.buffer.len() - self.filled
    }

    #[inline]
    fn bytes(&mut self, range: Range<usize>) -> io::Result<&mut [u8]> {
        Ok(&mut self.buffer[..self.filled][range])
    }

    fn receive(&mut self) -> io::Result<usize> {
        let count = self.reader.read(&mut self.buffer[self.filled..])?;
        self.filled += count;
        Ok(count)
    }

    fn consume(&mut self, used: usize) -> io::Result<()> {
        self.buffer.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(())
    }
}
