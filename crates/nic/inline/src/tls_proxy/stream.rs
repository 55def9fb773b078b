//! An established TLS connection over a socket of the kernel, in two halves. If a device has
//! taken it over, records are written in the clear and read as they were delivered; otherwise
//! they are sealed and opened here.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use unlade_net::FlowKey;
use unlade_tls::RecordLayer;
use unlade_tls::device::Begin;

use super::handshake::Established;
use crate::device::flow::Receiving;
use crate::device::reader::Reader;
use crate::device::writer::Writer;
use crate::device::{Device, Offer, static_state};

/// Largest number of bytes of one read from the socket.
const READ_BYTES: usize = 128 * 1024;
/// Largest number of plaintext bytes that are sealed, and written to the socket, at once.
pub const WRITE_BYTES: usize = 4 * unlade_tls::PLAINTEXT_BYTES_MAX;
/// Pause while too much is unacknowledged.
pub(super) const CROWDED_PAUSE: Duration = Duration::from_millis(1);
/// Largest number of bytes that are read and discarded before a connection with an error is
/// closed.
pub const LINGER_BYTES_MAX: usize = 1 << 20;
/// Interval of the checks that everything is acknowledged.
const ACK_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct StreamState {
    layer: Mutex<RecordLayer>,
    /// Notified when the layer has pending output.
    owed: Notify,
}

impl StreamState {
    pub(super) fn layer(&self) -> MutexGuard<'_, RecordLayer> {
        self.layer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receiving half.
pub struct TlsReader {
    half: OwnedReadHalf,
    shared: Arc<StreamState>,
    reader: Option<Reader>,
    device: Option<Device>,
    buffer: Vec<u8>,
    closed: bool,
}

/// The sending half.
pub struct TlsWriter {
    pub(super) half: OwnedWriteHalf,
    pub(super) shared: Arc<StreamState>,
    pub(super) writer: Option<Writer>,
    /// True while a record is being written, or after one was written in part: nothing can follow
    /// it.
    pub(super) torn: bool,
}

/// Both halves, and the plaintext that came before.
pub struct Opened {
    /// The receiving half.
    pub reader: TlsReader,
    /// The sending half.
    pub writer: TlsWriter,
    /// Plaintext that the peer has sent already.
    pub plaintext: Vec<u8>,
    /// True if the device has taken the connection over.
    pub offloaded: bool,
}

/// Takes a connection over from its handshake, with the device if there is one and it can. A
/// protocol error in the bytes so far is the error of the first [`TlsReader::read`].
///
/// # Errors
/// Errors of the socket.
pub async fn open(established: Established, device: Option<&Device>) -> io::Result<Opened> {
    let Established { tcp, mut record, mut plaintext, read, written } = established;
    let offloaded = match device {
        Some(device) if record.is_movable() => {
            offload(&tcp, &mut record, (read, written), device, &mut plaintext).await?
        }
        _ => None,
    };
    // Everything may have come with the handshake: the end of stream, or a request for another
    // key.
    let (closed, owes) = (record.is_closed_by_peer(), record.output_pending());
    let shared = Arc::new(StreamState { layer: Mutex::new(record), owed: Notify::new() });
    if owes {
        shared.owed.notify_one();
    }
    let (read_half, write_half) = tcp.into_split();
    let (reader, writer) = offloaded.unzip();
    let offloaded = reader.is_some();
    let reader = TlsReader {
        half: read_half,
        shared: shared.clone(),
        reader,
        device: device.cloned(),
        buffer: vec![0; READ_BYTES],
        closed,
    };
    let writer = TlsWriter { half: write_half, shared, writer, torn: false };
    Ok(Opened { reader, writer, plaintext, offloaded })
}

/// Offloads both directions to the device from here on; `None` if it refuses.
async fn offload(
    tcp: &TcpStream,
    record: &mut RecordLayer,
    (read, written): (u64, u64),
    device: &Device,
    plaintext: &mut Vec<u8>,
) -> io::Result<Option<(Reader, Writer)>> {
    let Some((read_keys, write_keys)) = record.device_keys() else { return Ok(None) };
    let (Some(sending), Some(receiving), Some(ours)) =
        (static_state(&write_keys), static_state(&read_keys), static_state(&read_keys))
    else {
        return Ok(None);
    };
    // The part of a record that is present, unopened, came as it was.
    let Some(unopened) = record.take_incoming() else { return Ok(None) };
    let (offset, number) = (read - unopened.len() as u64, read_keys.number());
    let offer = Offer {
        name: FlowKey::new(tcp.local_addr()?, tcp.peer_addr()?),
        begin: Begin::Seen,
        sent_bytes: written,
        sent_number: write_keys.number(),
        sending,
        receiving: Receiving { tls: receiving, offset, number, read },
    };
    let flow = match device.create(offer).await {
        Ok(flow) => flow,
        Err(refused) => {
            tracing::debug!(%refused, "not offloaded");
            record.receive_spare().extend_from_slice(&unopened);
            return Ok(None);
        }
    };
    record.leave_sealing();
    let mut reader = Reader::new(flow.clone(), ours, offset, number, read);
    // The layer keeps an error in these bytes for later.
    let _ = reader.receive_read(record, &unopened, plaintext);
    Ok(Some((reader, Writer::new(flow, written))))
}

impl TlsReader {
    /// Appends the next bytes to `plaintext`; returns their number, 0 at the end of the peer's
    /// stream.
    ///
    /// # Errors
    /// Errors of the socket; `UnexpectedEof` if the stream ended without a close_notify;
    /// `InvalidData` for a protocol error: the other half sends the alert.
    pub async fn read(&mut self, plaintext: &mut Vec<u8>) -> io::Result<usize> {
        let before = plaintext.len();
        if let Some(error) = self.shared.layer().failure() {
            return Err(error.into());
        }
        while plaintext.len() == before && !self.closed {
            let got = self.half.read(&mut self.buffer).await?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let received = {
                let mut layer = self.shared.layer();
                let bytes = &self.buffer[..got];
                match &mut self.reader {
                    Some(reader) => reader.receive(&mut layer, bytes, plaintext),
                    None => layer.receive(bytes, plaintext),
                }
            };
            self.count();
            match received {
                Ok(received) => {
                    self.closed = received.close_notify;
                    if received.output_pending {
                        self.shared.owed.notify_one();
                    }
                }
                Err(error) => {
                    self.shared.owed.notify_one();
                    return Err(error.into());
                }
            }
        }
        Ok(plaintext.len() - before)
    }

    fn count(&mut self) {
        if let (Some(reader), Some(device)) = (&mut self.reader, &self.device) {
            let (stats, doubtful) = reader.take_stats();
            device.add_software(&stats, doubtful);
        }
    }
}

impl TlsReader {
    /// Reads and discards bytes until the peer has ended, for at most `limit` and
    /// [`LINGER_BYTES_MAX`] bytes: closing a socket with unread bytes resets the connection, and
    /// the last bytes sent may be lost.
    pub async fn linger(&mut self, limit: Duration) {
        let rest = async {
            let mut left = LINGER_BYTES_MAX;
            while let Ok(got @ 1..) = self.half.read(&mut self.buffer).await
                && got < left
            {
                left -= got;
            }
        };
        // The connection ends in any case.
        let _ = tokio::time::timeout(limit, rest).await;
    }
}

impl Drop for TlsWriter {
    /// Notifies the device if it need not keep the connection's name for long.
    fn drop(&mut self) {
        if let Some(writer) = &self.writer
            && unlade_sys::sockopt::is_spent(self.half.as_ref()).unwrap_or(false)
        {
            writer.flow().spend();
        }
    }
}

impl TlsWriter {
    /// Waits until [`TlsWriter::write_owed`] has something to do.
    pub async fn owed(&self) {
        self.shared.owed.notified().await;
    }

    /// Sends pending protocol messages: answers to KeyUpdates, alerts.
    ///
    /// # Errors
    /// Errors of the socket.
    pub async fn write_owed(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        self.shared.layer().take_output(&mut out);
        self.send(out.into()).await
    }

    /// Changes the key for sending, and requests the same of the peer if `request_peer`; has no
    /// effect with TLS 1.2.
    ///
    /// # Errors
    /// Errors of the socket, or sending has ended.
    pub async fn update_keys(&mut self, request_peer: bool) -> io::Result<()> {
        let mut out = Vec::new();
        self.write_owed().await?;
        self.shared.layer().update_keys(request_peer, &mut out)?;
        self.send(out.into()).await
    }

    /// Sends the bytes of `fill`: it is called with buffers for up to [`WRITE_BYTES`] bytes, and
    /// returns how many of them it has filled, in order.
    ///
    /// # Errors
    /// Errors of `fill` or of the socket, or sending has ended.
    pub async fn write_with(
        &mut self,
        fill: impl FnOnce(&mut [io::IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.write_at_most(WRITE_BYTES, fill).await
    }

    /// As [`TlsWriter::write_with`], with buffers for `bytes` bytes.
    pub(super) async fn write_at_most(
        &mut self,
        bytes: usize,
        fill: impl FnOnce(&mut [io::IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let layout = self.shared.layer().layout(bytes);
        let mut buffer = BytesMut::zeroed(layout.sealed_bytes());
        let filled = {
            let mut places: Vec<_> = layout.slots(&mut buffer).map(io::IoSliceMut::new).collect();
            fill(&mut places)?
        };
        if filled == 0 {
            return Ok(0);
        }
        let sealed = loop {
            let sealed = self.shared.layer().seal_in_place(&mut buffer, &layout, filled);
            match sealed {
                Err(unlade_tls::RecordError::OutputPending) => self.write_owed().await?,
                sealed => break sealed?,
            }
        };
        buffer.truncate(sealed);
        self.send(buffer.freeze()).await?;
        Ok(filled)
    }

    /// Sends all of `plaintext`.
    ///
    /// # Errors
    /// Errors of the socket, or sending has ended.
    pub async fn write(&mut self, mut plaintext: &[u8]) -> io::Result<()> {
        while !plaintext.is_empty() {
            let rest = &mut plaintext;
            self.write_with(|places| {
                Ok(places.iter_mut().map(|place| io::Read::read(rest, place).unwrap_or(0)).sum())
            })
            .await?;
        }
        Ok(())
    }

    /// Ends the sent stream, in TLS and in TCP.
    ///
    /// # Errors
    /// Errors of the socket.
    pub async fn close(&mut self) -> io::Result<()> {
        self.write_owed().await?;
        let mut out = Vec::new();
        self.shared.layer().close_notify(&mut out);
        self.send(out.into()).await?;
        self.half.shutdown().await
    }

    /// Sends the alert that is due for an error; nothing follows it.
    pub async fn end(&mut self) {
        // The peer could not read it behind a part of a record. The connection ends in any case.
        if !self.torn {
            let _ = self.write_owed().await;
            let _ = self.half.shutdown().await;
        }
    }

    /// Waits until the peer has acknowledged everything, or the connection is gone.
    ///
    /// # Errors
    /// A file was changed before its bytes had arrived; the connection has to end.
    pub async fn wait_acknowledged(&mut self) -> io::Result<()> {
        while unlade_sys::sockopt::is_spent(self.half.as_ref()).is_ok_and(|is_spent| !is_spent) {
            if self.writer.as_ref().is_some_and(Writer::is_broken) {
                return Err(self.give_up());
            }
            tokio::time::sleep(ACK_PAUSE).await;
        }
        Ok(())
    }

    /// Marks the written bytes as undeliverable: the connection is reset when it is closed, since
    /// the kernel would otherwise retry for long.
    pub(super) fn give_up(&self) -> io::Error {
        let linger = SockRef::from(self.half.as_ref()).set_linger(Some(Duration::ZERO));
        linger.err().unwrap_or_else(|| io::Error::other("a file was changed while it was sent"))
    }

    /// Writes to the socket, until a file that is being sent is found changed.
    pub(super) async fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let broken = async {
            match &self.writer {
                Some(writer) => writer.broken().await,
                None => std::future::pending().await,
            }
        };
        let written = tokio::select! {
            biased;
            () = broken => None,
            written = self.half.write_all(bytes) => Some(written),
        };
        written.unwrap_or_else(|| Err(self.give_up()))
    }

    /// As [`TlsWriter::put`], for bytes in several buffers.
    pub(super) async fn put_all(&mut self, places: &[Bytes]) -> io::Result<()> {
        let mut slices: Vec<io::IoSlice<'_>> =
            places.iter().map(|place| io::IoSlice::new(place)).collect();
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            let broken = async {
                match &self.writer {
                    Some(writer) => writer.broken().await,
                    None => std::future::pending().await,
                }
            };
            let written = tokio::select! {
                biased;
                () = broken => None,
                written = self.half.write_vectored(slices) => Some(written),
            };
            match written {
                None => return Err(self.give_up()),
                Some(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Some(written) => io::IoSlice::advance_slices(&mut slices, written?),
            }
        }
        Ok(())
    }

    /// Checks that no record was left incomplete.
    pub(super) fn check_whole(&self) -> io::Result<()> {
        match self.torn {
            false => Ok(()),
            true => Err(io::Error::new(io::ErrorKind::BrokenPipe, "a record was sent in part")),
        }
    }

    /// Reports how much has arrived; `unwritten` of the announced bytes are not written yet.
    pub(super) fn acknowledge(&mut self, unwritten: usize) -> io::Result<()> {
        let unacknowledged = unlade_sys::sockopt::unacknowledged_bytes(self.half.as_ref())?;
        if let Some(writer) = &mut self.writer {
            writer.acknowledge(unacknowledged + unwritten as u64);
        }
        Ok(())
    }

    /// Sends whole records.
    pub(super) async fn send(&mut self, mut bytes: Bytes) -> io::Result<()> {
        self.check_whole()?;
        if self.writer.is_none() {
            self.torn = true;
            self.half.write_all(&bytes).await?;
            self.torn = false;
            return Ok(());
        }
        while !bytes.is_empty() {
            self.acknowledge(0)?;
            let announced = self.writer.as_mut().map_or(0, |writer| writer.announce(&bytes));
            let announced = bytes.split_to(announced);
            if announced.is_empty() {
                // The socket's buffer is full of small records: it has to drain first.
                tokio::time::sleep(CROWDED_PAUSE).await;
                continue;
            }
            self.torn = true;
            self.put(&announced).await?;
            self.torn = false;
        }
        self.follow_key().await
    }

    /// Switches to the layer's key, if that has changed.
    pub(super) async fn follow_key(&mut self) -> io::Result<()> {
        while let Some(writer) = &mut self.writer {
            if writer.follow_key(&self.shared.layer()).is_ok() {
                break;
            }
            self.acknowledge(0)?;
            tokio::time::sleep(CROWDED_PAUSE).await;
        }
        Ok(())
    }
}
