//! Loss of a stream's bytes (rule 7): dependent tasks end too.

use std::num::NonZeroU16;

use smallvec::SmallVec;

use crate::plan::{Pin, Pins, Plan, PlanContext, Progress, Rule, WORK_MAX, enqueue};
use crate::scatter::{Overwritten, READERS_MAX};
use crate::span::{Run, Span};
use crate::{Micros, Ticket};

impl Plan {
    /// Records that the segments `bits` of a task will not receive their bytes, because a stream
    /// has ended or failed. Segments of younger tasks that would have read them end too,
    /// transitively; a dependent task at a stream ends as a whole. The free ones are claimed here
    /// and returned. The runtime marks the returned segments failed, in reverse order, and then
    /// the segments `bits` themselves. Pinned segments end later ([`crate::plan::Step::Abort`]).
    ///
    /// If the search runs out of work, the remaining dependents copy the bytes that are there.
    pub fn lose<P: Progress>(
        &mut self,
        ticket: Ticket,
        bits: u32,
        reason: NonZeroU16,
        progress: &mut P,
    ) -> Pins {
        let mut claimed = Pins::new();
        if !self.holds(Rule::Losses) {
            return claimed;
        }
        let context =
            &mut PlanContext { progress, now: Micros(0), budget_bytes: 0, work: WORK_MAX };
        let mut lost: SmallVec<[Pin; 4]> = SmallVec::new();
        lost.push(Pin { ticket, bits });
        let mut place = 0;
        while let Some(Pin { ticket, bits }) = lost.get(place).copied() {
            for (reader, needs) in self.dependents_of(context, ticket, bits) {
                let known = self.table.get(reader).map_or(u32::MAX, |task| task.lost);
                if needs & !known != 0 {
                    lost.push(Pin { ticket: reader, bits: needs });
                    claimed.extend(self.lose_some(context, reader, needs, reason));
                }
            }
            place += 1;
        }
        claimed
    }

    /// Returns the younger tasks that have still to read these segments, with their segments that
    /// do.
    fn dependents_of<P: Progress>(
        &self,
        context: &mut PlanContext<'_, P>,
        writer: Ticket,
        bits: u32,
    ) -> SmallVec<[(Ticket, u32); 4]> {
        let mut found = SmallVec::new();
        let Some(task) = self.table.get(writer) else { return found };
        let (Some(dst), segments) = (task.writes(), task.segments) else { return found };
        let mut left = bits & segments.all();
        while let Some(run) = Run::lowest(left) {
            left &= !run.bits();
            let bytes = segments.bytes(run);
            let missing = Span { start: dst.start + bytes.start, len: bytes.len };
            for (reader, _) in self.readers.touching(missing) {
                if !context.spend() || found.len() >= READERS_MAX {
                    return found;
                }
                let needs = match reader > writer {
                    true => self.needs(context, writer, missing, reader),
                    false => 0,
                };
                if needs != 0 {
                    found.push((reader, needs));
                }
            }
        }
        found
    }

    /// Returns the segments of `reader` that need bytes that `writer` should have written.
    fn needs<P: Progress>(
        &self,
        context: &mut PlanContext<'_, P>,
        writer: Ticket,
        missing: Span,
        reader: Ticket,
    ) -> u32 {
        let Some(task) = self.table.get(reader) else { return 0 };
        let open = task.segments.all() & !(task.finished() | task.held);
        let (mut left, mut needs) = (task.reading(missing) & open, 0);
        while left != 0 && context.spend() {
            let run = Run { first: left.trailing_zeros(), count: 1 };
            left &= !run.bits();
            let bytes = task.segments.bytes(run);
            let from = Span { start: task.src.start + bytes.start, len: bytes.len };
            let Some(span) = from.intersection(missing) else { continue };
            if self.overwritten(context, writer, reader, span) != Overwritten::Yes {
                needs |= run.bits();
            }
        }
        if needs != 0 && task.is_whole() { open } else { needs }
    }

    /// Ends segments of a task, and returns the ones that it claimed.
    fn lose_some<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        bits: u32,
        reason: NonZeroU16,
    ) -> Option<Pin> {
        let task = self.table.get_mut(ticket)?;
        let free = bits & task.free();
        task.reason = task.reason.or(Some(reason));
        task.lost |= bits;
        let claimed = if free == 0 { 0 } else { context.progress.claim(ticket, free) & free };
        task.gone |= claimed;
        let is_queued = task.ending.is_some() || self.endings.contains(&ticket);
        if claimed != bits && !is_queued {
            enqueue(&mut self.endings, &self.table, ticket);
        }
        self.touch(ticket);
        (claimed != 0).then_some(Pin { ticket, bits: claimed })
    }
}
