//! Private anonymous memory of its own, mapped in whole pages.

use std::io;
use std::ops::Range;

use crate::populate::page_bytes;

/// Bytes of a huge page.
pub const HUGE_BYTES: usize = 2 << 20;

/// Mapped memory, unmapped at the drop. Its pages are absent at first.
#[derive(Debug)]
pub struct Area {
    base: usize,
    mapped_bytes: usize,
    pages: Range<usize>,
}

impl Area {
    /// Maps at least `bytes`, in whole pages, from a multiple of [`HUGE_BYTES`] on. No memory is
    /// reserved for them.
    ///
    /// # Errors
    /// There are too many mappings, or no address space is left.
    pub fn new(bytes: usize) -> io::Result<Area> {
        let too_many = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = bytes.checked_next_multiple_of(page_bytes()).ok_or_else(too_many)?;
        let mapped_bytes = bytes.checked_add(HUGE_BYTES).ok_or_else(too_many)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.expose_provenance();
        let start = base.next_multiple_of(HUGE_BYTES);
        Ok(Area { base, mapped_bytes, pages: start..start + bytes })
    }

    /// The addresses.
    pub fn pages(&self) -> Range<usize> {
        self.pages.clone()
    }

    /// Asks for huge pages, as far as the kernel has some.
    pub fn prefer_huge(&self) {
        self.advise(libc::MADV_HUGEPAGE);
    }

    /// Drops the content: the pages are absent again.
    pub(crate) fn clear(&self) {
        self.advise(libc::MADV_DONTNEED);
    }

    /// Leaves the area out of children after fork(2).
    pub(crate) fn keep_from_children(&self) {
        self.advise(libc::MADV_DONTFORK);
    }

    fn advise(&self, advice: libc::c_int) {
        let start = std::ptr::with_exposed_provenance_mut(self.pages.start);
        // SAFETY: this value's own mapping, into which no reference points. A kernel that refuses
        // the advice changes nothing.
        unsafe { libc::madvise(start, self.pages.len(), advice) };
    }

    /// Writes one byte in every 4 KiB, so that the pages are there.
    pub(crate) fn touch(&self) {
        for address in self.pages().step_by(4096) {
            // SAFETY: within this value's own mapping, into which no reference points.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(1) };
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let base = std::ptr::with_exposed_provenance_mut(self.base);
        // SAFETY: this value owns the mapping, and no reference points into it.
        unsafe { libc::munmap(base, self.mapped_bytes) };
    }
}
