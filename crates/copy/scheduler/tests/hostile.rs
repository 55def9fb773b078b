//! A client that writes arbitrary shared state: bits that appear and disappear, unknown tickets,
//! arbitrary ranges. The client's bytes are undefined, but there is no panic, no endless search
//! and no unbounded memory.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU16;

use unlade_copy_scheduler::plan::{Absorb, Order, Plan, Progress, Step, TASKS_MAX, WORK_MAX};
use unlade_copy_scheduler::span::Span;
use unlade_copy_scheduler::task::{Kind, Request};
use unlade_copy_scheduler::{Micros, Ticket};
use unlade_testkit::cases;

/// A generator that also works behind a shared reference.
struct Random(RefCell<unlade_testkit::Random>);

impl Random {
    fn next(&self) -> u64 {
        self.0.borrow_mut().next()
    }
    fn below(&self, limit: u64) -> u64 {
        self.0.borrow_mut().below(limit)
    }
    /// Returns mostly few bits, or all, or none, or random ones.
    fn bits(&self) -> u32 {
        match self.below(4) {
            0 => u32::MAX,
            1 => self.next() as u32,
            2 => (self.next() & self.next() & self.next()) as u32,
            _ => 0,
        }
    }
}

/// Progress words with random values, and a counter of the queries.
struct RandomProgress<'a>(&'a Random, Cell<u64>);

impl Progress for RandomProgress<'_> {
    fn done(&self, _: Ticket) -> u32 {
        self.1.set(self.1.get() + 1);
        self.0.bits()
    }
    fn claim(&mut self, _: Ticket, bits: u32) -> u32 {
        self.1.set(self.1.get() + 1);
        // Sometimes also bits that were not requested.
        if self.0.below(3) == 0 { self.0.bits() } else { bits & self.0.bits() }
    }
    fn release(&mut self, _: Ticket, _: u32) {
        self.1.set(self.1.get() + 1);
    }
}

fn some_request(random: &Random) -> Request {
    let len = match random.below(4) {
        0 => random.next(),
        1 => random.below(3),
        _ => 1 + random.below(300),
    };
    let start = |_| match random.below(8) {
        0 => random.next(),
        1 => u64::MAX - random.below(400),
        _ => random.below(1000),
    };
    let other_len = if random.below(20) == 0 { random.next() } else { len };
    Request {
        dst: Span { start: start(0), len },
        src: Span { start: start(1), len: other_len },
        granule_shift: if random.below(9) == 0 { random.next() as u8 } else { 4 },
        lazy_until: (random.below(3) == 0).then(|| Micros(random.below(500))),
        last_use: random.below(3) == 0,
        kind: [Kind::Memory, Kind::Memory, Kind::Source, Kind::Sink, Kind::Relay]
            [random.below(5) as usize],
    }
}

fn one_client(random: unlade_testkit::Random) {
    let random = &Random(RefCell::new(random));
    let policy = [Absorb::Never, Absorb::Useful, Absorb::Always][random.below(3) as usize];
    let mut plan = Plan::new(policy);
    let mut progress = RandomProgress(random, Cell::new(0));
    let mut orders: Vec<Order> = Vec::new();
    let mut ticket = random.below(5);
    for now in 0..600 {
        let some = Ticket(ticket.wrapping_sub(random.below(40)));
        match random.below(10) {
            0..4 => {
                ticket = ticket.wrapping_add(random.below(4));
                // Most requests are refused; both results are valid.
                let _ = plan.submit(Ticket(ticket), &some_request(random), Micros(now));
            }
            4 => plan.promote(some, random.bits()),
            5 if random.below(4) == 0 => {
                drop(plan.lose(some, random.bits(), NonZeroU16::MIN, &mut progress))
            }
            5 => plan.abort(some),
            6 if random.below(4) == 0 => plan.failed(some),
            6 => plan.hurry(),
            7 if !orders.is_empty() => {
                let place = random.below(orders.len() as u64) as usize;
                plan.finished(orders.swap_remove(place), &mut progress);
            }
            8 => drop(plan.collect(&mut progress)),
            _ => {
                progress.1.set(0);
                if let Step::Copy(order) = plan.next(&mut progress, Micros(now), random.next()) {
                    orders.push(order);
                }
                assert!(
                    progress.1.get() <= 4 * u64::from(WORK_MAX),
                    "{} questions",
                    progress.1.get()
                );
            }
        }
        assert_eq!(plan.outstanding(), orders.len());
    }
    complete(plan, progress, orders);
}

/// Bits are seen done now and then, so even the tasks of such a client end.
fn complete(mut plan: Plan, mut progress: RandomProgress, orders: Vec<Order>) {
    for order in orders {
        plan.finished(order, &mut progress);
    }
    for _ in 0..10_000 {
        match plan.next(&mut progress, Micros(u64::MAX), u64::MAX) {
            Step::Copy(order) => plan.finished(order, &mut progress),
            Step::Idle if plan.is_empty() => return,
            _ => {}
        }
        plan.collect(&mut progress);
    }
    panic!("{} tasks are left", plan.len());
}

#[test]
fn lies_do_no_harm() {
    cases(300, |random| one_client(random.clone()));
}

/// Progress words where no segment is ever done or free.
struct Unclaimable(Cell<u64>);

impl Progress for Unclaimable {
    fn done(&self, _: Ticket) -> u32 {
        self.0.set(self.0.get() + 1);
        0
    }
    fn claim(&mut self, _: Ticket, _: u32) -> u32 {
        self.0.set(self.0.get() + 1);
        0
    }
    fn release(&mut self, _: Ticket, _: u32) {}
}

#[test]
fn a_search_without_success_is_bounded() {
    let mut plan = Plan::new(Absorb::Always);
    for ticket in 0..TASKS_MAX as u64 {
        // Each task reads and writes bytes that many others touch.
        let (dst, src) = (64 * (ticket % 7), 64 * (8 + ticket % 5));
        let request = Request {
            dst: Span { start: dst, len: 256 },
            src: Span { start: src + 4096 * (ticket % 2), len: 256 },
            granule_shift: 3,
            lazy_until: (ticket % 3 == 0).then_some(Micros(9)),
            last_use: false,
            kind: Kind::Memory,
        };
        let _ = plan.submit(Ticket(ticket), &request, Micros(0));
        plan.promote(Ticket(ticket), u32::MAX);
        if ticket % 11 == 0 {
            plan.abort(Ticket(ticket));
        }
    }
    let mut stuck = Unclaimable(Cell::new(0));
    for _ in 0..20 {
        stuck.0.set(0);
        assert_eq!(plan.next(&mut stuck, Micros(1), 1), Step::Wait);
        assert!(stuck.0.get() <= 4 * u64::from(WORK_MAX), "{} questions", stuck.0.get());
    }
}
