//! Client of the copy service: submits and completes copies, and runs handlers.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use unlade_copy_kernels::Hint;
use unlade_copy_kernels::probes::{self, NO_TICKET};
use unlade_copy_kernels::remap::Choice;
use unlade_copy_scheduler::admit::QUEUED_BYTES_MIN;
use unlade_copy_service::{Attachment, TaskFailure};
use unlade_shm::{Flags, Queue, Task, Ticket, segment};

use crate::admission::{Admission, Decision, Place, nanos};
use crate::at_once::{AtOnce, hint_for, is_refused};
use crate::cache_probe::line_ns;
use crate::deferred::Deferred;
use crate::error::{CopyError, to_result};
use crate::explain::{Serving, SiteNames};
use crate::failures::{AT_ONCE, DEFERRED, Failures};
use crate::fork::OnceInChild;
use crate::link::Link;
use crate::pending::{Kind, Pending, Queued};
use crate::remote::Remote;
use crate::stats::Stats;
use crate::window_probe::WindowProbe;

/// Maximum number of bytes of one task; longer copies are several tasks.
pub const TASK_BYTES_MAX: usize = 1 << 20;
/// Waking a sleeping service takes as long as copying this number of bytes.
const WAKE_BYTES: usize = 128 << 10;
/// A queue of the copy service, shared by any number of threads.
///
/// Copies of one `Copier` are ordered: each sees the bytes as the earlier ones leave them, as if
/// all were `memcpy`. Copies of two `Copier`s are not ordered with each other.
pub struct Copier {
    attachment: Link,
    pending: Pending,
    /// Copies that stay here until something looks at them.
    deferred: Deferred,
    /// Copies by the threads of the program.
    at_once: AtOnce,
    admission: Admission,
    /// Window of a synchronous copy.
    window: WindowProbe,
    stats: Stats,
    /// Creation time of this client.
    origin: Instant,
    /// Bytes queued since the service was last seen awake, or woken.
    unserved_bytes: AtomicU64,
    /// In a child after a fork: the claims of the parent's threads have been released.
    orphaned: OnceInChild,
    pub(crate) remaps: Choice,
}

/// Options of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Defers the copy for this number of microseconds, or until something needs it. `u32::MAX`:
    /// until something needs it. The client then keeps the copy itself, unless it has a handler or
    /// must be queued, and it is never made if its destination is overwritten or it is aborted.
    /// Later copies and sends of its destination read its source: call
    /// [`Copier::sync_for_write`] for the source before it is changed, even if the copy was synced.
    pub lazy_us: Option<u32>,
    /// Queues the copy even if it is small.
    pub queued: bool,
    /// Handler and its argument: the address of an `extern "C" fn(usize)`. It runs when all bytes
    /// are copied and the source is no longer read.
    pub handler: Option<(usize, usize)>,
    /// Identifies the call site in the program; 0 if unknown.
    pub site: usize,
}

/// A submitted copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the bytes are there only after it is completed"]
pub struct Token {
    /// For a synchronous copy: 0, or, if it failed, the ticket under which its error is kept.
    pub(crate) ticket: Ticket,
    /// 0 for a synchronous copy.
    len_bytes: u32,
    /// For a synchronous copy: the number of the probe of its window; 0 without one.
    granule_shift: u8,
    is_timed: bool,
}

impl Token {
    /// A synchronous copy.
    pub(crate) const DONE: Token =
        Token { ticket: Ticket(0), len_bytes: 0, granule_shift: 0, is_timed: false };

    /// A synchronous copy that failed.
    pub(crate) fn failed(ticket: Ticket) -> Token {
        Token { ticket, ..Token::DONE }
    }

    /// A copy that the client keeps.
    pub(crate) fn kept(ticket: Ticket) -> Token {
        Token { ticket, ..Token::DONE }
    }

    /// The number of a copy that the client keeps, or has kept.
    #[inline]
    pub(crate) fn deferral(&self) -> Option<u64> {
        let is_deferred = self.len_bytes == 0 && self.ticket.0 & (AT_ONCE | DEFERRED) == DEFERRED;
        is_deferred.then_some(self.ticket.0 & !DEFERRED)
    }

    /// Returns true if the copy is queued, or kept by the client until something needs it; false if
    /// it was synchronous.
    #[inline]
    pub fn is_queued(&self) -> bool {
        self.has_task() || self.deferral().is_some()
    }

    /// Returns true if the copy is a task of the queue.
    #[inline]
    pub(crate) fn has_task(&self) -> bool {
        self.len_bytes != 0
    }

    /// Returns true if nothing is left to do for the copy: it was synchronous, succeeded, and its
    /// window is not measured.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.len_bytes == 0 && self.ticket.0 == 0 && !self.is_timed
    }

    /// Returns true if the copy was synchronous and failed; a sync returns the error.
    #[inline]
    pub fn has_failed_at_once(&self) -> bool {
        self.len_bytes == 0 && self.ticket.0 & AT_ONCE != 0
    }

    /// The segments of a range, relative to the copy's start.
    #[inline]
    pub(crate) fn bits(&self, range: Range<usize>) -> u32 {
        let end = range.end.min(self.len_bytes as usize) as u32;
        segment::bits_of_range(range.start as u32..end, self.len_bytes, self.granule_shift)
    }
}

/// Source and destination of a copy.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub dst: *mut u8,
    pub src: *const u8,
    pub len: usize,
    /// Cache hint of the whole copy.
    pub hint: Hint,
    /// The call site and the class of the whole copy.
    pub place: Place,
}

impl Copier {
    /// Creates a client of the service behind `link`: an
    /// [`Attachment`](unlade_copy_service::Attachment), or a [`Remote`](crate::Remote).
    pub fn new(link: impl Into<Link>) -> Copier {
        let attachment = link.into();
        let queue = attachment.queue();
        let pending = Pending::new(queue.slots(), queue.tail());
        // Memory shared with a daemon stays mapped, so it needs no guard.
        let is_local = attachment.local().is_some();
        let serving = if is_local { Serving::Threads } else { Serving::Daemon };
        let copier = Copier {
            pending,
            deferred: Deferred::default(),
            at_once: if is_local { AtOnce::guarded() } else { AtOnce::default() },
            admission: Admission::explained(serving),
            window: WindowProbe::default(),
            stats: Stats::default(),
            origin: Instant::now(),
            unserved_bytes: AtomicU64::new(0),
            orphaned: OnceInChild::default(),
            remaps: Choice::default(),
            attachment,
        };
        // Its first copies are looked at: those that are too short for the admission are noted.
        copier.attention().raise();
        copier
    }

    /// Kind of the program's call sites, to name them in explanations ([`explain`](crate::explain)).
    /// The default is that of [`Scope::copy`](crate::Scope::copy).
    pub fn with_site_names(mut self, names: SiteNames) -> Copier {
        self.admission.set_names(names);
        self
    }

    #[inline]
    pub(crate) fn queue(&self) -> &Queue {
        self.attachment.queue()
    }

    #[inline]
    pub(crate) fn link(&self) -> &Link {
        &self.attachment
    }

    /// The service of this process, or `None` if a daemon serves.
    #[inline]
    pub(crate) fn local(&self) -> Option<&Attachment> {
        self.attachment.local()
    }

    #[inline]
    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    #[inline]
    pub(crate) fn deferred(&self) -> &Deferred {
        &self.deferred
    }

    #[inline]
    pub(crate) fn failures(&self) -> &Failures {
        self.at_once.failures()
    }

    /// Copies by the threads of the program, and the errors of all copies of this client.
    #[inline]
    pub fn at_once(&self) -> &AtOnce {
        &self.at_once
    }

    #[inline]
    pub(crate) fn window(&self) -> &WindowProbe {
        &self.window
    }

    #[inline]
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Nanoseconds since the creation of this client.
    pub(crate) fn since_origin_ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// Counters of this client.
    #[inline]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.attachment.is_awake()
    }

    /// Returns true if this process is a child of the one that created the client. No service runs
    /// for it here.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        self.attachment.is_orphan()
    }

    /// Returns true if a service serves the queue. Otherwise the waiter makes the copies. This is
    /// a system call for a client of a daemon.
    pub fn is_served(&self) -> bool {
        self.attachment.is_served()
    }

    /// Wakes the service if it sleeps, so that it polls the queue. Without this call it wakes up
    /// when enough is queued, when a thread waits, or after a while.
    pub fn ring(&self) {
        self.attachment.ring();
    }

    /// Submits a copy of `len` bytes, at most [`TASK_BYTES_MAX`], or copies synchronously if that
    /// is cheaper.
    ///
    /// An address that is not mapped or not accessible fails the copy with
    /// [`TaskFailure::BadAddress`], which its syncs return. Ranges that overlap or wrap fail with
    /// [`TaskFailure::Refused`]. This does not depend on which thread copies. For this purpose the
    /// service of this process handles SIGSEGV and SIGBUS. In a thread that blocks these signals,
    /// or in a program that has replaced the handlers, a bad address has the same effect as in
    /// `memcpy`.
    ///
    /// # Safety
    /// Until the copy is completed ([`Copier::sync`], [`Copier::sync_range`],
    /// [`Copier::sync_all`]): `src` is valid for reads of `len` bytes and is not written; `dst` is
    /// valid for writes and is not read, written or freed; except by copies submitted here. They
    /// do not overlap. A handler is an `extern "C" fn(usize)` that may be called with its argument
    /// from any thread that calls [`Copier::run_handlers`].
    ///
    /// # Panics
    /// Panics if `len` is above [`TASK_BYTES_MAX`].
    #[inline(always)]
    pub unsafe fn submit(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        options: &CopyOptions,
    ) -> Token {
        // SAFETY: the caller's promise.
        unsafe { self.submit_part(dst, src, len, len, options) }
    }

    /// As [`Copier::submit`], for one part of a copy of `whole_bytes` that is submitted in parts.
    /// If the whole copy exceeds the caches, its parts use non-temporal stores.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    ///
    /// # Panics
    /// Panics if `len` is above [`TASK_BYTES_MAX`].
    #[inline(always)]
    pub unsafe fn submit_part(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        whole_bytes: usize,
        options: &CopyOptions,
    ) -> Token {
        assert!(len <= TASK_BYTES_MAX, "{len} bytes in one task");
        let place = Place::of(options.site, whole_bytes);
        let part = Part { dst, src, len, hint: hint_for(whole_bytes), place };
        if is_refused(dst.addr(), src.addr(), len) {
            probes::submit(dst.addr(), src.addr(), len, NO_TICKET, options.site);
            // SAFETY: the caller's promise.
            return unsafe { self.fail_at_once(part, TaskFailure::Refused, options) };
        }
        if self.may_defer(options) {
            // SAFETY: the caller's promise.
            return unsafe { self.defer(part) };
        }
        if !self.attention().is_quiet() {
            // SAFETY: the caller's promise.
            return unsafe { self.submit_past_deferred(part, options) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.submit_now(part, options) }
    }

    /// # Safety
    /// As for [`Copier::submit`].
    #[inline(never)]
    unsafe fn submit_past_deferred(&self, part: Part, options: &CopyOptions) -> Token {
        if !options.queued && options.lazy_us.is_none() {
            self.note_short(&part);
        }
        let part = self.past_deferred(part, options.handler.is_some());
        // SAFETY: the caller's promise.
        unsafe { self.submit_now(part, options) }
    }

    /// # Safety
    /// As for [`Copier::submit`].
    #[inline(always)]
    unsafe fn submit_now(&self, part: Part, options: &CopyOptions) -> Token {
        if options.queued || options.lazy_us.is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.submit_queued(part, options) };
        }
        if part.len >= QUEUED_BYTES_MIN as usize {
            let decision = self.decide(part.len, part.place);
            if decision.timed {
                // SAFETY: the caller's promise.
                return unsafe { self.submit_timed(part, options, decision) };
            }
            if decision.queue {
                // SAFETY: the caller's promise.
                return unsafe { self.submit_queued(part, options) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.make_at_once(part, options) }
    }

    /// Queues a copy, or copies synchronously if the queue is full.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    #[inline]
    unsafe fn submit_queued(&self, part: Part, options: &CopyOptions) -> Token {
        match self.acquire_for(part.dst, part.src, part.len) {
            Some(ticket) => self.enqueue(ticket, part, options),
            // SAFETY: the caller's promise.
            None => unsafe { self.make_unqueued(part, options) },
        }
    }

    /// Makes a copy that could not be queued.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    #[inline(never)]
    unsafe fn make_unqueued(&self, part: Part, options: &CopyOptions) -> Token {
        if !options.queued && options.lazy_us.is_none() {
            self.note_unqueued(&part);
        }
        // SAFETY: the caller's promise.
        unsafe { self.make_at_once(part, options) }
    }

    #[cold]
    fn note_unqueued(&self, part: &Part) {
        let is_reachable = self.attachment.reaches(part.dst.addr(), part.src.addr(), part.len);
        self.admission.note_unqueued(part.place, is_reachable);
    }

    /// Notes a copy that the admission does not see, for explanations. Only where the copy is
    /// looked at anyway.
    pub(crate) fn note_short(&self, part: &Part) {
        if part.len < QUEUED_BYTES_MIN as usize {
            self.admission.note_short(part.place, part.len);
        }
    }

    /// Number of copies of `len` bytes at `site` that this thread makes at once before one is
    /// timed, as far as the thread knows; none if it queues them.
    pub fn left_at_once(&self, site: usize, len: usize) -> Option<u32> {
        self.admission.left_at_once(Place::of(site, len)).map(u32::from)
    }

    /// Has this thread's next copy of `len` bytes at `site` ask the admission.
    pub fn ask_about(&self, site: usize, len: usize) {
        self.admission.expire(Place::of(site, len));
    }

    #[inline(always)]
    pub(crate) fn decide(&self, len: usize, place: Place) -> Decision {
        let (is_awake, costs) = (|| self.attachment.is_awake(), || self.attachment.costs());
        self.admission.decide(place, len, is_awake, || self.backlog_bytes(), costs)
    }

    /// Acquires a ticket for a task of `len` bytes at a socket, which only a service of this
    /// process can execute. Makes the deferred copies that meet the `written` memory.
    #[inline]
    pub(crate) fn acquire(&self, len: usize, written: Range<usize>) -> Option<Ticket> {
        let (dst, count) = (written.start, written.len());
        self.make_deferred_where(|copy| copy.writing(dst, count) | copy.reading(dst, count) != 0);
        self.acquire_here(len)
    }

    /// As [`Copier::acquire`], for a task that writes no memory.
    #[inline]
    pub(crate) fn acquire_here(&self, len: usize) -> Option<Ticket> {
        let is_here = self.local().is_some() && !self.is_orphan();
        if len > 0 && is_here { self.queue().try_acquire() } else { None }
    }

    /// Acquires a ticket for a copy, if the service can access its bytes.
    #[inline]
    pub(crate) fn acquire_for(&self, dst: *mut u8, src: *const u8, len: usize) -> Option<Ticket> {
        if !self.attention().is_quiet() {
            self.make_deferred_meeting(dst.addr(), src.addr(), len);
        }
        let is_shared = self.attachment.reaches(dst.addr(), src.addr(), len);
        if len > 0 && is_shared { self.queue().try_acquire() } else { None }
    }

    /// Submits a copy and measures its cost.
    ///
    /// # Safety
    /// As for [`Copier::submit`].
    #[cold]
    unsafe fn submit_timed(&self, part: Part, options: &CopyOptions, decision: Decision) -> Token {
        let Part { dst, src, len, place, .. } = part;
        if decision.wake {
            self.ring();
        }
        let began = Instant::now();
        if decision.queue
            && let Some(ticket) = self.acquire_for(dst, src, len)
        {
            let token = self.enqueue(ticket, part, options);
            self.note_timing(ticket, place, began, decision.is_awake);
            return Token { is_timed: true, ..token };
        }
        if decision.queue {
            self.note_unqueued(&part);
        }
        // SAFETY: the caller's promise.
        let token = unsafe { self.make_at_once(part, options) };
        if token.has_failed_at_once() {
            return token;
        }
        let copy_ns = nanos(began);
        // SAFETY: the bytes were just written, and no other thread writes them before the copy is
        // completed.
        let line_ns = unsafe { line_ns(dst, len) };
        self.admission.learn_at_once(place, len, copy_ns, line_ns);
        let (number, replaced) = self.window.begin(place, dst.addr(), src.addr(), len);
        self.attention().raise();
        self.learn_window(replaced);
        number.map_or(token, |number| Token { granule_shift: number, is_timed: true, ..token })
    }

    #[inline]
    pub(crate) fn enqueue(&self, ticket: Ticket, part: Part, options: &CopyOptions) -> Token {
        let Part { dst, src, len, hint, place } = part;
        probes::submit(dst.addr(), src.addr(), len, ticket.0, options.site);
        let task = Task::copy(dst.addr() as u64, src.addr() as u64, len as u32);
        // A copy that the program wants queued, or deferred, teaches nothing.
        let is_chosen = !options.queued && options.lazy_us.is_none();
        let place = if is_chosen { place.to_bits() } else { 0 };
        self.publish_with(ticket, Kind::Copy, task, options, hint == Hint::Stream, place)
    }

    /// Notes and publishes a task, and wakes the service if enough is queued.
    #[inline]
    pub(crate) fn publish(
        &self,
        ticket: Ticket,
        kind: Kind,
        task: Task,
        options: &CopyOptions,
    ) -> Token {
        self.publish_with(ticket, kind, task, options, false, 0)
    }

    #[inline]
    fn publish_with(
        &self,
        ticket: Ticket,
        kind: Kind,
        mut task: Task,
        options: &CopyOptions,
        streams: bool,
        place: u64,
    ) -> Token {
        let (len_bytes, granule_shift) = (task.len_bytes, task.granule_shift);
        let is_lazy = options.lazy_us.is_some();
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
        self.pending().note(ticket, &queued, place);
        if let Some(delay_us) = options.lazy_us {
            task.flags = task.flags | Flags::LAZY;
            task.delay_us = delay_us;
        }
        if streams && self.local().is_some() {
            task.flags = task.flags | Flags::STREAMS;
        }
        if let Some((function, argument)) = options.handler {
            task.flags = task.flags | Flags::HANDLER;
            (task.handler, task.argument) = (function as u64, argument as u64);
        }
        self.attachment.translate(ticket, &mut task);
        self.attention().raise();
        self.queue().publish(ticket, &task);
        if !is_lazy {
            self.wake_for(len_bytes as usize);
        }
        self.stats.count_queued(len_bytes as usize);
        Token { ticket, len_bytes, granule_shift, is_timed: false }
    }

    /// Wakes a sleeping service if the queued bytes are worth it.
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

    /// Returns true if the bytes of `range`, from the copy's start, are copied; does not wait.
    #[inline]
    pub fn is_ready(&self, token: &Token, range: Range<usize>) -> bool {
        match token.has_task() {
            true => self.queue().progress(token.ticket).is_done(token.bits(range)),
            false => token.deferral().is_none_or(|id| !self.is_deferred(id)),
        }
    }

    /// Waits until the bytes of `range`, from the copy's start, are copied.
    ///
    /// # Errors
    /// [`CopyError`]: these bytes, or others of the copy, were not copied. The error does not
    /// expire. A client keeps some hundred failures of tasks whose slots were reused. If there are
    /// more, a copy between two failed ones may also be reported as failed, but never the reverse.
    #[inline]
    pub fn sync(&self, token: &Token, range: Range<usize>) -> Result<(), CopyError> {
        if token.has_task() {
            self.sync_queued(token, range)
        } else if token.is_over() {
            Ok(())
        } else {
            self.sync_at_once(token)
        }
    }

    /// Returns the error of a synchronous copy, ends the measurement of its window, or makes a copy
    /// that the client has kept.
    #[cold]
    fn sync_at_once(&self, token: &Token) -> Result<(), CopyError> {
        if token.is_timed {
            self.learn_window(self.window.end_numbered(token.granule_shift));
            return Ok(());
        }
        if let Some(id) = token.deferral() {
            self.make_deferred_numbered(id);
        }
        let code = self.failures().find(token.ticket);
        if let Some(code) = code {
            self.failures().mark_reported(token.ticket, code);
        }
        to_result(code)
    }

    /// As [`Copier::sync`], for about `timeout` at most. Returns false if the bytes are not there
    /// yet. Then wait again, or abort the task ([`Copier::abort`]): the peer of a socket may never
    /// read what is sent, nor send what is to be forwarded.
    ///
    /// Without a service no bytes are sent or received during this call.
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
            !token.has_task() || self.wait_until(token.ticket, token.bits(range.clone()), timeout);
        if is_there { self.sync(token, range).map(|()| true) } else { Ok(false) }
    }

    #[inline(never)]
    fn sync_queued(&self, token: &Token, range: Range<usize>) -> Result<(), CopyError> {
        probes::sync(range.start, range.len(), token.ticket.0);
        let bits = token.bits(range);
        match token.is_timed {
            true => self.sync_timed(token.ticket, bits),
            false => self.complete(token.ticket, bits),
        }
    }

    /// Waits until every earlier copy has written its part of the `len` bytes from `address` on
    /// (`csync` of the paper).
    ///
    /// # Errors
    /// [`CopyError`] if a copy failed, however long ago, unless its error was already reported for
    /// these bytes, or a later copy writes them.
    #[inline]
    pub fn sync_range(&self, address: usize, len: usize) -> Result<(), CopyError> {
        probes::sync(address, len, NO_TICKET);
        if self.attention().is_quiet() { Ok(()) } else { self.sync_range_slowly(address, len) }
    }

    #[inline(never)]
    fn sync_range_slowly(&self, address: usize, len: usize) -> Result<(), CopyError> {
        let kept = address..address.saturating_add(len);
        if self.pending().completed() != self.queue().head()
            || self.deferred.may_touch(&kept, false)
        {
            self.each_pending_of(kept, |queued| queued.writing(address, len));
        }
        if self.window.is_active() {
            self.learn_window(self.window.end_at(address, len, false));
        }
        let synced = self.at_once.sync_range(address, len);
        self.settle();
        synced
    }

    /// As [`Copier::sync_range`], and waits until no copy reads the bytes: call this before they
    /// are changed or freed.
    ///
    /// # Errors
    /// [`CopyError`] where a copy into the bytes failed, as for [`Copier::sync_range`].
    #[inline]
    pub fn sync_for_write(&self, address: usize, len: usize) -> Result<(), CopyError> {
        probes::sync(address, len, NO_TICKET);
        if self.attention().is_quiet() {
            return Ok(());
        }
        self.complete_for_write(address, len);
        let synced = self.at_once.sync_range(address, len);
        self.settle();
        synced
    }

    /// As [`Copier::sync_for_write`], but leaves the error for a later sync.
    pub fn complete_for_write(&self, address: usize, len: usize) {
        let bytes = address..address.saturating_add(len);
        if self.pending().completed() != self.queue().head()
            || self.deferred.may_touch(&bytes, true)
        {
            self.each_pending(|queued| queued.writing(address, len) | queued.reading(address, len));
        }
        if self.window.is_active() {
            self.learn_window(self.window.end_at(address, len, true));
        }
    }

    /// Waits for every earlier copy, and runs the handlers that are due (`csync_all`).
    ///
    /// # Errors
    /// [`CopyError`] if a copy failed whose error was not reported yet.
    pub fn sync_all(&self) -> Result<(), CopyError> {
        self.complete_all();
        self.learn_window(self.window.end());
        self.run_handlers();
        let synced = to_result(self.failures().take_all());
        self.settle();
        synced
    }

    /// As [`Copier::sync_all`]. Returns the error of a task from `since` on, or of a synchronous
    /// copy from `at_once` on, and keeps it for a later sync.
    pub(crate) fn sync_since(&self, since: Ticket, at_once: Ticket) -> Result<(), CopyError> {
        self.complete_all();
        self.learn_window(self.window.end());
        self.run_handlers();
        self.settle();
        to_result(self.failures().unreported_since(since, at_once))
    }

    /// The connection to the daemon, if one serves this client.
    pub fn remote(&self) -> Option<&Remote> {
        self.attachment.remote()
    }

    /// Claims the segments of `wanted` that are not claimed.
    #[inline]
    pub(crate) fn claim(&self, ticket: Ticket, wanted: u32) -> u32 {
        self.attachment.claim(ticket, wanted)
    }

    /// Releases claimed segments that are not done, after the service has ended. A service of this
    /// process ends between two copies without claims; a daemon may be killed.
    pub(crate) fn take_back(&self) {
        if let Some(remote) = self.attachment.remote() {
            let queued = |ticket| self.pending().get(ticket);
            for (ticket, queued, bits) in remote.take_back(queued, self.failures()) {
                self.lose(ticket, &queued, bits);
            }
        }
        self.release_orphaned();
    }

    /// In a child: releases what threads of the parent had claimed and not done at the fork, so
    /// that the waiter copies it. Transfers at sockets are cancelled: the parent makes them.
    pub(crate) fn release_orphaned(&self) {
        if self.is_orphan() {
            self.orphaned.run(|| self.release_parent_claims());
        }
    }

    #[cold]
    fn release_parent_claims(&self) {
        let (tail, head) = (self.queue().tail().0, self.queue().head().0);
        for ticket in (tail..head).map(Ticket) {
            // `None` if another thread of the parent was about to submit it.
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
        let pending = self.queue().head().0 - self.pending().completed().0;
        f.debug_struct("Copier").field("pending_max", &pending).finish_non_exhaustive()
    }
}

impl Drop for Copier {
    /// Completes everything: pending copies may refer to the caller's stack.
    fn drop(&mut self) {
        // The error cannot be returned from `drop`.
        let _ = self.sync_handlers();
    }
}
