//! Conversion from bytes to lines: the only place that uses offsets.

use std::ptr::NonNull;

use crate::bounded::Cell;
use crate::layout::{Control, Header, LayoutError, Shape};
use crate::memory::{BASE_ALIGN_BYTES, Memory};
use crate::progress::ProgressLine;
use crate::task::TaskLine;

/// The lines of a queue, with the memory that contains them.
#[derive(Debug)]
pub(crate) struct Sections {
    control: NonNull<Control>,
    handlers: NonNull<[Cell]>,
    tasks: NonNull<[TaskLine]>,
    progress: NonNull<[ProgressLine]>,
    memory: Memory,
}

// SAFETY: the lines are atomics in memory that does not belong to a thread (`Memory` is `Send`).
unsafe impl Send for Sections {}
// SAFETY: all threads access the lines through atomics only.
unsafe impl Sync for Sections {}

impl Sections {
    /// Locates the lines of a queue of this shape.
    pub(crate) fn of(memory: Memory, shape: &Shape) -> Result<Sections, LayoutError> {
        shape.fits(memory.len_bytes())?;
        let base = memory.as_ptr();
        let count = shape.slots.count() as usize;
        // SAFETY: all offsets are within `shape.bytes`, and the memory is at least as large, so
        // the addresses are in one allocation and not null.
        unsafe {
            Ok(Sections {
                control: NonNull::new_unchecked(base.cast()),
                handlers: lines(base.add(shape.handlers_at), count),
                tasks: lines(base.add(shape.tasks_at), count),
                progress: lines(base.add(shape.progress_at), count),
                memory,
            })
        }
    }

    /// Reads the shape of the queue that a peer made in `memory`.
    pub(crate) fn shape_in(memory: &Memory) -> Result<Shape, LayoutError> {
        let (len_bytes, needed_bytes) = (memory.len_bytes(), size_of::<Header>());
        if len_bytes < needed_bytes {
            return Err(LayoutError::TooSmall { len_bytes, needed_bytes });
        }
        // SAFETY: the memory contains a header at its base, which is aligned for it (below), and
        // lives as long as the borrow. A header consists of atomics: all bit patterns are valid,
        // and a peer may write concurrently.
        let header = unsafe { &*memory.as_ptr().cast::<Header>() };
        let shape = header.read()?;
        shape.fits(len_bytes)?;
        Ok(shape)
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: `of` checked that the memory contains all lines of its shape, of which this is
        // the first, and the memory lives as long as `self`. Offsets and base are aligned (below).
        // The lines consist of atomics: all bit patterns are valid, and a peer may write
        // concurrently.
        unsafe { self.control.as_ref() }
    }

    #[inline]
    pub(crate) fn handlers(&self) -> &[Cell] {
        // SAFETY: as for `control`.
        unsafe { self.handlers.as_ref() }
    }

    #[inline]
    pub(crate) fn tasks(&self) -> &[TaskLine] {
        // SAFETY: as for `control`.
        unsafe { self.tasks.as_ref() }
    }

    #[inline]
    pub(crate) fn progress(&self) -> &[ProgressLine] {
        // SAFETY: as for `control`.
        unsafe { self.progress.as_ref() }
    }

    /// Prefetches the lines of a slot for writing: the service had them last, and a store to a
    /// line in another core's cache takes as long as a small copy.
    #[inline]
    pub(crate) fn expect_write(&self, index: usize) {
        let (task, progress) = (&self.tasks()[index], &self.progress()[index]);
        for line in [core::ptr::from_ref(task).cast::<u8>(), core::ptr::from_ref(progress).cast()] {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch is a hint that changes nothing and never faults, for any address.
            // Processors without this instruction treat it as a no-op. The intrinsic is not used,
            // because it prefetches for reading on targets without this feature.
            unsafe {
                core::arch::asm!(
                    "prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)
                );
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// Returns `count` lines, starting at `first`.
///
/// # Safety
/// `first` is not null.
unsafe fn lines<T>(first: *mut u8, count: usize) -> NonNull<[T]> {
    // SAFETY: the caller's promise.
    NonNull::slice_from_raw_parts(unsafe { NonNull::new_unchecked(first.cast()) }, count)
}

// The base is aligned for every line, and the offset of each part is a multiple of its alignment:
// `Shape` adds up whole lines, and at least two cells.
const _: () = {
    assert!(BASE_ALIGN_BYTES.is_multiple_of(align_of::<Control>()));
    assert!(size_of::<Control>().is_multiple_of(align_of::<TaskLine>()));
    assert!(align_of::<Cell>() <= align_of::<TaskLine>());
    assert!(align_of::<ProgressLine>() == align_of::<TaskLine>());
    assert!(
        (crate::layout::SLOTS_MIN as usize * size_of::<Cell>())
            .is_multiple_of(align_of::<TaskLine>())
    );
};
