//! Receives, sends and forwards by the calling thread, which waits for the socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::slice;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use smallvec::SmallVec;
use unlade_copy_service::HeldBytes;

use crate::deferred::{PIECES_MAX, Piece};
use crate::pending::{Kind, Queued};

/// Buffer size for a synchronous forward between two sockets.
const FORWARD_BYTES: usize = 16 << 10;

/// The socket of a task.
pub(crate) fn socket(number: Option<usize>) -> io::Result<BorrowedFd<'static>> {
    let socket = number.and_then(|socket| i32::try_from(socket).ok());
    match socket.filter(|socket| *socket >= 0) {
        // SAFETY: the submitter promised that the socket stays open until the task is completed; it
        // is used only before that.
        Some(socket) => Ok(unsafe { BorrowedFd::borrow_raw(socket) }),
        None => Err(rustix::io::Errno::BADF.into()),
    }
}

/// Forwards `len` bytes, and waits for both sockets. Returns the numbers of bytes given and taken.
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

pub(crate) fn send_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
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

/// Fills the parts, and waits for the socket. Returns the number of bytes received, and an error
/// if not all came.
pub(crate) fn receive_all(
    fd: io::Result<BorrowedFd<'_>>,
    parts: &mut [&mut [u8]],
) -> (usize, io::Result<()>) {
    let mut count = 0;
    let received = fd.and_then(|fd| receive_into(fd, parts, &mut count));
    (count, received)
}

fn receive_into(fd: BorrowedFd<'_>, parts: &mut [&mut [u8]], count: &mut usize) -> io::Result<()> {
    let mut parts: SmallVec<[IoSliceMut<'_>; 3]> =
        parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    let mut left = &mut parts[..];
    // Skips empty parts at the beginning.
    IoSliceMut::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match rustix::io::readv(fd, left) {
            Ok(0) => return Err(rustix::io::Errno::NODATA.into()),
            Ok(came) => {
                *count += came;
                IoSliceMut::advance_slices(&mut left, came);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => wait_for(fd, PollFlags::IN)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Executes a task at a socket in this thread, from its byte `from` on, and waits for the socket.
///
/// # Safety
/// The task's bytes are valid, and no other thread touches them; its socket is open.
pub(crate) unsafe fn wait_for_all(queued: &Queued, from: u32) -> io::Result<()> {
    let (len, from) = (queued.len_bytes as usize, from as usize);
    let fd = socket(queued.source_socket().or(queued.destination_socket()))?;
    if queued.kind == Kind::Forward {
        let to = socket(queued.destination_socket())?;
        return forward_all(fd, to, len).2;
    }
    if queued.kind == Kind::Send {
        let bytes = std::ptr::with_exposed_provenance::<u8>(queued.src);
        // SAFETY: the caller's promise.
        return send_all(fd, &unsafe { slice::from_raw_parts(bytes, len) }[from.min(len)..]);
    }
    let bytes = std::ptr::with_exposed_provenance_mut::<u8>(queued.dst);
    // SAFETY: the caller's promise.
    let mut left = &mut unsafe { slice::from_raw_parts_mut(bytes, len) }[from.min(len)..];
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

/// Sends the places in order, as far as the socket permits. Returns the number of bytes sent.
///
/// # Safety
/// The places are valid for reads, and not written during the call.
unsafe fn send_places(
    fd: BorrowedFd<'_>,
    places: impl Iterator<Item = (usize, usize)>,
) -> io::Result<usize> {
    let parts: SmallVec<[IoSlice<'_>; PIECES_MAX]> = places
        .map(|(address, len)| {
            let bytes = std::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the caller's promise.
            IoSlice::new(unsafe { slice::from_raw_parts(bytes, len) })
        })
        .collect();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(fd, &parts, &mut SendAncillaryBuffer::default(), flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(0),
            sent => return Ok(sent?),
        }
    }
}

/// Sends pieces in order, as far as the socket permits. Returns the number of bytes sent.
///
/// # Safety
/// The pieces are valid for reads, and not written during the call.
pub(crate) unsafe fn send_pieces(fd: BorrowedFd<'_>, pieces: &[Piece]) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { send_places(fd, pieces.iter().map(|piece| (piece.address, piece.len))) }
}

/// Executes a send whose bytes may move, in this thread, and waits for the socket.
///
/// # Safety
/// The bytes are valid at their places, and not written there; the socket is open.
pub(crate) unsafe fn send_held(queued: &Queued, held: &HeldBytes) -> io::Result<()> {
    let fd = socket(queued.destination_socket())?;
    let (mut sent, len) = (held.sent() as usize, queued.len_bytes as usize);
    while sent < len {
        let count = held.with(sent as u64, len as u64, |parts| {
            let parts = parts.iter().map(|&(address, len)| (address as usize, len as usize));
            // SAFETY: the caller's promise.
            unsafe { send_places(fd, parts) }
        })?;
        sent += count;
        if count == 0 {
            wait_for(fd, PollFlags::OUT)?;
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
