//! Checks that sandboxes can be created on this machine, by trying it instead of comparing
//! versions.

use rustix::thread::CapabilitySet;
use unlade_sys::namespaces::{Namespace, unshare};

/// The capabilities of the supervisor.
const NEEDED: [(CapabilitySet, &str); 6] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::SYS_CHROOT, "CAP_SYS_CHROOT"),
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::KILL, "CAP_KILL"),
];

/// Tries the operations that create a sandbox.
///
/// # Errors
/// The missing requirement, and the remedy.
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
    // A separate thread enters the namespaces and ends.
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

/// Checks user namespaces by their limit, because a process with threads cannot leave its own.
fn users() -> Result<(), String> {
    let limit = "/proc/sys/user/max_user_namespaces";
    match std::fs::read_to_string(limit).map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(0)) => Err(format!("user namespaces are off: write a number to {limit}")),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the kernel has no user namespaces ({limit}: {error})")),
    }
}
