//! Socket options that have no safe wrapper elsewhere.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `tcpi_state` of a closed connection.
pub const STATE_CLOSE: u8 = 7;

/// Lets acknowledgements wait for data to be sent with (TCP_QUICKACK off). The kernel returns to
/// quick acknowledgements itself if the connection stops looking interactive.
///
/// # Errors
/// The kernel's.
pub fn delay_acknowledgements(socket: &impl AsFd) -> io::Result<()> {
    set(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_QUICKACK, &0i32)
}

/// Number of bytes that were written to a TCP socket and are not acknowledged, sent or not; the
/// FIN counts as one (SIOCOUTQ).
///
/// # Errors
/// The kernel's.
pub fn unacknowledged_bytes(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which has the same number as TIOCOUTQ, writes one int, which `bytes` is.
    let result = unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut bytes))
    };
    if result == 0 { Ok(bytes.max(0) as u64) } else { Err(io::Error::last_os_error()) }
}

/// Returns true if the kernel sends no more data of a TCP socket, unless more is written: all is
/// acknowledged, including the FIN if there was one, or the connection was reset.
///
/// # Errors
/// The kernel's.
pub fn is_spent(socket: &impl AsFd) -> io::Result<bool> {
    // The first byte of TCP_INFO is the state.
    let (state, _) = get::<u8>(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(state == STATE_CLOSE || unacknowledged_bytes(socket)? == 0)
}

/// Returns true if a protocol is attached to a TCP socket that changes its bytes, such as TLS in the
/// kernel (TCP_ULP).
///
/// # Errors
/// The kernel's.
pub fn has_upper_protocol(socket: &impl AsFd) -> io::Result<bool> {
    // The start of its name.
    let (_, length) = get::<u32>(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_ULP)?;
    Ok(length > 0)
}

/// Sets the number of bytes at which a receiver of this socket is woken (SO_RCVLOWAT), unless the
/// stream ends before. The kernel makes space for them.
///
/// # Errors
/// The kernel's.
pub fn wake_at_bytes(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes)
}

/// A type without padding for which every bit pattern is a value.
///
/// # Safety
/// The implementer must be `repr(C)` or a primitive, without padding, references or invariants.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers and arrays of bytes have no padding and no invalid values.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}

pub(crate) fn set<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &T,
) -> io::Result<()> {
    set_slice(fd, level, option, std::slice::from_ref(value))
}

pub(crate) fn set_slice<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    values: &[T],
) -> io::Result<()> {
    let length = size_of_val(values) as libc::socklen_t;
    // SAFETY: the kernel reads exactly `length` bytes from a slice that is borrowed for the call
    // and, being `Plain`, fully initialised.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, values.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option. A kernel with a shorter layout leaves the tail zero; the second value is the
/// number of bytes that it filled.
pub(crate) fn get<T: Plain>(fd: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<(T, usize)> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is writable for `length` bytes; the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before the call, and `Plain` admits every bit pattern.
    Ok((unsafe { value.assume_init() }, length as usize))
}
