//! Functions of the C library behind the ones that this library replaces.
//!
//! Each is resolved once: at the start of the process, or by the first call, if another library
//! calls before that. A call while its function is being resolved (by another thread, or from
//! within `dlsym`) is served without the C library.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A function of the C library. The address comes first, because code in assembly jumps through it.
#[repr(C)]
pub struct Real {
    address: AtomicPtr<()>,
    is_resolving: AtomicBool,
    name: &'static CStr,
}

/// `memcpy` and `memmove`.
pub type Move = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
/// `__memcpy_chk` and `__memmove_chk`.
pub type MoveChecked =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> *mut c_void;
/// `read`. A cancelled thread unwinds from it.
pub type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize) -> isize;
/// `recv`. A cancelled thread unwinds from it.
pub type Recv = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, c_int) -> isize;
/// `epoll_ctl`.
pub type EpollCtl = unsafe extern "C" fn(c_int, c_int, c_int, *mut libc::epoll_event) -> c_int;
/// `setsockopt`.
pub type SetSockOpt =
    unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;

/// `memcpy`.
pub static MEMCPY: Real = Real::new(first_memcpy as *mut (), c"memcpy");
/// `memmove`.
pub static MEMMOVE: Real = Real::new(first_memmove as *mut (), c"memmove");
/// `__memcpy_chk`.
pub static MEMCPY_CHK: Real = Real::new(first_memcpy_chk as *mut (), c"__memcpy_chk");
/// `__memmove_chk`.
pub static MEMMOVE_CHK: Real = Real::new(first_memmove_chk as *mut (), c"__memmove_chk");
/// `read`.
pub static READ: Real = Real::new(first_read as *mut (), c"read");
/// `recv`.
pub static RECV: Real = Real::new(first_recv as *mut (), c"recv");
/// `epoll_ctl`.
pub static EPOLL_CTL: Real = Real::new(first_epoll_ctl as *mut (), c"epoll_ctl");
/// `setsockopt`.
pub static SETSOCKOPT: Real = Real::new(first_setsockopt as *mut (), c"setsockopt");

/// Resolves all functions.
pub fn resolve_all() {
    for real in
        [&MEMCPY, &MEMMOVE, &MEMCPY_CHK, &MEMMOVE_CHK, &READ, &RECV, &EPOLL_CTL, &SETSOCKOPT]
    {
        real.resolve();
    }
}

impl Real {
    const fn new(first: *mut (), name: &'static CStr) -> Real {
        Real { address: AtomicPtr::new(first), is_resolving: AtomicBool::new(false), name }
    }

    /// Address of the function, or of its first call.
    #[inline]
    pub fn address(&self) -> *mut () {
        self.address.load(Ordering::Relaxed)
    }

    /// Resolves the function; `None` if that is going on. Ends the process if there is no such
    /// function, because nothing else could be done in its place.
    fn resolve(&self) -> Option<*mut ()> {
        if self.is_resolving.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }.cast::<()>();
        if found.is_null() {
            let text = b"unlade: the C library lacks a function that libunlade_preload replaces\n";
            // SAFETY: the text is readable.
            unsafe {
                libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len());
                libc::abort();
            }
        }
        self.address.store(found, Ordering::Relaxed);
        self.is_resolving.store(false, Ordering::Release);
        Some(found)
    }
}

/// Copies byte by byte, ranges that overlap included.
///
/// # Safety
/// As for `memmove`.
unsafe fn plain_move(dst: *mut c_void, src: *const c_void, len: usize) {
    if dst.addr().wrapping_sub(src.addr()) >= len {
        // SAFETY: guaranteed by the caller; no byte of `src` is written before it is read.
        unsafe { crate::movsb::rep_movsb(dst, src, len) };
        return;
    }
    for at in (0..len).rev() {
        // SAFETY: guaranteed by the caller. Volatile, or the compiler would call `memmove`.
        unsafe {
            let byte = src.cast::<u8>().add(at).read_volatile();
            dst.cast::<u8>().add(at).write_volatile(byte);
        }
    }
}

unsafe extern "C" fn first_memcpy(dst: *mut c_void, src: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's arguments are those of `memcpy`.
    unsafe { first_move(&MEMCPY, dst, src, len) }
}

unsafe extern "C" fn first_memmove(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
) -> *mut c_void {
    // SAFETY: the caller's arguments are those of `memmove`.
    unsafe { first_move(&MEMMOVE, dst, src, len) }
}

unsafe fn first_move(real: &Real, dst: *mut c_void, src: *const c_void, len: usize) -> *mut c_void {
    match real.resolve() {
        // SAFETY: both functions have this type.
        Some(found) => unsafe { std::mem::transmute::<*mut (), Move>(found)(dst, src, len) },
        None => {
            // SAFETY: guaranteed by the caller.
            unsafe { plain_move(dst, src, len) };
            dst
        }
    }
}

unsafe extern "C" fn first_memcpy_chk(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    room: usize,
) -> *mut c_void {
    // SAFETY: the caller's arguments are those of `__memcpy_chk`.
    unsafe { first_move_chk(&MEMCPY_CHK, dst, src, len, room) }
}

unsafe extern "C" fn first_memmove_chk(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    room: usize,
) -> *mut c_void {
    // SAFETY: the caller's arguments are those of `__memmove_chk`.
    unsafe { first_move_chk(&MEMMOVE_CHK, dst, src, len, room) }
}

unsafe fn first_move_chk(
    real: &Real,
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    room: usize,
) -> *mut c_void {
    match real.resolve() {
        // SAFETY: both functions have this type.
        Some(found) => unsafe {
            std::mem::transmute::<*mut (), MoveChecked>(found)(dst, src, len, room)
        },
        None if len > room => std::process::abort(),
        None => {
            // SAFETY: guaranteed by the caller.
            unsafe { plain_move(dst, src, len) };
            dst
        }
    }
}

unsafe extern "C-unwind" fn first_read(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    match READ.resolve() {
        // SAFETY: the function has this type, and the caller's arguments are those of `read`.
        Some(found) => unsafe { std::mem::transmute::<*mut (), Read>(found)(fd, buf, len) },
        // SAFETY: as above.
        None => unsafe { libc::syscall(libc::SYS_read, fd, buf, len) as isize },
    }
}

unsafe extern "C-unwind" fn first_recv(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    match RECV.resolve() {
        // SAFETY: the function has this type, and the caller's arguments are those of `recv`.
        Some(found) => unsafe { std::mem::transmute::<*mut (), Recv>(found)(fd, buf, len, flags) },
        // SAFETY: as above; without an address, recvfrom(2) is recv(2).
        None => unsafe {
            let none = 0 as c_long;
            libc::syscall(libc::SYS_recvfrom, fd, buf, len, flags, none, none) as isize
        },
    }
}

unsafe extern "C" fn first_epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    match EPOLL_CTL.resolve() {
        // SAFETY: the function has this type, and the caller's arguments are those of `epoll_ctl`.
        Some(found) => unsafe {
            std::mem::transmute::<*mut (), EpollCtl>(found)(epoll, operation, fd, event)
        },
        // SAFETY: as above.
        None => unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, event) as c_int },
    }
}

unsafe extern "C" fn first_setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    match SETSOCKOPT.resolve() {
        // SAFETY: the function has this type, and the caller's arguments are those of `setsockopt`.
        Some(found) => unsafe {
            std::mem::transmute::<*mut (), SetSockOpt>(found)(fd, level, option, value, len)
        },
        // SAFETY: as above.
        None => unsafe {
            libc::syscall(libc::SYS_setsockopt, fd, level, option, value, len) as c_int
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_move_is_a_move() {
        for (to, from) in [(0, 7), (7, 0), (0, 0), (40, 0), (0, 40)] {
            let mut bytes: Vec<u8> = (0..100).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + 33, to);
            let base = bytes.as_mut_ptr();
            // SAFETY: both ranges are within the 100 bytes.
            unsafe { plain_move(base.add(to).cast(), base.add(from).cast(), 33) };
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn a_call_during_the_resolution_is_served() {
        static REAL: Real = Real::new(first_memcpy as *mut (), c"memcpy");
        REAL.is_resolving.store(true, Ordering::Relaxed);
        let (src, mut dst) = ([7_u8; 64], [0_u8; 64]);
        // SAFETY: both arrays have 64 bytes.
        unsafe { first_move(&REAL, dst.as_mut_ptr().cast(), src.as_ptr().cast(), 64) };
        assert_eq!(src, dst);
        assert_eq!(REAL.address(), first_memcpy as *mut ());
        REAL.is_resolving.store(false, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { first_move(&REAL, dst.as_mut_ptr().cast(), src.as_ptr().cast(), 64) };
        assert_ne!(REAL.address(), first_memcpy as *mut ());
    }
}
