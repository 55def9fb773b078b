//! A client connection, plain or TLS, that can be taken apart between two requests.
//!
//! The kernel socket, the TLS record layer and the bytes read ahead are separate values. A
//! connection between requests can be converted to `Parts`: a migration sends them, and an
//! adoption assembles them again.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::TcpStream;
use unlade_net::FlowKey;
use unlade_sys::repair;
use unlade_tls::RecordLayer;
use unlade_tls::delegation::{Delegation, Sealer};
use unlade_tls::device::{Begin, Device, Offer, Refused};
use unlade_tls::piece::{PieceEnd, PieceProof};

pub use crate::offloaded::TakeBack;
use crate::offloaded::{OffloadedStream, Transport};
use crate::sealing::Sealing;
use crate::stall;

/// Buffer size of a read from a TLS transport.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Minimum buffer size of a read from a plaintext transport: most request heads fit.
const READ_BYTES_MIN: usize = 4096;
/// Largest input buffer whose allocation is kept.
const INPUT_KEPT_BYTES_MAX: usize = 256 * 1024;
/// Plaintext of a file that is sealed and written as one unit on a TLS connection.
const FILE_CHUNK_BYTES: usize = 256 * 1024;
/// Most bytes of one sendfile(2) call: large enough to amortise it, small enough to let other
/// connections of the worker run.
const SENDFILE_BYTES_MAX: usize = 1024 * 1024;
/// Number of checks of the unsent bytes with a yield between them; further checks have pauses
/// between them.
const SENT_YIELDS: u32 = 24;
const SENT_PAUSE: Duration = Duration::from_millis(1);

/// The error if a peer has sent FIN without close_notify.
const TRUNCATED: &str = "TLS stream ended without close_notify";

/// A client connection on the current thread's runtime.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    record: Option<Box<RecordLayer>>,
    /// The device's state, if a device has taken the records over.
    offloaded: Option<Box<OffloadedStream>>,
    /// In place of a record layer: one response is sealed for another machine's client.
    sealing: Option<Box<Sealing>>,
    /// Plaintext read and not consumed is `input[start..]`.
    input: Vec<u8>,
    start: usize,
    /// Sealed bytes that are to be written; kept to reuse the allocation.
    sealed: Vec<u8>,
    /// The end of the input was read: no more input will arrive.
    ended: bool,
    /// The peer has ended its direction, but the socket does not show it: the bytes in the socket
    /// are the rest of the input.
    finishing: bool,
    peer: SocketAddr,
    local: SocketAddr,
    received_bytes: u64,
    sent_bytes: u64,
    /// The time that a write may wait while the peer acknowledges nothing; without it, unlimited.
    stall_limit: Option<Duration>,
}

/// The parts of a connection. Only `tcp` is registered with a runtime.
#[derive(Debug)]
pub struct Parts {
    /// The kernel's socket.
    pub tcp: TcpStream,
    /// The TLS record layer, if the connection has one.
    pub record: Option<Box<RecordLayer>>,
    /// Plaintext read and not consumed.
    pub input: Vec<u8>,
    /// The peer sent FIN or close_notify: the only further input is in the socket already.
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

    /// Assembles a connection.
    pub fn from_parts(parts: Parts) -> Stream {
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let canonical = |address: io::Result<SocketAddr>| {
            address.map_or(unspecified, |a| SocketAddr::new(a.ip().to_canonical(), a.port()))
        };
        let (peer, local) = (canonical(parts.tcp.peer_addr()), canonical(parts.tcp.local_addr()));
        Stream::with_addresses(parts, peer, local)
    }

    /// As [`Stream::from_parts`], for a connection with known addresses: saves two system calls.
    pub fn with_addresses(parts: Parts, peer: SocketAddr, local: SocketAddr) -> Stream {
        Stream {
            peer,
            local,
            tcp: parts.tcp,
            record: parts.record,
            offloaded: None,
            sealing: None,
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

    /// Wraps a connection to a balancer for one request of its client, of which all is in `input`; the response
    /// is sealed for the client, and goes to the balancer in pieces. `spare` is memory for that; `is_apart`:
    /// the header of an announced response is to be a segment of its own.
    /// [`Stream::finish_sealing`] gives the parts back.
    pub fn sealing(
        (tcp, proof, mut spare): (TcpStream, PieceProof, Vec<u8>),
        sealer: Sealer,
        input: Vec<u8>,
        (client, service): (SocketAddr, SocketAddr),
        is_apart: bool,
    ) -> Stream {
        let parts = Parts { tcp, record: None, input, ended: false };
        let mut stream = Stream::with_addresses(parts, client, service);
        spare.clear();
        stream.sealing = Some(Box::new(Sealing::new(sealer, proof, is_apart)));
        (stream.sealed, stream.ended) = (spare, true);
        stream
    }

    /// Announces the whole rest of the response, which has `content_bytes` bytes, not 0. It goes in full
    /// records, of which the balancer knows the number before the first byte. Does nothing unless the
    /// response is sealed for another machine's client.
    ///
    /// # Errors
    /// The socket's.
    pub async fn announce(&mut self, content_bytes: u64, end: PieceEnd) -> io::Result<()> {
        let Some(sealing) = &mut self.sealing else { return Ok(()) };
        if sealing.announce(content_bytes, end, &mut self.sealed) {
            // The kernel appends nothing to it (MSG_EOR), also if it has to send it again.
            write_flagged(&self.tcp, self.stall_limit, &self.sealed, SendFlags::EOR).await?;
            self.sealed.clear();
        }
        Ok(())
    }

    /// Ends a response that is sealed for another machine's client. `end` counts unless the response was
    /// announced.
    ///
    /// # Errors
    /// The socket's; or the response is shorter than announced.
    pub async fn finish_sealing(
        mut self,
        end: PieceEnd,
    ) -> io::Result<(TcpStream, PieceProof, Vec<u8>)> {
        let Some(sealing) = self.sealing.take() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let proof = sealing.finish(end, &mut self.sealed)?;
        write_transport(&self.tcp, self.stall_limit, &self.sealed, false).await?;
        Ok((self.tcp, proof, self.sealed))
    }

    /// Delegates the sealing of the next records, at most `records_max`, and lets sealed bytes pass: reading
    /// and writing are of the transport until [`Stream::end_delegation`]. `None`: another record has to be
    /// sent before, or the connection has none.
    pub fn begin_delegation(&mut self, records_max: u64) -> Option<(Delegation, Box<RecordLayer>)> {
        let is_suited = self.offloaded.is_none() && !self.has_ended();
        let mut record = self.record.take_if(|_| is_suited)?;
        let delegation = record.delegate(records_max);
        match delegation {
            Some(delegation) => Some((delegation, record)),
            None => {
                self.record = Some(record);
                None
            }
        }
    }

    /// Ends the delegation: another machine has sealed so many records, or an unknown number, and then nothing
    /// can be sent any more.
    pub fn end_delegation(&mut self, mut record: Box<RecordLayer>, records: Option<u64>) {
        records.into_iter().for_each(|records| record.resume(records));
        self.record = Some(record);
    }

    /// Takes the connection apart. Each call writes the sealed output that it produces, so nothing
    /// is lost between calls. Take an offloaded connection back first ([`Stream::take_back`]),
    /// unless it has ended.
    pub fn into_parts(mut self) -> Parts {
        self.input.drain(..self.start);
        let ended = self.ended || self.finishing;
        Parts { tcp: self.tcp, record: self.record, input: self.input, ended }
    }

    /// Lets a device seal and open the records from here on. `read_bytes` and `written_bytes` are
    /// the numbers of bytes read from the socket and written to it since byte 0 of each stream.
    /// Not cancel-safe: the device could have taken over records that no code announces.
    ///
    /// The socket is bound to the device's interface, so that nothing can leave past the device.
    ///
    /// # Errors
    /// [`Refused`]; the connection goes on in software.
    pub async fn offload(
        &mut self,
        device: &dyn Device,
        begin: Begin,
        (read_bytes, written_bytes): (u64, u64),
    ) -> Result<(), Refused> {
        let suited = !self.has_ended() && self.offloaded.is_none();
        let Some(record) = self.record.as_deref_mut().filter(|_| suited) else {
            return Err(Refused::Unsupported);
        };
        if !record.is_movable() || record.is_within_message() {
            return Err(Refused::Unsupported);
        }
        let Some((read, write)) = record.device_keys() else { return Err(Refused::Unsupported) };
        let bound = SockRef::from(&self.tcp).bind_device(Some(device.interface().as_bytes()));
        bound.map_err(|_| Refused::Unbound)?;
        let name = FlowKey::new(self.local, self.peer);
        let unopened_bytes = record.incoming_bytes() as u64;
        let offer = Offer { name, begin, read, write, unopened_bytes, written_bytes, read_bytes };
        let mut offloaded = OffloadedStream::new(device.create(offer).await?);
        record.leave_sealing();
        let unopened = record.take_incoming().unwrap_or_default();
        // If the record layer refuses these bytes, it reports the error at the next read too.
        let received = offloaded.receive_read(record, &unopened, &mut self.input);
        self.offloaded = Some(Box::new(offloaded));
        let received = received.unwrap_or_default();
        self.ended |= received.close_notify;
        if received.output_pending {
            self.flush_control().await;
        }
        Ok(())
    }

    /// Returns true if a device seals the written bytes.
    pub fn is_offloaded(&self) -> bool {
        self.offloaded.as_ref().is_some_and(|offloaded| offloaded.seals())
    }

    /// Takes the records back from the device, as far as possible now: a connection can be taken
    /// apart, frozen or moved only after this returns [`TakeBack::Done`]. Call it between
    /// requests, and again if it returns another value. Bytes that arrive meanwhile are in
    /// [`Self::input`].
    ///
    /// # Errors
    /// The socket's, the peer's, or the device has ended; the connection cannot continue.
    pub async fn take_back(&mut self) -> io::Result<TakeBack> {
        let transport = Transport { tcp: &self.tcp, stall_limit: self.stall_limit };
        let (Some(offloaded), Some(record)) =
            (self.offloaded.as_deref_mut(), self.record.as_deref_mut())
        else {
            return Ok(TakeBack::Done);
        };
        if offloaded.seals() {
            offloaded.flush(transport, record).await?;
        }
        let before = self.input.len();
        let (back, ended) = offloaded.take_back(&self.tcp, record, &mut self.input).await?;
        let owes = record.output_pending();
        self.received_bytes += (self.input.len() - before) as u64;
        self.ended |= ended;
        if back == TakeBack::Done {
            self.offloaded = None;
        }
        if back != TakeBack::Unacknowledged && owes {
            self.flush_control().await;
        }
        Ok(back)
    }

    /// From now on a write fails with `TimedOut` if the peer has acknowledged nothing for `limit`.
    /// A peer that acknowledges a little now and then is waited for.
    pub fn set_stall_limit(&mut self, limit: Duration) {
        self.stall_limit = Some(limit);
    }

    /// Waits until the socket accepts more data.
    ///
    /// # Errors
    /// `TimedOut` as for [`Stream::set_stall_limit`]; the socket's.
    pub async fn writable(&self) -> io::Result<()> {
        stall::writable(&self.tcp, self.stall_limit).await
    }

    /// Returns true if the only further input is in the socket already.
    pub fn has_ended(&self) -> bool {
        self.ended || self.finishing
    }

    /// Waits until the kernel has sent all written bytes, for at most `limit`. Returns false if it
    /// has not: the client does not accept data.
    pub async fn sent(&self, limit: Duration) -> bool {
        for _ in 0..SENT_YIELDS {
            match repair::unsent_bytes(&self.tcp) {
                Ok(1..) => tokio::task::yield_now().await,
                _ => return true,
            }
        }
        let begin = Instant::now();
        // The kernel reports space for more data, not that nothing is left.
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

    /// Returns true if there is a TLS record layer, here or at another machine.
    pub fn is_tls(&self) -> bool {
        self.record.is_some() || self.sealing.is_some()
    }

    /// The kernel's socket. Read or write it directly only if [`Self::is_tls`] is false and
    /// [`Self::input`] is empty.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The record layer, if there is one.
    pub fn record(&self) -> Option<&RecordLayer> {
        self.record.as_deref()
    }

    /// Plaintext bytes received so far (before TLS: transport bytes on plain connections).
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Plaintext bytes sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Counts bytes that were sent without passing through this value (splice).
    pub fn add_sent_bytes(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }

    /// Plaintext read and not consumed.
    pub fn input(&self) -> &[u8] {
        &self.input[self.start..]
    }

    /// Drops the first `bytes` bytes of [`Self::input`] (all of it if there are fewer).
    pub fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.input.len());
        if self.start == self.input.len() {
            self.input.clear();
            self.input.shrink_to(INPUT_KEPT_BYTES_MAX);
            self.start = 0;
        }
    }

    /// Reads more plaintext into [`Self::input`] and returns the number of bytes read. 0 is the
    /// orderly end of the stream (FIN, and close_notify on TLS).
    ///
    /// Cancel-safe: all bytes read are in `input`, or still in the socket.
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
        match (self.record.is_some(), self.offloaded.is_some()) {
            (false, _) => self.fill_plain().await,
            (true, false) => self.fill_tls().await,
            (true, true) => self.fill_carried().await,
        }
    }

    async fn fill_carried(&mut self) -> io::Result<usize> {
        loop {
            let (Some(offloaded), Some(record)) =
                (self.offloaded.as_deref_mut(), self.record.as_deref_mut())
            else {
                return Ok(0);
            };
            let before = self.input.len();
            let (got, received) = offloaded.read(&mut self.tcp, record, &mut self.input).await?;
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
            self.ended |= received.close_notify;
            if count > 0 || self.ended {
                self.received_bytes += count as u64;
                return Ok(count);
            }
            if got == 0 {
                self.ended = true;
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, TRUNCATED));
            }
        }
    }

    async fn fill_plain(&mut self) -> io::Result<usize> {
        self.input.reserve(READ_BYTES_MIN);
        // A read that does not fill the buffer tells the runtime that the socket is empty, which
        // saves another read.
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
            // First the bytes that are already buffered: an adopted or half-read record.
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
                    // A previous owner saw how the peer ended.
                    return Ok(0);
                }
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, TRUNCATED));
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

    /// Sends the control records owed to the peer (KeyUpdate answers, alerts). Best effort: a
    /// broken transport causes an error at the next read or write.
    async fn flush_control(&mut self) {
        let Some(record) = self.record.as_deref_mut() else { return };
        let transport = Transport { tcp: &self.tcp, stall_limit: self.stall_limit };
        if let Some(offloaded) = self.offloaded.as_deref_mut().filter(|offloaded| offloaded.seals())
        {
            let _ = offloaded.flush(transport, record).await;
            return;
        }
        let mut out = Vec::new();
        record.take_output(&mut out);
        let _ = write_transport(&self.tcp, self.stall_limit, &out, false).await;
    }

    /// Writes all of `bytes`; `more` announces that another write follows immediately, so that the
    /// kernel may keep an incomplete segment back (MSG_MORE).
    ///
    /// # Errors
    /// The socket's.
    pub async fn write_all(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        let is_offloaded = self.is_offloaded();
        if let Some(sealing) = &mut self.sealing {
            sealing.seal(bytes, &mut self.sealed)?;
            write_transport(&self.tcp, self.stall_limit, &self.sealed, more).await?;
            self.sealed.clear();
            self.sent_bytes += bytes.len() as u64;
            return Ok(());
        }
        match self.record.as_deref_mut() {
            None => write_transport(&self.tcp, self.stall_limit, bytes, more).await?,
            Some(_) if is_offloaded => {
                let mut chunks = bytes.chunks(FILE_CHUNK_BYTES).peekable();
                while let Some(mut chunk) = chunks.next() {
                    let (bytes, more) = (chunk.len(), more || chunks.peek().is_some());
                    let mut fill = |out: &mut [u8]| Read::read_exact(&mut chunk, out);
                    self.send_offloaded(bytes, &mut fill, more).await?;
                }
            }
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

    /// Sends `bytes` bytes of `file` from `offset`: sendfile(2), or read and seal on TLS.
    ///
    /// # Errors
    /// The socket's or the file's; `UnexpectedEof` where the file is shorter than announced.
    pub async fn send_file(&mut self, file: &File, offset: u64, bytes: u64) -> io::Result<()> {
        match (&self.sealing, &self.record) {
            (Some(_), _) => return self.send_file_sealing(file, offset, bytes).await,
            (None, Some(_)) => self.send_file_tls(file, offset, bytes).await?,
            (None, None) => self.send_file_plain(file, offset, bytes).await?,
        }
        self.sent_bytes += bytes;
        Ok(())
    }

    async fn send_file_sealing(&mut self, file: &File, at: u64, bytes: u64) -> io::Result<()> {
        let end = at + bytes;
        let mut at = at;
        let mut buffer = vec![0; FILE_CHUNK_BYTES.min(bytes as usize)];
        while at < end {
            let chunk = (end - at).min(FILE_CHUNK_BYTES as u64) as usize;
            std::os::unix::fs::FileExt::read_exact_at(file, &mut buffer[..chunk], at)?;
            at += chunk as u64;
            self.write_all(&buffer[..chunk], at < end).await?;
        }
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
            let chunk = (end - at).min(FILE_CHUNK_BYTES as u64) as usize;
            let more = at + (chunk as u64) < end;
            let mut read = |out: &mut [u8]| {
                let result = std::os::unix::fs::FileExt::read_exact_at(file, out, at);
                at += out.len() as u64;
                result
            };
            if self.is_offloaded() {
                self.send_offloaded(chunk, &mut read, more).await?;
                continue;
            }
            let Some(record) = self.record.as_deref_mut() else { return Ok(()) };
            self.sealed.clear();
            record.take_output(&mut self.sealed);
            record.seal_with(chunk, &mut self.sealed, &mut read)?;
            write_transport(&self.tcp, self.stall_limit, &self.sealed, more).await?;
        }
        Ok(())
    }

    /// Sends records that the device seals.
    async fn send_offloaded(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> io::Result<()>,
        more: bool,
    ) -> io::Result<()> {
        let transport = Transport { tcp: &self.tcp, stall_limit: self.stall_limit };
        match (self.offloaded.as_deref_mut(), self.record.as_deref_mut()) {
            (Some(offloaded), Some(record)) => {
                offloaded.send(transport, record, bytes, fill, more).await
            }
            _ => Ok(()),
        }
    }

    /// Ends the sending direction: close_notify on TLS, then FIN.
    ///
    /// # Errors
    /// The socket's.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        let is_offloaded = self.is_offloaded();
        if let (true, Some(offloaded), Some(record)) =
            (is_offloaded, self.offloaded.as_deref_mut(), self.record.as_deref_mut())
        {
            let transport = Transport { tcp: &self.tcp, stall_limit: self.stall_limit };
            offloaded.close_notify(transport, record).await?;
        } else if let Some(record) = self.record.as_deref_mut() {
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

/// Reads the bytes in the socket; returns 0 if it is empty, because no more will arrive.
fn read_rest(tcp: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    use rustix::net::{RecvFlags, recv};
    let start = into.len();
    into.resize(start + READ_BYTES_MAX, 0);
    // Bypasses the runtime, which would wait for the socket to become readable.
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

/// Writes all of `bytes` to the socket, waiting while its buffer is full.
async fn write_transport(
    tcp: &TcpStream,
    stall_limit: Option<Duration>,
    bytes: &[u8],
    more: bool,
) -> io::Result<()> {
    let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
    write_flagged(tcp, stall_limit, bytes, flags).await
}

async fn write_flagged(
    tcp: &TcpStream,
    stall_limit: Option<Duration>,
    mut bytes: &[u8],
    flags: SendFlags,
) -> io::Result<()> {
    let flags = flags | SendFlags::NOSIGNAL;
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
