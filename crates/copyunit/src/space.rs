//! Where a client's addresses are: what a service may touch on its behalf.

use std::io;

use crate::guard::{Fault, Guard};
use crate::kernel::Hint;

/// From so many bytes on a copy goes past the caches: they would hold nothing else afterwards.
const STREAM_BYTES_MIN: u64 = 8 << 20;

/// What a copy of so many bytes wants of the caches.
pub(crate) fn hint_for(len: u64) -> Hint {
    if len >= STREAM_BYTES_MIN { Hint::Stream } else { Hint::Reuse }
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
        let hint = hint_for(len);
        let (to, from) = (dst as usize as *mut u8, src as usize as *const u8);
        // SAFETY: who made this value promised that what is asked for here may be read and
        // overwritten, or is not mapped, which the guard finds. Signals are not blocked in a
        // service's threads, which call `unblock` first.
        unsafe { self.0.copy_guarded(to, from, len as usize, hint) }
    }

    fn receive(&self, fd: i32, dst: u64, len: u64) -> io::Result<u64> {
        let to = dst as usize as *mut libc::c_void;
        // SAFETY: the kernel writes at most `len` bytes, where it can, and says so where it cannot;
        // who made this value promised that what is asked for here may be overwritten.
        result(unsafe { libc::recv(fd, to, len as usize, libc::MSG_DONTWAIT) })
    }

    fn send(&self, fd: i32, src: u64, len: u64) -> io::Result<u64> {
        let from = src as usize as *const libc::c_void;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads at most `len` bytes, where it can, and says so where it cannot.
        result(unsafe { libc::send(fd, from, len as usize, flags) })
    }
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
