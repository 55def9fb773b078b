//! The sending side: headers, data without a copy, and digests, with as few system calls as
//! possible.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use unlade_nvme_wire::pdu::{
    CommonHeader, DIGEST_BYTES, FLAG_DATA_DIGEST, FLAG_HEADER_DIGEST, Pdu,
};

use crate::target::ram::ChunkSlice;

/// Largest number of slices of one system call.
const SLICES_MAX: usize = 64;

/// A PDU to send.
#[derive(Debug)]
pub(crate) struct Frame {
    head: Vec<u8>,
    body: Vec<ChunkSlice>,
    tail: Option<[u8; DIGEST_BYTES]>,
    /// The command that is complete once this is written.
    ends: Option<u16>,
}

impl Frame {
    /// Creates a frame from a PDU with the header `common`, and its data.
    pub fn new(
        pdu: &Pdu,
        common: &CommonHeader,
        body: Vec<ChunkSlice>,
        ends: Option<u16>,
    ) -> Frame {
        let mut head = Vec::with_capacity(common.layout().head_bytes());
        pdu.write(common, &mut head);
        if common.flags & FLAG_HEADER_DIGEST != 0 {
            let digest = unlade_aead::crc32c::update(0, &head);
            head.extend_from_slice(&digest.to_le_bytes());
        }
        head.resize(common.layout().head_bytes(), 0);
        let tail = (common.flags & FLAG_DATA_DIGEST != 0).then(|| {
            let crc =
                body.iter().fold(0, |crc, piece| unlade_aead::crc32c::update(crc, piece.bytes()));
            crc.to_le_bytes()
        });
        Frame { head, body, tail, ends }
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let body = self.body.iter().map(ChunkSlice::bytes);
        std::iter::once(&self.head[..]).chain(body).chain(self.tail.iter().map(|tail| &tail[..]))
    }

    fn bytes(&self) -> usize {
        self.slices().map(<[u8]>::len).sum()
    }
}

/// The frames to send on a connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    frames: RefCell<VecDeque<Frame>>,
    /// Number of bytes of the first frame that are written.
    written: Cell<usize>,
    filled: Notify,
}

impl Outbox {
    /// Adds a PDU. Their number is limited by the running commands, each with a fixed number.
    pub fn push(&self, frame: Frame) {
        self.frames.borrow_mut().push_back(frame);
        self.filled.notify_one();
    }

    /// Returns true if everything is written.
    pub fn is_empty(&self) -> bool {
        self.frames.borrow().is_empty()
    }

    /// Writes present and future frames in an endless loop; calls `over` for completed commands.
    pub async fn send<W>(&self, stream: &mut W, over: impl Fn(u16)) -> io::Result<()>
    where
        W: AsyncWrite + Unpin,
    {
        loop {
            self.flush(stream, &over).await?;
            self.filled.notified().await;
        }
    }

    /// Writes all present frames.
    pub async fn flush<W>(&self, stream: &mut W, over: impl Fn(u16)) -> io::Result<()>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            let written = poll_fn(|context| {
                let frames = self.frames.borrow();
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count = self.fill(&frames, &mut slices);
                Pin::new(&mut *stream).poll_write_vectored(context, &slices[..count])
            });
            match written.await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => self.advance(count, &over),
            }
        }
        stream.flush().await
    }

    /// Fills in the next slices; returns their number.
    fn fill<'a>(
        &self,
        frames: &'a VecDeque<Frame>,
        slices: &mut [IoSlice<'a>; SLICES_MAX],
    ) -> usize {
        let mut skip = self.written.get();
        let mut count = 0;
        for bytes in frames.iter().flat_map(Frame::slices) {
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            let Some(slot) = slices.get_mut(count) else { break };
            if skipped < bytes.len() {
                *slot = IoSlice::new(&bytes[skipped..]);
                count += 1;
            }
        }
        count
    }

    fn advance(&self, count: usize, over: &impl Fn(u16)) {
        let mut written = self.written.get() + count;
        loop {
            let mut frames = self.frames.borrow_mut();
            let Some(bytes) = frames.front().map(Frame::bytes).filter(|bytes| *bytes <= written)
            else {
                break;
            };
            written -= bytes;
            let ended = frames.pop_front().and_then(|frame| frame.ends);
            // The callback may add frames.
            drop(frames);
            if let Some(command) = ended {
                self.written.set(written);
                over(command);
            }
        }
        self.written.set(written);
    }
}
