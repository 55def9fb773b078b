//! Retirement of tasks.

use smallvec::SmallVec;

use crate::Ticket;
use crate::plan::{Plan, Progress};

/// Maximum number of tasks remembered for the next [`Plan::collect`].
const TOUCHED_MAX: usize = 1024;
/// Maximum number of other tasks that one call examines when no task was touched.
const SCAN_MAX: usize = 8;
/// Maximum number of other tasks that one call examines otherwise.
const SCAN_MIN: usize = 1;

/// Retired tasks, in no particular order.
pub type Completed = SmallVec<[Ticket; 8]>;

impl Plan {
    /// Removes and returns the tasks whose segments are all finished and that no order copies or
    /// pins; the runtime retires them.
    ///
    /// Tasks that an order touched are found at once. Tasks that the client alone copied are found
    /// when [`Plan::next`] meets them, or by the examination of a few other tasks in each call.
    pub fn collect<P: Progress>(&mut self, progress: &mut P) -> Completed {
        let mut completed = Completed::new();
        let scans = if self.touched.is_empty() { SCAN_MAX } else { SCAN_MIN };
        while let Some(ticket) = self.touched.pop() {
            self.retire_if_over(ticket, progress, &mut completed);
        }
        for _ in 0..scans.min(self.table.len()) {
            let next = self.table.after(self.cursor).or(self.table.oldest());
            let Some(ticket) = next else { break };
            self.cursor = ticket;
            self.retire_if_over(ticket, progress, &mut completed);
        }
        completed
    }

    /// Remembers the task for the next [`Plan::collect`].
    pub(crate) fn touch(&mut self, ticket: Ticket) {
        if self.touched.len() < TOUCHED_MAX && self.touched.last() != Some(&ticket) {
            self.touched.push(ticket);
        }
    }

    fn retire_if_over<P: Progress>(
        &mut self,
        ticket: Ticket,
        progress: &P,
        completed: &mut Completed,
    ) {
        let Some(task) = self.table.get(ticket) else { return };
        let (until, in_use) = (task.lazy_until, task.held | task.pinned);
        if in_use != 0 || !self.table.is_finished(ticket, progress) {
            return;
        }
        let Some(keys) = self.table.retire(ticket) else { return };
        if let Some(span) = keys.writes {
            self.writers.remove(ticket, span);
        }
        if let Some(span) = keys.reads {
            self.readers.remove(ticket, span);
        }
        for stream in keys.streams.into_iter().flatten() {
            self.streams.remove(&(stream, ticket));
        }
        if let Some(until) = until {
            self.lazies.remove(&(until, ticket));
        }
        completed.push(ticket);
    }
}
