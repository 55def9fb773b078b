//! Memory of a client in another process: regions that it shares, each a sealed memfd.
//!
//! A place is a region's number in the 16 high bits and an offset in the others, so that the
//! places of two regions never touch. No byte outside the regions can be named: the offset is
//! checked when a place is made, and again when it is used.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::device::Piece;
use crate::guard::{Fault, Guard, Kind};
use crate::space::{Address, Reach, Space, hint_for};

/// Most regions of one client: numbers 1 to this.
pub const REGIONS_MAX: u16 = 256;
/// Most bytes of one region: 64 GiB.
pub const REGION_BYTES_MAX: u64 = 1 << 36;
/// A place is a region's number above so many bits of offset.
const REGION_SHIFT: u32 = 48;
/// File system type of memfds of ordinary pages (`linux/magic.h`).
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Without these the client could end us with SIGBUS, or make us hold more than it said.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Why a region is not taken.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The client's: 0, too large, or in use.
    #[error("region {0}: give each a number of its own, from 1 to the limit")]
    Number(u16),
    /// The client's.
    #[error("region of {bytes} bytes: there may be 1 to {most_bytes} now")]
    Size {
        /// What the file has.
        bytes: u64,
        /// What it may have.
        most_bytes: u64,
    },
    /// The client's: the file is not as long as it said.
    #[error("the region's file has {found_bytes} bytes, not {said_bytes}")]
    Length {
        /// What the client said.
        said_bytes: u64,
        /// What the file has.
        found_bytes: u64,
    },
    /// The client's.
    #[error("the region's file is no memfd of ordinary pages; make it by memfd_create")]
    NotMemfd,
    /// The client's.
    #[error("the region's file can still shrink or grow; seal it (SHRINK, GROW)")]
    Unsealed,
    /// The kernel's.
    #[error("{call} on a region failed: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// One mapped region.
#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: a mapping belongs to the process, not to a thread; no reference into it is given out.
unsafe impl Send for Region {}
// SAFETY: as above; it is read and written by the guarded copy loops only.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, with this length; copies in it borrow the value.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
        debug_assert_eq!(unmapped, 0);
    }
}

/// The regions of one client. They come one by one and go together.
#[derive(Debug)]
pub struct Regions {
    guard: Guard,
    regions: Box<[OnceLock<Region>]>,
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Regions {
    /// No regions yet; at most `count_max`, of `bytes_max` bytes together.
    pub fn new(guard: Guard, count_max: u16, bytes_max: u64) -> Regions {
        let regions = (0..count_max.min(REGIONS_MAX)).map(|_| OnceLock::new()).collect();
        Regions { guard, regions, bytes: AtomicU64::new(0), bytes_max }
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Maps the file of a peer as the region with this number; one thread adds at a time.
    ///
    /// # Errors
    /// [`RegionError`]; nothing has changed then.
    pub fn add(&self, number: u16, bytes: u64, file: OwnedFd) -> Result<(), RegionError> {
        let place = number.checked_sub(1).and_then(|at| self.regions.get(usize::from(at)));
        let free = place.filter(|place| place.get().is_none());
        let place = free.ok_or(RegionError::Number(number))?;
        let most_bytes = (self.bytes_max - self.bytes().min(self.bytes_max)).min(REGION_BYTES_MAX);
        if !(1..=most_bytes).contains(&bytes) {
            return Err(RegionError::Size { bytes, most_bytes });
        }
        let region = map(&file, bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        place.set(region).map_err(|_| RegionError::Number(number))
    }

    /// The address of a place of which `len` bytes are within one region.
    fn resolve(&self, place: u64, len: u64) -> Option<*mut u8> {
        let number = place >> REGION_SHIFT;
        let offset = place & ((1 << REGION_SHIFT) - 1);
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        let region = self.regions.get(at)?.get()?;
        let fits = offset.checked_add(len)? <= region.bytes;
        // SAFETY: the offset is within the mapping, or at its end.
        fits.then(|| unsafe { region.base.as_ptr().add(offset as usize) })
    }
}

/// Maps a file of `bytes` bytes that nobody can make shorter any more.
fn map(file: &OwnedFd, bytes: u64) -> Result<Region, RegionError> {
    let fd = file.as_raw_fd();
    let failed = |call| RegionError::System { call, source: io::Error::last_os_error() };
    // SAFETY: no memory is involved.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || file_system(fd)? != TMPFS_MAGIC {
        return Err(RegionError::NotMemfd);
    }
    if seals & SEALS != SEALS {
        return Err(RegionError::Unsealed);
    }
    // SAFETY: all zeroes is a value of the structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable.
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return Err(failed("fstat"));
    }
    // After the seals were seen: now it is the size for good.
    let found_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if found_bytes != bytes {
        return Err(RegionError::Length { said_bytes: bytes, found_bytes });
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes as usize, protection, libc::MAP_SHARED, fd, 0)
    };
    if base == libc::MAP_FAILED {
        return Err(failed("mmap"));
    }
    let base = NonNull::new(base.cast()).ok_or(RegionError::NotMemfd)?;
    Ok(Region { base, bytes })
}

/// The type of the file system that a file is on.
fn file_system(fd: i32) -> Result<i64, RegionError> {
    // SAFETY: all zeroes is a value of the structure.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable.
    if unsafe { libc::fstatfs(fd, &mut statfs) } != 0 {
        let source = io::Error::last_os_error();
        return Err(RegionError::System { call: "fstatfs", source });
    }
    Ok(statfs.f_type as i64)
}

impl Space for Regions {
    fn place(&self, region: u16, offset: u64, len: u64) -> Option<u64> {
        if offset >> REGION_SHIFT != 0 {
            return None;
        }
        let place = u64::from(region) << REGION_SHIFT | offset;
        self.resolve(place, len).map(|_| place)
    }

    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        let find = |place: u64| {
            let outside =
                || Fault { address: place as usize, kind: Kind::NotMapped, done_bytes_min: 0 };
            self.resolve(place, len).ok_or_else(outside)
        };
        let (to, from) = (find(dst)?, find(src)?);
        // SAFETY: both are within mappings of this value, into which it gives out no reference:
        // what is overwritten is the client's alone. Pages that cannot be had are found by the
        // guard. Signals are not blocked in a service's threads, which call `unblock` first.
        unsafe { self.guard.copy_guarded(to, from, len as usize, hint_for(len)) }
    }

    fn reach(self: Arc<Self>) -> Option<Arc<dyn Reach>> {
        Some(self)
    }

    fn address(&self, place: u64, len: u64) -> Option<Address> {
        let address = self.resolve(place, len)?.addr();
        Some(Address { address, is_lasting: true })
    }
}

// SAFETY: both ranges are within mappings that are as old as this value; no reference into them is
// given out, and what is there is the client's alone.
unsafe impl Reach for Regions {
    fn piece(&self, dst: u64, src: u64, len: u64) -> Option<Piece> {
        let (dst, src) = (self.resolve(dst, len)?, self.resolve(src, len)?);
        Some(Piece { dst, src, len: usize::try_from(len).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::install;
    use std::os::fd::FromRawFd;

    fn memfd(bytes: u64, seals: i32) -> OwnedFd {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; the descriptor that comes back is nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags)) };
        // SAFETY: no memory is involved.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), bytes as i64), 0);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        }
        file
    }

    fn regions() -> Option<Regions> {
        match install() {
            Ok(guard) => Some(Regions::new(guard, 4, 1 << 20)),
            Err(why) => {
                println!("skipped: {why}");
                None
            }
        }
    }

    #[test]
    fn bytes_go_between_regions_and_never_beyond() {
        let Some(regions) = regions() else { return };
        let (first, second) = (memfd(8192, SEALS), memfd(4096, SEALS));
        let file = std::fs::File::from(first.try_clone().unwrap());
        std::os::unix::fs::FileExt::write_all_at(&file, b"hello", 100).unwrap();
        let out = std::fs::File::from(second.try_clone().unwrap());
        regions.add(1, 8192, first).unwrap();
        regions.add(3, 4096, second).unwrap();
        assert_eq!(regions.bytes(), 12_288);
        let (src, dst) = (regions.place(1, 100, 5).unwrap(), regions.place(3, 4091, 5).unwrap());
        regions.copy(dst, src, 5).unwrap();
        let mut found = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&out, &mut found, 4091).unwrap();
        assert_eq!(&found, b"hello");
        for (region, offset, len) in [
            (0, 0, 1),
            (2, 0, 1),
            (4, 0, 1),
            (5, 0, 1),
            (u16::MAX, 0, 1),
            (3, 4092, 5),
            (3, 0, 4097),
            (3, 1 << 48, 1),
            (1, u64::MAX, 1),
            (1, 1, u64::MAX),
        ] {
            assert_eq!(regions.place(region, offset, len), None, "{region} {offset} {len}");
        }
        for place in [0, u64::MAX, 2 << 48, (3 << 48) + 4092, (1 << 48) - 1] {
            assert!(regions.copy(place, src, 5).is_err(), "{place:#x}");
            assert!(regions.copy(dst, place, 5).is_err(), "{place:#x}");
        }
    }

    #[test]
    fn what_cannot_be_relied_on_is_refused() {
        let Some(regions) = regions() else { return };
        let unsealed = regions.add(1, 4096, memfd(4096, libc::F_SEAL_GROW));
        assert!(matches!(unsealed, Err(RegionError::Unsealed)));
        let short = regions.add(1, 4096, memfd(4095, SEALS));
        assert!(matches!(short, Err(RegionError::Length { found_bytes: 4095, .. })));
        let large = regions.add(1, (1 << 20) + 1, memfd((1 << 20) + 1, SEALS));
        assert!(matches!(large, Err(RegionError::Size { .. })));
        assert!(matches!(regions.add(1, 0, memfd(0, SEALS)), Err(RegionError::Size { .. })));
        let read_only = regions.add(1, 4096, memfd(4096, SEALS | libc::F_SEAL_WRITE));
        assert!(matches!(read_only, Err(RegionError::System { call: "mmap", .. })));
        for number in [0, 5, u16::MAX] {
            let outside = regions.add(number, 4096, memfd(4096, SEALS));
            assert!(matches!(outside, Err(RegionError::Number(_))), "{number}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(matches!(regions.add(1, 4096, file.into()), Err(RegionError::NotMemfd)));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(regions.add(1, 4096, null.into()), Err(RegionError::NotMemfd)));
        regions.add(1, 4096, memfd(4096, SEALS)).unwrap();
        let again = regions.add(1, 4096, memfd(4096, SEALS));
        assert!(matches!(again, Err(RegionError::Number(1))));
        assert_eq!(regions.bytes(), 4096);
    }
}
