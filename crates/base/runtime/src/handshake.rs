//! The server's TLS handshake over a socket, with the bytes counted: a device that takes the
//! connection over needs the positions of its streams.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use tokio::net::TcpStream;
use unlade_tls::{Handshake, HandshakeError, Progress, RecordLayer};

use crate::stream::{Parts, Stream};

/// Bytes per read during a handshake.
const READ_BYTES: usize = 4096;

/// The reason why a handshake failed.
#[derive(Debug)]
pub enum Failure {
    /// The client sent HTTP without TLS; it can read an answer in the clear.
    PlainHttp(TcpStream),
    /// The client's or the configuration's fault; the alert, if any, has been sent.
    Handshake(HandshakeError),
    /// The transport failed.
    Transport,
}

/// A connection with a completed handshake.
#[derive(Debug)]
pub struct Established {
    tcp: TcpStream,
    record: RecordLayer,
    plaintext: Vec<u8>,
    /// Number of bytes read from the socket.
    pub read_bytes: u64,
    /// Number of bytes written to it.
    pub written_bytes: u64,
}

impl Established {
    /// Converts the connection into a stream.
    pub fn into_stream(self) -> Stream {
        Stream::from_parts(Parts {
            tcp: self.tcp,
            record: Some(Box::new(self.record)),
            input: self.plaintext,
            ended: false,
        })
    }
}

/// Performs the handshake.
///
/// # Errors
/// Any [`Failure`].
pub async fn accept(
    tcp: TcpStream,
    config: Arc<rustls::ServerConfig>,
) -> Result<Established, Failure> {
    let mut handshake = Handshake::new(config).map_err(Failure::Handshake)?;
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut out = Vec::new();
    let (mut read_bytes, mut written_bytes) = (0, 0);
    loop {
        input.clear();
        let got = read_some(&tcp, &mut input).await.map_err(|_| Failure::Transport)?;
        if got == 0 {
            return Err(Failure::Transport);
        }
        read_bytes += got as u64;
        let progress = handshake.advance(&input, &mut out);
        let sent = write_all(&tcp, &out).await;
        written_bytes += out.len() as u64;
        out.clear();
        match progress {
            Err(HandshakeError::NotTls { http: true, .. }) => return Err(Failure::PlainHttp(tcp)),
            Err(error) => return Err(Failure::Handshake(error)),
            Ok(_) if sent.is_err() => return Err(Failure::Transport),
            Ok(Progress::NeedsInput) => {}
            Ok(Progress::Complete(done)) => {
                let (record, plaintext) = (done.record, done.plaintext);
                return Ok(Established { tcp, record, plaintext, read_bytes, written_bytes });
            }
        }
    }
}

async fn read_some(tcp: &TcpStream, input: &mut Vec<u8>) -> io::Result<usize> {
    input.reserve(READ_BYTES);
    loop {
        match tcp.try_read_buf(input) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tcp.readable().await?,
            other => return other,
        }
    }
}

async fn write_all(tcp: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    use rustix::net::{SendFlags, send};
    while !bytes.is_empty() {
        let sent = tcp.try_io(tokio::io::Interest::WRITABLE, || {
            send(tcp.as_fd(), bytes, SendFlags::NOSIGNAL).map_err(io::Error::from)
        });
        match sent {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tcp.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
