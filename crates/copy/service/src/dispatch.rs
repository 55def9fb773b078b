//! Orders that a device has a part of: started, copied beside it, confirmed (Copier, SOSP 2025,
//! §4.3).
//!
//! ```text
//!  order ─► gather others ─► divide ─► start the device's parts
//!                                      copy the processor's ── segment by segment ──► progress
//!                                      confirm the device's ── as each is reported ─► progress
//! ```
//! A thread has one such round in progress at a time. It polls the device only for a moment at the
//! end of a round, then continues with other copies and polls from time to time. The segments stay
//! claimed meanwhile, so no other thread touches them.
//!
//! **Device failure.** The processor copies the device's parts again, and so detects whether the
//! client's address was bad. **Device stall.** The device is stopped and not used any more. The
//! processor copies its parts only when it is certain that the device does not write any more. A
//! late write would be worse than a delay: when the segments are done, the client may put other
//! data there. If that never becomes certain, the segments are never done.

use std::time::{Duration, Instant};

use smallvec::SmallVec;
use unlade_copy_kernels::Hint;
use unlade_copy_kernels::device::{Failure, Progress};
use unlade_copy_scheduler::Micros;
use unlade_copy_scheduler::dispatch::Part;
use unlade_copy_scheduler::plan::{Chunk, Order, Step};

use crate::client::Client;
use crate::error::TaskFailure;
use crate::round::{Active, DeviceRound, is_divisible};
use crate::trace;
use crate::units::{Engine, Flight, Parts};
use crate::view::{PlanProgress, ring_ticket};

/// Number of bytes that are divided at a time.
const ROUND_BYTES: u64 = 256 << 10;
/// Maximum number of orders in a round; smaller than the plan's limit of outstanding orders.
const ROUND_ORDERS_MAX: usize = 16;
/// Maximum number of steps requested from the plan to fill a round.
const ROUND_STEPS_MAX: u32 = 64;
/// Number of polls of a device at the end of its round, before other work continues.
const CONFIRM_POLLS_MAX: u32 = 512;
/// Initial delay before the next poll; it doubles each time.
const RETRY_US_MIN: u64 = 5;
/// Maximum delay before the next poll.
const RETRY_US_MAX: u64 = 1_000;
/// Time without a report after which a device counts as stalled: a thousand times the duration of
/// a round.
const STALL_US: u64 = 50_000;
/// Minimum number of polls before a device counts as stalled; a preempted thread has not polled.
const STALL_LOOKS: u32 = 16;
/// Maximum time that a stopping service waits for a stalled device.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

impl Client {
    /// Returns the budget of an order in bytes: larger if orders are divided.
    pub(crate) fn order_bytes(&self, engine: &Engine, run_bytes: u64) -> u64 {
        match engine.is_ready() && self.reach.is_some() {
            true => run_bytes.max(ROUND_BYTES),
            false => run_bytes,
        }
    }

    /// Copies an order, together with others, on the thread's device and the processor.
    pub(crate) fn share(
        &mut self,
        first: Order,
        engine: &mut Engine,
        now: &impl Fn() -> Micros,
        run_bytes: u64,
    ) -> u64 {
        let (orders, mut copied_bytes) = self.gather(first, now());
        let division = {
            let chunks: SmallVec<[&[Chunk]; ROUND_ORDERS_MAX]> =
                orders.iter().map(|order| &order.chunks[..]).collect();
            engine.divide(&chunks)
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
        let mut round = DeviceRound { active, flights, stall_at, looks: 0, retry_at, retry_us };
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

    /// Prepares an outstanding order; its task is always in the plan.
    fn activate(&self, order: Order) -> Option<Active> {
        let (target, segments) = self.plan.target_of(&order)?;
        Some(Active::new(order, target, segments))
    }

    /// Collects other orders to be copied together with `first`. Outstanding orders never touch
    /// each other's bytes.
    fn gather(&mut self, first: Order, now: Micros) -> (SmallVec<[Order; ROUND_ORDERS_MAX]>, u64) {
        let len = |order: &Order| order.chunks.iter().map(|chunk| chunk.len).sum::<u64>();
        let (mut bytes, mut moved_bytes) = (len(&first), 0);
        self.prepare(&first);
        let mut orders = SmallVec::new();
        orders.push(first);
        for _ in 0..ROUND_STEPS_MAX {
            if bytes >= ROUND_BYTES || orders.len() >= ROUND_ORDERS_MAX {
                break;
            }
            match self.plan.next(&mut PlanProgress(&self.queue), now, ROUND_BYTES - bytes) {
                Step::Copy(order) if is_divisible(&order) => {
                    bytes += len(&order);
                    self.prepare(&order);
                    orders.push(order);
                }
                Step::Copy(order) => {
                    moved_bytes += self.execute(order, now);
                    // Only few of those may be outstanding.
                    break;
                }
                Step::Abort { ticket, bits, why } => self.end(ticket, bits, why),
                Step::Wait | Step::Later(_) | Step::Idle => break,
            }
        }
        (orders, moved_bytes)
    }

    /// Polls the device if a round is in progress and the poll is due.
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

    /// Waits for a device that works on this client's bytes. Nothing of the client is claimed
    /// afterwards, unless the device does not end and may still write.
    pub(crate) fn end_round(&mut self, engine: &mut Engine, run_bytes: u64) {
        let begin = Instant::now();
        let clock = || Micros(begin.elapsed().as_micros() as u64);
        if let Some(round) = &mut self.round {
            round.stall_at = Micros(STALL_US);
        }
        while self.round.is_some() {
            self.confirm(engine, &clock, run_bytes);
            if begin.elapsed() > END_WAIT_MAX {
                tracing::error!("a copy device does not end: waits for its bytes continue");
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Processes the reports of the device.
    fn poll(&mut self, round: &mut DeviceRound, engine: &mut Engine, run_bytes: u64) -> u64 {
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
                        self.counters.unit_bytes.add(part.chunk.len);
                        copied_bytes += self.mark_copied(round, part.order, part.chunk);
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

    /// Copies a part with the processor, and reports its segments as they complete.
    fn copy_part(&mut self, round: &mut DeviceRound, part: &Part, run_bytes: u64) -> u64 {
        let (whole, mut copied_bytes) = (part.chunk, 0);
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
            copied_bytes += self.mark_copied(round, part.order, Chunk { dst, src, len });
        }
        self.part_is_over(round, part.order);
        copied_bytes
    }

    /// Records copied bytes, and reports the segments that they complete.
    fn mark_copied(&mut self, round: &mut DeviceRound, order: usize, chunk: Chunk) -> u64 {
        let Some(active) = round.active.get_mut(order) else { return 0 };
        let whole = active.copied(chunk);
        if let Some(order) = active.order.as_ref() {
            self.counters.copied_bytes.add(chunk.len);
            if !order.pins.is_empty() {
                self.counters.absorbed_bytes.add(chunk.len);
            }
            if whole != 0 {
                self.queue.progress(ring_ticket(order.ticket)).finish(whole);
            }
        }
        chunk.len
    }

    fn part_is_over(&mut self, round: &mut DeviceRound, order: usize) {
        let Some(active) = round.active.get_mut(order) else { return };
        active.open = active.open.saturating_sub(1);
        if active.open > 0 {
            return;
        }
        let (marked, failure) = (active.marked, active.failure);
        match active.order.take() {
            Some(order) if failure.is_none() && marked == order.bits => {
                trace::done(&order, order.chunks.iter().map(|chunk| chunk.len).sum(), None);
                self.plan.finished(order, &mut PlanProgress(&self.queue));
            }
            Some(order) => {
                trace::done(&order, 0, failure);
                self.finish(order, failure);
            }
            None => {}
        }
    }
}
