//! Real threads: many rounds of the operations that the models check for few steps.
#![cfg(not(feature = "loom"))]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::on_the_heap;
use unlade_shm::{
    Flags, HandlerState, Queue, SyncKind, SyncTask, Task, Ticket, Until, WaitPolicy, Waited,
};

const TASKS: u64 = 20_000;
const PRODUCERS: u64 = 3;
const SLOTS: u32 = 16;
/// Far longer than a test takes: a lost wake-up makes it hang visibly.
const FOREVER: Duration = Duration::from_secs(3600);
const PATIENT: WaitPolicy =
    WaitPolicy { until: Until::Done, spins_max: 100, slice_us: u32::MAX, slices_max: u32::MAX };

/// Returns a task that contains its identity in several words.
fn marked(producer: u64, number: u64) -> Task {
    let mark = producer << 32 | number;
    let flags = if number.is_multiple_of(3) { Flags::HANDLER } else { Flags::default() };
    Task { flags, handler: mark, argument: !mark, extra: mark, ..Task::copy(mark, mark, 32 << 10) }
}

/// Publishes a task; while the queue is full, waits and runs handlers.
fn submit(queue: &Queue, task: &Task, run: &impl Fn(u64)) -> Ticket {
    loop {
        if let Some(ticket) = queue.try_acquire() {
            queue.publish(ticket, task);
            queue.doorbell().ring();
            return ticket;
        }
        post_handlers(queue, run);
        thread::yield_now();
    }
}

fn post_handlers(queue: &Queue, run: &impl Fn(u64)) {
    while let Some(ticket) = queue.pop_handler() {
        let Some(Ok(task)) = queue.peek(ticket) else { continue };
        if queue.progress(ticket).take_handler() {
            run(task.handler);
            // The slot can retire now.
            queue.doorbell().ring();
        }
    }
}

/// A service: its position, and its retired tickets.
struct Service<'q> {
    queue: &'q Queue,
    at: Ticket,
    tail: Ticket,
}

impl Service<'_> {
    /// Retires what is complete, and returns the next task, if there is one.
    fn look(&mut self) -> Option<Task> {
        while self.tail < self.at && self.queue.progress(self.tail).handler() != HandlerState::Due {
            self.tail = self.tail.next();
        }
        self.queue.retire(self.tail);
        self.queue.peek(self.at).map(|task| task.unwrap())
    }

    /// Sleeps until there is a task, or until all complete tasks have retired.
    fn next_task(&mut self, is_last: bool) -> Option<Task> {
        let bell = self.queue.doorbell();
        loop {
            let found = self.look();
            if found.is_some() || is_last && self.tail == self.at {
                return found;
            }
            let pending_sleep = bell.announce_sleep();
            let tail = self.tail;
            if self.look().is_none() && self.tail == tail {
                bell.sleep(pending_sleep, FOREVER);
            }
            bell.announce_awake();
        }
    }

    /// Copies one segment at a time, so that clients get some.
    fn copy(&mut self, task: &Task) {
        let progress = self.queue.progress(self.at);
        for segment in 0..task.bits().count_ones() {
            let mine = progress.claim(1 << segment);
            progress.finish(mine);
        }
        while !progress.is_done(task.bits()) {
            thread::yield_now();
        }
        if task.flags.contains(Flags::HANDLER) && progress.handler_due() {
            self.queue.push_handler(self.at).unwrap();
        }
        self.at = self.at.next();
    }
}

/// Serves `count` tasks, and retires them.
fn serve(queue: &Queue, count: u64, mut seen: impl FnMut(&Task)) {
    let mut service = Service { queue, at: Ticket(0), tail: Ticket(0) };
    while let Some(task) = service.next_task(service.at == Ticket(count)) {
        seen(&task);
        service.copy(&task);
    }
    assert_eq!(service.tail, Ticket(count));
}

#[test]
fn every_task_arrives_whole_once_in_order_and_every_handler_runs_once() {
    let queue = on_the_heap(SLOTS);
    let ran = AtomicU64::new(0);
    let sum = AtomicU64::new(0);
    let run = |mark: u64| {
        ran.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(mark, Ordering::Relaxed);
    };
    let left = AtomicU64::new(PRODUCERS);
    let mut next: HashMap<u64, u64> = HashMap::new();
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (queue, left) = (&queue, &left);
            scope.spawn(move || {
                for number in 0..TASKS {
                    let ticket = submit(queue, &marked(producer, number), &run);
                    if number % 7 == 0 {
                        let bits = 1 << (number % 32);
                        let waited = queue.progress(ticket).wait(bits, &PATIENT, || true);
                        assert_eq!(waited, Waited::Done);
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let queue = &queue;
        scope.spawn(move || {
            while queue.tail() < Ticket(PRODUCERS * TASKS) {
                post_handlers(queue, &run);
                thread::yield_now();
            }
        });
        serve(queue, PRODUCERS * TASKS, |task| {
            let (producer, number) = (task.dst >> 32, task.dst & u64::from(u32::MAX));
            assert_eq!(*task, marked(producer, number), "torn");
            let expected = next.entry(producer).or_default();
            assert_eq!(*expected, number, "out of order");
            *expected += 1;
        });
    });
    assert_eq!(left.into_inner(), 0);
    let marks = (0..PRODUCERS).flat_map(|producer| (0..TASKS).map(move |at| (producer, at)));
    let due: Vec<u64> = marks
        .map(|(producer, number)| marked(producer, number))
        .filter(|task| task.flags.contains(Flags::HANDLER))
        .map(|task| task.handler)
        .collect();
    assert_eq!(ran.into_inner(), due.len() as u64);
    assert_eq!(sum.into_inner(), due.iter().fold(0, |sum: u64, mark| sum.wrapping_add(*mark)));
}

#[test]
fn a_segment_is_copied_once_whoever_claims_it() {
    const ROUNDS: u64 = 3000;
    let queue = on_the_heap(SLOTS);
    let counts: Vec<AtomicU32> = (0..32).map(|_| AtomicU32::new(0)).collect();
    let copy = |bits: u32| {
        for at in (0..32).filter(|at| bits & 1 << at != 0) {
            counts[at].fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for wanted in [0x0000_FFFF, 0x00FF_FF00_u32] {
            let queue = &queue;
            scope.spawn(move || {
                for at in (0..ROUNDS).map(Ticket) {
                    while queue.head() <= at || queue.peek(at).is_none() && queue.tail() <= at {
                        thread::yield_now();
                    }
                    let progress = queue.progress(at);
                    let mine = progress.claim(wanted);
                    copy(mine);
                    progress.finish(mine);
                }
            });
        }
        for at in (0..ROUNDS).map(Ticket) {
            assert_eq!(queue.try_acquire(), Some(at));
            queue.publish(at, &marked(0, at.0));
            let progress = queue.progress(at);
            if progress.claim_all_or_none(0xF) {
                // A pin: no segment is copied under it.
                assert_eq!(progress.done() & 0xF, 0);
                progress.release(0xF);
            }
            let mine = progress.claim(u32::MAX);
            copy(mine);
            progress.finish(mine);
            assert_eq!(progress.wait(u32::MAX, &PATIENT, || true), Waited::Done);
            queue.retire(at.next());
        }
    });
    assert!(
        counts.iter().all(|count| count.load(Ordering::Relaxed) == ROUNDS as u32),
        "{counts:?}"
    );
}

#[test]
fn a_waiter_whose_service_is_gone_stops() {
    let queue = on_the_heap(SLOTS);
    let ticket = queue.try_acquire().unwrap();
    queue.publish(ticket, &Task::copy(1, 2, 3));
    let progress = queue.progress(ticket);
    assert_eq!(progress.claim(1), 1);
    let mut asked = 0;
    let policy = WaitPolicy { until: Until::Done, spins_max: 3, slice_us: 1, slices_max: 9 };
    let waited = progress.wait(1, &policy, || {
        asked += 1;
        asked < 4
    });
    assert_eq!((waited, asked), (Waited::Stop, 4));
    assert_eq!(progress.wait(1, &policy, || true), Waited::TimedOut);
    // The service finishes the segment just before it ends.
    let waited = progress.wait(1, &policy, || {
        progress.finish(1);
        false
    });
    assert_eq!(waited, Waited::Done);
}

#[test]
fn waiters_on_a_mapped_queue_are_woken_through_another_mapping() {
    let (client, service, _arena) = common::mapped(SLOTS);
    thread::scope(|scope| {
        let service = &service;
        scope.spawn(move || serve(service, 500, |_| ()));
        for number in 0..500 {
            let ticket =
                submit(&client, &Task { flags: Flags::default(), ..marked(0, number) }, &drop);
            let policy = WaitPolicy { spins_max: 0, ..PATIENT };
            assert_eq!(client.progress(ticket).wait(u32::MAX, &policy, || true), Waited::Done);
        }
    });
}

#[test]
fn every_sync_task_that_was_taken_arrives_once() {
    const WISHES: u64 = 20_000;
    let queue = on_the_heap(SLOTS);
    let stop = AtomicBool::new(false);
    let (mut sum, mut count) = (0, 0);
    thread::scope(|scope| {
        let pushers: Vec<_> = (0..2)
            .map(|pusher| {
                let queue = &queue;
                scope.spawn(move || {
                    for number in 0..WISHES {
                        let ticket = Ticket(pusher * WISHES + number);
                        let wish = SyncTask { ticket, bits: !0, kind: SyncKind::Promote };
                        while queue.push_sync(wish).is_err() {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let (queue, stop) = (&queue, &stop);
        let popper = scope.spawn(move || {
            let (mut sum, mut count) = (0, 0);
            loop {
                let last = stop.load(Ordering::Acquire);
                while let Some(wish) = queue.pop_sync() {
                    sum += wish.unwrap().ticket.0;
                    count += 1;
                }
                if last {
                    return (sum, count);
                }
                thread::yield_now();
            }
        });
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        stop.store(true, Ordering::Release);
        (sum, count) = popper.join().unwrap();
    });
    assert_eq!((sum, count), ((0..2 * WISHES).sum::<u64>(), 2 * WISHES));
}
