//! What the tests of this crate share: mappings with holes.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::ptr;

/// Pages, unmapped at the end.
pub struct Pages {
    base: *mut u8,
    bytes: usize,
}

impl Pages {
    /// Private memory.
    pub fn new(bytes: usize) -> Pages {
        Pages::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// A shared mapping of a file.
    pub fn of_file(file: &impl std::os::fd::AsRawFd, bytes: usize) -> Pages {
        Pages::map(bytes, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(bytes: usize, flags: i32, fd: i32) -> Pages {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Pages { base: base.cast(), bytes }
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        self.base.wrapping_add(offset)
    }

    pub fn protect(&self, offset: usize, bytes: usize, protection: i32) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: within this mapping, which no reference points into.
        let result = unsafe { libc::mprotect(self.at(offset).cast(), bytes, protection) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Makes a hole. The kernel may give the place to another mapping of this process: only for
    /// tests that run in one of their own.
    pub fn unmap(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: within this mapping, which no reference points into.
        assert_eq!(unsafe { libc::munmap(self.at(offset).cast(), bytes) }, 0);
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: within this mapping; tests write what they have not protected.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= self.bytes);
        let mut out = vec![0; bytes];
        // SAFETY: within this mapping; tests read what they have not protected.
        unsafe { ptr::copy_nonoverlapping(self.at(offset), out.as_mut_ptr(), bytes) };
        out
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no reference points into it.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
