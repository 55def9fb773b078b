//! A task's position: in the order of a client's tasks, and in the ring.

/// Number of a task in the order in which tasks were acquired (Copier, SOSP 2025, §5.1.1).
///
/// Tickets count from 0 and are never reused. A slot is reused once per lap; the generation
/// identifies the lap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl Ticket {
    /// Returns the next ticket.
    #[inline]
    #[must_use]
    pub fn next(self) -> Ticket {
        Ticket(self.0.wrapping_add(1))
    }
}

/// Number of slots of a ring: a power of two, so that positions are masks and shifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    mask: u64,
    shift: u32,
}

impl Slots {
    /// Returns `count` slots, or `None` if that is not a power of two.
    pub(crate) fn new(count: u64) -> Option<Slots> {
        count.is_power_of_two().then(|| Slots { mask: count - 1, shift: count.trailing_zeros() })
    }

    #[inline]
    pub(crate) fn count(self) -> u64 {
        self.mask + 1
    }

    /// Returns the index of the slot that serves `ticket`.
    #[inline]
    pub(crate) fn index(self, ticket: Ticket) -> usize {
        (ticket.0 & self.mask) as usize
    }

    /// Returns the lap of `ticket`, from 1; fresh memory, which is all zero, belongs to no lap.
    /// The value wraps after 2^32 laps (two hours at ten million tasks a second and the smallest
    /// ring); a thread that sleeps through exactly this number of laps is not detected.
    #[inline]
    pub(crate) fn generation(self, ticket: Ticket) -> u32 {
        (ticket.0 >> self.shift).wrapping_add(1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::{Slots, Ticket};

    #[test]
    fn slots_are_a_power_of_two() {
        assert_eq!(Slots::new(0), None);
        assert_eq!(Slots::new(24), None);
        assert_eq!(Slots::new(16).unwrap().count(), 16);
    }

    #[test]
    fn a_slot_serves_one_ticket_a_generation() {
        let slots = Slots::new(16).unwrap();
        assert_eq!((slots.index(Ticket(0)), slots.generation(Ticket(0))), (0, 1));
        assert_eq!((slots.index(Ticket(15)), slots.generation(Ticket(15))), (15, 1));
        assert_eq!((slots.index(Ticket(16)), slots.generation(Ticket(16))), (0, 2));
        let last = Ticket(u64::MAX);
        assert_eq!((slots.index(last), slots.generation(last)), (15, 0));
        assert_eq!(last.next(), Ticket(0));
    }
}
