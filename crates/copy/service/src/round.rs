//! Orders that are divided between a device and the processor, while they are copied.

use smallvec::SmallVec;
use unlade_copy_scheduler::Micros;
use unlade_copy_scheduler::plan::{Chunk, Order};
use unlade_copy_scheduler::span::{Run, Segments, Span};
use unlade_copy_scheduler::task::Kind;

use crate::error::TaskFailure;
use crate::units::Flight;

/// A divided order.
pub(crate) struct Active {
    /// `None` when the order is complete.
    pub order: Option<Order>,
    pub segments: Segments,
    /// Address of the task's first destination byte.
    pub start: u64,
    /// Number of bytes of each segment that are not copied yet.
    pub left_bytes: [u64; 32],
    /// Segments that are reported as done.
    pub marked: u32,
    /// Number of parts that are in progress.
    pub open: usize,
    pub failure: Option<TaskFailure>,
}

/// Divided orders, until all their parts are complete.
pub(crate) struct DeviceRound {
    pub active: SmallVec<[Active; 4]>,
    pub flights: Vec<Flight>,
    pub stall_at: Micros,
    /// Number of polls that found the device busy.
    pub looks: u32,
    pub retry_at: Micros,
    pub retry_us: u64,
}

impl Active {
    pub fn new(order: Order, target: Span, segments: Segments) -> Active {
        let mut left_bytes = [0; 32];
        for (at, left) in left_bytes.iter_mut().enumerate() {
            *left = segments.bytes(Run { first: at as u32, count: 1 }).len;
        }
        let start = target.start;
        let order = Some(order);
        Active { order, segments, start, left_bytes, marked: 0, open: 0, failure: None }
    }

    /// Records copied bytes, and returns the segments that they complete.
    pub fn copied(&mut self, chunk: Chunk) -> u32 {
        let all = self.order.as_ref().map_or(0, |order| order.bits);
        let bytes = Span { start: chunk.dst.saturating_sub(self.start), len: chunk.len };
        let mut open = self.segments.touching(bytes.start, bytes.len) & all;
        let mut whole = 0;
        while open != 0 {
            let first = open.trailing_zeros();
            open &= open - 1;
            let segment = self.segments.bytes(Run { first, count: 1 });
            let met = segment.intersection(bytes).map_or(0, |met| met.len);
            let left = &mut self.left_bytes[first as usize];
            *left = left.saturating_sub(met);
            if *left == 0 {
                whole |= 1 << first;
            }
        }
        self.marked |= whole;
        whole
    }
}

impl DeviceRound {
    /// Returns the time of the next poll.
    pub fn retry_at(&self) -> Micros {
        self.retry_at
    }
}

/// Returns true if both sides of an order are memory.
pub(crate) fn is_divisible(order: &Order) -> bool {
    order.stream.is_none() && order.kind == Kind::Memory
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_copy_scheduler::Ticket;
    use unlade_copy_scheduler::plan::{Plan, Step};
    use unlade_copy_scheduler::task::Request;

    struct NoClient;

    impl unlade_copy_scheduler::plan::Progress for NoClient {
        fn done(&self, _: Ticket) -> u32 {
            0
        }

        fn claim(&mut self, _: Ticket, bits: u32) -> u32 {
            bits
        }

        fn release(&mut self, _: Ticket, _: u32) {}
    }

    #[test]
    fn segments_are_reported_once_when_complete() {
        let mut plan = Plan::default();
        let (dst, src) = (Span { start: 5000, len: 3000 }, Span { start: 90_000, len: 3000 });
        let kind = Kind::Memory;
        let request =
            Request { dst, src, granule_shift: 10, lazy_until: None, kind, last_use: false };
        plan.submit(Ticket(0), &request, Micros(0)).unwrap();
        let Step::Copy(order) = plan.next(&mut NoClient, Micros(0), u64::MAX) else {
            panic!("nothing to copy")
        };
        let (target, segments) = plan.target_of(&order).unwrap();
        let mut active = Active::new(order, target, segments);
        let chunk = |at: u64, len| Chunk { dst: 5000 + at, src: 90_000 + at, len };
        assert_eq!(active.copied(chunk(1000, 1500)), 0b010);
        assert_eq!(active.copied(chunk(2500, 500)), 0b100);
        assert_eq!(active.copied(chunk(0, 999)), 0);
        assert_eq!(active.copied(chunk(999, 1)), 0b001);
        assert_eq!(active.marked, 0b111);
    }
}
