//! Moves of pages against copies of bytes, with every kind of memory that the kernel refuses.

use std::os::fd::AsRawFd;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use unlade_copy_kernels::freeze::Frozen;
use unlade_copy_kernels::remap::{Choice, Plan, REMAP_BYTES_MIN, Remapper, Way};
use unlade_testkit::{Random, cases};

mod support;
use support::Pages;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
const BYTES: usize = 64 * PAGE;

/// A child of fork(2) has the pages of all tests, which then do not move.
static FORKS: RwLock<()> = RwLock::new(());

/// The remapper, or `None` if this kernel cannot move pages; and a promise that no test forks.
fn remapper() -> Option<(&'static Remapper, RwLockReadGuard<'static, ()>)> {
    let found = remapper_alone();
    found.map(|found| (found, FORKS.read().unwrap_or_else(PoisonError::into_inner)))
}

fn remapper_alone() -> Option<&'static Remapper> {
    let found = Remapper::of_process();
    if found.is_none() {
        println!("skipped: this kernel has no UFFDIO_MOVE, or userfaultfd is not permitted");
    }
    found
}

/// Two areas of `BYTES`, the first filled.
struct Pair {
    src: Pages,
    dst: Pages,
}

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + seed * 31) % 251) as u8).collect()
}

impl Pair {
    fn new() -> Pair {
        let pair = Pair { src: Pages::new(BYTES), dst: Pages::new(BYTES) };
        pair.src.write(0, &content(1, BYTES));
        pair
    }

    fn plan(&self, remapper: &Remapper) -> Option<Plan> {
        let (dst, src) = (self.dst.at(0).addr(), self.src.at(0).addr());
        remapper.plan(dst, src, BYTES, 0, Choice::Always)
    }

    /// The bytes that moved, which must be where they belong; the source keeps the rest.
    fn moved(&self, remapper: &Remapper) -> usize {
        let Some(plan) = self.plan(remapper) else { return 0 };
        // SAFETY: both areas are of this test, which has no reference into them.
        let moved = unsafe { remapper.run(&plan) };
        assert!(
            self.dst.read(plan.bytes.start, moved)
                == content(1, BYTES)[plan.bytes.start..][..moved]
        );
        let rest = plan.bytes.start + moved;
        assert!(self.src.read(rest, BYTES - rest) == content(1, BYTES)[rest..]);
        moved
    }
}

#[test]
fn pages_that_a_snapshot_watches_stay() {
    let Some((remapper, _forks)) = remapper() else { return };
    let pair = Pair::new();
    let frozen = Frozen::new(pair.src.at(0).addr()..pair.src.at(BYTES).addr(), true).unwrap();
    assert!(pair.plan(remapper).is_some(), "what is watched is found by the move");
    assert_eq!(pair.moved(remapper), 0);
    assert!(pair.src.read(0, BYTES) == content(1, BYTES));
    drop(frozen);
    assert_eq!(pair.moved(remapper), BYTES);
}

#[test]
fn pages_go_to_absent_ones_and_the_source_is_usable() {
    let Some((remapper, _forks)) = remapper() else { return };
    let pair = Pair::new();
    assert_eq!(pair.moved(remapper), BYTES);
    assert!(pair.src.read(0, BYTES).iter().all(|byte| *byte == 0));
    pair.src.write(100, &[5; 3 * PAGE]);
    assert_eq!(pair.src.read(100, 3 * PAGE), vec![5; 3 * PAGE]);
    assert!(pair.dst.read(0, BYTES) == content(1, BYTES));
    // Its pages are there now.
    pair.src.write(0, &content(1, BYTES));
    assert_eq!(pair.plan(remapper), None);
}

#[test]
fn pages_that_were_never_touched_are_zeros_in_both() {
    let Some((remapper, _forks)) = remapper() else { return };
    let pair = Pair { src: Pages::new(BYTES), dst: Pages::new(BYTES) };
    pair.src.write(BYTES / 2, &[9; PAGE]);
    // SAFETY: both areas are of this test.
    let moved = unsafe { remapper.run(&pair.plan(remapper).unwrap()) };
    assert_eq!(moved, BYTES);
    let mut expected = vec![0; BYTES];
    expected[BYTES / 2..][..PAGE].fill(9);
    assert!(pair.dst.read(0, BYTES) == expected);
}

/// An area whose first huge page begins at the returned offset.
fn huge(random: &mut Random) -> (Pages, usize) {
    let pages = Pages::new(5 * HUGE);
    let first = pages.at(0).addr().next_multiple_of(HUGE) - pages.at(0).addr();
    // SAFETY: within the mapping.
    let advised = unsafe { libc::madvise(pages.at(first).cast(), 4 * HUGE, libc::MADV_HUGEPAGE) };
    assert_eq!(advised, 0);
    pages.write(first, &random.bytes(4 * HUGE));
    (pages, first)
}

#[test]
fn huge_pages_are_exchanged_and_their_neighbours_stay() {
    let Some((remapper, _forks)) = remapper() else { return };
    cases(8, |random| {
        let ((src, from), (dst, to)) = (huge(random), huge(random));
        let offset = random.below(HUGE as u64) as usize;
        let len = 2 * HUGE + random.below((2 * HUGE - offset) as u64) as usize;
        let (before_src, before_dst) = (src.read(0, 5 * HUGE), dst.read(0, 5 * HUGE));
        let (start, target) = (from + offset, to + offset);
        let plan =
            remapper.plan(dst.at(target).addr(), src.at(start).addr(), len, 0, Choice::Always);
        let Some(plan) = plan else {
            println!("skipped: no huge pages are free");
            return;
        };
        assert_eq!(plan.way, Way::Exchange);
        // SAFETY: both areas are of this test.
        let moved = unsafe { remapper.run(&plan) };
        assert_eq!((moved, moved % HUGE), (plan.bytes.len(), 0));
        let (mut after_src, mut after_dst) = (before_src.clone(), before_dst.clone());
        let bytes = plan.bytes;
        after_dst[target..][bytes.clone()].copy_from_slice(&before_src[start..][bytes.clone()]);
        after_src[start..][bytes.clone()].copy_from_slice(&before_dst[target..][bytes]);
        assert!(src.read(0, 5 * HUGE) == after_src, "the source has the destination's bytes");
        assert!(dst.read(0, 5 * HUGE) == after_dst);
    });
}

#[test]
fn ranges_that_cannot_move_are_left_to_a_copy() {
    let Some((remapper, _forks)) = remapper() else { return };
    let pair = Pair::new();
    let (dst, src) = (pair.dst.at(0).addr(), pair.src.at(0).addr());
    let plan = |dst, src, len| remapper.plan(dst, src, len, 0, Choice::Always);
    assert_eq!(plan(dst + 1, src, BYTES / 2), None, "other places in a page");
    assert_eq!(plan(dst, src, REMAP_BYTES_MIN - 1), None, "too short");
    assert_eq!(plan(dst, (usize::MAX - 10) & !(PAGE - 1), BYTES), None, "it wraps");
    assert_eq!(plan(dst, src, usize::MAX), None, "it wraps");
    assert!(
        plan(dst + 5, src + 5, BYTES - 5).is_some_and(|plan| plan.bytes == (PAGE - 5..BYTES - 5))
    );
}

/// Checks that nothing moves, and that the destination is as before.
fn refused(remapper: &Remapper, pair: &Pair) {
    let before = pair.dst.read(0, BYTES);
    assert_eq!(pair.moved(remapper), 0);
    assert!(pair.dst.read(0, BYTES) == before);
}

#[test]
fn shared_memory_files_and_protected_memory_are_refused() {
    let Some((remapper, _forks)) = remapper() else { return };
    let file = tempfile::tempfile().unwrap();
    file.set_len(BYTES as u64).unwrap();
    let mut pair = Pair::new();
    pair.dst = Pages::of_file(&file, BYTES);
    refused(remapper, &pair);
    pair.src = Pages::of_file(&file, BYTES);
    pair.src.write(0, &content(1, BYTES));
    pair.dst = Pages::new(BYTES);
    refused(remapper, &pair);
    // A private mapping of a file, of which pages were written.
    let private = Pair::new();
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: it replaces pages of this test, into which no reference points.
    let mapped = unsafe {
        libc::mmap(private.src.at(0).cast(), BYTES, protection, flags, file.as_raw_fd(), 0)
    };
    assert_eq!(mapped, private.src.at(0).cast());
    private.src.write(0, &content(1, BYTES));
    refused(remapper, &private);
    // Another protection of the destination, and of one page of it.
    for bytes in [BYTES, PAGE] {
        let pair = Pair::new();
        pair.dst.protect(BYTES - bytes, bytes, libc::PROT_READ);
        refused(remapper, &pair);
        let pair = Pair::new();
        pair.src.protect(BYTES - bytes, bytes, libc::PROT_READ);
        refused(remapper, &pair);
    }
}

#[test]
fn locked_memory_is_refused() {
    let Some((remapper, _forks)) = remapper() else { return };
    let pair = Pair::new();
    // SAFETY: memory of this test.
    if unsafe { libc::mlock(pair.src.at(0).cast(), BYTES) } != 0 {
        println!("skipped: locking is not permitted");
        return;
    }
    refused(remapper, &pair);
}

#[test]
fn pages_that_a_child_has_stay_and_are_copied() {
    let Some(remapper) = remapper_alone() else { return };
    let _alone = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    let pair = Pair::new();
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child waits for the end of the pipe, and ends, by async-signal-safe calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: as above.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(i32::from(
                Remapper::of_process().is_some_and(|it| std::ptr::eq(it, remapper)),
            ));
        }
    }
    // New pages of the parent alone.
    pair.src.write(0, &content(1, 8 * PAGE));
    assert_eq!(pair.moved(remapper), 8 * PAGE);
    let mut status = 0;
    // SAFETY: descriptors of this test, and its child.
    unsafe {
        libc::close(pipe[1]);
        libc::close(pipe[0]);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert_eq!(status, 0, "a child must not move pages of its parent");
}

#[test]
fn mappings_are_joined_again() {
    let Some((remapper, _forks)) = remapper() else { return };
    let mappings = |pages: &Pages| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let (start, end) = (pages.at(0).addr(), pages.at(16 * BYTES).addr());
        let is_within = |line: &&str| {
            let from = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
            (start..end).contains(&from)
        };
        maps.lines().filter(is_within).count()
    };
    let (src, dst) = (Pages::new(16 * BYTES), Pages::new(16 * BYTES));
    src.write(0, &content(1, 16 * BYTES));
    let before = (mappings(&src), mappings(&dst));
    for at in (0..16).step_by(2).map(|number| number * BYTES) {
        let plan =
            remapper.plan(dst.at(at).addr(), src.at(at).addr(), BYTES, 0, Choice::Always).unwrap();
        // SAFETY: both areas are of this test.
        assert_eq!(unsafe { remapper.run(&plan) }, BYTES);
    }
    assert!(mappings(&src) <= before.0 + 1 && mappings(&dst) <= before.1 + 1, "{before:?}");
}

/// Registers a buffer with a new io_uring, which a device could then access. `None` if there is no
/// io_uring here.
fn registered(pages: &Pages) -> Option<i32> {
    let mut parameters = [0_u8; 120];
    // SAFETY: the structure has 120 bytes, all zeros are the defaults.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    let ring = i32::try_from(ring).ok().filter(|ring| *ring >= 0)?;
    let buffer = libc::iovec { iov_base: pages.at(0).cast(), iov_len: BYTES };
    // SAFETY: IORING_REGISTER_BUFFERS reads one iovec; the buffer outlives the ring.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, 0, &raw const buffer, 1) };
    (done == 0).then_some(ring)
}

#[test]
fn memory_that_is_registered_for_io_stays() {
    let Some((remapper, _forks)) = remapper() else { return };
    let pair = Pair::new();
    let Some(ring) = registered(&pair.src) else {
        println!("skipped: no io_uring");
        return;
    };
    refused(remapper, &pair);
    let pair_of_destination = Pair::new();
    let Some(other) = registered(&pair_of_destination.dst) else { return };
    assert_eq!(pair_of_destination.plan(remapper), None, "its pages are there");
    // SAFETY: descriptors of this test.
    unsafe {
        libc::close(ring);
        libc::close(other);
    }
}

#[test]
fn what_is_measured_decides_in_the_end() {
    let Some((remapper, _forks)) = remapper() else { return };
    // Long enough to be measured. Where moves lose, no plan is right.
    for round in 0..40 {
        let pair = Pair::new();
        let (dst, src) = (pair.dst.at(0).addr(), pair.src.at(0).addr());
        if let Some(plan) = remapper.plan(dst, src, BYTES, 1, Choice::Measured) {
            // SAFETY: both areas are of this test.
            assert_eq!(unsafe { remapper.run(&plan) }, BYTES);
            assert!(pair.dst.read(0, BYTES) == content(1, BYTES));
            assert!(round > 0, "nothing can have been measured yet");
            return;
        }
    }
    println!("moves lose on this machine, or refusals of other tests put them off");
}
