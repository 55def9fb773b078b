//! Flows of ended connections whose last packets still go to the former owner. They are kept until
//! they have been quiet for a while: the owner's kernel may have to retransmit its FIN, and the
//! client's answer must reach it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longest time that a flow is kept, as a multiple of the quiet time, whatever its client sends.
const ROUNDS_MAX: u32 = 30;

/// Flows of type `S`, ordered by the time of their next check.
#[derive(Debug)]
pub(crate) struct Lingering<S> {
    quiet: Duration,
    flows: VecDeque<Flow<S>>,
}

#[derive(Debug)]
struct Flow<S> {
    since: Instant,
    rounds: u32,
    packets: u64,
    slot: S,
}

impl<S> Lingering<S> {
    /// Creates a queue whose flows are removed after `quiet` without a packet.
    pub(crate) fn new(quiet: Duration) -> Lingering<S> {
        Lingering { quiet, flows: VecDeque::new() }
    }

    /// Changes the quiet time.
    pub(crate) fn set_quiet(&mut self, quiet: Duration) {
        self.quiet = quiet;
    }

    /// Returns true if there is no flow.
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Adds a flow that has redirected `packets` so far.
    pub(crate) fn push(&mut self, slot: S, packets: u64, now: Instant) {
        self.flows.push_back(Flow { since: now, rounds: 0, packets, slot });
    }

    /// Removes quiet flows; `packets` returns how many packets a flow has redirected so far.
    pub(crate) fn forget(&mut self, now: Instant, packets: impl Fn(&S) -> u64) {
        let is_due = |flow: &Flow<S>| now.saturating_duration_since(flow.since) >= self.quiet;
        while self.flows.front().is_some_and(is_due) {
            let Some(mut flow) = self.flows.pop_front() else { return };
            let packets = packets(&flow.slot);
            flow.rounds += 1;
            if packets != flow.packets && flow.rounds < ROUNDS_MAX {
                (flow.packets, flow.since) = (packets, now);
                self.flows.push_back(flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::{Rc, Weak};

    const QUIET: Duration = Duration::from_secs(1);

    fn flow(lingering: &mut Lingering<Rc<Cell<u64>>>, now: Instant) -> Weak<Cell<u64>> {
        let slot = Rc::new(Cell::new(7));
        let seen = Rc::downgrade(&slot);
        lingering.push(slot, 7, now);
        seen
    }

    #[test]
    fn the_quiet_are_forgotten_and_the_busy_are_kept() {
        let (mut lingering, begin) = (Lingering::new(QUIET), Instant::now());
        let (quiet, busy) = (flow(&mut lingering, begin), flow(&mut lingering, begin));
        busy.upgrade().unwrap().set(8);
        lingering.forget(begin + QUIET - Duration::from_millis(1), |slot| slot.get());
        assert!(quiet.upgrade().is_some());
        lingering.forget(begin + QUIET, |slot| slot.get());
        assert!(quiet.upgrade().is_none() && busy.upgrade().is_some());
        lingering.forget(begin + 2 * QUIET, |slot| slot.get());
        assert!(busy.upgrade().is_none());
    }

    #[test]
    fn no_client_keeps_its_flow_for_ever() {
        let (mut lingering, begin) = (Lingering::new(QUIET), Instant::now());
        let busy = flow(&mut lingering, begin);
        for round in 1..=ROUNDS_MAX {
            let slot = busy.upgrade().expect("it is busy");
            slot.set(slot.get() + 1);
            drop(slot);
            lingering.forget(begin + QUIET * round, |slot| slot.get());
        }
        assert!(busy.upgrade().is_none());
    }
}
