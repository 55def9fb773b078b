//! A connection whose records a device has taken over. Software announces records and writes them
//! to the socket in the clear; bytes from the socket may already be opened by the device.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use rustix::net::SendFlags;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::TcpStream;
use unlade_sys::sockopt::unacknowledged_bytes;
use unlade_tls::device::{Halves, Opening, Sealing};
use unlade_tls::{Received, RecordLayer};

use crate::stall;

/// Buffer size of a read from the socket.
const READ_BYTES_MAX: usize = 128 * 1024;
/// Pause while too much is unacknowledged for another record, or another key.
const ACK_PAUSE: Duration = Duration::from_millis(1);

/// The socket, and the limit for its stalls.
#[derive(Clone, Copy)]
pub(crate) struct Transport<'t> {
    pub(crate) tcp: &'t TcpStream,
    pub(crate) stall_limit: Option<Duration>,
}

/// Progress of taking a connection back into software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeBack {
    /// Complete: records are sealed and opened in software, and a snapshot has the whole state.
    Done,
    /// Pending until all written bytes are acknowledged: the kernel has them in the clear.
    Unacknowledged,
    /// Pending until the rest of a record arrives that the device has opened in part. Records are
    /// already sealed in software.
    Receiving,
}

/// The device's state of a connection.
#[derive(Debug)]
pub(crate) struct OffloadedStream {
    opening: Box<dyn Opening>,
    /// None once the device has been asked to release the connection.
    sealing: Option<Box<dyn Sealing>>,
    /// Announced bytes that are to be written next.
    announced: Bytes,
    /// Whole records after them that are not announced yet.
    waiting: Bytes,
    /// The layer's key may differ from the device's.
    key_may_differ: bool,
    buffer: Vec<u8>,
}

impl OffloadedStream {
    pub(crate) fn new(halves: Halves) -> OffloadedStream {
        let Halves { opening, sealing } = halves;
        OffloadedStream {
            opening,
            sealing: Some(sealing),
            announced: Bytes::new(),
            waiting: Bytes::new(),
            key_may_differ: false,
            buffer: Vec::new(),
        }
    }

    /// Returns true if the device seals the bytes written to the socket.
    pub(crate) fn seals(&self) -> bool {
        self.sealing.is_some()
    }

    /// Takes the bytes that were read before; called first.
    pub(crate) fn receive_read(
        &mut self,
        record: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, unlade_tls::RecordError> {
        self.opening.receive_read(record, bytes, plaintext)
    }

    /// Reads once. Returns the number of bytes received, 0 at the end of the stream, and the
    /// result of the record layer. Cancel-safe.
    pub(crate) async fn read(
        &mut self,
        tcp: &mut TcpStream,
        record: &mut RecordLayer,
        plaintext: &mut Vec<u8>,
    ) -> io::Result<(usize, Result<Received, unlade_tls::RecordError>)> {
        self.buffer.clear();
        self.buffer.reserve(READ_BYTES_MAX);
        let got = tcp.read_buf(&mut self.buffer).await?;
        if let Some(sealing) = &mut self.sealing
            && self.announced.is_empty()
        {
            // While nothing is written, acknowledged bytes need not be remembered.
            sealing.acknowledge(unacknowledged_bytes(tcp)?);
        }
        Ok((got, self.opening.receive(record, &self.buffer, plaintext)))
    }

    /// Sends the control records that the layer owes to its peer, and the rest of a cancelled
    /// call.
    pub(crate) async fn flush(
        &mut self,
        transport: Transport<'_>,
        record: &mut RecordLayer,
    ) -> io::Result<()> {
        self.drain(transport, record, false).await?;
        if record.output_pending() {
            let mut owed = Vec::new();
            record.take_output(&mut owed);
            self.waiting = owed.into();
            self.key_may_differ = true;
            self.drain(transport, record, false).await?;
        }
        Ok(())
    }

    /// Sends `bytes` bytes of plaintext; `fill` writes them into one buffer after the other.
    pub(crate) async fn send(
        &mut self,
        transport: Transport<'_>,
        record: &mut RecordLayer,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> io::Result<()>,
        more: bool,
    ) -> io::Result<()> {
        // All records of one announcement have one key.
        self.flush(transport, record).await?;
        let layout = record.layout(bytes);
        let mut buffer = BytesMut::zeroed(layout.sealed_bytes());
        layout.slots(&mut buffer).try_for_each(fill)?;
        let made = record.seal_in_place(&mut buffer, &layout, bytes).map_err(io::Error::other)?;
        buffer.truncate(made);
        self.waiting = buffer.freeze();
        self.drain(transport, record, more).await
    }

    /// Sends the close_notify.
    pub(crate) async fn close_notify(
        &mut self,
        transport: Transport<'_>,
        record: &mut RecordLayer,
    ) -> io::Result<()> {
        self.flush(transport, record).await?;
        let mut last = Vec::new();
        record.close_notify(&mut last);
        self.waiting = last.into();
        self.drain(transport, record, false).await
    }

    /// Announces and writes the waiting records, then follows the layer's key. If it is cancelled,
    /// the next call continues.
    async fn drain(
        &mut self,
        transport: Transport<'_>,
        record: &RecordLayer,
        more: bool,
    ) -> io::Result<()> {
        let mut ack_wait = AckWait::new(transport);
        loop {
            if !self.announced.is_empty() {
                write(transport, &mut self.announced, more || !self.waiting.is_empty()).await?;
            }
            let Some(sealing) = &mut self.sealing else { return Ok(()) };
            if self.waiting.is_empty() && !self.key_may_differ {
                return Ok(());
            }
            sealing.acknowledge(unacknowledged_bytes(transport.tcp)?);
            if !self.waiting.is_empty() {
                let announced = sealing.announce(&self.waiting);
                self.announced = self.waiting.split_to(announced);
            } else if sealing.follow_key(record) {
                self.key_may_differ = false;
            }
            if self.announced.is_empty() && (self.key_may_differ || !self.waiting.is_empty()) {
                ack_wait.pause().await?;
            }
        }
    }

    /// Gives the connection back to software, as far as possible now. Nothing is owed to the peer:
    /// [`OffloadedStream::flush`] was called. Also returns true if the peer has ended.
    pub(crate) async fn take_back(
        &mut self,
        tcp: &TcpStream,
        record: &mut RecordLayer,
        plaintext: &mut Vec<u8>,
    ) -> io::Result<(TakeBack, bool)> {
        let mut ended = false;
        if let Some(sealing) = &mut self.sealing {
            if unacknowledged_bytes(tcp)? > 0 {
                return Ok((TakeBack::Unacknowledged, ended));
            }
            if !sealing.release().await {
                return Err(io::Error::other("the device has ended, and the connection with it"));
            }
            self.sealing = None;
            record.resume_sealing();
        }
        loop {
            // The bytes that the device has opened are followed by unopened bytes.
            if let Some(unopened) = self.opening.unopened()
                && !record.is_within_message()
            {
                record.receive_spare().extend_from_slice(&unopened);
                return Ok((TakeBack::Done, ended));
            }
            self.buffer.clear();
            self.buffer.reserve(READ_BYTES_MAX);
            match tcp.try_read_buf(&mut self.buffer) {
                // The end of the stream can be read again.
                Ok(0) => return Ok((TakeBack::Receiving, ended)),
                Ok(_) => {
                    let received = self.opening.receive(record, &self.buffer, plaintext);
                    let received = received
                        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                    ended |= received.close_notify;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((TakeBack::Receiving, ended));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Waits for acknowledgements while some arrive.
struct AckWait<'t> {
    transport: Transport<'t>,
    since: Instant,
    least_bytes: u64,
}

impl<'t> AckWait<'t> {
    fn new(transport: Transport<'t>) -> AckWait<'t> {
        AckWait { transport, since: Instant::now(), least_bytes: u64::MAX }
    }

    async fn pause(&mut self) -> io::Result<()> {
        let left = unacknowledged_bytes(self.transport.tcp)?;
        if left < self.least_bytes {
            (self.since, self.least_bytes) = (Instant::now(), left);
        } else if self.transport.stall_limit.is_some_and(|limit| self.since.elapsed() >= limit) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        tokio::time::sleep(ACK_PAUSE).await;
        Ok(())
    }
}

/// Writes all of `bytes` to the socket, and removes the written bytes.
async fn write(transport: Transport<'_>, bytes: &mut Bytes, more: bool) -> io::Result<()> {
    let Transport { tcp, stall_limit } = transport;
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    while !bytes.is_empty() {
        let sent = tcp.try_io(Interest::WRITABLE, || {
            rustix::net::send(tcp.as_fd(), bytes, flags).map_err(io::Error::from)
        });
        match sent {
            Ok(count) => bytes.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stall::writable(tcp, stall_limit).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
