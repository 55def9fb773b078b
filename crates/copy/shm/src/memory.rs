//! Memory for lines and bytes: the heap of one process, or a memfd that several processes map.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::futex::Scope;

/// Maximum size of a [`Memory`] or [`Arena`]: 64 GiB. A peer's file may claim any size.
pub const MEMORY_BYTES_MAX: usize = 1 << 36;
/// Alignment of the first byte.
pub const BASE_ALIGN_BYTES: usize = 4096;
/// File system type of memfds of ordinary pages (`linux/magic.h`).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Error in creating or attaching memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The size is invalid, in the caller's request or in a peer's file.
    #[error("{bytes} bytes of memory: must be 1 to {MEMORY_BYTES_MAX}")]
    Size {
        /// The requested size, or the size of the file.
        bytes: u64,
    },
    /// The machine has no memory left.
    #[error("no memory for {bytes} bytes; free some, or ask for fewer slots")]
    Exhausted {
        /// The requested size.
        bytes: usize,
    },
    /// The peer could shrink the file, which would end this process with SIGBUS.
    #[error("the peer's file can still shrink or grow; it must seal it (SHRINK, GROW, SEAL)")]
    Unsealed,
    /// The peer's file is of another kind, which fails in other ways when a page is touched.
    #[error("the peer's file is no memfd of ordinary pages; it must be made by memfd_create")]
    NotMemfd,
    /// A system call failed.
    #[error("{call} failed; see the kernel's error")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> MemoryError {
    move |errno| MemoryError::System { call, source: errno.into() }
}

/// A byte region in a memfd of fixed size, mapped here and perhaps in other processes.
///
/// Other processes may write to it at any time: copy out, check, use. Keep no reference into it
/// except to atomics.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len_bytes: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread. `&Arena` returns only the address
// of the region, no reference into it.
unsafe impl Send for Arena {}
// SAFETY: as above; no method writes.
unsafe impl Sync for Arena {}

impl Arena {
    /// Creates a zeroed region. `name` appears in `/proc/*/maps`.
    ///
    /// # Errors
    /// [`MemoryError::Size`], or the kernel's.
    pub fn create(name: &str, len_bytes: usize) -> Result<Arena, MemoryError> {
        checked(len_bytes as u64)?;
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len_bytes as u64).map_err(system("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, seals()).map_err(system("fcntl(F_ADD_SEALS)"))?;
        Arena::map(fd, len_bytes)
    }

    /// Returns the size of a region that a peer made.
    ///
    /// # Errors
    /// As for [`Arena::attach`].
    pub fn check(fd: BorrowedFd<'_>) -> Result<usize, MemoryError> {
        let held = rustix::fs::fcntl_get_seals(fd).map_err(|_| MemoryError::NotMemfd)?;
        if !held.contains(seals()) {
            return Err(MemoryError::Unsealed);
        }
        // Access to a missing huge page would raise SIGBUS. The types of these numbers differ by
        // platform.
        let kind = rustix::fs::fstatfs(fd).map_err(system("fstatfs"))?.f_type as i64;
        if kind != TMPFS_MAGIC {
            return Err(MemoryError::NotMemfd);
        }
        // Read the size after the check of the seals: it is final now.
        let size = rustix::fs::fstat(fd).map_err(system("fstat"))?.st_size;
        checked(u64::try_from(size).unwrap_or(0))
    }

    /// Maps a region that a peer made. Its size is that of the file, see [`Arena::len_bytes`].
    ///
    /// # Errors
    /// The file is unsuitable: empty, too large, not sealed, or not a memfd. Or a kernel error,
    /// for example if the peer sealed the file against writing.
    pub fn attach(fd: OwnedFd) -> Result<Arena, MemoryError> {
        let len_bytes = Arena::check(fd.as_fd())?;
        Arena::map(fd, len_bytes)
    }

    fn map(fd: OwnedFd, len_bytes: usize) -> Result<Arena, MemoryError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory. The
        // file is as long as the mapping and sealed against shrinking.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len_bytes, protection, MapFlags::SHARED, &fd, 0)
        };
        let base = base.map_err(system("mmap"))?;
        let base = NonNull::new(base.cast()).ok_or(MemoryError::Exhausted { bytes: len_bytes })?;
        Ok(Arena { base, len_bytes, fd })
    }

    /// Returns the size; it is fixed.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the first byte, aligned to [`BASE_ALIGN_BYTES`]. Valid for [`Arena::len_bytes`]
    /// during the lifetime of `self`.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the file, to be sent to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value and has this length. References into it borrow
        // the value, and raw pointers are documented to be valid only during its lifetime.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Seals that fix the size for the other side. The last one forbids further seals, such as one
/// against writing.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

fn checked(bytes: u64) -> Result<usize, MemoryError> {
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| (1..=MEMORY_BYTES_MAX).contains(bytes))
        .ok_or(MemoryError::Size { bytes })
}

/// Zeroed heap memory.
#[derive(Debug)]
struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation does not belong to a thread, and `&Heap` returns no reference into it.
unsafe impl Send for Heap {}
// SAFETY: as above; no method writes.
unsafe impl Sync for Heap {}

impl Heap {
    fn new(len_bytes: usize) -> Result<Heap, MemoryError> {
        let len_bytes = checked(len_bytes as u64)?;
        let exhausted = MemoryError::Exhausted { bytes: len_bytes };
        let Ok(layout) = Layout::from_size_align(len_bytes, BASE_ALIGN_BYTES) else {
            return Err(exhausted);
        };
        // SAFETY: `checked` guarantees that the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(exhausted)?;
        Ok(Heap { base, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `new` allocated this memory with this layout, and it is freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Memory for the lines of a queue.
#[derive(Debug)]
pub struct Memory(Backing);

#[derive(Debug)]
enum Backing {
    Heap(Heap),
    Arena(Arena),
}

impl Memory {
    /// Allocates zeroed heap memory, for a client and a service that are threads of one process.
    ///
    /// # Errors
    /// [`MemoryError::Size`], [`MemoryError::Exhausted`].
    pub fn heap(len_bytes: usize) -> Result<Memory, MemoryError> {
        Ok(Memory(Backing::Heap(Heap::new(len_bytes)?)))
    }

    /// Returns the size; it is fixed.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        match &self.0 {
            Backing::Heap(heap) => heap.layout.size(),
            Backing::Arena(arena) => arena.len_bytes,
        }
    }

    /// Returns the first byte, aligned to [`BASE_ALIGN_BYTES`]. Valid for [`Memory::len_bytes`]
    /// during the lifetime of `self`.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.0 {
            Backing::Heap(heap) => heap.base.as_ptr(),
            Backing::Arena(arena) => arena.as_ptr(),
        }
    }

    /// Returns the file, to be sent to a peer; `None` for heap memory.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Backing::Heap(_) => None,
            Backing::Arena(arena) => Some(arena.fd()),
        }
    }

    /// Returns the threads that can sleep on words of this memory.
    #[inline]
    pub fn scope(&self) -> Scope {
        match &self.0 {
            Backing::Heap(_) => Scope::Private,
            Backing::Arena(_) => Scope::Shared,
        }
    }
}

impl From<Arena> for Memory {
    fn from(arena: Arena) -> Memory {
        Memory(Backing::Arena(arena))
    }
}
