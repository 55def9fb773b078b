//! Handling of page faults in user space: userfaultfd(2).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The page faults that are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Those of system calls too; needs CAP_SYS_PTRACE, or `vm.unprivileged_userfaultfd` = 1.
    All,
    /// Only those of the program's own instructions (Linux 5.11).
    UserOnly,
}

/// The flag of [`Faults::UserOnly`], from `<linux/userfaultfd.h>`.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;

/// Opens a descriptor for the registration of memory ranges; it reports their page faults.
///
/// # Errors
/// The kernel's: EPERM without the permission, ENOSYS if the kernel lacks the call.
pub fn userfaultfd(faults: Faults) -> io::Result<OwnedFd> {
    let only = if faults == Faults::UserOnly { UFFD_USER_MODE_ONLY } else { 0 };
    // SAFETY: the call takes flags only.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | only) };
    match i32::try_from(fd) {
        // SAFETY: the call succeeded, so it is a new descriptor without another owner.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_for_all_faults_includes_user_faults() {
        let may = |faults| userfaultfd(faults).is_ok();
        assert!(may(Faults::UserOnly) || !may(Faults::All));
    }
}
