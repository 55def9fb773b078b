//! Messages to another process through memory that both have, copied by the daemon, with the
//! descriptor ahead of the message: the receiver wakes up and reads while the rest is still being
//! copied (Binder in Copier, SOSP 2025, §5.2).
//!
//! ```text
//!  sender                          daemon                         receiver
//!    outbox ── task ──► queue ──► copies ──────────────► inbox
//!    SENT slot, ticket ─────────────────────────────────────────► reads: waits for the segments of
//!                                     └► done bits in the queue ──► what it reads, copies out
//!    ◄───────────────────────────────────── RELEASED slot, reply
//! ```
//! The descriptor is the task's progress line: the sender shares its queue with the receiver, and
//! has it for this channel only. So **a receiver can spoil or stall this channel**, as it could by
//! not answering, and change no other byte than the channel's areas. **A sender is believed
//! nothing**: what a receiver reads it copies out, waits for no longer than it says, and checks.
//!
//! A receiver that sees no progress says so (STALLED): then the sender, who waits for the reply,
//! settles the copy, whether the daemon is slow or dead.

mod receiver;
mod sender;
pub mod wire;

pub use receiver::{Message, MessageReceiver};
pub use sender::{Draft, MessageSender, Reply};

use std::io;

use crate::error::CopyError;
use crate::remote::RemoteError;

/// Most messages that a channel may have under way.
pub const SLOTS_MAX: u32 = 32;

/// Why a channel is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The kernel's: the peer is gone, or never came.
    #[error("the channel's socket: {0}")]
    Socket(#[from] io::Error),
    /// The peer closed it.
    #[error("the other end has closed the channel")]
    Closed,
    /// The peer's.
    #[error("the other end breaks the channel's protocol: {0}; use the same build")]
    Wire(#[from] wire::WireError),
    /// The daemon's.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The peer's memory.
    #[error("the other end's memory: {0}")]
    Memory(#[from] unlade_shm::MemoryError),
    /// The peer's memory.
    #[error("the other end's queue: {0}")]
    Layout(#[from] unlade_shm::LayoutError),
    /// A message could not be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The caller's.
    #[error("{bytes} bytes are more than the {most} of a message; send several")]
    TooLong {
        /// What was written.
        bytes: usize,
        /// What fits.
        most: usize,
    },
    /// The caller's.
    #[error("a channel of {slots} messages of {bytes} bytes: 1 to 32, of 1 to 1 MiB")]
    Shape {
        /// Messages under way.
        slots: u32,
        /// Bytes of each.
        bytes: u32,
    },
    /// The sender's, or the daemon's.
    #[error("nothing of the message came for {seconds} s; the sender does not wait for its reply")]
    Stalled {
        /// How long was waited.
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
