//! The handler ring: what is to be run in the client (Copier, SOSP 2025, §4.1).
//!
//! It is a hint where to look. Who runs a handler is decided by
//! [`Progress::take_handler`](crate::Progress::take_handler), so that it runs once whoever finds
//! it, and however often. What it is stands in the task's line: copy it before the take, since the
//! slot may serve another task after it. A ticket does not retire while its handler is due: so ring
//! after the take, or a service that sleeps leaves the queue full.
//!
//! ```
//! # use unlade_shm::{Flags, HandlerState, Memory, Queue, Task};
//! # let queue = Queue::create(Memory::heap(Queue::bytes_for(16)?)?, 16)?;
//! # let ticket = queue.try_acquire().unwrap();
//! # queue.publish(ticket, &Task { flags: Flags::HANDLER, handler: 7, ..Task::copy(1, 2, 3) });
//! // The service, when the task is complete:
//! if queue.progress(ticket).handler_due() {
//!     // A full ring cannot be, unless the client plays with it.
//!     let _hint = queue.push_handler(ticket);
//! }
//! // The client:
//! let mut to_run = Vec::new();
//! while let Some(ticket) = queue.pop_handler() {
//!     let Some(Ok(task)) = queue.peek(ticket) else { continue };
//!     if queue.progress(ticket).take_handler() {
//!         to_run.push(task.handler);
//!     }
//!     queue.doorbell().ring();
//! }
//! # assert_eq!(to_run, [7]);
//! # assert_eq!(queue.progress(ticket).handler(), HandlerState::Taken);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::bounded::Full;
use crate::queue::Queue;
use crate::ticket::Ticket;

impl Queue {
    /// Service: tells the client of a handler that is due. There is an entry for each slot: who
    /// pushes a ticket once, after [`handler_due`](crate::Progress::handler_due) said `true`, finds
    /// room.
    ///
    /// # Errors
    /// The ring is full.
    pub fn push_handler(&self, ticket: Ticket) -> Result<(), Full> {
        self.handler_ring().push([ticket.0, 0])
    }

    /// Client: a ticket whose handler may be due; any number of threads. What it says is a peer's
    /// word.
    #[inline]
    pub fn pop_handler(&self) -> Option<Ticket> {
        self.handler_ring().pop().map(|[ticket, _]| Ticket(ticket))
    }
}
