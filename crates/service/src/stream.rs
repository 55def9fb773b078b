//! A client connection, plain or TLS, that can be taken apart between two requests.
//!
//! The kernel socket, the TLS record layer and the bytes read ahead are separate values, so that
//! a connection in any state between requests is `Parts`: what a migration ships, and what an
//! adoption puts together again.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use linux::repair;
use record::RecordLayer;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::TcpStream;

use crate::stall;

/// Room for a read from a TLS transport.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Least room for a read from a plaintext transport: a request's head mostly fits.
const READ_BYTES_MIN: usize = 4096;
/// Plaintext of a file that is sealed and written at once on a TLS connection.
const FILE_CHUNK_BYTES: usize = 256 * 1024;
/// Bytes handed to one sendfile(2) call: large enough to amortise it, small enough to let other
/// connections of the worker have their turn.
const SENDFILE_BYTES_MAX: usize = 1024 * 1024;
/// Looks at what is not sent yet, as fast as other connections let them follow each other, before
/// there are pauses between them.
const SENT_YIELDS: u32 = 24;
const SENT_PAUSE: Duration = Duration::from_millis(1);

/// A client connection on the current thread's runtime.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    record: Option<Box<RecordLayer>>,
    /// Plaintext read and not consumed is `input[start..]`.
    input: Vec<u8>,
    start: usize,
    /// Sealed bytes on their way out; kept to reuse its allocation.
    sealed: Vec<u8>,
    /// The end of the input was read: no more will come.
    ended: bool,
    /// The peer has ended its direction, but that is not to be seen in the socket: what the
    /// socket still has is the rest.
    finishing: bool,
    peer: SocketAddr,
    local: SocketAddr,
    received_bytes: u64,
    sent_bytes: u64,
    /// How long a write may wait while the peer takes nothing; for ever where there is none.
    stall_limit: Option<Duration>,
}

/// A connection taken apart. Nothing of it is registered with a runtime but `tcp`.
#[derive(Debug)]
pub struct Parts {
    /// The kernel's socket.
    pub tcp: TcpStream,
    /// The TLS record layer, where the connection has one.
    pub record: Option<Box<RecordLayer>>,
    /// Plaintext read and not consumed.
    pub input: Vec<u8>,
    /// The peer sent FIN or close_notify: no input comes but what the socket has already.
    pub ended: bool,
}

impl Stream {
    /// Wraps a plaintext connection.
    ///
    /// # Panics
    /// Never: a socket that has lost its addresses reads as the unspecified address.
    pub fn plain(tcp: TcpStream) -> Stream {
        Stream::from_parts(Parts { tcp, record: None, input: Vec::new(), ended: false })
    }

    /// Wraps a connection whose TLS handshake is complete.
    pub fn tls(tcp: TcpStream, record: RecordLayer) -> Stream {
        let record = Some(Box::new(record));
        Stream::from_parts(Parts { tcp, record, input: Vec::new(), ended: false })
    }

    /// Puts a connection together.
    pub fn from_parts(parts: Parts) -> Stream {
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let canonical = |address: io::Result<SocketAddr>| {
            address.map_or(unspecified, |a| SocketAddr::new(a.ip().to_canonical(), a.port()))
        };
        let (peer, local) = (canonical(parts.tcp.peer_addr()), canonical(parts.tcp.local_addr()));
        Stream::with_addresses(parts, peer, local)
    }

    /// As [`Stream::from_parts`], for a connection whose addresses are known: that saves asking.
    pub fn with_addresses(parts: Parts, peer: SocketAddr, local: SocketAddr) -> Stream {
        Stream {
            peer,
            local,
            tcp: parts.tcp,
            record: parts.record,
            input: parts.input,
            start: 0,
            sealed: Vec::new(),
            ended: false,
            finishing: parts.ended,
            received_bytes: 0,
            sent_bytes: 0,
            stall_limit: None,
        }
    }

    /// Takes the connection apart. Sealed output is always written by the call that produced
    /// it, so between calls nothing is lost here.
    pub fn into_parts(mut self) -> Parts {
        self.input.drain(..self.start);
        let ended = self.ended || self.finishing;
        Parts { tcp: self.tcp, record: self.record, input: self.input, ended }
    }

    /// From now on a write fails with `TimedOut` when the peer has acknowledged nothing for
    /// `limit`. One that takes a little now and then is waited for.
    pub fn set_stall_limit(&mut self, limit: Duration) {
        self.stall_limit = Some(limit);
    }

    /// Waits until the socket takes more.
    ///
    /// # Errors
    /// `TimedOut` as [`Stream::set_stall_limit`] says; the socket's.
    pub async fn writable(&self) -> io::Result<()> {
        stall::writable(&self.tcp, self.stall_limit).await
    }

    /// No more input will come but what the socket has already.
    pub fn has_ended(&self) -> bool {
        self.ended || self.finishing
    }

    /// Waits until the kernel has sent all that was written, for at most `limit`. False where it
    /// has not: the client takes nothing.
    pub async fn sent(&self, limit: Duration) -> bool {
        for _ in 0..SENT_YIELDS {
            match repair::unsent_bytes(&self.tcp) {
                Ok(1..) => tokio::task::yield_now().await,
                _ => return true,
            }
        }
        let begin = Instant::now();
        // The kernel tells when there is room for more, not when nothing is left.
        while begin.elapsed() < limit {
            tokio::time::sleep(SENT_PAUSE).await;
            if !matches!(repair::unsent_bytes(&self.tcp), Ok(1..)) {
                return true;
            }
        }
        false
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address the client connected to.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// True where there is a TLS record layer.
    pub fn is_tls(&self) -> bool {
        self.record.is_some()
    }

    /// The kernel's socket. Reading or writing it directly is right only where [`Self::is_tls`]
    /// is false and [`Self::input`] is empty.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The record layer, where there is one.
    pub fn record(&self) -> Option<&RecordLayer> {
        self.record.as_deref()
    }

    /// Plaintext octets received so far (before TLS: transport octets on plain connections).
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Plaintext octets sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Counts octets that went out past this value (splice).
    pub fn add_sent_bytes(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }

    /// Plaintext read and not consumed.
    pub fn input(&self) -> &[u8] {
        &self.input[self.start..]
    }

    /// Drops the first `bytes` octets of [`Self::input`] (all of it where there are fewer).
    pub fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.input.len());
        if self.start == self.input.len() {
            self.input.clear();
            self.start = 0;
        }
    }

    /// Reads more plaintext into [`Self::input`] and returns how many octets came. 0 is the
    /// orderly end of the stream (FIN, and close_notify on TLS).
    ///
    /// Cancel-safe: what was read is in `input`, or still in the socket.
    ///
    /// # Errors
    /// The socket's, `InvalidData` for records that are not authentic or not TLS, and
    /// `UnexpectedEof` for a TLS stream that ends without close_notify.
    pub async fn fill(&mut self) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        if self.start > 0 {
            self.input.drain(..self.start);
            self.start = 0;
        }
        match self.record.is_some() {
            false => self.fill_plain().await,
            true => self.fill_tls().await,
        }
    }

    async fn fill_plain(&mut self) -> io::Result<usize> {
        self.input.reserve(READ_BYTES_MIN);
        // A read that leaves room tells the runtime that there is no more, which saves the read
        // that would say so.
        let count = match self.finishing {
            false => self.tcp.read_buf(&mut self.input).await?,
            true => read_rest(&self.tcp, &mut self.input)?,
        };
        if count == 0 {
            self.ended = true;
        }
        self.received_bytes += count as u64;
        Ok(count)
    }

    async fn fill_tls(&mut self) -> io::Result<usize> {
        loop {
            let Some(record) = self.record.as_deref_mut() else { return Ok(0) };
            let before = self.input.len();
            // First what is buffered already: an adopted or half-read record.
            let received = record.process(&mut self.input);
            let count = self.input.len() - before;
            let received = match received {
                Ok(received) => received,
                Err(error) => {
                    self.flush_control().await;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            };
            if received.output_pending {
                self.flush_control().await;
            }
            if received.close_notify {
                self.ended = true;
            }
            if count > 0 || self.ended {
                self.received_bytes += count as u64;
                return Ok(count);
            }
            if self.read_ciphertext().await? == 0 {
                self.ended = true;
                if self.finishing {
                    // How the peer ended was seen by a previous owner.
                    return Ok(0);
                }
                let why = "TLS stream ended without close_notify";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
        }
    }

    async fn read_ciphertext(&mut self) -> io::Result<usize> {
        let Some(record) = self.record.as_deref_mut() else { return Ok(0) };
        let spare = record.receive_spare();
        spare.reserve(READ_BYTES_MAX);
        match self.finishing {
            false => self.tcp.read_buf(spare).await,
            true => read_rest(&self.tcp, spare),
        }
    }

    /// Sends what the record layer owes the peer (KeyUpdate answers, alerts). Best effort: a
    /// broken transport shows itself at the next read or write.
    async fn flush_control(&mut self) {
        let Some(record) = self.record.as_deref_mut() else { return };
        let mut out = Vec::new();
        record.take_output(&mut out);
        let _ = write_transport(&self.tcp, self.stall_limit, &out, false).await;
    }

    /// Writes all of `bytes`; `more` says that a further write follows at once, so that the
    /// kernel may keep an incomplete segment back (MSG_MORE).
    ///
    /// # Errors
    /// The socket's.
    pub async fn write_all(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        match self.record.as_deref_mut() {
            None => write_transport(&self.tcp, self.stall_limit, bytes, more).await?,
            Some(record) => {
                for chunk in bytes.chunks(FILE_CHUNK_BYTES) {
                    self.sealed.clear();
                    record.take_output(&mut self.sealed);
                    record.seal(chunk, &mut self.sealed).map_err(io::Error::other)?;
                    write_transport(&self.tcp, self.stall_limit, &self.sealed, more).await?;
                }
            }
        }
        self.sent_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Sends `bytes` octets of `file` from `offset`: sendfile(2), or read and seal on TLS.
    ///
    /// # Errors
    /// The socket's or the file's; `UnexpectedEof` where the file is shorter than announced.
    pub async fn send_file(&mut self, file: &File, offset: u64, bytes: u64) -> io::Result<()> {
        match self.record.is_some() {
            false => self.send_file_plain(file, offset, bytes).await?,
            true => self.send_file_tls(file, offset, bytes).await?,
        }
        self.sent_bytes += bytes;
        Ok(())
    }

    async fn send_file_plain(&self, file: &File, mut at: u64, bytes: u64) -> io::Result<()> {
        let end = at + bytes;
        while at < end {
            let chunk = (end - at).min(SENDFILE_BYTES_MAX as u64) as usize;
            let sent = self.tcp.try_io(Interest::WRITABLE, || {
                rustix::fs::sendfile(self.tcp.as_fd(), file, Some(&mut at), chunk)
                    .map_err(io::Error::from)
            });
            match sent {
                Ok(0) => return Err(short_file()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable().await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn send_file_tls(&mut self, file: &File, mut at: u64, bytes: u64) -> io::Result<()> {
        let end = at + bytes;
        while at < end {
            let Some(record) = self.record.as_deref_mut() else { return Ok(()) };
            let chunk = (end - at).min(FILE_CHUNK_BYTES as u64) as usize;
            self.sealed.clear();
            record.take_output(&mut self.sealed);
            let mut read = |out: &mut [u8]| {
                let result = std::os::unix::fs::FileExt::read_exact_at(file, out, at);
                at += out.len() as u64;
                result
            };
            record.seal_with(chunk, &mut self.sealed, &mut read)?;
            write_transport(&self.tcp, self.stall_limit, &self.sealed, at < end).await?;
        }
        Ok(())
    }

    /// Ends the sending direction: close_notify on TLS, then FIN.
    ///
    /// # Errors
    /// The socket's.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        if let Some(record) = self.record.as_deref_mut() {
            self.sealed.clear();
            record.take_output(&mut self.sealed);
            record.close_notify(&mut self.sealed);
            write_transport(&self.tcp, self.stall_limit, &self.sealed, false).await?;
        }
        rustix::net::shutdown(self.tcp.as_fd(), rustix::net::Shutdown::Write)?;
        Ok(())
    }

    /// The socket's descriptor number, for logs.
    pub fn descriptor(&self) -> i32 {
        self.tcp.as_raw_fd()
    }
}

/// Reads what the socket has; 0 where it has nothing, because nothing more will come.
fn read_rest(tcp: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    use rustix::net::{RecvFlags, recv};
    let start = into.len();
    into.resize(start + READ_BYTES_MAX, 0);
    // Not by way of the runtime, which would wait for the socket to become readable.
    let read = recv(tcp.as_fd(), &mut into[start..], RecvFlags::DONTWAIT);
    let count = match read {
        Ok((count, _)) => count,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
        Err(error) => {
            into.truncate(start);
            return Err(error.into());
        }
    };
    into.truncate(start + count);
    Ok(count)
}

fn short_file() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was sent")
}

/// Writes all of `bytes` to the socket, waiting where its buffer is full.
async fn write_transport(
    tcp: &TcpStream,
    stall_limit: Option<Duration>,
    mut bytes: &[u8],
    more: bool,
) -> io::Result<()> {
    use rustix::net::SendFlags;
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    while !bytes.is_empty() {
        let sent = tcp.try_io(Interest::WRITABLE, || {
            rustix::net::send(tcp.as_fd(), bytes, flags).map_err(io::Error::from)
        });
        match sent {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stall::writable(tcp, stall_limit).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
