//! TLS in the kernel ("Kernel TLS", Documentation/networking/tls.rst): after the handshake, the
//! kernel seals and opens the records of a connection.
//!
//! AES-GCM of TLS 1.2 and 1.3. Keys cannot be changed (kernels before 6.14 do not support it).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut, SockRef};

use crate::sockopt;

/// `TLS_SET_RECORD_TYPE`, the control message with the type of a record to send.
const SET_RECORD_TYPE: i32 = 1;
/// `TLS_GET_RECORD_TYPE`, the control message with the type of a received record.
const GET_RECORD_TYPE: i32 = 2;
/// `TLS_CIPHER_AES_GCM_128` and `TLS_CIPHER_AES_GCM_256`.
const AES_GCM: [u16; 2] = [51, 52];
/// Bytes of a control message's header: its length, its level and its type.
const CONTROL_HEADER_BYTES: usize = size_of::<usize>() + 8;
/// Bytes of a control message with one byte of content, padding included.
const CONTROL_BYTES: usize = CONTROL_HEADER_BYTES + size_of::<usize>();
/// Bytes of the fixed part of a nonce ("salt").
const SALT_BYTES: usize = 4;

/// The direction of a socket's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// `TLS_TX`.
    Send = 1,
    /// `TLS_RX`.
    Receive = 2,
}

/// The keys of one direction of a connection.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// As on the wire: 0x0303 is TLS 1.2, 0x0304 is TLS 1.3.
    pub version: u16,
    /// The AES key, 16 or 32 bytes.
    pub key: &'a [u8],
    /// TLS 1.3: the IV. TLS 1.2: the salt, and the explicit nonce of the next sent record (the
    /// kernel increments it).
    pub iv: [u8; 12],
    /// Sequence number of the next record.
    pub number: u64,
}

/// Attaches kernel TLS to a connection; until keys are set, bytes pass unchanged.
///
/// # Errors
/// The kernel's: `ENOENT` without the module `tls`, `ENOTCONN` before the connection is
/// established.
pub fn attach(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_slice(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")
}

/// Sets the keys of a direction; possible once.
///
/// # Errors
/// `EINVAL` for a key of another length; the kernel's.
pub fn set_keys(socket: &impl AsFd, direction: Direction, keys: &Keys<'_>) -> io::Result<()> {
    let cipher = match keys.key.len() {
        16 => AES_GCM[0],
        32 => AES_GCM[1],
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let (salt, nonce) = keys.iv.split_at(SALT_BYTES);
    let mut info = Vec::with_capacity(56);
    info.extend(keys.version.to_ne_bytes());
    info.extend(cipher.to_ne_bytes());
    info.extend(nonce);
    info.extend(keys.key);
    info.extend(salt);
    info.extend(keys.number.to_be_bytes());
    sockopt::set_slice(socket.as_fd(), libc::SOL_TLS, direction as i32, &info)
}

/// Receives bytes of one record; returns its content type and the number of bytes. Type 0 with no
/// bytes is the end of the stream.
///
/// # Errors
/// The kernel's: `EBADMSG` for a record that fails authentication.
pub fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<(u8, usize)> {
    // A copy, because socket2 takes memory that may be uninitialised.
    let mut taken = vec![MaybeUninit::<u8>::zeroed(); buffer.len()];
    let mut control = [MaybeUninit::<u8>::zeroed(); CONTROL_BYTES];
    let (got, control_bytes) = {
        let mut parts = [MaybeUninitSlice::new(&mut taken)];
        let mut message = MsgHdrMut::new().with_buffers(&mut parts).with_control(&mut control);
        let got = SockRef::from(socket).recvmsg(&mut message, 0)?;
        (got, message.control_len())
    };
    for (to, from) in buffer.iter_mut().zip(&taken) {
        // SAFETY: each byte was zeroed above, and since then at most written by the kernel.
        *to = unsafe { from.assume_init() };
    }
    // SAFETY: as above.
    let control = control.map(|byte| unsafe { byte.assume_init() });
    let kind = record_type(control.get(..control_bytes).unwrap_or_default());
    Ok((if got == 0 { kind.unwrap_or(0) } else { kind.unwrap_or(APPLICATION_DATA) }, got))
}

/// The content type of application data (RFC 8446, section 5.1).
pub const APPLICATION_DATA: u8 = 23;
/// The content type of an alert.
pub const ALERT: u8 = 21;

/// The content type in a control message from the kernel.
fn record_type(control: &[u8]) -> Option<u8> {
    let expected = control_header(GET_RECORD_TYPE);
    let value = control.strip_prefix(&expected[..])?;
    value.first().copied()
}

/// The header of a control message of one byte (cmsg(3)).
fn control_header(kind: i32) -> [u8; CONTROL_HEADER_BYTES] {
    let mut header = [0; CONTROL_HEADER_BYTES];
    let (length, rest) = header.split_at_mut(size_of::<usize>());
    length.copy_from_slice(&(CONTROL_HEADER_BYTES + 1).to_ne_bytes());
    rest[..4].copy_from_slice(&libc::SOL_TLS.to_ne_bytes());
    rest[4..].copy_from_slice(&kind.to_ne_bytes());
    header
}

/// Sends a record of a content type; returns the number of bytes sent.
///
/// # Errors
/// The kernel's.
pub fn send(socket: &impl AsFd, content_type: u8, bytes: &[u8]) -> io::Result<usize> {
    let mut control = [0; CONTROL_BYTES];
    control[..CONTROL_HEADER_BYTES].copy_from_slice(&control_header(SET_RECORD_TYPE));
    control[CONTROL_HEADER_BYTES] = content_type;
    let parts = [IoSlice::new(bytes)];
    let message = MsgHdr::new().with_buffers(&parts).with_control(&control);
    SockRef::from(socket).sendmsg(&message, 0)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn the_type_of_a_record_is_read_from_its_control_message_only() {
        let mut control = control_header(GET_RECORD_TYPE).to_vec();
        assert_eq!(record_type(&control), None);
        control.push(ALERT);
        assert_eq!(record_type(&control), Some(ALERT));
        let mut other = control_header(SET_RECORD_TYPE).to_vec();
        other.push(ALERT);
        assert_eq!(record_type(&other), None);
        assert_eq!(record_type(&[]), None);
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        let (near, _far) = pair();
        let keys = Keys { version: 0x0304, key: &[0; 24], iv: [0; 12], number: 0 };
        let error = set_keys(&near, Direction::Send, &keys).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn records_pass_between_two_sockets_with_their_types() {
        let (near, far) = pair();
        if let Err(error) = attach(&near) {
            println!("skipped: no TLS in this kernel: {error}");
            return;
        }
        attach(&far).unwrap();
        let keys = Keys { version: 0x0304, key: &[7; 16], iv: [9; 12], number: 5 };
        set_keys(&near, Direction::Send, &keys).unwrap();
        set_keys(&far, Direction::Receive, &keys).unwrap();
        assert_eq!(send(&near, APPLICATION_DATA, b"data").unwrap(), 4);
        assert_eq!(send(&near, ALERT, &[1, 0]).unwrap(), 2);
        let mut buffer = [0; 64];
        assert_eq!(receive(&far, &mut buffer).unwrap(), (APPLICATION_DATA, 4));
        assert_eq!(&buffer[..4], b"data");
        assert_eq!(receive(&far, &mut buffer).unwrap(), (ALERT, 2));
    }
}
