//! Dependencies (rule 1), followed down to a segment that can be copied now.

use smallvec::smallvec;

use crate::Ticket;
use crate::order::Gathered;
use crate::plan::{Chunk, Order, Plan, PlanContext, Progress, Rule, StreamInput};
use crate::span::{Run, Segments, Span};
use crate::task::{Ending, Kind, Task};

/// Reason why segments cannot be copied now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// An older task must be copied first.
    Behind(Blocker),
    /// The segments or their dependencies are claimed elsewhere.
    Busy,
}

/// A dependency that must be copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    /// The older task.
    pub by: Ticket,
    /// Segments of the older task that are needed.
    pub bits: u32,
    /// Segments that wait for them.
    pub waiting: u32,
}

impl Plan {
    /// Makes an order for some of a task's segments, or for their dependencies.
    pub(crate) fn attempt<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        bits: u32,
        urgent: bool,
    ) -> Option<Order> {
        if self.table.get(ticket)?.ending.is_some() {
            return None;
        }
        self.pursue(context, ticket, bits, urgent)
    }

    /// As [`Plan::attempt`], also for a task that is being aborted.
    pub(crate) fn pursue<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        bits: u32,
        urgent: bool,
    ) -> Option<Order> {
        let task = self.table.get(ticket)?;
        let whole = task.is_whole();
        let mut left = bits & task.segments.all();
        while left != 0 && context.work > 0 {
            let waiting = match self.try_task(context, ticket, left, urgent) {
                Ok(order) => return Some(order),
                Err(Blocked::Busy) => return None,
                Err(Blocked::Behind(first)) => {
                    if let Some(order) = self.descend(context, first, urgent) {
                        return Some(order);
                    }
                    first.waiting
                }
            };
            // The other segments may wait for other tasks.
            left &= if whole { 0 } else { !waiting };
        }
        None
    }

    /// Follows the chain of blockers. Each is older than the one before, so the loop ends.
    fn descend<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        first: Blocker,
        urgent: bool,
    ) -> Option<Order> {
        let mut blocker = first;
        loop {
            match self.try_task(context, blocker.by, blocker.bits, urgent) {
                Ok(order) => return Some(order),
                Err(Blocked::Busy) => return None,
                Err(Blocked::Behind(older)) => blocker = older,
            }
        }
    }

    /// Makes an order for segments of this task, or returns the obstacle.
    fn try_task<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        bits: u32,
        urgent: bool,
    ) -> Result<Order, Blocked> {
        self.table.look(ticket, bits, context.progress);
        let task = self.table.get(ticket).ok_or(Blocked::Busy)?;
        if task.ending == Some(Ending::Failed) {
            return Err(Blocked::Busy);
        }
        let (segments, whole) = (task.segments, task.is_whole());
        let mut left = if whole { task.suffix() } else { task.free() & bits };
        while let Some(run) = Run::lowest(left) {
            if !context.spend() {
                return Err(Blocked::Busy);
            }
            let run = if whole { run } else { segments.within_budget(run, context.budget_bytes) };
            match self.try_run(context, ticket, run, urgent) {
                Err(Blocked::Busy) if whole => break,
                Err(Blocked::Busy) => left &= left - 1,
                result => return result,
            }
        }
        Err(Blocked::Busy)
    }

    fn try_run<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
        urgent: bool,
    ) -> Result<Order, Blocked> {
        let kind = self.table.get(ticket).ok_or(Blocked::Busy)?.kind;
        let is_first = self.is_first(ticket);
        let run = if is_first { run } else { self.unblocked(context, ticket, run)? };
        match kind {
            Kind::Source => return self.receive(context, ticket, run),
            Kind::Memory | Kind::Sink if !is_first => {
                let (run, gathered) = self.gather(context, ticket, run, urgent)?;
                return self.claim(context, ticket, run, gathered);
            }
            Kind::Memory | Kind::Sink | Kind::Relay => {}
        }
        let gathered = plain(self.table.get(ticket).ok_or(Blocked::Busy)?, run);
        self.claim(context, ticket, run, gathered)
    }

    /// Returns the beginning of the run whose destination no older task has still to read or
    /// write.
    pub(crate) fn unblocked<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
    ) -> Result<Run, Blocked> {
        let mut search = Search::of(self.table.get(ticket).ok_or(Blocked::Busy)?, run);
        let in_order = self.holds(Rule::StreamOrder);
        for stream in search.streams.into_iter().flatten().filter(|_| in_order) {
            for (_, older) in self.streams.range((stream, Ticket(0))..(stream, ticket)) {
                let finished = self.table.look(*older, u32::MAX, context.progress);
                let task =
                    self.table.get(*older).filter(|_| context.spend()).ok_or(Blocked::Busy)?;
                search.note(*older, task.segments.all() & !finished, run.bits());
            }
        }
        let Some(range) = search.range else { return search.result(run) };
        for rule in [Rule::WriteAfterWrite, Rule::WriteAfterRead] {
            let writes = rule == Rule::WriteAfterWrite;
            let index = if writes { &self.writers } else { &self.readers };
            if !self.holds(rule) {
                continue;
            }
            for (older, side) in index.touching(range) {
                if !context.spend() {
                    return Err(Blocked::Busy);
                }
                if older >= ticket {
                    continue;
                }
                let Some(task) = self.table.get(older) else { continue };
                let met = if writes { task.writing(range) } else { task.reading(range) };
                let open = met & !self.table.look(older, met, context.progress);
                let Some(task) = self.table.get(older).filter(|_| open != 0) else { continue };
                search.note(older, open, search.waiting_for(task, side, open));
            }
        }
        search.result(run)
    }

    /// Claims the run for an order, or a part of it if the client claimed the rest.
    fn claim<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
        mut gathered: Gathered,
    ) -> Result<Order, Blocked> {
        let task = self.table.get(ticket).ok_or(Blocked::Busy)?;
        let (segments, whole) = (task.segments, task.is_whole());
        let got = context.progress.claim(ticket, run.bits()) & run.bits();
        let kept = Run::lowest(got).filter(|kept| !whole || *kept == run);
        let surplus = got & !kept.map_or(0, Run::bits);
        if surplus != 0 {
            context.progress.release(ticket, surplus);
        }
        let Some(kept) = kept else {
            self.unpin(&gathered.pins, context.progress);
            return Err(Blocked::Busy);
        };
        if kept != run {
            gathered.clip(segments.bytes(kept));
        }
        self.give_out(ticket, kept, gathered).ok_or(Blocked::Busy)
    }
}

/// Reads the bytes of a run in place, by offset.
pub(crate) fn plain(task: &Task, run: Run) -> Gathered {
    let Span { start, len } = task.segments.bytes(run);
    if task.kind == Kind::Relay {
        let stream_input =
            Some(StreamInput { stream: task.src.start, at: start, len, dst_base: 0 });
        return Gathered { stream_input, ..Gathered::default() };
    }
    let chunks = smallvec![Chunk { dst: start, src: task.src.start + start, len }];
    Gathered { chunks, ..Gathered::default() }
}

/// Search for the older tasks that a run waits for.
struct Search {
    /// Memory that the run writes.
    range: Option<Span>,
    streams: [Option<u64>; 2],
    /// The task's segments, and its destination address.
    task: (Segments, u64),
    /// Segments without which there is no order.
    needed: u32,
    waiting: u32,
    /// The oldest task that the needed segments wait for.
    blocker: Option<Blocker>,
}

impl Search {
    fn of(task: &Task, run: Run) -> Search {
        let Span { start, len } = task.segments.bytes(run);
        let range = task.writes().map(|dst| Span { start: dst.start + start, len });
        let streams = task.streams();
        let needed = if task.is_whole() { run.bits() } else { 1 << run.first };
        let task = (task.segments, task.dst.start);
        Search { range, streams, task, needed, waiting: 0, blocker: None }
    }

    /// Returns the segments that wait for the open segments of an older task, whose range `side`
    /// they touch.
    fn waiting_for(&self, older: &Task, side: Span, open: u32) -> u32 {
        let (segments, dst) = self.task;
        let whole = Span { start: dst, len: segments.len_bytes() };
        let (mut open, mut waiting) = (open, 0);
        while let Some(run) = Run::lowest(open) {
            open &= !run.bits();
            let Span { start, len } = older.segments.bytes(run);
            let bytes = Span { start: side.start + start, len };
            if let Some(met) = bytes.intersection(whole) {
                waiting |= segments.touching(met.start - dst, met.len);
            }
        }
        waiting
    }

    fn note(&mut self, older: Ticket, open: u32, waiting: u32) {
        if open == 0 {
            return;
        }
        self.waiting |= waiting;
        let oldest = self.blocker.is_none_or(|known| older < known.by);
        if waiting & self.needed != 0 && oldest {
            self.blocker = Some(Blocker { by: older, bits: open, waiting });
        }
    }

    fn result(self, run: Run) -> Result<Run, Blocked> {
        if let Some(blocker) = self.blocker {
            return Err(Blocked::Behind(blocker));
        }
        let free = run.bits() & !self.waiting;
        Run::lowest(free).ok_or(Blocked::Busy)
    }
}
