//! Questions about the memory of this process: about its pages (`PAGEMAP_SCAN`, Linux 6.7), by a look
//! at the page tables that ends at the first page with the answer; and about its mappings
//! (`PROCMAP_QUERY`, Linux 6.11).

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

/// Maximum number of mappings of a range.
const MAPPINGS_MAX: usize = 1024;
const MAPPING_IS_SHARED: u64 = 8;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | 0x66 << 8 | 17;

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    mapping_flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_and_build_id: [u32; 2],
    addresses: [u64; 2],
}

/// Returns true if all of a range is private anonymous memory: no other process can change it.
///
/// # Errors
/// The kernel cannot tell, or some of it is not mapped.
pub(crate) fn is_private(range: &Range<usize>) -> io::Result<bool> {
    let maps = File::open("/proc/self/maps")?;
    let mut at = range.start as u64;
    for _ in 0..MAPPINGS_MAX {
        let size = size_of::<Query>() as u64;
        let mut query = Query { size, address: at, ..Query::default() };
        // SAFETY: the structure is the one of the request, which names no other memory.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if query.inode != 0 || query.mapping_flags & MAPPING_IS_SHARED != 0 {
            return Ok(false);
        }
        if query.end >= range.end as u64 {
            return Ok(true);
        }
        at = query.end;
    }
    Err(io::Error::from(io::ErrorKind::QuotaExceeded))
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
