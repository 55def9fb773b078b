//! One client as a service thread sees it: lines in, copies, completions out.
//!
//! ```text
//!  lines, sync ring ─ intake ─► plan ─ next ─► execute ─► finished ─► collect ─► handlers, tail
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use copyplan::plan::{Order, Plan, Step};
use copyplan::span::Span;
use copyplan::task::{Ending, Kind, Refusal, Request};
use copyplan::{Micros, Ticket};
use copyunit::Space;
use ring::{Flags, HandlerState, Queue, SyncKind};

use crate::counters::Counters;
use crate::error::TaskFailure;
use crate::transfer::{self, Attempt, TRANSFERS_MAX, Transfer};
use crate::view::{View, ring_ticket};

/// Lines taken in at a time.
const INTAKE_MAX: usize = 64;
/// Requests for promotion and abort taken at a time.
const SYNC_MAX: usize = 64;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There may be more to do at once.
    More,
    /// What is left is in other hands.
    Wait,
    /// Only lazy copies are left; the earliest until this time.
    Later(Micros),
    /// Nothing is left.
    Idle,
}

/// A line between taken in and retired.
#[derive(Clone, Copy, Debug)]
struct Line {
    has_handler: bool,
    is_complete: bool,
}

/// A client's queue, its plan, and what is not retired.
pub(crate) struct Client {
    queue: Arc<Queue>,
    space: Arc<dyn Space>,
    plan: Plan,
    /// Lines from the tail to the cursor.
    lines: VecDeque<Line>,
    tail: u64,
    /// Tasks that were refused while the client was copying some of their segments.
    refused: Vec<ring::Ticket>,
    /// Tasks at sockets that have to be waited for.
    transfers: Vec<Transfer>,
    counters: Arc<Counters>,
}

impl Client {
    /// A client whose lines are read from where its queue was retired.
    pub fn new(queue: Arc<Queue>, space: Arc<dyn Space>, counters: Arc<Counters>) -> Client {
        let tail = queue.tail().0;
        Client {
            queue,
            space,
            plan: Plan::default(),
            lines: VecDeque::new(),
            tail,
            refused: Vec::new(),
            transfers: Vec::new(),
            counters,
        }
    }

    /// The next line to be read.
    fn cursor(&self) -> ring::Ticket {
        ring::Ticket(self.tail.wrapping_add(self.lines.len() as u64))
    }

    /// Whether the queue has what was not taken in yet. Two loads where it has not.
    pub fn has_news(&self) -> bool {
        self.queue.peek(self.cursor()).is_some() || self.queue.has_sync()
    }

    /// Whether anything was taken in and is not over.
    pub fn is_idle(&self) -> bool {
        self.plan.is_empty() && self.lines.is_empty()
    }

    /// Takes in what the client has written. True where there was something.
    pub fn intake(&mut self, now: Micros) -> bool {
        let mut news = false;
        for _ in 0..INTAKE_MAX {
            let ticket = self.cursor();
            let Some(line) = self.queue.peek(ticket) else { break };
            if !self.accept(ticket, line, now) {
                break;
            }
            news = true;
        }
        for _ in 0..SYNC_MAX {
            let Some(wish) = self.queue.pop_sync() else { break };
            news = true;
            match wish {
                Ok(wish) => match wish.kind {
                    SyncKind::Promote => {
                        self.counters.promotions.add(1);
                        self.plan.promote(Ticket(wish.ticket.0), wish.bits);
                    }
                    SyncKind::Abort => self.plan.abort(Ticket(wish.ticket.0)),
                },
                Err(_) => self.counters.refused.add(1),
            }
        }
        news
    }

    /// False where the plan is full: the line is taken in later.
    fn accept(
        &mut self,
        ticket: ring::Ticket,
        line: Result<ring::Task, ring::TaskError>,
        now: Micros,
    ) -> bool {
        let (submitted, has_handler, bits) = match line {
            Ok(task) => {
                let has_handler = task.flags.contains(Flags::HANDLER);
                (self.submit(ticket, &task, now), has_handler, task.bits())
            }
            Err(_) => (Err(()), false, u32::MAX),
        };
        let is_taken = match submitted {
            Ok(is_taken) => is_taken,
            Err(()) => {
                self.refuse(ticket, bits);
                true
            }
        };
        if is_taken {
            self.counters.tasks.add(1);
            self.lines.push_back(Line { has_handler, is_complete: false });
        }
        is_taken
    }

    /// `Ok(false)` where the plan is full.
    fn submit(&mut self, ticket: ring::Ticket, task: &ring::Task, now: Micros) -> Result<bool, ()> {
        let len = u64::from(task.len_bytes);
        let lazy = task.flags.contains(Flags::LAZY);
        let dst = || self.space.place(task.dst_region, task.dst, len);
        let src = || self.space.place(task.src_region, task.src, len);
        let (kind, dst, src) = match task.kind {
            ring::Kind::Copy => (Kind::Memory, dst(), src()),
            ring::Kind::Receive => (Kind::Source, dst(), transfer::stream(task.fd, false)),
            ring::Kind::Send => (Kind::Sink, transfer::stream(task.fd, true), src()),
            ring::Kind::Forward | ring::Kind::Barrier => return Err(()),
        };
        let request = Request {
            dst: Span { start: dst.ok_or(())?, len },
            src: Span { start: src.ok_or(())?, len },
            granule_shift: task.granule_shift,
            lazy_until: lazy.then(|| Micros(now.0.saturating_add(task.delay_us.into()))),
            kind,
        };
        match self.plan.submit(Ticket(ticket.0), &request, now) {
            Ok(()) => Ok(true),
            Err(Refusal::Full) => Ok(false),
            Err(_) => Err(()),
        }
    }

    /// Ends a task that makes no sense.
    fn refuse(&mut self, ticket: ring::Ticket, bits: u32) {
        self.counters.refused.add(1);
        let progress = self.queue.progress(ticket);
        let mine = progress.claim(bits);
        progress.fail(TaskFailure::Refused.code(), mine);
        self.refused.push(ticket);
    }

    /// Works for up to about `slice_bytes`, in runs of about `run_bytes`, looking for news between
    /// them. Bytes copied, and what is left.
    pub fn turn(
        &mut self,
        now: impl Fn() -> Micros,
        slice_bytes: u64,
        run_bytes: u64,
    ) -> (u64, Turn) {
        let mut copied_bytes = self.go_on(now());
        loop {
            let step = match self.transfers.len() {
                TRANSFERS_MAX.. => Step::Wait,
                _ => self.plan.next(&mut View(&self.queue), now(), run_bytes),
            };
            let turn = match step {
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
            if turn != Turn::More || copied_bytes >= slice_bytes {
                return (copied_bytes, turn);
            }
            self.intake(now());
        }
    }

    /// A socket that is waited for is asked again in time.
    fn with_retry(&self, turn: Turn) -> Turn {
        let retry_at = self.transfers.iter().map(Transfer::retry_at).min();
        match (turn, retry_at) {
            (Turn::More, _) | (_, None) => turn,
            (Turn::Later(until), Some(at)) => Turn::Later(until.min(at)),
            (Turn::Wait | Turn::Idle, Some(at)) => Turn::Later(at),
        }
    }

    fn execute(&mut self, order: Order, now: Micros) -> u64 {
        match order.stream {
            Some(stream) => self.advance(Transfer::new(order, stream), now),
            None => self.copy(order),
        }
    }

    /// Goes on with what waits for sockets.
    fn go_on(&mut self, now: Micros) -> u64 {
        if self.transfers.iter().all(|transfer| transfer.retry_at() > now) {
            return 0;
        }
        let waiting = std::mem::take(&mut self.transfers);
        waiting.into_iter().map(|transfer| self.advance(transfer, now)).sum()
    }

    fn advance(&mut self, mut transfer: Transfer, now: Micros) -> u64 {
        let (moved_bytes, attempt) = transfer.attempt(&*self.space, now);
        self.counters.copied_bytes.add(moved_bytes);
        match attempt {
            Attempt::Blocked => self.transfers.push(transfer),
            Attempt::Done => self.finish(transfer.order, None),
            Attempt::Failed(failure) => self.finish(transfer.order, Some(failure)),
        }
        moved_bytes
    }

    /// Ends what waits for sockets: what has gone already cannot be taken back, so nobody else can
    /// go on with it.
    pub fn cancel(&mut self) {
        for transfer in std::mem::take(&mut self.transfers) {
            self.finish(transfer.order, Some(TaskFailure::CANCELLED));
        }
        self.collect();
    }

    fn copy(&mut self, order: Order) -> u64 {
        let mut copied_bytes = 0;
        let mut failure = None;
        for piece in &order.pieces {
            if let Err(fault) = self.space.copy(piece.dst, piece.src, piece.len) {
                tracing::debug!(ticket = order.ticket.0, %fault, "a copy failed");
                failure = Some(TaskFailure::BadAddress);
                break;
            }
            copied_bytes += piece.len;
        }
        self.counters.copied_bytes.add(copied_bytes);
        if !order.pins.is_empty() {
            self.counters.absorbed_bytes.add(copied_bytes);
        }
        self.finish(order, failure);
        copied_bytes
    }

    fn finish(&mut self, order: Order, failure: Option<TaskFailure>) {
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
        self.plan.finished(order, &mut View(&self.queue));
    }

    fn end(&mut self, ticket: Ticket, bits: u32, why: Ending) {
        let progress = self.queue.progress(ring_ticket(ticket));
        match why {
            Ending::Aborted => {
                self.counters.aborted_segments.add(bits.count_ones().into());
                progress.finish_aborted(bits);
            }
            Ending::Failed => {
                progress.fail(TaskFailure::BadAddress.code(), bits);
            }
        }
    }

    /// Tells the client of what is over, and frees its slots.
    pub fn collect(&mut self) {
        for ticket in self.plan.collect(&mut View(&self.queue)) {
            self.complete(ring_ticket(ticket));
        }
        if !self.refused.is_empty() {
            self.collect_refused();
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

    fn complete(&mut self, ticket: ring::Ticket) {
        self.counters.completed.add(1);
        let place = ticket.0.wrapping_sub(self.tail) as usize;
        let Some(line) = self.lines.get_mut(place) else { return };
        line.is_complete = true;
        if line.has_handler && self.queue.progress(ticket).handler_due() {
            // A ring that is full is one the client plays with: it finds the handler in its line.
            let _ = self.queue.push_handler(ticket);
        }
    }

    fn retire(&mut self) {
        let before = self.tail;
        while let Some(line) = self.lines.front().filter(|line| line.is_complete) {
            let progress = self.queue.progress(ring::Ticket(self.tail));
            if line.has_handler && progress.handler() == HandlerState::Due {
                break;
            }
            self.lines.pop_front();
            self.tail = self.tail.wrapping_add(1);
        }
        if self.tail != before {
            self.queue.retire(ring::Ticket(self.tail));
        }
        if self.lines.len() * 2 > self.queue.slots() as usize {
            self.plan.hurry();
        }
    }
}
