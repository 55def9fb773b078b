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
//! The progress of a task lives in memory that is shared with the client, who copies segments too.
//! The plan sees it through [`Progress`], and everything it decides rests on two facts: a segment
//! that was seen done stays done, and a segment that was claimed stays undone until it is let go.
//!
//! # Rules
//! *Older* is a smaller ticket. A segment is *finished* when it is done, or ended without a copy.
//! 1. **Order.** A segment is copied when every older pending task that touches its bytes is
//!    finished on the touching part: where the older one writes its source (read after write),
//!    writes its destination (write after write), or reads its destination (write after read).
//!    Tasks at the same stream follow one another whole.
//! 2. **Absorption** (Copier, SOSP 2025, §4.4). A source byte whose newest older writer is a task
//!    A→B that is not finished there is taken from A instead, as A was for that task: so again
//!    from the newest writer older than *it*, up to [`ABSORB_DEPTH_MAX`] deep. The segments read
//!    past are claimed meanwhile (*pinned*) and given back undone. Were they not, the client could
//!    finish A→B and change A while it is read; since nobody younger writes A before A→B is
//!    finished, a pin keeps A as it is. What is finished is read from B, which the client may have
//!    changed. A pin that somebody else's claim prevents is not waited for: something else is done
//!    meanwhile. What a [`Kind::Source`] has still to bring is not read past: it comes first, as
//!    rule 6 says.
//! 3. **Choice.** Tasks that end go first, then what is promoted, first come first served and
//!    with all it depends on, then ordinary tasks, oldest first, then lazy ones whose time is up.
//!    After [`Plan::hurry`] lazy tasks are ordinary ones.
//! 4. **Abort.** Younger tasks that read what the aborted one would have written are copied first,
//!    past it as far as it is undone. Then it is as if the task had never been, where it was not
//!    copied. Nothing is dropped that was not aborted: not even a copy whose result will surely
//!    be overwritten.
//! 5. **Failure.** A task that failed ends as an aborted one, but nobody's copy is made first: as
//!    after a `memcpy` that did not happen, those who read its destination find what is there.
//! 6. **Streams.** A [`Kind::Source`] takes its bytes out of the stream once, in order, also where
//!    it is aborted. Bytes that are given up where it puts them (it is aborted, or the copy that
//!    reads them is their [last use](Request::last_use)) go straight to the one younger copy that
//!    reads them, if that can be made now; all others go where it puts them.
//! 7. **Loss.** Bytes that do not come out of a stream are nobody's: copies and sends that need
//!    them end as failed, where they do ([`Plan::lose`]).
//!
//! # Several threads and units
//! Orders are copied side by side, outside whatever lock the plan is under; no piece of one
//! conflicts with another's. Everything else happens under the lock, among it that the segments of
//! [`Step::Abort`] are marked.
//!
//! # When absorption is used
//! By [`Absorb::Useful`], where it saves work or time: the task in between is lazy or aborted, or
//! somebody waits for the result. A copy that nobody waits for rather lets an ordinary older one
//! go first, since that has to be made anyhow and its destination is warm afterwards.
//!
//! # Clients are hostile
//! Bits that come and go, tickets that do not exist, promotions without end: they cost at most
//! [`WORK_MAX`] steps a call, are counted ([`Plan::strays`]) and spoil only the client's own bytes.
//! When the work is used up, the oldest task is copied, which needs no search; so a queue that is
//! too entangled to choose from is served in its order.

use std::collections::{BTreeSet, VecDeque};

use crate::absorb::Gathered;
pub use crate::collect::Completed;
use crate::index::Index;
pub use crate::order::{Inlet, Landing, Landings, Order, OrderId, Piece, Pieces, Pin, Pins};
use crate::span::{Run, Span};
use crate::table::Table;
use crate::task::{Ending, Kind, Refusal, Request, Task};
use crate::{Micros, Ticket};

/// The most tasks of a client that are pending.
pub const TASKS_MAX: usize = 8192;
/// The most orders of a client that are outstanding.
pub const ORDERS_MAX: usize = 64;
/// The most steps (tasks looked at) that one call of [`Plan::next`] spends on choosing.
pub const WORK_MAX: u32 = 8192;
/// The most tasks of each sort that one call considers.
pub const CANDIDATES_MAX: usize = 64;
/// The most tasks that are read past for one byte.
pub const ABSORB_DEPTH_MAX: u32 = 8;
/// The most pieces of an order.
pub const PIECES_MAX: usize = 64;

/// What is known of tasks' segments in memory that is shared with the client.
///
/// Bits that a task does not have are never asked for, and ignored in answers.
pub trait Progress {
    /// The segments that are done. More may be at any time; the client makes them so.
    fn done(&self, ticket: Ticket) -> u32;
    /// Claims segments; says which are ours now. The others are done, or somebody else's.
    fn claim(&mut self, ticket: Ticket, bits: u32) -> u32;
    /// Gives claimed segments back, undone.
    fn release(&mut self, ticket: Ticket, bits: u32);
}

/// When a task in between is read past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absorb {
    /// Never: older copies are always made first.
    Never,
    /// Where the task in between is lazy or aborted, or somebody waits for the result.
    #[default]
    Useful,
    /// Wherever it is possible.
    Always,
}

/// What to do next.
// The large one is the usual one, and lives for a moment only.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Copy this.
    Copy(Order),
    /// These segments end without a copy, and are claimed: mark them done, and the task as aborted
    /// or failed, before [`Plan::collect`] is called.
    Abort {
        /// The task.
        ticket: Ticket,
        /// Its segments.
        bits: u32,
        /// Why they end.
        why: Ending,
    },
    /// Something is pending, but others have it, or something that must come first: the client is
    /// copying, or an order is outstanding.
    Wait,
    /// Only lazy copies wait; the earliest until this time.
    Later(Micros),
    /// Nothing is pending.
    Idle,
}

/// What the plan remembers of an order.
#[derive(Debug)]
struct Outstanding {
    id: OrderId,
    ticket: Ticket,
    bits: u32,
    pins: Pins,
    landings: Landings,
}

/// One call of [`Plan::next`].
pub(crate) struct Turn<'a, P> {
    pub progress: &'a mut P,
    pub now: Micros,
    pub budget_bytes: u64,
    /// Steps that are left.
    pub work: u32,
}

impl<P> Turn<'_, P> {
    /// Takes a step; false where none is left.
    pub fn spend(&mut self) -> bool {
        let left = self.work > 0;
        self.work = self.work.saturating_sub(1);
        left
    }
}

/// The rules, one by one, so that tests can show that each is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// An older writer of the source comes first, or is read past.
    ReadAfterWrite,
    /// An older writer of the destination comes first.
    WriteAfterWrite,
    /// An older reader of the destination comes first.
    WriteAfterRead,
    /// What is read past is claimed.
    Pin,
    /// What could not be claimed is not read past.
    Recheck,
    /// What is done is read where it is.
    InPlace,
    /// Of several writers the newest counts.
    NewestWriter,
    /// Those who need an aborted task come first.
    DependentsFirst,
    /// Tasks at a stream follow one another.
    StreamOrder,
    /// What a receive brings goes past its destination only where nobody needs it there,
    GivenUp,
    /// nobody else reads it,
    SoleTaker,
    /// nobody writes there in between,
    NothingBetween,
    /// and what else the taker reads is there.
    Edges,
    /// A receive that is aborted takes its bytes out of the stream.
    Drain,
    /// Who needs bytes that did not come ends too.
    Losses,
}

/// One client's pending tasks, and the order in which they are copied. See the module.
#[derive(Debug)]
pub struct Plan {
    pub(crate) absorb: Absorb,
    pub(crate) table: Table,
    /// Memory that tasks write.
    pub(crate) writers: Index,
    /// Memory that tasks read.
    pub(crate) readers: Index,
    /// Tasks at streams.
    pub(crate) streams: BTreeSet<(u64, Ticket)>,
    /// Ordinary tasks, oldest first.
    pub(crate) ordinary: VecDeque<Ticket>,
    /// Lazy tasks, by when their time is up.
    pub(crate) lazies: BTreeSet<(Micros, Ticket)>,
    /// Tasks with promoted segments, each once, in the order of promotion.
    pub(crate) promotions: VecDeque<Ticket>,
    /// Tasks that end, each once.
    pub(crate) endings: VecDeque<Ticket>,
    /// Tasks that may have retired.
    pub(crate) touched: Vec<Ticket>,
    /// Where [`Plan::collect`] goes on looking.
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
    /// A queue without tasks.
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

    /// True unless a test has switched the rule off.
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

    /// Takes a copy. A lazy one whose time is up already is an ordinary one.
    ///
    /// # Errors
    /// [`Refusal::Full`] where [`TASKS_MAX`] are pending; the rest where the client asked for what
    /// cannot be. Nothing has changed then.
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

    /// What to do next; an order has at most `budget_bytes`, but one segment at least, and of a
    /// task at a stream everything.
    pub fn next<P: Progress>(&mut self, progress: &mut P, now: Micros, budget_bytes: u64) -> Step {
        if self.outstanding.len() >= ORDERS_MAX {
            return Step::Wait;
        }
        let turn = &mut Turn { progress, now, budget_bytes, work: WORK_MAX };
        self.advance_frontier(turn);
        if let Some(step) = self.next_ending(turn) {
            return step;
        }
        let order = self.next_promoted(turn);
        let order = order.or_else(|| self.next_ordinary(turn));
        let order = order.or_else(|| self.next_due(turn));
        match order.or_else(|| self.next_oldest(turn)) {
            Some(order) => Step::Copy(order),
            None => self.nothing_to_do(turn),
        }
    }

    /// Finds the oldest task that is not finished.
    fn advance_frontier<P: Progress>(&mut self, turn: &mut Turn<'_, P>) {
        let Some(oldest) = self.table.oldest() else { return };
        self.frontier = self.frontier.max(oldest);
        while self.table.is_finished(self.frontier, turn.progress) && turn.spend() {
            let Some(after) = self.table.after(self.frontier) else { return };
            self.frontier = after;
        }
    }

    /// True where everything older than the task is finished.
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        ticket <= self.frontier
    }

    fn next_ordinary<P: Progress>(&mut self, turn: &mut Turn<'_, P>) -> Option<Order> {
        while let Some(first) = self.ordinary.front().copied() {
            if !self.table.is_finished(first, turn.progress) {
                break;
            }
            self.touch(first);
            self.ordinary.pop_front();
        }
        for place in 0..self.ordinary.len().min(CANDIDATES_MAX) {
            let ticket = self.ordinary[place];
            if let Some(order) = self.attempt(turn, ticket, u32::MAX, false) {
                return Some(order);
            }
        }
        None
    }

    /// Where the work is used up: what needs no search.
    fn next_oldest<P: Progress>(&mut self, turn: &mut Turn<'_, P>) -> Option<Order> {
        if turn.work > 0 {
            return None;
        }
        turn.work = CANDIDATES_MAX as u32;
        // Even one that is being aborted: who needs it may be too many to look at.
        self.pursue(turn, self.frontier, u32::MAX, false)
    }

    fn nothing_to_do<P: Progress>(&mut self, turn: &mut Turn<'_, P>) -> Step {
        let pending = [&self.ordinary, &self.promotions, &self.endings];
        if pending.iter().any(|queue| !queue.is_empty()) {
            return Step::Wait;
        }
        match self.earliest_lazy(turn) {
            Some(until) if until <= turn.now => Step::Wait,
            Some(until) => Step::Later(until),
            None => Step::Idle,
        }
    }

    /// Makes an order of claimed segments.
    pub(crate) fn give_out(
        &mut self,
        ticket: Ticket,
        run: Run,
        gathered: Gathered,
    ) -> Option<Order> {
        let task = self.table.get_mut(ticket)?;
        let Gathered { mut pieces, pins, mut landings, copies, inlet } = gathered;
        let bits = run.bits();
        task.held |= bits;
        let (kind, home, [takes, gives]) = (task.kind, task.dst.start, task.streams());
        let segments = task.segments;
        if kind == Kind::Memory {
            pieces.iter_mut().for_each(|piece| piece.dst += home);
        } else {
            for landing in &landings {
                if let Some(other) = self.table.get_mut(landing.ticket) {
                    other.held |= landing.bits;
                }
            }
            landings.insert(0, Landing { ticket, bits, segments, offset: 0 });
        }
        let id = OrderId(self.next_order);
        self.next_order += 1;
        let known =
            Outstanding { id, ticket, bits, pins: pins.clone(), landings: landings.clone() };
        self.outstanding.push(known);
        let stream = gives.or(takes);
        Some(Order { id, ticket, kind, stream, inlet, bits, pieces, pins, landings, copies, home })
    }

    /// An order is over. The runtime has marked its segments done (also where the copy failed:
    /// see [`Plan::failed`]), or has released them in shared memory because it could not copy
    /// them now; then they are given out again.
    pub fn finished<P: Progress>(&mut self, order: Order, progress: &mut P) {
        let Some(place) = self.outstanding.iter().position(|known| known.id == order.id) else {
            self.strays += 1;
            return;
        };
        let known = self.outstanding.swap_remove(place);
        if let Some(task) = self.table.get_mut(known.ticket) {
            task.held &= !known.bits;
        }
        for landing in &known.landings {
            if let Some(task) = self.table.get_mut(landing.ticket) {
                task.held &= !landing.bits;
            }
            self.touch(landing.ticket);
        }
        self.unpin(&known.pins, progress);
        self.touch(known.ticket);
    }

    /// Releases pins that no outstanding order has.
    pub(crate) fn unpin<P: Progress>(&mut self, pins: &[Pin], progress: &mut P) {
        for pin in pins {
            let needed = self.outstanding.iter().flat_map(|order| &order.pins);
            let needed = needed.filter(|other| other.ticket == pin.ticket);
            let free = needed.fold(pin.bits, |free, other| free & !other.bits);
            let Some(task) = self.table.get_mut(pin.ticket) else { continue };
            task.pinned &= !free;
            // What ends anyhow stays claimed until it does.
            task.seized |= free & task.lost;
            let released = free & !task.lost;
            if released != 0 && self.holds(Rule::Pin) {
                progress.release(pin.ticket, released);
            }
        }
    }

    /// Whether a pending task older than `ticket` reads or writes a byte of `span`. A handler that
    /// frees its task's source must not run before: what is read past may be written there still.
    pub fn is_touched_before(&self, ticket: Ticket, span: Span) -> bool {
        let older = |index: &Index| index.touching(span).any(|(other, _)| other < ticket);
        older(&self.writers) || older(&self.readers)
    }

    /// How many tasks are pending.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True where no task is pending.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// How many orders are outstanding.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Events that named no pending task, or bits that the task does not have. A client that acts
    /// on a task at the moment it retires causes some; many mean a client that is not well.
    pub fn strays(&self) -> u64 {
        self.strays
    }
}

/// Adds a task to a queue. Behind tasks that somebody holds for long, others that have retired
/// gather; they are dropped here, so that no queue is longer than the tasks are many, by much.
pub(crate) fn enqueue(queue: &mut VecDeque<Ticket>, table: &Table, ticket: Ticket) {
    if queue.len() >= 2 * table.len() + CANDIDATES_MAX {
        queue.retain(|ticket| table.get(*ticket).is_some());
    }
    queue.push_back(ticket);
}
