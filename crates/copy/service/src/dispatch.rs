//! Orders that a device has a part of: started, copied beside it, confirmed (Copier, SOSP 2025,
//! §4.3).
//!
//! ```text
//!  order ─► gather others ─► divide ─► start the device's parts
//!                                      copy the processor's ── segment by segment ──► progress
//!                                      confirm the device's ── as each is reported ─► progress
//! ```
//! A thread has one such round under way at a time, and waits a moment only for the device at its
//! end: then it goes on with other copies, and looks from time to time. The segments stay claimed
//! meanwhile, so that nobody else touches them.
//!
//! **A device that fails** has its parts copied by the processor, which finds out whether the
//! client's address was wrong. **A device that stalls** is told to stop and used no more. What it
//! had is copied by the processor once it is certain that the device does not write there any
//! more, not before: two who write the same bytes at different times are worse than one who is
//! late, for when the segments are done the client may put something else there. Where it never
//! becomes certain, the segments are never done.

use std::time::{Duration, Instant};

use smallvec::SmallVec;
use unlade_copy_kernels::Hint;
use unlade_copy_kernels::device::{Failure, Progress};
use unlade_copy_scheduler::Micros;
use unlade_copy_scheduler::dispatch::Part;
use unlade_copy_scheduler::plan::{Order, Piece, Step};
use unlade_copy_scheduler::span::{Run, Segments, Span};
use unlade_copy_scheduler::task::Kind;

use crate::client::Client;
use crate::error::TaskFailure;
use crate::units::{Engine, Flight, Parts};
use crate::view::{View, ring_ticket};

/// Orders of so many bytes are divided at a time.
const ROUND_BYTES: u64 = 256 << 10;
/// Orders of a round; fewer than may be outstanding.
const ROUND_ORDERS_MAX: usize = 16;
/// What the plan is asked for in order to fill a round.
const ROUND_STEPS_MAX: u32 = 64;
/// Looks at a device at the end of its round, before something else is done.
const CONFIRM_POLLS_MAX: u32 = 512;
/// It is looked at again after so long; twice as long each time, ...
const RETRY_US_MIN: u64 = 5;
/// ... and at most so long.
const RETRY_US_MAX: u64 = 1_000;
/// A device is told to stop if it has not reported after so long: a thousand times what a round
/// takes, ...
const STALL_US: u64 = 50_000;
/// ... and so many looks: a thread that was off the processor has not looked.
const STALL_LOOKS: u32 = 16;
/// A service that ends waits so long for a device that was told to stop.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// An order in parts.
struct Active {
    /// None once it is over.
    order: Option<Order>,
    segments: Segments,
    /// Where the task's first byte goes.
    start: u64,
    /// Bytes of each segment that are not copied yet.
    left_bytes: [u64; 32],
    /// Segments that were told to be done.
    told: u32,
    /// Parts that are not over.
    open: usize,
    failure: Option<TaskFailure>,
}

/// Orders that were divided, until all their parts are over.
pub(crate) struct Round {
    active: SmallVec<[Active; 4]>,
    flights: Vec<Flight>,
    stall_at: Micros,
    /// Looks that found the device at work.
    looks: u32,
    retry_at: Micros,
    retry_us: u64,
}

impl Active {
    fn new(order: Order, target: Span, segments: Segments) -> Active {
        let mut left_bytes = [0; 32];
        for (at, left) in left_bytes.iter_mut().enumerate() {
            *left = segments.bytes(Run { first: at as u32, count: 1 }).len;
        }
        let start = target.start;
        let order = Some(order);
        Active { order, segments, start, left_bytes, told: 0, open: 0, failure: None }
    }

    /// Bytes are there: the segments that are whole by that.
    fn copied(&mut self, piece: Piece) -> u32 {
        let all = self.order.as_ref().map_or(0, |order| order.bits);
        let bytes = Span { start: piece.dst.saturating_sub(self.start), len: piece.len };
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
        self.told |= whole;
        whole
    }
}

impl Round {
    /// When it is worth another look.
    pub fn retry_at(&self) -> Micros {
        self.retry_at
    }
}

impl Client {
    /// How many bytes an order should have: more where they are to be divided.
    pub(crate) fn order_bytes(&self, engine: &Engine, run_bytes: u64) -> u64 {
        match engine.is_ready() && self.reach.is_some() {
            true => run_bytes.max(ROUND_BYTES),
            false => run_bytes,
        }
    }

    /// Copies an order, and others with it, with the thread's device beside the processor.
    pub(crate) fn share(
        &mut self,
        first: Order,
        engine: &mut Engine,
        now: &impl Fn() -> Micros,
        run_bytes: u64,
    ) -> u64 {
        let (orders, mut copied_bytes) = self.gather(first, now());
        let division = {
            let pieces: SmallVec<[&[Piece]; ROUND_ORDERS_MAX]> =
                orders.iter().map(|order| &order.pieces[..]).collect();
            engine.divide(&pieces)
        };
        let reach = self.reach.clone().filter(|_| !division.device.is_empty());
        let Some(reach) = reach else {
            return copied_bytes + orders.into_iter().map(|order| self.copy(order)).sum::<u64>();
        };
        let mut cpu: Parts = division.cpu.into_iter().collect();
        let flights = engine.start(&reach, &division.device, &mut cpu, &self.counters);
        let stall_at = Micros(now().0.saturating_add(STALL_US));
        let active = orders.into_iter().filter_map(|order| self.activate(order)).collect();
        let (retry_at, retry_us) = (Micros(0), RETRY_US_MIN);
        let mut round = Round { active, flights, stall_at, looks: 0, retry_at, retry_us };
        let parts = round.flights.iter().flat_map(|flight| &flight.parts).chain(&cpu);
        for part in parts {
            if let Some(active) = round.active.get_mut(part.order) {
                active.open += 1;
            }
        }
        for part in &cpu {
            copied_bytes += self.copy_part(&mut round, part, run_bytes);
        }
        self.round = Some(round);
        copied_bytes + self.confirm(engine, now, run_bytes)
    }

    /// Every task of an outstanding order is in the plan.
    fn activate(&self, order: Order) -> Option<Active> {
        let (target, segments) = self.plan.target_of(&order)?;
        Some(Active::new(order, target, segments))
    }

    /// Other orders that can be made together with `first`: outstanding orders never touch each
    /// other's bytes.
    fn gather(&mut self, first: Order, now: Micros) -> (SmallVec<[Order; ROUND_ORDERS_MAX]>, u64) {
        let len = |order: &Order| order.pieces.iter().map(|piece| piece.len).sum::<u64>();
        let (mut bytes, mut moved_bytes) = (len(&first), 0);
        self.prepare(&first);
        let mut orders = SmallVec::new();
        orders.push(first);
        for _ in 0..ROUND_STEPS_MAX {
            if bytes >= ROUND_BYTES || orders.len() >= ROUND_ORDERS_MAX {
                break;
            }
            match self.plan.next(&mut View(&self.queue), now, ROUND_BYTES - bytes) {
                Step::Copy(order) if is_divisible(&order) => {
                    bytes += len(&order);
                    self.prepare(&order);
                    orders.push(order);
                }
                Step::Copy(order) => {
                    moved_bytes += self.execute(order, now);
                    // Few of those may be outstanding.
                    break;
                }
                Step::Abort { ticket, bits, why } => self.end(ticket, bits, why),
                Step::Wait | Step::Later(_) | Step::Idle => break,
            }
        }
        (orders, moved_bytes)
    }

    /// Looks whether the device is through, if there is a round, and it is time.
    pub(crate) fn go_on_with_round(
        &mut self,
        engine: &mut Engine,
        now: &impl Fn() -> Micros,
        run_bytes: u64,
    ) -> u64 {
        match &self.round {
            Some(round) if round.retry_at <= now() => self.confirm(engine, now, run_bytes),
            _ => 0,
        }
    }

    fn confirm(&mut self, engine: &mut Engine, now: &impl Fn() -> Micros, run_bytes: u64) -> u64 {
        let Some(mut round) = self.round.take() else { return 0 };
        let mut copied_bytes = 0;
        for _ in 0..CONFIRM_POLLS_MAX {
            copied_bytes += self.poll(&mut round, engine, run_bytes);
            if round.flights.is_empty() {
                return copied_bytes;
            }
            std::hint::spin_loop();
        }
        let now = now();
        round.looks = round.looks.saturating_add(1);
        if now >= round.stall_at && round.looks >= STALL_LOOKS {
            self.counters.unit_stalls.add(u64::from(engine.stop()));
        }
        round.retry_at = Micros(now.0.saturating_add(round.retry_us));
        round.retry_us = (2 * round.retry_us).min(RETRY_US_MAX);
        self.round = Some(round);
        copied_bytes
    }

    /// Waits for a device that has some of this client's bytes. Afterwards nothing of it is
    /// claimed; but where the device does not end, and may write there still.
    pub(crate) fn end_round(&mut self, engine: &mut Engine, run_bytes: u64) {
        let begin = Instant::now();
        let clock = || Micros(begin.elapsed().as_micros() as u64);
        if let Some(round) = &mut self.round {
            round.stall_at = Micros(STALL_US);
        }
        while self.round.is_some() {
            self.confirm(engine, &clock, run_bytes);
            if begin.elapsed() > END_WAIT_MAX {
                tracing::error!("a copy device does not end: who waits for its bytes waits on");
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Takes what the device has reported.
    fn poll(&mut self, round: &mut Round, engine: &mut Engine, run_bytes: u64) -> u64 {
        let (mut copied_bytes, mut at) = (0, 0);
        while let Some(flight) = round.flights.get(at) {
            let why = match engine.poll(&flight.batch) {
                Progress::Pending => {
                    at += 1;
                    continue;
                }
                Progress::Done => None,
                Progress::Failed { why, .. } => Some(why),
            };
            let Flight { parts, .. } = round.flights.swap_remove(at);
            match why {
                None => {
                    engine.succeeded();
                    for part in &parts {
                        self.counters.unit_bytes.add(part.piece.len);
                        copied_bytes += self.tell(round, part.order, part.piece);
                        self.part_is_over(round, part.order);
                    }
                }
                Some(why) => {
                    self.counters.unit_failures.add(1);
                    tracing::debug!(%why, "a device has failed: the processor copies");
                    if matches!(why, Failure::Unit { .. }) {
                        engine.failed();
                    }
                    for part in &parts {
                        copied_bytes += self.copy_part(round, part, run_bytes);
                    }
                }
            }
        }
        copied_bytes
    }

    /// Copies a part with the processor, and tells its segments as they become whole.
    fn copy_part(&mut self, round: &mut Round, part: &Part, run_bytes: u64) -> u64 {
        let (whole, mut copied_bytes) = (part.piece, 0);
        while copied_bytes < whole.len {
            let Some(active) = round.active.get_mut(part.order) else { break };
            if active.failure.is_some() {
                break;
            }
            let (dst, src) = (whole.dst + copied_bytes, whole.src + copied_bytes);
            let len = run_bytes.max(1).min(whole.len - copied_bytes);
            let ticket = active.order.as_ref().map(|order| order.ticket);
            let hint = ticket.map_or(Hint::Reuse, |ticket| self.hint_of(ticket));
            if let Err(fault) = self.space.copy_part(dst, src, len, hint) {
                tracing::debug!(%fault, "a copy failed");
                active.failure = Some(TaskFailure::BadAddress);
                break;
            }
            copied_bytes += self.tell(round, part.order, Piece { dst, src, len });
        }
        self.part_is_over(round, part.order);
        copied_bytes
    }

    /// Bytes were copied: says so of segments that are whole.
    fn tell(&mut self, round: &mut Round, order: usize, piece: Piece) -> u64 {
        let Some(active) = round.active.get_mut(order) else { return 0 };
        let whole = active.copied(piece);
        if let Some(order) = active.order.as_ref() {
            self.counters.copied_bytes.add(piece.len);
            if !order.pins.is_empty() {
                self.counters.absorbed_bytes.add(piece.len);
            }
            if whole != 0 {
                self.queue.progress(ring_ticket(order.ticket)).finish(whole);
            }
        }
        piece.len
    }

    fn part_is_over(&mut self, round: &mut Round, order: usize) {
        let Some(active) = round.active.get_mut(order) else { return };
        active.open = active.open.saturating_sub(1);
        if active.open > 0 {
            return;
        }
        let (told, failure) = (active.told, active.failure);
        match active.order.take() {
            Some(order) if failure.is_none() && told == order.bits => {
                self.plan.finished(order, &mut View(&self.queue));
            }
            Some(order) => self.finish(order, failure),
            None => {}
        }
    }
}

/// Whether both sides of an order are memory.
pub(crate) fn is_divisible(order: &Order) -> bool {
    order.stream.is_none() && order.kind == Kind::Memory
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_copy_scheduler::Ticket;
    use unlade_copy_scheduler::plan::Plan;
    use unlade_copy_scheduler::task::Request;

    struct Nobody;

    impl unlade_copy_scheduler::plan::Progress for Nobody {
        fn done(&self, _: Ticket) -> u32 {
            0
        }

        fn claim(&mut self, _: Ticket, bits: u32) -> u32 {
            bits
        }

        fn release(&mut self, _: Ticket, _: u32) {}
    }

    #[test]
    fn segments_are_told_once_when_their_last_byte_is_there() {
        let mut plan = Plan::default();
        let (dst, src) = (Span { start: 5000, len: 3000 }, Span { start: 90_000, len: 3000 });
        let kind = Kind::Memory;
        let request =
            Request { dst, src, granule_shift: 10, lazy_until: None, kind, last_use: false };
        plan.submit(Ticket(0), &request, Micros(0)).unwrap();
        let Step::Copy(order) = plan.next(&mut Nobody, Micros(0), u64::MAX) else {
            panic!("nothing to copy")
        };
        let (target, segments) = plan.target_of(&order).unwrap();
        let mut active = Active::new(order, target, segments);
        let piece = |at: u64, len| Piece { dst: 5000 + at, src: 90_000 + at, len };
        assert_eq!(active.copied(piece(1000, 1500)), 0b010);
        assert_eq!(active.copied(piece(2500, 500)), 0b100);
        assert_eq!(active.copied(piece(0, 999)), 0);
        assert_eq!(active.copied(piece(999, 1)), 0b001);
        assert_eq!(active.told, 0b111);
    }
}
