//! File descriptors sent with bytes over Unix stream sockets.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use unlade_sys::descriptors::{self, Received};

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Most descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 4;

/// Receives bytes, and the descriptors sent with them; 0 bytes mean the end of the stream.
///
/// # Errors
/// As [`unlade_sys::descriptors::receive`]: more than [`DESCRIPTORS_MAX`] descriptors of one
/// message are an error.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut Vec<u8>,
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut buffer = [0; READ_BYTES];
    let Received { len_bytes, descriptors: found } =
        descriptors::receive(socket, &mut buffer, DESCRIPTORS_MAX)?;
    descriptors.extend(found);
    bytes.extend_from_slice(buffer.get(..len_bytes).unwrap_or_default());
    Ok(len_bytes)
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
    descriptors::send(socket, bytes, descriptors)
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
