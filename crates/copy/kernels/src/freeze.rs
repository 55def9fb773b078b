//! Pages that are protected against writes until each block of them is copied: the content of
//! memory at one time, while the program goes on writing it.
//!
//! A thread that writes a protected page waits in the kernel until the page's block is copied and
//! its protection lifted. Another thread does that, as [`Frozen::next_fault`] tells it, and copies
//! the other blocks meanwhile. The kernel copies (`UFFDIO_COPY`), as for another process: no code
//! here reads or writes the pages.
//!
//! **One point in time.** No block is copied, and no protection lifted, before all pages are
//! protected. A write that had to wait therefore ends after that, and so does whatever its thread
//! does next.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::area::Area;
use crate::pagemap::is_private;
use crate::populate::page_bytes;
use crate::userfault::{FEATURE_WP_UNPOPULATED, Userfault};

/// Bytes that are copied at once: a write waits for such a block.
pub const BLOCK_BYTES: usize = 64 << 10;
/// Looks at a block that another thread copies, before this one sleeps in between.
const LOOKS_MAX: u32 = 1_000;
/// Milliseconds that a block which another thread copies is given at a time.
const PATIENCE_MS: u64 = 1;

const LEFT: u8 = 0;
const COPYING: u8 = 1;
const COPIED: u8 = 2;
const LOST: u8 = 3;

/// Pages cannot be protected.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// They are not whole pages, or none.
    #[error("{bytes} bytes from {address:#x} are not whole pages; name memory from mmap(2)")]
    NotPages {
        /// First address.
        address: usize,
        /// Length in bytes.
        bytes: usize,
    },
    /// Another process could change them, or they are of a file.
    #[error("this memory is shared or of a file; only private anonymous memory can be protected")]
    Shared,
    /// Writes by system calls would fail, because the kernel permits faults of user code only.
    #[error(
        "writes by system calls would fail with EFAULT; run with CAP_SYS_PTRACE or set \
         vm.unprivileged_userfaultfd, or promise that there are none"
    )]
    UserFaultsOnly,
    /// The kernel refuses.
    #[error(
        "these pages cannot be protected: {0}; is userfaultfd permitted, and the memory mapped?"
    )]
    Kernel(#[from] io::Error),
}

/// The bytes of a block are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "pages could not be copied: they were unmapped before, or memory is short; keep them mapped"
)]
pub struct Lost;

/// Protected pages and their copy.
#[derive(Debug)]
pub struct Frozen {
    userfault: Userfault,
    source: Range<usize>,
    copy: Area,
    blocks: Box<[AtomicU8]>,
    /// Protects nothing any more.
    is_over: AtomicBool,
    faults: AtomicU64,
    process: libc::pid_t,
}

impl Frozen {
    /// Protects whole pages. Nothing is copied yet: a thread must call [`Frozen::copy_block`] from
    /// now on. `only_user_writes`: no system call writes the pages until their blocks are copied;
    /// without it that must be permitted.
    ///
    /// # Errors
    /// [`FreezeError`]; the pages are as before.
    pub fn new(source: Range<usize>, only_user_writes: bool) -> Result<Frozen, FreezeError> {
        let page = page_bytes();
        let is_page = |address: usize| address.is_multiple_of(page);
        if source.is_empty() || !is_page(source.start) || !is_page(source.end) {
            let (address, bytes) = (source.start, source.len());
            return Err(FreezeError::NotPages { address, bytes });
        }
        if !is_private(&source)? {
            return Err(FreezeError::Shared);
        }
        let userfault = Userfault::open(FEATURE_WP_UNPOPULATED, !only_user_writes)?;
        if !only_user_writes && !userfault.has_kernel_faults() {
            return Err(FreezeError::UserFaultsOnly);
        }
        let copy = Area::new(source.len())?;
        userfault.register(&copy.pages())?;
        userfault.register(&source)?;
        let blocks = (0..source.len().div_ceil(BLOCK_BYTES)).map(|_| AtomicU8::new(LEFT)).collect();
        // SAFETY: the call has no preconditions.
        let process = unsafe { libc::getpid() };
        let (is_over, faults) = (AtomicBool::new(false), AtomicU64::new(0));
        let frozen = Frozen { userfault, source, copy, blocks, is_over, faults, process };
        // The last step: if it fails, the drop undoes all.
        frozen.userfault.protect(&frozen.source, true)?;
        Ok(frozen)
    }

    /// Number of blocks, of [`BLOCK_BYTES`] each; the last may be shorter.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The first address of the copy.
    pub fn copy_start(&self) -> usize {
        self.copy.pages().start
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.source.len()
    }

    /// Number of writes that had to wait.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Returns true if this process is a child of the one that made the value. It has only the
    /// blocks that were copied at the fork.
    pub fn is_orphan(&self) -> bool {
        // SAFETY: the call has no preconditions.
        self.process != unsafe { libc::getpid() }
    }

    /// Returns true if all blocks are.
    pub fn is_all_settled(&self) -> bool {
        (0..self.blocks()).all(|block| self.is_settled(block))
    }

    /// Returns true if a block is copied or lost.
    pub fn is_settled(&self, block: usize) -> bool {
        self.blocks[block].load(Ordering::Acquire) >= COPIED
    }

    /// Returns true if a thread has begun to copy a block, or it is settled.
    pub fn is_claimed(&self, block: usize) -> bool {
        self.blocks[block].load(Ordering::Relaxed) != LEFT
    }

    /// The block in which a thread waits to write, if any has begun to. Waits for about
    /// `timeout_ms`, 0 for none.
    ///
    /// # Errors
    /// The kernel refuses; the protection must be lifted then, by a drop.
    pub fn next_fault(&self, timeout_ms: i32) -> io::Result<Option<usize>> {
        let fault = self.userfault.next_fault(timeout_ms)?;
        let fault = fault.filter(|address| self.source.contains(address));
        self.faults.fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
        Ok(fault.map(|address| (address - self.source.start) / BLOCK_BYTES))
    }

    /// Copies a block and lifts its protection, unless that has happened. If another thread copies
    /// it, that is awaited, with `wait`.
    ///
    /// # Errors
    /// [`Lost`], now or before.
    pub fn copy_block(&self, block: usize, wait: bool) -> Result<(), Lost> {
        let state = &self.blocks[block];
        let mut looks = 0;
        loop {
            // Acquire: the bytes that another thread had the kernel copy.
            let (from, to) = (Ordering::Acquire, Ordering::Acquire);
            match state.compare_exchange(LEFT, COPYING, from, to) {
                Ok(_) => return self.copy_claimed(block),
                Err(COPIED) => return Ok(()),
                Err(LOST) => return Err(Lost),
                Err(_) if !wait => return Ok(()),
                // A parent's thread does not exist in its child.
                Err(_) if self.is_orphan() => return Err(Lost),
                Err(_) => pause(&mut looks),
            }
        }
    }

    /// Lifts the protection of a block again: a thread may have begun to wait there just before
    /// that happened.
    pub fn lift(&self, block: usize) {
        // Fails where pages were unmapped; nobody waits there.
        let _ = self.userfault.protect(&self.pages_of(block), false);
    }

    fn pages_of(&self, block: usize) -> Range<usize> {
        let start = self.source.start + block * BLOCK_BYTES;
        start..self.source.end.min(start + BLOCK_BYTES)
    }

    fn copy_claimed(&self, block: usize) -> Result<(), Lost> {
        let state = &self.blocks[block];
        if self.is_orphan() {
            // The descriptor would act on the parent.
            state.store(LOST, Ordering::Release);
            return Err(Lost);
        }
        let pages = self.pages_of(block);
        let to = self.copy_start() + block * BLOCK_BYTES;
        // SAFETY: the copy's own area; its pages of this block are absent, and no reference points
        // there before the block is copied.
        let (copied, _) = unsafe { self.userfault.fill(to, pages.start, pages.len()) };
        let is_copied = copied == pages.len();
        state.store(if is_copied { COPIED } else { LOST }, Ordering::Release);
        self.lift(block);
        if is_copied { Ok(()) } else { Err(Lost) }
    }

    /// Ends the protection. Blocks that are left are lost.
    pub fn finish(&self) {
        if !self.is_orphan() && !self.is_over.swap(true, Ordering::Relaxed) {
            for state in &self.blocks {
                let _ = state.compare_exchange(LEFT, LOST, Ordering::Relaxed, Ordering::Relaxed);
                let mut looks = 0;
                while state.load(Ordering::Relaxed) == COPYING {
                    pause(&mut looks);
                }
            }
            // Pages that are not mapped any more need no end.
            let _ = self.userfault.unregister(&self.source);
            // A thread that has met the protection waits by now: its fault held the mapping, which
            // this call has locked. It may have begun after its block was lifted.
            let _ = self.userfault.wake(&self.source);
            let _ = self.userfault.unregister(&self.copy.pages());
        }
    }
}

fn pause(looks: &mut u32) {
    *looks += 1;
    match *looks {
        0..=LOOKS_MAX => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_millis(PATIENCE_MS)),
    }
}

impl Drop for Frozen {
    /// Lifts the protection of everything that is left.
    fn drop(&mut self) {
        self.finish();
    }
}
