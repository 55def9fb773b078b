//! Hostile peers: a wrong file, a wrong header, or writes anywhere at any time.
#![cfg(not(feature = "loom"))]

mod common;

use std::fs::File;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::{bits, hostile, mapped};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use unlade_shm::layout::{SLOTS_MAX, SLOTS_MIN, SYNC_ENTRIES};
use unlade_shm::memory::{BASE_ALIGN_BYTES, MEMORY_BYTES_MAX};
use unlade_shm::{
    Arena, LayoutError, Memory, MemoryError, Queue, QueueError, SyncKind, SyncTask, Task, Ticket,
    Until, WaitPolicy,
};
use unlade_testkit::{Random, seed};

const SLOTS: u32 = 16;
/// Indices of the positions, in words.
const HEAD: usize = 8;
const TAIL: usize = 16;

/// Returns the words of a mapping, as a peer accesses them.
fn words(arena: &Arena) -> &[AtomicU64] {
    // SAFETY: the mapping lives as long as the borrow, its base is page-aligned, and it has this
    // number of whole words. All accesses to it are atomic.
    unsafe { std::slice::from_raw_parts(arena.as_ptr().cast(), arena.len_bytes() / 8) }
}

fn again(arena: &Arena) -> Memory {
    Arena::attach(arena.fd().try_clone_to_owned().unwrap()).unwrap().into()
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("ring-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

const RIGHT: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

#[test]
fn an_arena_is_the_same_bytes_for_both() {
    let one = Arena::create("ring-test", 5000).unwrap();
    let two = Arena::attach(one.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!((one.len_bytes(), two.len_bytes()), (5000, 5000));
    assert!(one.as_ptr().align_offset(BASE_ALIGN_BYTES) == 0 && one.as_ptr() != two.as_ptr());
    assert!(words(&two).iter().all(|word| word.load(Ordering::Relaxed) == 0));
    words(&one)[624].store(7, Ordering::Relaxed);
    assert_eq!(words(&two)[624].load(Ordering::Relaxed), 7);
    // The arena survives the other one, and the other side cannot change its size.
    assert!(ftruncate(one.fd(), 1).is_err() && ftruncate(one.fd(), 1 << 20).is_err());
    drop(one);
    assert_eq!(words(&two)[624].load(Ordering::Relaxed), 7);
}

#[test]
fn files_that_cannot_be_relied_on_are_refused() {
    use MemoryError::{NotMemfd, Size, System, Unsealed};
    let attach = Arena::attach;
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let seals = RIGHT.difference(missing);
        assert!(matches!(attach(memfd(4096, seals)), Err(Unsealed)), "{missing:?}");
    }
    assert!(matches!(attach(memfd(0, RIGHT)), Err(Size { bytes: 0 })));
    let huge = MEMORY_BYTES_MAX as u64 + 1;
    assert!(matches!(attach(memfd(huge, RIGHT)), Err(Size { bytes }) if bytes == huge));
    let written_once = memfd(4096, RIGHT | SealFlags::WRITE);
    assert!(matches!(attach(written_once), Err(System { call: "mmap", .. })));
    assert!(matches!(attach(File::open("/dev/null").unwrap().into()), Err(NotMemfd)));
    assert!(matches!(attach(File::open("/proc/self/exe").unwrap().into()), Err(NotMemfd)));
    assert!(attach(memfd(4096, RIGHT)).is_ok());
    for bytes in [0, MEMORY_BYTES_MAX + 1, usize::MAX] {
        assert!(matches!(Arena::create("ring-test", bytes), Err(Size { .. })));
        assert!(matches!(Memory::heap(bytes), Err(Size { .. })));
    }
}

#[test]
fn a_file_of_huge_pages_is_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let Ok(fd) = memfd_create("ring-test", flags) else {
        println!("skipped: this kernel has no huge pages in memfds");
        return;
    };
    ftruncate(&fd, 2 << 20).unwrap();
    fcntl_add_seals(&fd, RIGHT).unwrap();
    assert!(matches!(Arena::attach(fd), Err(MemoryError::NotMemfd)));
}

#[test]
fn an_attach_believes_no_header_but_the_right_one() {
    let (client, _service, arena) = mapped(SLOTS);
    assert_eq!(Queue::attach(again(&arena)).unwrap().slots(), SLOTS);
    for (at, word) in words(&arena).iter().enumerate().take(8) {
        let right = word.load(Ordering::Relaxed);
        for bit in 0..64 {
            word.store(right ^ 1 << bit, Ordering::Relaxed);
            let refused = Queue::attach(again(&arena)).unwrap_err();
            let expected = match at {
                0 => matches!(refused, LayoutError::Magic { .. }),
                1 => matches!(refused, LayoutError::Version { .. }),
                // Other numbers of slots are valid but need another size.
                2 => matches!(refused, LayoutError::Slots { .. } | LayoutError::Header { .. }),
                _ => matches!(refused, LayoutError::Header { word, .. } if word == at),
            };
            assert!(expected, "word {at}: {refused}");
        }
        word.store(right, Ordering::Relaxed);
    }
    // The header is consistent, but the file is too small for it.
    let larger = Arena::create("ring-test", Queue::bytes_for(2 * SLOTS).unwrap()).unwrap();
    let memory = again(&larger);
    let _larger_queue = Queue::create(larger.into(), 2 * SLOTS).unwrap();
    let from = Arena::attach(memory.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
    for (to, from) in words(&arena).iter().zip(words(&from)).take(8) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    assert!(matches!(Queue::attach(again(&arena)), Err(LayoutError::TooSmall { .. })));
    assert_eq!(client.slots(), SLOTS, "believed once");
}

#[test]
fn memory_that_is_too_small_or_empty_is_refused() {
    let arena = |bytes| Memory::from(Arena::create("ring-test", bytes).unwrap());
    assert!(matches!(Queue::attach(arena(63)), Err(LayoutError::TooSmall { .. })));
    assert_eq!(Queue::attach(arena(64)).unwrap_err(), LayoutError::Magic { magic: 0 });
    let needed_bytes = Queue::bytes_for(SLOTS).unwrap();
    let refused = Queue::create(arena(needed_bytes - 1), SLOTS).unwrap_err();
    assert_eq!(refused, LayoutError::TooSmall { len_bytes: needed_bytes - 1, needed_bytes });
    for slots in [0, SLOTS_MIN - 1, SLOTS_MIN + 1, 2 * SLOTS_MAX, u32::MAX] {
        assert_eq!(Queue::bytes_for(slots), Err(LayoutError::Slots { slots: slots.into() }));
        assert!(Queue::create(arena(4096), slots).is_err());
    }
}

#[test]
fn impossible_positions_are_errors() {
    let (client, service, arena) = mapped(SLOTS);
    let [head, tail] = [HEAD, TAIL].map(|at| &words(&arena)[at]);
    for _ in 0..3 {
        client.publish(client.try_acquire().unwrap(), &Task::copy(1, 2, 3));
    }
    service.retire(Ticket(2));
    assert_eq!(service.check(), Ok(1));
    for found in [0, 1, 3, u64::MAX] {
        tail.store(found, Ordering::Relaxed);
        assert_eq!(service.check(), Err(QueueError::Tail { found, retired: 2 }));
    }
    tail.store(2, Ordering::Relaxed);
    for (found, possible) in [(1, false), (2, true), (18, true), (19, false), (u64::MAX, false)] {
        head.store(found, Ordering::Relaxed);
        let wrong = QueueError::Head { head: found, retired: 2, slots: 16 };
        assert_eq!(service.check(), if possible { Ok(found - 2) } else { Err(wrong) });
        let attached = Queue::attach(again(&arena));
        match possible {
            true => assert_eq!(attached.unwrap().head(), Ticket(found)),
            false => assert!(matches!(attached, Err(LayoutError::Positions { tail: 2, .. }))),
        }
    }
    // A service's tail beyond the head makes the queue refuse further tickets.
    head.store(18, Ordering::Relaxed);
    assert_eq!(client.try_acquire(), None);
    tail.store(19, Ordering::Relaxed);
    assert_eq!(client.try_acquire(), None);
    tail.store(3, Ordering::Relaxed);
    assert_eq!(client.try_acquire(), Some(Ticket(18)));
}

#[test]
fn a_service_goes_on_where_the_last_one_stopped() {
    let (client, service, arena) = mapped(SLOTS);
    for at in 0..40 {
        client.publish(client.try_acquire().unwrap(), &Task::copy(at, at, 3));
        service.retire(Ticket(at));
    }
    drop(service);
    let service = Queue::attach(again(&arena)).unwrap();
    assert_eq!((service.tail(), service.check()), (Ticket(39), Ok(1)));
    assert_eq!(service.peek(Ticket(39)), Some(Ok(Task::copy(39, 39, 3))));
    assert_eq!(service.peek(Ticket(38)), Some(Ok(Task::copy(38, 38, 3))), "not overwritten yet");
    assert_eq!(service.peek(Ticket(23)), None);
}

/// Performs every operation of both sides once, on an arbitrary ticket.
fn exercise(queue: &Queue, ticket: Ticket, bits: u32) {
    let policy = WaitPolicy { until: Until::DoneOrFree, spins_max: 2, slice_us: 1, slices_max: 2 };
    if let Some(acquired) = queue.try_acquire() {
        queue.publish(acquired, &Task::copy(bits.into(), 2, bits | 1));
    }
    let _checked = queue.check();
    if let Some(Ok(task)) = queue.peek(ticket) {
        assert!(task.len_bytes == 0 || task.dst.checked_add(task.len_bytes.into()).is_some());
        assert_ne!(task.bits(), 0);
    }
    let progress = queue.progress(ticket);
    let mine = progress.claim(bits);
    assert_eq!(mine & !bits, 0);
    let _done = progress.finish(mine & 0xFFFF);
    progress.release(mine & !0xFFFF);
    if progress.claim_all_or_none(bits) {
        progress.fail(NonZeroU16::MIN, bits);
    }
    let _waited = progress.wait(bits, &policy, || true);
    progress.abort_rest(bits);
    let _flags = (progress.error(), progress.is_aborted(), progress.is_done(bits));
    let _handler = (progress.handler_due(), progress.take_handler(), progress.handler());
    let wish = SyncTask { ticket, bits, kind: SyncKind::Abort };
    let _full = (queue.push_sync(wish), queue.push_handler(ticket));
    for _ in 0..SYNC_ENTRIES {
        let _entry = (queue.pop_sync(), queue.pop_handler());
    }
    queue.doorbell().ring();
    let _drowsy = queue.doorbell().announce_sleep();
    queue.doorbell().announce_awake();
}

#[test]
fn words_that_change_between_operations_do_no_harm() {
    let mut random = Random::new(seed());
    let (client, service, arena) = mapped(SLOTS);
    let words = words(&arena);
    for _ in 0..5_000 {
        for _ in 0..random.below(8) {
            // Favour the first lines.
            let limit = if random.below(2) == 0 { 64 } else { words.len() as u64 };
            let at = random.below(limit) as usize;
            words[at].store(hostile(&mut random), Ordering::Relaxed);
        }
        let ticket = match random.below(3) {
            0 => Ticket(hostile(&mut random)),
            1 => client.head(),
            _ => service.tail(),
        };
        let queue = if random.below(2) == 0 { &client } else { &service };
        exercise(queue, ticket, bits(&mut random));
    }
    assert_eq!((client.slots(), service.slots()), (SLOTS, SLOTS));
}

#[test]
fn words_that_change_during_operations_do_no_harm() {
    let mut random = Random::new(seed());
    let (client, service, arena) = mapped(SLOTS);
    let stop = AtomicBool::new(false);
    let seed = random.next();
    thread::scope(|scope| {
        let (arena, stop) = (&arena, &stop);
        scope.spawn(move || {
            let (words, mut state) = (words(arena), seed);
            while !stop.load(Ordering::Relaxed) {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let at = (state >> 33) as usize % words.len();
                words[at].store(state.rotate_left(17), Ordering::Relaxed);
                words[HEAD].fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..5_000 {
            exercise(&client, client.head(), bits(&mut random));
            exercise(&service, Ticket(hostile(&mut random)), bits(&mut random));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn lines_of_random_words_are_tasks_or_errors() {
    let mut random = Random::new(seed());
    let (_client, service, arena) = mapped(SLOTS);
    let bytes = Queue::bytes_for(SLOTS).unwrap();
    let first_line = (bytes - 2 * 64 * SLOTS as usize) / 8;
    let line = &words(&arena)[first_line..][..8];
    let (mut tasks, mut errors) = (0, 0);
    for _ in 0..20_000 {
        line.iter().for_each(|word| word.store(hostile(&mut random), Ordering::Relaxed));
        // Generation 1, and usually a valid kind and valid flags.
        let first =
            if random.below(2) == 0 { (random.next() % 6) | (12 << 16) } else { random.next() };
        line[0].store((1 << 32) | (first & 0xFFFF_FFFF), Ordering::Relaxed);
        match service.peek(Ticket(0)) {
            Some(Ok(_)) => tasks += 1,
            Some(Err(wrong)) => {
                assert!(!wrong.to_string().is_empty());
                errors += 1;
            }
            None => unreachable!("it has the generation"),
        }
    }
    assert!(tasks > 100 && errors > 100, "{tasks} tasks, {errors} errors: it shows little");
}
