//! Receives and sends as tasks: the system call is made by the service, the bytes are synced like
//! those of a copy.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags};
use unlade_shm::{Task, segment};

use crate::copier::{Copier, How, TASK_BYTES_MAX, Token};
use crate::pending::{Kind, Queued};

/// Fewer bytes are received and sent at once: asking how many there are is a system call too.
const QUEUE_BYTES_MIN: usize = 4 << 10;

impl Copier {
    /// Receives what socket `fd` has, at most `len` bytes: says at once how many, while the bytes
    /// are still on their way to `dst`. 0 is the end of the stream.
    ///
    /// What comes at once is what `FIONREAD` says; small receives, and those that find nothing,
    /// are made at once. Behind that it is as for [`Copier::receive_lazily`]: the end of a stream and
    /// a reset are the next receive's.
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
            true => self.unpromised(fd)?,
            false => 0,
        };
        let count = ready.min(len).min(TASK_BYTES_MAX);
        if (count >= QUEUE_BYTES_MIN || how.queued && count > 0)
            && let Some(ticket) = self.acquire(count)
        {
            let mut task = Task::copy(dst.addr() as u64, 0, count as u32);
            task.kind = unlade_shm::Kind::Receive;
            task.fd = fd.as_raw_fd();
            return Ok((count, self.publish(ticket, Kind::Receive, task, how)));
        }
        self.settle_socket(fd, dst.addr(), 0, len);
        // SAFETY: `dst` is valid for writes of `len` bytes, and nobody else touches them: the
        // caller's promise, and what is pending is settled. Bytes that are not initialised are not
        // read.
        let buffer: &mut [MaybeUninit<u8>] = unsafe { slice::from_raw_parts_mut(dst.cast(), len) };
        let ((received, _), _) = rustix::net::recv(fd, buffer, RecvFlags::empty())?;
        self.failures().overwrite(dst.addr(), received.len());
        Ok((received.len(), Token::DONE))
    }

    /// Sends `len` bytes, at most [`TASK_BYTES_MAX`], to socket `fd`, in the end all of them; the
    /// service waits for the socket, however long its peer takes nothing. Others do not wait for it;
    /// up to 48 tasks of a client wait for sockets at a time, and those behind them for these. See
    /// [`Copier::sync_timeout`] and [`Copier::abort`].
    ///
    /// # Errors
    /// The socket's, where it is sent at once. Otherwise a sync fails, with
    /// [`TaskFailure::Socket`](crate::TaskFailure::Socket), also where some bytes were sent.
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
            task.kind = unlade_shm::Kind::Send;
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

    /// How many bytes the socket has. What is promised to older tasks is in it still, and counted,
    /// but must not be promised twice.
    pub(crate) fn unpromised(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let socket = Some(fd.as_raw_fd() as usize);
        // First, so that what is taken meanwhile counts less, not more.
        let promised = self.promised(socket);
        let ready = usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(0);
        if promised == 0 || ready > promised {
            return Ok(ready - promised);
        }
        self.settle_receives(socket);
        Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(0))
    }

    /// Bytes of a socket that pending tasks have still to take.
    fn promised(&self, socket: Option<usize>) -> usize {
        let (mut at, head) = (self.pending().settled(), self.queue().head());
        let mut bytes = 0;
        while at < head {
            let queued = self.pending().get(at).filter(|queued| queued.inlet() == socket);
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

    fn settle_receives(&self, socket: Option<usize>) {
        // A pending task that failed is told to whoever syncs it.
        self.each_pending(|queued| if queued.inlet() == socket { queued.all() } else { 0 });
    }

    /// What must come before a receive or a send that is made at once.
    pub(crate) fn settle_socket(&self, fd: BorrowedFd<'_>, dst: usize, src: usize, len: usize) {
        let socket = Some(fd.as_raw_fd() as usize);
        // A pending task that failed is told to whoever syncs it.
        self.each_pending(|queued| match () {
            () if queued.inlet() == socket || queued.outlet() == socket => queued.all(),
            () if src == 0 => queued.writing(dst, len) | queued.reading(dst, len),
            () => queued.writing(src, len),
        });
    }
}

/// Bytes on their way between two sockets, in a program that has no service.
const FORWARD_BYTES: usize = 16 << 10;

/// Passes `len` bytes on, and waits for both sockets: how many were given, how many taken.
pub(crate) fn forward_all(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    len: usize,
) -> (usize, usize, io::Result<()>) {
    let (mut given, mut buffer) = (0, [0u8; FORWARD_BYTES]);
    while given < len {
        let most = FORWARD_BYTES.min(len - given);
        let taken = match rustix::net::recv(from, &mut buffer[..most], RecvFlags::empty()) {
            Ok((_, 0)) => return (given, given, Err(rustix::io::Errno::NODATA.into())),
            Ok((_, count)) => count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::WOULDBLOCK) => match wait_for(from, PollFlags::IN) {
                Ok(()) => continue,
                Err(error) => return (given, given, Err(error)),
            },
            Err(error) => return (given, given, Err(error.into())),
        };
        let mut sent = 0;
        if let Err(error) = send_some(to, &buffer[..taken], &mut sent) {
            return (given + sent, given + taken, Err(error));
        }
        given += taken;
    }
    (given, given, Ok(()))
}

fn send_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    send_some(fd, bytes, &mut 0)
}

fn send_some(fd: BorrowedFd<'_>, bytes: &[u8], count: &mut usize) -> io::Result<()> {
    while *count < bytes.len() {
        match rustix::net::send(fd, &bytes[*count..], SendFlags::NOSIGNAL) {
            Ok(sent) => *count += sent,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => wait_for(fd, PollFlags::OUT)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(crate) fn wait_for(fd: BorrowedFd<'_>, what: PollFlags) -> io::Result<()> {
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
    let socket = queued.inlet().or(queued.outlet());
    let fd = crate::chain::socket(socket)?;
    if queued.kind == Kind::Forward {
        let to = crate::chain::socket(queued.outlet())?;
        return forward_all(fd, to, len).2;
    }
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
