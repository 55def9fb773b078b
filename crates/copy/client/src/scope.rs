//! Copies for safe code: a destination is borrowed until the scope ends, and its bytes are
//! accessible only through [`Pending`], which syncs them.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{Location, RefUnwindSafe};

use unlade_shm::Ticket;

use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::error::CopyError;

/// A scope in which copies may be submitted; see [`Copier::scope`].
///
/// The lifetimes are those of [`std::thread::scope`]: `'env` is that of the borrowed data,
/// `'scope` that of the scope.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    pub(crate) copier: &'scope Copier,
    /// First queued task of the scope; the end of the scope waits from here on.
    pub(crate) first_queued: Cell<Option<Ticket>>,
    /// Synchronous copies that fail from this ticket on belong to the scope.
    at_once: Ticket,
    /// Some tasks are at sockets, and may fail without a programming error.
    pub(crate) has_sockets: Cell<bool>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A destination whose bytes may still be being copied.
#[derive(Debug)]
#[must_use = "sync the bytes that you use; the rest is there when the scope ends"]
pub struct Pending<'scope> {
    copier: &'scope Copier,
    dst: *mut u8,
    len: usize,
    /// One token for each [`TASK_BYTES_MAX`] bytes.
    first: Token,
    rest: Option<Box<[Token]>>,
    bytes: PhantomData<&'scope mut [u8]>,
}

impl Copier {
    /// Runs `f`, which submits copies, and waits for all of them.
    ///
    /// ```
    /// # let service = unlade_copy::Service::start(unlade_copy::Config::default())?;
    /// # let copier = unlade_copy::Copier::new(service.attach()?);
    /// let source = vec![7u8; 1 << 16];
    /// let mut destination = vec![0u8; 1 << 16];
    /// copier.scope(|scope| {
    ///     let pending = scope.copy(&source, &mut destination);
    ///     // ... something else ...
    ///     assert_eq!(pending.sync(0..64)?, &[7; 64]);
    ///     Ok::<(), unlade_copy::CopyError>(())
    /// })?;
    /// assert_eq!(destination, source);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// A destination cannot be read before the scope ends, except through the returned value:
    /// ```compile_fail
    /// # let service = unlade_copy::Service::start(unlade_copy::Config::default()).unwrap();
    /// # let copier = unlade_copy::Copier::new(service.attach().unwrap());
    /// let source = [1u8; 100];
    /// let mut destination = [0u8; 100];
    /// copier.scope(|scope| {
    ///     let pending = scope.copy(&source, &mut destination);
    ///     assert_eq!(destination[0], 1); // error: `destination` is borrowed
    ///     drop(pending);
    /// });
    /// ```
    /// # Panics
    /// Panics if a copy failed although its bytes are valid references: then the service is
    /// defective. A panic of `f` continues after all copies are completed.
    #[inline]
    pub fn scope<'env, T>(
        &'env self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
    ) -> T {
        let scope = Scope {
            copier: self,
            first_queued: Cell::new(None),
            at_once: self.failures().next_at_once(),
            has_sockets: Cell::new(false),
            scope: PhantomData,
            env: PhantomData,
        };
        let complete = CompleteOnDrop(&scope);
        let value = f(&scope);
        drop(complete);
        value
    }
}

/// Completes a scope's copies, even after a panic.
struct CompleteOnDrop<'s, 'scope, 'env>(&'s Scope<'scope, 'env>);

impl Drop for CompleteOnDrop<'_, '_, '_> {
    #[inline]
    fn drop(&mut self) {
        let Some(first) = self.0.first_queued.get() else { return };
        let completed = self.0.copier.sync_since(first, self.0.at_once);
        // Failures at a socket are returned by the sync of their task.
        if !std::thread::panicking() && !self.0.has_sockets.get() {
            completed.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Submits a copy of `source` into `destination`.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    #[track_caller]
    #[inline(always)]
    pub fn copy(&'scope self, source: &'env [u8], destination: &'env mut [u8]) -> Pending<'scope> {
        let site = std::ptr::from_ref(Location::caller()).addr();
        self.copy_how(source, destination, &CopyOptions { site, ..CopyOptions::default() })
    }

    /// Submits a copy that is always queued, whatever was learned about the call site.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    #[inline]
    pub fn queue(&'scope self, source: &'env [u8], destination: &'env mut [u8]) -> Pending<'scope> {
        self.copy_how(source, destination, &CopyOptions { queued: true, ..CopyOptions::default() })
    }

    /// Submits a copy that is deferred until something needs it, or for `delay_us` microseconds.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy_lazily(
        &'scope self,
        source: &'env [u8],
        destination: &'env mut [u8],
        delay_us: u32,
    ) -> Pending<'scope> {
        self.copy_how(
            source,
            destination,
            &CopyOptions { lazy_us: Some(delay_us), ..CopyOptions::default() },
        )
    }

    /// Copies `source` into `destination` and gives its content up: where the page tables can make
    /// the copy and that takes less time, its pages are moved ([`Copier::remap`]). Otherwise it is
    /// copied, as by [`Scope::copy`]. The content of `source` is undefined afterwards: its own bytes,
    /// those of `destination`, or zeros.
    ///
    /// ```
    /// # let service = unlade_copy::Service::start(unlade_copy::Config::default())?;
    /// # let copier = unlade_copy::Copier::new(service.attach()?);
    /// let mut received = vec![7u8; 1 << 20];
    /// let mut kept = vec![0u8; 1 << 20];
    /// copier.scope(|scope| drop(scope.copy_last_use(&mut received, &mut kept)));
    /// assert!(kept.iter().all(|byte| *byte == 7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics if the lengths differ.
    #[track_caller]
    pub fn copy_last_use(
        &'scope self,
        source: &'env mut [u8],
        destination: &'env mut [u8],
    ) -> Pending<'scope> {
        assert_eq!(source.len(), destination.len(), "source and destination differ in length");
        let site = std::ptr::from_ref(Location::caller()).addr();
        let (dst, src, len) = (destination.as_mut_ptr(), source.as_mut_ptr(), source.len());
        // SAFETY: both are borrowed exclusively for `'env`, so they do not overlap and nothing else
        // accesses them. Any bytes are a valid content.
        if unsafe { self.copier.remap(dst, src, len, site) } {
            // SAFETY: the destination is borrowed exclusively for the scope, and no task writes it.
            return unsafe { Pending::of_task(self.copier, dst, len, Token::DONE) };
        }
        let options = CopyOptions { site, ..CopyOptions::default() };
        // SAFETY: as above; the source is borrowed for the scope, so it is not written.
        unsafe { self.submit(dst, src, len, &options) }
    }

    #[inline(always)]
    fn copy_how(
        &'scope self,
        source: &'env [u8],
        destination: &'env mut [u8],
        options: &CopyOptions,
    ) -> Pending<'scope> {
        assert_eq!(source.len(), destination.len(), "source and destination differ in length");
        // SAFETY: both are borrowed for `'env`, which outlives the scope. A shared and an
        // exclusive borrow do not overlap. The source cannot be written; the destination is
        // accessible only through `Pending`.
        unsafe { self.submit(destination.as_mut_ptr(), source.as_ptr(), source.len(), options) }
    }

    /// Submits a copy whose source is the destination of another copy, which may still be pending.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy_on(
        &'scope self,
        source: &Pending<'scope>,
        destination: &'env mut [u8],
    ) -> Pending<'scope> {
        assert_eq!(source.len, destination.len(), "source and destination differ in length");
        let (dst, len) = (destination.as_mut_ptr(), source.len);
        // SAFETY: both are borrowed exclusively for the scope, so they do not overlap. The source
        // is not written: `Pending` lends it for reading only, except through `sync_mut`, which
        // waits for all readers.
        unsafe { self.submit(dst, source.dst, len, &CopyOptions::default()) }
    }

    /// # Safety
    /// `src` is valid for reads and `dst` for writes of `len` bytes until the scope ends; they do
    /// not overlap. Until then only copies write `src`, and `dst` is read and written only through
    /// the [`Pending`]. `options` has no handler.
    #[inline(always)]
    unsafe fn submit(
        &'scope self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        options: &CopyOptions,
    ) -> Pending<'scope> {
        // SAFETY: the caller's promise.
        let first = unsafe { self.submit_part(dst, src, len.min(TASK_BYTES_MAX), len, options) };
        let rest = match len {
            0..=TASK_BYTES_MAX => None,
            // SAFETY: the caller's promise.
            _ => unsafe { Some(self.submit_rest(dst, src, len, options)) },
        };
        Pending { copier: self.copier, dst, len, first, rest, bytes: PhantomData }
    }

    /// # Safety
    /// As for [`Scope::submit`].
    #[inline(always)]
    unsafe fn submit_part(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        whole_bytes: usize,
        options: &CopyOptions,
    ) -> Token {
        // SAFETY: the caller's promise; and the scope completes all copies before it ends, even
        // after a panic.
        let token = unsafe { self.copier.submit_part(dst, src, len, whole_bytes, options) };
        self.note(&token);
        token
    }

    #[inline(always)]
    pub(crate) fn note(&self, token: &Token) {
        if !token.is_over() && self.first_queued.get().is_none() {
            // A synchronous copy that failed has no ticket in the queue: later tasks of the scope
            // have.
            let head = self.copier.queue().head();
            self.first_queued.set(Some(if token.has_task() { token.ticket } else { head }));
        }
    }

    /// # Safety
    /// As for [`Scope::submit`].
    #[cold]
    unsafe fn submit_rest(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        options: &CopyOptions,
    ) -> Box<[Token]> {
        let starts = (TASK_BYTES_MAX..len).step_by(TASK_BYTES_MAX);
        starts
            .map(|at| {
                let part = (len - at).min(TASK_BYTES_MAX);
                // SAFETY: the caller's promise: the part is within the bytes.
                unsafe { self.submit_part(dst.add(at), src.add(at), part, len, options) }
            })
            .collect()
    }
}

impl<'scope> Pending<'scope> {
    /// Wraps the first `len` bytes of a destination that one task fills.
    ///
    /// # Safety
    /// `dst` is valid and initialised for `len` bytes until the scope ends, and borrowed
    /// exclusively for it. The task of `token` writes them; otherwise they are accessed only
    /// through this value.
    pub(crate) unsafe fn of_task(
        copier: &'scope Copier,
        dst: *mut u8,
        len: usize,
        token: Token,
    ) -> Pending<'scope> {
        Pending { copier, dst, len, first: token, rest: None, bytes: PhantomData }
    }
}

impl Pending<'_> {
    /// Length of the copy in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte of `range`, which must be within the copy.
    pub(crate) fn address_of(&self, range: &Range<usize>) -> *const u8 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        self.dst.wrapping_add(range.start)
    }

    /// Gives the bytes up: a copy that the client keeps until something needs it is not made. Each
    /// byte of the destination is then the source's or the earlier one.
    pub fn discard(self) {
        self.copier.discard(self.dst.addr(), self.len);
    }

    /// Returns true if the copy is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the bytes of `range` are copied; does not wait.
    #[inline]
    pub fn is_ready(&self, range: Range<usize>) -> bool {
        if self.rest.is_none() {
            return self.copier.is_ready(&self.first, range);
        }
        self.parts(range).all(|(token, range)| self.copier.is_ready(token, range))
    }

    /// Waits for the bytes of `range`, and returns them.
    ///
    /// # Errors
    /// [`CopyError`]: the copy failed.
    ///
    /// # Panics
    /// Panics if `range` is not within the copy.
    #[inline]
    pub fn sync(&self, range: Range<usize>) -> Result<&[u8], CopyError> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        if self.rest.is_none() {
            self.copier.sync(&self.first, range.clone())?;
        } else {
            self.parts(range.clone())
                .try_for_each(|(token, part)| self.copier.sync(token, part))?;
        }
        // SAFETY: the destination is borrowed exclusively for the scope, and is initialised. All
        // writes of these bytes are over, and the sync made them visible. Later copies only read
        // them.
        Ok(unsafe { std::slice::from_raw_parts(self.dst.add(range.start), range.len()) })
    }

    /// Waits for the bytes of `range`, and for copies that read them, and returns them mutably.
    ///
    /// # Errors
    /// [`CopyError`]: the copy failed.
    ///
    /// # Panics
    /// Panics if `range` is not within the copy.
    pub fn sync_mut(&mut self, range: Range<usize>) -> Result<&mut [u8], CopyError> {
        self.sync(range.clone())?;
        let start = self.dst.addr() + range.start;
        self.copier.sync_for_write(start, range.len())?;
        // SAFETY: as in `sync`; and no copy reads them any more, so that a change is not observed.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.dst.add(range.start), range.len()) })
    }

    /// The tasks that overlap `range`, each with its part.
    fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&Token, Range<usize>)> {
        let tokens = std::iter::once(&self.first).chain(self.rest.as_deref().unwrap_or_default());
        tokens.enumerate().filter_map(move |(number, token)| {
            let base = number * TASK_BYTES_MAX;
            let (start, end) = (range.start.max(base), range.end.min(base + TASK_BYTES_MAX));
            (start < end).then(|| (token, start - base..end - base))
        })
    }
}

/// A panic in a scope leaves destinations as a panic in `copy_from_slice` would.
impl RefUnwindSafe for Copier {}
