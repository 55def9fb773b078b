//! Receives and sends that safe code can ask for, in a [`Scope`].

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::copier::{Copier, How, TASK_BYTES_MAX, Token};
use crate::error::CopyError;
use crate::scope::{Pending, Scope};

/// A send whose bytes may still be on their way to the socket.
#[derive(Debug)]
#[must_use = "an error is told by `wait` only"]
pub struct Sent<'scope> {
    copier: &'scope Copier,
    tokens: Vec<Token>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Receives what socket `fd` has, at most [`TASK_BYTES_MAX`] and as much as `destination` takes.
    /// How many bytes those are is known at once, [`Pending::len`], while they are still on their
    /// way; 0 is the end of the stream.
    ///
    /// Receives and sends of one socket are made in the order in which they are asked for. Nobody
    /// else should receive from it before the scope ends: the service would wait for as many bytes
    /// as it found.
    ///
    /// # Errors
    /// The socket's: [`io::ErrorKind::WouldBlock`] where it has nothing and does not wait.
    pub fn receive(
        &'scope self,
        fd: BorrowedFd<'env>,
        destination: &'env mut [u8],
    ) -> io::Result<Pending<'scope>> {
        let dst = destination.as_mut_ptr();
        let len = destination.len().min(TASK_BYTES_MAX);
        // SAFETY: `dst` is borrowed exclusively for `'env`, which goes beyond the scope, and the
        // scope settles everything before it ends. `fd` is borrowed as long, so it is open. Bytes
        // that somebody else receives are missing, nothing worse.
        let (count, token) = unsafe { self.copier.receive(fd, dst, len, &How::default())? };
        self.note_at_socket(&token);
        // SAFETY: of the bytes borrowed for `'env` the first `count`, initialised as all are.
        Ok(unsafe { Pending::of_task(self.copier, dst, count, token) })
    }

    /// Sends all of `source` to socket `fd`; the service waits for the socket, and the scope for
    /// the service, for as long as the peer takes: see [`Sent::wait_timeout`] and [`Sent::abort`].
    ///
    /// # Errors
    /// The socket's, as far as it is known at once; what is found later is told by [`Sent::wait`].
    pub fn send(
        &'scope self,
        fd: BorrowedFd<'env>,
        source: &'env [u8],
    ) -> io::Result<Sent<'scope>> {
        let mut tokens = Vec::with_capacity(source.len().div_ceil(TASK_BYTES_MAX));
        for part in source.chunks(TASK_BYTES_MAX) {
            let how = How::default();
            // SAFETY: `part` is borrowed for `'env`, so nobody writes or frees it before the scope
            // ends, which settles everything. `fd` is borrowed as long, so it is open.
            let token = unsafe { self.copier.send(fd, part.as_ptr(), part.len(), &how)? };
            self.note_at_socket(&token);
            tokens.push(token);
        }
        Ok(Sent { copier: self.copier, tokens })
    }

    fn note_at_socket(&self, token: &Token) {
        self.note(token);
        if token.is_queued() {
            self.has_sockets.set(true);
        }
    }
}

impl Sent<'_> {
    /// Whether the socket has all bytes; does not wait.
    pub fn is_ready(&self) -> bool {
        self.tokens.iter().all(|token| self.copier.is_ready(token, 0..TASK_BYTES_MAX))
    }

    /// Waits until the socket has all bytes.
    ///
    /// # Errors
    /// [`CopyError`]: the socket did not take them.
    pub fn wait(&self) -> Result<(), CopyError> {
        self.tokens.iter().try_for_each(|token| self.copier.sync(token, 0..TASK_BYTES_MAX))
    }

    /// As [`Sent::wait`], for about `timeout` at most: false where the socket has not taken all
    /// bytes yet. Its peer may never do so: then [`Sent::abort`], without which the scope waits.
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

    /// Gives up what the socket has not taken; what has gone has gone, see [`Copier::abort`].
    pub fn abort(&self) {
        // The last ones first: none of them is begun for the one before it having ended.
        self.tokens.iter().rev().for_each(|token| self.copier.abort(token));
    }
}
