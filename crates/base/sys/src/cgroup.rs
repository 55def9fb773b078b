//! The cgroup of this process, as a directory that programs can be attached to.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Opens the directory of this process's cgroup (version 2). The hierarchy is mounted temporarily
/// and privately, because it need not be visible in the mount namespace of the process (inside
/// `ip netns exec` it is not).
///
/// # Errors
/// `Unsupported` if there is no version 2 hierarchy; the kernel's otherwise (CAP_SYS_ADMIN and
/// Linux ≥ 5.2 are needed).
pub fn open_own() -> io::Result<OwnedFd> {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup")?;
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::/")).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "this process is in no version 2 cgroup")
    })?;
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let path = if own.is_empty() { "." } else { own };
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(&root, path, flags, Mode::empty())?)
}
