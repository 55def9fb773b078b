//! Bad addresses in guarded copies: the copied bytes, the untouched bytes, and the reported error,
//! exact to the byte.

use std::fs::File;
use std::ptr;

use unlade_copy_kernels::guard::{self, Fault, Guard, Kind};
use unlade_copy_kernels::kernel::{self, Kernel};
use unlade_copy_kernels::{Hint, stream};
use unlade_testkit::{Random, seed};

mod support;
use support::Pages;

/// At least the smallest page on most machines, so that protection applies to whole pages.
const PAGE: usize = 64 << 10;
/// Length of the area before a hole, and of the area behind it.
const SIDE: usize = PAGE;

/// Returns the guard, or `None` after printing the reason why there is none.
fn guard() -> Option<Guard> {
    guard::install().map_err(|error| println!("skipped: {error}")).ok()
}

fn kernels() -> impl Iterator<Item = &'static Kernel> {
    let all = kernel::available().iter().chain(stream::available());
    all.filter(|kernel| kernel.is_guarded())
}

/// A copy between two areas, one of which has a hole after `SIDE` bytes.
struct Case<'a> {
    kernel: &'a Kernel,
    bytes: usize,
    /// Number of bytes before the hole.
    good: usize,
    /// Offset of the range in the other area.
    odd: usize,
}

impl Case<'_> {
    fn told(&self) -> String {
        let Case { kernel, bytes, good, odd } = self;
        format!("{}: {bytes} bytes, {good} before the hole, the other at {odd}", kernel.name())
    }

    /// Tests a source with the hole.
    fn read(&self, guard: Guard, source: &Pages, target: &Pages, kind: Kind) {
        let clean = vec![0x55; self.odd + self.bytes + 64];
        target.write(0, &clean);
        let (from, to) = (source.at(SIDE - self.good), target.at(self.odd));
        // SAFETY: the target is memory of this test; the source is the object of the test.
        let result = unsafe { guard.copy_guarded_by(self.kernel, to, from, self.bytes) };
        let fault = Fault { address: source.at(SIDE).addr(), kind, done_bytes_min: self.good };
        assert_eq!(result, Err(fault), "{}", self.told());
        let got = target.read(0, clean.len());
        let copied = source.read(SIDE - self.good, self.good);
        assert!(got[self.odd..][..self.good] == copied, "{}: wrong bytes", self.told());
        assert!(got[..self.odd] == clean[..self.odd], "{}: wrote before", self.told());
        let behind = self.odd + self.good;
        assert!(got[behind..] == clean[behind..], "{}: wrote beyond the hole", self.told());
    }

    /// Tests a target with the hole. The bytes behind the hole must not change.
    fn write(&self, guard: Guard, source: &Pages, target: &Pages, kind: Kind) {
        let clean = vec![0x55; SIDE];
        target.write(0, &clean);
        target.write(SIDE + PAGE, &clean);
        let (from, to) = (source.at(self.odd), target.at(SIDE - self.good));
        // SAFETY: the mapped parts of the target are memory of this test.
        let result = unsafe { guard.copy_guarded_by(self.kernel, to, from, self.bytes) };
        let fault = Fault { address: target.at(SIDE).addr(), kind, done_bytes_min: self.good };
        assert_eq!(result, Err(fault), "{}", self.told());
        let (got, copied) = (target.read(0, SIDE), source.read(self.odd, self.good));
        assert!(got[SIDE - self.good..] == copied, "{}: wrong bytes", self.told());
        let before = SIDE - self.good;
        assert!(got[..before] == clean[..before], "{}: wrote before", self.told());
        assert!(target.read(SIDE + PAGE, SIDE) == clean, "{}: wrote beyond", self.told());
    }
}

/// Returns an area of random bytes without a hole.
fn whole(random: &mut Random) -> Pages {
    let pages = Pages::new(2 * SIDE + PAGE);
    let mut bytes = vec![0; 2 * SIDE + PAGE];
    random.fill(&mut bytes);
    pages.write(0, &bytes);
    pages
}

fn with_hole(random: &mut Random, protection: i32) -> Pages {
    let pages = whole(random);
    pages.protect(SIDE, PAGE, protection);
    pages
}

fn cases(random: &mut Random, mut check: impl FnMut(&Case)) {
    const LENGTHS: [usize; 24] = [
        1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 255, 257, 500, 513, 1100,
        4096, 9001, 40_000,
    ];
    for kernel in kernels() {
        for bytes in LENGTHS {
            for good in [0, 1, bytes / 2, bytes - 1, random.below(bytes), random.below(bytes)] {
                if good < bytes {
                    check(&Case { kernel, bytes, good, odd: random.below(128) });
                }
            }
        }
    }
}

#[test]
fn a_source_that_may_not_be_read() {
    let Some(guard) = guard() else { return };
    let mut random = Random::new(seed());
    let source = with_hole(&mut random, libc::PROT_NONE);
    let target = whole(&mut random);
    cases(&mut random, |case| case.read(guard, &source, &target, Kind::NoPermission));
}

#[test]
fn a_target_that_may_not_be_touched() {
    let Some(guard) = guard() else { return };
    let mut random = Random::new(seed());
    let source = whole(&mut random);
    let target = with_hole(&mut random, libc::PROT_NONE);
    cases(&mut random, |case| case.write(guard, &source, &target, Kind::NoPermission));
}

#[test]
fn a_target_that_may_only_be_read() {
    let Some(guard) = guard() else { return };
    let mut random = Random::new(seed());
    let source = whole(&mut random);
    let target = with_hole(&mut random, libc::PROT_READ);
    let before = target.read(SIDE, PAGE);
    cases(&mut random, |case| case.write(guard, &source, &target, Kind::NoPermission));
    assert!(target.read(SIDE, PAGE) == before);
}

/// Returns memory of a file that ends after `SIDE` bytes.
fn cut_file() -> (File, Pages) {
    let file = tempfile::tempfile().unwrap();
    file.set_len((2 * SIDE + PAGE) as u64).unwrap();
    let pages = Pages::of_file(&file, 2 * SIDE + PAGE);
    pages.write(0, &vec![0x77; 2 * SIDE + PAGE]);
    file.set_len(SIDE as u64).unwrap();
    (file, pages)
}

#[test]
fn a_file_that_ends_before_its_mapping() {
    let Some(guard) = guard() else { return };
    let mut random = Random::new(seed());
    let (_file, cut) = cut_file();
    let whole = whole(&mut random);
    cases(&mut random, |case| case.read(guard, &cut, &whole, Kind::Bus));
    // The bytes behind the end are not accessible, so only those before it are checked.
    cases(&mut random, |case| {
        let (from, to) = (whole.at(case.odd), cut.at(SIDE - case.good));
        // SAFETY: the mapped parts of the target are memory of this test.
        let result = unsafe { guard.copy_guarded_by(case.kernel, to, from, case.bytes) };
        let (address, kind) = (cut.at(SIDE).addr(), Kind::Bus);
        let fault = Fault { address, kind, done_bytes_min: case.good };
        assert_eq!(result, Err(fault), "{}", case.told());
        assert!(cut.read(SIDE - case.good, case.good) == whole.read(case.odd, case.good));
    });
}

#[test]
fn a_large_stream_into_a_hole() {
    let Some(guard) = guard() else { return };
    let mut random = Random::new(seed());
    let bytes = stream::STREAM_BYTES_MIN + PAGE;
    let (source, target) = (Pages::new(2 * bytes), Pages::new(2 * bytes));
    let mut content = vec![0; bytes];
    random.fill(&mut content);
    source.write(0, &content);
    target.protect(bytes - PAGE, PAGE, libc::PROT_NONE);
    // SAFETY: the mapped parts are memory of this test.
    let result = unsafe { guard.copy_guarded(target.at(3), source.at(0), bytes, Hint::Stream) };
    let (address, done_bytes_min) = (target.at(bytes - PAGE).addr(), bytes - PAGE - 3);
    assert_eq!(result, Err(Fault { address, kind: Kind::NoPermission, done_bytes_min }));
    assert!(target.read(3, done_bytes_min) == content[..done_bytes_min]);
    assert!(target.read(bytes, bytes).iter().all(|&byte| byte == 0));
}

#[test]
fn impossible_addresses_are_faults() {
    let Some(guard) = guard() else { return };
    let mut good = vec![0x55_u8; 1 << 17];
    let bad =
        [0, 1, 4095, 1 << 47, 1 << 62, 1 << 63, 0xffff_8000_0000_0000, usize::MAX - (1 << 18)];
    for address in bad {
        for bytes in [1, 2, 5, 9, 30, 100, 600, 5000, 100_000] {
            for kernel in kernels() {
                let buffer = good.as_mut_ptr();
                // SAFETY: one address is a buffer of this test, and the other is unmapped.
                let results = unsafe {
                    let nothing = ptr::without_provenance_mut(address);
                    let reading = guard.copy_guarded_by(kernel, buffer, nothing, bytes);
                    [reading, guard.copy_guarded_by(kernel, nothing, buffer, bytes)]
                };
                let fault = Fault { address, kind: Kind::NotMapped, done_bytes_min: 0 };
                assert_eq!(results, [Err(fault), Err(fault)], "{}, {bytes}", kernel.name());
            }
        }
    }
    assert!(good.iter().all(|&byte| byte == 0x55));
}

#[test]
fn impossible_lengths_are_refused() {
    let Some(guard) = guard() else { return };
    let pages = Pages::new(2 * PAGE);
    for bytes in [usize::MAX, usize::MAX - PAGE, usize::MAX >> 1, usize::MAX >> 2, 1 << 60] {
        for odd in [0, 1] {
            let (low, high) = (pages.at(odd), pages.at(PAGE));
            // SAFETY: all bytes of these ranges that could be written before the refusal belong to
            // this test: the source is a page without permission.
            let refused = unsafe {
                pages.protect(0, PAGE, libc::PROT_NONE);
                let refused = guard.copy_guarded(high, low, bytes, Hint::Reuse);
                pages.protect(0, PAGE, libc::PROT_READ | libc::PROT_WRITE);
                refused
            };
            assert_eq!(refused.unwrap_err().done_bytes_min, 0);
        }
    }
    let (from, to) = (pages.at(0), ptr::without_provenance_mut(usize::MAX - 10));
    // SAFETY: nothing is mapped at the end of the address space.
    let fault = unsafe { guard.copy_guarded(to, from, 100, Hint::Reuse) }.unwrap_err();
    assert_eq!((fault.address, fault.kind), (usize::MAX, Kind::NotMapped));
    // SAFETY: nothing is copied, for any address.
    let nothing = unsafe { guard.copy_guarded(to, to, 0, Hint::Reuse) };
    assert_eq!(nothing, Ok(()));
}

#[test]
fn good_copies_are_what_they_are_without_a_guard() {
    let Some(guard) = guard() else { return };
    let mut random = Random::new(seed());
    let (source, target) = (whole(&mut random), whole(&mut random));
    for _ in 0..2000 {
        let bytes = random.below(2 * SIDE);
        let (from, to) = (random.below(PAGE), random.below(PAGE));
        // SAFETY: memory of this test, two separate areas.
        let done =
            unsafe { guard.copy_guarded(target.at(to), source.at(from), bytes, Hint::Reuse) };
        assert_eq!(done, Ok(()));
        assert!(target.read(to, bytes) == source.read(from, bytes), "{bytes}: {from} to {to}");
    }
}

#[test]
fn many_threads_fault_at_once() {
    let Some(guard) = guard() else { return };
    let thread = || {
        let mut random = Random::new(seed());
        let source = with_hole(&mut random, libc::PROT_NONE);
        let target = with_hole(&mut random, libc::PROT_NONE);
        let good = whole(&mut random);
        for _ in 0..300 {
            let kernel = kernels().nth(random.below(kernels().count())).unwrap();
            let bytes = 1 + random.below(40_000);
            let case = Case { kernel, bytes, good: random.below(bytes), odd: random.below(128) };
            case.read(guard, &source, &good, Kind::NoPermission);
            case.write(guard, &good, &target, Kind::NoPermission);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(thread)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_loop_that_cannot_be_guarded_is_refused() {
    let Some(guard) = guard() else { return };
    let libc = kernel::available().iter().find(|kernel| !kernel.is_guarded()).unwrap();
    let (mut to, from) = ([0; 4], [1; 4]);
    let refused = std::panic::catch_unwind(move || {
        // SAFETY: two arrays of 4 bytes.
        let _ = unsafe { guard.copy_guarded_by(libc, to.as_mut_ptr(), from.as_ptr(), 4) };
    });
    assert!(refused.is_err());
}
