//! Messages on a SOCK_SEQPACKET socket, with their descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::daemon::message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};

/// A received message, not decoded yet.
#[derive(Debug)]
pub struct Received {
    /// One byte more than the longest message, to detect messages that are too long.
    bytes: [u8; MESSAGE_BYTES_MAX + 1],
    len: usize,
    /// Received descriptors.
    pub descriptors: Vec<OwnedFd>,
    /// The message carried too many descriptors. The kernel has closed the surplus.
    pub has_more: bool,
}

impl Received {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Receives a message; `None` if the peer has closed.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::WouldBlock`] if no message is there yet.
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

/// Sends a message. Messages are small: if the peer does not read, the result is an error.
///
/// # Errors
/// The kernel's error.
///
/// # Panics
/// Panics if there are more than [`DESCRIPTORS_MAX`] descriptors.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} descriptors", descriptors.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        // The buffer has room for this number of descriptors.
        let _ = control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Registers a descriptor with the runtime's thread, for readability.
///
/// # Errors
/// The kernel's error.
#[cfg(feature = "daemon")]
// The safe constructor is deprecated because a type can change its descriptor without tokio's
// knowledge. This type cannot, and this crate forbids the `unsafe` of the other constructor.
#[allow(deprecated)]
pub(crate) fn watch(
    descriptor: std::sync::Arc<OwnedFd>,
) -> io::Result<tokio::io::unix::AsyncFd<std::sync::Arc<OwnedFd>>> {
    tokio::io::unix::AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)
}
