//! Random operations against a simple model, in one thread.
#![cfg(not(feature = "loom"))]

mod common;

use std::collections::VecDeque;
use std::num::NonZeroU16;

use common::bits;
use unlade_shm::{
    Flags, Full, HandlerState, Kind, Progress, Queue, SyncKind, SyncTask, Task, Ticket, Until,
    WaitPolicy, Waited,
};
use unlade_testkit::{Random, seed};

const STEPS: u32 = 200_000;
const SLOTS: usize = 16;
const SYNC_ENTRIES: usize = unlade_shm::layout::SYNC_ENTRIES;
/// One check, and one sleep without a duration.
const ONE_CHECK: WaitPolicy =
    WaitPolicy { until: Until::DoneOrFree, spins_max: 1, slice_us: 0, slices_max: 1 };

/// State of a task in the model.
struct TaskModel {
    task: Option<Task>,
    /// Claimed segments (by the model or by another party), and done segments.
    claimed: u32,
    done: u32,
    error: Option<NonZeroU16>,
    aborted: bool,
    handler: HandlerState,
}

struct World {
    queue: Queue,
    random: Random,
    /// All tasks that ever existed; the index is the ticket.
    known: Vec<TaskModel>,
    tail: usize,
    sync: VecDeque<SyncTask>,
    handlers: VecDeque<Ticket>,
}

fn any_task(random: &mut Random) -> Task {
    let kinds = [Kind::Copy, Kind::Receive, Kind::Send, Kind::Forward];
    let len_bytes = 1 + (random.next() as u32 >> random.below(32)).min(u32::MAX - 1);
    let [dst, src] = [random.next() >> 1, random.next() >> 1];
    Task {
        kind: kinds[random.below(4) as usize],
        flags: Flags::decode(random.below(16) as u8).unwrap(),
        delay_us: random.next() as u32,
        handler: random.next(),
        argument: random.next(),
        dst_region: random.next() as u16,
        src_region: random.next() as u16,
        fd: random.next() as i32,
        extra: random.next(),
        ..Task::copy(dst, src, len_bytes)
    }
}

impl World {
    /// Returns a task that is published and not retired.
    fn some(&mut self) -> Option<usize> {
        let at = self.tail + self.random.below(SLOTS as u64) as usize;
        self.known.get(at).is_some_and(|known| known.task.is_some()).then_some(at)
    }

    fn acquire(&mut self) {
        let expected =
            (self.known.len() - self.tail < SLOTS).then_some(Ticket(self.known.len() as u64));
        assert_eq!(self.queue.try_acquire(), expected);
        if expected.is_some() {
            self.known.push(TaskModel {
                task: None,
                claimed: 0,
                done: 0,
                error: None,
                aborted: false,
                handler: HandlerState::None,
            });
        }
    }

    fn publish(&mut self) {
        let at = self.tail + self.random.below(SLOTS as u64) as usize;
        let Some(known) = self.known.get_mut(at).filter(|known| known.task.is_none()) else {
            return;
        };
        let task = any_task(&mut self.random);
        known.task = Some(task);
        self.queue.publish(Ticket(at as u64), &task);
    }

    fn retire(&mut self) {
        let ready = self.known[self.tail..]
            .iter()
            .take_while(|known| {
                let task = known.task.is_some();
                task && known.done == u32::MAX && known.handler != HandlerState::Due
            })
            .count();
        self.tail += ready;
        self.queue.retire(Ticket(self.tail as u64));
    }

    /// Performs one operation on the progress of a task, in both implementations.
    fn work(&mut self, at: usize) {
        let bits = bits(&mut self.random);
        let known = &mut self.known[at];
        let progress = self.queue.progress(Ticket(at as u64));
        let held = known.claimed & !known.done;
        match self.random.below(11) {
            0..=2 => {
                assert_eq!(progress.claim(bits), bits & !known.claimed);
                known.claimed |= bits;
            }
            3 => {
                let free = known.claimed & bits == 0;
                assert_eq!(progress.claim_all_or_none(bits), free);
                known.claimed |= if free { bits } else { 0 };
            }
            4 => {
                progress.release(bits & held);
                known.claimed &= !(bits & held);
            }
            5 | 6 => {
                known.done |= bits & held;
                assert_eq!(progress.finish(bits & held), known.done);
            }
            7 => {
                let code = NonZeroU16::new(1 + self.random.below(9) as u16);
                known.error = known.error.or(code);
                known.done |= bits & held;
                assert_eq!(progress.fail(code.unwrap(), bits & held), known.done);
            }
            8 => {
                let rest = bits & !known.claimed;
                assert_eq!(progress.abort_rest(bits), rest);
                known.claimed |= rest;
                known.done |= rest;
                known.aborted |= rest != 0;
            }
            9 => {
                known.done |= bits & held;
                known.aborted = true;
                assert_eq!(progress.finish_aborted(bits & held), known.done);
            }
            _ => self.handle(at),
        }
    }

    fn handle(&mut self, at: usize) {
        let (known, ticket) = (&mut self.known[at], Ticket(at as u64));
        let progress = self.queue.progress(ticket);
        if self.random.below(2) == 0 {
            let first = known.handler == HandlerState::None;
            assert_eq!(progress.handler_due(), first);
            if first {
                known.handler = HandlerState::Due;
                assert_eq!(self.queue.push_handler(ticket), Ok(()));
                self.handlers.push_back(ticket);
            }
        } else {
            assert_eq!(progress.take_handler(), known.handler == HandlerState::Due);
            if known.handler == HandlerState::Due {
                known.handler = HandlerState::Taken;
            }
        }
    }

    fn pop_handler(&mut self) {
        let found = self.queue.pop_handler();
        assert_eq!(found, self.handlers.pop_front());
    }

    fn wish(&mut self) {
        let kind = [SyncKind::Promote, SyncKind::Abort][self.random.below(2) as usize];
        let ticket = Ticket(self.random.next());
        let wish = SyncTask { ticket, bits: bits(&mut self.random), kind };
        let room = self.sync.len() < SYNC_ENTRIES;
        assert_eq!(self.queue.push_sync(wish), if room { Ok(()) } else { Err(Full) });
        if room {
            self.sync.push_back(wish);
        }
    }

    fn check(&mut self) {
        let (tail, head) = (self.tail as u64, self.known.len() as u64);
        assert_eq!((self.queue.tail(), self.queue.head()), (Ticket(tail), Ticket(head)));
        assert_eq!(self.queue.check(), Ok(head - tail));
        let Some(at) = self.some() else { return };
        let (known, ticket) = (&self.known[at], Ticket(at as u64));
        assert_eq!(self.queue.peek(ticket), known.task.map(Ok));
        let bits = bits(&mut self.random);
        agree(self.queue.progress(ticket), known, bits);
        // The slot served another task one lap ago.
        if let Some(old) = ticket.0.checked_sub(SLOTS as u64).map(Ticket) {
            assert_eq!(self.queue.peek(old), None);
            let old = self.queue.progress(old);
            assert!(old.is_done(bits) && !old.is_current() && old.claim(bits) == 0);
            assert_eq!((old.finish(bits), old.error()), (u32::MAX, None));
            old.release(bits);
        }
    }
}

fn agree(progress: Progress<'_>, known: &TaskModel, bits: u32) {
    assert!(progress.is_current());
    assert_eq!((progress.claimed(), progress.done()), (known.claimed, known.done));
    assert_eq!((progress.error(), progress.is_aborted()), (known.error, known.aborted));
    assert_eq!(progress.handler(), known.handler);
    assert_eq!(progress.is_done(bits), known.done & bits == bits);
    let waited = progress.wait(bits, &ONE_CHECK, || false);
    let expected = match (known.done & bits == bits, bits & !known.claimed) {
        (true, _) => Waited::Done,
        (false, 0) => Waited::Stop,
        (false, free) => Waited::Free(free),
    };
    assert_eq!(waited, expected);
}

#[test]
fn the_queue_does_what_the_model_does() {
    let slots = SLOTS as u32;
    let (queue, ..) = common::mapped(slots);
    let (known, sync, handlers) = Default::default();
    let mut world = World { queue, random: Random::new(seed()), known, tail: 0, sync, handlers };
    for _ in 0..STEPS {
        match world.random.below(16) {
            0 | 1 => world.acquire(),
            2 | 3 => world.publish(),
            4 => world.retire(),
            5 => world.pop_handler(),
            6 | 7 => world.wish(),
            8 => assert_eq!(world.queue.pop_sync(), world.sync.pop_front().map(Ok)),
            9 => world.check(),
            _ => {
                if let Some(at) = world.some() {
                    world.work(at);
                }
            }
        }
    }
    assert!(world.tail > 10 * SLOTS, "only {} tasks retired: the test shows little", world.tail);
}
