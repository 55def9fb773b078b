//! One client's queue: which bytes are copied next, and from where.
//!
//! ```text
//!  submit ──► table, index ──► next: ending ─► promoted ─► ordinary ─► due lazies
//!  promote, abort, failed ───►          │
//!                                       ▼          resolve: what must come first?
//!                            claim ◄── run of ◄──  absorb: where are the newest bytes?
//!                              │       segments
//!                              ▼
//!                            Order ──► (copied) ──► finished ──► collect
//! ```
//! Tasks' progress is in memory that is shared with the client, which copies segments too. The
//! plan accesses it through [`Progress`], and relies on two facts only: a segment that was seen
//! done stays done, and a claimed segment stays undone until it is released.
//!
//! # Rules
//! *Older* means a smaller ticket. A segment is *finished* when it is done or has ended without a
//! copy.
//! 1. **Order.** A segment is copied when every older pending task that touches its bytes is
//!    finished on the touching part: where the older task writes the segment's source (read after
//!    write), writes its destination (write after write), or reads its destination (write after
//!    read). Tasks at the same stream follow one another as a whole.
//! 2. **Absorption** (Copier, SOSP 2025, §4.4). If the newest older writer of a source byte is a
//!    task A→B that is not finished there, the byte is read from A instead, in the state that task
//!    would have read. The search continues at the newest writer of A older than that task, up to
//!    [`ABSORB_DEPTH_MAX`] levels deep. The segments of absorbed tasks are claimed meanwhile
//!    (*pinned*) and released undone. Without the pin, the client could finish A→B and change A
//!    while A is read. No younger task writes A before A→B is finished, so a pin keeps A
//!    unchanged. A finished segment is read from B, which the client may have changed. If another
//!    claim prevents a pin, the plan does other work in the meantime. Segments of a
//!    [`Kind::Source`] that are not received yet are never absorbed; they come first, under rule
//!    6.
//! 3. **Choice.** The order is: ending tasks; promoted segments with all their dependencies, in
//!    the order of promotion; ordinary tasks, oldest first; lazy tasks at their deadline.
//!    [`Plan::hurry`] turns lazy tasks into ordinary ones.
//! 4. **Abort.** Younger tasks that read the result of an aborted task are copied first; they
//!    absorb it where it is not copied. After that, its uncopied segments have no effect. Only
//!    aborted tasks are dropped: a copy whose result will certainly be overwritten is still made.
//! 5. **Failure.** A failed task ends as an aborted one, but its dependents are not copied first.
//!    As after a `memcpy` that did not happen, they read the bytes that are in its destination.
//! 6. **Streams.** A [`Kind::Source`] takes its bytes out of the stream once, in order, even if it
//!    is aborted. Received bytes are *given up* at its destination if it is aborted or if the copy
//!    that reads them is their [last use](Request::last_use). Such bytes go straight to the
//!    destination of the only younger copy that reads them, if that copy is possible now. All
//!    other bytes go to the destination of the receive.
//! 7. **Loss.** Copies and sends that need bytes which did not come out of a stream fail, in the
//!    segments that need them ([`Plan::lose`]).
//!
//! # Several threads and units
//! Orders are copied concurrently, outside the lock that protects the plan; no chunk of one order
//! conflicts with a chunk of another. All other operations run under the lock, including the
//! marking of [`Step::Abort`]'s segments.
//!
//! # Use of absorption
//! [`Absorb::Useful`] absorbs where it saves work or time: the task in between is lazy or aborted,
//! or a client waits for the result. If no client waits, an ordinary older task goes first,
//! because it must be copied anyway and its destination is in the cache afterwards.
//!
//! # Hostile clients
//! Bits that appear and disappear, unknown tickets and endless promotions cost at most
//! [`WORK_MAX`] steps per call. They are counted ([`Plan::strays`]) and corrupt only the client's
//! own bytes. When the work is used up, the plan copies the oldest task, which needs no search. A
//! queue with too many dependencies is therefore served in its order.

use std::collections::{BTreeSet, VecDeque};

pub use crate::collect::Completed;
use crate::index::Index;
use crate::order::Gathered;
pub use crate::order::{
    Chunk, Chunks, Order, OrderId, Pin, Pins, ProgressList, SegmentProgress, StreamInput,
};
pub use crate::progress::Progress;
use crate::span::{Run, Span};
use crate::table::Table;
pub use crate::task::TASKS_MAX;
use crate::task::{Ending, Kind, Refusal, Request, Task};
use crate::{Micros, Ticket};

/// Maximum number of outstanding orders of a client.
pub const ORDERS_MAX: usize = 64;
/// Maximum number of steps (examined tasks) in one call of [`Plan::next`].
pub const WORK_MAX: u32 = 8192;
/// Maximum number of tasks of each sort that one call considers.
pub const CANDIDATES_MAX: usize = 64;
/// Maximum number of tasks that are absorbed for one byte.
pub const ABSORB_DEPTH_MAX: u32 = 8;
/// Maximum number of chunks of an order.
pub const CHUNKS_MAX: usize = 64;

/// Policy for the absorption of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absorb {
    /// Never: older copies are always made first.
    Never,
    /// If the task in between is lazy or aborted, or a client waits for the result.
    #[default]
    Useful,
    /// Wherever it is possible.
    Always,
}

/// Next action for the runtime.
// The large variant is the usual one and lives only for a moment.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Copy these segments.
    Copy(Order),
    /// End these claimed segments without a copy: mark them done, and the task as aborted or
    /// failed, before [`Plan::collect`] is called.
    Abort {
        /// The task.
        ticket: Ticket,
        /// Its segments.
        bits: u32,
        /// Reason of the ending.
        why: Ending,
    },
    /// Tasks are pending, but they or their dependencies are claimed: the client is copying, or an
    /// order is outstanding.
    Wait,
    /// Only lazy tasks are pending; the earliest deadline.
    Later(Micros),
    /// Nothing is pending.
    Idle,
}

/// Bookkeeping for an order.
#[derive(Debug)]
struct Outstanding {
    id: OrderId,
    ticket: Ticket,
    bits: u32,
    pins: Pins,
    segment_progress: ProgressList,
}

/// State of one call of [`Plan::next`].
pub(crate) struct PlanContext<'a, P> {
    pub progress: &'a mut P,
    pub now: Micros,
    pub budget_bytes: u64,
    /// Number of steps that are left.
    pub work: u32,
}

impl<P> PlanContext<'_, P> {
    /// Takes a step; returns false if none is left.
    pub fn spend(&mut self) -> bool {
        let left = self.work > 0;
        self.work = self.work.saturating_sub(1);
        left
    }
}

/// The rules, separately, so that tests can show that each one is necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// An older writer of the source is copied first or absorbed.
    ReadAfterWrite,
    /// An older writer of the destination is copied first.
    WriteAfterWrite,
    /// An older reader of the destination is copied first.
    WriteAfterRead,
    /// Absorbed segments are claimed.
    Pin,
    /// A segment that could not be claimed is not absorbed.
    Recheck,
    /// A segment that is done is read in place.
    InPlace,
    /// The newest of several writers counts.
    NewestWriter,
    /// Dependents of an aborted task are copied first.
    DependentsFirst,
    /// Tasks at a stream follow one another.
    StreamOrder,
    /// Received bytes bypass their destination only if they are given up there.
    GivenUp,
    /// Received bytes bypass their destination only if exactly one task reads them.
    SoleTaker,
    /// Received bytes bypass their destination only if no task in between writes there.
    NothingBetween,
    /// Received bytes bypass their destination only if the taker's other source bytes are there.
    Edges,
    /// An aborted receive still takes its bytes out of the stream.
    Drain,
    /// Dependents of lost bytes end too.
    Losses,
}

/// Pending tasks of one client, and the order in which they are copied. See the module.
#[derive(Debug)]
pub struct Plan {
    pub(crate) absorb: Absorb,
    pub(crate) table: Table,
    /// Memory ranges that tasks write.
    pub(crate) writers: Index,
    /// Memory ranges that tasks read.
    pub(crate) readers: Index,
    /// Tasks at streams.
    pub(crate) streams: BTreeSet<(u64, Ticket)>,
    /// Ordinary tasks, oldest first.
    pub(crate) ordinary: VecDeque<Ticket>,
    /// Lazy tasks, by deadline.
    pub(crate) lazies: BTreeSet<(Micros, Ticket)>,
    /// Tasks with promoted segments, in the order of promotion; each task at most once.
    pub(crate) promotions: VecDeque<Ticket>,
    /// Ending tasks; each task at most once.
    pub(crate) endings: VecDeque<Ticket>,
    /// Tasks that may have retired.
    pub(crate) touched: Vec<Ticket>,
    /// Position at which [`Plan::collect`] continues its scan.
    pub(crate) cursor: Ticket,
    /// All tasks below this one are finished.
    frontier: Ticket,
    newest: Option<Ticket>,
    outstanding: Vec<Outstanding>,
    next_order: u64,
    pub(crate) strays: u64,
    #[cfg(test)]
    pub(crate) off: Option<Rule>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan::new(Absorb::default())
    }
}

impl Plan {
    /// Creates an empty queue.
    pub fn new(absorb: Absorb) -> Plan {
        Plan {
            absorb,
            table: Table::default(),
            writers: Index::default(),
            readers: Index::default(),
            streams: BTreeSet::new(),
            ordinary: VecDeque::new(),
            lazies: BTreeSet::new(),
            promotions: VecDeque::new(),
            endings: VecDeque::new(),
            touched: Vec::new(),
            cursor: Ticket(0),
            frontier: Ticket(0),
            newest: None,
            outstanding: Vec::with_capacity(ORDERS_MAX),
            next_order: 0,
            strays: 0,
            #[cfg(test)]
            off: None,
        }
    }

    /// Returns true unless a test has switched the rule off.
    #[inline(always)]
    pub(crate) fn holds(&self, rule: Rule) -> bool {
        #[cfg(test)]
        return self.off != Some(rule);
        #[cfg(not(test))]
        {
            let _ = rule;
            true
        }
    }

    /// Adds a task. A lazy task whose deadline has passed becomes an ordinary one.
    ///
    /// # Errors
    /// [`Refusal::Full`] if [`TASKS_MAX`] tasks are pending; the others if the request is invalid.
    /// The plan is unchanged then.
    pub fn submit(
        &mut self,
        ticket: Ticket,
        request: &Request,
        now: Micros,
    ) -> Result<(), Refusal> {
        if self.newest.is_some_and(|newest| ticket <= newest) {
            return Err(Refusal::OutOfOrder(ticket));
        }
        let mut task = Task::new(ticket, request)?;
        if self.table.len() >= TASKS_MAX {
            return Err(Refusal::Full);
        }
        task.lazy_until = task.lazy_until.filter(|until| *until > now);
        self.newest = Some(ticket);
        match task.lazy_until {
            Some(until) => {
                self.lazies.insert((until, ticket));
            }
            None => enqueue(&mut self.ordinary, &self.table, ticket),
        }
        if let Some(span) = task.writes() {
            self.writers.insert(ticket, span);
        }
        if let Some(span) = task.reads() {
            self.readers.insert(ticket, span);
        }
        for stream in task.streams().into_iter().flatten() {
            self.streams.insert((stream, ticket));
        }
        self.table.push(task);
        Ok(())
    }

    /// Returns the next action. An order has at most `budget_bytes` or one segment, whichever is
    /// more; an order at a stream has all that remains of its task.
    pub fn next<P: Progress>(&mut self, progress: &mut P, now: Micros, budget_bytes: u64) -> Step {
        if self.outstanding.len() >= ORDERS_MAX {
            return Step::Wait;
        }
        let context = &mut PlanContext { progress, now, budget_bytes, work: WORK_MAX };
        self.advance_frontier(context);
        if let Some(step) = self.next_ending(context) {
            return step;
        }
        let order = self.next_promoted(context);
        let order = order.or_else(|| self.next_ordinary(context));
        let order = order.or_else(|| self.next_due(context));
        match order.or_else(|| self.next_oldest(context)) {
            Some(order) => Step::Copy(order),
            None => self.nothing_to_do(context),
        }
    }

    /// Finds the oldest task that is not finished.
    fn advance_frontier<P: Progress>(&mut self, context: &mut PlanContext<'_, P>) {
        let Some(oldest) = self.table.oldest() else { return };
        self.frontier = self.frontier.max(oldest);
        while self.table.is_finished(self.frontier, context.progress) && context.spend() {
            let Some(after) = self.table.after(self.frontier) else { return };
            self.frontier = after;
        }
    }

    /// Returns true if everything older than the task is finished.
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        ticket <= self.frontier
    }

    fn next_ordinary<P: Progress>(&mut self, context: &mut PlanContext<'_, P>) -> Option<Order> {
        while let Some(first) = self.ordinary.front().copied() {
            if !self.table.is_finished(first, context.progress) {
                break;
            }
            self.touch(first);
            self.ordinary.pop_front();
        }
        for place in 0..self.ordinary.len().min(CANDIDATES_MAX) {
            let ticket = self.ordinary[place];
            if let Some(order) = self.attempt(context, ticket, u32::MAX, false) {
                return Some(order);
            }
        }
        None
    }

    /// Chooses without a search, when the work is used up.
    fn next_oldest<P: Progress>(&mut self, context: &mut PlanContext<'_, P>) -> Option<Order> {
        if context.work > 0 {
            return None;
        }
        context.work = CANDIDATES_MAX as u32;
        // This includes a task that is being aborted: its dependents may be too many to search.
        self.pursue(context, self.frontier, u32::MAX, false)
    }

    fn nothing_to_do<P: Progress>(&mut self, context: &mut PlanContext<'_, P>) -> Step {
        let pending = [&self.ordinary, &self.promotions, &self.endings];
        if pending.iter().any(|queue| !queue.is_empty()) {
            return Step::Wait;
        }
        match self.earliest_lazy(context) {
            Some(until) if until <= context.now => Step::Wait,
            Some(until) => Step::Later(until),
            None => Step::Idle,
        }
    }

    /// Makes an order from claimed segments.
    pub(crate) fn give_out(
        &mut self,
        ticket: Ticket,
        run: Run,
        gathered: Gathered,
    ) -> Option<Order> {
        let task = self.table.get_mut(ticket)?;
        let Gathered { mut chunks, pins, mut segment_progress, copies, stream_input } = gathered;
        let bits = run.bits();
        task.held |= bits;
        let (kind, dst_base, [takes, gives]) = (task.kind, task.dst.start, task.streams());
        let segments = task.segments;
        if kind == Kind::Memory {
            chunks.iter_mut().for_each(|chunk| chunk.dst += dst_base);
        } else {
            for entry in &segment_progress {
                if let Some(other) = self.table.get_mut(entry.ticket) {
                    other.held |= entry.bits;
                }
            }
            segment_progress.insert(0, SegmentProgress { ticket, bits, segments, offset: 0 });
        }
        let id = OrderId(self.next_order);
        self.next_order += 1;
        let known = Outstanding {
            id,
            ticket,
            bits,
            pins: pins.clone(),
            segment_progress: segment_progress.clone(),
        };
        self.outstanding.push(known);
        let stream = gives.or(takes);
        Some(Order {
            id,
            ticket,
            kind,
            stream,
            stream_input,
            bits,
            chunks,
            pins,
            segment_progress,
            copies,
            dst_base,
        })
    }

    /// Completes an order. The runtime has marked its segments done (also if the copy failed: see
    /// [`Plan::failed`]), or has released them in shared memory because the copy was not possible
    /// at this time. Released segments are issued again.
    pub fn finished<P: Progress>(&mut self, order: Order, progress: &mut P) {
        let Some(place) = self.outstanding.iter().position(|known| known.id == order.id) else {
            self.strays += 1;
            return;
        };
        let known = self.outstanding.swap_remove(place);
        if let Some(task) = self.table.get_mut(known.ticket) {
            task.held &= !known.bits;
        }
        for entry in &known.segment_progress {
            if let Some(task) = self.table.get_mut(entry.ticket) {
                task.held &= !entry.bits;
            }
            self.touch(entry.ticket);
        }
        self.unpin(&known.pins, progress);
        self.touch(known.ticket);
    }

    /// Releases the pins that no outstanding order uses.
    pub(crate) fn unpin<P: Progress>(&mut self, pins: &[Pin], progress: &mut P) {
        for pin in pins {
            let needed = self.outstanding.iter().flat_map(|order| &order.pins);
            let needed = needed.filter(|other| other.ticket == pin.ticket);
            let free = needed.fold(pin.bits, |free, other| free & !other.bits);
            let Some(task) = self.table.get_mut(pin.ticket) else { continue };
            task.pinned &= !free;
            // Lost segments stay claimed until they end.
            task.seized |= free & task.lost;
            let released = free & !task.lost;
            if released != 0 && self.holds(Rule::Pin) {
                progress.release(pin.ticket, released);
            }
        }
    }

    /// Returns true if a pending task older than `ticket` reads or writes a byte of `span`. A
    /// handler that frees its task's source must not run before such a task is finished:
    /// absorption may have left the source in use.
    pub fn is_touched_before(&self, ticket: Ticket, span: Span) -> bool {
        let older = |index: &Index| index.touching(span).any(|(other, _)| other < ticket);
        older(&self.writers) || older(&self.readers)
    }

    /// Returns the number of pending tasks.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns true if no task is pending.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Returns the number of outstanding orders.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns the number of stray events: events that named no pending task, or bits that the
    /// task does not have. A client that acts on a task while it retires causes a few; a large
    /// number indicates a faulty client.
    pub fn strays(&self) -> u64 {
        self.strays
    }
}

/// Adds a task to a queue. Retired tasks accumulate behind tasks that are claimed for a long time;
/// this function drops them, so the queue's length stays proportional to the number of pending
/// tasks.
pub(crate) fn enqueue(queue: &mut VecDeque<Ticket>, table: &Table, ticket: Ticket) {
    if queue.len() >= 2 * table.len() + CANDIDATES_MAX {
        queue.retain(|ticket| table.get(*ticket).is_some());
    }
    queue.push_back(ticket);
}
