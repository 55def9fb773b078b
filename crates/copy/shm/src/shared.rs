//! Copies in and out of an [`Arena`] that another process may be changing; its bytes are never
//! borrowed.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::Advice;

use crate::memory::Arena;

/// The range is not within the region, or the word is not aligned. This is the caller's error: it
/// must check values from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {offset}: not within the region, or not aligned")]
pub struct OutOfRegion {
    /// Offset of the first byte.
    pub offset: usize,
    /// Length of the range.
    pub bytes: usize,
}

impl Arena {
    /// Copies bytes of the region to private memory.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing is copied then.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfRegion> {
        let from = self.at(offset, to.len())?;
        // SAFETY: `from` has this number of bytes within the mapping, which lives as long as
        // `self`. `to` is a private slice; the region is never lent as a slice.
        unsafe { copy(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Appends bytes of the region to a vector.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing is copied then.
    pub fn append_to(
        &self,
        offset: usize,
        bytes: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), OutOfRegion> {
        let from = self.at(offset, bytes)?;
        to.reserve(bytes);
        // SAFETY: `from` as above. The vector has room for this number of bytes behind its length,
        // and the copy writes them before the length changes.
        unsafe {
            copy(from, to.as_mut_ptr().add(to.len()), bytes);
            to.set_len(to.len() + bytes);
        }
        Ok(())
    }

    /// Copies private bytes into the region.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing is copied then.
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        let to = self.at(offset, from.len())?;
        // SAFETY: as in `copy_out`, in the other direction.
        unsafe { copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Reads bytes of a socket, a pipe or a file straight into the region, as `read` does.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::InvalidInput`] for a range outside the region.
    pub fn receive(&self, from: impl AsFd, offset: usize, bytes: usize) -> io::Result<usize> {
        let to = self.at(offset, bytes);
        let to = to.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let fd = from.as_fd().as_raw_fd();
        // SAFETY: the kernel writes at most `bytes` bytes, starting at `to`, all within the
        // mapping. The mapping lives as long as `self`, and there are no references to it except
        // to atomics.
        let received = unsafe { libc::read(fd, to.cast(), bytes) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Loads the word at an offset.
    ///
    /// # Errors
    /// [`OutOfRegion`], also if it is not aligned to four bytes.
    pub fn load(&self, offset: usize, order: Ordering) -> Result<u32, OutOfRegion> {
        self.word(offset).map(|word| word.load(order))
    }

    /// Stores the word at an offset.
    ///
    /// # Errors
    /// [`OutOfRegion`], also if it is not aligned to four bytes.
    pub fn store(&self, offset: usize, value: u32, order: Ordering) -> Result<(), OutOfRegion> {
        self.word(offset).map(|word| word.store(value, order))
    }

    /// Frees memory: whole pages within the range read as zeros from now on, in every mapping,
    /// until they are written again.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::InvalidInput`] for a range outside the region.
    pub fn discard(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let at = self.at(offset, bytes);
        let at = at.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let page = crate::memory::BASE_ALIGN_BYTES;
        let skip = at.align_offset(page).min(bytes);
        let whole = (bytes - skip) / page * page;
        if whole == 0 {
            return Ok(());
        }
        // SAFETY: the pages are within the mapping. Their contents become zeros, which is allowed
        // at any time: other processes may write there, and there are no references except to
        // atomics.
        unsafe { rustix::mm::madvise(at.add(skip).cast(), whole, Advice::LinuxRemove) }?;
        Ok(())
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<*mut u8, OutOfRegion> {
        match offset.checked_add(bytes) {
            // SAFETY: the offset is at most the length of the mapping.
            Some(end) if end <= self.len_bytes() => Ok(unsafe { self.as_ptr().add(offset) }),
            _ => Err(OutOfRegion { offset, bytes }),
        }
    }

    fn word(&self, offset: usize) -> Result<&AtomicU32, OutOfRegion> {
        let at = self.at(offset, size_of::<u32>())?;
        match at.cast::<u32>().is_aligned() {
            // SAFETY: the word is aligned and within the mapping, which lives as long as `self`.
            // All bit patterns are valid for an atomic integer. Other accesses in this process go
            // through `copy`, which uses the machine's own loads and stores, or are atomic.
            true => Ok(unsafe { AtomicU32::from_ptr(at.cast()) }),
            false => Err(OutOfRegion { offset, bytes: size_of::<u32>() }),
        }
    }
}

/// Copies bytes that another process may be changing concurrently. The result is then an arbitrary
/// mixture, which the caller must check.
///
/// # Safety
/// Both ranges are valid for this number of bytes and do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the instruction reads and writes exactly the two ranges. It is opaque to the
    // compiler, so a concurrent write in another process is no data race of the memory model. The
    // direction flag is clear, as the ABI requires.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies bytes that another process may be changing concurrently.
///
/// # Safety
/// Both ranges are valid for this number of bytes and do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    use std::ptr::{read_volatile, write_volatile};
    const WORD: usize = size_of::<u64>();
    let mut done = 0;
    // SAFETY: every access lies within the ranges; the wide ones are aligned on both sides.
    unsafe {
        if from.addr() % WORD == to.addr() % WORD {
            while done < bytes && (from.addr() + done) % WORD != 0 {
                write_volatile(to.add(done), read_volatile(from.add(done)));
                done += 1;
            }
            while done + WORD <= bytes {
                let word = read_volatile(from.add(done).cast::<u64>());
                write_volatile(to.add(done).cast::<u64>(), word);
                done += WORD;
            }
        }
        while done < bytes {
            write_volatile(to.add(done), read_volatile(from.add(done)));
            done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const PAGE: usize = 4096;

    fn arena() -> Arena {
        Arena::create("shared-test", 4 * PAGE).unwrap()
    }

    #[test]
    fn bytes_go_in_and_out_at_any_offset_and_length() {
        let arena = arena();
        let content: Vec<u8> = (0..600).map(|n| n as u8).collect();
        for (offset, bytes) in [(0, 0), (1, 1), (7, 13), (4090, 600), (4 * PAGE - 600, 600)] {
            arena.copy_in(offset, &content[..bytes]).unwrap();
            let mut out = vec![0; bytes];
            arena.copy_out(offset, &mut out).unwrap();
            assert_eq!(out, content[..bytes]);
            let mut more = b"x".to_vec();
            arena.append_to(offset, bytes, &mut more).unwrap();
            assert_eq!(more[1..], content[..bytes]);
        }
    }

    #[test]
    fn nothing_is_reached_behind_the_end() {
        let arena = arena();
        let end = arena.len_bytes();
        for (offset, bytes) in [(end, 1), (end - 1, 2), (usize::MAX, 2), (end + 1, 0)] {
            let mut out = vec![7; bytes];
            assert_eq!(arena.copy_out(offset, &mut out), Err(OutOfRegion { offset, bytes }));
            assert!(arena.copy_in(offset, &out).is_err());
            assert!(arena.append_to(offset, bytes, &mut out).is_err());
            assert!(arena.discard(offset, bytes).is_err());
            assert!(out.iter().all(|&byte| byte == 7));
        }
        assert!(arena.load(end - 3, Ordering::Relaxed).is_err());
        assert!(arena.store(2, 1, Ordering::Relaxed).is_err());
    }

    #[test]
    fn another_mapping_sees_words_and_what_was_received() {
        let arena = arena();
        let other = Arena::attach(arena.fd().try_clone_to_owned().unwrap()).unwrap();
        arena.store(256, 77, Ordering::Release).unwrap();
        assert_eq!(other.load(256, Ordering::Acquire), Ok(77));
        let (mut one, two) = std::os::unix::net::UnixStream::pair().unwrap();
        one.write_all(b"straight").unwrap();
        assert_eq!(arena.receive(&two, 5000, 100).unwrap(), 8);
        let mut out = [0; 8];
        other.copy_out(5000, &mut out).unwrap();
        assert_eq!(&out, b"straight");
        drop(one);
        assert_eq!(arena.receive(&two, 5000, 100).unwrap(), 0);
        let outside = arena.receive(&two, 4 * PAGE, 1).unwrap_err();
        assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn discarded_pages_are_zeros_and_their_neighbours_stay() {
        let arena = arena();
        arena.copy_in(0, &vec![9; 4 * PAGE]).unwrap();
        arena.discard(PAGE - 1, PAGE + 2).unwrap();
        let mut out = vec![1; 4 * PAGE];
        arena.copy_out(0, &mut out).unwrap();
        assert!(out[..PAGE].iter().all(|&byte| byte == 9));
        assert!(out[PAGE..2 * PAGE].iter().all(|&byte| byte == 0));
        assert!(out[2 * PAGE..].iter().all(|&byte| byte == 9));
    }
}
