//! Which tasks have retired.

use smallvec::SmallVec;

use crate::Ticket;
use crate::plan::{Plan, Progress};

/// Tasks kept in mind because something happened to them.
const TOUCHED_MAX: usize = 1024;
/// The most other tasks that one call looks at when it has time,
const SCAN_MAX: usize = 8;
/// and when it has something better to do.
const SCAN_MIN: usize = 1;

/// Tasks that are over, in no useful order.
pub type Completed = SmallVec<[Ticket; 8]>;

impl Plan {
    /// Tasks whose segments are all done or ended, and which no order holds or reads past: they are
    /// forgotten here, and the runtime retires them.
    ///
    /// What the plan had a hand in is found at once. What the client did alone is found as
    /// [`Plan::next`] meets it, or by a look at a few other tasks in each call.
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

    /// Something happened to this task.
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
        let Some(sides) = self.table.retire(ticket) else { return };
        if let Some(span) = sides.writes {
            self.writers.remove(ticket, span);
        }
        if let Some(span) = sides.reads {
            self.readers.remove(ticket, span);
        }
        for stream in sides.streams.into_iter().flatten() {
            self.streams.remove(&(stream, ticket));
        }
        if let Some(until) = until {
            self.lazies.remove(&(until, ticket));
        }
        completed.push(ticket);
    }
}
