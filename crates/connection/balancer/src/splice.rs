//! Moves bytes from socket to socket without user space: splice(2) through a pipe.

use std::io;
use std::os::fd::AsFd;

use rustix::pipe::{SpliceFlags, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::buffer::{PIPE_BYTES, PipeLease};

/// Bytes that a connection moves before it yields to the worker's other connections. Sockets that
/// are always ready would otherwise starve them.
const TURN_BYTES: u64 = 4 << 20;

/// The used part of a connection's turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    used_bytes: u64,
}

impl Turn {
    /// Records that `bytes` bytes were moved; yields to other connections once the turn is used
    /// up.
    pub(crate) async fn moved(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
        if self.used_bytes >= TURN_BYTES {
            self.used_bytes = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Moves up to `bytes_max` bytes from the socket into the empty pipe. Waits until there are some,
/// and returns their number; zero: the sender has closed. Nothing is lost if the future is
/// dropped.
///
/// # Errors
/// The socket's error.
pub(crate) async fn pull(
    from: &TcpStream,
    pipe: &mut PipeLease,
    bytes_max: u64,
) -> io::Result<usize> {
    let bytes = usize::try_from(bytes_max).unwrap_or(usize::MAX).min(PIPE_BYTES);
    loop {
        let moved = from.try_io(Interest::READABLE, || {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let writer = &pipe.ends()?.writer;
            splice(from.as_fd(), None, writer, None, bytes, flags).map_err(io::Error::from)
        });
        match moved {
            Ok(moved) => {
                pipe.held_bytes += moved;
                return Ok(moved);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => from.readable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Moves some bytes from the pipe to the socket. Waits until it accepts some, and returns their
/// number. `more`: others follow at once. Nothing is lost if the future is dropped.
///
/// # Errors
/// The socket's error.
pub(crate) async fn push(pipe: &mut PipeLease, to: &TcpStream, more: bool) -> io::Result<usize> {
    let more = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
    loop {
        let moved = to.try_io(Interest::WRITABLE, || {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK | more;
            let reader = &pipe.ends()?.reader;
            splice(reader, None, to.as_fd(), None, pipe.held_bytes, flags).map_err(io::Error::from)
        });
        match moved {
            Ok(moved) => {
                pipe.held_bytes -= moved.min(pipe.held_bytes);
                return Ok(moved);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::buffer::Pipes;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn every_byte_arrives_in_order_and_no_more_than_asked_for() {
        let (mut source, from) = pair().await;
        let (to, mut sink) = pair().await;
        const BYTES: usize = 3_000_000;
        let sent: Vec<u8> = (0..BYTES + 5).map(|n| (n * 7 % 251) as u8).collect();
        let expected = sent[..BYTES].to_vec();
        let moving = async {
            let mut pipe = Pipes::default().take().unwrap();
            let mut left = BYTES as u64;
            while left > 0 {
                left -= pull(&from, &mut pipe, left).await.unwrap() as u64;
                while pipe.held_bytes > 0 {
                    push(&mut pipe, &to, left > 0).await.unwrap();
                }
            }
            drop(to);
        };
        let mut received = Vec::new();
        let (written, (), read) =
            tokio::join!(source.write_all(&sent), moving, sink.read_to_end(&mut received));
        written.unwrap();
        read.unwrap();
        assert!(received == expected);
        let mut rest = [0; 8];
        assert_eq!(from.try_read(&mut rest).unwrap(), 5);
    }

    #[tokio::test]
    async fn the_end_is_zero_bytes() {
        let (source, from) = pair().await;
        drop(source);
        let mut pipe = Pipes::default().take().unwrap();
        assert_eq!(pull(&from, &mut pipe, 10).await.unwrap(), 0);
    }
}
