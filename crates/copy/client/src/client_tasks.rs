//! Private state of a daemon's client about its tasks: the segments that it has claimed, and the
//! handlers that wait.
//!
//! Both are also in shared memory, but claims of the daemon and of the client look the same there,
//! and a handler address there could be forged by the daemon and must not be called.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use unlade_shm::segment::{self, Run};
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
    /// Bytes of a receive or send that a daemon had moved before it was killed.
    moved: AtomicU32,
    /// Position of a receive or send in its stream.
    position: AtomicU64,
}

/// State of a task that a daemon has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// So many of its bytes are moved; 0 for a copy.
    Moved(u32),
    /// Nobody knows how many bytes are moved.
    Unknown,
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
        entry.moved.store(0, Ordering::Relaxed);
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

    /// As [`ClientTasks::claim`], but all segments or none.
    pub fn claim_all_or_none(&self, ticket: Ticket, progress: Progress<'_>, bits: u32) -> bool {
        let _claiming = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        let is_mine = progress.claim_all_or_none(bits);
        if is_mine {
            self.entry(ticket).own.fetch_or(bits, Ordering::Relaxed);
        }
        is_mine
    }

    /// Records the position of a receive or send in its stream, before it is published.
    pub fn set_position(&self, ticket: Ticket, position: u64) {
        self.entry(ticket).position.store(position, Ordering::Relaxed);
    }

    /// Returns the position of a receive or send in its stream.
    pub fn position(&self, ticket: Ticket) -> u64 {
        self.entry(ticket).position.load(Ordering::Relaxed)
    }

    /// Returns the number of the task's bytes that a daemon had moved before it was killed, as far as
    /// they are not in done segments.
    pub fn moved(&self, ticket: Ticket) -> u32 {
        self.entry(ticket).moved.load(Ordering::Relaxed)
    }

    /// Releases segments that are claimed, not done, and not claimed by this process; of a receive
    /// or send those whose bytes are not moved, and marks the others. `left` says how many are: its
    /// argument is true if the daemon had claimed some. The daemon must be dead. Returns the number
    /// of segments that it had claimed, and those that must be failed, which this process has
    /// claimed then.
    pub fn take_back(
        &self,
        ticket: Ticket,
        progress: Progress<'_>,
        shape: (u32, u8),
        left: impl FnOnce(bool) -> Left,
    ) -> (u32, u32) {
        let _claiming = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        if !progress.is_current() {
            return (0, 0);
        }
        let entry = self.entry(ticket);
        let own = entry.own.load(Ordering::Relaxed);
        let stranded = progress.claimed() & !progress.done() & !own;
        let (len_bytes, granule_shift) = shape;
        let all = segment::bits_for(len_bytes.max(1), granule_shift);
        let lost = match left(stranded != 0) {
            Left::Moved(moved) if stranded != 0 => {
                let whole = match moved >= len_bytes {
                    true => all,
                    false => Run { first: 0, count: moved >> granule_shift }.bits(),
                };
                entry.moved.store(moved, Ordering::Relaxed);
                let made = stranded & whole;
                if made != 0 {
                    progress.finish(made);
                }
                if stranded != made {
                    progress.release(stranded & !made);
                }
                0
            }
            Left::Moved(_) => 0,
            Left::Unknown => {
                let lost = stranded | progress.claim(all & !own);
                entry.own.fetch_or(lost, Ordering::Relaxed);
                lost
            }
        };
        (stranded.count_ones(), lost)
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
        let task = Task::copy(0x1000, 0x9000, 8192);
        let shift = task.granule_shift;
        queue.publish(ticket, &task);
        let progress = queue.progress(ticket);
        let take_back = || tasks.take_back(ticket, progress, (8192, shift), |_| Left::Moved(0)).0;
        // The daemon: two segments, one of them done.
        assert_eq!(progress.claim(0b0011), 0b0011);
        progress.finish(0b0001);
        // A thread of this process, in the middle of a copy.
        assert_eq!(tasks.claim(ticket, progress, 0b0110), 0b0100);
        assert_eq!(take_back(), 1);
        assert_eq!(progress.claimed(), 0b0101);
        assert_eq!(take_back(), 0);
        assert_eq!(tasks.claim(ticket, progress, 0b0010), 0b0010);
        assert_eq!(take_back(), 0);
        progress.finish(0b0110);
        assert_eq!(progress.done(), 0b0111);
    }

    #[test]
    fn a_receive_goes_on_behind_the_bytes_that_are_moved() {
        let tasks = ClientTasks::new(16);
        let mut random = unlade_testkit::Random::new(unlade_testkit::seed());
        let queue = queue();
        for _ in 0..200 {
            let ticket = queue.try_acquire().unwrap();
            tasks.begin(ticket, None);
            let task = Task::copy(0x1000, 0x9000, 1 + random.below(100_000));
            queue.publish(ticket, &task);
            let (progress, shape) = (queue.progress(ticket), (task.len_bytes, task.granule_shift));
            // The daemon has marked some of the segments that it has moved, and claimed all.
            let moved = random.below(task.len_bytes + 1);
            let bytes_of = |at| {
                let run = Run { first: at, count: 1 };
                segment::bytes_of(run, task.len_bytes, task.granule_shift)
            };
            let count = task.bits().count_ones();
            let whole = (0..count).filter(|at| bytes_of(*at).end <= moved).count() as u32;
            progress.claim(task.bits());
            let marked = random.below(whole + 1);
            progress.finish(Run { first: 0, count: marked }.bits());
            let (stranded, lost) = tasks.take_back(ticket, progress, shape, |was_claimed| {
                assert_eq!(was_claimed, marked < count);
                Left::Moved(moved)
            });
            assert_eq!((stranded, lost), (count - marked, 0));
            assert_eq!(progress.done(), Run { first: 0, count: whole }.bits());
            assert_eq!(progress.claimed(), progress.done());
            if whole < count {
                assert_eq!(tasks.moved(ticket), moved);
                // Nothing is known of the next one.
                let unknown = tasks.take_back(ticket, progress, shape, |_| Left::Unknown);
                assert_eq!(unknown, (0, task.bits() & !progress.done()));
                assert_eq!(progress.claimed(), task.bits());
                progress.finish(task.bits());
            }
            queue.retire(ticket.next());
        }
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
