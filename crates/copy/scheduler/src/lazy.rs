//! Lazy copies: copied when another task needs them, when they are promoted, or at their deadline
//! (Copier, SOSP 2025, §4.4).

use crate::plan::{CANDIDATES_MAX, Order, Plan, PlanContext, Progress};
use crate::{Micros, Ticket};

impl Plan {
    /// Turns all lazy tasks into ordinary ones, so that they complete and retire. The caller calls
    /// this when there is little room left for tasks.
    pub fn hurry(&mut self) {
        if self.lazies.is_empty() {
            return;
        }
        while let Some((_, ticket)) = self.lazies.pop_first() {
            if let Some(task) = self.table.get_mut(ticket) {
                task.lazy_until = None;
                self.ordinary.push_back(ticket);
            }
        }
        let table = &self.table;
        self.ordinary.retain(|ticket| table.get(*ticket).is_some());
        self.ordinary.make_contiguous().sort_unstable();
    }

    pub(crate) fn next_due<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
    ) -> Option<Order> {
        let earliest = self.earliest_lazy(context)?;
        let mut from = (earliest, Ticket(0));
        for _ in 0..CANDIDATES_MAX {
            let (until, ticket) = *self.lazies.range(from..).next()?;
            if until > context.now || context.work == 0 {
                return None;
            }
            if let Some(order) = self.attempt(context, ticket, u32::MAX, false) {
                return Some(order);
            }
            from = (until, Ticket(ticket.0.saturating_add(1)));
        }
        None
    }

    /// Returns the earliest deadline of a lazy task.
    pub(crate) fn earliest_lazy<P: Progress>(
        &mut self,
        context: &mut PlanContext<'_, P>,
    ) -> Option<Micros> {
        while let Some((until, ticket)) = self.lazies.first().copied() {
            if !self.table.is_finished(ticket, context.progress) {
                return Some(until);
            }
            self.lazies.pop_first();
            self.touch(ticket);
        }
        None
    }
}
