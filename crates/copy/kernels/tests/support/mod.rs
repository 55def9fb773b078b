//! Mappings with holes, shared by the tests of this crate.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::ptr;

/// Mapped pages, unmapped at the drop.
pub struct Pages {
    base: *mut u8,
    bytes: usize,
}

impl Pages {
    /// Maps private memory.
    pub fn new(bytes: usize) -> Pages {
        Pages::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps a file, shared.
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

    /// Makes a hole. The kernel may reuse its addresses for another mapping of this process, so
    /// only tests in a process of their own may call this.
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
        // SAFETY: this value owns the mapping, and no reference points into it.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
