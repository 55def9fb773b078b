//! Private memory in whole pages: for snapshots, and for copies that move pages.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use unlade_copy_kernels::area::Area;

/// Memory of zeros in whole pages, from a multiple of 2 MiB on. No page is there before it is
/// touched.
///
/// ```
/// let mut memory = unlade_copy::PageMemory::new(100_000)?;
/// memory[99_999] = 1;
/// assert_eq!((memory.len(), memory[0]), (100_000, 0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct PageMemory {
    /// Snapshots keep the source mapped.
    pub(crate) area: Arc<Area>,
    len: usize,
}

impl PageMemory {
    /// Maps at least `len` bytes.
    ///
    /// # Errors
    /// There is no address space left, or there are too many mappings.
    pub fn new(len: usize) -> io::Result<PageMemory> {
        Ok(PageMemory { area: Arc::new(Area::new(len)?), len })
    }

    /// As [`PageMemory::new`], in huge pages as far as the kernel has some.
    ///
    /// # Errors
    /// As there.
    pub fn huge(len: usize) -> io::Result<PageMemory> {
        let memory = PageMemory::new(len)?;
        memory.area.prefer_huge();
        Ok(memory)
    }
}

impl Deref for PageMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = std::ptr::with_exposed_provenance(self.area.pages().start);
        // SAFETY: mapped, readable memory of this value, zeros at first. A snapshot only reads it.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl DerefMut for PageMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = std::ptr::with_exposed_provenance_mut(self.area.pages().start);
        // SAFETY: mapped, writable memory of this value. A snapshot has the kernel read it, at times
        // at which no write can proceed.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}
