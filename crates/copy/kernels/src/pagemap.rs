//! Questions about the pages of this process (`PAGEMAP_SCAN`, Linux 6.7): a look at the page tables
//! that ends at the first page with the answer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | 0x66 << 8 | 16;

#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// A region of pages, as the kernel reports it.
#[repr(C)]
#[derive(Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The page tables of the process that opened them.
#[derive(Debug)]
pub(crate) struct Pagemap(File);

impl Pagemap {
    /// # Errors
    /// There is no procfs.
    pub fn open() -> io::Result<Pagemap> {
        File::open("/proc/self/pagemap").map(Pagemap)
    }

    /// Returns true if the kernel knows nothing of any of these pages: they were not touched yet.
    ///
    /// # Errors
    /// The kernel cannot tell.
    pub fn is_untouched(&self, pages: &Range<usize>) -> io::Result<bool> {
        let any_of = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
        self.finds_none(pages, Scan { any_of, returned: any_of, ..Scan::default() })
    }

    /// Returns true if huge pages hold all of it.
    ///
    /// # Errors
    /// The kernel cannot tell.
    pub fn is_huge(&self, pages: &Range<usize>) -> io::Result<bool> {
        let one = PAGE_IS_HUGE;
        let is_not = Scan { inverted: one, all_of: one, returned: one, ..Scan::default() };
        self.finds_none(pages, is_not)
    }

    /// Returns true if no page has the categories.
    fn finds_none(&self, pages: &Range<usize>, wanted: Scan) -> io::Result<bool> {
        let mut region = Region::default();
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: pages.start as u64,
            end: pages.end as u64,
            regions: (&raw mut region).expose_provenance() as u64,
            regions_len: 1,
            pages_max: 1,
            ..wanted
        };
        // SAFETY: the structure is the one of the request; the kernel writes it and one region.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) } {
            -1 => Err(io::Error::last_os_error()),
            found => Ok(found == 0),
        }
    }
}
