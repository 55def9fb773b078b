//! A client of the copy service: submits, settles, runs handlers.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use unlade_copy_kernels::{Fault, Hint};
use unlade_copy_scheduler::admit::{Costs, INLINE_MAX_BYTES};
use unlade_copy_service::{Attachment, TaskFailure};
use unlade_shm::{Flags, Queue, SyncKind, SyncTask, Task, Ticket, WaitPolicy, Waited, segment};

use crate::at_once::{AtOnce, hint_for, is_refused};
use crate::error::CopyError;
use crate::failures::Failures;
use crate::fork::OnceInChild;
use crate::glance::line_ns;
use crate::link::Link;
use crate::pending::{Kind, Pending, Queued};
use crate::remote::Remote;
use crate::settle::told;
use crate::site::{Decision, Sites, nanos};
use crate::stats::Stats;

/// One task has at most so many bytes; longer copies are several.
pub const TASK_BYTES_MAX: usize = 1 << 20;
/// So many bytes are worth waking a service that sleeps: that takes as long as copying them.
const WAKE_BYTES: usize = 128 << 10;
/// A queue of the copy service, for any number of threads that share it.
///
/// Order is kept among the copies of one `Copier`: each sees the bytes as the ones submitted before
/// it leave them, as if all were `memcpy`. Copies of two `Copier`s know nothing of each other.
pub struct Copier {
    attachment: Link,
    pending: Pending,
    /// Copies by the threads of the program.
    at_once: AtOnce,
    sites: Sites,
    stats: Stats,
    /// When this client began.
    origin: Instant,
    /// Bytes queued since the service was last seen awake, or rung.
    unserved_bytes: AtomicU64,
    /// In a child: what the parent's threads had is given back.
    adopted: OnceInChild,
}

/// How a copy is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Put off for so many microseconds, or until something needs it.
    pub lazy_us: Option<u32>,
    /// Never at once, however small.
    pub queued: bool,
    /// What to run when all is copied and nobody reads the source any more, and its argument: the
    /// address of an `extern "C" fn(usize)`.
    pub handler: Option<(usize, usize)>,
    /// Where in the program the copy is asked for; 0 for nowhere.
    pub site: usize,
}

/// A copy that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the bytes are there only after it is settled"]
pub struct Token {
    /// Of one that was made at once: 0, or, where that failed, what its error is kept under.
    pub(crate) ticket: Ticket,
    /// 0: it was made at once.
    len_bytes: u32,
    granule_shift: u8,
    is_timed: bool,
}

impl Token {
    /// A copy that was made at once.
    pub(crate) const DONE: Token =
        Token { ticket: Ticket(0), len_bytes: 0, granule_shift: 0, is_timed: false };

    /// Whether the copy is in a queue, or was made at once.
    #[inline]
    pub fn is_queued(&self) -> bool {
        self.len_bytes != 0
    }

    /// Whether the copy was made at once, and failed: a sync says how.
    #[inline]
    pub fn has_failed_at_once(&self) -> bool {
        self.len_bytes == 0 && self.ticket.0 != 0
    }

    /// The segments of a range from the copy's start.
    #[inline]
    pub(crate) fn bits(&self, range: Range<usize>) -> u32 {
        let end = range.end.min(self.len_bytes as usize) as u32;
        segment::bits_of_range(range.start as u32..end, self.len_bytes, self.granule_shift)
    }
}

/// Where a copy is from and to.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub dst: *mut u8,
    pub src: *const u8,
    pub len: usize,
    /// What the whole copy wants of the caches.
    pub hint: Hint,
}

impl Copier {
    /// A client of the service that is behind `link`: an [`Attachment`](unlade_copy_service::Attachment), or a
    /// [`Remote`](crate::Remote).
    pub fn new(link: impl Into<Link>) -> Copier {
        let attachment = link.into();
        let queue = attachment.queue();
        let pending = Pending::new(queue.slots(), queue.tail());
        // What is shared with a daemon stays mapped.
        let is_local = attachment.local().is_some();
        Copier {
            pending,
            at_once: if is_local { AtOnce::guarded() } else { AtOnce::default() },
            sites: Sites::default(),
            stats: Stats::default(),
            origin: Instant::now(),
            unserved_bytes: AtomicU64::new(0),
            adopted: OnceInChild::default(),
            attachment,
        }
    }

    #[inline]
    pub(crate) fn queue(&self) -> &Queue {
        self.attachment.queue()
    }

    /// The service of this process, if that is who serves.
    #[inline]
    pub(crate) fn local(&self) -> Option<&Attachment> {
        self.attachment.local()
    }

    #[inline]
    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    #[inline]
    pub(crate) fn failures(&self) -> &Failures {
        self.at_once.failures()
    }

    /// Copies by the threads of the program, and the errors of all copies of this client.
    pub fn at_once(&self) -> &AtOnce {
        &self.at_once
    }

    #[inline]
    pub(crate) fn sites(&self) -> &Sites {
        &self.sites
    }

    /// What copies cost on this machine, as far as it is known.
    pub(crate) fn costs(&self) -> Costs {
        self.attachment.costs()
    }

    /// Nanoseconds since this client began.
    pub(crate) fn since_origin_ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// What this client has done.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.attachment.is_awake()
    }

    /// Whether this process is a child of the one that made the client: nobody serves it here.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        self.attachment.is_orphan()
    }

    /// Whether somebody serves the queue. Where not, copies are made by whoever waits for them. A
    /// system call where a daemon serves.
    pub fn is_served(&self) -> bool {
        self.attachment.is_served()
    }

    /// Wakes the service where it sleeps: it looks at what is queued. Without it, it does so when
    /// enough is queued, when somebody waits, or after a while.
    pub fn ring(&self) {
        self.attachment.ring();
    }

    /// Submits a copy of `len` bytes, at most [`TASK_BYTES_MAX`], or makes it at once where that
    /// is better.
    ///
    /// An address that is not mapped, or may not be read or written, is the error of the copy
    /// ([`TaskFailure::BadAddress`]), told by its syncs, and so are ranges that overlap or wrap
    /// ([`TaskFailure::Refused`]): who copies makes no difference. For that the service of this
    /// process handles SIGSEGV and SIGBUS. A thread that has them blocked, or a program that has
    /// replaced the handlers, gets what `memcpy` would get it.
    ///
    /// # Safety
    /// Until the copy is settled ([`Copier::sync`], [`Copier::sync_range`], [`Copier::sync_all`]):
    /// `src` is valid for reads of `len` bytes, and nobody writes them; `dst` is valid for writes,
    /// and nobody reads, writes or frees them; except by copies submitted here. They do not
    /// overlap. A handler is an `extern "C" fn(usize)` that may be called with its argument from
    /// any thread that calls [`Copier::run_handlers`].
    ///
    /// # Panics
    /// `len` is above [`TASK_BYTES_MAX`].
    #[inline(always)]
    pub unsafe fn submit(&self, dst: *mut u8, src: *const u8, len: usize, how: &How) -> Token {
        // SAFETY: the caller's promise.
        unsafe { self.submit_part(dst, src, len, len, how) }
    }

    /// As [`Copier::submit`], of a part of a copy of `whole_bytes`, which is submitted in parts: one
    /// that is too long for the caches goes past them.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    ///
    /// # Panics
    /// `len` is above [`TASK_BYTES_MAX`].
    #[inline(always)]
    pub unsafe fn submit_part(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        whole_bytes: usize,
        how: &How,
    ) -> Token {
        assert!(len <= TASK_BYTES_MAX, "{len} bytes in one task");
        let part = Part { dst, src, len, hint: hint_for(whole_bytes) };
        if is_refused(dst.addr(), src.addr(), len) {
            // SAFETY: the caller's promise.
            return unsafe { self.fail_at_once(part, TaskFailure::Refused, how) };
        }
        if how.queued || how.lazy_us.is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.submit_queued(part, how) };
        }
        if len >= INLINE_MAX_BYTES as usize {
            let decision = self.decide(len, how.site);
            if decision.timed {
                // SAFETY: the caller's promise.
                return unsafe { self.submit_timed(part, how, decision) };
            }
            if decision.queue {
                // SAFETY: the caller's promise.
                return unsafe { self.submit_queued(part, how) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.make_at_once(part, how) }
    }

    /// Queues a copy, or makes it at once where the queue is full.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    #[inline]
    unsafe fn submit_queued(&self, part: Part, how: &How) -> Token {
        match self.acquire_for(part.dst, part.src, part.len) {
            Some(ticket) => self.enqueue(ticket, part, how),
            // SAFETY: the caller's promise.
            None => unsafe { self.make_at_once(part, how) },
        }
    }

    #[inline(always)]
    pub(crate) fn decide(&self, len: usize, site: usize) -> Decision {
        let (is_awake, costs) = (|| self.attachment.is_awake(), || self.attachment.costs());
        self.sites.decide(site, len, is_awake, || self.backlog_bytes(), costs)
    }

    /// A ticket for what only a service of this process can do.
    #[inline]
    pub(crate) fn acquire(&self, len: usize) -> Option<Ticket> {
        let is_here = self.local().is_some() && !self.is_orphan();
        if len > 0 && is_here { self.queue().try_acquire() } else { None }
    }

    /// A ticket for a copy, if the service can reach its bytes.
    #[inline]
    pub(crate) fn acquire_for(&self, dst: *mut u8, src: *const u8, len: usize) -> Option<Ticket> {
        let is_shared = self.attachment.reaches(dst.addr(), src.addr(), len);
        if len > 0 && is_shared { self.queue().try_acquire() } else { None }
    }

    /// A copy of which it is to be learnt what it costs.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    #[cold]
    unsafe fn submit_timed(&self, part: Part, how: &How, decision: Decision) -> Token {
        let Part { dst, src, len, .. } = part;
        if decision.wake {
            self.ring();
        }
        let began = Instant::now();
        if decision.queue
            && let Some(ticket) = self.acquire_for(dst, src, len)
        {
            let token = self.enqueue(ticket, part, how);
            self.note_timing(ticket, how.site, began, decision.is_awake);
            return Token { is_timed: true, ..token };
        }
        // SAFETY: the caller's promise.
        let token = unsafe { self.make_at_once(part, how) };
        if token.has_failed_at_once() {
            return token;
        }
        let copy_ns = nanos(began);
        // SAFETY: the bytes were just written, and nobody else writes them before the copy is
        // settled.
        let line_ns = unsafe { line_ns(dst, len) };
        self.sites.learn_at_once((how.site, decision.is_awake), len, copy_ns, line_ns);
        token
    }

    /// # Safety
    /// As for [`Copier::submit`].
    #[inline(always)]
    unsafe fn make_at_once(&self, part: Part, how: &How) -> Token {
        self.stats.count_at_once(part.len);
        // SAFETY: the caller's promise.
        if unsafe { self.copy_at_once(part) }.is_err() {
            // SAFETY: the caller's promise.
            return unsafe { self.fail_at_once(part, TaskFailure::BadAddress, how) };
        }
        if let Some((function, argument)) = how.handler {
            // It may free the source, which older copies may still read.
            self.settle_for_write(part.src.addr(), part.len);
            // SAFETY: the caller's promise.
            unsafe { crate::handler::call(function, argument) };
        }
        Token::DONE
    }

    /// A copy that cannot be made: its error is kept for who syncs, and its handler runs.
    ///
    /// # Safety
    /// As for [`Copier::submit`], of the handler.
    #[cold]
    unsafe fn fail_at_once(&self, part: Part, failure: TaskFailure, how: &How) -> Token {
        let ticket = self.at_once.fail(part.dst.addr(), part.len, failure);
        if let Some((function, argument)) = how.handler {
            // It may free the source, which older copies may still read.
            self.settle_for_write(part.src.addr(), part.len);
            // SAFETY: the caller's promise.
            unsafe { crate::handler::call(function, argument) };
        }
        Token { ticket, ..Token::DONE }
    }

    #[inline]
    pub(crate) fn enqueue(&self, ticket: Ticket, part: Part, how: &How) -> Token {
        let Part { dst, src, len, hint } = part;
        let task = Task::copy(dst.addr() as u64, src.addr() as u64, len as u32);
        self.publish_with(ticket, Kind::Copy, task, how, hint == Hint::Stream)
    }

    /// Notes and publishes a task, and wakes the service where that is worth it.
    #[inline]
    pub(crate) fn publish(&self, ticket: Ticket, kind: Kind, task: Task, how: &How) -> Token {
        self.publish_with(ticket, kind, task, how, false)
    }

    #[inline]
    fn publish_with(
        &self,
        ticket: Ticket,
        kind: Kind,
        mut task: Task,
        how: &How,
        streams: bool,
    ) -> Token {
        let (len_bytes, granule_shift) = (task.len_bytes, task.granule_shift);
        let is_lazy = how.lazy_us.is_some();
        let (dst, src) = match kind {
            Kind::Copy => (task.dst as usize, task.src as usize),
            Kind::Receive => (task.dst as usize, task.fd as usize),
            Kind::Send => (task.fd as usize, task.src as usize),
            Kind::Forward => (task.extra as usize, task.fd as usize),
        };
        let queued = Queued { kind, dst, src, len_bytes, granule_shift, is_lazy, streams };
        self.keep_error_before(ticket);
        self.learn_before(ticket);
        if queued.writes() {
            self.failures().overwrite(dst, len_bytes as usize);
        }
        self.pending().note(ticket, &queued);
        if let Some(delay_us) = how.lazy_us {
            task.flags = task.flags | Flags::LAZY;
            task.delay_us = delay_us;
        }
        if streams && self.local().is_some() {
            task.flags = task.flags | Flags::STREAMS;
        }
        if let Some((function, argument)) = how.handler {
            task.flags = task.flags | Flags::HANDLER;
            (task.handler, task.argument) = (function as u64, argument as u64);
        }
        self.attachment.translate(ticket, &mut task);
        self.queue().publish(ticket, &task);
        if !is_lazy {
            self.wake_for(len_bytes as usize);
        }
        self.stats.count_queued(len_bytes as usize);
        Token { ticket, len_bytes, granule_shift, is_timed: false }
    }

    /// Wakes the service where it sleeps, and so much is queued that it is worth it.
    #[inline]
    pub(crate) fn wake_for(&self, len: usize) {
        if self.attachment.is_awake() {
            return;
        }
        let unserved = &self.unserved_bytes;
        let before = unserved.fetch_add(len as u64, Ordering::Relaxed);
        if before + len as u64 >= WAKE_BYTES as u64 {
            unserved.store(0, Ordering::Relaxed);
            self.ring();
        }
    }

    /// Copies now, after what is pending and touches the bytes.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for as long as this takes.
    #[inline(always)]
    unsafe fn copy_at_once(&self, Part { dst, src, len, hint }: Part) -> Result<(), Fault> {
        if self.pending().settled() != self.queue().head() {
            self.settle_touching(dst.addr(), src.addr(), len);
        }
        self.failures().overwrite(dst.addr(), len);
        // SAFETY: the caller's promise; and what is pending does not touch these bytes now.
        unsafe { self.copy_now(dst, src, len, hint) }
    }

    /// # Errors
    /// [`Fault`]: a byte cannot be read or written.
    ///
    /// # Safety
    /// What is mapped of `src` may be read, what is mapped of `dst` overwritten; they do not
    /// overlap, and nobody else writes either or reads `dst` meanwhile. Of a client of a daemon both
    /// are mapped.
    #[inline(always)]
    pub(crate) unsafe fn copy_now(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        hint: Hint,
    ) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.at_once.copy_now(dst, src, len, hint) }
    }

    /// Settles what a copy must come after. A pending copy that failed is no concern of this one:
    /// its destination is what it is, as after a `memcpy` that did not happen.
    #[cold]
    fn settle_touching(&self, dst: usize, src: usize, len: usize) {
        self.each_pending(|queued| {
            queued.writing(src, len) | queued.writing(dst, len) | queued.reading(dst, len)
        });
    }

    /// Whether the bytes are there, without waiting: those of `range`, from the copy's start.
    #[inline]
    pub fn is_ready(&self, token: &Token, range: Range<usize>) -> bool {
        !token.is_queued() || self.queue().progress(token.ticket).is_done(token.bits(range))
    }

    /// Waits until the bytes of `range`, from the copy's start, are there.
    ///
    /// # Errors
    /// [`CopyError`]: they will not be, or others of the copy. So it is however late this is asked.
    /// A client tells some hundred failures apart whose slots serve others; of more, a copy between
    /// two of them may be taken for one that failed, never the other way round.
    #[inline]
    pub fn sync(&self, token: &Token, range: Range<usize>) -> Result<(), CopyError> {
        if token.is_queued() {
            self.sync_queued(token, range)
        } else if token.has_failed_at_once() {
            self.sync_failed(token)
        } else {
            Ok(())
        }
    }

    /// Tells of the error of a copy that was made at once.
    #[cold]
    fn sync_failed(&self, token: &Token) -> Result<(), CopyError> {
        let code = self.failures().find(token.ticket);
        if let Some(code) = code {
            self.failures().tell(token.ticket, code);
        }
        told(code)
    }

    /// As [`Copier::sync`], for about `timeout` at most: false where the bytes are not there yet.
    /// Then wait again, or give the task up ([`Copier::abort`]): the peer of a socket may never
    /// take what is sent, nor send what is to be forwarded.
    ///
    /// Where nobody serves, nobody sends or receives meanwhile.
    ///
    /// # Errors
    /// As for [`Copier::sync`].
    pub fn sync_timeout(
        &self,
        token: &Token,
        range: Range<usize>,
        timeout: Duration,
    ) -> Result<bool, CopyError> {
        let is_there =
            !token.is_queued() || self.wait_until(token.ticket, token.bits(range.clone()), timeout);
        if is_there { self.sync(token, range).map(|()| true) } else { Ok(false) }
    }

    #[inline(never)]
    fn sync_queued(&self, token: &Token, range: Range<usize>) -> Result<(), CopyError> {
        let bits = token.bits(range);
        match token.is_timed {
            true => self.sync_timed(token.ticket, bits),
            false => self.settle(token.ticket, bits),
        }
    }

    /// Waits until every copy submitted before has written its share of the `len` bytes from
    /// `address` on (`csync` of the paper).
    ///
    /// # Errors
    /// [`CopyError`] where one failed, however long ago, unless somebody was told of it for these
    /// bytes, or a later copy writes them.
    pub fn sync_range(&self, address: usize, len: usize) -> Result<(), CopyError> {
        if self.pending().settled() != self.queue().head() {
            self.each_pending(|queued| queued.writing(address, len));
        }
        self.at_once.sync_range(address, len)
    }

    /// As [`Copier::sync_range`], and until nobody reads the bytes any more: before they are
    /// changed or freed.
    ///
    /// # Errors
    /// [`CopyError`] where a copy into the bytes failed, as for [`Copier::sync_range`].
    pub fn sync_for_write(&self, address: usize, len: usize) -> Result<(), CopyError> {
        self.settle_for_write(address, len);
        self.at_once.sync_range(address, len)
    }

    /// As [`Copier::sync_for_write`], for who has no use for an error: it is left to who syncs.
    pub fn settle_for_write(&self, address: usize, len: usize) {
        if self.pending().settled() != self.queue().head() {
            self.each_pending(|queued| queued.writing(address, len) | queued.reading(address, len));
        }
    }

    /// Waits for every copy submitted before, and runs the handlers that are due (`csync_all`).
    ///
    /// # Errors
    /// [`CopyError`] where one failed of which nobody was told.
    pub fn sync_all(&self) -> Result<(), CopyError> {
        self.each_pending(Queued::all);
        self.run_handlers();
        told(self.failures().take_all())
    }

    /// As [`Copier::sync_all`], with the error of a task from `since` on, or of a copy made at once
    /// from `at_once` on, that is left for who asks for it.
    pub(crate) fn sync_since(&self, since: Ticket, at_once: Ticket) -> Result<(), CopyError> {
        self.each_pending(Queued::all);
        self.run_handlers();
        told(self.failures().untold_since(since, at_once))
    }

    /// Gives up a copy: what of it nobody depends on is not made, and what its destination holds
    /// there is not defined. When this returns the copy is settled: its bytes may be used again.
    ///
    /// A send or a forward that waits for its socket ends with
    /// [`TaskFailure::CANCELLED`](crate::TaskFailure::CANCELLED): what has gone has gone, and who
    /// receives cannot tell how much that was meant to be. A receive takes its bytes out of the
    /// stream all the same; it ends so where they are not there, since somebody else took them.
    pub fn abort(&self, token: &Token) {
        if !token.is_queued() {
            // An error is nobody's concern any more.
            let _ = self.sync(token, 0..0);
            return;
        }
        self.adopt();
        let all = token.bits(0..token.len_bytes as usize);
        let progress = self.queue().progress(token.ticket);
        let wish = SyncTask { ticket: token.ticket, bits: all, kind: SyncKind::Abort };
        // A ring that is full stays so only as long as the service does not look.
        while self.queue().push_sync(wish).is_err() && self.is_served() {
            self.ring();
            std::thread::yield_now();
        }
        self.ring();
        // Without help, which would copy what is not wanted.
        let policy = WaitPolicy { slices_max: u32::MAX, ..WaitPolicy::default() };
        if progress.wait(all, &policy, || self.is_served()) != Waited::Done {
            // Nobody is there to give it up.
            let queued = self.pending().get(token.ticket);
            if queued.is_some_and(|queued| queued.outlet().is_some()) {
                // Nothing depends on it.
                progress.abort_rest(all);
            }
            self.settle_slowly(token.ticket, all, 0);
        }
        // An error is nobody's concern any more.
        if let Some(code) = progress.error() {
            self.failures().tell(token.ticket, code);
        }
    }

    /// As [`Copier::abort`], and where nobody serves what is not copied stays so.
    pub(crate) fn abandon(&self, token: &Token) {
        if token.is_queued() && !self.is_served() {
            self.take_back();
            self.queue().progress(token.ticket).abort_rest(token.bits(0..TASK_BYTES_MAX));
        }
        self.abort(token);
    }

    /// Runs the handlers that are due, in this thread; how many.
    pub fn run_handlers(&self) -> usize {
        if self.is_orphan() {
            // They are run in the parent.
            return 0;
        }
        if let Some(remote) = self.attachment.remote() {
            return self.run_remote_handlers(remote);
        }
        self.clear_event();
        let mut count = 0;
        while let Some(ticket) = self.queue().pop_handler() {
            let Some(Ok(task)) = self.queue().peek(ticket) else { continue };
            if self.queue().progress(ticket).take_handler() {
                // SAFETY: the line is this process's own: the service in this process does not
                // write lines. Who submitted the task promised that the handler may be called.
                unsafe { crate::handler::call(task.handler as usize, task.argument as usize) };
                count += 1;
            }
        }
        if !self.is_served() {
            count += self.run_left_handlers();
        }
        count
    }

    /// As [`Copier::run_handlers`], where the lines are not only this process's. Of a daemon that
    /// is gone no word comes: what its handlers wait for is made here.
    fn run_remote_handlers(&self, remote: &Remote) -> usize {
        let mut count = 0;
        while let Some(ticket) = self.queue().pop_handler() {
            count += usize::from(self.run_remote_handler(remote, ticket));
        }
        if remote.ledger().has_handlers() && !self.is_served() {
            count += self.run_left_handlers();
        }
        count
    }

    /// Runs the handler of a task, if it waits and the task is over.
    pub(crate) fn run_remote_handler(&self, remote: &Remote, ticket: Ticket) -> bool {
        let progress = self.queue().progress(ticket);
        let queued = self.pending().get(ticket);
        if queued.is_some_and(|queued| !progress.is_done(queued.all())) {
            return false;
        }
        let Some((function, argument)) = remote.ledger().take_handler(ticket) else { return false };
        progress.take_handler();
        // SAFETY: both are from this process's own memory. Who submitted the task promised that
        // the handler may be called; it is taken once.
        unsafe { crate::handler::call(function, argument) };
        true
    }

    /// The daemon, if one serves this client.
    pub fn remote(&self) -> Option<&Remote> {
        self.attachment.remote()
    }

    /// Claims what nobody has of `wanted`.
    #[inline]
    pub(crate) fn claim(&self, ticket: Ticket, wanted: u32) -> u32 {
        self.attachment.claim(ticket, wanted)
    }

    /// Nobody serves the queue any more: frees what was claimed and is not done. A service of this
    /// process ends between two copies, with none of its claims left; a daemon may be killed.
    pub(crate) fn take_back(&self) {
        if let Some(remote) = self.attachment.remote() {
            remote.take_back();
        }
        self.adopt();
    }

    /// In a child: gives back what threads of the parent had claimed and not done at the fork, so
    /// that whoever waits copies it. What they had at sockets ends: they do it in the parent.
    pub(crate) fn adopt(&self) {
        if self.is_orphan() {
            self.adopted.run(|| self.disown_threads());
        }
    }

    #[cold]
    fn disown_threads(&self) {
        let (tail, head) = (self.queue().tail().0, self.queue().head().0);
        for ticket in (tail..head).map(Ticket) {
            // None where another thread of the parent was about to submit it.
            let Some(queued) = self.pending().get(ticket) else { continue };
            let progress = self.queue().progress(ticket);
            let left = queued.all() & !progress.done();
            match queued.kind {
                Kind::Copy => progress.release(left & progress.claimed()),
                _ if left != 0 => {
                    progress.claim(left);
                    progress.fail(TaskFailure::CANCELLED.code(), left);
                }
                _ => {}
            }
        }
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pending = self.queue().head().0 - self.pending().settled().0;
        f.debug_struct("Copier").field("pending_max", &pending).finish_non_exhaustive()
    }
}

impl Drop for Copier {
    /// Settles everything: what the service still had to copy may go with the caller's stack.
    fn drop(&mut self) {
        // An error has nobody to tell it to.
        let _ = self.sync_handlers();
    }
}
