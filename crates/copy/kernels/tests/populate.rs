//! Ranges against the kernel, and the table against a list of pages.

use std::collections::BTreeSet;

use unlade_copy_kernels::populate::{Invalid, RANGES_MAX, Ranges, Validity};
use unlade_testkit::{Random, seed};

mod support;
use support::Pages;

const PAGE: usize = 64 << 10;

/// Returns ranges, or `None` if this kernel does not support the check (before Linux 5.14).
fn ranges() -> Option<Ranges> {
    let (mut ranges, page) = (Ranges::new(), Pages::new(PAGE));
    match ranges.validate(page.at(0).addr(), 1, true).unwrap() {
        Validity::Mapped => Some(Ranges::new()),
        Validity::Unknown => {
            println!("skipped: this kernel has no MADV_POPULATE_WRITE");
            None
        }
    }
}

/// Returns the number of resident pages in an area, for the smallest page size.
fn resident(pages: &Pages, bytes: usize) -> usize {
    let mut there = vec![0_u8; bytes / 4096];
    // SAFETY: `there` has at least one byte for each page.
    assert_eq!(unsafe { libc::mincore(pages.at(0).cast(), bytes, there.as_mut_ptr()) }, 0);
    there.iter().filter(|&&page| page & 1 == 1).count()
}

#[test]
fn a_range_is_mapped_once_and_known_afterwards() {
    let Some(mut ranges) = ranges() else { return };
    let pages = Pages::new(8 * PAGE);
    assert_eq!(resident(&pages, 8 * PAGE), 0);
    let address = pages.at(PAGE).addr();
    assert!(!ranges.knows(address, 10, true));
    assert_eq!(ranges.validate(address, 2 * PAGE, true).unwrap(), Validity::Mapped);
    assert!(resident(&pages, 8 * PAGE) > 0);
    assert_eq!(pages.read(PAGE, 2 * PAGE), vec![0; 2 * PAGE]);
    assert_eq!(ranges.validate(address + 100, PAGE, true).unwrap(), Validity::Mapped);
    assert_eq!(ranges.validate(address + 100, PAGE, false).unwrap(), Validity::Mapped);
    let counts = ranges.counts();
    assert_eq!((counts.hits, counts.misses, counts.evictions), (2, 1, 0));
    ranges.forget(address + PAGE, 1);
    assert!(ranges.knows(address, PAGE, true) && !ranges.knows(address, PAGE + 1, true));
}

#[test]
fn readable_and_writable_ranges_are_separate() {
    let Some(mut ranges) = ranges() else { return };
    let pages = Pages::new(PAGE);
    let address = pages.at(0).addr();
    ranges.validate(address, PAGE, false).unwrap();
    assert!(ranges.knows(address, PAGE, false) && !ranges.knows(address, PAGE, true));
    pages.protect(0, PAGE, libc::PROT_READ);
    let refused = ranges.validate(address, PAGE, true);
    assert!(matches!(refused, Err(Invalid::NoPermission { .. })), "{refused:?}");
    pages.protect(0, PAGE, libc::PROT_NONE);
    ranges.forget(address, PAGE);
    let refused = ranges.validate(address, PAGE, false);
    assert!(matches!(refused, Err(Invalid::NoPermission { .. })), "{refused:?}");
}

#[test]
fn an_unmapped_range_is_an_error_with_its_reason() {
    let Some(mut ranges) = ranges() else { return };
    for address in [0, 4096, 1 << 47, 1 << 62, 1 << 63] {
        for write in [false, true] {
            let refused = ranges.validate(address, 100, write);
            assert!(matches!(refused, Err(Invalid::NotMapped { .. })), "{address:#x} {refused:?}");
        }
    }
    for (address, bytes) in [(usize::MAX, 1), (1, usize::MAX), (usize::MAX - 10, 100)] {
        let refused = ranges.validate(address, bytes, false);
        assert!(matches!(refused, Err(Invalid::Wraps { .. })), "{refused:?}");
    }
    assert_eq!(ranges.validate(usize::MAX, 0, true).unwrap(), Validity::Mapped);

    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE as u64).unwrap();
    let pages = Pages::of_file(&file, 2 * PAGE);
    assert_eq!(ranges.validate(pages.at(0).addr(), PAGE, true).unwrap(), Validity::Mapped);
    let refused = ranges.validate(pages.at(0).addr(), 2 * PAGE, true);
    assert!(matches!(refused, Err(Invalid::Bus { .. })), "{refused:?}");
    assert!(!ranges.knows(pages.at(PAGE).addr(), 1, false), "errors are not remembered");
}

#[test]
fn the_table_is_bounded() {
    let Some(mut ranges) = ranges() else { return };
    let pages = Pages::new(4 * RANGES_MAX * PAGE);
    for at in 0..2 * RANGES_MAX {
        ranges.validate(pages.at(2 * at * PAGE).addr(), 1, false).unwrap();
    }
    let known = |at: &usize| ranges.knows(pages.at(2 * at * PAGE).addr(), 1, false);
    let kept: Vec<usize> = (0..2 * RANGES_MAX).filter(known).collect();
    assert_eq!(kept, (RANGES_MAX..2 * RANGES_MAX).collect::<Vec<_>>());
    assert_eq!(ranges.counts().evictions, RANGES_MAX as u64);
}

#[test]
fn random_ranges_are_known_as_a_list_of_pages_knows_them() {
    // The number of pages is so small that the table cannot be full and evicts nothing.
    const PAGES: usize = 2 * RANGES_MAX - 1;
    let Some(mut ranges) = ranges() else { return };
    let mut random = Random::new(seed());
    let pages = Pages::new(PAGES * PAGE);
    let mut known = [BTreeSet::new(), BTreeSet::new()];
    for _ in 0..3000 {
        let from = random.below(PAGES * PAGE);
        let bytes = 1 + random.below((PAGES * PAGE - from).min(6 * PAGE));
        let touched = from / PAGE..=(from + bytes - 1) / PAGE;
        let (address, write) = (pages.at(from).addr(), random.below(2) == 1);
        match random.below(4) {
            0 => {
                ranges.forget(
                    pages.at(touched.start() * PAGE).addr(),
                    touched.clone().count() * PAGE,
                );
                known.iter_mut().for_each(|set| set.retain(|page| !touched.contains(page)));
            }
            1 => {
                // Whole pages of this test, each of which may be several of the kernel's.
                let start = pages.at(touched.start() * PAGE).addr();
                ranges.validate(start, touched.clone().count() * PAGE, write).unwrap();
                let held = |set: &BTreeSet<usize>| touched.clone().all(|page| set.contains(&page));
                if !held(&known[1]) {
                    known[usize::from(write)].extend(touched);
                }
            }
            _ => {
                let held = |set: &BTreeSet<usize>| touched.clone().all(|page| set.contains(&page));
                let wanted = held(&known[1]) || (!write && held(&known[0]));
                assert_eq!(ranges.knows(address, bytes, write), wanted, "{touched:?} {write}");
            }
        }
    }
    assert_eq!(ranges.counts().evictions, 0);
}
