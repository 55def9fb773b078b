//! Unread input that exceeds the size of a snapshot.
//!
//! A client that sends a large body directly behind its last request fills the receive queue
//! before the request is parsed. Only reading shortens the queue. The connection therefore stays
//! if its next request may be answered here. If not, the front of the queue is read into user
//! space, and the part that exceeds the snapshot's plaintext is sent before RETURN in UNREAD
//! frames.

use unlade_handoff_protocol::frame::{
    ConnectionId, Epoch, Frame, UNREAD_BYTES_MAX, UNREAD_PIECE_BYTES_MAX,
};
use unlade_net::state::QUEUE_BYTES_MAX;
use unlade_runtime::stream::Stream;
use unlade_sys::repair;

/// Largest receive queue that may move as it is, in bytes. The rest of [`QUEUE_BYTES_MAX`] is for
/// data that arrives before the queue is read.
pub(crate) const MOVABLE_BYTES_MAX: usize = QUEUE_BYTES_MAX / 4 * 3;
/// Number of bytes that reading ahead leaves in the receive queue.
const LEFT_BYTES_MAX: usize = QUEUE_BYTES_MAX / 4;

/// Result of reading ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// The rest of the receive queue can move.
    Done,
    /// The input exceeds [`UNREAD_BYTES_MAX`], or the connection broke.
    Failed,
}

/// Returns true if more input is unread than one snapshot can carry.
pub(crate) fn is_too_much(stream: &Stream) -> bool {
    stream.input().len() > QUEUE_BYTES_MAX || queued(stream) > MOVABLE_BYTES_MAX
}

fn queued(stream: &Stream) -> usize {
    // If this fails, freezing the socket reports the error.
    repair::unread_bytes(stream.tcp()).unwrap_or_default()
}

/// Reads until the receive queue can move. Packets of the connection must not arrive here during
/// that time.
pub(crate) async fn read_ahead(stream: &mut Stream) -> ReadAhead {
    loop {
        let unread_bytes = queued(stream);
        if stream.input().len() > QUEUE_BYTES_MAX + UNREAD_BYTES_MAX {
            tracing::warn!(
                client = %stream.peer(),
                unread_bytes = unread_bytes + stream.input().len(),
                "a connection that belongs elsewhere has too much unread and is reset; \
                 lower the last value of net.ipv4.tcp_rmem to {UNREAD_BYTES_MAX} or less"
            );
            return ReadAhead::Failed;
        }
        if unread_bytes <= LEFT_BYTES_MAX {
            return ReadAhead::Done;
        }
        match stream.fill().await {
            Ok(1..) => {}
            Ok(_) => return ReadAhead::Done,
            Err(_) => return ReadAhead::Failed,
        }
    }
}

/// Splits the input into the part for a snapshot and the rest.
pub(crate) fn split(stream: &Stream) -> (&[u8], &[u8]) {
    let input = stream.input();
    input.split_at(input.len().min(QUEUE_BYTES_MAX))
}

/// Encodes the rest as UNREAD frames.
pub(crate) fn frames(
    id: ConnectionId,
    epoch: Epoch,
    unread: &[u8],
) -> impl Iterator<Item = Frame> + '_ {
    let pieces = unread.chunks(UNREAD_PIECE_BYTES_MAX).enumerate();
    pieces.map(move |(at, bytes)| Frame::Unread {
        id,
        epoch,
        at_bytes: (at * UNREAD_PIECE_BYTES_MAX) as u32,
        bytes: bytes.to_vec().into(),
    })
}
