//! Destinations of a stream's bytes (rule 6).
//!
//! A receive is one order for all that remains of it. Its bytes come in the order of the stream
//! and go to the receive's destination. Bytes that are given up there and that exactly one younger
//! task reads go straight to the destination of that task (the *taker*):
//! ```text
//!  stream ─► [ .. | .. | .. ]   chunks, in the order of the stream
//!              │    │    └────► the receive's destination
//!              │    └─────────► a taker's destination
//!              └──────────────► the receive's destination
//! ```
//! The other bytes that a taker's first and last segments read are already in memory, and the same
//! order copies them. A task that cannot take now (its destination is in use, or its segments are
//! claimed) copies later from the receive's destination, where its bytes then are.

use smallvec::SmallVec;

use crate::Ticket;
use crate::order::Gathered;
use crate::plan::{Chunk, Order, Plan, PlanContext, Progress, Rule, SegmentProgress, StreamInput};
use crate::resolve::Blocked;
use crate::span::{Run, Span};
use crate::task::{Ending, Kind};

/// Maximum number of younger readers of one receive that are examined. With more readers, none
/// takes.
pub(crate) const READERS_MAX: usize = 64;
/// Maximum number of takers of one order: each one splits a chunk in two.
const TAKERS_MAX: usize = 16;

/// A younger task that reads bytes which a receive has still to bring.
#[derive(Clone, Copy, Debug)]
struct Reader {
    ticket: Ticket,
    /// The bytes of the receive that it reads.
    span: Span,
    /// Its segments that read them.
    open: u32,
    /// The task may take the bytes to copy them.
    takes: bool,
    /// The task may take the bytes to send them.
    sends: bool,
}

type Readers = SmallVec<[Reader; 4]>;

/// Effect of the tasks between a writer and a reader.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overwritten {
    /// The reader finds the writer's bytes.
    No,
    /// The reader may find the writer's bytes, or some of them.
    Maybe,
    /// The reader finds another task's bytes.
    Yes,
}

impl Plan {
    /// Makes an order for `run`, which is all that remains of a receive.
    pub(crate) fn receive<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
    ) -> Result<Order, Blocked> {
        if let Some(order) = self.send_on(context, ticket, run)? {
            return Ok(order);
        }
        let got = context.progress.claim(ticket, run.bits()) & run.bits();
        if got != run.bits() {
            if got != 0 {
                context.progress.release(ticket, got);
            }
            return Err(Blocked::Busy);
        }
        let gathered = self.scatter(context, ticket, run).ok_or(Blocked::Busy)?;
        self.give_out(ticket, run, gathered).ok_or(Blocked::Busy)
    }

    /// Makes an order of a younger send, if that send is the only reader of all that remains of
    /// the receive and the bytes are given up. The received bytes go from stream to stream, behind
    /// the bytes that the send reads from memory.
    fn send_on<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
    ) -> Result<Option<Order>, Blocked> {
        let Some((sender, coming)) = self.sole_sender(context, ticket, run) else {
            return Ok(None);
        };
        let (Some(task), Some(receive)) = (self.table.get(sender), self.table.get(ticket)) else {
            return Ok(None);
        };
        let (src, all) = (task.src, task.suffix());
        let whole = Run { first: 0, count: task.segments.count() };
        let (stream, segments, dst_base) = (receive.src.start, receive.segments, receive.dst.start);
        let before = Span { start: src.start, len: coming.start.saturating_sub(src.start) };
        let fits = src.end() == coming.end() && all == whole.bits();
        if !fits || before.len > 0 && !self.is_there(context, sender, before) {
            return Ok(None);
        }
        match self.unblocked(context, sender, whole) {
            Ok(_) => {}
            // A task in progress completes by itself.
            Err(Blocked::Behind(first)) if self.is_under_way(first.by) => {
                return Err(Blocked::Busy);
            }
            // Any other task may have to come behind the receive.
            Err(_) => return Ok(None),
        }
        let sent = context.progress.claim(sender, all) & all;
        let taken =
            if sent == all { context.progress.claim(ticket, run.bits()) & run.bits() } else { 0 };
        if taken != run.bits() {
            for (of, bits) in [(sender, sent), (ticket, taken)] {
                if bits != 0 {
                    context.progress.release(of, bits);
                }
            }
            return Err(Blocked::Busy);
        }
        let mut gathered = Gathered::default();
        if before.len > 0 {
            gathered.chunks.push(Chunk { dst: 0, src: before.start, len: before.len });
        }
        let (at, len) = (before.len, coming.len);
        gathered.stream_input = Some(StreamInput { stream, at, len, dst_base: coming.start });
        let (bits, offset) = (run.bits(), dst_base.wrapping_sub(src.start) as i64);
        gathered.segment_progress.push(SegmentProgress { ticket, bits, segments, offset });
        self.give_out(sender, whole, gathered).map(Some).ok_or(Blocked::Busy)
    }

    fn is_under_way(&self, ticket: Ticket) -> bool {
        self.table.get(ticket).is_some_and(|task| task.held != 0)
    }

    /// Returns the only task that reads the rest of a receive, if it sends all of it.
    fn sole_sender<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
    ) -> Option<(Ticket, Span)> {
        let task = self.table.get(ticket)?;
        let bytes = task.segments.bytes(run);
        let coming = Span { start: task.dst.start + bytes.start, len: bytes.len };
        match self.readers_of(context, ticket, coming)[..] {
            [Reader { ticket, span, sends: true, .. }] if span == coming => Some((ticket, span)),
            _ => None,
        }
    }

    /// Determines the destinations of the run's bytes.
    fn scatter<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
    ) -> Option<Gathered> {
        let task = self.table.get(ticket)?;
        let (dst_base, bytes) = (task.dst.start, task.segments.bytes(run));
        let coming = Span { start: dst_base + bytes.start, len: bytes.len };
        let mut gathered = Gathered::default();
        // The sources here are addresses in the receive's destination.
        let mut taken: SmallVec<[Chunk; 4]> = SmallVec::new();
        let readers = self.readers_of(context, ticket, coming);
        for reader in readers.iter().filter(|reader| reader.takes) {
            if taken.len() < TAKERS_MAX {
                taken.extend(self.take(context, reader, dst_base, coming, &mut gathered));
            }
        }
        taken.sort_unstable_by_key(|chunk| chunk.src);
        let mut at = coming.start;
        for chunk in taken {
            gathered.lay(dst_base, at, chunk.src);
            gathered.chunks.push(Chunk { src: chunk.src - dst_base, ..chunk });
            at = chunk.src + chunk.len;
        }
        gathered.lay(dst_base, at, coming.end());
        Some(gathered)
    }

    /// Returns the readers of the coming bytes, with their permission to take them. Empty if there
    /// are too many readers or the search runs out of work.
    fn readers_of<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        coming: Span,
    ) -> Readers {
        let Some(task) = self.table.get(ticket) else { return Readers::new() };
        let is_aborted = task.ending == Some(Ending::Aborted);
        let mut readers = Readers::new();
        for (reader, src) in self.readers.touching(coming) {
            if !context.spend() || readers.len() >= READERS_MAX {
                return Readers::new();
            }
            let Some(span) = src.intersection(coming).filter(|_| reader > ticket) else { continue };
            let met = self.table.get(reader).map_or(0, |task| task.reading(coming));
            let open = met & !self.table.look(reader, met, context.progress);
            let Some(task) = self.table.get(reader).filter(|_| open != 0) else { continue };
            let is_given_up = is_aborted || task.last_use || !self.holds(Rule::GivenUp);
            let may = is_given_up && task.ending.is_none();
            let (takes, sends) = (may && task.kind == Kind::Memory, may && task.kind == Kind::Sink);
            readers.push(Reader { ticket: reader, span, open, takes, sends });
        }
        for reader in &mut readers {
            match self.overwritten(context, ticket, reader.ticket, reader.span) {
                Overwritten::No => {}
                Overwritten::Maybe => (reader.takes, reader.sends) = (false, false),
                Overwritten::Yes => reader.open = 0,
            }
        }
        readers.retain(|reader| reader.open != 0);
        self.leave_alone_what_two_read(&mut readers);
        readers
    }

    fn leave_alone_what_two_read(&self, readers: &mut Readers) {
        if !self.holds(Rule::SoleTaker) {
            return;
        }
        for place in 0..readers.len() {
            let reader = readers[place];
            let touches =
                |other: &Reader| other.ticket != reader.ticket && other.span.touches(reader.span);
            readers[place].takes = reader.takes && !readers.iter().any(touches);
        }
    }

    /// Returns what `reader` finds in `span`, where `writer` writes: younger writers that are
    /// older than the reader may overwrite it.
    pub(crate) fn overwritten<P: Progress>(
        &self,
        context: &mut PlanContext<'_, P>,
        writer: Ticket,
        reader: Ticket,
        span: Span,
    ) -> Overwritten {
        let mut overwritten = Overwritten::No;
        if !self.holds(Rule::NothingBetween) {
            return overwritten;
        }
        for (other, dst) in self.writers.touching(span) {
            if !context.spend() {
                return Overwritten::Maybe;
            }
            if other <= writer || other >= reader {
                continue;
            }
            let Some(task) = self.table.get(other) else { continue };
            let is_sure = task.gone == 0 && task.ending.is_none();
            if is_sure && dst.start <= span.start && dst.end() >= span.end() {
                return Overwritten::Yes;
            }
            overwritten = Overwritten::Maybe;
        }
        overwritten
    }

    /// Claims the segments that a reader can take, and returns their destination as a chunk.
    fn take<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        reader: &Reader,
        dst_base: u64,
        coming: Span,
        gathered: &mut Gathered,
    ) -> Option<Chunk> {
        let ticket = reader.ticket;
        let run = Run::lowest(reader.open & self.table.get(ticket)?.free())?;
        let run = self.unblocked(context, ticket, run).ok()?;
        let run = self.without_edges(context, ticket, run, coming)?;
        let got = context.progress.claim(ticket, run.bits()) & run.bits();
        let kept = Run::lowest(got);
        let surplus = got & !kept.map_or(0, Run::bits);
        if surplus != 0 {
            context.progress.release(ticket, surplus);
        }
        let (kept, task) = (kept?, self.table.get(ticket)?);
        let (bytes, (dst, src)) = (task.segments.bytes(kept), (task.dst.start, task.src.start));
        let from = Span { start: src + bytes.start, len: bytes.len };
        let chunk =
            |span: Span| Chunk { dst: dst + (span.start - src), src: span.start, len: span.len };
        gathered.copies.extend(edges(from, coming).map(chunk));
        let (bits, segments) = (kept.bits(), task.segments);
        let offset = src.wrapping_sub(dst_base) as i64;
        gathered.segment_progress.push(SegmentProgress { ticket, bits, segments, offset });
        from.intersection(coming).map(chunk)
    }

    /// Removes the segments that read bytes which are neither coming nor in memory.
    fn without_edges<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        run: Run,
        coming: Span,
    ) -> Option<Run> {
        let task = self.table.get(ticket)?;
        let (src, bytes) = (task.src, task.segments.bytes(run));
        let from = Span { start: src.start + bytes.start, len: bytes.len };
        let mut kept = run.bits();
        for edge in edges(from, coming) {
            if self.holds(Rule::Edges) && !self.is_there(context, ticket, edge) {
                kept &= !self.table.get(ticket)?.reading(edge);
            }
        }
        Run::lowest(kept)
    }

    /// Returns true if no older task has still to write a byte of `span`.
    fn is_there<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
        span: Span,
    ) -> bool {
        for (writer, _) in self.writers.touching(span) {
            if !context.spend() {
                return false;
            }
            let met = self.table.get(writer).map_or(0, |task| task.writing(span));
            if writer < ticket && met & !self.table.look(writer, met, context.progress) != 0 {
                return false;
            }
        }
        true
    }
}

impl Gathered {
    /// Sends the bytes from address `at` to `end` to the receive's destination.
    fn lay(&mut self, dst_base: u64, at: u64, end: u64) {
        if at < end {
            self.chunks.push(Chunk { dst: at, src: at - dst_base, len: end - at });
        }
    }
}

/// Returns the parts of a span before and behind another span that it touches.
fn edges(from: Span, coming: Span) -> impl Iterator<Item = Span> {
    let before = Span { start: from.start, len: coming.start.saturating_sub(from.start) };
    let behind = Span { start: coming.end(), len: from.end().saturating_sub(coming.end()) };
    [before, behind].into_iter().filter(|edge| edge.len > 0)
}
