//! Receives by the service into a buffer that this module owns, so that safe code can use the
//! first bytes while the rest is still being received.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::net::RecvFlags;
use unlade_copy_scheduler::admit::Verdict;
use unlade_copy_service::TaskFailure;
use unlade_shm::{Task, Ticket, segment};

use crate::admission::RECEIVE_BYTES_MIN;
use crate::copier::{Copier, CopyOptions};
use crate::error::CopyError;
use crate::pending::{Kind, Queued};
use crate::receive_tuner::ReceiveTuner;

/// Default number of bytes received synchronously; the rest is queued.
pub const FIRST_BYTES_DEFAULT: usize = 8 << 10;
/// Default number of bytes that one task receives. They become available together, so smaller
/// tasks overlap better and cost more system calls.
pub const CHUNK_BYTES_DEFAULT: usize = 32 << 10;
/// Least number of bytes that one task receives.
const CHUNK_BYTES_MIN: usize = 4 << 10;
/// Maximum number of tasks of one receive; beyond it the tasks are larger.
const CHUNKS_MAX: usize = 32;
/// Maximum number of bytes received synchronously at a time: more would leave the caches before
/// they are used.
const SYNCHRONOUS_BYTES_MAX: usize = 128 << 10;
/// A sleeping service is woken after this number of bytes was received without it.
const WAKE_BYTES_MIN: u64 = 256 << 10;
/// Upper limit of this number, which doubles after each wake-up that did not lead to queued
/// receives.
const WAKE_BYTES_MAX: u64 = 64 << 20;

/// A task, and the part of the buffer that it fills.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    ticket: Ticket,
    start: usize,
    len: usize,
}

impl Chunk {
    fn all(&self) -> u32 {
        segment::bits_for(self.len as u32, segment::granule_shift_for(self.len as u32))
    }
}

/// The receiving side of a socket, and a buffer.
///
/// ```
/// # use std::io::Write;
/// # let service = unlade_copy::Service::start(unlade_copy::Config::default())?;
/// let copier = std::sync::Arc::new(unlade_copy::Copier::new(service.attach()?));
/// let (mut sender, receiver) = std::os::unix::net::UnixStream::pair()?;
/// let mut inbound = unlade_copy::Inbound::new(copier, receiver, 64 << 10);
/// sender.write_all(&[7; 10_000])?;
/// let count = inbound.receive()?;
/// assert_eq!(inbound.sync(0..count)?, vec![7; count]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Inbound {
    copier: Arc<Copier>,
    socket: OwnedFd,
    /// `capacity` initialised bytes, allocated as a boxed slice. Kept as a pointer because the
    /// service writes while this value is moved.
    base: NonNull<u8>,
    capacity: usize,
    filled: usize,
    chunks: Vec<Chunk>,
    first_bytes: usize,
    chunk_bytes: usize,
    missed_bytes: u64,
    wake_bytes: u64,
    tuner: ReceiveTuner,
    always_queued: bool,
}

// SAFETY: only this value and pending tasks use the buffer, and tasks belong to no thread; all
// other fields are `Send`.
unsafe impl Send for Inbound {}

impl Inbound {
    /// Receives from `socket` into a buffer of `capacity` bytes, at least one.
    ///
    /// No other reader should receive from the socket: this value would miss those bytes and wait
    /// for them.
    pub fn new(copier: Arc<Copier>, socket: impl Into<OwnedFd>, capacity: usize) -> Inbound {
        let buffer = vec![0u8; capacity.max(1)].into_boxed_slice();
        let capacity = buffer.len();
        let base = NonNull::from(Box::leak(buffer)).cast();
        Inbound {
            copier,
            socket: socket.into(),
            base,
            capacity,
            filled: 0,
            chunks: Vec::with_capacity(CHUNKS_MAX),
            first_bytes: FIRST_BYTES_DEFAULT,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            missed_bytes: 0,
            wake_bytes: WAKE_BYTES_MIN,
            tuner: ReceiveTuner::default(),
            always_queued: false,
        }
    }

    /// Sets the number of bytes that are received synchronously before the rest is queued: the
    /// bytes that the caller needs to start. Default [`FIRST_BYTES_DEFAULT`]; at least one.
    pub fn set_first_bytes(&mut self, bytes: usize) {
        self.first_bytes = bytes.clamp(1, crate::TASK_BYTES_MAX);
    }

    /// Sets the number of bytes that one task receives: 4 KiB to 1 MiB, default
    /// [`CHUNK_BYTES_DEFAULT`].
    pub fn set_chunk_bytes(&mut self, bytes: usize) {
        self.chunk_bytes = bytes.clamp(CHUNK_BYTES_MIN, crate::TASK_BYTES_MAX);
    }

    /// Makes the service receive whenever it is awake, even if measurements show that this is
    /// slower. For measurements and tests.
    pub fn set_always_queued(&mut self, always: bool) {
        self.always_queued = always;
    }

    /// Number of bytes received or being received since the buffer was last emptied.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Returns true if nothing was received since the buffer was last emptied.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Number of free bytes in the buffer.
    pub fn room(&self) -> usize {
        self.capacity - self.filled
    }

    /// The socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Receives what the socket has, behind the bytes in the buffer. Returns the number of bytes
    /// at once, while the service is still receiving them. Waits if there are none yet and the
    /// socket is blocking; 0 is the end of the stream.
    ///
    /// # Errors
    /// The socket's error; [`io::ErrorKind::WouldBlock`] if the socket has no bytes and is
    /// non-blocking. [`io::ErrorKind::StorageFull`] if the buffer is full: consume bytes first.
    pub fn receive(&mut self) -> io::Result<usize> {
        let room = self.room();
        if room == 0 {
            let why = "the buffer is full: use its bytes and empty it, or make it larger";
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        // While a task still has to receive, the kernel's count includes its bytes.
        self.complete_all().map_err(io::Error::from)?;
        let copier = &self.copier;
        let can_queue = || copier.remote().is_none() && copier.is_awake();
        let way = match self.always_queued {
            true => Verdict::Queue,
            false => self.tuner.way(can_queue),
        };
        let is_ahead = way == Verdict::Queue && room >= self.worth_bytes() && can_queue();
        let count = match is_ahead {
            true => self.receive_ahead()?,
            false => self.receive_first(room.min(SYNCHRONOUS_BYTES_MAX))?,
        };
        self.tuner.received(count);
        Ok(count)
    }

    /// Receives of fewer bytes are synchronous.
    fn worth_bytes(&self) -> usize {
        self.first_bytes + RECEIVE_BYTES_MIN
    }

    /// Receives the first bytes synchronously, and queues the rest of what the socket has.
    fn receive_ahead(&mut self) -> io::Result<usize> {
        // The caller needs these bytes now and cannot overlap anything with them. A peer that
        // sends only so few bytes is served as without a service.
        let first = self.receive_first(self.first_bytes)?;
        if first < self.first_bytes {
            return Ok(first);
        }
        // The next receive reports the error again.
        let ready = rustix::io::ioctl_fionread(&self.socket).unwrap_or(0);
        let rest = usize::try_from(ready).unwrap_or(usize::MAX).min(self.room());
        if rest < RECEIVE_BYTES_MIN {
            return Ok(first);
        }
        if self.always_queued || self.tuner.usual() == Verdict::Queue {
            self.wake_bytes = WAKE_BYTES_MIN;
        }
        Ok(first + self.submit(rest))
    }

    /// As [`Inbound::receive_here`]; a round that waits for the peer is not timed.
    fn receive_first(&mut self, most: usize) -> io::Result<usize> {
        if self.tuner.is_timed() {
            match self.receive_some(most, RecvFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.tuner.spoil(),
                received => return received,
            }
        }
        self.receive_here(most)
    }

    /// Queues receives of `count` bytes, or of fewer if the queue is full. Returns the number
    /// queued.
    fn submit(&mut self, count: usize) -> usize {
        let step = self.chunk_bytes.max(count.div_ceil(CHUNKS_MAX));
        let (begin, end) = (self.filled, self.filled + count);
        while self.filled < end {
            // The last task includes a small remainder.
            let left = end - self.filled;
            let len = if left < step + step / 2 { left } else { step };
            let len = len.min(crate::TASK_BYTES_MAX);
            let dst = self.base.as_ptr().expose_provenance() + self.filled;
            let Some(ticket) = self.copier.acquire(len, dst..dst + len) else { break };
            let mut task = Task::copy(dst as u64, 0, len as u32);
            task.kind = unlade_shm::Kind::Receive;
            task.fd = self.socket.as_raw_fd();
            let _token = self.copier.publish(ticket, Kind::Receive, task, &CopyOptions::default());
            self.chunks.push(Chunk { ticket, start: self.filled, len });
            self.filled += len;
        }
        self.filled - begin
    }

    /// Receives up to `most` bytes, which fit in the buffer; all tasks are completed.
    fn receive_here(&mut self, most: usize) -> io::Result<usize> {
        self.receive_some(most, RecvFlags::empty())
    }

    fn receive_some(&mut self, most: usize, flags: RecvFlags) -> io::Result<usize> {
        // SAFETY: these bytes are within the buffer and initialised. All tasks are completed, so no
        // task touches them, and `self` is borrowed exclusively, so no reference to them exists.
        let buffer =
            unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(self.filled), most) };
        let (_, count) = rustix::net::recv(&self.socket, &mut *buffer, flags)?;
        let count = count.min(most);
        self.filled += count;
        self.missed_bytes += count as u64;
        if self.missed_bytes >= self.wake_bytes && !self.copier.is_awake() {
            self.missed_bytes = 0;
            self.wake_bytes = (2 * self.wake_bytes).min(WAKE_BYTES_MAX);
            self.copier.ring();
        }
        Ok(count)
    }

    /// Completes all tasks. Returns the first error, which stays until the buffer is emptied.
    fn complete_all(&self) -> Result<(), CopyError> {
        self.complete(0..self.filled)
    }

    #[inline]
    fn complete(&self, range: Range<usize>) -> Result<(), CopyError> {
        // Without tasks all bytes were received synchronously.
        if self.chunks.is_empty() { Ok(()) } else { self.complete_chunks(range) }
    }

    fn complete_chunks(&self, range: Range<usize>) -> Result<(), CopyError> {
        let mut completed = Ok(());
        for (chunk, bits) in self.touching(range) {
            if !self.copier.queue().progress(chunk.ticket).is_done(bits) {
                self.help(chunk.start + chunk.len);
            }
            completed = completed.and(self.copier.complete(chunk.ticket, bits));
        }
        completed
    }

    /// Receives the unclaimed tasks that end at `end` or before: the service may be busy, or its
    /// thread preempted.
    #[cold]
    fn help(&self, end: usize) {
        let wanted = self.chunks.iter().take_while(|chunk| chunk.start + chunk.len <= end);
        for (number, chunk) in wanted.enumerate() {
            let all = chunk.all();
            let progress = self.copier.queue().progress(chunk.ticket);
            if !progress.is_done(all) && progress.claim_all_or_none(all) {
                // SAFETY: the bytes are within the buffer, and the socket is open. The claim gives
                // them to this thread; all earlier tasks at the socket are done.
                match unsafe { crate::blocking::wait_for_all(&self.queued(chunk), 0) } {
                    Ok(()) => progress.finish(all),
                    Err(error) => progress.fail(TaskFailure::of_socket(&error).code(), all),
                };
            }
            if self.copier.complete(chunk.ticket, all).is_err() {
                return self.fail_behind(number);
            }
        }
    }

    /// Fails the tasks behind a failed one: their bytes are not what the peer sent next, and may
    /// never come.
    fn fail_behind(&self, number: usize) {
        for chunk in &self.chunks[number + 1..] {
            let progress = self.copier.queue().progress(chunk.ticket);
            if !progress.is_done(chunk.all()) && progress.claim_all_or_none(chunk.all()) {
                progress.fail(TaskFailure::Ended.code(), chunk.all());
            }
        }
    }

    fn queued(&self, chunk: &Chunk) -> Queued {
        Queued {
            kind: Kind::Receive,
            dst: self.base.as_ptr().addr() + chunk.start,
            src: self.socket.as_raw_fd() as usize,
            len_bytes: chunk.len as u32,
            granule_shift: segment::granule_shift_for(chunk.len as u32),
            is_lazy: false,
            streams: false,
        }
    }

    /// The tasks that overlap `range`, each with the segments that do.
    #[inline]
    fn touching(&self, range: Range<usize>) -> impl Iterator<Item = (&Chunk, u32)> {
        let first = self.chunks.partition_point(|chunk| chunk.start + chunk.len <= range.start);
        let rest = self.chunks[first..].iter();
        rest.take_while(move |chunk| chunk.start < range.end).map(move |chunk| {
            let start = range.start.max(chunk.start) - chunk.start;
            let end = range.end.min(chunk.start + chunk.len) - chunk.start;
            let (len, shift) = (chunk.len as u32, segment::granule_shift_for(chunk.len as u32));
            (chunk, segment::bits_of_range(start as u32..end as u32, len, shift))
        })
    }

    /// Returns true if the bytes of `range` were received; does not wait.
    #[inline]
    pub fn is_ready(&self, range: Range<usize>) -> bool {
        let queue = self.copier.queue();
        self.touching(range).all(|(chunk, bits)| queue.progress(chunk.ticket).is_done(bits))
    }

    /// Waits for the bytes of `range`, and returns them.
    ///
    /// # Errors
    /// [`CopyError`]: the bytes were not received. The following bytes in the socket are not what
    /// the peer sent next: the stream is unusable.
    ///
    /// # Panics
    /// Panics if `range` is not within [`Inbound::len`].
    #[inline]
    pub fn sync(&self, range: Range<usize>) -> Result<&[u8], CopyError> {
        self.check(&range);
        self.complete(range.clone())?;
        // SAFETY: within the buffer and initialised. The tasks that write these bytes are over,
        // later ones write behind `filled`, and changing the bytes requires an exclusive borrow.
        Ok(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) })
    }

    /// As [`Inbound::sync`], but mutable: for decryption in place.
    ///
    /// # Errors
    /// As for [`Inbound::sync`].
    ///
    /// # Panics
    /// As for [`Inbound::sync`].
    #[inline]
    pub fn sync_mut(&mut self, range: Range<usize>) -> Result<&mut [u8], CopyError> {
        self.check(&range);
        self.complete(range.clone())?;
        let start = self.base.as_ptr();
        // SAFETY: as in `sync`, and `self` is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) })
    }

    #[inline]
    fn check(&self, range: &Range<usize>) {
        let len = self.filled;
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len}");
    }

    /// Removes the bytes before `used` from the buffer, and moves the rest to its front. Waits for
    /// pending receives.
    ///
    /// # Errors
    /// As for [`Inbound::sync`]; the buffer is empty then.
    ///
    /// # Panics
    /// Panics if `used` is beyond [`Inbound::len`].
    pub fn consume(&mut self, used: usize) -> Result<(), CopyError> {
        self.check(&(used..self.filled));
        let completed = self.complete_all();
        self.tuner.end(self.worth_bytes());
        self.chunks.clear();
        let kept = if completed.is_ok() { self.filled - used } else { 0 };
        if kept > 0 && used > 0 {
            // SAFETY: both ranges are within the buffer, and all tasks are completed, so none
            // touches it.
            unsafe { std::ptr::copy(self.base.as_ptr().add(used), self.base.as_ptr(), kept) };
        }
        self.filled = kept;
        completed
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        // The error cannot be returned from `drop`.
        let _ = self.complete_all();
        let buffer = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.capacity);
        // SAFETY: allocated by `new` as a boxed slice of this length, freed once, and no task
        // touches it any more.
        drop(unsafe { Box::from_raw(buffer) });
    }
}

impl std::os::fd::AsFd for Inbound {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
