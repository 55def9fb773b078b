//! Receives and sends as tasks: the service makes the system call, and the bytes are synced like
//! those of a copy.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;

use rustix::net::{RecvFlags, SendFlags};
use unlade_shm::{Task, Ticket, segment};

use crate::admission::{DAEMON_SOCKET_BYTES_MIN, RECEIVE_BYTES_MIN, SEND_BYTES_MIN};
use crate::blocking::send_all;
use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::pending::Kind;
use crate::remote::RemoteError;

impl Copier {
    /// Receives what socket `fd` has, at most `len` bytes. Returns their number at once, while the
    /// bytes are still being received into `dst`. 0 is the end of the stream.
    ///
    /// `FIONREAD` gives the number. Small receives, and those for which it gives 0, are
    /// synchronous. Otherwise as for [`Copier::receive_lazily`]: the next receive reports the end
    /// of a stream or a reset.
    ///
    /// # Errors
    /// The socket's error: [`io::ErrorKind::WouldBlock`] if it has no bytes and is non-blocking.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for `dst`. No other thread receives from the socket, and it is
    /// not closed, until the bytes are synced.
    pub unsafe fn receive(
        &self,
        fd: BorrowedFd<'_>,
        dst: *mut u8,
        len: usize,
        options: &CopyOptions,
    ) -> io::Result<(usize, Token)> {
        // SAFETY: the caller's promise.
        unsafe { self.receive_with(fd, dst, len, RecvFlags::empty(), options) }
    }

    /// As [`Copier::receive`], with flags of recv(2): with any but `DONTWAIT` the receive is
    /// synchronous.
    ///
    /// # Errors
    /// As for [`Copier::receive`].
    ///
    /// # Safety
    /// As for [`Copier::receive`].
    pub unsafe fn receive_with(
        &self,
        fd: BorrowedFd<'_>,
        dst: *mut u8,
        len: usize,
        flags: RecvFlags,
        options: &CopyOptions,
    ) -> io::Result<(usize, Token)> {
        let is_usual = RecvFlags::DONTWAIT.contains(flags);
        let ready = match is_usual && self.is_worth_asking(len, options) {
            true => self.unpromised(fd)?,
            false => 0,
        };
        let count = ready.min(len).min(TASK_BYTES_MAX);
        if (count >= self.task_bytes_min(RECEIVE_BYTES_MIN) || options.queued && count > 0)
            && let Some(ticket) = self.acquire_at(fd, false, dst.addr(), count)
        {
            let mut task = Task::copy(dst.addr() as u64, 0, count as u32);
            task.kind = unlade_shm::Kind::Receive;
            task.fd = fd.as_raw_fd();
            return Ok((count, self.publish(ticket, Kind::Receive, task, options)));
        }
        // SAFETY: the caller's promise.
        let count = unsafe { self.receive_now(fd, dst, len, flags)? };
        Ok((count, Token::DONE))
    }

    /// Receives once with flags of recv(2), in this thread, after earlier tasks at the socket.
    /// Returns the number of bytes, as recv(2) does.
    ///
    /// # Errors
    /// As for [`Copier::receive`].
    ///
    /// # Safety
    /// As for [`Copier::receive`].
    pub unsafe fn receive_now(
        &self,
        fd: BorrowedFd<'_>,
        dst: *mut u8,
        len: usize,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        self.complete_socket(fd, dst.addr(), 0, len);
        // SAFETY: `dst` is valid for writes of `len` bytes, and no other thread touches them: the
        // caller's promise, and pending tasks are completed. Uninitialised bytes are not read.
        let buffer: &mut [MaybeUninit<u8>] = unsafe { slice::from_raw_parts_mut(dst.cast(), len) };
        let ((received, _), count) = rustix::net::recv(fd, buffer, flags)?;
        self.failures().overwrite(dst.addr(), received.len());
        self.stats().count_at_once(received.len());
        Ok(count)
    }

    /// Sends all of `len` bytes, at most [`TASK_BYTES_MAX`], to socket `fd`. The service waits for
    /// the socket without a time limit if its peer does not read. Other tasks continue: up to 48
    /// tasks of a client wait for sockets at a time, and further ones wait for these. See
    /// [`Copier::sync_timeout`] and [`Copier::abort`].
    ///
    /// Bytes that a deferred copy would write ([`CopyOptions::lazy_us`]) are sent from its source,
    /// and the copy stays deferred. This thread sends what the socket takes at once, unless an
    /// earlier send to it is pending or the options say `queued`; the service sends the rest. If
    /// the program changes the source before the socket has taken the bytes, the rest of them is
    /// saved before: [`Copier::sync_for_write`] of the source does not wait for the peer. A send
    /// with a handler has these copies made, since the handler may free their destination.
    ///
    /// # Errors
    /// The socket's error, if the send is synchronous. Otherwise a sync fails with
    /// [`TaskFailure::Socket`](crate::TaskFailure::Socket), even if some bytes were sent.
    ///
    /// # Safety
    /// As for [`Copier::submit`], for `src`. No other thread sends to the socket, and it is not
    /// closed, until the copy is synced.
    ///
    /// # Panics
    /// Panics if `len` is above [`TASK_BYTES_MAX`].
    pub unsafe fn send(
        &self,
        fd: BorrowedFd<'_>,
        src: *const u8,
        len: usize,
        options: &CopyOptions,
    ) -> io::Result<Token> {
        assert!(len <= TASK_BYTES_MAX, "{len} bytes in one task");
        // SAFETY: the caller's promise.
        if let Some(token) = unsafe { self.send_past_deferred(fd, src, len, options)? } {
            return Ok(token);
        }
        if (len >= self.task_bytes_min(SEND_BYTES_MIN) || options.queued)
            && let Some(ticket) = self.acquire_at(fd, true, src.addr(), len)
        {
            let mut task = Task::copy(0, src.addr() as u64, len as u32);
            task.kind = unlade_shm::Kind::Send;
            task.fd = fd.as_raw_fd();
            return Ok(self.publish(ticket, Kind::Send, task, options));
        }
        self.complete_socket(fd, 0, src.addr(), len);
        // SAFETY: the caller's promise, and pending tasks that write the bytes are completed.
        send_all(fd, unsafe { slice::from_raw_parts(src, len) })?;
        self.stats().count_at_once(len);
        Ok(Token::DONE)
    }

    /// Sends once with flags of send(2), in this thread, after earlier tasks at the socket. Returns
    /// the number of bytes sent.
    ///
    /// # Errors
    /// The socket's error: [`io::ErrorKind::WouldBlock`] if it takes no byte and is non-blocking,
    /// or `DONTWAIT` is set, also if an earlier send to it is pending.
    ///
    /// # Safety
    /// As for [`Copier::send`].
    pub unsafe fn send_now(
        &self,
        fd: BorrowedFd<'_>,
        src: *const u8,
        len: usize,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let socket = Some(fd.as_raw_fd() as usize);
        if flags.contains(SendFlags::DONTWAIT) && self.is_sending(socket) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.complete_socket(fd, 0, src.addr(), len);
        // SAFETY: the caller's promise, and pending tasks that write the bytes are completed.
        let bytes = unsafe { slice::from_raw_parts(src, len) };
        let sent = rustix::net::send(fd, bytes, flags | SendFlags::NOSIGNAL)?;
        self.stats().count_at_once(sent);
        Ok(sent)
    }

    /// Passes a connected TCP socket to the daemon, which then makes receives and sends of it
    /// ([`Copier::receive`], [`Copier::send`]) whose bytes are in memory shared with it
    /// ([`Remote::memory`](crate::Remote::memory)). Receives and sends of other memory, short ones,
    /// and all without the daemon are made by this process. No effect without a daemon, or if the
    /// socket is passed already.
    ///
    /// The daemon then has the socket, too: the connection stays open until
    /// [`Copier::forget_socket`], the end of this client, or a shutdown(2), even if this process has
    /// closed its descriptor. Forget a socket before it is closed. A socket with urgent data (OOB)
    /// must not be passed, and TLS of the kernel must not be attached to a passed one.
    ///
    /// # Errors
    /// [`RemoteError::Refused`]: the daemon takes connected TCP sockets only, and a limited number.
    pub fn pass_socket(&self, fd: BorrowedFd<'_>) -> Result<(), RemoteError> {
        self.remote().map_or(Ok(()), |remote| remote.pass_socket(fd))
    }

    /// Completes the tasks of a socket, and has the daemon close it. No effect if the socket is not
    /// passed. Waits for the peer if it does not read: see [`Copier::abort`] and shutdown(2).
    ///
    /// # Errors
    /// [`RemoteError`]: the daemon's answer is invalid.
    pub fn forget_socket(&self, fd: BorrowedFd<'_>) -> Result<(), RemoteError> {
        let Some(remote) = self.remote() else { return Ok(()) };
        if remote.has_passed(fd) {
            self.complete_socket(fd, 0, 0, 0);
        }
        remote.forget_socket(fd)
    }

    /// As [`Copier::acquire`], also for a daemon that has the socket and the memory from `address` on.
    #[inline]
    pub(crate) fn acquire_at(
        &self,
        fd: BorrowedFd<'_>,
        is_send: bool,
        address: usize,
        len: usize,
    ) -> Option<Ticket> {
        match (self.remote(), is_send) {
            (Some(remote), _) => remote.acquire(fd, is_send, (address, len), self.failures()),
            (None, true) => self.acquire_here(len),
            (None, false) => self.acquire(len, address..address + len),
        }
    }

    /// Returns the number of bytes of a receive or send that a daemon had moved before it was killed.
    pub(crate) fn moved(&self, ticket: Ticket) -> u32 {
        self.link().moved(ticket)
    }

    /// Claims all of `bits`, or nothing if one of them is claimed.
    pub(crate) fn claim_all_or_none(&self, ticket: Ticket, bits: u32) -> bool {
        self.link().claim_all_or_none(ticket, bits)
    }

    /// Returns true if a task has bytes for the socket.
    pub(crate) fn is_sending(&self, socket: Option<usize>) -> bool {
        self.is_any_under_way(|queued| match queued.destination_socket() == socket {
            true => queued.all(),
            false => 0,
        })
    }

    /// Length from which a receive or send is a task; `local` in this process.
    fn task_bytes_min(&self, local: usize) -> usize {
        if self.remote().is_some() { DAEMON_SOCKET_BYTES_MIN } else { local }
    }

    fn is_worth_asking(&self, len: usize, options: &CopyOptions) -> bool {
        options.queued || len >= self.task_bytes_min(RECEIVE_BYTES_MIN) && self.is_awake()
    }

    /// Number of bytes in the socket that are not reserved. Bytes reserved for older tasks are
    /// still counted by the kernel, and must not be reserved twice.
    pub(crate) fn unpromised(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let socket = Some(fd.as_raw_fd() as usize);
        // First, so that bytes taken meanwhile reduce the result.
        let promised = self.promised(socket);
        let ready = usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(0);
        if promised == 0 || ready > promised {
            return Ok(ready - promised);
        }
        self.complete_receives(socket);
        Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(0))
    }

    /// Number of bytes of a socket that pending tasks have reserved.
    fn promised(&self, socket: Option<usize>) -> usize {
        let (mut at, head) = (self.pending().completed(), self.queue().head());
        let mut bytes = 0;
        while at < head {
            let queued = self.pending().get(at).filter(|queued| queued.source_socket() == socket);
            if let Some(queued) = queued {
                let left = queued.all() & !self.queue().progress(at).done();
                let runs = segment::runs(left);
                let of = |run| segment::bytes_of(run, queued.len_bytes, queued.granule_shift);
                bytes += runs.map(|run| of(run).len()).sum::<usize>();
            }
            at = at.next();
        }
        bytes
    }

    fn complete_receives(&self, socket: Option<usize>) {
        // The sync of a failed pending task returns its error.
        self.each_pending(|queued| if queued.source_socket() == socket { queued.all() } else { 0 });
    }

    /// Completes the tasks that must precede a synchronous receive or send.
    pub(crate) fn complete_socket(&self, fd: BorrowedFd<'_>, dst: usize, src: usize, len: usize) {
        let socket = Some(fd.as_raw_fd() as usize);
        // The sync of a failed pending task returns its error.
        self.each_pending(|queued| match () {
            () if queued.source_socket() == socket || queued.destination_socket() == socket => {
                queued.all()
            }
            () if src == 0 => queued.writing(dst, len) | queued.reading(dst, len),
            () => queued.writing(src, len),
        });
    }
}
