//! Copies between a region that another process may be changing and memory of this one, for event
//! loops: the service makes them or nobody does, and whoever waits looks, or is told
//! ([`Copier::event`]).
//!
//! A copy owns both ends until it is over. It never helps: what is copied in this thread goes
//! through [`Arena`], whose copies are made for bytes that change meanwhile.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use unlade_copy_scheduler::admit::{INLINE_MAX_BYTES, QueuedTiming};
use unlade_shm::Arena;
use unlade_shm::shared::OutOfRegion;

use crate::at_once::hint_for;
use crate::copier::{Copier, How, Part, TASK_BYTES_MAX, Token};
use crate::site::{Decision, nanos};

/// What an event loop takes to be told of a copy's end: a wait in the kernel that returns, a read
/// of the eventfd, and the task that goes on. Counted as waiting when it is learnt what pays.
const TOLD_NS: u32 = 8_000;
/// A handler that does nothing: it has the event told.
const NO_HANDLER: (usize, usize) = (0, 0);
/// A look at a copy that is not over while nothing else can be done.
const LOOK: Duration = Duration::from_millis(100);

/// How a copy of an arena's bytes was begun.
#[derive(Debug)]
pub enum Begun<T> {
    /// It was made at once: what it gives.
    AtOnce(T, Why),
    /// The service has it.
    Queued(ArenaCopy),
}

/// Why a copy was made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// That is better, as far as is known.
    Better,
    /// The queue has no room.
    Full,
}

/// A copy from or to an arena under way, which has both ends.
///
/// Dropped, it is given up: when that returns nobody reads or writes either end. Forgotten, it leaks
/// them.
#[derive(Debug)]
#[must_use = "dropped, it is given up"]
pub struct ArenaCopy {
    copier: Arc<Copier>,
    arena: Rc<Arena>,
    /// Where in the arena.
    offset: usize,
    bytes: usize,
    /// The end that is not the arena: these bytes, or, where there are none, the room behind the
    /// vector's.
    from: Option<(Rc<Vec<u8>>, Range<usize>)>,
    to: Vec<u8>,
    /// One for each [`TASK_BYTES_MAX`].
    tokens: SmallVec<[Token; 4]>,
    timing: Option<Timing>,
}

/// What is to be learnt of a copy.
#[derive(Debug)]
struct Timing {
    site: usize,
    is_awake: bool,
    submit_ns: u32,
    since: Instant,
}

impl Copier {
    /// Appends bytes of an arena to a vector: the service does, where `how` or what was learnt of
    /// its site says so, and this thread otherwise. `how` names no handler.
    ///
    /// # Errors
    /// [`OutOfRegion`], and nothing is copied.
    pub fn append_from(
        self: &Arc<Self>,
        arena: &Rc<Arena>,
        offset: usize,
        bytes: usize,
        mut to: Vec<u8>,
        how: &How,
    ) -> Result<Begun<Vec<u8>>, OutOfRegion> {
        within(arena, offset, bytes)?;
        to.reserve(bytes);
        let decision = self.decision(bytes, how);
        if !decision.queue {
            let began = Instant::now();
            arena.append_to(offset, bytes, &mut to)?;
            self.made_at_once(&decision, how, bytes, began);
            return Ok(Begun::AtOnce(to, Why::Better));
        }
        let mut copy = ArenaCopy::new(self, arena, offset, bytes);
        copy.to = to;
        if copy.queue(&decision, how) {
            return Ok(Begun::Queued(copy));
        }
        let mut to = std::mem::take(&mut copy.to);
        arena.append_to(offset, bytes, &mut to)?;
        Ok(Begun::AtOnce(to, Why::Full))
    }

    /// Copies `range` of some bytes into an arena, as [`Copier::append_from`] does the other way.
    /// Nobody else should be filling that part of it.
    ///
    /// # Errors
    /// [`OutOfRegion`], and nothing is copied.
    ///
    /// # Panics
    /// `range` is not within the bytes.
    pub fn copy_into(
        self: &Arc<Self>,
        arena: &Rc<Arena>,
        offset: usize,
        from: &Rc<Vec<u8>>,
        range: Range<usize>,
        how: &How,
    ) -> Result<Begun<()>, OutOfRegion> {
        let bytes = &from[range.clone()];
        within(arena, offset, bytes.len())?;
        let decision = self.decision(bytes.len(), how);
        let mut why = Why::Better;
        if decision.queue {
            let mut copy = ArenaCopy::new(self, arena, offset, bytes.len());
            copy.from = Some((from.clone(), range));
            if copy.queue(&decision, how) {
                return Ok(Begun::Queued(copy));
            }
            why = Why::Full;
        }
        let began = Instant::now();
        arena.copy_in(offset, bytes)?;
        if why == Why::Better {
            self.made_at_once(&decision, how, bytes.len(), began);
        }
        Ok(Begun::AtOnce((), why))
    }

    fn decision(&self, bytes: usize, how: &How) -> Decision {
        if how.queued || how.lazy_us.is_some() {
            let is_awake = self.is_awake();
            return Decision { queue: bytes > 0, timed: false, wake: false, is_awake };
        }
        if bytes < INLINE_MAX_BYTES as usize {
            return Decision { queue: false, timed: false, wake: false, is_awake: false };
        }
        self.decide(bytes.min(TASK_BYTES_MAX), how.site)
    }

    fn made_at_once(&self, decision: &Decision, how: &How, bytes: usize, began: Instant) {
        self.stats().count_at_once(bytes);
        if decision.wake {
            self.ring();
        }
        // Longer ones are several: what one of them takes.
        let parts = bytes.div_ceil(TASK_BYTES_MAX).max(1);
        if decision.timed {
            let part_ns = nanos(began) / u32::try_from(parts).unwrap_or(u32::MAX);
            let part_bytes = bytes.min(TASK_BYTES_MAX);
            self.learn_at_once((how.site, decision.is_awake), part_bytes, part_ns);
        }
    }
}

fn within(arena: &Arena, offset: usize, bytes: usize) -> Result<(), OutOfRegion> {
    match offset.checked_add(bytes) {
        Some(end) if end <= arena.len_bytes() => Ok(()),
        _ => Err(OutOfRegion { offset, bytes }),
    }
}

/// What became of a copy.
#[derive(Debug)]
pub struct Ended {
    /// Of [`Copier::append_from`]: the vector with the bytes behind its own.
    pub bytes: Vec<u8>,
    /// The service could not make it: it was made again, in this thread.
    pub failed: bool,
}

impl ArenaCopy {
    /// Nothing is queued. The range has been checked.
    fn new(copier: &Arc<Copier>, arena: &Rc<Arena>, offset: usize, bytes: usize) -> ArenaCopy {
        ArenaCopy {
            copier: Arc::clone(copier),
            arena: Rc::clone(arena),
            offset,
            bytes,
            from: None,
            to: Vec::new(),
            tokens: SmallVec::new(),
            timing: None,
        }
    }

    /// Queues all of it, or nothing. A vector has the room.
    fn queue(&mut self, decision: &Decision, how: &How) -> bool {
        let began = Instant::now();
        // SAFETY: the range was found to be in the mapping, so its start is.
        let place = unsafe { self.arena.as_ptr().add(self.offset) };
        let (dst, src): (*mut u8, *const u8) = match &self.from {
            Some((from, range)) => (place, from[range.clone()].as_ptr()),
            None => (self.to.spare_capacity_mut()[..self.bytes].as_mut_ptr().cast(), place),
        };
        let how = How { handler: Some(NO_HANDLER), ..*how };
        let mut at = 0;
        while at < self.bytes {
            let part = (self.bytes - at).min(TASK_BYTES_MAX);
            let (dst, src) = (dst.wrapping_add(at), src.wrapping_add(at));
            // What is published here is settled before either end is used, given back or freed, or
            // never, if the copy is forgotten: then both live on. The vector is this value's alone,
            // and moving it does not touch what it points to; the shared bytes change for nobody
            // who is not the only one to have them; the arena lends no references.
            let Some(ticket) = self.copier.acquire_for(dst, src, part) else {
                self.give_up();
                return false;
            };
            let part = Part { dst, src, len: part, hint: hint_for(self.bytes) };
            self.tokens.push(self.copier.enqueue(ticket, part, &how));
            at += part.len;
        }
        // Nobody waits in a way that would have the service look.
        if how.lazy_us.is_none() {
            self.copier.ring();
        }
        if decision.timed {
            self.timing = Some(Timing {
                site: how.site,
                is_awake: decision.is_awake,
                submit_ns: nanos(began),
                since: Instant::now(),
            });
        }
        true
    }

    /// Which arena.
    pub fn arena(&self) -> &Rc<Arena> {
        &self.arena
    }

    /// Whether it is over; does not wait.
    pub fn is_ready(&self) -> bool {
        let all = 0..TASK_BYTES_MAX;
        self.tokens.iter().all(|token| self.copier.is_ready(token, all.clone()))
    }

    /// Its end, which is waited for. What the service could not copy is copied here.
    pub fn finish(mut self) -> Ended {
        let failed = !self.settle();
        let (arena, offset, bytes) = (Rc::clone(&self.arena), self.offset, self.bytes);
        let mut content = std::mem::take(&mut self.to);
        // The range was checked: these do not fail.
        match &self.from {
            Some((from, range)) if failed => drop(arena.copy_in(offset, &from[range.clone()])),
            Some(_) => {}
            None if failed => drop(arena.append_to(offset, bytes, &mut content)),
            None => {
                debug_assert!(content.capacity() - content.len() >= bytes);
                // SAFETY: there was room for as many bytes behind the vector's, and every task has
                // written its share of them, which the syncs made visible.
                unsafe { content.set_len(content.len() + bytes) };
            }
        }
        Ended { bytes: content, failed }
    }

    /// Waits until nobody touches either end; whether all bytes are there.
    fn settle(&mut self) -> bool {
        let all = 0..TASK_BYTES_MAX;
        let mut is_whole = true;
        for token in self.tokens.drain(..) {
            // Where nobody serves it would be copied here, with loops for memory that nobody else
            // changes.
            while !self.copier.is_ready(&token, all.clone()) && self.copier.is_served() {
                self.copier.wait_until(token.ticket, token.bits(all.clone()), LOOK);
            }
            match self.copier.is_ready(&token, all.clone()) {
                true => is_whole &= self.copier.sync(&token, all.clone()).is_ok(),
                false => {
                    self.copier.abandon(&token);
                    is_whole = false;
                }
            }
        }
        if let Some(Timing { site, is_awake, submit_ns, since }) = self.timing.take() {
            let window_ns = nanos(since);
            let seen = QueuedTiming { submit_ns, window_ns, wait_ns: TOLD_NS, line_ns: None };
            let part_bytes = self.bytes.min(TASK_BYTES_MAX) as u32;
            self.copier.learn_queued((site, is_awake), part_bytes, &seen);
        }
        is_whole
    }

    fn give_up(&mut self) {
        while let Some(token) = self.tokens.pop() {
            self.copier.abandon(&token);
        }
    }
}

impl Drop for ArenaCopy {
    fn drop(&mut self) {
        self.give_up();
    }
}
