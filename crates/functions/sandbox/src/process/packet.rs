//! Packets of a Unix socket that preserves message boundaries, with attached descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest packet: a specification, with the environment of its function.
pub const PACKET_BYTES_MAX: usize = 128 * 1024;
/// Most descriptors of a packet.
pub const DESCRIPTORS_MAX: usize = 12;

/// Sends a value as JSON.
///
/// # Errors
/// The system call failed; E2BIG if the packet is too long.
pub fn send(
    socket: impl AsFd,
    value: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(|_| io::Errno::INVAL)?;
    send_bytes(socket, &text, descriptors)
}

/// Sends bytes.
///
/// # Errors
/// The system call failed; E2BIG if there are too many bytes or descriptors.
pub fn send_bytes(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if bytes.len() > PACKET_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Errno::TOOBIG);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Errno::TOOBIG);
    }
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &parts, &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a packet; `None` at the end.
///
/// # Errors
/// The system call failed.
pub fn receive_bytes(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    bytes.truncate(got.bytes);
    Ok((got.bytes > 0).then_some((bytes, descriptors)))
}

/// Receives a value.
///
/// # Errors
/// The system call failed; EBADMSG if the packet is not valid JSON of this type.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some((bytes, descriptors)) = receive_bytes(socket)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes).map_err(|_| io::Errno::BADMSG)?;
    Ok(Some((value, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn packets_keep_their_bounds_and_descriptors() {
        let kind = SocketType::SEQPACKET;
        let (one, other) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        send(&one, &"first", &[one.as_fd(), other.as_fd()]).unwrap();
        send(&one, &2, &[]).unwrap();
        let (first, beside) = receive::<String>(&other).unwrap().unwrap();
        assert_eq!((first.as_str(), beside.len()), ("first", 2));
        assert_eq!(receive::<u32>(&other).unwrap().unwrap().0, 2);
        send(&one, &3, &[]).unwrap();
        assert_eq!(receive::<String>(&other).unwrap_err(), io::Errno::BADMSG);
        let long = vec![0; PACKET_BYTES_MAX + 1];
        assert_eq!(send_bytes(&one, &long, &[]).unwrap_err(), io::Errno::TOOBIG);
        drop((one, beside));
        assert!(receive::<u32>(&other).unwrap().is_none());
    }
}
