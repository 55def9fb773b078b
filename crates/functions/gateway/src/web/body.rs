//! The body of a request: within its length, its time, and the memory for all bodies.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use unlade_fn_model::lambda::EVENT_BYTES_MAX;

/// Longest body, in bytes.
pub const BODY_BYTES_MAX: usize = EVENT_BYTES_MAX;
/// Most bytes of all bodies that are in memory, from their first byte to the response.
pub const BODIES_BYTES_MAX: usize = 256 << 20;
/// The unit in which memory is given, in bytes.
const UNIT_BYTES: usize = 4096;

/// The reason why a body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is too long.
    TooLarge,
    /// There is no memory for it.
    Full,
    /// It does not arrive in time.
    Slow,
    /// It is incomplete, or no body.
    Broken,
}

/// A body in memory, which is counted until this is dropped.
#[derive(Debug)]
pub struct Held {
    /// The bytes.
    pub bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// The memory for bodies.
pub struct Bodies {
    free: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Bodies {
        Bodies::of(BODIES_BYTES_MAX)
    }
}

impl Bodies {
    fn of(bytes_max: usize) -> Bodies {
        Bodies { free: Arc::new(Semaphore::new(bytes_max / UNIT_BYTES)) }
    }

    /// Reads a body. Memory is counted as bytes arrive, so a client that sends none holds none.
    ///
    /// # Errors
    /// See [`Unread`].
    pub async fn read<B>(&self, body: B, limit: Duration) -> Result<Held, Unread>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(Unread::TooLarge);
        }
        let collected = tokio::time::timeout(limit, self.collect(body)).await;
        collected.unwrap_or(Err(Unread::Slow))
    }

    async fn collect<B>(&self, mut body: B) -> Result<Held, Unread>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut whole = BytesMut::new();
        let mut room = self.room(0)?;
        while let Some(frame) = body.frame().await {
            // Trailers are no part of an event.
            let Ok(piece) = frame.map_err(|_| Unread::Broken)?.into_data() else { continue };
            let bytes = whole.len() + piece.len();
            if bytes > BODY_BYTES_MAX {
                return Err(Unread::TooLarge);
            }
            room.merge(self.room(bytes.div_ceil(UNIT_BYTES) - room.num_permits())?);
            whole.extend_from_slice(&piece);
        }
        Ok(Held { bytes: whole.freeze(), _room: room })
    }

    fn room(&self, units: usize) -> Result<OwnedSemaphorePermit, Unread> {
        let permit = self.free.clone().try_acquire_many_owned(units as u32);
        permit.map_err(|_| Unread::Full)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body_util::Full;
    use hyper::body::Frame;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A body in pieces; one that is silent never ends.
    struct Pieces {
        left: VecDeque<io::Result<Bytes>>,
        is_silent: bool,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            match self.left.pop_front() {
                None if self.is_silent => Poll::Pending,
                piece => Poll::Ready(piece.map(|piece| piece.map(Frame::data))),
            }
        }
    }

    fn pieces(count: usize, bytes: usize) -> Pieces {
        let left = std::iter::repeat_with(|| Ok(vec![7; bytes].into())).take(count).collect();
        Pieces { left, is_silent: false }
    }

    fn free_units(bodies: &Bodies) -> usize {
        bodies.free.available_permits()
    }

    #[tokio::test]
    async fn memory_is_counted_until_the_body_is_dropped() {
        let bodies = Bodies::of(10 * UNIT_BYTES);
        let first = bodies.read(pieces(5, UNIT_BYTES + 1), LIMIT).await.unwrap();
        assert_eq!((first.bytes.len(), free_units(&bodies)), (5 * UNIT_BYTES + 5, 4));
        let refused = bodies.read(pieces(5, UNIT_BYTES), LIMIT).await;
        assert_eq!(refused.unwrap_err(), Unread::Full);
        assert_eq!(free_units(&bodies), 4, "that of the refused one is free again");
        let empty = bodies.read(Full::new(Bytes::new()), LIMIT).await.unwrap();
        assert_eq!((empty.bytes.len(), free_units(&bodies)), (0, 4));
        drop(first);
        assert_eq!(free_units(&bodies), 10);
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_holds_no_memory() {
        let bodies = Bodies::of(4 * UNIT_BYTES);
        let silent = || Pieces { is_silent: true, ..pieces(1, 1) };
        let short = Duration::from_millis(20);
        let (first, second, other) = tokio::join!(
            bodies.read(silent(), short),
            bodies.read(silent(), short),
            bodies.read(pieces(2, UNIT_BYTES), LIMIT)
        );
        assert_eq!((first.unwrap_err(), second.unwrap_err()), (Unread::Slow, Unread::Slow));
        assert_eq!(other.unwrap().bytes.len(), 2 * UNIT_BYTES);
        assert_eq!(free_units(&bodies), 4);
    }

    #[tokio::test]
    async fn long_and_broken_bodies_are_refused() {
        let bodies = Bodies::default();
        let longest = bodies.read(pieces(BODY_BYTES_MAX / UNIT_BYTES, UNIT_BYTES), LIMIT).await;
        assert_eq!(longest.unwrap().bytes.len(), BODY_BYTES_MAX);
        let announced = Full::new(Bytes::from(vec![0; BODY_BYTES_MAX + 1]));
        let announced = bodies.read(announced, LIMIT).await;
        assert_eq!(announced.unwrap_err(), Unread::TooLarge);
        let longer = pieces(BODY_BYTES_MAX / UNIT_BYTES + 1, UNIT_BYTES);
        assert_eq!(bodies.read(longer, LIMIT).await.unwrap_err(), Unread::TooLarge);
        let mut broken = pieces(1, UNIT_BYTES);
        broken.left.push_back(Err(io::ErrorKind::UnexpectedEof.into()));
        assert_eq!(bodies.read(broken, LIMIT).await.unwrap_err(), Unread::Broken);
        assert_eq!(free_units(&bodies), BODIES_BYTES_MAX / UNIT_BYTES);
    }
}
