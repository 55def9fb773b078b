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

/// How often a producer tries again because another was faster, before it is refused as if the
/// queue were full. More is a peer who plays with the head.
const ACQUIRE_ATTEMPTS_MAX: u32 = 1024;

/// So many tickets before it is published the lines of a task are asked for.
const WRITE_AHEAD: u64 = 8;

/// What the service finds wrong with the positions of a queue: the client's fault. Drop the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The client wrote into the service's line.
    #[error("the client changed what the service retired: {found} instead of {retired}")]
    Tail {
        /// What the line says.
        found: u64,
        /// What the service wrote.
        retired: u64,
    },
    /// The client's line says what cannot be.
    #[error("the client acquired up to {head}; with {slots} slots and {retired} retired it cannot")]
    Head {
        /// What the line says.
        head: u64,
        /// The first ticket that is not retired.
        retired: u64,
        /// How many may lie between.
        slots: u64,
    },
}

/// One client's queue; all its threads, and the service, share it.
///
/// One process: one `Queue` in an `Arc`. Two: each has its own, over a mapping of the same file.
///
/// Who acquires a ticket must publish it: a thread that ends in between stops the queue behind it,
/// for its order is that of the tickets. The other rings and the progress of earlier tasks do not
/// mind.
#[derive(Debug)]
pub struct Queue {
    sections: Sections,
    slots: Slots,
    /// The tail as producers last saw it; not shared, so that they do not take the service's line
    /// with every task.
    tail_seen: Cursor,
    /// The tail as the service wrote it; not shared, so that no client can change it.
    retired: Cursor,
}

impl Queue {
    /// How many bytes a queue takes.
    ///
    /// # Errors
    /// [`LayoutError::Slots`].
    pub fn bytes_for(slots: u32) -> Result<usize, LayoutError> {
        Ok(Shape::of(slots.into())?.bytes)
    }

    /// Makes an empty queue in memory that nobody else uses yet. The doorbell says that the service
    /// sleeps.
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

    /// Opens a queue that a peer made. The service goes on where the last one stopped.
    ///
    /// # Errors
    /// The memory is no queue, or not one that this program can use; see [`LayoutError`].
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

    /// The memory that the queue is in.
    pub fn memory(&self) -> &Memory {
        self.sections.memory()
    }

    /// How many tasks may be between acquired and retired.
    #[inline]
    pub fn slots(&self) -> u32 {
        self.slots.count() as u32
    }

    /// The next ticket that will be acquired. All below are in somebody's hands.
    #[inline]
    pub fn head(&self) -> Ticket {
        Ticket(self.sections.control().head.0.load(Ordering::Acquire))
    }

    /// The first ticket that is not retired. All below are complete.
    #[inline]
    pub fn tail(&self) -> Ticket {
        Ticket(self.sections.control().tail.0.load(Ordering::Acquire))
    }

    /// Producer: takes the next ticket, and with it the duty to [`publish`](Queue::publish). None
    /// where the queue is full: copy by other means, or run the handlers that are due, or wait.
    #[inline]
    pub fn try_acquire(&self) -> Option<Ticket> {
        let head = &self.sections.control().head.0;
        // The tail first: so the head is not behind it.
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
            // Relaxed: what was done with the slot before is known through the tail.
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
        // Should an older value overwrite a newer one, producers come here sooner, no more.
        self.tail_seen.0.store(tail, Ordering::Release);
        tail
    }

    /// Producer: fills the slot of a ticket that it acquired. From now on the service, and every
    /// thread that waits, may work on the task. Then [`Doorbell::ring`], where it is worth it.
    #[inline]
    pub fn publish(&self, ticket: Ticket, task: &Task) {
        let index = self.slots.index(ticket);
        let generation = self.slots.generation(ticket);
        // Progress first: who finds the task finds it with nothing claimed.
        self.sections.progress()[index].begin(generation);
        self.sections.tasks()[index].write(generation, task);
        let later = Ticket(ticket.0.wrapping_add(WRITE_AHEAD));
        self.sections.expect_write(self.slots.index(later));
    }

    /// A copy of the task; none where it is not published yet, or retired and its slot in use
    /// again.
    ///
    /// # Errors
    /// The line is there and makes no sense: the client's fault. End the task with
    /// [`Progress::fail`], so that nobody waits for it.
    #[inline]
    pub fn peek(&self, ticket: Ticket) -> Option<Result<Task, TaskError>> {
        self.sections.tasks()[self.slots.index(ticket)].read(self.slots.generation(ticket))
    }

    /// Service: all tickets below `below` are complete; their slots are free. Complete means that
    /// every segment is done (nobody is woken here), that no segment is claimed as a pin, and that
    /// no handler is [`Due`](crate::HandlerState::Due), since it would be lost.
    ///
    /// One thread retires at a time, and never backwards.
    #[inline]
    pub fn retire(&self, below: Ticket) {
        debug_assert!(
            below.0.wrapping_sub(self.retired.0.load(Ordering::Relaxed)) <= self.slots.count(),
            "retired backwards, or more than there are"
        );
        self.retired.0.store(below.0, Ordering::Relaxed);
        // Release: nobody fills a slot while it is still read.
        self.sections.control().tail.0.store(below.0, Ordering::Release);
    }

    /// Service: how many tickets are acquired and not retired, if the client's positions are
    /// possible. Call it now and then: nothing relies on it, but who lies is not worth serving.
    ///
    /// # Errors
    /// They are not; see [`QueueError`].
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

    /// The progress of a task that was published. One that is not seems to be done.
    #[inline]
    pub fn progress(&self, ticket: Ticket) -> Progress<'_> {
        let line = &self.sections.progress()[self.slots.index(ticket)];
        line.of(self.slots.generation(ticket), self.memory().scope())
    }

    /// The doorbell in the queue's memory.
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
