//! Access of the plan to a client's progress lines.

use unlade_copy_scheduler::Ticket;
use unlade_copy_scheduler::plan::Progress;
use unlade_shm::Queue;

/// Progress of one queue's tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanProgress<'q>(pub &'q Queue);

/// Converts a ticket of the plan to one of the ring.
pub(crate) fn ring_ticket(ticket: Ticket) -> unlade_shm::Ticket {
    unlade_shm::Ticket(ticket.0)
}

impl Progress for PlanProgress<'_> {
    fn done(&self, ticket: Ticket) -> u32 {
        self.0.progress(ring_ticket(ticket)).done()
    }

    fn claim(&mut self, ticket: Ticket, bits: u32) -> u32 {
        self.0.progress(ring_ticket(ticket)).claim(bits)
    }

    fn release(&mut self, ticket: Ticket, bits: u32) {
        self.0.progress(ring_ticket(ticket)).release(bits);
    }
}
