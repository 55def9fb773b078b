//! More unread input than a snapshot carries.
//!
//! A client that sends a large body directly behind its last request fills the receive queue
//! before the request is looked at. The queue becomes shorter only as somebody reads it. So the
//! connection stays where its next request may be answered here. Where it may not, the front of
//! the queue is read into user space, and the part that the snapshot's plaintext has no room for
//! goes ahead of RETURN in UNREAD frames.

use unlade_handoff_protocol::frame::{
    ConnectionId, Epoch, Frame, UNREAD_BYTES_MAX, UNREAD_PIECE_BYTES_MAX,
};
use unlade_net::state::QUEUE_BYTES_MAX;
use unlade_runtime::stream::Stream;
use unlade_sys::repair;

/// Bytes of the receive queue that may move as they are. What arrives until the queue is read has
/// room in the rest of [`QUEUE_BYTES_MAX`].
pub(crate) const MOVABLE_BYTES_MAX: usize = QUEUE_BYTES_MAX / 4 * 3;
/// Bytes that are left in the receive queue when it is read ahead.
const LEFT_BYTES_MAX: usize = QUEUE_BYTES_MAX / 4;

/// How reading ahead ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// The rest of the receive queue can move.
    Done,
    /// There is more than [`UNREAD_BYTES_MAX`], or the connection broke.
    Failed,
}

/// Whether more is unread than one snapshot carries.
pub(crate) fn is_too_much(stream: &Stream) -> bool {
    stream.input().len() > QUEUE_BYTES_MAX || queued(stream) > MOVABLE_BYTES_MAX
}

fn queued(stream: &Stream) -> usize {
    // A socket that cannot tell shows what is wrong with it when it is frozen.
    repair::unread_bytes(stream.tcp()).unwrap_or_default()
}

/// Reads until the receive queue can move. Packets of the connection must not come here meanwhile.
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

/// The input that goes into a snapshot, and the rest.
pub(crate) fn split(stream: &Stream) -> (&[u8], &[u8]) {
    let input = stream.input();
    input.split_at(input.len().min(QUEUE_BYTES_MAX))
}

/// The rest as frames.
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
