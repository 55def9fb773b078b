//! All interleavings, within loom's bounds, of small programs over the real code.
//!
//! `cargo test -p unlade-shm --features loom --release --test loom`. No time passes in the model,
//! so a lost wake-up is a deadlock, which loom reports. `LOOM_MAX_PREEMPTIONS` extends the search.
//!
//! loom remembers only the last access to a word. A thread that loads a word and then changes it
//! hides an earlier load of another thread. The code under test changes words without a load
//! first.

use std::num::NonZeroU16;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use unlade_shm::{
    DoorbellLine, HandlerState, Memory, Queue, Scope, SyncKind, SyncTask, Task, Ticket, Until,
    WaitPolicy, Waited,
};

/// Maximum number of involuntary switches in one execution; known bugs of such code need two.
const PREEMPTIONS_MAX: usize = 3;
/// The same for programs with three threads, for which three switches are too slow.
const PREEMPTIONS_FEW: usize = 2;
const NO_TIME: Duration = Duration::ZERO;
const SLEEP: WaitPolicy =
    WaitPolicy { until: Until::Done, spins_max: 0, slice_us: 0, slices_max: u32::MAX };

fn model(program: impl Fn() + Send + Sync + 'static) {
    model_with(PREEMPTIONS_MAX, program);
}

fn model_with(preemptions: usize, program: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(program);
}

fn queue() -> Arc<Queue> {
    let memory = Memory::heap(Queue::bytes_for(2).unwrap()).unwrap();
    Arc::new(Queue::create(memory, 2).unwrap())
}

fn task(mark: u64) -> Task {
    Task { handler: mark, argument: mark, extra: mark, ..Task::copy(mark, mark, 4096) }
}

fn published(queue: &Queue, mark: u64) -> Ticket {
    let ticket = queue.try_acquire().unwrap();
    queue.publish(ticket, &task(mark));
    ticket
}

/// Waits, as the service, for the task of `ticket`.
fn served(queue: &Queue, ticket: Ticket) -> Task {
    loop {
        if let Some(found) = queue.peek(ticket) {
            queue.progress(ticket).finish(u32::MAX);
            queue.retire(ticket.next());
            return found.unwrap();
        }
        thread::yield_now();
    }
}

#[test]
fn two_producers_and_a_service_recycle_two_slots() {
    model_with(PREEMPTIONS_FEW, || {
        let queue = queue();
        published(&queue, 1);
        let producers = [2, 3].map(|mark| {
            let queue = queue.clone();
            thread::spawn(move || {
                let ticket = loop {
                    match queue.try_acquire() {
                        Some(ticket) => break ticket,
                        None => thread::yield_now(),
                    }
                };
                queue.publish(ticket, &task(mark));
            })
        });
        let marks = [0, 1, 2].map(|at| {
            let found = served(&queue, Ticket(at));
            assert_eq!(found, task(found.dst), "torn");
            found.dst
        });
        assert!([[1, 2, 3], [1, 3, 2]].contains(&marks), "{marks:?}");
        assert_eq!(queue.check(), Ok(0));
        producers.into_iter().for_each(|producer| producer.join().unwrap());
    });
}

#[test]
fn a_full_queue_refuses_and_admits_after_retirement() {
    model(|| {
        let queue = queue();
        published(&queue, 1);
        published(&queue, 2);
        let other = queue.clone();
        let producer = thread::spawn(move || other.try_acquire());
        served(&queue, Ticket(0));
        let (theirs, mine) = (producer.join().unwrap(), queue.try_acquire());
        assert!([(Some(Ticket(2)), None), (None, Some(Ticket(2)))].contains(&(theirs, mine)));
    });
}

#[test]
fn a_line_that_is_recycled_under_a_reader_is_not_torn() {
    model(|| {
        let queue = queue();
        published(&queue, 1);
        published(&queue, 2);
        served(&queue, Ticket(0));
        let other = queue.clone();
        let producer = thread::spawn(move || published(&other, 3));
        for (ticket, mark) in [(Ticket(0), 1), (Ticket(2), 3)] {
            if let Some(found) = queue.peek(ticket) {
                assert_eq!(found, Ok(task(mark)));
            }
        }
        assert_eq!(producer.join().unwrap(), Ticket(2));
    });
}

#[test]
fn a_task_that_is_found_is_not_begun() {
    model(|| {
        let queue = queue();
        published(&queue, 1);
        published(&queue, 2);
        let old = queue.progress(Ticket(0));
        old.finish(old.claim(u32::MAX));
        queue.retire(Ticket(1));
        let other = queue.clone();
        let producer = thread::spawn(move || published(&other, 3));
        if queue.peek(Ticket(2)).is_some() {
            let progress = queue.progress(Ticket(2));
            assert_eq!((progress.done(), progress.handler()), (0, HandlerState::None));
            assert_eq!(progress.claim(u32::MAX), u32::MAX);
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_segment_has_one_owner() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        let claim = |wanted| {
            let queue = queue.clone();
            thread::spawn(move || {
                let progress = queue.progress(ticket);
                let mine = progress.claim(wanted);
                progress.finish(mine);
                mine
            })
        };
        let claimers = [claim(0b0111), claim(0b1110)];
        let pinned = queue.progress(ticket).claim_all_or_none(0b1001);
        let [one, two] = claimers.map(|claimer| claimer.join().unwrap());
        let mine = if pinned { 0b1001 } else { 0 };
        assert_eq!(one & two | one & mine | two & mine, 0);
        assert_eq!(one | two | mine, 0b1111);
        assert_eq!(queue.progress(ticket).done(), one | two);
    });
}

#[test]
fn an_outdated_ticket_claims_and_changes_nothing() {
    model(|| {
        let queue = queue();
        let old = published(&queue, 1);
        assert_eq!(queue.progress(old).claim(u32::MAX), u32::MAX);
        let other = queue.clone();
        let sleeper = thread::spawn(move || {
            let progress = other.progress(old);
            let claimed = progress.claim(0b1);
            let pinned = progress.claim_all_or_none(0b10);
            // A service continues after its client took it for dead.
            progress.finish(0b100);
            progress.release(0b1000);
            (claimed, pinned, progress.handler_due(), progress.take_handler())
        });
        queue.progress(old).finish(u32::MAX);
        queue.retire(old.next());
        published(&queue, 2);
        let new = published(&queue, 3);
        let progress = queue.progress(new);
        assert_eq!(progress.claim(0b1111), 0b1111);
        let (claimed, pinned, ..) = sleeper.join().unwrap();
        assert_eq!((claimed, pinned), (0, false));
        assert_eq!((progress.done(), progress.claimed()), (0, 0b1111));
        assert_eq!(progress.handler(), HandlerState::None);
    });
}

#[test]
fn copied_bytes_are_visible_when_done() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        let bytes = Arc::new(AtomicU32::new(0));
        let (other, copied) = (queue.clone(), bytes.clone());
        let service = thread::spawn(move || {
            let progress = other.progress(ticket);
            let mine = progress.claim(0b1);
            copied.store(7, Ordering::Relaxed);
            progress.finish(mine);
        });
        if queue.progress(ticket).is_done(0b1) {
            assert_eq!(bytes.load(Ordering::Relaxed), 7);
        }
        service.join().unwrap();
    });
}

#[test]
fn reads_under_a_pin_precede_the_next_claim() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        let source = Arc::new(AtomicU32::new(1));
        let (other, absorbed) = (queue.clone(), source.clone());
        let service = thread::spawn(move || {
            let progress = other.progress(ticket);
            if progress.claim_all_or_none(0b1) {
                assert_eq!(absorbed.load(Ordering::Relaxed), 1);
                progress.release(0b1);
            }
        });
        let progress = queue.progress(ticket);
        if progress.claim(0b1) == 0b1 {
            progress.finish(0b1);
            source.store(2, Ordering::Relaxed);
        }
        service.join().unwrap();
    });
}

#[test]
fn no_finish_is_lost_on_a_waiter() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        let other = queue.clone();
        let service = thread::spawn(move || {
            let progress = other.progress(ticket);
            progress.finish(progress.claim(0b01));
            progress.finish(progress.claim(0b10));
        });
        assert_eq!(queue.progress(ticket).wait(0b11, &SLEEP, || true), Waited::Done);
        service.join().unwrap();
    });
}

#[test]
fn no_finish_is_lost_on_one_of_two_waiters() {
    model_with(PREEMPTIONS_FEW, || {
        let queue = queue();
        let ticket = published(&queue, 1);
        let other = queue.clone();
        let waiter = thread::spawn(move || other.progress(ticket).wait(0b1, &SLEEP, || true));
        let other = queue.clone();
        let service = thread::spawn(move || {
            let progress = other.progress(ticket);
            progress.finish(progress.claim(0b1));
            // A late waiter meets the slot's next task.
            other.retire(ticket.next());
            published(&other, 2);
            published(&other, 3);
        });
        assert_eq!(queue.progress(ticket).wait(0b1, &SLEEP, || true), Waited::Done);
        assert_eq!(waiter.join().unwrap(), Waited::Done);
        service.join().unwrap();
    });
}

#[test]
fn no_release_is_lost_on_a_waiter_who_can_do_it() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        assert!(queue.progress(ticket).claim_all_or_none(0b1));
        let other = queue.clone();
        let service = thread::spawn(move || other.progress(ticket).release(0b1));
        let policy = WaitPolicy { until: Until::DoneOrFree, ..SLEEP };
        assert_eq!(queue.progress(ticket).wait(0b1, &policy, || true), Waited::Free(0b1));
        service.join().unwrap();
    });
}

#[test]
fn a_thread_that_sees_the_end_sees_the_error() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        let other = queue.clone();
        let code = NonZeroU16::new(14);
        let service = thread::spawn(move || {
            let progress = other.progress(ticket);
            progress.fail(code.unwrap(), progress.claim(0b1));
        });
        assert_eq!(queue.progress(ticket).wait(0b1, &SLEEP, || true), Waited::Done);
        assert_eq!(queue.progress(ticket).error(), code);
        service.join().unwrap();
    });
}

#[test]
fn a_segment_is_aborted_or_copied() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        let other = queue.clone();
        let service = thread::spawn(move || {
            let progress = other.progress(ticket);
            let mine = progress.claim(0b11);
            progress.finish(mine);
            mine
        });
        let aborted = queue.progress(ticket).abort_rest(0b110);
        let copied = service.join().unwrap();
        assert_eq!((copied & aborted, copied | aborted), (0, 0b111));
        assert_eq!(queue.progress(ticket).done(), 0b111);
        assert!(queue.progress(ticket).is_aborted());
    });
}

#[test]
fn nothing_is_published_to_a_service_that_sleeps_on() {
    model(|| {
        let queue = queue();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || {
                published(&queue, 1);
                queue.doorbell().ring();
            })
        };
        let mut at = Ticket(0);
        let bell = queue.doorbell();
        bell.announce_awake();
        while at < Ticket(1) {
            if queue.peek(at).is_some() {
                at = at.next();
                continue;
            }
            let pending_sleep = bell.announce_sleep();
            if queue.peek(at).is_none() {
                bell.sleep(pending_sleep, NO_TIME);
            }
            bell.announce_awake();
        }
        producer.join().unwrap();
    });
}

#[test]
fn two_ringers_of_one_doorbell_are_both_heard() {
    model(|| {
        let line = Arc::new(DoorbellLine::default());
        let work = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let ringers = [0, 1].map(|at: usize| {
            let (line, work) = (line.clone(), work.clone());
            thread::spawn(move || {
                work[at].store(1, Ordering::Relaxed);
                line.doorbell(Scope::Private).ring();
            })
        });
        let bell = line.doorbell(Scope::Private);
        bell.announce_awake();
        let all = || work.iter().all(|word| word.load(Ordering::Relaxed) == 1);
        while !all() {
            let pending_sleep = bell.announce_sleep();
            if !all() {
                bell.sleep(pending_sleep, NO_TIME);
            }
            bell.announce_awake();
        }
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

#[test]
fn a_handler_runs_once() {
    model(|| {
        let queue = queue();
        let ticket = published(&queue, 1);
        let other = queue.clone();
        let service = thread::spawn(move || {
            if other.progress(ticket).handler_due() {
                other.push_handler(ticket).unwrap();
            }
        });
        let other = queue.clone();
        let runner = thread::spawn(move || {
            let found = other.pop_handler();
            found.is_some_and(|ticket| other.progress(ticket).take_handler())
        });
        // A thread that takes the service for dead scans all tasks.
        let progress = queue.progress(ticket);
        progress.handler_due();
        let mine = progress.take_handler();
        let theirs = runner.join().unwrap();
        service.join().unwrap();
        assert!(mine ^ theirs, "run {} times", u8::from(mine) + u8::from(theirs));
        assert_eq!(progress.handler(), HandlerState::Taken);
        assert!(!progress.take_handler());
    });
}

#[test]
fn sync_tasks_arrive_once_and_whole() {
    model(|| {
        let queue = queue();
        let wish =
            |at: u64| SyncTask { ticket: Ticket(at), bits: at as u32, kind: SyncKind::Abort };
        let pushers = [1, 2].map(|at| {
            let queue = queue.clone();
            thread::spawn(move || queue.push_sync(wish(at)).is_ok())
        });
        let mut found: Vec<SyncTask> =
            queue.pop_sync().into_iter().chain(queue.pop_sync()).map(Result::unwrap).collect();
        assert!(pushers.into_iter().all(|pusher| pusher.join().unwrap()), "there was room");
        found.extend(std::iter::from_fn(|| queue.pop_sync()).map(Result::unwrap));
        found.sort_by_key(|wish| wish.ticket);
        assert_eq!(found, [wish(1), wish(2)]);
    });
}
