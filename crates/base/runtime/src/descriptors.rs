//! File descriptors sent with bytes over Unix stream sockets.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Most descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 4;

/// Receives bytes, and the descriptors sent with them; 0 bytes mean the end of the stream.
///
/// # Errors
/// The system's; [`io::ErrorKind::WouldBlock`] if nothing has arrived yet.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut Vec<u8>,
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut buffer = [0; READ_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    bytes.extend_from_slice(buffer.get(..received.bytes).unwrap_or_default());
    Ok(received.bytes)
}

/// Sends bytes with at most [`DESCRIPTORS_MAX`] descriptors; returns the number of bytes sent. The
/// descriptors travel with the first of them.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for more descriptors.
pub fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_come_beside_their_bytes() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(send_with(&near, b"none", &[]).unwrap(), 4);
        let (mut bytes, mut found) = (Vec::new(), VecDeque::new());
        assert_eq!(receive(&far, &mut bytes, &mut found).unwrap(), 4);
        assert!(found.is_empty());
        let beside = [file.as_fd(); DESCRIPTORS_MAX];
        assert_eq!(send_with(&near, b" and four", &beside).unwrap(), 9);
        assert_eq!(receive(&far, &mut bytes, &mut found).unwrap(), 9);
        assert_eq!((bytes.as_slice(), found.len()), (&b"none and four"[..], DESCRIPTORS_MAX));
        let due = rustix::fs::fstat(&file).unwrap().st_ino;
        for descriptor in &found {
            assert_eq!(rustix::fs::fstat(descriptor).unwrap().st_ino, due);
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        drop(near);
        assert_eq!(receive(&far, &mut bytes, &mut found).unwrap(), 0);
    }

    #[test]
    fn more_than_fit_are_refused_and_nothing_is_sent() {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let beside = [near.as_fd(); DESCRIPTORS_MAX + 1];
        let refused = send_with(&near, b"five", &beside).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let nothing = receive(&far, &mut Vec::new(), &mut VecDeque::new()).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
