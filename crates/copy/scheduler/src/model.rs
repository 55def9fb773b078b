//! Tests the plan against a model: memory as bytes, a client that submits, syncs, copies segments
//! itself, reads, writes and aborts, and a service whose orders are copied byte by byte, all at
//! random times.
//!
//! The oracle is the same program with `memcpy`: each read after a sync must return the bytes that
//! it would return there. Bytes that an aborted or failed copy did not write are unknown, and so
//! are later copies of them.

mod oracle;
mod shared;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;

use unlade_testkit::Random;

use crate::plan::{Absorb, Chunk, Order, Plan, Progress, Rule, Step, StreamInput};
use crate::span::{Run, Segments, Span};
use crate::task::{Ending, Kind, Request};
use crate::{Micros, Ticket};
use oracle::{Oracle, stream_byte};
use shared::ProgressWords;

const MEMORY_BYTES: u64 = 160;
const STREAMS: u64 = 2;
const PENDING_MAX: usize = 14;
const JOBS_MAX: usize = 6;
/// Far above the number of queries in one step with this number of tasks.
const QUESTIONS_MAX: u32 = 1000;
/// Far above the number of steps in any case.
const STEPS_MAX: usize = 100_000;

const REASON: NonZeroU16 = NonZeroU16::MIN;

type Checked<T = ()> = Result<T, String>;

fn check(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// An action of the client, in program order.
#[derive(Clone)]
enum Event {
    Copy(Ticket),
    Write(Span, u8),
    /// With the segments that were done at that time.
    Abort(Ticket, u32),
}

enum Message {
    Submit(Ticket),
    Promote(Ticket, u32),
    Abort(Ticket),
    Hurry,
}

#[derive(Clone)]
struct TaskRecord {
    request: Request,
    segments: Segments,
    failed: bool,
    aborted: bool,
    retired: bool,
    /// Segments that were marked lost, because a stream did not bring all of their bytes.
    lost: u32,
    /// The task is a send of lost bytes, and sent nothing.
    unsent: bool,
}

impl TaskRecord {
    fn side(&self, of: Span, range: Span) -> u32 {
        of.intersection(range)
            .map_or(0, |met| self.segments.touching(met.start - of.start, met.len))
    }
    /// Returns the destination and source ranges of a segment.
    fn bytes_of(&self, bit: u32) -> (Span, Span) {
        let bytes = self.segments.bytes(Run::lowest(bit).unwrap());
        let side = |of: Span| Span { start: of.start + bytes.start, len: bytes.len };
        (side(self.request.dst), side(self.request.src))
    }
    fn writing(&self, range: Span) -> u32 {
        let writes = matches!(self.request.kind, Kind::Memory | Kind::Source);
        if writes { self.side(self.request.dst, range) } else { 0 }
    }
    fn reading(&self, range: Span) -> u32 {
        let reads = matches!(self.request.kind, Kind::Memory | Kind::Sink);
        if reads { self.side(self.request.src, range) } else { 0 }
    }
    fn streams(&self) -> Vec<u64> {
        let Request { dst, src, kind, .. } = self.request;
        match kind {
            Kind::Memory => vec![],
            Kind::Source => vec![src.start],
            Kind::Sink => vec![dst.start],
            Kind::Relay => vec![src.start, dst.start],
        }
    }
}

/// Location of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory(u64),
    Stream(u64, u64),
}

/// A copy in progress.
struct Job {
    /// `None` for a copy by the client.
    order: Option<Order>,
    ticket: Ticket,
    bits: u32,
    moves: Vec<(Place, Place)>,
    copied: usize,
    /// At a stream: the moves before this index are between memory; the later ones go in order.
    copies: usize,
    /// Segments that were marked done, for each entry of the order's progress list.
    marked: Vec<u32>,
    /// Offset in the task of the first byte from the stream.
    start: u64,
}

#[derive(Clone, Copy)]
enum Access {
    Read(Span),
    Write(Span),
}

struct World<'a> {
    random: &'a mut Random,
    plan: Plan,
    now: Micros,
    bytes: Vec<u8>,
    sent: Vec<Vec<u8>>,
    received: [u64; STREAMS as usize],
    /// End positions of streams that have ended.
    ended: [Option<u64>; STREAMS as usize],
    /// Segments that depend on bytes that did not come.
    dependents: Vec<(Ticket, u32)>,
    shared: ProgressWords,
    tasks: BTreeMap<Ticket, TaskRecord>,
    log: Vec<Event>,
    inbox: VecDeque<Message>,
    jobs: Vec<Job>,
    access: Option<Access>,
    budget_bytes: u64,
    /// The client leaves all copying to the service.
    is_passive: bool,
}

impl Job {
    fn new(
        order: Option<Order>,
        ticket: Ticket,
        bits: u32,
        moves: Vec<(Place, Place)>,
        copies: usize,
        start: u64,
    ) -> Job {
        let marked = vec![0; order.as_ref().map_or(0, |order| order.segment_progress.len())];
        Job { order, ticket, bits, moves, copied: 0, copies, marked, start }
    }

    fn is_in_order(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.kind != Kind::Memory)
    }
}

impl World<'_> {
    fn new(random: &mut Random, off: Option<Rule>) -> World<'_> {
        let absorb = random.pick(&[Absorb::Never, Absorb::Useful, Absorb::Useful, Absorb::Always]);
        let mut plan = Plan::new(absorb);
        plan.off = off;
        let budget_bytes = random.pick(&[1, 8, 30, 1000]);
        let is_passive = random.once_in(4);
        World {
            random,
            plan,
            now: Micros(0),
            bytes: (0..MEMORY_BYTES).map(|at| at as u8).collect(),
            sent: vec![Vec::new(); STREAMS as usize],
            received: [0; STREAMS as usize],
            ended: [None; STREAMS as usize],
            dependents: Vec::new(),
            shared: ProgressWords::default(),
            tasks: BTreeMap::new(),
            log: Vec::new(),
            inbox: VecDeque::new(),
            jobs: Vec::new(),
            access: None,
            budget_bytes,
            is_passive,
        }
    }

    /// Runs the program with `memcpy` instead.
    fn oracle(&self) -> Oracle {
        self.oracle_without(None)
    }

    /// As [`World::oracle`], with the dependents of the bytes that `short` did not receive.
    fn oracle_without(&self, short: Option<Ticket>) -> Oracle {
        let mut oracle = Oracle::new(self.ended, short);
        for event in &self.log {
            match event {
                Event::Write(span, value) => oracle.write(*span, *value),
                Event::Copy(ticket) => oracle.copy(*ticket, &self.tasks[ticket]),
                Event::Abort(ticket, done) => oracle.abort(*ticket, &self.tasks[ticket], *done),
            }
        }
        oracle
    }

    fn some_span(&mut self, len_max: u64) -> Span {
        let len = 1 + self.random.below(len_max);
        Span { start: self.random.below(MEMORY_BYTES - len + 1), len }
    }

    /// Returns a range near a side of an earlier copy, so that chains and overlaps are frequent.
    fn related_span(&mut self, len: u64) -> Span {
        let recent: Vec<_> = self.tasks.values().rev().take(5).map(|known| known.request).collect();
        let start = match recent.get(self.random.below(recent.len())) {
            Some(request) if !self.random.once_in(4) => {
                let side = if self.random.once_in(4) { request.src } else { request.dst };
                let shift = if self.random.once_in(2) { self.random.below(16) } else { 8 };
                (side.start + shift).saturating_sub(8)
            }
            _ => self.random.below(MEMORY_BYTES),
        };
        Span { start: start.min(MEMORY_BYTES - len), len }
    }

    fn submit(&mut self) {
        let len = 1 + self.random.below(36);
        let (mut dst, mut src) = (self.related_span(len), self.related_span(len));
        if self.random.once_in(2) {
            std::mem::swap(&mut dst, &mut src);
        }
        let kind = match self.random.below(16) {
            0..3 => Kind::Source,
            3 => Kind::Sink,
            4 if self.random.once_in(2) => Kind::Relay,
            _ => Kind::Memory,
        };
        match kind {
            Kind::Memory if dst.touches(src) => return,
            Kind::Memory => {}
            Kind::Source => src.start = self.random.below(STREAMS),
            Kind::Sink => dst.start = self.random.below(STREAMS),
            Kind::Relay => {
                (src.start, dst.start) = (self.random.below(STREAMS), self.random.below(STREAMS));
            }
        }
        let least = (0..).find(|shift| Segments::new(len, *shift).is_some()).unwrap();
        let granule_shift = least + self.random.below(4) as u8;
        let lazy_until =
            self.random.once_in(3).then(|| Micros(self.now.0 + self.random.below(2000)));
        let may_give_up = matches!(kind, Kind::Memory | Kind::Sink);
        let last_use = may_give_up && self.random.once_in(4);
        let request = Request { dst, src, granule_shift, lazy_until, kind, last_use };
        let ticket = Ticket(self.tasks.last_key_value().map_or(7, |(last, _)| last.0 + 1));
        let segments = Segments::new(len, granule_shift).unwrap();
        let known = TaskRecord {
            request,
            segments,
            failed: false,
            aborted: false,
            retired: false,
            lost: 0,
            unsent: false,
        };
        self.tasks.insert(ticket, known);
        self.shared.words.insert(ticket, (0, 0));
        self.log.push(Event::Copy(ticket));
        self.inbox.push_back(Message::Submit(ticket));
    }

    fn open(&self, ticket: Ticket) -> u32 {
        self.tasks[&ticket].segments.all() & !self.shared.done(ticket)
    }

    fn pending(&self) -> Vec<Ticket> {
        self.tasks.keys().copied().filter(|ticket| self.open(*ticket) != 0).collect()
    }

    /// Returns the segments that the client must wait for before this access.
    fn needs(&self, access: Access) -> Vec<(Ticket, u32)> {
        let of = |ticket: &Ticket| {
            let task = &self.tasks[ticket];
            let bits = match access {
                Access::Read(span) => task.writing(span),
                Access::Write(span) => task.writing(span) | task.reading(span),
            };
            (*ticket, bits & self.open(*ticket))
        };
        self.pending().iter().map(of).filter(|(_, bits)| *bits != 0).collect()
    }

    fn client(&mut self) -> Checked {
        if let Some(access) = self.access {
            let needs = self.needs(access);
            if needs.is_empty() {
                self.access = None;
                return self.perform(access);
            }
            if !self.is_passive {
                self.help()?;
            }
            return Ok(());
        }
        let pending = self.pending();
        match self.random.below(12) {
            0..6 if pending.len() < PENDING_MAX => self.submit(),
            6 | 7 => self.begin(Access::Read),
            8 | 9 => self.begin(Access::Write),
            10 => {
                let memory = |ticket: &Ticket| {
                    let known = &self.tasks[ticket];
                    let can = matches!(known.request.kind, Kind::Memory | Kind::Source);
                    can && !known.aborted
                };
                let some: Vec<_> = pending.into_iter().filter(memory).collect();
                let place = self.random.below(some.len());
                let Some(&ticket) = some.get(place) else { return Ok(()) };
                self.log.push(Event::Abort(ticket, self.shared.done(ticket)));
                self.inbox.push_back(Message::Abort(ticket));
                self.tasks.get_mut(&ticket).unwrap().aborted = true;
            }
            _ if self.random.once_in(6) => self.inbox.push_back(Message::Hurry),
            _ if !self.is_passive => self.help()?,
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, access: fn(Span) -> Access) {
        let access = access(self.some_span(24));
        for (ticket, bits) in self.needs(access) {
            self.inbox.push_back(Message::Promote(ticket, bits));
        }
        self.access = Some(access);
    }

    fn perform(&mut self, access: Access) -> Checked {
        let (Access::Read(span) | Access::Write(span)) = access;
        let oracle = self.oracle();
        for at in span.start..span.end() {
            let (is, should) = (self.bytes[at as usize], oracle.bytes[at as usize]);
            check(should.is_none_or(|should| should == is), || {
                format!("byte {at} read as {is}, should be {should:?}")
            })?;
        }
        if let Access::Write(_) = access {
            let value = self.random.next() as u8;
            self.bytes[span.start as usize..span.end() as usize].fill(value);
            self.log.push(Event::Write(span, value));
        }
        Ok(())
    }

    /// Copies a segment in the client, if no older task precedes it.
    fn help(&mut self) -> Checked {
        let pending = self.pending();
        let Some(&ticket) = pending.get(self.random.below(pending.len())) else { return Ok(()) };
        let task = &self.tasks[&ticket];
        if self.jobs.len() >= 2 * JOBS_MAX {
            return Ok(());
        }
        match task.request.kind {
            Kind::Memory => {}
            Kind::Source => return self.help_to_receive(ticket),
            Kind::Sink | Kind::Relay => return Ok(()),
        }
        let bit = 1 << self.random.below(u64::from(task.segments.count()));
        let (dst, src) = task.bytes_of(bit);
        if self.comes_first(ticket, dst, src) && self.shared.claim(ticket, bit) == bit {
            let moves = (0..dst.len)
                .map(|at| (Place::Memory(dst.start + at), Place::Memory(src.start + at)))
                .collect();
            self.begin_job(Job::new(None, ticket, bit, moves, 0, 0))?;
        }
        Ok(())
    }

    /// Receives the next few segments in the client.
    fn help_to_receive(&mut self, ticket: Ticket) -> Checked {
        let task = &self.tasks[&ticket];
        let (stream, open) = (task.request.src.start, self.open(ticket));
        let before = |(older, known): (&Ticket, &TaskRecord)| {
            known.streams().contains(&stream) && self.open(*older) != 0
        };
        if self.tasks.range(..ticket).any(before) || self.ended[stream as usize].is_some() {
            return Ok(());
        }
        let first = open.trailing_zeros();
        let count = 1 + self.random.below(u64::from(task.segments.count() - first)) as u32;
        let run = Run { first, count };
        let bytes = task.segments.bytes(run);
        let dst = Span { start: task.request.dst.start + bytes.start, len: bytes.len };
        let nothing = Span { start: 0, len: 0 };
        let claimed = self.shared.words[&ticket].1 & run.bits() != 0;
        if claimed || !self.comes_first(ticket, dst, nothing) {
            return Ok(());
        }
        let at = self.received[stream as usize];
        self.received[stream as usize] += dst.len;
        self.shared.claim(ticket, run.bits());
        let byte = |of| (Place::Memory(dst.start + of), Place::Stream(stream, at + of));
        let moves = (0..dst.len).map(byte).collect();
        self.begin_job(Job::new(None, ticket, run.bits(), moves, 0, bytes.start))
    }

    /// Returns true if no older task has still to touch these bytes of a task (rule 1).
    fn comes_first(&self, ticket: Ticket, dst: Span, src: Span) -> bool {
        self.tasks.range(..ticket).all(|(older, known)| {
            let before = known.writing(dst) | known.reading(dst) | known.writing(src);
            before & self.open(*older) == 0
        })
    }

    /// Returns true if the service could copy some of this task without absorption.
    fn is_ready(&self, ticket: Ticket) -> bool {
        let task = &self.tasks[&ticket];
        let ordinary = task.request.kind == Kind::Memory && task.request.lazy_until.is_none();
        let marked = |message: &Message| matches!(message, Message::Submit(of) if *of == ticket);
        if !ordinary || task.aborted || task.failed || self.inbox.iter().any(marked) {
            return false;
        }
        (0..task.segments.count()).map(|number| 1 << number).any(|bit| {
            let (done, claimed) = self.shared.words[&ticket];
            let (dst, src) = task.bytes_of(bit);
            bit & (done | claimed) == 0 && self.comes_first(ticket, dst, src)
        })
    }

    fn begin_job(&mut self, mut job: Job) -> Checked {
        // With a rule switched off, the violation must show in the bytes.
        let others = if self.plan.off.is_none() { &self.jobs[..] } else { &[] };
        for other in others {
            for (dst, src) in &job.moves {
                let clash = |(to, from): &(Place, Place)| to == dst || to == src || from == dst;
                // Bytes that have passed through a stream may be marked already.
                let over = if other.is_in_order() { other.copied } else { 0 };
                let clash = other.moves[over..].iter().find(|moved| clash(moved));
                check(clash.is_none(), || {
                    format!("{:?} and {:?} at once: {clash:?}", job.ticket, other.ticket)
                })?;
            }
        }
        for at in (1..job.moves.len()).rev() {
            if job.is_in_order() {
                break;
            }
            job.moves.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        self.jobs.push(job);
        Ok(())
    }

    /// Turns an order into byte moves.
    fn take(&mut self, order: Order) -> Checked {
        let task = &self.tasks[&order.ticket];
        let (segments, request) = (task.segments, task.request);
        let copied = |chunk: &Chunk| {
            let at = |at| (Place::Memory(chunk.dst + at), Place::Memory(chunk.src + at));
            (0..chunk.len).map(at).collect::<Vec<_>>()
        };
        let mut moves: Vec<_> = order.copies.iter().flat_map(copied).collect();
        let (copies, mut wanted) = (moves.len(), order.bits);
        let run = Run::lowest(order.bits).ok_or("an order for nothing")?;
        let bytes = segments.bytes(run);
        let start = bytes.start;
        for chunk in &order.chunks {
            for at in 0..chunk.len {
                let (to, from) = (chunk.dst + at, chunk.src + at);
                let (to, from) = match request.kind {
                    Kind::Memory => (Place::Memory(to), Place::Memory(from)),
                    Kind::Source | Kind::Relay => {
                        let stream = request.src.start;
                        let from = self.received[stream as usize] + from - start;
                        (Place::Memory(to), Place::Stream(stream, from))
                    }
                    Kind::Sink => {
                        let stream = request.dst.start;
                        let to = self.sent[stream as usize].len() as u64 + to;
                        (Place::Stream(stream, to), Place::Memory(from))
                    }
                };
                moves.push((to, from));
            }
            let at = match request.kind {
                Kind::Memory => chunk.dst - request.dst.start,
                Kind::Sink => chunk.dst,
                Kind::Source | Kind::Relay => chunk.src,
            };
            wanted &= !segments.touching(at, chunk.len);
        }
        if let Some(StreamInput { stream, at, len, .. }) = order.stream_input {
            let to = self.sent[request.dst.start as usize].len() as u64 + at;
            let from = self.received[stream as usize];
            let byte =
                |of| (Place::Stream(request.dst.start, to + of), Place::Stream(stream, from + of));
            moves.extend((0..len).map(byte));
            wanted &= !segments.touching(at, len);
            self.received[stream as usize] += len;
        }
        check(run.bits() == order.bits && wanted == 0, || format!("{order:?} is not one run"))?;
        check((moves.len() - copies) as u64 == bytes.len, || {
            format!("{order:?}: {} bytes", moves.len())
        })?;
        let budget = bytes.len <= self.budget_bytes || run.count == 1;
        check(budget || request.kind != Kind::Memory, || format!("{order:?} above the budget"))?;
        match request.kind {
            Kind::Memory => {}
            Kind::Source => self.received[request.src.start as usize] += bytes.len,
            Kind::Sink | Kind::Relay => {
                let sent = &mut self.sent[request.dst.start as usize];
                sent.resize(sent.len() + bytes.len as usize, 0);
            }
        }
        let source = (request.kind == Kind::Source).then_some(request.src.start);
        let taken = order.stream_input.map(|stream_input| (stream_input.stream, stream_input.len));
        if let Some((stream, len)) = taken.or(source.map(|stream| (stream, bytes.len))) {
            self.perhaps_end(stream, len);
        }
        let came = |(_, from): &(Place, Place)| match from {
            Place::Stream(stream, at) => self.ended[*stream as usize].is_none_or(|end| *at < end),
            Place::Memory(_) => true,
        };
        let moves: Vec<_> = moves.into_iter().take_while(came).collect();
        let (ticket, bits) = (order.ticket, order.bits);
        self.begin_job(Job::new(Some(order), ticket, bits, moves, copies, start))
    }

    /// Ends the stream, rarely, within the last `len` bytes that were taken from it.
    fn perhaps_end(&mut self, stream: u64, len: u64) {
        let stream = stream as usize;
        if self.random.once_in(40) && self.ended[stream].is_none() && self.received[stream] >= len {
            self.ended[stream] = Some(self.received[stream] - self.random.below(len + 1));
        }
    }

    /// Copies some bytes of a job; memory bytes of one job go in random order.
    fn work(&mut self) -> Checked {
        let count = self.jobs.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let place = self.random.below(count) as usize;
        let job = &mut self.jobs[place];
        let until = (job.copied + 1 + self.random.below(12) as usize).min(job.moves.len());
        for (to, from) in &job.moves[job.copied..until] {
            let value = match from {
                Place::Memory(at) => self.bytes[*at as usize],
                Place::Stream(stream, at) => stream_byte(*stream, *at),
            };
            match to {
                Place::Memory(at) => self.bytes[*at as usize] = value,
                Place::Stream(stream, at) => self.sent[*stream as usize][*at as usize] = value,
            }
        }
        job.copied = until;
        Self::mark(&mut self.shared, &mut self.jobs[place])?;
        let job = &self.jobs[place];
        if until == job.moves.len() {
            let job = self.jobs.swap_remove(place);
            self.end_job(job)?;
        }
        Ok(())
    }

    /// Marks segments whose bytes have come or gone.
    fn mark(shared: &mut ProgressWords, job: &mut Job) -> Checked {
        let Some(order) = &job.order else { return Ok(()) };
        let Some(moved) = job.copied.checked_sub(job.copies) else { return Ok(()) };
        for (entry, marked) in order.segment_progress.iter().zip(&mut job.marked) {
            let arrived = entry.arrived(job.start + moved as u64);
            if arrived & !*marked != 0 {
                shared.finish(entry.ticket, arrived & !*marked)?;
                *marked |= arrived;
            }
        }
        Ok(())
    }

    /// Ends the segments whose bytes a stream did not bring or take.
    fn end_short(&mut self, order: &Order, marked: &[u32]) -> Checked {
        while !self.inbox.is_empty() {
            self.deliver()?;
        }
        // A send may have absorbed a receive.
        let stream_input = order
            .stream_input
            .and(order.segment_progress.get(1))
            .map_or(order.ticket, |of| of.ticket);
        self.dependents.extend(self.oracle_without(Some(stream_input)).dependents);
        let segment_progress = order.segment_progress.iter().zip(marked);
        let missing = segment_progress.map(|(entry, marked)| (entry.ticket, entry.bits & !marked));
        let missing: Vec<_> = missing.filter(|(_, bits)| *bits != 0).collect();
        for (ticket, bits) in &missing {
            for pin in self.plan.lose(*ticket, *bits, REASON, &mut self.shared).iter().rev() {
                self.shared.finish(pin.ticket, pin.bits)?;
                self.note_loss(pin.ticket, pin.bits);
            }
        }
        for (ticket, bits) in missing.into_iter().rev() {
            self.shared.finish(ticket, bits)?;
            self.tasks.get_mut(&ticket).unwrap().lost |= bits;
        }
        Ok(())
    }

    fn note_loss(&mut self, ticket: Ticket, bits: u32) {
        let known = self.tasks.get_mut(&ticket).unwrap();
        known.lost |= bits;
        known.unsent |= known.request.kind == Kind::Sink;
    }

    fn end_job(&mut self, job: Job) -> Checked {
        let Some(order) = job.order else { return self.shared.finish(job.ticket, job.bits) };
        if order.kind != Kind::Memory {
            let is_short = order
                .segment_progress
                .iter()
                .zip(&job.marked)
                .any(|(of, marked)| of.bits != *marked);
            if is_short {
                self.end_short(&order, &job.marked)?;
            }
            self.plan.finished(order, &mut self.shared);
            return Ok(());
        }
        match self.random.below(40) {
            // The copy was not possible at this time.
            0 => self.shared.release(job.ticket, job.bits),
            1 if self.random.once_in(3) => {
                self.tasks.get_mut(&job.ticket).unwrap().failed = true;
                self.shared.finish(job.ticket, job.bits)?;
                self.plan.failed(job.ticket);
            }
            _ => self.shared.finish(job.ticket, job.bits)?,
        }
        self.plan.finished(order, &mut self.shared);
        Ok(())
    }

    fn deliver(&mut self) -> Checked {
        match self.inbox.pop_front() {
            Some(Message::Submit(ticket)) => {
                let request = self.tasks[&ticket].request;
                let taken = self.plan.submit(ticket, &request, self.now);
                return taken.map_err(|refusal| format!("{request:?}: {refusal}"));
            }
            Some(Message::Promote(ticket, bits)) => self.plan.promote(ticket, bits),
            Some(Message::Abort(ticket)) => self.plan.abort(ticket),
            Some(Message::Hurry) => self.plan.hurry(),
            None => {}
        }
        Ok(())
    }

    /// Runs one step of the service, and returns the step if it requires no action.
    fn serve(&mut self) -> Checked<Option<Step>> {
        self.shared.questions.set(0);
        let step = self.plan.next(&mut self.shared, self.now, self.budget_bytes);
        let questions = self.shared.questions.get();
        check(questions < QUESTIONS_MAX, || format!("{questions} questions for {step:?}"))?;
        match step {
            Step::Copy(order) => self.take(order)?,
            Step::Abort { ticket, bits, why } => {
                let known = &self.tasks[&ticket];
                let is_lost = why == Ending::Lost(REASON);
                let allowed = known.aborted || known.failed || is_lost;
                check(allowed && bits != 0, || format!("{ticket:?} {bits:b} ends: {why:?}"))?;
                self.shared.finish(ticket, bits)?;
                if is_lost {
                    self.note_loss(ticket, bits);
                }
            }
            Step::Wait => {
                check(!self.jobs.is_empty(), || "waits without a job".into())?;
                let idle = self.pending().into_iter().find(|ticket| self.is_ready(*ticket));
                check(idle.is_none(), || format!("waits though {idle:?} is ready"))?;
                return Ok(Some(Step::Wait));
            }
            Step::Later(until) => {
                check(until > self.now, || format!("later is {until:?}"))?;
                return Ok(Some(Step::Later(until)));
            }
            Step::Idle => return Ok(Some(Step::Idle)),
        }
        Ok(None)
    }

    fn collect(&mut self) -> Checked {
        for ticket in self.plan.collect(&mut self.shared) {
            check(self.open(ticket) == 0, || format!("{ticket:?} collected too early"))?;
            let known = self.tasks.get_mut(&ticket).unwrap();
            check(!known.retired, || format!("{ticket:?} collected twice"))?;
            known.retired = true;
        }
        Ok(())
    }

    fn run(&mut self, moments: u64) -> Checked {
        for _ in 0..moments {
            match self.random.below(20) {
                0..6 => self.client()?,
                6..10 => self.deliver()?,
                10..13 if self.plan.outstanding() < JOBS_MAX => {
                    self.serve()?;
                }
                13..18 => self.work()?,
                18 => self.collect()?,
                19 if self.random.once_in(3) => self.now.0 += self.random.below(600),
                _ => {}
            }
        }
        self.complete()
    }

    /// Completes all work, and compares the result with the oracle.
    fn complete(&mut self) -> Checked {
        let mut steps = 0;
        while let Some(access) = self.access.take() {
            for (ticket, bits) in self.needs(access) {
                self.inbox.push_back(Message::Promote(ticket, bits));
            }
        }
        loop {
            steps += 1;
            check(steps < STEPS_MAX, || "goes on for ever".into())?;
            self.deliver()?;
            match self.serve()? {
                Some(Step::Idle) if self.inbox.is_empty() && self.jobs.is_empty() => break,
                Some(Step::Later(until)) if self.jobs.is_empty() => self.now = until,
                _ => self.work()?,
            }
        }
        for _ in 0..self.tasks.len() + 1 {
            self.collect()?;
        }
        self.check_empty()?;
        let untold = self.dependents.iter().find(|(of, bits)| bits & !self.tasks[of].lost != 0);
        check(untold.is_none(), || format!("{untold:?} is not marked"))?;
        let oracle = self.oracle();
        let is = self.bytes.iter().chain(self.sent.iter().flatten());
        let should = oracle.bytes.iter().chain(oracle.sent.iter().flatten());
        for (at, (is, should)) in is.zip(should).enumerate() {
            check(should.is_none_or(|should| should == *is), || {
                format!("byte {at} is {is} in the end, should be {should:?}")
            })?;
        }
        Ok(())
    }

    fn check_empty(&self) -> Checked {
        let plan = &self.plan;
        let queues = [&plan.ordinary, &plan.promotions, &plan.endings];
        let queued = queues.iter().any(|queue| !queue.is_empty()) || !plan.lazies.is_empty();
        let indexed =
            !plan.writers.is_empty() || !plan.readers.is_empty() || !plan.streams.is_empty();
        check(plan.is_empty() && !queued && !indexed, || format!("something is left: {plan:?}"))?;
        check(plan.outstanding() == 0, || "an order is left".into())?;
        check(self.shared.bad_releases == 0, || "released what was not claimed".into())?;
        let claimed = |(done, claimed): &(u32, u32)| claimed & !done != 0;
        check(!self.shared.words.values().any(claimed), || "a claim is left".into())
    }
}

/// Runs one random program, optionally with a rule switched off.
pub(crate) fn run(random: &mut Random, off: Option<Rule>) -> Checked {
    let moments = 40 + random.below(400);
    World::new(random, off).run(moments)
}

#[test]
fn what_is_read_is_what_memcpy_would_have_left() {
    unlade_testkit::cases(10_000, |random| {
        if let Err(why) = run(random, None) {
            panic!("{why}");
        }
    });
}
