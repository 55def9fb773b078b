//! Descriptors: those that cross a Unix socket (SCM_RIGHTS), and those that children of this process
//! must not inherit.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

/// Most descriptors of one message of any protocol.
pub const DESCRIPTORS_MAX: usize = 16;

/// Result of one receive.
#[derive(Debug)]
pub struct Received {
    /// Number of bytes at the start of the caller's buffer. No byte and no descriptor mean that
    /// the peer has closed.
    pub len_bytes: usize,
    /// Descriptors that came with the bytes, with CLOEXEC set.
    pub descriptors: Vec<OwnedFd>,
}

/// Receives bytes, and at most `most` (up to [`DESCRIPTORS_MAX`]) descriptors that were sent with
/// them.
///
/// # Errors
/// The system's; [`io::ErrorKind::WouldBlock`] if nothing has arrived yet;
/// [`io::ErrorKind::InvalidData`] if there were more descriptors, or this process has no room for
/// them: all descriptors of the message are closed then, and its bytes are lost.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], most: usize) -> io::Result<Received> {
    let (received, descriptors) = receive_with(socket, bytes, RecvFlags::CMSG_CLOEXEC)?;
    // The kernel has closed the surplus of a truncated message.
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > most {
        let why = format!(
            "a message has more than {most} descriptors, or this process has no room for them"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(Received { len_bytes: received.bytes, descriptors })
}

/// Result of [`take_packet`].
#[derive(Debug)]
pub struct Packet {
    /// Number of bytes at the start of the caller's buffer. No byte and no descriptor mean that
    /// the peer has closed.
    pub len_bytes: usize,
    /// Descriptors of the packet, with CLOEXEC set; a part of them if it is not taken.
    pub descriptors: Vec<OwnedFd>,
    /// False if the packet is still the next one of the socket: it has more descriptors than can be
    /// received, this process has no room for them, or the connection was reset.
    pub is_taken: bool,
}

/// Takes a packet out of a Unix socket of the type SEQPACKET or DGRAM that no other thread reads. One
/// with more than [`DESCRIPTORS_MAX`] descriptors can be left there. In contrast to [`receive`], the
/// thread never closes a descriptor, nor does the kernel in this call: the last close of a peer's
/// descriptor can take as long as the peer likes.
///
/// # Errors
/// The system's; [`io::ErrorKind::WouldBlock`] if nothing has arrived yet.
pub fn take_packet(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Packet> {
    // The kernel closes what it cannot deliver. Here it delivers copies of the packet's descriptors.
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let (received, descriptors) = receive_with(&socket, bytes, flags)?;
    let len_bytes = received.bytes;
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Packet { len_bytes, descriptors, is_taken: false });
    }
    if len_bytes == 0 && descriptors.is_empty() {
        return Ok(Packet { len_bytes, descriptors, is_taken: true });
    }
    // The kernel closes the packet's own descriptors now. The caller has a copy of each.
    let taken = recv(&socket, &mut [0_u8; 1], RecvFlags::DONTWAIT);
    Ok(Packet { len_bytes, descriptors, is_taken: taken.is_ok() })
}

/// Receives bytes and up to [`DESCRIPTORS_MAX`] descriptors.
fn receive_with(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(RecvMsg, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    Ok((received, descriptors))
}

/// Sends bytes with at most [`DESCRIPTORS_MAX`] descriptors; returns the number of bytes sent. The
/// descriptors travel with the first of them.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for more descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > DESCRIPTORS_MAX
        || (!descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Sets CLOEXEC on all descriptors from `first` on (`close_range`), including those inherited from
/// the process that started this one.
///
/// # Errors
/// The kernel's: ENOSYS or EINVAL before Linux 5.11.
pub fn close_on_exec(first: u32) -> io::Result<()> {
    // SAFETY: three numbers, no memory. No descriptor is closed while this program runs, so every
    // owner of a descriptor still owns it; a program started by exec does not use the marked
    // descriptors.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    /// Descriptors of this process that refer to the file.
    fn references(file: &std::fs::File) -> usize {
        let due = rustix::fs::fstat(file).unwrap();
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let found = open.filter_map(|entry| rustix::fs::stat(entry.path()).ok());
        found.filter(|found| (found.st_dev, found.st_ino) == (due.st_dev, due.st_ino)).count()
    }

    #[test]
    fn descriptors_arrive_with_close_on_exec() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(send(&near, b"all", &[file.as_fd(); DESCRIPTORS_MAX]).unwrap(), 3);
        let mut bytes = [0; 8];
        let received = receive(&far, &mut bytes, DESCRIPTORS_MAX).unwrap();
        assert_eq!((received.len_bytes, received.descriptors.len()), (3, DESCRIPTORS_MAX));
        for descriptor in &received.descriptors {
            assert!(fcntl_getfd(descriptor).unwrap().contains(FdFlags::CLOEXEC));
        }
        let refused = send(&near, b"more", &[file.as_fd(); DESCRIPTORS_MAX + 1]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        drop(near);
        let end = receive(&far, &mut bytes, DESCRIPTORS_MAX).unwrap();
        assert_eq!((end.len_bytes, end.descriptors.len()), (0, 0));
    }

    #[test]
    fn a_message_with_too_many_descriptors_is_an_error_and_leaks_none() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        // More than the caller accepts.
        send(&near, b"three", &[file.as_fd(); 3]).unwrap();
        let refused = receive(&far, &mut [0; 8], 2).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(references(&file), 1);
        // More than the kernel finds room for: it truncates the message.
        let beside = [file.as_fd(); DESCRIPTORS_MAX + 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&beside)));
        sendmsg(&near, &[IoSlice::new(b"many")], &mut control, SendFlags::empty()).unwrap();
        let refused = receive(&far, &mut [0; 8], DESCRIPTORS_MAX).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(references(&file), 1);
        send(&near, b"next", &[file.as_fd()]).unwrap();
        assert_eq!(receive(&far, &mut [0; 8], 1).unwrap().descriptors.len(), 1);
    }

    #[test]
    fn a_packet_is_taken_whole_or_left_and_its_descriptors_stay_open() {
        let kind = rustix::net::SocketType::SEQPACKET;
        let (near, far) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            kind,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let mut bytes = [0; 8];
        let file = tempfile::tempfile().unwrap();
        send(&near, b"one", &[file.as_fd(); DESCRIPTORS_MAX]).unwrap();
        send(&near, b"", &[file.as_fd()]).unwrap();
        send(&near, b"none", &[]).unwrap();
        for (expected, count) in [(&b"one"[..], DESCRIPTORS_MAX), (b"", 1), (b"none", 0)] {
            let packet = take_packet(&far, &mut bytes).unwrap();
            assert_eq!(&bytes[..packet.len_bytes], expected);
            assert!(packet.is_taken);
            assert_eq!((packet.descriptors.len(), references(&file)), (count, 1 + count));
            for descriptor in &packet.descriptors {
                assert!(fcntl_getfd(descriptor).unwrap().contains(FdFlags::CLOEXEC));
            }
        }
        assert_eq!(references(&file), 1);
        // The one end of a pair is in the packet only: a close would be seen at the other.
        let (here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let is_open = || {
            let read = io::Read::read(&mut &here, &mut [0; 1]);
            read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        let many = [there.as_fd(); DESCRIPTORS_MAX + 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&near, &[IoSlice::new(b"many")], &mut control, SendFlags::empty()).unwrap();
        drop(there);
        for _ in 0..2 {
            let packet = take_packet(&far, &mut bytes).unwrap();
            assert!(!packet.is_taken);
            drop(packet);
            assert!(is_open(), "it is in the queue");
        }
        drop((near, far));
        assert!(!is_open());
    }

    #[test]
    fn open_descriptors_are_marked_and_stay_open() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let open = rustix::io::dup(&file).unwrap();
        assert!(!fcntl_getfd(&open).unwrap().contains(FdFlags::CLOEXEC));
        match close_on_exec(open.as_raw_fd().unsigned_abs()) {
            Ok(()) => assert!(fcntl_getfd(&open).unwrap().contains(FdFlags::CLOEXEC)),
            Err(error) => println!("skipped: close_range: {error}"),
        }
    }
}
