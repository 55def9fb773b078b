//! Deferred receives, so that bytes go straight from the socket to their final destination
//! (Copier, SOSP 2025, §4.4).
//!
//! A program that receives into an input buffer, parses a header and copies the body elsewhere,
//! copies the body twice. With this module the program reserves the bytes for the buffer
//! ([`Copier::receive_lazily`]), syncs the header ([`Copier::sync`]: only the header is received),
//! and requests delivery of the body ([`Copier::deliver`]). One system call then receives the body
//! into its destination and the rest into the buffer.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;

use rustix::net::RecvFlags;
use smallvec::SmallVec;
use unlade_copy_kernels::Hint;
use unlade_copy_service::TaskFailure;
use unlade_shm::segment::{self, Run};
use unlade_shm::{Flags, Task, Ticket};

use crate::blocking::{receive_all, socket};
use crate::completion::DEPTH_MAX;
use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::error::CopyError;
use crate::pending::{Kind, Queued};

/// Delay of a deferred receive, unless a sync or a copy needs its bytes. The bytes are safe in the
/// socket.
const DELAY_US: u32 = 10_000_000;

/// Bytes that are in a socket's queue and reserved for a buffer.
#[derive(Debug)]
#[must_use = "the bytes are there only after they are synced"]
pub struct Received {
    buffer: *mut u8,
    count: usize,
    token: Token,
}

impl Received {
    /// Number of bytes; 0 is the end of the stream.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The task. Sync each part of the buffer before reading it.
    pub fn token(&self) -> &Token {
        &self.token
    }
}

impl Copier {
    /// Receives what socket `fd` has, at most `len` bytes, when something needs it: a sync of its
    /// bytes, a copy or a send from them, or a later receive. A sync receives only the bytes that
    /// it needs.
    ///
    /// `FIONREAD` gives the number of bytes. Where it gives 0, the receive is synchronous. The
    /// count is what the socket had, mostly less than `len`. Reserved bytes always arrive,
    /// whatever the peer does afterwards: Linux returns the bytes in a socket's queue before it
    /// reports the end of the stream or a reset, which the next receive reports.
    ///
    /// If another reader took some of the bytes and the stream ended, the bytes that arrived stay
    /// valid. A sync of the rest, and any copy or send from the rest, fails.
    ///
    /// # Errors
    /// The socket's error: [`io::ErrorKind::WouldBlock`] where it has no bytes and is
    /// non-blocking.
    ///
    /// # Safety
    /// As for [`Copier::receive`], with `buffer` as the destination.
    pub unsafe fn receive_lazily(
        &self,
        fd: BorrowedFd<'_>,
        buffer: *mut u8,
        len: usize,
    ) -> io::Result<Received> {
        let ready = if self.remote().is_none() { self.unpromised(fd)? } else { 0 };
        let count = ready.min(len).min(TASK_BYTES_MAX);
        if count > 0
            && let Some(ticket) = self.acquire(count, buffer.addr()..buffer.addr() + count)
        {
            let mut task = Task::copy(buffer.addr() as u64, 0, count as u32);
            task.kind = unlade_shm::Kind::Receive;
            task.fd = fd.as_raw_fd();
            let options = CopyOptions { lazy_us: Some(DELAY_US), ..CopyOptions::default() };
            let token = self.publish(ticket, Kind::Receive, task, &options);
            return Ok(Received { buffer, count, token });
        }
        self.complete_socket(fd, buffer.addr(), 0, len);
        // SAFETY: `buffer` is valid for writes of `len` bytes, and no other thread touches them:
        // the caller's promise, and pending tasks are completed. Uninitialised bytes are not read.
        let bytes: &mut [MaybeUninit<u8>] =
            unsafe { slice::from_raw_parts_mut(buffer.cast(), len) };
        let ((received, _), _) = rustix::net::recv(fd, bytes, RecvFlags::empty())?;
        self.failures().overwrite(buffer.addr(), received.len());
        Ok(Received { buffer, count: received.len(), token: Token::DONE })
    }

    /// Moves the bytes `range` of what was received to `dst`. Afterwards the content of the buffer
    /// in this range is undefined, so that bytes that are not in the buffer yet need not pass
    /// through it.
    ///
    /// # Errors
    /// [`CopyError`]: the bytes are lost, as the receive has failed. If it fails later, the sync
    /// of the copy returns the error.
    ///
    /// # Safety
    /// As for [`Copier::submit`] of a copy from the buffer; and these bytes of the buffer are not
    /// read until something has been written there.
    ///
    /// # Panics
    /// Panics if `range` is not within the received bytes.
    pub unsafe fn deliver(
        &self,
        received: &Received,
        range: Range<usize>,
        dst: *mut u8,
    ) -> Result<Token, CopyError> {
        let count = received.count;
        assert!(range.start <= range.end && range.end <= count, "{range:?} of {count}");
        // SAFETY: within the buffer.
        let src = unsafe { received.buffer.add(range.start) };
        let len = range.len();
        // These bytes may never be in the buffer.
        self.make_deferred_where(|copy| copy.reading(src.addr(), len) != 0);
        if !received.token.has_task() || self.is_ready(&received.token, range.clone()) {
            // SAFETY: the caller's promise.
            return Ok(unsafe { self.submit(dst, src, len, &CopyOptions::default()) });
        }
        if !self.is_awake() {
            // SAFETY: the caller's promise.
            if let Some(delivered) = unsafe { self.deliver_here(received, range, dst) } {
                return delivered.map(|()| Token::DONE);
            }
        }
        let Some(ticket) = self.acquire_for(dst, src, len) else {
            // SAFETY: the caller's promise.
            return Ok(unsafe { self.submit(dst, src, len, &CopyOptions::default()) });
        };
        let mut task = Task::copy(dst.addr() as u64, src.addr() as u64, len as u32);
        task.flags = Flags::LAST_USE;
        Ok(self.publish(ticket, Kind::Copy, task, &CopyOptions::default()))
    }

    /// Sends the bytes `range` of what was received to socket `to`, and gives them up as
    /// [`Copier::deliver`] does. If they are the last bytes received, those that are not in the
    /// buffer yet go from socket to socket, after those that are.
    ///
    /// If `to` breaks, or the send is aborted, the bytes are out of their stream all the same: the
    /// receive succeeds, and the next receive begins behind them. A peer that does not read delays
    /// only later sends to it, and later receives from the same source.
    ///
    /// # Errors
    /// The socket's error, if the send is synchronous.
    ///
    /// # Safety
    /// As for [`Copier::send`] from the buffer; and these bytes of the buffer are not read until
    /// something has been written there.
    ///
    /// # Panics
    /// Panics if `range` is not within the received bytes.
    pub unsafe fn send_on(
        &self,
        received: &Received,
        range: Range<usize>,
        to: BorrowedFd<'_>,
    ) -> io::Result<Token> {
        let count = received.count;
        assert!(range.start <= range.end && range.end <= count, "{range:?} of {count}");
        // SAFETY: within the buffer.
        let src = unsafe { received.buffer.add(range.start) };
        let is_there = !received.token.has_task() || self.is_ready(&received.token, range.clone());
        // These bytes may never be in the buffer.
        self.make_deferred_where(|copy| {
            copy.reading(src.addr(), range.len()) | copy.writing(src.addr(), range.len()) != 0
        });
        let ticket = if is_there { None } else { self.acquire_here(range.len()) };
        let Some(ticket) = ticket else {
            // SAFETY: the caller's promise.
            return unsafe { self.send(to, src, range.len(), &CopyOptions::default()) };
        };
        Ok(self.send_last_use(ticket, to, src.addr(), range.len()))
    }

    /// As [`Copier::deliver`], in this thread: used while the service sleeps, because waking it
    /// takes longer. Returns `None` if another task or thread is involved.
    ///
    /// # Safety
    /// As for [`Copier::deliver`].
    unsafe fn deliver_here(
        &self,
        received: &Received,
        range: Range<usize>,
        dst: *mut u8,
    ) -> Option<Result<(), CopyError>> {
        let (ticket, buffer, count) = (received.token.ticket, received.buffer, received.count);
        let queued = self.pending().get(ticket).filter(|queued| queued.kind == Kind::Receive)?;
        let progress = self.queue().progress(ticket);
        if self.is_in_use(ticket, &queued, dst.addr(), range.len()) {
            return None;
        }
        let rest = queued.all() & !progress.done();
        if rest == 0 || !progress.claim_all_or_none(rest) {
            return None;
        }
        let run = Run { first: rest.trailing_zeros(), count: rest.count_ones() };
        let from = segment::bytes_of(run, queued.len_bytes, queued.granule_shift).start as usize;
        let split = range.start.max(from).min(range.end);
        let there = split - range.start;
        self.failures().overwrite(dst.addr(), range.len());
        // SAFETY: this thread holds the claim, and no other thread uses these bytes of the buffer
        // or of the destination; they do not overlap.
        let copied = unsafe { self.copy_now(dst, buffer.add(range.start), there, Hint::Reuse) };
        if copied.is_err() {
            progress.release(rest);
            return Some(Err(CopyError::Failed(TaskFailure::BadAddress)));
        }
        // SAFETY: this thread holds the claim, and no other thread uses these bytes of the buffer
        // or of the destination. The caller promises that both are valid; they do not overlap.
        let mut parts = unsafe {
            let part = |at: usize, end: usize| {
                slice::from_raw_parts_mut(buffer.add(at), end.saturating_sub(at))
            };
            [
                part(from, range.start.max(from)),
                slice::from_raw_parts_mut(dst.add(there), range.end - split),
                part(range.end.max(from), count),
            ]
        };
        let received = receive_all(socket(queued.source_socket()), &mut parts);
        Some(self.finish_receive(ticket, &queued, run, received))
    }

    /// Returns true if another pending task touches the receive's buffer or `len` bytes from `dst`
    /// on, or shares its socket.
    fn is_in_use(&self, ticket: Ticket, queued: &Queued, dst: usize, len: usize) -> bool {
        let head = self.queue().head();
        let (buffer, buffer_len) = (queued.dst, queued.len_bytes as usize);
        let mut at = self.pending().completed();
        while at < head {
            // A task that another thread has not noted yet is younger.
            if let Some(other) = self.pending().get(at).filter(|_| at != ticket) {
                let touching = other.writing(dst, len)
                    | other.reading(dst, len)
                    | other.writing(buffer, buffer_len)
                    | other.reading(buffer, buffer_len);
                let bits = if other.shares_socket(queued) { other.all() } else { touching };
                if bits != 0 && !self.queue().progress(at).is_done(bits) {
                    return true;
                }
            }
            at = at.next();
        }
        false
    }

    /// Receives the needed segments of a task, and those before them, in this thread. Returns
    /// false if another thread has claimed some of them, or the service should resolve the
    /// dependencies.
    pub(crate) fn receive_here(
        &self,
        ticket: Ticket,
        queued: &Queued,
        bits: u32,
        depth: u32,
    ) -> bool {
        let progress = self.queue().progress(ticket);
        let first = (progress.done() & queued.all()).trailing_ones();
        let behind = u32::BITS - (bits & queued.all()).leading_zeros();
        if behind <= first || depth >= DEPTH_MAX {
            return false;
        }
        let run = Run { first, count: behind - first };
        let bytes = segment::bytes_of(run, queued.len_bytes, queued.granule_shift);
        let (dst, len) = (queued.dst + bytes.start as usize, bytes.len());
        self.complete_at_socket_before(ticket, queued, depth);
        if !self.complete_conflicting(ticket, dst, 0, len, depth) {
            return false;
        }
        if !self.claim_all_or_none(ticket, run.bits()) {
            return false;
        }
        // A daemon that has just been killed may have moved the first bytes.
        let moved = (self.moved(ticket).max(bytes.start) - bytes.start) as usize;
        let (dst, len) = (dst + moved.min(len), len - moved.min(len));
        let start = std::ptr::with_exposed_provenance_mut::<u8>(dst);
        // SAFETY: the submitter promised that the task's bytes stay valid and unused by others
        // until the task is completed; these segments are not. This thread holds the claim, and no
        // older pending task touches the bytes.
        let mut parts = [unsafe { slice::from_raw_parts_mut(start, len) }];
        let (count, received) = receive_all(socket(queued.source_socket()), &mut parts);
        let received = (moved + count, received);
        // The waiter reads the error from the progress line.
        let _ = self.finish_receive(ticket, queued, run, received);
        true
    }

    /// Completes older tasks at the same socket: they run in order.
    pub(crate) fn complete_at_socket_before(&self, ticket: Ticket, queued: &Queued, depth: u32) {
        let mut at = self.pending().completed();
        while at < ticket {
            if let Some(older) = self.pending().get(at)
                && older.shares_socket(queued)
            {
                self.complete_slowly(at, older.all(), depth + 1);
            }
            at = at.next();
        }
    }

    /// Marks claimed segments as done or failed after a receive. First fails the tasks that copy
    /// or send from segments that were not received.
    fn finish_receive(
        &self,
        ticket: Ticket,
        queued: &Queued,
        run: Run,
        (count, received): (usize, io::Result<()>),
    ) -> Result<(), CopyError> {
        let progress = self.queue().progress(ticket);
        let Err(error) = received else {
            progress.finish(run.bits());
            return Ok(());
        };
        let failure = TaskFailure::of_socket(&error);
        let bytes = segment::bytes_of(run, queued.len_bytes, queued.granule_shift);
        let whole = (bytes.start as usize + count) >> queued.granule_shift;
        let there = Run { first: 0, count: whole as u32 }.bits() & run.bits();
        progress.finish(there);
        self.fail_readers(ticket, queued, run.bits() & !there, failure);
        progress.fail(failure.code(), run.bits() & !there);
        Err(CopyError::Failed(failure))
    }

    /// Fails claimed segments of a task at a socket of which a killed daemon may have moved some
    /// bytes, and the tasks that read them.
    pub(crate) fn lose(&self, ticket: Ticket, queued: &Queued, bits: u32) {
        if queued.kind == Kind::Receive {
            self.fail_readers(ticket, queued, bits, TaskFailure::CANCELLED);
        }
        self.queue().progress(ticket).fail(TaskFailure::CANCELLED.code(), bits);
    }

    /// Fails the tasks that read these segments, and transitively their readers, unless another
    /// task overwrites the bytes in between.
    fn fail_readers(&self, ticket: Ticket, queued: &Queued, bits: u32, failure: TaskFailure) {
        let head = self.queue().head();
        // Each segment of a pending task is pushed once at most, since it is claimed first.
        let mut lost: SmallVec<[(Ticket, Range<usize>); 8]> = SmallVec::new();
        lost.extend(written(ticket, queued, bits));
        while let Some((writer, span)) = lost.pop() {
            let (start, len) = (span.start, span.len());
            let mut at = writer.next();
            while at < head {
                let younger = self.pending().get(at);
                if let Some(reader) = younger.filter(|reader| reader.reading(start, len) != 0) {
                    let mine = self.claim(at, reader.reading(start, len));
                    if mine != 0 {
                        lost.extend(written(at, &reader, mine));
                        self.queue().progress(at).fail(failure.code(), mine);
                    }
                }
                if younger.is_some_and(|other| other.writing(start, len) != 0) {
                    break;
                }
                at = at.next();
            }
        }
    }
}

/// Memory ranges that segments of a task write.
fn written(
    ticket: Ticket,
    queued: &Queued,
    bits: u32,
) -> impl Iterator<Item = (Ticket, Range<usize>)> {
    let (dst, len, shift) = (queued.dst, queued.len_bytes, queued.granule_shift);
    let writes = matches!(queued.kind, Kind::Copy | Kind::Receive);
    segment::runs(if writes { bits } else { 0 }).map(move |run| {
        let bytes = segment::bytes_of(run, len, shift);
        (ticket, dst + bytes.start as usize..dst + bytes.end as usize)
    })
}
