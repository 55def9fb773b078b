//! Messages to another process through shared memory, copied by the daemon. The descriptor of a
//! message is sent ahead of its bytes: the receiver wakes up and reads while the daemon still
//! copies the rest (Binder in Copier, SOSP 2025, §5.2).
//!
//! ```text
//!  sender                          daemon                         receiver
//!    outbox ── task ──► queue ──► copies ──────────────► inbox
//!    SENT slot, ticket ─────────────────────────────────────────► reads: waits for the segments of
//!                                     └► done bits in the queue ──► what it reads, copies out
//!    ◄───────────────────────────────────── RELEASED slot, reply
//! ```
//! The descriptor is the progress line of the task. The sender shares its queue with the receiver,
//! and uses this queue for this channel only. **A receiver can corrupt or stall this channel**, as
//! it could by not answering, but it can change no memory except the channel's areas. **A receiver
//! does not trust the sender**: it copies out the bytes before it uses them, bounds its waits, and
//! validates all values.
//!
//! A receiver that sees no progress sends STALLED. The sender, which waits for the reply, then
//! completes the copy itself, in case the daemon is slow or dead.

mod receiver;
mod sender;
pub mod wire;

pub use receiver::{Message, MessageReceiver};
pub use sender::{Draft, MessageSender, Reply};
pub use wire::SLOTS_MAX;

use std::io;

use crate::error::CopyError;
use crate::remote::RemoteError;

/// Error of a channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Error of the channel's socket: the peer is gone, or never came.
    #[error("the channel's socket: {0}")]
    Socket(#[from] io::Error),
    /// The peer closed the channel.
    #[error("the other end has closed the channel")]
    Closed,
    /// The peer violates the protocol.
    #[error("the other end violates the channel's protocol: {0}; use the same build on both ends")]
    Wire(#[from] wire::WireError),
    /// Error from the daemon.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The peer's shared memory cannot be mapped.
    #[error("the other end's memory: {0}")]
    Memory(#[from] unlade_shm::MemoryError),
    /// The peer's queue has a bad layout.
    #[error("the other end's queue: {0}")]
    Layout(#[from] unlade_shm::LayoutError),
    /// A message could not be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The caller wrote too much into a message.
    #[error("{bytes} bytes exceed the {most} of a message; send several messages")]
    TooLong {
        /// Bytes written.
        bytes: usize,
        /// Capacity of a message.
        most: usize,
    },
    /// The caller asked for unsupported channel dimensions.
    #[error("a channel of {slots} messages of {bytes} bytes: 1 to 32, of 1 to 1 MiB")]
    Shape {
        /// Messages in flight.
        slots: u32,
        /// Bytes of each message.
        bytes: u32,
    },
    /// The sender or the daemon makes no progress.
    #[error("the message made no progress for {seconds} s; the sender does not wait for its reply")]
    Stalled {
        /// Time waited, in seconds.
        seconds: u64,
    },
}

impl From<ChannelError> for io::Error {
    fn from(error: ChannelError) -> io::Error {
        let kind = match &error {
            ChannelError::Socket(source) => source.kind(),
            ChannelError::Closed => io::ErrorKind::BrokenPipe,
            ChannelError::Wire(_) => io::ErrorKind::InvalidData,
            ChannelError::Copy(copy) => io::Error::from(*copy).kind(),
            ChannelError::TooLong { .. } | ChannelError::Shape { .. } => {
                io::ErrorKind::InvalidInput
            }
            ChannelError::Stalled { .. } => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
