//! Copies between this process's memory and a region that another process may be changing, for
//! event loops. Only the service makes the queued copies; the waiter polls, or waits for
//! [`Copier::event`].
//!
//! A queued copy owns source and destination until it is over, and waiting for it never copies.
//! The calling thread copies only through [`Arena`], whose copies allow for bytes that change
//! during the copy.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use unlade_copy_scheduler::admit::{QUEUED_BYTES_MIN, QueuedTiming};
use unlade_shm::Arena;
use unlade_shm::shared::OutOfRegion;

use crate::admission::{Decision, Place, nanos};
use crate::at_once::hint_for;
use crate::copier::{Copier, CopyOptions, Part, TASK_BYTES_MAX, Token};

/// Cost of a notification in an event loop: the kernel wait returns, the eventfd is read, the task
/// resumes. Counted as waiting time when the admission policy learns.
const NOTIFY_NS: u32 = 8_000;
/// A handler that does nothing. It makes the service signal the event.
const NO_HANDLER: (usize, usize) = (0, 0);
/// Interval between polls of a copy that is not over, while the thread can do nothing else.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Result of starting a copy from or to an arena.
#[derive(Debug)]
pub enum StartedCopy<T> {
    /// The copy was made synchronously; its result, and the reason.
    AtOnce(T, AtOnceReason),
    /// The service makes the copy.
    Queued(ArenaCopy),
}

/// Reason why a copy was made synchronously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnceReason {
    /// A synchronous copy is expected to be cheaper.
    Better,
    /// The queue is full, or the service cannot be reached.
    Full,
}

/// A pending copy from or to an arena. It owns source and destination.
///
/// Dropping it aborts the copy: afterwards neither range is read or written. Forgetting it leaks
/// both ranges.
#[derive(Debug)]
#[must_use = "dropped, it is given up"]
pub struct ArenaCopy {
    copier: Arc<Copier>,
    arena: Rc<Arena>,
    /// Offset in the arena.
    offset: usize,
    bytes: usize,
    /// The source, for a copy into the arena. For a copy out of the arena this is `None`, and the
    /// destination is the spare capacity of `to`.
    from: Option<(Rc<Vec<u8>>, Range<usize>)>,
    to: Vec<u8>,
    /// One token for each [`TASK_BYTES_MAX`] bytes.
    tokens: SmallVec<[Token; 4]>,
    timing: Option<Timing>,
}

/// Measurements of one timed copy.
#[derive(Debug)]
struct Timing {
    site: usize,
    is_awake: bool,
    submit_ns: u32,
}

impl Copier {
    /// Appends bytes of an arena to a vector. The service copies where `options` or the learned
    /// policy of the call site selects it; otherwise this thread copies. `options` has no handler.
    ///
    /// # Errors
    /// [`OutOfRegion`]: the range is not in the arena, and nothing is copied.
    pub fn append_from(
        self: &Arc<Self>,
        arena: &Rc<Arena>,
        offset: usize,
        bytes: usize,
        mut to: Vec<u8>,
        options: &CopyOptions,
    ) -> Result<StartedCopy<Vec<u8>>, OutOfRegion> {
        within(arena, offset, bytes)?;
        to.reserve(bytes);
        let decision = self.decision(bytes, options);
        if !decision.queue {
            let began = Instant::now();
            arena.append_to(offset, bytes, &mut to)?;
            self.made_at_once(&decision, options, bytes, began);
            return Ok(StartedCopy::AtOnce(to, AtOnceReason::Better));
        }
        let mut copy = ArenaCopy::new(self, arena, offset, bytes);
        copy.to = to;
        if copy.queue(&decision, options) {
            return Ok(StartedCopy::Queued(copy));
        }
        let mut to = std::mem::take(&mut copy.to);
        arena.append_to(offset, bytes, &mut to)?;
        self.stats().count_at_once(bytes);
        Ok(StartedCopy::AtOnce(to, AtOnceReason::Full))
    }

    /// Copies `range` of `from` into an arena. Otherwise as [`Copier::append_from`]. No other
    /// thread should write that part of the arena.
    ///
    /// # Errors
    /// [`OutOfRegion`]: the range is not in the arena, and nothing is copied.
    ///
    /// # Panics
    /// Panics if `range` is not within `from`.
    pub fn copy_into(
        self: &Arc<Self>,
        arena: &Rc<Arena>,
        offset: usize,
        from: &Rc<Vec<u8>>,
        range: Range<usize>,
        options: &CopyOptions,
    ) -> Result<StartedCopy<()>, OutOfRegion> {
        let bytes = &from[range.clone()];
        within(arena, offset, bytes.len())?;
        let decision = self.decision(bytes.len(), options);
        let mut why = AtOnceReason::Better;
        if decision.queue {
            let mut copy = ArenaCopy::new(self, arena, offset, bytes.len());
            copy.from = Some((from.clone(), range));
            if copy.queue(&decision, options) {
                return Ok(StartedCopy::Queued(copy));
            }
            why = AtOnceReason::Full;
        }
        let began = Instant::now();
        arena.copy_in(offset, bytes)?;
        match why {
            AtOnceReason::Better => self.made_at_once(&decision, options, bytes.len(), began),
            AtOnceReason::Full => self.stats().count_at_once(bytes.len()),
        }
        Ok(StartedCopy::AtOnce((), why))
    }

    fn decision(&self, bytes: usize, options: &CopyOptions) -> Decision {
        if options.queued || options.lazy_us.is_some() {
            let is_awake = self.is_awake();
            return Decision { queue: bytes > 0, timed: false, wake: false, is_awake };
        }
        if bytes < QUEUED_BYTES_MIN as usize {
            return Decision { queue: false, timed: false, wake: false, is_awake: false };
        }
        self.decide(bytes.min(TASK_BYTES_MAX), Place::of(options.site, bytes))
    }

    fn made_at_once(
        &self,
        decision: &Decision,
        options: &CopyOptions,
        bytes: usize,
        began: Instant,
    ) {
        self.stats().count_at_once(bytes);
        if decision.wake {
            self.ring();
        }
        // Longer copies are several tasks: learn the time of one task.
        let parts = bytes.div_ceil(TASK_BYTES_MAX).max(1);
        if decision.timed {
            let part_ns = nanos(began) / u32::try_from(parts).unwrap_or(u32::MAX);
            let part_bytes = bytes.min(TASK_BYTES_MAX);
            let place = Place::of(options.site, bytes);
            self.learn_at_once(place, part_bytes, part_ns);
            // The program does not wait for a queued one: it is told of its end.
            self.admission().learn_window(place, u32::MAX);
        }
    }
}

fn within(arena: &Arena, offset: usize, bytes: usize) -> Result<(), OutOfRegion> {
    match offset.checked_add(bytes) {
        Some(end) if end <= arena.len_bytes() => Ok(()),
        _ => Err(OutOfRegion { offset, bytes }),
    }
}

/// Result of a finished copy.
#[derive(Debug)]
pub struct FinishedCopy {
    /// For [`Copier::append_from`]: the vector with the copied bytes appended.
    pub bytes: Vec<u8>,
    /// Set if the service failed to copy; this thread then repeated the copy.
    pub failed: bool,
}

impl ArenaCopy {
    /// Creates a copy with nothing queued yet. The caller has checked the range.
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

    /// Queues all parts, or none. A vector has enough spare capacity.
    fn queue(&mut self, decision: &Decision, options: &CopyOptions) -> bool {
        let began = Instant::now();
        // SAFETY: the caller checked that the range is in the mapping, so its start is, too.
        let place = unsafe { self.arena.as_ptr().add(self.offset) };
        let (dst, src): (*mut u8, *const u8) = match &self.from {
            Some((from, range)) => (place, from[range.clone()].as_ptr()),
            None => (self.to.spare_capacity_mut()[..self.bytes].as_mut_ptr().cast(), place),
        };
        let options = CopyOptions { handler: Some(NO_HANDLER), ..*options };
        let mut at = 0;
        while at < self.bytes {
            let part = (self.bytes - at).min(TASK_BYTES_MAX);
            let (dst, src) = (dst.wrapping_add(at), src.wrapping_add(at));
            // The task published here is completed before either range is used, returned or freed.
            // If the copy is forgotten, both ranges are leaked and stay valid. Only this value has
            // the vector, and moving a vector does not move its heap memory. Shared bytes are
            // behind an `Rc` and change only for a sole owner. The arena lends no references.
            let Some(ticket) = self.copier.acquire_for(dst, src, part) else {
                self.give_up();
                return false;
            };
            let place = Place::of(options.site, self.bytes);
            let part = Part { dst, src, len: part, hint: hint_for(self.bytes), place };
            self.tokens.push(self.copier.enqueue(ticket, part, &options));
            at += part.len;
        }
        // The waiter does not make the service poll, so wake it here.
        if options.lazy_us.is_none() {
            self.copier.ring();
        }
        if decision.timed {
            self.timing = Some(Timing {
                site: options.site,
                is_awake: decision.is_awake,
                submit_ns: nanos(began),
            });
        }
        true
    }

    /// The arena.
    pub fn arena(&self) -> &Rc<Arena> {
        &self.arena
    }

    /// Returns true if the copy is over; does not wait.
    pub fn is_ready(&self) -> bool {
        let all = 0..TASK_BYTES_MAX;
        self.tokens.iter().all(|token| self.copier.is_ready(token, all.clone()))
    }

    /// Waits for the end of the copy. Copies here what the service failed to copy.
    pub fn finish(mut self) -> FinishedCopy {
        let failed = !self.complete();
        let (arena, offset, bytes) = (Rc::clone(&self.arena), self.offset, self.bytes);
        let mut content = std::mem::take(&mut self.to);
        // The range was checked in `new`'s callers: these calls do not fail.
        match &self.from {
            Some((from, range)) if failed => drop(arena.copy_in(offset, &from[range.clone()])),
            Some(_) => {}
            None if failed => drop(arena.append_to(offset, bytes, &mut content)),
            None => {
                debug_assert!(content.capacity() - content.len() >= bytes);
                // SAFETY: the vector had spare capacity for `bytes` bytes, and every task has
                // written its part of them, which the syncs made visible.
                unsafe { content.set_len(content.len() + bytes) };
            }
        }
        FinishedCopy { bytes: content, failed }
    }

    /// Waits until no thread uses either range. Returns true if all bytes were copied.
    fn complete(&mut self) -> bool {
        let all = 0..TASK_BYTES_MAX;
        let mut is_whole = true;
        for token in self.tokens.drain(..) {
            // Without a service, `sync` would copy here with loops that require memory that no
            // other process changes. So wait without helping.
            while !self.copier.is_ready(&token, all.clone()) && self.copier.is_served() {
                self.copier.wait_until(token.ticket, token.bits(all.clone()), POLL_INTERVAL);
            }
            match self.copier.is_ready(&token, all.clone()) {
                true => is_whole &= self.copier.sync(&token, all.clone()).is_ok(),
                false => {
                    self.copier.abandon(&token);
                    is_whole = false;
                }
            }
        }
        if let Some(Timing { site, is_awake, submit_ns }) = self.timing.take() {
            // The program does not wait: it is told of the end.
            let submit_ns = submit_ns.saturating_add(NOTIFY_NS);
            let seen = QueuedTiming { submit_ns, window_ns: u32::MAX, wait_ns: 0, line_ns: None };
            let part_bytes = self.bytes.min(TASK_BYTES_MAX) as u32;
            let place = Place::of(site, self.bytes);
            self.copier.learn_queued((place, is_awake), part_bytes, &seen);
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
