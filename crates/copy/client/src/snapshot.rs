//! Snapshots: the content of memory at one time, copied while the program goes on writing it.
//!
//! ```text
//!  program ── write ──► protected page: waits ──► block copied, protection lifted ──► goes on
//!  thread of the snapshot ── faults first, else the next block in order
//!  reader ── sync(range) ── copies these blocks itself
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use unlade_copy_kernels::area::Area;
use unlade_copy_kernels::freeze::{BLOCK_BYTES, Frozen, Lost};

use crate::at_once::{hint_for, is_refused};
use crate::copier::Copier;
use crate::page_memory::PageMemory;

/// Milliseconds after which the thread looks again whether readers have copied the last blocks.
const IDLE_MS: i32 = 1;

/// Options of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// No system call writes the memory until the snapshot is complete. Such a write fails with
    /// EFAULT where the process may not serve faults of the kernel: without this promise, all is
    /// copied by the call there.
    pub only_user_writes: bool,
}

/// A snapshot failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Its source was unmapped, or not mapped; or no memory is left for the copy.
    #[error(
        "the source of a snapshot is not mapped, or memory is short; keep it mapped until the \
         snapshot is complete"
    )]
    NotMapped,
    /// This process is a child of the one that made the snapshot, and the bytes were not copied at
    /// the fork.
    #[error("a child has only what was copied at the fork; sync the snapshot before")]
    InChild,
}

/// The content of memory at the time of [`Copier::snapshot`].
///
/// Dropping it gives up what is not copied.
#[derive(Debug)]
#[must_use = "a snapshot that is dropped copies nothing more"]
pub struct Snapshot {
    bytes: Bytes,
    len: usize,
    /// Keeps the source mapped, if that is ours. Behind the bytes: they are dropped first.
    _source: Option<Arc<Area>>,
}

#[derive(Debug)]
enum Bytes {
    /// Copied by the call.
    Whole(Box<[u8]>),
    Lazy(Lazy),
}

#[derive(Debug)]
struct Lazy {
    frozen: Arc<Frozen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    /// As [`Copier::snapshot`], of all of a memory, which the program may go on writing at once.
    ///
    /// ```
    /// use unlade_copy::{Config, Copier, PageMemory, Service, SnapshotOptions};
    ///
    /// let service = Service::start(Config::default())?;
    /// let copier = Copier::new(service.attach()?);
    /// let mut table = PageMemory::new(1 << 20)?;
    /// table.fill(1);
    /// let options = SnapshotOptions { only_user_writes: true };
    /// let snapshot = copier.snapshot_of(&mut table, &options)?;
    /// table[5000..6000].fill(2);                      // waits until these bytes are copied
    /// assert!(snapshot.sync(0..1 << 20)?.iter().all(|byte| *byte == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn snapshot_of(
        &self,
        memory: &mut PageMemory,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        // Whole pages, also where the program asked for less.
        let (pages, len) = (memory.area.pages(), memory.len());
        let start = std::ptr::with_exposed_provenance(pages.start);
        // SAFETY: the memory is readable and borrowed exclusively. It stays mapped as long as the
        // snapshot has it; safe code cannot unmap or drop it. Its pages do not move while they are
        // protected: the kernel refuses to register them for that.
        let snapshot = unsafe { self.snapshot(start, pages.len(), options) }?;
        Ok(Snapshot { len, _source: Some(Arc::clone(&memory.area)), ..snapshot })
    }

    /// Takes a snapshot of `len` bytes. The call takes as long as protecting the pages, and the
    /// bytes are copied later: by a thread of the snapshot, by a reader, or before a write to them
    /// proceeds. A write to a block of 64 KiB waits until that is copied.
    ///
    /// The snapshot is of one time during the call, also if other threads write meanwhile: a write
    /// that it lacks is not before one that it has. Older copies of this client into the memory are
    /// made before.
    ///
    /// All is copied by the call, and counted ([`StatsRead::snapshots_at_once`]), where the memory
    /// is not whole pages of private anonymous memory, where the kernel has no such protection
    /// (Linux 6.11), or where it does not permit it (see [`SnapshotOptions`]).
    ///
    /// [`StatsRead::snapshots_at_once`]: crate::StatsRead::snapshots_at_once
    ///
    /// # Errors
    /// [`SnapshotError::NotMapped`].
    ///
    /// # Safety
    /// The bytes are valid for reads. Until the snapshot is complete or dropped they are not
    /// unmapped, moved or dropped (`MADV_DONTNEED`), nor given up in a copy ([`Copier::remap`]). Their
    /// pages have only bytes of the program: nothing that an allocator or this library writes, for
    /// which the thread of the snapshot could wait itself. If all is copied by the call, no other
    /// thread writes them during it.
    pub unsafe fn snapshot(
        &self,
        source: *const u8,
        len: usize,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        let start = source.expose_provenance();
        if len > isize::MAX as usize || start.checked_add(len).is_none() {
            return Err(SnapshotError::NotMapped);
        }
        self.each_pending(|queued| queued.writing(start, len));
        self.stats().count_snapshot(len);
        if let Some(lazy) = Lazy::start(start..start + len, options) {
            return Ok(Snapshot { bytes: Bytes::Lazy(lazy), len, _source: None });
        }
        self.stats().count_snapshot_at_once();
        let mut whole = vec![0; len].into_boxed_slice();
        debug_assert!(!is_refused(whole.as_ptr().addr(), start, len));
        // SAFETY: the caller's promise; a new allocation does not overlap the source.
        let copied = unsafe { self.copy_now(whole.as_mut_ptr(), source, len, hint_for(len)) };
        match copied {
            Ok(()) => Ok(Snapshot { bytes: Bytes::Whole(whole), len, _source: None }),
            Err(_) => Err(SnapshotError::NotMapped),
        }
    }
}

impl Lazy {
    /// `None` if the memory cannot be protected, or no thread is available.
    fn start(source: Range<usize>, options: &SnapshotOptions) -> Option<Lazy> {
        let stop = Arc::new(AtomicBool::new(false));
        let (begin, begun): (SyncSender<Arc<Frozen>>, Receiver<_>) = sync_channel(1);
        // The thread is there before a write can wait for it.
        // It runs no handler of the program: a handler that writes the memory would wait for itself.
        let thread = unlade_copy_kernels::thread::spawn("unlade-snapshot".to_owned(), {
            let stop = Arc::clone(&stop);
            move || {
                if let Ok(frozen) = begun.recv() {
                    serve(&frozen, &stop);
                }
            }
        });
        let thread = thread.ok()?;
        let frozen = Frozen::new(source, options.only_user_writes).map(Arc::new);
        match frozen {
            Ok(frozen) => {
                // The thread waits for it.
                let _ = begin.send(Arc::clone(&frozen));
                Some(Lazy { frozen, stop, thread: Some(thread) })
            }
            Err(_) => {
                drop(begin);
                let _ = thread.join();
                None
            }
        }
    }

    fn sync(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        if range.is_empty() {
            return Ok(());
        }
        for block in range.start / BLOCK_BYTES..=(range.end - 1) / BLOCK_BYTES {
            self.frozen.copy_block(block, true).map_err(|Lost| match self.frozen.is_orphan() {
                true => SnapshotError::InChild,
                false => SnapshotError::NotMapped,
            })?;
        }
        Ok(())
    }
}

/// Copies blocks until all are copied: first those in which a thread waits.
///
/// Nothing here may write memory of the program: it could be protected, and only this thread lifts
/// that.
fn serve(frozen: &Frozen, stop: &AtomicBool) {
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        while next < frozen.blocks() && frozen.is_settled(next) {
            next += 1;
        }
        let is_all_settled = next == frozen.blocks();
        let is_idle = (next..frozen.blocks()).all(|block| frozen.is_claimed(block));
        let Ok(fault) = frozen.next_fault(if is_idle && !is_all_settled { IDLE_MS } else { 0 })
        else {
            break;
        };
        match fault {
            Some(block) => {
                // A lost block is lost for its reader only.
                let _ = frozen.copy_block(block, false);
                if frozen.is_settled(block) {
                    frozen.lift(block);
                }
            }
            None if is_all_settled => break,
            None => {
                let left = (next..frozen.blocks()).find(|block| !frozen.is_claimed(*block));
                let _ = left.map(|block| frozen.copy_block(block, false));
                // The program has precedence where they share a processor.
                std::thread::yield_now();
            }
        }
    }
    // Threads that wait anywhere go on.
    frozen.finish();
}

impl Snapshot {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if all bytes are copied; does not wait.
    pub fn is_complete(&self) -> bool {
        match &self.bytes {
            Bytes::Whole(_) => true,
            Bytes::Lazy(lazy) => lazy.frozen.is_all_settled(),
        }
    }

    /// Returns true if all was copied by [`Copier::snapshot`].
    pub fn is_at_once(&self) -> bool {
        matches!(self.bytes, Bytes::Whole(_))
    }

    /// Number of writes that had to wait until now.
    pub fn writes_held(&self) -> u64 {
        match &self.bytes {
            Bytes::Whole(_) => 0,
            Bytes::Lazy(lazy) => lazy.frozen.faults(),
        }
    }

    /// Returns the bytes of `range` as they were. Copies them if that has not happened.
    ///
    /// # Errors
    /// [`SnapshotError`]: they are lost.
    ///
    /// # Panics
    /// Panics if `range` is not within the snapshot.
    pub fn sync(&self, range: Range<usize>) -> Result<&[u8], SnapshotError> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        match &self.bytes {
            Bytes::Whole(bytes) => Ok(&bytes[range]),
            Bytes::Lazy(lazy) => {
                lazy.sync(range.clone())?;
                let start = lazy.frozen.copy_start() + range.start;
                // SAFETY: these bytes of the snapshot's own area are copied, and never change
                // again. The area lives as long as this value.
                Ok(unsafe {
                    std::slice::from_raw_parts(
                        std::ptr::with_exposed_provenance(start),
                        range.len(),
                    )
                })
            }
        }
    }

    /// Waits until all is copied and no write has to wait any more. The thread of the snapshot has
    /// ended then.
    ///
    /// # Errors
    /// [`SnapshotError`]: bytes are lost.
    pub fn complete(&mut self) -> Result<&[u8], SnapshotError> {
        self.sync(0..self.len)?;
        if let Bytes::Lazy(lazy) = &mut self.bytes {
            lazy.end();
        }
        self.sync(0..self.len)
    }
}

impl Lazy {
    /// Ends the thread, which lifts all protection.
    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        if self.frozen.is_orphan() {
            // A child has no such thread.
            std::mem::forget(thread);
        } else {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        self.end();
    }
}
