//! Copies from and to regions that other processes may change: the result is that of a synchronous
//! copy, and neither range is accessed after the copy is over or aborted.
//!
//! `UNLADE_SEED` repeats a run, `UNLADE_CASES` sets the number of runs.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use unlade_copy::{
    ArenaCopy, AtOnceReason, Config, Copier, CopyOptions, Polling, Service, StartedCopy,
};
use unlade_shm::Arena;
use unlade_testkit::cases;

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };
/// A copy deferred until it is needed.
const PUT_OFF: CopyOptions =
    CopyOptions { lazy_us: Some(u32::MAX), queued: false, handler: None, site: 0 };

fn service(slots: u32) -> (Service, Arc<Copier>) {
    let sleep_max = Duration::from_secs(3600);
    let config = Config { polling: Polling::Scenario, slots, sleep_max, ..Config::default() };
    let service = Service::start(config).unwrap();
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    (service, copier)
}

fn arena(bytes: usize) -> Rc<Arena> {
    Rc::new(Arena::create("arenas-test", bytes).unwrap())
}

/// Waits like an event loop: for the descriptor.
fn told(copier: &Copier, copies: &[&ArenaCopy]) {
    let event = copier.event().unwrap();
    let begin = Instant::now();
    while !copies.iter().all(|copy| copy.is_ready()) {
        assert!(begin.elapsed() < Duration::from_secs(30), "nobody tells of the end");
        let second = Duration::from_secs(1).try_into().unwrap();
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&second)).unwrap();
        copier.run_handlers();
    }
}

fn queued<T>(begun: StartedCopy<T>) -> ArenaCopy {
    match begun {
        StartedCopy::Queued(copy) => copy,
        StartedCopy::AtOnce(_, why) => panic!("at once: {why:?}"),
    }
}

#[test]
fn any_range_arrives_and_its_neighbours_stay() {
    let (_service, copier) = service(64);
    cases(60, |random| {
        let bytes =
            random.pick(&[1usize, 7, 1024, 65_536, 200_001, 1 << 20, (1 << 20) + 1, 3_000_000]);
        let offset = random.below(5000) as usize;
        let arena = arena(offset + bytes + 100);
        let content = random.bytes(bytes + 200);
        let shared = Rc::new(content);
        let begun = copier.copy_into(&arena, offset, &shared, 100..100 + bytes, &QUEUED).unwrap();
        let copy = queued(begun);
        if random.once_in(2) {
            told(&copier, &[&copy]);
        }
        assert!(!copy.finish().failed);
        let mut out = vec![9; 3];
        let begun = copier.append_from(&arena, offset, bytes, std::mem::take(&mut out), &QUEUED);
        let copy = queued(begun.unwrap());
        if random.once_in(2) {
            told(&copier, &[&copy]);
        }
        let ended = copy.finish();
        assert!(!ended.failed);
        assert_eq!(ended.bytes[..3], [9; 3]);
        assert!(ended.bytes[3..] == shared[100..100 + bytes]);
        let mut all = vec![1; arena.len_bytes()];
        arena.copy_out(0, &mut all).unwrap();
        assert!(all[..offset].iter().chain(&all[offset + bytes..]).all(|&byte| byte == 0));
    });
}

#[test]
fn one_event_covers_many_handlers_and_an_idle_service_sleeps() {
    let (service, copier) = service(64);
    let arena = arena(4 << 20);
    let shared = Rc::new(vec![7; 300_000]);
    let begin = |n: usize| {
        queued(copier.copy_into(&arena, n * 300_000, &shared, 0..300_000, &QUEUED).unwrap())
    };
    let copies: Vec<_> = (0..12).map(begin).collect();
    told(&copier, &copies.iter().collect::<Vec<_>>());
    drop(copies);
    assert_eq!(service.counts().copied_bytes, 12 * 300_000);
    let mut out = vec![0; 3_600_001];
    arena.copy_out(0, &mut out).unwrap();
    assert!(out[..3_600_000].iter().all(|&byte| byte == 7) && out[3_600_000] == 0);
}

#[test]
fn what_is_given_up_writes_nothing_any_more() {
    let (_service, copier) = service(64);
    let arena = arena(2 << 20);
    let shared = Rc::new(vec![7; 2 << 20]);
    let begun = copier.copy_into(&arena, 0, &shared, 0..2 << 20, &PUT_OFF).unwrap();
    let copy = queued(begun);
    assert!(!copy.is_ready());
    drop(copy);
    assert_eq!((Rc::strong_count(&arena), Rc::strong_count(&shared)), (1, 1));
    let begun = copier.append_from(&arena, 0, 1 << 20, Vec::new(), &PUT_OFF).unwrap();
    drop(queued(begun));
    assert_eq!(Rc::strong_count(&arena), 1);
    copier.sync_all().unwrap();
    let mut out = vec![1; 2 << 20];
    arena.copy_out(0, &mut out).unwrap();
    assert!(out.iter().all(|&byte| byte == 0));
}

#[test]
fn given_up_at_any_moment() {
    let (_service, copier) = service(64);
    cases(300, |random| {
        let arena = arena(1 << 20);
        let shared = Rc::new(random.bytes(1 << 20));
        let begun = copier.copy_into(&arena, 0, &shared, 0..1 << 20, &QUEUED).unwrap();
        let copy = queued(begun);
        for _ in 0..random.below(2000) {
            std::hint::spin_loop();
        }
        drop(copy);
        let mut before = vec![0; 1 << 20];
        arena.copy_out(0, &mut before).unwrap();
        // The bytes now belong to the next owner.
        arena.copy_in(0, &vec![5; 1 << 20]).unwrap();
        copier.sync_all().unwrap();
        let mut after = vec![0; 1 << 20];
        arena.copy_out(0, &mut after).unwrap();
        assert!(after.iter().all(|&byte| byte == 5));
        // Each byte of the old content was copied or is unchanged.
        assert!(before.iter().zip(shared.iter()).all(|(is, due)| is == due || *is == 0));
    });
}

#[test]
fn a_full_queue_and_a_range_outside_are_told_and_nothing_is_half_done() {
    let (_service, copier) = service(16);
    let arena = arena(32 << 20);
    let shared = Rc::new(vec![3; 32 << 20]);
    // Sixteen tasks fill the queue.
    let begun = copier.copy_into(&arena, 0, &shared, 0..12 << 20, &PUT_OFF).unwrap();
    let first = queued(begun);
    match copier.append_from(&arena, 20 << 20, 6 << 20, vec![1], &QUEUED).unwrap() {
        StartedCopy::AtOnce(content, AtOnceReason::Full) => {
            assert_eq!(content.len(), (6 << 20) + 1);
            assert!(content[0] == 1 && content[1..].iter().all(|&byte| byte == 0));
        }
        other => panic!("{other:?}"),
    }
    match copier.copy_into(&arena, 13 << 20, &shared, 0..6 << 20, &QUEUED).unwrap() {
        StartedCopy::AtOnce((), AtOnceReason::Full) => {}
        other => panic!("{other:?}"),
    }
    drop(first);
    let mut out = vec![0; 32 << 20];
    arena.copy_out(0, &mut out).unwrap();
    // A service whose queue is full may have made deferred copies.
    assert!(out[..12 << 20].iter().all(|&byte| byte == 0 || byte == 3));
    assert!(out[12 << 20..13 << 20].iter().all(|&byte| byte == 0));
    assert!(out[13 << 20..19 << 20].iter().all(|&byte| byte == 3));
    for (offset, bytes) in [(32 << 20, 1), (usize::MAX, 2), ((32 << 20) - 5, 6)] {
        assert!(copier.append_from(&arena, offset, bytes, Vec::new(), &QUEUED).is_err());
        assert!(copier.copy_into(&arena, offset, &shared, 0..bytes, &QUEUED).is_err());
    }
}

/// A page that is unreadable while the service copies it, and readable afterwards.
#[test]
fn what_the_service_cannot_copy_is_copied_again() {
    let (_service, copier) = service(64);
    let arena = arena(1 << 20);
    arena.copy_in(0, &vec![8; 1 << 20]).unwrap();
    let protect = |flags| {
        // SAFETY: the arena's own mapping; meanwhile only the service accesses it, and its guard
        // catches the fault.
        unsafe { rustix::mm::mprotect(arena.as_ptr().cast(), 1 << 20, flags) }.unwrap();
    };
    use rustix::mm::MprotectFlags as Flags;
    let shared = Rc::new(vec![6; 1000]);
    protect(Flags::empty());
    let out = queued(copier.append_from(&arena, 5000, 500_000, Vec::new(), &QUEUED).unwrap());
    let into = queued(copier.copy_into(&arena, 700_000, &shared, 0..1000, &QUEUED).unwrap());
    told(&copier, &[&out, &into]);
    protect(Flags::READ | Flags::WRITE);
    let ended = out.finish();
    assert!(ended.failed && ended.bytes == vec![8; 500_000]);
    assert!(into.finish().failed);
    let mut out = [0; 1002];
    arena.copy_out(699_999, &mut out).unwrap();
    assert!(out[0] == 8 && out[1..1001].iter().all(|&byte| byte == 6) && out[1001] == 8);
}

#[test]
fn a_service_that_has_ended_leaves_copies_to_who_wants_them() {
    let (service, copier) = service(64);
    let arena = arena(1 << 20);
    let shared = Rc::new(vec![4; 1 << 20]);
    let begun = copier.copy_into(&arena, 0, &shared, 0..1 << 20, &PUT_OFF).unwrap();
    let wanted = queued(begun);
    let given_up = queued(copier.append_from(&arena, 0, 1000, Vec::new(), &PUT_OFF).unwrap());
    drop(service);
    drop(given_up);
    assert!(wanted.finish().failed);
    let mut out = vec![0; 1 << 20];
    arena.copy_out(0, &mut out).unwrap();
    assert!(out == *shared);
    assert_eq!(Rc::strong_count(&arena), 1);
}

/// Any decision gives the same bytes; short copies are never queued.
#[test]
fn any_decision_gives_the_same_bytes() {
    let (_service, copier) = service(64);
    let arena = arena(1 << 20);
    cases(40, |random| {
        let bytes = random.pick(&[1usize, 500, 4096, 65_536, 262_144, 1 << 20]);
        let shared = Rc::new(random.bytes(bytes));
        let options = CopyOptions { site: 0x1234, ..CopyOptions::default() };
        match copier.copy_into(&arena, 0, &shared, 0..bytes, &options).unwrap() {
            StartedCopy::AtOnce((), why) => assert_eq!(why, AtOnceReason::Better),
            StartedCopy::Queued(copy) => {
                assert!(bytes >= 4096, "{bytes}");
                assert!(!copy.finish().failed);
            }
        }
        let content = match copier.append_from(&arena, 0, bytes, Vec::new(), &options).unwrap() {
            StartedCopy::AtOnce(content, _) => content,
            StartedCopy::Queued(copy) => copy.finish().bytes,
        };
        assert!(content == *shared);
    });
}
