//! Page preparation for large new destinations: the kernel maps them in one call instead of by
//! page faults.
//!
//! One call for many pages takes a third less time than the faults. This pays for large
//! destinations, which an allocator gets fresh from the kernel. Ranges that are known to be mapped
//! are remembered. There is no notification when the program unmaps a range, and the next
//! allocation often has the same address, so one page is checked. A notification (userfaultfd)
//! would block the program's `munmap` until this thread has received it.

use unlade_copy_kernels::populate::{self, Ranges, Validity};
use unlade_copy_kernels::{Address, Space};
use unlade_copy_scheduler::Ticket;
use unlade_copy_scheduler::plan::Order;
use unlade_copy_scheduler::span::Span;
use unlade_copy_scheduler::task::Kind;

use crate::counters::Counters;

/// Shorter destinations usually come from memory that an allocator already uses.
const BYTES_MIN: u64 = 128 << 10;
/// Maximum number of bytes mapped at a time. It bounds the delay of the first bytes, and avoids
/// mapping of bytes that are never copied.
const WINDOW_BYTES: u64 = 128 << 10;

/// Destinations that are known to be mapped.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    ranges: Ranges,
    /// Task of the last examined range.
    ticket: Ticket,
    from: u64,
    to: u64,
}

impl Prepared {
    /// Maps the destination `target` of an order in `space` if it is large and new.
    pub fn prepare(&mut self, order: &Order, target: Span, space: &dyn Space, counters: &Counters) {
        if target.len < BYTES_MIN || order.kind != Kind::Memory {
            return;
        }
        let Some(from) = order.chunks.first().map(|chunk| chunk.dst) else { return };
        let Prepared { ranges, ticket, from: known_from, to } = self;
        if *ticket == order.ticket && (*known_from..*to).contains(&from) {
            return;
        }
        let len = WINDOW_BYTES.min(target.end().saturating_sub(from));
        (*ticket, *known_from, *to) = (order.ticket, from, from + len);
        let Some(Address { address, is_lasting }) = space.address(from, len) else { return };
        let bytes = len as usize;
        let is_known = ranges.knows(address, bytes, true);
        let is_mapped = match is_known {
            true => is_lasting || populate::is_resident(address + bytes - 1),
            // If the memory was in use before, mapping it again takes as long as the copy, and
            // delays other clients.
            false => [address, address + bytes - 1].into_iter().all(populate::is_resident),
        };
        if is_mapped {
            counters.populate_hits.add(1);
            return;
        }
        if is_known {
            ranges.forget(address, bytes);
        }
        // Errors show when the bytes are copied.
        if let Ok(Validity::Mapped) = ranges.validate(address, bytes, true) {
            counters.populated_bytes.add(len);
        }
    }
}
