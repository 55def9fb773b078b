//! TLS handshakes over a socket, as server or client. Bytes are counted: the offload begins
//! behind them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use unlade_tls::handshake::HANDSHAKE_BYTES_MAX;
use unlade_tls::{Handshake, HandshakeError, Progress, RecordLayer};

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;
/// Largest number of bytes that are read and discarded after a failed handshake.
const LINGER_BYTES_MAX: usize = 1 << 20;
/// How long the end of a failed connection may take.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a record's header.
const HEADER_BYTES: usize = 5;

/// A connection whose handshake is over.
pub struct Established {
    /// The socket.
    pub tcp: TcpStream,
    /// Its record layer.
    pub record: RecordLayer,
    /// Plaintext that the peer has sent already.
    pub plaintext: Vec<u8>,
    /// Bytes that were read from the socket.
    pub read: u64,
    /// Bytes that were written to it.
    pub written: u64,
}

/// The error of a handshake, usually caused by the peer.
#[derive(Debug, Error)]
pub enum Failed {
    /// The TLS handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The socket failed.
    #[error("the connection broke during the handshake: {0}")]
    Socket(#[from] io::Error),
    /// The handshake has taken too long.
    #[error("no end of the handshake within {0:?} (handshake_timeout)")]
    TimedOut(Duration),
}

impl Failed {
    /// A short name for logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Failed::Handshake(error) => error.reason(),
            Failed::Socket(_) => "socket",
            Failed::TimedOut(_) => "timed_out",
        }
    }
}

/// A failed handshake with its socket, so that the peer can read the alert.
#[derive(Debug, Error)]
#[error("{failed}")]
pub struct Failure {
    /// The error.
    pub failed: Failed,
    /// The socket; an alert was written to it if one is due.
    tcp: TcpStream,
}

impl Failure {
    /// Closes the connection in a way that an alert arrives: first reads and discards the bytes
    /// behind the error, up to a limit of bytes and time. With unread bytes the kernel would
    /// reset the connection, and the reset can overtake the alert.
    pub async fn linger(mut self) {
        let is_told = match &self.failed {
            Failed::Handshake(HandshakeError::Closed) => false,
            Failed::Handshake(_) => true,
            Failed::Socket(_) | Failed::TimedOut(_) => false,
        };
        if !is_told {
            return;
        }
        let rest = async {
            self.tcp.shutdown().await?;
            let (mut buffer, mut left) = (vec![0; READ_BYTES], LINGER_BYTES_MAX);
            loop {
                match self.tcp.read(&mut buffer).await? {
                    got @ 1.. if got < left => left -= got,
                    _ => return io::Result::Ok(()),
                }
            }
        };
        // The connection ends in any case.
        let _ = tokio::time::timeout(LINGER_TIMEOUT, rest).await;
    }
}

/// The result of a handshake: the record layer, early plaintext, and the numbers of bytes that were
/// read and written.
type Agreed = (RecordLayer, Vec<u8>, u64, u64);

fn established(tcp: TcpStream, agreed: Result<Agreed, Failed>) -> Result<Established, Failure> {
    match agreed {
        Ok((record, plaintext, read, written)) => {
            Ok(Established { tcp, record, plaintext, read, written })
        }
        Err(failed) => Err(Failure { failed, tcp }),
    }
}

/// Runs the server's side.
///
/// # Errors
/// [`Failure`]; an alert was sent if one is due.
pub async fn accept(mut tcp: TcpStream, config: Arc<ServerConfig>) -> Result<Established, Failure> {
    let agreed = agree_as_server(&mut tcp, config).await;
    established(tcp, agreed)
}

async fn agree_as_server(tcp: &mut TcpStream, config: Arc<ServerConfig>) -> Result<Agreed, Failed> {
    let mut handshake = Handshake::new(config)?;
    let mut buffer = vec![0; READ_BYTES];
    let (mut read, mut written) = (0, 0);
    loop {
        let got = tcp.read(&mut buffer).await?;
        if got == 0 {
            return Err(HandshakeError::Closed.into());
        }
        read += got as u64;
        let mut out = Vec::new();
        let progress = handshake.advance(&buffer[..got], &mut out);
        tcp.write_all(&out).await?;
        written += out.len() as u64;
        if let Progress::Complete(done) = progress? {
            return Ok((done.record, done.plaintext, read, written));
        }
    }
}

/// Runs the client's side, to a server of this name.
///
/// # Errors
/// [`Failure`]; an alert was sent if one is due.
pub async fn connect(
    mut tcp: TcpStream,
    config: &ClientConfig,
    name: ServerName<'static>,
) -> Result<Established, Failure> {
    let agreed = agree_as_client(&mut tcp, config, name).await;
    established(tcp, agreed)
}

async fn agree_as_client(
    tcp: &mut TcpStream,
    config: &ClientConfig,
    name: ServerName<'static>,
) -> Result<Agreed, Failed> {
    let mut config = config.clone();
    let log = unlade_tls::client::capture(&mut config);
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(peer)?;
    let mut incoming = Vec::new();
    let (mut read, mut written) = (0, 0);
    loop {
        written += flush(tcp, &mut connection).await?;
        if !connection.is_handshaking() {
            break;
        }
        // One record at a time: bytes behind the handshake are for the record layer.
        let fed = feed(&mut connection, &mut incoming);
        if fed.is_err() {
            written += flush(tcp, &mut connection).await?;
        }
        if fed? {
            continue;
        }
        let got = tcp.read_buf(&mut incoming).await?;
        read += got as u64;
        if got == 0 {
            return Err(HandshakeError::Closed.into());
        }
        if read > HANDSHAKE_BYTES_MAX as u64 * 2 {
            return Err(HandshakeError::TooMuchInput { bytes: read as usize }.into());
        }
    }
    let mut record = unlade_tls::client::from_rustls(connection, &log, &incoming)?;
    let (mut plaintext, mut out) = (Vec::new(), Vec::new());
    let processed = record.process(&mut plaintext);
    record.take_output(&mut out);
    tcp.write_all(&out).await?;
    written += out.len() as u64;
    processed.map_err(HandshakeError::from)?;
    Ok((record, plaintext, read, written))
}

fn peer(error: rustls::Error) -> HandshakeError {
    HandshakeError::Peer(error)
}

/// Passes the first record of `incoming` to the connection; false if none is complete.
fn feed(connection: &mut ClientConnection, incoming: &mut Vec<u8>) -> Result<bool, HandshakeError> {
    let Some(header) = incoming.first_chunk::<HEADER_BYTES>() else { return Ok(false) };
    let record_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
    if incoming.len() < record_bytes {
        return Ok(false);
    }
    let mut record = &incoming[..record_bytes];
    while !record.is_empty() {
        let taken = connection.read_tls(&mut record);
        let taken = taken.map_err(|error| HandshakeError::Internal(error.to_string()))?;
        connection.process_new_packets().map_err(peer)?;
        if taken == 0 {
            return Err(HandshakeError::Internal("rustls takes no more".into()));
        }
    }
    incoming.drain(..record_bytes);
    Ok(true)
}

/// Sends the connection's pending output; returns the number of bytes.
async fn flush(tcp: &mut TcpStream, connection: &mut ClientConnection) -> io::Result<u64> {
    let mut out = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut out)?;
    }
    tcp.write_all(&out).await?;
    Ok(out.len() as u64)
}
