//! Sync ring: requests of clients to promote or abort tasks (Copier, SOSP 2025, §4.1, §4.4).
//!
//! Requests are optional: a client that finds the ring full copies the bytes itself, or waits
//! longer.

use crate::bounded::Full;
use crate::queue::Queue;
use crate::ticket::Ticket;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SyncKind {
    /// Copy these segments first, with their dependencies.
    Promote = 1,
    /// Drop the segments on which no other task depends.
    Abort = 2,
}

/// An entry of the sync ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SyncTask {
    /// The task. It may have retired, or never existed.
    pub ticket: Ticket,
    /// The task's segments.
    pub bits: u32,
    /// The request.
    pub kind: SyncKind,
}

/// Error in an entry: the client's fault. Count it, and continue with the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The kind does not exist.
    #[error("the client's sync task has the unknown kind {0}")]
    Kind(u32),
}

impl Queue {
    /// Client: pushes a request to the service. Then call
    /// [`Doorbell::ring`](crate::Doorbell::ring).
    ///
    /// # Errors
    /// The ring is full.
    pub fn push_sync(&self, task: SyncTask) -> Result<(), Full> {
        let second = u64::from(task.kind as u32) << 32 | u64::from(task.bits);
        self.sync_ring().push([task.ticket.0, second])
    }

    /// Service: returns true if there is an entry; a hint, two loads.
    #[inline]
    pub fn has_sync(&self) -> bool {
        self.sync_ring().has_pair()
    }

    /// Service: pops the oldest entry, if there is one. A client can push as fast as the service
    /// pops, so pop at most [`SYNC_ENTRIES`](crate::layout::SYNC_ENTRIES) in a turn.
    ///
    /// # Errors
    /// The entry is invalid.
    #[inline]
    pub fn pop_sync(&self) -> Option<Result<SyncTask, SyncError>> {
        let [ticket, second] = self.sync_ring().pop()?;
        let kind = match (second >> 32) as u32 {
            1 => SyncKind::Promote,
            2 => SyncKind::Abort,
            other => return Some(Err(SyncError::Kind(other))),
        };
        Some(Ok(SyncTask { ticket: Ticket(ticket), bits: second as u32, kind }))
    }
}
