//! Pending tasks of one client, in the order of their tickets.
//!
//! Tickets only grow, and most tasks retire soon after their neighbours. So a queue with holes
//! stays small, and a ticket's index is usually its distance from the first one.

use std::collections::VecDeque;

use crate::Ticket;
use crate::progress::Progress;
use crate::span::Span;
use crate::task::Task;

/// Maximum number of holes before the queue is compacted.
const HOLES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Table {
    tasks: VecDeque<Task>,
    live: usize,
}

impl Table {
    /// Adds a task whose ticket is above all others.
    pub fn push(&mut self, task: Task) {
        self.tasks.push_back(task);
        self.live += 1;
    }

    /// Returns the number of pending tasks.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns the oldest task's ticket.
    pub fn oldest(&self) -> Option<Ticket> {
        // Holes at the front are dropped when they are made.
        self.tasks.front().map(|task| task.ticket)
    }

    /// Returns the first pending ticket after `ticket`.
    pub fn after(&self, ticket: Ticket) -> Option<Ticket> {
        let place = self.tasks.partition_point(|task| task.ticket <= ticket);
        self.tasks.range(place..).find(|task| !task.retired).map(|task| task.ticket)
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        let distance = usize::try_from(ticket.0.checked_sub(self.oldest()?.0)?).ok()?;
        if self.tasks.get(distance).is_some_and(|task| task.ticket == ticket) {
            return Some(distance);
        }
        self.tasks.binary_search_by_key(&ticket, |task| task.ticket).ok()
    }

    pub fn get(&self, ticket: Ticket) -> Option<&Task> {
        self.tasks.get(self.place(ticket)?).filter(|task| !task.retired)
    }

    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Task> {
        let place = self.place(ticket)?;
        self.tasks.get_mut(place).filter(|task| !task.retired)
    }

    /// Returns the finished segments, after a query for the segments in `needed` that were not
    /// finished so far. For a task that is not pending: all segments.
    pub fn look<P: Progress>(&mut self, ticket: Ticket, needed: u32, progress: &P) -> u32 {
        let Some(task) = self.get_mut(ticket) else { return u32::MAX };
        if needed & task.segments.all() & !task.finished() != 0 {
            task.done |= progress.done(ticket) & task.segments.all();
        }
        task.finished()
    }

    /// Returns true if all segments of the task are finished.
    pub fn is_finished<P: Progress>(&mut self, ticket: Ticket, progress: &P) -> bool {
        let all = self.get(ticket).map_or(0, |task| task.segments.all());
        all & !self.look(ticket, all, progress) == 0
    }

    /// Removes a task; its memory is reused later.
    pub fn retire(&mut self, ticket: Ticket) -> Option<IndexKeys> {
        let task = self.get_mut(ticket)?;
        task.retired = true;
        let keys =
            IndexKeys { writes: task.writes(), reads: task.reads(), streams: task.streams() };
        self.live -= 1;
        while self.tasks.front().is_some_and(|task| task.retired) {
            self.tasks.pop_front();
        }
        if self.tasks.len() > 2 * self.live + HOLES_MAX {
            self.tasks.retain(|task| !task.retired);
        }
        Some(keys)
    }
}

/// Keys under which the indexes list a task.
pub(crate) struct IndexKeys {
    pub writes: Option<Span>,
    pub reads: Option<Span>,
    pub streams: [Option<u64>; 2],
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::task::{Kind, Request};

    fn task(ticket: Ticket) -> Task {
        let request = Request {
            dst: Span { start: 0, len: 8 },
            src: Span { start: 8, len: 8 },
            granule_shift: 3,
            lazy_until: None,
            kind: Kind::Memory,
            last_use: false,
        };
        Task::new(ticket, &request).unwrap()
    }

    #[test]
    fn finds_what_is_there_and_nothing_else() {
        unlade_testkit::cases(20, |random| {
            let (mut table, mut model) = (Table::default(), BTreeSet::new());
            let mut ticket = Ticket(random.below(9));
            for _ in 0..2000 {
                ticket.0 += 1 + random.below(3) / 2;
                table.push(task(ticket));
                model.insert(ticket);
                // The oldest task stays, so that holes accumulate behind it.
                let known: Vec<_> = model.iter().copied().collect();
                let others = known.get(1..).unwrap_or_default();
                let old = others.get(random.below(others.len())).copied();
                if let Some(old) = old.filter(|_| known.len() > 5) {
                    assert!(table.retire(old).is_some());
                    assert!(table.retire(old).is_none());
                    model.remove(&old);
                }
                let some = Ticket(random.below(ticket.0 + 5));
                assert_eq!(table.get(some).is_some(), model.contains(&some));
                assert_eq!(table.oldest(), model.first().copied());
                let after = model.range(Ticket(some.0 + 1)..).next().copied();
                assert_eq!(table.after(some), after);
                assert_eq!(table.len(), model.len());
                assert!(table.tasks.len() <= 2 * model.len() + HOLES_MAX + 1);
            }
        });
    }
}
