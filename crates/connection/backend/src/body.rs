//! Request bodies: reads their bytes in order, with a deadline and a size limit.

use std::io;

use unlade_http::{BodyFraming, ChunkedScanner, HeadError};
use unlade_runtime::Stream;

use crate::session::{Interrupted, OnDrain, Session};

/// Size of one read of an unencrypted upload, in bytes.
pub const READ_BYTES: usize = 128 * 1024;

/// Number of bytes of one upload that are read before the task yields to other connections.
const TURN_BYTES_MAX: u64 = 1024 * 1024;

/// Error of reading a request body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client ended the connection within the body.
    #[error("the connection ended within the body")]
    Ended,
    /// The client sent nothing for the whole body timeout.
    #[error("no bytes came within the body timeout")]
    Stalled,
    /// The body is larger than allowed.
    #[error("the body is larger than allowed")]
    TooLarge,
    /// The chunks are malformed.
    #[error("the chunked body is malformed: {0}")]
    Malformed(#[source] HeadError),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
}

impl From<Interrupted> for BodyError {
    fn from(_: Interrupted) -> Self {
        BodyError::Stalled
    }
}

/// A request body, which follows the head in the stream.
#[derive(Debug)]
pub struct Body {
    left: Left,
    /// Number of content bytes that the caller still accepts.
    allowance: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Left {
    Bytes(u64),
    Chunks(ChunkedScanner),
}

impl Body {
    /// Creates the body that a head announces, with at most `bytes_max` bytes of content.
    ///
    /// # Errors
    /// The head announces more than `bytes_max` bytes.
    pub fn new(framing: BodyFraming, bytes_max: u64) -> Result<Body, BodyError> {
        let left = match framing {
            BodyFraming::Length(bytes) if bytes > bytes_max => return Err(BodyError::TooLarge),
            BodyFraming::Length(bytes) => Left::Bytes(bytes),
            BodyFraming::Chunked => Left::Chunks(ChunkedScanner::new()),
            BodyFraming::None | BodyFraming::UntilClose => Left::Bytes(0),
        };
        Ok(Body { left, allowance: bytes_max, buffer: Vec::new() })
    }

    /// Returns true if the whole body has been read.
    pub fn ended(&self) -> bool {
        match &self.left {
            Left::Bytes(left) => *left == 0,
            Left::Chunks(scanner) => scanner.is_done(),
        }
    }

    /// Reads to the end and passes each chunk of content to `sink`. Afterwards the stream is at the
    /// first byte behind the body.
    ///
    /// # Errors
    /// An error of the body, or the first error of `sink`.
    pub async fn read<E: From<BodyError>>(
        &mut self,
        stream: &mut Stream,
        session: &mut Session,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut turn = 0;
        loop {
            let taken = self.take(stream.input(), &mut sink)?;
            stream.consume(taken);
            give_way(&mut turn, taken).await;
            if self.ended() {
                return Ok(());
            }
            if let Left::Bytes(left) = self.left
                && !stream.is_tls()
            {
                return self.read_plain(left, stream, session, sink).await;
            }
            let limit = session.context().limits().body_timeout;
            let filled = session.within(limit, OnDrain::Finish, stream.fill()).await;
            match filled.map_err(BodyError::from)? {
                Ok(0) => return Err(BodyError::Ended.into()),
                Ok(_) => {}
                Err(error) => return Err(BodyError::Broken(error).into()),
            }
        }
    }

    /// Reads the rest of a body of known length directly from the socket. The stream's buffer is
    /// empty.
    async fn read_plain<E: From<BodyError>>(
        &mut self,
        mut left: u64,
        stream: &mut Stream,
        session: &mut Session,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let limit = session.context().limits().body_timeout;
        self.buffer.resize(READ_BYTES, 0);
        let mut turn = 0;
        while left > 0 {
            let most = left.min(READ_BYTES as u64) as usize;
            let room = self.buffer.get_mut(..most).unwrap_or_default();
            match stream.tcp().try_read(room) {
                Ok(0) => return Err(BodyError::Ended.into()),
                Ok(count) => {
                    left -= count as u64;
                    self.left = Left::Bytes(left);
                    sink(room.get(..count).unwrap_or_default())?;
                    give_way(&mut turn, count).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = session.within(limit, OnDrain::Finish, stream.tcp().readable());
                    ready.await.map_err(BodyError::from)?.map_err(BodyError::Broken)?;
                }
                Err(error) => return Err(BodyError::Broken(error).into()),
            }
        }
        Ok(())
    }

    /// Consumes the bytes of the body at the front of `input`; returns their number.
    fn take<E: From<BodyError>>(
        &mut self,
        input: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        match &mut self.left {
            Left::Bytes(left) => {
                let count = (*left).min(input.len() as u64) as usize;
                *left -= count as u64;
                sink(input.get(..count).unwrap_or_default())?;
                Ok(count)
            }
            Left::Chunks(scanner) => {
                let (mut outcome, allowance) = (Ok(()), &mut self.allowance);
                let progress = scanner
                    .advance_with(input, |data| {
                        if outcome.is_err() {
                            return;
                        }
                        outcome = match allowance.checked_sub(data.len() as u64) {
                            Some(rest) => {
                                *allowance = rest;
                                sink(data)
                            }
                            None => Err(BodyError::TooLarge.into()),
                        };
                    })
                    .map_err(BodyError::Malformed)?;
                outcome?;
                Ok(progress.consumed)
            }
        }
    }
}

/// Counts bytes and yields to other tasks after [`TURN_BYTES_MAX`].
async fn give_way(turn: &mut u64, bytes: usize) {
    *turn += bytes as u64;
    if *turn >= TURN_BYTES_MAX {
        *turn = 0;
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `message` in chunks of `step` bytes; returns the content and the number of bytes left.
    fn feed(
        framing: BodyFraming,
        bytes_max: u64,
        message: &[u8],
        step: usize,
    ) -> Result<(Vec<u8>, usize), BodyError> {
        let mut body = Body::new(framing, bytes_max)?;
        let (mut content, mut at) = (Vec::new(), 0);
        while !body.ended() && at < message.len() {
            let piece = &message[at..message.len().min(at + step)];
            at += body.take::<BodyError>(piece, &mut |data| {
                content.extend_from_slice(data);
                Ok(())
            })?;
        }
        if body.ended() { Ok((content, message.len() - at)) } else { Err(BodyError::Ended) }
    }

    #[test]
    fn sizes_are_limited_whatever_the_framing() {
        let announced = feed(BodyFraming::Length(5), 4, b"12345", 9);
        assert!(matches!(announced, Err(BodyError::TooLarge)));
        let chunked = feed(BodyFraming::Chunked, 4, b"3\r\n123\r\n2\r\n45\r\n0\r\n\r\n", 99);
        assert!(matches!(chunked, Err(BodyError::TooLarge)));
        let fits = feed(BodyFraming::Chunked, 5, b"3\r\n123\r\n2\r\n45\r\n0\r\n\r\n", 99);
        assert_eq!(fits.unwrap().0, b"12345");
    }

    #[test]
    fn malformed_chunks_are_named() {
        let bad = feed(BodyFraming::Chunked, 99, b"zz\r\n", 99);
        assert!(matches!(bad, Err(BodyError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn content_comes_out_however_it_is_cut(
            chunks in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            step in 1usize..20,
            behind in 0usize..5,
        ) {
            let content = chunks.concat();
            let mut chunked = Vec::new();
            for chunk in &chunks {
                chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunked.extend_from_slice(chunk);
                chunked.extend_from_slice(b"\r\n");
            }
            chunked.extend_from_slice(b"0\r\n\r\n");
            chunked.extend_from_slice(&vec![b'G'; behind]);
            let (read, left) = feed(BodyFraming::Chunked, 1000, &chunked, step).unwrap();
            prop_assert_eq!((&read, left), (&content, behind));

            let mut plain = content.clone();
            plain.extend_from_slice(&vec![b'G'; behind]);
            let framing = BodyFraming::Length(content.len() as u64);
            let (read, left) = feed(framing, 1000, &plain, step).unwrap();
            prop_assert_eq!((&read, left), (&content, behind));
        }
    }
}
