//! Private state of a daemon's client about its tasks: the segments that it has claimed, and the
//! handlers that wait.
//!
//! Both are also in shared memory, but claims of the daemon and of the client look the same there,
//! and a handler address there could be forged by the daemon and must not be called.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use unlade_shm::{Progress, Ticket};

/// State of one slot. Only the thread that acquired the ticket writes; the ticket is stored last.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// The ticket plus one while its handler waits to be run; 0 otherwise.
    waiting: AtomicU64,
    function: AtomicU64,
    argument: AtomicU64,
    /// Segments claimed by this process, done or not.
    own: AtomicU32,
}

/// The tasks of one queue, by slot.
#[derive(Debug)]
pub(crate) struct ClientTasks {
    entries: Box<[Entry]>,
    /// Held while segments are claimed or released, so that each claim is recorded in `own`.
    claiming: Mutex<()>,
    handlers: AtomicU64,
}

impl ClientTasks {
    /// Creates the state of a queue of `slots` slots, a power of two.
    pub fn new(slots: u32) -> ClientTasks {
        let entries = (0..slots).map(|_| Entry::default()).collect();
        ClientTasks { entries, claiming: Mutex::new(()), handlers: AtomicU64::new(0) }
    }

    fn entry(&self, ticket: Ticket) -> &Entry {
        &self.entries[ticket.0 as usize & (self.entries.len() - 1)]
    }

    /// Begins a task without claims. Call it before the line is published.
    pub fn begin(&self, ticket: Ticket, handler: Option<(usize, usize)>) {
        let entry = self.entry(ticket);
        entry.waiting.store(0, Ordering::Relaxed);
        entry.own.store(0, Ordering::Relaxed);
        let Some((function, argument)) = handler else { return };
        // A reader that sees a new word must not see the old ticket afterwards.
        fence(Ordering::Release);
        entry.function.store(function as u64, Ordering::Relaxed);
        entry.argument.store(argument as u64, Ordering::Relaxed);
        entry.waiting.store(ticket.0.wrapping_add(1), Ordering::Release);
        self.handlers.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if a handler waits.
    pub fn has_handlers(&self) -> bool {
        self.handlers.load(Ordering::Relaxed) != 0
    }

    /// Tickets of waiting handlers.
    pub fn waiting(&self) -> impl Iterator<Item = Ticket> {
        let waiting = self.entries.iter().map(|entry| entry.waiting.load(Ordering::Acquire));
        waiting.filter_map(|waiting| waiting.checked_sub(1).map(Ticket))
    }

    /// Takes the handler of a task and its argument, once.
    pub fn take_handler(&self, ticket: Ticket) -> Option<(usize, usize)> {
        let entry = self.entry(ticket);
        let waiting = ticket.0.wrapping_add(1);
        if entry.waiting.load(Ordering::Acquire) != waiting {
            return None;
        }
        let function = entry.function.load(Ordering::Relaxed) as usize;
        let argument = entry.argument.load(Ordering::Relaxed) as usize;
        let taken = entry.waiting.compare_exchange(waiting, 0, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok()?;
        self.handlers.fetch_sub(1, Ordering::Relaxed);
        Some((function, argument))
    }

    /// Claims the segments of `wanted` that are not claimed, and records them.
    pub fn claim(&self, ticket: Ticket, progress: Progress<'_>, wanted: u32) -> u32 {
        let _claiming = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = progress.claim(wanted);
        if mine != 0 {
            self.entry(ticket).own.fetch_or(mine, Ordering::Relaxed);
        }
        mine
    }

    /// Releases segments that are claimed, not done, and not claimed by this process. The daemon
    /// must be dead. Returns their number.
    pub fn take_back(&self, ticket: Ticket, progress: Progress<'_>) -> u32 {
        let _claiming = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        if !progress.is_current() {
            return 0;
        }
        let own = self.entry(ticket).own.load(Ordering::Relaxed);
        let stranded = progress.claimed() & !progress.done() & !own;
        if stranded != 0 {
            progress.release(stranded);
        }
        stranded.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_shm::{Memory, Queue, Task};

    fn queue() -> Queue {
        Queue::create(Memory::heap(Queue::bytes_for(16).unwrap()).unwrap(), 16).unwrap()
    }

    #[test]
    fn only_claims_of_a_dead_daemon_are_released() {
        let (queue, tasks) = (queue(), ClientTasks::new(16));
        let ticket = queue.try_acquire().unwrap();
        tasks.begin(ticket, None);
        queue.publish(ticket, &Task::copy(0x1000, 0x9000, 8192));
        let progress = queue.progress(ticket);
        // The daemon: two segments, one of them done.
        assert_eq!(progress.claim(0b0011), 0b0011);
        progress.finish(0b0001);
        // A thread of this process, in the middle of a copy.
        assert_eq!(tasks.claim(ticket, progress, 0b0110), 0b0100);
        assert_eq!(tasks.take_back(ticket, progress), 1);
        assert_eq!(progress.claimed(), 0b0101);
        assert_eq!(tasks.take_back(ticket, progress), 0);
        assert_eq!(tasks.claim(ticket, progress, 0b0010), 0b0010);
        assert_eq!(tasks.take_back(ticket, progress), 0);
        progress.finish(0b0110);
        assert_eq!(progress.done(), 0b0111);
    }

    #[test]
    fn a_handler_is_taken_once_and_by_its_own_ticket() {
        let tasks = ClientTasks::new(16);
        tasks.begin(Ticket(3), Some((7, 8)));
        assert!(tasks.has_handlers());
        assert_eq!(tasks.waiting().collect::<Vec<_>>(), [Ticket(3)]);
        assert_eq!(tasks.take_handler(Ticket(19)), None);
        assert_eq!(tasks.take_handler(Ticket(3)), Some((7, 8)));
        assert_eq!(tasks.take_handler(Ticket(3)), None);
        assert!(!tasks.has_handlers());
        tasks.begin(Ticket(19), None);
        assert_eq!(tasks.take_handler(Ticket(19)), None);
    }
}
