//! Handshake and records over an async byte stream.
//!
//! The record layer is that of `unlade-tls`. After the handshake the keys and sequence numbers of
//! both directions are available ([`TlsStream::snapshot`]), for a device that processes the
//! records.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use unlade_net::state::TlsSnapshot;
use unlade_tls::RecordLayer;
use unlade_tls::psk::{Client, Psk, PskError, Server};

/// Largest number of bytes of one read from the stream below.
const READ_BYTES: usize = 64 * 1024;
/// Largest number of plaintext bytes of one write: four records.
const WRITE_BYTES_MAX: usize = 64 * 1024;
/// Limit of pending ciphertext for the stream below, without the answers that the peer requires.
const OUTGOING_BYTES_MAX: usize = 256 * 1024;

/// An error during the TLS handshake.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The stream below failed.
    #[error("TLS handshake: {0}")]
    Io(#[from] io::Error),
    /// The peer closed it.
    #[error("the peer closed the connection during the TLS handshake; does it expect plain TCP?")]
    Closed,
    /// The handshake failed.
    #[error("TLS handshake: {0}")]
    Psk(#[from] PskError),
}

/// A TLS connection over `S`.
#[derive(Debug)]
pub struct TlsStream<S> {
    below: S,
    record: RecordLayer,
    identity: Vec<u8>,
    /// Plaintext that is not yet read, from `taken` on.
    plaintext: Vec<u8>,
    taken: usize,
    /// Ciphertext that is not yet written, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    received: Box<[u8]>,
    /// True after close_notify, or after the end of the stream below.
    ended: bool,
    closing: bool,
}

/// Connects as the client.
///
/// # Errors
/// [`TlsError`].
pub async fn connect<S>(mut below: S, psk: Psk) -> Result<TlsStream<S>, TlsError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let identity = psk.identity.clone();
    let mut out = Vec::new();
    let mut client = Client::new(psk, &mut out)?;
    let mut received = vec![0; READ_BYTES].into_boxed_slice();
    loop {
        below.write_all(&out).await?;
        below.flush().await?;
        out.clear();
        let count = below.read(&mut received).await?;
        if count == 0 {
            return Err(TlsError::Closed);
        }
        let advanced = client.advance(&received[..count], &mut out);
        below.write_all(&out).await?;
        below.flush().await?;
        out.clear();
        if let Some(record) = advanced? {
            return TlsStream::new(below, record, identity, received);
        }
    }
}

/// Accepts a client; `lookup` returns the key of an identity ([`super::find`]).
///
/// # Errors
/// [`TlsError`].
pub async fn accept<S>(
    mut below: S,
    lookup: impl Fn(&[u8]) -> Option<Psk> + Send,
) -> Result<TlsStream<S>, TlsError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut server = Server::new(lookup);
    let mut received = vec![0; READ_BYTES].into_boxed_slice();
    loop {
        let count = below.read(&mut received).await?;
        if count == 0 {
            return Err(TlsError::Closed);
        }
        let mut out = Vec::new();
        let advanced = server.advance(&received[..count], &mut out);
        below.write_all(&out).await?;
        below.flush().await?;
        if let Some(accepted) = advanced? {
            drop(server);
            return TlsStream::new(below, accepted.record, accepted.identity, received);
        }
    }
}

impl<S> TlsStream<S> {
    fn new(
        below: S,
        mut record: RecordLayer,
        identity: Vec<u8>,
        received: Box<[u8]>,
    ) -> Result<TlsStream<S>, TlsError> {
        let mut plaintext = Vec::new();
        // Bytes that came behind the handshake.
        let state = record.process(&mut plaintext).map_err(PskError::from)?;
        let mut outgoing = Vec::new();
        record.take_output(&mut outgoing);
        Ok(TlsStream {
            below,
            record,
            identity,
            plaintext,
            taken: 0,
            outgoing,
            sent: 0,
            received,
            ended: state.close_notify,
            closing: false,
        })
    }

    /// The identity of the key that both ends used.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// IANA name of the cipher suite.
    pub fn suite_name(&self) -> &'static str {
        self.record.suite_name()
    }

    /// The stream below.
    pub fn get_ref(&self) -> &S {
        &self.below
    }

    /// The keys, IVs and sequence numbers of both directions, and unopened ciphertext, for a
    /// device that processes the records. The snapshot is secret.
    pub fn snapshot(&self) -> TlsSnapshot {
        self.record.to_snapshot()
    }

    /// Changes the sending key, and requests the same of the peer (RFC 8446 §4.6.3). The messages
    /// are sent with the next write or flush.
    ///
    /// # Errors
    /// As [`RecordLayer::update_keys`].
    pub fn update_keys(&mut self, request_peer: bool) -> io::Result<()> {
        self.record.update_keys(request_peer, &mut self.outgoing)?;
        Ok(())
    }

    /// Returns the stream below, the record layer and unread plaintext, so that the caller can
    /// continue the connection. All written data must have been flushed.
    pub fn into_parts(mut self) -> (S, RecordLayer, Vec<u8>) {
        self.plaintext.drain(..self.taken);
        (self.below, self.record, self.plaintext)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Writes the pending ciphertext.
    fn poll_outgoing(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            let rest = &self.outgoing[self.sent..];
            match ready!(Pin::new(&mut self.below).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Number of pending bytes.
    fn outgoing_bytes(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Reads once from below, and opens the records.
    fn poll_records(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = ReadBuf::new(&mut self.received);
        ready!(Pin::new(&mut self.below).poll_read(context, &mut buffer))?;
        let filled = buffer.filled().len();
        if filled == 0 {
            // Without close_notify an attacker may have truncated the stream (RFC 8446 §6.1).
            self.ended = true;
            let error = io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection ended without the peer's close_notify",
            );
            return Poll::Ready(Err(error));
        }
        self.plaintext.clear();
        self.taken = 0;
        let received = self.record.receive(&self.received[..filled], &mut self.plaintext);
        self.record.take_output(&mut self.outgoing);
        if self.outgoing_bytes() > 0 {
            // An answer to a KeyUpdate, or an alert. If it cannot be written now, it is written
            // later.
            let _ = self.poll_outgoing(context)?;
        }
        self.ended |= received.map_err(io::Error::from)?.close_notify;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        while stream.taken == stream.plaintext.len() && !stream.ended {
            ready!(stream.poll_records(context))?;
        }
        let rest = &stream.plaintext[stream.taken..];
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        stream.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if stream.outgoing_bytes() >= OUTGOING_BYTES_MAX {
            ready!(stream.poll_outgoing(context))?;
        }
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let count = total.min(WRITE_BYTES_MAX);
        let mut rest = slices.iter();
        let mut slice: &[u8] = &[];
        // Buffers are gathered directly into the records' places.
        stream.record.seal_with(count, &mut stream.outgoing, |mut place| {
            while !place.is_empty() {
                if slice.is_empty() {
                    slice = rest.next().ok_or(io::ErrorKind::UnexpectedEof)?;
                    continue;
                }
                let part = slice.len().min(place.len());
                place[..part].copy_from_slice(&slice[..part]);
                (slice, place) = (&slice[part..], &mut core::mem::take(&mut place)[part..]);
            }
            Ok(())
        })?;
        // Sealed plaintext counts as written; the rest is sent at the next call.
        let _ = stream.poll_outgoing(context)?;
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        ready!(stream.poll_outgoing(context))?;
        Pin::new(&mut stream.below).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !stream.closing {
            stream.closing = true;
            stream.record.close_notify(&mut stream.outgoing);
        }
        ready!(stream.poll_outgoing(context))?;
        Pin::new(&mut stream.below).poll_shutdown(context)
    }
}
