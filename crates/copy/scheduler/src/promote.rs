//! Promotion: segments that a client waits for go first (rule 3).

use crate::Ticket;
use crate::plan::{CANDIDATES_MAX, Order, Plan, PlanContext, Progress, enqueue};

impl Plan {
    /// Promotes segments that a client waits for: they and their dependencies precede everything
    /// that was not promoted earlier.
    ///
    /// A ticket without a pending task is counted as a stray: the task may have retired meanwhile.
    pub fn promote(&mut self, ticket: Ticket, bits: u32) {
        let Some(task) = self.table.get_mut(ticket) else {
            self.strays += 1;
            return;
        };
        let known = bits & task.segments.all();
        if known != bits {
            self.strays += 1;
        }
        // A task with promoted segments is in the queue once.
        let is_new = task.promoted == 0 && known != 0;
        task.promoted |= known;
        if is_new {
            enqueue(&mut self.promotions, &self.table, ticket);
        }
    }

    pub(crate) fn next_promoted<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
    ) -> Option<Order> {
        let mut place = 0;
        while place < self.promotions.len().min(CANDIDATES_MAX) && context.work > 0 {
            let ticket = self.promotions[place];
            let left = self.still_promoted(context, ticket);
            if left == 0 {
                context.spend();
                self.promotions.remove(place);
                self.touch(ticket);
                continue;
            }
            if let Some(order) = self.attempt(context, ticket, left, true) {
                return Some(order);
            }
            place += 1;
        }
        None
    }

    /// Returns the promoted segments that are not finished.
    fn still_promoted<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
        ticket: Ticket,
    ) -> u32 {
        let promoted = self.table.get(ticket).map_or(0, |task| task.promoted);
        let left = promoted & !self.table.look(ticket, promoted, context.progress);
        if let Some(task) = self.table.get_mut(ticket) {
            task.promoted = left;
        }
        left
    }
}
