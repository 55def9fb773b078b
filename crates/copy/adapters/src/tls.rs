//! TLS records decrypted in place, in their receive buffer (`SSL_read` of Copier, SOSP 2025,
//! §6.2.3).
//!
//! ```text
//!  socket ─► Feed (Inbound, Buffered) ─► Opener: rustls, one record at a time ─► BufRead
//!                                            │
//!                                            └─► output: what is to be sent
//! ```
//!
//! A record is waited for only up to its end, so that the service receives the next records during
//! its decryption. rustls does the handshake, has the keys and decrypts the records; only
//! authenticated bytes are returned. With a configuration that has the ciphers of [`in_place`],
//! the plaintext is returned from the receive buffer. With any other configuration rustls copies
//! it once, and this module copies it once more.

mod error;
mod feed;
mod in_place;
mod output;
mod session;

use std::io::{self, BufRead, Read, Write};
use std::ops::Range;

use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

pub use error::TlsError;
pub use feed::{Buffered, Feed};
pub use in_place::in_place;
pub use session::Session;

/// Minimum capacity of a [`Feed`]: the largest record of TLS 1.2 (RFC 5246 §6.2.3) and its header.
/// Longer handshake messages need more.
pub const FEED_BYTES_MIN: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX;

const HEADER_BYTES: usize = 5;
const PAYLOAD_BYTES_MAX: usize = (1 << 14) + 2048;
/// Maximum plaintext of one record.
const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// One end of a TLS connection, whose application data are read from the receive buffer.
/// [`BufRead`] lends the plaintext of one record at a time, [`Read`] copies it once. The stream
/// ends with the peer's close_notify; an end without it is [`TlsError::Truncated`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::{io::BufRead, sync::Arc};
/// use unlade_copy_adapters::tls::{Opener, in_place};
/// let ciphers = in_place(rustls::crypto::aws_lc_rs::default_provider());
/// # let service = unlade_copy::Service::start(unlade_copy::Config::default())?;
/// # let copier = Arc::new(unlade_copy::Copier::new(service.attach()?));
/// let config = rustls::ClientConfig::builder_with_provider(Arc::new(ciphers))
///     .with_safe_default_protocol_versions()?
///     .with_root_certificates(rustls::RootCertStore::empty())
///     .with_no_client_auth();
/// let mut socket = std::net::TcpStream::connect("objects.example:443")?;
/// let inbound = unlade_copy::Inbound::new(copier, socket.try_clone()?, 128 << 10);
/// let name = "objects.example".try_into()?;
/// let session = rustls::client::UnbufferedClientConnection::new(Arc::new(config), name)?;
/// let mut tls = Opener::new(session, inbound);
/// tls.handshake(&mut socket)?;
/// tls.seal(b"GET / HTTP/1.1\r\nhost: objects.example\r\n\r\n")?;
/// tls.send(&mut socket)?;
/// let plaintext: &[u8] = tls.fill_buf()?;
/// # Ok(())
/// # }
/// ```
pub struct Opener<S, F> {
    session: S,
    feed: F,
    /// Range of the feed that rustls processes next: whole records, usually one.
    at: usize,
    end: usize,
    /// Range of the plaintext in the feed that is not read yet; it is before `at`.
    plain: Range<usize>,
    /// Plaintext that rustls has copied, and the number of bytes read of it.
    copied: Vec<u8>,
    copied_read: usize,
    output: Vec<u8>,
    closed: bool,
    closed_sending: bool,
    failed: Option<TlsError>,
}

impl<S, F> std::fmt::Debug for Opener<S, F> {
    /// Omits the plaintext.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener")
            .field("plain_bytes", &(self.plain.len() + self.copied.len() - self.copied_read))
            .field("output_bytes", &self.output.len())
            .field("closed", &self.closed)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// Data to send when rustls allows it.
#[derive(Clone, Copy)]
enum Outgoing<'a> {
    Nothing,
    Data(&'a [u8]),
    CloseNotify,
}

/// Result of one state of rustls.
enum Step {
    /// rustls can process more without further records.
    Again,
    /// rustls needs another record.
    More,
    /// The data to send are in the output.
    Encoded,
    /// The peer has closed its side.
    Closed,
}

impl<S: Session, F: Feed> Opener<S, F> {
    /// Combines a new connection and its socket's bytes. `feed` should have a capacity of at least
    /// [`FEED_BYTES_MIN`] bytes, and of several records to receive them ahead.
    pub fn new(session: S, feed: F) -> Opener<S, F> {
        Opener {
            session,
            feed,
            at: 0,
            end: 0,
            plain: 0..0,
            copied: Vec::new(),
            copied_read: 0,
            output: Vec::new(),
            closed: false,
            closed_sending: false,
            failed: None,
        }
    }

    /// The connection, for example to query the negotiated parameters.
    pub fn session(&self) -> &S {
        &self.session
    }

    /// The source of the records.
    pub fn feed(&self) -> &F {
        &self.feed
    }

    /// Returns true if the peer has sent close_notify.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Does the handshake, and sends its messages to `socket`.
    ///
    /// # Errors
    /// Any [`TlsError`]; a required alert was sent. After [`io::ErrorKind::WouldBlock`] the
    /// handshake can be continued.
    pub fn handshake(&mut self, socket: &mut impl Write) -> Result<(), TlsError> {
        let done = self.drive_handshake(socket);
        if done.is_err() {
            // Return the first error, not a later one of the socket.
            let _ = self.send(socket);
        }
        self.keep(done)
    }

    fn drive_handshake(&mut self, socket: &mut impl Write) -> Result<(), TlsError> {
        self.check()?;
        loop {
            let step = self.step(Outgoing::Nothing)?;
            match step {
                Step::Again | Step::Encoded => continue,
                Step::More => self.send(socket)?,
                Step::Closed => return Err(TlsError::Truncated),
            }
            if !self.session.common().is_handshaking() {
                return Ok(());
            }
            self.next_record()?;
        }
    }

    /// Encrypts `plaintext` and appends the records to [`Opener::output`].
    ///
    /// # Errors
    /// [`TlsError::Closed`] after [`Opener::close_notify`]; errors of rustls in the peer's bytes;
    /// [`TlsError::Tls`] with `HandshakeNotComplete` before the end of the handshake.
    pub fn seal(&mut self, plaintext: &[u8]) -> Result<(), TlsError> {
        for part in plaintext.chunks(PLAINTEXT_BYTES_MAX) {
            self.encode_outgoing(Outgoing::Data(part))?;
        }
        Ok(())
    }

    /// Appends close_notify to [`Opener::output`]. Nothing can be sent afterwards.
    ///
    /// # Errors
    /// As for [`Opener::seal`].
    pub fn close_notify(&mut self) -> Result<(), TlsError> {
        self.encode_outgoing(Outgoing::CloseNotify)
    }

    fn encode_outgoing(&mut self, what: Outgoing<'_>) -> Result<(), TlsError> {
        self.check()?;
        if self.closed_sending {
            return Err(TlsError::Closed);
        }
        loop {
            let step = self.step(what);
            match self.keep(step)? {
                Step::Encoded => {
                    self.closed_sending = matches!(what, Outgoing::CloseNotify);
                    return Ok(());
                }
                Step::Again => {}
                Step::More => return Err(rustls::Error::HandshakeNotComplete.into()),
                Step::Closed => return Err(TlsError::Closed),
            }
        }
    }

    /// Bytes to send, in order and completely; the caller removes what it has sent. Besides
    /// encrypted data these are alerts and answers to KeyUpdates, which precede the next encrypted
    /// data.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends the output to `socket`.
    ///
    /// # Errors
    /// The socket's error; unsent bytes stay in the output.
    pub fn send(&mut self, socket: &mut impl Write) -> Result<(), TlsError> {
        while !self.output.is_empty() {
            match socket.write(&self.output) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(socket.flush()?)
    }

    /// Decrypts records until there is plaintext, or the stream ends.
    fn open(&mut self) -> Result<(), TlsError> {
        self.check()?;
        while !self.has_plaintext() && !self.closed {
            if self.at == self.end {
                self.next_record()?;
            }
            match self.step(Outgoing::Nothing)? {
                Step::Again | Step::Encoded | Step::Closed => {}
                // Part of a handshake message: the rest is in the next record.
                Step::More if self.at < self.end => self.next_record()?,
                Step::More => {}
            }
        }
        Ok(())
    }

    fn has_plaintext(&self) -> bool {
        !self.plain.is_empty() || self.copied_read < self.copied.len()
    }

    /// Passes the records from `at` to `end` to rustls, and handles its next state.
    fn step(&mut self, what: Outgoing<'_>) -> Result<Step, TlsError> {
        let records = self.feed.bytes(self.at..self.end)?;
        let (base, len) = (records.as_ptr().addr(), records.len());
        // During the handshake do not record the place: early data would be mistaken for
        // application data of an authenticated client.
        let (UnbufferedStatus { discard, state }, place) = if self.session.common().is_handshaking()
        {
            (self.session.process(records), None)
        } else {
            let session = &mut self.session;
            in_place::with_location(move || session.process(records))
        };
        let mut discard = discard;
        let step = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                self.copied.clear();
                self.copied_read = 0;
                // If the place is known, rustls returns one byte of this record.
                let mut is_known = place.is_some();
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    if std::mem::take(&mut is_known) {
                        continue;
                    }
                    self.copied.extend_from_slice(record.payload);
                }
                Step::Again
            }
            Ok(ConnectionState::EncodeTlsData(message)) => {
                output::encode(message, &mut self.output)?;
                Step::Again
            }
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                Step::Again
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => match what {
                Outgoing::Nothing => Step::More,
                Outgoing::Data(plaintext) => {
                    output::seal(&mut traffic, plaintext, &mut self.output)?;
                    Step::Encoded
                }
                Outgoing::CloseNotify => {
                    output::close(&mut traffic, &mut self.output)?;
                    Step::Encoded
                }
            },
            Ok(ConnectionState::BlockedHandshake) => Step::More,
            Ok(ConnectionState::PeerClosed) => {
                self.closed = true;
                Step::Again
            }
            Ok(ConnectionState::Closed) => {
                self.closed = true;
                Step::Closed
            }
            Ok(ConnectionState::ReadEarlyData(_)) => return Err(TlsError::EarlyData),
            Ok(other) => return Err(rustls::Error::General(format!("state {other:?}")).into()),
            Err(error) => {
                self.put_alert();
                return Err(error.into());
            }
        };
        if let Some(place) = place {
            let start = place.address.wrapping_sub(base);
            if start > len || place.len > len - start {
                return Err(rustls::Error::General("a record opened elsewhere".into()).into());
            }
            self.plain = self.at + start..self.at + start + place.len;
        }
        self.at += discard;
        Ok(step)
    }

    /// Appends the alert after an error to the output.
    #[cold]
    fn put_alert(&mut self) {
        while self.session.common().wants_write() {
            match self.session.process(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(message)) => {
                    if output::encode(message, &mut self.output).is_err() {
                        return;
                    }
                }
                Ok(ConnectionState::TransmitTlsData(sent)) => sent.done(),
                _ => return,
            }
        }
    }

    /// Adds the next record to the range for rustls; receives up to its end.
    fn next_record(&mut self) -> Result<(), TlsError> {
        self.reach(HEADER_BYTES)?;
        let header = self.feed.bytes(self.end..self.end + HEADER_BYTES)?;
        let payload_bytes = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let bytes = if payload_bytes > PAYLOAD_BYTES_MAX {
            // rustls needs only the header to refuse the record.
            HEADER_BYTES
        } else {
            HEADER_BYTES + payload_bytes
        };
        self.reach(bytes)?;
        self.end += bytes;
        Ok(())
    }

    /// Receives until `bytes` bytes behind `end` are received or being received.
    fn reach(&mut self, bytes: usize) -> Result<(), TlsError> {
        while self.feed.received() - self.end < bytes {
            let have = self.feed.received() - self.end;
            // A partial record is moved to the front if there is little room behind it.
            let is_done = self.at == self.feed.received();
            if self.at > 0 && (is_done || self.feed.room() < (bytes - have).max(self.at)) {
                self.empty()?;
            }
            let capacity = self.feed.received() + self.feed.room();
            if self.end + bytes > capacity {
                return Err(TlsError::TooLarge { bytes: self.end + bytes, capacity });
            }
            if self.feed.receive()? == 0 {
                return Err(TlsError::Truncated);
            }
        }
        Ok(())
    }

    /// Moves the bytes from `at` on to the front of the buffer.
    fn empty(&mut self) -> Result<(), TlsError> {
        self.feed.consume(self.at)?;
        self.end -= self.at;
        self.at = 0;
        Ok(())
    }

    fn check(&self) -> Result<(), TlsError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Stores a permanent error.
    fn keep<T>(&mut self, done: Result<T, TlsError>) -> Result<T, TlsError> {
        if let Some(error) = done.as_ref().err().filter(|error| !error.may_pass()) {
            self.failed = Some(error.clone());
        }
        done
    }
}

impl<S: Session, F: Feed> BufRead for Opener<S, F> {
    /// The plaintext of one record, or the rest of it; empty after close_notify.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !self.has_plaintext() {
            let opened = self.open();
            self.keep(opened)?;
        }
        if !self.plain.is_empty() {
            return Ok(self.feed.bytes(self.plain.clone())?);
        }
        Ok(&self.copied[self.copied_read..])
    }

    fn consume(&mut self, count: usize) {
        if self.plain.is_empty() {
            self.copied_read = self.copied.len().min(self.copied_read + count);
        } else {
            self.plain.start = self.plain.end.min(self.plain.start + count);
        }
        // Immediately, so that the feed measures when its bytes were used. The next call returns
        // an error.
        if self.plain.is_empty() && self.at > 0 && self.at == self.feed.received() {
            let emptied = self.empty();
            let _ = self.keep(emptied);
        }
    }
}

impl<S: Session, F: Feed> Read for Opener<S, F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let plain = self.fill_buf()?;
        let count = plain.len().min(out.len());
        out[..count].copy_from_slice(&plain[..count]);
        self.consume(count);
        Ok(count)
    }
}
