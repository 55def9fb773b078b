//! Descriptors in shared memory of the pending copies into another shared memory: one word for
//! each segment, with the number of pending copies into it.
//!
//! Two processes write it, which trust each other with the content of the shared memory. A word is
//! used only to wait: a wrong one ends a wait too early or never, and has no other effect.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::lock::{Scope, futex_wait, futex_wake};

/// Maximum number of segments of a shared memory.
pub(crate) const SEGMENTS_MAX: usize = 1 << 24;
/// Range of segment sizes in bytes.
const SEGMENT_BYTES: Range<usize> = 64..(1 << 30) + 1;
const MAGIC: u64 = 0x7263_7365_6465_6c75;
/// Bit of a segment's word: the newest copy into it failed. The other bits count pending copies.
const FAILED: u32 = 1 << 31;
/// Number of spins before sleeping.
const SPINS: u32 = 2_000;
/// Interval between checks that the writer lives.
const SLICE_MS: u32 = 50;

#[repr(C, align(8))]
struct Header {
    magic: AtomicU64,
    shm_bytes: AtomicU64,
    segment_bytes: AtomicU64,
    /// Process that copied last.
    writer: AtomicU32,
    /// Number of threads that sleep on words.
    waiters: AtomicU32,
    reserved: [AtomicU64; 4],
}

/// Size of the descriptors of `shm_bytes` bytes in segments of `segment_bytes`.
pub(crate) fn size(shm_bytes: usize, segment_bytes: usize) -> Option<usize> {
    let fits = SEGMENT_BYTES.contains(&segment_bytes) && segment_bytes.is_power_of_two();
    let segments = shm_bytes.div_ceil(if fits { segment_bytes } else { return None });
    let words = (1..=SEGMENTS_MAX).contains(&segments).then_some(segments)?;
    Some(size_of::<Header>() + words * size_of::<AtomicU32>())
}

/// The descriptors of a shared memory. Its layout was read once: later changes by other processes
/// have no effect here.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    header: *const Header,
    words: *const AtomicU32,
    pub shm_bytes: usize,
    segment_bytes: usize,
}

// SAFETY: the memory is accessed through atomics only; `open`'s caller promised to keep it mapped.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// Initialises memory as descriptors of a shared memory without pending copies.
    ///
    /// # Errors
    /// EINVAL: the lengths are invalid, or the address is not a multiple of 8.
    ///
    /// # Safety
    /// `at` is valid for reads and writes of [`size`] bytes, and nothing else uses them yet.
    pub unsafe fn init(at: *mut u8, shm_bytes: usize, segment_bytes: usize) -> Result<(), c_int> {
        let bytes = size(shm_bytes, segment_bytes).ok_or(libc::EINVAL)?;
        if at.is_null() || !at.addr().is_multiple_of(align_of::<Header>()) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller promises that `bytes` bytes are writable; zeroes are valid atomics.
        let header = unsafe {
            at.write_bytes(0, bytes);
            &*at.cast::<Header>()
        };
        header.shm_bytes.store(shm_bytes as u64, Ordering::Relaxed);
        header.segment_bytes.store(segment_bytes as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Opens initialised descriptors.
    ///
    /// # Errors
    /// EINVAL: this is no descriptor memory, or it has other segments.
    ///
    /// # Safety
    /// `at` was passed to [`Descriptors::init`], here or in another process, and stays mapped for
    /// reading and writing while the value, or a copy of it, is used.
    pub unsafe fn open(at: *mut u8, segment_bytes: usize) -> Result<Descriptors, c_int> {
        if at.is_null() || !at.addr().is_multiple_of(align_of::<Header>()) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller promises that it is mapped; its fields are atomics.
        let header = unsafe { &*at.cast::<Header>() };
        let shm_bytes = header.shm_bytes.load(Ordering::Relaxed) as usize;
        let known = header.segment_bytes.load(Ordering::Relaxed) as usize;
        let is_ours = header.magic.load(Ordering::Acquire) == MAGIC && known == segment_bytes;
        if !is_ours || size(shm_bytes, segment_bytes).is_none() {
            return Err(libc::EINVAL);
        }
        // SAFETY: within the memory that the caller promises to be mapped.
        let words = unsafe { at.add(size_of::<Header>()) }.cast::<AtomicU32>();
        Ok(Descriptors { header, words, shm_bytes, segment_bytes })
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped while the value is used (`open`); all fields are atomics.
        unsafe { &*self.header }
    }

    fn word(&self, segment: usize) -> &AtomicU32 {
        debug_assert!(segment < self.shm_bytes.div_ceil(self.segment_bytes));
        // SAFETY: as `header`; callers take segments from `segments`, which are in range.
        unsafe { &*self.words.add(segment) }
    }

    /// The segments that contain the bytes.
    pub fn segments(&self, bytes: &Range<usize>) -> Range<usize> {
        let end = bytes.end.min(self.shm_bytes);
        if bytes.start >= end {
            return 0..0;
        }
        bytes.start / self.segment_bytes..end.div_ceil(self.segment_bytes)
    }

    /// The bytes of a segment.
    pub fn bytes(&self, segment: usize) -> Range<usize> {
        let start = segment * self.segment_bytes;
        start..(start + self.segment_bytes).min(self.shm_bytes)
    }

    /// Records that a copy of this process into these segments begins.
    pub fn begin(&self, segments: Range<usize>) {
        self.header().writer.store(std::process::id(), Ordering::Relaxed);
        for segment in segments {
            self.change(segment, |word| {
                let failed = if word & !FAILED == 0 { 0 } else { word & FAILED };
                (word & !FAILED).wrapping_add(1) & !FAILED | failed
            });
        }
    }

    /// Records that a copy into this segment is over.
    pub fn end(&self, segment: usize, has_failed: bool) {
        let after = self.change(segment, |word| {
            let failed = if has_failed { FAILED } else { word & FAILED };
            (word & !FAILED).saturating_sub(1) | failed
        });
        if after & !FAILED == 0 && self.header().waiters.load(Ordering::SeqCst) != 0 {
            futex_wake(self.word(segment), i32::MAX, Scope::Shared);
        }
    }

    fn change(&self, segment: usize, new: impl Fn(u32) -> u32) -> u32 {
        let word = self.word(segment);
        let mut before = word.load(Ordering::Relaxed);
        loop {
            let after = new(before);
            match word.compare_exchange_weak(before, after, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return after,
                Err(now) => before = now,
            }
        }
    }

    /// Returns true if no copy into the segment is pending.
    ///
    /// # Errors
    /// EFAULT: the newest copy failed.
    pub fn is_ready(&self, segment: usize) -> Result<bool, c_int> {
        match self.word(segment).load(Ordering::SeqCst) {
            FAILED => Err(libc::EFAULT),
            word => Ok(word & !FAILED == 0),
        }
    }

    /// Waits until no copy into the segment is pending.
    ///
    /// # Errors
    /// EFAULT: the newest copy failed. EOWNERDEAD: the copying process died before the copy was
    /// over.
    pub fn wait(&self, segment: usize) -> Result<(), c_int> {
        for _ in 0..SPINS {
            if self.is_ready(segment)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let header = self.header();
        loop {
            header.waiters.fetch_add(1, Ordering::SeqCst);
            let word = self.word(segment).load(Ordering::SeqCst);
            if word & !FAILED != 0 {
                futex_wait(self.word(segment), word, Some(SLICE_MS), Scope::Shared);
            }
            header.waiters.fetch_sub(1, Ordering::SeqCst);
            // Check the process before the word: copies that it finished before its death count.
            let is_alive = is_alive(header.writer.load(Ordering::Relaxed));
            match self.is_ready(segment)? {
                true => return Ok(()),
                false if !is_alive => return Err(libc::EOWNERDEAD),
                false => {}
            }
        }
    }
}

fn is_alive(process: u32) -> bool {
    let Ok(process) = libc::pid_t::try_from(process) else { return false };
    // SAFETY: signal 0 sends nothing: the call only checks that the process exists.
    let found = unsafe { libc::kill(process, 0) } == 0;
    process > 0 && (found || crate::errno::last() != libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(memory: &mut [u64], shm_bytes: usize, segment_bytes: usize) -> Descriptors {
        let bytes = size(shm_bytes, segment_bytes).unwrap();
        assert!(bytes <= size_of_val(memory));
        let at = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the size is asserted above, and the tests keep the memory.
        unsafe {
            Descriptors::init(at, shm_bytes, segment_bytes).unwrap();
            Descriptors::open(at, segment_bytes).unwrap()
        }
    }

    #[test]
    fn segments_are_ready_when_all_their_copies_are() {
        let mut memory = [0u64; 100];
        let shm = open(&mut memory, 1000, 64);
        assert_eq!(shm.segments(&(0..1000)), 0..16);
        assert_eq!(shm.segments(&(63..65)), 0..2);
        assert_eq!(shm.segments(&(1000..2000)), 0..0);
        assert_eq!(shm.bytes(15), 960..1000);
        shm.begin(0..2);
        shm.begin(1..3);
        shm.end(1, false);
        assert_eq!(shm.is_ready(1), Ok(false));
        shm.end(1, false);
        assert_eq!((shm.is_ready(1), shm.wait(1)), (Ok(true), Ok(())));
        shm.end(2, true);
        assert_eq!((shm.is_ready(2), shm.wait(2)), (Err(libc::EFAULT), Err(libc::EFAULT)));
        shm.begin(2..3);
        shm.end(2, false);
        assert_eq!(shm.wait(2), Ok(()));
    }

    #[test]
    fn a_waiter_wakes_when_the_segment_is_ready() {
        let mut memory = [0u64; 100];
        let shm = open(&mut memory, 64, 64);
        shm.begin(0..1);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| shm.wait(0));
            shm.end(0, false);
            assert_eq!(waiter.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_dead_writer_is_not_waited_for() {
        let mut memory = [0u64; 100];
        let shm = open(&mut memory, 64, 64);
        shm.begin(0..1);
        // No process has this number: the maximum of pid_max is 2^22.
        shm.header().writer.store(i32::MAX as u32, Ordering::Relaxed);
        assert_eq!(shm.wait(0), Err(libc::EOWNERDEAD));
    }

    #[test]
    fn invalid_descriptors_are_refused() {
        assert_eq!(size(1000, 60), None);
        assert_eq!(size(1000, 96), None);
        assert_eq!(size(0, 64), None);
        assert_eq!(size(usize::MAX, 64), None);
        let mut memory = [0u64; 100];
        let at = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the memory is large enough for all that is read.
        unsafe {
            assert_eq!(Descriptors::open(at, 64).err(), Some(libc::EINVAL));
            assert_eq!(Descriptors::init(at.add(1), 64, 64), Err(libc::EINVAL));
            assert_eq!(Descriptors::init(std::ptr::null_mut(), 64, 64), Err(libc::EINVAL));
            Descriptors::init(at, 64, 64).unwrap();
            assert_eq!(Descriptors::open(at, 128).err(), Some(libc::EINVAL));
        }
        memory[1] = u64::MAX;
        // SAFETY: as above.
        let opened = unsafe { Descriptors::open(memory.as_mut_ptr().cast(), 64) };
        assert_eq!(opened.err(), Some(libc::EINVAL));
    }
}
