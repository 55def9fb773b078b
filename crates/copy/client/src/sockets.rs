//! Receives and sends for safe code, in a [`Scope`].

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::error::CopyError;
use crate::scope::{Pending, Scope};

/// A send whose bytes may still be queued for the socket.
#[derive(Debug)]
#[must_use = "an error is told by `wait` only"]
pub struct Sent<'scope> {
    copier: &'scope Copier,
    tokens: Vec<Token>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Receives what socket `fd` has, at most [`TASK_BYTES_MAX`] and at most the length of
    /// `destination`. The number of bytes is known at once ([`Pending::len`]), while they are
    /// still being received; 0 is the end of the stream.
    ///
    /// Receives and sends of one socket run in submission order. No other reader should receive
    /// from it before the scope ends: the service would wait for as many bytes as it found.
    ///
    /// # Errors
    /// The socket's error: [`io::ErrorKind::WouldBlock`] if it has no bytes and is non-blocking.
    pub fn receive(
        &'scope self,
        fd: BorrowedFd<'env>,
        destination: &'env mut [u8],
    ) -> io::Result<Pending<'scope>> {
        let dst = destination.as_mut_ptr();
        let len = destination.len().min(TASK_BYTES_MAX);
        // SAFETY: `dst` is borrowed exclusively for `'env`, which outlives the scope, and the
        // scope completes everything before it ends. `fd` is borrowed as long, so it is open. If
        // another reader takes bytes, they are missing, which is memory-safe.
        let (count, token) = unsafe { self.copier.receive(fd, dst, len, &CopyOptions::default())? };
        self.note_at_socket(&token);
        // SAFETY: the first `count` of the bytes borrowed for `'env`, all of which are
        // initialised.
        Ok(unsafe { Pending::of_task(self.copier, dst, count, token) })
    }

    /// Sends all of `source` to socket `fd`. The service waits for the socket, and the scope for
    /// the service, without a time limit: see [`Sent::wait_timeout`] and [`Sent::abort`].
    ///
    /// # Errors
    /// The socket's error, if the send is synchronous; [`Sent::wait`] returns later ones.
    pub fn send(
        &'scope self,
        fd: BorrowedFd<'env>,
        source: &'env [u8],
    ) -> io::Result<Sent<'scope>> {
        // SAFETY: `source` is borrowed for `'env`, so it is not written or freed before the scope
        // ends.
        unsafe { self.send_bytes(fd, source.as_ptr(), source.len()) }
    }

    /// Sends the bytes `range` of a copy to socket `fd`; otherwise as [`Scope::send`]. The copy
    /// need not be made for it: the bytes of one that is deferred until something needs it
    /// ([`Scope::copy_lazily`] with `u32::MAX`) are sent from its source. [`Pending::discard`] then
    /// leaves it out.
    ///
    /// # Errors
    /// As for [`Scope::send`].
    ///
    /// # Panics
    /// Panics if `range` is not within the copy.
    pub fn send_copied(
        &'scope self,
        fd: BorrowedFd<'env>,
        copied: &Pending<'scope>,
        range: Range<usize>,
    ) -> io::Result<Sent<'scope>> {
        let bytes = copied.address_of(&range);
        // SAFETY: the destination is borrowed exclusively until the scope ends, and initialised. It
        // is written by copies only: `Pending` lends it for reading, or for writing after a wait
        // for those who read it.
        unsafe { self.send_bytes(fd, bytes, range.len()) }
    }

    /// # Safety
    /// The bytes are valid for reads until the scope ends. They change only by copies, or after
    /// [`Copier::sync_for_write`].
    unsafe fn send_bytes(
        &'scope self,
        fd: BorrowedFd<'env>,
        bytes: *const u8,
        len: usize,
    ) -> io::Result<Sent<'scope>> {
        let mut tokens = Vec::with_capacity(len.div_ceil(TASK_BYTES_MAX));
        for at in (0..len).step_by(TASK_BYTES_MAX) {
            let (part, options) = ((len - at).min(TASK_BYTES_MAX), CopyOptions::default());
            // SAFETY: the caller's promise; the scope completes everything before it ends. `fd` is
            // borrowed as long, so it is open.
            let token = unsafe { self.copier.send(fd, bytes.add(at), part, &options)? };
            self.note_at_socket(&token);
            tokens.push(token);
        }
        Ok(Sent { copier: self.copier, tokens })
    }

    fn note_at_socket(&self, token: &Token) {
        self.note(token);
        if token.has_task() {
            self.has_sockets.set(true);
        }
    }
}

impl Sent<'_> {
    /// Returns true if the socket has taken all bytes; does not wait.
    pub fn is_ready(&self) -> bool {
        self.tokens.iter().all(|token| self.copier.is_ready(token, 0..TASK_BYTES_MAX))
    }

    /// Waits until the socket has taken all bytes.
    ///
    /// # Errors
    /// [`CopyError`]: the socket did not take them.
    pub fn wait(&self) -> Result<(), CopyError> {
        self.tokens.iter().try_for_each(|token| self.copier.sync(token, 0..TASK_BYTES_MAX))
    }

    /// As [`Sent::wait`], for about `timeout` at most. Returns false if the socket has not taken
    /// all bytes yet. If its peer does not read, call [`Sent::abort`]; otherwise the scope waits.
    ///
    /// # Errors
    /// As for [`Sent::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, CopyError> {
        let begin = Instant::now();
        for token in &self.tokens {
            let left = timeout.saturating_sub(begin.elapsed());
            if !self.copier.sync_timeout(token, 0..TASK_BYTES_MAX, left)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Aborts what the socket has not taken. Bytes already sent stay sent, see [`Copier::abort`].
    pub fn abort(&self) {
        // Last ones first, so that no task starts because its predecessor has ended.
        self.tokens.iter().rev().for_each(|token| self.copier.abort(token));
    }
}
