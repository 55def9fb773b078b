//! The stream between an instance and the worker.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::net::UnixStream;
use unlade_bytes::DecodeError;
use unlade_guest_protocol::{Deframer, Frame};
use unlade_runtime::descriptors::send_with;

/// Most bytes that wait for the other end to read them.
pub const OUTBOX_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;

/// The reason why a channel ended.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end has closed the channel.
    #[error("the guest has closed its channel")]
    Closed,
    /// The system call failed.
    #[error("the channel: {0}")]
    System(#[from] io::Error),
    /// The guest sent bytes that are not a frame.
    #[error("a frame: {0}")]
    Frame(#[from] DecodeError),
    /// The guest does not read.
    #[error("{OUTBOX_BYTES_MAX} bytes wait to be read")]
    Deaf,
}

/// The channel of one instance.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    deframer: Deframer,
    outbox: Vec<u8>,
}

impl Channel {
    /// Creates a channel over a connected socket.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn new(socket: OwnedFd) -> io::Result<Channel> {
        let stream = std::os::unix::net::UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        Ok(Channel { stream, deframer: Deframer::default(), outbox: Vec::new() })
    }

    /// Receives the next frame, and sends pending bytes meanwhile. Cancel safe.
    ///
    /// # Errors
    /// The channel has ended.
    pub async fn next(&mut self) -> Result<Frame, ChannelError> {
        loop {
            if let Some(frame) = self.deframer.next_frame()? {
                return Ok(frame);
            }
            let interest = match self.outbox.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let ready = self.stream.ready(interest).await?;
            if ready.is_writable() {
                self.flush()?;
            }
            if ready.is_readable() {
                let mut bytes = Vec::new();
                match self.stream.try_read_buf(&mut reserve(&mut bytes)) {
                    Ok(0) => return Err(ChannelError::Closed),
                    Ok(_) => self.deframer.push(&bytes),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Sends a frame, at once or when the guest reads.
    ///
    /// # Errors
    /// The channel has ended, or the guest does not read.
    pub fn send(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        // A pending BELL also covers this one.
        if matches!(frame, Frame::Bell) && !self.outbox.is_empty() {
            return Ok(());
        }
        frame.encode(&mut self.outbox)?;
        self.flush()
    }

    /// Sends a greeting, with the file of a region attached.
    ///
    /// # Errors
    /// The channel has ended.
    pub async fn welcome(
        &mut self,
        frame: &Frame,
        region: BorrowedFd<'_>,
    ) -> Result<(), ChannelError> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes)?;
        while !self.outbox.is_empty() {
            self.stream.writable().await?;
            self.flush()?;
        }
        let stream = &self.stream;
        let send = || send_with(stream, &bytes, &[region]);
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        self.outbox.extend_from_slice(bytes.get(sent..).unwrap_or_default());
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ChannelError> {
        while !self.outbox.is_empty() {
            match self.stream.try_write(&self.outbox) {
                Ok(sent) => {
                    self.outbox.drain(..sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        match self.outbox.len() > OUTBOX_BYTES_MAX {
            true => Err(ChannelError::Deaf),
            false => Ok(()),
        }
    }
}

/// Reserves room for one read.
fn reserve(bytes: &mut Vec<u8>) -> &mut Vec<u8> {
    bytes.reserve(READ_BYTES);
    bytes
}
