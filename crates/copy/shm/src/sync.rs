//! The sync ring: what clients want first, or not at all (Copier, SOSP 2025, §4.1, §4.4).
//!
//! It is advice: a client that finds it full does the copy itself, or waits for its turn.

use crate::bounded::Full;
use crate::queue::Queue;
use crate::ticket::Ticket;

/// What a client wants of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SyncKind {
    /// These segments first, with what they depend on.
    Promote = 1,
    /// What nobody depends on is not to be done.
    Abort = 2,
}

/// One entry of the sync ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SyncTask {
    /// Which task. It may have retired, or never existed.
    pub ticket: Ticket,
    /// Which of its segments.
    pub bits: u32,
    /// What is wanted.
    pub kind: SyncKind,
}

/// What is wrong with an entry: the client's fault. Count it, and go on with the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// No such kind.
    #[error("the client's sync task is of kind {0}, which is none")]
    Kind(u32),
}

impl Queue {
    /// Client: asks the service for something. Then [`Doorbell::ring`](crate::Doorbell::ring).
    ///
    /// # Errors
    /// The ring is full.
    pub fn push_sync(&self, task: SyncTask) -> Result<(), Full> {
        let second = u64::from(task.kind as u32) << 32 | u64::from(task.bits);
        self.sync_ring().push([task.ticket.0, second])
    }

    /// Service: whether there is an entry; a hint, two loads.
    #[inline]
    pub fn has_sync(&self) -> bool {
        self.sync_ring().has_pair()
    }

    /// Service: the oldest entry, if there is one. A client can push as fast as this pops: take no
    /// more than [`SYNC_ENTRIES`](crate::layout::SYNC_ENTRIES) in a turn.
    ///
    /// # Errors
    /// The entry makes no sense.
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
