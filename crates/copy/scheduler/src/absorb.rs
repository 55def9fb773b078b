//! Absorption: locates the newest bytes of a source (rule 2).
//!
//! The source of a run is processed from left to right. A part that no older task has still to
//! write is read in place. Otherwise its newest older writer decides, segment by segment. A
//! segment that is copied is read at the writer's destination. A segment that ended without a copy
//! is skipped, and the next older writer decides. A segment that is not copied yet is pinned and
//! read from the writer's source, as of the writer's ticket.

use smallvec::SmallVec;

use crate::Ticket;
use crate::order::Gathered;
use crate::plan::{ABSORB_DEPTH_MAX, Absorb, CHUNKS_MAX, Chunk, Pin};
use crate::plan::{Plan, PlanContext, Progress, Rule};
use crate::resolve::{Blocked, Blocker, plain};
use crate::span::{Run, Span};
use crate::task::{Ending, Kind, Task};

/// A part of a source that is not located yet.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Offset in the task.
    at: u64,
    /// Address range of the bytes.
    from: Span,
    /// Only tasks older than this one count as writers.
    before: Ticket,
    depth: u32,
}

/// A part that cannot be read now.
struct Obstacle {
    at: u64,
    len: u64,
    /// The older task, and its segments, that must be copied first. `None`: the segments are
    /// claimed elsewhere.
    by: Option<(Ticket, u32)>,
}

/// State of a writer's segments, from the view of a reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriterState {
    /// Ended without a copy; the next older writer counts instead.
    Gone,
    /// Claimed for this reader.
    Pinned,
    /// Copied.
    Done,
    /// Not copied, and must be copied first.
    Undone,
    /// Claimed by another thread or order.
    Held,
}

type Parts = SmallVec<[Part; 8]>;

impl Part {
    /// Splits the part behind its first `len` bytes.
    fn split(self, len: u64) -> (Part, Option<Part>) {
        let head = Part { from: Span { start: self.from.start, len }, ..self };
        let from = Span { start: self.from.start + len, len: self.from.len - len };
        let rest = Part { at: self.at + len, from, ..self };
        (head, (from.len > 0).then_some(rest))
    }
}

impl Plan {
    /// Locates the bytes of the run: of the whole run, or of as many of its first segments as can
    /// be read now. The pins stay until the order is finished.
    pub(crate) fn gather<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
        urgent: bool,
    ) -> Result<(Run, Gathered), Blocked> {
        let task = self.table.get(ticket).ok_or(Blocked::Busy)?;
        if !self.holds(Rule::ReadAfterWrite) {
            return Ok((run, plain(task, run)));
        }
        let Span { start: at, len } = task.segments.bytes(run);
        let from = Span { start: task.src.start + at, len };
        let mut parts = Parts::new();
        parts.push(Part { at, from, before: ticket, depth: 0 });
        let mut gathered = Gathered::default();
        while let Some(part) = parts.pop() {
            let found = self.find(context, part, urgent, &mut parts, &mut gathered);
            if let Err(obstacle) = found {
                return self.stop_at(context, ticket, run, obstacle, gathered);
            }
        }
        Ok((run, gathered))
    }

    /// Locates the beginning of a part and pushes the rest onto `parts`.
    fn find<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        part: Part,
        urgent: bool,
        parts: &mut Parts,
        gathered: &mut Gathered,
    ) -> Result<(), Obstacle> {
        let Some((writer, dst)) = self.last_writer(context, part)? else {
            return gathered.read(part);
        };
        if dst.start > part.from.start {
            let (head, rest) = part.split(dst.start - part.from.start);
            parts.extend(rest);
            parts.push(head);
            return Ok(());
        }
        let deep = part.depth >= ABSORB_DEPTH_MAX || gathered.chunks.len() >= CHUNKS_MAX;
        let may_pin = !deep && self.is_worth_absorbing(context, writer, urgent);
        let (state, len) = self.state_of(context, writer, part.from, may_pin, gathered);
        let (head, rest) = part.split(len);
        parts.extend(rest);
        match state {
            WriterState::Gone => parts.push(Part { before: writer, ..head }),
            WriterState::Done => return gathered.read(head),
            WriterState::Pinned => {
                let src = self.table.get(writer).map_or(0, |task| task.src.start);
                let from = Span { start: src + (head.from.start - dst.start), len };
                parts.push(Part { from, before: writer, depth: head.depth + 1, ..head });
            }
            WriterState::Undone => {
                let wanted = self.table.get(writer).map_or(0, |task| task.writing(part.from));
                return Err(Obstacle { at: head.at, len, by: Some((writer, wanted)) });
            }
            WriterState::Held => return Err(Obstacle { at: head.at, len, by: None }),
        }
        Ok(())
    }

    /// Returns the newest task older than the reader that writes a byte of the part.
    fn last_writer<P: Progress>(
        &self,
        context: &mut PlanContext<'_, P>,
        part: Part,
    ) -> Result<Option<(Ticket, Span)>, Obstacle> {
        let mut last: Option<(Ticket, Span)> = None;
        for (writer, dst) in self.writers.touching(part.from) {
            if !context.spend() {
                return Err(Obstacle { at: part.at, len: part.from.len, by: None });
            }
            let newest = self.holds(Rule::NewestWriter);
            let better = last.is_none_or(|(known, _)| (writer > known) == newest);
            if writer < part.before && better {
                last = Some((writer, dst));
            }
        }
        Ok(last)
    }

    fn is_worth_absorbing<P>(
        &self,
        context: &PlanContext<'_, P>,
        writer: Ticket,
        urgent: bool,
    ) -> bool {
        let Some(task) = self.table.get(writer) else { return false };
        if task.kind != Kind::Memory || task.ending == Some(Ending::Failed) {
            return false;
        }
        match self.absorb {
            Absorb::Never => false,
            Absorb::Always => true,
            Absorb::Useful => {
                let lazy = task.lazy_until.is_some_and(|until| until > context.now);
                urgent || lazy || task.ending.is_some()
            }
        }
    }

    /// Returns the state of the writer's segment at `range`'s first byte, and the number of bytes
    /// for which it holds. Segments that are not copied yet are pinned if possible.
    fn state_of<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        writer: Ticket,
        range: Span,
        may_pin: bool,
        gathered: &mut Gathered,
    ) -> (WriterState, u64) {
        let wanted = self.table.get(writer).map_or(0, |task| task.writing(range));
        let first = wanted & wanted.wrapping_neg();
        self.table.look(writer, wanted, context.progress);
        let unpinned = !gathered.pinned(writer) & first;
        let open = self.table.get(writer).map_or(0, |task| task.segments.all() & !task.finished());
        if may_pin && unpinned & open != 0 {
            self.pin(context, writer, wanted & open, gathered);
            self.table.look(writer, wanted, context.progress);
        }
        let Some(task) = self.table.get(writer) else { return (WriterState::Gone, range.len) };
        let pinned = gathered.pinned(writer);
        let done = task.done & !pinned & !task.gone;
        let open = !(task.finished() | pinned);
        let past_done = if self.holds(Rule::InPlace) || !may_pin { 0 } else { done };
        let states = [
            (WriterState::Gone, task.gone),
            (WriterState::Pinned, pinned & !task.gone | past_done),
            (WriterState::Done, done),
            (if may_pin { WriterState::Held } else { WriterState::Undone }, open),
        ];
        let (state, bits) = states
            .into_iter()
            .find(|(_, bits)| bits & first != 0)
            .unwrap_or((WriterState::Held, first));
        (state, common_bytes(task, range, bits))
    }

    /// Pins segments of an absorbed task. Segments that are claimed elsewhere or are done
    /// meanwhile are not pinned.
    fn pin<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        writer: Ticket,
        bits: u32,
        gathered: &mut Gathered,
    ) {
        let (claims, checks) = (self.holds(Rule::Pin), self.holds(Rule::Recheck));
        let Some(task) = self.table.get_mut(writer) else { return };
        // Several orders can share a pin.
        let shared = bits & task.pinned;
        let wanted = bits & task.free();
        let asks = wanted != 0 && claims;
        let claimed = if asks { context.progress.claim(writer, wanted) & wanted } else { 0 };
        task.pinned |= claimed;
        let got = if claims && checks { claimed } else { wanted };
        gathered.add_pin(writer, shared | got);
    }

    /// Shortens the run to the segments before the obstacle, or returns the reason why none is
    /// left.
    fn stop_at<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
        obstacle: Obstacle,
        mut gathered: Gathered,
    ) -> Result<(Run, Gathered), Blocked> {
        let task = self.table.get(ticket).ok_or(Blocked::Busy)?;
        let segments = task.segments;
        let count = segments.at(obstacle.at).saturating_sub(run.first);
        if count > 0 && !task.is_whole() {
            let run = Run { count, ..run };
            gathered.clip(segments.bytes(run));
            return Ok((run, gathered));
        }
        self.unpin(&gathered.pins, context.progress);
        let waiting = segments.touching(obstacle.at, obstacle.len);
        Err(obstacle
            .by
            .map_or(Blocked::Busy, |(by, bits)| Blocked::Behind(Blocker { by, bits, waiting })))
    }
}

/// Returns the number of bytes from the beginning of `range` that the task writes with the
/// segments in `bits`.
fn common_bytes(task: &Task, range: Span, bits: u32) -> u64 {
    let offset = range.start - task.dst.start;
    let first = task.segments.at(offset);
    let count = (bits >> first).trailing_ones().max(1);
    let end = task.segments.bytes(Run { first, count }).end();
    (end - offset).min(range.len)
}

impl Gathered {
    /// Adds a chunk that reads the part in place.
    fn read(&mut self, part: Part) -> Result<(), Obstacle> {
        let Part { at, from: Span { start, len }, .. } = part;
        if let Some(last) = self.chunks.last_mut()
            && last.src + last.len == start
        {
            last.len += len;
            return Ok(());
        }
        if self.chunks.len() >= CHUNKS_MAX {
            // Only pins split the source into several chunks, so copying the last pinned task
            // first reduces their number.
            let by = self.pins.last().map(|pin| (pin.ticket, pin.bits));
            return Err(Obstacle { at, len, by });
        }
        self.chunks.push(Chunk { dst: at, src: start, len });
        Ok(())
    }

    /// Returns the segments of a task that are pinned for this run.
    fn pinned(&self, ticket: Ticket) -> u32 {
        let pins = self.pins.iter().filter(|pin| pin.ticket == ticket);
        pins.fold(0, |bits, pin| bits | pin.bits)
    }

    fn add_pin(&mut self, ticket: Ticket, bits: u32) {
        match self.pins.iter_mut().find(|pin| pin.ticket == ticket) {
            Some(pin) => pin.bits |= bits,
            None if bits != 0 => self.pins.push(Pin { ticket, bits }),
            None => {}
        }
    }

    /// Keeps only the bytes of the chunks within these offsets.
    pub fn clip(&mut self, bytes: Span) {
        self.chunks.retain(|chunk| {
            let Some(kept) = bytes.intersection(Span { start: chunk.dst, len: chunk.len }) else {
                return false;
            };
            let skipped = kept.start - chunk.dst;
            *chunk = Chunk { dst: kept.start, src: chunk.src + skipped, len: kept.len };
            true
        });
    }
}
