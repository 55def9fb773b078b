//! Notices that a peer has sent something or is gone, without reading.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A sign of life, or of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The peer has sent bytes, or has ended its direction: they can be read.
    Sent,
    /// The peer has reset the connection.
    Gone,
}

/// Becomes ready once the peer has sent something or has closed. Consumes nothing.
pub fn poll_event(tcp: &TcpStream, context: &mut Context<'_>) -> Poll<PeerEvent> {
    loop {
        if ready!(tcp.poll_read_ready(context)).is_err() {
            return Poll::Ready(PeerEvent::Gone);
        }
        let peeked = tcp.try_io(Interest::READABLE, || {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            rustix::net::recv(tcp.as_fd(), &mut [0u8; 1][..], flags)
                .map(|(_, count)| count)
                .map_err(io::Error::from)
        });
        match peeked {
            // The data that made the socket readable has been read since.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) => return Poll::Ready(PeerEvent::Sent),
            Err(_) => return Poll::Ready(PeerEvent::Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn bytes_are_noticed_and_stay_in_the_socket() {
        let (mut near, mut far) = pair().await;
        far.write_all(b"x").await.unwrap();
        let event = poll_fn(|context| poll_event(&near, context)).await;
        assert_eq!(event, PeerEvent::Sent);
        assert_eq!(near.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn a_reset_is_told_from_an_end() {
        let (near, far) = pair().await;
        drop(far);
        assert_eq!(poll_fn(|context| poll_event(&near, context)).await, PeerEvent::Sent);
        let (near, far) = pair().await;
        far.set_zero_linger().unwrap();
        drop(far);
        assert_eq!(poll_fn(|context| poll_event(&near, context)).await, PeerEvent::Gone);
    }
}
