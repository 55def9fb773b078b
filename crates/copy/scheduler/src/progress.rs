//! Access to the progress of tasks.

use crate::Ticket;

/// State of tasks' segments in memory that is shared with the client.
///
/// The plan never passes bits that a task does not have, and ignores them in results.
pub trait Progress {
    /// Returns the segments that are done. The client may add segments at any time.
    fn done(&self, ticket: Ticket) -> u32;
    /// Claims segments, and returns those that are claimed by this call. The others are done or
    /// claimed by the client.
    fn claim(&mut self, ticket: Ticket, bits: u32) -> u32;
    /// Releases claimed segments undone.
    fn release(&mut self, ticket: Ticket, bits: u32);
}
