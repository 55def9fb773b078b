//! Admission: decides whether to queue a copy, for each call site and length.
//!
//! The cost is the time that the client sees. An inline copy costs the copy itself. A queued copy
//! costs its submission, the wait at the sync, and the transfer of the bytes from the other core's
//! cache. A call site that uses the bytes at once mostly loses by queueing. A call site that does
//! other work first (its *window*) gains as soon as the window is longer than the service takes.
//!
//! Per site and class of lengths:
//! 1. Inline copies are measured: the copy, the reading of its bytes, and the window after it.
//!    This costs the client nothing but the readings of the clock.
//! 2. A cost model (`class.rs`) says whether queueing can pay. If so, and the
//!    service is awake, some copies are queued and measured: a *trial*.
//! 3. If the trial paid, the site queues. Every wait is counted, one copy in [`RUN_COPIES`] is
//!    measured whole, of long copies one in 32. The site enters below 0.88 of the inline time and
//!    leaves above 0.97. A site of short copies that gains nothing is asked less and less.
//!
//! A ledger for each site and class bounds the loss of trials, wake-ups and late copies to a
//! small part of the time of all copies.

mod class;
mod ledger;
mod recent;
mod request;
#[cfg(test)]
mod tests;
mod view;

use class::Class;
pub use class::{ENTER, FIRST_COPIES, HANDOFF_NS, LEAVE, SETTLED_RUNS};
pub use ledger::EARNED;
pub use recent::{RECENT_WORDS, Recent};
pub use request::{
    Choice, Costs, QUEUED_BYTES_MIN, QueuedTiming, Request, Verdict, WAKE_PENDING_BYTES_MIN,
};
pub use view::{Cause, State, View};

/// Number of copies that one decision holds for, once both costs are known.
pub const RUN_COPIES: u16 = 128;

/// Lengths of at least `1 << CLASS_MIN` bytes are classed by powers of two.
const CLASS_MIN: u32 = 10;
/// Number of length classes. The last class contains all copies of 64 MiB and more.
pub const CLASSES: usize = 17;

/// A call site in a program that copies. The caller keeps a bounded table of call sites.
#[derive(Clone, Debug, Default)]
pub struct CallSite {
    classes: [Option<Box<Class>>; CLASSES],
}

/// Returns the length class of a copy.
#[inline]
pub fn class_of(len: u64) -> usize {
    let power = (len | 1).ilog2().max(CLASS_MIN) - CLASS_MIN;
    (power as usize).min(CLASSES - 1)
}

/// Returns the lengths of a class: the shortest one, and the first one that is longer; none for
/// the last class, which has no end.
pub fn lengths_of(class: usize) -> (u64, Option<u64>) {
    let start = if class == 0 { 0 } else { 1 << (CLASS_MIN as usize + class.min(CLASSES - 1)) };
    let end = (class + 1 < CLASSES).then(|| 1 << (CLASS_MIN as usize + class + 1));
    (start, end)
}

impl CallSite {
    fn class_mut(&mut self, class: usize) -> &mut Class {
        self.classes[class.min(CLASSES - 1)].get_or_insert_default()
    }

    fn class(&self, class: usize) -> Option<&Class> {
        self.classes[class.min(CLASSES - 1)].as_deref()
    }

    /// Decides about a copy, and about those after it.
    pub fn decide(&mut self, costs: &Costs, request: &Request) -> Choice {
        if request.bytes < costs.queued_bytes_min {
            return Choice::inline(request.run.max(1) - 1);
        }
        self.class_mut(request.class).decide(costs, request)
    }

    /// Returns the decision outside of trials; `None` until inline copies are measured.
    pub fn usual(&self, class: usize) -> Option<Verdict> {
        self.class(class).and_then(Class::usual)
    }

    /// Returns the state of a class.
    pub fn state(&self, class: usize) -> State {
        self.class(class).map_or(State::NotLearnt, Class::state)
    }

    /// Returns the state of a class with the measurements that led to it.
    pub fn view(&self, class: usize) -> View {
        self.class(class).map_or_else(View::default, Class::view)
    }

    /// The window that counts, in nanoseconds: four of five are longer. `None` before one is
    /// measured.
    pub fn window_ns(&self, class: usize) -> Option<f32> {
        self.class(class).and_then(Class::window_ns)
    }

    /// Records the duration of an inline copy of `bytes` bytes. `line_ns`: the time to read a
    /// cache line of the result afterwards, if measured.
    pub fn observe_inline(&mut self, class: usize, bytes: u64, copy_ns: u32, line_ns: Option<f32>) {
        self.class_mut(class).observe_inline(bytes, copy_ns as f32, line_ns);
    }

    /// Records the time between an inline copy and the first sync of its bytes.
    pub fn observe_window(&mut self, class: usize, window_ns: u32) {
        self.class_mut(class).observe_window(window_ns as f32);
    }

    /// Records a timed copy of `bytes` bytes that was queued and synced. `is_awake`: the state of
    /// the service at the submission.
    pub fn observe_queued(
        &mut self,
        class: usize,
        bytes: u64,
        is_awake: bool,
        seen: &QueuedTiming,
    ) {
        self.class_mut(class).observe_queued(bytes, is_awake, seen);
    }

    /// Records the wait for a queued copy that was not timed. Returns true if the usual decision
    /// changed.
    pub fn observe_late(&mut self, class: usize, wait_ns: u32) -> bool {
        self.class_mut(class).observe_late(wait_ns as f32)
    }
}
