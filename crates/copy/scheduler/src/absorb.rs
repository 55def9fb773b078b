//! Where the newest bytes of a source are (rule 2).
//!
//! The source of a run is taken apart from left to right. A part that no older task has still to
//! write is read where it is. Else the newest of its writers decides, segment by segment: what it
//! has written is read where it is; what it will not write belongs to the writer before it; what
//! it has still to write is pinned, and read where *it* would read it, as of its own ticket.

use smallvec::SmallVec;

use crate::Ticket;
use crate::plan::{ABSORB_DEPTH_MAX, Absorb, PIECES_MAX, Piece, Pieces, Pin, Pins};
use crate::plan::{Inlet, Landings};
use crate::plan::{Plan, Progress, Rule, Turn};
use crate::resolve::{Blocker, Stuck, plain};
use crate::span::{Run, Span};
use crate::task::{Ending, Kind, Task};

/// Where a run's bytes are, by offset in the task, and what keeps them there.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub pieces: Pieces,
    pub pins: Pins,
    /// Of a task at a stream.
    pub landings: Landings,
    /// What is to be copied besides.
    pub copies: Vec<Piece>,
    pub inlet: Option<Inlet>,
}

/// Bytes of a source still to be found.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Their offset in the task.
    at: u64,
    /// Where they are read,
    from: Span,
    /// as tasks older than this one leave them.
    before: Ticket,
    depth: u32,
}

/// What cannot be read now: the part at this offset, this long.
struct Hurdle {
    at: u64,
    len: u64,
    /// The older task, and its segments, that must be copied first; `None`: somebody has them.
    by: Option<(Ticket, u32)>,
}

/// What a writer's segments are, for who reads what they write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Ended without a copy: this writer does not count.
    Gone,
    /// Claimed for this reader.
    Pinned,
    /// Copied.
    Done,
    /// To be copied first.
    Undone,
    /// Somebody has it.
    Held,
}

type Parts = SmallVec<[Part; 8]>;

impl Part {
    /// The first `len` bytes, and the rest.
    fn split(self, len: u64) -> (Part, Option<Part>) {
        let head = Part { from: Span { start: self.from.start, len }, ..self };
        let from = Span { start: self.from.start + len, len: self.from.len - len };
        let rest = Part { at: self.at + len, from, ..self };
        (head, (from.len > 0).then_some(rest))
    }
}

impl Plan {
    /// Where the bytes of the run are now: of the whole run, or of as many of its first segments as
    /// can be had. What is pinned for them stays so until the order is over.
    pub(crate) fn gather<P: Progress>(
        &mut self,
        turn: &mut Turn<'_, P>,
        ticket: Ticket,
        run: Run,
        urgent: bool,
    ) -> Result<(Run, Gathered), Stuck> {
        let task = self.table.get(ticket).ok_or(Stuck::Busy)?;
        if !self.holds(Rule::ReadAfterWrite) {
            return Ok((run, plain(task, run)));
        }
        let Span { start: at, len } = task.segments.bytes(run);
        let from = Span { start: task.src.start + at, len };
        let mut parts = Parts::new();
        parts.push(Part { at, from, before: ticket, depth: 0 });
        let mut gathered = Gathered::default();
        while let Some(part) = parts.pop() {
            let found = self.find(turn, part, urgent, &mut parts, &mut gathered);
            if let Err(hurdle) = found {
                return self.stop_at(turn, ticket, run, hurdle, gathered);
            }
        }
        Ok((run, gathered))
    }

    /// Finds a part's beginning, and leaves its rest among the parts.
    fn find<P: Progress>(
        &mut self,
        turn: &mut Turn<'_, P>,
        part: Part,
        urgent: bool,
        parts: &mut Parts,
        gathered: &mut Gathered,
    ) -> Result<(), Hurdle> {
        let Some((writer, dst)) = self.last_writer(turn, part)? else {
            return gathered.read(part);
        };
        if dst.start > part.from.start {
            let (head, rest) = part.split(dst.start - part.from.start);
            parts.extend(rest);
            parts.push(head);
            return Ok(());
        }
        let deep = part.depth >= ABSORB_DEPTH_MAX || gathered.pieces.len() >= PIECES_MAX;
        let may_pin = !deep && self.is_worth_absorbing(turn, writer, urgent);
        let (state, len) = self.state_of(turn, writer, part.from, may_pin, gathered);
        let (head, rest) = part.split(len);
        parts.extend(rest);
        match state {
            State::Gone => parts.push(Part { before: writer, ..head }),
            State::Done => return gathered.read(head),
            State::Pinned => {
                let src = self.table.get(writer).map_or(0, |task| task.src.start);
                let from = Span { start: src + (head.from.start - dst.start), len };
                parts.push(Part { from, before: writer, depth: head.depth + 1, ..head });
            }
            State::Undone => {
                let wanted = self.table.get(writer).map_or(0, |task| task.writing(part.from));
                return Err(Hurdle { at: head.at, len, by: Some((writer, wanted)) });
            }
            State::Held => return Err(Hurdle { at: head.at, len, by: None }),
        }
        Ok(())
    }

    /// The newest of the tasks that write some of the part and are older than who reads it.
    fn last_writer<P: Progress>(
        &self,
        turn: &mut Turn<'_, P>,
        part: Part,
    ) -> Result<Option<(Ticket, Span)>, Hurdle> {
        let mut last: Option<(Ticket, Span)> = None;
        for (writer, dst) in self.writers.touching(part.from) {
            if !turn.spend() {
                return Err(Hurdle { at: part.at, len: part.from.len, by: None });
            }
            let newest = self.holds(Rule::NewestWriter);
            let better = last.is_none_or(|(known, _)| (writer > known) == newest);
            if writer < part.before && better {
                last = Some((writer, dst));
            }
        }
        Ok(last)
    }

    fn is_worth_absorbing<P>(&self, turn: &Turn<'_, P>, writer: Ticket, urgent: bool) -> bool {
        let Some(task) = self.table.get(writer) else { return false };
        if task.kind != Kind::Memory || task.ending == Some(Ending::Failed) {
            return false;
        }
        match self.absorb {
            Absorb::Never => false,
            Absorb::Always => true,
            Absorb::Useful => {
                let lazy = task.lazy_until.is_some_and(|until| until > turn.now);
                urgent || lazy || task.ending.is_some()
            }
        }
    }

    /// What the writer of `range`'s first byte has done about it, and for how many bytes that
    /// holds. Where it has still to write them, they are pinned if possible.
    fn state_of<P: Progress>(
        &mut self,
        turn: &mut Turn<'_, P>,
        writer: Ticket,
        range: Span,
        may_pin: bool,
        gathered: &mut Gathered,
    ) -> (State, u64) {
        let wanted = self.table.get(writer).map_or(0, |task| task.writing(range));
        let first = wanted & wanted.wrapping_neg();
        self.table.look(writer, wanted, turn.progress);
        let unpinned = !gathered.pinned(writer) & first;
        let open = self.table.get(writer).map_or(0, |task| task.segments.all() & !task.finished());
        if may_pin && unpinned & open != 0 {
            self.pin(turn, writer, wanted & open, gathered);
            self.table.look(writer, wanted, turn.progress);
        }
        let Some(task) = self.table.get(writer) else { return (State::Gone, range.len) };
        let pinned = gathered.pinned(writer);
        let done = task.done & !pinned & !task.gone;
        let open = !(task.finished() | pinned);
        let past_done = if self.holds(Rule::InPlace) || !may_pin { 0 } else { done };
        let states = [
            (State::Gone, task.gone),
            (State::Pinned, pinned & !task.gone | past_done),
            (State::Done, done),
            (if may_pin { State::Held } else { State::Undone }, open),
        ];
        let (state, bits) =
            states.into_iter().find(|(_, bits)| bits & first != 0).unwrap_or((State::Held, first));
        (state, common_bytes(task, range, bits))
    }

    /// Claims segments of a task that is read past; what others have, or what is done meanwhile,
    /// is not pinned.
    fn pin<P: Progress>(
        &mut self,
        turn: &mut Turn<'_, P>,
        writer: Ticket,
        bits: u32,
        gathered: &mut Gathered,
    ) {
        let (claims, checks) = (self.holds(Rule::Pin), self.holds(Rule::Recheck));
        let Some(task) = self.table.get_mut(writer) else { return };
        // What another order has pinned can be read past twice.
        let shared = bits & task.pinned;
        let wanted = bits & task.free();
        let asks = wanted != 0 && claims;
        let claimed = if asks { turn.progress.claim(writer, wanted) & wanted } else { 0 };
        task.pinned |= claimed;
        let got = if claims && checks { claimed } else { wanted };
        gathered.add_pin(writer, shared | got);
    }

    /// The run without what cannot be read; or why it is empty then.
    fn stop_at<P: Progress>(
        &mut self,
        turn: &mut Turn<'_, P>,
        ticket: Ticket,
        run: Run,
        hurdle: Hurdle,
        mut gathered: Gathered,
    ) -> Result<(Run, Gathered), Stuck> {
        let task = self.table.get(ticket).ok_or(Stuck::Busy)?;
        let segments = task.segments;
        let count = segments.at(hurdle.at).saturating_sub(run.first);
        if count > 0 && !task.is_whole() {
            let run = Run { count, ..run };
            gathered.clip(segments.bytes(run));
            return Ok((run, gathered));
        }
        self.unpin(&gathered.pins, turn.progress);
        let waiting = segments.touching(hurdle.at, hurdle.len);
        Err(hurdle
            .by
            .map_or(Stuck::Busy, |(by, bits)| Stuck::Behind(Blocker { by, bits, waiting })))
    }
}

/// How many bytes from the beginning of `range` the task writes with the segments in `bits`.
fn common_bytes(task: &Task, range: Span, bits: u32) -> u64 {
    let offset = range.start - task.dst.start;
    let first = task.segments.at(offset);
    let count = (bits >> first).trailing_ones().max(1);
    let end = task.segments.bytes(Run { first, count }).end();
    (end - offset).min(range.len)
}

impl Gathered {
    /// Reads a part where it is.
    fn read(&mut self, part: Part) -> Result<(), Hurdle> {
        let Part { at, from: Span { start, len }, .. } = part;
        if let Some(last) = self.pieces.last_mut()
            && last.src + last.len == start
        {
            last.len += len;
            return Ok(());
        }
        if self.pieces.len() >= PIECES_MAX {
            // More than one piece comes of pins only: with the last one copied there are fewer.
            let by = self.pins.last().map(|pin| (pin.ticket, pin.bits));
            return Err(Hurdle { at, len, by });
        }
        self.pieces.push(Piece { dst: at, src: start, len });
        Ok(())
    }

    /// The segments of a task that are pinned here.
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

    /// Leaves the pieces' bytes within these offsets.
    pub fn clip(&mut self, bytes: Span) {
        self.pieces.retain(|piece| {
            let Some(kept) = bytes.intersection(Span { start: piece.dst, len: piece.len }) else {
                return false;
            };
            let skipped = kept.start - piece.dst;
            *piece = Piece { dst: kept.start, src: piece.src + skipped, len: kept.len };
            true
        });
    }
}
