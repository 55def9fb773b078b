//! Address space of a client in another process: shared regions, each a sealed memfd.
//!
//! A place has the region's number in its 16 high bits and an offset in the others, so places of
//! two regions never touch. No place can refer to a byte outside the regions: the offset is
//! checked when a place is made, and again when it is used.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::device::Chunk;
use crate::guard::{Fault, Guard, Kind};
use crate::space::{Address, Reach, Space, hint_for, result};

/// Maximum number of regions of a client: numbers 1 to this.
pub const REGIONS_MAX: u16 = 256;
/// Maximum size of a region: 64 GiB.
pub const REGION_BYTES_MAX: u64 = 1 << 36;
/// Number of offset bits in a place, below the region's number.
const REGION_SHIFT: u32 = 48;
/// File system type of memfds of ordinary pages (`linux/magic.h`).
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Without these seals the client could end this process with SIGBUS, or make it use more memory
/// than declared.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Error in adding a region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The number is 0, too large, or in use.
    #[error("region {0}: give each a number of its own, from 1 to the limit")]
    Number(u16),
    /// The size is invalid.
    #[error("region of {bytes} bytes: there may be 1 to {most_bytes} now")]
    Size {
        /// Size of the file.
        bytes: u64,
        /// Maximum size.
        most_bytes: u64,
    },
    /// The file does not have the declared size.
    #[error("the region's file has {found_bytes} bytes, not {said_bytes}")]
    Length {
        /// Declared size.
        said_bytes: u64,
        /// Size of the file.
        found_bytes: u64,
    },
    /// The file is of another kind.
    #[error("the region's file is no memfd of ordinary pages; make it by memfd_create")]
    NotMemfd,
    /// The file is not sealed.
    #[error("the region's file can still shrink or grow; seal it (SHRINK, GROW)")]
    Unsealed,
    /// A system call failed.
    #[error("{call} on a region failed: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// One mapped region.
#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: a mapping belongs to the process, not to a thread; no reference into it is returned.
unsafe impl Send for Region {}
// SAFETY: as above; only the guarded copy loops access it.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, which has this length; copies in it borrow the
        // value.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
        debug_assert_eq!(unmapped, 0);
    }
}

/// The regions of one client. They are added one by one and unmapped together.
#[derive(Debug)]
pub struct Regions {
    guard: Guard,
    regions: Box<[OnceLock<Region>]>,
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Regions {
    /// Creates an empty set of at most `count_max` regions with at most `bytes_max` bytes in
    /// total.
    pub fn new(guard: Guard, count_max: u16, bytes_max: u64) -> Regions {
        let regions = (0..count_max.min(REGIONS_MAX)).map(|_| OnceLock::new()).collect();
        Regions { guard, regions, bytes: AtomicU64::new(0), bytes_max }
    }

    /// Returns the total size of all regions, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Maps a peer's file as the region with this number. Only one thread may add at a time.
    ///
    /// # Errors
    /// [`RegionError`]; the set is unchanged then.
    pub fn add(&self, number: u16, bytes: u64, file: impl AsFd) -> Result<(), RegionError> {
        let place = number.checked_sub(1).and_then(|at| self.regions.get(usize::from(at)));
        let free = place.filter(|place| place.get().is_none());
        let place = free.ok_or(RegionError::Number(number))?;
        let most_bytes = (self.bytes_max - self.bytes().min(self.bytes_max)).min(REGION_BYTES_MAX);
        if !(1..=most_bytes).contains(&bytes) {
            return Err(RegionError::Size { bytes, most_bytes });
        }
        let region = map(file.as_fd(), bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        place.set(region).map_err(|_| RegionError::Number(number))
    }

    /// Receives up to `len` bytes from a socket to a place, without a wait for the peer. Returns 0 at
    /// the end.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::WouldBlock`] if there is nothing yet, EFAULT for a place
    /// outside the regions.
    pub fn receive_from(&self, socket: BorrowedFd<'_>, dst: u64, len: u64) -> io::Result<u64> {
        let to = self.resolve(dst, len).ok_or(io::Error::from_raw_os_error(libc::EFAULT))?;
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: the kernel writes at most `len` bytes, all in a mapping of this value, to which no
        // reference is returned, and only the client uses the overwritten bytes.
        result(unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, flags, 0, 0) })
    }

    /// Sends up to `len` bytes from a place to a socket, without a wait for the peer.
    ///
    /// # Errors
    /// As for [`Regions::receive_from`].
    pub fn send_to(&self, socket: BorrowedFd<'_>, src: u64, len: u64) -> io::Result<u64> {
        let from = self.resolve(src, len).ok_or(io::Error::from_raw_os_error(libc::EFAULT))?;
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: the kernel reads at most `len` bytes, all in a mapping of this value.
        result(unsafe { libc::syscall(libc::SYS_sendto, fd, from, len, flags, 0, 0) })
    }

    /// Returns the address of a place if `len` bytes from there are within one region.
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

/// Maps a file of `bytes` bytes whose size is sealed.
fn map(file: BorrowedFd<'_>, bytes: u64) -> Result<Region, RegionError> {
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
    // SAFETY: all zeroes is a valid value of the structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable.
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return Err(failed("fstat"));
    }
    // Read the size after the check of the seals: it is final now.
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

/// Returns the type of a file's file system.
fn file_system(fd: i32) -> Result<i64, RegionError> {
    // SAFETY: all zeroes is a valid value of the structure.
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
        // SAFETY: both ranges are within mappings of this value, to which no reference is
        // returned, and only the client uses the overwritten bytes. The guard detects pages that
        // are not available. A service's threads call `unblock` first, so the signals are not
        // blocked.
        unsafe { self.guard.copy_guarded(to, from, len as usize, hint_for(len)) }
    }

    fn reach(self: Arc<Self>) -> Option<Arc<dyn Reach>> {
        Some(self)
    }

    /// The descriptors of another process are not valid here.
    fn has_socket(&self, _fd: i32) -> bool {
        false
    }

    fn address(&self, place: u64, len: u64) -> Option<Address> {
        let address = self.resolve(place, len)?.addr();
        Some(Address { address, is_lasting: true })
    }
}

// SAFETY: both ranges are within mappings that live as long as this value; no reference into them
// is returned, and only the client uses their contents.
unsafe impl Reach for Regions {
    fn chunk(&self, dst: u64, src: u64, len: u64) -> Option<Chunk> {
        let (dst, src) = (self.resolve(dst, len)?, self.resolve(src, len)?);
        Some(Chunk { dst, src, len: usize::try_from(len).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::install;
    use std::os::fd::{FromRawFd, OwnedFd};

    fn memfd(bytes: u64, seals: i32) -> OwnedFd {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; the new descriptor has no other owner.
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
    fn sockets_reach_the_regions_only_and_never_wait() {
        use std::os::fd::AsFd;
        let Some(regions) = regions() else { return };
        regions.add(1, 4096, memfd(4096, SEALS)).unwrap();
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let at = |offset, len| regions.place(1, offset, len).unwrap();
        assert_eq!(regions.send_to(one.as_fd(), at(4000, 96), 96).unwrap(), 96);
        assert_eq!(regions.receive_from(other.as_fd(), at(0, 1000), 1000).unwrap(), 96);
        let empty = regions.receive_from(other.as_fd(), at(0, 1000), 1000).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        let bad = |place, len| {
            let errors = [
                regions.receive_from(other.as_fd(), place, len).unwrap_err(),
                regions.send_to(one.as_fd(), place, len).unwrap_err(),
            ];
            errors.map(|error| error.raw_os_error())
        };
        for (place, len) in [(at(4000, 96), 97), (0, 1), (2 << 48, 1), (u64::MAX, 1)] {
            assert_eq!(bad(place, len), [Some(libc::EFAULT); 2], "{place:#x}");
        }
        drop(one);
        assert_eq!(regions.receive_from(other.as_fd(), at(0, 10), 10).unwrap(), 0);
        assert!(regions.send_to(other.as_fd(), at(0, 10), 10).is_err());
    }

    #[test]
    fn unsuitable_files_are_refused() {
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
        assert!(matches!(regions.add(1, 4096, file), Err(RegionError::NotMemfd)));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(regions.add(1, 4096, null), Err(RegionError::NotMemfd)));
        regions.add(1, 4096, memfd(4096, SEALS)).unwrap();
        let again = regions.add(1, 4096, memfd(4096, SEALS));
        assert!(matches!(again, Err(RegionError::Number(1))));
        assert_eq!(regions.bytes(), 4096);
    }
}
