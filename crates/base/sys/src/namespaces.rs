//! Namespaces of the calling thread.

use rustix::io;
use rustix::thread::UnshareFlags;

/// What a thread can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Control groups: the thread's own become the root that it sees.
    Cgroup,
    /// System V IPC, message queues.
    Ipc,
    /// Interfaces, routes, sockets.
    Network,
    /// Mounts.
    Mount,
    /// Process numbers: of the children that it has from now on.
    Pid,
    /// Users, and what may be done in namespaces that are made in it.
    User,
    /// The host's name.
    Uts,
}

/// Puts the calling thread into new namespaces of its own (`unshare`).
///
/// # Errors
/// The kernel's: EPERM without the right, ENOSPC over a limit of `/proc/sys/user`.
pub fn unshare(namespaces: &[Namespace]) -> io::Result<()> {
    let flags = namespaces.iter().fold(UnshareFlags::empty(), |flags, namespace| {
        flags
            | match namespace {
                Namespace::Cgroup => UnshareFlags::NEWCGROUP,
                Namespace::Ipc => UnshareFlags::NEWIPC,
                Namespace::Network => UnshareFlags::NEWNET,
                Namespace::Mount => UnshareFlags::NEWNS,
                Namespace::Pid => UnshareFlags::NEWPID,
                Namespace::User => UnshareFlags::NEWUSER,
                Namespace::Uts => UnshareFlags::NEWUTS,
            }
    });
    // SAFETY: what makes the call unsafe is CLONE_FILES, which takes descriptors apart that threads
    // share; none of these flags does, and a new mount namespace only copies the thread's root and
    // working directory (CLONE_FS), which are no memory of this program's.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_alone() {
        let of_thread = || std::fs::read_link("/proc/thread-self/ns/uts").unwrap();
        let before = of_thread();
        let after = std::thread::spawn(move || match unshare(&[Namespace::Uts]) {
            Ok(()) => Some(of_thread()),
            Err(_) => None,
        });
        match after.join().unwrap() {
            Some(after) => assert_ne!(after, before),
            None => println!("skipped: a new UTS namespace needs CAP_SYS_ADMIN"),
        }
        assert_eq!(of_thread(), before, "others stay");
    }
}
