//! TLS connections whose client is done with them, until the server has closed its side too.
//!
//! A socket that is closed while bytes of the peer are unread, or on the way, answers with a reset
//! (RFC 2525, section 2.17). After the last response these bytes are the server's close_notify. A
//! connection therefore closes its sending side first and drops bytes until the end of the stream.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

/// Maximum number of such connections; the oldest is closed for another one.
const SOCKETS_MAX: usize = 1024;
/// Maximum time to wait for a server.
pub const WAIT_MAX: Duration = Duration::from_secs(1);

/// Connections that wait for the end of the server's stream, the oldest first.
#[derive(Debug, Default)]
pub struct Lingering {
    sockets: VecDeque<(OwnedFd, Instant)>,
}

impl Lingering {
    /// Closes the sending side of a connection and keeps it.
    pub fn add(&mut self, socket: OwnedFd, now: Instant) {
        // A connection that the server has reset needs no more.
        if shutdown(&socket, Shutdown::Write).is_err() {
            return;
        }
        if self.sockets.len() == SOCKETS_MAX {
            self.sockets.pop_front();
        }
        self.sockets.push_back((socket, now));
    }

    /// Drops the bytes that have arrived, and the connections that have ended or waited too long.
    /// `room` is only written to where the kernel does not drop the bytes itself.
    pub fn advance(&mut self, room: &mut [u8], now: Instant) {
        self.sockets.retain(|(socket, since)| {
            now.saturating_duration_since(*since) < WAIT_MAX && is_open(socket, room)
        });
    }

    /// Returns true if no connection waits.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }
}

/// Drops bytes that have arrived; returns false at the end of the stream.
fn is_open(socket: impl AsFd, room: &mut [u8]) -> bool {
    loop {
        match recv(socket.as_fd(), &mut *room, RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return errno == Errno::AGAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn late_bytes_of_the_server_are_not_answered_with_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut lingering = Lingering::default();
        let now = Instant::now();
        server.write_all(b"before the client is done").unwrap();
        lingering.add(client.into(), now);
        let mut room = [0; 8];
        lingering.advance(&mut room, now);
        // The server sees an orderly end, and may still send.
        assert_eq!(server.read(&mut room).unwrap(), 0);
        server.write_all(b"close_notify").unwrap();
        lingering.advance(&mut room, now);
        assert!(!lingering.is_empty());
        server.shutdown(std::net::Shutdown::Write).unwrap();
        let began = Instant::now();
        while !lingering.is_empty() && began.elapsed() < Duration::from_secs(10) {
            lingering.advance(&mut room, now);
        }
        assert!(lingering.is_empty());
        // A reset would be an error here.
        assert_eq!(server.take_error().unwrap().map(|error| error.to_string()), None);
        assert_eq!(server.read(&mut room).unwrap(), 0);
    }

    #[test]
    fn a_silent_server_is_not_waited_for_longer_than_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut lingering = Lingering::default();
        let now = Instant::now();
        lingering.add(client.into(), now);
        lingering.advance(&mut [0; 8], now);
        assert!(!lingering.is_empty());
        lingering.advance(&mut [0; 8], now + WAIT_MAX);
        assert!(lingering.is_empty());
    }
}
