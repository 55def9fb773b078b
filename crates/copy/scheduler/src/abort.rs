//! Tasks that end before they are copied (rules 4 and 5).

use smallvec::SmallVec;

use crate::Ticket;
use crate::plan::{CANDIDATES_MAX, Plan, PlanContext, Progress, Rule, Step, enqueue};
use crate::span::{Run, Span};
use crate::task::{Ending, Kind};

impl Plan {
    /// Aborts a task. Dependent tasks are copied first; the segments that are still not copied
    /// then end with [`Step::Abort`]. A receive is copied nevertheless, because its bytes must be
    /// taken out of the stream; they go to the dependent tasks.
    ///
    /// A ticket without a pending task is counted as a stray.
    pub fn abort(&mut self, ticket: Ticket) {
        self.end(ticket, Ending::Aborted);
    }

    /// Records that a copy met a bad address. The runtime marks the order's segments done and the
    /// task as failed, and then calls [`Plan::finished`] as usual. The task's other segments that
    /// are not copied end with [`Step::Abort`]. A task that reads the destination reads the bytes
    /// that are there, as after a `memcpy` that failed in the middle.
    ///
    /// If the address belongs to an absorbed task ([`crate::plan::Order::pins`]), the bad address
    /// may be that task's. The runtime has the address and can distinguish the two; it may also
    /// fail the task that was copied, which could not be copied either way.
    pub fn failed(&mut self, ticket: Ticket) {
        self.end(ticket, Ending::Failed);
    }

    /// Returns true if some segments of the task must end.
    fn ends(&self, ticket: Ticket) -> bool {
        let task = self.table.get(ticket);
        task.is_some_and(|task| task.ending.is_some() || task.lost & !task.finished() != 0)
    }

    fn end(&mut self, ticket: Ticket, why: Ending) {
        let Some(task) = self.table.get_mut(ticket) else {
            self.strays += 1;
            return;
        };
        let before = task.ending;
        if before == Some(why) || before == Some(Ending::Failed) {
            return;
        }
        task.ending = Some(why);
        if before.is_none() {
            enqueue(&mut self.endings, &self.table, ticket);
        }
        // A failed task has no dependents to wait for, so it precedes the tasks that do.
        if why == Ending::Failed {
            self.endings.retain(|other| *other != ticket);
            self.endings.push_front(ticket);
        }
    }

    /// Returns the next segments that can end, or the next copy that must precede an ending.
    pub(crate) fn next_ending<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
    ) -> Option<Step> {
        let mut place = 0;
        while place < self.endings.len().min(CANDIDATES_MAX) && context.work > 0 {
            let ticket = self.endings[place];
            let is_over = self.table.is_finished(ticket, context.progress) || !self.ends(ticket);
            if is_over {
                self.endings.remove(place);
                self.touch(ticket);
                continue;
            }
            if let Some(step) = self.end_some(context, ticket) {
                return Some(step);
            }
            place += 1;
        }
        None
    }

    /// Ends lost segments that were not free when the loss was recorded.
    fn end_lost<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
    ) -> Option<Step> {
        let task = self.table.get_mut(ticket)?;
        let reason = task.reason?;
        let left = task.lost & !(task.finished() | task.held | task.pinned);
        let unclaimed = left & !task.seized;
        let claimed =
            if unclaimed == 0 { 0 } else { context.progress.claim(ticket, unclaimed) & unclaimed };
        let bits = left & task.seized | claimed;
        (task.seized, task.gone) = (task.seized & !bits, task.gone | bits);
        let why = Ending::Lost(reason);
        (bits != 0).then_some(Step::Abort { ticket, bits, why })
    }

    fn end_some<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
    ) -> Option<Step> {
        if let Some(step) = self.end_lost(context, ticket) {
            return Some(step);
        }
        let task = self.table.get(ticket)?;
        let (why, mut free) = (task.ending?, task.free());
        if why == Ending::Aborted && task.kind == Kind::Source && self.holds(Rule::Drain) {
            return self.pursue(context, ticket, u32::MAX, true).map(Step::Copy);
        }
        let mut dependents = Dependents::new();
        if why == Ending::Aborted && self.holds(Rule::DependentsFirst) {
            free &= !self.needed(context, ticket, &mut dependents)?;
        }
        let bits = if free == 0 { 0 } else { context.progress.claim(ticket, free) & free };
        if bits != 0 {
            self.table.get_mut(ticket)?.gone |= bits;
            return Some(Step::Abort { ticket, bits, why });
        }
        let mut attempts = dependents.into_iter();
        attempts
            .find_map(|(reader, bits)| self.attempt(context, reader, bits, true))
            .map(Step::Copy)
    }

    /// Returns the segments of an aborted task that younger tasks have not read yet, and puts
    /// those tasks into `dependents`, at most [`CANDIDATES_MAX`] of them. `None`: the search ran
    /// out of work.
    fn needed<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        dependents: &mut Dependents,
    ) -> Option<u32> {
        let mut needed = 0;
        let Some(written) = self.table.get(ticket)?.writes() else { return Some(0) };
        for (reader, src) in self.readers.touching(written) {
            if !context.spend() {
                return None;
            }
            if reader <= ticket {
                continue;
            }
            let met = self.table.get(reader).map_or(0, |task| task.reading(written));
            let mut open = met & !self.table.look(reader, met, context.progress);
            if open != 0 && dependents.len() < CANDIDATES_MAX {
                dependents.push((reader, open));
            }
            let Some(segments) = self.table.get(reader).map(|task| task.segments) else { continue };
            while let Some(run) = Run::lowest(open) {
                open &= !run.bits();
                let Span { start, len } = segments.bytes(run);
                let bytes = Span { start: src.start + start, len };
                needed |= self.table.get(ticket)?.writing(bytes);
            }
        }
        dependents.sort_unstable();
        Some(needed)
    }
}

/// Tasks that depend on an aborted task, each with the segments that read from it.
type Dependents = SmallVec<[(Ticket, u32); 8]>;
