//! Forwarding from socket to socket by the service, without passing the bytes to the program.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use unlade_shm::Task;

use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::error::CopyError;
use crate::pending::Kind;

/// A requested forward. Dropping it aborts the rest.
#[derive(Debug)]
#[must_use = "dropped, it is ended"]
pub struct Forwarding<'a> {
    copier: &'a Copier,
    token: Token,
    len: usize,
    /// Bytes given and taken, if the forward failed. The service writes this memory before the
    /// task is done, so it stays allocated until then.
    report: Box<[AtomicU64; 2]>,
    /// Result of a synchronous forward.
    at_once: Result<(), CopyError>,
}

/// A forward that did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given_bytes} bytes were forwarded and {taken_bytes} taken: {error}")]
pub struct ForwardError {
    /// The cause.
    #[source]
    pub error: CopyError,
    /// Bytes that the second socket took.
    pub given_bytes: usize,
    /// Bytes taken from the first socket. Those above `given_bytes` are lost with the second
    /// socket.
    pub taken_bytes: usize,
}

impl Copier {
    /// Forwards the next `len` bytes of `from`, at most [`TASK_BYTES_MAX`], to `to`, after earlier
    /// receives and sends of these sockets. The service waits for both: for `from` to have bytes,
    /// and for `to` to accept them, without a time limit; it buffers only a bounded number of
    /// bytes. If one of them ends or breaks, the forward ends with the number of bytes in flight
    /// ([`ForwardError`]): an end of `from` is [`TaskFailure::Ended`](crate::TaskFailure::Ended),
    /// a reset of either socket is [`TaskFailure::Socket`](crate::TaskFailure::Socket). The bytes
    /// still in `from` then belong to the next receive.
    ///
    /// Long forwards use splice(2), which is faster, if `to` is non-blocking (`O_NONBLOCK`).
    ///
    /// No other thread receives from `from` or sends to `to` until the forward is over.
    ///
    /// # Panics
    /// Panics if `len` is above [`TASK_BYTES_MAX`].
    pub fn forward<'a>(
        &'a self,
        from: BorrowedFd<'a>,
        to: BorrowedFd<'a>,
        len: usize,
    ) -> Forwarding<'a> {
        assert!(len <= TASK_BYTES_MAX, "{len} bytes in one task");
        let report = Box::new([const { AtomicU64::new(0) }; 2]);
        let mut forwarding =
            Forwarding { copier: self, token: Token::DONE, len, report, at_once: Ok(()) };
        if let Some(ticket) = self.acquire_here(len) {
            let place = forwarding.report.as_ptr().expose_provenance();
            let mut task = Task::copy(place as u64, 0, len as u32);
            task.kind = unlade_shm::Kind::Forward;
            task.fd = from.as_raw_fd();
            task.extra = to.as_raw_fd() as u64;
            forwarding.token = self.publish(ticket, Kind::Forward, task, &CopyOptions::default());
            // The caller may never wait for this forward, so wake the service here.
            if !self.is_awake() {
                self.ring();
            }
            return forwarding;
        }
        self.complete_socket(from, 0, 0, 0);
        self.complete_socket(to, 0, 0, 0);
        let (given, taken, made) = crate::blocking::forward_all(from, to, len);
        forwarding.note(given, taken, made);
        forwarding
    }
}

impl Forwarding<'_> {
    fn note(&mut self, given: usize, taken: usize, made: io::Result<()>) {
        self.report[0].store(given as u64, Ordering::Relaxed);
        self.report[1].store(taken as u64, Ordering::Relaxed);
        let failure =
            |error| CopyError::Failed(unlade_copy_service::TaskFailure::of_socket(&error));
        self.at_once = made.map_err(failure);
    }

    /// Returns true if the forward is over; does not wait.
    pub fn is_over(&self) -> bool {
        self.copier.is_ready(&self.token, 0..self.len)
    }

    /// Waits until the first `len` bytes have been forwarded. Progress is reported in up to 32
    /// steps.
    ///
    /// # Errors
    /// [`ForwardError`].
    pub fn wait_for(&self, len: usize) -> Result<(), ForwardError> {
        let synced = self.copier.sync(&self.token, 0..len.min(self.len));
        synced.and(self.at_once).map_err(|error| self.failed(error))
    }

    /// As [`Forwarding::wait_for`] for all bytes, for about `timeout` at most. Returns false if
    /// they have not been forwarded yet. Drop the value to stop the forward.
    ///
    /// # Errors
    /// [`ForwardError`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, ForwardError> {
        let synced = self.copier.sync_timeout(&self.token, 0..self.len, timeout);
        synced
            .and_then(|is_over| self.at_once.map(|()| is_over))
            .map_err(|error| self.failed(error))
    }

    /// Waits until all bytes have been forwarded.
    ///
    /// # Errors
    /// [`ForwardError`].
    pub fn wait(self) -> Result<(), ForwardError> {
        self.wait_for(self.len)
    }

    fn failed(&self, error: CopyError) -> ForwardError {
        let [given, taken] = [0, 1].map(|at| self.report[at].load(Ordering::Relaxed) as usize);
        ForwardError { error, given_bytes: given, taken_bytes: taken }
    }
}

impl Drop for Forwarding<'_> {
    fn drop(&mut self) {
        if !self.is_over() {
            self.copier.abort(&self.token);
        }
    }
}
