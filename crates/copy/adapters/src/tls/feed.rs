//! Where the bytes of records come from: a buffer that is received into, and changed in place.

use std::io::{self, Read};
use std::ops::Range;

use unlade_copy::Inbound;

/// Bytes of a stream, from the first that is not done with, in one piece of memory.
pub trait Feed {
    /// Bytes received since the buffer was last emptied, there or on their way.
    fn received(&self) -> usize;

    /// Bytes that the buffer still takes.
    fn room(&self) -> usize;

    /// Waits for the bytes of `range`, which is within [`Feed::received`], and lends them.
    ///
    /// # Errors
    /// They will not come; the stream is of no use any more.
    fn bytes(&mut self, range: Range<usize>) -> io::Result<&mut [u8]>;

    /// Receives behind what is in the buffer, for which there is room; gives how many bytes, 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// The source's; [`io::ErrorKind::WouldBlock`] where it has nothing and does not wait.
    fn receive(&mut self) -> io::Result<usize>;

    /// Drops the bytes before `used`; the others move to the front.
    ///
    /// # Errors
    /// As for [`Feed::bytes`], of any byte in the buffer.
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

/// A reader and a buffer: what is read is there at once, without a service.
pub struct Buffered<R> {
    reader: R,
    buffer: Box<[u8]>,
    filled: usize,
}

impl<R> std::fmt::Debug for Buffered<R> {
    /// Without plaintext.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffered").field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl<R: Read> Buffered<R> {
    /// Reads from `reader` into a buffer of `capacity` bytes.
    pub fn new(reader: R, capacity: usize) -> Buffered<R> {
        Buffered { reader, buffer: vec![0; capacity].into_boxed_slice(), filled: 0 }
    }

    /// What it reads from.
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
