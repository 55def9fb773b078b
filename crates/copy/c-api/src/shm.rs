//! Copies into shared memory that another process reads: their progress is mirrored into the
//! descriptors that both processes have bound.
//!
//! The service reports progress in the queue, which other processes cannot read. A helper thread,
//! started with the first such copy, waits for the copies in turn, and marks their segments as
//! done. Threads that sync mark segments, too.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::channel::{Channel, Parts};
use crate::descriptor::Descriptors;
use crate::lock::{Lock, Scope, futex_wait, futex_wake};

/// Maximum number of bound shared memories.
pub(crate) const BINDINGS_MAX: usize = 64;
/// Maximum number of mirrored copies; further ones complete before the call returns.
pub(crate) const MIRRORED_MAX: usize = 4096;

#[derive(Clone, Copy)]
struct Binding {
    start: usize,
    descriptors: Descriptors,
}

impl Binding {
    /// The part of the range in the shared memory, as offsets from its start.
    fn meet(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let end = range.end.min(self.start.saturating_add(self.descriptors.shm_bytes));
        let start = range.start.max(self.start);
        (start < end).then(|| start - self.start..end - self.start)
    }
}

/// A copy into a bound memory.
struct Mirrored {
    binding: Binding,
    /// Unmarked part of the destination, as offsets in the shared memory.
    left: Range<usize>,
    /// Offset of the destination's first byte.
    start: usize,
    channel: Arc<Channel>,
    parts: Arc<Parts>,
}

struct MirrorState {
    bindings: Vec<Binding>,
    mirrored: VecDeque<Mirrored>,
    has_helper: bool,
}

static STATE: Lock<MirrorState> =
    Lock::new(MirrorState { bindings: Vec::new(), mirrored: VecDeque::new(), has_helper: false });
static IS_USED: AtomicBool = AtomicBool::new(false);
/// Counts new work for the helper.
static NEWS: AtomicU32 = AtomicU32::new(0);

/// Returns true if a shared memory was ever bound.
#[inline]
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Binds descriptors to a shared memory; replaces a binding of the same address.
///
/// # Errors
/// EINVAL: the descriptors have other segments, or the memory overlaps another bound memory.
/// ENOSPC: [`BINDINGS_MAX`] are bound.
///
/// # Safety
/// As for [`Descriptors::open`]; and `shm` is the address of the shared memory for which they were
/// made. Both stay mapped until [`unbind`], also in children.
pub(crate) unsafe fn bind(shm: usize, descr: *mut u8, segment_bytes: usize) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let descriptors = unsafe { Descriptors::open(descr, segment_bytes) }?;
    let new = Binding { start: shm, descriptors };
    let range = shm..shm.checked_add(descriptors.shm_bytes).ok_or(libc::EINVAL)?;
    if shm == 0 {
        return Err(libc::EINVAL);
    }
    // A failed copy is reported by its sync.
    let _ = unbind(shm);
    STATE.with(|state| {
        if state.bindings.iter().any(|binding| binding.meet(&range).is_some()) {
            return Err(libc::EINVAL);
        }
        if state.bindings.len() >= BINDINGS_MAX {
            return Err(libc::ENOSPC);
        }
        state.bindings.push(new);
        IS_USED.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// Removes a binding, after the copies into it are over.
///
/// # Errors
/// EINVAL: nothing is bound there.
pub(crate) fn unbind(shm: usize) -> Result<(), c_int> {
    let taken = STATE.with(|state| {
        let place = state.bindings.iter().position(|binding| binding.start == shm)?;
        state.bindings.swap_remove(place);
        Some(())
    });
    taken.ok_or(libc::EINVAL)?;
    while let Some(work) = STATE.with(|state| state.oldest(|copy| copy.binding.start == shm)) {
        work.make();
    }
    Ok(())
}

/// A copy about to be submitted, whose bytes in bound memories are marked as pending.
pub(crate) struct PendingMark(Vec<(Binding, Range<usize>)>, usize);

/// Marks a copy as pending; see [`PendingMark`].
pub(crate) fn begin(dst: usize, len: usize) -> Option<PendingMark> {
    let range = dst..dst.saturating_add(len);
    let met: Vec<_> = STATE.with(|state| {
        let meet = |binding: &Binding| Some((*binding, binding.meet(&range)?));
        state.bindings.iter().filter_map(meet).collect()
    });
    for (binding, bytes) in &met {
        binding.descriptors.begin(binding.descriptors.segments(bytes));
    }
    (!met.is_empty()).then_some(PendingMark(met, dst))
}

/// Records the submitted copy, and starts to mirror it.
pub(crate) fn submitted(begun: PendingMark, channel: &Arc<Channel>, parts: Parts) {
    let PendingMark(met, dst) = begun;
    let parts = Arc::new(parts);
    let over = STATE.with(|state| {
        for (binding, left) in met {
            let start = dst.wrapping_sub(binding.start);
            let (channel, parts) = (Arc::clone(channel), Arc::clone(&parts));
            state.mirrored.push_back(Mirrored { binding, left, start, channel, parts });
        }
        let over = state.publish();
        if !state.mirrored.is_empty() && !state.has_helper {
            state.has_helper = start_helper();
        }
        over
    });
    drop(over);
    NEWS.fetch_add(1, Ordering::SeqCst);
    futex_wake(&NEWS, 1, Scope::Private);
    while let Some(work) = STATE.with(MirrorState::surplus) {
        work.make();
    }
}

/// Marks completed segments.
pub(crate) fn publish_all() {
    drop(STATE.with(MirrorState::publish));
}

/// Waits for copies into the bytes, by any process.
///
/// # Errors
/// As for [`Descriptors::wait`].
pub(crate) fn wait(address: usize, len: usize) -> Result<(), c_int> {
    let range = address..address.saturating_add(len);
    publish_all();
    let met: Vec<_> = STATE.with(|state| {
        let meet = |binding: &Binding| Some((*binding, binding.meet(&range)?));
        state.bindings.iter().filter_map(meet).collect()
    });
    let mut result = Ok(());
    for (Binding { descriptors, .. }, bytes) in met {
        for segment in descriptors.segments(&bytes) {
            result = result.and(descriptors.wait(segment));
        }
    }
    result
}

/// The next segment of a copy to wait for.
struct Work {
    channel: Arc<Channel>,
    parts: Arc<Parts>,
    range: Range<usize>,
}

impl Work {
    /// Waits for the segment, and marks it.
    fn make(self) {
        // The error is found when the segment is marked.
        let _ = self.parts.sync(&self.channel, self.range);
        publish_all();
    }
}

impl Mirrored {
    /// The first unmarked segment, and its bytes as offsets from the copy's start.
    fn next(&self) -> Option<(usize, Range<usize>)> {
        let descriptors = &self.binding.descriptors;
        let segment = descriptors.segments(&self.left).next()?;
        let end = descriptors.bytes(segment).end.min(self.left.end);
        // If the copy begins before the shared memory, `start` has wrapped around.
        let from = |at: usize| at.wrapping_sub(self.start);
        Some((segment, from(self.left.start)..from(end)))
    }

    /// Marks completed segments. Returns true if all are marked.
    fn publish(&mut self) -> bool {
        while let Some((segment, range)) = self.next() {
            let len = range.len();
            if !self.parts.is_ready(&self.channel, range.clone()) {
                return false;
            }
            let has_failed = self.parts.sync(&self.channel, range).is_err();
            self.binding.descriptors.end(segment, has_failed);
            self.left.start += len;
        }
        true
    }

    fn work(&self) -> Option<Work> {
        let (channel, parts) = (Arc::clone(&self.channel), Arc::clone(&self.parts));
        Some(Work { channel, parts, range: self.next()?.1 })
    }
}

impl MirrorState {
    /// Marks completed segments. The caller drops the result without the lock, since that may drop
    /// a queue.
    fn publish(&mut self) -> Vec<Mirrored> {
        let all = std::mem::take(&mut self.mirrored);
        let (over, left): (Vec<_>, VecDeque<_>) = {
            let mut over = Vec::new();
            let mut left = VecDeque::new();
            for mut copy in all {
                if copy.publish() {
                    over.push(copy);
                } else {
                    left.push_back(copy);
                }
            }
            (over, left)
        };
        self.mirrored = left;
        over
    }

    fn oldest(&mut self, is_meant: impl Fn(&Mirrored) -> bool) -> Option<Work> {
        self.mirrored.iter().find(|copy| is_meant(copy))?.work()
    }

    /// Work for the calling thread: there are too many copies, or no helper.
    fn surplus(&mut self) -> Option<Work> {
        let limit = if self.has_helper { MIRRORED_MAX } else { 0 };
        if self.mirrored.len() > limit { self.oldest(|_| true) } else { None }
    }
}

/// Starts the helper thread. Returns false if that fails.
fn start_helper() -> bool {
    unlade_copy_kernels::thread::spawn("copier-shm".to_owned(), help).is_ok()
}

fn help() {
    loop {
        let news = NEWS.load(Ordering::SeqCst);
        match STATE.with(|state| state.oldest(|_| true)) {
            Some(work) => work.make(),
            None => futex_wait(&NEWS, news, None, Scope::Private),
        }
    }
}

pub(crate) fn hold_for_fork() {
    STATE.hold_for_fork();
}

/// The child has no helper, and the parent marks its own copies.
pub(crate) fn release_after_fork(is_child: bool) {
    STATE.release_after_fork();
    if is_child {
        STATE.with(|state| {
            state.has_helper = false;
            // Their queues belong to the parent and must not be touched, so they are leaked.
            std::mem::forget(std::mem::take(&mut state.mirrored));
        });
    }
}
