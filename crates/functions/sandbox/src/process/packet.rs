//! Packets of a Unix socket that preserves message boundaries, with attached descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io;
use serde::Serialize;
use serde::de::DeserializeOwned;
use unlade_sys::descriptors;

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
    descriptors::send(socket, bytes, descriptors).map_err(errno)?;
    Ok(())
}

/// Receives a packet; `None` at the end.
///
/// # Errors
/// The system call failed; EBADMSG if the packet has too many descriptors.
pub fn receive_bytes(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let received = descriptors::receive(socket, &mut bytes, DESCRIPTORS_MAX).map_err(errno)?;
    bytes.truncate(received.len_bytes);
    Ok((received.len_bytes > 0).then_some((bytes, received.descriptors)))
}

/// Receives a value.
///
/// # Errors
/// As [`receive_bytes`]; EBADMSG if the packet is not valid JSON of this type.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some((bytes, descriptors)) = receive_bytes(socket)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes).map_err(|_| io::Errno::BADMSG)?;
    Ok(Some((value, descriptors)))
}

/// Number of an error; EBADMSG for one that is not the system's.
fn errno(error: std::io::Error) -> io::Errno {
    io::Errno::from_io_error(&error).unwrap_or(io::Errno::BADMSG)
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
