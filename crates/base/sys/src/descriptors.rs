//! Descriptors of this process that its children must not inherit.

use std::io;

/// Sets CLOEXEC on all descriptors from `first` on (`close_range`), including those inherited from
/// the process that started this one.
///
/// # Errors
/// The kernel's: ENOSYS or EINVAL before Linux 5.11.
pub fn close_on_exec(first: u32) -> io::Result<()> {
    // SAFETY: three numbers, no memory. No descriptor is closed while this program runs, so every
    // owner of a descriptor still owns it; a program started by exec does not use the marked
    // descriptors.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd};
    use std::os::fd::AsRawFd;

    #[test]
    fn open_descriptors_are_marked_and_stay_open() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let open = rustix::io::dup(&file).unwrap();
        assert!(!fcntl_getfd(&open).unwrap().contains(FdFlags::CLOEXEC));
        match close_on_exec(open.as_raw_fd().unsigned_abs()) {
            Ok(()) => assert!(fcntl_getfd(&open).unwrap().contains(FdFlags::CLOEXEC)),
            Err(error) => println!("skipped: close_range: {error}"),
        }
    }
}
