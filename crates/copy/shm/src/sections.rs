//! From bytes to lines: the one place that believes in offsets.

use std::ptr::NonNull;

use crate::bounded::Cell;
use crate::layout::{Control, Header, LayoutError, Shape};
use crate::memory::{BASE_ALIGN_BYTES, Memory};
use crate::progress::ProgressLine;
use crate::task::TaskLine;

/// The lines of a queue, with the memory that they are in.
#[derive(Debug)]
pub(crate) struct Sections {
    control: NonNull<Control>,
    handlers: NonNull<[Cell]>,
    tasks: NonNull<[TaskLine]>,
    progress: NonNull<[ProgressLine]>,
    memory: Memory,
}

// SAFETY: the lines are atomics in memory that belongs to no thread (`Memory` is `Send`).
unsafe impl Send for Sections {}
// SAFETY: the lines are reached through atomics only, from any thread.
unsafe impl Sync for Sections {}

impl Sections {
    /// The lines of a queue of this shape.
    pub(crate) fn of(memory: Memory, shape: &Shape) -> Result<Sections, LayoutError> {
        shape.fits(memory.len_bytes())?;
        let base = memory.as_ptr();
        let count = shape.slots.count() as usize;
        // SAFETY: all offsets are within `shape.bytes`, which the memory has: the addresses are in
        // one allocation, and not null.
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

    /// The shape of the queue that a peer made in `memory`.
    pub(crate) fn shape_in(memory: &Memory) -> Result<Shape, LayoutError> {
        let (len_bytes, needed_bytes) = (memory.len_bytes(), size_of::<Header>());
        if len_bytes < needed_bytes {
            return Err(LayoutError::TooSmall { len_bytes, needed_bytes });
        }
        // SAFETY: the memory holds a header at its base, which is aligned enough for one (below),
        // and lives as long as the borrow. A header is atomics: any bits are a value of it, and a
        // peer may write meanwhile.
        let header = unsafe { &*memory.as_ptr().cast::<Header>() };
        let shape = header.read()?;
        shape.fits(len_bytes)?;
        Ok(shape)
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: `of` checked that the memory holds all lines of its shape, of which this is the
        // first; the memory lives as long as `self`. Offsets and base are aligned (below). The
        // lines are atomics: any bits are a value, and a peer may write meanwhile.
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

    /// Asks for the lines of a slot that will be written soon: the service had them last, and a
    /// store into a line that another core has takes as long as a small copy.
    #[inline]
    pub(crate) fn expect_write(&self, index: usize) {
        let (task, progress) = (&self.tasks()[index], &self.progress()[index]);
        for line in [core::ptr::from_ref(task).cast::<u8>(), core::ptr::from_ref(progress).cast()] {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint; it changes nothing and never faults, whatever the address. Processors
            // without it take it for no operation. As an instruction, since the intrinsic is one
            // for reading where the target is not said to have this one.
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

/// `count` lines from `first` on.
///
/// # Safety
/// `first` is not null.
unsafe fn lines<T>(first: *mut u8, count: usize) -> NonNull<[T]> {
    // SAFETY: the caller's promise.
    NonNull::slice_from_raw_parts(unsafe { NonNull::new_unchecked(first.cast()) }, count)
}

// The base is aligned for every line, and the sizes of the parts before a part are multiples of its
// alignment: `Shape` adds up whole lines, and two cells or more.
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
