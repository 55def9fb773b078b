//! Mapped memory that tests access by address only.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::ops::Range;
use std::ptr;

pub const PAGE: usize = 4096;
pub const HUGE: usize = 2 << 20;

/// Private memory from a multiple of 2 MiB on, unmapped at the drop.
pub struct Arena {
    mapped: *mut u8,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: an owned mapping; accesses are the tests' responsibility.
unsafe impl Sync for Arena {}
// SAFETY: as above.
unsafe impl Send for Arena {}

impl Arena {
    pub fn new(bytes: usize) -> Arena {
        let mapped =
            map(ptr::null_mut(), bytes + HUGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        let base = mapped.wrapping_add(mapped.align_offset(HUGE));
        Arena { mapped, base, bytes }
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        self.base.wrapping_add(offset)
    }

    /// Replaces pages by a new mapping.
    pub fn replace(&self, pages: Range<usize>, flags: i32, fd: i32) {
        map(self.at(pages.start), pages.len(), flags | libc::MAP_FIXED, fd);
    }

    pub fn advise(&self, pages: Range<usize>, advice: i32) {
        assert!(pages.end <= self.bytes);
        // SAFETY: within this mapping, into which no reference points.
        let result = unsafe { libc::madvise(self.at(pages.start).cast(), pages.len(), advice) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    pub fn protect(&self, pages: Range<usize>, protection: i32) {
        assert!(pages.end <= self.bytes);
        // SAFETY: within this mapping, into which no reference points.
        let result =
            unsafe { libc::mprotect(self.at(pages.start).cast(), pages.len(), protection) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Locks pages, if that is permitted.
    pub fn lock(&self, pages: Range<usize>) {
        // SAFETY: within this mapping.
        if unsafe { libc::mlock(self.at(pages.start).cast(), pages.len()) } != 0 {
            println!("no locked memory: {}", std::io::Error::last_os_error());
        }
    }

    pub fn fill(&self, range: Range<usize>, byte: u8) {
        assert!(range.end <= self.bytes);
        // SAFETY: within this mapping; the tests write only where no copy is pending.
        unsafe { self.at(range.start).write_bytes(byte, range.len()) };
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.bytes);
        let mut out = vec![0; range.len()];
        // SAFETY: within this mapping; the tests read only what is synced.
        unsafe { ptr::copy_nonoverlapping(self.at(range.start), out.as_mut_ptr(), out.len()) };
        out
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference points into it.
        unsafe { libc::munmap(self.mapped.cast(), self.bytes + HUGE) };
    }
}

fn map(address: *mut u8, bytes: usize, flags: i32, fd: i32) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, or a replacement within an arena, into which no reference points.
    let mapped = unsafe { libc::mmap(address.cast(), bytes, protection, flags, fd, 0) };
    assert_ne!(mapped, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    mapped.cast()
}
