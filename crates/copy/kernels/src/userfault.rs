//! userfaultfd(2): pages that the kernel moves, fills and protects for a process in its own memory.
//!
//! A descriptor acts on the process that opened it, whoever calls: a child after fork(2) must not
//! use that of its parent.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Flag of userfaultfd(2): only faults of user code, which needs no privilege (Linux 5.11).
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
/// Version of the interface.
const UFFD_API: u64 = 0xAA;
/// Maximum number of attempts of a request that the kernel asks to repeat.
const ATTEMPTS_MAX: u32 = 16;

/// A feature: writes to pages that were never touched are reported, too (Linux 6.4).
pub(crate) const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// A feature: `UFFDIO_MOVE` (Linux 6.8).
pub(crate) const FEATURE_MOVE: u64 = 1 << 16;

const MODE_WRITE_PROTECT: u64 = 1 << 1;
const PROTECT: u64 = 1;
/// Absent pages of the source are absent in the destination: they read as zeros in both.
const MOVE_ALLOW_HOLES: u64 = 1 << 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// Number of a request that reads and writes a structure, as `_IOWR`.
const fn read_write<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | 0xAA << 8 | number
}

/// Number of a request that is marked as one that only reads, as `_IOR`.
const fn read_only<T>(number: u64) -> u64 {
    2 << 30 | (size_of::<T>() as u64) << 16 | 0xAA << 8 | number
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    range: [u64; 2],
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    range: [u64; 2],
    mode: u64,
}

/// Arguments of a copy and of a move.
#[repr(C)]
struct Transfer {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    /// The bytes that were transferred, or a negative error.
    done: i64,
}

/// A message of the kernel.
#[repr(C)]
#[derive(Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    more: u64,
}

/// An open userfaultfd.
#[derive(Debug)]
pub(crate) struct Userfault {
    fd: OwnedFd,
    has_kernel_faults: bool,
}

fn pair(range: &Range<usize>) -> [u64; 2] {
    [range.start as u64, range.len() as u64]
}

impl Userfault {
    /// Opens one with some features. With `kernel`, also for faults of system calls if this process
    /// may serve those.
    ///
    /// # Errors
    /// The system call is not permitted, or the kernel lacks a feature.
    pub fn open(features: u64, kernel: bool) -> io::Result<Userfault> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let all = if kernel { open_with(flags).ok() } else { None };
        let has_kernel_faults = all.is_some();
        let fd = all.map_or_else(|| open_with(flags | UFFD_USER_MODE_ONLY), Ok)?;
        let opened = Userfault { fd, has_kernel_faults };
        // The kernel enables what is asked for. Moves need not be enabled: it only says whether it
        // has them.
        let enabled = features & !FEATURE_MOVE;
        let mut api = Api { api: UFFD_API, features: enabled, ioctls: 0 };
        // SAFETY: the structure is the one of the request.
        unsafe { opened.request(read_write::<Api>(0x3f), &mut api) }?;
        match api.features & features == features {
            true => Ok(opened),
            false => Err(io::Error::from_raw_os_error(libc::ENOTSUP)),
        }
    }

    /// Returns true if faults of system calls are served, too.
    pub fn has_kernel_faults(&self) -> bool {
        self.has_kernel_faults
    }

    /// # Safety
    /// `value` is the structure of this request, and the caller may have the kernel do with the
    /// memory what the request says.
    unsafe fn request<T>(&self, number: u64, value: &mut T) -> io::Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), number as _, std::ptr::from_mut(value)) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Registers whole pages, for writes to protected ones. Nothing is protected at first, so
    /// nobody notices.
    ///
    /// # Errors
    /// The pages are not mapped, not of memory that can be registered, or registered by another
    /// descriptor (EBUSY); or there are too many mappings (ENOMEM).
    pub fn register(&self, pages: &Range<usize>) -> io::Result<()> {
        let mut register = Register { range: pair(pages), mode: MODE_WRITE_PROTECT, ioctls: 0 };
        // SAFETY: a registration changes no byte.
        unsafe { self.request(read_write::<Register>(0), &mut register) }
    }

    /// Undoes a registration. Protected pages become writable. Threads that wait there need
    /// [`Userfault::wake`] afterwards: the kernel wakes those for absent pages only.
    ///
    /// # Errors
    /// The pages are not mapped any more.
    pub fn unregister(&self, pages: &Range<usize>) -> io::Result<()> {
        // SAFETY: it changes no byte.
        unsafe { self.request(read_only::<[u64; 2]>(1), &mut pair(pages)) }
    }

    /// Has the threads go on that wait for one of the pages, registered or not.
    ///
    /// # Errors
    /// The range is none of this process.
    pub fn wake(&self, pages: &Range<usize>) -> io::Result<()> {
        // SAFETY: it changes no byte.
        unsafe { self.request(read_only::<[u64; 2]>(2), &mut pair(pages)) }
    }

    /// Moves `len` bytes of whole pages to absent pages. Returns the number of moved bytes, and the
    /// error that ended the move before `len`. The moved pages are absent in the source then.
    ///
    /// The kernel refuses (EINVAL) ranges that are not each in one mapping of private anonymous
    /// memory, with the same protection and both locked or both not. It stops (EBUSY) at a page that
    /// another process has, too, or that a device may access, and (EEXIST) at a page of the
    /// destination that is not absent.
    ///
    /// # Safety
    /// The pages of the source may lose their content, and those of the destination may be
    /// overwritten: no reference points there.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> (usize, io::Result<()>) {
        // SAFETY: the caller's promise.
        unsafe { self.transfer(read_write::<Transfer>(5), [dst, src, len], MOVE_ALLOW_HOLES) }
    }

    /// Copies `len` bytes of whole pages to absent pages that are registered. Returns the number of
    /// copied bytes, and the error that ended the copy before `len`.
    ///
    /// # Safety
    /// The absent pages of the destination may be written: no reference points there.
    pub unsafe fn fill(&self, dst: usize, src: usize, len: usize) -> (usize, io::Result<()>) {
        // SAFETY: the caller's promise. The kernel reads the source as another process would.
        unsafe { self.transfer(read_write::<Transfer>(3), [dst, src, len], 0) }
    }

    /// # Safety
    /// As for the request.
    unsafe fn transfer(
        &self,
        number: u64,
        [dst, src, len]: [usize; 3],
        mode: u64,
    ) -> (usize, io::Result<()>) {
        let (mut done, mut attempts) = (0, 0);
        while done < len {
            let [dst, src, len] = [dst + done, src + done, len - done].map(|value| value as u64);
            let mut transfer = Transfer { dst, src, len, mode, done: 0 };
            // SAFETY: the caller's promise, for the rest of the range.
            let result = unsafe { self.request(number, &mut transfer) };
            done += usize::try_from(transfer.done).unwrap_or(0);
            let Err(error) = result else { continue };
            attempts = if transfer.done > 0 { 0 } else { attempts + 1 };
            let is_passing = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            if !is_passing || attempts >= ATTEMPTS_MAX {
                return (done, Err(error));
            }
        }
        (done, Ok(()))
    }

    /// Protects registered pages against writes, or lifts that; threads that wait there go on then.
    ///
    /// # Errors
    /// The pages are not mapped or not registered any more.
    pub fn protect(&self, pages: &Range<usize>, is_protected: bool) -> io::Result<()> {
        let mode = if is_protected { PROTECT } else { 0 };
        let mut protect = WriteProtect { range: pair(pages), mode };
        let mut attempts = 0;
        loop {
            // SAFETY: a protection changes no byte.
            let result = unsafe { self.request(read_write::<WriteProtect>(6), &mut protect) };
            attempts += 1;
            match result {
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
                        && attempts < ATTEMPTS_MAX => {}
                result => return result,
            }
        }
    }

    /// The address at which a thread waits to write, if any thread has begun to. Waits for about
    /// `timeout_ms`, 0 for none.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn next_fault(&self, timeout_ms: libc::c_int) -> io::Result<Option<usize>> {
        if timeout_ms != 0 {
            let mut poll =
                libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure.
            unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
        }
        let mut message = Message::default();
        let bytes = size_of::<Message>();
        // SAFETY: the kernel writes at most one message there.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut message).cast(), bytes) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let is_fault = read as usize == bytes && message.event == EVENT_PAGEFAULT;
        Ok(is_fault.then_some(message.address as usize))
    }
}

fn open_with(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call has no preconditions.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    match libc::c_int::try_from(fd) {
        // SAFETY: a new descriptor that nothing else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_kernel() {
        // As `linux/userfaultfd.h` defines them.
        assert_eq!(read_write::<Api>(0x3f), 0xc018_aa3f);
        assert_eq!(read_write::<Register>(0), 0xc020_aa00);
        assert_eq!(read_only::<[u64; 2]>(1), 0x8010_aa01);
        assert_eq!(read_write::<Transfer>(3), 0xc028_aa03);
        assert_eq!(read_write::<Transfer>(5), 0xc028_aa05);
        assert_eq!(read_write::<WriteProtect>(6), 0xc018_aa06);
        assert_eq!(size_of::<Message>(), 32);
    }
}
