//! Receives and sends as tasks: the system call is made by the service, the bytes are synced like
//! those of a copy.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;

use ring::Task;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags};

use crate::copier::{Copier, How, TASK_BYTES_MAX, Token};
use crate::pending::{Kind, Queued};

/// Fewer bytes are received and sent at once: asking how many there are is a system call too.
const QUEUE_BYTES_MIN: usize = 4 << 10;

impl Copier {
    /// Receives what socket `fd` has, at most `len` bytes: says at once how many, while the bytes
    /// are still on their way to `dst`. 0 is the end of the stream.
    ///
    /// What comes at once is what `FIONREAD` says; small receives, and those that find nothing,
    /// are made at once.
    ///
    /// # Errors
    /// The socket's: [`io::ErrorKind::WouldBlock`] where it has nothing and does not wait.
    ///
    /// # Safety
    /// As for [`Copier::submit`], of `dst`. Nobody else receives from the socket, and it is not
    /// closed, until the bytes are synced.
    pub unsafe fn receive(
        &self,
        fd: BorrowedFd<'_>,
        dst: *mut u8,
        len: usize,
        how: &How,
    ) -> io::Result<(usize, Token)> {
        let ready = match self.is_worth_asking(len, how) {
            true => rustix::io::ioctl_fionread(fd)? as usize,
            false => 0,
        };
        let count = ready.min(len).min(TASK_BYTES_MAX);
        if (count >= QUEUE_BYTES_MIN || how.queued && count > 0)
            && let Some(ticket) = self.acquire(count)
        {
            let mut task = Task::copy(dst.addr() as u64, 0, count as u32);
            task.kind = ring::Kind::Receive;
            task.fd = fd.as_raw_fd();
            return Ok((count, self.publish(ticket, Kind::Receive, task, how)));
        }
        self.settle_socket(fd, dst.addr(), 0, len);
        // SAFETY: `dst` is valid for writes of `len` bytes, and nobody else touches them: the
        // caller's promise, and what is pending is settled. Bytes that are not initialised are not
        // read.
        let buffer: &mut [MaybeUninit<u8>] = unsafe { slice::from_raw_parts_mut(dst.cast(), len) };
        let ((received, _), _) = rustix::net::recv(fd, buffer, RecvFlags::empty())?;
        Ok((received.len(), Token::DONE))
    }

    /// Sends `len` bytes, at most [`TASK_BYTES_MAX`], to socket `fd`, in the end all of them; the
    /// service waits for the socket.
    ///
    /// # Safety
    /// As for [`Copier::submit`], of `src`. Nobody else sends to the socket, and it is not closed,
    /// until the copy is synced.
    ///
    /// # Panics
    /// `len` is above [`TASK_BYTES_MAX`].
    pub unsafe fn send(
        &self,
        fd: BorrowedFd<'_>,
        src: *const u8,
        len: usize,
        how: &How,
    ) -> io::Result<Token> {
        assert!(len <= TASK_BYTES_MAX, "{len} bytes in one task");
        if (len >= QUEUE_BYTES_MIN || how.queued)
            && let Some(ticket) = self.acquire(len)
        {
            let mut task = Task::copy(0, src.addr() as u64, len as u32);
            task.kind = ring::Kind::Send;
            task.fd = fd.as_raw_fd();
            return Ok(self.publish(ticket, Kind::Send, task, how));
        }
        self.settle_socket(fd, 0, src.addr(), len);
        // SAFETY: the caller's promise, and what is pending and writes the bytes is settled.
        send_all(fd, unsafe { slice::from_raw_parts(src, len) })?;
        Ok(Token::DONE)
    }

    fn is_worth_asking(&self, len: usize, how: &How) -> bool {
        how.queued || len >= QUEUE_BYTES_MIN && self.is_awake()
    }

    /// What must come before a receive or a send that is made at once.
    fn settle_socket(&self, fd: BorrowedFd<'_>, dst: usize, src: usize, len: usize) {
        let socket = fd.as_raw_fd() as usize;
        // A pending task that failed is told to whoever syncs it.
        let _ = self.each_pending(|queued| match queued.socket() {
            Some(other) if other == socket => queued.all(),
            _ if src == 0 => queued.writing(dst, len) | queued.reading(dst, len),
            _ => queued.writing(src, len),
        });
    }
}

fn send_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => wait_for(fd, PollFlags::OUT)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn wait_for(fd: BorrowedFd<'_>, what: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::from_borrowed_fd(fd, what)], None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Does a task at a socket in this thread, and waits for the socket.
///
/// # Safety
/// The task's bytes are valid, and nobody else touches them; its socket is open.
pub(crate) unsafe fn wait_for_all(queued: &Queued) -> io::Result<()> {
    let len = queued.len_bytes as usize;
    let socket = i32::try_from(queued.socket().unwrap_or(usize::MAX)).unwrap_or(-1);
    if socket < 0 {
        return Err(io::Error::from_raw_os_error(9));
    }
    // SAFETY: it is open, and not -1.
    let fd = unsafe { BorrowedFd::borrow_raw(socket) };
    if queued.kind == Kind::Send {
        let bytes = std::ptr::with_exposed_provenance::<u8>(queued.src);
        // SAFETY: the caller's promise.
        return send_all(fd, unsafe { slice::from_raw_parts(bytes, len) });
    }
    let bytes = std::ptr::with_exposed_provenance_mut::<u8>(queued.dst);
    // SAFETY: the caller's promise.
    let mut left = unsafe { slice::from_raw_parts_mut(bytes, len) };
    while !left.is_empty() {
        match rustix::net::recv(fd, &mut *left, RecvFlags::empty()) {
            Ok((_, 0)) => return Err(io::Error::from_raw_os_error(61)),
            Ok((_, count)) => left = &mut left[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => wait_for(fd, PollFlags::IN)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
