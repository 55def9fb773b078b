//! The ring of tasks: many producers acquire and publish, one service peeks and retires.

use crate::atomic::Ordering;
use crate::bounded::{Bounded, Cursor};
use crate::doorbell::Doorbell;
use crate::layout::{LayoutError, Shape};
use crate::memory::Memory;
use crate::progress::Progress;
use crate::sections::Sections;
use crate::task::{Task, TaskError};
use crate::ticket::{Slots, Ticket};

/// Maximum number of attempts of a producer that competes with others. After that the queue counts
/// as full; only a peer that manipulates the head causes more attempts.
const ACQUIRE_ATTEMPTS_MAX: u32 = 1024;

/// Number of tickets in advance for which the lines of a slot are prefetched.
const WRITE_AHEAD: u64 = 8;

/// Invalid positions in a queue: the client's fault. Drop the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The client wrote to the service's line.
    #[error("the client changed what the service retired: {found} instead of {retired}")]
    Tail {
        /// Value in the line.
        found: u64,
        /// Value that the service wrote.
        retired: u64,
    },
    /// The client's line has an impossible value.
    #[error("the client acquired up to {head}; with {slots} slots and {retired} retired it cannot")]
    Head {
        /// Value in the line.
        head: u64,
        /// The first ticket that is not retired.
        retired: u64,
        /// Number of slots, which is the largest valid distance.
        slots: u64,
    },
}

/// One client's queue, shared by all its threads and the service.
///
/// In one process, client and service share one `Queue` in an `Arc`. In two processes, each has
/// its own, over a mapping of the same file.
///
/// A thread that acquires a ticket must publish it. A thread that ends in between blocks all later
/// tasks, because they are processed in the order of tickets. The other rings and the progress of
/// earlier tasks are not affected.
#[derive(Debug)]
pub struct Queue {
    sections: Sections,
    slots: Slots,
    /// The tail as last read by a producer. It is not shared, so producers do not access the
    /// service's line for every task.
    tail_seen: Cursor,
    /// The tail as written by the service. It is not shared, so no client can change it.
    retired: Cursor,
}

impl Queue {
    /// Returns the size of a queue, in bytes.
    ///
    /// # Errors
    /// [`LayoutError::Slots`].
    pub fn bytes_for(slots: u32) -> Result<usize, LayoutError> {
        Ok(Shape::of(slots.into())?.bytes)
    }

    /// Creates an empty queue in unused memory. Its doorbell starts in the asleep state.
    ///
    /// # Errors
    /// [`LayoutError::Slots`], [`LayoutError::TooSmall`].
    pub fn create(memory: Memory, slots: u32) -> Result<Queue, LayoutError> {
        let shape = Shape::of(slots.into())?;
        let queue = Queue::over(Sections::of(memory, &shape)?, shape.slots);
        let control = queue.sections.control();
        control.head.0.store(0, Ordering::Relaxed);
        control.tail.0.store(0, Ordering::Relaxed);
        control.doorbell.reset();
        queue.sync_ring().reset();
        queue.handler_ring().reset();
        queue.sections.tasks().iter().for_each(|line| line.reset());
        queue.sections.progress().iter().for_each(|line| line.reset());
        control.header.write(&shape);
        Ok(queue)
    }

    /// Opens a queue that a peer made. The service continues at the position of the last one.
    ///
    /// # Errors
    /// The memory is not a queue, or not one that this program can use; see [`LayoutError`].
    pub fn attach(memory: Memory) -> Result<Queue, LayoutError> {
        let shape = Sections::shape_in(&memory)?;
        let queue = Queue::over(Sections::of(memory, &shape)?, shape.slots);
        let control = queue.sections.control();
        let tail = control.tail.0.load(Ordering::Acquire);
        let head = control.head.0.load(Ordering::Acquire);
        let slots = shape.slots.count();
        if head.wrapping_sub(tail) > slots {
            return Err(LayoutError::Positions { head, tail, slots });
        }
        queue.tail_seen.0.store(tail, Ordering::Relaxed);
        queue.retired.0.store(tail, Ordering::Relaxed);
        Ok(queue)
    }

    fn over(sections: Sections, slots: Slots) -> Queue {
        Queue { sections, slots, tail_seen: Cursor::default(), retired: Cursor::default() }
    }

    /// Returns the memory of the queue.
    pub fn memory(&self) -> &Memory {
        self.sections.memory()
    }

    /// Returns the maximum number of tasks between acquired and retired.
    #[inline]
    pub fn slots(&self) -> u32 {
        self.slots.count() as u32
    }

    /// Returns the next ticket to be acquired. All tickets below are acquired.
    #[inline]
    pub fn head(&self) -> Ticket {
        Ticket(self.sections.control().head.0.load(Ordering::Acquire))
    }

    /// Returns the first ticket that is not retired. All tasks below are complete.
    #[inline]
    pub fn tail(&self) -> Ticket {
        Ticket(self.sections.control().tail.0.load(Ordering::Acquire))
    }

    /// Producer: acquires the next ticket, which must then be [`publish`](Queue::publish)ed.
    /// `None` if the queue is full: copy by other means, run the due handlers, or wait.
    #[inline]
    pub fn try_acquire(&self) -> Option<Ticket> {
        let head = &self.sections.control().head.0;
        // Load the tail first, so the head is not behind it.
        let mut tail = self.tail_seen.0.load(Ordering::Acquire);
        let mut at = head.load(Ordering::Relaxed);
        for _ in 0..ACQUIRE_ATTEMPTS_MAX {
            if at.wrapping_sub(tail) >= self.slots.count() {
                tail = self.refresh_tail();
                at = head.load(Ordering::Relaxed);
                // A peer's tail beyond the head counts as full, too.
                if at.wrapping_sub(tail) >= self.slots.count() {
                    return None;
                }
            }
            let next = at.wrapping_add(1);
            // Relaxed: the load of the tail orders the earlier use of the slot.
            match head.compare_exchange_weak(at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Ticket(at)),
                Err(now) => at = now,
            }
        }
        None
    }

    #[cold]
    fn refresh_tail(&self) -> u64 {
        let tail = self.sections.control().tail.0.load(Ordering::Acquire);
        // If an older value overwrites a newer one, producers only come here sooner.
        self.tail_seen.0.store(tail, Ordering::Release);
        tail
    }

    /// Producer: fills the slot of an acquired ticket. From now on the service and all waiting
    /// threads may work on the task. Then call [`Doorbell::ring`], unless the wake-up can wait.
    #[inline]
    pub fn publish(&self, ticket: Ticket, task: &Task) {
        let index = self.slots.index(ticket);
        let generation = self.slots.generation(ticket);
        // Progress first: a thread that finds the task must find it unclaimed.
        self.sections.progress()[index].begin(generation);
        self.sections.tasks()[index].write(generation, task);
        let later = Ticket(ticket.0.wrapping_add(WRITE_AHEAD));
        self.sections.expect_write(self.slots.index(later));
    }

    /// Returns a copy of the task; `None` if it is not published yet, or if it is retired and its
    /// slot is reused.
    ///
    /// # Errors
    /// The line is invalid: the client's fault. End the task with [`Progress::fail`], so that no
    /// thread waits for it.
    #[inline]
    pub fn peek(&self, ticket: Ticket) -> Option<Result<Task, TaskError>> {
        self.sections.tasks()[self.slots.index(ticket)].read(self.slots.generation(ticket))
    }

    /// Service: retires all tickets below `below`; their slots are free. The tasks must be
    /// complete: every segment is done (this call wakes no waiter), no segment is claimed as a
    /// pin, and no handler is [`Due`](crate::HandlerState::Due), since it would be lost.
    ///
    /// Only one thread retires at a time, and never backwards.
    #[inline]
    pub fn retire(&self, below: Ticket) {
        debug_assert!(
            below.0.wrapping_sub(self.retired.0.load(Ordering::Relaxed)) <= self.slots.count(),
            "retired backwards, or more than there are"
        );
        self.retired.0.store(below.0, Ordering::Relaxed);
        // Release: no producer fills a slot while it is still read.
        self.sections.control().tail.0.store(below.0, Ordering::Release);
    }

    /// Service: returns the number of tickets that are acquired and not retired, if the client's
    /// positions are possible. Call it now and then. Safety does not depend on it, but a client
    /// with impossible positions should be dropped.
    ///
    /// # Errors
    /// The positions are impossible; see [`QueueError`].
    pub fn check(&self) -> Result<u64, QueueError> {
        let retired = self.retired.0.load(Ordering::Relaxed);
        let found = self.tail().0;
        if found != retired {
            return Err(QueueError::Tail { found, retired });
        }
        let (head, slots) = (self.head().0, self.slots.count());
        match head.wrapping_sub(retired) {
            pending if pending <= slots => Ok(pending),
            _ => Err(QueueError::Head { head, retired, slots }),
        }
    }

    /// Returns the progress of a published task. An unpublished task appears done.
    #[inline]
    pub fn progress(&self, ticket: Ticket) -> Progress<'_> {
        let line = &self.sections.progress()[self.slots.index(ticket)];
        line.of(self.slots.generation(ticket), self.memory().scope())
    }

    /// Returns the doorbell in the queue's memory.
    #[inline]
    pub fn doorbell(&self) -> Doorbell<'_> {
        self.sections.control().doorbell.doorbell(self.memory().scope())
    }

    pub(crate) fn sync_ring(&self) -> Bounded<'_> {
        let control = self.sections.control();
        Bounded { cursors: &control.sync, cells: &control.sync_cells }
    }

    pub(crate) fn handler_ring(&self) -> Bounded<'_> {
        let control = self.sections.control();
        Bounded { cursors: &control.handlers, cells: self.sections.handlers() }
    }
}
