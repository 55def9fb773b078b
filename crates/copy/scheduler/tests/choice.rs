//! Choice, order and sources of copies, one case after the other.

use std::collections::BTreeMap;

use unlade_copy_scheduler::plan::{ABSORB_DEPTH_MAX, CHUNKS_MAX, TASKS_MAX};
use unlade_copy_scheduler::plan::{Absorb, Chunk, Order, Pin, Plan, Progress, Step};
use unlade_copy_scheduler::span::Span;
use unlade_copy_scheduler::task::{Ending, Kind, Refusal, Request};
use unlade_copy_scheduler::{Micros, Ticket};

/// Progress words for a single thread: done and claimed bits.
#[derive(Default)]
struct Words(BTreeMap<Ticket, (u32, u32)>);

impl Progress for Words {
    fn done(&self, ticket: Ticket) -> u32 {
        self.0.get(&ticket).map_or(0, |(done, _)| *done)
    }
    fn claim(&mut self, ticket: Ticket, bits: u32) -> u32 {
        let (done, claimed) = self.0.entry(ticket).or_default();
        let got = bits & !(*done | *claimed);
        *claimed |= got;
        got
    }
    fn release(&mut self, ticket: Ticket, bits: u32) {
        let (done, claimed) = self.0.entry(ticket).or_default();
        assert_eq!((bits & !*claimed, bits & *done), (0, 0), "{ticket:?} was not claimed");
        *claimed &= !bits;
    }
}

impl Words {
    /// Marks segments done, for the client or for an order.
    fn finish(&mut self, ticket: u64, bits: u32) {
        let (done, claimed) = self.0.entry(Ticket(ticket)).or_default();
        *done |= bits;
        *claimed |= bits;
    }
}

const NOW: Micros = Micros(1000);
const LATER: Option<Micros> = Some(Micros(2000));
const PLENTY: u64 = 1 << 30;
const PAGE: u64 = 4096;

fn request(dst: u64, src: u64, len: u64) -> Request {
    Request {
        dst: Span { start: dst, len },
        src: Span { start: src, len },
        granule_shift: 10,
        lazy_until: None,
        last_use: false,
        kind: Kind::Memory,
    }
}

fn lazy(dst: u64, src: u64, len: u64) -> Request {
    Request { lazy_until: LATER, ..request(dst, src, len) }
}

/// Creates a plan with these tasks; tickets start at 1.
fn plan_of(requests: &[Request]) -> (Plan, Words) {
    let mut plan = Plan::default();
    for (place, request) in requests.iter().enumerate() {
        plan.submit(Ticket(place as u64 + 1), request, NOW).unwrap();
    }
    (plan, Words::default())
}

fn order(plan: &mut Plan, words: &mut Words, budget_bytes: u64) -> Order {
    match plan.next(words, NOW, budget_bytes) {
        Step::Copy(order) => order,
        other => panic!("{other:?}"),
    }
}

/// Executes the order, and returns its ticket and segments.
fn finish(plan: &mut Plan, words: &mut Words, order: Order) -> (u64, u32) {
    let (ticket, bits) = (order.ticket.0, order.bits);
    words.finish(ticket, bits);
    plan.finished(order, words);
    (ticket, bits)
}

fn copy_next(plan: &mut Plan, words: &mut Words, budget_bytes: u64) -> (u64, u32) {
    let order = order(plan, words, budget_bytes);
    finish(plan, words, order)
}

#[test]
fn oldest_first_in_runs_within_the_budget() {
    let tasks = [request(0, 0x10000, PAGE), request(0x20000, 0x30000, PAGE)];
    let (mut plan, mut words) = plan_of(&tasks);
    assert_eq!(copy_next(&mut plan, &mut words, 3000), (1, 0b0011));
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (1, 0b1100));
    assert_eq!(copy_next(&mut plan, &mut words, 1), (2, 0b0001));
    assert_eq!(plan.collect(&mut words).to_vec(), [Ticket(1)]);
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (2, 0b1110));
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Idle);
    assert_eq!(plan.collect(&mut words).to_vec(), [Ticket(2)]);
    assert!(plan.is_empty());
}

#[test]
fn promoted_segments_go_first_with_their_dependencies() {
    let tasks = [
        request(0x1000, 0x90000, PAGE),
        request(0x2000, 0x10000, PAGE),
        request(0x8000, 0x2000, PAGE),
    ];
    let (mut plan, mut words) = plan_of(&tasks);
    plan = {
        drop(plan);
        Plan::new(Absorb::Never)
    };
    for (place, request) in tasks.iter().enumerate() {
        plan.submit(Ticket(place as u64 + 1), request, NOW).unwrap();
    }
    plan.promote(Ticket(3), 0b0100);
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (2, 0b0100));
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (3, 0b0100));
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (1, 0b1111));
}

#[test]
fn a_chain_is_short_circuited_segment_by_segment() {
    // A to B is lazy, and the client has copied two segments of it. B to C follows.
    let tasks = [lazy(0x2000, 0x1000, PAGE), request(0x8000, 0x2000, PAGE)];
    let (mut plan, mut words) = plan_of(&tasks);
    words.finish(1, 0b0110);
    let order = order(&mut plan, &mut words, PLENTY);
    assert_eq!((order.ticket, order.bits), (Ticket(2), 0b1111));
    let chunks = [
        Chunk { dst: 0x8000, src: 0x1000, len: 1024 },
        Chunk { dst: 0x8400, src: 0x2400, len: 2048 },
        Chunk { dst: 0x8c00, src: 0x1c00, len: 1024 },
    ];
    assert_eq!(order.chunks.to_vec(), chunks);
    assert_eq!(order.pins.to_vec(), [Pin { ticket: Ticket(1), bits: 0b1001 }]);
    // The client cannot claim an absorbed segment.
    assert_eq!(words.claim(Ticket(1), 0b1111), 0);
    finish(&mut plan, &mut words, order);
    assert_eq!(words.claim(Ticket(1), 0b1111), 0b1001);
    words.release(Ticket(1), 0b1001);
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Later(Micros(2000)));
    plan.abort(Ticket(1));
    let (ticket, why) = (Ticket(1), Ending::Aborted);
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Abort { ticket, bits: 0b1001, why });
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Idle);
    assert_eq!(plan.collect(&mut words).len(), 2);
}

#[test]
fn a_chain_of_three_is_read_at_its_beginning_and_pinned_twice() {
    let tasks =
        [lazy(0x2000, 0x1000, PAGE), lazy(0x3000, 0x2000, PAGE), request(0x8000, 0x3200, 1024)];
    let (mut plan, mut words) = plan_of(&tasks);
    let order = order(&mut plan, &mut words, PLENTY);
    assert_eq!(order.chunks.to_vec(), [Chunk { dst: 0x8000, src: 0x1200, len: 1024 }]);
    let pins = [(2, 0b0011), (1, 0b0011)].map(|(n, bits)| Pin { ticket: Ticket(n), bits });
    assert_eq!(order.pins.to_vec(), pins);
    // Another reader may share the pins.
    plan.submit(Ticket(4), &request(0x9000, 0x3000, 1024), NOW).unwrap();
    let Step::Copy(other) = plan.next(&mut words, NOW, PLENTY) else { panic!("no order") };
    assert_eq!(other.chunks.to_vec(), [Chunk { dst: 0x9000, src: 0x1000, len: 1024 }]);
    finish(&mut plan, &mut words, order);
    assert_eq!(words.claim(Ticket(1), 0b0011), 0b0010);
    words.release(Ticket(1), 0b0010);
    finish(&mut plan, &mut words, other);
    assert_eq!(words.claim(Ticket(1), 0b0011), 0b0011);
}

#[test]
fn an_ordinary_older_copy_goes_first_unless_the_younger_is_promoted() {
    let tasks = [request(0x2000, 0x1000, PAGE), request(0x8000, 0x2000, PAGE)];
    let (mut plan, mut words) = plan_of(&tasks);
    plan.promote(Ticket(2), 0b1000);
    let order = order(&mut plan, &mut words, PLENTY);
    assert_eq!(order.chunks.to_vec(), [Chunk { dst: 0x8c00, src: 0x1c00, len: 1024 }]);
    finish(&mut plan, &mut words, order);
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (1, 0b1111));
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (2, 0b0111));
}

#[test]
fn segments_that_the_client_copies_are_not_absorbed() {
    let tasks = [lazy(0x2000, 0x1000, PAGE), request(0x8000, 0x2000, PAGE)];
    let (mut plan, mut words) = plan_of(&tasks);
    assert_eq!(words.claim(Ticket(1), 0b0001), 0b0001);
    // The first segment has to wait; the others do not.
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (2, 0b1110));
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Wait);
    words.finish(1, 0b0001);
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (2, 0b0001));
}

#[test]
fn lazy_copies_wait_for_their_time_or_a_hurry() {
    let tasks = [lazy(0x2000, 0x1000, PAGE), lazy(0x8000, 0x7000, PAGE)];
    let (mut plan, mut words) = plan_of(&tasks);
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Later(Micros(2000)));
    let Step::Copy(order) = plan.next(&mut words, Micros(2000), PLENTY) else { panic!("not due") };
    assert_eq!(finish(&mut plan, &mut words, order), (1, 0b1111));
    plan.hurry();
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (2, 0b1111));
    let old = Request { lazy_until: Some(NOW), ..request(0x100, 0x1000, 1) };
    plan.submit(Ticket(9), &old, NOW).unwrap();
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (9, 1));
}

#[test]
fn ordinary_copies_go_before_lazy_ones_whose_time_is_up() {
    let tasks = [lazy(0x2000, 0x1000, PAGE), request(0x8000, 0x7000, PAGE)];
    let (mut plan, mut words) = plan_of(&tasks);
    let Step::Copy(order) = plan.next(&mut words, Micros(5000), PLENTY) else { panic!("no order") };
    assert_eq!(finish(&mut plan, &mut words, order), (2, 0b1111));
    let Step::Copy(order) = plan.next(&mut words, Micros(5000), PLENTY) else { panic!("no order") };
    assert_eq!(finish(&mut plan, &mut words, order), (1, 0b1111));
}

#[test]
fn an_abort_waits_for_dependents_and_for_claimed_segments() {
    let tasks = [lazy(0x2000, 0x1000, PAGE), lazy(0x8000, 0x2000, 2048)];
    let (mut plan, mut words) = plan_of(&tasks);
    assert_eq!(words.claim(Ticket(1), 0b1000), 0b1000);
    plan.abort(Ticket(1));
    let (ticket, why) = (Ticket(1), Ending::Aborted);
    // Segments without dependents end at once; the others are absorbed first.
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Abort { ticket, bits: 0b0100, why });
    let order = order(&mut plan, &mut words, PLENTY);
    assert_eq!(order.chunks.to_vec(), [Chunk { dst: 0x8000, src: 0x1000, len: 2048 }]);
    finish(&mut plan, &mut words, order);
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Abort { ticket, bits: 0b0011, why });
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Wait);
    assert!(!plan.collect(&mut words).contains(&Ticket(1)));
    words.finish(1, 0b1000);
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Idle);
    assert!(plan.collect(&mut words).contains(&Ticket(1)));
}

#[test]
fn a_failed_copy_ends_and_delays_no_other() {
    let tasks = [request(0x2000, 0x1000, PAGE), request(0x8000, 0x2000, PAGE)];
    let (mut plan, mut words) = plan_of(&tasks);
    let first = order(&mut plan, &mut words, 1024);
    plan.failed(Ticket(1));
    finish(&mut plan, &mut words, first);
    let (ticket, why) = (Ticket(1), Ending::Failed);
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Abort { ticket, bits: 0b1110, why });
    let order = order(&mut plan, &mut words, PLENTY);
    assert_eq!(order.chunks.to_vec(), [Chunk { dst: 0x8000, src: 0x2000, len: PAGE }]);
    finish(&mut plan, &mut words, order);
    assert_eq!(plan.collect(&mut words).len(), 2);
}

#[test]
fn an_order_that_is_given_back_is_given_out_again() {
    let (mut plan, mut words) = plan_of(&[request(0x2000, 0x1000, PAGE)]);
    let first = order(&mut plan, &mut words, PLENTY);
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Wait);
    words.release(Ticket(1), first.bits);
    plan.finished(first, &mut words);
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (1, 0b1111));
}

#[test]
fn tasks_at_a_stream_go_whole_and_in_order() {
    let receive = |dst| Request { kind: Kind::Source, ..request(dst, 5, PAGE) };
    let send = |src| Request { kind: Kind::Sink, ..request(6, src, PAGE) };
    let tasks = [receive(0x1000), receive(0x4000), lazy(0x9000, 0x20000, PAGE), send(0x9000)];
    let (mut plan, mut words) = plan_of(&tasks);
    plan.promote(Ticket(2), 1);
    let first = order(&mut plan, &mut words, 1);
    assert_eq!((first.ticket, first.bits, first.stream), (Ticket(1), 0b1111, Some(5)));
    assert_eq!(first.chunks.to_vec(), [Chunk { dst: 0x1000, src: 0, len: PAGE }]);
    // The other stream is independent, and its send absorbs the lazy copy.
    let sent = order(&mut plan, &mut words, 1);
    assert_eq!((sent.ticket, sent.kind, sent.stream), (Ticket(4), Kind::Sink, Some(6)));
    assert_eq!(sent.chunks.to_vec(), [Chunk { dst: 0, src: 0x20000, len: PAGE }]);
    assert_eq!(plan.next(&mut words, NOW, 1), Step::Wait);
    finish(&mut plan, &mut words, first);
    assert_eq!(copy_next(&mut plan, &mut words, 1), (2, 0b1111));
}

#[test]
fn limits_and_strays_are_orderly() {
    let mut plan = Plan::default();
    let mut words = Words::default();
    for ticket in 0..TASKS_MAX as u64 {
        plan.submit(Ticket(ticket), &request(0x2000, 0x1000, PAGE), NOW).unwrap();
    }
    let one_more = request(0x2000, 0x1000, PAGE);
    assert_eq!(plan.submit(Ticket(1 << 40), &one_more, NOW), Err(Refusal::Full));
    let again = plan.submit(Ticket(7), &one_more, NOW);
    assert_eq!(again, Err(Refusal::OutOfOrder(Ticket(7))));
    plan.promote(Ticket(1 << 50), 1);
    plan.promote(Ticket(1), 1 << 31);
    plan.abort(Ticket(1 << 50));
    plan.failed(Ticket(1 << 50));
    assert_eq!(plan.strays(), 4);
    // All tasks touch the same bytes, so they are copied in order, to the last one.
    plan.promote(Ticket(TASKS_MAX as u64 - 1), 1);
    let mut collected = 0;
    for ticket in 0..TASKS_MAX as u64 {
        if ticket == 100 {
            // Enough cases; the client copies the rest itself.
            (100..TASKS_MAX as u64).for_each(|ticket| words.finish(ticket, 0b1111));
        }
        let mut bits = words.done(Ticket(ticket));
        while bits != 0b1111 {
            let (of, some) = copy_next(&mut plan, &mut words, PLENTY);
            assert!(of == ticket || some == 0b0001, "{of} {some:b} at {ticket}");
            bits = words.done(Ticket(ticket));
        }
        collected += plan.collect(&mut words).len();
    }
    assert_eq!(plan.next(&mut words, NOW, PLENTY), Step::Idle);
    for _ in 0..TASKS_MAX {
        collected += plan.collect(&mut words).len();
    }
    assert_eq!((collected, plan.len()), (TASKS_MAX, 0));
}

#[test]
fn deep_chains_are_read_past_as_far_as_the_limit_goes() {
    let place = |n: u64| 0x10000 * (n + 1);
    let depth = u64::from(ABSORB_DEPTH_MAX) + 3;
    let tasks: Vec<_> = (0..depth).map(|n| lazy(place(n + 1), place(n), PAGE)).collect();
    let (mut plan, mut words) = plan_of(&tasks);
    plan.promote(Ticket(depth), 0b0001);
    // Nine levels above the last task is the second task's destination; the second task absorbs
    // the first.
    assert_eq!(copy_next(&mut plan, &mut words, PLENTY), (2, 0b0001));
    let order = order(&mut plan, &mut words, PLENTY);
    assert_eq!(order.ticket, Ticket(depth));
    assert_eq!(order.chunks.to_vec(), [Chunk { dst: place(depth), src: place(2), len: 1024 }]);
    assert_eq!(order.pins.len(), ABSORB_DEPTH_MAX as usize);
    finish(&mut plan, &mut words, order);
}

#[test]
fn a_source_in_too_many_places_is_gathered_first() {
    let count = CHUNKS_MAX as u64 + 5;
    let scattered = |n: u64| Request { granule_shift: 3, ..lazy(0x8000 + 8 * n, 64 * n, 8) };
    let mut tasks: Vec<_> = (0..count).map(scattered).collect();
    tasks.push(Request { granule_shift: 12, ..request(0x20000, 0x8000, 8 * count) });
    let (mut plan, mut words) = plan_of(&tasks);
    let (mut copied, mut chunks) = (0, 0);
    while chunks == 0 {
        let order = order(&mut plan, &mut words, PLENTY);
        if order.ticket == Ticket(count + 1) {
            chunks = order.chunks.len();
            assert_eq!(order.chunks.iter().map(|chunk| chunk.len).sum::<u64>(), 8 * count);
        }
        copied += 1;
        finish(&mut plan, &mut words, order);
    }
    assert!(chunks <= CHUNKS_MAX && copied < 20, "{chunks} chunks after {copied} orders");
}
