//! Messages on a SOCK_SEQPACKET socket, with their descriptors.

use std::io;
#[cfg(feature = "daemon")]
use std::os::fd::AsRawFd;
use std::os::fd::{BorrowedFd, OwnedFd};

use unlade_sys::descriptors;

#[cfg(feature = "daemon")]
use crate::daemon::closer::{ClientDescriptor, Connection};
use crate::daemon::message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};

/// A received message, not decoded yet.
#[derive(Debug)]
pub struct Received<Descriptor = OwnedFd> {
    /// One byte more than the longest message, to detect messages that are too long.
    bytes: [u8; MESSAGE_BYTES_MAX + 1],
    len: usize,
    /// Received descriptors.
    pub descriptors: Vec<Descriptor>,
}

impl<Descriptor> Received<Descriptor> {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Receives a message; `None` if the peer has closed.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::WouldBlock`] if no message is there yet;
/// [`io::ErrorKind::InvalidData`] for more than [`DESCRIPTORS_MAX`] descriptors.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Received>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
    let received = descriptors::receive(socket, &mut bytes, DESCRIPTORS_MAX)?;
    let (len, descriptors) = (received.len_bytes, received.descriptors);
    let is_end = len == 0 && descriptors.is_empty();
    Ok((!is_end).then_some(Received { bytes, len, descriptors }))
}

/// Receives a message of a client, with any number of descriptors; `None` if the client has closed.
/// The caller's thread closes none of them.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::WouldBlock`] if no message is there yet;
/// [`io::ErrorKind::InvalidData`] for a message that stays in the queue, because it has too many
/// descriptors to be received, or the process has no room for them. The session must end then.
#[cfg(feature = "daemon")]
pub(crate) fn receive_from_client(
    connection: &Connection,
) -> io::Result<Option<Received<ClientDescriptor>>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
    let packet = descriptors::take_packet(connection, &mut bytes)?;
    let own = |descriptor| connection.closer().own(descriptor);
    let descriptors: Vec<_> = packet.descriptors.into_iter().map(own).collect();
    let len = packet.len_bytes;
    if !packet.is_taken {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let is_end = len == 0 && descriptors.is_empty();
    Ok((!is_end).then_some(Received { bytes, len, descriptors }))
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
    descriptors::send(socket, message, descriptors)?;
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
pub(crate) fn watch<T: AsRawFd>(
    descriptor: std::sync::Arc<T>,
) -> io::Result<tokio::io::unix::AsyncFd<std::sync::Arc<T>>> {
    tokio::io::unix::AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)
}
