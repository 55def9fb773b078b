//! Reader of bytes that are still in transit: implements [`bytes::Buf`], [`Read`] and [`BufRead`].

use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::ops::Range;

use bytes::Buf;
use unlade_copy::CopyError;

use crate::source::{Source, reach, step_for};

/// Content that [`Buf`] returns in place of bytes that were not copied; see [`Reader`].
static ZEROS: [u8; 4096] = [0; 4096];

/// Reads a source sequentially, and waits only for the bytes that it has reached.
///
/// As [`Read`] and [`BufRead`] it returns an error for a failed copy; the error's source is the
/// [`CopyError`]. [`Buf`] has no errors: it returns zeros for the missing bytes, and
/// [`Reader::finish`] returns the error. A user of `Buf` must call it before using the result;
/// [`crate::decode`] does.
///
/// ```
/// # use std::io::Read;
/// # let service = unlade_copy::Service::start(unlade_copy::Config::default())?;
/// # let copier = unlade_copy::Copier::new(service.attach()?);
/// let (source, mut destination) = (vec![7u8; 1 << 16], vec![0u8; 1 << 16]);
/// let sum = copier.scope(|scope| {
///     let pending = scope.copy(&source, &mut destination);
///     unlade_copy_adapters::Reader::new(&pending).bytes().map(|byte| byte.map(u64::from)).sum::<Result<u64, _>>()
/// })?;
/// assert_eq!(sum, 7 << 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader<'a, S: ?Sized> {
    source: &'a S,
    /// Bytes that are synced and not read yet.
    ready: Cell<&'a [u8]>,
    /// Number of bytes behind them.
    rest: Cell<usize>,
    /// End of all bytes, as an offset in the source.
    end: usize,
    step: usize,
    error: Cell<Option<CopyError>>,
}

impl<'a, S: Source + ?Sized> Reader<'a, S> {
    /// Creates a reader of all bytes of `source`.
    pub fn new(source: &'a S) -> Reader<'a, S> {
        Reader::of(source, 0..source.len())
    }

    /// Creates a reader of the bytes of `range`.
    ///
    /// # Panics
    /// Panics if `range` is not within the source.
    pub fn of(source: &'a S, range: Range<usize>) -> Reader<'a, S> {
        let len = source.len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len}");
        let (ready, rest) = (Cell::new(&[][..]), Cell::new(range.len()));
        let step = step_for(range.len());
        Reader { source, ready, rest, end: range.end, step, error: Cell::new(None) }
    }

    /// Sets the number of bytes waited for at a time, at least one.
    pub fn with_step(mut self, bytes: usize) -> Reader<'a, S> {
        self.step = bytes.max(1);
        self
    }

    /// Number of bytes that were not read yet.
    #[inline]
    pub fn left(&self) -> usize {
        self.ready.get().len() + self.rest.get()
    }

    /// Checks that all bytes read so far were valid.
    ///
    /// # Errors
    /// [`CopyError`]: some were not copied.
    pub fn finish(&self) -> Result<(), CopyError> {
        self.error.get().map_or(Ok(()), Err)
    }

    /// The next bytes, at least one unless all are read.
    #[inline]
    fn next(&self) -> Result<&'a [u8], CopyError> {
        let ready = self.ready.get();
        if !ready.is_empty() {
            return Ok(ready);
        }
        self.sync_next()
    }

    #[cold]
    fn sync_next(&self) -> Result<&'a [u8], CopyError> {
        self.finish()?;
        let at = self.end - self.rest.get();
        // Steps end at segment boundaries.
        let first = self.end.min((at / self.step + 1).saturating_mul(self.step));
        let synced = self.source.sync(at..first).and_then(|ready| {
            let end = reach(self.source, first, self.end, self.step);
            self.rest.set(self.end - end);
            if end > first { self.source.sync(at..end) } else { Ok(ready) }
        });
        match synced {
            Ok(ready) => self.ready.set(ready),
            Err(error) => self.error.set(Some(error)),
        }
        synced
    }

    #[cold]
    #[inline(never)]
    fn chunk_slowly(&self) -> &'a [u8] {
        // The error stays, and `finish` returns it.
        self.sync_next().unwrap_or_else(|_| &ZEROS[..ZEROS.len().min(self.left())])
    }

    #[cold]
    #[inline(never)]
    fn advance_slowly(&mut self, count: usize) {
        assert!(count <= self.left(), "{count} bytes of {}", self.left());
        let ready = self.ready.replace(&[]).len();
        // Skipped bytes are not read, so do not wait for them.
        self.rest.set(self.rest.get() - (count - ready));
    }

    /// Skips `count` bytes, which are synced.
    #[inline]
    fn skip_ready(&mut self, count: usize) {
        self.ready.set(&self.ready.get()[count..]);
    }
}

impl<S: Source + ?Sized> Buf for Reader<'_, S> {
    #[inline]
    fn remaining(&self) -> usize {
        self.left()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        let ready = self.ready.get();
        if ready.is_empty() { self.chunk_slowly() } else { ready }
    }

    /// # Panics
    /// Panics if `count` is more than remains.
    #[inline]
    fn advance(&mut self, count: usize) {
        match self.ready.get().get(count..) {
            Some(rest) => self.ready.set(rest),
            None => self.advance_slowly(count),
        }
    }
}

impl<S: Source + ?Sized> BufRead for Reader<'_, S> {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.left() {
            0 => Ok(&[]),
            _ => Ok(self.next()?),
        }
    }

    #[inline]
    fn consume(&mut self, count: usize) {
        self.skip_ready(count.min(self.ready.get().len()));
    }
}

impl<S: Source + ?Sized> Read for Reader<'_, S> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let ready = self.fill_buf()?;
        let count = ready.len().min(out.len());
        out[..count].copy_from_slice(&ready[..count]);
        self.skip_ready(count);
        Ok(count)
    }
}
