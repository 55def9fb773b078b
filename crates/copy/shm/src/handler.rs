//! Handler ring: tasks whose handlers are due in the client (Copier, SOSP 2025, §4.1).
//!
//! An entry is only a hint. [`Progress::take_handler`](crate::Progress::take_handler) decides
//! which thread runs a handler, so it runs once, independent of the number of threads that find
//! it. The handler is in the task's line: copy it before the take, because the slot may serve
//! another task afterwards. A ticket does not retire while its handler is due, so ring after the
//! take; otherwise a sleeping service leaves the queue full.
//!
//! ```
//! # use unlade_shm::{Flags, HandlerState, Memory, Queue, Task};
//! # let queue = Queue::create(Memory::heap(Queue::bytes_for(16)?)?, 16)?;
//! # let ticket = queue.try_acquire().unwrap();
//! # queue.publish(ticket, &Task { flags: Flags::HANDLER, handler: 7, ..Task::copy(1, 2, 3) });
//! // The service, when the task is complete:
//! if queue.progress(ticket).handler_due() {
//!     // The ring is never full, unless the client manipulates it.
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
    /// Service: pushes the ticket of a due handler. The ring has an entry for each slot, so there
    /// is room if each ticket is pushed only once, after
    /// [`handler_due`](crate::Progress::handler_due) returned `true`.
    /// room.
    ///
    /// # Errors
    /// The ring is full.
    pub fn push_handler(&self, ticket: Ticket) -> Result<(), Full> {
        self.handler_ring().push([ticket.0, 0])
    }

    /// Client: pops a ticket whose handler may be due. Any number of threads may call it. The
    /// ticket comes from the peer and is not trusted.
    #[inline]
    pub fn pop_handler(&self) -> Option<Ticket> {
        self.handler_ring().pop().map(|[ticket, _]| Ticket(ticket))
    }
}
