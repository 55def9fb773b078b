//! One client of a service thread: receives its lines, copies, and reports completions.
//!
//! ```text
//!  lines, sync ring ─ intake ─► plan ─ next ─► execute ─► finished ─► collect ─► handlers, tail
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use unlade_copy_kernels::relay::Relay;
use unlade_copy_kernels::{Hint, Reach, Space};
use unlade_copy_scheduler::plan::{Order, Plan, Step};
use unlade_copy_scheduler::span::Span;
use unlade_copy_scheduler::task::{Ending, Kind, Refusal, Request};
use unlade_copy_scheduler::{Micros, Ticket};
use unlade_shm::{Flags, HandlerState, Queue, SyncKind};

use crate::counters::Counters;
use crate::error::TaskFailure;
use crate::handler_event::HandlerEvent;
use crate::held::HeldSends;
use crate::prepare::Prepared;
use crate::round::{DeviceRound, is_divisible};
use crate::trace;
use crate::transfer::{self, Attempt, SegmentUpdate, TRANSFERS_MAX, Transfer};
use crate::units::Engine;
use crate::view::{PlanProgress, ring_ticket};

/// Maximum number of lines accepted at a time.
const INTAKE_MAX: usize = 64;
/// Maximum number of sync requests (promotion, abort) accepted at a time.
const SYNC_MAX: usize = 64;
/// Maximum number of steps in a turn, with or without bytes. It bounds the turn of a client that
/// aborts or faults all the time.
const STEPS_MAX: u32 = 1024;

/// Resource that lives as long as the service serves a client in another process.
pub(crate) type KeepAlive = Arc<dyn std::any::Any + Send + Sync>;

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There may be more work at once.
    More,
    /// The remaining segments are claimed elsewhere or wait for a device.
    Wait,
    /// Only lazy copies are left; the earliest deadline.
    Later(Micros),
    /// No work is left.
    Idle,
}

/// An accepted line that is not retired yet.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// The source range that the task's handler may free, if it has a handler.
    handler: Option<Span>,
    /// For a forward: the address to which the number of forwarded bytes is reported if it fails.
    report: Option<u64>,
    /// Part of a copy that is too long for the caches.
    streams: bool,
    is_complete: bool,
}

/// Returns the stream that a forward sends to.
fn outlet(fd: u64) -> Option<u64> {
    transfer::stream(i32::try_from(fd).ok()?, true)
}

/// A copy that was interrupted in favour of other clients.
#[derive(Debug)]
pub(crate) struct InterruptedCopy {
    pub order: Order,
    /// Index of the next chunk, and the number of its bytes that are done.
    pub chunk: usize,
    pub chunk_bytes: u64,
    pub bytes: u64,
}

/// A client's queue, its plan, and its tasks that are not retired.
pub(crate) struct Client {
    pub(crate) queue: Arc<Queue>,
    pub(crate) space: Arc<dyn Space>,
    /// The same address space for devices, if they can access it.
    pub(crate) reach: Option<Arc<dyn Reach>>,
    pub(crate) plan: Plan,
    /// Destinations that are known to be mapped.
    pub(crate) prepared: Prepared,
    /// Orders that a device copies in part.
    pub(crate) round: Option<DeviceRound>,
    /// Lines from the tail to the cursor.
    lines: VecDeque<Line>,
    tail: u64,
    /// Refused tasks of which the client was copying some segments.
    refused: Vec<unlade_shm::Ticket>,
    /// Tasks that wait for sockets.
    transfers: Vec<Transfer>,
    /// Results of other threads that these have seen: see [`Space::results`].
    results: u64,
    /// A copy that was interrupted in favour of other clients.
    pub(crate) unfinished: Option<Box<InterruptedCopy>>,
    /// Unused relays from socket to socket.
    relays: Vec<Relay>,
    /// Pending aborts: the queue's head at the time of the request, and the task. At most
    /// [`SYNC_MAX`].
    aborts: Vec<(unlade_shm::Ticket, unlade_shm::Ticket)>,
    /// Complete tasks whose handlers wait for older tasks that touch their sources.
    unhandled: Vec<unlade_shm::Ticket>,
    /// Lines are waiting because the plan or the table of lines is full.
    is_full: bool,
    pub(crate) counters: Arc<Counters>,
    /// Notifies a client of this process about handlers.
    handler_event: Arc<HandlerEvent>,
    /// Sends of a client of this process whose bytes may move.
    held_sends: Arc<HeldSends>,
    /// For a client in another process, which detects the end of service by the drop of this
    /// field. It is the last field, so queue and space are dropped before.
    keep_alive: Option<KeepAlive>,
}

impl Client {
    /// Creates a client whose lines are read from the queue's tail on.
    pub fn new(
        queue: Arc<Queue>,
        space: Arc<dyn Space>,
        counters: Arc<Counters>,
        keep_alive: Option<KeepAlive>,
    ) -> Client {
        let tail = queue.tail().0;
        Client {
            queue,
            reach: Arc::clone(&space).reach(),
            space,
            plan: Plan::default(),
            prepared: Prepared::default(),
            round: None,
            lines: VecDeque::new(),
            tail,
            refused: Vec::new(),
            transfers: Vec::new(),
            results: 0,
            unfinished: None,
            relays: Vec::new(),
            aborts: Vec::new(),
            unhandled: Vec::new(),
            is_full: false,
            counters,
            handler_event: Arc::default(),
            held_sends: Arc::default(),
            keep_alive,
        }
    }

    /// Returns the notification for handlers.
    pub fn handler_event(&self) -> Arc<HandlerEvent> {
        Arc::clone(&self.handler_event)
    }

    /// Returns the table of sends whose bytes may move.
    pub fn held_sends(&self) -> Arc<HeldSends> {
        Arc::clone(&self.held_sends)
    }

    /// Maps the destination of an order if it is large and new.
    pub(crate) fn prepare(&mut self, order: &Order) {
        if let Some((target, _)) = self.plan.target_of(order) {
            self.prepared.prepare(order, target, &*self.space, &self.counters);
        }
    }

    fn is_remote(&self) -> bool {
        self.keep_alive.is_some()
    }

    /// Announces to a client in another process that its queue is not polled, so it must ring.
    pub fn announce_sleep(&self) {
        if self.keep_alive.is_some() {
            // The thread sleeps on another doorbell.
            let _ = self.queue.doorbell().announce_sleep();
        }
    }

    /// Announces to a client in another process that its queue is polled.
    pub fn announce_awake(&self) {
        if self.keep_alive.is_some() {
            self.queue.doorbell().announce_awake();
        }
    }

    /// Returns true if a device of the thread works on this client's bytes.
    pub fn is_at_device(&self) -> bool {
        self.round.is_some()
    }

    /// Returns the ticket of the next line to read.
    fn cursor(&self) -> unlade_shm::Ticket {
        unlade_shm::Ticket(self.tail.wrapping_add(self.lines.len() as u64))
    }

    /// Returns true if the queue has lines or requests that are not accepted yet. Two loads if it
    /// has none.
    pub fn has_news(&self) -> bool {
        let has_line = !self.is_full && self.queue.peek(self.cursor()).is_some();
        if self.space.results() != self.results && !self.transfers.is_empty() {
            return true;
        }
        // Requests that cannot be accepted because too many aborts are pending do not count.
        has_line || (self.aborts.len() < SYNC_MAX && self.queue.has_sync())
    }

    /// Returns true if no accepted task is left.
    pub fn is_idle(&self) -> bool {
        self.plan.is_empty() && self.lines.is_empty()
    }

    /// Accepts lines and requests of the client. Returns true if there were any.
    pub fn intake(&mut self, now: Micros) -> bool {
        let mut news = self.take_lines(now);
        for _ in 0..SYNC_MAX - self.aborts.len() {
            let Some(wish) = self.queue.pop_sync() else { break };
            news = true;
            match wish {
                Ok(wish) => match wish.kind {
                    SyncKind::Promote => {
                        self.counters.promotions.add(1);
                        self.plan.promote(Ticket(wish.ticket.0), wish.bits);
                    }
                    SyncKind::Abort => self.aborts.push((self.queue.head(), wish.ticket)),
                },
                Err(_) => self.counters.refused.add(1),
            }
        }
        self.abort(now);
        news
    }

    /// Accepts lines. Returns true if there was one.
    fn take_lines(&mut self, now: Micros) -> bool {
        let mut news = false;
        self.is_full = false;
        for _ in 0..INTAKE_MAX {
            let ticket = self.cursor();
            let Some(line) = self.queue.peek(ticket) else { break };
            // More lines than slots are possible only if the client manipulates its memory.
            let has_room = self.lines.len() < self.queue.slots() as usize;
            if !has_room || !self.accept(ticket, line, now) {
                self.is_full = true;
                break;
            }
            news = true;
        }
        news
    }

    /// Applies aborts, after all lines are accepted that were acquired before the request. Such
    /// lines may depend on the task, and a published line may be behind an unpublished one.
    fn abort(&mut self, now: Micros) {
        let cursor = self.cursor();
        while let Some(&(head, ticket)) = self.aborts.first() {
            if cursor < head {
                break;
            }
            self.aborts.remove(0);
            self.plan.abort(Ticket(ticket.0));
            // A transfer at a socket may wait forever, so it ends now; a forward reports its
            // position.
            let is_it = |transfer: &Transfer| transfer.order.ticket.0 == ticket.0;
            if let Some(place) = self.transfers.iter().position(is_it) {
                let mut transfer = self.transfers.swap_remove(place);
                match transfer.redirect_to_receive(TaskFailure::CANCELLED) {
                    true => _ = self.advance(transfer, now),
                    false => _ = self.give_up(transfer, now),
                }
            }
        }
    }

    /// Returns false if the plan is full; the line is accepted later.
    fn accept(
        &mut self,
        ticket: unlade_shm::Ticket,
        line: Result<unlade_shm::Task, unlade_shm::TaskError>,
        now: Micros,
    ) -> bool {
        let (submitted, handler, bits) = match line {
            Ok(task) => (self.submit(ticket, &task, now), self.handler(&task), task.bits()),
            Err(_) => (Err(()), None, u32::MAX),
        };
        let forward =
            line.ok().filter(|task| task.kind == unlade_shm::Kind::Forward && task.dst != 0);
        let report = forward.and_then(|task| self.space.place(task.dst_region, task.dst, 16));
        let is_taken = match submitted {
            Ok(is_taken) => is_taken,
            Err(()) => {
                self.refuse(ticket, bits);
                true
            }
        };
        if is_taken {
            self.counters.tasks.add(1);
            let streams = line.is_ok_and(|task| task.flags.contains(Flags::STREAMS));
            self.lines.push_back(Line { handler, report, streams, is_complete: false });
        }
        is_taken
    }

    /// Returns the range that the handler of a task may free: its source, if that is memory.
    fn handler(&self, task: &unlade_shm::Task) -> Option<Span> {
        if !task.flags.contains(Flags::HANDLER) {
            return None;
        }
        let len = u64::from(task.len_bytes);
        let source = self.space.place(task.src_region, task.src, len);
        let is_memory = matches!(task.kind, unlade_shm::Kind::Copy | unlade_shm::Kind::Send);
        Some(match source.filter(|_| is_memory) {
            Some(start) => Span { start, len },
            None => Span { start: 0, len: 0 },
        })
    }

    /// Returns `Ok(false)` if the plan is full.
    fn submit(
        &mut self,
        ticket: unlade_shm::Ticket,
        task: &unlade_shm::Task,
        now: Micros,
    ) -> Result<bool, ()> {
        let len = u64::from(task.len_bytes);
        let lazy = task.flags.contains(Flags::LAZY);
        let dst = || self.space.place(task.dst_region, task.dst, len);
        let src = || self.space.place(task.src_region, task.src, len);
        let (kind, dst, src) = match task.kind {
            unlade_shm::Kind::Copy => (Kind::Memory, dst(), src()),
            // A daemon uses the sockets only that a client has passed, one at a time.
            unlade_shm::Kind::Forward if self.is_remote() => return Err(()),
            unlade_shm::Kind::Receive | unlade_shm::Kind::Send
                if !self.space.has_socket(task.fd) =>
            {
                return Err(());
            }
            unlade_shm::Kind::Receive => (Kind::Source, dst(), transfer::stream(task.fd, false)),
            unlade_shm::Kind::Send => (Kind::Sink, transfer::stream(task.fd, true), src()),
            unlade_shm::Kind::Forward => {
                (Kind::Relay, outlet(task.extra), transfer::stream(task.fd, false))
            }
            unlade_shm::Kind::Barrier => return Err(()),
        };
        let request = Request {
            dst: Span { start: dst.ok_or(())?, len },
            src: Span { start: src.ok_or(())?, len },
            granule_shift: task.granule_shift,
            lazy_until: lazy.then(|| Micros(now.0.saturating_add(task.delay_us.into()))),
            kind,
            // A client in another process looks for received bytes where the receive puts them, if
            // this service ends.
            last_use: task.flags.contains(Flags::LAST_USE) && !self.is_remote(),
        };
        match self.plan.submit(Ticket(ticket.0), &request, now) {
            Ok(()) => Ok(true),
            Err(Refusal::Full) => Ok(false),
            Err(_) => Err(()),
        }
    }

    /// Ends an invalid task.
    fn refuse(&mut self, ticket: unlade_shm::Ticket, bits: u32) {
        self.counters.refused.add(1);
        let progress = self.queue.progress(ticket);
        let mine = progress.claim(bits);
        progress.fail(TaskFailure::Refused.code(), mine);
        self.refused.push(ticket);
    }

    /// Works for up to about `slice_bytes`, in runs of about `run_bytes`, and accepts news between
    /// the runs. The turn ends early if idle clients among `others` have new work. Returns the
    /// number of copied bytes, and the state of the remaining work.
    pub fn turn(
        &mut self,
        now: impl Fn() -> Micros,
        engine: &mut Engine,
        slice_bytes: u64,
        run_bytes: u64,
        others: impl Fn() -> bool,
    ) -> (u64, Turn) {
        let mut copied_bytes = self.go_on(now()) + self.go_on_with_round(engine, &now, run_bytes);
        copied_bytes += self.go_on_copying(&others);
        if self.unfinished.is_some() || copied_bytes > 0 && others() {
            self.collect();
            return (copied_bytes, Turn::More);
        }
        for _ in 0..STEPS_MAX {
            let step = match self.transfers.len() {
                TRANSFERS_MAX.. => Step::Wait,
                _ => {
                    let order_bytes = self.order_bytes(engine, run_bytes);
                    self.plan.next(&mut PlanProgress(&self.queue), now(), order_bytes)
                }
            };
            let turn = match step {
                Step::Copy(order) if self.is_shared(&order, engine) => {
                    copied_bytes += self.share(order, engine, &now, run_bytes);
                    Turn::More
                }
                Step::Copy(order) if order.stream.is_none() => {
                    copied_bytes += self.copy_unless(order, &others);
                    Turn::More
                }
                Step::Copy(order) => {
                    copied_bytes += self.execute(order, now());
                    Turn::More
                }
                Step::Abort { ticket, bits, why } => {
                    self.end(ticket, bits, why);
                    Turn::More
                }
                Step::Wait => Turn::Wait,
                Step::Later(until) => Turn::Later(until),
                Step::Idle => Turn::Idle,
            };
            let turn = self.with_retry(turn);
            self.collect();
            let is_over = copied_bytes >= slice_bytes || self.unfinished.is_some();
            if turn != Turn::More || is_over || copied_bytes > 0 && others() {
                return (copied_bytes, turn);
            }
            self.intake(now());
        }
        (copied_bytes, Turn::More)
    }

    /// Returns true if the order can be divided between processor and device.
    fn is_shared(&self, order: &Order, engine: &Engine) -> bool {
        engine.is_ready() && self.reach.is_some() && is_divisible(order)
    }

    /// Sets a deadline for the next poll of a socket or device.
    fn with_retry(&self, turn: Turn) -> Turn {
        let round = self.round.as_ref().map(DeviceRound::retry_at);
        let retry_at = self.transfers.iter().map(Transfer::retry_at).chain(round).min();
        match (turn, retry_at) {
            (Turn::More, _) | (_, None) => turn,
            (Turn::Later(until), Some(at)) => Turn::Later(until.min(at)),
            (Turn::Wait | Turn::Idle, Some(at)) => Turn::Later(at),
        }
    }

    pub(crate) fn execute(&mut self, order: Order, now: Micros) -> u64 {
        match order.stream {
            Some(stream) => {
                let held = match order.kind {
                    Kind::Sink => self.held_sends.get(ring_ticket(order.ticket)),
                    _ => None,
                };
                self.begin(Transfer::new(order, stream, held), now)
            }
            None => self.copy(order),
        }
    }

    fn begin(&mut self, mut transfer: Transfer, now: Micros) -> u64 {
        transfer.lend(&mut self.relays);
        let edge_bytes = transfer.copy_edges(&*self.space);
        self.counters.copied_bytes.add(edge_bytes);
        self.counters.absorbed_bytes.add(transfer.taken_bytes());
        edge_bytes + self.advance(transfer, now)
    }

    /// Continues the transfers that wait for sockets.
    fn go_on(&mut self, now: Micros) -> u64 {
        let results = self.space.results();
        let is_new = std::mem::replace(&mut self.results, results) != results;
        if !is_new && self.transfers.iter().all(|transfer| transfer.retry_at() > now) {
            return 0;
        }
        let waiting = std::mem::take(&mut self.transfers);
        waiting.into_iter().map(|transfer| self.advance(transfer, now)).sum()
    }

    /// Ends an aborted transfer, once no other thread moves bytes for it.
    fn give_up(&mut self, mut transfer: Transfer, now: Micros) -> u64 {
        match transfer.cancel(&*self.space, now) {
            None => {
                self.transfers.push(transfer);
                0
            }
            Some(moved_bytes) => {
                self.count_moved(&mut transfer, moved_bytes);
                match transfer.is_complete() {
                    true => self.plan.finished(transfer.order, &mut PlanProgress(&self.queue)),
                    false => self.end_short(transfer, TaskFailure::CANCELLED, now),
                }
                moved_bytes
            }
        }
    }

    fn count_moved(&mut self, transfer: &mut Transfer, moved_bytes: u64) {
        self.counters.copied_bytes.add(moved_bytes);
        self.counters.socket_bytes.add(moved_bytes);
        self.counters.zero_copy_bytes.add(transfer.take_spliced_bytes());
        self.mark_updates(transfer);
    }

    fn advance(&mut self, mut transfer: Transfer, now: Micros) -> u64 {
        if transfer.is_aborted() {
            return self.give_up(transfer, now);
        }
        let (moved_bytes, attempt) = transfer.attempt(&*self.space, now);
        self.count_moved(&mut transfer, moved_bytes);
        match attempt {
            Attempt::Blocked => self.transfers.push(transfer),
            Attempt::Done => {
                transfer.give_back(&mut self.relays);
                self.plan.finished(transfer.order, &mut PlanProgress(&self.queue));
            }
            Attempt::Failed(failure) => self.end_short(transfer, failure, now),
        }
        moved_bytes
    }

    /// Marks segments whose bytes have come or gone.
    fn mark_updates(&mut self, transfer: &mut Transfer) {
        for SegmentUpdate { ticket, bits, failure } in transfer.updates() {
            let progress = self.queue.progress(ring_ticket(ticket));
            match failure {
                None => progress.finish(bits),
                Some(failure) => {
                    self.counters.faults.add(1);
                    progress.fail(failure.code(), bits)
                }
            };
        }
    }

    /// Ends segments whose bytes a socket did not bring or take, and their dependents. Lines are
    /// accepted first, because dependents may be among them.
    fn end_short(&mut self, transfer: Transfer, failure: TaskFailure, now: Micros) {
        self.take_lines(now);
        let code = failure.code();
        self.report(&transfer);
        for (ticket, bits) in transfer.missing() {
            for lost in
                self.plan.lose(ticket, bits, code, &mut PlanProgress(&self.queue)).iter().rev()
            {
                self.counters.faults.add(1);
                self.queue.progress(ring_ticket(lost.ticket)).fail(code, lost.bits);
            }
        }
        for (ticket, bits) in transfer.missing().rev() {
            self.counters.faults.add(1);
            self.queue.progress(ring_ticket(ticket)).fail(code, bits);
        }
        self.plan.finished(transfer.order, &mut PlanProgress(&self.queue));
    }

    /// Reports how many bytes a forward has moved.
    fn report(&self, transfer: &Transfer) {
        let place = transfer.order.ticket.0.wrapping_sub(self.tail) as usize;
        let Some(report) = self.lines.get(place).and_then(|line| line.report) else { return };
        let forwarded = transfer.forwarded().map(u64::to_ne_bytes).concat();
        let from = forwarded.as_ptr().expose_provenance() as u64;
        // A bad address harms only the client.
        let _ = self.space.copy(report, from, forwarded.len() as u64);
    }

    /// Ends the transfers that wait for sockets: sent or received bytes cannot be taken back, so
    /// no other thread could continue them. Only a client in another process can, by the position
    /// of its streams, so it gets no error. Waits for devices.
    pub fn cancel(&mut self, engine: &mut Engine, run_bytes: u64) {
        self.end_round(engine, run_bytes);
        self.finish_copying();
        for transfer in std::mem::take(&mut self.transfers) {
            if !self.is_remote() {
                self.end_short(transfer, TaskFailure::CANCELLED, Micros(0));
            }
        }
        self.collect();
        // No thread reports handlers from now on; the client must look for itself.
        self.handler_event.notify();
    }

    /// Returns the cache hint for a task's copy.
    pub(crate) fn hint_of(&self, ticket: Ticket) -> Hint {
        let line = self.lines.get(ticket.0.wrapping_sub(self.tail) as usize);
        match line.is_some_and(|line| line.streams) {
            true => Hint::Stream,
            false => Hint::Reuse,
        }
    }

    pub(crate) fn copy(&mut self, order: Order) -> u64 {
        self.prepare(&order);
        let mut copied_bytes = 0;
        let mut failure = None;
        let hint = self.hint_of(order.ticket);
        for chunk in &order.chunks {
            if let Err(fault) = self.space.copy_part(chunk.dst, chunk.src, chunk.len, hint) {
                tracing::debug!(ticket = order.ticket.0, %fault, "a copy failed");
                failure = Some(TaskFailure::BadAddress);
                break;
            }
            copied_bytes += chunk.len;
        }
        self.count_copied(&order, copied_bytes);
        trace::done(&order, copied_bytes, failure);
        self.finish(order, failure);
        copied_bytes
    }

    pub(crate) fn count_copied(&self, order: &Order, bytes: u64) {
        self.counters.copied_bytes.add(bytes);
        if !order.pins.is_empty() {
            self.counters.absorbed_bytes.add(bytes);
        }
    }

    pub(crate) fn finish(&mut self, order: Order, failure: Option<TaskFailure>) {
        let progress = self.queue.progress(ring_ticket(order.ticket));
        match failure {
            None => {
                progress.finish(order.bits);
            }
            Some(failure) => {
                self.counters.faults.add(1);
                progress.fail(failure.code(), order.bits);
                self.plan.failed(order.ticket);
            }
        }
        self.plan.finished(order, &mut PlanProgress(&self.queue));
    }

    pub(crate) fn end(&mut self, ticket: Ticket, bits: u32, why: Ending) {
        let progress = self.queue.progress(ring_ticket(ticket));
        match why {
            Ending::Aborted => {
                self.counters.aborted_segments.add(bits.count_ones().into());
                progress.finish_aborted(bits);
            }
            Ending::Failed => {
                progress.fail(TaskFailure::BadAddress.code(), bits);
            }
            Ending::Lost(reason) => {
                progress.fail(reason, bits);
            }
        }
    }

    /// Reports completed tasks to the client, and frees their slots.
    pub fn collect(&mut self) {
        for ticket in self.plan.collect(&mut PlanProgress(&self.queue)) {
            self.complete(ring_ticket(ticket));
        }
        if !self.refused.is_empty() {
            self.collect_refused();
        }
        if !self.unhandled.is_empty() {
            self.hand_out();
        }
        self.retire();
    }

    fn collect_refused(&mut self) {
        let mut refused = std::mem::take(&mut self.refused);
        refused.retain(|&ticket| {
            let progress = self.queue.progress(ticket);
            let over = progress.done() & progress.claimed() == progress.claimed();
            if over {
                self.complete(ticket);
            }
            !over
        });
        self.refused = refused;
    }

    fn complete(&mut self, ticket: unlade_shm::Ticket) {
        self.counters.completed.add(1);
        let place = ticket.0.wrapping_sub(self.tail) as usize;
        let Some(line) = self.lines.get_mut(place) else { return };
        line.is_complete = true;
        if line.handler.is_some() {
            self.unhandled.push(ticket);
        }
    }

    /// Publishes the handlers that may run now.
    fn hand_out(&mut self) {
        let mut waiting = std::mem::take(&mut self.unhandled);
        let before = waiting.len();
        waiting.retain(|&ticket| {
            let place = ticket.0.wrapping_sub(self.tail) as usize;
            let source = self.lines.get(place).and_then(|line| line.handler);
            let waits =
                source.is_some_and(|source| self.plan.is_touched_before(Ticket(ticket.0), source));
            if !waits && self.queue.progress(ticket).handler_due() {
                // The ring is full only if the client manipulates it; the client then finds the
                // handler in its line.
                let _ = self.queue.push_handler(ticket);
            }
            waits
        });
        if waiting.len() < before {
            self.handler_event.notify();
        }
        self.unhandled = waiting;
    }

    fn retire(&mut self) {
        let before = self.tail;
        while let Some(line) = self.lines.front().filter(|line| line.is_complete) {
            let progress = self.queue.progress(unlade_shm::Ticket(self.tail));
            if line.handler.is_some() && progress.handler() != HandlerState::Taken {
                break;
            }
            self.lines.pop_front();
            self.tail = self.tail.wrapping_add(1);
        }
        if self.tail != before {
            self.queue.retire(unlade_shm::Ticket(self.tail));
        }
        if self.lines.len() * 2 > self.queue.slots() as usize {
            self.plan.hurry();
        }
    }
}
