//! A connection to the local server, over TCP or a Unix socket.

use std::io;

use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::address::UpstreamAddress;

/// A connected socket. Reads and writes that are dropped before they are ready have no effect.
#[derive(Debug)]
pub(crate) enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

impl Socket {
    /// Connects.
    ///
    /// # Errors
    /// The server does not listen, or the system is out of descriptors.
    pub(crate) async fn connect(address: &UpstreamAddress) -> io::Result<Socket> {
        match address {
            UpstreamAddress::Tcp(address) => {
                let tcp = TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                Ok(Socket::Tcp(tcp))
            }
            UpstreamAddress::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
        }
    }

    /// Waits until a read is worth a try.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(tcp) => tcp.readable().await,
            Socket::Unix(unix) => unix.readable().await,
        }
    }

    /// Reads what there is; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing; the socket's.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Socket::Tcp(tcp) => tcp.try_read(into),
            Socket::Unix(unix) => unix.try_read(into),
        };
        if matches!(read, Ok(count) if count > 0 && count < into.len()) {
            self.expect_more();
        }
        read
    }

    /// Notes that the kernel has no more bytes: the next look costs no system call, until it has told of more.
    fn expect_more(&self) {
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        // The error is that of the closure.
        let _ = match self {
            Socket::Tcp(tcp) => tcp.try_io(Interest::READABLE, nothing),
            Socket::Unix(unix) => unix.try_io(Interest::READABLE, nothing),
        };
    }

    /// Writes as many of `bytes` as the socket accepts; waits until it accepts some.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let written = match self {
                Socket::Tcp(tcp) => {
                    tcp.writable().await?;
                    tcp.try_write(bytes)
                }
                Socket::Unix(unix) => {
                    unix.writable().await?;
                    unix.try_write(bytes)
                }
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}
