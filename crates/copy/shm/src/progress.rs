//! Who copies which segment of a task, which are done, and how the task ended.
//!
//! A claim is a right to copy, and a pin. Words carry the generation in their high half and change
//! by compare-and-swap, so that who slept through a recycling changes nothing.
//!
//! **Why a slot is not recycled under a claim.** A slot is filled anew when its ticket is retired.
//! The service retires a ticket when all its segments are done and none is pinned. A claimed
//! segment becomes done only through [`Progress::finish`] of who claimed it, or undone and free
//! through [`Progress::release`] of who claimed it. So who holds a claim that is not done, holds
//! the slot. Should a peer break this (a service that retires early, a client that takes back the
//! claims of a service that it wrongly believes dead), the generation does not fit, and finish and
//! release change nothing.

use std::num::NonZeroU16;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, load_in_total_order, overwrite};
use crate::futex::{self, Scope};

/// How often a word is tried because others change it. They set and clear 32 bits: more is a peer
/// who plays with the word, and it is left to it.
const ATTEMPTS_MAX: u32 = 4096;

/// Low half of the state word: the error's code.
const ERROR: u32 = 0xFFFF;
/// Two bits: where the handler is.
const HANDLER: u32 = 0b11 << 16;
const HANDLER_DUE: u32 = 0b01 << 16;
const HANDLER_TAKEN: u32 = 0b10 << 16;
const ABORTED: u32 = 1 << 18;

/// The line of a slot.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct ProgressLine {
    /// Generation, segments that somebody has or had. They stay claimed when done.
    pub(crate) claim: AtomicU64,
    /// Generation, segments that are done.
    pub(crate) done: AtomicU64,
    /// Generation, how the task ended.
    state: AtomicU64,
    /// How many threads sleep or are about to; of any generation, hence never reset.
    pub(crate) waiters: AtomicU32,
    /// How often sleepers were woken; what they sleep on.
    pub(crate) wakes: AtomicU32,
}

impl ProgressLine {
    /// Nothing claimed, nothing done. Relaxed: the task's line, written next, publishes it.
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

/// Where a task's handler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandlerState {
    /// Not due yet, or there is none, or the task has retired.
    None,
    /// To be run by whoever takes it.
    Due,
    /// Somebody took it.
    Taken,
}

/// The progress of one task. When the task has retired and its slot serves another, it says that
/// everything is done, gives no claims, and changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub(crate) line: &'a ProgressLine,
    pub(crate) generation: u32,
    pub(crate) scope: Scope,
}

impl Progress<'_> {
    /// Whether all of `bits` are done, or the task has retired. What was copied is then visible.
    /// One load.
    #[inline]
    pub fn is_done(self, bits: u32) -> bool {
        let (generation, done) = halves(self.line.done.load(Ordering::Acquire));
        (done & bits == bits) | (generation != self.generation)
    }

    /// The segments that are done; all where the task has retired.
    #[inline]
    pub fn done(self) -> u32 {
        self.low(&self.line.done).unwrap_or(u32::MAX)
    }

    /// The segments that are claimed, done ones included; all where the task has retired.
    #[inline]
    pub fn claimed(self) -> u32 {
        self.low(&self.line.claim).unwrap_or(u32::MAX)
    }

    /// Whether the slot still serves this task.
    #[inline]
    pub fn is_current(self) -> bool {
        self.low(&self.line.done).is_some()
    }

    #[inline]
    fn low(self, of: &AtomicU64) -> Option<u32> {
        let (generation, low) = halves(of.load(Ordering::Acquire));
        (generation == self.generation).then_some(low)
    }

    /// Changes the low half of a word of this generation, unless `change` declines. What it was
    /// before and is now, where it changed.
    ///
    /// `guess` is what it probably is, and one that `change` accepts. There is no look before the
    /// first try: so a line in another core's cache comes over once, not twice.
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
            // Sequentially consistent, for the look at the waiters that follows; on the usual
            // machines it costs what acquire and release cost.
            match of.compare_exchange_weak(before, new, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Some((low, after)),
                Err(now) => before = now,
            }
        }
        None
    }

    /// Claims what nobody has of `wanted`: returns what is the caller's now, to be
    /// [`finish`](Progress::finish)ed or [`release`](Progress::release)d.
    ///
    /// To ask is to take the line from who works on it: look at [`claimed`](Progress::claimed)
    /// before asking again.
    #[inline]
    pub fn claim(self, wanted: u32) -> u32 {
        let free = |held: u32| (wanted & !held != 0).then_some(held | wanted);
        self.update(&self.line.claim, 0, free).map_or(0, |(before, _)| wanted & !before)
    }

    /// Claims all of `bits`, or nothing if anybody has one of them: for pins.
    #[inline]
    pub fn claim_all_or_none(self, bits: u32) -> bool {
        let free = |held: u32| (bits & held == 0).then_some(held | bits);
        self.update(&self.line.claim, 0, free).is_some()
    }

    /// Gives back segments that the caller has claimed and not finished. Who waits for a segment to
    /// be free is woken.
    pub fn release(self, bits: u32) {
        if self.update(&self.line.claim, bits, |held| Some(held & !bits)).is_some() {
            self.wake_waiters();
        }
    }

    /// Says that segments which the caller has claimed are copied, and wakes who waits. Returns all
    /// that are done now; all bits where the task has retired, which means that somebody broke the
    /// rules, see the [module](self).
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

    /// After a change that somebody may wait for. Both sides first write and then look: the change
    /// and the waiters here, the waiters and the change in [`wait`](crate::wait). In the one order
    /// of these four, one side comes to look last, and sees.
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

    /// Ends segments that the caller has claimed with an error: they are done, not copied. Returns
    /// what [`finish`](Progress::finish) does. The first error of a task stays.
    pub fn fail(self, code: NonZeroU16, bits: u32) -> u32 {
        self.update_state(0, |state| (state & ERROR == 0).then_some(state | u32::from(code.get())));
        self.finish(bits)
    }

    /// The error that the task ended with, if any; known from when the failed segments are done
    /// until the task retires.
    #[inline]
    pub fn error(self) -> Option<NonZeroU16> {
        self.low(&self.line.state).and_then(|state| NonZeroU16::new(state as u16))
    }

    /// How the task ended, as [`error`](Progress::error) says; none where its slot serves another
    /// one, so that nothing is known here.
    #[inline]
    pub fn ending(self) -> Option<Result<(), NonZeroU16>> {
        let error = self.low(&self.line.state).map(|state| NonZeroU16::new(state as u16))?;
        Some(error.map_or(Ok(()), Err))
    }

    /// Claims those of `bits` that nobody has, and ends them: done, not copied, the task aborted.
    /// Returns them. Whether others depend on the segments is the caller's to know.
    pub fn abort_rest(self, bits: u32) -> u32 {
        let mine = self.claim(bits);
        if mine != 0 {
            self.finish_aborted(mine);
        }
        mine
    }

    /// Ends segments that the caller has claimed without a copy: done, the task aborted. Returns
    /// what [`finish`](Progress::finish) does.
    pub fn finish_aborted(self, bits: u32) -> u32 {
        self.update_state(0, |state| Some(state | ABORTED));
        self.finish(bits)
    }

    /// Whether a part of the task was aborted; known as [`error`](Progress::error) is.
    #[inline]
    pub fn is_aborted(self) -> bool {
        self.low(&self.line.state).is_some_and(|state| state & ABORTED != 0)
    }

    /// Service, or who does its work when it is dead: the task is complete, its handler may run.
    /// `true` for the first to say so: it pushes the ticket into the handler ring.
    pub fn handler_due(self) -> bool {
        self.update_state(0, |state| (state & HANDLER == 0).then_some(state | HANDLER_DUE))
    }

    /// Client: takes the handler in order to run it. `true` once, whoever asks, and however many.
    /// Copy the task before: after it the slot may be recycled.
    pub fn take_handler(self) -> bool {
        self.update_state(HANDLER_DUE, |state| {
            (state & HANDLER == HANDLER_DUE).then_some(state & !HANDLER | HANDLER_TAKEN)
        })
    }

    /// Where the handler is. A task whose handler is due must not retire.
    #[inline]
    pub fn handler(self) -> HandlerState {
        match self.low(&self.line.state).map_or(0, |state| state & HANDLER) {
            0 => HandlerState::None,
            HANDLER_DUE => HandlerState::Due,
            _ => HandlerState::Taken,
        }
    }
}
