//! Zero-copy sends to the peer: from a file, or from the caller's memory.
//!
//! If a device seals the records, no byte of a file passes through user space. The kernel's
//! socket gets header, pages of the file, and room for the tag, in turn; the engine receives them
//! as segments of one stream, and seals them.
//!
//! The file must not change until the peer has acknowledged its bytes. If it does, and a segment
//! of it has to be retransmitted, the segment is dropped and the connection is reset: no nonce is
//! ever used for two contents. A change between this call and a segment's first transmission is
//! sent as it is, as with `sendfile` without TLS.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_cork;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use unlade_tls::PLAINTEXT_BYTES_MAX;

use super::stream::{CROWDED_PAUSE, TlsWriter, WRITE_BYTES};
use crate::device::tx_records::{Content, SplitRecord};

/// Records that are passed to the socket at once.
const RECORDS_AT_ONCE: usize = 4;
/// Size of a pipe: the pages that those records can touch, and a reserve.
const PIPE_BYTES: usize = 256 << 10;

impl TlsWriter {
    /// Sends up to `bytes` bytes of `file` from its byte `offset` on; returns their number, which
    /// is smaller if the file ends before. They have arrived when [`TlsWriter::wait_acknowledged`] returns.
    /// A read may block on the disk, here or in the engine.
    ///
    /// # Errors
    /// Errors of the socket or the file; sending has ended; `UnexpectedEof` if the file became
    /// shorter in the meantime. In that case the connection has to end, since part of a record
    /// was sent.
    pub async fn send_file(
        &mut self,
        file: &Arc<File>,
        offset: u64,
        bytes: u64,
    ) -> io::Result<u64> {
        self.check_whole()?;
        let bytes = file.metadata()?.len().saturating_sub(offset).min(bytes);
        if self.writer.is_none() {
            return self.copy_file(file, offset, bytes).await;
        }
        // A hint; without it pages come later.
        let _ = fadvise(file, offset, bytes.try_into().ok(), Advice::WillNeed);
        // Records do not start new packets.
        set_tcp_cork(self.half.as_ref(), true)?;
        let sent = self.link_file(file, offset, bytes).await;
        let uncorked = set_tcp_cork(self.half.as_ref(), false);
        sent.and_then(|()| Ok(uncorked?))?;
        Ok(bytes)
    }

    /// Reads and seals in user space.
    async fn copy_file(&mut self, file: &File, offset: u64, bytes: u64) -> io::Result<u64> {
        let mut done = 0;
        while done < bytes {
            let left = (bytes - done).min(WRITE_BYTES as u64) as usize;
            let fill = |places: &mut [io::IoSliceMut<'_>]| {
                Ok(rustix::io::preadv(file, places, offset + done)?)
            };
            match self.write_at_most(left, fill).await? {
                0 => return Err(short()),
                written => done += written as u64,
            }
        }
        Ok(bytes)
    }

    /// Passes records to the kernel whose content it takes from the file. Several are put into a
    /// pipe, and then moved to the socket by one call, since the socket sends at the end of each
    /// call.
    async fn link_file(&mut self, file: &Arc<File>, offset: u64, bytes: u64) -> io::Result<()> {
        let mut pipe = Pipe::new()?;
        let mut done = 0;
        while done < bytes {
            self.acknowledge(0)?;
            let mut announced = 0;
            for _ in 0..RECORDS_AT_ONCE {
                let content_bytes = (bytes - done).min(PLAINTEXT_BYTES_MAX as u64) as usize;
                let framed = match content_bytes {
                    0 => break,
                    _ => self.shared.layer().frame_elsewhere(content_bytes),
                };
                let (head, tail) = match framed {
                    Err(unlade_tls::RecordError::OutputPending) => break,
                    framed => framed?,
                };
                let around = (Bytes::from(head), Bytes::from(tail));
                let at = offset + done;
                let content = Content::File { file: file.clone(), at, bytes: content_bytes };
                let record = SplitRecord::new(around.clone(), content);
                self.announce(&record, announced).await?;
                announced += record.bytes();
                self.torn = true;
                self.pour(&mut pipe, &around.0).await?;
                self.pour_file(&mut pipe, file, at..at + content_bytes as u64).await?;
                self.pour(&mut pipe, &around.1).await?;
                done += content_bytes as u64;
            }
            self.drain(&mut pipe).await?;
            self.torn = false;
            // Answers to the peer's KeyUpdates are sent between two records.
            self.write_owed().await?;
        }
        Ok(())
    }

    /// Writes a few bytes into the pipe.
    async fn pour(&mut self, pipe: &mut Pipe, bytes: &[u8]) -> io::Result<()> {
        loop {
            // A write of this size is atomic (pipe(7)).
            match rustix::io::write(&pipe.writer, bytes) {
                Ok(written) => {
                    pipe.bytes += written;
                    return Ok(());
                }
                Err(Errno::AGAIN) if pipe.bytes > 0 => self.drain(pipe).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Moves pages of the file into the pipe.
    async fn pour_file(
        &mut self,
        pipe: &mut Pipe,
        file: &File,
        range: std::ops::Range<u64>,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let left = (range.end - at) as usize;
            match splice(file, Some(&mut at), &pipe.writer, None, left, SpliceFlags::NONBLOCK) {
                Ok(0) => return Err(short()),
                Ok(moved) => pipe.bytes += moved,
                Err(Errno::AGAIN) if pipe.bytes > 0 => self.drain(pipe).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves the contents of the pipe to the socket.
    async fn drain(&mut self, pipe: &mut Pipe) -> io::Result<()> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MORE;
        while pipe.bytes > 0 {
            let socket = self.half.as_ref();
            let moved = || Ok(splice(&pipe.reader, None, socket, None, pipe.bytes, flags)?);
            let broken = async {
                match &self.writer {
                    Some(writer) => writer.broken().await,
                    None => std::future::pending().await,
                }
            };
            let moved = tokio::select! {
                biased;
                () = broken => return Err(self.give_up()),
                moved = socket.async_io(Interest::WRITABLE, moved) => moved?,
            };
            if moved == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            pipe.bytes -= moved;
        }
        Ok(())
    }

    /// Announces a record; `unwritten` bytes of the records before it are not written yet.
    async fn announce(&mut self, record: &SplitRecord, unwritten: usize) -> io::Result<()> {
        while let Some(writer) = &mut self.writer
            && !writer.announce_split(record)
        {
            tokio::time::sleep(CROWDED_PAUSE).await;
            self.acknowledge(unwritten)?;
        }
        Ok(())
    }

    /// Sends all of `content` without a copy in user space, if a device seals the records.
    ///
    /// # Errors
    /// Errors of the socket, or sending has ended.
    pub async fn write_bytes(&mut self, mut content: Bytes) -> io::Result<()> {
        if self.writer.is_none() {
            let mut out = Vec::new();
            self.shared.layer().seal(&content, &mut out)?;
            return self.send(out.into()).await;
        }
        self.check_whole()?;
        while !content.is_empty() {
            self.acknowledge(0)?;
            let mut places = Vec::with_capacity(3 * RECORDS_AT_ONCE);
            while !content.is_empty() && places.len() < 3 * RECORDS_AT_ONCE {
                let content_bytes = content.len().min(PLAINTEXT_BYTES_MAX);
                let framed = self.shared.layer().frame_elsewhere(content_bytes);
                let (head, tail) = match framed {
                    Err(unlade_tls::RecordError::OutputPending) if places.is_empty() => {
                        self.write_owed().await?;
                        continue;
                    }
                    Err(unlade_tls::RecordError::OutputPending) => break,
                    framed => framed?,
                };
                let (head, tail) = (Bytes::from(head), Bytes::from(tail));
                let piece = content.split_to(content_bytes);
                let around = (head.clone(), tail.clone());
                let record = SplitRecord::new(around, Content::Memory(piece.clone()));
                let unwritten = places.iter().map(Bytes::len).sum();
                self.announce(&record, unwritten).await?;
                places.extend([head, piece, tail]);
            }
            self.torn = true;
            self.put_all(&places).await?;
            self.torn = false;
        }
        Ok(())
    }
}

/// Records on their way from a file to the socket.
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Number of bytes in it.
    bytes: usize,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe is drained more often.
        let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
        Ok(Pipe { reader, writer, bytes: 0 })
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was sent")
}
