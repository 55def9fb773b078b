//! Address space of a client: the memory that a service may access for it.

use std::io;
use std::ptr;
use std::sync::Arc;

use crate::device::Chunk;
use crate::guard::{Fault, Guard};
use crate::kernel::Hint;
use crate::stream::STREAM_BYTES_MIN;

/// Maximum number of places in one receive or send.
pub const PARTS_MAX: usize = 64;

/// Returns the cache hint for a copy of this length.
pub(crate) fn hint_for(len: u64) -> Hint {
    if len >= STREAM_BYTES_MIN as u64 { Hint::Stream } else { Hint::Reuse }
}

/// An address in this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Address of the first byte.
    pub address: usize,
    /// True if the mapping lives as long as the client; otherwise it may change at any time.
    pub is_lasting: bool,
}

/// Addresses of a client's places, for asynchronous units.
///
/// # Safety
/// The implementer guarantees for every [`Chunk`] that it returns, during the lifetime of this
/// value: the destination contains only memory that copies of the client may overwrite, no
/// reference points there that a copy would invalidate, and no memory that is not the client's is
/// mapped there. The addresses may be unmapped.
pub unsafe trait Reach: Send + Sync {
    /// Returns both ranges of a copy; `None` if one is not completely the client's.
    fn chunk(&self, dst: u64, src: u64, len: u64) -> Option<Chunk>;
}

/// Result of [`Space::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// Nothing goes on any more; so many bytes were moved since the last result.
    Moved(u64),
    /// A system call is being made: ask again.
    Busy,
}

/// Memory for the copies of one client.
pub trait Space: Send + Sync {
    /// Returns the place at `offset` in a `region`, as one number that identifies the byte among
    /// all regions. `None` if `len` bytes from there are not completely the client's.
    fn place(&self, region: u16, offset: u64, len: u64) -> Option<u64>;

    /// Copies `len` bytes between two places. If the ranges overlap, the result is undefined
    /// bytes.
    ///
    /// # Errors
    /// [`Fault`]: a byte cannot be read or written. The bytes before it may have been copied.
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault>;

    /// As [`Space::copy`], with the cache hint of the whole copy that this is a part of.
    ///
    /// # Errors
    /// As for [`Space::copy`].
    fn copy_part(&self, dst: u64, src: u64, len: u64, hint: Hint) -> Result<(), Fault> {
        let _ = hint;
        self.copy(dst, src, len)
    }

    /// Returns the same places for asynchronous units; `None` if only [`Space::copy`] can access
    /// them.
    fn reach(self: Arc<Self>) -> Option<Arc<dyn Reach>> {
        None
    }

    /// Returns the address of `len` bytes from a place in this process; `None` if it is not
    /// disclosed.
    fn address(&self, place: u64, len: u64) -> Option<Address> {
        let _ = (place, len);
        None
    }

    /// Receives up to `len` bytes from socket `fd` of the client to a place, without blocking.
    /// Returns 0 at the end.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::WouldBlock`] if there is nothing yet, EFAULT for a bad
    /// place, EBADF if this service cannot access the client's sockets.
    fn receive(&self, fd: i32, dst: u64, len: u64) -> io::Result<u64> {
        let _ = (fd, dst, len);
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }

    /// As [`Space::receive`], to several places in order: each a place and its length. Only the
    /// first [`PARTS_MAX`] count.
    ///
    /// # Errors
    /// As for [`Space::receive`]. If one of the places is bad, those before it may have been
    /// overwritten by bytes that are still in the socket.
    fn receive_scatter(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        match places.first() {
            Some(&(dst, len)) => self.receive(fd, dst, len),
            None => Ok(0),
        }
    }

    /// As [`Space::send`], from several places in order.
    ///
    /// # Errors
    /// As for [`Space::receive`].
    fn send_gather(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        match places.first() {
            Some(&(src, len)) => self.send(fd, src, len),
            None => Ok(0),
        }
    }

    /// Returns true if the client's sockets have these numbers: descriptors of this process by
    /// default, for a client of this process.
    fn has_socket(&self, fd: i32) -> bool {
        fd >= 0
    }

    /// Returns the number of receives and sends that were over after [`io::ErrorKind::WouldBlock`],
    /// where another thread makes the system calls: their sockets are worth an attempt.
    fn results(&self) -> u64 {
        0
    }

    /// Gives a receive or send up that may go on after [`io::ErrorKind::WouldBlock`], where another
    /// thread makes the system calls. By default none does.
    fn cancel(&self, fd: i32, is_send: bool) -> Cancelled {
        let _ = (fd, is_send);
        Cancelled::Moved(0)
    }

    /// Sends up to `len` bytes from a place to socket `fd` of the client, without blocking.
    ///
    /// # Errors
    /// As for [`Space::receive`].
    fn send(&self, fd: i32, src: u64, len: u64) -> io::Result<u64> {
        let _ = (fd, src, len);
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }
}

/// All memory of this process: places are addresses, and the only region is 0.
#[derive(Debug)]
pub struct OwnMemory(Guard);

impl OwnMemory {
    /// Creates the address space of a service in this process.
    ///
    /// # Safety
    /// Every party that submits copies to the service guarantees for each of them: until it is
    /// over, another thread may read its source and overwrite its destination, and no reference is
    /// in use that this would invalidate. Addresses may be unmapped.
    pub unsafe fn new(guard: Guard) -> OwnMemory {
        OwnMemory(guard)
    }
}

impl Space for OwnMemory {
    fn place(&self, region: u16, offset: u64, len: u64) -> Option<u64> {
        let fits = usize::try_from(offset.checked_add(len)?).is_ok();
        (region == 0 && fits).then_some(offset)
    }

    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        self.copy_part(dst, src, len, hint_for(len))
    }

    fn copy_part(&self, dst: u64, src: u64, len: u64, hint: Hint) -> Result<(), Fault> {
        let (to, from) = (dst as usize as *mut u8, src as usize as *const u8);
        // SAFETY: the creator of this value guaranteed that the requested ranges may be read and
        // overwritten, or are unmapped, which the guard detects. A service's threads call
        // `unblock` first, so the signals are not blocked.
        unsafe { self.0.copy_guarded(to, from, len as usize, hint) }
    }

    fn reach(self: Arc<Self>) -> Option<Arc<dyn Reach>> {
        Some(self)
    }

    fn address(&self, place: u64, len: u64) -> Option<Address> {
        let address = usize::try_from(place).ok()?;
        usize::try_from(place.checked_add(len)?).ok()?;
        Some(Address { address, is_lasting: false })
    }

    fn receive(&self, fd: i32, dst: u64, len: u64) -> io::Result<u64> {
        let to = dst as usize as *mut libc::c_void;
        // SAFETY: the kernel writes at most `len` bytes, and reports addresses that it cannot
        // write. The creator of this value guaranteed that the requested range may be overwritten.
        result(unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, libc::MSG_DONTWAIT, 0, 0) })
    }

    fn receive_scatter(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        // SAFETY: the header refers to the parts, which live as long as the call. The kernel
        // writes to these ranges, and reports addresses that it cannot write. The creator of this
        // value guaranteed that the requested ranges may be overwritten.
        let receive = |message: &mut libc::msghdr| unsafe {
            libc::syscall(libc::SYS_recvmsg, fd, ptr::from_mut(message), libc::MSG_DONTWAIT)
        };
        result(with_parts(places, receive))
    }

    fn send_gather(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header refers to the parts, which live as long as the call. The kernel reads
        // these ranges, and reports addresses that it cannot read.
        let send = |message: &mut libc::msghdr| unsafe {
            libc::syscall(libc::SYS_sendmsg, fd, ptr::from_mut(message), flags)
        };
        result(with_parts(places, send))
    }

    fn send(&self, fd: i32, src: u64, len: u64) -> io::Result<u64> {
        let from = src as usize as *const libc::c_void;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads at most `len` bytes, and reports addresses that it cannot read.
        result(unsafe { libc::syscall(libc::SYS_sendto, fd, from, len, flags, 0, 0) })
    }
}

// SAFETY: the creator of the value guaranteed for all submitted copies that other threads may
// overwrite their destinations until they are over; the submitters gave these addresses.
unsafe impl Reach for OwnMemory {
    fn chunk(&self, dst: u64, src: u64, len: u64) -> Option<Chunk> {
        let len = usize::try_from(len).ok()?;
        let (to, from) = (usize::try_from(dst).ok()?, usize::try_from(src).ok()?);
        to.checked_add(len)?;
        from.checked_add(len)?;
        Some(Chunk { dst: to as *mut u8, src: from as *const u8, len })
    }
}

/// Makes a system call with these places in the kernel's format.
fn with_parts(places: &[(u64, u64)], call: impl FnOnce(&mut libc::msghdr) -> i64) -> i64 {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut parts = [nothing; PARTS_MAX];
    for (part, &(place, len)) in parts.iter_mut().zip(places) {
        *part = libc::iovec { iov_base: place as usize as *mut _, iov_len: len as usize };
    }
    // SAFETY: all zeroes is a valid value of the structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = places.len().min(PARTS_MAX) as _;
    call(&mut message)
}

/// The result of a system call. The C library's functions are not used: AddressSanitizer intercepts
/// them, and reports buffers of a program that it must not touch yet.
pub(crate) fn result(returned: i64) -> io::Result<u64> {
    u64::try_from(returned).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::install;

    #[test]
    fn bytes_go_from_place_to_place_and_bad_places_are_errors() {
        let Ok(guard) = install() else {
            println!("skipped: no fault guard on this architecture");
            return;
        };
        // SAFETY: the only copies are those below, between these two arrays, or from an unmapped
        // address.
        let space = unsafe { OwnMemory::new(guard) };
        let source = [7u8; 300];
        let mut destination = [0u8; 300];
        let (src, dst) = (source.as_ptr().expose_provenance(), destination.as_mut_ptr());
        let dst = dst.expose_provenance();
        assert_eq!(space.place(0, src as u64, 300), Some(src as u64));
        assert_eq!(space.place(1, src as u64, 300), None);
        assert_eq!(space.place(0, u64::MAX, 2), None);
        space.copy(dst as u64, src as u64, 300).unwrap();
        assert_eq!(destination, source);
        assert!(space.copy(dst as u64, 16, 300).is_err());
    }
}
