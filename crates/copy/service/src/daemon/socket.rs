//! Messages on a SOCK_SEQPACKET socket, with the descriptors that come along.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::daemon::message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};

/// A message as it came: bytes that mean nothing yet.
#[derive(Debug)]
pub struct Received {
    /// One more than the longest message, so that a longer one is seen to be too long.
    bytes: [u8; MESSAGE_BYTES_MAX + 1],
    len: usize,
    /// What came along.
    pub descriptors: Vec<OwnedFd>,
    /// More came along than a message can have. The kernel has closed them.
    pub has_more: bool,
}

impl Received {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Receives a message; none where the peer has closed.
///
/// # Errors
/// The kernel's; [`io::ErrorKind::WouldBlock`] where there is none yet.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Received>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    let has_more = received.flags.contains(ReturnFlags::CTRUNC);
    let is_end = received.bytes == 0 && descriptors.is_empty() && !has_more;
    Ok((!is_end).then_some(Received { bytes, len: received.bytes, descriptors, has_more }))
}

/// Sends a message. It is small: where the peer does not read, it is an error.
///
/// # Errors
/// The kernel's.
///
/// # Panics
/// More than [`DESCRIPTORS_MAX`] descriptors.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} descriptors", descriptors.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        // There is room for that many.
        let _ = control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Has the runtime's thread watch a descriptor for something to read.
///
/// # Errors
/// The kernel's.
#[cfg(feature = "daemon")]
// The safe constructor is deprecated since a type can change its descriptor behind tokio's back;
// this one cannot, and this crate forbids the other constructor's `unsafe`.
#[allow(deprecated)]
pub(crate) fn watch(
    descriptor: std::sync::Arc<OwnedFd>,
) -> io::Result<tokio::io::unix::AsyncFd<std::sync::Arc<OwnedFd>>> {
    tokio::io::unix::AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)
}
