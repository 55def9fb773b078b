//! Whether sandboxes can be made on this machine, by doing it: not by versions.

use rustix::thread::CapabilitySet;
use unlade_sys::namespaces::{Namespace, unshare};

/// What the keeper does as root.
const NEEDED: [(CapabilitySet, &str); 6] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::SYS_CHROOT, "CAP_SYS_CHROOT"),
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::KILL, "CAP_KILL"),
];

/// Tries what a sandbox is made with.
///
/// # Errors
/// What is missing, and what to do.
pub fn all() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root: namespaces, mounts and users are made by it".to_owned());
    }
    let held = rustix::thread::capabilities(None).map_err(|error| error.to_string())?.effective;
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(capability, _)| !held.contains(*capability))
        .map(|(_, name)| *name)
        .collect();
    if !missing.is_empty() {
        return Err(format!("lacks {}: give the service these", missing.join(", ")));
    }
    // A thread of its own leaves, and ends.
    let tried = std::thread::spawn(|| {
        let first = [Namespace::Mount, Namespace::Ipc, Namespace::Uts, Namespace::Cgroup];
        unshare(&first)?;
        unshare(&[Namespace::Network])
    });
    match tried.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(format!("no new namespaces: {error}")),
        Err(_) => return Err("no new namespaces: the attempt was aborted".to_owned()),
    }
    users()
}

/// User namespaces: a process with threads cannot leave its own, so the limit is looked at.
fn users() -> Result<(), String> {
    let limit = "/proc/sys/user/max_user_namespaces";
    match std::fs::read_to_string(limit).map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(0)) => Err(format!("user namespaces are off: write a number to {limit}")),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the kernel has no user namespaces ({limit}: {error})")),
    }
}
