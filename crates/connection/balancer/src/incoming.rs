//! Unconsumed bytes from a server, in a buffer that is borrowed from the worker only while it
//! contains something.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use unlade_runtime::Stream;
use unlade_runtime::peer::{self, PeerEvent};

use crate::buffer::{Buffer, Buffers};

/// Room in front of received bytes, so that a rewritten head that is longer still fits in place.
const HEADROOM_BYTES: usize = 1024;

/// Received and unconsumed bytes.
#[derive(Debug)]
pub(crate) struct Incoming {
    buffer: Option<Buffer>,
    start: usize,
    end: usize,
    touched: bool,
    ended: bool,
    first_read_bytes: usize,
}

/// The first event of a read that also watches the client.
#[derive(Debug)]
pub(crate) enum ReadEvent {
    /// The server sent this many bytes; 0 is its end.
    Read(io::Result<usize>),
    /// `is_over` is true.
    Over,
    /// The client sent something, or ended its direction: it need not be watched further.
    ClientBusy,
    /// The client has reset the connection.
    ClientGone,
}

impl Incoming {
    /// Creates an empty buffer; the first read takes at most `first_read_bytes`.
    pub(crate) fn new(first_read_bytes: usize) -> Incoming {
        let (touched, ended) = (false, false);
        Incoming { buffer: None, start: 0, end: 0, touched, ended, first_read_bytes }
    }

    /// Returns the unconsumed bytes.
    pub(crate) fn data(&self) -> &[u8] {
        let buffer = self.buffer.as_ref();
        buffer.and_then(|buffer| buffer.get(self.start..self.end)).unwrap_or_default()
    }

    /// Returns true if nothing has ever arrived.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// Returns true if the server has ended its direction, behind everything that was read.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Drops the first `bytes` bytes.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// Moves the unconsumed bytes to the front, so that as many as possible fit behind them.
    pub(crate) fn make_room(&mut self) {
        if let Some(buffer) = &mut self.buffer {
            buffer.copy_within(self.start..self.end, HEADROOM_BYTES);
            (self.start, self.end) = (HEADROOM_BYTES, HEADROOM_BYTES + self.end - self.start);
        }
    }

    /// Drops everything, and returns the buffer to the worker.
    pub(crate) fn clear(&mut self) {
        self.buffer = None;
    }

    /// Replaces the first `replaced` bytes with `head`; returns false if there is no room.
    pub(crate) fn replace_front(&mut self, replaced: usize, head: &[u8]) -> bool {
        let behind = (self.start + replaced).min(self.end);
        let Some(start) = behind.checked_sub(head.len()) else { return false };
        let place = self.buffer.as_mut().and_then(|buffer| buffer.get_mut(start..behind));
        match place {
            Some(place) => {
                place.copy_from_slice(head);
                self.start = start;
                true
            }
            None => false,
        }
    }

    /// Reads more bytes behind the present ones.
    ///
    /// # Errors
    /// The socket's error; or the buffer is full, which the limits of heads exclude.
    pub(crate) async fn fill<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut R,
        buffers: &Buffers,
    ) -> io::Result<usize> {
        poll_fn(|context| self.poll_fill(reader, buffers, context)).await
    }

    /// As [`Incoming::fill`], and watches the client meanwhile. `is_over` is asked first, whenever the task
    /// wakes up.
    pub(crate) async fn fill_watching<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut R,
        buffers: &Buffers,
        client: Option<&Stream>,
        is_over: impl Fn() -> bool,
    ) -> ReadEvent {
        poll_fn(|context| {
            if is_over() {
                return Poll::Ready(ReadEvent::Over);
            }
            if let Poll::Ready(read) = self.poll_fill(reader, buffers, context) {
                return Poll::Ready(ReadEvent::Read(read));
            }
            match client {
                Some(client) => peer::poll_event(client.tcp(), context).map(|event| match event {
                    PeerEvent::Sent => ReadEvent::ClientBusy,
                    PeerEvent::Gone => ReadEvent::ClientGone,
                }),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut R,
        buffers: &Buffers,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => {
                (self.start, self.end) = (HEADROOM_BYTES, HEADROOM_BYTES);
                buffers.take()
            }
        };
        let spare = buffer.get_mut(self.end..).unwrap_or_default();
        if spare.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::StorageFull.into()));
        }
        let bytes_max = if self.touched { usize::MAX } else { self.first_read_bytes };
        let bytes_max = bytes_max.min(spare.len());
        let mut read = ReadBuf::new(spare.get_mut(..bytes_max).unwrap_or_default());
        let polled = Pin::new(reader).poll_read(context, &mut read);
        let count = read.filled().len();
        self.end += count;
        self.touched |= count > 0;
        // An empty buffer is returned for other connections.
        if self.end > self.start {
            self.buffer = Some(buffer);
        }
        ready!(polled)?;
        self.ended |= count == 0;
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_head_is_replaced_in_place_also_by_a_longer_one() {
        let buffers = Buffers::default();
        let mut incoming = Incoming::new(usize::MAX);
        assert!(incoming.is_untouched());
        let mut reader: &[u8] = b"old|body";
        assert_eq!(incoming.fill(&mut reader, &buffers).await.unwrap(), 8);
        assert!(incoming.replace_front(4, b"a longer one|"));
        assert_eq!(incoming.data(), b"a longer one|body");
        assert!(incoming.replace_front(13, b"x|"));
        assert_eq!(incoming.data(), b"x|body");
        assert!(!incoming.replace_front(2, &[b'y'; HEADROOM_BYTES + 100]));
        incoming.consume(2);
        assert_eq!(incoming.data(), b"body");
        assert!(!incoming.is_untouched());
    }

    #[tokio::test]
    async fn no_buffer_is_held_while_there_is_nothing() {
        let buffers = Buffers::default();
        let mut incoming = Incoming::new(usize::MAX);
        let (mut far, mut near) = tokio::io::duplex(64);
        {
            let mut waiting = std::pin::pin!(incoming.fill(&mut near, &buffers));
            let polled = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
            assert!(polled);
        }
        assert!(incoming.buffer.is_none());
        far.write_all(b"abc").await.unwrap();
        assert_eq!(incoming.fill(&mut near, &buffers).await.unwrap(), 3);
        assert_eq!(incoming.data(), b"abc");
        drop(far);
        assert_eq!(incoming.fill(&mut near, &buffers).await.unwrap(), 0);
        assert_eq!(incoming.data(), b"abc");
    }
}
