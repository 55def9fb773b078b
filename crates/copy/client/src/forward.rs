//! From socket to socket: the service passes bytes on, and the program never has them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use unlade_shm::Task;

use crate::copier::{Copier, How, TASK_BYTES_MAX, Token};
use crate::error::CopyError;
use crate::pending::Kind;

/// A forward that was asked for. When it is dropped it is ended: what was not begun is not made.
#[derive(Debug)]
#[must_use = "dropped, it is ended"]
pub struct Forwarding<'a> {
    copier: &'a Copier,
    token: Token,
    len: usize,
    /// Given and taken, of one that failed. The service writes here before it is done; so the
    /// memory stays until then, whatever becomes of this value.
    report: Box<[AtomicU64; 2]>,
    /// Of one that was made at once.
    at_once: Result<(), CopyError>,
}

/// A forward that did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given_bytes} bytes were forwarded and {taken_bytes} taken: {error}")]
pub struct ForwardError {
    /// Why.
    #[source]
    pub error: CopyError,
    /// Bytes that the second socket took.
    pub given_bytes: usize,
    /// Bytes that are out of the first one; above the others, those in between are lost with the
    /// second.
    pub taken_bytes: usize,
}

impl Copier {
    /// Passes the next `len` bytes of `from`, at most [`TASK_BYTES_MAX`], on to `to`, behind what
    /// was received and sent here before. The service waits for both: for `from` to have something,
    /// and for `to` to take it, however long that is; so it takes no more than fits in between. Where
    /// one of them ends or breaks, the forward does, with what was under way counted
    /// ([`ForwardError`]): an end of `from` is [`TaskFailure::Ended`](crate::TaskFailure::Ended), a
    /// reset of either [`TaskFailure::Socket`](crate::TaskFailure::Socket). What is still in `from`
    /// then is the next receive's.
    ///
    /// Long ones go by splice where `to` is a socket that does not wait (`O_NONBLOCK`), which is faster.
    ///
    /// Nobody else receives from the one or sends to the other until it is over.
    ///
    /// # Panics
    /// `len` is above [`TASK_BYTES_MAX`].
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
        if let Some(ticket) = self.acquire(len) {
            let place = forwarding.report.as_ptr().expose_provenance();
            let mut task = Task::copy(place as u64, 0, len as u32);
            task.kind = unlade_shm::Kind::Forward;
            task.fd = from.as_raw_fd();
            task.extra = to.as_raw_fd() as u64;
            forwarding.token = self.publish(ticket, Kind::Forward, task, &How::default());
            // Nobody need ever wait for it.
            if !self.is_awake() {
                self.ring();
            }
            return forwarding;
        }
        self.settle_socket(from, 0, 0, 0);
        self.settle_socket(to, 0, 0, 0);
        let (given, taken, made) = crate::stream::forward_all(from, to, len);
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

    /// Whether it is over; does not wait.
    pub fn is_over(&self) -> bool {
        self.copier.is_ready(&self.token, 0..self.len)
    }

    /// Waits until the first `len` bytes have been forwarded, as far as progress is told: in up to
    /// 32 steps.
    ///
    /// # Errors
    /// [`ForwardError`].
    pub fn wait_for(&self, len: usize) -> Result<(), ForwardError> {
        let synced = self.copier.sync(&self.token, 0..len.min(self.len));
        synced.and(self.at_once).map_err(|error| self.failed(error))
    }

    /// As [`Forwarding::wait_for`] all bytes, for about `timeout` at most: false where they have not
    /// been forwarded yet. Who has waited enough drops the value.
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
