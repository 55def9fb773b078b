//! Snapshots against what the memory held at the call, while threads write it.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unlade_copy::{Config, Copier, CopyOptions, Service, Snapshot, SnapshotError, SnapshotOptions};
use unlade_testkit::{Random, cases};

mod support;
use support::{Arena, PAGE};

fn client() -> (Service, Copier) {
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    (service, copier)
}

/// Takes a snapshot of the first bytes of an arena, which outlives it.
fn take(copier: &Copier, arena: &Arena, len: usize, options: SnapshotOptions) -> Snapshot {
    // SAFETY: an arena of the test, which stays mapped; the tests write it by atomics, or by this
    // thread.
    unsafe { copier.snapshot(arena.at(0), len, &options) }.unwrap()
}

const USER: SnapshotOptions = SnapshotOptions { only_user_writes: true };

/// Returns true if snapshots are lazy here.
fn is_lazy(copier: &Copier) -> bool {
    let arena = Arena::new(PAGE);
    let lazy = !take(copier, &arena, PAGE, USER).is_at_once();
    if !lazy {
        println!("userfaultfd is not there or not permitted: snapshots are copied at once");
    }
    lazy
}

/// Words of an arena, one in a page.
fn word(arena: &Arena, page: usize) -> &AtomicU64 {
    // SAFETY: aligned, within the arena, and accessed by atomics only.
    unsafe { AtomicU64::from_ptr(arena.at(page * PAGE).cast()) }
}

fn word_of(bytes: &[u8], page: usize) -> u64 {
    u64::from_le_bytes(bytes[page * PAGE..][..8].try_into().unwrap())
}

#[test]
fn random_writes_leave_the_snapshot_as_it_was() {
    let (_service, copier) = client();
    let lazy = is_lazy(&copier);
    let mut held = 0;
    cases(30, |random| {
        let pages = 1 + random.below(600_u64) as usize;
        let arena = Arena::new(pages * PAGE);
        if random.below(3_u64) == 0 {
            arena.advise(0..pages * PAGE, libc::MADV_HUGEPAGE);
        }
        // Some pages are never touched before.
        let first = random.below(pages as u64 + 1) as usize;
        arena.write(0, &random.bytes(first * PAGE));
        let before = arena.read(0..pages * PAGE);
        let mut snapshot = take(&copier, &arena, pages * PAGE, USER);
        for _ in 0..random.below(200_u64) {
            let at = random.below((pages * PAGE) as u64) as usize;
            match random.below(4_u64) {
                0 => {
                    let end = at + random.below((pages * PAGE - at + 1) as u64) as usize;
                    assert!(snapshot.sync(at..end).unwrap() == &before[at..end]);
                }
                _ => {
                    let len = (1 + random.below(9_000_u64) as usize).min(pages * PAGE - at);
                    arena.fill(at..at + len, random.below(256_u64) as u8);
                }
            }
        }
        held += snapshot.writes_held();
        if random.below(3_u64) > 0 {
            assert!(snapshot.complete().unwrap() == before);
            arena.fill(0..pages * PAGE, 1);
            assert!(snapshot.complete().unwrap() == before);
        }
        drop(snapshot);
        arena.fill(0..pages * PAGE, 2);
    });
    let stats = copier.stats().read();
    assert!(stats.snapshots > 30 && stats.snapshot_bytes > 30 * PAGE as u64, "{stats:?}");
    assert_eq!(lazy, held > 0, "no write had to wait, or all snapshots were copied at once");
}

/// Each thread writes its number and a version to all pages, in an order of its own; a snapshot
/// has, of each thread, all writes until some one and no later one.
#[test]
fn a_snapshot_is_of_one_time_while_threads_write() {
    const THREADS: usize = 3;
    const PAGES: usize = 96;
    let (_service, copier) = client();
    if !is_lazy(&copier) {
        return;
    }
    let arena = Arena::new(THREADS * PAGES * PAGE);
    let is_over = AtomicBool::new(false);
    let versions: [AtomicU64; THREADS] = Default::default();
    // Threads write their pages in turn: the number of the write, from 1 on. So at any time the
    // pages of a thread hold the numbers of its last PAGES writes.
    let order = |thread: usize, number: u64| {
        let steps = [1, 5, 7][thread];
        thread * PAGES + (number as usize * steps) % PAGES
    };
    std::thread::scope(|threads| {
        for (thread, version) in versions.iter().enumerate() {
            let (arena, is_over) = (&arena, &is_over);
            threads.spawn(move || {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    number += 1;
                    word(arena, order(thread, number)).store(number, Ordering::SeqCst);
                    version.store(number, Ordering::SeqCst);
                    if number % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..60 {
            let before = versions.each_ref().map(|version| version.load(Ordering::SeqCst));
            let mut snapshot = take(&copier, &arena, THREADS * PAGES * PAGE, USER);
            let bytes = snapshot.complete().unwrap();
            for (thread, before) in before.into_iter().enumerate() {
                let seen = |number: u64| word_of(bytes, order(thread, number));
                let last = (0..PAGES).map(|page| word_of(bytes, thread * PAGES + page)).max();
                let last = last.unwrap();
                assert!(last >= before, "a write from before the call is missing");
                let first = last.saturating_sub(PAGES as u64 - 1).max(1);
                for number in first..=last {
                    assert_eq!(seen(number), number, "thread {thread}: {number} of {last}");
                }
            }
            // Each thread writes again before the next one.
            for (version, before) in versions.iter().zip(before) {
                while version.load(Ordering::SeqCst) <= before + 2 * PAGES as u64 {
                    std::thread::yield_now();
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn older_copies_are_in_it_and_younger_ones_are_not() {
    let (_service, copier) = client();
    let arena = Arena::new(1 << 20);
    let (old, young) = (vec![1_u8; 1 << 20], vec![2_u8; 1 << 20]);
    let queued = CopyOptions { queued: true, ..CopyOptions::default() };
    let deferred = CopyOptions { lazy_us: Some(u32::MAX), ..CopyOptions::default() };
    for options in [queued, deferred] {
        // SAFETY: the arena and the vectors outlive the copies, which are synced below.
        let _ = unsafe { copier.submit(arena.at(0), old.as_ptr(), 1 << 20, &options) };
        let mut snapshot = take(&copier, &arena, 1 << 20, USER);
        // SAFETY: as above.
        let _ = unsafe { copier.submit(arena.at(0), young.as_ptr(), 1 << 20, &options) };
        copier.sync_range(arena.at(0).addr(), 1 << 20).unwrap();
        assert!(arena.read(0..1 << 20) == young);
        assert!(snapshot.complete().unwrap() == old);
        copier.sync_for_write(arena.at(0).addr(), 1 << 20).unwrap();
    }
}

#[test]
fn memory_that_cannot_be_protected_is_copied_at_once() {
    let (_service, copier) = client();
    let arena = Arena::new(8 * PAGE);
    arena.replace(0..8 * PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    arena.fill(0..8 * PAGE, 3);
    let snapshot = take(&copier, &arena, 8 * PAGE, USER);
    assert!(snapshot.is_at_once());
    arena.fill(0..8 * PAGE, 4);
    assert_eq!(snapshot.sync(0..8 * PAGE).unwrap(), vec![3; 8 * PAGE]);
    // Parts of pages.
    let part = take(&copier, &arena, PAGE + 1, USER);
    assert!(part.is_at_once() && part.sync(0..PAGE + 1).unwrap().iter().all(|byte| *byte == 4));
    let none = take(&copier, &arena, 0, USER);
    assert!(none.is_empty() && none.sync(0..0).unwrap().is_empty());
    assert_eq!(copier.stats().read().snapshots_at_once, 3);
    // SAFETY: a bad address is an error.
    let bad = unsafe { copier.snapshot(std::ptr::without_provenance(PAGE), PAGE, &USER) };
    assert_eq!(bad.unwrap_err(), SnapshotError::NotMapped);
}

#[test]
fn a_child_has_what_was_copied_and_ends_nothing_of_its_parent() {
    let (_service, copier) = client();
    let arena = Arena::new(64 * PAGE);
    arena.fill(0..64 * PAGE, 6);
    let mut whole = take(&copier, &arena, 64 * PAGE, USER);
    assert_eq!(whole.complete().unwrap(), vec![6; 64 * PAGE]);
    let large = Arena::new(32 << 20);
    large.fill(0..32 << 20, 8);
    let mut partial = take(&copier, &large, 32 << 20, USER);
    // SAFETY: the child looks at memory of its own, takes no lock that another thread may have, and
    // ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_whole =
            whole.sync(0..64 * PAGE).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 6));
        // Bytes that were not copied are an error, never other bytes.
        let is_right = match partial.sync(0..32 << 20) {
            Ok(bytes) => bytes.iter().all(|byte| *byte == 8),
            Err(error) => error == SnapshotError::InChild,
        };
        drop(partial);
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(!is_whole || !is_right)) };
    }
    large.fill(0..32 << 20, 9);
    assert!(partial.complete().unwrap().iter().all(|byte| *byte == 8));
    let mut status = 0;
    // SAFETY: a child of this test.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_source_that_cannot_be_read_is_an_error_and_no_hang() {
    let (_service, copier) = client();
    let arena = Arena::new(32 << 20);
    arena.fill(0..32 << 20, 8);
    let mut snapshot = take(&copier, &arena, 32 << 20, USER);
    // The snapshot forbids this. An unmapped source could be another test's memory by now.
    arena.protect(0..32 << 20, libc::PROT_NONE);
    match snapshot.complete() {
        Ok(bytes) => assert!(bytes.iter().all(|byte| *byte == 8)),
        Err(error) => assert_eq!(error, SnapshotError::NotMapped),
    }
}

/// Runs `run` in a thread without the capabilities of root.
fn unprivileged<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            // SAFETY: the bare system call changes this thread only.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            (changed == 0).then(run)
        });
        thread.join().unwrap()
    })
}

#[test]
fn without_privilege_the_program_promises_or_all_is_copied_at_once() {
    let permitted = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if permitted.is_ok_and(|text| text.trim() != "0") {
        println!("skipped: userfaultfd is permitted to all");
        return;
    }
    let (_service, copier) = client();
    let lazy = is_lazy(&copier);
    let arena = Arena::new(64 * PAGE);
    arena.fill(0..64 * PAGE, 5);
    let seen = unprivileged(|| {
        let careful = take(&copier, &arena, 64 * PAGE, SnapshotOptions::default());
        let mut promised = take(&copier, &arena, 64 * PAGE, USER);
        let is_right = promised.complete().unwrap().iter().all(|byte| *byte == 5);
        (careful.is_at_once(), promised.is_at_once(), is_right)
    });
    match seen {
        Some(seen) => assert_eq!(seen, (true, !lazy, true)),
        None => println!("skipped: this test needs root"),
    }
}

#[test]
fn system_calls_write_where_that_is_permitted() {
    let (_service, copier) = client();
    let arena = Arena::new(256 * PAGE);
    arena.fill(0..256 * PAGE, 5);
    let snapshot = take(&copier, &arena, 256 * PAGE, SnapshotOptions::default());
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[6; PAGE]).unwrap();
    for page in [255, 0, 100] {
        writer.write_all(&[6; PAGE]).unwrap();
        // SAFETY: within the arena, into which no reference points.
        let read = unsafe { libc::read(reader.as_raw_fd(), arena.at(page * PAGE).cast(), PAGE) };
        assert_eq!(read, PAGE as isize, "{}", std::io::Error::last_os_error());
    }
    assert!(snapshot.sync(0..256 * PAGE).unwrap().iter().all(|byte| *byte == 5));
    assert!(arena.read(255 * PAGE..256 * PAGE).iter().all(|byte| *byte == 6));
}

#[test]
fn several_snapshots_of_several_areas_are_independent() {
    let (_service, copier) = client();
    let mut random = Random::new(7);
    let arenas: Vec<Arena> = (0..4).map(|_| Arena::new(128 * PAGE)).collect();
    let contents: Vec<Vec<u8>> = arenas.iter().map(|_| random.bytes(128 * PAGE)).collect();
    arenas.iter().zip(&contents).for_each(|(arena, content)| arena.write(0, content));
    let mut snapshots: Vec<Snapshot> =
        arenas.iter().map(|arena| take(&copier, arena, 128 * PAGE, USER)).collect();
    arenas.iter().for_each(|arena| arena.fill(0..128 * PAGE, 0));
    for (snapshot, content) in snapshots.iter_mut().zip(&contents) {
        assert!(snapshot.complete().unwrap() == content);
    }
    // The same memory again, while a snapshot of it is not complete: the second is copied at once.
    let first = take(&copier, &arenas[0], 128 * PAGE, USER);
    let second = take(&copier, &arenas[0], 128 * PAGE, USER);
    arenas[0].fill(0..128 * PAGE, 9);
    for snapshot in [first, second] {
        assert!(snapshot.sync(0..128 * PAGE).unwrap().iter().all(|byte| *byte == 0));
    }
}
