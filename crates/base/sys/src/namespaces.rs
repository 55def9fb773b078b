//! Namespaces of the calling thread.

use rustix::io;
use rustix::thread::UnshareFlags;

/// A namespace that a thread can unshare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Control groups: the thread's own cgroup becomes its visible root.
    Cgroup,
    /// System V IPC, message queues.
    Ipc,
    /// Interfaces, routes, sockets.
    Network,
    /// Mounts.
    Mount,
    /// Process numbers: of the thread's future children.
    Pid,
    /// Users, and permissions in the namespaces created in it.
    User,
    /// The host's name.
    Uts,
}

/// Moves the calling thread into new namespaces (`unshare`).
///
/// # Errors
/// The kernel's: EPERM without the permission, ENOSPC over a limit of `/proc/sys/user`.
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
    // SAFETY: the call is unsafe because of CLONE_FILES, which separates descriptors that threads
    // share; none of these flags includes it. A new mount namespace only copies the thread's root
    // and working directory (CLONE_FS), which are not memory of this program.
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
