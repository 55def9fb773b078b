//! Destinations that nobody has touched yet: the kernel maps them at once, not page by page.
//!
//! The first touch of a page is a fault; one call for many pages takes a third less. It pays for
//! large destinations, which an allocator has fresh from the kernel. What is known to be mapped is
//! remembered; as nobody tells when a program unmaps it, and the next allocation has often the same
//! address, one page is looked at. To be told (userfaultfd) would stop the program in its `munmap`
//! until this thread has heard of it.

use unlade_copy_kernels::Address;
use unlade_copy_kernels::populate::{self, Ranges, Validity};
use unlade_copy_scheduler::Ticket;
use unlade_copy_scheduler::plan::Order;
use unlade_copy_scheduler::task::Kind;

use crate::client::Client;

/// Shorter destinations come from memory that an allocator has in use already.
const BYTES_MIN: u64 = 128 << 10;
/// So much is mapped at a time: whoever waits for the first bytes waits for that, and what is never
/// copied is not mapped either.
const WINDOW_BYTES: u64 = 128 << 10;

/// What is known of a client's destinations.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    ranges: Ranges,
    /// What was looked at last.
    ticket: Ticket,
    from: u64,
    to: u64,
}

impl Client {
    /// Has the kernel map where an order writes to, if that is large and new.
    pub(crate) fn prepare(&mut self, order: &Order) {
        let Some((target, _)) = self.plan.target_of(order) else { return };
        if target.len < BYTES_MIN || order.kind != Kind::Memory {
            return;
        }
        let Some(from) = order.pieces.first().map(|piece| piece.dst) else { return };
        let Prepared { ranges, ticket, from: known_from, to } = &mut self.prepared;
        if *ticket == order.ticket && (*known_from..*to).contains(&from) {
            return;
        }
        let len = WINDOW_BYTES.min(target.end().saturating_sub(from));
        (*ticket, *known_from, *to) = (order.ticket, from, from + len);
        let Some(Address { address, is_lasting }) = self.space.address(from, len) else { return };
        let bytes = len as usize;
        let is_known = ranges.knows(address, bytes, true);
        let is_mapped = match is_known {
            true => is_lasting || populate::is_resident(address + bytes - 1),
            // In use before: to have it mapped again takes as long as to copy it, and nobody else
            // is served meanwhile.
            false => [address, address + bytes - 1].into_iter().all(populate::is_resident),
        };
        if is_mapped {
            self.counters.populate_hits.add(1);
            return;
        }
        if is_known {
            ranges.forget(address, bytes);
        }
        // What is wrong with it is found when it is copied.
        if let Ok(Validity::Mapped) = ranges.validate(address, bytes, true) {
            self.counters.populated_bytes.add(len);
        }
    }
}
