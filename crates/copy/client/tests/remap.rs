//! Copies of a source that is given up, against `memcpy`, in memory of all kinds.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use unlade_copy::{Config, Copier, CopyOptions, Remaps, Service};
use unlade_copy_kernels::remap::Remapper;
use unlade_testkit::{Random, cases};

mod support;
use support::{Arena, HUGE, PAGE};

/// A test that forks has the pages of the others, which then do not move.
static FORKS: Mutex<()> = Mutex::new(());

fn client(remaps: Remaps) -> (Service, Copier) {
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap()).with_remaps(remaps);
    (service, copier)
}

/// Returns true if this kernel can move pages.
fn can_move() -> bool {
    let can = Remapper::of_process().is_some();
    if !can {
        println!("this kernel moves no pages: all copies are copied");
    }
    can
}

const ARENA: usize = 24 << 20;
/// Kinds of memory in the arena, with their ends: huge pages, shared, a private file, locked, many
/// mappings, and memory that is untouched at first.
const HUGE_END: usize = 6 << 20;
const SHARED_END: usize = 8 << 20;
const FILE_END: usize = 10 << 20;
const LOCKED_END: usize = 11 << 20;
const SPLIT_END: usize = 14 << 20;

/// The arena beside plain bytes.
struct World {
    arena: Arena,
    expected: Vec<u8>,
    /// Bytes of sources that were given up, and copies of them.
    undefined: Vec<bool>,
    copier: Copier,
}

impl World {
    fn new(copier: Copier) -> World {
        let arena = Arena::new(ARENA);
        arena.advise(0..HUGE_END, libc::MADV_HUGEPAGE);
        arena.replace(HUGE_END..SHARED_END, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
        let file = tempfile::tempfile().unwrap();
        file.set_len((FILE_END - SHARED_END) as u64).unwrap();
        arena.replace(SHARED_END..FILE_END, libc::MAP_PRIVATE, file.as_raw_fd());
        arena.lock(FILE_END..LOCKED_END);
        for at in (LOCKED_END..SPLIT_END).step_by(24 * PAGE) {
            arena.advise(at..at + 8 * PAGE, libc::MADV_DONTFORK);
        }
        let expected = vec![0; ARENA];
        World { arena, expected, undefined: vec![false; ARENA], copier }
    }

    /// Two ranges that do not overlap. Most begin at the same place in a page.
    fn ranges(&self, random: &mut Random, longest: u32) -> (usize, usize, usize) {
        loop {
            let scale = 1_usize << (15 + random.below(longest));
            let len = scale + random.below(scale as u64) as usize;
            let [dst, mut src] = [0; 2].map(|_: usize| random.below((ARENA - len) as u64) as usize);
            let unit = if random.below(2_u64) == 0 { HUGE } else { PAGE };
            if random.below(5_u64) > 0 {
                src = src / unit * unit + dst % unit;
            }
            if dst.abs_diff(src) >= len && src + len <= ARENA {
                return (dst, src, len);
            }
        }
    }

    fn expect_copy(&mut self, dst: usize, src: usize, len: usize) {
        self.expected.copy_within(src..src + len, dst);
        self.undefined.copy_within(src..src + len, dst);
    }

    fn copy(&self, dst: usize, src: usize, len: usize, options: &CopyOptions) {
        let limit = unlade_copy::TASK_BYTES_MAX;
        for at in (0..len).step_by(limit) {
            let (to, from) = (self.arena.at(dst + at), self.arena.at(src + at));
            // SAFETY: within the arena, which outlives the copier; it is used after syncs only.
            let _ = unsafe { self.copier.submit(to, from, limit.min(len - at), options) };
        }
    }

    fn give_up(&mut self, random: &mut Random) {
        let (dst, src, len) = self.ranges(random, 7);
        // SAFETY: as above; the source is undefined from now on.
        if !unsafe { self.copier.remap(self.arena.at(dst), self.arena.at(src), len, 0) } {
            self.copy(dst, src, len, &CopyOptions::default());
        }
        self.expect_copy(dst, src, len);
        self.undefined[src..src + len].fill(true);
        if random.below(3_u64) == 0 {
            self.check(dst.saturating_sub(2 * PAGE)..ARENA.min(dst + len + 2 * PAGE));
            self.check(src.saturating_sub(2 * PAGE)..ARENA.min(src + len + 2 * PAGE));
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(10_u64) {
            0..5 => self.give_up(random),
            kind @ 5..8 => {
                let (dst, src, len) = self.ranges(random, 4);
                let lazy_us = (kind == 7).then_some(u32::MAX);
                let queued = kind == 6;
                self.copy(dst, src, len, &CopyOptions { lazy_us, queued, ..Default::default() });
                self.expect_copy(dst, src, len);
            }
            8 => {
                let (at, _, len) = self.ranges(random, 6);
                let byte = random.below(256_u64) as u8;
                self.copier.sync_for_write(self.arena.at(at).addr(), len).unwrap();
                self.arena.fill(at..at + len, byte);
                self.expected[at..at + len].fill(byte);
                self.undefined[at..at + len].fill(false);
            }
            _ => {
                // Pages that are dropped read as zeros.
                let at = SPLIT_END + random.below(64_u64) as usize * 16 * PAGE;
                let pages = at..ARENA.min(at + (1 + random.below(512_u64) as usize) * PAGE);
                self.copier.sync_for_write(self.arena.at(at).addr(), pages.len()).unwrap();
                self.arena.advise(pages.clone(), libc::MADV_DONTNEED);
                self.expected[pages.clone()].fill(0);
                self.undefined[pages].fill(false);
            }
        }
    }

    fn check(&self, range: std::ops::Range<usize>) {
        self.copier.sync_range(self.arena.at(range.start).addr(), range.len()).unwrap();
        let seen = self.arena.read(range.clone());
        let wrong = range
            .clone()
            .zip(seen)
            .find(|(at, byte)| !self.undefined[*at] && *byte != self.expected[*at]);
        assert_eq!(
            wrong,
            None,
            "within {range:?}, expected {:?}",
            wrong.map(|(at, _)| self.expected[at])
        );
    }
}

#[test]
fn random_programs_compute_what_they_do_with_memcpy() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut remapped = 0;
    cases(12, |random| {
        let (_service, copier) = client(Remaps::Always);
        let mut world = World::new(copier);
        let first: Vec<u8> = random.bytes(SPLIT_END);
        world.arena.write(0, &first);
        world.expected[..SPLIT_END].copy_from_slice(&first);
        for _ in 0..40 {
            world.step(random);
        }
        world.check(0..ARENA);
        let stats = world.copier.stats().read();
        remapped += stats.remapped_bytes;
        assert!(stats.last_use_copied_bytes > 0, "{stats:?}");
    });
    assert!(remapped > 0 || !can_move(), "nothing was moved");
}

#[test]
fn copies_that_cannot_move_are_counted_and_made() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let arena = Arena::new(4 << 20);
    arena.replace(0..1 << 20, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    arena.fill(0..1 << 20, 7);
    for remaps in [Remaps::Always, Remaps::Never] {
        let (_service, copier) = client(remaps);
        let (dst, src, len) = (arena.at(2 << 20), arena.at(0), 1 << 20);
        // SAFETY: an arena of this test, which is read after the sync.
        unsafe {
            assert!(!copier.remap(dst, src, len, 0), "shared memory does not move");
            let _ = copier.submit(dst, src, len, &CopyOptions::default());
        }
        copier.sync_range(dst.addr(), len).unwrap();
        assert!(arena.read(2 << 20..3 << 20).iter().all(|byte| *byte == 7));
        let stats = copier.stats().read();
        assert_eq!((stats.remapped, stats.last_use_copied_bytes), (0, 1 << 20));
        let is_tried = remaps == Remaps::Always && can_move();
        assert_eq!(stats.remaps_refused, u64::from(is_tried), "{remaps:?}");
        arena.advise(2 << 20..3 << 20, libc::MADV_DONTNEED);
    }
}

#[test]
fn overlapping_ranges_and_bad_addresses_fail_as_in_a_copy() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let (_service, copier) = client(Remaps::Always);
    let arena = Arena::new(1 << 20);
    arena.fill(0..1 << 20, 1);
    let nowhere = std::ptr::without_provenance_mut::<u8>(PAGE);
    // SAFETY: bad addresses are errors, and the ranges that overlap are refused.
    unsafe {
        assert!(!copier.remap(arena.at(PAGE), arena.at(0), 64 * PAGE, 0));
        assert!(!copier.remap(arena.at(0), nowhere, 64 * PAGE, 0));
        assert!(!copier.remap(nowhere, arena.at(0), 64 * PAGE, 0));
        assert!(!copier.remap(nowhere, arena.at(0), usize::MAX, 0));
    }
    assert!(arena.read(0..1 << 20).iter().all(|byte| *byte == 1));
    assert_eq!(copier.stats().read().remapped, 0);
}

#[test]
fn a_scope_moves_what_safe_code_gives_up() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let (_service, copier) = client(Remaps::Always);
    for len in [0, 100, 200 << 10, (3 << 20) + 17] {
        let expected: Vec<u8> = (0..len).map(|at| (at * 13 % 251) as u8).collect();
        let (mut source, mut destination) = (expected.clone(), vec![0; len]);
        copier.scope(|scope| {
            let pending = scope.copy_last_use(&mut source, &mut destination);
            assert!(pending.sync(0..len).unwrap() == expected);
        });
        assert!(destination == expected, "{len} bytes");
        source.fill(3);
        assert!(destination == expected && source.iter().all(|byte| *byte == 3));
    }
    assert!(copier.stats().read().remapped > 0 || !can_move());
}

#[test]
fn older_copies_are_over_before_pages_move() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let (_service, copier) = client(Remaps::Always);
    let queued = CopyOptions { queued: true, ..CopyOptions::default() };
    let deferred = CopyOptions { lazy_us: Some(u32::MAX), ..CopyOptions::default() };
    let len = 1 << 20;
    for round in 0..30_u8 {
        let arena = Arena::new(8 << 20);
        arena.fill(0..len, round);
        let at = |number: usize| arena.at(number * len);
        for (number, options) in [&queued, &deferred, &CopyOptions::default()].iter().enumerate() {
            let base = 1 + 2 * number;
            // SAFETY: an arena of this test, which is read after the sync.
            unsafe {
                // 0 to `base`, queued or deferred, and at once from there to new memory.
                let _ = copier.submit(at(base), at(0), len, options);
                if !copier.remap(at(base + 1), at(base), len, 0) {
                    let _ = copier.submit(at(base + 1), at(base), len, &CopyOptions::default());
                }
            }
        }
        for base in [2, 4, 6] {
            copier.sync_range(at(base).addr(), len).unwrap();
            let seen = arena.read(base * len..(base + 1) * len);
            assert!(seen.iter().all(|byte| *byte == round), "round {round}, place {base}");
        }
    }
    assert!(copier.stats().read().remapped > 0 || !can_move());
}

#[test]
fn other_threads_keep_their_bytes_in_the_same_pages() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let (_service, copier) = client(Remaps::Always);
    // Counters before and behind both ranges, in the pages in which these begin and end.
    const LEN: usize = 80 * PAGE;
    let arena = Arena::new(4 << 20);
    let counters = [(1 << 20) + 8, (1 << 20) + LEN + 24, (2 << 20) + 8, (2 << 20) + LEN + 24];
    let counter = |at: usize| {
        // SAFETY: aligned, within the arena, outside of the ranges that move.
        unsafe { AtomicU64::from_ptr(arena.at(at).cast()) }
    };
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let counting = threads.spawn(|| {
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                counters.iter().for_each(|at| {
                    counter(*at).fetch_add(1, Ordering::Relaxed);
                });
                rounds.store(number, Ordering::Relaxed);
            }
            number
        });
        let (src, dst) = ((1 << 20) + 16, (2 << 20) + 16);
        for round in 0..200_u8 {
            arena.fill(src..src + LEN, round);
            arena.advise((2 << 20) + PAGE..(2 << 20) + LEN - PAGE, libc::MADV_DONTNEED);
            // SAFETY: the ranges are used by this thread only.
            unsafe {
                if !copier.remap(arena.at(dst), arena.at(src), LEN, 0) {
                    let _ = copier.submit(arena.at(dst), arena.at(src), LEN, &Default::default());
                }
            }
            copier.sync_range(arena.at(dst).addr(), LEN).unwrap();
            assert!(arena.read(dst..dst + LEN).iter().all(|byte| *byte == round));
            let seen = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) == seen {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let number = counting.join().unwrap();
        for at in counters {
            assert_eq!(counter(at).load(Ordering::Relaxed), number, "the counter at {at:#x}");
        }
    });
    assert!(copier.stats().read().remapped > 0 || !can_move());
}

#[test]
fn a_child_has_what_moved_and_the_source_may_be_unmapped() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let (_service, copier) = client(Remaps::Always);
    let (from, to) = (Arena::new(1 << 20), Arena::new(1 << 20));
    from.fill(0..1 << 20, 9);
    // SAFETY: arenas of this test.
    let is_moved = unsafe { copier.remap(to.at(0), from.at(0), 1 << 20, 0) };
    assert!(is_moved || !can_move());
    if !is_moved {
        return;
    }
    // SAFETY: the child looks at memory of its own and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = (0..1 << 20).step_by(PAGE).all(|at| {
            // SAFETY: within the arena.
            unsafe { to.at(at).read_volatile() == 9 }
        });
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    drop(from);
    let mut status = 0;
    // SAFETY: a child of this test.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(to.read(0..1 << 20).iter().all(|byte| *byte == 9));
}
