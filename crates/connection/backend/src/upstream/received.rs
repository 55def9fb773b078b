//! Bytes that the local server has sent and the client has not got.

use std::io;

use super::buffer::{Buffer, Buffers};
use super::socket::Socket;

/// Received and unconsumed bytes.
#[derive(Debug, Default)]
pub(crate) struct Received {
    buffer: Option<Buffer>,
    start: usize,
    end: usize,
    touched: bool,
}

impl Received {
    /// Returns the unconsumed bytes.
    pub(crate) fn data(&self) -> &[u8] {
        let buffer = self.buffer.as_ref();
        buffer.and_then(|buffer| buffer.get(self.start..self.end)).unwrap_or_default()
    }

    /// Returns true if nothing has ever arrived.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// Drops the first `bytes` bytes; an empty buffer returns to the worker.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.start == self.end {
            self.buffer = None;
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads more bytes behind the present ones; 0 is the end. Cancel-safe.
    ///
    /// # Errors
    /// The socket's; or the buffer is full, which the limit of heads excludes.
    pub(crate) async fn fill(&mut self, socket: &Socket, buffers: &Buffers) -> io::Result<usize> {
        loop {
            socket.readable().await?;
            match self.try_fill(socket, buffers) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    fn try_fill(&mut self, socket: &Socket, buffers: &Buffers) -> io::Result<usize> {
        let mut buffer = self.buffer.take().unwrap_or_else(|| buffers.take());
        if self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let read = match buffer.get_mut(self.end..) {
            None | Some([]) => Err(io::ErrorKind::StorageFull.into()),
            Some(spare) => socket.try_read(spare),
        };
        let count = *read.as_ref().unwrap_or(&0);
        self.end += count;
        self.touched |= count > 0;
        if self.end > 0 {
            self.buffer = Some(buffer);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn bytes_arrive_behind_others_and_no_buffer_is_held_without_any() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (socket, buffers) = (Socket::Unix(near), Buffers::default());
        let mut received = Received::default();
        assert!(received.is_untouched());
        far.write_all(b"head|bo").await.unwrap();
        assert_eq!(received.fill(&socket, &buffers).await.unwrap(), 7);
        received.consume(5);
        far.write_all(b"dy").await.unwrap();
        assert_eq!(received.fill(&socket, &buffers).await.unwrap(), 2);
        assert_eq!(received.data(), b"body");
        received.consume(9);
        assert!(received.data().is_empty() && received.buffer.is_none());
        drop(far);
        assert_eq!(received.fill(&socket, &buffers).await.unwrap(), 0);
        assert!(received.buffer.is_none() && !received.is_untouched());
    }
}
