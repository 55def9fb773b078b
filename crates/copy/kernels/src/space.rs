//! Where a client's addresses are: what a service may touch on its behalf.

use std::io;
use std::sync::Arc;

use crate::device::Piece;
use crate::guard::{Fault, Guard};
use crate::kernel::Hint;
use crate::stream::STREAM_BYTES_MIN;

/// Most places of one receive or send.
pub const PARTS_MAX: usize = 64;

/// What a copy of so many bytes wants of the caches.
pub(crate) fn hint_for(len: u64) -> Hint {
    if len >= STREAM_BYTES_MIN as u64 { Hint::Stream } else { Hint::Reuse }
}

/// A place in this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Of its first byte.
    pub address: usize,
    /// Whether the mapping stays for as long as the client; else it may be another one any time.
    pub is_lasting: bool,
}

/// Addresses of a client's places, for units that copy by themselves.
///
/// # Safety
/// Who implements it promises of every [`Piece`] that it gives: for as long as this value lives
/// nothing but what copies of the client may overwrite is at its destination, and no reference
/// points there that a copy would break; nor is anything mapped there meanwhile that is not the
/// client's. Nothing may be mapped there at all.
pub unsafe trait Reach: Send + Sync {
    /// Both ranges of a copy; none where one is not all the client's.
    fn piece(&self, dst: u64, src: u64, len: u64) -> Option<Piece>;
}

/// Memory that copies of one client go from and to.
pub trait Space: Send + Sync {
    /// `offset` bytes into a `region`, as one number that names the byte among all regions; none
    /// where `len` bytes from there on are not all the client's.
    fn place(&self, region: u16, offset: u64, len: u64) -> Option<u64>;

    /// Copies `len` bytes between two places; ranges that overlap leave anything in the
    /// destination.
    ///
    /// # Errors
    /// [`Fault`]: a byte cannot be read or written. Those before it may have been copied.
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault>;

    /// As [`Space::copy`], with what the whole copy wants of the caches of which this is a part.
    ///
    /// # Errors
    /// As for [`Space::copy`].
    fn copy_part(&self, dst: u64, src: u64, len: u64, hint: Hint) -> Result<(), Fault> {
        let _ = hint;
        self.copy(dst, src, len)
    }

    /// The same places for units that copy by themselves; none where only [`Space::copy`] can.
    fn reach(self: Arc<Self>) -> Option<Arc<dyn Reach>> {
        None
    }

    /// Where `len` bytes from a place on are in this process; none where that is nobody's concern.
    fn address(&self, place: u64, len: u64) -> Option<Address> {
        let _ = (place, len);
        None
    }

    /// Receives up to `len` bytes from socket `fd` of the client to a place, without waiting. 0 is
    /// the end.
    ///
    /// # Errors
    /// The kernel's: [`io::ErrorKind::WouldBlock`] where there is nothing yet, EFAULT for a bad
    /// place, EBADF where the client's sockets are not this service's.
    fn receive(&self, fd: i32, dst: u64, len: u64) -> io::Result<u64> {
        let _ = (fd, dst, len);
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }

    /// As [`Space::receive`], to several places one after the other: each a place and its bytes, of
    /// which the first [`PARTS_MAX`] count.
    ///
    /// # Errors
    /// As for [`Space::receive`]. Where one of the places is bad, those before it may have been
    /// overwritten by bytes that the socket still has.
    fn receive_scatter(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        match places.first() {
            Some(&(dst, len)) => self.receive(fd, dst, len),
            None => Ok(0),
        }
    }

    /// As [`Space::send`], from several places one after the other.
    ///
    /// # Errors
    /// As for [`Space::receive`].
    fn send_gather(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        match places.first() {
            Some(&(src, len)) => self.send(fd, src, len),
            None => Ok(0),
        }
    }

    /// Sends up to `len` bytes from a place to socket `fd` of the client, without waiting.
    ///
    /// # Errors
    /// As for [`Space::receive`].
    fn send(&self, fd: i32, src: u64, len: u64) -> io::Result<u64> {
        let _ = (fd, src, len);
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }
}

/// All memory of this process: places are addresses, and there is one region, 0.
#[derive(Debug)]
pub struct OwnMemory(Guard);

impl OwnMemory {
    /// For a service in this process.
    ///
    /// # Safety
    /// Whoever has copies made by the service promises for each of them: until it is over, its
    /// source may be read and its destination overwritten by another thread, and no reference is in
    /// use that this breaks. Addresses at which nothing is mapped may be among them.
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
        // SAFETY: who made this value promised that what is asked for here may be read and
        // overwritten, or is not mapped, which the guard finds. Signals are not blocked in a
        // service's threads, which call `unblock` first.
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
        // SAFETY: the kernel writes at most `len` bytes, where it can, and says so where it cannot;
        // who made this value promised that what is asked for here may be overwritten.
        result(unsafe { libc::recv(fd, to, len as usize, libc::MSG_DONTWAIT) })
    }

    fn receive_scatter(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        // SAFETY: the header names the parts, which live as long as the call. The kernel writes
        // there, where it can, and says so where it cannot; who made this value promised that what
        // is asked for here may be overwritten.
        let receive = |message: &mut _| unsafe { libc::recvmsg(fd, message, libc::MSG_DONTWAIT) };
        result(with_parts(places, receive))
    }

    fn send_gather(&self, fd: i32, places: &[(u64, u64)]) -> io::Result<u64> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header names the parts, which live as long as the call. The kernel reads
        // there, where it can, and says so where it cannot.
        let send = |message: &mut _| unsafe { libc::sendmsg(fd, message, flags) };
        result(with_parts(places, send))
    }

    fn send(&self, fd: i32, src: u64, len: u64) -> io::Result<u64> {
        let from = src as usize as *const libc::c_void;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads at most `len` bytes, where it can, and says so where it cannot.
        result(unsafe { libc::send(fd, from, len as usize, flags) })
    }
}

// SAFETY: who made the value promised of all copies that are asked for that their destinations may
// be overwritten by another thread until they are over, and named their addresses.
unsafe impl Reach for OwnMemory {
    fn piece(&self, dst: u64, src: u64, len: u64) -> Option<Piece> {
        let len = usize::try_from(len).ok()?;
        let (to, from) = (usize::try_from(dst).ok()?, usize::try_from(src).ok()?);
        to.checked_add(len)?;
        from.checked_add(len)?;
        Some(Piece { dst: to as *mut u8, src: from as *const u8, len })
    }
}

/// Has a system call made with these places, as the kernel wants them.
fn with_parts(places: &[(u64, u64)], call: impl FnOnce(&mut libc::msghdr) -> isize) -> isize {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut parts = [nothing; PARTS_MAX];
    for (part, &(place, len)) in parts.iter_mut().zip(places) {
        *part = libc::iovec { iov_base: place as usize as *mut _, iov_len: len as usize };
    }
    // SAFETY: all zeroes is a value of the structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = places.len().min(PARTS_MAX) as _;
    call(&mut message)
}

fn result(returned: isize) -> io::Result<u64> {
    u64::try_from(returned).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::install;

    #[test]
    fn bytes_go_from_place_to_place_and_bad_places_are_told() {
        let Ok(guard) = install() else {
            println!("skipped: no fault guard on this architecture");
            return;
        };
        // SAFETY: the only copies are those below, between these two arrays, or from nowhere.
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
