//! Progress of a task: claimed segments, done segments, and the result of the task.
//!
//! A claim is an exclusive right to copy a segment, and also a pin. Each word has the generation
//! in its high half and changes by compare-and-swap, so a thread with an outdated ticket changes
//! nothing.
//!
//! **Why a slot is not recycled under a claim.** A slot is reused only when its ticket is retired.
//! The service retires a ticket when all its segments are done and none is pinned. A claimed
//! segment leaves that state only through its claimer, which calls [`Progress::finish`] (done) or
//! [`Progress::release`] (undone and free). So an unfinished claim keeps the slot. If a peer
//! breaks this rule (a service that retires early, or a client that takes back the claims of a
//! service that it wrongly believes dead), the generation does not match, and finish and release
//! change nothing.

use std::num::NonZeroU16;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, load_in_total_order, overwrite};
use crate::futex::{self, Scope};

/// Maximum number of attempts to change a word that other threads change. Honest threads only set
/// and clear 32 bits; after more attempts the peer is manipulating the word, and the change is
/// dropped.
const ATTEMPTS_MAX: u32 = 4096;

/// Mask of the error code in the state word.
const ERROR: u32 = 0xFFFF;
/// Mask of the handler's state in the state word.
const HANDLER: u32 = 0b11 << 16;
const HANDLER_DUE: u32 = 0b01 << 16;
const HANDLER_TAKEN: u32 = 0b10 << 16;
const ABORTED: u32 = 1 << 18;

/// Progress line of a slot.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct ProgressLine {
    /// Generation, and claimed segments. Done segments stay claimed.
    pub(crate) claim: AtomicU64,
    /// Generation, and done segments.
    pub(crate) done: AtomicU64,
    /// Generation, and result of the task.
    state: AtomicU64,
    /// Number of threads that sleep or are about to. It counts all generations, so it is never
    /// reset.
    pub(crate) waiters: AtomicU32,
    /// Number of wake-ups; the futex word of the waiters.
    pub(crate) wakes: AtomicU32,
}

impl ProgressLine {
    /// Clears claims and progress. Relaxed: the task's line, which is written next, publishes it.
    #[inline]
    pub(crate) fn begin(&self, generation: u32) {
        let nothing = word(generation, 0);
        overwrite(&self.claim, nothing);
        overwrite(&self.done, nothing);
        overwrite(&self.state, nothing);
    }

    pub(crate) fn reset(&self) {
        self.begin(0);
        self.waiters.store(0, Ordering::Relaxed);
        self.wakes.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn of(&self, generation: u32, scope: Scope) -> Progress<'_> {
        Progress { line: self, generation, scope }
    }
}

#[inline]
fn word(generation: u32, low: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(low)
}

#[inline]
fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// State of a task's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandlerState {
    /// Not due yet, or without a handler, or the task has retired.
    None,
    /// Ready to be taken and run.
    Due,
    /// Taken by a thread.
    Taken,
}

/// Progress of one task. When the task has retired and its slot serves another one, all segments
/// count as done, claims fail, and changes have no effect.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub(crate) line: &'a ProgressLine,
    pub(crate) generation: u32,
    pub(crate) scope: Scope,
}

impl Progress<'_> {
    /// Returns true if all of `bits` are done, or the task has retired. The copied bytes are
    /// visible then. One load.
    #[inline]
    pub fn is_done(self, bits: u32) -> bool {
        let (generation, done) = halves(self.line.done.load(Ordering::Acquire));
        (done & bits == bits) | (generation != self.generation)
    }

    /// Returns the done segments; all if the task has retired.
    #[inline]
    pub fn done(self) -> u32 {
        self.low(&self.line.done).unwrap_or(u32::MAX)
    }

    /// Returns the claimed segments, including done ones; all if the task has retired.
    #[inline]
    pub fn claimed(self) -> u32 {
        self.low(&self.line.claim).unwrap_or(u32::MAX)
    }

    /// Returns true if the slot still serves this task.
    #[inline]
    pub fn is_current(self) -> bool {
        self.low(&self.line.done).is_some()
    }

    #[inline]
    fn low(self, of: &AtomicU64) -> Option<u32> {
        let (generation, low) = halves(of.load(Ordering::Acquire));
        (generation == self.generation).then_some(low)
    }

    /// Changes the low half of a word of this generation, unless `change` declines. Returns the
    /// old and the new value if it changed.
    ///
    /// `guess` is the expected old value, which `change` must accept. The first attempt does not
    /// load the word, so a line in another core's cache is transferred once, not twice.
    #[inline]
    fn update(
        self,
        of: &AtomicU64,
        guess: u32,
        change: impl Fn(u32) -> Option<u32>,
    ) -> Option<(u32, u32)> {
        let mut before = word(self.generation, guess);
        for _ in 0..ATTEMPTS_MAX {
            let (generation, low) = halves(before);
            if generation != self.generation {
                return None;
            }
            let after = change(low)?;
            let new = word(generation, after);
            // Sequentially consistent, for the check of the waiters that follows; on common
            // machines this costs the same as acquire and release.
            match of.compare_exchange_weak(before, new, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Some((low, after)),
                Err(now) => before = now,
            }
        }
        None
    }

    /// Claims the free segments of `wanted`, and returns them. The caller must
    /// [`finish`](Progress::finish) or [`release`](Progress::release) them.
    ///
    /// A call takes the cache line from other threads that work on it, so check
    /// [`claimed`](Progress::claimed) before a retry.
    #[inline]
    pub fn claim(self, wanted: u32) -> u32 {
        let free = |held: u32| (wanted & !held != 0).then_some(held | wanted);
        self.update(&self.line.claim, 0, free).map_or(0, |(before, _)| wanted & !before)
    }

    /// Claims all of `bits`, or nothing if one of them is claimed; used for pins.
    #[inline]
    pub fn claim_all_or_none(self, bits: u32) -> bool {
        let free = |held: u32| (bits & held == 0).then_some(held | bits);
        self.update(&self.line.claim, 0, free).is_some()
    }

    /// Releases segments that the caller has claimed and not finished. Wakes threads that wait for
    /// a free segment.
    pub fn release(self, bits: u32) {
        if self.update(&self.line.claim, bits, |held| Some(held & !bits)).is_some() {
            self.wake_waiters();
        }
    }

    /// Marks segments done that the caller has claimed and copied, and wakes waiters. Returns all
    /// done segments; all bits if the task has retired, which means that a peer broke the rules,
    /// see the [module](self).
    #[inline]
    pub fn finish(self, bits: u32) -> u32 {
        match self.update(&self.line.done, 0, |before| Some(before | bits)) {
            Some((_, after)) => {
                self.wake_waiters();
                after
            }
            None => u32::MAX,
        }
    }

    /// Wakes waiters after a change. Each side first writes and then reads: the change and then
    /// the waiters here, the waiters and then the change in [`wait`](crate::wait). In the total
    /// order of these four operations at least one side reads the other's write.
    #[inline]
    fn wake_waiters(self) {
        if load_in_total_order(&self.line.waiters) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(self) {
        self.line.wakes.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.line.wakes, self.scope);
    }

    #[inline]
    fn update_state(self, guess: u32, change: impl Fn(u32) -> Option<u32>) -> bool {
        self.update(&self.line.state, guess, change).is_some()
    }

    /// Ends segments that the caller has claimed with an error: they are done, but not copied.
    /// Returns the same as [`finish`](Progress::finish). A task keeps its first error.
    pub fn fail(self, code: NonZeroU16, bits: u32) -> u32 {
        self.update_state(0, |state| (state & ERROR == 0).then_some(state | u32::from(code.get())));
        self.finish(bits)
    }

    /// Returns the error of the task, if any. It is valid from the time that the failed segments
    /// are done until the task retires.
    #[inline]
    pub fn error(self) -> Option<NonZeroU16> {
        self.low(&self.line.state).and_then(|state| NonZeroU16::new(state as u16))
    }

    /// Returns the result of the task, as in [`error`](Progress::error); `None` if the slot serves
    /// another task and the result is lost.
    #[inline]
    pub fn ending(self) -> Option<Result<(), NonZeroU16>> {
        let error = self.low(&self.line.state).map(|state| NonZeroU16::new(state as u16))?;
        Some(error.map_or(Ok(()), Err))
    }

    /// Claims the free segments of `bits`, ends them as aborted (done, but not copied), and
    /// returns them. The caller must know that no other task depends on them.
    pub fn abort_rest(self, bits: u32) -> u32 {
        let mine = self.claim(bits);
        if mine != 0 {
            self.finish_aborted(mine);
        }
        mine
    }

    /// Ends segments that the caller has claimed as aborted: done, but not copied. Returns the
    /// same as [`finish`](Progress::finish).
    pub fn finish_aborted(self, bits: u32) -> u32 {
        self.update_state(0, |state| Some(state | ABORTED));
        self.finish(bits)
    }

    /// Returns true if a part of the task was aborted; valid as long as [`error`](Progress::error)
    /// is.
    #[inline]
    pub fn is_aborted(self) -> bool {
        self.low(&self.line.state).is_some_and(|state| state & ABORTED != 0)
    }

    /// Service, or a substitute for a dead service: marks the handler due, because the task is
    /// complete. Returns `true` for the first call; that caller pushes the ticket into the handler
    /// ring.
    pub fn handler_due(self) -> bool {
        self.update_state(0, |state| (state & HANDLER == 0).then_some(state | HANDLER_DUE))
    }

    /// Client: takes the handler in order to run it. Returns `true` once, for one of all callers.
    /// Copy the task before the call: the slot may be recycled after it.
    pub fn take_handler(self) -> bool {
        self.update_state(HANDLER_DUE, |state| {
            (state & HANDLER == HANDLER_DUE).then_some(state & !HANDLER | HANDLER_TAKEN)
        })
    }

    /// Returns the state of the handler. A task whose handler is due must not retire.
    #[inline]
    pub fn handler(self) -> HandlerState {
        match self.low(&self.line.state).map_or(0, |state| state & HANDLER) {
            0 => HandlerState::None,
            HANDLER_DUE => HandlerState::Due,
            _ => HandlerState::Taken,
        }
    }
}
