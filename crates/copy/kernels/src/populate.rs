//! Ranges of addresses that are known to be there.
//!
//! A copy that meets a page for the first time takes a fault in the kernel, 4 KiB at a time. So on
//! first sight of a range the kernel maps all of it at once (`MADV_POPULATE_READ` and `_WRITE`,
//! Linux 5.14), and says what is wrong with it before anything is copied. What was found is
//! remembered: the next copy from or to the same buffer asks a small table. The paper's cache of
//! translations (Copier, SOSP 2025, §4.3) has the same hits, and translates as well, which only
//! hardware without an IOMMU would need.
//!
//! A remembered range may be unmapped later without anybody telling: who learns of it calls
//! [`Ranges::forget`], and the guard catches what nobody learned of. Memory is never unsafe for
//! this table's being wrong.

use std::io;
use std::sync::OnceLock;

/// The most ranges that are remembered of each kind, readable and writable. The least recently
/// used one goes.
pub const RANGES_MAX: usize = 64;
/// How often the kernel is asked again if it was interrupted.
const ATTEMPTS_MAX: usize = 4;

/// Whether a range is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// All of it is mapped, at least a moment ago.
    Mapped,
    /// This kernel cannot tell: only the guard can.
    Unknown,
}

/// A range cannot be used: the fault of whoever named it.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The range goes around the end of the address space.
    #[error("{bytes} bytes from {address:#x} go around the end of the address space")]
    Wraps {
        /// Where it begins.
        address: usize,
        /// How long it is.
        bytes: usize,
    },
    /// Nothing is mapped in some of it, or there is no memory left for it (ENOMEM).
    #[error(
        "{bytes} bytes from {address:#x} are not all mapped, or memory is short; name mapped \
         memory"
    )]
    NotMapped {
        /// Where it begins.
        address: usize,
        /// How long it is.
        bytes: usize,
    },
    /// Some of it may not be read or written like this, or is no ordinary memory but a device's
    /// (EINVAL).
    #[error("{bytes} bytes from {address:#x} may not be used like this; see its protection")]
    NoPermission {
        /// Where it begins.
        address: usize,
        /// How long it is.
        bytes: usize,
    },
    /// Some of it has no memory behind it: a file that ends before, or broken memory (EFAULT,
    /// EHWPOISON).
    #[error("{bytes} bytes from {address:#x} have no memory behind them; was the file cut?")]
    Bus {
        /// Where it begins.
        address: usize,
        /// How long it is.
        bytes: usize,
    },
}

/// How often the table helped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The range was known.
    pub hits: u64,
    /// The kernel was asked.
    pub misses: u64,
    /// A range was forgotten because the table was full.
    pub evictions: u64,
}

/// The ranges that are known.
#[derive(Debug, Default)]
pub struct Ranges {
    readable: Table,
    writable: Table,
    counts: Counts,
}

impl Ranges {
    /// None is known.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// Makes sure that a range can be read, or written if `write`, in whole pages.
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

    /// Whether a range is known, without asking the kernel or counting.
    pub fn knows(&self, address: usize, bytes: usize, write: bool) -> bool {
        let held = |table: &Table, (from, to)| table.find(from, to).is_some();
        bytes == 0
            || pages(address, bytes).is_some_and(|range| {
                held(&self.writable, range) || (!write && held(&self.readable, range))
            })
    }

    /// Forgets what is known of the pages of a range, because its mapping has changed.
    pub fn forget(&mut self, address: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let (from, to) =
            pages(address, bytes).unwrap_or((address & !(page_bytes() - 1), usize::MAX));
        self.counts.evictions += u64::from(self.readable.remove(from, to));
        self.counts.evictions += u64::from(self.writable.remove(from, to));
    }

    /// How often the table helped.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// A range of pages, and when it was used.
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
    /// Where the last hit was: the next one is mostly there too.
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

    /// Whether all of a range is in the table; then it counts as used.
    fn holds(&mut self, from: usize, to: usize) -> bool {
        let Some(at) = self.find(from, to) else { return false };
        self.last = at;
        self.clock += 1;
        self.entries[at].used = self.clock;
        true
    }

    /// Adds a range, joined with what it overlaps or touches; whether another had to go.
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

    /// Removes a range; whether another had to go, which happens where one is cut into two.
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

    /// Removes the least recently used range if there are too many.
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

/// The whole pages that hold a range; nothing if it goes around the end of the address space.
fn pages(address: usize, bytes: usize) -> Option<(usize, usize)> {
    let mask = page_bytes() - 1;
    let to = address.checked_add(bytes)?.checked_add(mask)? & !mask;
    Some((address & !mask, to))
}

fn page_bytes() -> usize {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    *PAGE_BYTES.get_or_init(|| {
        // SAFETY: sysconf has no preconditions.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
    })
}

/// Whether the page of an address is there now: one look at the page tables. True where the kernel
/// does not tell.
pub fn is_resident(address: usize) -> bool {
    let page = address & !(page_bytes() - 1);
    let mut is_there = 1_u8;
    // SAFETY: the kernel writes one byte, for one page; addresses that are not mapped are an error.
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

/// Has the kernel map pages.
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

/// Whether this kernel knows the advice at all: it says EINVAL to unknown ones too.
fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        // A page that is certainly there and readable: that of a constant.
        let page = (&raw const RANGES_BYTE).addr() & !(page_bytes() - 1);
        advise(page, page_bytes(), libc::MADV_POPULATE_READ).is_ok()
    })
}

static RANGES_BYTE: u8 = 0;

fn advise(address: usize, bytes: usize, advice: i32) -> Result<(), i32> {
    let address = std::ptr::without_provenance_mut(address);
    // SAFETY: populating maps what is backed already; it changes no byte that anyone can read, and
    // addresses that are not there are an error.
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
        // SAFETY: the mapping is this test's.
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
