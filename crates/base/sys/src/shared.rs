//! A small file as memory that outlives the process: the next process that opens the file reads
//! the stored values, even if this process was killed in the middle of an instruction.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words of a file, mapped and locked while the value exists.
#[derive(Debug)]
pub struct SharedWords {
    base: NonNull<AtomicU64>,
    count: usize,
    /// Owns the lock.
    _file: File,
}

// SAFETY: the mapping is accessed only through atomics, from any thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Opens a file as `count` words, and creates it if it does not exist. New words are zero;
    /// existing words keep their values.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::WouldBlock`] if another process has locked the file.
    pub fn open(path: &Path, count: usize) -> io::Result<SharedWords> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let bytes = count * size_of::<AtomicU64>();
        file.set_len(bytes as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address that the kernel chooses, of a regular file
        // whose length was just set.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(SharedWords { base, count, _file: file })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `count` words long, page-aligned, and lives as long as `self`;
        // any bits are a value of an atomic integer. A process that truncates the file ends this
        // process with SIGBUS: only its owner can (mode 0600), and this program does not.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::SharedWords;
    use std::io::ErrorKind;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_outlive_their_owner_and_have_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let first = SharedWords::open(&path, 4).unwrap();
        assert!(first.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        first.words()[2].store(7, Ordering::Relaxed);
        assert_eq!(SharedWords::open(&path, 4).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(first);
        let second = SharedWords::open(&path, 8).unwrap();
        let words: Vec<u64> = second.words().iter().map(|w| w.load(Ordering::Relaxed)).collect();
        assert_eq!(words, [0, 0, 7, 0, 0, 0, 0, 0]);
    }
}
