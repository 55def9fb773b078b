//! Table of address ranges that are known to be mapped.
//!
//! A copy that touches a page for the first time causes a fault in the kernel, 4 KiB at a time. So
//! when a range is first seen, the kernel maps all of it at once (`MADV_POPULATE_READ` and
//! `_WRITE`, Linux 5.14), and reports errors before anything is copied. The table remembers the
//! results, so the next copy from or to the same buffer needs no system call. The paper's cache of
//! translations (Copier, SOSP 2025, §4.3) has the same hits, and also translates, which only
//! hardware without an IOMMU would need.
//!
//! A remembered range may be unmapped later without notice. A caller that detects this calls
//! [`Ranges::forget`]; the guard catches the other cases. A wrong entry never makes memory unsafe.

use std::io;
use std::num::NonZero;

use once_cell::race::{OnceBool, OnceNonZeroUsize};

/// Maximum number of ranges of each kind, readable and writable. The least recently used one is
/// evicted.
pub const RANGES_MAX: usize = 64;
/// Maximum number of attempts of an interrupted system call.
const ATTEMPTS_MAX: usize = 4;

/// Result of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// All of the range was mapped at the time of the check.
    Mapped,
    /// This kernel does not support the check; only the guard detects bad addresses.
    Unknown,
}

/// A range cannot be used: the fault of the party that gave it.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The range wraps around the end of the address space.
    #[error("{bytes} bytes from {address:#x} go around the end of the address space")]
    Wraps {
        /// First address.
        address: usize,
        /// Length in bytes.
        bytes: usize,
    },
    /// Some of it is not mapped, or there is no memory left for it (ENOMEM).
    #[error(
        "{bytes} bytes from {address:#x} are not all mapped, or memory is short; name mapped \
         memory"
    )]
    NotMapped {
        /// First address.
        address: usize,
        /// Length in bytes.
        bytes: usize,
    },
    /// Some of it may not be read or written in this way, or is device memory (EINVAL).
    #[error("{bytes} bytes from {address:#x} may not be used like this; see its protection")]
    NoPermission {
        /// First address.
        address: usize,
        /// Length in bytes.
        bytes: usize,
    },
    /// Some of it has no memory behind it: a file that ends before, or broken memory (EFAULT,
    /// EHWPOISON).
    #[error("{bytes} bytes from {address:#x} have no memory behind them; was the file cut?")]
    Bus {
        /// First address.
        address: usize,
        /// Length in bytes.
        bytes: usize,
    },
}

/// Statistics of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of lookups of known ranges.
    pub hits: u64,
    /// Number of lookups that needed a system call.
    pub misses: u64,
    /// Number of evicted ranges.
    pub evictions: u64,
}

/// The known ranges.
#[derive(Debug, Default)]
pub struct Ranges {
    readable: Table,
    writable: Table,
    counts: Counts,
}

impl Ranges {
    /// Creates an empty table.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// Ensures that a range can be read, or written if `write`, in whole pages.
    ///
    /// # Errors
    /// [`Invalid`]
    pub fn validate(
        &mut self,
        address: usize,
        bytes: usize,
        write: bool,
    ) -> Result<Validity, Invalid> {
        if bytes == 0 {
            return Ok(Validity::Mapped);
        }
        let (from, to) = pages(address, bytes).ok_or(Invalid::Wraps { address, bytes })?;
        if self.writable.holds(from, to) || (!write && self.readable.holds(from, to)) {
            self.counts.hits += 1;
            return Ok(Validity::Mapped);
        }
        self.counts.misses += 1;
        let validity = populate(from, to, write).map_err(|refused| match refused {
            Refusal::NotMapped => Invalid::NotMapped { address, bytes },
            Refusal::NoPermission => Invalid::NoPermission { address, bytes },
            Refusal::Bus => Invalid::Bus { address, bytes },
        })?;
        if validity == Validity::Mapped {
            let table = if write { &mut self.writable } else { &mut self.readable };
            self.counts.evictions += u64::from(table.insert(from, to));
        }
        Ok(validity)
    }

    /// Returns true if a range is known, without a system call and without counting.
    pub fn knows(&self, address: usize, bytes: usize, write: bool) -> bool {
        let held = |table: &Table, (from, to)| table.find(from, to).is_some();
        bytes == 0
            || pages(address, bytes).is_some_and(|range| {
                held(&self.writable, range) || (!write && held(&self.readable, range))
            })
    }

    /// Forgets the pages of a range, because their mapping has changed.
    pub fn forget(&mut self, address: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let (from, to) =
            pages(address, bytes).unwrap_or((address & !(page_bytes() - 1), usize::MAX));
        self.counts.evictions += u64::from(self.readable.remove(from, to));
        self.counts.evictions += u64::from(self.writable.remove(from, to));
    }

    /// Returns the statistics.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// A range of pages, and the time of its last use.
#[derive(Clone, Copy, Debug)]
struct Entry {
    from: usize,
    to: usize,
    used: u64,
}

/// Ranges that neither overlap nor touch, by address.
#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    /// Index of the last hit, which is likely to be the next one.
    last: usize,
    clock: u64,
}

impl Table {
    fn find(&self, from: usize, to: usize) -> Option<usize> {
        let within = |entry: &Entry| entry.from <= from && to <= entry.to;
        if self.entries.get(self.last).is_some_and(within) {
            return Some(self.last);
        }
        let behind = self.entries.partition_point(|entry| entry.from <= from);
        let at = behind.checked_sub(1)?;
        within(&self.entries[at]).then_some(at)
    }

    /// Returns true if all of a range is in the table, and then marks it as used.
    fn holds(&mut self, from: usize, to: usize) -> bool {
        let Some(at) = self.find(from, to) else { return false };
        self.last = at;
        self.clock += 1;
        self.entries[at].used = self.clock;
        true
    }

    /// Adds a range and joins it with ranges that it overlaps or touches; returns true if another
    /// was evicted.
    fn insert(&mut self, from: usize, to: usize) -> bool {
        self.clock += 1;
        let first = self.entries.partition_point(|entry| entry.to < from);
        let behind = self.entries.partition_point(|entry| entry.from <= to);
        let joined = self.entries.drain(first..behind);
        let (from, to) =
            joined.fold((from, to), |(from, to), entry| (from.min(entry.from), to.max(entry.to)));
        self.entries.insert(first, Entry { from, to, used: self.clock });
        self.last = first;
        self.evict()
    }

    /// Removes a range; returns true if another was evicted, which is possible if one is split in
    /// two.
    fn remove(&mut self, from: usize, to: usize) -> bool {
        let first = self.entries.partition_point(|entry| entry.to <= from);
        let behind = self.entries.partition_point(|entry| entry.from < to);
        if first >= behind {
            return false;
        }
        let (lower, upper) = (self.entries[first], self.entries[behind - 1]);
        let rest = [Entry { to: from, ..lower }, Entry { from: to, ..upper }];
        let rest = rest.into_iter().filter(|entry| entry.from < entry.to);
        self.entries.splice(first..behind, rest);
        self.evict()
    }

    /// Evicts the least recently used range if there are too many.
    fn evict(&mut self) -> bool {
        if self.entries.len() <= RANGES_MAX {
            return false;
        }
        let oldest = (0..self.entries.len()).min_by_key(|&at| self.entries[at].used);
        if let Some(at) = oldest {
            self.entries.remove(at);
        }
        true
    }
}

/// Returns the whole pages that contain a range; `None` if it wraps around the end of the address
/// space.
fn pages(address: usize, bytes: usize) -> Option<(usize, usize)> {
    let mask = page_bytes() - 1;
    let to = address.checked_add(bytes)?.checked_add(mask)? & !mask;
    Some((address & !mask, to))
}

pub(crate) fn page_bytes() -> usize {
    const USUAL: NonZero<usize> = NonZero::new(4096).unwrap();
    // Values of the process are found without waiting: a child after fork(2) would wait for ever
    // for a parent's thread in a `OnceLock`.
    static PAGE_BYTES: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let found = PAGE_BYTES.get_or_init(|| {
        // SAFETY: sysconf has no preconditions.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let bytes = usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two());
        bytes.and_then(NonZero::new).unwrap_or(USUAL)
    });
    found.get()
}

/// Returns true if the page of an address is resident, by one look at the page tables. True if the
/// kernel cannot tell.
pub fn is_resident(address: usize) -> bool {
    let page = address & !(page_bytes() - 1);
    let mut is_there = 1_u8;
    // SAFETY: the kernel writes one byte, for one page; unmapped addresses are an error.
    let result = unsafe {
        libc::mincore(std::ptr::without_provenance_mut(page), page_bytes(), &raw mut is_there)
    };
    let is_unmapped = || io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM);
    if result == 0 { is_there & 1 != 0 } else { !is_unmapped() }
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NotMapped,
    NoPermission,
    Bus,
}

/// Makes the kernel map pages.
fn populate(from: usize, to: usize, write: bool) -> Result<Validity, Refusal> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    for _ in 0..ATTEMPTS_MAX {
        match advise(from, to - from, advice) {
            Ok(()) => return Ok(Validity::Mapped),
            Err(libc::EINTR | libc::EAGAIN) => {}
            Err(libc::ENOMEM) => return Err(Refusal::NotMapped),
            Err(libc::EFAULT | libc::EHWPOISON) => return Err(Refusal::Bus),
            Err(libc::EINVAL) if is_supported() => return Err(Refusal::NoPermission),
            Err(_) => return Ok(Validity::Unknown),
        }
    }
    Ok(Validity::Unknown)
}

/// Returns true if this kernel supports the advice; the error for unknown advice is EINVAL too.
fn is_supported() -> bool {
    static SUPPORTED: OnceBool = OnceBool::new();
    SUPPORTED.get_or_init(|| {
        // The page of a constant is certainly mapped and readable.
        let page = (&raw const RANGES_BYTE).addr() & !(page_bytes() - 1);
        advise(page, page_bytes(), libc::MADV_POPULATE_READ).is_ok()
    })
}

static RANGES_BYTE: u8 = 0;

fn advise(address: usize, bytes: usize, advice: i32) -> Result<(), i32> {
    let address = std::ptr::without_provenance_mut(address);
    // SAFETY: populating only maps memory that already has contents; it changes no visible byte,
    // and unmapped addresses are an error.
    match unsafe { libc::madvise(address, bytes, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ranges: &[(usize, usize)]) -> Table {
        let mut table = Table::default();
        for &(from, to) in ranges {
            table.insert(from, to);
        }
        table
    }

    fn content(table: &Table) -> Vec<(usize, usize)> {
        table.entries.iter().map(|entry| (entry.from, entry.to)).collect()
    }

    #[test]
    fn neighbours_are_joined_and_cut() {
        let mut joined = table(&[(10, 20), (30, 40), (50, 60), (20, 30)]);
        assert_eq!(content(&joined), [(10, 40), (50, 60)]);
        assert!(joined.holds(10, 40) && !joined.holds(39, 41) && !joined.holds(45, 46));
        joined.remove(20, 55);
        assert_eq!(content(&joined), [(10, 20), (55, 60)]);
        joined.remove(12, 14);
        assert_eq!(content(&joined), [(10, 12), (14, 20), (55, 60)]);
        joined.remove(0, usize::MAX);
        assert_eq!(content(&joined), []);
        assert_eq!(content(&table(&[(10, 20), (5, 50)])), [(5, 50)]);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let ranges: Vec<_> = (0..RANGES_MAX).map(|at| (at * 10, at * 10 + 5)).collect();
        let mut full = table(&ranges);
        assert!(full.holds(0, 5));
        assert!(full.insert(10_000, 10_005));
        assert!(full.holds(0, 5) && !full.holds(10, 15) && full.holds(10_000, 10_005));
        assert!(full.remove(10_001, 10_002), "cutting one makes one too many");
        assert_eq!(full.entries.len(), RANGES_MAX);
    }

    #[test]
    fn a_page_is_there_once_it_was_touched() {
        let bytes = 4 * page_bytes();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        assert!(!is_resident(base.addr()));
        let mut ranges = Ranges::new();
        ranges.validate(base.addr(), bytes, true).unwrap();
        assert!(is_resident(base.addr()) && is_resident(base.addr() + bytes - 1));
        // SAFETY: the mapping belongs to this test.
        assert_eq!(unsafe { libc::munmap(base, bytes) }, 0);
        assert!(!is_resident(base.addr()));
    }

    #[test]
    fn pages_are_whole_and_do_not_wrap() {
        let page = page_bytes();
        assert_eq!(pages(page + 1, 1), Some((page, 2 * page)));
        assert_eq!(pages(page, page), Some((page, 2 * page)));
        assert_eq!(pages(page - 1, 2), Some((0, 2 * page)));
        assert_eq!(pages(usize::MAX, 1), None);
        assert_eq!(pages(1, usize::MAX), None);
    }
}
